"""RedisBuckets: buckets in Redis or Valkey, shared by every program with the same server and prefix."""

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
from headgate.limits.bucket_store import Bucket, ServerReport, Taken, snapshot_of
from headgate.limits.key import bucket_key
from headgate.limits.limit import AnyRule
from headgate.limits.redis.bucket_client import MAX_BATCH, BucketClient
from headgate.limits.redis.pipeline import RequestPipeline, connected, deadline, quietly_close, unavailable
from headgate.limits.redis.script import check_change, load_state, numbers
from headgate.limits.rule import Snapshot
from headgate.urls import displayed_url, without_secrets

OLDEST = (6, 2)
"""The oldest supported Redis; every Valkey (7.2 on) reports a newer Redis version for compatibility."""

MAX_CLIENTS = 10_000
"""The maximum of bucket clients kept; a program with more clears them all and starts again."""


class RedisBuckets:
    """A `BucketStore` in Redis (6.2 or newer) or Valkey (7.2 or newer).

    `connect` makes a connection, not yet connected; `prefix` begins the names of all keys. Connecting, and each
    request, may take `timeout` seconds (default 2), after which StorageUnavailable is raised. Limit time is the
    server's, except that it never goes back for a bucket. `limit_time` replaces it in tests.
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
        """Says what the server's settings may do to budgets, for the log; `open` sets it."""
        self._connect = connect
        self._prefix = prefix
        self._timeout = seconds
        self._clock = clock or SystemClock()
        self._limit_time = limit_time
        self._pipeline = RequestPipeline(connect, self._clock, seconds)
        self._clients: dict[Bucket, BucketClient] = {}
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
        """Return buckets at `redis://user:password@host:6379/0`, `rediss://…` (TLS) or `unix:///path?db=0`.

        The URL may also have `?prefix=` and `?timeout=`, which take precedence. Raises DeclarationError for an invalid
        URL.
        """
        address = read_url(url, prefix=prefix, timeout=timeout)
        prefix = address.prefix
        try:
            settings: dict[str, Any] = dict(parse_url(address.url))
            connection_class = settings.pop("connection_class", Connection)
            # The timeouts are Headgate's: one for each request, however many replies it has.
            settings |= {"socket_timeout": None, "socket_connect_timeout": None, "protocol": 2}
            connection_class(**settings)
        except (ValueError, TypeError, RedisError) as error:
            raise DeclarationError(
                f"{displayed_url(url)} is not the URL of a Redis: {without_secrets(str(error), url)}"
            ) from None
        return cls(
            lambda: connection_class(**settings),
            prefix=prefix,
            timeout=address.timeout,
            clock=clock,
            limit_time=limit_time,
        )

    def check_rule(self, rule: AnyRule) -> None:
        """Raise DeclarationError for a rule whose numbers are too large for the Redis scripts."""
        numbers(rule)

    async def open(self) -> None:
        """Connect once and check the server. Raises StorageUnusable if it is too old or refuses the user."""
        if not self._is_open:
            self.advice = (await self.report()).advice
            self._is_open = True

    async def report(self) -> ServerReport:
        """Return the version and the eviction policy of the server. Raises as `open`."""
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
        policy = info.get("maxmemory_policy", "unknown")
        advice = None
        if policy.startswith("allkeys"):
            advice = (
                f"the server's maxmemory-policy {policy} forgets buckets that are still in use, and their keys then "
                "start afresh; set it to noeviction or volatile-ttl, or use a server of its own"
            )
        return ServerReport(f"Redis {version}, maxmemory-policy {policy}", advice)

    async def close(self) -> None:
        self._is_open = False
        await self._pipeline.close()

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        """Same as `BucketStore.take`, with at most 10,000 starts in one call."""
        client = self._client(bucket, cost)
        count = min(count, MAX_BATCH)
        if id is None:
            return await client.take(cost, count)
        return Taken(*await client.ask(b"take", cost, count, id=id))

    async def reserve(self, bucket: Bucket, cost: int = 1, *, id: str) -> Taken:
        return Taken(*await self._client(bucket, cost).ask(b"reserve", cost, id=id))

    async def cancel(self, bucket: Bucket, *, id: str) -> bool:
        """Same as `BucketStore.cancel`. A reservation also stays if its bucket was amended since."""
        (done,) = await self._client(bucket).ask(b"cancel", id=id, may_repeat=False)
        return bool(done)

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        client = self._client(bucket)
        check_change(bucket.rule, cost, actual)
        await client.ask(b"amend", charged_at, cost, started_at, actual, may_repeat=False)

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        await self._client(bucket).ask(b"penalize", closed_for)

    async def refuse(self, bucket: Bucket, charged_at: int | None = None) -> None:
        # The repeat of a refusal at an unknown instant would be a second one.
        arguments = () if charged_at is None else (charged_at,)
        await self._client(bucket).ask(b"refuse", *arguments, may_repeat=charged_at is not None)

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        now, text, closed_until = await self._client(bucket).ask(b"snapshot")
        rule = bucket.rule.for_key(bucket_key(bucket.key))
        state = None if text is None else load_state(bucket.rule, text, now)
        return snapshot_of(lambda at: rule.snapshot(state, at), now, closed_until)

    async def reset(self, bucket: Bucket) -> None:
        """Same as `BucketStore.reset`. The keys of a DynamicWindow share one bucket and are all reset."""
        await self._client(bucket).ask(b"reset")

    # --------------------------------------------------------------------------------------------------- within

    def key_of(self, bucket: Bucket) -> str:
        """Return the name of the bucket's Redis key: one hash tag, so that all its keys are in one slot.

        The keys of a DynamicWindow share one bucket.
        """
        return key_name(self._prefix, bucket)

    def _client(self, bucket: Bucket, cost: int = 1) -> BucketClient:
        if not self._is_open:
            raise StorageUnavailable("these buckets are not open; await their open() first")
        client = self._clients.get(bucket)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                self._clients.clear()
            client = self._clients[bucket] = BucketClient(
                bucket, self.key_of(bucket), self._pipeline, self._clock, self._limit_time
            )
        if cost < 1:
            raise ValueError(f"cost={cost} must be a whole number, at least 1")
        bucket.rule.check_cost(cost)
        return client


class RedisAddress(msgspec.Struct, frozen=True):
    """A URL as the client reads it, and its other options."""

    url: str
    prefix: str
    timeout: float


def read_url(url: str, *, prefix: str = "headgate", timeout: Duration = 2.0) -> RedisAddress:
    """Return the parts of a URL that `RedisBuckets.from_url` uses. Raises DeclarationError for an invalid URL."""
    address, _, query = url.partition("?")
    options = dict(parse_qsl(query))
    prefix = options.pop("prefix", prefix)
    # The value of this option may appear in a message, unlike all else in a URL.
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
    """Return what `RedisBuckets.key_of` returns."""
    if bucket.rule.shares_state:
        return f"{{{prefix}:{_escaped(bucket.limit)}:*}}"
    return f"{{{prefix}:{_escaped(bucket.limit)}:{_escaped(bucket.key)}}}"


_SPECIAL = str.maketrans({"%": "%25", ":": "%3A", "{": "%7B", "}": "%7D", "*": "%2A"})


def _escaped(text: str) -> str:
    """Return a part of a key's name: different for every text, and it never ends the hash tag."""
    return bucket_key(text).translate(_SPECIAL)


def _settings(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
    return {name: value for name, _, value in lines}


def _version(text: str) -> tuple[int, ...] | None:
    parts = text.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else None
