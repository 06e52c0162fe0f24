"""Restricted triggers: the occurrences of another trigger that lie inside of windows.

Windows are the days and times of day in which a schedule runs; occurrences outside of them are left out.
"""

from __future__ import annotations

import inspect
import re
from bisect import bisect_right
from calendar import monthrange
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from dataclasses import replace as with_fields
from datetime import date, datetime
from functools import cached_property
from typing import Any, Self
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import DeclarationError
from headgate.schedules.calendar import Calendar, time_of_day, weekdays_named
from headgate.schedules.cron import Cron
from headgate.schedules.every import Every
from headgate.schedules.trigger import Trigger
from headgate.schedules.wall_clock import DAY, EPOCH_ORDINAL, FIRST, LAST, change_between, offset_at, zone_of

MOST_STEPS = 5000
"""How many closed days in a row are passed; a longer closure counts as forever."""

DAYS_FORMS = (
    'must be a date, as date(2026, 12, 25), "2026-12-25" or "12-25" (each year), a range of both days, as '
    '"2026-12-24..2027-01-06" or "12-24..01-06", or a function that gets a date and returns whether it is excluded'
)

_DAY = re.compile(r"(?:(?P<year>[0-9]{4})-)?(?P<month>[0-9]{2})-(?P<day>[0-9]{2})")
_LEAP_YEAR = 2024
_DAYS_OF_YEAR = [(month, day) for month in range(1, 13) for day in range(1, monthrange(_LEAP_YEAR, month)[1] + 1)]


@dataclass(frozen=True, slots=True)
class Windows:
    """The times at which a schedule may run, by what the clock of a zone shows.

    From the time of day `opens` until before `closes` (seconds since midnight; over midnight if it closes earlier than
    it opens), on these weekdays (0 is Monday), except on days that are excluded.
    """

    zone: ZoneInfo
    opens: int
    closes: int
    weekdays: frozenset[int]
    excludes: Sequence[Callable[[date], bool]]

    def nearest_open(self, second: int, step: int) -> int | None:
        """Return the first second that is open from this one on (`step` 1), or the last one until it (-1)."""
        for _ in range(MOST_STEPS):
            if not FIRST <= second <= LAST:
                return None
            offset = offset_at(self.zone, second)
            day, time = divmod(second + offset, DAY)
            is_open = self._is_open_on(day)
            if is_open and self._is_open_at(time):
                return second
            # On an open day at a closed time it opens later on this day, or on a later one; and so backwards.
            if step > 0:
                there = second + (self.opens - time if is_open and time < self.opens else DAY - time)
            else:
                there = second - (time - self.closes + 1 if is_open and time >= self.closes else time + 1)
            if offset_at(self.zone, there) != offset:
                change = change_between(self.zone, min(second, there), max(second, there))
                there = change if step > 0 else change - 1
            second = there
        return None

    def _is_open_at(self, time: int) -> bool:
        if self.opens < self.closes:
            return self.opens <= time < self.closes
        return time >= self.opens or time < self.closes

    def _is_open_on(self, day: int) -> bool:
        of_calendar = date.fromordinal(day + EPOCH_ORDINAL)
        return of_calendar.weekday() in self.weekdays and not any(excludes(of_calendar) for excludes in self.excludes)


def times_between(between: object) -> tuple[int, int]:
    """Return when a window opens and closes, in seconds since midnight. Raises ValueError with what to write."""
    times = [time_of_day(each) for each in between] if isinstance(between, list | tuple) else []
    match times:
        case [int(opens), int(closes)] if opens != closes:
            return opens, closes
    raise ValueError(
        f'between={between!r:.80} must be two different times of day, as ("8:00", "18:00"); ("22:00", "6:00") is open '
        'over midnight, ("18:00", "0:00") until midnight'
    )


def weekdays_of(on: str | Collection[str]) -> tuple[str, ...]:
    """Return the words of weekdays in lower case. Raises ValueError with what to write."""
    words = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, Collection) else (on,)
    if not words or any(weekdays_named(word) is None for word in words):
        raise ValueError(f'on={on!r:.80} must be days of a week, as "weekday" or ["mon", "wed"]')
    lower = (word.strip().lower() for word in words)
    # A set has another order in each process, and equal declarations must be stored as equal texts.
    return tuple(sorted(lower) if isinstance(on, Set) else lower)


def written_days(day: object) -> str:
    """Return a day or a range of days to exclude as text. Raises ValueError with what to write."""
    if isinstance(day, date) and not isinstance(day, datetime):
        return day.isoformat()
    if isinstance(day, str):
        text = "..".join(part.strip() for part in day.split(".."))
        _days_of(text)
        return text
    raise ValueError(f"exclude={day!r:.80} {DAYS_FORMS}")


