"""The instants and durations that options take."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import click

from headgate.arguments import duration_in
from headgate.clock import FARTHEST, SECOND


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


def seconds_within(least: float, most: float | None = None) -> Callable[[str], float]:
    """Return a parser of durations from `least` to `most` seconds (None: a hundred years), written as for `seconds`."""
    bounds = f"at least {least:g}" if most is None else f"from {least:g} to {most:g}"

    def read(value: str) -> float:
        found = seconds(value)
        if found < least or (most is not None and found > most):
            raise click.BadParameter(f"{value!r} must be {bounds} s")
        return found

    return read
