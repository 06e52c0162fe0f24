"""Every: a period of real elapsed time, independent of the wall clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import force_setattr, replace

from headgate.arguments import DURATION_FORMS, parse_duration
from headgate.clock import FARTHEST, SECOND, from_datetime, microseconds, to_datetime
from headgate.errors import DeclarationError
from headgate.keywords import NamesKeywords
from headgate.schedules.wall_clock import FIRST, LAST

LEAST = 100_000
"""The shortest period, in microseconds: use a loop for more frequent work."""

_UNITS = {"weeks": 7 * 86400, "days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


if TYPE_CHECKING:
    Length = str | timedelta | None
else:
    # It is read before anything is stored, and msgspec cannot distinguish the two types.
    Length = Any


class _Length(msgspec.Struct, frozen=True, dict=True):
    """The positional argument of `Every`."""

    length: Length = None


class Every(
    _Length,
    metaclass=NamesKeywords,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="every",
    omit_defaults=True,
    repr_omit_defaults=True,
    dict=True,
):
    """A trigger once per period of real time: `Every(minutes=5)`, `Every("5m")`, `Every(hours=1, minutes=30)`.

    The period may also be one text or `timedelta`. It is counted from `start` (an aware datetime; default: when the
    schedule was first declared). A day is 24 hours; for a time of day use `Calendar` or `Cron`. Raises DeclarationError
    for less than 0.1 s and for more than a hundred years.
    """

    weeks: float = 0
    days: float = 0
    hours: float = 0
    minutes: float = 0
    seconds: float = 0
    start: datetime | None = None

    def __post_init__(self) -> None:
        if self.length is not None:
            self._take_length()
        for unit in _UNITS:
            value = getattr(self, unit)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= FARTHEST:
                raise DeclarationError(f"Every: {unit}={value!r:.80} is not a length of time; write Every(minutes=5)")
        if not LEAST <= self.period <= FARTHEST:
            raise DeclarationError(
                f"{self!r} has a period of {self.period / 1_000_000:g} s; use 0.1 s to a hundred years, "
                "such as Every(minutes=5)"
            )
        if self.start is not None and (not isinstance(self.start, datetime) or self.start.tzinfo is None):
            raise DeclarationError(
                f"Every: start={self.start!r} must be an aware datetime, for example datetime.now(UTC)"
            )
        if self.start is not None and type(self.start) is not type(to_datetime(0)):
            # No subclass can be stored, such as those of pendulum and freezegun.
            force_setattr(self, "start", to_datetime(from_datetime(self.start)))

    def _take_length(self) -> None:
        """Store the length in its largest whole unit, as if it were given by name."""
        if not isinstance(self.length, str | timedelta) or (
            isinstance(self.length, str) and self.length[-1:].isdigit()
        ):
            raise DeclarationError(
                f"Every({self.length!r:.80}) does not name a unit; write Every(minutes=5), Every(seconds=300) or "
                'Every("5m")'
            )
        if any(getattr(self, unit) for unit in _UNITS):
            raise DeclarationError(f"Every({self.length!r:.80}, …) has two lengths; {DURATION_FORMS}")
        length = parse_duration(self.length, "length", "Every")
        unit = next((unit for unit, seconds in _UNITS.items() if length % (seconds * SECOND) == 0), "seconds")
        many, rest = divmod(length, _UNITS[unit] * SECOND)
        force_setattr(self, unit, length / SECOND if rest else many)
        force_setattr(self, "length", None)

    @cached_property
    def period(self) -> int:
        """The microseconds between two occurrences."""
        return sum(microseconds(getattr(self, unit) * seconds) for unit, seconds in _UNITS.items())

    @property
    def text(self) -> str:
        """The period as `Every` takes it as text: "5m", "90s"."""
        for unit, seconds in _UNITS.items():
            many, rest = divmod(self.period, seconds * SECOND)
            if not rest:
                return f"{many}{unit[0]}"
        return f"{self.period / SECOND}s"

    def starting(self, instant: int) -> Every:
        """Return the trigger counted from that instant, unless it has its own start."""
        return self if self.start is not None else replace(self, start=to_datetime(instant))

    def next_after(self, instant: int) -> int | None:
        found = self._start + ((instant - self._start) // self.period + 1) * self.period
        return found if found <= LAST * SECOND else None

    def latest_at_or_before(self, instant: int) -> int | None:
        instant = min(instant, LAST * SECOND)
        found = instant - (instant - self._start) % self.period
        return found if found >= FIRST * SECOND else None

    def describe(self) -> str:
        parts = [(unit, getattr(self, unit)) for unit in _UNITS if getattr(self, unit)]
        if len(parts) == 1 and parts[0][1] == 1:
            return f"every {parts[0][0][:-1]}"
        return "every " + " ".join(f"{value:.10g} {unit if value != 1 else unit[:-1]}" for unit, value in parts)

    @cached_property
    def _start(self) -> int:
        return 0 if self.start is None else from_datetime(self.start)
