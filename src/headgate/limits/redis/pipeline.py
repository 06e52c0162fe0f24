"""One connection to Redis. While two requests are in flight new asks gather, and go when one has been answered."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import hiredis
from redis.asyncio import Connection
from redis.exceptions import RedisError

from headgate.clock import Clock, Timer, microseconds, sleep
from headgate.errors import StorageUnavailable
from headgate.limits.redis.script import Script

MOST_REQUESTS = 2
"""Requests in flight: the server works on one while the replies to the other are read. More would gather less."""

MOST = 500
"""Asks in one request; more would only wait for each other."""

LEAST = 16
"""Asks that are not divided between two requests."""

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between attempts to connect; each waits twice as long as the one before."""

NOT_NOW = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN")
"""It starts, has become a replica, or waits for its primary or its slots: nothing was done, and soon it may be."""


class ScriptCall(ABC):
    """One call of a script, for one caller or several.

    `asked_at` is when the first of them asked (monotonic µs). One that `may_repeat` does no harm if it is done twice.
    """

    __slots__ = ("asked_at", "keys", "may_repeat", "script")

    def __init__(self, script: Script, keys: tuple[bytes, ...], may_repeat: bool, asked_at: int) -> None:
        self.script = script
        self.keys = keys
        self.may_repeat = may_repeat
        self.asked_at = asked_at

    @abstractmethod
    def tell(self) -> tuple[bytes, ...] | None:
        """The script's ARGV; None if nobody waits for the answer any more."""

    @abstractmethod
    def settle(self, reply: Any) -> ScriptCall | None:
        """Give the callers their answer, or say what has to be asked next."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Raise this for the callers."""


class _Request(NamedTuple):
    """What was sent at once: so many scripts to load, and then asks. It is given up when its timer fires."""

    loads: int
    asks: list[ScriptCall]
    timer: Timer


