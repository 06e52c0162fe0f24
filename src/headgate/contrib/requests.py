"""An adapter for requests that waits for a limiter: `session.mount("https://", LimitedAdapter(limiter))`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from headgate import DeclarationError, Limiter, StorageUnavailable
from headgate.arguments import parse_seconds
from headgate.clock import Clock, Duration, SystemClock, to_datetime
from headgate.contrib.retry_after import closed_for, log_unpenalized
from headgate.errors import needing

with needing("headgate.contrib.requests needs", "requests", install="requests"):
    import requests
    from requests.adapters import HTTPAdapter

logger = logging.getLogger("headgate.requests")

RequestKey = str | Callable[[requests.PreparedRequest], str]
"""The key of the budget that a request uses: one for all, or the result of a function."""


def host_of(request: requests.PreparedRequest) -> str:
    """Return the host that a request goes to."""
    return urlsplit(request.url or "").hostname or ""


class LimitedAdapter(HTTPAdapter):
    """Sends each request when the limiter allows it, and none under a key while its server refuses requests.

    `key` is the key of the budget (default: the request's host): a text, or a function of the prepared request. With a
    `timeout` (seconds, a timedelta, or "5m") a request that would start later raises `requests.ConnectTimeout`; nothing
    is sent then. `options` are those of `requests.adapters.HTTPAdapter`; what its `max_retries` sends again does not
    use the budget.

    An answer that refuses, or was the last one of its window, penalizes its key as `LimitedTransport` does. The answer
    itself is returned unchanged. Redirects use the budget, too. Raises DeclarationError for a limiter of a
    `Concurrency`, because an adapter does not see when an answer has been read.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        key: RequestKey = host_of,
        timeout: Duration | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        if limiter.limit.rule.holds_permits:
            raise DeclarationError(
                "an adapter of requests does not see when an answer has been read, so it cannot return a permit; write "
                "`with limiter.sync.hold(key): session.get(…)`"
            )
        super().__init__(**options)
        self._limiter = limiter.sync
        self._key = key
        self._timeout = None if timeout is None else parse_seconds(timeout, "timeout", "an adapter of requests")
        self._clock = clock or SystemClock()

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        key = self._key if isinstance(self._key, str) else self._key(request)
        if not self._limiter.acquire(key, timeout=self._timeout):
            raise requests.ConnectTimeout(
                f"no start was free for {key!r} within {self._timeout:g} s; nothing was sent", request=request
            )
        response = super().send(request, *args, **options)
        seconds = closed_for(response.status_code, response.headers, to_datetime(self._clock.now()))
        if seconds > 0:
            try:
                self._limiter.penalize(key, seconds)
            except StorageUnavailable as error:
                log_unpenalized(logger, key, seconds, error)
            except BaseException:
                response.close()
                raise
        return response
