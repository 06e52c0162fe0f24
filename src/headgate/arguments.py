"""Arguments of public calls: durations, instants and whole numbers, each parsed and bounded in one place.

A duration is seconds, a `timedelta`, or text like "5m". It is at most a hundred years, so that sums of several still
fit a 64-bit integer of microseconds, and the numbers of Redis's scripts. An instant is an aware `datetime`.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from fractions import Fraction
from numbers import Real

from headgate.clock import FARTHEST, SECOND, from_datetime, microseconds
from headgate.errors import DeclarationError

LONGEST = FARTHEST / SECOND
"""The longest duration, in seconds: a hundred years."""

LARGEST_COUNT = 1_000_000_000_000
"""The largest count, burst, cost, capacity or backlog: exact in every store, even times a few thousand."""

MOST_SLOTS = 1_000_000
"""The most jobs that one process may run at once."""

MEBIBYTE = 2**20

_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_UNITS = {
    word: length
    for words, length in {
        "ms": 1000,
        "s sec secs second seconds": SECOND,
        "m min mins minute minutes": 60 * SECOND,
        "h hr hrs hour hours": 3600 * SECOND,
        "d day days": 86400 * SECOND,
        "w week weeks": 7 * 86400 * SECOND,
    }.items()
    for word in words.split()
}
_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_SIZE = re.compile(rf"\s*({_NUMBER})\s*([a-z]*)\s*", re.IGNORECASE)
_PART = re.compile(rf"\s*({_NUMBER})\s*([a-z]+)\s*")
_SECONDS = re.compile(rf"\s*({_NUMBER})\s*")
_LONGEST_TEXT = 64

DURATION_FORMS = 'write seconds (90 or 0.5), a timedelta, or text like "90s", "5m", "1h30m" or "5 minutes"'


def parse_duration(value: object, name: str, where: str = "", *, allow_zero: bool = True) -> int:
    """Return a duration in microseconds; `name` is the argument, `where` what it belongs to.

    Raises DeclarationError for a value that is not a duration, is negative, or is longer than a hundred years; and for
    0 unless `allow_zero`.
    """
    length = read_duration(value, name, where)
    if length < 0:
        raise DeclarationError(f"{_shown(name, value, where)} cannot be negative")
    if length == 0 and not allow_zero:
        raise DeclarationError(f"{_shown(name, value, where)} must be above 0 seconds")
    if length > FARTHEST:
        raise DeclarationError(f"{_shown(name, value, where)} is more than a hundred years, the longest duration")
    return length


def parse_seconds(value: object, name: str, where: str = "", *, allow_zero: bool = True) -> float:
    """As `parse_duration`, in seconds."""
    return parse_duration(value, name, where, allow_zero=allow_zero) / SECOND


def parse_wait(value: object, name: str, where: str = "") -> int:
    """Return a duration in microseconds, bounded to 0 and a hundred years, for computed values such as time left.

    Raises DeclarationError for a value that is not a duration.
    """
    return min(max(0, read_duration(value, name, where)), FARTHEST)


def read_duration(value: object, name: str, where: str = "") -> int:
    """Return a duration in microseconds, of any length and sign. Raises DeclarationError if it is not a duration."""
    if isinstance(value, timedelta):
        return microseconds(value)
    if isinstance(value, str):
        found = duration_in(value.strip().removeprefix("-"))
        if found is not None:
            return -found if value.strip().startswith("-") else found
    elif isinstance(value, Real) and not isinstance(value, bool):
        if isinstance(value, int):
            return value * SECOND
        seconds = float(value)
        if math.isfinite(seconds):
            length = seconds * SECOND
            return round(length) if math.isfinite(length) else round(math.copysign(2 * FARTHEST, length))
        raise DeclarationError(f"{_shown(name, value, where)} is not finite; {DURATION_FORMS}")
    raise DeclarationError(f"{_shown(name, value, where)} is not a duration; {DURATION_FORMS}")


def duration_in(text: str) -> int | None:
    """Return the microseconds of "90", "1.5m", "250ms" or "1h30m"; None if it is not a duration.

    Units are ms, s, m, h, d and w, or words: "5 min", "5 minutes".
    """
    if len(text) > _LONGEST_TEXT:
        return None
    found = _SECONDS.fullmatch(text)
    if found is not None:
        return round(Fraction(found[1].rstrip(".")) * SECOND)
    total, end = Fraction(0), 0
    while (found := _PART.match(text, end)) and found[2] in _UNITS:
        total += Fraction(found[1].rstrip(".")) * _UNITS[found[2]]
        end = found.end()
    return round(total) if end and end == len(text) else None


def parse_instant(value: object, name: str, where: str = "") -> int:
    """Return an aware datetime as wall microseconds, within the years 1 to 9999 of UTC. Raises DeclarationError."""
    if not isinstance(value, datetime):
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        forms = "datetime.fromtimestamp(…, UTC), or datetime.now(UTC) + timedelta(minutes=5)"
        raise DeclarationError(
            f"{_shown(name, value, where)} is {'a number' if is_number else 'not a datetime'}; pass an aware datetime: "
            f"{forms}"
        )
    if value.tzinfo is None:
        raise DeclarationError(
            f"{_shown(name, value, where)} has no time zone; pass an aware datetime, for example datetime.now(UTC)"
        )
    return from_datetime(value)


def parse_until(until: object, now: int) -> int:
    """Return the microseconds from `now` to the end of a penalty: a datetime, or a duration; up to a hundred years."""
    if isinstance(until, datetime):
        return min(max(0, parse_instant(until, "until", "penalize") - now), FARTHEST)
    return parse_wait(until, "until", "penalize")


def require_storable(text: object, what: str) -> None:
    """Raise DeclarationError for text that no database can hold: with NUL, or with half of a surrogate pair."""
    if not isinstance(text, str):
        return
    if "\x00" in text:
        raise unstorable(f"{what} {text!r:.80} has NUL")
    if not is_utf8(text):
        raise unstorable(f"{what} {text!r:.80} has half of a surrogate pair")


def is_utf8(text: str) -> bool:
    """Whether the text has a UTF-8 form: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def unstorable(what: str) -> DeclarationError:
    """Return the error about a text that cannot be stored: which it is, and what it has."""
    return DeclarationError(
        f"{what}, so no database can store it or find it; leave that character out, or decode the text again from its "
        "bytes, in their own encoding"
    )


