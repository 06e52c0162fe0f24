"""Unique keys on PostgreSQL while others add, claim and finish between two statements: one waits, nothing is lost."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.errors import DuplicateJob, IllegalTransition
from headgate.jobs.job import JobState, NewJob
from tests.cluster.test_overtaken import World, world  # noqa: F401  # a fixture
from tests.cluster.unique_storm import Storm
from tests.conformance.storage_suite.store_user import StoreUser, at_once
from tests.conformance.storage_suite.unique_keys import unique


async def stored(store_user: StoreUser, new: NewJob) -> str:
    """The id of the job that stands for it."""
    return (await store_user.storage.add([new])).get(new.id, new.id)


@pytest.mark.parametrize("policy", ["keep", "replace", "raise"])
async def test_of_two_that_check_the_key_before_either_adds_one_is_stored(world: World, policy: Any) -> None:  # noqa: F811
    mine, other = (unique(store_user, on_conflict=policy, payload=name) for store_user, name in named_users(world))
    adding = world.after("jobs_under_keys", lambda: stored(world.right, other))
    if policy == "raise":
        with pytest.raises(DuplicateJob) as caught:
            await stored(world.left, mine)
        assert caught.value.job_id == await adding == other.id
    else:
        assert await stored(world.left, mine) == await adding == other.id
    (job,) = await world.left.take()
    assert (job.id, job.payload) == (other.id, '"left"' if policy == "replace" else '"right"')


def named_users(world: World) -> list[tuple[StoreUser, str]]:  # noqa: F811
    return [(world.left, '"left"'), (world.right, '"right"')]


async def test_a_job_that_is_added_and_claimed_after_the_check_is_found_running(world: World) -> None:  # noqa: F811
    """Its key is free in the index when the insertion comes to it: only a later look can see the job that runs."""
    mine, other = unique(world.left), unique(world.right)

    async def add_and_claim() -> list[str]:
        await stored(world.right, other)
        return await world.right.take_ids()

    claiming = world.after("jobs_under_keys", add_and_claim)
    assert await stored(world.left, mine) == other.id
    assert await claiming == [other.id]
    assert (await world.left.counts()).waiting == 0
    assert await world.left.storage.job(mine.id) is None


async def test_a_job_that_is_claimed_while_it_is_replaced_gets_a_successor(world: World) -> None:  # noqa: F811
    first = await stored(world.left, unique(world.left, payload="1"))
    claiming = world.after("jobs_under_keys", world.right.take_one)
    successor = await stored(world.left, unique(world.left, on_conflict="replace", payload="2"))
    running = await claiming
    assert (running.id, running.payload) == (first, "1")
    assert successor != first
    assert (await world.left.record(successor)).is_blocked
    await world.right.succeed(running)
    assert [(job.id, job.payload) for job in await world.left.take()] == [(successor, "2")]


@pytest.mark.parametrize("gated", [False, True])
async def test_a_job_that_is_replaced_while_it_is_claimed_starts_with_the_last_arguments(
    world: World,  # noqa: F811
    gated: bool,
) -> None:
    """A claim of gated jobs has read the arguments before it takes the job: it must not give out the old ones."""
    world.rule(r=at_once(100))
    draws = [("r", "a")] if gated else []
    first = await stored(world.left, unique(world.left, draws=draws, payload="1"))
    new = unique(world.right, draws=draws, on_conflict="replace", payload="2")
    replacing = world.after("heads" if gated else "claim_snapshot", lambda: stored(world.right, new))
    started = [*(await world.left.claim()).jobs, *await world.left.take()]
    assert await replacing == first
    assert [(job.id, job.payload) for job in started] == [(first, "2")]


async def test_a_running_job_that_ends_while_a_successor_is_added_has_no_successor(
    world: World,  # noqa: F811
) -> None:
    first = await stored(world.left, unique(world.left))
    running = await world.right.take_one()
    ending = world.after("jobs_under_keys", lambda: world.right.succeed(running))
    second = await stored(world.left, unique(world.left, on_conflict="replace", payload="2"))
    await ending
    assert second != first
    assert [job.payload for job in await world.left.take()] == ["2"]


async def test_a_running_job_that_is_retried_while_a_successor_is_added_is_replaced(
    world: World,  # noqa: F811
) -> None:
    first = await stored(world.left, unique(world.left))
    running = await world.right.take_one()
    ending = world.after("jobs_under_keys", lambda: world.right.retry_later(running, 5))
    assert await stored(world.left, unique(world.left, on_conflict="replace", payload="2")) == first
    await ending
    assert [job.payload for job in await world.left.take()] == ["2"]


async def test_a_retried_job_yields_to_the_successor_that_was_added_meanwhile(
    world: World,  # noqa: F811
) -> None:
    first = await stored(world.left, unique(world.left))
    running = await world.left.take_one()
    new = unique(world.right, on_conflict="replace", payload="2")
    replacing = world.after("running_of", lambda: stored(world.right, new))
    await world.left.retry_later(running, 5)
    assert await replacing == new.id
    assert (await world.left.record(first)).state is JobState.CANCELLED
    assert [(job.id, job.payload) for job in await world.left.take()] == [(new.id, "2")]


async def test_a_job_that_is_deleted_between_two_reads_blocks_no_enqueue(
    world: World,  # noqa: F811
) -> None:
    other = unique(world.right)

    async def come_and_go() -> None:
        await stored(world.right, other)
        await world.right.storage.cancel(other.id)

    going = world.after("jobs_under_keys", come_and_go)
    mine = unique(world.left, on_conflict="raise")
    assert await stored(world.left, mine) == mine.id
    await going


async def test_a_retry_of_a_final_job_is_refused_while_another_job_gets_its_key(world: World) -> None:  # noqa: F811
    first = await stored(world.left, unique(world.left))
    await world.left.fail(await world.left.take_one())
    other = unique(world.right)
    coming = world.after("unique_rivals", lambda: stored(world.right, other))
    retrying = asyncio.create_task(world.left.storage.retry(first))
    while not retrying.done():
        # It is undone by the index, waits a moment and looks again.
        world.clock.advance(0.02)
        await asyncio.wait([retrying], timeout=0.01)
    with pytest.raises(IllegalTransition, match=other.id):
        await retrying
    assert await coming == other.id
    assert await world.left.take_ids() == [other.id]


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_under_load_one_job_waits_for_each_key_and_the_last_arguments_run(
    postgres_url: str, postgres_schema: str
) -> None:
    """Eight producers replace and keep under few keys while workers in other processes run them, and some fail."""
    storm = Storm(postgres_url, postgres_schema, seconds=float(os.environ.get("HEADGATE_TEST_RACE_SECONDS", "3")))
    await storm.run()
    assert storm.most_waiting == 1
    assert storm.lost() == []
    assert storm.ran_twice() == []
    assert storm.accepted > 100


async def test_concurrent_replacements_in_any_order_do_not_deadlock(world: World) -> None:  # noqa: F811
    world.rule(r=at_once(1000))
    keys = [f"k{number}" for number in range(10)]

    async def add(store_user: StoreUser, ordered: list[str], number: int) -> None:
        draws = [("r", str(number % 3))]
        await store_user.storage.add(
            [unique(store_user, key, on_conflict="replace", draws=draws, payload=str(number)) for key in ordered]
        )

    for number in range(4):
        await add(world.left, keys, number)
        await add(world.right, keys[::-1], number)
    jobs = await world.left.take()
    assert sorted(job.payload for job in jobs) == ["3"] * 10
    assert replace(jobs[0], payload="") != jobs[1]
