"""Windows against an oracle that looks at the clock at each occurrence, also where clocks are changed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.clock import SECOND, from_datetime, to_datetime
from headgate.schedules.calendar import Calendar
from headgate.schedules.cron import Cron
from headgate.schedules.every import Every
from headgate.schedules.restricted import CodeRestrictedTrigger, RestrictedTrigger, WindowTerms, restricted
from headgate.schedules.schedule import ScheduleRules, ready_at
from headgate.schedules.stored_trigger import dump_trigger, load_trigger
from headgate.schedules.trigger import Trigger
from tests.executed_lines import lines_of_call
from tests.properties.test_triggers import CHANGES
from tests.seeds import examples

MINUTE = 60 * SECOND

WORDS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


Times = tuple[int, int] | None
Days = tuple[str, Callable[[date], bool]]


@st.composite
def excluded_days(draw: st.DrawFn, around: date) -> Days:
    """What is written of days to exclude near a date, and which these are."""
    first = around + timedelta(days=draw(st.integers(-3, 3)))
    last = first + timedelta(days=draw(st.integers(0, 3)))
    match draw(st.sampled_from(("day", "range", "yearly", "yearly range"))):
        case "day":
            return first.isoformat(), lambda day: day == first
        case "range":
            return f"{first}..{last}", lambda day: first <= day <= last
        case "yearly":
            return f"{first:%m-%d}", lambda day: (day.month, day.day) == (first.month, first.day)
        case _:
            # Of nine days, those between the two are the same in every year, also over its end.
            return f"{first:%m-%d}..{last:%m-%d}", lambda day: first <= day <= last


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, date, Trigger, Times, set[int], list[Days]]:
    zone, day = draw(st.sampled_from(CHANGES))
    times = draw(
        st.none() | st.tuples(st.integers(0, 1439), st.integers(0, 1439)).filter(lambda pair: pair[0] != pair[1])
    )
    weekdays = draw(st.sets(st.integers(0, 6), min_size=1))
    days = draw(st.lists(excluded_days(day), max_size=3))
    step = draw(st.sampled_from((7, 45, 60, 1440, 1500)))
    start = datetime(1980, 1, 1, 0, draw(st.integers(0, 59)), tzinfo=UTC)
    triggers: list[Trigger] = [
        Every(minutes=step, start=start),
        Cron(f"{start.minute} * * * *", tz=zone),
        Cron("*/20 1-4,23 * * *", tz=zone),
        Calendar(at=["0:00", "2:30", "23:59"], tz=zone),
    ]
    return zone, day, draw(st.sampled_from(triggers)), times, weekdays, days


def clock_time(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}"


def window(trigger: Any, zone: str, times: Times, weekdays: set[int], days: list[Days]) -> RestrictedTrigger:
    between = None if times is None else (clock_time(times[0]), clock_time(times[1]))
    on = tuple(WORDS[weekday] for weekday in weekdays)
    return RestrictedTrigger(trigger, WindowTerms(tz=zone, between=between, on=on, exclude=tuple(t for t, _ in days)))


def occurrences(trigger: Trigger, first: int, last: int) -> list[int]:
    found: list[int] = []
    at = trigger.next_after(first - 1)
    while at is not None and at <= last:
        found.append(at)
        at = trigger.next_after(at)
    return found


@settings(max_examples=examples(10, 200))
@given(case=cases(), place=st.integers(0, 9 * 1440 - 1))
def test_a_trigger_runs_inside_of_its_windows_as_by_a_brute_force_search(
    case: tuple[str, date, Trigger, Times, set[int], list[Days]], place: int
) -> None:
    zone, day, inner, times, weekdays, days = case
    first = from_datetime(datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(days=4))
    last = first + 9 * 1440 * MINUTE

    def is_open(shown: datetime) -> bool:
        minute = shown.hour * 60 + shown.minute
        is_in_time = times is None or (
            times[0] <= minute < times[1] if times[0] < times[1] else minute >= times[0] or minute < times[1]
        )
        return is_in_time and shown.weekday() in weekdays and not any(excludes(shown.date()) for _, excludes in days)

    readings = ((moment, to_datetime(moment).astimezone(ZoneInfo(zone))) for moment in occurrences(inner, first, last))
    expected = [moment for moment, shown in readings if is_open(shown)]
    trigger = window(inner, zone, times, weekdays, days)
    assert occurrences(trigger, first, last) == expected
    # Backward, and from between two runs.
    for instant in (first + place * MINUTE, first + place * MINUTE + 31 * SECOND):
        before = expected[: bisect_right(expected, instant)]
        latest = trigger.latest_at_or_before(instant)
        assert latest == before[-1] if before else latest is None or latest < first
    assert load_trigger(dump_trigger(trigger)) == trigger


@given(
    name=st.text(max_size=20), occurs_at=st.integers(0, 2**52), jitter=st.integers(1, 10**12),
    until=st.none() | st.integers(0, 2**52),
)  # fmt: skip
def test_a_job_is_ready_within_the_jitter_before_the_end_and_at_the_same_time_on_all_nodes(
    name: str, occurs_at: int, jitter: int, until: int | None
) -> None:
    rules = ScheduleRules("{}", until=until, jitter=jitter)
    at = ready_at(name, rules, occurs_at)
    assert at == ready_at(name, rules, occurs_at)
    assert occurs_at <= at <= occurs_at + jitter
    assert until is None or at < until or at == occurs_at
    assert ready_at(name, ScheduleRules("{}"), occurs_at) == occurs_at


def test_jitter_spreads_the_jobs_of_many_schedules() -> None:
    rules = ScheduleRules("{}", jitter=60 * MINUTE)
    tenths = [0] * 10
    for number in range(2000):
        tenths[ready_at(f"tenant-{number}", rules, 0) * 10 // (60 * MINUTE + 1)] += 1
    assert min(tenths) > 150


def test_jitter_spreads_the_last_jobs_over_the_time_before_the_end() -> None:
    """The fault: all that would have been ready later were ready a microsecond before `until`, and so skipped."""
    rules = ScheduleRules("{}", until=60 * MINUTE, jitter=300 * MINUTE)
    tenths = [0] * 10
    for number in range(2000):
        tenths[ready_at(f"tenant-{number}", rules, 0) * 10 // (60 * MINUTE)] += 1
    assert min(tenths) > 150


def test_jumps_over_closed_times_need_few_steps() -> None:
    """A trigger of ten a second is asked once for each opening, not for each of its occurrences."""
    asked: list[int] = []

    class Counted:
        def next_after(self, instant: int) -> int | None:
            asked.append(instant)
            return instant // 100_000 * 100_000 + 100_000

        def latest_at_or_before(self, instant: int) -> int | None:
            asked.append(instant)
            return instant // 100_000 * 100_000

        def describe(self) -> str:
            return "ten a second"

    trigger = restricted(
        Counted(),
        "a schedule",
        between=("8:00", "8:01"),
        on="mon",
        exclude=["2026-11-01..2026-11-29"],
        tz="Europe/Rome",
    )
    assert isinstance(trigger, CodeRestrictedTrigger)
    friday = from_datetime(datetime(2026, 10, 30, tzinfo=UTC))
    monday = from_datetime(datetime(2026, 11, 30, 7, tzinfo=UTC))
    assert trigger.next_after(friday) == monday
    assert trigger.latest_at_or_before(monday - 1) == from_datetime(datetime(2026, 10, 26, 7, 1, tzinfo=UTC)) - 100_000
    assert len(asked) <= 6


@pytest.mark.parametrize("inner", [Every(minutes=5), Calendar(days=2), Cron("0 6 * * *", tz="Europe/Rome")])
def test_a_restricted_trigger_is_counted_from_the_first_declaration(inner: Trigger) -> None:
    trigger = restricted(inner, "a schedule", between=None, on=None, exclude="12-25", tz=None)
    assert isinstance(trigger, RestrictedTrigger)
    assert trigger.terms.tz == getattr(inner, "tz", "UTC")
    start = from_datetime(datetime(2026, 12, 20, 3, 2, 1, tzinfo=UTC))
    counted = inner if isinstance(inner, Cron) else inner.starting(start)  # type: ignore[attr-defined]
    assert trigger.starting(start).next_after(start) == counted.next_after(start)


def test_a_long_list_of_excluded_days_costs_a_day_no_more_than_a_short_one() -> None:
    def lines_for(days: int) -> int:
        """Return what it takes to find the first occurrence after so many excluded days."""
        first = date(2026, 1, 1)
        excluded = [first + timedelta(days=each) for each in range(days)]
        trigger = restricted(Every(hours=1), "a schedule", between=None, on=None, exclude=excluded, tz="Europe/Rome")
        start = from_datetime(datetime(2026, 1, 1, tzinfo=UTC))
        found: list[int | None] = []
        lines = lines_of_call(lambda: found.append(trigger.next_after(start)))
        assert found[0] is not None
        assert to_datetime(found[0]).astimezone(ZoneInfo("Europe/Rome")).date() == first + timedelta(days=days)
        return lines

    short = lines_for(100)
    assert lines_for(1000) < 12 * short
