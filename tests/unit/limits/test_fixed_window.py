"""FixedWindow: when jobs start under a quota that is renewed at once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.clock import SECOND
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.limits.fixed_window import FixedWindow, Window
from headgate.limits.rule import Rule
from tests.unit.limits.timeline import DAY, HOUR, MINUTE, NOON, seconds, start_all


def test_four_jobs_start_at_12_59_and_four_more_at_13_00() -> None:
    rule = FixedWindow("4/h").rule
    starts, state = start_all(rule, 4, NOON + 59 * MINUTE)
    assert set(starts) == {NOON + 59 * MINUTE}
    starts, _ = start_all(rule, 5, NOON + 59 * MINUTE, state)
    assert starts == [NOON + HOUR] * 4 + [NOON + 2 * HOUR]
    assert rule.bound(HOUR) == 8


def test_windows_are_aligned_to_the_epoch_and_not_to_the_first_start() -> None:
    rule = FixedWindow("15/m").rule
    starts, _ = start_all(rule, 20, NOON + 45 * SECOND)
    assert seconds(starts) == [45] * 15 + [60] * 5


def test_a_day_is_a_day_of_the_calendar() -> None:
    rule = FixedWindow("1000/d").rule
    assert NOON % DAY == 12 * HOUR
    _, state = rule.take(None, NOON, 1000)
    assert rule.take(state, NOON)[0] == NOON + 12 * HOUR


def test_a_window_is_half_open() -> None:
    rule = FixedWindow("1/m").rule
    _, state = rule.take(None, NOON)
    assert rule.take(state, NOON + MINUTE - 1)[0] == NOON + MINUTE
    assert rule.take(state, NOON + MINUTE)[0] == NOON + MINUTE


def test_a_count_with_its_period_is_the_same_as_a_rate() -> None:
    assert FixedWindow(15, per=60).rule == FixedWindow("15/m").rule == FixedWindow(15, per=timedelta(minutes=1)).rule


@pytest.mark.parametrize("per", [0.999999, 0.5, 1e-6])
def test_a_window_below_a_second_is_refused(per: float) -> None:
    with pytest.raises(DeclarationError, match="shorter than a second; use RateLimit or StrictRate"):
        FixedWindow(15, per=per)


def test_a_window_of_a_second_is_allowed() -> None:
    assert FixedWindow("15/s").rule.period == SECOND


def test_nothing_starts_in_the_margin_and_the_windows_stay_where_they_are() -> None:
    rule = FixedWindow("15/m", margin=0.5).rule
    assert rule.take(None, NOON + 59_499_999)[0] == NOON + 59_499_999
    for now in (NOON + 59_500_000, NOON + 59_999_999, NOON + MINUTE):
        opens_at, state = rule.take(None, now)
        assert opens_at == NOON + MINUTE
        assert rule.take(state, NOON + MINUTE, 15)[0] == NOON + 2 * MINUTE, "it counts in the window it reaches"


def test_a_margin_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"margin=60 takes up the whole fixed window of 15/m"):
        FixedWindow("15/m", margin=60)
    with pytest.raises(DeclarationError, match="cannot be negative"):
        FixedWindow("15/m", margin=-1)


def test_the_bound_counts_the_windows_that_a_stretch_can_reach_into() -> None:
    rule = FixedWindow("15/m").rule
    bounds = [rule.bound(window) for window in (1, 2, MINUTE, MINUTE + 1, MINUTE + 2, HOUR, HOUR + 2)]
    assert bounds == [15, 30, 30, 30, 45, 61 * 15, 62 * 15]


def test_the_margin_keeps_the_starts_of_two_windows_apart() -> None:
    rule = FixedWindow("15/m", margin=1).rule
    assert [rule.bound(window) for window in (SECOND + 1, SECOND + 2, MINUTE)] == [15, 30, 30]


def test_a_saturated_key_uses_its_whole_budget() -> None:
    rule = FixedWindow("7/s").rule
    starts, _ = start_all(rule, 7 * 3600 + 1)
    assert starts[-1] == NOON + HOUR


def test_the_state_is_two_numbers_however_much_was_used() -> None:
    rule = FixedWindow("3000000/h").rule
    state: Window | None = None
    for number in range(1000):
        _, state = rule.take(state, NOON + number, 1000)
    assert state == (NOON, 1_000_000)


def test_a_reservation_keeps_the_state_and_books_one_window_after_another() -> None:
    rule = FixedWindow("2/m").rule
    state: Window | None = None
    booked = []
    for _ in range(5):
        opens_at, state = rule.take(state, NOON + SECOND)
        booked.append(opens_at)
    assert seconds(booked) == [1, 1, 60, 60, 120]
    assert rule.take(state, NOON + SECOND)[0] == NOON + 2 * MINUTE, "nothing is let in before what is booked"


def test_a_clock_that_steps_back_creates_no_budget_and_closes_no_key_longer() -> None:
    rule = FixedWindow("15/m").rule
    _, state = start_all(rule, 15)
    for back in (1, SECOND, MINUTE, DAY):
        assert rule.take(state, NOON - back)[0] == NOON + MINUTE
    _, state = start_all(rule, 14)
    for back in (1, SECOND, MINUTE, DAY):
        # The window that was begun continues when the clock is back in it.
        assert rule.take(state, NOON - back)[0] == NOON


def test_a_clock_that_jumps_forward_refills_one_count_at_most() -> None:
    rule = FixedWindow("15/m").rule
    _, state = start_all(rule, 15)
    starts, _ = start_all(rule, 16, NOON + 20 * 365 * DAY, state)
    assert len(set(starts[:15])) == 1
    assert starts[15] == starts[14] // MINUTE * MINUTE + MINUTE


def test_a_refused_start_costs_nothing() -> None:
    rule = FixedWindow("15/m").rule
    _, state = start_all(rule, 14)
    assert rule.take(state, NOON, 2)[0] == NOON + MINUTE
    assert rule.take(state, NOON, 1)[0] == NOON


def test_a_cost_above_the_count_is_an_error_and_charges_nothing() -> None:
    rule = FixedWindow("15/m").rule
    _, state = start_all(rule, 14)
    with pytest.raises(CostExceedsLimit, match=r"cost=16 is more than a fixed window of 15/m"):
        rule.take(state, NOON, 16)
    assert rule.take(state, NOON)[0] == NOON


def test_a_declared_cost_above_the_count_is_refused_at_declaration() -> None:
    with pytest.raises(DeclarationError, match="cost=16 is more than"):
        FixedWindow("15/m", cost=16)


def test_a_refund_frees_its_place_while_the_window_lasts() -> None:
    rule = FixedWindow("15/m").rule
    _, state = start_all(rule, 15)
    refunded = rule.amend(state, NOON, 5, NOON, 0)
    assert rule.take(refunded, NOON + SECOND, 5)[0] == NOON + SECOND
    assert rule.take(refunded, NOON + SECOND, 6)[0] == NOON + MINUTE


def test_a_settled_cost_grows_or_shrinks_and_may_exceed_the_count() -> None:
    rule = FixedWindow("100/m").rule
    _, state = rule.take(None, NOON, 40)
    assert rule.snapshot(rule.amend(state, NOON, 40, NOON, 10), NOON).used == 10
    overdrawn = rule.amend(state, NOON, 40, NOON, 500)
    assert rule.snapshot(overdrawn, NOON).available == 0
    assert rule.take(overdrawn, NOON)[0] == NOON + MINUTE


def test_a_start_that_is_late_counts_in_the_window_that_it_starts_in() -> None:
    rule = FixedWindow("2/m").rule
    charged_at = NOON + 59 * SECOND
    _, state = rule.take(None, charged_at)
    moved = rule.amend(state, charged_at, 1, NOON + 61 * SECOND, 1)
    starts, _ = start_all(rule, 2, NOON + 62 * SECOND, moved)
    assert seconds(starts) == [62, 120]


def test_a_late_start_counts_even_when_the_next_window_has_begun_without_it() -> None:
    rule = FixedWindow("2/m").rule
    charged_at = NOON + 59 * SECOND
    _, state = rule.take(None, charged_at)
    _, state = rule.take(state, NOON + 60 * SECOND)
    state = rule.amend(state, charged_at, 1, NOON + 61 * SECOND, 1)
    assert rule.take(state, NOON + 62 * SECOND)[0] == NOON + 120 * SECOND


def test_what_a_window_that_is_over_held_is_not_brought_back() -> None:
    rule = FixedWindow("2/m").rule
    _, state = rule.take(None, NOON + MINUTE)
    assert rule.amend(state, NOON, 1, NOON, 0) == state
    assert rule.amend(state, NOON, 1, NOON, 9) == state


def test_a_bucket_can_be_evicted_when_its_window_is_over() -> None:
    rule = FixedWindow("15/m").rule
    _, state = start_all(rule, 3, NOON + SECOND)
    assert rule.idle_at(state) == NOON + MINUTE
    assert rule.idle_at(rule.amend(state, NOON + SECOND, 3, NOON + SECOND, 0)) == NOON


def test_a_snapshot_shows_what_counts_and_what_is_left() -> None:
    rule = FixedWindow("15/m", margin=1).rule
    fresh = rule.snapshot(None, NOON)
    assert (fresh.used, fresh.available, fresh.opens_at) == (0, 15, NOON)
    _, state = start_all(rule, 14)
    one_left = rule.snapshot(state, NOON + SECOND)
    assert (one_left.used, one_left.available, one_left.opens_at) == (14, 1, NOON + SECOND)
    in_margin = rule.snapshot(state, NOON + 59 * SECOND)
    assert (in_margin.used, in_margin.available, in_margin.opens_at) == (14, 0, NOON + MINUTE)
    over = rule.snapshot(state, NOON + MINUTE)
    assert (over.used, over.available, over.opens_at) == (0, 15, NOON + MINUTE)


def test_a_state_comes_back_from_storage_as_it_was() -> None:
    rule = FixedWindow("15/m").rule
    _, state = start_all(rule, 7)
    stored = rule.dump(state)
    assert stored.startswith("1:fixed:")
    assert rule.load(stored, NOON + HOUR) == state


def test_the_state_of_another_kind_of_rule_reads_as_a_window_used_up() -> None:
    rule = FixedWindow("15/m").rule
    state = rule.load("1:rate:27:15:60", NOON + 10 * SECOND)
    assert rule.take(state, NOON + 10 * SECOND)[0] == NOON + MINUTE


def test_a_changed_count_keeps_what_was_used() -> None:
    old, lower, higher = (FixedWindow(text).rule for text in ("15/m", "5/m", "20/m"))
    _, state = start_all(old, 15)
    stored = old.dump(state)
    assert seconds(start_all(lower, 6, NOON + SECOND, lower.load(stored, NOON))[0]) == [60] * 5 + [120]
    assert seconds(start_all(higher, 6, NOON + SECOND, higher.load(stored, NOON))[0]) == [1] * 5 + [60]


def test_a_shorter_window_counts_all_that_the_longer_one_held_until_it_is_over() -> None:
    old, new = FixedWindow("15/h").rule, FixedWindow("15/m").rule
    _, state = start_all(old, 15, NOON + 10 * SECOND)
    loaded = new.load(old.dump(state), NOON + 20 * SECOND)
    assert new.take(loaded, NOON + 20 * SECOND)[0] == NOON + MINUTE


def test_a_longer_window_counts_earlier_shorter_ones_as_full() -> None:
    old, new = FixedWindow("15/m").rule, FixedWindow("900/h").rule
    now = NOON + 30 * MINUTE + SECOND
    _, state = start_all(old, 3, now)
    loaded = new.load(old.dump(state), now)
    assert new.snapshot(loaded, now).used == 30 * 15 + 3


def test_a_rule_describes_all_that_makes_it_another() -> None:
    limits = [
        FixedWindow("15/m"),
        FixedWindow("16/m"),
        FixedWindow("15/h"),
        FixedWindow("15/m", margin=1),
        FixedWindow(15, per=61),
        FixedWindow(15, per=61, margin=1),
    ]
    assert len({limit.rule.describe() for limit in limits}) == len(limits)
    assert FixedWindow("15/m").rule.describe() == "15/m in fixed windows"


def test_a_fixed_window_is_a_rule() -> None:
    rule: Rule[Window] = FixedWindow("15/m").rule
    assert rule.kind == "fixed"
    assert (rule.period, rule.margin) == (MINUTE, 0)
