"""Rates: as text ("15/m", "100/s", "15/30s", "15 per minute"), and what the rules of one shape share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

from msgspec.structs import replace

from headgate.arguments import LARGEST_COUNT, duration_in, parse_duration
from headgate.clock import FARTHEST, SECOND, Duration
from headgate.errors import DeclarationError
from headgate.limits.rule import Rule, Snapshot

S = TypeVar("S")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RATE = re.compile(r"([0-9]{1,18})(?:\s*/\s*|\s+per\s+)([0-9a-z. ]*[a-z])")
_FORMS = (
    'write it as "10/s", "100/m", "500/h", "1000/d", "15/30s" or "15 per minute", or as a count with per=60 or per="5m"'
)


@dataclass(frozen=True, slots=True)
class Rate:
    """A count of starts per period (integer microseconds)."""

    count: int
    period: int

    def __str__(self) -> str:
        seconds, rest = divmod(self.period, SECOND)
        if rest:
            return f"{self.count}/{_seconds(self.period)}s"
        unit, length = next(each for each in reversed(_UNITS.items()) if seconds % each[1] == 0)
        many = seconds // length
        return f"{self.count}/{many if many > 1 else ''}{unit}"


class CountRule(Rule[S], frozen=True):
    """What the rules share that grant up to `count` starts in a window."""

    count: int

    repeats_every_count: ClassVar[bool] = True

    def divided(self, sharers: int) -> Self:
        return replace(self, count=self.share_of(self.count, sharers))


class PermitRule(Rule[S], frozen=True):
    """What the rules share that grant up to `count` permits at once."""

    count: int

    shape: ClassVar[str] = "a concurrency"

    @property
    def period(self) -> int:
        return 0

    def bound(self, window: int) -> int:
        """Return how many permits can be held at once; how many start in a window depends on how long they run."""
        return self.count

    def describe(self) -> str:
        return f"{self.count} at once"


def counted_snapshot(rule: CountRule[S] | PermitRule[S], state: S | None, now: int, used: int) -> Snapshot:
    """Return the snapshot of a bucket of which so much is used."""
    opens_at, _ = rule.take(state, now)
    # It may be closed although places are left: in a margin, or because the state lies ahead.
    available = max(0, rule.count - used) if opens_at <= now else 0
    return Snapshot(used=used, available=available, opens_at=opens_at)


def described(count: int, period: int, margin: int) -> str:
    """Return a rate in words, with its margin if it has one: "15/m", or "15/m + 0.02s"."""
    rate = str(Rate(count, period))
    return f"{rate} + {_seconds(margin)}s" if margin else rate


def parse_rate(rate: str | int, per: Duration | None) -> Rate:
    """Return the rate of a string, or of a count with its period. Raises DeclarationError, with the valid forms."""
    if isinstance(rate, str):
        if per is not None:
            is_key = isinstance(per, str) and _period_in(per) is None
            instead = f"write key={per!r:.80}" if is_key else f"leave out per={per!r:.80}"
            raise DeclarationError(f"rate {rate!r} already names its period; {instead}")
        match = _RATE.fullmatch(rate.strip())
        if match is None:
            raise DeclarationError(f"{rate!r} is not a rate; {_FORMS}")
        count, text = match.groups()
        period = _period_in(text)
        if period is None:
            raise DeclarationError(f"{rate!r} is not a rate; {_FORMS}")
        if period > FARTHEST:
            raise DeclarationError(f"{rate!r} has a period of more than a hundred years, the longest")
        return _checked(int(count), period, repr(rate))
    if isinstance(rate, bool) or not isinstance(rate, int):
        raise DeclarationError(f"{rate!r:.80} is not a rate; {_FORMS}")
    if abs(rate) > LARGEST_COUNT:
        raise DeclarationError(f"a rate allows at most {LARGEST_COUNT:,} starts in its period")
    if per is None:
        raise DeclarationError(f"a rate of {rate} needs its period; {_FORMS}")
    if isinstance(per, str) and per[:1].isalpha() and _period_in(per) is not None:
        per = f"1{per}"
    return _checked(rate, parse_duration(per, "per", f"a rate of {rate}"), f"{rate} per {per!r}")


def _period_in(text: str) -> int | None:
    """Return the microseconds of a period: "m" or "minute" is one minute; None if it is not a duration."""
    return duration_in(f"1{text}" if text[:1].isalpha() else text)


def _checked(count: int, period: int, given: str) -> Rate:
    if count > LARGEST_COUNT:
        raise DeclarationError(f"{given} allows more than {LARGEST_COUNT:,} starts, the most that a limit counts")
    if count < 1:
        raise DeclarationError(f"{given} allows {count} starts; a rate needs a count of at least 1")
    if period < 1:
        raise DeclarationError(f"{given} has no length; a rate needs a period above 0")
    return Rate(count, period)


def _seconds(duration: int) -> str:
    """Return microseconds as seconds, in full: two different durations must not read the same."""
    seconds, rest = divmod(duration, SECOND)
    return f"{seconds}.{rest:06d}".rstrip("0").rstrip(".")
