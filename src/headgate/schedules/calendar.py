"""Calendar: every n days, weeks or months, on given days, at given times."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property

import msgspec
from msgspec.structs import force_setattr, replace

from headgate.clock import to_datetime
from headgate.errors import DeclarationError
from headgate.keywords import NamesKeywords
from headgate.schedules.wall_clock import WallClock, zone_of

_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FULL_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_FULL_MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_ORDINALS = {"first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4, "last": -1}
_TIME = re.compile("([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_MOST = 1200
_EPOCH = date(1970, 1, 1)

_FORMS = (
    'write Calendar(at=["9:00", "17:30"]), Calendar(weeks=2, on=["mon", "wed"], at="9:00"), Calendar(on=[1, 15]), '
    'Calendar(on=31) for the last day of each month, Calendar(on="first monday"), Calendar(on="last weekday") for the '
    'last day from Monday to Friday, or Calendar(in_months=["jan", "jul"], on=1)'
)


class Calendar(
    msgspec.Struct,
    metaclass=NamesKeywords,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="calendar",
    omit_defaults=True,
    dict=True,
):
    """Times on given days, on the wall clock of `tz` (default: UTC).

    Every `days`, `weeks` or `months`; give one of the three (default: 1, in the unit that `on` needs). `on` lists
    weekdays ("mon", "weekday") or days of a month: numbers, where 29 to 31 mean the last day of a shorter month; "first
    monday" to "fifth friday" and "last sunday"; "first weekday", "last weekday", "last day". Default: the day of
    `start`. `in_months` leaves out all other months. `at` are the times (default: midnight).

    `start` (a date; default: when the schedule was first declared) lies in the period from which weeks=2 or months=3
    are counted; weeks begin on Monday. A time that the clock skips in spring runs at the end of the gap; a time that it
    shows twice in autumn runs the first time. Raises DeclarationError for invalid arguments and for days that never
    come.
    """

    days: int | None = None
    weeks: int | None = None
    months: int | None = None
    on: str | int | Sequence[str | int] | None = None
    in_months: str | int | Sequence[str | int] | None = None
    at: str | Sequence[str] = "0:00"
    tz: str = "UTC"
    start: date | None = None

    def __post_init__(self) -> None:
        for name in ("on", "in_months", "at"):
            value = getattr(self, name)
            if isinstance(value, list):
                force_setattr(self, name, tuple(value))
        if isinstance(self.start, datetime) or not isinstance(self.start, date | None):
            raise _error(f"start={self.start!r} must be a date, as date(2027, 1, 31)")
        # No subclass can be stored, such as those of pendulum and freezegun.
        force_setattr(self, "start", self.start and _EPOCH.fromordinal(self.start.toordinal()))
        if self._wall_clock.next_after(0) is None:
            raise _error(f"{self.describe()} has no day that ever comes")

    def starting(self, instant: int) -> Calendar:
        """Return the trigger counted from the day of that instant, unless it has its own start."""
        if self.start is not None:
            return self
        return replace(self, start=to_datetime(instant).astimezone(self._wall_clock.zone).date())

    def next_after(self, instant: int) -> int | None:
        return self._wall_clock.next_after(instant)

    def latest_at_or_before(self, instant: int) -> int | None:
        return self._wall_clock.latest_at_or_before(instant)

    def describe(self) -> str:
        unit, count = self._unit_and_count
        words = ["every", unit if count == 1 else f"{count} {unit}s"]
        if self.on is not None:
            words += ["on", joined(self.on)]
        if self.in_months is not None:
            words += ["in", joined(self.in_months)]
        words += ["at", joined(self.at), f"({self.tz})"]
        return " ".join(words)

    @cached_property
    def _unit_and_count(self) -> tuple[str, int]:
        given = [(unit, getattr(self, f"{unit}s")) for unit in ("day", "week", "month")]
        given = [(unit, count) for unit, count in given if count is not None]
        if len(given) > 1:
            raise _error("it has " + " and ".join(f"{unit}s=" for unit, _ in given) + ", and takes one of them")
        for unit, count in given:
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST:
                raise _error(f"{unit}s={count!r} is not a whole number from 1 to {_MOST}")
            return unit, count
        if self.on is None:
            return ("day" if self.in_months is None else "month"), 1
        is_weekly = all(weekdays_named(day) for day in listed(self.on))
        return ("week" if is_weekly else "month"), 1

    @cached_property
    def _wall_clock(self) -> WallClock:
        zone = zone_of(self.tz, "Calendar")
        unit, count = self._unit_and_count
        start = self.start or _EPOCH
        months = frozenset(range(1, 13) if self.in_months is None else map(_month, listed(self.in_months)))
        if not months:
            raise _error("in_months is empty")
        on = None if self.on is None else listed(self.on)
        if on is not None and not on:
            raise _error("on is empty")
        days: _EveryDays | _EveryWeeks | _EveryMonths
        match unit:
            case "day":
                if on is not None:
                    raise _error(f"days= with on={self.on!r}: on= needs weeks= or months=")
                days = _EveryDays(count, start)
            case "week":
                weekdays = frozenset({start.weekday()} if on is None else set().union(*map(_weekly, on)))
                days = _EveryWeeks(count, start, weekdays)
            case _:
                if count > 1 and self.in_months is not None:
                    raise _error(f"months={count} with in_months={self.in_months!r}: give one of them")
                days = _EveryMonths(count, start, tuple(map(_monthly, on or (start.day,))))
        times = sorted({_time(time) for time in listed(self.at)})
        if not times:
            raise _error("at is empty")
        return WallClock(months, days, times, zone)


@dataclass(frozen=True, slots=True)
class _EveryDays:
    count: int
    start: date

    def __call__(self, year: int, month: int) -> Sequence[int]:
        since = date(year, month, 1).toordinal() - self.start.toordinal()
        return range(1 + -since % self.count, monthrange(year, month)[1] + 1, self.count)


@dataclass(frozen=True, slots=True)
class _EveryWeeks:
    count: int
    start: date
    weekdays: frozenset[int]

    def __call__(self, year: int, month: int) -> Sequence[int]:
        monday = self.start.toordinal() - self.start.weekday()
        before = date(year, month, 1).toordinal() - monday - 1
        return [
            day
            for day in range(1, monthrange(year, month)[1] + 1)
            if (before + day) % 7 in self.weekdays and (before + day) // 7 % self.count == 0
        ]


@dataclass(frozen=True, slots=True)
class _EveryMonths:
    count: int
    start: date
    days: Sequence[_DayOfMonth]

    def __call__(self, year: int, month: int) -> Sequence[int]:
        since = (year - self.start.year) * 12 + month - self.start.month
        if since % self.count:
            return ()
        found = (day.in_month(year, month) for day in self.days)
        return sorted({day for day in found if day is not None})


@dataclass(frozen=True, slots=True)
class _DayOfMonth:
    """The nth (0 is the first, -1 the last) of the days of a month that fall on these weekdays.

    With `clamps` it is the last one if there are fewer; otherwise there is none.
    """

    index: int
    weekdays: frozenset[int]
    clamps: bool = False

    def in_month(self, year: int, month: int) -> int | None:
        first, length = monthrange(year, month)
        days = [day for day in range(1, length + 1) if (first + day - 1) % 7 in self.weekdays]
        if self.index < len(days):
            return days[self.index]
        return days[-1] if self.clamps else None


def weekdays_named(name: object) -> frozenset[int] | None:
    """Return the weekdays of a word; None for any other value."""
    if not isinstance(name, str):
        return None
    word = name.strip().lower()
    if word == "weekday":
        return frozenset(range(5))
    if word == "day":
        return frozenset(range(7))
    for names in (_WEEKDAYS, _FULL_WEEKDAYS):
        if word in names:
            return frozenset({names.index(word)})
    return None


def _weekly(day: str | int) -> frozenset[int]:
    found = weekdays_named(day)
    if found is None:
        raise _error(f"on={day!r} is not a day of a week")
    return found


def _monthly(day: str | int) -> _DayOfMonth:
    if isinstance(day, str):
        ordinal, _, name = day.strip().lower().partition(" ")
        weekdays = weekdays_named(name)
        if ordinal in _ORDINALS and weekdays is not None:
            return _DayOfMonth(_ORDINALS[ordinal], weekdays)
    elif not isinstance(day, bool) and isinstance(day, int) and 1 <= day <= 31:
        return _DayOfMonth(day - 1, frozenset(range(7)), clamps=True)
    raise _error(f"on={day!r} is not a day of a month")


def _month(month: str | int) -> int:
    if isinstance(month, str):
        for names in (MONTHS, _FULL_MONTHS):
            if month.strip().lower() in names:
                return names.index(month.strip().lower()) + 1
    elif not isinstance(month, bool) and isinstance(month, int) and 1 <= month <= 12:
        return month
    raise _error(f"in_months={month!r} is not a month")


def time_of_day(text: object) -> int | None:
    """Return the seconds since midnight of a time such as "9:00" or "17:30:15"; None for any other value."""
    match = _TIME.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is not None:
        hour, minute, second = (int(part or 0) for part in match.groups())
        if hour < 24 and minute < 60 and second < 60:
            return hour * 3600 + minute * 60 + second
    return None


def _time(text: str | int) -> int:
    found = time_of_day(text)
    if found is None:
        raise _error(f'at={text!r} is not a time of day such as "9:00" or "17:30:15"')
    return found


def listed(given: str | int | Sequence[str | int]) -> tuple[str | int, ...]:
    """Return one value, or several, as a tuple. Raises DeclarationError for anything else."""
    if isinstance(given, str | int):
        return (given,)
    if isinstance(given, list | tuple):
        return tuple(given)
    raise _error(f"{given!r} is neither a value nor a list of values")


def joined(given: str | int | Sequence[str | int]) -> str:
    """Return one value, or several, as text. Raises as `listed`."""
    return ", ".join(map(str, listed(given)))


def _error(why: str) -> DeclarationError:
    return DeclarationError(f"Calendar: {why}; {_FORMS}")
