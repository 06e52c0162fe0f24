"""Fair queues on the engine, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from headgate import DeclarationError, Headgate, PayloadError, StrictRate, header
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual


def made(store: MemoryStorage, clock: VirtualClock, started: list[str], **queue: object) -> Headgate:
    app = Headgate(storage=store, clock=clock)
    app.queue("default", concurrency=2, **queue)  # type: ignore[arg-type]  # each test has options of its own

    @app.task(name="work")
    async def work(tenant: str, number: int = 0) -> None:
        started.append(tenant)
        await asyncio.sleep(1)

    return app


def test_a_tenant_with_five_jobs_does_not_wait_for_the_200_of_another() -> None:
    async def main(clock: VirtualClock) -> None:
        started: list[str] = []
        app = made(MemoryStorage(clock), clock, started, fair_by="{tenant}")
        async with app:
            await app.tasks["work"].enqueue_many([("a", number) for number in range(200)])
            await asyncio.sleep(1.5)
            before = len(started)
            await app.tasks["work"].enqueue_many([("b", number) for number in range(5)])
            await asyncio.sleep(20)
            assert "b" in started[before : before + 2]
            assert started[before : before + 10].count("b") == 5

    run_virtual(main)


def test_weights_hold_while_slots_are_freed_one_by_one() -> None:
    async def main(clock: VirtualClock) -> None:
        started: list[str] = []
        app = made(MemoryStorage(clock), clock, started, fair_by="{tenant}", weights={"big": 3})
        async with app:
            for tenant in ("small", "big"):
                await app.tasks["work"].enqueue_many([(tenant, number) for number in range(200)])
            await asyncio.sleep(100)
            counts = Counter(started[:200])
            assert abs(counts["big"] - 150) <= 3

    run_virtual(main)


def test_a_queue_becomes_fair_by_a_deploy_and_jobs_that_wait_move() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        started: list[str] = []
        async with made(store, clock, started).open() as before:
            await before.tasks["work"].enqueue_many([("a", number) for number in range(50)])
            await before.tasks["work"].enqueue_many([("b", number) for number in range(50)])
        async with made(store, clock, started, fair_by="{tenant}"):
            await asyncio.sleep(30)
            # The first jobs may have started before the others had moved.
            assert abs(started[10:40].count("a") - started[10:40].count("b")) <= 2
            await asyncio.sleep(60)
            assert Counter(started) == {"a": 50, "b": 50}

    run_virtual(main)


def test_keys_may_come_from_headers_and_jobs_without_one_share_a_key() -> None:
    async def main(clock: VirtualClock) -> None:
        started: list[str] = []
        app = made(MemoryStorage(clock), clock, started, fair_by=header("customer"))
        async with app:
            work = app.tasks["work"]
            await work.enqueue_many([("none", number) for number in range(100)])
            await work.using(headers={"customer": "acme"}).enqueue_many([("acme", number) for number in range(10)])
            await asyncio.sleep(15)
            assert started[:20].count("acme") >= 8

    run_virtual(main)


def test_a_key_function_that_raises_is_an_error_of_enqueue() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(MemoryStorage(clock), clock, [], fair_by=lambda tenant: {}[tenant])
        async with app.open():
            with pytest.raises(PayloadError, match="'fair:default' of queue 'default': its key could not be comp"):
                await app.tasks["work"].enqueue("a")
            assert await app.admin.jobs() == []

    run_virtual(main)


def test_the_order_of_a_queue_is_no_limit_that_can_be_set_or_shown() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(MemoryStorage(clock), clock, [], fair_by="{tenant}")
        async with app.open():
            job = await app.tasks["work"].enqueue("a")
            assert "fair:default" not in [limit.limit for limit in app.admin.limits.all_declared()]
            assert (await app.admin.explain(job.id)).limits == []
            assert await app.admin.limits.list() == []

    run_virtual(main)


def test_nothing_else_may_have_a_name_of_an_order() -> None:
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match="names that begin with 'fair:' are those of queues"):
        app.limit("fair:default", StrictRate("1/s"))