def parse_count(value: object, name: str, where: str = "", *, least: int = 1, most: int = LARGEST_COUNT) -> int:
    """Return a whole number from `least` to `most`. Raises DeclarationError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DeclarationError(f"{_shown(name, value, where)} must be a whole number, at least {least}")
    if value > most:
        raise DeclarationError(f"{_shown(name, value, where)} is more than {most:,}, the largest allowed")
    return value


def parse_bytes(value: object, name: str, where: str = "", *, least: int = 1) -> int:
    """Return a number of bytes; text may have a unit. Raises DeclarationError, also for fewer than `least`."""
    size = value
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        found = _SIZE.fullmatch(value)
        if found is not None and found[2].upper() in _SIZES:
            size = round(Fraction(found[1].rstrip(".")) * _SIZES[found[2].upper()])
    if isinstance(size, bool) or not isinstance(size, int):
        forms = 'write bytes, or text like "200MB" (units B, KB, MB, GB, KiB, MiB, GiB)'
        raise DeclarationError(f"{_shown(name, value, where)} is not a size; {forms}")
    if not least <= size <= LARGEST_COUNT:
        raise DeclarationError(f"{_shown(name, value, where)} must be from {least:,} to {LARGEST_COUNT:,} bytes")
    return size


def _shown(name: str, value: object, where: str) -> str:
    """Return the argument and its value for an error message; a long value is cut."""
    try:
        text = repr(value)
    except ValueError:  # of an integer with more digits than Python prints
        text = "…"
    if len(text) > 80:
        text = f"{text[:77]}…"
    return f"{where}: {name}={text}" if where else f"{name}={text}"
