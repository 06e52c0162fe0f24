"""Transports for httpx that wait for their turn: `httpx.AsyncClient(transport=LimitedTransport(limiter))`."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack

import httpx

from headgate import Limiter
from headgate.clock import SECOND, Clock, Duration, SystemClock, microseconds, sleep_until, to_datetime
from headgate.contrib.httpx.advice import closed_for
from headgate.contrib.httpx.closed_keys import ClosedKeys

Key = str | Callable[[httpx.Request], str]
"""Whose budget a request draws on: one for all, or what a function says of it."""

LONGEST_REST = 60.0
"""Seconds after which a thread that waits looks at the clock again: the machine may have slept."""


def host_of(request: httpx.Request) -> str:
    """The host that a request goes to."""
    return request.url.host


class LimitedTransport(httpx.AsyncBaseTransport):
    """Sends each request when the limiter lets it, and none under a key while its server refuses them.

    `key` says whose budget a request draws on (default: that of its host): a text, or a function of the request.
    `transport` is what sends it (default: httpx's own). The permit of a `Concurrency` is held until the answer has been
    read or closed. With a `timeout` (seconds) a request whose turn comes later
    raises `httpx.PoolTimeout`; nothing is sent then.

    An answer that refuses, or was the last one of its window, closes its key in this client for as long as `closed_for`
    says. It is handed on as it is: nothing is sent again by itself. Redirects and repeats draw on the budget, too.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        key: Key = host_of,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout: Duration | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._limiter = limiter
        self._turns = _Turns(key, timeout, clock)
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        turns, key = self._turns, self._turns.key(request)
        give_up_at = turns.give_up_at()
        while True:
            while (opens_at := turns.opens_at(key, give_up_at, request)) is not None:
                await sleep_until(turns.clock, opens_at)
            async with AsyncExitStack() as held:
                try:
                    await held.enter_async_context(self._limiter.hold(key, timeout=turns.left(give_up_at)))
                except TimeoutError:
                    raise turns.too_late(key, request) from None
                # Where one who went before was refused meanwhile, the start is lost and the server spared.
                if turns.is_open(key):
                    response = await self._transport.handle_async_request(request)
                    turns.heed(key, response)
                    assert isinstance(response.stream, httpx.AsyncByteStream)
                    response.stream = _HeldStream(response.stream, held.pop_all())
                    return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class SyncLimitedTransport(httpx.BaseTransport):
    """The same for `httpx.Client`, which blocks its thread."""

    def __init__(
        self,
        limiter: Limiter,
        *,
        key: Key = host_of,
        transport: httpx.BaseTransport | None = None,
        timeout: Duration | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._limiter = limiter.sync
        self._turns = _Turns(key, timeout, clock)
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        turns, key = self._turns, self._turns.key(request)
        give_up_at = turns.give_up_at()
        while True:
            while (opens_at := turns.opens_at(key, give_up_at, request)) is not None:
                threading.Event().wait(min((opens_at - turns.clock.monotonic()) / SECOND, LONGEST_REST))
            with ExitStack() as held:
                try:
                    held.enter_context(self._limiter.hold(key, timeout=turns.left(give_up_at)))
                except TimeoutError:
                    raise turns.too_late(key, request) from None
                if turns.is_open(key):
                    response = self._transport.handle_request(request)
                    turns.heed(key, response)
                    assert isinstance(response.stream, httpx.SyncByteStream)
                    response.stream = _SyncHeldStream(response.stream, held.pop_all())
                    return response

    def close(self) -> None:
        self._transport.close()


class _HeldStream(httpx.AsyncByteStream):
    """The body of an answer; a permit is given back when it is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, held: AsyncExitStack) -> None:
        self._stream = stream
        self._held = held

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        async with self._held:
            await self._stream.aclose()


class _SyncHeldStream(httpx.SyncByteStream):
    """The same for `httpx.Client`."""

    def __init__(self, stream: httpx.SyncByteStream, held: ExitStack) -> None:
        self._stream = stream
        self._held = held

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    def close(self) -> None:
        with self._held:
            self._stream.close()


class _Turns:
    """What both have to decide."""

    def __init__(self, key: Key, timeout: Duration | None, clock: Clock | None) -> None:
        self.clock = clock or SystemClock()
        self._key = key
        self._timeout = None if timeout is None else max(0, microseconds(timeout))
        self._closed = ClosedKeys()

    def key(self, request: httpx.Request) -> str:
        return self._key if isinstance(self._key, str) else self._key(request)

    def give_up_at(self) -> int | None:
        return None if self._timeout is None else self.clock.monotonic() + self._timeout

    def left(self, give_up_at: int | None) -> float | None:
        return None if give_up_at is None else max(0, give_up_at - self.clock.monotonic()) / SECOND

    def is_open(self, key: str) -> bool:
        return self._closed.until(key, self.clock.monotonic()) is None

    def opens_at(self, key: str, give_up_at: int | None, request: httpx.Request) -> int | None:
        """When a closed key opens, None if it is open. Raises PoolTimeout if that is too late, at once."""
        until = self._closed.until(key, self.clock.monotonic())
        if until is not None and give_up_at is not None and until > give_up_at:
            raise self.too_late(key, request)
        return until

    def heed(self, key: str, response: httpx.Response) -> None:
        seconds = closed_for(response.status_code, response.headers, to_datetime(self.clock.now()))
        if seconds > 0:
            now = self.clock.monotonic()
            self._closed.close(key, now + microseconds(seconds), now)

    def too_late(self, key: str, request: httpx.Request) -> httpx.PoolTimeout:
        seconds = (self._timeout or 0) / SECOND
        return httpx.PoolTimeout(
            f"no start was free for {key!r} within {seconds:g} s; nothing was sent", request=request
        )
