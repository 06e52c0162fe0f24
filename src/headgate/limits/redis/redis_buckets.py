"""RedisBuckets: buckets in Redis or Valkey, shared by every program that names the same server and prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

import msgspec
from redis.asyncio import Connection
from redis.asyncio.connection import parse_url
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from headgate.arguments import parse_seconds
from headgate.clock import Clock, Duration, SystemClock
from headgate.errors import DeclarationError, StorageUnavailable, StorageUnusable
from headgate.limits.bucket_store import Bucket, Taken, snapshot_of
from headgate.limits.key import bucket_key
from headgate.limits.limit import AnyRule
from headgate.limits.redis.bucket_client import AT_ONCE, BucketClient
from headgate.limits.redis.pipeline import RequestPipeline, connected, deadline, quietly_close, unavailable
from headgate.limits.redis.script import check_change, from_script, numbers
from headgate.limits.rule import Snapshot
from headgate.urls import displayed_url, without_secrets

OLDEST = (6, 2)
"""The oldest Redis that is supported; every Valkey (7.2 on) names a newer version of Redis as what it speaks."""

REMEMBERED = 10_000
"""Buckets whose names and numbers are kept ready; a busier program forgets them all and starts again."""


class RedisBuckets:
    """A `BucketStore` in Redis (6.2 or newer) or Valkey (7.2 or newer).

    `connect` makes a connection, not yet connected; `prefix` begins the names of all keys. Connecting, and each
    request, may take `timeout` seconds (default 2), after which StorageUnavailable is raised. Limit time is the
    server's, but for a bucket it never goes back. `limit_time` tells another instead, for tests.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        prefix: str = "headgate",
        timeout: Duration = 2.0,
        clock: Clock | None = None,
        limit_time: Callable[[], int] | None = None,
    ) -> None:
        if not prefix or set(prefix) & set("{}"):
            raise DeclarationError(f"prefix={prefix!r} of buckets in Redis must not be empty nor hold braces")
        seconds = parse_seconds(timeout, "timeout", "buckets in Redis", allow_zero=False)
        self.advice: str | None = None
        """What the server's settings may do to budgets, for whoever logs; known once it is open."""
        self._connect = connect
        self._prefix = prefix
        self._timeout = seconds
        self._clock = clock or SystemClock()
        self._limit_time = limit_time
        self._pipe = RequestPipeline(connect, self._clock, seconds)
        self._desks: dict[Bucket, BucketClient] = {}
        self._is_open = False

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "headgate",
        timeout: Duration = 2.0,
        clock: Clock | None = None,
        limit_time: Callable[[], int] | None = None,
    ) -> Self:
        """Buckets at `redis://user:password@host:6379/0`, `rediss://…` (TLS) or `unix:///path?db=0`.

        The URL may also say `?prefix=` and `?timeout=`, which win. Raises DeclarationError for one that cannot be read.
        """
        address = read_url(url, prefix=prefix, timeout=timeout)
        prefix = address.prefix
        try:
            settings: dict[str, Any] = dict(parse_url(address.url))
            made_by = settings.pop("connection_class", Connection)
            # The deadlines are ours: one for each request, however many replies it brings.
            settings |= {"socket_timeout": None, "socket_connect_timeout": None, "protocol": 2}
            made_by(**settings)
        except (ValueError, TypeError, RedisError) as error:
            raise DeclarationError(
                f"{displayed_url(url)} is not the URL of a Redis: {without_secrets(str(error), url)}"
            ) from None
        return cls(
            lambda: made_by(**settings), prefix=prefix, timeout=address.timeout, clock=clock, limit_time=limit_time
        )

    def check_rule(self, rule: AnyRule) -> None:
        """Raise DeclarationError for a rule beyond the numbers that Redis's scripts count with."""
        numbers(rule)

    async def open(self) -> None:
        """Connect once and look at the server. Raises StorageUnusable for one that is too old or refuses the user."""
        if self._is_open:
            return
        try:
            connection = await connected(self._connect, self._clock, self._timeout)
            try:
                with deadline(self._clock, self._timeout):
                    await connection.send_command("INFO", check_health=False)
                    info = _settings(await connection.read_response())
            finally:
                await quietly_close(connection)
        except (AuthenticationError, NoPermissionError) as error:
            raise StorageUnusable(f"Redis refuses this user: {error}; check user and password of the URL") from error
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
        version = info.get("redis_version", "unknown")
        if (known := _version(version)) is not None and known < OLDEST:
            raise StorageUnusable(f"Redis {version} is too old; 6.2 is the oldest that Headgate can use")
        if (policy := info.get("maxmemory_policy", "")).startswith("allkeys"):
            self.advice = (
                f"the server's maxmemory-policy {policy} forgets buckets that are still in use, and their keys then "
                "start afresh; set it to noeviction or volatile-ttl, or use a server of its own"
            )
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        await self._pipe.close()

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        """As `BucketStore.take`; at most 10,000 starts in one call."""
        desk = self._desk(bucket, cost)
        count = min(count, AT_ONCE)
        if id is None:
            return await desk.take(cost, count)
        return Taken(*await desk.ask(b"take", cost, count, id=id))

    async def reserve(self, bucket: Bucket, cost: int = 1, *, id: str) -> Taken:
        return Taken(*await self._desk(bucket, cost).ask(b"reserve", cost, id=id))

    async def cancel(self, bucket: Bucket, *, id: str) -> bool:
        """As `BucketStore.cancel`; one also stays if what its bucket holds was amended since."""
        (done,) = await self._desk(bucket).ask(b"cancel", id=id, may_repeat=False)
        return bool(done)

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        desk = self._desk(bucket)
        check_change(bucket.rule, cost, actual)
        await desk.ask(b"amend", charged_at, cost, started_at, actual, may_repeat=False)

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        await self._desk(bucket).ask(b"penalize", closed_for)

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        now, text, closed_until = await self._desk(bucket).ask(b"snapshot")
        rule = bucket.rule.for_key(bucket_key(bucket.key))
        state = None if text is None else bucket.rule.load(from_script(text), now)
        return snapshot_of(lambda at: rule.snapshot(state, at), now, closed_until)

    async def reset(self, bucket: Bucket) -> None:
        """As `BucketStore.reset`; the keys of a DynamicWindow share one bucket, and are forgotten together."""
        await self._desk(bucket).ask(b"reset")

    # --------------------------------------------------------------------------------------------------- within

    def key_of(self, bucket: Bucket) -> str:
        """The name of the bucket's key in Redis: one hash tag, so that what belongs to it lies in its slot.

        The keys of a DynamicWindow share one.
        """
        return key_name(self._prefix, bucket)

    def _desk(self, bucket: Bucket, cost: int = 1) -> BucketClient:
        if not self._is_open:
            raise StorageUnavailable("these buckets are not open; await their open() first")
        desk = self._desks.get(bucket)
        if desk is None:
            if len(self._desks) >= REMEMBERED:
                self._desks.clear()
            desk = self._desks[bucket] = BucketClient(
                bucket, self.key_of(bucket), self._pipe, self._clock, self._limit_time
            )
        if cost < 1:
            raise ValueError(f"a cost of {cost} is not a whole number of at least 1")
        bucket.rule.check_cost(cost)
        return desk


