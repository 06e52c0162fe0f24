"""Limits in Redis when programs compete, and when the server, its memory or its replies go away."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from headgate.errors import StorageUnavailable
from headgate.limits.bucket_store import Bucket
from headgate.limits.rate_limit import RateLimit
from headgate.limits.redis.redis_buckets import RedisBuckets
from headgate.limits.strict_rate import StrictRate
from tests.durability.tcp_proxy import TcpProxy
from tests.redis_server import RedisServer, server_in
from tests.until import patient, until_now

TIMEOUT = 1.0
"""Of a store whose server does not answer; the others have a timeout that no reply takes."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with server_in(tmp_path) as server:
        yield server


@contextlib.asynccontextmanager
async def buckets_at(url: str, timeout: float = 20) -> AsyncIterator[RedisBuckets]:
    store = RedisBuckets.from_url(f"{url}?timeout={timeout}")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def hundred(limit: str = "hundred") -> Bucket:
    """100 an hour: what comes back during a test is less than one."""
    return Bucket(limit, "acme", RateLimit(100, per=360_000).rule)


async def granted(store: RedisBuckets, bucket: Bucket, asks: int) -> int:
    """How many of so many takes were granted; each is asked on its own, one after the other."""
    return sum([(await store.take(bucket)).granted for _ in range(asks)])


async def comes_back(store: RedisBuckets, bucket: Bucket) -> None:
    """Return once the store answers again."""
    for _ in range(1000):
        with contextlib.suppress(StorageUnavailable):
            await store.snapshot(bucket)
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come back")


def until_linked(replica: redis.Redis) -> None:
    until_now(lambda: replica.info("replication")["master_link_status"] == "up")


async def test_a_killed_server_is_unavailable_and_one_burst_is_granted_again_when_it_is_back(
    server: RedisServer,
) -> None:
    bucket = hundred()
    async with buckets_at(server.url, TIMEOUT) as store:
        before = await granted(store, bucket, 90)
        load = [asyncio.ensure_future(granted(store, bucket, 1000)) for _ in range(8)]
        await asyncio.sleep(0.02)
        server.kill()
        failures = await asyncio.gather(*load, return_exceptions=True)
        assert all(isinstance(failure, StorageUnavailable) for failure in failures)
        began = time.monotonic()
        with pytest.raises(StorageUnavailable):
            await store.take(bucket)
        assert time.monotonic() - began < patient(3 * TIMEOUT)
        server.start()
        await comes_back(store, bucket)
        after = await granted(store, bucket, 250)
    assert before == 90
    # The bucket is new and full: one more burst for each loss, as documented, and no further start.
    assert after == 100


async def test_a_short_absence_of_the_server_is_waited_for(server: RedisServer) -> None:
    bucket = hundred()
    async with buckets_at(server.url) as store:
        assert await granted(store, bucket, 1) == 1
        server.kill()
        # What is asked meanwhile has an id: it may be sent again, whatever became of the first time.
        taking = asyncio.ensure_future(store.take(bucket, id="patient"))
        await asyncio.sleep(0.1)
        assert not taking.done()
        server.start()
        assert (await taking).granted == 1


async def test_scripts_that_the_server_has_lost_are_loaded_again(server: RedisServer) -> None:
    bucket = hundred()
    async with buckets_at(server.url) as store:
        load = [asyncio.ensure_future(granted(store, bucket, 100)) for _ in range(8)]
        with server.client() as client:
            for _ in range(20):
                await asyncio.to_thread(client.script_flush)
        assert sum(await asyncio.gather(*load)) == 100


async def test_a_stopped_server_is_reported_in_time_and_used_again_when_it_resumes(server: RedisServer) -> None:
    bucket = hundred()
    async with buckets_at(server.url, TIMEOUT) as store:
        assert await granted(store, bucket, 1) == 1
        server.signal(signal.SIGSTOP)
        began = time.monotonic()
        failures = await asyncio.gather(
            store.take(bucket), store.take(bucket, id="a"), store.snapshot(bucket), return_exceptions=True
        )
        assert TIMEOUT <= time.monotonic() - began < patient(4 * TIMEOUT)
        assert all(isinstance(failure, StorageUnavailable) for failure in failures)
        server.signal(signal.SIGCONT)
        await comes_back(store, bucket)
        assert (await store.take(bucket)).granted == 1


@pytest.mark.nightly
async def test_a_replica_that_lost_the_last_starts_grants_only_those_again(server: RedisServer, tmp_path: Path) -> None:
    bucket = hundred()
    folder = tmp_path / "replica"
    folder.mkdir()
    with server_in(folder, "--replicaof", "127.0.0.1", str(server.port)) as replica, replica.client() as remote:
        async with TcpProxy.to(server.port) as proxy, buckets_at(proxy.url, TIMEOUT) as store:
            await asyncio.to_thread(until_linked, remote)
            assert await granted(store, bucket, 60) == 60
            with server.client() as local:
                local.wait(1, round(patient(5) * 1000))
            # The two lose sight of each other; what is granted from now on is not known there.
            remote.replicaof("NO", "ONE")
            assert await granted(store, bucket, 200) == 40
            server.kill()
            proxy.put_to(replica.port)
            await comes_back(store, bucket)
            assert await granted(store, bucket, 200) == 40


