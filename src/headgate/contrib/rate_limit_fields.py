"""The header fields by which a server reports a limit to its clients: `RateLimit-Policy`, `RateLimit`, `Retry-After`.

The first two are the structured fields of draft-ietf-httpapi-ratelimit-headers, in drafts 10 and 11.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from headgate import Decision, DeclarationError
from headgate.clock import SECOND
from headgate.limits.limit import AnyRule, Limit

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


class RateLimitFields:
    """The header fields of one limit. Raises DeclarationError for a name that cannot be sent.

    `policy` is the name that clients see (default: that of the limit, else "default").
    """

    def __init__(self, limit: Limit, policy: str | None) -> None:
        self._policy = (limit.name or "default") if policy is None else policy
        self._name = _quoted(self._policy)
        self._allowance = _allowance(limit.rule)

    def of(self, decision: Decision) -> Fields:
        """Return the fields of an answer: the policy, what is left of it, and if refused when to retry."""
        fields: Fields = []
        if self._allowance is not None:
            fields.append(("RateLimit-Policy", self._name + self._allowance))
        remaining = decision.remaining
        if not decision.allowed:
            wait = decision.retry_after
        elif remaining:
            wait = decision.reset_after
        else:
            wait = decision.next_after
        until = "" if math.isinf(wait) else f";t={math.ceil(wait)}"
        fields.append(("RateLimit", f"{self._name};r={remaining}{until}"))
        if not decision.allowed:
            fields.append(("Retry-After", str(UNKNOWN_WAIT if math.isinf(wait) else math.ceil(wait))))
        return fields

    def refusal(self, decision: Decision) -> Refusal:
        """Return the answer to a request that the limit refuses: 429, as a problem of RFC 9457."""
        fields = self.of(decision)
        problem = {
            "type": QUOTA_EXCEEDED,
            "title": "Too many requests",
            "status": 429,
            "detail": f"limit {self._policy!r} lets no request pass now; try again in {dict(fields)['Retry-After']} s",
            "violated-policies": [self._policy],
        }
        return _refusal(429, "Too Many Requests", fields, problem)


def unavailable() -> Refusal:
    """Return the answer to a request whose limit cannot be checked: 503."""
    problem = {"title": "The limit of requests cannot be checked", "status": 503}
    return _refusal(503, "Service Unavailable", [("Retry-After", str(UNKNOWN_WAIT))], problem)


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
    return f";q={rule.count};w={max(1, -(-(rule.period - rule.margin) // SECOND))}"


def _quoted(name: str) -> str:
    """Return a name as a string of a structured field, which has only printable ASCII characters."""
    if not name or not all(" " <= character <= "~" for character in name):
        raise DeclarationError(
            f"{name!r:.80} cannot be sent to clients as the name of a limit: header fields take only printable ASCII; "
            'pass policy="…", the name that clients see'
        )
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
