"""One connection to Redis. While two requests are in flight, new calls gather and go together in the next one."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import hiredis
from redis.asyncio import Connection
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from headgate.clock import SECOND, Clock, Timer, microseconds, sleep
from headgate.errors import StorageUnavailable
from headgate.limits.redis.script import Script

MOST_REQUESTS = 2
"""Requests in flight: the server works on one while the replies to the other are read. More would gather less."""

MAX_CALLS = 500
"""Calls in one request; more would only wait for each other."""

MIN_SPLIT = 16
"""Calls that are not divided between two requests."""

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between attempts to connect; each pause is twice the one before, and no longer than the timeout."""

BLOCKED = SECOND // 10
"""How late (µs) a timer is of an event loop that was blocked."""

RETRYABLE_ERRORS = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN")
"""The server starts, has become a replica, or waits for its primary or slots: nothing was done; a retry may succeed."""


class ScriptCall(ABC):
    """One call of a script, for one caller or several.

    `asked_at` is when the first caller made it (monotonic µs). With `may_repeat`, running it twice is harmless.
    """

    __slots__ = ("asked_at", "keys", "may_repeat", "script")

    def __init__(self, script: Script, keys: tuple[bytes, ...], may_repeat: bool, asked_at: int) -> None:
        self.script = script
        self.keys = keys
        self.may_repeat = may_repeat
        self.asked_at = asked_at

    @abstractmethod
    def build_arguments(self) -> tuple[bytes, ...] | None:
        """Return the script's ARGV; None if no caller waits for the reply any more."""

    @abstractmethod
    def settle(self, reply: Any) -> ScriptCall | None:
        """Pass the reply to the callers; return the call to send next, if any."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Raise this for the callers."""


class _Request(NamedTuple):
    """One request: the number of scripts to load, and the calls. It times out when its timer fires."""

    loads: int
    calls: list[ScriptCall]
    timer: Timer


