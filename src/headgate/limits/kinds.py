"""The kinds of rules: the class of a stored kind, and the limit that a text such as "15/m" means."""

from __future__ import annotations

from collections.abc import Mapping
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


class RuleKinds:
    """Some kinds of rules, by name."""

    def __init__(self, rules: Mapping[type[AnyRule], type[Limit]]) -> None:
        self._by_name = {rule.kind: rule for rule in rules}
        self._declared_by = rules
        union: Any = reduce(or_, self._by_name.values())
        self._decode = msgspec.json.Decoder(union).decode

    def __getitem__(self, kind: str) -> type[AnyRule]:
        """Return the class of a kind. Raises KeyError."""
        return self._by_name[kind]

    @property
    def spelled(self) -> list[str]:
        """The kinds that can be written as text, for example on a command line."""
        return [kind for kind, rule in self._by_name.items() if rule.spelling is not None]

    @property
    def rates(self) -> list[str]:
        """Return the kinds that are rates. Each can replace any other."""
        return [kind for kind in self.spelled if self[kind].family == RATE]

    def load(self, text: str) -> AnyRule:
        """Do the work of `load_rule`."""
        try:
            return cast(AnyRule, self._decode(text))
        except msgspec.DecodeError as error:
            known = ", ".join(repr(kind) for kind in sorted(self._by_name))
            raise DeclarationError(
                f"{text[:100]!r} is not a rule of this version: {error}; its kind must be one of {known}"
            ) from None

    def limit(self, kind: str, text: str, like: AnyRule | None, options: SpelledOptions) -> Limit:
        """Do the work of `spelled_limit` and `limit_of`."""
        rule = self._by_name.get(kind)
        if rule is None or (like is not None and rule.family != like.family):
            raise DeclarationError(f"rules of kind {kind!r} are set from code: app.admin.limits.set(…)")
        return self._declared_by[rule].spelled(text, like, options)


KINDS = RuleKinds(RULES)


def dump_rule(rule: AnyRule) -> str:
    """Return the rule as JSON, with its kind as the tag; equal rules give the same text."""
    return msgspec.json.encode(rule).decode()


def load_rule(text: str) -> AnyRule:
    """Return the rule that `dump_rule` wrote. Raises DeclarationError for an unknown kind or an invalid rule."""
    return KINDS.load(text)


def limit_of(kind: str, text: str, **options: Unpack[SpelledOptions]) -> Limit:
    """Return the limit of that kind for a text such as "15/m" or a number. Raises DeclarationError."""
    return KINDS.limit(kind, text, None, options)


def spelled_limit(declared: AnyRule, text: str, *, kind: str | None = None, **options: Unpack[SpelledOptions]) -> Limit:
    """Return the limit for a text such as "15/m" or a number, in place of the declared rule. Raises DeclarationError.

    It is of the declared kind unless `kind` is another one, which only rates have. Options left out are as declared.
    """
    chosen = kind if kind is not None and declared.family == RATE else declared.kind
    return KINDS.limit(chosen, text, declared, options)
