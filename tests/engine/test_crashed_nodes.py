"""A node of which one part crashes: the whole node ends with the error, and others continue with its jobs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from headgate import JobState, current_job
from headgate.jobs.event import NodeCrashed
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.conftest import MakeApp
from tests.internals import app_on
from tests.until import patient

PARTS = {
    "claims": "claim",
    "heartbeats": "beat",
    "watch": "node_update",
    "housekeeper": "gather_history",
    "backlog_migrator": "note_limit_sets",
    "recurring": "due_schedules",
    "recorder": "finish",
}
"""The parts of a node, each with a verb of the store that it alone asks for.

The reporter is none of them: what jobs say of themselves ends nothing.
"""


class Breaking(MemoryStorage):
    """A memory store of which one operation raises a programming error on request."""

    breaks = ""

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "breaks"):
            raise ZeroDivisionError("a mistake in a part of the node")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("part", PARTS)
def test_a_crash_of_any_part_ends_the_whole_node_and_is_raised_immediately(
    part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: one loop of a worker died and the others went on, so that half of it worked and nobody knew; or, in a
    web server that runs a node beside its own work, all of it died, and the server went on without it."""

    async def main(clock: VirtualClock) -> None:
        store = Breaking(clock)
        app = app_on(store, clock=clock)
        received: list[Any] = []
        went_on: list[str] = []
        app.subscribe(received.append, NodeCrashed)
        runs: list[int] = []

        @app.task
        async def work() -> None:
            runs.append(clock.monotonic())
            current_job().progress(0.5)
            await asyncio.sleep(3)

        async def beside_a_node_that_crashes() -> None:
            async with app:
                await work.enqueue()
                await asyncio.sleep(1)
                store.breaks = PARTS[part]
                await work.enqueue()
                await asyncio.sleep(1000)
                went_on.append("without its worker")

        async with app.open():
            with pytest.raises(ExceptionGroup) as crashed:
                await beside_a_node_that_crashes()
            assert "a mistake in a part of the node" in str(crashed.value.exceptions)
            assert not went_on
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0, "nobody else has cancelled it"
            (event,) = received
            assert event.error.type == "ZeroDivisionError"
            store.breaks = ""
            started = len(runs)
            job = await work.enqueue()
            await asyncio.sleep(120)
            assert (await job.status()).state is JobState.WAITING, "no part of it works on"
            assert len(runs) == started
            # Another node continues with all of it, once the lease of the crashed node is over.
            async with app:
                await asyncio.sleep(60)
                (counts,) = await app.admin.counts()
                assert (counts.succeeded, counts.waiting, counts.running) == (3, 0, 0)

    with caplog.at_level(logging.CRITICAL, "headgate"):
        run_virtual(main)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "crashed and runs no more jobs" in line
    assert "ZeroDivisionError: a mistake in a part of the node" in line


def test_an_embedded_node_that_cannot_start_raises() -> None:
    """The fault: a program went on without any worker in it, and found out when it ended."""

    async def main(clock: VirtualClock) -> None:
        store = Breaking(clock)
        app = app_on(store, clock=clock)
        received: list[Any] = []
        went_on: list[str] = []
        app.subscribe(received.append, NodeCrashed)
        store.breaks = "join"

        async def beside_a_node_that_cannot_start() -> None:
            async with app:
                await asyncio.sleep(1000)
                went_on.append("without its worker")

        with pytest.raises(ZeroDivisionError):
            await beside_a_node_that_cannot_start()
        assert not went_on
        assert [event.error.type for event in received] == ["ZeroDivisionError"]

    run_virtual(main)


def test_a_block_that_its_node_has_ended_can_clean_up_and_its_error_is_kept() -> None:
    async def main(clock: VirtualClock) -> None:
        store = Breaking(clock)
        app = app_on(store, clock=clock)
        cleaned: list[str] = []

        async def clean_up(error: BaseException | None) -> None:
            store.breaks = ""
            await asyncio.sleep(1)
            cleaned.append("up")
            if error is not None:
                raise error

        async def block(error: BaseException | None = None) -> None:
            async with app:
                try:
                    store.breaks = "claim"
                    await asyncio.sleep(100)
                finally:
                    await clean_up(error)

        with pytest.raises(ExceptionGroup):
            await block()
        assert cleaned == ["up"]
        with pytest.raises(ExceptionGroup) as crashed:
            await block(LookupError("of the block"))
        assert isinstance(crashed.value.__context__, LookupError)
        with pytest.raises(SystemExit):
            await block(SystemExit(3))

    run_virtual(main)


def test_a_block_that_is_cancelled_from_outside_raises_only_the_cancellation() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(Breaking(clock), clock=clock)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), app:
                await asyncio.sleep(100)

    run_virtual(main)


@pytest.mark.parametrize("is_worker", [True, False])
async def test_a_node_whose_run_or_exit_is_cancelled_returns_its_jobs(make_app: MakeApp, is_worker: bool) -> None:
    """The fault: it was abandoned as if it had been killed, and its jobs were lost attempts, in the end poisonous."""
    app = make_app(migrate=True)
    began = asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        await asyncio.sleep(patient(60))

    async def block() -> None:
        async with app:
            await began.wait()

    async with app.open(), asyncio.timeout(patient(30)):
        job = await work.enqueue()
        running = asyncio.create_task(app.run(handle_signals=False) if is_worker else block())
        await began.wait()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        status = await job.status()
        assert (status.state, status.attempt) == (JobState.WAITING, 0)
        assert not await app.admin.nodes()