class RequestPipeline:
    """Sends calls and returns the replies to them. All calls belong to one event loop.

    Connecting, and each request, may take `timeout` seconds. A call that could not be sent is retried until it is older
    than that. So is one with a lost reply, if it may be repeated. Then it fails with StorageUnavailable.
    """

    def __init__(self, connect: Callable[[], Connection], clock: Clock, timeout: float) -> None:
        self._connect = connect
        self._clock = clock
        self._timeout = timeout
        self._timeout_us = microseconds(timeout)
        self._pending: list[ScriptCall] = []
        self._in_flight: deque[_Request] = deque()
        # Calls that the server refused for now; the connection is closed once all requests are answered.
        self._refused: list[ScriptCall] = []
        self._connection: RedisConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._is_flush_scheduled = False
        self._scripts_to_load: set[Script] = set()
        self._failures = 0

    def send(self, call: ScriptCall) -> None:
        """Add a call: it is sent in this turn of the loop unless two requests are in flight."""
        self._pending.append(call)
        self._schedule_flush()

    async def close(self) -> None:
        """Close the connection; calls without a reply fail."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait([connecting])
        left = [*self._take_refused(), *self._take_in_flight(), *self._pending]
        self._pending = []
        self._close_connection()
        for call in left:
            call.fail(StorageUnavailable("the connection to Redis was closed before it answered"))

    # -------------------------------------------------------------------------------------------------- sending

    def _schedule_flush(self) -> None:
        """Schedule the sending of pending calls, or connect first."""
        if not self._pending or self._is_flush_scheduled or self._connecting is not None:
            return
        if len(self._in_flight) >= MOST_REQUESTS or self._refused:
            return
        loop = asyncio.get_running_loop()
        if self._connection is None:
            self._connecting = loop.create_task(self._reconnect(), name="headgate-redis")
        else:
            self._is_flush_scheduled = True
            loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._connection is None:
            self._schedule_flush()
            return
        waiting = len(self._pending) + sum(len(request.calls) for request in self._in_flight)
        most = min(MAX_CALLS, max(MIN_SPLIT, -(-waiting // MOST_REQUESTS)))
        group, self._pending = self._pending[:most], self._pending[most:]
        calls: list[ScriptCall] = []
        commands: list[bytes] = []
        for call in group:
            arguments = call.build_arguments()
            if arguments is not None:
                calls.append(call)
                commands.append(_packed((b"EVALSHA", call.script.sha, len(call.keys), *call.keys, *arguments)))
        # Without waiting calls, an unknown script is loaded with the next call: only calls are awaited.
        if calls:
            loads = [_packed((b"SCRIPT", b"LOAD", script.source)) for script in self._scripts_to_load]
            self._scripts_to_load.clear()
            timer = self._clock.call_at(self._clock.monotonic() + self._timeout_us, self._give_up)
            self._in_flight.append(_Request(len(loads), calls, timer))
            self._connection.send(loads + commands)
        self._schedule_flush()

    # ------------------------------------------------------------------------------------------------- receiving

    def _on_replies(self, replies: list[Any]) -> None:
        """Handle the replies to the first request, which are complete."""
        request = self._in_flight.popleft()
        request.timer.cancel()
        self._failures = 0
        self._refused += self._settle(request, request.calls, replies)
        if self._refused and not self._in_flight:
            self._close_connection()
            self._failures += 1
            error = StorageUnavailable("this Redis cannot answer now; it starts, or is a replica")
            self._retry(self._take_refused(), error)
        self._schedule_flush()

    def _lost(self, error: Exception | None) -> None:
        """Handle the end of the connection. Calls without a reply may or may not have run."""
        if self._connection is None:
            return
        replies = self._connection.replies
        self._close_connection()
        again = self._take_refused()
        if self._in_flight:
            self._failures += 1
            first = self._in_flight[0]
            answered = max(0, len(replies) - first.loads)
            again += self._settle(first, first.calls[:answered], replies)
            for call in self._take_in_flight()[answered:]:
                if call.may_repeat:
                    again.append(call)
                else:
                    call.fail(_caused("the reply of Redis was lost: whether it was counted is not known", error))
        self._retry(again, unavailable(error or ConnectionError("the connection was lost")))
        self._schedule_flush()

    def _give_up(self) -> None:
        self._lost(StorageUnavailable(f"Redis did not answer within {self._timeout} s"))

    def _take_in_flight(self) -> list[ScriptCall]:
        calls: list[ScriptCall] = []
        for request in self._in_flight:
            request.timer.cancel()
            calls += request.calls
        self._in_flight.clear()
        return calls

    def _take_refused(self) -> list[ScriptCall]:
        refused, self._refused = self._refused, []
        return refused

    def _settle(self, request: _Request, calls: Sequence[ScriptCall], replies: Sequence[Any]) -> list[ScriptCall]:
        """Pass the replies to the calls of a request. Return the calls that the server cannot run now."""
        loaded, answers = replies[: request.loads], replies[request.loads :]
        not_loaded = next((reply for reply in loaded if isinstance(reply, hiredis.ReplyError)), None)
        refused: list[ScriptCall] = []
        for call, reply in zip(calls, answers, strict=True):
            if not isinstance(reply, hiredis.ReplyError):
                following = call.settle(reply)
                if following is not None:
                    self._pending.append(following)
                continue
            text = str(reply)
            # Redis 6 wraps the errors of a script's commands.
            if text.startswith(RETRYABLE_ERRORS) or "READONLY" in text:
                refused.append(call)
            elif text.startswith("NOSCRIPT") and not_loaded is None and not self._is_expired(call):
                self._scripts_to_load.add(call.script)
                self._pending.append(call)
            else:
                call.fail(unavailable(not_loaded or reply))
        return refused

    def _retry(self, calls: list[ScriptCall], error: Exception) -> None:
        """Retry the calls that are not too old."""
        again: list[ScriptCall] = []
        for call in calls:
            if self._is_expired(call):
                call.fail(unavailable(error))
            else:
                again.append(call)
        self._pending[:0] = again

    def _is_expired(self, call: ScriptCall) -> bool:
        return call.asked_at <= self._clock.monotonic() - self._timeout_us

    # ----------------------------------------------------------------------------------------------- connecting

    async def _reconnect(self) -> None:
        """Connect, with longer pauses after each failure, until it succeeds or no call is pending."""
        try:
            while self._pending and self._connection is None:
                if self._failures:
                    await sleep(self._clock, min(LONGEST_PAUSE, self._timeout, FIRST_PAUSE / 2 * 2**self._failures))
                try:
                    connection = await connected(self._connect, self._clock, self._timeout)
                except Exception as error:  # also what a caller's own `connect` raises: the waiting calls fail with it
                    self._failures = min(self._failures + 1, 10)
                    waiting, self._pending = self._pending, []
                    self._retry(waiting, error)
                else:
                    self._connection = RedisConnection(connection, self._on_replies, self._lost)
        finally:
            self._connecting = None
        self._schedule_flush()

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class RedisConnection(asyncio.Protocol):
    """A connection made by redis-py. Replies are read here: through redis-py's streams it takes twice the time."""

    def __init__(
        self, connection: Connection, on_replies: Callable[[list[Any]], None], lost: Callable[[Exception | None], None]
    ) -> None:
        self.replies: list[Any] = []
        """The replies to the first request that is not answered in full."""
        self._expected: deque[int] = deque()
        self._on_replies = on_replies
        self._lost = lost
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        private: Any = connection
        # Kept, because it closes the transport when it is collected; taken, so that redis-py has nothing to close.
        self._writer: asyncio.StreamWriter = private._writer
        private._writer = private._reader = None
        self._transport = cast(asyncio.Transport, self._writer.transport)
        self._transport.set_protocol(self)

    def send(self, commands: Sequence[bytes]) -> None:
        """Send a request; `on_replies` is called with all its replies, request by request."""
        self._expected.append(len(commands))
        self._transport.write(b"".join(commands))

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _NOTHING:
                if not self._expected:
                    raise hiredis.ProtocolError("Redis sent a reply without a request")
                self.replies.append(reply)
                if len(self.replies) == self._expected[0]:
                    self._expected.popleft()
                    replies, self.replies = self.replies, []
                    self._on_replies(replies)
        except hiredis.ProtocolError as error:
            self._lost(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(error)

    def close(self) -> None:
        # What arrives on a closed connection is ignored.
        self._lost = lambda _: None
        self._on_replies = lambda _: None
        self._transport.abort()


async def connected(connect: Callable[[], Connection], clock: Clock, timeout: float) -> Connection:
    """Return a new, connected connection."""
    connection = connect()
    try:
        with deadline(clock, timeout):
            await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException:
        await quietly_close(connection)
        raise
    return connection


async def quietly_close(connection: Connection) -> None:
    with contextlib.suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)


