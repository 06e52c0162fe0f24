"""StrictRate: never more than N starts in any window."""

from __future__ import annotations

import pytest

from headgate.clock import SECOND
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.limits.rate import parse_rate
from headgate.limits.rule import Rule
from headgate.limits.strict_rate import SlidingLog, Starts, StrictRate
from tests.unit.limits.timeline import HOUR, MINUTE, NOON, most_in_any_window, seconds, start_all


def exact(text: str) -> SlidingLog:
    return StrictRate(text, margin=0).rule


def test_twenty_jobs_at_once_start_fifteen_now_and_five_when_the_window_is_over() -> None:
    starts, _ = start_all(exact("15/m"), 20)
    assert seconds(starts) == [0] * 15 + [60] * 5


def test_the_default_margin_widens_the_window_by_twenty_milliseconds() -> None:
    starts, _ = start_all(StrictRate("15/m").rule, 16)
    assert seconds(starts)[15] == 60.02


def test_a_margin_may_be_chosen() -> None:
    starts, _ = start_all(StrictRate("15/m", margin=1).rule, 16)
    assert seconds(starts)[15] == 61


def test_no_window_ever_holds_more_than_the_count() -> None:
    rule = StrictRate("15/m").rule
    starts: list[int] = []
    state: Starts | None = None
    now = NOON
    # Jobs come in lumps of ever other sizes and gaps.
    for lump in range(200):
        now += lump * 37 % 41 * SECOND // 3
        started, state = start_all(rule, 1 + lump * 7 % 19, now, state)
        now = started[-1]
        starts += started
    assert most_in_any_window(starts, MINUTE) == 15
    assert rule.bound(MINUTE) == 15


def test_a_start_stops_counting_at_exactly_the_end_of_its_window() -> None:
    rule = exact("1/m")
    _, state = rule.take(None, NOON)
    assert rule.take(state, NOON + MINUTE - 1)[0] == NOON + MINUTE
    assert rule.take(state, NOON + MINUTE)[0] == NOON + MINUTE


def test_the_bound_of_any_window_counts_its_started_periods() -> None:
    rule = exact("15/m")
    assert [rule.bound(window) for window in (1, MINUTE, MINUTE + 1, HOUR)] == [15, 15, 30, 900]


def test_the_bound_is_the_count_for_a_window_shorter_than_the_margin_leaves() -> None:
    assert StrictRate("15/m").rule.bound(MINUTE) == 15


def test_each_start_frees_its_own_place() -> None:
    rule = exact("3/m")
    state: Starts | None = None
    for offset in (0, 10, 20):
        _, state = rule.take(state, NOON + offset * SECOND)
    starts, _ = start_all(rule, 4, NOON + 30 * SECOND, state)
    assert seconds(starts) == [60, 70, 80, 120]


def test_a_saturated_key_uses_its_whole_budget() -> None:
    starts, _ = start_all(exact("7/s"), 7 * 600 + 1)
    assert starts[-1] == NOON + 600 * SECOND


