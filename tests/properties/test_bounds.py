"""Whatever a declaration accepts can be counted with: no instant that follows from it is beyond a 64-bit integer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import (
    DeclarationError,
    DynamicWindow,
    FixedWindow,
    RateLimit,
    RetryPolicy,
    SlidingWindow,
    StrictRate,
)
from headgate.arguments import LARGEST_COUNT, parse_duration
from headgate.clock import FARTHEST, LAST, SECOND, to_datetime
from headgate.limits.kinds import dump_rule, load_rule
from headgate.limits.limit import AnyRule, Limit
from tests.seeds import examples

thorough = settings(max_examples=examples(60, 300))

LARGEST = 2**63 - 1
NOW = 1_767_268_800 * SECOND

durations = st.one_of(
    st.integers(1, 10**12).map(lambda length: length / SECOND),
    st.integers(1, FARTHEST // SECOND),
    st.sampled_from([1e-6, 0.001, 1, FARTHEST // SECOND - 1, FARTHEST // SECOND, FARTHEST // SECOND + 1, 1e12, 1e300]),
)
counts = st.one_of(
    st.integers(1, 100),
    st.integers(1, LARGEST_COUNT),
    st.sampled_from([1000, LARGEST_COUNT, LARGEST_COUNT + 1, 10**30]),
)
margins = st.one_of(st.just(0), durations)
kinds: st.SearchStrategy[Callable[[], Limit]] = st.one_of(
    st.builds(
        lambda count, per, burst, margin, empty: lambda: RateLimit(
            count, per=per, burst=burst, margin=margin, start_empty=empty
        ),
        counts, durations, st.none() | counts, margins, st.booleans(),
    ),
    st.builds(lambda count, per, margin: lambda: StrictRate(count, per=per, margin=margin), counts, durations, margins),
    st.builds(
        lambda count, per, margin: lambda: FixedWindow(count, per=per, margin=margin), counts, durations, margins
    ),
    st.builds(
        lambda count, per, slices, margin: lambda: SlidingWindow(count, per=per, slices=slices, margin=margin),
        counts, durations, st.integers(1, 1000), margins,
    ),
    st.builds(
        lambda count, per, slices: lambda: DynamicWindow(per=per, capacity=count, slices=slices, key="{0}"),
        counts, durations, st.integers(1, 1000),
    ),
)  # fmt: skip


def made(declare: Callable[[], Limit]) -> AnyRule | None:
    """The rule that is declared; None if the declaration is refused, as it has to be then."""
    try:
        rule: AnyRule = declare().rule
    except DeclarationError:
        return None
    return rule


def fits(*instants: int) -> None:
    for instant in instants:
        assert -LARGEST <= instant <= LARGEST
        to_datetime(instant)


@given(kinds, st.integers(1, LARGEST_COUNT), st.sampled_from([NOW, NOW + FARTHEST, LAST]))
@thorough
def test_every_instant_that_follows_from_an_accepted_limit_is_one(
    declare: Callable[[], Limit], cost: int, now: int
) -> None:
    rule = made(declare)
    if rule is None:
        return
    cost = min(cost, getattr(rule, "burst", None) or getattr(rule, "max_count", None) or rule.count or cost)
    # Of a dynamic window, the rule of one key decides.
    decides = rule.for_key("acme")
    opens_at, state = decides.take(None, now, cost)
    for _ in range(3):
        again, later = decides.take(state, opens_at, cost)
        fits(opens_at, again, rule.idle_at(state), rule.idle_at(later))
        state = rule.load(rule.dump(later), again)
        opens_at = again
    seen = decides.snapshot(state, opens_at)
    fits(seen.opens_at, seen.used, seen.available)
    # One that starts late, and settles for all that may be settled.
    fits(rule.idle_at(decides.amend(state, now, cost, opens_at, cost)))
    assert rule.bound(FARTHEST) > 0
    assert rule.describe()
    assert load_rule(dump_rule(rule)) == rule


@given(st.one_of(durations, st.floats(), st.integers(), st.timedeltas()))
@thorough
def test_sums_of_any_accepted_durations_and_instants_fit(duration: Any) -> None:
    try:
        length = parse_duration(duration, "delay")
    except DeclarationError:
        return
    # A delay, then a max_wait, then a lease, from the last instant on.
    fits(LAST + 3 * length, NOW + length, NOW - 3 * length)


@given(durations, durations, st.integers(0, LARGEST_COUNT), st.integers(1, 10**6))
@thorough
def test_every_wait_of_an_accepted_policy_fits(base: float, cap: float, retries: int, failures: int) -> None:
    try:
        policy = RetryPolicy(retries=retries, base=base, cap=cap, jitter=False)
    except DeclarationError:
        return
    wait = policy.wait_after(failures, None)  # type: ignore[arg-type]  # without jitter nothing is drawn
    assert wait is not None
    assert 0 <= wait <= FARTHEST
