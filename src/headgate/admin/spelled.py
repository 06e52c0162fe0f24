"""Rules as people spell them where they steer: "15/m", or a number for what runs at once."""

from __future__ import annotations

from typing import Literal

from headgate.errors import DeclarationError
from headgate.limits.concurrency import Concurrency, Semaphore
from headgate.limits.dynamic_window import SharedCounter
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.limit import AnyRule, Limit
from headgate.limits.rate_limit import RateLimit
from headgate.limits.sliding_window import SliceCounter, SlidingWindow
from headgate.limits.strict_rate import StrictRate

RateKind = Literal["rate", "strict", "fixed", "sliding"]


def spelled_limit(
    declared: AnyRule, rule: str, *, kind: RateKind | None = None, burst: int | None = None, slices: int | None = None
) -> Limit:
    """The limit that the words mean; of the declared kind if they name none. Raises DeclarationError."""
    if isinstance(declared, Semaphore):
        if not (rule.isascii() and rule.isdecimal() and len(rule) <= 9):
            raise DeclarationError(f"rule={rule!r}: this limit counts what runs at once; say how many, as 4")
        return Concurrency(int(rule))
    if isinstance(declared, SharedCounter):
        raise DeclarationError("a dynamic window is set from code: app.admin.limits.set(name, DynamicWindow(…))")
    match kind or declared.kind:
        case "rate":
            return RateLimit(rule, burst=burst)
        case "strict":
            return StrictRate(rule)
        case "fixed":
            return FixedWindow(rule)
        case "sliding":
            declared_slices = declared.slices if isinstance(declared, SliceCounter) else 60
            return SlidingWindow(rule, slices=slices or declared_slices)
        case other:
            raise DeclarationError(f"rules of kind {other!r} are set from code: app.admin.limits.set(…)")
