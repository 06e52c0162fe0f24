"""The options that select the jobs of a command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar, get_args

import click
import msgspec
from msgspec.structs import FieldInfo

from headgate.admin import Admin, JobQuery
from headgate.cli.times import when
from headgate.errors import UnknownLimit, UnknownTask
from headgate.escaping import printable
from headgate.jobs.job import JobState
from headgate.jobs.query import JobView

F = TypeVar("F", bound=Callable[..., Any])


def takes_query(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select jobs; the given ones are passed as `criteria`, by the names of `JobQuery`."""
    fields = msgspec.structs.fields(JobQuery)
    names = [field.name for field in fields]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        criteria = {name: values.pop(name) for name in names}
        refuse_empty(criteria)
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
    return click.option(_flag(name), name, type=KINDS.get(name), metavar=METAVARS.get(name), help=meta.description)


def refuse_empty(criteria: dict[str, Any]) -> None:
    """Raise UsageError for an empty text, as of a shell variable that is not set; a limit without a key has key ""."""
    for name, value in criteria.items():
        if value == "" and name != "key":
            raise click.UsageError(f"{_flag(name)} is empty; name what it selects, or leave the option out")


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def query_at(criteria: dict[str, Any], now: datetime) -> JobQuery:
    """Return the given options, with ages computed from the store's time."""
    said = dict(criteria)
    for name in FLAGS:
        if isinstance(said.get(name), timedelta):
            said[name] = now - said[name]
    if "state" in said:
        said["state"] = JobState(said["state"])
    return JobQuery(**said)


def note_unknown(admin: Admin, criteria: dict[str, Any]) -> None:
    """Say which limit or task of options that select nothing is not declared. It is no error: old jobs may have it."""
    limit, task = criteria.get("limit"), criteria.get("task")
    try:
        if limit is not None:
            admin.limits.declared(limit)
        if task is not None:
            admin.arguments(task)
    except UnknownLimit as error:
        hint = f"; to list at most {limit}, write --count {limit}" if str(limit).isdecimal() else ""
        click.echo(printable(f"Note: {error}{hint}"), err=True)
    except UnknownTask as error:
        click.echo(printable(f"Note: {error}"), err=True)