@contextlib.contextmanager
def deadline(clock: Clock, timeout: float) -> Iterator[None]:
    """Raise StorageUnavailable when the block takes longer than `timeout` seconds, while the event loop runs."""
    task = asyncio.current_task()
    assert task is not None
    cancels = task.cancelling()
    is_late = False
    timer: Timer
    until = clock.monotonic() + microseconds(timeout)

    def give_up() -> None:
        nonlocal is_late
        is_late = True
        task.cancel()

    def give_up_unless_blocked() -> None:
        nonlocal timer
        now = clock.monotonic()
        # Meanwhile no reply was read, and no request sent. It is so only once: a busy loop might be late each time.
        timer = clock.call_at(now + microseconds(timeout) if now - until > BLOCKED else now, give_up)

    timer = clock.call_at(until, give_up_unless_blocked)
    try:
        yield
    except asyncio.CancelledError:
        if is_late and task.uncancel() <= cancels:
            raise StorageUnavailable(f"Redis did not answer within {timeout} s") from None
        raise
    finally:
        timer.cancel()


def unavailable(error: Exception) -> StorageUnavailable:
    """Return the exception for callers, for an error of the connection or the server."""
    if isinstance(error, AuthenticationError | NoPermissionError):
        check = "check user and password of the URL, and its rights: the page 'Limits in Redis' lists them"
        return _caused(f"Redis refuses this user: {error}; {check}", error)
    return error if isinstance(error, StorageUnavailable) else _caused(f"Redis: {error}", error)


def _caused(message: str, error: Exception | None) -> StorageUnavailable:
    answer = StorageUnavailable(message)
    answer.__cause__ = error
    answer.has_answered = isinstance(error, hiredis.ReplyError)
    return answer


_NOTHING = object()

# redis-py's own types allow only commands of one word.
_packed: Callable[[tuple[Any, ...]], bytes] = cast(Any, hiredis.pack_command)
