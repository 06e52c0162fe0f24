"""Cron: expressions of five fields, or six with seconds first, in any time zone."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property

import msgspec
from msgspec.structs import force_setattr

from headgate.errors import DeclarationError
from headgate.keywords import NamesKeywords
from headgate.schedules.calendar import MONTHS
from headgate.schedules.wall_clock import TimesOfFields, WallClock, zone_of

_FORMS = (
    'write "minute hour day month weekday", or six fields with the second first; each is *, a value, a range 1-5, a '
    "step */15 or 8-18/2, or a list of those; months jan-dec, weekdays 0-7 (0 and 7 are Sunday) or sun-sat, "
    "L for the last day of the month, friL for its last Friday, mon#2 for its second Monday; or one of "
)
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {name: number for number, name in enumerate(MONTHS, start=1)}
_WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}

MonthDays = Callable[[int, int], set[int]]


class Cron(
    msgspec.Struct, metaclass=NamesKeywords, frozen=True, tag_field="kind", tag="cron", omit_defaults=True, dict=True
):
    """The instants of a cron expression, on the wall clock in `tz` (default: UTC).

    Five fields, or six with the second first. If day and weekday are both restricted, one of them has to match, as in
    every cron. A time that the clock skips in spring runs at the end of the gap; a time that it shows twice in autumn
    runs the first time; with `*` as the hour it runs in each real hour. Raises DeclarationError for an invalid
    expression, an unknown zone, and a time that never comes (30 February).
    """

    expression: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise _error(repr(self.expression), "it is not a string")
        force_setattr(self, "expression", " ".join(self.expression.split()))
        if self._wall_clock.next_after(0) is None:
            raise _error(repr(self.expression), "it has no day that ever comes")

    def next_after(self, instant: int) -> int | None:
        return self._wall_clock.next_after(instant)

    def latest_at_or_before(self, instant: int) -> int | None:
        return self._wall_clock.latest_at_or_before(instant)

    def describe(self) -> str:
        return f"cron {self.expression} ({self.tz})"

    @cached_property
    def _wall_clock(self) -> WallClock:
        where = repr(self.expression)
        zone = zone_of(self.tz, f"cron {where}")
        fields = _MACROS.get(self.expression.lower(), self.expression).lower().split()
        if len(fields) == 5:
            fields.insert(0, "0")
        if len(fields) != 6:
            raise _error(where, f"it has {len(fields)} fields")
        second, minute, hour, day, month, weekday = fields
        # Other cron dialects write ? for the day field that does not restrict.
        day, weekday = ("*" if field == "?" else field for field in (day, weekday))
        hours = _HOUR.values(hour, where)
        times = TimesOfFields(hours, _MINUTE.values(minute, where), _SECOND.values(second, where))
        months = _MONTH.values(month, where)
        of_month, of_week = _days_of_month(day, where), _days_of_week(weekday, where)
        is_either = not day.startswith("*") and not weekday.startswith("*")

        def days(year: int, month: int) -> Sequence[int]:
            by_number, by_weekday = of_month(year, month), of_week(year, month)
            return sorted(by_number | by_weekday if is_either else by_number & by_weekday)

        return WallClock(months, days, times, zone, repeats=len(hours) == 24)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field: its range, and names for its values."""

    name: str
    low: int
    high: int
    names: Mapping[str, int]

    def values(self, text: str, where: str) -> Sequence[int]:
        """Return the values that match the field, sorted."""
        return sorted(set[int]().union(*(self.item(item, where) for item in text.split(","))))

    def item(self, text: str, where: str) -> range:
        """Parse one item of the list: a value, a range or a star, with or without a step."""
        span, slash, step_text = text.partition("/")
        step = 1
        if slash:
            step = self._number(step_text, text, where)
            if not 1 <= step <= self.high - self.low + 1:
                raise _error(where, f"the step of {self.name} {text!r} is not in 1-{self.high - self.low + 1}")
        if span == "*":
            return range(self.low, self.high + 1, step)
        first_text, dash, last_text = span.partition("-")
        first = self.value(first_text, text, where)
        if dash:
            last = self.value(last_text, text, where)
            if self is _WEEKDAY and last == 0 < first:
                last = 7
        else:
            # 5/15 means every 15 from 5 on.
            last = self.high if slash else first
        if last < first:
            raise _error(where, f"{self.name} {text!r} ends before it begins")
        return range(first, last + 1, step)

    def value(self, text: str, item: str, where: str) -> int:
        if text in self.names:
            return self.names[text]
        value = self._number(text, item, where)
        if not self.low <= value <= self.high:
            raise _error(where, f"{self.name} {value} is not in {self.low}-{self.high}")
        return value

    def _number(self, number: str, item: str, where: str) -> int:
        if not re.fullmatch("[0-9]{1,4}", number):
            raise _error(where, f"{self.name} {item!r} cannot be read")
        return int(number)


_SECOND = _Field("second", 0, 59, {})
_MINUTE = _Field("minute", 0, 59, {})
_HOUR = _Field("hour", 0, 23, {})
_DAY = _Field("day", 1, 31, {})
_MONTH = _Field("month", 1, 12, _MONTHS)
_WEEKDAY = _Field("weekday", 0, 7, _WEEKDAYS)


def _days_of_month(text: str, where: str) -> MonthDays:
    """Return the days that the day-of-month field allows."""
    items = text.split(",")
    plain = set[int]().union(*(_DAY.item(item, where) for item in items if item != "l"))

    def days(year: int, month: int) -> set[int]:
        last = monthrange(year, month)[1]
        found = {day for day in plain if day <= last}
        return found | {last} if "l" in items else found

    return days


def _days_of_week(text: str, where: str) -> MonthDays:
    """Return the days of a month that match the weekday field."""
    plain: set[int] = set()
    numbered: list[tuple[int, int]] = []
    for item in text.split(","):
        name, sharp, number = item.partition("#")
        if sharp:
            if number not in ("1", "2", "3", "4", "5"):
                raise _error(where, f"weekday {item!r}: a month has the 1st to the 5th of a weekday")
            numbered.append((_WEEKDAY.value(name, item, where) % 7, int(number) - 1))
        elif len(item) > 1 and item.endswith("l"):
            numbered.append((_WEEKDAY.value(item[:-1], item, where) % 7, -1))
        else:
            plain.update(value % 7 for value in _WEEKDAY.item(item, where))

    def days(year: int, month: int) -> set[int]:
        last = monthrange(year, month)[1]
        before = date(year, month, 1).isoweekday() - 1
        found = {day for day in range(1, last + 1) if (before + day) % 7 in plain}
        for weekday, index in numbered:
            all_of_it = range((weekday - before - 1) % 7 + 1, last + 1, 7)
            if index < len(all_of_it):
                found.add(all_of_it[index])
        return found

    return days


def _error(expression: str, why: str) -> DeclarationError:
    return DeclarationError(f"{expression} is not a cron expression: {why}; {_FORMS}{', '.join(_MACROS)}")
