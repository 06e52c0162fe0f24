"""Deleting jobs by their ids, before their retention does it."""

from __future__ import annotations

from headgate.jobs.job import JobState
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import Conformance, StoreUser


class PurgingConformance(Conformance):
    """What `prune` promises of the jobs that it is given."""

    async def test_pruning_named_jobs_prunes_only_the_final_ones(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        done, other, waiting = await store_user.add(3)
        await store_user.succeed(*await store_user.take(2))
        clock.advance(1)
        assert await store_user.storage.prune(clock.now(), ids=[done, waiting, "no-such-job"]) == 1
        assert await store_user.storage.job(done) is None
        assert await store_user.storage.job(other) is not None
        assert await store_user.storage.job(waiting) is not None
        counts = await store_user.counts()
        assert (counts.waiting, counts.succeeded) == (1, 1)
        assert await store_user.storage.prune(clock.now(), ids=[done]) == 0

    async def test_purged_jobs_are_selected_by_state_and_end(self, store_user: StoreUser, clock: ManualClock) -> None:
        first, second = await store_user.add(2)
        [one, two] = await store_user.take(2)
        await store_user.fail(one)
        failed_at = clock.now()
        clock.advance(10)
        await store_user.succeed(two)
        clock.advance(1)
        ids = [first, second]
        assert await store_user.storage.prune(failed_at, ids=ids) == 0
        assert await store_user.storage.prune(clock.now(), states=frozenset({JobState.CANCELLED}), ids=ids) == 0
        assert await store_user.storage.prune(failed_at + 1, ids=ids) == 1
        assert await store_user.storage.job(one.id) is None
        assert await store_user.storage.prune(clock.now(), count=0, ids=ids) == 0
        assert await store_user.storage.prune(clock.now(), ids=ids) == 1
