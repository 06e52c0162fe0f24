"""Unique keys on PostgreSQL while others add, claim and finish between two statements: one waits, nothing is lost."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.errors import DuplicateJob, IllegalTransition
from headgate.jobs.job import ClaimedJob, JobState, NewJob, UniqueTerms
from headgate.storage.postgres.database import Session
from tests.cluster.test_overtaken import TwoStores, stores  # noqa: F401  # a fixture
from tests.cluster.unique_key_load import UniqueKeyLoad
from tests.conformance.storage_suite.store_user import StoreUser, at_once
from tests.conformance.storage_suite.unique_keys import unique

ROUNDS = int(os.environ.get("HEADGATE_TEST_UNIQUE_ROUNDS", "80"))


async def stored(store_user: StoreUser, new: NewJob) -> str:
    """Return the id of the stored job for it."""
    return (await store_user.storage.add([new])).get(new.id, new.id)


@pytest.mark.parametrize("policy", ["keep", "replace", "raise"])
async def test_of_two_that_check_the_key_before_either_adds_one_is_stored(stores: TwoStores, policy: Any) -> None:  # noqa: F811
    mine, other = (unique(store_user, on_conflict=policy, payload=name) for store_user, name in named_users(stores))
    adding = stores.after("jobs_under_keys", lambda: stored(stores.right, other))
    if policy == "raise":
        with pytest.raises(DuplicateJob) as caught:
            await stored(stores.left, mine)
        assert caught.value.job_id == await adding == other.id
    else:
        assert await stored(stores.left, mine) == await adding == other.id
    (job,) = await stores.left.take()
    assert (job.id, job.payload) == (other.id, '"left"' if policy == "replace" else '"right"')


def named_users(stores: TwoStores) -> list[tuple[StoreUser, str]]:  # noqa: F811
    return [(stores.left, '"left"'), (stores.right, '"right"')]


async def test_a_job_that_is_added_and_claimed_after_the_check_is_found_running(stores: TwoStores) -> None:  # noqa: F811
    """Its key is free in the index when the insertion comes to it: only a later look can see the job that runs."""
    mine, other = unique(stores.left), unique(stores.right)

    async def add_and_claim() -> list[str]:
        await stored(stores.right, other)
        return await stores.right.take_ids()

    claiming = stores.after("jobs_under_keys", add_and_claim)
    assert await stored(stores.left, mine) == other.id
    assert await claiming == [other.id]
    assert (await stores.left.counts()).waiting == 0
    assert await stores.left.storage.job(mine.id) is None


async def test_a_job_that_is_claimed_while_it_is_replaced_gets_a_successor(stores: TwoStores) -> None:  # noqa: F811
    first = await stored(stores.left, unique(stores.left, payload="1"))
    claiming = stores.after("jobs_under_keys", stores.right.take_one)
    successor = await stored(stores.left, unique(stores.left, on_conflict="replace", payload="2"))
    running = await claiming
    assert (running.id, running.payload) == (first, "1")
    assert successor != first
    assert (await stores.left.record(successor)).is_blocked
    await stores.right.succeed(running)
    assert [(job.id, job.payload) for job in await stores.left.take()] == [(successor, "2")]


@pytest.mark.parametrize("gated", [False, True])
async def test_a_job_that_is_replaced_while_it_is_claimed_starts_with_the_last_arguments(
    stores: TwoStores,  # noqa: F811
    gated: bool,
) -> None:
    """A claim of gated jobs has read the arguments before it takes the job: it must not give out the old ones."""
    stores.set_rules(r=at_once(100))
    buckets = [("r", "a")] if gated else []
    first = await stored(stores.left, unique(stores.left, buckets=buckets, payload="1"))
    new = unique(stores.right, buckets=buckets, on_conflict="replace", payload="2")
    replacing = stores.after("heads" if gated else "claim_snapshot", lambda: stored(stores.right, new))
    started = [*(await stores.left.claim()).jobs, *await stores.left.take()]
    assert await replacing == first
    assert [(job.id, job.payload) for job in started] == [(first, "2")]


async def test_a_running_job_that_ends_while_a_successor_is_added_has_no_successor(
    stores: TwoStores,  # noqa: F811
) -> None:
    first = await stored(stores.left, unique(stores.left))
    running = await stores.right.take_one()
    ending = stores.after("jobs_under_keys", lambda: stores.right.succeed(running))
    second = await stored(stores.left, unique(stores.left, on_conflict="replace", payload="2"))
    await ending
    assert second != first
    assert [job.payload for job in await stores.left.take()] == ["2"]


async def test_a_job_that_starts_after_the_one_that_was_found_running_is_followed(
    stores: TwoStores,  # noqa: F811
) -> None:
    """The fault: what was to run after the job under its key ran beside it."""
    await stored(stores.left, unique(stores.left))
    running = await stores.right.take_one()

    async def end_and_start_another() -> ClaimedJob:
        await stores.right.succeed(running)
        await stored(stores.right, unique(stores.right))
        return await stores.right.take_one()

    starting = stores.after("jobs_under_keys", end_and_start_another)
    successor = await stored(stores.left, unique(stores.left, on_conflict="replace", payload="2"))
    another = await starting
    assert await stores.left.take_ids() == []
    await stores.right.succeed(another)
    assert [(job.id, job.payload) for job in await stores.left.take()] == [(successor, "2")]


async def test_a_running_job_that_is_retried_while_a_successor_is_added_is_replaced(
    stores: TwoStores,  # noqa: F811
) -> None:
    first = await stored(stores.left, unique(stores.left))
    running = await stores.right.take_one()
    ending = stores.after("jobs_under_keys", lambda: stores.right.retry_later(running, 5))
    assert await stored(stores.left, unique(stores.left, on_conflict="replace", payload="2")) == first
    await ending
    assert [job.payload for job in await stores.left.take()] == ["2"]


async def test_a_retried_job_yields_to_the_successor_that_was_added_meanwhile(
    stores: TwoStores,  # noqa: F811
) -> None:
    first = await stored(stores.left, unique(stores.left))
    running = await stores.left.take_one()
    new = unique(stores.right, on_conflict="replace", payload="2")
    replacing = stores.after("running_of", lambda: stored(stores.right, new))
    await stores.left.retry_later(running, 5)
    assert await replacing == new.id
    assert (await stores.left.record(first)).state is JobState.CANCELLED
    assert [(job.id, job.payload) for job in await stores.left.take()] == [(new.id, "2")]


async def test_a_job_that_is_deleted_between_two_reads_blocks_no_enqueue(
    stores: TwoStores,  # noqa: F811
) -> None:
    other = unique(stores.right)

    async def come_and_go() -> None:
        await stored(stores.right, other)
        await stores.right.storage.cancel(other.id)

    going = stores.after("jobs_under_keys", come_and_go)
    mine = unique(stores.left, on_conflict="raise")
    assert await stored(stores.left, mine) == mine.id
    await going


async def test_a_retry_of_a_final_job_is_refused_while_another_job_gets_its_key(stores: TwoStores) -> None:  # noqa: F811
    first = await stored(stores.left, unique(stores.left))
    await stores.left.fail(await stores.left.take_one())
    other = unique(stores.right)
    coming = stores.after("unique_rivals", lambda: stored(stores.right, other))
    retrying = asyncio.create_task(stores.left.storage.retry(first))
    while not retrying.done():
        # It is undone by the index, waits a moment and looks again.
        stores.clock.advance(0.02)
        await asyncio.wait([retrying], timeout=0.01)
    with pytest.raises(IllegalTransition, match=other.id):
        await retrying
    assert await coming == other.id
    assert await stores.left.take_ids() == [other.id]


@pytest.mark.nightly
async def test_under_load_one_job_waits_for_each_key_and_the_last_arguments_run(
    postgres_url: str, postgres_schema: str, tmp_path: Path
) -> None:
    """Eight producers replace and keep under few keys while workers in other processes run them, and some fail."""
    load = UniqueKeyLoad(postgres_url, postgres_schema, tmp_path, rounds=ROUNDS)
    await load.run()
    assert load.most_waiting == 1
    assert load.lost() == []
    assert load.ran_twice() == []


@pytest.mark.parametrize("policy", ["keep", "replace"])
async def test_concurrent_additions_in_any_order_do_not_deadlock(stores: TwoStores, policy: Any) -> None:  # noqa: F811
    stores.set_rules(r=at_once(1000))
    keys = [f"k{number}" for number in range(10)]

    async def add(store_user: StoreUser, ordered: list[str], number: int) -> None:
        buckets = [("r", str(number % 3))]
        await store_user.storage.add(
            [unique(store_user, key, on_conflict=policy, buckets=buckets, payload=str(number)) for key in ordered]
        )

    for number in range(5):
        both = asyncio.gather(add(stores.left, keys, number), add(stores.right, keys[::-1], number))
        while not (await asyncio.wait([both], timeout=0.1))[0]:
            # An insertion that meets a key at the same instant may be repeated, after a pause of that clock.
            stores.clock.advance(0.1)
        await both
    jobs = await stores.left.take(100)
    assert sorted(job.payload for job in jobs) == ["4" if policy == "replace" else "0"] * 10


async def test_of_many_jobs_those_whose_keys_another_client_takes_meanwhile_are_not_stored(
    stores: TwoStores,  # noqa: F811
) -> None:
    """All of them are inserted by one statement; some keys were taken after it was decided which are free."""
    keys = [f"k{number:02}" for number in range(30)]
    new = [unique(stores.left, key) for key in keys]
    waiting, ran = unique(stores.right, keys[3]), unique(stores.right, keys[20])

    async def take_keys() -> None:
        await stores.right.storage.add([ran])
        await stores.right.take_one()
        await stores.right.storage.add([waiting])

    taking = stores.after("jobs_under_keys", take_keys)
    assert await stores.left.storage.add(new) == {new[3].id: waiting.id, new[20].id: ran.id}
    await taking
    ids = {job.id for job in new} - {new[3].id, new[20].id} | {waiting.id}
    assert set(await stores.left.take_ids(100)) == ids
    assert await stores.left.storage.check() == []


async def test_many_jobs_under_free_keys_take_as_many_statements_as_one(
    stores: TwoStores,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []
    for name in ("fetch", "execute"):
        run = getattr(Session, name)

        async def counted(session: Session, statement: str, /, run: Any = run, **values: Any) -> Any:
            ran.append(statement)
            return await run(session, statement, **values)

        monkeypatch.setattr(Session, name, counted)

    async def add(count: int) -> list[str]:
        ran.clear()
        terms = UniqueTerms(taken_for=60)
        assert not await stores.left.storage.add(
            [replace(unique(stores.left, f"{count}-{number}"), unique_terms=terms) for number in range(count)]
        )
        # A notification is sent by a task of its own.
        return [statement for statement in ran if statement != "notify"]

    assert await add(3000) == await add(1)
    assert await stores.left.storage.check() == []
