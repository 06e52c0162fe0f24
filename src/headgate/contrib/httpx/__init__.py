"""HTTP clients that keep to a budget, and obey the refusals of servers: transports and hooks for httpx."""

from headgate.contrib.retry_after import HORIZON, UNSAID, closed_for, refused_for
from headgate.errors import DeclarationError

try:
    import httpx  # noqa: F401  # the modules of this package use it
except ModuleNotFoundError as error:
    if error.name != "httpx":
        raise
    raise DeclarationError(
        "headgate.contrib.httpx needs the httpx package, which is missing; pip install httpx"
    ) from None

from headgate.contrib.httpx.hooks import raise_rate_limited, raise_rate_limited_sync
from headgate.contrib.httpx.transport import LimitedTransport, SyncLimitedTransport

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