class RequestPipeline:
    """Sends asks, and gives each its reply. All calls belong to one event loop.

    Connecting, and each request, may take `timeout` seconds. An ask that could not be sent is tried again until it is
    older than that, and so is one whose reply was lost, if it may be repeated; then it fails with StorageUnavailable.
    """

    def __init__(self, connect: Callable[[], Connection], clock: Clock, timeout: float) -> None:
        self._connect = connect
        self._clock = clock
        self._timeout = timeout
        self._patience = microseconds(timeout)
        self._pending: list[ScriptCall] = []
        self._in_flight: deque[_Request] = deque()
        # Asks that the server refused for now; it is left once it has answered all requests.
        self._refused: list[ScriptCall] = []
        self._wire: RedisConnection | None = None
        self._reaching: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._unknown_there: set[Script] = set()
        self._failures = 0

    def send(self, ask: ScriptCall) -> None:
        """Take an ask in: it goes in this turn of the loop unless two requests are in flight."""
        self._pending.append(ask)
        self._go_on()

    async def close(self) -> None:
        """Let go of the server; what waits for an answer fails."""
        reaching, self._reaching = self._reaching, None
        if reaching is not None:
            reaching.cancel()
            await asyncio.wait([reaching])
        left = [*self._take_refused(), *self._take_in_flight(), *self._pending]
        self._pending = []
        self._hang_up()
        for ask in left:
            ask.fail(StorageUnavailable("the connection to Redis was closed before it answered"))

    # -------------------------------------------------------------------------------------------------- leaving

    def _go_on(self) -> None:
        """Let what is pending leave as soon as there is a way."""
        if not self._pending or self._is_leaving or self._reaching is not None:
            return
        if len(self._in_flight) >= MOST_REQUESTS or self._refused:
            return
        loop = asyncio.get_running_loop()
        if self._wire is None:
            self._reaching = loop.create_task(self._reach(), name="headgate-redis")
        else:
            self._is_leaving = True
            loop.call_soon(self._leave)

    def _leave(self) -> None:
        self._is_leaving = False
        if self._wire is None:
            self._go_on()
            return
        waiting = len(self._pending) + sum(len(request.asks) for request in self._in_flight)
        most = min(MOST, max(LEAST, -(-waiting // MOST_REQUESTS)))
        group, self._pending = self._pending[:most], self._pending[most:]
        asks: list[ScriptCall] = []
        commands: list[bytes] = []
        for ask in group:
            arguments = ask.tell()
            if arguments is not None:
                asks.append(ask)
                commands.append(_packed((b"EVALSHA", ask.script.sha, len(ask.keys), *ask.keys, *arguments)))
        # Where nobody waits any more, an unknown script is loaded with the next ask: only asks are waited for.
        if asks:
            loads = [_packed((b"SCRIPT", b"LOAD", script.source)) for script in self._unknown_there]
            self._unknown_there.clear()
            timer = self._clock.call_at(self._clock.monotonic() + self._patience, self._give_up)
            self._in_flight.append(_Request(len(loads), asks, timer))
            self._wire.ask(loads + commands)
        self._go_on()

    # ------------------------------------------------------------------------------------------------- arriving

    def _arrived(self, replies: list[Any]) -> None:
        """The first request has all its replies."""
        request = self._in_flight.popleft()
        request.timer.cancel()
        self._failures = 0
        self._refused += self._settle(request, request.asks, replies)
        if self._refused and not self._in_flight:
            self._hang_up()
            self._failures += 1
            error = StorageUnavailable("this Redis cannot answer now; it starts, or is a replica")
            self._return(self._take_refused(), error)
        self._go_on()

    def _lost(self, error: Exception | None) -> None:
        """The connection has ended, or must: who knows what became of questions that have no reply."""
        if self._wire is None:
            return
        replies = self._wire.replies
        self._hang_up()
        again = self._take_refused()
        if self._in_flight:
            self._failures += 1
            first = self._in_flight[0]
            answered = max(0, len(replies) - first.loads)
            again += self._settle(first, first.asks[:answered], replies)
            for ask in self._take_in_flight()[answered:]:
                if ask.may_repeat:
                    again.append(ask)
                else:
                    ask.fail(_lost(error))
        self._return(again, unavailable(error or ConnectionError("the connection was lost")))
        self._go_on()

    def _give_up(self) -> None:
        self._lost(StorageUnavailable(f"Redis did not answer within {self._timeout} s"))

    def _take_in_flight(self) -> list[ScriptCall]:
        asks: list[ScriptCall] = []
        for request in self._in_flight:
            request.timer.cancel()
            asks += request.asks
        self._in_flight.clear()
        return asks

    def _take_refused(self) -> list[ScriptCall]:
        refused, self._refused = self._refused, []
        return refused

    def _settle(self, request: _Request, asks: Sequence[ScriptCall], replies: Sequence[Any]) -> list[ScriptCall]:
        """Give asks of a request their replies. Those that the server cannot do now are returned."""
        loaded, answers = replies[: request.loads], replies[request.loads :]
        not_loaded = next((reply for reply in loaded if isinstance(reply, hiredis.ReplyError)), None)
        not_now: list[ScriptCall] = []
        for ask, reply in zip(asks, answers, strict=True):
            if not isinstance(reply, hiredis.ReplyError):
                following = ask.settle(reply)
                if following is not None:
                    self._pending.append(following)
                continue
            text = str(reply)
            # Redis 6 wraps what a command of a script has met.
            if text.startswith(NOT_NOW) or "READONLY" in text:
                not_now.append(ask)
            elif text.startswith("NOSCRIPT") and not_loaded is None and not self._is_old(ask):
                self._unknown_there.add(ask.script)
                self._pending.append(ask)
            else:
                ask.fail(unavailable(not_loaded or reply))
        return not_now

    def _return(self, asks: list[ScriptCall], error: Exception) -> None:
        """Try again what is not too old for it."""
        again: list[ScriptCall] = []
        for ask in asks:
            if self._is_old(ask):
                ask.fail(unavailable(error))
            else:
                again.append(ask)
        self._pending[:0] = again

    def _is_old(self, ask: ScriptCall) -> bool:
        return ask.asked_at <= self._clock.monotonic() - self._patience

    # ----------------------------------------------------------------------------------------------- connecting

    async def _reach(self) -> None:
        """Connect, the more slowly the more has failed, until there is a way or nobody waits for it."""
        try:
            while self._pending and self._wire is None:
                if self._failures:
                    await sleep(self._clock, min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._failures - 1)))
                try:
                    connection = await connected(self._connect, self._clock, self._timeout)
                except Exception as error:  # also what a caller's own `connect` raises: those who wait are told
                    self._failures = min(self._failures + 1, 10)
                    waiting, self._pending = self._pending, []
                    self._return(waiting, error)
                else:
                    self._wire = RedisConnection(connection, self._arrived, self._lost)
        finally:
            self._reaching = None
        self._go_on()

    def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()


class RedisConnection(asyncio.Protocol):
    """A connection that redis-py has made. Replies are read here: its way through streams takes twice the time."""

    def __init__(
        self, connection: Connection, arrived: Callable[[list[Any]], None], lost: Callable[[Exception | None], None]
    ) -> None:
        self.replies: list[Any] = []
        """Those to the first request that is not answered in full."""
        self._expected: deque[int] = deque()
        self._arrived = arrived
        self._lost = lost
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        theirs: Any = connection
        # Kept because it closes the transport when it is forgotten; taken so that redis-py has nothing to close.
        self._writer: asyncio.StreamWriter = theirs._writer
        theirs._writer = theirs._reader = None
        self._transport = cast(asyncio.Transport, self._writer.transport)
        self._transport.set_protocol(self)

    def ask(self, commands: Sequence[bytes]) -> None:
        """Send a request; `arrived` is called with all its replies, request by request."""
        self._expected.append(len(commands))
        self._transport.write(b"".join(commands))

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _NOTHING:
                if not self._expected:
                    raise hiredis.ProtocolError("Redis sent a reply that nobody asked for")
                self.replies.append(reply)
                if len(self.replies) == self._expected[0]:
                    self._expected.popleft()
                    replies, self.replies = self.replies, []
                    self._arrived(replies)
        except hiredis.ProtocolError as error:
            self._lost(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(error)

    def close(self) -> None:
        self._lost = _ignore
        self._arrived = _ignore
        self._transport.abort()


async def connected(connect: Callable[[], Connection], clock: Clock, timeout: float) -> Connection:
    """A new connection, ready to be asked."""
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
    """Raise StorageUnavailable when the block takes longer than that."""
    task = asyncio.current_task()
    assert task is not None
    cancels = task.cancelling()
    is_late = False

    def give_up() -> None:
        nonlocal is_late
        is_late = True
        task.cancel()

    timer = clock.call_at(clock.monotonic() + microseconds(timeout), give_up)
    try:
        yield
    except asyncio.CancelledError:
        if is_late and task.uncancel() <= cancels:
            raise StorageUnavailable(f"Redis did not answer within {timeout} s") from None
        raise
    finally:
        timer.cancel()


def unavailable(error: Exception) -> StorageUnavailable:
    """What callers are told of an error of the connection or of the server."""
    if isinstance(error, StorageUnavailable):
        return error
    answer = StorageUnavailable(f"Redis: {error}")
    answer.__cause__ = error
    return answer


def _lost(error: Exception | None) -> StorageUnavailable:
    answer = StorageUnavailable("the reply of Redis was lost: whether it was counted is not known")
    answer.__cause__ = error
    return answer


def _ignore(_: Any) -> None:
    """What a closed connection still says concerns nobody."""


_NOTHING = object()

# Its own types know commands of one word only.
_packed: Callable[[tuple[Any, ...]], bytes] = cast(Any, hiredis.pack_command)
