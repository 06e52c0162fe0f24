"""A node: which queues it serves with how many slots, which jobs get them, and what it does when idle."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import AttemptContext, Concurrency, DeclarationError, Headgate, JobState, StrictRate
from headgate.clock import SECOND
from headgate.errors import UnknownQueue
from headgate.jobs.event import NodeStopped
from headgate.storage.records import Claim, Claimed
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from headgate.version import __version__
from tests.internals import app_on, node_of, registry_of, swept_by
from tests.until import result_within

HOUR = 3600


class Counting(MemoryStorage):
    claims = 0

    async def claim(self, claim: Claim) -> Claimed:
        self.claims += 1
        return await super().claim(claim)


def test_one_job_after_another_takes_one_claim_each() -> None:
    """The fault: the slot that a job freed and its ending each made the node ask for jobs, of which there were none."""

    async def main(clock: VirtualClock) -> None:
        store = Counting(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def call() -> None:
            await asyncio.sleep(0.01)

        async with app:
            await asyncio.sleep(1)
            store.claims = 0
            for _ in range(20):
                job = await call.enqueue()
                await job.result()
                await asyncio.sleep(0.01)
            assert store.claims == 20

    run_virtual(main)


def test_an_idle_node_claims_only_after_changes() -> None:
    """The fault: a worker polled, so an idle one cost its database as much as a busy one, or found jobs late."""

    async def main(clock: VirtualClock) -> None:
        store = Counting(clock)
        app = app_on(store, clock=clock)
        starts: list[int] = []

        @app.task(limits=[StrictRate("1/h", key="{tenant}")])
        async def call(tenant: str) -> None:
            starts.append(clock.monotonic())

        async with app:
            # Throttled ones and delayed ones are no reason to look.
            await call.enqueue_many([(f"tenant {number % 10}",) for number in range(1000)])
            await call.using(delay=30 * HOUR).enqueue_many([("acme",)] * 1000)
            await asyncio.sleep(60)
            assert len(starts) == 10
            store.claims = 0
            await asyncio.sleep(HOUR - 120)
            assert store.claims <= HOUR / 30, "a look in thirty seconds, which finds nothing"
            assert swept_by(node_of(app)) == 0
            before = clock.monotonic()
            await call.enqueue("a fresh key")
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            assert starts[-1] - before < SECOND // 100, "and yet what comes starts at once"

    run_virtual(main)


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ({"mail": 4}, {"mail": 4}),
        ({"mail": None, "default": 1}, {"mail": 3, "default": 1}),
        (None, {"mail": 3, "default": 6}),
    ],
)
def test_a_worker_serves_the_configured_queues_with_the_configured_slots(
    asked: dict[str, int | None] | None, most: dict[str, int], tmp_path: Path
) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate(f"sqlite:///{tmp_path}/jobs.db", clock=clock, concurrency=6, synchronous="OFF")
        app.queue("mail", concurrency=3)
        running: Counter[str] = Counter()
        seen: Counter[str] = Counter()

        @app.task
        async def work(queue: str) -> None:
            running[queue] += 1
            seen[queue] = max(seen[queue], running[queue])
            await asyncio.sleep(1)
            running[queue] -= 1

        async with app.open():
            jobs = {queue: await work.using(queue=queue).enqueue_many([(queue,)] * 12) for queue in ("mail", "default")}
            worker = asyncio.ensure_future(app.run(queues=asked, handle_signals=False))
            await asyncio.sleep(20)
            assert seen == most
            for queue in jobs:
                states = {(await job.status()).state for job in jobs[queue]}
                assert states == {JobState.SUCCEEDED if queue in most else JobState.WAITING}
            node_of(app).stop()
            await worker

    run_virtual(main)


def test_a_node_that_stops_counts_only_the_jobs_that_it_returns_then() -> None:
    """The fault: each start that had once been too late counted as a job that waits."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        stopped: list[Any] = []
        app.subscribe(stopped.append, NodeStopped)
        delays = [8, 0, 0]

        @app.around_attempt
        async def wait(job: AttemptContext, run: Callable[[], Awaitable[object]]) -> object:
            await asyncio.sleep(delays.pop(0))
            return await run()

        @app.task(limits=[StrictRate("1/10s", margin=0)])
        async def work() -> None: ...

        @app.task
        async def too_long() -> None:
            await asyncio.sleep(3600)

        async with app:
            await (await work.enqueue()).result()
            await too_long.enqueue()
            await asyncio.sleep(1)
        assert delays == []
        assert [event.returned for event in stopped] == [1]

    run_virtual(main)


def test_a_node_with_one_slot_gives_it_to_limited_and_to_unlimited_jobs_in_turn() -> None:
    """The fault: whichever kind had the longer backlog kept the other from the only slot."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)
        ran: list[str] = []

        @app.task
        async def free() -> None:
            ran.append("free")
            await asyncio.sleep(1)

        @app.task(limits=[Concurrency(5, key="{tenant}")])
        async def limited(tenant: str) -> None:
            ran.append("limited")
            await asyncio.sleep(1)

        async with app.open():
            await free.enqueue_many([()] * 300)
            jobs = await limited.enqueue_many([(f"tenant {number % 3}",) for number in range(300)])
            async with app:
                await asyncio.sleep(100.5)
                assert (await jobs[-1].status()).state is JobState.WAITING
        assert 45 <= ran.count("free") <= 55
        assert 45 <= ran.count("limited") <= 55

    run_virtual(main)


def test_a_worker_of_a_queue_that_is_not_declared_or_without_slots_is_refused() -> None:
    app = Headgate("sqlite:///never-opened.db")
    with pytest.raises(UnknownQueue, match=r"'mails'.* is not declared"):
        asyncio.run(app.run(queues={"mails": 4}, handle_signals=False))
    # It ran as many jobs of the queue as the app's own slots.
    with pytest.raises(DeclarationError, match="queue 'default': slots=0 must be a whole number, at least 1"):
        asyncio.run(app.run(queues={"default": 0}, handle_signals=False))
    with pytest.raises(DeclarationError, match="memory://"):
        asyncio.run(Headgate("memory://").run(handle_signals=False))


async def test_a_worker_logs_the_path_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: a relative path was another file in each working directory, and two programs waited for each other."""
    monkeypatch.chdir(tmp_path)
    app = Headgate("sqlite:///jobs.db", synchronous="OFF")

    @app.task
    async def work() -> None: ...

    with caplog.at_level(logging.INFO, "headgate"):
        async with app:
            await result_within(await work.enqueue())
    started: list[Any] = [record.getMessage() for record in caplog.records if "works on" in record.getMessage()]
    assert len(started) == 1
    assert f"works on sqlite:///{tmp_path / 'jobs.db'} with Headgate {__version__}; " in started[0]
    slots = registry_of(app).concurrency("default", None)
    assert started[0].endswith(f"; 1 queue: default ({slots} slots); 1 task: work; no limits")