def excluder_of(texts: Iterable[str]) -> Callable[[date], bool]:
    """Return the function that excludes all days and ranges of these texts. Raises ValueError with what to write.

    Its cost for a day does not grow with their number: a node asks it for many days in a row, on its event loop.
    """
    yearly: set[tuple[int, int]] = set()
    ranges: list[tuple[int, int]] = []
    for text in texts:
        first, last = _days_of(text)
        if len(first) == 3:
            ranges.append((date(*first).toordinal(), date(*last).toordinal()))
            continue
        # A range of days of a year may include its end.
        yearly |= {day for day in _DAYS_OF_YEAR if _lies_in(day, first, last)}
    firsts: list[int] = []
    lasts: list[int] = []
    for begin, end in sorted(ranges):
        if lasts and begin <= lasts[-1] + 1:
            lasts[-1] = max(lasts[-1], end)
        else:
            firsts.append(begin)
            lasts.append(end)

    def excludes(day: date) -> bool:
        if (day.month, day.day) in yearly:
            return True
        ordinal = day.toordinal()
        place = bisect_right(firsts, ordinal)
        return place > 0 and ordinal <= lasts[place - 1]

    return excludes


def _lies_in(day: tuple[int, ...], first: tuple[int, ...], last: tuple[int, ...]) -> bool:
    return first <= day <= last if first <= last else day >= first or day <= last


