"""What a running attempt says of itself: how far it is, and its log lines."""

from __future__ import annotations

import msgspec

from headgate.jobs.job import Progress, storable

LONGEST_LINE = 8192
"""Characters of a log line; what is longer is cut."""

LONGEST_WORD = 500
"""Characters of what a handler says about its progress."""

LONGEST_NAME = 200
"""Characters of a logger's name."""

HIGHEST_LEVEL = 32767
"""The highest level of a log line; what is above it is kept as this."""

PLACES = 1 << 20
"""The lines of one attempt have numbers from `fence * PLACES` on, so they grow from attempt to attempt."""


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
    """What one attempt has said since its last report; the lines in the order of their numbers.

    A repeat changes nothing: lines have their numbers already, and progress is only the last one.
    """

    id: str
    fence: int
    progress: Progress | None = None
    lines: tuple[LogLine, ...] = ()


def kept_level(level: object) -> int:
    """The level of a line as it is kept: in range, and 0 for what is no whole number; any code may invent its own."""
    return min(max(int(level), 0), HIGHEST_LEVEL) if isinstance(level, int) else 0


def kept_line(text: str) -> str:
    """The text of a line as it is kept."""
    return storable(text[:LONGEST_LINE])


def kept_name(logger: str) -> str:
    """The name of a logger as it is kept."""
    return storable(logger[:LONGEST_NAME])


def kept_word(message: str | None) -> str | None:
    """What a handler says about its progress, as it is kept."""
    return None if message is None else storable(message[:LONGEST_WORD])


def too_many(limit: int) -> str:
    """What stands in the place of the first line that is not kept."""
    return f"… more than {limit} lines: the rest of what this job logged is not kept here"
