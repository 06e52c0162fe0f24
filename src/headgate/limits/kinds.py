"""The kinds of rules: the class of a stored kind, and the limit that a text such as "15/m" means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any, Final, Literal, Unpack, cast

import msgspec

from headgate.errors import DeclarationError
from headgate.limits.adaptive_rate import AdaptiveRate, Aimd
from headgate.limits.concurrency import Concurrency, Semaphore
from headgate.limits.dynamic_window import DynamicWindow, SharedCounter
from headgate.limits.fixed_window import FixedWindow, WindowCounter
from headgate.limits.limit import AnyRule, Limit, SpelledOptions
from headgate.limits.rate_limit import Gcra, RateLimit
from headgate.limits.rule import RATE
from headgate.limits.sliding_window import SliceCounter, SlidingWindow
from headgate.limits.strict_rate import SlidingLog, StrictRate

RULES: Final[Mapping[type[AnyRule], type[Limit]]] = {
    SlidingLog: StrictRate,
    Gcra: RateLimit,
    WindowCounter: FixedWindow,
    SliceCounter: SlidingWindow,
    SharedCounter: DynamicWindow,
    Semaphore: Concurrency,
    Aimd: AdaptiveRate,
}
"""Every kind of rule, and what declares it. Add a new one here, and to `RateKind` if a text can choose it."""

RateKind = Literal["strict", "rate", "fixed", "sliding", "adaptive"]
"""The kinds that a text can choose for a rate."""

KINDS: Final[Mapping[str, type[AnyRule]]] = {rule.kind: rule for rule in RULES}
"""The class of each kind, by its name."""


_decode: Callable[[str], AnyRule] = msgspec.json.Decoder(cast(Any, reduce(or_, RULES))).decode


def spelled_kinds() -> list[str]:
    """Return the kinds that can be written as text, for example on a command line."""
    return [rule.kind for rule, limit in RULES.items() if "spelled" in vars(limit)]


def dump_rule(rule: AnyRule) -> str:
    """Return the rule as JSON, with its kind as the tag; equal rules give the same text."""
    return msgspec.json.encode(rule).decode()


def load_rule(text: str) -> AnyRule:
    """Return the rule that `dump_rule` wrote. Raises DeclarationError for an unknown kind or an invalid rule."""
    try:
        return _decode(text)
    except msgspec.DecodeError as error:
        known = ", ".join(repr(kind) for kind in sorted(KINDS))
        raise DeclarationError(
            f"{text[:100]!r} is not a rule of this version: {error}; its kind must be one of {known}"
        ) from None


def limit_of(kind: str, text: str, like: AnyRule | None = None, **options: Unpack[SpelledOptions]) -> Limit:
    """Return the limit of that kind for a text such as "15/m" or a number; options left out are as in `like`.

    Raises DeclarationError, also for an option that the kind does not have.
    """
    rule = KINDS.get(kind)
    if rule is None or (like is not None and rule.family != like.family):
        raise DeclarationError(f"rules of kind {kind!r} are set from code: app.admin.limits.set(…)")
    for option, value in options.items():
        if value is not None and option not in rule.__struct_fields__:
            having = " or ".join(repr(each) for each in spelled_kinds() if option in KINDS[each].__struct_fields__)
            raise DeclarationError(
                f"a rule of kind {kind!r} has no {option}; leave out {option}={value}, which is for kind {having}"
            )
    return RULES[rule].spelled(text, like, options)


def spelled_limit(declared: AnyRule, text: str, *, kind: str | None = None, **options: Unpack[SpelledOptions]) -> Limit:
    """Return the limit for a text such as "15/m" or a number, in place of the declared rule. Raises DeclarationError.

    It is of the declared kind unless `kind` is another one, which only rates have. Options left out are as declared,
    or the defaults of another kind.
    """
    chosen = kind if kind is not None and declared.family == RATE else declared.kind
    return limit_of(chosen, text, declared, **options)
