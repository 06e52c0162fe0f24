"""SlidingWindow: when jobs start under a window that moves on slice by slice."""

from __future__ import annotations

from fractions import Fraction

import pytest

from headgate.clock import SECOND
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.limits.rule import Rule
from headgate.limits.sliding_window import DEFAULT_SLICES, SliceCounter, Slices, SlidingWindow
from tests.unit.limits.timeline import DAY, HOUR, MINUTE, NOON, most_in_any_window, seconds, start_all


def test_after_four_jobs_at_12_59_the_next_starts_at_13_40() -> None:
    rule = SlidingWindow("4/h", slices=3).rule
    _, state = start_all(rule, 4, NOON + 59 * MINUTE)
    starts, _ = start_all(rule, 5, NOON + HOUR, state)
    assert starts == [NOON + 100 * MINUTE] * 4 + [NOON + 160 * MINUTE]


def test_a_tenant_with_sixty_slices_gets_its_places_back_a_minute_at_a_time() -> None:
    rule = SlidingWindow("60/h").rule
    state: Slices | None = None
    # Two jobs in each of the first thirty minutes use the hour up.
    for minute in range(30):
        _, state = start_all(rule, 2, NOON + minute * MINUTE + 17 * SECOND, state)
    starts, _ = start_all(rule, 5, NOON + 30 * MINUTE, state)
    assert seconds(starts) == [3600, 3600, 3660, 3660, 3720]


def test_every_hour_made_of_whole_slices_holds_at_most_the_count() -> None:
    rule = SlidingWindow("4/h", slices=3).rule
    starts: list[int] = []
    state: Slices | None = None
    now = NOON
    for lump in range(100):
        now += lump * 37 % 41 * MINUTE // 3
        started, state = start_all(rule, 1 + lump * 7 % 6, now, state)
        now = started[-1]
        starts += started
    for begin in range(NOON, now, 20 * MINUTE):
        assert sum(1 for start in starts if begin <= start < begin + HOUR) <= 4
    assert most_in_any_window(starts, 40 * MINUTE + 1) <= 4 == rule.bound(40 * MINUTE + 1)


def test_the_bound_of_a_whole_period_is_twice_the_count_and_of_a_slice_less_the_count() -> None:
    rule = SlidingWindow("60/m").rule
    assert rule.slice == SECOND
    assert [rule.bound(window) for window in (1, 59 * SECOND + 1, 59 * SECOND + 2, MINUTE)] == [60, 60, 120, 120]
    # Sixty at the very end of a slice, and sixty as soon as that slice has left.
    starts, _ = start_all(rule, 120, NOON + SECOND - 1)
    assert most_in_any_window(starts, 59 * SECOND + 2) == 120


def test_a_margin_of_one_slice_more_makes_any_window_of_the_period_hold_at_most_the_count() -> None:
    slices = 61
    rule = SlidingWindow("60/m", slices=slices, margin=60 / (slices - 1)).rule
    assert rule.slice == SECOND
    assert rule.bound(MINUTE) == 60
    starts, _ = start_all(rule, 200, NOON + SECOND - 1)
    assert most_in_any_window(starts, MINUTE) == 60


def test_a_count_with_its_period_is_the_same_as_a_rate() -> None:
    assert SlidingWindow(4, per=3600, slices=3).rule == SlidingWindow("4/h", slices=3).rule


def test_there_are_sixty_slices_unless_told_otherwise() -> None:
    assert SlidingWindow("4/h").rule == SliceCounter(4, MINUTE, DEFAULT_SLICES) == SliceCounter(4, MINUTE, 60)


def test_a_period_that_does_not_divide_evenly_is_rounded_up() -> None:
    rule = SlidingWindow("100/s", slices=7).rule
    assert (rule.slice, rule.period) == (142_858, 1_000_006)


def test_the_margin_widens_the_period() -> None:
    rule = SlidingWindow("60/m", margin=6).rule
    assert (rule.slice, rule.period, rule.margin) == (1_100_000, 66 * SECOND, 6 * SECOND)


@pytest.mark.parametrize("slices", [0, -1, 1.5, True, "60"])
def test_a_number_of_slices_that_is_none_is_refused(slices: object) -> None:
    with pytest.raises(DeclarationError, match=r"a sliding window of 4/h: slices=.* must be a whole number"):
        SlidingWindow("4/h", slices=slices)  # type: ignore[arg-type]


def test_slices_below_a_millisecond_are_refused() -> None:
    assert SlidingWindow("100/s", slices=1000).rule.slice == 1000
    with pytest.raises(DeclarationError, match="1002 slices of a sliding window of 100/s are shorter than a milli"):
        SlidingWindow("100/s", slices=1002)
    with pytest.raises(DeclarationError, match="cannot be negative"):
        SlidingWindow("100/s", margin=-1)


def test_a_saturated_key_uses_its_whole_budget() -> None:
    rule = SlidingWindow("7/s", slices=10).rule
    starts, _ = start_all(rule, 7 * 3600 + 1)
    assert starts[-1] == NOON + HOUR


