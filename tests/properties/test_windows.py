"""The window rules and permits as properties, against oracles that remember everything and try every microsecond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headgate.clock import SECOND
from headgate.errors import CostExceedsLimit
from headgate.limits.concurrency import NO_PERMITS, HeldPermits, Semaphore
from headgate.limits.dynamic_window import SharedCounter, WindowUse
from headgate.limits.fixed_window import WindowCounter
from headgate.limits.rule import NEVER
from headgate.limits.sliding_window import SliceCounter, slices_touched
from tests.properties.rule_strategies import RULES
from tests.seeds import examples

NOON = 1_767_268_800 * SECOND


thorough = settings(max_examples=examples(25, 100))

Counter = WindowCounter | SliceCounter


# ------------------------------------------------------------------------------------------------------- oracles


class Start:
    """One start that happened or is booked; a late one moves, a settled one changes its cost."""

    def __init__(self, at: int, cost: int, key: str = "") -> None:
        self.at = at
        self.cost = cost
        self.key = key


class Windows:
    """The oracle of `WindowCounter`: every start ever, sorted into windows that are walked one by one."""

    def __init__(self, rule: WindowCounter) -> None:
        self.rule = rule
        self.starts: list[Start] = []
        self.latest = -1

    def earliest(self, now: int, cost: int) -> int:
        while not self._may_go(now, cost):
            now += 1
        return now

    def spend(self, at: int, cost: int) -> None:
        self.starts.append(Start(at, cost))
        self.latest = max(self.latest, self._number(at))

    def move(self, start: Start, at: int, cost: int) -> None:
        start.at, start.cost = at, cost
        if cost:
            self.latest = max(self.latest, self._number(at))

    def covers(self, at: int) -> bool:
        return self._number(at) == self.latest

    def used(self, at: int) -> int:
        return sum(start.cost for start in self.starts if self._number(start.at) == self._number(at))

    def _may_go(self, at: int, cost: int) -> bool:
        in_margin = at % self.rule.period >= self.rule.period - self.rule.margin
        return not in_margin and self._number(at) >= self.latest and self.used(at) + cost <= self.rule.count

    def _number(self, at: int) -> int:
        number = at // self.rule.period
        return number + (at >= (number + 1) * self.rule.period - self.rule.margin)


class Intervals:
    """The oracle of `SliceCounter`: every start ever, and each interval of whole slices around an instant."""

    def __init__(self, rule: SliceCounter) -> None:
        self.rule = rule
        self.starts: list[Start] = []
        self.latest = -1

    def earliest(self, now: int, cost: int) -> int:
        while not self._may_go(now, cost):
            now += 1
        return now

    def spend(self, at: int, cost: int) -> None:
        self.starts.append(Start(at, cost))
        self.latest = max(self.latest, at // self.rule.slice)

    def move(self, start: Start, at: int, cost: int) -> None:
        start.at, start.cost = at, cost
        if cost:
            self.latest = max(self.latest, at // self.rule.slice)

    def covers(self, at: int) -> bool:
        return self.latest - self.rule.slices < at // self.rule.slice

    def _may_go(self, at: int, cost: int) -> bool:
        number = at // self.rule.slice
        # The intervals that end with a later slice hold nothing more, as nothing is booked beyond the latest.
        return number >= self.latest and self.used(at) + cost <= self.rule.count

    def used(self, at: int) -> int:
        end = (at // self.rule.slice + 1) * self.rule.slice
        begin = end - self.rule.slice * self.rule.slices
        return sum(start.cost for start in self.starts if begin <= start.at < end)


class SharedWindowOracle:
    """The oracle of `SharedCounter`: every start of every key, and who became active when."""

    def __init__(self, rule: SharedCounter) -> None:
        self.rule = rule
        self.starts: list[Start] = []
        self.order: list[str] = []
        self.latest = -1

    def earliest(self, now: int, cost: int, key: str) -> int:
        while not self._may_go(now, cost, key):
            now += 1
        return now

    def spend(self, at: int, cost: int, key: str) -> None:
        if not any(start.key == key for start in self.counting(at, key)):
            self.order = [*(other for other in self.order if other != key), key]
        self.starts.append(Start(at, cost, key))
        self.latest = max(self.latest, at // self.rule.slice)

    def move(self, start: Start, at: int, cost: int) -> None:
        start.at, start.cost = at, cost
        if cost:
            self.latest = max(self.latest, at // self.rule.slice)
        else:
            self.starts.remove(start)

    def covers(self, at: int) -> bool:
        return self.latest - self.rule.slices < at // self.rule.slice

    def counting(self, at: int, key: str) -> list[Start]:
        """The starts that count for `key` at an instant."""
        slice, slices = self.rule.slice, self.rule.slices
        begin = at // slice * slice
        before = begin - slices * slice
        waits = at == begin and any(start.key == key and before <= start.at < begin for start in self.starts)
        first = before if waits else before + slice
        return [start for start in self.starts if first <= start.at < begin + slice]

    def share(self, at: int, key: str) -> int:
        """How much the key may have in the window."""
        rule = self.rule
        active = {start.key for start in self.counting(at, key)}
        if key not in active:
            return 0 if len(active) >= _most_keys(rule) else self._part(len(active) + 1, len(active))
        if at % rule.slice == 0 and len(active) > _most_keys(rule):
            # It is about to leave, and a newcomer has its place.
            return 0
        return self._part(len(active), [other for other in self.order if other in active].index(key))

    def _part(self, keys: int, place: int) -> int:
        if not self.rule.capacity:
            return self.rule.max_count
        parts = [0] * keys
        for unit in range(self.rule.capacity):
            parts[unit % keys] += 1
        return min(parts[place], self.rule.max_count)

    def _may_go(self, at: int, cost: int, key: str) -> bool:
        counting = self.counting(at, key)
        own = sum(start.cost for start in counting if start.key == key)
        total = sum(start.cost for start in counting)
        return (
            at // self.rule.slice >= self.latest
            and own + cost <= self.share(at, key)
            and (not self.rule.capacity or total + cost <= self.rule.capacity)
        )


def _most_keys(rule: SharedCounter) -> int:
    most = rule.max_keys
    while rule.capacity and most * rule.min_count > rule.capacity:
        most -= 1
    return most


# ---------------------------------------------------------------------------------------------------- strategies


class Step(NamedTuple):
    """A caller requests `cost`, `gap` after the previous one: takes it, waits for its slot, or reserves it."""

    gap: int
    cost: int
    how: str
    key: str = "a"


class Change(NamedTuple):
    """A start is reported to have happened later by `late`, with another cost."""

    which: int
    late: int
    actual: int


@st.composite
def window_counters(draw: st.DrawFn) -> WindowCounter:
    period = draw(st.integers(1, 40))
    return WindowCounter(draw(st.integers(1, 8)), period, draw(st.one_of(st.just(0), st.integers(0, period - 1))))


slice_counters = st.builds(SliceCounter, st.integers(1, 8), st.integers(1, 12), st.integers(1, 6))
counters: st.SearchStrategy[Counter] = st.one_of(window_counters(), slice_counters)


@st.composite
def shared_counters(draw: st.DrawFn, evenly: bool = False) -> SharedCounter:
    # A slice has a first microsecond and others.
    slice, slices, max_keys = draw(st.integers(2, 10)), draw(st.integers(1, 4)), draw(st.integers(1, 6))
    if draw(st.booleans()):
        count = draw(st.integers(1, 5))
        return SharedCounter(0, count, count, slice, slices, max_keys)
    capacity = draw(st.integers(1, 14))
    most = draw(st.integers(1, capacity))
    least = most if evenly else draw(st.integers(1, most))
    return SharedCounter(capacity, least, most, slice, slices, max_keys)


def steps(most: int, period: int, keys: str = "a", ways: Sequence[str] = ("try", "wait")) -> st.SearchStrategy[Any]:
    gaps = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, max(1, period)), st.integers(0, 3 * period))
    step = st.builds(Step, gaps, st.integers(1, most), st.sampled_from(ways), st.sampled_from(keys))
    return st.lists(step, min_size=1, max_size=30)


def make_oracle(rule: Counter) -> Windows | Intervals:
    return Windows(rule) if isinstance(rule, WindowCounter) else Intervals(rule)


def play(rule: Counter, steps: Sequence[Step], state: Any = None, now: int = NOON) -> tuple[list[Start], int, Any]:
    """Every start in the order they were granted; the time and the state at the end."""
    starts: list[Start] = []
    for gap, cost, how, _ in steps:
        now += gap
        opens_at, after = rule.take(state, now, cost)
        if how == "wait":
            now = max(now, opens_at)
            opens_at, after = rule.take(state, now, cost)
            assert opens_at == now, "at the promised instant it goes"
        if opens_at <= now or how == "book":
            starts.append(Start(opens_at, cost))
            state = after
    return starts, now, state


def most_in_any_window(starts: Sequence[Start], window: int) -> int:
    # The fullest window begins with a start.
    return max(
        (sum(other.cost for other in starts if start.at <= other.at < start.at + window) for start in starts),
        default=0,
    )


# -------------------------------------------------------------------------------------- fixed and sliding windows


@given(counters, st.data())
@thorough
def test_a_window_grants_exactly_when_a_count_of_all_starts_would(rule: Counter, data: st.DataObject) -> None:
    oracle = make_oracle(rule)
    now = NOON
    state: Any = None
    for gap, cost, how, _ in data.draw(steps(rule.count, rule.period, ways=("try", "wait", "book"))):
        now += gap
        opens_at, after = rule.take(state, now, cost)
        assert opens_at == oracle.earliest(now, cost)
        if opens_at > now:
            assert rule.take(state, opens_at - 1, cost)[0] == opens_at, "a microsecond earlier is too early"
            if how == "wait":
                now = opens_at
        if opens_at <= now or how == "book":
            oracle.spend(opens_at, cost)
            state = after


@given(counters, st.data())
@thorough
def test_a_window_wherever_the_clock_jumps_grants_exactly_when_a_count_of_all_starts_would(
    rule: Counter, data: st.DataObject
) -> None:
    oracle = make_oracle(rule)
    now = NOON
    state: Any = None
    for gap, cost, how, _ in data.draw(steps(rule.count, rule.period, ways=("try", "book"))):
        now += gap - data.draw(st.one_of(st.just(0), st.integers(0, 2 * rule.period)))
        opens_at, after = rule.take(state, now, cost)
        assert opens_at == oracle.earliest(now, cost)
        if opens_at <= now or how == "book":
            oracle.spend(opens_at, cost)
            state = after


@given(counters, st.data())
@thorough
def test_no_window_holds_more_than_the_bound_wherever_the_clock_jumps(rule: Counter, data: st.DataObject) -> None:
    starts: list[Start] = []
    now = NOON
    state: Any = None
    for gap, cost, how, _ in data.draw(steps(rule.count, rule.period, ways=("try", "book"))):
        now += gap - data.draw(st.one_of(st.just(0), st.integers(0, 2 * rule.period)))
        opens_at, after = rule.take(state, now, cost)
        if opens_at <= now or how == "book":
            starts.append(Start(opens_at, cost))
            state = after
    for window in (rule.period, data.draw(st.integers(1, 4 * rule.period))):
        assert most_in_any_window(starts, window) <= rule.bound(window)


@given(counters, st.data())
@thorough
def test_the_bound_of_a_window_is_reached(rule: Counter, data: st.DataObject) -> None:
    window = data.draw(st.integers(1, 4 * rule.period))
    assume(rule.bound(window) < 100)
    slice = rule.slice if isinstance(rule, SliceCounter) else rule.period
    # Everything at the last instant of a slice that something may start at, and then whenever it opens.
    now = first = NOON - NOON % slice + slice - 1 - rule.margin
    starts: list[Start] = []
    state: Any = None
    while now < first + window:
        opens_at, after = rule.take(state, now)
        if opens_at > now:
            now = opens_at
        else:
            starts.append(Start(now, 1))
            state = after
    assert sum(start.cost for start in starts if start.at < first + window) == rule.bound(window)


@given(counters, st.data())
@thorough
def test_a_late_refunded_or_settled_start_counts_where_it_happened_and_for_what_it_cost(
    rule: Counter, data: st.DataObject
) -> None:
    oracle = make_oracle(rule)
    now = NOON
    state: Any = None
    for gap, cost, how, _ in data.draw(steps(rule.count, rule.period, ways=("try", "wait", "book"))):
        now += gap
        opens_at, after = rule.take(state, now, cost)
        assert opens_at == oracle.earliest(now, cost)
        now = opens_at if how == "wait" else now
        if opens_at <= now or how == "book":
            oracle.spend(opens_at, cost)
            state = after
        change = data.draw(st.builds(Change, st.integers(0, 100), st.integers(0, rule.period), st.integers(0, 10)))
        start = oracle.starts[change.which % len(oracle.starts)] if oracle.starts else None
        if start is not None and start.cost and oracle.covers(start.at):
            assert state is not None
            at = start.at + change.late
            state = rule.amend(state, start.at, start.cost, at, change.actual)
            oracle.move(start, at, change.actual)
            now = max(now, at)


@given(counters, st.data())
@thorough
def test_a_start_that_is_forgotten_is_not_brought_back_by_a_refund_or_a_settlement(
    rule: Counter, data: st.DataObject
) -> None:
    starts, _, state = play(rule, data.draw(steps(rule.count, rule.period)))
    assume(starts)
    long_ago = starts[-1].at - 3 * rule.period - data.draw(st.integers(0, 100))
    assert rule.amend(state, long_ago, 3, long_ago, 0) == state
    assert rule.amend(state, long_ago, 1, long_ago, 5) == state


@given(counters, st.data())
@thorough
def test_a_start_charged_in_a_window_that_is_over_counts_in_the_one_it_starts_in(
    rule: Counter, data: st.DataObject
) -> None:
    starts, _, state = play(rule, data.draw(steps(rule.count, rule.period)))
    assume(starts)
    now = starts[-1].at
    moved: Any = rule.amend(state, now - 2 * rule.period, 1, now, 1)
    assert rule.snapshot(moved, now).used == rule.snapshot(state, now).used + 1


@given(counters, st.data())
@thorough
def test_a_snapshot_of_a_window_agrees_with_take(rule: Counter, data: st.DataObject) -> None:
    starts, now, state = play(rule, data.draw(steps(rule.count, rule.period, ways=("try", "wait", "book"))))
    now += data.draw(st.integers(-2 * rule.period, 2 * rule.period))
    snapshot = rule.snapshot(state, now)
    assert snapshot.opens_at == rule.take(state, now)[0]
    assert (snapshot.available > 0) == (snapshot.opens_at <= now)
    assert 0 <= snapshot.used <= sum(start.cost for start in starts)
    for cost in range(1, rule.count + 1):
        assert (rule.take(state, now, cost)[0] <= now) == (cost <= snapshot.available)


@given(counters, st.data())
@thorough
def test_a_window_is_idle_at_the_very_instant_that_it_equals_a_new_one(rule: Counter, data: st.DataObject) -> None:
    starts, _, state = play(rule, data.draw(steps(rule.count, rule.period, ways=("try", "wait", "book"))))
    assume(starts)
    if data.draw(st.booleans()):
        state = rule.amend(state, starts[-1].at, starts[-1].cost, starts[-1].at, 0)
    idle_at = rule.idle_at(state)
    assert answers(rule, state, idle_at) == answers(rule, None, idle_at)
    assert answers(rule, state, idle_at + 1) == answers(rule, None, idle_at + 1)
    assert answers(rule, state, idle_at - 1) != answers(rule, None, idle_at - 1)


def answers(rule: Counter, state: Any, now: int) -> list[int]:
    return [rule.take(state, now, cost)[0] for cost in range(1, rule.count + 1)]


@given(counters, st.data())
@thorough
def test_a_window_comes_back_from_storage_as_it_was(rule: Counter, data: st.DataObject) -> None:
    _, now, state = play(rule, data.draw(steps(rule.count, rule.period, ways=("try", "wait", "book"))))
    assume(state is not None)
    stored = rule.dump(state)
    assert stored.startswith(f"1:{rule.kind}:")
    assert rule.load(stored, now + 10**12) == state


@given(counters, st.integers(0, 200))
@thorough
def test_a_window_with_the_state_of_another_kind_of_rule_grants_nothing_until_it_ends(rule: Counter, past: int) -> None:
    now = NOON + past
    state: Any = rule.load("1:other:whatever", now)
    opens_at = rule.take(state, now)[0]
    assert now < opens_at <= now + rule.period + rule.margin
    slice = rule.slice if isinstance(rule, SliceCounter) else rule.period
    # The callee may have seen as much as it allows in this very slice.
    assert opens_at >= (now // slice) * slice + rule.period


@pytest.mark.slow
@pytest.mark.parametrize("rules", [window_counters(), slice_counters], ids=["fixed", "sliding"])
@given(data=st.data())
@settings(max_examples=examples(50, 1000))
def test_a_window_with_changed_numbers_never_grants_more_than_they_allow(
    rules: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    old, new = data.draw(rules), data.draw(rules)
    ways = data.draw(st.sampled_from([("try",), ("try", "wait"), ("try", "wait", "book")]))
    starts, now, state = play(old, data.draw(steps(old.count, old.period, ways=ways)))
    assume(starts)
    now += data.draw(st.integers(0, 2 * old.period))
    granted, _, _ = play(new, data.draw(steps(new.count, new.period)), new.load(old.dump(state), now), now)
    # What started under the old numbers counts in the new windows, whatever margin it was charged with.
    oracle = make_oracle(WindowCounter(new.count, new.period) if isinstance(new, WindowCounter) else new)
    for start in starts:
        oracle.spend(start.at, start.cost)
    for start in granted:
        assert oracle.used(start.at) + start.cost <= new.count
        oracle.spend(start.at, start.cost)


@given(counters, counters, st.data())
@thorough
def test_a_window_with_changed_numbers_is_closed_for_at_most_one_window(
    old: Counter, new: Counter, data: st.DataObject
) -> None:
    assume(old.kind == new.kind)
    _, now, state = play(old, data.draw(steps(old.count, old.period)))
    assume(state is not None)
    carried: Any = new.load(old.dump(state), now)
    opens_at = new.take(carried, now, new.count)[0]
    assert opens_at <= now + new.period + new.margin


@given(counters, st.integers(1, 10), st.data())
@thorough
def test_a_cost_beyond_the_count_is_an_error_whatever_the_state(
    rule: Counter, beyond: int, data: st.DataObject
) -> None:
    _, now, state = play(rule, data.draw(steps(rule.count, rule.period)))
    with pytest.raises(CostExceedsLimit, match="can ever grant"):
        rule.take(state, now, rule.count + beyond)


@given(slice_counters, st.data())
@thorough
def test_a_sliding_window_of_one_slice_is_a_fixed_window(rule: SliceCounter, data: st.DataObject) -> None:
    fixed, sliding = WindowCounter(rule.count, rule.slice), SliceCounter(rule.count, rule.slice, 1)
    script = data.draw(steps(rule.count, rule.slice, ways=("try", "wait", "book")))
    assert [start.at for start in play(fixed, script)[0]] == [start.at for start in play(sliding, script)[0]]


# ------------------------------------------------------------------------------------------------- dynamic windows


def play_shared(
    rule: SharedCounter, steps: Sequence[Step], now: int = NOON
) -> tuple[SharedWindowOracle, int, WindowUse | None]:
    """Every start in the order they were granted; the time and the state at the end."""
    oracle = SharedWindowOracle(rule)
    state: WindowUse | None = None
    for gap, cost, how, key in steps:
        now += gap
        opens_at, after = rule.for_key(key).take(state, now, cost)
        if how == "wait":
            now = max(now, opens_at)
        if opens_at <= now or how == "book":
            oracle.spend(opens_at, cost, key)
            state = after
    return oracle, now, state


@given(shared_counters(), st.data())
@settings(max_examples=examples(50, 1000))
def test_a_dynamic_window_grants_exactly_when_a_count_of_all_starts_would(
    rule: SharedCounter, data: st.DataObject
) -> None:
    oracle = SharedWindowOracle(rule)
    now, state = NOON - NOON % rule.slice, None
    for gap, cost, how, key in data.draw(
        steps(rule.max_count, rule.period, "abcdefgh", data.draw(st.sampled_from([("try", "wait"), ("try", "book")])))
    ):
        now += gap
        opens_at, after = rule.for_key(key).take(state, now, cost)
        assert opens_at == oracle.earliest(now, cost, key)
        if opens_at > now:
            assert rule.for_key(key).take(state, opens_at - 1, cost)[0] == opens_at, (
                "a microsecond earlier is too early"
            )
            if how == "wait":
                now = opens_at
                opens_at, after = rule.for_key(key).take(state, now, cost)
                assert opens_at == now, "at the promised instant it goes"
        if opens_at <= now or how == "book":
            oracle.spend(opens_at, cost, key)
            state = after


@given(shared_counters(), st.data())
@thorough
def test_starts_of_other_keys_never_shorten_the_wait_of_a_key(rule: SharedCounter, data: st.DataObject) -> None:
    _, now, state = play_shared(rule, data.draw(steps(rule.max_count, rule.period, "abcdef")))
    cost = data.draw(st.integers(1, rule.max_count))
    promised = rule.for_key("a").take(state, now, cost)[0]
    for gap, other_cost, _, key in data.draw(steps(rule.max_count, rule.period, "bcdef")):
        now += gap
        opens_at, after = rule.for_key(key).take(state, now, other_cost)
        if opens_at <= now:
            state = after
        now_promised = rule.for_key("a").take(state, now, cost)[0]
        assert now_promised >= promised
        promised = now_promised


@given(shared_counters(), st.data())
@thorough
def test_waiting_keys_delay_a_cost_until_nothing_counts_at_the_latest(rule: SharedCounter, data: st.DataObject) -> None:
    _, now, state = play_shared(rule, data.draw(steps(rule.max_count, rule.period, "abcdef")))
    now += data.draw(st.integers(0, 2 * rule.period))
    cost, rivals = data.draw(st.integers(1, rule.max_count)), data.draw(st.sets(st.sampled_from("abcdefgh")))
    promised, after = rule.for_key("a", rivals).take(state, now, cost)
    empty_at = now if state is None else max(now, rule.idle_at(state))
    assert rule.for_key("a").take(state, now, cost)[0] <= promised <= empty_at
    again, then = rule.for_key("a", rivals).take(state, promised, cost)
    assert again == promised, "at the promised instant it goes"
    assert_is_consistent(after)
    assert_is_consistent(then)


def total_bound(rule: SharedCounter, window: int) -> int:
    """The highest cost of all keys that can start in any half-open window of that many microseconds."""
    most = rule.most_keys * rule.max_count
    most = min(most, rule.capacity) if rule.capacity else most
    return most * -(-slices_touched(window, rule.slice) // rule.slices)


@given(shared_counters(), st.data())
@thorough
def test_the_sum_of_all_keys_and_the_keys_themselves_stay_within_their_bounds(
    rule: SharedCounter, data: st.DataObject
) -> None:
    oracle = SharedWindowOracle(rule)
    now = NOON
    state: Any = None
    for gap, cost, how, key in data.draw(steps(rule.max_count, rule.period, "abcdefgh", ("try", "book"))):
        now += gap - data.draw(st.one_of(st.just(0), st.integers(0, 2 * rule.period)))
        opens_at, after = rule.for_key(key).take(state, now, cost)
        if opens_at <= now or how == "book":
            oracle.spend(opens_at, cost, key)
            state = after
    for window in (rule.period, data.draw(st.integers(1, 4 * rule.period))):
        assert most_in_any_window(oracle.starts, window) <= total_bound(rule, window)
        for key in "abcdefgh":
            own = [start for start in oracle.starts if start.key == key]
            assert most_in_any_window(own, window) <= rule.bound(window)


@given(shared_counters(), st.data())
@thorough
def test_the_bounds_of_a_dynamic_window_are_reached(rule: SharedCounter, data: st.DataObject) -> None:
    window = data.draw(st.integers(1, 4 * rule.period))
    assume(total_bound(rule, window) < 100)
    first = NOON - NOON % rule.slice + rule.slice - 1
    alone: list[Start] = []
    now, state = first, None
    while now < first + window:
        opens_at, after = rule.for_key("a").take(state, now)
        if opens_at > now:
            now = opens_at
        else:
            alone.append(Start(now, 1))
            state = after
    assert sum(start.cost for start in alone if start.at < first + window) == rule.bound(window)

    together: list[Start] = []
    state = None
    for number in range(-(-window // rule.slice) + 1):
        # Ever new keys: each as early in its slice as it may be, the first ones as late as they can.
        now = first + 1 + (number - 1) * rule.slice if number else first
        names = [f"{number}.{place}" for place in range(rule.most_keys)]
        for name in names * rule.max_count:
            opens_at, after = rule.for_key(name).take(state, now)
            if opens_at <= now < first + window:
                together.append(Start(now, 1))
                state = after
    assert sum(start.cost for start in together) == total_bound(rule, window)


@given(shared_counters(evenly=True), st.data())
@thorough
def test_a_late_refunded_or_settled_start_of_a_key_counts_where_it_happened_and_for_what_it_cost(
    rule: SharedCounter, data: st.DataObject
) -> None:
    oracle = SharedWindowOracle(rule)
    now = NOON
    state: Any = None
    for gap, cost, how, key in data.draw(steps(rule.max_count, rule.period, "abcd")):
        now += gap
        opens_at, after = rule.for_key(key).take(state, now, cost)
        assert opens_at == oracle.earliest(now, cost, key)
        now = opens_at if how == "wait" else now
        if opens_at <= now:
            oracle.spend(opens_at, cost, key)
            state = after
        change = data.draw(st.builds(Change, st.integers(0, 100), st.integers(0, rule.period), st.integers(0, 10)))
        start = oracle.starts[change.which % len(oracle.starts)] if oracle.starts else None
        if start is not None and oracle.covers(start.at):
            assert state is not None
            at = start.at + change.late
            state = rule.for_key(start.key).amend(state, start.at, start.cost, at, change.actual)
            oracle.move(start, at, change.actual)
            now = max(now, at)
        if state is not None:
            assert_is_consistent(state)


def assert_is_consistent(state: WindowUse) -> None:
    """What is kept together is the sum of what is kept apart."""
    oldest = state.slices[0].number
    held = {
        name: {number: used for number, used in zip(parts[::2], parts[1::2], strict=True) if number >= oldest}
        for name, parts in state.keys.items()
    }
    for number, used, keys in ((part.number, part.used, part.keys) for part in state.slices):
        assert used == sum(parts.get(number, 0) for parts in held.values())
        assert keys == sum(1 for parts in held.values() if max(parts) == number)
    assert state.used == sum(part.used for part in state.slices)
    assert state.active == len(held)
    assert all(used > 0 for parts in held.values() for used in parts.values())


@given(shared_counters(), st.data())
@thorough
def test_a_snapshot_of_a_key_agrees_with_take(rule: SharedCounter, data: st.DataObject) -> None:
    oracle, now, state = play_shared(rule, data.draw(steps(rule.max_count, rule.period, "abcde", ("try", "book"))))
    now += data.draw(st.integers(-rule.period, 2 * rule.period))
    for key in "abf":
        snapshot = rule.for_key(key).snapshot(state, now)
        assert snapshot.opens_at == rule.for_key(key).take(state, now)[0]
        assert (snapshot.available > 0) == (snapshot.opens_at <= now)
        assert 0 <= snapshot.used <= sum(start.cost for start in oracle.starts if start.key == key)
        for cost in range(1, rule.max_count + 1):
            assert (rule.for_key(key).take(state, now, cost)[0] <= now) == (cost <= snapshot.available)


@given(shared_counters(), st.data())
@thorough
def test_a_dynamic_window_is_idle_at_the_very_instant_that_it_equals_a_new_one(
    rule: SharedCounter, data: st.DataObject
) -> None:
    oracle, _, state = play_shared(rule, data.draw(steps(rule.max_count, rule.period, "abcde", ("try", "book"))))
    assume(state is not None)
    assert state is not None
    if data.draw(st.booleans()):
        last = oracle.starts[-1]
        state = rule.for_key(last.key).amend(state, last.at, last.cost, last.at, 0)
    idle_at = rule.idle_at(state)

    def shares(state: WindowUse | None, now: int) -> list[int]:
        return [
            rule.for_key(key).take(state, now, cost)[0] for key in "abcdef" for cost in range(1, rule.max_count + 1)
        ]

    assert shares(state, idle_at) == shares(None, idle_at)
    assert shares(state, idle_at + 1) == shares(None, idle_at + 1)
    assert shares(state, idle_at - 1) != shares(None, idle_at - 1)


@given(shared_counters(), st.data())
@thorough
def test_a_dynamic_window_comes_back_from_storage_as_it_was(rule: SharedCounter, data: st.DataObject) -> None:
    _, now, state = play_shared(rule, data.draw(steps(rule.max_count, rule.period, "abcde", ("try", "book"))))
    assume(state is not None)
    assert state is not None
    stored = rule.dump(state)
    assert stored.startswith(f"1:{rule.kind}:")
    loaded = rule.load(stored, now + 10**12)
    assert loaded == state
    assert list(loaded.keys) == list(state.keys), "who became active first is kept as well"


@pytest.mark.slow
@given(shared_counters(), shared_counters(), st.data())
@settings(max_examples=examples(50, 1000))
def test_a_dynamic_window_with_changed_numbers_never_grants_more_than_they_allow(
    old: SharedCounter, new: SharedCounter, data: st.DataObject
) -> None:
    past, now, state = play_shared(old, data.draw(steps(old.max_count, old.period, "abcde", ("try", "wait", "book"))))
    assume(state is not None)
    assert state is not None
    now += data.draw(st.integers(0, 2 * old.period))
    oracle = SharedWindowOracle(new)
    oracle.starts = past.starts
    carried: WindowUse | None = new.load(old.dump(state), now)
    for gap, cost, how, key in data.draw(steps(new.max_count, new.period, "abcdef")):
        now += gap
        opens_at, after = new.for_key(key).take(carried, now, cost)
        now = opens_at if how == "wait" else now
        if opens_at > now:
            continue
        carried = after
        counting = oracle.counting(opens_at + 1, "nobody")
        assert sum(start.cost for start in counting if start.key == key) + cost <= new.max_count
        assert not new.capacity or sum(start.cost for start in counting) + cost <= new.capacity
        oracle.spend(opens_at, cost, key)


@given(shared_counters(), st.integers(0, 200))
@thorough
def test_a_dynamic_window_with_the_state_of_another_kind_of_rule_grants_nothing_until_it_ends(
    rule: SharedCounter, past: int
) -> None:
    now = NOON + past
    state = rule.load("1:other:whatever", now)
    opens_at = rule.for_key("a").take(state, now)[0]
    assert opens_at == now // rule.slice * rule.slice + rule.period
    assert rule.for_key("b").take(rule.load(rule.dump(state), now), now)[0] == opens_at


# --------------------------------------------------------------------------------------------------------- permits


@given(st.integers(1, 5), st.lists(st.tuples(st.sampled_from("abcde"), st.booleans(), st.integers(1, 5))))
@thorough
def test_permits_are_granted_exactly_while_those_held_leave_room(
    count: int, asks: Sequence[tuple[str, bool, int]]
) -> None:
    rule = Semaphore(count)
    state: HeldPermits | None = None
    held: list[tuple[str, int]] = []
    for holder, takes, cost in asks:
        cost = min(cost, count)
        if takes:
            opens_at, after = rule.for_key("", holder=holder).take(state, NOON, cost)
            others = dict(held)
            may_go = holder in others or sum(others.values()) + cost <= count
            assert opens_at == (NOON if may_go else NEVER)
            if may_go:
                held.append((holder, others.get(holder, cost)))
                state = after
        else:
            given_back = next((hold for hold in held if hold[0] == holder), None)
            if given_back is not None:
                held.remove(given_back)
            state = rule.give(state or NO_PERMITS, holder)
        used = sum(dict(held).values())
        snapshot = rule.snapshot(state, NOON)
        assert (snapshot.used, snapshot.available) == (used, count - used)
        assert used <= rule.bound(1)
        assert state is None or rule.load(rule.dump(state), NOON) == state
        assert (rule.idle_at(state or NO_PERMITS) == 0) == (not held)


# ---------------------------------------------------------------------------------------------------------- all rules


@pytest.mark.parametrize("kind", RULES)
@thorough
@given(data=st.data())
def test_a_bucket_grants_as_many_starts_as_can_be_taken_from_it(kind: str, data: st.DataObject) -> None:
    rule = data.draw(RULES[kind]).for_key("acme", ("globex",))
    state, now = None, NOON
    for passed, is_reserved in data.draw(st.lists(st.tuples(st.integers(-30, 130), st.booleans()), max_size=12)):
        now += passed * rule.period // 100
        opens_at, after = rule.take(state, now)
        if opens_at <= now or (is_reserved and opens_at < NEVER):
            state = after
    expected, left = 0, state
    while expected < 20:
        opens_at, left = rule.take(left, now)
        if opens_at > now:
            break
        expected += 1
    assert rule.grants(state, now, 20) == expected
    assert rule.grants(state, now, 1) == min(expected, 1)
