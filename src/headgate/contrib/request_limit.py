"""Shared code for web middleware: it computes a request's key, answers as the limit decides, and reports the limit.

The header fields `RateLimit-Policy` and `RateLimit` are the structured fields of
draft-ietf-httpapi-ratelimit-headers, in drafts 10 and 11.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Generic, NamedTuple, TypeVar

from headgate import Decision, DeclarationError, HeadgateError, Limiter, StorageUnavailable, StorageUnusable
from headgate.clock import SECOND, Clock, SystemClock
from headgate.errors import own_error
from headgate.limits.key import bucket_key
from headgate.limits.limit import AnyRule, share_of
from headgate.observe.log_budget import LogBudget

R = TypeVar("R")

logger = logging.getLogger("headgate.limiter")

STORE_ERRORS = (StorageUnavailable, StorageUnusable)
"""The errors of a limiter whose store does not answer, or refuses its user; `on_store_error` handles both."""

UNKNOWN_WAIT = 5
"""Seconds that a refused client should wait if the time is not known: a permit, a paused limit, no store."""

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
"""The problem type of the same drafts."""

Fields = list[tuple[str, str]]


class Refusal(NamedTuple):
    """The answer to a request that is not passed on."""

    status: int
    phrase: str
    fields: Fields
    body: bytes


class RequestLimit(Generic[R]):
    """A limiter for one kind of request, such as ASGI scopes.

    `key` is the key for all requests, or a function that takes a request and returns its key, or None to pass it
    without the limit. `policy` is the name that clients see (default: that of the limit, else "default"). Raises
    DeclarationError for another key, for an object that is no limiter, and for a limit name
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
        limit = limiter.limit
        self._policy = (limit.name or "default") if policy is None else policy
        self._policy_name = _quoted(self._policy)
        self._allowance = _allowance(limit.rule)
        self._name = limit.name or limit.rule.describe()
        self._share = None if limit.sharers is None else Limiter(share_of(limit), clock=clock)
        self._lock = threading.Lock()
        self._clock = clock or SystemClock()
        self._failure: HeadgateError | None = None
        self._next_try_at = 0
        self.passed_without_limit: int = 0
        """How many requests were passed on although the store of the limit failed."""
        self._warnings = LogBudget(self._clock, lines=1, per=30)

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

    @contextmanager
    def asking_store(self) -> Iterator[None]:
        """Raise the last error of a failing store, unless this request is to try it: a store may hang.

        The next try begins when as much time has passed as the last one took.
        """
        tried_at = self._clock.monotonic()
        if (failure := self._failure) is not None:
            if tried_at < self._next_try_at:
                raise own_error(failure)
            self._next_try_at = tried_at + UNKNOWN_WAIT * SECOND
        try:
            yield
        except STORE_ERRORS as error:
            if failure is not None:
                self._next_try_at = 2 * self._clock.monotonic() - tried_at
            self._failure = error
            raise
        self._failure, self._next_try_at = None, 0

    def fields(self, decision: Decision) -> Fields:
        """Return the fields of an answer: the policy, what is left of it, and if refused when to retry."""
        fields: Fields = []
        if self._allowance is not None:
            fields.append(("RateLimit-Policy", self._policy_name + self._allowance))
        remaining = decision.remaining
        if not decision.allowed:
            wait = decision.retry_after
        elif remaining:
            wait = decision.reset_after
        else:
            wait = decision.next_after
        until = "" if math.isinf(wait) else f";t={math.ceil(wait)}"
        fields.append(("RateLimit", f"{self._policy_name};r={remaining}{until}"))
        if not decision.allowed:
            fields.append(("Retry-After", str(UNKNOWN_WAIT if math.isinf(wait) else math.ceil(wait))))
        return fields

    def refusal(self, decision: Decision) -> Refusal:
        """Return the answer to a request that the limit refuses: 429, as a problem of RFC 9457."""
        fields = self.fields(decision)
        problem = {
            "type": QUOTA_EXCEEDED,
            "title": "Too many requests",
            "status": 429,
            "detail": f"limit {self._policy!r} lets no request pass now; try again in {dict(fields)['Retry-After']} s",
            "violated-policies": [self._policy],
        }
        return _refusal(429, "Too Many Requests", fields, problem)

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
        if passes:
            return None
        problem = {"title": "The limit of requests cannot be checked", "status": 503}
        return _refusal(503, "Service Unavailable", [("Retry-After", str(UNKNOWN_WAIT))], problem)


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


def _refusal(status: int, phrase: str, fields: Fields, problem: dict[str, object]) -> Refusal:
    body = json.dumps(problem).encode()
    content = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))]
    return Refusal(status, phrase, [*content, *fields], body)


def _allowance(rule: AnyRule) -> str | None:
    """Return what the limit allows, as parameters of its policy; None if that is not one number."""
    if rule.count is None:
        return None
    if rule.holds_permits:
        return f';q={rule.count};qu="concurrent-requests"'
    # Whole seconds only; a margin belongs to the server.
    return f";q={rule.count};w={max(1, -(-rule.declared_period // SECOND))}"


def _quoted(name: str) -> str:
    """Return a name as a string of a structured field, which has only printable ASCII characters."""
    if not name or not all(" " <= character <= "~" for character in name):
        raise DeclarationError(
            f"{name!r:.80} cannot be sent to clients as the name of a limit: header fields take only printable ASCII; "
            'pass policy="…", the name that clients see'
        )
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
