"""The time of the next request according to an answer: `Retry-After`, and the rate limit headers of servers.

Headers are read defensively: an invalid one is ignored, and every wait is from 0 to `HORIZON`. Instants are compared
with the answer's own `Date`, if it has one, because this machine's clock may be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from logging import Logger
from typing import NamedTuple

HORIZON = 86_400.0
"""Seconds; the longest wait that is used: longer ones are mistakes, or too long for a request to wait."""

UNSAID = 5.0
"""Seconds to wait after a 429 that does not state a wait."""

TOO_MANY = 429
_REFUSALS = (403, TOO_MANY, 503)


def refused_for(status: int, headers: Mapping[str, str], now: datetime) -> float | None:
    """Return for how many seconds the server refuses requests; None if this is not a refusal.

    Each 429 is one, and so are 403 (as GitHub uses it) and 503 if they state a wait. A wait of 0 is ignored.
    """
    if status not in _REFUSALS:
        return None
    fields, now = _read(headers, now)
    waits = [
        wait for wait in (_retry_after(fields, now), _exhausted(fields, now, is_refusal=status == TOO_MANY)) if wait
    ]
    return max(waits, default=UNSAID if status == TOO_MANY else None)


def closed_for(status: int, headers: Mapping[str, str], now: datetime) -> float:
    """Return how many seconds to wait before the next request; 0 if it may come at once.

    It returns how long requests are refused, or, if an answer was the last in its window, the time to the next one.
    """
    refused = refused_for(status, headers, now)
    if refused is not None:
        return refused
    return _exhausted(*_read(headers, now), is_refusal=False) or 0.0


def log_unpenalized(logger: Logger, key: str, seconds: float, error: Exception) -> None:
    """Log that the penalty for an answer could not be stored; the answer matters more."""
    logger.warning("a server refuses %r for %g s, but the limiter could not store that: %s", key, seconds, error)


class _Window(NamedTuple):
    """One limit of a server: how much of it is left, and in how many seconds it begins anew."""

    remaining: float | None
    reset: float | None


_Fields = dict[str, str]


def _read(headers: Mapping[str, str], now: datetime) -> tuple[_Fields, datetime]:
    fields = {name.lower(): value.strip() for name, value in headers.items()}
    return fields, _instant(fields.get("date", "")) or now


def _retry_after(fields: _Fields, now: datetime) -> float | None:
    milliseconds = _number(fields.get("retry-after-ms", ""))
    if milliseconds is not None:
        return _clamped(milliseconds / 1000)
    return _wait(fields.get("retry-after", ""), now)


def _exhausted(fields: _Fields, now: datetime, *, is_refusal: bool) -> float | None:
    """Return the longest wait for an exhausted window; after a refusal also for one without a remaining count."""
    waits = [
        window.reset
        for window in _windows(fields, now)
        if window.reset is not None and (is_refusal if window.remaining is None else window.remaining < 1)
    ]
    return max(waits, default=None)


def _windows(fields: _Fields, now: datetime) -> Iterator[_Window]:
    yield from _structured(fields)
    parameters: dict[str, dict[str, str]] = {}
    for name, value in fields.items():
        found = _WINDOW_HEADER.fullmatch(name)
        if found is not None:
            which = f"{found['before'] or ''}/{found['after'] or ''}"
            parameters.setdefault(which, {})[found["what"]] = value
    for each in parameters.values():
        yield _Window(_number(each.get("remaining", "")), _wait(each.get("reset", ""), now))


# RateLimit-Reset and X-RateLimit-Reset, X-Rate-Limit-Reset, X-RateLimit-Reset-Tokens (OpenAI), and
# Anthropic-RateLimit-Tokens-Reset.
_WINDOW_HEADER = re.compile(
    r"(?:[a-z]+-)?rate-?limit-(?:(?P<before>[a-z-]+)-)?(?P<what>remaining|reset)(?:-(?P<after>[a-z-]+))?"
)


def _structured(fields: _Fields) -> Iterator[_Window]:
    """Read `RateLimit: "burst";r=0;t=30` of the IETF draft, and `limit=9, remaining=0, reset=30` of earlier ones."""
    policies = dict(_items(fields.get("ratelimit-policy", "")))
    loose: dict[str, str] = {}
    for name, parameters in _items(fields.get("ratelimit", "")):
        if "r" in parameters:
            reset = _number(parameters.get("t", policies.get(name, {}).get("w", "")))
            yield _Window(_number(parameters["r"]), None if reset is None else _clamped(reset))
        loose.update(parameters)
    if "reset" in loose:
        reset = _number(loose["reset"])
        yield _Window(_number(loose.get("remaining", "")), None if reset is None else _clamped(reset))


def _items(field: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the members of a list with their parameters."""
    for item in field.split(","):
        parts = [part.strip() for part in item.split(";")]
        pairs = [part.partition("=") for part in parts if "=" in part]
        yield parts[0], {name.strip(): value.strip() for name, _, value in pairs}


def _wait(text: str, now: datetime) -> float | None:
    """Return the seconds from `now`, of a text with seconds, an instant or a duration."""
    number = _number(text)
    if number is not None:
        return _clamped(_from_epoch(number, now))
    if _DURATION.fullmatch(text):
        return _clamped(sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(text)))
    instant = _instant(text)
    return None if instant is None else _clamped((instant - now).total_seconds())


def _from_epoch(number: float, now: datetime) -> float:
    # No wait is as long as thirty years, so such a number counts from 1970, in seconds or in milliseconds.
    if number >= 1e11:
        return number / 1000 - now.timestamp()
    return number - now.timestamp() if number >= 1e9 else number


def _clamped(seconds: float) -> float:
    return min(max(seconds, 0.0), HORIZON)


_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,9})?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_DURATION = re.compile(f"(?:{_PART.pattern}){{1,5}}")


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _instant(text: str) -> datetime | None:
    """Return an HTTP date or one of RFC 3339; UTC without a time zone."""
    if not 8 <= len(text) <= 64:
        return None
    try:
        found = parsedate_to_datetime(text) if text[0].isalpha() else datetime.fromisoformat(text)
        # A year at the end of the calendar may not be representable in UTC.
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
