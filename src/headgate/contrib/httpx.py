"""HTTP clients that keep to a budget, and obey the refusals of servers: transports and hooks for httpx.

`httpx.AsyncClient(transport=LimitedTransport(limiter))` waits for a limiter. Inside a job,
`httpx.AsyncClient(event_hooks={"response": [raise_rate_limited]})` puts the job back when a server refuses, until it
accepts requests again. The attempt is not spent, and until then nothing starts on the buckets that the job uses, on any
worker.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack

from headgate import Limiter, RateLimited, StorageUnavailable
from headgate.arguments import parse_seconds
from headgate.clock import Clock, Duration, SystemClock, to_datetime
from headgate.contrib.retry_after import HORIZON, UNSAID, closed_for, log_unpenalized, refused_for
from headgate.errors import needing

with needing("headgate.contrib.httpx needs", "httpx", install="httpx"):
    import httpx

__all__ = [
    "HORIZON",
    "UNSAID",
    "LimitedTransport",
    "SyncLimitedTransport",
    "closed_for",
    "raise_rate_limited",
    "raise_rate_limited_sync",
    "refused_for",
]

logger = logging.getLogger("headgate.httpx")

Key = str | Callable[[httpx.Request], str]
"""The key of the budget that a request uses: one for all, or the result of a function."""


def host_of(request: httpx.Request) -> str:
    """Return the host that a request goes to."""
    return request.url.host


class LimitedTransport(httpx.AsyncBaseTransport):
    """Sends each request when the limiter allows it, and none under a key while its server refuses requests.

    `key` is the key of the budget (default: the request's host): a text, or a function of the request. `transport`
    sends the request (default: httpx's own). The permit of a `Concurrency` is held until the answer has been read or
    closed. With a `timeout` (seconds, a timedelta, or "5m") a request that would start later raises
    `httpx.PoolTimeout`; nothing is sent then.

    An answer that refuses, or was the last one of its window, penalizes its key for as long as `closed_for` returns:
    until then nothing starts on the same bucket, in other clients and, with a shared store, in other programs. The
    answer itself is returned unchanged: nothing is sent again automatically. Redirects and repeats use the budget,
    too.
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
        self._key = key
        self._timeout = None if timeout is None else parse_seconds(timeout, "timeout", "an httpx transport")
        self._clock = clock or SystemClock()
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        key = self._key if isinstance(self._key, str) else self._key(request)
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(self._limiter.hold(key, timeout=self._timeout))
            except TimeoutError:
                raise _too_late(key, self._timeout, request) from None
            response = await self._transport.handle_async_request(request)
            if (seconds := closed_for(response.status_code, response.headers, to_datetime(self._clock.now()))) > 0:
                try:
                    await self._limiter.penalize(key, seconds)
                except StorageUnavailable as error:
                    log_unpenalized(logger, key, seconds, error)
                except BaseException:
                    # A caller that gave the request up cannot close an answer that it never received.
                    await response.aclose()
                    raise
            # An answer that was read already is not closed again.
            if not response.is_closed:
                assert isinstance(response.stream, httpx.AsyncByteStream)
                response.stream = _PermitStream(response.stream, held.pop_all())
            return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class SyncLimitedTransport(httpx.BaseTransport):
    """`LimitedTransport` for `httpx.Client`; it blocks its thread."""

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
        self._key = key
        self._timeout = None if timeout is None else parse_seconds(timeout, "timeout", "an httpx transport")
        self._clock = clock or SystemClock()
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        key = self._key if isinstance(self._key, str) else self._key(request)
        with ExitStack() as held:
            try:
                held.enter_context(self._limiter.hold(key, timeout=self._timeout))
            except TimeoutError:
                raise _too_late(key, self._timeout, request) from None
            response = self._transport.handle_request(request)
            if (seconds := closed_for(response.status_code, response.headers, to_datetime(self._clock.now()))) > 0:
                try:
                    self._limiter.penalize(key, seconds)
                except StorageUnavailable as error:
                    log_unpenalized(logger, key, seconds, error)
                except BaseException:
                    response.close()
                    raise
            if not response.is_closed:
                assert isinstance(response.stream, httpx.SyncByteStream)
                response.stream = _SyncPermitStream(response.stream, held.pop_all())
            return response

    def close(self) -> None:
        self._transport.close()


async def raise_rate_limited(response: httpx.Response) -> None:
    """Raise RateLimited for an answer that refuses, for as long as it states; 5 s for a 429 without a wait.

    For `httpx.AsyncClient`.
    """
    raise_rate_limited_sync(response)


def raise_rate_limited_sync(response: httpx.Response) -> None:
    """The same for `httpx.Client`."""
    seconds = refused_for(response.status_code, response.headers, to_datetime(SystemClock().now()))
    if seconds is not None:
        raise RateLimited(seconds)


class _PermitStream(httpx.AsyncByteStream):
    """The body of an answer; closing it returns the permit."""

    def __init__(self, stream: httpx.AsyncByteStream, held: AsyncExitStack) -> None:
        self._stream = stream
        self._held = held

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        async with self._held:
            await self._stream.aclose()


class _SyncPermitStream(httpx.SyncByteStream):
    """`_PermitStream` for `httpx.Client`."""

    def __init__(self, stream: httpx.SyncByteStream, held: ExitStack) -> None:
        self._stream = stream
        self._held = held

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    def close(self) -> None:
        with self._held:
            self._stream.close()


def _too_late(key: str, timeout: float | None, request: httpx.Request) -> httpx.PoolTimeout:
    assert timeout is not None
    return httpx.PoolTimeout(f"no start was free for {key!r} within {timeout:g} s; nothing was sent", request=request)
