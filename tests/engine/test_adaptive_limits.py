"""Adaptive limits on jobs: several nodes find the limit of an outside server together, and none loses it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any, cast

import pytest

from headgate import AdaptiveRate, Headgate, Limiter, RateLimit, RateLimited
from headgate.clock import SECOND
from headgate.errors import DeclarationError
from headgate.limits.bucket_store import Bucket, BucketStore
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.stored_buckets import StoredBuckets
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, client_of, node_of

MINUTE = 60 * SECOND


class Server:
    """Accepts so many requests in any minute, of all its clients."""

    def __init__(self, clock: VirtualClock, hidden: int) -> None:
        self.hidden = hidden
        self.accepted: list[int] = []
        self.refused: list[int] = []
        self._clock = clock
        self._counting: deque[int] = deque()

    def call(self) -> float | None:
        """Return None, or for how many seconds it refuses the request."""
        now = self._clock.monotonic()
        while self._counting and self._counting[0] <= now - MINUTE:
            self._counting.popleft()
        if len(self._counting) < self.hidden:
            self._counting.append(now)
            self.accepted.append(now)
            return None
        self.refused.append(now)
        return (self._counting[len(self._counting) - self.hidden] + MINUTE - now) / SECOND

    def per_minute(self, begin: int, end: int) -> float:
        return sum(begin <= at < end for at in self.accepted) * MINUTE / (end - begin)


class Breaking(MemoryStorage):
    """A memory store of which a heartbeat of one node raises on request."""

    broken: str | None = None

    async def beat(self, node: str, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        if node == self.broken:
            raise ZeroDivisionError("a mistake in a part of the node")
        return await super().beat(node, *args, **options)


@pytest.mark.nightly
@pytest.mark.slow
def test_nodes_find_a_hidden_limit_together_follow_its_change_and_lose_nothing_in_a_crash() -> None:
    """Within 75 to 100 % of what the server allows, at most 3 % refused, a crash and a change included."""

    async def main(clock: VirtualClock) -> None:
        storage = Breaking(clock)
        server = Server(clock, 120)

        def program() -> Headgate:
            app = app_on(storage, clock=clock)

            @app.task(name="call", limits=[AdaptiveRate("600/m", min="6/m", climb=900, name="api")])
            async def call() -> None:
                retry_after = server.call()
                await asyncio.sleep(0.2)
                if retry_after is not None:
                    raise RateLimited(retry_after=retry_after)

            return app

        first, second = program(), program()
        found: list[float] = []

        async def run_first() -> None:
            with contextlib.suppress(Exception):
                async with first:
                    await asyncio.sleep(1e6)

        crashing = asyncio.create_task(run_first())
        async with second:
            await second.tasks["call"].enqueue_many([()] * 6000)
            begin = clock.monotonic()
            await asyncio.sleep(20 * 60)
            nodes = await second.admin.nodes()
            assert len(nodes) == 2
            own = {node.id for node in nodes} - {node_of(second).id if node_of(second) else ""}
            (storage.broken,) = own
            before = await second.admin.limits.bucket("api")
            await crashing
            after = await second.admin.limits.bucket("api")
            for bucket in (before, after):
                assert bucket.present is not None
                found.append(float(bucket.present.removesuffix("/m")))
            await asyncio.sleep(20 * 60)
            server.hidden = 40
            await asyncio.sleep(20 * 60)
        # What had been found before the crash was there after it.
        assert 80 <= found[0] <= 135
        assert found[1] >= 0.69 * found[0]
        assert 0.75 * 120 <= server.per_minute(begin + 12 * MINUTE, begin + 40 * MINUTE) <= 120
        assert 0.75 * 40 <= server.per_minute(begin + 46 * MINUTE, begin + 60 * MINUTE) <= 40
        assert len(server.refused) <= 0.03 * len(server.accepted)

    run_virtual(main)


def test_the_present_rate_is_shown_where_an_operator_looks() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        refusals = iter([True])

        @app.task(limits=[AdaptiveRate("600/m", min="6/m", start="60/m", key="{tenant}", name="api")])
        async def call(tenant: str) -> None:
            if next(refusals, False):
                raise RateLimited(retry_after=30)

        async with app:
            job = await call.enqueue("acme")
            await asyncio.sleep(1)
            (bucket,) = await app.admin.limits.list("api", key="acme")
            assert bucket.present == "42/m"
            explained = await app.admin.explain(job.id)
            assert "limit 'api' (adaptive, 6/m to 600/m, now 42/m) of key 'acme'" in explained.reason
            (info,) = explained.limits
            assert info.present == "42/m"

    run_virtual(main)


def test_a_penalty_by_an_operator_is_no_refusal() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.limit("api", AdaptiveRate("600/m", start="60/m"))

        async with app.open():
            await app.admin.limits.penalize("api", "", 5)
            assert (await app.admin.limits.bucket("api")).present == "60/m"
            await asyncio.sleep(10)
            await app.limiter("api").penalize("", 5)
            await app.limiter("api").penalize("", 5)
            assert (await app.admin.limits.bucket("api")).present == "42/m"

    run_virtual(main)


@pytest.mark.parametrize("is_stored", [False, True])
def test_plain_code_that_reports_refusals_slows_down(is_stored: bool) -> None:
    async def main(clock: VirtualClock) -> None:
        storage = MemoryStorage(clock)
        await storage.open()
        limit = AdaptiveRate("600/m", min="6/m", start="60/m", name="api")
        store = StoredBuckets(storage) if is_stored else MemoryBuckets(clock)
        limiter = Limiter(limit, store=store, clock=clock)
        for _ in range(3):
            await limiter.acquire()
        # Three answers to requests that were sent before the first of them came.
        for _ in range(3):
            await limiter.penalize("", 2)
        await asyncio.sleep(2)
        began = clock.monotonic()
        for _ in range(43):
            await limiter.acquire()
        # 42/m, and growing by 20/m a minute.
        assert 47 <= (clock.monotonic() - began) / SECOND <= 56
        assert (await store.snapshot(Bucket("api", "", limit.rule))).available == 0
        await limiter.close()
        await storage.close()

    run_virtual(main)


def test_limits_url_moves_it_with_all_other_rates() -> None:
    app = Headgate("memory://", limits_url="redis://localhost:1/0")
    app.limit("api", AdaptiveRate("600/m"))

    @app.task(limits=["api"])
    async def call() -> None: ...

    store = client_of(app).remote_limits.store_of(AdaptiveRate("600/m"))
    assert type(store).__name__ == "RedisBuckets"


def test_redis_refuses_a_minimum_that_its_numbers_cannot_hold() -> None:
    with pytest.raises(DeclarationError, match=r"has 63 days between two starts at its lowest.*raise its min"):
        Limiter(AdaptiveRate("600/m", min="1/60d"), store="redis://localhost:1/0")


def test_a_store_that_cannot_note_refusals_cannot_hold_it() -> None:
    class Counts:
        """A bucket store of somebody else."""

    with pytest.raises(DeclarationError, match="a Counts has no `refuse`, so the rate would never be lowered"):
        Limiter(AdaptiveRate("600/m"), store=cast(BucketStore, Counts()))


def test_an_operator_cannot_set_it_for_a_limit_in_such_a_store() -> None:
    """The fault: it was set, and the rate was never lowered."""

    class Counts:
        """A bucket store of somebody else, of which only the presence of verbs matters."""

    app = Headgate("memory://")

    @app.task(limits=[RateLimit("600/m", name="api", store=cast(BucketStore, Counts()))])
    async def call() -> None: ...

    async def main() -> None:
        async with app.open():
            with pytest.raises(DeclarationError, match="a Counts has no `refuse`, so the rate would never be lowered"):
                await app.admin.limits.set("api", AdaptiveRate("600/m"))

    asyncio.run(main())


def test_refusals_of_jobs_lower_the_rate_in_another_store_once_for_all_starts_before_them() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = MemoryBuckets(clock)
        refused: list[int] = []

        def program() -> Headgate:
            app = Headgate("memory://", clock=clock)

            @app.task(
                name="call", limits=[AdaptiveRate("600/m", min="6/m", start="60/m", burst=3, name="api", store=shared)]
            )
            async def call() -> None:
                await asyncio.sleep(0.2)
                if len(refused) < 3:
                    refused.append(clock.monotonic())
                    raise RateLimited(retry_after=0.001)

            return app

        first, second = program(), program()
        async with first, second:
            await first.tasks["call"].enqueue_many([()] * 3)
            await asyncio.sleep(0.5)
            assert len(refused) == 3
            for app in (first, second):
                assert (await app.admin.limits.bucket("api")).present == "42/m"
            await first.admin.limits.penalize("api", "", 5)
            assert (await second.admin.limits.bucket("api")).present == "42/m"

    run_virtual(main)
