"""Gates of other frameworks: a step whose reply is lost and which the client repeats is done once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from headgate import FixedWindow, RateLimit, SlidingWindow, StrictRate
from headgate.limits.bucket_store import Bucket
from headgate.limits.limit import AnyRule, Limit
from headgate.limits.redis.message_lines import AsyncLines, BlockingLines, BucketLine, Steps
from headgate.limits.redis.redis_buckets import RedisBuckets
from tests.durability.tcp_proxy import Break, TcpProxy
from tests.redis_server import redis_url, server_in  # noqa: F401

LIMITS = [StrictRate("2/h"), RateLimit("2/h"), FixedWindow("2/h"), SlidingWindow("2/h")]


class Gate:
    """A gate on a real Redis, through a proxy that can lose replies."""

    def __init__(self, proxy: TcpProxy, kind: str, url: str, prefix: str) -> None:
        self.proxy = proxy
        self.published: list[bytes] = []
        behind = f"redis://127.0.0.1:{proxy.port}{urlsplit(url).path}?prefix={prefix}"
        self._blocking = BlockingLines(behind, "app", publish=self.published.append, limits=dict)
        self._async = AsyncLines(behind, "app", publish=self._publish, limits=dict)
        self._is_async = kind == "async"
        self.buckets = RedisBuckets.from_url(f"{url}?prefix={prefix}")
        self.lines = self._async.lines

    async def ask(self, steps: Steps[Any]) -> Any:
        return await (self._async.ask(steps) if self._is_async else asyncio.to_thread(self._blocking.ask, steps))

    def lose(self, verb: bytes) -> Break:
        """Lose the reply to the next request of this verb, and no name that has it in it."""
        return self.proxy.break_after(b"\r\n" + verb + b"\r\n")

    async def at(self, limit: Limit) -> BucketLine:
        """The place of a key whose script the server has loaded: a reply about a missing script is not a loss."""
        place = BucketLine(Bucket("api", "acme", limit.rule))
        await self.ask(self.lines.forget(place, "nobody"))
        return place

    async def used(self, rule: AnyRule) -> int:
        await self.buckets.open()
        return (await self.buckets.snapshot(Bucket("api", "acme", rule))).used

    async def close(self) -> None:
        await self.buckets.close()
        await self._async.close()
        self._blocking._client.close()

    async def _publish(self, message: bytes) -> None:
        self.published.append(message)


@pytest_asyncio.fixture(params=["async", "blocking"])
async def gate(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Gate]:  # noqa: F811
    async with TcpProxy.to(urlsplit(redis_url).port or 6379) as proxy:
        gate = Gate(proxy, request.param, redis_url, f"gates-{uuid.uuid4()}")
        yield gate
        await gate.close()


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_start_whose_reply_was_lost_is_charged_once(gate: Gate, limit: Limit) -> None:
    place = await gate.at(limit)
    lost = gate.lose(b"start")
    assert await gate.ask(gate.lines.start(place, "message-1"))
    assert lost.happened.is_set()
    assert await gate.used(limit.rule) == 1
    # The same message may come again, redelivered or retried: that is another start.
    assert await gate.ask(gate.lines.start(place, "message-1"))
    assert await gate.used(limit.rule) == 2
    lost = gate.lose(b"start")
    assert not await gate.ask(gate.lines.start(place, "message-1"))
    assert lost.happened.is_set()
    assert await gate.used(limit.rule) == 2


async def test_a_message_is_published_and_charged_once_whatever_replies_are_lost(gate: Gate) -> None:
    limit = StrictRate("1/h")
    place = await gate.at(limit)
    arrives, starts = gate.lines.arrive(place, "first", b"one"), gate.lines.start(place, "first")
    for verb, step in ((b"arrive", arrives), (b"start", starts)):
        lost = gate.lose(verb)
        assert await gate.ask(step)
        assert lost.happened.is_set()
    lost = gate.lose(b"arrive")
    assert not await gate.ask(gate.lines.arrive(place, "second", b"two"))
    assert lost.happened.is_set()
    assert await gate.used(limit.rule) == 1
    await gate.buckets.reset(place.bucket)
    lost = gate.lose(b"sent")
    await gate.ask(gate.lines.release_from(place))
    assert lost.happened.is_set()
    assert gate.published == [b"two"]
    await gate.ask(gate.lines.release_from(place))
    assert gate.published == [b"two"]
    assert await gate.ask(gate.lines.start(place, "second"))
    assert await gate.used(limit.rule) == 1


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_refused_start_whose_reply_was_lost_is_refused_again_and_keeps_its_place(
    gate: Gate, limit: Limit
) -> None:
    place = await gate.at(limit)
    for id in ("a", "b"):
        assert await gate.ask(gate.lines.arrive(place, id, id.encode()))
    # Another client takes the budget that was reserved for them.
    await gate.buckets.open()
    assert (await gate.buckets.take(place.bucket, count=2)).granted == 2
    lost = gate.lose(b"start")
    assert not await gate.ask(gate.lines.start(place, "a"))
    assert lost.happened.is_set()
    assert not await gate.ask(gate.lines.arrive(place, "a", b"a"))
    await gate.buckets.reset(place.bucket)
    await gate.ask(gate.lines.release_from(place))
    assert gate.published == [b"a"]


async def test_concurrent_starts_with_lost_replies_use_exactly_the_limit(gate: Gate) -> None:
    limit = StrictRate("20/h")
    place = await gate.at(limit)
    started = 0
    for number in range(30):
        if number % 3 == 0:
            gate.lose(b"start")
        started += await gate.ask(gate.lines.start(place, f"message-{number}"))
    assert started == 20
    assert await gate.used(limit.rule) == 20


@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_a_gate_leaves_a_server_that_has_become_a_replica(kind: str, tmp_path: Path) -> None:
    """The fault: its connections to that server were kept, and calls ran without their limit as long as they lasted."""
    folder = tmp_path / "heir"
    folder.mkdir()
    with server_in(tmp_path) as server, server_in(folder) as heir, server.client() as old:
        async with TcpProxy.to(server.port) as proxy:
            gate = Gate(proxy, kind, server.url, "gates")
            place = await gate.at(StrictRate("2/h"))
            old.replicaof("127.0.0.1", str(heir.port))
            # The address leads to the new primary; what is connected to the old one stays so.
            proxy._target = heir.port
            assert [await gate.ask(gate.lines.start(place, id)) for id in "abc"] == [True, True, False]
            await gate.close()
