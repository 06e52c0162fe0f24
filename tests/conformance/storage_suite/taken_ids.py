"""What is promised where two producers make the same ids: none of their jobs is lost, and none is taken for another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.jobs.batch import NewBatch
from headgate.jobs.identity import IdTaken
from headgate.jobs.job import JobOptions, NewJob, Origin
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, with_id
from tests.conformance.storage_suite.unique_keys import unique


def others(*jobs: NewJob) -> list[NewJob]:
    """Return jobs of another process under the same ids."""
    return [replace(job, enqueued_by="other:1", payload='"other"') for job in jobs]


class TakenIdsConformance(Conformance):
    @pytest.mark.parametrize("kind", ["plain", "gated", "tagged", "unique", "batch"])
    async def test_of_a_call_with_an_id_that_another_producer_has_used_nothing_is_stored(
        self, store_user: StoreUser, kind: str
    ) -> None:
        def make() -> tuple[list[NewJob], list[NewBatch]]:
            if kind == "unique":
                return [store_user.new(), unique(store_user, key="a"), store_user.new()], []
            options = JobOptions(tags=("vip",)) if kind == "tagged" else None
            jobs = [
                store_user.new(buckets=[("api", "acme")] if kind == "gated" else (), options=options) for _ in "abc"
            ]
            if kind != "batch":
                return jobs, []
            batch = NewBatch(store_user.new().id, 3, store_user.clock.now())
            return [replace(job, origin=Origin(batch=batch.id)) for job in jobs], [batch]

        first, batches = make()
        await store_user.storage.add(first, batches)
        new, more = make()
        (stranger,) = others(first[1])
        with pytest.raises(IdTaken) as caught:
            await store_user.storage.add([new[0], replace(stranger, origin=new[1].origin), new[2]], more)
        assert caught.value.taken == {first[1].id}
        assert (await store_user.counts()).waiting == 3
        assert (await store_user.record(first[1].id)).payload == first[1].payload
        assert await store_user.storage.stored_ids([new[0].id, new[2].id]) == []
        # With other ids it is stored.
        again = replace(with_id(stranger, new[1].id), origin=new[1].origin)
        await store_user.storage.add([new[0], again, new[2]], more)
        assert (await store_user.counts()).waiting == 6

    async def test_a_call_that_is_repeated_after_a_lost_reply_is_no_stranger(self, store_user: StoreUser) -> None:
        stored, later = store_user.new(), store_user.new()
        await store_user.storage.add([stored])
        await store_user.storage.add([later, stored])
        assert (await store_user.counts()).waiting == 2

    async def test_of_two_producers_that_store_the_same_ids_at_once_one_is_asked_for_others(
        self, store_user: StoreUser
    ) -> None:
        jobs = [store_user.new() for _ in range(20)]
        adds = [store_user.storage.add([job]) for job in (*jobs, *others(*jobs))]
        results: list[Any] = await asyncio.gather(*adds, return_exceptions=True)
        taken = [result for result in results if isinstance(result, IdTaken)]
        assert len(taken) == 20
        assert results.count({}) == 20
        assert (await store_user.counts()).waiting == 20

    async def test_a_batch_under_the_id_of_another_producer_is_not_stored(self, store_user: StoreUser) -> None:
        first, second = store_user.new(), store_user.new()
        batch = NewBatch(store_user.new().id, 1, store_user.clock.now())
        await store_user.storage.add([replace(first, origin=Origin(batch=batch.id))], [batch])
        other = NewBatch(batch.id, 1, store_user.clock.now() - 1)
        with pytest.raises(IdTaken) as caught:
            await store_user.storage.add([replace(second, origin=Origin(batch=batch.id))], [other])
        assert caught.value.taken == {batch.id}
        assert await store_user.storage.stored_ids([second.id]) == []