@pytest.mark.parametrize("text", ["7/s", "13/10s", "1000/s"])
def test_a_count_that_does_not_divide_its_period_loses_nothing_and_exceeds_nothing_in_an_hour(text: str) -> None:
    rate = parse_rate(text, None)
    rule = SlidingLog(rate.count, rate.period)
    cost = max(1, rate.count // 13)
    starts: list[tuple[int, int]] = []
    now, state = NOON, None
    while now < NOON + HOUR:
        opens_at, after = rule.take(state, now, cost)
        if opens_at > now:
            now = opens_at
        else:
            starts.append((now, cost))
            state = after
    granted = sum(cost for _, cost in starts)
    periods = HOUR // rate.period
    assert granted == rate.count // cost * cost * periods
    assert granted <= rule.bound(HOUR)


def test_a_refused_start_costs_nothing() -> None:
    rule = exact("15/m")
    _, state = start_all(rule, 15)
    for offset in range(60):
        assert rule.take(state, NOON + offset * SECOND)[0] == NOON + MINUTE


def test_a_reservation_keeps_the_state_and_books_one_slot_after_another() -> None:
    rule = exact("2/m")
    state: Starts | None = None
    booked = []
    for _ in range(6):
        opens_at, state = rule.take(state, NOON)
        booked.append(opens_at)
    assert seconds(booked) == [0, 0, 60, 60, 120, 120]


def test_a_clock_that_steps_back_creates_no_budget() -> None:
    rule = exact("15/m")
    _, state = start_all(rule, 15)
    for back in (1, SECOND, MINUTE, 24 * HOUR):
        # Refused until the very instant it would have opened at without the step.
        assert rule.take(state, NOON - back)[0] == NOON + MINUTE


def test_a_clock_that_goes_back_less_than_a_period_closes_no_key_longer_than_the_step_and_its_window() -> None:
    rule = exact("15/m")
    _, state = start_all(rule, 15)
    now = NOON - 30 * SECOND
    assert rule.take(state, now)[0] - now == 90 * SECOND


def test_starts_before_and_after_a_step_back_share_their_windows() -> None:
    rule = exact("3/m")
    _, state = rule.take(None, NOON)
    opens_at, after = rule.take(state, NOON - 10 * SECOND)
    # The log is ordered, so the key opens when the clock is back at its last start.
    assert opens_at == NOON
    assert after == (NOON, NOON)


def test_a_snapshot_after_a_step_back_does_not_promise_what_take_refuses() -> None:
    rule = exact("3/m")
    _, state = rule.take(None, NOON)
    snapshot = rule.snapshot(state, NOON - 10 * SECOND)
    assert (snapshot.used, snapshot.available, snapshot.opens_at) == (1, 0, NOON)


def test_a_clock_that_jumps_forward_refills_one_count_at_most() -> None:
    rule = exact("15/m")
    _, state = start_all(rule, 15)
    starts, _ = start_all(rule, 16, NOON + 20 * 365 * 24 * HOUR, state)
    assert len(set(starts[:15])) == 1
    assert starts[15] - starts[14] == MINUTE


def test_a_cost_takes_as_many_places() -> None:
    rule = exact("15/m")
    _, state = rule.take(None, NOON, 10)
    assert rule.take(state, NOON, 5)[0] == NOON
    assert rule.take(state, NOON, 6)[0] == NOON + MINUTE


def test_a_cost_waits_for_as_many_places_as_it_needs() -> None:
    rule = exact("3/m")
    state: Starts | None = None
    for offset in (0, 10, 20):
        _, state = rule.take(state, NOON + offset * SECOND)
    opens = [rule.take(state, NOON + 30 * SECOND, cost)[0] for cost in (1, 2, 3)]
    assert seconds(opens) == [60, 70, 80]


def test_a_cost_above_the_count_is_an_error_and_charges_nothing() -> None:
    rule = exact("15/m")
    _, state = start_all(rule, 14)
    with pytest.raises(CostExceedsLimit, match=r"cost=16 is more than a strict rate of 15/m"):
        rule.take(state, NOON, 16)
    assert rule.take(state, NOON)[0] == NOON


def test_a_declared_cost_above_the_count_is_refused_at_declaration() -> None:
    with pytest.raises(DeclarationError, match="cost=16 is more than"):
        StrictRate("15/m", cost=16)


def test_a_count_above_a_thousand_is_refused_with_a_way_out() -> None:
    assert StrictRate("1000/m").rule.count == 1000
    with pytest.raises(DeclarationError, match="at most 1000, not 1001; use"):
        StrictRate("1001/m")


def test_a_negative_margin_is_refused() -> None:
    with pytest.raises(DeclarationError, match="cannot be negative"):
        StrictRate("15/m", margin=-0.1)


def test_the_log_drops_starts_that_no_longer_count() -> None:
    rule = exact("15/m")
    state: Starts | None = None
    for number in range(1000):
        opens_at, state = rule.take(state, NOON + number * 5 * SECOND)
        assert opens_at == NOON + number * 5 * SECOND
        assert len(state) <= 12


def test_a_snapshot_shows_what_counts_and_what_is_left() -> None:
    rule = exact("15/m")
    fresh = rule.snapshot(None, NOON)
    assert (fresh.used, fresh.available, fresh.opens_at) == (0, 15, NOON)
    _, state = start_all(rule, 14)
    one_left = rule.snapshot(state, NOON + SECOND)
    assert (one_left.used, one_left.available, one_left.opens_at) == (14, 1, NOON + SECOND)
    _, state = start_all(rule, 15)
    none_left = rule.snapshot(state, NOON + SECOND)
    assert (none_left.used, none_left.available, none_left.opens_at) == (15, 0, NOON + MINUTE)


def test_a_bucket_can_be_evicted_when_its_last_start_no_longer_counts() -> None:
    rule = exact("15/m")
    _, state = start_all(rule, 3)
    _, state = start_all(rule, 1, NOON + 10 * SECOND, state)
    assert rule.idle_at(state) == NOON + 70 * SECOND


def test_a_state_comes_back_from_storage_as_it_was() -> None:
    rule = exact("1000/m")
    _, state = start_all(rule, 1000)
    assert rule.load(rule.dump(state), NOON + HOUR) == state


def test_a_stored_state_names_its_version_and_stays_small() -> None:
    rule = exact("1000/m")
    _, state = start_all(rule, 1000)
    stored = rule.dump(state)
    assert stored.startswith("1:")
    assert len(stored) < 11_000


def test_a_lowered_count_lets_none_start_until_it_fits() -> None:
    old, new = exact("15/m"), exact("5/m")
    _, state = start_all(old, 15)
    starts, _ = start_all(new, 6, NOON + SECOND, new.load(old.dump(state), NOON + SECOND))
    assert seconds(starts) == [60] * 5 + [120]


def test_a_raised_count_opens_the_difference_at_once() -> None:
    old, new = exact("15/m"), exact("20/m")
    _, state = start_all(old, 15)
    starts, _ = start_all(new, 6, NOON + SECOND, new.load(old.dump(state), NOON + SECOND))
    assert seconds(starts) == [1] * 5 + [60]


def test_a_changed_period_counts_the_known_starts_by_the_new_one() -> None:
    old, shorter, longer = exact("15/m"), exact("15/10s"), exact("15/h")
    _, state = start_all(old, 15)
    stored = old.dump(state)
    assert shorter.take(shorter.load(stored, NOON), NOON)[0] == NOON + 10 * SECOND
    assert longer.take(longer.load(stored, NOON), NOON)[0] == NOON + HOUR


def test_a_rule_describes_all_that_makes_it_another() -> None:
    limits = [
        StrictRate("15/m"),
        StrictRate("16/m"),
        StrictRate("15/h"),
        StrictRate("15/m", margin=0),
        StrictRate("15/d"),
        StrictRate("15/d", margin=0.03),
    ]
    assert len({limit.rule.describe() for limit in limits}) == len(limits)


def test_a_strict_rule_is_a_rule() -> None:
    rule: Rule[Starts] = StrictRate("15/m").rule
    assert rule.kind == "strict"
