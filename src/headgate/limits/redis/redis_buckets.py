"""RedisBuckets: buckets in Redis or Valkey, shared by every program with the same server and prefix."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlencode

from redis.asyncio import Connection
from redis.asyncio.connection import parse_url
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from headgate.arguments import parse_seconds
from headgate.clock import Clock, SystemClock
from headgate.errors import DeclarationError, StorageUnavailable, StorageUnusable, own_error
from headgate.limits.bucket_store import Bucket, ServerReport, Taken, snapshot_of
from headgate.limits.key import bucket_key
from headgate.limits.limit import AnyRule
from headgate.limits.redis.pipeline import RequestPipeline, ScriptCall, connected, deadline, quietly_close, unavailable
from headgate.limits.redis.script import (
    MAX_TRIES,
    Script,
    check_change,
    converted,
    load_state,
    numbers,
    rewritten,
    script,
)
from headgate.limits.rule import Snapshot
from headgate.urls import displayed_url, without_secrets

OLDEST = (6, 2)
"""The oldest supported Redis; every Valkey (7.2 on) reports a newer Redis version for compatibility."""

MAX_BATCH = 10_000
"""The maximum of starts granted in one call."""

PREFIX = "headgate"
"""The beginning of the names of all keys, unless the URL has another one."""

TIMEOUT = 2.0
"""Seconds for connecting, and for each request, unless the URL has others."""

CLOSED = b":closed"
"""The suffix of the key that stores until when a bucket is closed."""

_PADDING = (b"",) * 4

MAX_CLIENTS = 10_000
"""The maximum of bucket clients kept; a program with more clears them all and starts again."""


class RedisBuckets:
    """A `BucketStore` in Redis (6.2 or newer) or Valkey (7.2 or newer).

    `connect` makes a connection, not yet connected; `prefix` begins the names of all keys. Connecting, and each
    request, may take `timeout` seconds, after which StorageUnavailable is raised. Limit time is the server's, except
    that it never goes back for a bucket. `limit_time` replaces it in tests.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        prefix: str = PREFIX,
        timeout: float = TIMEOUT,
        clock: Clock | None = None,
        limit_time: Callable[[], int] | None = None,
    ) -> None:
        self.advice: str | None = None
        """Says what the server's settings may do to budgets, for the log; `open` sets it."""
        self._connect = connect
        self._prefix = prefix
        self._timeout = timeout
        self._clock = clock or SystemClock()
        self._limit_time = limit_time
        self._pipeline = RequestPipeline(connect, self._clock, timeout)
        self._clients: dict[Bucket, BucketClient] = {}
        self._is_open = False

    @classmethod
    def from_url(cls, url: str, *, limit_time: Callable[[], int] | None = None) -> Self:
        """Return buckets at `redis://user:password@host:6379/0`, `rediss://…` (TLS) or `unix:///path?db=0`.

        The URL may also have `?prefix=` and `?timeout=`. Raises DeclarationError for an invalid URL.
        """
        address = read_url(url)
        return cls(address.connect, prefix=address.prefix, timeout=address.timeout, limit_time=limit_time)

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
                    text = (await connection.read_response()).decode("utf-8", "replace")
            finally:
                await quietly_close(connection)
        except (AuthenticationError, NoPermissionError) as error:
            raise StorageUnusable(str(unavailable(error))) from error
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
        info = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
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

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> int | None:
        client = self._client(bucket)
        check_change(bucket.rule, cost, actual)
        (now,) = await client.ask(b"amend", charged_at, cost, started_at, actual, may_repeat=False)
        return int(now)

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

    def _client(self, bucket: Bucket, cost: int = 1) -> BucketClient:
        if not self._is_open:
            raise StorageUnavailable("these buckets are not open; await their open() first")
        client = self._clients.get(bucket)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                self._clients.clear()
            client = self._clients[bucket] = BucketClient(
                bucket, key_name(self._prefix, bucket), self._pipeline, self._clock, self._limit_time
            )
        if cost < 1:
            raise ValueError(f"cost={cost} must be a whole number, at least 1")
        bucket.rule.check_cost(cost)
        return client


