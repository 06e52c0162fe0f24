"""Concurrency and Mutex: who holds a permit, and when the next one gets it."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.clock import SECOND
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.limits.concurrency import (
    MUTEX,
    NO_PERMITS,
    Concurrency,
    HeldPermits,
    Hold,
    Mutex,
    Semaphore,
    dump_permits,
    load_permits,
)
from headgate.limits.rule import NEVER

NOON = 1_767_268_800 * SECOND
HOUR = 3600 * SECOND


def hold(rule: Semaphore, state: HeldPermits | None, now: int, holder: str, cost: int = 1) -> tuple[int, HeldPermits]:
    """When that holder may go, and the permits after it went."""
    return rule.for_key("", holder=holder).take(state, now, cost)


def held_by(rule: Semaphore, *holders: str) -> HeldPermits:
    """The state after all of these were granted a permit."""
    state: HeldPermits | None = None
    for holder in holders:
        opens_at, state = hold(rule, state, NOON, holder)
        assert opens_at == NOON
    assert state is not None
    return state


def test_as_many_as_the_count_hold_a_permit_and_the_next_waits_for_a_return() -> None:
    rule = Concurrency(2).rule
    state = held_by(rule, "a", "b")
    assert hold(rule, state, NOON, "c")[0] == NEVER
    assert hold(rule, rule.give(state, "a"), NOON, "c")[0] == NOON


def test_time_opens_nothing() -> None:
    rule = Concurrency(1).rule
    state = held_by(rule, "a")
    assert hold(rule, state, NOON + 1000 * HOUR, "b")[0] == NEVER
    assert rule.idle_at(state) == NEVER


def test_a_holder_that_asks_again_shares_its_permit_and_returns_it_with_its_last_use() -> None:
    rule = Concurrency(1).rule
    state = held_by(rule, "batch", "batch")
    assert state == HeldPermits(1, {"batch": Hold(cost=1, uses=2)})
    state = rule.give(state, "batch")
    assert hold(rule, state, NOON, "other")[0] == NEVER
    assert hold(rule, rule.give(state, "batch"), NOON, "other")[0] == NOON


def test_a_permit_keeps_the_cost_that_it_was_granted_at() -> None:
    rule = Concurrency(3).rule
    _, state = hold(rule, None, NOON, "a", 2)
    _, state = hold(rule, state, NOON, "a", 3)
    assert rule.snapshot(state, NOON).used == 2


def test_a_cost_takes_as_many_permits() -> None:
    rule = Concurrency(3).rule
    _, state = hold(rule, None, NOON, "a", 2)
    assert hold(rule, state, NOON, "b", 2)[0] == NEVER
    assert hold(rule, state, NOON, "b", 1)[0] == NOON


def test_a_cost_above_the_count_is_an_error() -> None:
    with pytest.raises(CostExceedsLimit, match="cost=4 is more than a concurrency of 3"):
        hold(Concurrency(3).rule, None, NOON, "a", 4)
    with pytest.raises(DeclarationError, match="cost=4 is more than"):
        Concurrency(3, cost=4)


def test_returning_a_permit_that_is_not_held_changes_nothing() -> None:
    rule = Concurrency(2).rule
    state = held_by(rule, "a")
    assert rule.give(state, "stranger") == state
    assert rule.give(NO_PERMITS, "a") == NO_PERMITS


def test_asking_and_returning_leave_the_state_they_were_given_alone() -> None:
    rule = Concurrency(2).rule
    state = held_by(rule, "a")
    hold(rule, state, NOON, "b")
    hold(rule, state, NOON, "a")
    rule.give(state, "a")
    assert state == HeldPermits(1, {"a": Hold(cost=1, uses=1)})


def test_a_lowered_count_takes_no_permit_away_and_grants_none_until_it_fits() -> None:
    state = held_by(Concurrency(3).rule, "a", "b", "c")
    lowered = Concurrency(1).rule
    assert lowered.snapshot(state, NOON).available == 0
    state = lowered.give(lowered.give(state, "a"), "b")
    assert hold(lowered, state, NOON, "d")[0] == NEVER
    assert hold(lowered, lowered.give(state, "c"), NOON, "d")[0] == NOON


def test_neither_a_late_start_nor_a_settled_cost_changes_who_holds_a_permit() -> None:
    rule = Concurrency(2).rule
    state = held_by(rule, "a")
    assert rule.amend(state, NOON, 1, NOON + HOUR, 2) == state


def test_a_snapshot_shows_what_is_held_and_what_is_left() -> None:
    rule = Concurrency(2).rule
    free = rule.snapshot(None, NOON)
    assert (free.used, free.available, free.opens_at) == (0, 2, NOON)
    full = rule.snapshot(held_by(rule, "a", "b"), NOON)
    assert (full.used, full.available, full.opens_at) == (2, 0, NEVER)


def test_the_bound_is_how_many_run_at_once_whatever_the_window() -> None:
    assert [Concurrency(20).rule.bound(window) for window in (1, HOUR)] == [20, 20]


def test_a_bucket_without_holders_can_be_evicted() -> None:
    rule = Concurrency(1).rule
    assert rule.idle_at(rule.give(held_by(rule, "a"), "a")) <= NOON


def test_holders_come_back_from_storage_as_they_were() -> None:
    rule = Concurrency(3).rule
    state = held_by(rule, "a", "a", 'with: "colons"')
    stored = rule.dump(state)
    assert stored.startswith("1:concurrency:")
    assert rule.load(stored, NOON + HOUR) == state == load_permits(dump_permits(state))


@pytest.mark.parametrize("stored", [None, "1:rate:27:15:60", "1:strict:"])
def test_the_state_of_another_kind_of_rule_has_no_holders(stored: str | None) -> None:
    assert load_permits(stored) == NO_PERMITS


@pytest.mark.parametrize("stored", ["2:concurrency:{}", "1:concurrency:", "1:concurrency:[1", '1:concurrency:["a"]'])
def test_permits_with_unreadable_holders_are_all_taken(stored: str) -> None:
    rule = Concurrency(3).rule
    unknown = rule.load(stored, NOON)
    assert hold(rule, unknown, NOON, "a")[0] == NEVER
    assert rule.snapshot(unknown, NOON).available == 0
    assert Semaphore.give(unknown, "a") == unknown
    assert load_permits(dump_permits(unknown)) == unknown


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3"])
def test_a_count_that_is_none_is_refused(count: Any) -> None:
    with pytest.raises(DeclarationError, match=r"a concurrency limit: count=.* must be a whole number, at least 1"):
        Concurrency(count)


def test_an_unknown_hold_and_another_store_are_refused() -> None:
    hold: Any = "always"
    with pytest.raises(DeclarationError, match="hold='always' must be 'running', 'until_final' or 'until_success'"):
        Concurrency(3, hold=hold)
    with pytest.raises(DeclarationError, match="permits belong to jobs and live where the jobs do"):
        Concurrency(3, store="redis://localhost")


def test_a_permit_is_held_while_running_unless_told_otherwise() -> None:
    assert (Concurrency(3).hold, Concurrency(3).owner) == ("running", None)
    limit = Concurrency(3, hold="until_final", owner="{batch}", key="{tenant_id}")
    assert (limit.hold, limit.owner, limit.key) == ("until_final", "{batch}", "{tenant_id}")


def test_a_mutex_is_one_at_a_time_on_a_resource_of_the_whole_program() -> None:
    limit = Mutex("orders:{order_id}", hold="until_success")
    assert (limit.rule, limit.key, limit.name, limit.hold) == (
        Semaphore(1),
        "orders:{order_id}",
        MUTEX,
        "until_success",
    )
    assert Mutex("orders:{order_id}", name="orders").name == "orders"


def test_a_mutex_without_a_resource_or_with_a_key_beside_it_is_refused() -> None:
    for resource in (None, ""):
        with pytest.raises(DeclarationError, match="a mutex needs the resource that it guards"):
            Mutex(resource)
    with pytest.raises(DeclarationError, match=r"its resource comes first; write Mutex\('{order_id}'\)"):
        Mutex("orders:{order_id}", key="{order_id}")


def test_a_rule_describes_what_makes_it_another() -> None:
    assert Concurrency(3).rule.describe() == "3 at once" != Concurrency(4).rule.describe()
    assert (Concurrency(3).rule.kind, Concurrency(3).rule.margin, Concurrency(3).rule.period) == ("concurrency", 0, 0)
