"""What is promised of ids that callers choose: one job is stored under each, whatever is enqueued again."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.errors import DuplicateJob, IdInUse
from headgate.jobs import identity
from headgate.jobs.job import JobState, NewJob
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import Conformance, StoreUser
from tests.conformance.storage_suite.unique_keys import unique

INVOICE = str(uuid.uuid5(uuid.NAMESPACE_URL, "invoice:17"))


def own(store_user: StoreUser, id: str = INVOICE, *, process: str = "web:1", **options: Any) -> NewJob:
    """Return a job with that id, enqueued by this process."""
    return replace(store_user.new(**options), id=id, has_own_id=True, enqueued_by=process)


class OwnIdsConformance(Conformance):
    async def test_enqueueing_an_id_again_stores_nothing_as_long_as_its_job_is_kept(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        async def again() -> dict[str, str]:
            clock.advance(1)
            return dict(await store_user.storage.add([own(store_user, payload="2", delay=60, priority=3)]))

        assert await store_user.storage.add([own(store_user, payload="1")]) == {}
        assert await again() == {INVOICE: INVOICE}
        record = await store_user.record(INVOICE)
        assert (record.payload, record.priority, record.delayed) == ("1", 0, False)
        assert (await store_user.counts()).waiting == 1
        running = await store_user.take_one()
        assert await again() == {INVOICE: INVOICE}
        await store_user.succeed(running)
        assert await again() == {INVOICE: INVOICE}
        assert (await store_user.record(INVOICE)).state is JobState.SUCCEEDED
        assert await store_user.take_ids() == []
        clock.advance(1)
        assert await store_user.storage.prune(clock.now()) == 1
        assert await again() == {}
        assert (await store_user.record(INVOICE)).payload == "2"

    async def test_jobs_are_found_by_how_their_own_ids_begin(self, store_user: StoreUser) -> None:
        ids = [f"abcd0000-0000-4000-8000-00000000000{number}" for number in range(3)]
        await store_user.storage.add([own(store_user, id) for id in [*ids, INVOICE]])
        await store_user.add()
        found = store_user.storage.jobs_beginning
        assert sorted(job.id for job in await found("abcd", 5)) == ids
        assert sorted(job.id for job in await found("abcd0000-", 2)) == ids[:2]
        assert [job.id for job in await found(ids[1], 5)] == [ids[1]]

    async def test_an_enqueue_that_is_repeated_after_a_lost_reply_counts_as_stored(self, store_user: StoreUser) -> None:
        new = own(store_user)
        assert await store_user.storage.add([new]) == {}
        assert await store_user.storage.add([new]) == {}
        assert await store_user.take_ids() == [INVOICE]

    async def test_a_job_of_another_task_under_the_id_is_an_error_and_nothing_is_stored(
        self, store_user: StoreUser
    ) -> None:
        await store_user.storage.add([own(store_user)])
        before, after = store_user.new(), unique(store_user)
        with pytest.raises(IdInUse, match=r"belongs to a job of task 'work', not 'other'") as caught:
            await store_user.storage.add([before, own(store_user, task="other", process="web:2"), after])
        assert caught.value.job_id == INVOICE
        assert (await store_user.counts()).waiting == 1
        assert await store_user.storage.job(before.id) is None

    async def test_of_several_jobs_of_a_call_those_are_stored_whose_ids_are_new(self, store_user: StoreUser) -> None:
        await store_user.storage.add([own(store_user)])
        other = str(uuid.uuid4())
        plain = store_user.new()
        new = [own(store_user, other), plain, own(store_user, process="web:2")]
        assert await store_user.storage.add(new) == {INVOICE: INVOICE}
        assert sorted(await store_user.take_ids()) == sorted([INVOICE, other, plain.id])

    async def test_more_ids_than_a_process_remembers_are_found_again(
        self, store_user: StoreUser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(identity, "_MOST_REMEMBERED", 10)
        ids = [str(uuid.uuid5(uuid.NAMESPACE_URL, f"invoice:{number}")) for number in range(30)]
        assert await store_user.storage.add([own(store_user, id) for id in ids]) == {}
        store_user.clock.advance(1)
        assert await store_user.storage.add([own(store_user, id) for id in ids]) == {id: id for id in ids}
        assert (await store_user.counts()).waiting == 30

    async def test_an_id_is_compared_before_a_unique_key(self, store_user: StoreUser) -> None:
        first = replace(own(store_user), unique_key="acme", on_conflict="raise")
        assert await store_user.storage.add([first]) == {}
        same = replace(own(store_user, process="web:2"), unique_key="globex", on_conflict="raise")
        assert await store_user.storage.add([same]) == {INVOICE: INVOICE}
        other = str(uuid.uuid4())
        kept = replace(own(store_user, other), unique_key="acme")
        assert await store_user.storage.add([kept]) == {other: INVOICE}
        with pytest.raises(DuplicateJob):
            await store_user.storage.add([replace(kept, on_conflict="raise")])
        assert await store_user.take_ids() == [INVOICE]

    async def test_of_many_concurrent_enqueues_of_an_id_one_is_stored(self, store_user: StoreUser) -> None:
        new = [own(store_user, process=f"web:{number}") for number in range(20)]
        stored = await asyncio.gather(*[store_user.storage.add([job]) for job in new])
        assert sorted(map(dict, stored), key=len) == [{}, *[{INVOICE: INVOICE}] * 19]
        assert await store_user.take_ids() == [INVOICE]
