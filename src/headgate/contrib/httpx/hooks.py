"""Hooks for httpx inside a job: a refusal puts the job back until the server accepts requests again.

`httpx.AsyncClient(event_hooks={"response": [raise_rate_limited]})`. The attempt is not spent, and until then nothing
starts on the buckets that the job uses, on any worker.
"""

from __future__ import annotations

import httpx

from headgate import RateLimited
from headgate.clock import SystemClock, to_datetime
from headgate.contrib.retry_after import refused_for


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