class RedisAddress(msgspec.Struct, frozen=True):
    """A URL as the client reads it, and what else it said."""

    url: str
    prefix: str
    timeout: float


def read_url(url: str, *, prefix: str = "headgate", timeout: Duration = 2.0) -> RedisAddress:
    """What `RedisBuckets.from_url` reads from a URL. Raises DeclarationError for one that cannot be read."""
    address, _, query = url.partition("?")
    options = dict(parse_qsl(query))
    prefix = options.pop("prefix", prefix)
    # The value of this option may be shown, unlike all else that stands in a URL.
    seconds = parse_seconds(options.pop("timeout", timeout), "timeout", "the URL of a Redis", allow_zero=False)
    try:
        read = f"{address}?{urlencode(options)}" if options else address
        parse_url(read)
    except ValueError as error:
        raise DeclarationError(
            f"{displayed_url(url)} is not the URL of a Redis: {without_secrets(str(error), url)}"
        ) from None
    return RedisAddress(read, prefix, seconds)


def key_name(prefix: str, bucket: Bucket) -> str:
    """As `RedisBuckets.key_of`."""
    if bucket.rule.shares_state:
        return f"{{{prefix}:{_escaped(bucket.limit)}:*}}"
    return f"{{{prefix}:{_escaped(bucket.limit)}:{_escaped(bucket.key)}}}"


_SPECIAL = str.maketrans({"%": "%25", ":": "%3A", "{": "%7B", "}": "%7D", "*": "%2A"})


def _escaped(text: str) -> str:
    """Part of a key's name: no two texts share one, and none ends the hash tag."""
    return bucket_key(text).translate(_SPECIAL)


def _settings(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
    return {name: value for name, _, value in lines}


def _version(text: str) -> tuple[int, ...] | None:
    parts = text.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else None
