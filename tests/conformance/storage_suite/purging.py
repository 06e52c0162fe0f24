"""Deleting jobs by their ids, before their retention does it, and cancelling only what waits."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.jobs.audit import AuditFilter, AuditRecord
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import JobOptions, JobState, Origin, RetentionTerms
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.dependencies import following, new_batch_id
from tests.conformance.storage_suite.store_user import Conformance, StoreUser


class PurgingConformance(Conformance):
    """What `delete` promises of the jobs that it is given."""

    async def test_only_final_jobs_are_deleted(self, store_user: StoreUser, clock: ManualClock) -> None:
        done, other, waiting = await store_user.add(3)
        await store_user.succeed(*await store_user.take(2))
        clock.advance(1)
        asked = [done, waiting, "no-such-job"]

        def audit(deleted: int) -> AuditRecord:
            return AuditRecord("ada", "purge", "queue", "default", f"{deleted} job")

        deletion = await store_user.storage.delete(asked, finished_before=clock.now(), audit=audit)
        assert (deletion.deleted, deletion.needed) == (frozenset({done}), frozenset[str]())
        assert await store_user.storage.job(done) is None
        assert await store_user.storage.job(other) is not None
        assert await store_user.storage.job(waiting) is not None
        counts = await store_user.counts()
        assert (counts.waiting, counts.succeeded) == (1, 1)
        again = await store_user.storage.delete([done], finished_before=clock.now(), audit=audit)
        assert not again.deleted
        entries = await store_user.storage.audit_log(AuditFilter(subject="default", count=10))
        assert [each.detail for each in entries] == ["1 job"]

    async def test_several_deletions_are_recorded_in_one_entry_as_long_as_it_is_there(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        ids = await store_user.add(4)
        await store_user.succeed(*await store_user.take(4))
        clock.advance(1)
        deleted, entry = 0, None

        def audit(more: int) -> AuditRecord:
            return AuditRecord("ada", "purge", "queue", "default", f"{deleted + more} jobs")

        for id in ids[:3]:
            entry = (await storage.delete([id], finished_before=clock.now(), audit=audit, entry=entry)).entry
            deleted += 1
            await storage.add_audit_record(AuditRecord("bob", "pause", "queue", "default"))
        assert (await storage.delete([ids[0]], finished_before=clock.now(), audit=audit, entry=entry)).entry == entry
        found = await storage.audit_log(AuditFilter(actor="ada"))
        assert [(each.number, each.detail) for each in found] == [(entry, "3 jobs")]
        assert await storage.prune_audit(clock.now() + 1) == 4
        await storage.delete([ids[3]], finished_before=clock.now(), audit=audit, entry=entry)
        assert [each.detail for each in await storage.audit_log(AuditFilter())] == ["4 jobs"]

    async def test_deleted_jobs_are_selected_by_their_end_and_not_by_their_retention(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        forever = store_user.new(options=JobOptions(retention=RetentionTerms(None, None, None, None)))
        await store_user.storage.add([forever])
        (second,) = await store_user.add(1)
        [one, two] = await store_user.take(2)
        await store_user.fail(one)
        failed_at = clock.now()
        clock.advance(10)
        await store_user.succeed(two)
        clock.advance(1)
        ids = [forever.id, second]
        storage = store_user.storage
        assert not (await storage.delete(ids, finished_before=failed_at)).deleted
        assert (await storage.delete(ids, finished_before=failed_at + 1)).deleted == {one.id}
        assert await storage.job(one.id) is None
        assert not (await storage.delete([], finished_before=clock.now())).deleted
        assert (await storage.delete(ids, finished_before=clock.now())).deleted == {two.id}

    async def test_a_job_is_not_deleted_before_those_that_may_read_its_result(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        first = store_user.new()
        then = replace(store_user.new(), origin=Origin(follows=first.id))
        await store_user.storage.add([first, then])
        await store_user.succeed(await store_user.take_one())
        clock.advance(1)
        deletion = await store_user.storage.delete([first.id], finished_before=clock.now())
        assert (deletion.deleted, deletion.needed) == (frozenset[str](), frozenset({first.id}))
        await store_user.succeed(await store_user.take_one())
        clock.advance(1)
        both = await store_user.storage.delete([first.id, then.id], finished_before=clock.now())
        assert both.deleted == {first.id, then.id}

    async def test_a_job_is_not_deleted_before_those_that_read_it_by_a_batch_a_join_or_as_an_argument(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage, now = store_user.storage, clock.now()
        outer, inner, join = (new_batch_id(store_user) for _ in range(3))
        inside, other = replace(store_user.new(), origin=Origin(batch=inner)), store_user.new()
        batches = [
            NewBatch(outer, 1, now),
            NewBatch(inner, 1, now, outer),
            NewBatch(join, 2, now, None, (inner, other.id)),
        ]
        read = store_user.new()
        middle = following(store_user, read.id)
        await storage.add([inside, other, read, middle], batches)
        for _ in range(2):
            await store_user.succeed(*await store_user.take())
        results: dict[str, str | list[str]] = {"a": [read.id], "b": inner, "c": middle.id}
        reader = replace(store_user.new(), origin=Origin(follows=middle.id, results=results))
        all_ids = {inside.id, other.id, read.id, middle.id}
        for job, needed in (
            (following(store_user, join), frozenset({inside.id, other.id})),
            (following(store_user, outer), frozenset({inside.id})),
            (reader, frozenset({inside.id, read.id, middle.id})),
        ):
            await storage.add([job])
            clock.advance(1)
            assert (await storage.delete(sorted(needed), finished_before=clock.now())).needed == needed
            await store_user.succeed(await store_user.take_one())
            all_ids.add(job.id)
        clock.advance(1)
        assert (await storage.delete(sorted(all_ids), finished_before=clock.now())).deleted == all_ids

    async def test_a_failed_leader_is_deleted_with_the_follower_that_was_cancelled_for_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        first = store_user.new()
        then = replace(store_user.new(), origin=Origin(follows=first.id))
        await store_user.storage.add([first, then])
        await store_user.fail(await store_user.take_one())
        clock.advance(1)
        assert (await store_user.storage.delete([first.id], finished_before=clock.now())).deleted == {first.id}
        # Its leader is gone, so it is not held back.
        assert await store_user.storage.retry(then.id) is JobState.CANCELLED
        assert await store_user.take_ids() == [then.id]

    async def test_a_purge_does_not_ask_running_jobs_to_end(self, store_user: StoreUser) -> None:
        (running,) = await store_user.add(1)
        await store_user.take_one()
        (waiting,) = await store_user.add(1)
        record = AuditRecord("ada", "cancel", "job", running)
        cancel = store_user.storage.cancel
        assert await cancel(running, audit_record=record, waiting_only=True) is JobState.RUNNING
        assert not (await store_user.record(running)).cancel_requested
        assert not await store_user.storage.audit_log(AuditFilter(subject=running, count=10))
        assert await cancel(waiting, waiting_only=True) is JobState.WAITING
        assert await store_user.states([running, waiting]) == [JobState.RUNNING, JobState.CANCELLED]
