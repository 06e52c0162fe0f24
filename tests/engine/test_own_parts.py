"""Parts of one's own: an object stands wherever a URL may, if it does what the protocol says."""

from __future__ import annotations

import asyncio
from typing import Any

from headgate import Headgate, StrictRate
from headgate.clock import SECOND
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.storage.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual


class OwnStorage:
    """A storage that is nothing of ours by descent; it counts what is asked of it."""

    def __init__(self, clock: VirtualClock) -> None:
        self._inner = MemoryStorage(clock)
        self.asked: set[str] = set()

    def __getattr__(self, verb: str) -> Any:
        self.asked.add(verb)
        return getattr(self._inner, verb)


class OwnBuckets:
    """A bucket store of one's own, which keeps all keys under a prefix."""

    def __init__(self, clock: VirtualClock) -> None:
        self._inner = MemoryBuckets(clock)
        self.asked: list[str] = []

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        self.asked.append(bucket.key)
        return await self._inner.take(bucket, cost, count=count, id=id)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)


def test_an_app_works_on_a_storage_of_ones_own() -> None:
    async def main(clock: VirtualClock) -> None:
        store: Any = OwnStorage(clock)
        app = Headgate(store, clock=clock)
        app.queue("mail", global_concurrency=1)

        @app.task(queue="mail", limits=[StrictRate("1/m", key="{tenant}", margin=0)])
        async def send(tenant: str) -> str:
            return tenant

        async with app:
            jobs = await send.enqueue_many([("acme",), ("acme",), ("globex",)])
            assert [await job.result() for job in jobs] == ["acme", "acme", "globex"]
            assert 60 * SECOND <= clock.monotonic() < 61 * SECOND
        assert store.asked >= {"open", "join", "add", "claim", "finish", "beat", "nodes", "expire", "leave", "close"}
        # A worker may serve it, too: only our own store in memory is known to be seen by nobody else.
        worker = Headgate(store, clock=clock)
        running = asyncio.ensure_future(worker.run(handle_signals=False))
        await asyncio.sleep(1)
        assert worker._node is not None
        worker._node.stop()
        await running

    run_virtual(main)


def test_limits_are_kept_in_a_store_of_ones_own() -> None:
    async def main(clock: VirtualClock) -> None:
        buckets: Any = OwnBuckets(clock)
        app = Headgate("memory://", clock=clock)
        starts: list[int] = []

        @app.task(limits=[StrictRate("2/m", key="{tenant}", store=buckets, margin=0)])
        async def call(tenant: str) -> None:
            starts.append(clock.monotonic() // SECOND)

        async with app:
            await call.enqueue_many([("acme",)] * 5)
            await asyncio.sleep(150)
        assert starts == [0, 0, 60, 60, 120]
        assert set(buckets.asked) == {"acme"}

    run_virtual(main)
