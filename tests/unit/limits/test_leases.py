"""The rule of leases: at most `count` at once, each grant at an instant of its own, and none that comes back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.clock import SECOND
from headgate.limits.concurrency import Concurrency
from headgate.limits.leases import KEPT_FOR, LeaseLog, Leases

NOON = 1_767_268_800 * SECOND


def test_a_lease_ends_by_itself() -> None:
    rule = Leases(1, 10 * SECOND)
    opens_at, state = rule.take(None, NOON)
    assert opens_at == NOON
    assert rule.take(state, NOON + 3 * SECOND)[0] == NOON + 10 * SECOND
    assert rule.take(state, NOON + 10 * SECOND)[0] == NOON + 10 * SECOND


def test_a_lease_is_renewed_and_given_back() -> None:
    rule = Leases(1, 10 * SECOND)
    _, state = rule.take(None, NOON)
    renewed = rule.amend(state, NOON, 1, NOON + 7 * SECOND, 1)
    assert rule.take(renewed, NOON + 12 * SECOND)[0] == NOON + 17 * SECOND
    free = rule.amend(renewed, NOON + 7 * SECOND, 1, NOON + 7 * SECOND, 0)
    assert rule.take(free, NOON + 12 * SECOND)[0] == NOON + 12 * SECOND


def test_a_late_renewal_takes_nothing_from_the_next_holder() -> None:
    rule = Leases(1, 10 * SECOND)
    _, first = rule.take(None, NOON)
    granted, second = rule.take(first, NOON + 11 * SECOND)
    assert granted == NOON + 11 * SECOND
    assert rule.amend(second, NOON, 1, NOON + 12 * SECOND, 1) == second
    assert rule.amend(second, NOON, 1, NOON, 0) == second


def test_no_two_grants_have_the_same_instant() -> None:
    rule = Leases(3, 10 * SECOND)
    _, first = rule.take(None, NOON)
    assert rule.take(first, NOON)[0] == NOON + 1
    free = rule.amend(first, NOON, 1, NOON, 0)
    assert rule.take(free, NOON)[0] == NOON + 1


def test_the_lease_of_another_length_is_respected_until_its_own_end() -> None:
    _, state = Leases(1, 60 * SECOND).take(None, NOON)
    short = Leases(1, SECOND)
    assert short.take(state, NOON + 2 * SECOND)[0] == NOON + 60 * SECOND


def test_the_last_grant_is_kept_for_a_day() -> None:
    rule = Leases(1, SECOND)
    _, state = rule.take(None, NOON)
    assert rule.idle_at(rule.amend(state, NOON, 1, NOON, 0)) == NOON + KEPT_FOR


def test_a_state_is_stored_and_one_of_another_kind_is_held_by_somebody_unknown() -> None:
    rule = Leases(2, 10 * SECOND)
    state = LeaseLog(NOON, (NOON + 5, NOON + 9))
    assert rule.load(rule.dump(state), NOON) == state
    assert rule.load(Leases.lua_load(rule.lua_dump(state, NOON)), NOON) == state
    unknown = rule.load("1:concurrency:{}", NOON)
    assert rule.take(unknown, NOON)[0] == NOON + 10 * SECOND
    assert rule.snapshot(unknown, NOON).available == 0
    assert Concurrency(2).rule.bound(1) == rule.count


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from(["take", "renew", "give back"]), st.integers(0, 5), st.integers(0, 4)), max_size=60
    ),
)
def test_never_more_holders_than_permits_and_tokens_only_grow(count: int, steps: list[tuple[str, int, int]]) -> None:
    rule = Leases(count, 10)
    now, state, tokens = NOON, None, []
    held: dict[int, tuple[int, int]] = {}  # by token: the start that the store counts, and its end
    for verb, place, later in steps:
        now += later
        if verb == "take":
            opens_at, after = rule.take(state, now)
            if opens_at <= now:
                state = after
                tokens.append(opens_at)
                held[opens_at] = (opens_at, opens_at + 10)
        elif held and state is not None:
            token = list(held)[place % len(held)]
            start, end = held[token]
            if verb == "renew":
                state = rule.amend(state, start, 1, now, 1)
                if end > now:  # else it is lost, as its holder can tell
                    held[token] = (now, now + 10)
            else:
                state = rule.amend(state, start, 1, start, 0)
                del held[token]
        assert sum(end > now for _, end in held.values()) <= count
        assert tokens == sorted(set(tokens))