class RedisAddress(NamedTuple):
    """A URL as the client reads it, its other options, and what makes a connection to it."""

    url: str
    prefix: str
    timeout: float
    connect: Callable[[], Connection]


def read_url(url: str) -> RedisAddress:
    """Return the parts of a URL of `RedisBuckets.from_url`. Raises DeclarationError for an invalid URL."""
    address, _, query = url.partition("?")
    options = dict(parse_qsl(query))
    prefix = options.pop("prefix", PREFIX)
    options.pop("decode_responses", None)  # replies are read as bytes
    if set(prefix) & set("{}"):
        raise DeclarationError(f"prefix={prefix!r} of the URL of a Redis must not have braces")
    # The value of this option may appear in a message, unlike all else in a URL.
    seconds = parse_seconds(options.pop("timeout", TIMEOUT), "timeout", "the URL of a Redis", allow_zero=False)
    read = f"{address}?{urlencode(options)}" if options else address
    try:
        settings: dict[str, Any] = dict(parse_url(read))
        connection_class = settings.pop("connection_class", Connection)
        # Of the connections of a gate; a limit has one.
        settings.pop("max_connections", None)
        # The timeouts are Headgate's: one for each request, however many replies it has.
        connect = partial(
            connection_class, **settings | {"socket_timeout": None, "socket_connect_timeout": None, "protocol": 2}
        )
        connect()
    except (ValueError, TypeError, RedisError) as error:
        raise DeclarationError(
            f"{displayed_url(url)} is not the URL of a Redis: {without_secrets(str(error), url)}"
        ) from None
    return RedisAddress(read, prefix, seconds, connect)


def key_name(prefix: str, bucket: Bucket) -> str:
    """Return the name of a bucket's key: one hash tag, so that all its keys are in one slot.

    The keys of a DynamicWindow share one bucket.
    """
    if bucket.rule.shares_state:
        return f"{{{prefix}:{escaped(bucket.limit)}:*}}"
    return f"{{{prefix}:{escaped(bucket.limit)}:{escaped(bucket.key)}}}"


_SPECIAL = str.maketrans({"%": "%25", ":": "%3A", "{": "%7B", "}": "%7D", "*": "%2A"})


def escaped(text: str) -> str:
    """Return a part of a key's name: different for every text, and it never ends the hash tag."""
    return bucket_key(text).translate(_SPECIAL)


def _version(text: str) -> tuple[int, ...] | None:
    parts = text.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else None


class BucketClient:
    """A client of one bucket. Callers of `take` that arrive before the next request is sent share one script call."""

    __slots__ = (
        "_open_batch",
        "_pipeline",
        "answers",
        "bucket",
        "clock",
        "key",
        "keys",
        "limit_time",
        "numbers",
        "script",
    )

    def __init__(
        self, bucket: Bucket, key: str, pipeline: RequestPipeline, clock: Clock, limit_time: Callable[[], int] | None
    ) -> None:
        self.bucket = bucket
        self.clock = clock
        self.limit_time = limit_time
        self._pipeline = pipeline
        self.numbers = numbers(bucket.rule)
        self.script: Script = script("bucket", "verbs", rule=bucket.rule.lua)
        self.key = key.encode()
        closed = self.key + CLOSED
        self.answers = self.key + b":answers"
        if bucket.rule.shares_state:
            # One state for all keys: the script receives the key; each key has its own closing time and ids.
            own = bucket_key(bucket.key).encode()
            self.numbers += (own,)
            closed += b":" + own
            self.answers += b":" + own
        self.keys = (self.key, closed)
        """The Redis keys of every call."""
        self._open_batch: _TakeBatch | None = None

    async def take(self, cost: int, count: int) -> Taken:
        """Take without an id."""
        batch = self._open_batch
        if batch is None or batch.cost != cost or batch.total + count > MAX_BATCH:
            batch = self._open_batch = _TakeBatch(self, cost)
            self._pipeline.send(batch)
        return await batch.join(count)

    async def ask(self, verb: bytes, *arguments: int, id: str | None = None, may_repeat: bool = True) -> Any:
        """Return the script's reply to any other verb."""
        call = _CallerRequest(self, verb, arguments, id, may_repeat)
        self._pipeline.send(call)
        return await call.answer

    def detach(self, batch: _TakeBatch) -> None:
        """Let later callers of `take` start a new batch."""
        if self._open_batch is batch:
            self._open_batch = None


