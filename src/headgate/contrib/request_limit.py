"""Shared code for web middleware: it computes a request's key, and answers as the limit decides."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Generic, TypeVar

from headgate import Decision, DeclarationError, HeadgateError, Limiter, StorageUnavailable, StorageUnusable
from headgate.clock import Clock, SystemClock
from headgate.contrib.rate_limit_fields import Fields, RateLimitFields, Refusal, unavailable
from headgate.limits.key import bucket_key
from headgate.limits.limit import share_of
from headgate.observe.log_budget import LogBudget

R = TypeVar("R")

logger = logging.getLogger("headgate.limiter")

STORE_ERRORS = (StorageUnavailable, StorageUnusable)
"""The errors of a limiter whose store does not answer, or refuses its user; `on_store_error` handles both."""


class RequestLimit(Generic[R]):
    """A limiter for one kind of request, such as ASGI scopes.

    `key` is the key for all requests, or a function that takes a request and returns its key, or None to pass it
    without the limit. Raises DeclarationError for another key, for an object that is no limiter, and for a limit name
    that cannot be sent.
    """

    def __init__(
        self,
        limiter: Limiter,
        key: str | Callable[[R], str | None],
        policy: str | None,
        *,
        where: str,
        clock: Clock | None,
    ) -> None:
        if not isinstance(limiter, Limiter):
            raise DeclarationError(f"{where}: {limiter!r} is not a limiter; write Limiter(RateLimit('100/m'))")
        if inspect.iscoroutinefunction(key):
            raise DeclarationError(f"{where}: key= is an async function; pass a plain one, which must not block")
        if not isinstance(key, str) and not callable(key):
            raise DeclarationError(f"{where}: key={key!r:.80} is neither a text nor a function of the request")
        if limiter.has_leases:
            raise DeclarationError(
                f"{where}: the permits of this limiter are leases, which take a request to the store each; bound the "
                "requests of each process: leave store= out"
            )
        self.limiter = limiter
        self.holds_permits: bool = limiter.limit.rule.holds_permits
        self._key = key
        self._where = where
        self._fields = RateLimitFields(limiter.limit, policy)
        self._name = limiter.limit.name or limiter.limit.rule.describe()
        limit = limiter.limit
        self._share = None if limit.sharers is None else Limiter(share_of(limit), clock=clock)
        self._lock = threading.Lock()
        self.passed_without_limit: int = 0
        """How many requests were passed on although the store of the limit failed."""
        self._warnings = LogBudget(clock or SystemClock(), lines=1, per=30)

    def key_of(self, request: R) -> str | None:
        """Return the key of a request; None if it is not limited. Raises DeclarationError for a key that is no text."""
        key = self._key if isinstance(self._key, str) else self._key(request)
        if key is None:
            return None
        if not isinstance(key, str):
            raise DeclarationError(
                f"{self._where}: key= returned {key!r:.80}, which is no text; return the key of the request, or None "
                "for a request that is not limited"
            )
        # Clients may choose it, so its length is bounded.
        return bucket_key(key)

    def fields(self, decision: Decision) -> Fields:
        """Return the header fields of the answer to a request that is passed on."""
        return self._fields.of(decision)

    def refusal(self, decision: Decision) -> Refusal:
        """Return the answer to a request that is refused."""
        return self._fields.refusal(decision)

    def without_store(self, error: HeadgateError, key: str) -> Refusal | None:
        """Return the answer if the store of the limit fails; None to pass the request on, by its `on_store_error`.

        Counts what passes, and logs it, one line in 30 s.
        """
        passes = self.limiter.limit.on_store_error == "run"
        doing = "requests pass without it" if passes else "requests get 503"
        if self._share is not None:
            doing = f"this process uses one of {self.limiter.limit.sharers} shares"
        line = f"limit {self._name}: its store cannot be used, {doing}"
        if passes:
            self.limiter.note_bypass(key)
        with self._lock:
            self.passed_without_limit += passes
            if self._warnings.admits(lambda omitted: logger.warning("%s; %s", line, omitted)):
                logger.warning("%s: %s", line, error)
        if self._share is not None:
            decision = self._share.sync.try_acquire(key)
            return None if decision else self.refusal(decision)
        return None if passes else unavailable()


def key_of_address(address: str) -> str:
    """Return the key of a client's address: itself, and for IPv6 the network of 64 bits, which one client owns."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or IPv6Network((parsed, 64), strict=False))
    return str(parsed)


def missing_address(where: str) -> DeclarationError:
    """Return the error for a request without the address of its client."""
    return DeclarationError(
        f"{where}: this request has no client address, as behind a Unix socket; pass key=, a function of the request, "
        "or let the server read the address that your proxy passes on"
    )
