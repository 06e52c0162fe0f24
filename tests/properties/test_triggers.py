"""Triggers against an oracle that knows nothing of their code: it walks through the minutes and looks at the clock."""

from __future__ import annotations

import calendar
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.clock import SECOND, from_datetime
from headgate.schedules.calendar import Calendar
from headgate.schedules.cron import Cron
from headgate.schedules.every import Every
from headgate.schedules.trigger import Trigger
from tests.seeds import examples

MINUTE = timedelta(minutes=1)

CHANGES = [
    # Where clocks are put forward and back by an hour.
    ("Europe/Rome", date(2026, 3, 29)),
    ("Europe/Rome", date(2026, 10, 25)),
    ("America/New_York", date(2026, 3, 8)),
    ("America/New_York", date(2026, 11, 1)),
    # By half an hour.
    ("Australia/Lord_Howe", date(2026, 4, 5)),
    ("Australia/Lord_Howe", date(2026, 10, 4)),
    # By two hours.
    ("Antarctica/Troll", date(2026, 3, 29)),
    ("Antarctica/Troll", date(2026, 10, 25)),
    # At midnight, so that a day begins at one, or its first hour comes twice.
    ("Atlantic/Azores", date(2026, 3, 29)),
    ("Atlantic/Azores", date(2026, 10, 25)),
    ("America/Havana", date(2026, 3, 8)),
    ("America/Havana", date(2026, 11, 1)),
    ("Asia/Beirut", date(2026, 3, 29)),
    ("Africa/Cairo", date(2024, 4, 26)),
    # For the month of Ramadan, back first and then forward.
    ("Africa/Casablanca", date(2026, 2, 15)),
    ("Africa/Casablanca", date(2026, 3, 22)),
    # A day that was left out, one that came twice, and other changes for good.
    ("Pacific/Apia", date(2011, 12, 30)),
    ("Pacific/Kwajalein", date(1993, 8, 21)),
    ("America/Juneau", date(1983, 10, 30)),
    ("Asia/Pyongyang", date(2015, 8, 15)),
    ("Asia/Pyongyang", date(2018, 5, 5)),
    ("America/Caracas", date(2007, 12, 9)),
    ("Europe/Volgograd", date(2020, 12, 27)),
    ("Antarctica/Casey", date(2010, 3, 5)),
    ("Europe/London", date(1968, 2, 18)),
    ("Asia/Kathmandu", date(1986, 1, 1)),
    ("UTC", date(2026, 3, 29)),
]