class _BucketCall(ScriptCall):
    """A call about one bucket. It converts a state that another rule wrote, and runs again with the converted one."""

    __slots__ = ("client", "new_text", "stored_text", "tries")

    def __init__(self, client: BucketClient, keys: tuple[bytes, ...], may_repeat: bool) -> None:
        super().__init__(client.script, keys, may_repeat, client.clock.monotonic())
        self.client = client
        self.stored_text = self.new_text = b""
        self.tries = 0

    def script_arguments(self, verb: bytes, id: bytes, *arguments: int) -> tuple[bytes, ...]:
        limit_time = self.client.limit_time
        now = b"" if limit_time is None else b"%d" % limit_time()
        digits = [b"%d" % number for number in arguments]
        return (
            verb,
            id,
            now,
            self.stored_text,
            self.new_text,
            *digits,
            *_PADDING[len(arguments) :],
            *self.client.numbers,
        )

    def settle(self, reply: Any) -> ScriptCall | None:
        try:
            if reply[0] != -1:
                self.resolve(reply)
                return None
            self.stored_text, self.new_text = converted(self.client.bucket.rule, reply)
            self.tries += 1
            if self.tries > MAX_TRIES:
                raise rewritten(self.client.key, self.client.bucket)
        except Exception as error:
            self.fail(error)
            return None
        return self

    @abstractmethod
    def resolve(self, reply: list[Any]) -> None:
        """Pass the reply to the callers."""


class _CallerRequest(_BucketCall):
    """The call of one caller."""

    __slots__ = ("answer", "arguments", "id", "verb")

    def __init__(
        self, client: BucketClient, verb: bytes, arguments: tuple[int, ...], id: str | None, may_repeat: bool
    ) -> None:
        with_answers = id is not None or verb == b"reset"
        super().__init__(client, (*client.keys, client.answers) if with_answers else client.keys, may_repeat)
        self.verb = verb
        self.id = b"" if id is None else b"=" + bucket_key(id).encode()
        self.arguments = arguments
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def build_arguments(self) -> tuple[bytes, ...] | None:
        return None if self.answer.done() else self.script_arguments(self.verb, self.id, *self.arguments)

    def resolve(self, reply: list[Any]) -> None:
        if not self.answer.done():
            self.answer.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(own_error(error))


class _TakeBatch(_BucketCall):
    """One call for all callers that take starts of one cost in one turn of the loop; first come, first served."""

    __slots__ = ("cost", "total", "waiting")

    def __init__(self, client: BucketClient, cost: int) -> None:
        super().__init__(client, client.keys, may_repeat=False)
        self.cost = cost
        self.total = 0
        self.waiting: list[tuple[int, asyncio.Future[Taken]]] = []

    def join(self, count: int) -> asyncio.Future[Taken]:
        answer: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        self.waiting.append((count, answer))
        self.total += count
        return answer

    def build_arguments(self) -> tuple[bytes, ...] | None:
        self.client.detach(self)
        self.waiting = [(count, answer) for count, answer in self.waiting if not answer.done()]
        self.total = sum(count for count, _ in self.waiting)
        return self.script_arguments(b"take", b"", self.cost, self.total) if self.waiting else None

    def resolve(self, reply: list[Any]) -> None:
        left, opens_at, now, available, full_at = reply
        for count, answer in self.waiting:
            granted = min(count, left)
            left -= granted
            if not answer.done():
                answer.set_result(Taken(granted, opens_at, now, available, full_at))

    def fail(self, error: Exception) -> None:
        self.client.detach(self)
        for _, answer in self.waiting:
            if not answer.done():
                answer.set_exception(own_error(error))
