"""Times of day, and time zones: the conversion of local times to instants, across changes of the clock.

A local time that the clock skips maps to the first instant after the gap; one that it shows twice maps to the first of
the two. So a daily job runs once on each day, whatever the zone does. An hourly job differs: it runs whenever the clock
shows the time, which is every real hour.

Local times are counted like instants, in seconds since 1970 on the wall clock itself. Times of day are seconds since
midnight: a list, or the fields of a cron expression.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from headgate.clock import SECOND
from headgate.errors import DeclarationError
from headgate.suggestion import did_you_mean

DAY = 86400
HOUR = 3600
MINUTE = 60


@dataclass(frozen=True, slots=True)
class TimesOfFields(Sequence[int]):
    """All times with one of these hours, one of these minutes and one of these seconds, each sorted; none is stored."""

    hours: Sequence[int]
    minutes: Sequence[int]
    seconds: Sequence[int]

    def __len__(self) -> int:
        return len(self.hours) * len(self.minutes) * len(self.seconds)

    def __getitem__(self, place: int) -> int:  # type: ignore[override]  # no slices: it is searched by bisection
        rest, second = divmod(place, len(self.seconds))
        hour, minute = divmod(rest, len(self.minutes))
        return self.hours[hour] * HOUR + self.minutes[minute] * MINUTE + self.seconds[second]


MONTHS_OF_A_CYCLE = 400 * 12
"""The months of 400 years, after which the calendar repeats: a day that has not come by then never comes."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of the wall clock
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
# Slightly inside the range of datetime, so that no offset leaves it.
FIRST = -(EPOCH_ORDINAL - 2) * DAY
LAST = (date(MAXYEAR, 12, 28).toordinal() - EPOCH_ORDINAL) * DAY


