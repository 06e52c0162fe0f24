"""Kept keys, own ids and cancelled holders on PostgreSQL while another process comes between two statements."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from msgspec.structs import replace

from headgate.errors import DuplicateJob, IdInUse
from headgate.jobs.job import JobState, OnConflict, UniqueTerms
from tests.cluster.test_overtaken import TwoStores, stores  # noqa: F401  # a fixture
from tests.conformance.storage_suite.own_ids import INVOICE, own
from tests.conformance.storage_suite.store_user import StoreUser
from tests.conformance.storage_suite.unique_terms import keyed, stored

MINUTE = 60


@pytest.mark.parametrize("policy", ["keep", "raise"])
async def test_a_job_that_comes_and_ends_after_the_check_keeps_its_key(
    stores: TwoStores,  # noqa: F811
    policy: OnConflict,
) -> None:
    """No job waits or runs under the key when the insertion comes to it: only its own row says that it is taken."""
    mine = keyed(stores.left, on_conflict=policy, seconds=MINUTE)
    other = keyed(stores.right, seconds=MINUTE)

    async def come_and_end() -> None:
        await stored(stores.right, other)
        await stores.right.succeed(await stores.right.take_one())

    ending = stores.after("jobs_under_keys", come_and_end)
    if policy == "raise":
        with pytest.raises(DuplicateJob) as caught:
            await stored(stores.left, mine)
        assert caught.value.job_id == other.id
    else:
        assert await stored(stores.left, mine) == other.id
    await ending
    assert await stores.left.storage.job(mine.id) is None
    assert (await stores.left.counts()).waiting == 0


async def test_of_two_processes_that_enqueue_at_once_one_keeps_each_key(stores: TwoStores) -> None:  # noqa: F811
    keys = [f"key-{number}" for number in range(5)]

    async def add(store_user: StoreUser) -> list[str]:
        return [await stored(store_user, keyed(store_user, key, seconds=MINUTE)) for _ in range(4) for key in keys]

    left, right = await asyncio.gather(add(stores.left), add(stores.right))
    assert left == right
    assert len(set(left)) == len(keys)
    await stores.left.succeed(*await stores.left.take())
    left, again = await asyncio.gather(add(stores.left), add(stores.right))
    assert left == again == right
    assert (await stores.left.counts()).waiting == 0


async def test_of_two_processes_that_enqueue_an_id_one_stores_it(stores: TwoStores) -> None:  # noqa: F811
    mine, other = (own(each, process=name, payload=f'"{name}"') for each, name in named_users(stores))
    adding = stores.after("stored_jobs", lambda: stores.right.storage.add([other]))
    assert await stores.left.storage.add([mine]) == {INVOICE: INVOICE}
    assert await adding == {}
    assert [(job.id, job.payload) for job in await stores.left.take()] == [(INVOICE, '"right"')]


@pytest.mark.parametrize("has_key", [False, True])
async def test_of_two_tasks_that_enqueue_an_id_the_second_is_refused(
    stores: TwoStores,  # noqa: F811
    has_key: bool,
) -> None:
    before = stores.left.new()
    mine = own(stores.left, process="left")
    other = own(stores.right, process="right", task="other")
    if has_key:
        mine, other = replace(mine, unique_key="acme"), replace(other, unique_key="acme")
    adding = stores.after("stored_jobs", lambda: stores.right.storage.add([other]))
    with pytest.raises(IdInUse, match="belongs to a job of task 'other', not 'work'"):
        await stores.left.storage.add([before, mine])
    assert await adding == {}
    assert await stores.left.storage.job(before.id) is None
    assert (await stores.left.record(INVOICE)).task == "other"


async def test_a_job_that_another_process_stores_under_the_id_meanwhile_is_not_deleted(
    stores: TwoStores,  # noqa: F811
) -> None:
    """A job that runs under the key makes an enqueue undo its insertion, but here nothing was inserted."""
    holder = keyed(stores.right, "acme")
    mine = replace(own(stores.left, process="left"), unique_key="acme")
    beside = UniqueTerms(while_running=False)
    other = replace(own(stores.right, process="right"), unique_key="acme", unique_terms=beside)

    async def come_first() -> None:
        await stored(stores.right, holder)
        await stores.right.take_one()
        await stores.right.storage.add([other])

    coming = stores.after("jobs_under_keys", come_first)
    assert await stores.left.storage.add([mine]) == {INVOICE: INVOICE}
    await coming
    assert (await stores.left.record(INVOICE)).enqueued_by == "right"
    assert await stores.left.take_ids() == [INVOICE]


async def test_ids_that_two_processes_enqueue_at_once_are_stored_once_each(stores: TwoStores) -> None:  # noqa: F811
    ids = [str(uuid.uuid4()) for _ in range(10)]

    added = await asyncio.gather(
        *[
            store_user.storage.add([own(store_user, id, process=name)])
            for id in ids
            for store_user, name in named_users(stores)
        ]
    )
    assert sum(len(each) for each in added) == len(ids), "each id was stored by one of both"
    assert sorted(await stores.left.take_ids()) == sorted(ids)


async def test_a_running_job_that_ends_before_it_is_cancelled_keeps_its_result(stores: TwoStores) -> None:  # noqa: F811
    first = await stored(stores.left, keyed(stores.left))
    running = await stores.right.take_one()
    ending = stores.after("jobs_under_keys", lambda: stores.right.succeed(running))
    second = await stored(stores.left, keyed(stores.left, on_conflict="cancel_running", payload="2"))
    await ending
    assert second != first
    record = await stores.left.record(first)
    assert (record.state, record.cancel_requested) == (JobState.SUCCEEDED, False)
    assert [job.payload for job in await stores.left.take()] == ["2"]


async def test_a_job_that_starts_while_it_is_replaced_is_cancelled(stores: TwoStores) -> None:  # noqa: F811
    first = await stored(stores.left, keyed(stores.left, payload="1"))
    claiming = stores.after("jobs_under_keys", stores.right.take_one)
    successor = await stored(stores.left, keyed(stores.left, on_conflict="cancel_running", payload="2"))
    running = await claiming
    assert (running.id, (await stores.left.record(first)).cancel_requested) == (first, True)
    assert successor != first
    await stores.right.give_back(running)
    assert [(job.id, job.payload) for job in await stores.left.take()] == [(successor, "2")]


def named_users(stores: TwoStores) -> list[tuple[StoreUser, str]]:  # noqa: F811
    return [(stores.left, "left"), (stores.right, "right")]