async def test_a_server_that_became_a_replica_is_replaced_by_the_new_primary(
    server: RedisServer, tmp_path: Path
) -> None:
    bucket = hundred()
    folder = tmp_path / "heir"
    folder.mkdir()
    with server_in(folder) as heir, server.client() as local:
        async with TcpProxy.to(server.port) as proxy, buckets_at(proxy.url) as store:
            assert await granted(store, bucket, 1) == 1
            local.replicaof("127.0.0.1", str(heir.port))
            # With an id: a try may be in flight when the connection is cut, and without one its reply is not known.
            taking = asyncio.ensure_future(store.take(bucket, id="claim-1"))
            await asyncio.sleep(0.1)
            assert not taking.done()
            proxy.put_to(heir.port)
            assert (await taking).granted == 1


async def test_all_requests_in_flight_are_sent_again_to_the_new_primary(server: RedisServer, tmp_path: Path) -> None:
    buckets = [hundred(f"hundred {number}") for number in range(40)]
    folder = tmp_path / "heir"
    folder.mkdir()
    with server_in(folder) as heir, server.client() as local:
        async with TcpProxy.to(server.port) as proxy, buckets_at(proxy.url) as store:
            assert await granted(store, buckets[0], 1) == 1
            local.replicaof("127.0.0.1", str(heir.port))
            taking = asyncio.ensure_future(asyncio.gather(*(store.take(bucket, id="claim-1") for bucket in buckets)))
            await asyncio.sleep(0.1)
            assert not taking.done()
            proxy.put_to(heir.port)
            assert [taken.available for taken in await taking] == [99] * 40


async def test_a_lost_reply_to_a_take_with_an_id_is_not_charged_twice(server: RedisServer) -> None:
    bucket = hundred()
    async with TcpProxy.to(server.port) as proxy, buckets_at(proxy.url) as store:
        assert await granted(store, bucket, 1) == 1
        proxy.replies_to_lose = 1
        taken = await store.take(bucket, count=7, id="claim-1")
        assert proxy.replies_to_lose == 0
        assert taken.granted == 7
        assert (await store.snapshot(bucket)).used == 8


async def test_a_lost_reply_to_a_booking_is_given_the_slot_that_was_booked(server: RedisServer) -> None:
    bucket = Bucket("booked", "acme", StrictRate(1, per=3600).rule)
    async with TcpProxy.to(server.port) as proxy, buckets_at(proxy.url) as store:
        first = await store.take(bucket)
        proxy.replies_to_lose = 1
        booked = await store.reserve(bucket, id="a")
        assert booked.opens_at == first.now + bucket.rule.period
        assert (await store.reserve(bucket, id="b")).opens_at == first.now + 2 * bucket.rule.period


async def test_a_lost_reply_to_a_take_without_an_id_is_reported_as_not_known(server: RedisServer) -> None:
    bucket = hundred()
    async with TcpProxy.to(server.port) as proxy, buckets_at(proxy.url) as store:
        assert await granted(store, bucket, 1) == 1
        proxy.replies_to_lose = 1
        with pytest.raises(StorageUnavailable, match="not known"):
            await store.take(bucket)
        # It was counted, and counted once.
        assert (await store.snapshot(bucket)).used == 2


async def test_lost_replies_to_two_requests_charge_each_bucket_once(server: RedisServer) -> None:
    buckets = [hundred(f"hundred {number}") for number in range(40)]
    async with TcpProxy.to(server.port) as proxy, buckets_at(proxy.url) as store:
        assert await granted(store, hundred(), 1) == 1
        proxy.replies_to_lose = 1
        # Every second one may be asked again.
        takes = (store.take(bucket, id="a" if number % 2 else None) for number, bucket in enumerate(buckets))
        answers = await asyncio.gather(*takes, return_exceptions=True)
        assert proxy.replies_to_lose == 0
        assert all(isinstance(answer, StorageUnavailable) for answer in answers[::2])
        used = [(await store.snapshot(bucket)).used for bucket in buckets]
        assert used[1::2] == [1] * 20
        assert set(used[::2]) <= {0, 1}


async def test_full_memory_is_reported_and_grants_nothing(tmp_path: Path) -> None:
    with server_in(tmp_path, "--maxmemory", "100kb", "--maxmemory-policy", "noeviction") as server:
        async with buckets_at(server.url) as store:
            with pytest.raises(StorageUnavailable, match="maxmemory"):
                await store.take(hundred())


async def test_an_eviction_policy_that_evicts_buckets_is_warned_about(tmp_path: Path) -> None:
    with server_in(tmp_path, "--maxmemory-policy", "allkeys-lru") as server:
        async with buckets_at(server.url) as store:
            assert store.advice is not None
            assert "allkeys-lru" in store.advice
