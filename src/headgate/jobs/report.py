"""The output of a running attempt: its progress, its annotations and its log lines."""

from __future__ import annotations

import msgspec

from headgate.jobs.annotation import Annotation
from headgate.jobs.job import Progress, storable

LONGEST_LINE = 8192
"""The most characters of a log line; longer ones are cut."""

LONGEST_MESSAGE = 500
"""The most characters of a progress message."""

LONGEST_NAME = 200
"""The most characters of a logger's name."""

HIGHEST_LEVEL = 32767
"""The highest level of a log line; higher ones are stored as this."""

PLACES = 1 << 20
"""The lines of an attempt are numbered from `fence * PLACES`, so the numbers grow from attempt to attempt."""


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """A line that a job has logged, at wall microseconds; `number` grows over all its attempts, with gaps.

    Its level is 0 to HIGHEST_LEVEL, and its texts are cut and `storable`.
    """

    number: int
    at: int
    attempt: int
    level: int
    logger: str
    message: str


class AttemptReport(msgspec.Struct, frozen=True, array_like=True):
    """The output of one attempt since its last report; the lines in the order of their numbers.

    A repeated report has no effect: its lines have their numbers, and only the last progress is stored. `annotations`
    are all of the job, if some have changed.
    """

    id: str
    fence: int
    progress: Progress | None = None
    lines: tuple[LogLine, ...] = ()
    annotations: dict[str, Annotation] | None = None


def kept_level(level: object) -> int:
    """Return the level of a line as it is stored: in range, and 0 if it is no integer; any code may log."""
    return min(max(int(level), 0), HIGHEST_LEVEL) if isinstance(level, int) else 0


def kept_line(text: str) -> str:
    """Return the text of a line as it is stored."""
    return storable(text[:LONGEST_LINE])


def kept_name(logger: str) -> str:
    """Return the name of a logger as it is stored."""
    return storable(logger[:LONGEST_NAME])


def kept_message(message: str | None) -> str | None:
    """Return a progress message as it is stored."""
    return None if message is None else storable(message[:LONGEST_MESSAGE])


def too_many(limit: int) -> str:
    """Return the text in place of the first line that is not stored."""
    return f"… more than {limit} lines: further log lines of this job are not stored"
