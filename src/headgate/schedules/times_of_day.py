"""Times of day, as seconds since midnight: a list, or the fields of a cron expression."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

DAY = 86400
HOUR = 3600
MINUTE = 60


class TimesOfDay(Protocol):
    """A sorted set of at least one time of day."""

    def first_from(self, time: int) -> int | None:
        """Return the first time that is not before `time`; None if there is none."""
        ...

    def last_until(self, time: int) -> int | None:
        """Return the last time that is not after `time`; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class ListedTimes:
    """A sorted list of times."""

    times: Sequence[int]

    def first_from(self, time: int) -> int | None:
        return _first_from(self.times, time)

    def last_until(self, time: int) -> int | None:
        return _last_until(self.times, time)


@dataclass(frozen=True, slots=True)
class TimeFields:
    """All times with one of these hours, one of these minutes and one of these seconds, each sorted."""

    hours: Sequence[int]
    minutes: Sequence[int]
    seconds: Sequence[int]

    def first_from(self, time: int) -> int | None:
        hour, minute, second = _parts(time)
        if hour in self.hours:
            if minute in self.minutes:
                found = _first_from(self.seconds, second)
                if found is not None:
                    return hour * HOUR + minute * MINUTE + found
            found = _first_from(self.minutes, minute + 1)
            if found is not None:
                return hour * HOUR + found * MINUTE + self.seconds[0]
        found = _first_from(self.hours, hour + 1)
        return None if found is None else found * HOUR + self.minutes[0] * MINUTE + self.seconds[0]

    def last_until(self, time: int) -> int | None:
        hour, minute, second = _parts(time)
        if hour in self.hours:
            if minute in self.minutes:
                found = _last_until(self.seconds, second)
                if found is not None:
                    return hour * HOUR + minute * MINUTE + found
            found = _last_until(self.minutes, minute - 1)
            if found is not None:
                return hour * HOUR + found * MINUTE + self.seconds[-1]
        found = _last_until(self.hours, hour - 1)
        return None if found is None else found * HOUR + self.minutes[-1] * MINUTE + self.seconds[-1]


def _parts(time: int) -> tuple[int, int, int]:
    hour, rest = divmod(time, HOUR)
    return hour, rest // MINUTE, rest % MINUTE


def _first_from(values: Sequence[int], value: int) -> int | None:
    index = bisect_left(values, value)
    return values[index] if index < len(values) else None


def _last_until(values: Sequence[int], value: int) -> int | None:
    index = bisect_right(values, value)
    return values[index - 1] if index else None
