"""A batch is cancelled with everything in it, and with what then waits for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headgate import Headgate, Job, JobState, batch, chain
from headgate.admin.bulk import AT_ONCE, CHUNK, cancel_batch
from headgate.errors import JobHeld, StorageUnavailable
from headgate.jobs.audit import AuditRecord
from headgate.storage.store import Store
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import store_of
from tests.until import result_within


def test_a_batch_is_cancelled_by_its_id_with_its_batches_and_all_steps_after_it() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[str] = []

        @app.task
        async def work(name: str) -> None:
            ran.append(name)

        async with app:
            slow = work.using(delay=60).call
            other = await work.using(delay=30).enqueue("other")
            inner = batch([slow("inner 1"), chain(slow("inner 2"), work.call("inner 3"))]).then(
                work.call("cleanup of inner"), on="final"
            )
            wanted = batch([slow("own"), inner]).then(work.call("cleanup"), on="final").then(work.call("report"))
            stored = await batch([wanted, slow("beside")]).then(work.call("end"), on="final").enqueue()
            own = next(each for each in await app.admin.batches() if each.batch == stored.id)
            both = await chain(work.call("after both").after(app.batch(own.id), other, on="final")).enqueue()
            alone = await chain(work.call("after it").after(app.batch(own.id), on="failure")).enqueue()

            counted = await app.admin.cancel_batch(own.id, dry_run=True)
            assert (counted.changed, counted.is_dry_run) == (8, True)
            assert (await app.admin.counts())[0].cancelled == 0
            assert await app.batch(own.id).cancel() == 8
            assert (await app.admin.batch(own.id)).state is JobState.CANCELLED
            assert (await alone.jobs[0].status()).state is JobState.CANCELLED
            assert await app.batch(own.id).cancel() == 0
            await result_within(both, 40)
            await stored.wait(timeout=120)
            await result_within(stored.then[0])
        # What waits for something else goes on: the batch around it, and the step after it and another job.
        assert ran == ["other", "after both", "beside", "end"]

    run_virtual(main)


def test_jobs_that_are_added_while_their_batch_is_cancelled_are_cancelled_too() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        added: list[str] = []

        @app.task
        async def work() -> None: ...

        async with app.open():
            stored = await batch([work.call(), work.call()]).enqueue()

            async def cancel(job_id: str) -> JobState | None:
                if not added:
                    added.extend(job.id for job in await stored.add([work.call()]))
                return await store_of(app).cancel(job_id)

            result = await cancel_batch(store_of(app), stored.id, cancel, _cancellation)
            assert (result.changed, result.matched) == (3, 3)
            assert (await app.job(added[0]).status()).state is JobState.CANCELLED

    run_virtual(main)


def test_the_jobs_of_a_cancelled_batch_come_back_with_what_they_follow() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None: ...

        async with app:
            row = [work.using(delay=60).call(), work.call(), work.call()]
            stored = await batch([chain(*row)]).then(work.call()).enqueue()
            result = await app.admin.cancel_batch(stored.id)
            assert (result.changed, result.refused) == (4, {})
            await app.admin.retry(stored.jobs[0].id)
            assert (await stored.wait(timeout=100)).succeeded == 3
            await result_within(stored.then[0])

    run_virtual(main)


def test_a_batch_is_cancelled_in_portions() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None: ...

        async with app.open():
            stored = await batch([work.call() for _ in range(7)]).then(work.call(), on="final").enqueue()
            first = await app.admin.cancel_batch(stored.id, most=3)
            assert (first.changed, first.is_cut) == (3, True)
            (after,) = stored.then
            assert isinstance(after, Job)
            assert (await after.status()).state is JobState.CANCELLED
            rest = await app.admin.cancel_batch(stored.id, most=10)
            assert (rest.changed, rest.is_cut) == (5, False)

    run_virtual(main)


def test_a_job_that_another_transaction_has_locked_is_counted_and_the_others_are_cancelled() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None: ...

        async with app.open():
            stored = await batch([work.call() for _ in range(60)]).then(work.call()).enqueue()
            held = stored.jobs[5]

            async def cancel(job_id: str) -> JobState | None:
                if job_id == held.id:
                    raise JobHeld(f"job {job_id} was not changed")
                return await store_of(app).cancel(job_id)

            result = await cancel_batch(store_of(app), stored.id, cancel, _cancellation)
            assert (result.matched, result.changed) == (61, 60)
            assert result.refused == {"another open transaction has locked it": 1}
            assert (await held.status()).state is JobState.WAITING
            # Repeated, it cancels what was left.
            assert await stored.cancel() == 1
            assert (await stored.status()).state is JobState.CANCELLED

    run_virtual(main)


def test_if_the_store_fails_no_job_is_cancelled_after_the_error() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        done: list[str] = []

        @app.task
        async def work() -> None: ...

        async with app.open():
            stored = await batch([work.call() for _ in range(60)]).enqueue()

            async def cancel(job_id: str) -> JobState | None:
                if job_id == stored.jobs[5].id:
                    raise StorageUnavailable("the connection is lost")
                await asyncio.sleep(1)
                done.append(job_id)
                return await store_of(app).cancel(job_id)

            with pytest.raises(StorageUnavailable):
                await cancel_batch(store_of(app), stored.id, cancel, _cancellation)
            # What was begun beside it has ended.
            assert len(done) == AT_ONCE - 1
            await asyncio.sleep(10)
            assert len(done) == AT_ONCE - 1

    run_virtual(main)


def test_no_commit_cancels_more_jobs_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = _counted_commits(monkeypatch)

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[str] = []

        @app.task
        async def work(name: str) -> None:
            ran.append(name)

        async with app:
            slow = [work.using(delay=60).call("work") for _ in range(500)]
            after = [work.call("cleanup").after(each, on="final") for each in slow]
            stored = await batch([*slow, *after]).enqueue()
            seen: list[int] = []
            result = await app.admin.cancel_batch(stored.id, on_progress=lambda result: seen.append(result.changed))
            assert (result.changed, result.refused) == (1000, {})
            assert (await stored.wait(timeout=10)).cancelled == 1000
            assert seen == sorted(set(seen))
            assert seen[-1] == 1000
        assert ran == []
        assert sum(commits) == 500
        assert max(commits) == CHUNK

    run_virtual(main)


def test_a_long_chain_of_cleanups_is_cancelled_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which it was enqueued, each commit would release the first job of the next one."""
    commits = _counted_commits(monkeypatch)

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[str] = []

        @app.task
        async def work(name: str) -> None:
            ran.append(name)

        async with app:
            steps = [work.using(delay=60).call("work")]
            for number in range(2 * CHUNK + 50):
                steps.append(work.call(f"cleanup {number}").after(steps[-1], on="final"))
            stored = await batch(steps).then(work.call("end"), on="final").enqueue()
            assert (await app.admin.cancel_batch(stored.id)).refused == {}
            assert (await stored.wait(timeout=10)).cancelled == len(steps)
        assert ran == []
        assert commits == [CHUNK, CHUNK, 51]

    run_virtual(main)


def test_a_portion_releases_nothing_that_is_left() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[str] = []

        @app.task
        async def work(name: str) -> None:
            ran.append(name)

        async with app:
            slow = work.using(delay=60).call("work")
            cleanup = work.call("cleanup").after(slow, on="final")
            # What needs a success is cancelled for its leader, and so it would release what follows it.
            upload = chain(work.call("upload").after(cleanup))
            stored = await batch([slow, cleanup, upload, work.call("report").after(upload, on="failure")]).enqueue()
            for _ in range(4):
                await app.admin.cancel_batch(stored.id, most=1)
            assert (await stored.wait(timeout=10)).cancelled == 4
        assert ran == []

    run_virtual(main)


def _counted_commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many jobs each commit cancels that are blocked."""
    commits: list[int] = []
    cancel_blocked = Store.cancel_blocked

    async def counted(store: Store, job_ids: Sequence[str], **options: Any) -> Sequence[str]:
        commits.append(len(job_ids))
        return await cancel_blocked(store, job_ids, **options)

    monkeypatch.setattr(Store, "cancel_blocked", counted)
    return commits


def _cancellation(job_id: str) -> AuditRecord:
    return AuditRecord("test", "cancel", "job", job_id)
