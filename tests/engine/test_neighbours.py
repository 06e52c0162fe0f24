"""Nodes beside each other on one store: who starts takes nothing from who is alive, and all of them share the work."""

from __future__ import annotations

import asyncio

import pytest

from headgate import Headgate, JobState, Mutex
from headgate.clock import SECOND
from headgate.jobs.event import EndingRefused, Event, JobStarted, NodeLost
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.conftest import Stores
from tests.internals import app_on, new_node
from tests.until import result_within


def test_a_node_that_starts_takes_nothing_from_those_that_are_alive(stores: Stores) -> None:
    """The fault: whoever started took every running job for what a crash had left behind, and ran it a second time
    beside the node that was at it."""

    async def main(clock: VirtualClock) -> None:
        runs: list[tuple[str, str]] = []
        received: list[Event] = []

        def made(name: str) -> Headgate:
            app = app_on(stores(clock), clock=clock)
            app.subscribe(received.append, NodeLost, EndingRefused)

            @app.task(name="work")
            async def work(seconds: float) -> None:
                runs.append((name, "plain"))
                await asyncio.sleep(seconds)

            @app.task(name="alone", limits=[Mutex("resource")])
            async def alone(seconds: float) -> None:
                runs.append((name, "alone"))
                await asyncio.sleep(seconds)

            return app

        first = made("first")
        async with first:
            plain = await first.tasks["work"].enqueue_many([(300.0,)] * 5)
            held = await first.tasks["alone"].enqueue(300.0)
            await asyncio.sleep(1)
            before = list(runs)
            assert len(before) == 6
            for number in range(5):
                async with made(f"later {number}"):
                    # Longer than the lease, the last time.
                    await asyncio.sleep(1 if number < 4 else 100)
                assert runs == before
            async with made("last"):
                for job in (*plain, held):
                    await job.result()
                    assert (await job.status()).attempt == 1
        assert runs == before
        assert not received

    run_virtual(main)


def test_nodes_that_start_and_end_all_the_time_run_each_job_once(stores: Stores) -> None:
    async def main(clock: VirtualClock) -> None:
        runs: list[int] = []
        started: list[Event] = []

        def made() -> Headgate:
            app = app_on(stores(clock), clock=clock, concurrency=3)
            app.subscribe(started.append, JobStarted)

            @app.task(name="work")
            async def work(number: int) -> None:
                runs.append(number)
                await asyncio.sleep(2)

            return app

        async with made() as steady:
            jobs = await steady.tasks["work"].enqueue_many([(number,) for number in range(60)])
            for _ in range(12):
                async with made():
                    await asyncio.sleep(0.7)
            for job in jobs:
                await job.result()
            states = [(await job.status()).state for job in jobs]
        assert states == [JobState.SUCCEEDED] * 60
        assert sorted(runs) == list(range(60))

    run_virtual(main)


@pytest.mark.parametrize(("heartbeat", "lease"), [(None, None), (1, 4), (10, 120)])
def test_the_jobs_of_a_dead_node_are_recovered_when_its_lease_ends_and_not_before(
    heartbeat: float | None, lease: float | None
) -> None:
    """The fault: what a crash had left behind was looked for at the next start of a process and never between."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        starts: list[float] = []

        def made() -> Headgate:
            app = app_on(store, clock=clock, heartbeat=heartbeat, lease=lease)

            @app.task(name="work")
            async def work() -> None:
                starts.append(clock.monotonic() / SECOND)
                await asyncio.sleep(1000 if len(starts) == 1 else 0)

            return app

        doomed = made()
        async with doomed.open():
            running = asyncio.ensure_future(new_node(doomed).run())
            job = await doomed.tasks["work"].enqueue()
            await asyncio.sleep(1)
            async with made():
                await asyncio.sleep(50)
                died = clock.monotonic() / SECOND
                running.cancel()
                await asyncio.wait([running])
                await result_within(job, 1000)
            after = starts[-1] - died
            beat, length = heartbeat or 5, lease or 30
            assert length - beat <= after <= length + 2
            assert len(starts) == 2

    run_virtual(main)
