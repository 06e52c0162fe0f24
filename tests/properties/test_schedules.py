"""What is due of a schedule, looked at whenever, against all instants of its trigger."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate import Calendar, Cron, Every
from headgate.clock import SECOND, from_datetime
from headgate.schedules.schedule import (
    DAY,
    LATE,
    MAX_PER_COMMIT,
    MOST_COUNTED,
    DueOccurrences,
    Misfire,
    Overlap,
    ScheduleProgress,
    ScheduleRules,
    due,
    first_progress,
    resume,
    set_back,
    skip_next,
    upcoming,
    updated_progress,
    without_refused,
)
from headgate.schedules.trigger import Trigger
from tests.seeds import examples

START = from_datetime(datetime(2026, 3, 28, 20, 0, 7, tzinfo=UTC))

thorough = settings(max_examples=examples(40, 150))

triggers = st.sampled_from(
    [
        Every(seconds=10),
        Every(minutes=7, start=datetime(2026, 1, 1, tzinfo=UTC)),
        Cron("*/10 * * * *", tz="Europe/Rome"),
        Cron("30 2 * * *", tz="Europe/Rome"),
        Calendar(at=["0:00", "2:15", "12:00"], tz="Europe/Rome"),
    ]
)
looks = st.lists(st.integers(1, 40_000 * SECOND), min_size=1, max_size=12)


def points(trigger: Trigger, after: int, until: int) -> list[int]:
    found: list[int] = []
    instant = trigger.next_after(after)
    while instant is not None and instant <= until:
        found.append(instant)
        instant = trigger.next_after(instant)
    return found


def life(
    rules: ScheduleRules, trigger: Trigger, waits: list[int], open_jobs: int = 0, most: int = MAX_PER_COMMIT
) -> tuple[list[tuple[int, int]], ScheduleProgress, int]:
    """What is enqueued (with the look that it was enqueued at) by a node that looks after each of these waits."""
    now = START
    course = first_progress(rules, trigger, now)
    enqueued: list[tuple[int, int]] = []
    for wait in waits:
        now += wait
        while course.next_at is not None and course.next_at <= now:
            what = due(rules, trigger, replace(course, open=open_jobs), now, most)
            assert len(what.occurrences) <= most
            assert what.next_at is None or what.next_at > course.next_at
            enqueued += [(occurrence, now) for occurrence in what.occurrences]
            course = replace(course, next_at=what.next_at, last_at=what.last_at)
    return enqueued, course, now


@thorough
@given(triggers, looks, st.one_of(st.none(), st.integers(0, 200_000 * SECOND)), st.integers(1, 40) | st.just(1000))
def test_with_misfire_all_each_instant_is_enqueued_once(
    trigger: Trigger, waits: list[int], ends: int | None, most: int
) -> None:
    until = None if ends is None else START + ends
    rules = ScheduleRules("{}", until=until, misfire="run_all", overlap="allow")
    enqueued, course, now = life(rules, trigger, waits, most=most)
    expected = points(trigger, START, now if until is None else min(now, until - 1))

    assert [occurrence for occurrence, _ in enqueued] == expected
    following = trigger.next_after(now)
    assert course.next_at == (None if until is not None and following is not None and following >= until else following)


@thorough
@given(triggers, looks, st.sampled_from(("run_once", "skip")), st.sampled_from(("allow", "queue", "skip")))
def test_with_other_misfires_no_instant_is_enqueued_twice_and_none_on_time_is_missed(
    trigger: Trigger, waits: list[int], misfire: Misfire, overlap: Overlap
) -> None:
    rules = ScheduleRules("{}", misfire=misfire, overlap=overlap)
    enqueued, course, now = life(rules, trigger, waits)
    occurrences = [occurrence for occurrence, _ in enqueued]
    everything = points(trigger, START, now)

    assert occurrences == sorted(set(occurrences))
    assert set(occurrences) <= set(everything)
    assert course.next_at == trigger.next_after(now)
    if misfire == "skip":
        assert all(at - occurrence <= LATE for occurrence, at in enqueued)
    elif everything:
        # The latest of all instants has run, at any time of the last check.
        assert occurrences[-1] == everything[-1]


@thorough
@given(triggers, looks, st.integers(1, 30), st.sampled_from(("run_once", "run_all")))
def test_no_more_than_max_runs_are_open(trigger: Trigger, waits: list[int], max_runs: int, misfire: Misfire) -> None:
    rules = ScheduleRules("{}", max_runs=max_runs, misfire=misfire, overlap="allow")
    now, course = START, first_progress(ScheduleRules("{}"), trigger, START)
    for wait in waits:
        now += wait
        if course.next_at is not None and course.next_at <= now:
            what = due(rules, trigger, course, now)
            course = replace(course, next_at=what.next_at, open=course.open + len(what.occurrences))
            assert course.runs + course.open <= max_runs
        # One of them ends, and one was skipped.
        if course.open:
            course = replace(course, open=course.open - 1, runs=course.runs + 1)
        if course.open:
            course = replace(course, open=course.open - 1)
        assert len(upcoming(rules, trigger, course, now, 5)) <= max(0, max_runs - course.runs - course.open)


@pytest.mark.parametrize("misfire", ["run_once", "skip", "run_all"])
@pytest.mark.parametrize("overlap", ["skip", "queue", "allow"])
def test_no_run_is_shown_while_the_last_one_of_max_runs_is_open(misfire: Misfire, overlap: Overlap) -> None:
    """The fault: with no worker, `next_runs()` and the plan of the day had one more, in the past."""
    rules = ScheduleRules("{}", max_runs=1, misfire=misfire, overlap=overlap)
    trigger = Every(seconds=10, start=datetime(2026, 1, 1, tzinfo=UTC))
    course = replace(first_progress(rules, trigger, START), open=1)
    assert upcoming(rules, trigger, course, START + DAY, 5) == []


class Counted:
    """A trigger that counts how often it is asked."""

    def __init__(self, trigger: Trigger) -> None:
        self.asked = 0
        self.describe = trigger.describe
        self.latest_at_or_before = trigger.latest_at_or_before
        self._trigger = trigger

    def next_after(self, instant: int) -> int | None:
        self.asked += 1
        return self._trigger.next_after(instant)


@pytest.mark.parametrize("misfire", ["run_once", "skip"])
def test_the_next_runs_after_a_long_outage_are_found_in_few_steps(misfire: Misfire) -> None:
    """The fault: a thousand missed ones were counted each time, for each of 40 schedules in the plan of the day."""
    trigger, rules = Counted(Cron("* * * * *")), ScheduleRules("{}", misfire=misfire)
    course, now = first_progress(rules, trigger, START), START + 100 * DAY
    runs = upcoming(rules, trigger, course, now, 5)
    assert trigger.asked < 10
    first = due(rules, trigger, course, now)
    assert runs == [*first.occurrences, *points(trigger, now, now + 5 * 60 * SECOND)][:5]


@thorough
@given(triggers, looks, st.none() | st.integers(0, 400_000 * SECOND), st.sampled_from(("run_once", "skip", "run_all")))
def test_the_next_runs_begin_with_what_is_enqueued_next(
    trigger: Trigger, waits: list[int], ends: int | None, misfire: Misfire
) -> None:
    rules = ScheduleRules("{}", until=None if ends is None else START + ends, misfire=misfire, overlap="allow")
    _, course, now = life(rules, trigger, waits[:-1])
    now += waits[-1]
    is_due = course.next_at is not None and course.next_at <= now
    what = due(rules, trigger, course, now, 5) if is_due else DueOccurrences((), course.next_at, None)
    expected = [*what.occurrences, *([] if what.next_at is None else [what.next_at])]
    assert upcoming(rules, trigger, course, now, 5)[: len(expected)] == expected[:5]


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow"])
def test_while_a_job_is_open_only_what_skips_is_skipped(overlap: Overlap) -> None:
    rules = ScheduleRules("{}", overlap=overlap)
    enqueued, _, _ = life(rules, Every(seconds=10, start=datetime(2026, 1, 1, tzinfo=UTC)), [25 * SECOND], open_jobs=1)

    assert len(enqueued) == (0 if overlap == "skip" else 3)


@thorough
@given(
    triggers, looks, st.sampled_from(("run_once", "skip", "run_all")), st.sampled_from(("allow", "skip")), st.booleans()
)
def test_each_instant_is_enqueued_or_counted_as_skipped(
    trigger: Trigger, waits: list[int], misfire: Misfire, overlap: Overlap, is_open: bool
) -> None:
    rules = ScheduleRules("{}", misfire=misfire, overlap=overlap)
    now, course, enqueued, skips = START, first_progress(rules, trigger, START), 0, 0
    for wait in waits:
        now += wait
        while course.next_at is not None and course.next_at <= now:
            what = due(rules, trigger, replace(course, open=int(is_open)), now)
            assert bool(what.skips) == (what.skipped is not None)
            enqueued, skips = enqueued + len(what.occurrences), skips + what.skips
            course = replace(course, next_at=what.next_at, last_at=what.last_at)
    assert enqueued + skips == len(points(trigger, START, now))


@thorough
@given(triggers, st.integers(0, 40_000 * SECOND), st.one_of(st.none(), st.integers(1, 40_000 * SECOND)))
def test_what_a_limit_refuses_until_it_opens_is_counted(trigger: Trigger, opens_in: int, ends: int | None) -> None:
    first = trigger.next_after(START)
    assert first is not None
    rules = ScheduleRules("{}", until=None if ends is None else first + ends)
    course = first_progress(rules, trigger, START)
    found = due(rules, trigger, course, first)
    left = without_refused(found, rules, trigger, found.occurrences, first + opens_in)
    ahead = points(trigger, START, first + max(opens_in, 1) - 1)
    assert (left.occurrences, left.skipped) == ((), "limit")
    assert left.skips == len([each for each in ahead if rules.until is None or each < rules.until])
    assert left.next_at not in ahead


@pytest.mark.parametrize(
    ("trigger", "skips"),
    [
        (Every(seconds=1), 365 * 86400),
        # Its first occurrence may be at another time than those of its trigger.
        (Every(minutes=10, start=datetime(2026, 1, 1, tzinfo=UTC)), 365 * 24 * 6 + 1),
        (Every(days=1000), 1),
        (Cron("*/10 * * * *"), MOST_COUNTED),
    ],
)
def test_a_year_of_skipped_instants_is_counted_in_one_step_or_not_to_its_end(trigger: Trigger, skips: int) -> None:
    rules = ScheduleRules("{}", misfire="skip", overlap="allow")
    what = due(rules, trigger, ScheduleProgress(START, START), START + 365 * 86400 * SECOND + LATE)
    assert (what.skipped, what.skips) == ("misfire", skips)


@thorough
@given(triggers, triggers, looks, st.integers(-3600 * SECOND, 3600 * SECOND))
def test_declared_again_it_fires_nothing_twice_whatever_its_trigger_and_the_clock_are(
    before: Trigger, after: Trigger, waits: list[int], step: int
) -> None:
    rules = ScheduleRules("{}", misfire="run_all", overlap="allow")
    enqueued, course, now = life(rules, before, waits)
    stepped = now + step
    again = updated_progress(course, rules, after, stepped, is_unchanged=before == after)

    assert again.next_at is not None
    if again.next_at > stepped:
        assert all(again.next_at > occurrence for occurrence, _ in enqueued)
        assert after.next_after(again.next_at - 1) == again.next_at
    resumed = resume(again, rules, after, stepped)
    assert resumed.next_at is not None
    assert resumed.next_at > stepped


@thorough
@given(triggers, looks, st.integers(0, 20 * 365 * 86400 * SECOND))
def test_set_back_it_waits_two_periods_and_a_day_at_most_and_else_repeats_nothing(
    trigger: Trigger, waits: list[int], step: int
) -> None:
    rules = ScheduleRules("{}", misfire="run_once", overlap="allow")
    _, course, ahead = life(rules, trigger, waits)
    now = ahead - step
    back = set_back(course, rules, trigger, now)
    second = trigger.next_after(trigger.next_after(now) or 0)
    first = trigger.next_after(now)
    assert first is not None
    assert second is not None
    assert back.next_at is not None
    if back != course:
        assert back.next_at == first
        assert step > LATE
    assert back.next_at <= now + 2 * DAY + (second - first) + LATE
    assert set_back(back, rules, trigger, now) == back


def test_what_is_set_back_keeps_its_end_and_what_was_skipped_by_hand() -> None:
    trigger, now = Every(minutes=10, start=datetime(2026, 1, 1, tzinfo=UTC)), START
    year = 365 * DAY
    later = ScheduleProgress(now - DAY, now + year + SECOND, now + year, runs=3)
    assert set_back(later, ScheduleRules("{}", max_runs=3), trigger, now).next_at is None
    over = replace(later, next_at=None)
    assert set_back(over, ScheduleRules("{}", until=now + 2 * year), trigger, now).next_at == trigger.next_after(now)
    assert set_back(over, ScheduleRules("{}", until=now), trigger, now).next_at is None
    rules = ScheduleRules("{}")
    skipped = skip_next(first_progress(rules, trigger, now), rules, trigger)
    assert set_back(skipped, rules, trigger, now) == skipped
    # A first occurrence that was requested for an instant stays; one that was "now" is now.
    declared = ScheduleProgress(now + year, now + 2 * year)
    requested = ScheduleRules("{}", first_at=now + 2 * year)
    assert set_back(declared, requested, trigger, now).next_at == now + 2 * year
    at_once = ScheduleRules("{}", first_at=now + year)
    assert set_back(replace(declared, next_at=now + year), at_once, trigger, now).next_at == now


def test_a_daily_schedule_that_is_set_back_by_hours_repeats_nothing() -> None:
    trigger, rules, now = Cron("0 0 * * *"), ScheduleRules("{}"), START
    midnight = trigger.next_after(now)
    assert midnight is not None
    fired = ScheduleProgress(now - DAY, trigger.next_after(midnight), midnight)
    assert set_back(fired, rules, trigger, midnight - 3600 * SECOND) == fired
    assert set_back(fired, rules, trigger, midnight - 2 * DAY).next_at == midnight - DAY


def test_a_trigger_that_does_not_advance_is_an_error() -> None:
    class Still:
        def next_after(self, instant: int) -> int | None:
            return instant

        def latest_at_or_before(self, instant: int) -> int | None:
            return instant

        def describe(self) -> str:
            return "still"

    with pytest.raises(ValueError, match=r"next_after\(0\) of 'still' returned 0, which is not a later instant"):
        due(ScheduleRules("{}"), Still(), ScheduleProgress(0, 0), 0)