def _days_of(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first and the last day, each as year, month and day, or as month and day."""
    days = [_day_of(part) for part in text.split("..")]
    first, last = days[0], days[-1]
    if first is None or last is None or len(days) > 2 or len(first) != len(last) or (len(first) == 3 and last < first):
        raise ValueError(f"exclude={text!r:.80} {DAYS_FORMS}")
    return first, last


def _day_of(text: str) -> tuple[int, ...] | None:
    found = _DAY.fullmatch(text)
    if found is None:
        return None
    year, month, day = found["year"], int(found["month"]), int(found["day"])
    try:
        date(_LEAP_YEAR if year is None else int(year), month, day)
    except ValueError:
        return None
    return (month, day) if year is None else (int(year), month, day)


MOST_TRIED, MOST_PASSED = 5000, 50_000 * DAY
"""How many occurrences are tried, and how many closed seconds are passed, to find one inside of the windows."""

MOST_LISTED = 6
"""The most excluded days that the description of a stored trigger lists."""

ExcludesDay = Callable[[date], bool]
"""Returns whether a schedule does not run on this day."""

Excluded = date | str | ExcludesDay
"""Excludes days: a date, a date or a range as text, or a function."""


class WindowTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """Windows as they are stored: the zone, two times of day, words for weekdays, and days or ranges as text."""

    tz: str
    between: tuple[str, str] | None = None
    on: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @cached_property
    def windows(self) -> Windows:
        """The same, to compute with. Raises DeclarationError."""
        zone = zone_of(self.tz, "the windows of a schedule")
        try:
            opens, closes = (0, 0) if self.between is None else times_between(self.between)
            words = weekdays_of(self.on or "day")
            excludes = [excluder_of(self.exclude)] if self.exclude else []
        except ValueError as error:
            raise DeclarationError(str(error)) from None
        weekdays = frozenset(day for word in words for day in weekdays_named(word) or ())
        return Windows(zone, opens, closes, weekdays, excludes)

    def describe(self, excluded: Collection[str]) -> str:
        """Return the windows in a few words; `excluded` are those for the excluded days."""
        words = [] if self.between is None else [f"between {self.between[0]} and {self.between[1]}"]
        if self.on:
            words.append(f"on {', '.join(self.on)}")
        if excluded:
            words.append(f"except {', '.join(excluded)}")
        return f"{', '.join(words)} ({self.tz})"


class _Restricted:
    """The occurrences of `trigger` inside of windows."""

    trigger: Any
    terms: WindowTerms

    @property
    def _windows(self) -> Windows:
        return self.terms.windows

    def starting(self, instant: int) -> Self:
        """Return the trigger counted from that instant, if it needs a start and has none."""
        trigger, second = self.trigger, None
        if isinstance(trigger, Every):
            # From the first instant inside of the windows, so that `Every("1d")` has an occurrence inside of them,
            # whenever it is declared: a day after a closed instant is closed.
            second = self._windows.nearest_open(instant // SECOND, 1)
        elif not isinstance(trigger, Calendar):
            return self
        elif trigger.on is None and trigger.start is None:
            # Its day is that of its start, so from the first day on which it has a time inside of them: seven days
            # after a closed Sunday are closed, too.
            midnight = Calendar(tz=trigger.tz).latest_at_or_before(instant)
            daily = replace(trigger, days=1, weeks=None, months=None, in_months=None)
            found = replace(self, trigger=daily).next_after((midnight or instant) - 1)  # type: ignore[type-var]
            second = None if found is None else found // SECOND
        begin = instant if second is None else max(instant, second * SECOND)
        return replace(self, trigger=trigger.starting(begin))  # type: ignore[type-var]  # both kinds are structs

    def next_after(self, instant: int) -> int | None:
        return self._inside(self.trigger.next_after(instant), 1)

    def latest_at_or_before(self, instant: int) -> int | None:
        return self._inside(self.trigger.latest_at_or_before(instant), -1)

    def _inside(self, found: int | None, step: int) -> int | None:
        """Return this occurrence if it is inside of the windows, else the next one that is (`step` 1), or the last."""
        windows, passed = self._windows, 0
        for _ in range(MOST_TRIED):
            second = None if found is None else windows.nearest_open(found // SECOND, step)
            if found is None or second is None or passed > MOST_PASSED:
                return None
            if second == found // SECOND:
                return found
            passed += abs(second - found // SECOND)
            if step > 0:
                found = self.trigger.next_after(second * SECOND - 1)
            else:
                found = self.trigger.latest_at_or_before((second + 1) * SECOND - 1)
        return None


class RestrictedTrigger(_Restricted, msgspec.Struct, frozen=True, tag_field="kind", tag="restricted", dict=True):
    """The occurrences of a stored trigger inside of windows."""

    trigger: Cron | Every | Calendar
    terms: WindowTerms

    def describe(self) -> str:
        days = self.terms.exclude
        if len(days) > MOST_LISTED:
            days = (*days[: MOST_LISTED - 1], f"{len(days) - MOST_LISTED + 1} more")
        return f"{self.trigger.describe()}, {self.terms.describe(days)}"


class CodeRestrictedTrigger(_Restricted, msgspec.Struct, frozen=True, dict=True):
    """As `RestrictedTrigger`, with a custom trigger, or with days that functions exclude: they exist only in code."""

    trigger: Trigger
    terms: WindowTerms
    functions: tuple[ExcludesDay, ...] = ()

    def describe(self) -> str:
        # All of it, because nodes compare these descriptions.
        functions = [
            f"{each.__module__}.{getattr(each, '__qualname__', type(each).__name__)}" for each in self.functions
        ]
        return f"{self.trigger.describe()}, {self.terms.describe([*self.terms.exclude, *functions])}"

    @property
    def _windows(self) -> Windows:
        windows = self.terms.windows
        return with_fields(windows, excludes=[*windows.excludes, *self.functions])


def restricted(trigger: Trigger, where: str, *, between: Any, on: Any, exclude: Any, tz: Any) -> Trigger:
    """Return the trigger inside of these windows; without any, the trigger itself. Raises DeclarationError.

    Their zone is `tz`, else that of the trigger, else UTC.
    """
    if between is None and on is None and exclude is None:
        if tz is not None:
            raise DeclarationError(
                f"{where}: tz={tz!r} applies to between=, on= and exclude=, and you pass none; give the zone to the "
                'trigger, as in Cron("0 6 * * *", tz="Europe/Rome")'
            )
        return trigger
    zone = tz if tz is not None else getattr(trigger, "tz", "UTC")
    zone_of(zone, where)
    try:
        if between is not None:
            times_between(between)
        words = () if on is None else weekdays_of(on)
        texts, functions = _split(exclude)
    except ValueError as error:
        raise DeclarationError(f"{where}: {error}") from None
    terms = WindowTerms(tz=zone, between=between and tuple(between), on=words, exclude=texts)
    if functions or not isinstance(trigger, Cron | Every | Calendar):
        return CodeRestrictedTrigger(trigger, terms, functions)
    found = RestrictedTrigger(trigger, terms)
    if found.starting(0).next_after(0) is None:
        raise DeclarationError(
            f"{where}: {found.describe()!r} never runs: all occurrences of the trigger are outside its windows"
        )
    return found


def _split(exclude: Any) -> tuple[tuple[str, ...], tuple[ExcludesDay, ...]]:
    """Return the excluded days as text, and the functions. Raises ValueError."""
    if exclude is None:
        return (), ()
    is_one = isinstance(exclude, date | str | Mapping) or callable(exclude) or not isinstance(exclude, Collection)
    texts: list[str] = []
    functions: list[ExcludesDay] = []
    for each in [exclude] if is_one else exclude:
        if not callable(each):
            texts.append(written_days(each))
        elif isinstance(each, type) or inspect.iscoroutinefunction(each):
            raise ValueError(f"exclude={each!r:.80} {DAYS_FORMS}")
        else:
            functions.append(each)
    # A set has another order in each process, and equal declarations must be stored as equal texts.
    return tuple(sorted(texts) if isinstance(exclude, Set) else texts), tuple(functions)
