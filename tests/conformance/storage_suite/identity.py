"""What is promised of the id of a database, of the folders it has used, and of the look for stored jobs."""

from __future__ import annotations

import uuid

from tests.conformance.storage_suite.store_user import Conformance, StoreUser


class IdentityConformance(Conformance):
    async def test_a_database_has_one_id(self, store_user: StoreUser) -> None:
        identity = await store_user.storage.identity()
        assert len(uuid.UUID(identity).hex) == 32
        assert await store_user.storage.identity() == identity

    async def test_a_folder_that_was_used_stays_known(self, store_user: StoreUser) -> None:
        storage = store_user.storage
        assert not await storage.is_folder_used("s3://jobs/large")
        for _ in range(2):
            await storage.note_folder_used("s3://jobs/large")
        await storage.note_folder_used("s3://jobs/été")
        assert await storage.is_folder_used("s3://jobs/large")
        assert await storage.is_folder_used("s3://jobs/été")
        assert not await storage.is_folder_used("s3://jobs")

    async def test_jobs_are_stored_until_they_are_pruned(self, store_user: StoreUser) -> None:
        waiting, final = await store_user.add(2)
        await store_user.storage.cancel(final)
        ids = [waiting, final, str(uuid.uuid4())]
        assert set(await store_user.storage.stored_ids(ids)) == {waiting, final}
        await store_user.storage.prune(store_user.storage.now() + 1)
        assert await store_user.storage.stored_ids(ids) == [waiting]
        assert list(await store_user.storage.stored_ids([])) == []
