"""Claims whose reply was lost: the node finds the jobs that it owns, and starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from headgate import FixedWindow, JobState, Mutex, current_job
from headgate.errors import StorageUnavailable
from headgate.jobs.event import EndingRefused
from headgate.jobs.lifecycle import Ending, Succeeded, succeeded
from headgate.storage.records import Claim, Claimed, FreeSlots
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, new_node, registry_of


class LostReplyStorage(MemoryStorage):
    """Loses the reply of the first claim that took anything; or holds it back for so many seconds."""

    held_back: float | None = None
    has_lost = False

    async def claim(self, claim: Claim) -> Claimed:
        claimed = await super().claim(claim)
        if claimed.jobs and not self.has_lost:
            self.has_lost = True
            if self.held_back is None:
                raise StorageUnavailable("the reply was lost")
            await asyncio.sleep(self.held_back)
        return claimed


async def run_one(clock: VirtualClock, storage: LostReplyStorage) -> list[int]:
    """The attempts that a job with a budget and a mutex comes to, and that its budget was charged once."""
    app = app_on(storage, clock=clock, heartbeat=5)
    attempts: list[int] = []

    @app.task(limits=[FixedWindow("10/d", key="{key}", name="daily"), Mutex("doc:{key}")])
    async def work(key: str) -> None:
        attempts.append(current_job().attempt)

    async with app:
        job = await work.enqueue("acme")
        await asyncio.sleep(60)
        assert (await job.status()).state is JobState.SUCCEEDED
        (daily,) = await app.admin.limits.list("daily")
        assert daily.used == 1
        assert not await storage.attempts(job.id)
        await work.enqueue("acme")
        await asyncio.sleep(1)
        assert await storage.check() == []
    return attempts


def test_a_claim_whose_reply_was_lost_is_charged_once_and_its_job_is_run_once() -> None:
    async def main(clock: VirtualClock) -> None:
        assert await run_one(clock, LostReplyStorage(clock)) == [1, 1]

    run_virtual(main)


def test_a_claim_whose_reply_is_late_is_not_treated_as_lost() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = LostReplyStorage(clock)
        storage.held_back = 23
        assert await run_one(clock, storage) == [1, 1]

    run_virtual(main)


def test_jobs_of_a_lost_reply_take_no_more_slots_than_all_queues_share() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(LostReplyStorage(clock), clock=clock, slots=2)
        for queue in ("a", "b"):
            app.queue(queue, concurrency=10)
        running, most = 0, 0

        @app.task
        async def work() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(30)
            running -= 1

        async with app:
            await work.using(queue="b").enqueue_many([()] * 2)
            await asyncio.sleep(0.2)
            jobs = await work.using(queue="a").enqueue_many([()] * 2)
            await asyncio.gather(*(job.result() for job in jobs))
        assert most == 2

    run_virtual(main)


def test_a_returned_job_that_is_claimed_again_is_not_returned_during_that_claim() -> None:
    """The looks for the lost claim do not count for the one after it, or its job would be run twice at once."""

    async def main(clock: VirtualClock) -> None:
        storage = MemoryStorage(clock)
        app = app_on(storage, clock=clock)

        @app.task
        async def work() -> None: ...

        async with app.open():
            await work.enqueue()
            node = new_node(app)
            await storage.join(node.id, "here")

            async def claim() -> int:
                """A claim begins, is made, and its reply is on its way; return when it was sent."""
                await asyncio.sleep(0.1)
                sent_at = clock.monotonic()
                node.claim_tracker.claim_sent(sent_at)
                limit_sets = registry_of(app).limit_sets()
                claimed = await storage.claim(
                    Claim(node.id, {"default": FreeSlots(1)}, {}, frozenset({"work"}), limit_sets)
                )
                assert len(claimed.jobs) == 1
                await asyncio.sleep(0.1)
                return sent_at

            sent_at = await claim()
            await node.lease.beat()
            # Its reply was lost, and the next claim is on its way: there is no room for what is found now.
            node.claim_tracker.claim_failed(sent_at)
            await asyncio.sleep(0.1)
            node.claim_tracker.claim_sent(clock.monotonic())
            await asyncio.sleep(0.1)
            await node.lease.beat()
            assert len(node.recorder.pending) == 1
            recording = asyncio.ensure_future(node.recorder.run())
            await node.recorder.flush(1)
            recording.cancel()
            assert not node.recorder.pending

            await claim()
            await node.lease.beat()
            assert not node.recorder.pending

    run_virtual(main)


def test_of_two_endings_of_one_job_one_is_refused_and_the_locked_one_is_written_later() -> None:
    """The fault: both counted as locked, and the answers of the store for the rest ended the node."""

    async def main(clock: VirtualClock) -> None:
        finished: list[list[int]] = []

        class Locking(MemoryStorage):
            async def finish(self, node: str, endings: Sequence[Ending], rules: Any = None) -> Sequence[bool | None]:
                finished.append([ending.fence for ending in endings])
                return [False, None] if len(endings) == 2 else [True] * len(endings)

        storage = Locking(clock)
        app = app_on(storage, clock=clock)
        refused: list[Any] = []
        app.subscribe(refused.append, EndingRefused)

        @app.task
        async def work() -> None: ...

        async with app.open():
            await work.enqueue()
            node = new_node(app)
            await storage.join(node.id, "here")
            limit_sets = registry_of(app).limit_sets()
            claimed = await storage.claim(
                Claim(node.id, {"default": FreeSlots(1)}, {}, frozenset({"work"}), limit_sets)
            )
            (job,) = claimed.jobs
            for each in (job, replace(job, fence=job.fence + 1)):
                node.recorder.end(each, succeeded(each, Succeeded(None)), storage.now())
            recording = asyncio.ensure_future(node.recorder.run())
            await node.recorder.flush(5)
            recording.cancel()
            await asyncio.wait([recording])
            assert recording.cancelled()
        assert finished == [[job.fence, job.fence + 1], [job.fence + 1]]
        assert [event.job_id for event in refused] == [job.id]

    run_virtual(main)
