"""The line before a bucket: messages of another program's broker that wait in Redis until their bucket opens.

A message that may not start yet is stored only in the line of its bucket. When the bucket opens, a program takes the
first messages of the line and publishes them again. A published message is in flight: its budget is reserved, and
charged at the instant that it starts. Each step is one script call that may be repeated.

The steps are generators that yield what to do. `BlockingLines` and `AsyncLines` do it, and release waiting messages: in
a thread, or in a task of an asyncio program.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from headgate.clock import SECOND, Clock, SystemClock, wait_for_event
from headgate.errors import StorageUnavailable
from headgate.limits.bucket_store import Bucket
from headgate.limits.key import bucket_key
from headgate.limits.redis.pipeline import unavailable
from headgate.limits.redis.redis_buckets import CLOSED, escaped, key_name, read_url
from headgate.limits.redis.script import MAX_TRIES, Script, converted, numbers, rewritten, script

T = TypeVar("T")

logger = logging.getLogger("headgate.gates")

SEND_TIMEOUT = 10 * SECOND
"""How long the sending of a released message may take; an unconfirmed one then returns to its line."""

RESERVED_FOR = 60 * SECOND
"""How long the budget of a published message stays reserved; a later start needs budget anew."""

DUE_LINE_LEASE = 5 * SECOND
"""How long a due line stays with the program that received it, before another program receives it."""

START_ANSWER_KEPT_FOR = 30 * SECOND
"""How long the answer to a start is kept: longer than a client repeats a request."""

MAX_BATCH = 100
"""The maximum of messages released, and of due lines returned, in one call."""

POLL_INTERVAL = 0.1
"""Seconds between polls, which find lines that another program has started."""

RETRY_INTERVAL = 1.0
"""Seconds until the next poll when Redis or the broker could not be reached."""

SHORTEST_PAUSE, LONGEST_TRY = SECOND // 2, 5 * SECOND
"""How long no request is made to a Redis that has not answered, and only one that tries it again."""


@dataclass(frozen=True, slots=True)
class RunScript:
    """Run this script; the reply is sent back to the generator."""

    script: Script
    keys: tuple[bytes, ...]
    arguments: tuple[bytes, ...]

    @property
    def operands(self) -> tuple[Any, ...]:
        """What follows the script in its command."""
        return len(self.keys), *self.keys, *self.arguments


Steps = Generator[RunScript | bytes, Any, T]
"""The steps to do, in order: a script to run, or a message to publish. The generator returns the result."""


class BucketLine(msgspec.Struct, frozen=True):
    """A bucket with its line; each message costs `cost`."""

    bucket: Bucket
    cost: int = 1

    @property
    def name(self) -> bytes:
        return msgspec.json.encode((self.bucket.limit, bucket_key(self.bucket.key)))


Limits = Mapping[str, Callable[[str], BucketLine]]
"""The limits of a program by name, each with what returns the line of a key."""


class MessageLines:
    """The lines of one program, called `name`: the program has its own lines, the buckets are shared.

    Programs of one name may have different limits, as two releases have: each releases the lines of its own.
    `limit_time` replaces the server's time in tests.
    """

    def __init__(
        self, name: str, prefix: str, *, clock: Clock | None = None, limit_time: Callable[[], int] | None = None
    ) -> None:
        self._own = f":{name}:".encode()
        self._begin = f"{prefix}:{name}:"
        self._prefix = prefix
        self._clock = clock or SystemClock()
        self._limit_time = limit_time

    def arrive(self, line: BucketLine, id: str, message: bytes) -> Steps[bool]:
        """Return whether a message may be published now. Otherwise it waits in the line, and must not be published."""
        reply = yield from self._run(line, b"arrive", id, lease=RESERVED_FOR, payload=message)
        return bool(reply[0])

    def start(self, line: BucketLine, id: str) -> Steps[bool]:
        """Return whether a message may start now; then it is charged. Otherwise it has to arrive again.

        The request has an id of its own: a client that repeats it after a lost reply receives the same answer for 30 s.
        The message's id cannot serve, as a message may start again: redelivered, or as a retry.
        """
        reply = yield from self._run(
            line, b"start", id, lease=START_ANSWER_KEPT_FOR, payload=os.urandom(12).hex().encode()
        )
        return bool(reply[0])

    def forget(self, line: BucketLine, id: str) -> Steps[None]:
        """Remove a message from the line and from those in flight: it will never start."""
        yield from self._run(line, b"forget", id)

    def release(self, limits: Limits, is_stopping: Callable[[], bool] = bool) -> Steps[float | None]:
        """Publish the messages that their buckets grant. Return the seconds until the next call, None if nothing waits.

        `limits` are those of this program. A message that cannot be published stops its own line only; its error is
        raised after the other lines.
        """
        failure: Exception | None = None
        keys = tuple(map(self._due_of, limits))
        due_lines = RunScript(script("due"), keys, (b"%d" % DUE_LINE_LEASE, b"%d" % MAX_BATCH))
        next_in, *names = (yield due_lines) if keys else (-1,)
        for name in names:
            limit, key = msgspec.json.decode(name, type=tuple[str, str])
            if not is_stopping():
                failure = (yield from self.release_from(limits[limit](key))) or failure
        if failure is not None:
            raise failure
        if names:
            # Each release has updated the due time of its line.
            next_in, *_ = yield RunScript(due_lines.script, due_lines.keys, (b"0", b"0"))
        return None if next_in < 0 else next_in / SECOND

    def release_from(self, line: BucketLine) -> Steps[Exception | None]:
        """Publish the messages that one bucket grants, in order, up to one that fails. Return the error of that.

        Those that a slow broker does not get in half of SEND_TIMEOUT return to the line when that is over.
        """
        until = self._clock.monotonic() + SEND_TIMEOUT // 2
        _, *lent = yield from self._run(line, b"release", lease=SEND_TIMEOUT)
        sent: list[str] = []
        failure: Exception | None = None
        try:
            for id, message in zip(lent[::2], lent[1::2], strict=True):
                if self._clock.monotonic() >= until:
                    break
                yield message
                sent.append(id.decode())
        except Exception as error:
            error.add_note(f"a message of {line.name.decode()}")
            failure = error
        if sent:
            yield from self._run(line, b"sent", lease=RESERVED_FOR, payload=msgspec.msgpack.encode(sent))
        return failure

    def _due_of(self, limit: str) -> bytes:
        """Return the key that stores when each line of a limit is due."""
        return f"{self._begin}{escaped(limit)}:lines".encode()

    def _run(
        self, line: BucketLine, verb: bytes, id: str = "", *, lease: int = 0, payload: bytes = b""
    ) -> Steps[list[Any]]:
        rule = line.bucket.rule
        at_one_instant = rule.bound(1)
        key = key_name(self._prefix, line.bucket).encode()
        own = key + self._own
        lists = (own + each for each in (b"line", b"messages", b"sending", b"sent"))
        keys = (key, key + CLOSED, *lists, self._due_of(line.bucket.limit), own + b"starts")
        fixed = (b"%d" % line.cost, b"%d" % lease, b"%d" % MAX_BATCH, b"%d" % (at_one_instant // line.cost))
        now = b"" if self._limit_time is None else b"%d" % self._limit_time()
        stored_text = new_text = b""
        for _ in range(MAX_TRIES):
            arguments = (verb, id.encode(), now, stored_text, new_text, *fixed, *numbers(rule), line.name, payload)
            reply: list[Any] = yield RunScript(script("bucket", "line", rule=rule.lua), keys, arguments)
            if reply[0] != -1:
                return reply
            stored_text, new_text = converted(rule, reply)
        raise rewritten(key, line.bucket)


class _LineClient:
    """What both clients share. The options of the URL are those of `RedisBuckets.from_url`.

    `publish` sends a message to the broker, and `limits` returns the limits of the program.
    """

    _redis: Any
    _event: Any

    def __init__(
        self,
        url: str,
        name: str,
        *,
        publish: Callable[[bytes], Any],
        limits: Callable[[], Limits],
        clock: Clock | None = None,
    ) -> None:
        address = read_url(url)
        # A request beyond the most connections waits for one.
        pool = self._redis.BlockingConnectionPool.from_url(
            address.url,
            timeout=address.timeout,
            socket_timeout=address.timeout,
            socket_connect_timeout=address.timeout,
            # Over a new connection: this one was cut while it was idle, or its server has become a replica, which Redis
            # 6 says in an error of the script. redis-py 5 repeats nothing without the second option.
            retry=self._redis.retry.Retry(NoBackoff(), 1),
            retry_on_error=[RedisError, TimeoutError],
            protocol=2,
        )
        self._client: Any = self._redis.Redis.from_pool(pool)
        self._publish = publish
        self._limits = limits
        self._clock = clock or SystemClock()
        self.lines = MessageLines(name, address.prefix, clock=self._clock)
        self._stopping: Any = self._event()
        self._paused_until = 0
        self._failure = ""
        self._warned: set[str] = set()

    def warn(self, message: str, *values: object) -> None:
        """Log what a failure means for a call: as a warning the first time since Redis last answered, then as debug."""
        logger.log(logging.DEBUG if message in self._warned else logging.WARNING, message, *values)
        self._warned.add(message)

    @contextlib.contextmanager
    def _requesting(self) -> Iterator[None]:
        """Raise StorageUnavailable if the request in the block fails, or without a request if one has just failed.

        The pause takes as long as that one took. Then one request tries it, and the others do not wait for a timeout.
        """
        began = self._clock.monotonic()
        if began < self._paused_until:
            raise StorageUnavailable(f"a moment ago, {self._failure}")
        if self._paused_until:
            self._paused_until = began + LONGEST_TRY
        try:
            yield
        except (RedisError, OSError) as error:
            failed_at = self._clock.monotonic()
            self._paused_until = failed_at + max(failed_at - began, SHORTEST_PAUSE)
            failure = unavailable(error)
            self._failure = str(failure)
            raise failure from error
        self._paused_until = 0
        self._warned.clear()

    def _after_poll(self, next_in: float | None) -> float:
        """Return the seconds to wait, when a waiting message can go in `next_in` seconds (None: none waits)."""
        self._is_failing = False
        return POLL_INTERVAL if next_in is None else min(next_in, POLL_INTERVAL)

    def _after_failure(self, error: Exception) -> float:
        """Return the seconds to wait after a failure, and log the first one. Unsent messages return to their place."""
        if not self._is_failing:
            unreachable = isinstance(error, StorageUnavailable)
            logger.warning("the gate cannot release: %s", error, exc_info=None if unreachable else error)
        self._is_failing = True
        return RETRY_INTERVAL


class BlockingLines(_LineClient):
    """Lines at `redis://…` for blocking programs. Safe for threads and across a fork."""

    _redis = redis
    _event = threading.Event
    _thread: threading.Thread | None = None

    def ask(self, steps: Steps[T]) -> T:
        """Run `steps` and return their result. Raises StorageUnavailable when Redis did not answer."""
        resume = partial(steps.send, None)
        while True:
            try:
                step = resume()
            except StopIteration as done:
                answer: T = done.value
                return answer
            try:
                reply = self._run(step) if isinstance(step, RunScript) else self._publish(step)
                resume = partial(steps.send, reply)
            except Exception as error:
                resume = partial(steps.throw, error)

    def passes(self, line: BucketLine, what: str, id: str, message: bytes) -> bool:
        """Return whether a message may go to the broker now; otherwise it waits in line. `what` it is, for the log."""
        try:
            return self.ask(self.lines.arrive(line, id, message))
        except StorageUnavailable as error:
            # The broker keeps it as well, and the limit is checked again at its start.
            self.warn("%s %s goes to the broker without a limit check: %s", what, id, error)
            return True

    def forget(self, line: BucketLine, what: str, id: str) -> None:
        """Remove a message from the line: it will never start."""
        try:
            self.ask(self.lines.forget(line, id))
        except StorageUnavailable as error:
            self.warn("%s %s keeps its place in line for a while: %s", what, id, error)

    def start(self) -> None:
        """Release waiting messages in a thread, until `stop`."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._release, name="headgate-gate", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, ask: RunScript) -> object:
        with self._requesting():
            try:
                return self._client.execute_command("EVALSHA", ask.script.sha, *ask.operands)
            except NoScriptError:
                return self._client.execute_command("EVAL", ask.script.source, *ask.operands)

    def _release(self) -> None:
        wait = 0.0
        self._is_failing = False
        while not self._stopping.wait(wait):
            try:
                # A broker that is away delays each line, and `stop` waits for one of them only.
                steps = self.lines.release(self._limits(), self._stopping.is_set)
                wait = self._after_poll(self.ask(steps))
            except Exception as error:
                # The broker's client can raise any exception.
                wait = self._after_failure(error)


