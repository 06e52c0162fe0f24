"""DynamicWindow: how keys share one ceiling, and who goes when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import pytest

from headgate.clock import SECOND
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.limits.dynamic_window import DEFAULT_MAX_KEYS, DynamicWindow, SharedCounter, WindowUse

NOON = 1_767_268_800 * SECOND
MINUTE = 60 * SECOND
HOUR = 3600 * SECOND
NOW = NOON + MINUTE

FAIR = DynamicWindow(per=3600, capacity=20, min_count=2, max_count=20).rule
"""Twenty an hour for all, two to twenty for each, in windows from full hour to full hour."""

MOVING = DynamicWindow(per=3600, capacity=20, min_count=2, max_count=20, slices=60).rule
"""The same in an hour that moves on by the minute."""


def start(
    rule: SharedCounter, key: str, jobs: int, now: int = NOW, state: WindowUse | None = None, cost: int = 1
) -> WindowUse:
    """The state after so many jobs of the key have started at `now`, all of which may."""
    for _ in range(jobs):
        opens_at, state = rule.for_key(key).take(state, now, cost)
        assert opens_at <= now
    assert state is not None
    return state


def in_turns(
    rule: SharedCounter, keys: Iterable[str], now: int = NOW, state: WindowUse | None = None
) -> dict[str, int]:
    """How many start of each key at `now` when they take turns, each with more than enough to do."""
    waiting, started = list(keys), dict.fromkeys(keys, 0)
    while waiting:
        for key in list(waiting):
            opens_at, after = rule.for_key(key).take(state, now)
            if opens_at > now:
                waiting.remove(key)
            else:
                started[key] += 1
                state = after
    return started


def names(number: int) -> list[str]:
    return [f"tenant-{place}" for place in range(number)]


@pytest.mark.parametrize("rule", [FAIR, MOVING], ids=["fixed", "sliding"])
@pytest.mark.parametrize(
    ("keys", "shares"),
    [
        (1, [20]),
        (2, [10, 10]),
        (3, [7, 7, 6]),
        (4, [5, 5, 5, 5]),
        (6, [4, 4, 3, 3, 3, 3]),
        (10, [2] * 10),
    ],
)
def test_the_active_keys_share_the_capacity_evenly(rule: SharedCounter, keys: int, shares: Sequence[int]) -> None:
    assert list(in_turns(rule, names(keys)).values()) == shares


@pytest.mark.parametrize("rule", [FAIR, MOVING], ids=["fixed", "sliding"])
def test_an_eleventh_key_waits_until_one_of_the_ten_has_no_start_in_the_window(rule: SharedCounter) -> None:
    state = None
    for place, key in enumerate(names(10)):
        state = start(rule, key, 1, NOON + place * MINUTE, state)
    now = NOON + 30 * MINUTE
    assert rule.for_key("tenant-9").take(state, now)[0] == now
    # In windows from hour to hour that is when the hour is over; and both are when the first one's minute left it.
    assert rule.for_key("eleventh").take(state, now)[0] == NOON + HOUR
    assert in_turns(rule, names(11), NOW, None)["tenant-10"] == 0


def test_a_count_under_a_capacity_lets_in_as_many_keys_as_it_is_enough_for() -> None:
    rule = DynamicWindow(per=3600, capacity=20, count=4).rule
    assert list(in_turns(rule, names(6)).values()) == [4, 4, 4, 4, 4, 0]
    assert rule.most_keys == 5


def test_a_count_alone_is_a_window_for_each_key() -> None:
    rule = DynamicWindow(per=3600, count=4).rule
    assert set(in_turns(rule, names(50)).values()) == {4}


def test_no_more_keys_become_active_than_may_be() -> None:
    rule = DynamicWindow(per=3600, count=4, max_keys=3).rule
    assert list(in_turns(rule, names(5)).values()) == [4, 4, 4, 0, 0]
    state = start(rule, "a", 1)
    state = start(rule, "b", 1, NOW, state)
    state = start(rule, "c", 1, NOW, state)
    assert rule.for_key("d").take(state, NOW)[0] == NOON + HOUR
    assert DynamicWindow(per=3600, count=4).rule.max_keys == DEFAULT_MAX_KEYS == 1000


def test_a_thousand_keys_are_active_and_the_next_one_waits() -> None:
    rule = DynamicWindow(per=3600, count=4).rule
    state = None
    for key in names(1000):
        state = start(rule, key, 1, NOW, state)
    assert rule.for_key("one more").take(state, NOW)[0] == NOON + HOUR
    assert rule.for_key("tenant-999").take(state, NOW)[0] == NOW


def test_a_new_key_waits_for_the_budget_of_the_first_and_is_served_before_it() -> None:
    state = start(FAIR, "first", 20)
    newcomer, _ = FAIR.for_key("newcomer").take(state, NOW)
    first, _ = FAIR.for_key("first").take(state, NOW)
    assert newcomer == NOON + HOUR
    assert first == NOON + HOUR + 1


def test_the_first_key_is_served_after_a_new_one_of_the_same_microsecond() -> None:
    state = start(FAIR, "first", 20)
    state = start(FAIR, "newcomer", 3, NOON + HOUR, state)
    assert FAIR.for_key("first").take(state, NOON + HOUR)[0] == NOON + HOUR + 1
    assert FAIR.for_key("newcomer").take(state, NOON + HOUR)[0] == NOON + HOUR
    assert in_turns(FAIR, ["first", "newcomer"], NOON + HOUR + 1, state) == {"first": 10, "newcomer": 7}


def test_a_key_that_has_room_is_not_held_up_at_the_turn_of_a_slice() -> None:
    state = start(MOVING, "first", 3)
    assert MOVING.for_key("first").take(state, NOON + 2 * MINUTE)[0] == NOON + 2 * MINUTE


def test_a_new_key_reduces_the_share_of_a_key_immediately() -> None:
    state = start(FAIR, "first", 12)
    state = start(FAIR, "newcomer", 1, NOW, state)
    # Twelve is more than half of twenty: the first is done for this hour, though eight are left.
    assert FAIR.for_key("first").take(state, NOW)[0] == NOON + HOUR + 1
    assert in_turns(FAIR, ["first", "newcomer"], NOW, state) == {"first": 0, "newcomer": 7}


def test_in_a_sliding_window_a_new_key_gets_places_as_they_expire() -> None:
    state = None
    for minute in range(20):
        state = start(MOVING, "first", 1, NOON + minute * MINUTE, state)
    opened = NOON + HOUR
    assert MOVING.for_key("newcomer").take(state, NOON + 30 * MINUTE)[0] == opened
    assert MOVING.for_key("first").take(state, NOON + 30 * MINUTE)[0] == opened + 1
    for minute in range(10):
        # The first goes down to its ten, one after another; until then all that it leaves is the newcomer's.
        now = opened + minute * MINUTE + (minute > 0)
        state = start(MOVING, "newcomer", 1, now, state)
        assert MOVING.for_key("first").take(state, now + 1)[0] > now + 1
    now = opened + 10 * MINUTE + 1
    assert MOVING.for_key("newcomer").take(state, now)[0] > now
    assert MOVING.for_key("first").take(state, now)[0] == now


def test_the_share_of_a_key_that_leaves_the_window_goes_to_the_others() -> None:
    state = start(MOVING, "gone", 1, NOON)
    state = start(MOVING, "stays", 10, NOON + 5 * MINUTE, state)
    assert MOVING.for_key("stays").take(state, NOON + 6 * MINUTE)[0] == NOON + HOUR + 1
    assert MOVING.for_key("stays").snapshot(state, NOON + HOUR + 1).available == 10


def test_the_sum_of_all_keys_never_exceeds_the_capacity() -> None:
    state: WindowUse | None = None
    used: list[tuple[int, int]] = []
    for number, key in zip(range(3000), (f"tenant-{turn * 7 % 13}" for turn in count()), strict=False):
        now = NOON + number * 17 * SECOND
        opens_at, after = MOVING.for_key(key).take(state, now, 1 + number % 3)
        if opens_at <= now:
            used.append((now, 1 + number % 3))
            state = after
    for begin in range(NOON, used[-1][0], MINUTE):
        assert sum(cost for at, cost in used if begin <= at < begin + HOUR) <= 20


def test_keys_that_do_not_divide_the_capacity_leave_the_rest_to_those_that_came_first() -> None:
    state = start(FAIR, "a", 1)
    state = start(FAIR, "b", 1, NOW, state)
    state = start(FAIR, "c", 1, NOW, state)
    assert in_turns(FAIR, ["c", "b", "a"], NOW, state) == {"c": 5, "b": 6, "a": 6}


def test_a_key_that_becomes_active_again_is_the_last_active_one() -> None:
    rule = DynamicWindow(per=3600, capacity=3).rule
    state = start(rule, "a", 3)
    booked_b, state = rule.for_key("b").take(state, NOW)
    booked_a, state = rule.for_key("a").take(state, NOW)
    assert (booked_b, booked_a) == (NOON + HOUR, NOON + HOUR + 1)
    # Two keys share three: the odd one is for the first of them.
    assert list(state.keys) == ["b", "a"]
    assert rule.for_key("b").take(state, NOW)[0] == NOON + HOUR


def test_a_cost_takes_as_much_of_the_share() -> None:
    state = start(FAIR, "a", 2, cost=5)
    state = start(FAIR, "b", 1, NOW, state, cost=8)
    assert FAIR.for_key("b").take(state, NOW, 2)[0] == NOW
    assert FAIR.for_key("b").take(state, NOW, 3)[0] == NOON + HOUR + 1


def test_a_cost_above_a_share_waits_until_the_others_have_left() -> None:
    state = start(MOVING, "a", 1, NOON)
    state = start(MOVING, "b", 1, NOON + 10 * MINUTE, state)
    assert MOVING.for_key("b").take(state, NOON + 20 * MINUTE, 15)[0] == NOON + HOUR + 1


@pytest.mark.parametrize("rule", [FAIR, MOVING], ids=["fixed", "sliding"])
def test_a_cost_above_a_share_beside_waiting_keys_goes_once_nothing_counts(rule: SharedCounter) -> None:
    """The fault: the waiting keys counted as active for ever, and the rule raised IndexError."""
    assert rule.for_key("a", ["a", "b"]).take(None, NOON, 15)[0] == NOON
    state = start(rule, "a", 5, NOON)
    assert rule.for_key("b", ["a", "b"]).take(state, NOON, 15) == rule.for_key("b").take(state, NOON, 15)
    assert rule.for_key("b", ["a", "c"]).take(state, NOON, 15)[0] == NOON + HOUR
    assert rule.for_key("a", ["b"]).take(state, NOON, 15)[0] == NOON + HOUR + 1
    assert rule.for_key("b", ["a"]).take(state, NOON + 2 * HOUR, 20)[0] == NOON + 2 * HOUR


def test_a_cost_that_can_never_be_granted_is_an_error() -> None:
    state = start(FAIR, "a", 1)
    with pytest.raises(CostExceedsLimit, match="cost=21 is more than a dynamic window of 20/h shared"):
        FAIR.for_key("a").take(state, NOW, 21)
    with pytest.raises(DeclarationError, match="cost=5 is more than"):
        DynamicWindow(per=3600, capacity=20, count=4, cost=5)


def test_slices_make_windows_that_move_on() -> None:
    fixed, moving = DynamicWindow(per=3600, count=4).rule, DynamicWindow(per=3600, count=4, slices=3).rule
    at = NOON + 59 * MINUTE
    assert fixed.for_key("a").take(start(fixed, "a", 4, at), at)[0] == NOON + HOUR + 1
    assert moving.for_key("a").take(start(moving, "a", 4, at), at)[0] == NOON + 100 * MINUTE + 1


def test_the_bounds_are_those_of_one_key() -> None:
    rule = DynamicWindow(per=3600, capacity=20, count=4).rule
    assert [rule.bound(window) for window in (1, 2, 3, HOUR, 2 * HOUR)] == [4, 4, 8, 8, 12]


@pytest.mark.parametrize("rule", [FAIR, MOVING], ids=["fixed", "sliding"])
def test_a_saturated_key_that_is_alone_uses_its_whole_budget(rule: SharedCounter) -> None:
    state: WindowUse | None = None
    now, started = NOON, 0
    while now < NOON + 1000 * HOUR:
        opens_at, after = rule.for_key("alone").take(state, now)
        if opens_at > now:
            now = opens_at
        else:
            started += 1
            state = after
    # In the thousandth hour of a fixed window it is a microsecond late for each.
    assert started >= 20_000 * 0.999


def test_a_reservation_keeps_the_state_and_books_one_slot_after_another() -> None:
    rule = DynamicWindow(per=60, count=2).rule
    state: WindowUse | None = None
    booked = []
    for _ in range(5):
        opens_at, state = rule.for_key("a").take(state, NOON + SECOND)
        booked.append(opens_at - NOON)
    assert booked == [SECOND, SECOND, MINUTE + 1, MINUTE + 1, 2 * MINUTE + 1]


def test_a_clock_that_steps_back_creates_no_budget_and_closes_no_key_longer() -> None:
    state = start(FAIR, "a", 20)
    for back in (MINUTE, HOUR, 24 * HOUR):
        assert FAIR.for_key("a").take(state, NOW - back)[0] == NOON + HOUR + 1
        assert FAIR.for_key("b").take(state, NOW - back)[0] == NOON + HOUR


def test_a_refund_frees_its_place_for_all_keys() -> None:
    state = start(FAIR, "a", 20)
    refunded = FAIR.for_key("a").amend(state, NOW, 5, NOW, 0)
    assert FAIR.for_key("a").snapshot(refunded, NOW).used == 15
    assert FAIR.for_key("b").snapshot(refunded, NOW).available == 5


def test_a_key_whose_only_start_is_refunded_is_active_no_more() -> None:
    state = start(FAIR, "a", 10)
    state = start(FAIR, "b", 1, NOW, state)
    assert FAIR.for_key("a").take(state, NOW)[0] > NOW
    refunded = FAIR.for_key("b").amend(state, NOW, 1, NOW, 0)
    assert "b" not in refunded.keys
    assert FAIR.for_key("a").take(refunded, NOW)[0] == NOW


def test_a_refund_does_not_bring_back_what_a_key_had_before_the_window() -> None:
    state = start(FAIR, "a", 1)
    state = start(FAIR, "a", 1, NOON + HOUR, state)
    state = start(FAIR, "b", 1, NOW + HOUR, state)
    refunded = FAIR.for_key("a").amend(state, NOON + HOUR, 1, NOON + HOUR, 0)
    assert list(refunded.keys) == ["b"]
    assert (refunded.used, refunded.active) == (1, 1)


def test_a_settled_cost_counts_with_its_final_value() -> None:
    state = start(FAIR, "a", 1, cost=5)
    settled = FAIR.for_key("a").amend(state, NOW, 5, NOW, 30)
    assert FAIR.for_key("a").snapshot(settled, NOW).used == 30
    assert FAIR.for_key("b").take(settled, NOW)[0] == NOON + HOUR


def test_a_late_start_moves_and_keeps_the_place_of_its_key() -> None:
    state = start(MOVING, "a", 1, NOON)
    state = start(MOVING, "b", 1, NOON, state)
    moved = MOVING.for_key("a").amend(state, NOON, 1, NOON + 5 * MINUTE, 1)
    assert list(moved.keys) == ["a", "b"]
    assert MOVING.for_key("b").take(moved, NOON + 5 * MINUTE, 20)[0] == NOON + 65 * MINUTE


def test_what_has_left_the_window_is_not_brought_back() -> None:
    state = start(FAIR, "a", 1, NOW + HOUR)
    assert FAIR.for_key("a").amend(state, NOW, 1, NOW, 0) == state
    assert FAIR.for_key("b").amend(state, NOW, 1, NOW, 9) == state


def test_a_bucket_without_active_keys_can_be_evicted() -> None:
    state = start(FAIR, "a", 1)
    assert FAIR.idle_at(state) == NOON + HOUR + 1
    assert FAIR.idle_at(FAIR.for_key("a").amend(state, NOW, 1, NOW, 0)) == NOON


def test_keys_that_are_active_no_more_are_forgotten() -> None:
    state: WindowUse | None = None
    for hour in range(50):
        for key in (f"tenant-{hour}", "always"):
            _, state = FAIR.for_key(key).take(state, NOW + hour * HOUR)
    assert state is not None
    assert set(state.keys) == {"always", "tenant-49"}
    assert len(state.slices) == 1


def test_a_snapshot_shows_the_share_of_a_key() -> None:
    state = start(FAIR, "a", 3)
    alone = FAIR.for_key("a").snapshot(state, NOW)
    assert (alone.used, alone.available, alone.opens_at) == (3, 17, NOW)
    state = start(FAIR, "b", 1, NOW, state)
    shared = FAIR.for_key("a").snapshot(state, NOW)
    assert (shared.used, shared.available, shared.opens_at) == (3, 7, NOW)
    newcomer = FAIR.for_key("c").snapshot(state, NOW)
    assert (newcomer.used, newcomer.available, newcomer.opens_at) == (0, 6, NOW)
    assert FAIR.for_key("a").snapshot(None, NOW).available == 20


def test_a_state_comes_back_from_storage_as_it_was() -> None:
    state = start(MOVING, 'with: "colons" and ünïcode', 3)
    state = start(MOVING, "", 2, NOW + MINUTE, state)
    stored = MOVING.dump(state)
    assert stored.startswith("1:dynamic:")
    assert MOVING.load(stored, NOW + HOUR) == state


def test_the_state_of_another_kind_of_rule_reads_as_a_window_used_up() -> None:
    for rule in (FAIR, DynamicWindow(per=3600, count=4).rule):
        assert rule.for_key("a").take(rule.load("1:fixed:0:0:15:60", NOW), NOW)[0] == NOON + HOUR


def test_changed_counts_apply_to_what_is_used_already() -> None:
    raised = DynamicWindow(per=3600, capacity=30, min_count=2).rule
    lowered = DynamicWindow(per=3600, capacity=10, min_count=2).rule
    state = start(FAIR, "a", 20)
    stored = FAIR.dump(state)
    assert raised.for_key("a").snapshot(raised.load(stored, NOW), NOW).available == 10
    assert lowered.for_key("a").take(lowered.load(stored, NOW), NOW)[0] == NOON + HOUR + 1


def test_other_slices_count_a_start_as_late_as_it_may_have_been() -> None:
    state = start(FAIR, "a", 20, NOON + MINUTE)
    now = NOON + 30 * MINUTE
    assert MOVING.for_key("a").take(MOVING.load(FAIR.dump(state), now), now)[0] == NOON + 90 * MINUTE + 1


@pytest.mark.parametrize("options", [{"capacity": 20}, {"count": 4}], ids=["a ceiling", "none"])
def test_a_window_that_begins_to_slide_waits_until_it_knows_all_that_it_holds(options: dict[str, Any]) -> None:
    fixed, moving = DynamicWindow(per=3600, **options).rule, DynamicWindow(per=3600, slices=60, **options).rule
    for minute in (10, 58):
        now = NOON + minute * MINUTE
        loaded = moving.load(fixed.dump(start(fixed, "a", 1, now)), now)
        # The minute before noon is the last of which nothing is known.
        assert moving.for_key("a").take(loaded, now)[0] == NOON + 59 * MINUTE + 1
        assert moving.for_key("b").take(loaded, now)[0] == NOON + 59 * MINUTE


def test_under_a_longer_period_nothing_starts_until_unknown_starts_have_expired() -> None:
    longer = DynamicWindow(per=24 * 3600, capacity=480, slices=24).rule
    state = start(FAIR, "a", 20, NOON + MINUTE)
    loaded = longer.load(FAIR.dump(state), NOON + MINUTE)
    # The hour before this one is the last of which nothing is known.
    assert longer.for_key("a").take(loaded, NOON + MINUTE)[0] == NOON + 23 * HOUR + 1
    assert longer.for_key("b").take(loaded, NOON + MINUTE)[0] == NOON + 23 * HOUR


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a count for each key, a capacity for all of them, or both"),
        ({"count": 0}, "a dynamic window: count=0 must be a whole number, at least 1"),
        ({"count": True}, "a dynamic window: count=True must be a whole number"),
        ({"capacity": 2.5}, "a dynamic window: capacity=2.5 must be a whole number"),
        ({"count": 4, "max_keys": 0}, "a dynamic window: max_keys=0 must be a whole number"),
        ({"count": 4, "min_count": 2, "capacity": 20}, "count=4 of a dynamic window is fixed"),
        ({"count": 4, "max_count": 5}, "count=4 of a dynamic window is fixed"),
        ({"min_count": 4}, "needs a count for each key"),
        ({"count": 21, "capacity": 20}, "count=21 and capacity=20"),
        ({"capacity": 20, "min_count": 5, "max_count": 4}, "min_count=5, max_count=4 and capacity=20"),
        ({"capacity": 20, "max_count": 21}, "max_count=21 and capacity=20"),
        ({"count": 4, "slices": 0}, "a dynamic window: slices=0 must be a whole number"),
        ({"count": 4, "slices": 10_000_000}, "shorter than a millisecond"),
        ({"count": 4, "margin": -1}, "cannot be negative"),
    ],
)
def test_numbers_that_cannot_work_are_refused_at_declaration(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        DynamicWindow(per=3600, **options)


@pytest.mark.parametrize("per", [0, -1, float("inf")])
def test_a_period_that_is_none_is_refused(per: float) -> None:
    with pytest.raises(DeclarationError, match="per"):
        DynamicWindow(per=per, count=4)


def test_a_capacity_alone_is_shared_down_to_one_each() -> None:
    rule = DynamicWindow(per=3600, capacity=20).rule
    assert (rule.min_count, rule.max_count, rule.most_keys) == (1, 20, 20)
    assert list(in_turns(rule, names(21)).values()) == [1] * 20 + [0]


def test_the_margin_widens_the_period() -> None:
    rule = DynamicWindow(per=3600, count=4, slices=60, margin=60).rule
    assert (rule.slice, rule.period, rule.margin) == (61 * SECOND, 61 * MINUTE, MINUTE)


def test_a_rule_describes_all_that_makes_it_another() -> None:
    limits = [
        DynamicWindow(per=3600, count=4),
        DynamicWindow(per=3600, count=5),
        DynamicWindow(per=60, count=4),
        DynamicWindow(per=3600, count=4, slices=60),
        DynamicWindow(per=3600, count=4, max_keys=10),
        DynamicWindow(per=3600, count=4, margin=1),
        DynamicWindow(per=3600, count=4, capacity=4),
        DynamicWindow(per=3600, count=4, capacity=20),
        DynamicWindow(per=3600, capacity=20),
        DynamicWindow(per=3600, capacity=20, min_count=2),
        DynamicWindow(per=3600, capacity=20, max_count=10),
        DynamicWindow(per=3600, capacity=21, max_count=10),
    ]
    assert len({limit.rule.describe() for limit in limits}) == len(limits)
    assert FAIR.describe() == "20/h shared, 2 to 20 a key, in 1 slices, up to 1000 keys"


def test_a_start_leaves_what_is_kept_of_all_other_keys_as_it_is() -> None:
    # With a thousand keys a start copies references; it does not walk what each of them has.
    rule = DynamicWindow(per=3600, capacity=10**6, slices=60).rule
    state = None
    for key in names(1000):
        state = start(rule, key, 1, NOW, state)
    assert state is not None
    after = start(rule, "tenant-500", 1, NOW + MINUTE, state)
    assert [key for key in state.keys if after.keys[key] is not state.keys[key]] == ["tenant-500"]