@dataclass(frozen=True, slots=True)
class WallClock:
    """Times on given days, in a zone. `days_in` returns the days of one of these `months`.

    Days and `times` are sorted, and there is at least one time. With `repeats` a local time that is shown twice counts
    both times; otherwise once.
    """

    months: Collection[int]
    days_in: Callable[[int, int], Sequence[int]]
    times: Sequence[int]
    zone: ZoneInfo
    repeats: bool = False

    def next_after(self, instant: int) -> int | None:
        """Return the first occurrence later than `instant` (microseconds)."""
        second = max(instant // SECOND, FIRST)
        if second >= LAST:
            return None
        found = self._reading(second + 1, 1) if self.repeats else self._once(self._reached(second) + 1, 1)
        return None if found is None else found * SECOND

    def latest_at_or_before(self, instant: int) -> int | None:
        """Return the last occurrence not later than `instant` (microseconds)."""
        second = min(instant // SECOND, LAST)
        if second <= FIRST:
            return None
        found = self._reading(second, -1) if self.repeats else self._once(self._reached(second), -1)
        return None if found is None else found * SECOND

    # ------------------------------------------------------------------------------- once for each local time

    def _once(self, local: int, step: int) -> int | None:
        """Return the instant of the first local time of the pattern from this one on, or the last one (`step` -1)."""
        point = self._nearest(local, step)
        if point is None:
            return None
        before, after = self._offsets(point)
        return self._change(point, before, after) if before < after else point - before

    def _reached(self, second: int) -> int:
        """Return the latest local time that maps to this instant or an earlier one."""
        local = second + offset_at(self.zone, second)
        first, again = self._offsets(local)
        if first > again and local - again == second:
            # In the second pass: every local time that is shown twice has already occurred.
            return self._change(local, first, again) + first - 1
        return local

    # ----------------------------------------------------------------------------- every time that the clock shows it

    def _reading(self, second: int, step: int) -> int | None:
        """Return the first occurrence from this second on (`step` 1), or the last one until it (-1).

        Of two offsets at a change of the clock, the search meets the `near` one first.
        """
        edge = 0 if step > 0 else -1
        local = second + offset_at(self.zone, second)
        near, far = self._offsets(local)[::step]
        if step * near > step * far and local - near == second:
            # In the nearer pass of a repeated period: its rest, and then the whole other pass.
            change = self._change(local, near, far)
            end = change + near + edge
            for start, offset in ((local, near), (change + far + edge, far)):
                point = self._nearest(start, step)
                if point is not None and step * point < step * end:
                    return point - offset
            local = end
        while True:
            point = self._nearest(local, step)
            if point is None:
                return None
            near, far = self._offsets(point)[::step]
            if step * near < step * far:
                # The clock skips this time.
                local = self._change(point, near, far) + far + edge
                continue
            return point - near if step * (point - near) >= step * second else point - far

    # ------------------------------------------------------------------------------------------------ the zone

    def _offsets(self, local: int) -> tuple[int, int]:
        """Return the offsets before and after a change at this local time; equal without a change."""
        reading = (_EPOCH + timedelta(seconds=local)).replace(tzinfo=self.zone)
        return _seconds(reading.utcoffset()), _seconds(reading.replace(fold=1).utcoffset())

    def _change(self, local: int, before: int, after: int) -> int:
        """Return the instant at which the offset changes, near a local time that is skipped or shown twice."""
        return change_between(self.zone, local - max(before, after), local - min(before, after))

    # -------------------------------------------------------------------------------------------- the calendar

    def _nearest(self, local: int, step: int) -> int | None:
        """Return the first local time of the pattern from this one on (`step` 1), or the last one until it (-1)."""
        day, time = divmod(local, DAY)
        found = self._nearest_day(day, step)
        if found == day:
            of_day = _nearest(self.times, time, step)
            if of_day is not None:
                return day * DAY + of_day
            found = self._nearest_day(day + step, step)
        return None if found is None else found * DAY + self.times[0 if step > 0 else -1]

    def _nearest_day(self, day: int, step: int) -> int | None:
        """Return the first day of the pattern from this one on (`step` 1), or the last one until it (-1)."""
        start = date.fromordinal(day + EPOCH_ORDINAL)
        months = start.year * 12 + start.month - 1
        for number in range(months, months + step * (MONTHS_OF_A_CYCLE + 1), step):
            year, month = number // 12, number % 12 + 1
            if not MINYEAR <= year <= MAXYEAR:
                return None
            if month not in self.months:
                continue
            before = date(year, month, 1).toordinal() - EPOCH_ORDINAL - 1
            found = _nearest([before + each for each in self.days_in(year, month)], day, step)
            if found is not None:
                return found
        return None


def _nearest(values: Sequence[int], value: int, step: int) -> int | None:
    """Return the first of sorted values from this one on (`step` 1), or the last one until it (-1)."""
    place = bisect_left(values, value) if step > 0 else bisect_right(values, value) - 1
    return values[place] if 0 <= place < len(values) else None


def offset_at(zone: ZoneInfo, second: int) -> int:
    """Return the seconds by which the clock of the zone is ahead of UTC at this second since 1970."""
    return _seconds((_EPOCH_UTC + timedelta(seconds=second)).astimezone(zone).utcoffset())


def change_between(zone: ZoneInfo, low: int, high: int) -> int:
    """Return the first second at which the zone has the offset of second `high`, which is not that of `low`."""
    after = offset_at(zone, high)
    while high - low > 1:
        middle = (low + high) // 2
        if offset_at(zone, middle) == after:
            high = middle
        else:
            low = middle
    return high


def _seconds(offset: timedelta | None) -> int:
    assert offset is not None, "a zone has an offset at every time"
    return round(offset.total_seconds())


def zone_of(name: str, where: str) -> ZoneInfo:
    """Return the zone of that name. Raises DeclarationError for an unknown zone."""
    if not isinstance(name, str):
        raise DeclarationError(f"{where}: tz={name!r} must be the name of a zone, such as 'Europe/Rome' or 'UTC'")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # An OSError is a folder of zones ("Europe") or a name too long for a file.
        hint = did_you_mean(name, available_timezones())
        raise DeclarationError(
            f"{where}: there is no time zone {name!r}{hint} Use a name such as 'Europe/Rome' or 'UTC'"
        ) from None