class AsyncLines(_LineClient):
    """`BlockingLines` for asyncio programs, for one event loop; `publish` is async."""

    _redis = redis.asyncio
    _event = asyncio.Event
    _releasing: asyncio.Task[None] | None = None

    async def ask(self, steps: Steps[T]) -> T:
        """Run `steps` and return their result. Raises StorageUnavailable when Redis did not answer."""
        resume = partial(steps.send, None)
        while True:
            try:
                step = resume()
            except StopIteration as done:
                answer: T = done.value
                return answer
            try:
                reply = await (self._run(step) if isinstance(step, RunScript) else self._publish(step))
                resume = partial(steps.send, reply)
            except Exception as error:
                resume = partial(steps.throw, error)

    def start(self) -> None:
        """Release waiting messages in a task, until `close`."""
        self._stopping.clear()
        self._releasing = asyncio.create_task(self._release(), name="headgate-gate")

    async def close(self) -> None:
        # What is published at this moment has to be recorded, or it would be published again.
        self._stopping.set()
        if self._releasing is not None:
            await asyncio.wait([self._releasing])
            self._releasing = None
        await self._client.aclose()

    async def _run(self, ask: RunScript) -> object:
        with self._requesting():
            try:
                return await self._client.execute_command("EVALSHA", ask.script.sha, *ask.operands)
            except NoScriptError:
                return await self._client.execute_command("EVAL", ask.script.source, *ask.operands)

    async def _release(self) -> None:
        wait = 0.0
        self._is_failing = False
        while not await wait_for_event(self._clock, self._stopping, wait):
            try:
                steps = self.lines.release(self._limits(), self._stopping.is_set)
                wait = self._after_poll(await self.ask(steps))
            except Exception as error:
                # The broker's client can raise any exception.
                wait = self._after_failure(error)
