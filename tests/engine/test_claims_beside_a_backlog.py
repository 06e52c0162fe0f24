"""Claims of one node: the queues with a backlog and the others are claimed at the same time, each queue once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from headgate.clock import SECOND
from headgate.jobs.job import JobState
from headgate.storage.records import Claim, Claimed
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, new_node

CLAIM = 1.0
"""How long a claim takes that asks for jobs of the queue `bulk` (seconds)."""


class SlowBulkStorage(MemoryStorage):
    """Claims of `bulk` take long. `asked` has the queues of each claim."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.asked: list[list[str]] = []
        self.pending: Counter[str] = Counter()
        self.most_claims = 0

    async def claim(self, claim: Claim) -> Claimed:
        self.asked.append(sorted(claim.free_slots))
        self.pending.update([*claim.free_slots, "claims"])
        self.most_claims = max(self.most_claims, self.pending["claims"])
        assert all(self.pending[queue] == 1 for queue in claim.free_slots), "two claims ask for the slots of one queue"
        claimed = await super().claim(claim)
        if "bulk" in claim.free_slots:
            await asyncio.sleep(CLAIM)
        self.pending.subtract([*claim.free_slots, "claims"])
        return claimed


@pytest.mark.parametrize("shared", [None, 6])
def test_a_job_of_a_quiet_queue_does_not_wait_for_the_claim_of_a_backlog(shared: int | None) -> None:
    async def main(clock: VirtualClock) -> None:
        storage = SlowBulkStorage(clock)
        app = app_on(storage, clock=clock, slots=shared)
        app.queue("bulk", concurrency=4)
        app.queue("quick", concurrency=4)
        running: Counter[str] = Counter()
        most: Counter[str] = Counter()

        async def run(queue: str, seconds: float) -> None:
            running[queue] += 1
            most[queue] = max(most[queue], running[queue])
            most["all"] = max(most["all"], running.total())
            await asyncio.sleep(seconds)
            running[queue] -= 1

        @app.task(queue="bulk")
        async def bulk() -> None:
            await run("bulk", 0.3)

        @app.task(queue="quick")
        async def quick() -> None:
            await run("quick", 0.01)

        async with app:
            await bulk.enqueue_many([()] * 200)
            await asyncio.sleep(3.5 * CLAIM)
            waits = []
            for _ in range(20):
                job = await quick.enqueue()
                await job.result()
                record = await job.status()
                assert record.started_at is not None
                waits.append((record.started_at - record.enqueued_at).total_seconds())
                await asyncio.sleep(0.37)
            if shared is None:
                assert max(waits) < CLAIM / 4
                assert ["bulk"] in storage.asked
                assert ["default", "quick"] in storage.asked
                assert most == {"bulk": 4, "quick": 1, "all": 5}
            else:
                # One claim divides the slots that they share.
                assert storage.most_claims == 1
                assert most["all"] <= shared

    run_virtual(main)


def test_an_error_of_a_claim_ends_the_node_and_is_raised_as_it_is() -> None:
    """The fault: the group of the claims was in the group of the node's parts."""

    class BrokenStorage(MemoryStorage):
        async def claim(self, claim: Claim) -> Claimed:
            raise ZeroDivisionError("a bug")

    async def main(clock: VirtualClock) -> None:
        app = app_on(BrokenStorage(clock), clock=clock)
        async with app.open():
            with pytest.raises(ExceptionGroup) as crashed:
                await new_node(app).run()
        (error,) = crashed.value.exceptions
        assert isinstance(error, ZeroDivisionError)

    run_virtual(main)


def test_queues_without_a_backlog_are_claimed_together() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = SlowBulkStorage(clock)
        app = app_on(storage, clock=clock)
        app.queue("bulk")
        app.queue("quick")

        @app.task(queue="bulk")
        async def bulk() -> None: ...

        @app.task(queue="quick")
        async def quick() -> None: ...

        async with app:
            for _ in range(5):
                jobs = [await bulk.enqueue(), await quick.enqueue()]
                for job in jobs:
                    await job.result()
            assert all(asked == ["bulk", "default", "quick"] for asked in storage.asked)

    run_virtual(main)


def test_a_delayed_job_of_a_queue_that_had_a_backlog_is_claimed_when_it_is_due() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = SlowBulkStorage(clock)
        app = app_on(storage, clock=clock)
        app.queue("bulk", concurrency=2)
        app.queue("other", concurrency=2)
        started: dict[int, int] = {}

        @app.task(queue="bulk")
        async def bulk() -> None: ...

        @app.task(queue="other")
        async def other(number: int) -> None:
            started[number] = clock.now()

        async with app:
            # The queue leaves the claim of the queues with a backlog, which goes on.
            await bulk.enqueue_many([()] * 60)
            await other.enqueue_many([(0,)] * 4)
            due = clock.now() + 10 * SECOND
            job = await other.using(delay=10).enqueue(1)
            await job.result()
            assert (await job.status()).state is JobState.SUCCEEDED
            assert abs(started[1] - due) < SECOND // 10

    run_virtual(main)