def test_a_saturated_key_uses_nearly_all_even_where_slices_do_not_divide_evenly() -> None:
    rule = SlidingWindow("7/s", slices=7).rule
    starts, _ = start_all(rule, 7 * 3600)
    used = sum(1 for start in starts if start < NOON + HOUR)
    assert Fraction(used, 7 * 3600) >= Fraction(999, 1000)


def test_the_state_keeps_only_slices_that_hold_something() -> None:
    rule = SlidingWindow("1000/h").rule
    state: Slices | None = None
    for minute in (0, 20, 40, 59):
        _, state = rule.take(state, NOON + minute * MINUTE)
    assert state is not None
    first = NOON // MINUTE
    assert state == (4, first + 59, 1, (first, 1, first + 20, 1, first + 40, 1))
    _, state = rule.take(state, NOON + 85 * MINUTE)
    assert state == (3, first + 85, 1, (first + 40, 1, first + 59, 1))


def test_a_full_state_stays_small_as_stored() -> None:
    rule = SlidingWindow("1000000/h").rule
    state: Slices | None = None
    for minute in range(60):
        _, state = rule.take(state, NOON + minute * MINUTE, 10_000)
    assert state is not None
    assert len(rule.dump(state)) < 600


def test_a_reservation_keeps_the_state_and_books_one_window_after_another() -> None:
    rule = SlidingWindow("2/m", slices=6).rule
    state: Slices | None = None
    booked = []
    for _ in range(5):
        opens_at, state = rule.take(state, NOON + SECOND)
        booked.append(opens_at)
    assert seconds(booked) == [1, 1, 60, 60, 120]


def test_a_clock_that_steps_back_creates_no_budget_and_closes_no_key_longer() -> None:
    rule = SlidingWindow("15/m", slices=6).rule
    _, state = start_all(rule, 15)
    for back in (1, SECOND, MINUTE, DAY):
        assert rule.take(state, NOON - back)[0] == NOON + MINUTE
    _, state = start_all(rule, 14)
    for back in (1, SECOND, MINUTE, DAY):
        assert rule.take(state, NOON - back)[0] == NOON


def test_a_clock_that_jumps_forward_refills_one_count_at_most() -> None:
    rule = SlidingWindow("15/m").rule
    _, state = start_all(rule, 15)
    starts, _ = start_all(rule, 16, NOON + 20 * 365 * DAY, state)
    assert len(set(starts[:15])) == 1
    assert starts[15] - starts[14] == MINUTE


def test_a_cost_waits_for_as_many_places_as_it_needs() -> None:
    rule = SlidingWindow("3/m", slices=6).rule
    state: Slices | None = None
    for offset in (0, 10, 20):
        _, state = rule.take(state, NOON + offset * SECOND)
    opens = [rule.take(state, NOON + 30 * SECOND, cost)[0] for cost in (1, 2, 3)]
    assert seconds(opens) == [60, 70, 80]


def test_a_cost_above_the_count_is_an_error_and_charges_nothing() -> None:
    rule = SlidingWindow("15/m").rule
    _, state = start_all(rule, 14)
    with pytest.raises(CostExceedsLimit, match=r"cost=16 is more than a sliding window of 15/m"):
        rule.take(state, NOON, 16)
    assert rule.take(state, NOON)[0] == NOON


def test_a_declared_cost_above_the_count_is_refused_at_declaration() -> None:
    with pytest.raises(DeclarationError, match="cost=16 is more than"):
        SlidingWindow("15/m", cost=16)


def test_a_refund_frees_its_place() -> None:
    rule = SlidingWindow("15/m", slices=6).rule
    _, state = start_all(rule, 15)
    refunded = rule.amend(state, NOON, 5, NOON, 0)
    assert rule.take(refunded, NOON + SECOND, 5)[0] == NOON + SECOND
    assert rule.take(refunded, NOON + SECOND, 6)[0] == NOON + MINUTE


def test_a_reservation_that_is_returned_leaves_its_slot_to_the_next() -> None:
    rule = SlidingWindow("2/m", slices=6).rule
    _, state = start_all(rule, 2)
    slot, booked = rule.take(state, NOON)
    returned = rule.amend(booked, slot, 1, slot, 0)
    assert rule.take(returned, NOON)[0] == slot == NOON + MINUTE


def test_a_settled_cost_grows_or_shrinks_and_may_exceed_the_count() -> None:
    rule = SlidingWindow("100/m", slices=6).rule
    _, state = rule.take(None, NOON, 40)
    assert rule.snapshot(rule.amend(state, NOON, 40, NOON, 10), NOON).used == 10
    overdrawn = rule.amend(state, NOON, 40, NOON, 500)
    assert rule.snapshot(overdrawn, NOON).available == 0
    assert rule.take(overdrawn, NOON + SECOND)[0] == NOON + MINUTE


def test_a_late_start_leaves_the_window_as_late_as_it_began() -> None:
    rule = SlidingWindow("1/m", slices=6).rule
    _, state = rule.take(None, NOON)
    moved = rule.amend(state, NOON, 1, NOON + 25 * SECOND, 1)
    assert rule.take(moved, NOON + 30 * SECOND)[0] == NOON + 80 * SECOND


