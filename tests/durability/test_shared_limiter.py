"""Limiters on a store that has to be awaited, used from several threads and loops at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

import pytest

from headgate.clock import SECOND
from headgate.errors import GateClosed, HeadgateError
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.rate_limit import RateLimit
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.limiter import Limiter
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.limits.strict_rate import StrictRate
from tests.durability.threads import side_by_side
from tests.forked import answer_of_forked_child
from tests.until import patient, until_now


class OnOneLoop:
    """A store as one with a connection is: it may be used on the loop that opened it, and nowhere else."""

    def __init__(self) -> None:
        self.buckets = MemoryBuckets()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.takes = 0

    async def open(self) -> None:
        assert self.loop is None
        self.loop = asyncio.get_running_loop()

    async def close(self) -> None:
        await self._there()

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        await self._there()
        self.takes += 1
        return await self.buckets.take(bucket, cost, count=count, id=id)

    async def reserve(self, bucket: Bucket, cost: int = 1, *, id: str) -> Taken:
        await self._there()
        return await self.buckets.reserve(bucket, cost, id=id)

    async def cancel(self, bucket: Bucket, *, id: str) -> bool:
        await self._there()
        return await self.buckets.cancel(bucket, id=id)

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        await self._there()
        await self.buckets.amend(bucket, charged_at, cost, started_at, actual)

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        await self._there()
        await self.buckets.penalize(bucket, closed_for)

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        await self._there()
        return await self.buckets.snapshot(bucket)

    async def reset(self, bucket: Bucket) -> None:
        await self._there()
        await self.buckets.reset(bucket)

    async def _there(self) -> None:
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0.0005)


def test_threads_without_a_loop_share_one_in_the_background() -> None:
    limiter = Limiter(StrictRate(20, per=0.2, margin=0), OnOneLoop())
    starts: list[int] = []

    def thread() -> None:
        starts.extend(limiter.sync.acquire("a").decided_at for _ in range(30))

    side_by_side(thread, thread)
    starts.sort()
    assert all(later - first >= SECOND // 5 for first, later in zip(starts, starts[20:], strict=False))
    with limiter.sync.hold("b", cost=5) as held:
        held.settle(2)
    assert limiter.sync.snapshot("b").used == 2
    assert limiter.sync.reserve("c").delay == 0
    limiter.sync.reset("b")
    before = threading.active_count()
    limiter.sync.close()
    limiter.sync.close()
    assert threading.active_count() == before - 1
    with pytest.raises(GateClosed):
        limiter.sync.try_acquire("a")


def test_a_call_that_ends_before_its_thread_goes_on_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: the loop logged a NameError for calls that ended so early."""
    submit = asyncio.run_coroutine_threadsafe

    def submitted_late(call: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Future[Any]:
        future = submit(call, loop)
        future.exception(patient(5))
        # What the end of the call has scheduled on the loop.
        submit(asyncio.sleep(0), loop).result(patient(5))
        return future

    limiter = Limiter(RateLimit("1/h"), OnOneLoop())
    with monkeypatch.context() as late:
        late.setattr(asyncio, "run_coroutine_threadsafe", submitted_late)
        assert [limiter.sync.try_acquire("a").allowed for _ in range(2)] == [True, False]
    limiter.sync.close()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_closing_wakes_the_threads_that_wait() -> None:
    store = OnOneLoop()
    limiter = Limiter(RateLimit("1/h"), store)
    limiter.sync.acquire("a")
    begun: list[bool] = []

    def thread() -> None:
        begun.append(True)
        with pytest.raises(GateClosed):
            limiter.sync.acquire("a")

    def close() -> None:
        until_now(lambda: len(begun) == 2 and store.takes > 1)
        limiter.sync.close()

    # Without it they would wait for an hour.
    side_by_side(thread, thread, close)


async def test_threads_and_other_loops_use_the_loop_of_the_first_caller() -> None:
    limiter = Limiter(RateLimit("100/h"), OnOneLoop())
    assert await limiter.acquire("a")
    assert await asyncio.to_thread(limiter.sync.acquire, "a")

    async def elsewhere() -> None:
        assert await limiter.acquire("a")

    await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    assert (await limiter.snapshot("a")).used == 3
    await limiter.close()


async def test_a_sync_method_on_the_loop_itself_raises_instead_of_blocking() -> None:
    limiter = Limiter(RateLimit("100/h"), OnOneLoop())
    assert await limiter.acquire("a")
    with pytest.raises(HeadgateError, match="in a coroutine write `await`"):
        limiter.sync.acquire("a")
    await limiter.close()


def test_a_limiter_whose_loop_has_ended_raises() -> None:
    limiter = Limiter(RateLimit("100/h"), OnOneLoop())
    asyncio.run(limiter.acquire("a"))
    with pytest.raises(HeadgateError, match="has ended"):
        limiter.sync.acquire("a")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_limiter_on_a_store_that_was_used_before_a_fork_says_what_to_do() -> None:
    limiter = Limiter(RateLimit("100/h"), OnOneLoop())
    assert limiter.sync.try_acquire("a")
    answer = answer_of_forked_child(lambda: str(limiter.sync.try_acquire("a")))
    assert answer == "ForkedConnection: this limiter and its store were in use before the fork; make both after it"
    assert limiter.sync.try_acquire("a")
    limiter.sync.close()