@cache
def minutes_around(zone: ZoneInfo, day: date) -> list[tuple[datetime, datetime, list[datetime]]]:
    """The minutes of three days and a half: what the clock shows at each, and what it skipped to get there."""
    moment = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(hours=30)
    found = []
    last = reading(moment - MINUTE, zone)
    for _ in range(84 * 60):
        shown = reading(moment, zone)
        skipped = [last + MINUTE * step for step in range(1, (shown - last) // MINUTE)]
        found.append((moment, shown, skipped))
        last = shown
        moment += MINUTE
    return found


def instants(zone: ZoneInfo, matches: Callable[[datetime], bool], day: date, *, is_hourly: bool) -> list[datetime]:
    """What a schedule of whole minutes runs at around that day."""
    found: list[datetime] = []
    seen: set[datetime] = set()
    for moment, shown, skipped in minutes_around(zone, day):
        fires = matches(shown) and (is_hourly or shown not in seen)
        if fires or (not is_hourly and any(map(matches, skipped))):
            found.append(moment)
        seen.update(skipped)
        seen.add(shown)
    return found


def reading(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def assert_runs_at(trigger: Trigger, expected: Sequence[datetime]) -> None:
    """Forward and backward, and from between two runs, too."""
    points = [from_datetime(moment) for moment in expected]
    pairs = list(pairwise(points))
    # Of a thousand that are alike, two hundred will do.
    for point, following in pairs[:: len(pairs) // 200 + 1]:
        between = (point + following) // 2
        assert (
            trigger.next_after(point) == trigger.next_after(between) == trigger.next_after(following - 1) == following
        )
        assert trigger.latest_at_or_before(point) == trigger.latest_at_or_before(between) == point
        assert trigger.latest_at_or_before(following - 1) == point


def field(draw: st.DrawFn, low: int, high: int) -> tuple[str, set[int]]:
    """A cron field, and the values that it means."""
    match draw(st.sampled_from(("star", "step", "list", "range", "range with step"))):
        case "star":
            return "*", set(range(low, high + 1))
        case "step":
            step = draw(st.integers(1, high - low))
            return f"*/{step}", {value for value in range(low, high + 1) if (value - low) % step == 0}
        case "list":
            values = draw(st.lists(st.integers(low, high), min_size=1, max_size=4))
            return ",".join(map(str, values)), set(values)
        case "range":
            first, last = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
            return f"{first}-{last}", set(range(first, last + 1))
        case _:
            first, last = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
            return f"{first}-{last}/2", set(range(first, last + 1)[::2])


@st.composite
def times(draw: st.DrawFn) -> tuple[str, set[int], set[int]]:
    minute, minutes = field(draw, 0, 59)
    hour, hours = field(draw, 0, 23)
    return f"{minute} {hour}", minutes, hours


@pytest.mark.parametrize(("zone", "day"), CHANGES, ids=[f"{zone} {day}" for zone, day in CHANGES])
@settings(max_examples=5)
@given(times())
def test_a_cron_runs_at_the_minutes_of_a_brute_force_search(
    zone: str, day: date, fields: tuple[str, set[int], set[int]]
) -> None:
    text, minutes, hours = fields
    expected = instants(
        ZoneInfo(zone),
        lambda shown: shown.minute in minutes and shown.hour in hours,
        day,
        is_hourly=len(hours) == 24,
    )

    assert_runs_at(Cron(f"{text} * * *", tz=zone), expected)


@pytest.mark.parametrize(("zone", "day"), CHANGES, ids=[f"{zone} {day}" for zone, day in CHANGES])
def test_a_daily_time_runs_once_on_each_day_that_the_zone_has(zone: str, day: date) -> None:
    for hour, minute in ((0, 0), (0, 30), (1, 59), (2, 0), (2, 30), (3, 0), (23, 45)):
        expected = instants(
            ZoneInfo(zone),
            lambda shown, at=(hour, minute): (shown.hour, shown.minute) == at,  # type: ignore[misc]
            day,
            is_hourly=False,
        )

        assert_runs_at(Calendar(at=f"{hour}:{minute:02}", tz=zone), expected)
        assert_runs_at(Cron(f"{minute} {hour} * * *", tz=zone), expected)


@st.composite
def crons_of_days(draw: st.DrawFn) -> tuple[str, Callable[[date], bool]]:
    day, days = field(draw, 1, 31)
    month, months = field(draw, 1, 12)
    weekday, weekdays = field(draw, 0, 6)

    def matches(when: date) -> bool:
        by_day, by_weekday = when.day in days, when.isoweekday() % 7 in weekdays
        if day.startswith("*") or weekday.startswith("*"):
            return when.month in months and by_day and by_weekday
        return when.month in months and (by_day or by_weekday)

    return f"{day} {month} {weekday}", matches


@settings(max_examples=examples(10, 30))
@given(crons_of_days(), st.integers(1970, 2100))
def test_a_cron_runs_on_the_days_of_a_brute_force_search(fields: tuple[str, Callable[[date], bool]], year: int) -> None:
    text, matches = fields
    days = [day for day in days_from(date(year, 1, 1), 800) if matches(day)]
    try:
        trigger = Cron(f"30 12 {text}")
    except ValueError:
        assert not days
        return

    assert_runs_at(trigger, [at_noon(day) + timedelta(minutes=30) for day in days])


def test_days_counted_in_a_month_agree_with_a_brute_force_search() -> None:
    names = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    for weekday, name in enumerate(names):
        for nth, ordinal in enumerate(("first", "second", "third", "fourth", "fifth", "last")):
            expected = []
            for year in range(2023, 2029):
                for month in range(1, 13):
                    column = [week[weekday] for week in calendar.monthcalendar(year, month) if week[weekday]]
                    day = column[-1] if ordinal == "last" else column[nth] if nth < len(column) else None
                    if day is not None:
                        expected.append(at_noon(date(year, month, day)))

            assert_runs_at(Calendar(on=f"{ordinal} {name}", at="12:00"), expected)
            assert_runs_at(Cron(f"0 12 * * {name}{'L' if ordinal == 'last' else f'#{nth + 1}'}"), expected)


@settings(max_examples=examples(10, 30))
@given(st.dates(date(2020, 1, 1), date(2030, 1, 1)), st.integers(1, 40), st.sets(st.integers(0, 6), min_size=1))
def test_every_few_days_and_weeks_are_counted_from_the_start(start: date, count: int, weekdays: set[int]) -> None:
    names = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    days = days_from(start, 900)
    monday = start - timedelta(days=start.weekday())
    in_weeks = [
        day for day in days if day.weekday() in weekdays and ((day - monday) // timedelta(weeks=1)) % count == 0
    ]

    assert_runs_at(Calendar(days=count, at="12:00", start=start), [at_noon(day) for day in days[::count]])
    assert_runs_at(
        Calendar(weeks=count, on=[names[each] for each in weekdays], at="12:00", start=start),
        [at_noon(day) for day in in_weeks],
    )


@settings(max_examples=examples(10, 30))
@given(st.dates(date(2020, 1, 1), date(2030, 1, 1)), st.integers(1, 14), st.sets(st.integers(1, 31), min_size=1))
def test_every_few_months_keep_their_days_and_shorten_them_where_the_month_does(
    start: date, count: int, numbers: set[int]
) -> None:
    expected = []
    for step in range(0, 48, count):
        year, month = divmod(start.year * 12 + start.month - 1 + step, 12)
        length = calendar.monthrange(year, month + 1)[1]
        expected += [at_noon(date(year, month + 1, day)) for day in sorted({min(each, length) for each in numbers})]

    assert_runs_at(Calendar(months=count, on=sorted(numbers), at="12:00", start=start), expected)
    if count == 1:
        assert_runs_at(
            Calendar(on=sorted(numbers), in_months=["feb", 6], at="12:00"),
            [moment for moment in expected if moment.month in (2, 6)],
        )


@settings(max_examples=examples(10, 30))
@given(
    st.sampled_from([(zone, day) for zone, day in CHANGES if "Kwajalein" not in zone]),
    st.lists(st.integers(0, 59), min_size=1, max_size=3),
    st.sampled_from(("*", "2", "1-3", "0,23")),
)
def test_six_fields_begin_with_the_second(change: tuple[str, date], seconds: list[int], hour: str) -> None:
    """Around the change, where all of it can go wrong: each second of four hours is looked at."""
    zone, day = ZoneInfo(change[0]), change[1]
    hours = {"*": set(range(24)), "2": {2}, "1-3": {1, 2, 3}, "0,23": {0, 23}}[hour]
    # What runs once each minute differs by its seconds only, so the minutes come from the oracle above.
    starts = instants(zone, lambda shown: shown.hour in hours and shown.minute == 7, day, is_hourly=hour == "*")
    skipped_to = {moment for moment in starts if reading(moment, zone).minute != 7 or moment.second}
    expected = sorted(
        {
            moment + timedelta(seconds=second)
            for moment in starts
            for second in ((0,) if moment in skipped_to else seconds)
        }
    )

    assert_runs_at(Cron(f"{','.join(map(str, seconds))} 7 {hour} * * *", tz=change[0]), expected)


@settings(max_examples=examples(30, 100))
@given(st.integers(100_000, 10**13), st.datetimes(timezones=st.just(UTC)), st.integers(-(10**16), 10**16))
def test_every_is_a_lattice_through_its_start(period: int, start: datetime, instant: int) -> None:
    trigger = Every(seconds=period / SECOND, start=start)
    following, latest = trigger.next_after(instant), trigger.latest_at_or_before(instant)

    assert following is not None
    assert latest is not None
    assert latest <= instant < following == latest + trigger.period
    assert (latest - from_datetime(start)) % trigger.period == 0


def days_from(start: date, count: int) -> list[date]:
    return [start + timedelta(days=number) for number in range(count)]


def at_noon(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
