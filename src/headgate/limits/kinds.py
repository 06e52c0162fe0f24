"""The kinds of rules: which class a stored kind names, and which limit people mean by what they write."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any, Final, Literal, Unpack, cast

import msgspec

from headgate.errors import DeclarationError
from headgate.limits.concurrency import Semaphore
from headgate.limits.dynamic_window import SharedCounter
from headgate.limits.fixed_window import WindowCounter
from headgate.limits.limit import AnyRule, Limit
from headgate.limits.rate_limit import Gcra
from headgate.limits.rule import RATE, SpelledOptions
from headgate.limits.sliding_window import SliceCounter
from headgate.limits.strict_rate import SlidingLog

RULES: Final[tuple[type[AnyRule], ...]] = (
    SlidingLog,
    Gcra,
    WindowCounter,
    SliceCounter,
    SharedCounter,
    Semaphore,
)
"""Every kind of rule. A new one is added here, and to `RateKind` if it is one that people can write as a rate."""

RateKind = Literal["strict", "rate", "fixed", "sliding"]
"""The kinds that people can choose for a rate."""


class RuleKinds:
    """Some kinds of rules, by name."""

    def __init__(self, rules: Iterable[type[AnyRule]]) -> None:
        self._by_name = {rule.kind: rule for rule in rules}
        union: Any = reduce(or_, self._by_name.values())
        self._decode = msgspec.json.Decoder(union).decode

    def __getitem__(self, kind: str) -> type[AnyRule]:
        """Raises KeyError."""
        return self._by_name[kind]

    @property
    def spelled(self) -> list[str]:
        """Those that people can write, on a command line for instance."""
        return [kind for kind, rule in self._by_name.items() if rule.spelling is not None]

    @property
    def rates(self) -> list[str]:
        """Those of them that are rates, each of which can take the place of another."""
        return [kind for kind in self.spelled if self[kind].family == RATE]

    def load(self, text: str) -> AnyRule:
        """As `load_rule`."""
        try:
            return cast(AnyRule, self._decode(text))
        except msgspec.DecodeError as error:
            known = ", ".join(repr(kind) for kind in sorted(self._by_name))
            raise DeclarationError(
                f"{text[:100]!r} is no rule that this version knows: {error}; its kind must be one of {known}"
            ) from None

    def limit(self, kind: str, text: str, like: AnyRule | None, options: SpelledOptions) -> Limit:
        """As `spelled_limit` and `limit_of`."""
        rule = self._by_name.get(kind)
        if rule is None or (like is not None and rule.family != like.family):
            raise DeclarationError(f"rules of kind {kind!r} are set from code: app.admin.limits.set(…)")
        return rule.spelled(text, like, options)


KINDS = RuleKinds(RULES)


def dump_rule(rule: AnyRule) -> str:
    """The rule as JSON, with its kind as the tag; rules that are equal give the same text."""
    return msgspec.json.encode(rule).decode()


def load_rule(text: str) -> AnyRule:
    """The rule that `dump_rule` made text of. Raises DeclarationError for an unknown kind and for what is no rule."""
    return KINDS.load(text)


def limit_of(kind: str, text: str, **options: Unpack[SpelledOptions]) -> Limit:
    """The limit of that kind that people mean by "15/m", or by a number. Raises DeclarationError."""
    return KINDS.limit(kind, text, None, options)


def spelled_limit(declared: AnyRule, text: str, *, kind: str | None = None, **options: Unpack[SpelledOptions]) -> Limit:
    """The limit that people mean by "15/m", or by a number, in place of the declared rule. Raises DeclarationError.

    It is of the declared kind unless they name another one, which only rates have. What they leave out is as declared.
    """
    chosen = kind if kind is not None and declared.family == RATE else declared.kind
    return KINDS.limit(chosen, text, declared, options)