def test_what_has_left_the_window_is_not_brought_back() -> None:
    rule = SlidingWindow("2/m", slices=6).rule
    _, state = rule.take(None, NOON + MINUTE)
    assert rule.amend(state, NOON, 1, NOON, 0) == state
    assert rule.amend(state, NOON, 1, NOON, 9) == state


def test_a_bucket_can_be_evicted_when_its_last_slice_has_left() -> None:
    rule = SlidingWindow("15/m", slices=6).rule
    _, state = start_all(rule, 3, NOON + SECOND)
    _, state = start_all(rule, 1, NOON + 11 * SECOND, state)
    assert rule.idle_at(state) == NOON + 70 * SECOND
    emptied = rule.amend(state, NOON + 11 * SECOND, 1, NOON + 11 * SECOND, 0)
    assert rule.idle_at(emptied) == NOON + MINUTE


def test_a_snapshot_shows_what_counts_and_what_is_left() -> None:
    rule = SlidingWindow("15/m", slices=6).rule
    fresh = rule.snapshot(None, NOON)
    assert (fresh.used, fresh.available, fresh.opens_at) == (0, 15, NOON)
    _, state = start_all(rule, 14)
    one_left = rule.snapshot(state, NOON + 59 * SECOND)
    assert (one_left.used, one_left.available, one_left.opens_at) == (14, 1, NOON + 59 * SECOND)
    over = rule.snapshot(state, NOON + MINUTE)
    assert (over.used, over.available, over.opens_at) == (0, 15, NOON + MINUTE)


def test_a_state_comes_back_from_storage_as_it_was() -> None:
    rule = SlidingWindow("1000/m").rule
    state: Slices | None = None
    for second in range(0, 60, 7):
        _, state = rule.take(state, NOON + second * SECOND, 1 + second)
    assert state is not None
    stored = rule.dump(state)
    assert stored.startswith("1:sliding:")
    assert rule.load(stored, NOON + HOUR) == state


def test_the_state_of_another_kind_of_rule_reads_as_a_window_used_up() -> None:
    rule = SlidingWindow("15/m").rule
    assert rule.take(rule.load("1:rate:27:15:60", NOON), NOON)[0] == NOON + MINUTE


def test_a_changed_count_keeps_what_was_used() -> None:
    old, lower, higher = (SlidingWindow(text).rule for text in ("15/m", "5/m", "20/m"))
    _, state = start_all(old, 15)
    stored = old.dump(state)
    assert seconds(start_all(lower, 6, NOON + SECOND, lower.load(stored, NOON))[0]) == [60] * 5 + [120]
    assert seconds(start_all(higher, 6, NOON + SECOND, higher.load(stored, NOON))[0]) == [1] * 5 + [60]


def test_coarser_slices_count_a_start_as_late_as_it_may_have_been() -> None:
    old, new = SlidingWindow("15/h").rule, SlidingWindow("15/h", slices=3).rule
    _, state = start_all(old, 15, NOON + 19 * MINUTE)
    now = NOON + 25 * MINUTE
    assert new.take(new.load(old.dump(state), now), now)[0] == NOON + 60 * MINUTE
    _, state = start_all(new, 15, NOON + MINUTE)
    finer = old.load(new.dump(state), now)
    assert old.take(finer, now)[0] == NOON + 79 * MINUTE, "it may have started at any instant until 12:20"


def test_a_longer_window_counts_earlier_shorter_ones_as_full() -> None:
    old, new = SlidingWindow("500/h").rule, SlidingWindow("12000/d", slices=24).rule
    _, state = start_all(old, 3, NOON)
    loaded = new.load(old.dump(state), NOON)
    assert new.snapshot(loaded, NOON).used == 23 * 500 + 3
    assert new.take(loaded, NOON, 497)[0] == NOON
    assert new.take(loaded, NOON, 498)[0] == NOON + HOUR


def test_a_window_that_was_quiet_is_no_less_open_after_a_change() -> None:
    old, new = SlidingWindow("15/m").rule, SlidingWindow("20/m", slices=6).rule
    _, state = start_all(old, 15)
    now = NOON + 3 * MINUTE
    assert new.snapshot(new.load(old.dump(state), now), now).available == 20


def test_a_rule_describes_all_that_makes_it_another() -> None:
    limits = [
        SlidingWindow("15/m"),
        SlidingWindow("16/m"),
        SlidingWindow("15/h"),
        SlidingWindow("15/m", slices=30),
        SlidingWindow("15/m", margin=1),
        SlidingWindow(15, per=61),
    ]
    assert len({limit.rule.describe() for limit in limits}) == len(limits)
    assert SlidingWindow("15/m").rule.describe() == "15/m in 60 slices"


def test_a_sliding_window_is_a_rule() -> None:
    rule: Rule[Slices] = SlidingWindow("15/m").rule
    assert rule.kind == "sliding"
    assert (rule.period, rule.margin) == (MINUTE, 0)
