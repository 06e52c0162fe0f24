"""The log: the one subscriber that turns events into log lines. Payloads and results never appear in it."""

from __future__ import annotations

import logging

import msgspec

from headgate.escaping import INDENT, indented, one_line
from headgate.jobs import event as events
from headgate.jobs.event import Event, JobFailure

logger = logging.getLogger("headgate")

MOST_TRACEBACK_LINES = 30
"""The most lines of the traceback of a failed job that the log shows, without its first line."""

LOGGED = tuple(
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind.level is not None
)
"""The kinds of events that have a log line."""


def log_event(event: Event) -> None:
    """Write the log line of an event; its fields are in `extra["headgate"]`."""
    level = event.own_level
    if level is not None and logger.isEnabledFor(level):
        extra = {"headgate": msgspec.structs.asdict(event), "event": type(event).__name__}
        logger.log(level, _escaped(event), extra=extra)


def logged_kinds(*, jobs: bool = False) -> tuple[type[Event], ...]:
    """Return the kinds of events that the log needs at its level, with `jobs` also the end of each job.

    When debugging, all events of each job.
    """
    is_debugging = logger.isEnabledFor(logging.DEBUG)

    def is_needed(kind: type[Event]) -> bool:
        if not kind.is_of_each_job:
            return True
        return is_debugging or (jobs and logger.isEnabledFor(kind.level or logging.DEBUG))

    return tuple(filter(is_needed, LOGGED))


def _escaped(event: Event) -> str:
    """Return one line, whatever errors and keys contain; after a final failure or a crash the traceback follows."""
    line, traceback = one_line(event.line()), (event.traceback() or "").rstrip()
    if not traceback:
        return line
    return f"{line}\n{INDENT}{indented(_shortened(traceback) if isinstance(event, JobFailure) else traceback)}"


def _shortened(traceback: str) -> str:
    """Return the traceback; of a long one its first line and the last lines, where the error is."""
    first, *lines = traceback.splitlines()
    omitted = len(lines) - MOST_TRACEBACK_LINES
    return traceback if omitted <= 0 else "\n".join([first, f"({omitted} lines left out)", *lines[omitted:]])
