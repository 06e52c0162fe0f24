"""Which jobs a command is about: the options that name them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import click

from headgate.admin import JobQuery
from headgate.arguments import duration_in
from headgate.clock import FARTHEST, SECOND
from headgate.jobs.job import JobState
from headgate.storage.protocol import JobView

INSTANTS = ("enqueued_after", "enqueued_before", "finished_after", "finished_before")


def when(value: str) -> datetime | timedelta:
    """An instant in ISO 8601 (UTC, unless it says otherwise), or how long ago: 90s, 15m, 2h, 3d."""
    # A number without a unit could be a year.
    length = duration_in(value) if value[-1:].isalpha() else None
    if length is not None and length <= FARTHEST:
        return timedelta(microseconds=length)
    try:
        return instant(value)
    except click.BadParameter:
        raise click.BadParameter(
            f"{value!r} is neither an instant, as 2026-05-01T08:00, nor how long ago, as 2h"
        ) from None


def instant(value: str) -> datetime:
    """An instant in ISO 8601: UTC, unless it says otherwise."""
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no instant; write 2026-05-01T08:00 or 2026-05-01T08:00+02:00") from None
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)


def seconds(value: str) -> float:
    """A duration: 90s, 15m, 2h, 7d, or a number of seconds; up to a hundred years."""
    length = duration_in(value)
    if length is None or length > FARTHEST:
        raise click.BadParameter(
            f"{value!r} is no duration; write 90s, 15m, 2h, 7d, 1h30m, or seconds, up to a hundred years"
        )
    return length / SECOND


def seconds_within(least: float, most: float = FARTHEST / SECOND) -> Callable[[str], float]:
    """Durations as `seconds` reads them, from `least` to `most` seconds."""

    def read(value: str) -> float:
        found = seconds(value)
        if not least <= found <= most:
            raise click.BadParameter(f"{value!r} must be from {least:g} to {most:g} seconds")
        return found

    return read


def takes_query(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name jobs, as `wanted`: what was said, by the names of `JobQuery`."""
    options = [
        click.option(
            "--state", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state."
        ),
        click.option("--view", type=click.Choice(get_args(JobView)), help="Only waiting jobs that wait for this."),
        click.option("--queue", metavar="NAME", help="Only jobs of this queue."),
        click.option("--task", metavar="NAME", help="Only jobs of this task."),
        click.option("--limit", metavar="NAME", help="Only jobs that draw on this limit."),
        click.option("--key", help="Only jobs that draw on a limit for this key."),
        click.option("--unique-key", help="Only jobs with this unique key."),
        click.option("--schedule", metavar="NAME", help="Only jobs of this schedule."),
        click.option("--batch", metavar="ID", help="Only jobs of this batch."),
        click.option("--node", metavar="ID", help="Only jobs that this node runs or ran last."),
        click.option("--error", metavar="TYPE", help="Only jobs whose last error is of a type that begins so."),
        click.option("--since", "enqueued_after", type=when, help="Only jobs enqueued since: 2h, or an instant."),
        click.option("--until", "enqueued_before", type=when, help="Only jobs enqueued before."),
        click.option("--finished-since", "finished_after", type=when, help="Only jobs that finished since."),
        click.option("--finished-until", "finished_before", type=when, help="Only jobs that finished before."),
        click.option("--text", help="Only jobs with this in their payload, which is JSON."),
    ]
    names = set(JobQuery.__dataclass_fields__)

    @functools.wraps(function)
    def command(**values: Any) -> None:
        wanted = {name: values.pop(name) for name in names}
        function(wanted={name: value for name, value in wanted.items() if value is not None}, **values)

    for option in reversed(options):
        command = option(command)
    return command


def query_at(wanted: dict[str, Any], now: datetime) -> JobQuery:
    """What was said, at the store's now."""
    said = dict(wanted)
    for name in INSTANTS:
        if isinstance(said.get(name), timedelta):
            said[name] = now - said[name]
    if "state" in said:
        said["state"] = JobState(said["state"])
    return JobQuery(**said)
