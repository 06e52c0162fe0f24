"""Windows: the days and times of day in which a schedule runs; occurrences outside of them are left out."""

from __future__ import annotations

import re
from bisect import bisect_right
from calendar import monthrange
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

from headgate.schedules.calendar import time_of_day, weekdays_named
from headgate.schedules.times_of_day import DAY
from headgate.schedules.wall_clock import EPOCH_ORDINAL, FIRST, LAST, offset_at

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

    def first_open(self, second: int) -> int | None:
        """Return the first second that is open and not before this one; None if there is none."""
        for _ in range(MOST_STEPS):
            if not FIRST <= second <= LAST:
                return None
            offset = offset_at(self.zone, second)
            day, time = divmod(second + offset, DAY)
            is_open = self._is_open_on(day)
            if is_open and self._is_open_at(time):
                return second
            # On an open day at a closed time it opens later on this day, or on a later one.
            ahead = self.opens - time if is_open and time < self.opens else DAY - time
            later = second + ahead
            second = later if offset_at(self.zone, later) == offset else self._change(second, later)
        return None

    def last_open(self, second: int) -> int | None:
        """Return the last second that is open and not after this one; None if there is none."""
        for _ in range(MOST_STEPS):
            if not FIRST <= second <= LAST:
                return None
            offset = offset_at(self.zone, second)
            day, time = divmod(second + offset, DAY)
            is_open = self._is_open_on(day)
            if is_open and self._is_open_at(time):
                return second
            behind = time - self.closes + 1 if is_open and time >= self.closes else time + 1
            earlier = second - behind
            second = earlier if offset_at(self.zone, earlier) == offset else self._change(earlier, second) - 1
        return None

    def _is_open_at(self, time: int) -> bool:
        if self.opens < self.closes:
            return self.opens <= time < self.closes
        return time >= self.opens or time < self.closes

    def _is_open_on(self, day: int) -> bool:
        of_calendar = date.fromordinal(day + EPOCH_ORDINAL)
        return of_calendar.weekday() in self.weekdays and not any(excludes(of_calendar) for excludes in self.excludes)

    def _change(self, low: int, high: int) -> int:
        """Return the first second with the offset of `high`, which is not that of `low`."""
        after = offset_at(self.zone, high)
        while high - low > 1:
            middle = (low + high) // 2
            if offset_at(self.zone, middle) == after:
                high = middle
            else:
                low = middle
        return high


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
