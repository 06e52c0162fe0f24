"""A middleware for the client of aiohttp that waits for a limiter (aiohttp 3.12 or later).

async with aiohttp.ClientSession(middlewares=[LimitedRequests(limiter)]) as session: ...
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from headgate import DeclarationError, Limiter, StorageUnavailable
from headgate.arguments import parse_seconds
from headgate.clock import Clock, Duration, SystemClock, to_datetime
from headgate.contrib.retry_after import closed_for, log_unpenalized
from headgate.errors import needing

with needing("headgate.contrib.aiohttp needs", "aiohttp", install="aiohttp"):
    import aiohttp

logger = logging.getLogger("headgate.aiohttp")

ClientRequestKey = str | Callable[[aiohttp.ClientRequest], str]
"""The key of the budget that a request uses: one for all, or the result of a function."""


def host_of(request: aiohttp.ClientRequest) -> str:
    """Return the host that a request goes to."""
    return request.url.host or ""


class LimitedRequests:
    """Sends each request when the limiter allows it, and none under a key while its server refuses requests.

    `key` is the key of the budget (default: the request's host): a text, or a function of the request. The permit of a
    `Concurrency` is held until the answer has been read or closed, or is garbage-collected: an answer that you drop
    unread closes its connection. So keep the answer while you read its `content`.

    With a `timeout` (seconds, a timedelta, or "5m") a request that would start later raises
    `aiohttp.ConnectionTimeoutError`; nothing is sent then. The wait also counts in the `total` of aiohttp's own
    timeout, which is 5 minutes by default.

    An answer that refuses, or was the last one of its window, penalizes its key as `LimitedTransport` does. The answer
    itself is returned unchanged. Redirects use the budget, too.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        key: ClientRequestKey = host_of,
        timeout: Duration | None = None,
        clock: Clock | None = None,
    ) -> None:
        if limiter.has_leases:
            raise DeclarationError(
                "the permits of this limiter are leases, which only a block can hold; write "
                "`async with limiter.hold(key), session.get(…) as response:`"
            )
        self._limiter = limiter
        self._key = key
        self._timeout = None if timeout is None else parse_seconds(timeout, "timeout", "a middleware of aiohttp")
        self._clock = clock or SystemClock()
        self._holds_permits = limiter.limit.rule.holds_permits

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        key = self._key if isinstance(self._key, str) else self._key(request)
        if not await self._limiter.acquire(key, timeout=self._timeout):
            raise aiohttp.ConnectionTimeoutError(
                f"no start was free for {key!r} within {self._timeout:g} s; nothing was sent"
            )
        try:
            response = await handler(request)
        except BaseException:
            if self._holds_permits:
                self._limiter.release(key)
            raise
        if self._holds_permits:
            response = self._owner_of_permit(response, key)
        # As the other clients do: several fields of one name are a list.
        fields = {name: ", ".join(response.headers.getall(name)) for name in response.headers}
        seconds = closed_for(response.status, fields, to_datetime(self._clock.now()))
        if seconds > 0:
            try:
                await self._limiter.penalize(key, seconds)
            except StorageUnavailable as error:
                log_unpenalized(logger, key, seconds, error)
            except BaseException:
                # A caller that gave the request up cannot close an answer that it never received.
                response.close()
                raise
        return response

    def _owner_of_permit(self, response: aiohttp.ClientResponse, key: str) -> aiohttp.ClientResponse:
        """Return the answer as an object whose end returns the permit: it is read, closed, or garbage-collected.

        The connection returns the permit, once, when it is released. aiohttp releases it when the answer is collected,
        but while there is something to read, the connection itself refers to the answer, so it never is. The returned
        object shares all attributes of that answer, and only the caller refers to it.
        """
        if response.connection is None:
            # An answer that was short enough has been read already, and has no connection any more.
            self._limiter.release(key)
            return response
        response.connection.add_callback(partial(self._limiter.release, key))
        owner: aiohttp.ClientResponse = object.__new__(type(response))
        owner.__dict__ = response.__dict__
        return owner
