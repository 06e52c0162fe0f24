"""Limits as they are written on the command line: `15/m` of some kind, or a number for what runs at once."""

from __future__ import annotations

from headgate.errors import DeclarationError
from headgate.limits.concurrency import Concurrency, Semaphore
from headgate.limits.dynamic_window import SharedCounter
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.limit import AnyRule, Limit
from headgate.limits.rate_limit import RateLimit
from headgate.limits.sliding_window import SliceCounter, SlidingWindow
from headgate.limits.strict_rate import StrictRate

KINDS = ("strict", "rate", "fixed", "sliding")


def limit_like(declared: AnyRule, text: str, kind: str | None, burst: int | None, slices: int | None) -> Limit:
    """The limit that the words mean; of the declared kind if they name none. Raises DeclarationError."""
    if isinstance(declared, Semaphore):
        return Concurrency(_count(text))
    if isinstance(declared, SharedCounter):
        raise DeclarationError("a dynamic window is set from code: app.admin.limits.set(name, DynamicWindow(…))")
    if kind is None and declared.kind not in KINDS:
        raise DeclarationError(f"rules of kind {declared.kind!r} are set from code: app.admin.limits.set(…)")
    declared_slices = declared.slices if isinstance(declared, SliceCounter) else None
    return limit_of(kind or declared.kind, text, burst, slices or declared_slices)


def limit_of(kind: str, text: str, burst: int | None, slices: int | None) -> Limit:
    """A limit of that kind, not counted by any key yet. Raises DeclarationError."""
    match kind:
        case "rate":
            return RateLimit(text, burst=burst)
        case "strict":
            return StrictRate(text)
        case "fixed":
            return FixedWindow(text)
        case "sliding":
            return SlidingWindow(text, slices=slices or 60)
        case _:
            return Concurrency(_count(text))


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise DeclarationError(f"{text!r} is no whole number; what runs at once is limited by one, as 5")
    return int(text)
