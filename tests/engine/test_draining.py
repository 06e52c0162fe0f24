"""Nodes that end when nothing is left to do, in virtual time: what counts as left, and what does not."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from headgate import Headgate, JobState, RetryPolicy, StrictRate, batch, chain, current_job
from headgate.clock import SECOND
from headgate.engine.node import Drain
from headgate.storage.procedures.following import FOLLOWERS_AT_ONCE
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on


class DrainApps:
    """One store, and apps on it that count what ran."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.store = MemoryStorage(clock)
        self.ran: Counter[str] = Counter()

    def app(self) -> Headgate:
        app = app_on(self.store, clock=self.clock, retry=RetryPolicy(retries=2, base=20, jitter=False))
        app.queue("mail")

        @app.task
        async def work(length: float = 0, follow_ups: int = 0) -> None:
            await asyncio.sleep(length)
            if follow_ups:
                await work.enqueue(length, follow_ups - 1)
            self.ran["work"] += 1

        @app.task(queue="mail")
        async def send() -> None:
            self.ran["send"] += 1

        @app.task(limits=[StrictRate("2/m")])
        async def sync() -> None:
            self.ran["sync"] += 1

        @app.task
        async def shaky() -> None:
            if current_job().attempt == 1:
                raise ValueError("once")
            self.ran["shaky"] += 1

        return app

    async def drain(self, app: Headgate, until: Drain, queues: tuple[str, ...] | None = None) -> float:
        """Run a node until it ends by itself; how many seconds it took."""
        begin = self.clock.monotonic()
        async with app.open(), asyncio.timeout(10_000):
            served = None if queues is None else dict.fromkeys(queues)
            await app._make_node(lambda: app._node_config(served, drain=until)).run()
        return (self.clock.monotonic() - begin) / SECOND

    async def left(self) -> int:
        return sum(each.waiting + each.running for each in await self.store.counts())


@pytest.mark.parametrize("until", ["ready", "all"])
def test_an_empty_store_is_drained_immediately(until: Drain) -> None:
    async def main(clock: VirtualClock) -> None:
        apps = DrainApps(clock)
        assert await apps.drain(apps.app(), until) < 1

    run_virtual(main)


@pytest.mark.parametrize("seed", range(5))
def test_a_drain_runs_ready_jobs_and_those_that_they_enqueue(seed: int) -> None:
    async def main(clock: VirtualClock) -> None:
        apps = DrainApps(clock)
        app = apps.app()
        async with app.open():
            await app.tasks["work"].enqueue_many([(0.03, 20)] * 3)
            await app.tasks["work"].enqueue(30)
        assert 30 <= await apps.drain(app, "ready") < 31
        assert apps.ran == {"work": 3 * 21 + 1}

    run_virtual(main, seed=seed)


def test_a_drain_runs_all_followers_of_a_job_however_many() -> None:
    async def main(clock: VirtualClock) -> None:
        apps, count = DrainApps(clock), FOLLOWERS_AT_ONCE + 10
        app = apps.app()
        async with app.open():
            work = app.tasks["work"]
            await chain(work.call(), batch([work.call() for _ in range(count)])).enqueue()
        await apps.drain(app, "ready")
        assert apps.ran == {"work": 1 + count}

    run_virtual(main)


def test_a_drain_leaves_jobs_that_wait_for_a_time_a_limit_or_a_retry() -> None:
    async def main(clock: VirtualClock) -> None:
        apps = DrainApps(clock)
        app = apps.app()
        async with app.open():
            await app.tasks["sync"].enqueue_many([()] * 5)
            await app.tasks["work"].using(delay=600).enqueue()
            await app.tasks["shaky"].enqueue()
        assert await apps.drain(app, "ready") < 1
        assert apps.ran == {"sync": 2}
        assert await apps.left() == 5

    run_virtual(main)


def test_a_drain_of_all_jobs_waits_for_delayed_and_limited_ones() -> None:
    async def main(clock: VirtualClock) -> None:
        apps = DrainApps(clock)
        app = apps.app()
        async with app.open():
            await app.tasks["sync"].enqueue_many([()] * 5)
            await app.tasks["work"].using(delay=600).enqueue()
            await app.tasks["shaky"].enqueue()
        assert 600 <= await apps.drain(app, "all") < 601
        assert apps.ran == {"sync": 5, "work": 1, "shaky": 1}
        assert await apps.left() == 0

    run_virtual(main)


@pytest.mark.parametrize("until", ["ready", "all"])
def test_a_drain_does_not_wait_for_jobs_that_this_node_cannot_run(until: Drain) -> None:
    async def main(clock: VirtualClock) -> None:
        apps = DrainApps(clock)
        app, older = apps.app(), app_on(apps.store, clock=clock)

        @older.task
        async def forgotten() -> None: ...

        async with older.open():
            await forgotten.enqueue()
        async with app.open():
            await app.tasks["send"].enqueue()
            await app.tasks["work"].enqueue()
            # Of a queue that is not served.
            assert await apps.drain(app, until, ("default",)) < 1
            assert apps.ran == {"work": 1}
            await app.admin.queues.pause("mail")
            assert await apps.drain(app, until) < 1
            assert await apps.left() == 2
            await app.admin.queues.resume("mail")
            assert await apps.drain(app, until) < 1
        assert apps.ran == {"work": 1, "send": 1}

    run_virtual(main)


def test_a_drain_does_not_wait_for_a_paused_limit() -> None:
    async def main(clock: VirtualClock) -> None:
        apps = DrainApps(clock)
        app = apps.app()
        async with app.open():
            await app.admin.limits.pause("sync:rate")
            await app.tasks["sync"].enqueue()
            assert await apps.drain(app, "ready") < 2
            assert await apps.left() == 1

    run_virtual(main)


def test_a_drain_waits_for_running_jobs_of_other_nodes() -> None:
    async def main(clock: VirtualClock) -> None:
        apps = DrainApps(clock)
        app, other = apps.app(), apps.app()
        async with app.open():
            job = await app.tasks["work"].enqueue(50, 1)
            async with other:
                await asyncio.sleep(1)
                assert (await job.status()).state is JobState.RUNNING
                assert 99 <= await apps.drain(app, "ready") < 101
        assert apps.ran == {"work": 2}

    run_virtual(main)
