"""The options that select the jobs of a command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, get_args

import click
import msgspec
from msgspec.structs import FieldInfo

from headgate.admin import JobQuery
from headgate.arguments import duration_in
from headgate.clock import FARTHEST, SECOND
from headgate.jobs.job import JobState
from headgate.storage.records import JobView

F = TypeVar("F", bound=Callable[..., Any])


def when(value: str) -> datetime | timedelta:
    """Parse an instant in ISO 8601 (default: UTC), or an age: 90s, 15m, 2h, 3d."""
    # A number without a unit could be a year.
    length = duration_in(value) if value[-1:].isalpha() else None
    if length is not None and length <= FARTHEST:
        return timedelta(microseconds=length)
    try:
        return instant(value)
    except click.BadParameter:
        raise click.BadParameter(
            f"{value!r} is neither an instant, such as 2026-05-01T08:00, nor an age, such as 2h"
        ) from None


def instant(value: str) -> datetime:
    """Parse an instant in ISO 8601 (default: UTC)."""
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not an instant, such as 2026-05-01T08:00+02:00") from None
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)


def seconds(value: str) -> float:
    """Parse a duration: 90s, 15m, 2h, 7d, or a number of seconds; up to a hundred years."""
    length = duration_in(value)
    if length is None or length > FARTHEST:
        raise click.BadParameter(
            f"{value!r} is not a duration; write 90s, 15m, 2h, 7d, 1h30m, or seconds, up to a hundred years"
        )
    return length / SECOND


def seconds_within(least: float, most: float = FARTHEST / SECOND) -> Callable[[str], float]:
    """Return a parser of durations from `least` to `most` seconds, written as for `seconds`."""

    def read(value: str) -> float:
        found = seconds(value)
        if not least <= found <= most:
            raise click.BadParameter(f"{value!r} must be from {least:g} to {most:g} seconds")
        return found

    return read


def takes_query(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select jobs; the given ones are passed as `criteria`, by the names of `JobQuery`."""
    fields = msgspec.structs.fields(JobQuery)
    names = [field.name for field in fields]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        criteria = {name: values.pop(name) for name in names}
        function(criteria={name: value for name, value in criteria.items() if value is not None}, **values)

    for field in reversed(fields):
        command = _option(field)(command)
    return command


FLAGS = {
    "enqueued_after": "--since",
    "enqueued_before": "--until",
    "finished_after": "--finished-since",
    "finished_before": "--finished-until",
}
"""The options that have another name than their field."""

METAVARS = {
    **dict.fromkeys(("queue", "task", "limit", "schedule"), "NAME"),
    **dict.fromkeys(("batch", "node"), "ID"),
    "error": "TYPE",
    "tag": "TAG",
    "header": "NAME=TEXT",
    "annotation": "NAME=VALUE",
}

KINDS: dict[str, Any] = {
    "state": click.Choice([state.value for state in JobState]),
    "view": click.Choice(get_args(JobView)),
    **dict.fromkeys(FLAGS, when),
}
"""The parsers of options that are not text."""


def _option(field: FieldInfo) -> Callable[[F], F]:
    name = field.name
    (meta,) = field.type.__metadata__
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    return click.option(flag, name, type=KINDS.get(name), metavar=METAVARS.get(name), help=meta.description)


def query_at(criteria: dict[str, Any], now: datetime) -> JobQuery:
    """Return the given options, with ages computed from the store's time."""
    said = dict(criteria)
    for name in FLAGS:
        if isinstance(said.get(name), timedelta):
            said[name] = now - said[name]
    if "state" in said:
        said["state"] = JobState(said["state"])
    return JobQuery(**said)
