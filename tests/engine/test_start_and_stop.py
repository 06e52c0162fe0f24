"""`await app.start()` and `await app.stop()`: a worker or a client without a block, called again and again."""

from __future__ import annotations

import asyncio

import pytest

from headgate import DeclarationError, Headgate, NotOpen, StrictRate
from headgate.errors import UnknownQueue
from headgate.storage.records import Claim, Claimed
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on
from tests.until import patient


def test_jobs_run_from_start_to_stop_however_often_both_are_called() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)

        @app.task
        async def double(number: int) -> int:
            return 2 * number

        await app.stop()
        for _ in range(2):
            # Also at the same time.
            assert list(await asyncio.gather(app.start(), app.start())) == [app, app]
            assert len(await app.admin.nodes()) == 1
            assert await (await double.enqueue(4)).result(timeout=5) == 8
            await asyncio.gather(app.stop(), app.stop())
            with pytest.raises(NotOpen):
                await double.enqueue(4)

    run_virtual(main)


def test_an_app_that_is_started_twice_at_once_may_be_so_on_another_loop_later() -> None:
    """The fault: whoever had to wait on the second loop got a RuntimeError about a lock."""
    app = Headgate("memory://")

    async def main() -> None:
        await asyncio.gather(app.start(), app.start())
        await asyncio.gather(app.stop(), app.stop())

    for _ in range(2):
        asyncio.run(main())


def test_a_client_runs_no_jobs_until_a_worker_is_added() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)

        @app.task
        async def work() -> str:
            return "done"

        await app.start(worker=False)
        job = await work.enqueue()
        await asyncio.sleep(60)
        assert await app.admin.nodes() == []
        await app.start()
        await app.start(worker=False)
        assert await job.result(timeout=5) == "done"
        await app.stop()
        with pytest.raises(NotOpen):
            await job.status()

    run_virtual(main)


def test_a_crash_leaves_the_caller_alone_and_is_raised_by_stop() -> None:
    class Breaking(MemoryStorage):
        is_broken = False

        async def claim(self, claim: object) -> object:  # type: ignore[override]
            if self.is_broken:
                raise ZeroDivisionError("a mistake")
            return await super().claim(claim)  # type: ignore[arg-type]

    async def main(clock: VirtualClock) -> None:
        store = Breaking(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def work() -> None: ...

        await app.start()
        store.is_broken = True
        job = await work.enqueue()
        await asyncio.sleep(100)
        assert (await job.status()).attempt == 0
        with pytest.raises(ExceptionGroup) as crashed:
            await app.stop()
        assert "a mistake" in str(crashed.value.exceptions)
        await app.stop()
        store.is_broken = False
        await app.start()
        await job.result(timeout=5)
        await app.stop()

    run_virtual(main)


async def test_start_and_a_block_are_not_mixed() -> None:
    app = Headgate("memory://")
    async with app:
        with pytest.raises(
            DeclarationError, match=r"already runs jobs in this process; enter `async with app:` once, or"
        ):
            await app.start()
        await app.stop()
        assert len(await app.admin.nodes()) == 1
    await app.start()
    with pytest.raises(DeclarationError, match="already runs jobs"):
        await app.__aenter__()
    await app.stop()


async def test_of_two_tasks_that_enter_an_app_at_once_one_is_refused() -> None:
    """The fault: both ran a node, and that of the first ran on after both had left."""
    app = Headgate("memory://")
    both_are_done = asyncio.Event()

    async def enter() -> None:
        async with app:
            await both_are_done.wait()

    tasks = [asyncio.ensure_future(enter()) for _ in range(2)]
    (refused,), _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=patient(10))
    assert "already runs jobs in this process" in str(refused.exception())
    assert len(await app.admin.nodes()) == 1
    both_are_done.set()
    await asyncio.wait(tasks)
    with pytest.raises(NotOpen):
        _ = app.admin


def test_a_limit_that_is_declared_after_the_start_holds() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)
        await app.start()
        await asyncio.sleep(5)
        starts: list[float] = []

        @app.task(limits=[StrictRate("2/m", name="calls")])
        async def call() -> None:
            starts.append(asyncio.get_running_loop().time())

        jobs = await call.enqueue_many([()] * 5)
        await jobs[-1].result(timeout=600)
        assert starts[1] - starts[0] < 1
        assert all(later - first >= 60 for first, later in zip(starts, starts[2:], strict=False))
        with pytest.raises(DeclarationError, match=r"limit 'far' is kept in another store.*start again"):
            app.task(limits=[StrictRate("2/m", name="far", store="redis://127.0.0.1:1")])(far)
        assert "far" not in app.tasks
        with pytest.raises(DeclarationError, match=r"limit 'far' is kept in another store.*start again"):
            app.queue("mail", limits=[StrictRate("2/m", name="far", store="redis://127.0.0.1:1")])
        with pytest.raises(UnknownQueue):
            call.using(queue="mail")
        await app.stop()

    run_virtual(main)


async def far() -> None: ...


def test_another_loop_is_refused_and_one_that_has_ended_is_forgotten() -> None:
    app = Headgate("memory://")

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async def with_another_loop() -> None:
        await app.start()
        with pytest.raises(DeclarationError, match=r"started on another event loop; stop it there"):
            await asyncio.to_thread(asyncio.run, app.start())

    async def once_more() -> None:
        await app.start()
        assert await (await double.enqueue(4)).result(timeout=60) == 8
        await app.stop()

    # Its loop ends without `stop`.
    asyncio.run(with_another_loop())
    asyncio.run(once_more())


def test_a_node_that_stops_during_a_claim_gives_the_starts_of_its_jobs_back() -> None:
    """The fault: the reply was dropped, and the limits of jobs that never started stayed charged."""

    class Slow(MemoryStorage):
        async def claim(self, claim: Claim) -> Claimed:
            claimed = await super().claim(claim)
            await asyncio.sleep(0.5)
            return claimed

    async def main(clock: VirtualClock) -> None:
        app = app_on(Slow(clock), clock=clock)

        @app.task(limits=[StrictRate("1/h")])
        async def call() -> None: ...

        async with app.open():
            job = await call.enqueue()
            await app.start()
            await asyncio.sleep(0.2)
            await app.stop()
            async with app:
                await job.result(timeout=60)

    run_virtual(main)
