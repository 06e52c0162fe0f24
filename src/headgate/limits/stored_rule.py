"""Rules as text: how a rule is stored and told to other programs."""

from __future__ import annotations

from typing import cast, get_args

import msgspec

from headgate.errors import DeclarationError
from headgate.limits.concurrency import Semaphore
from headgate.limits.dynamic_window import SharedCounter
from headgate.limits.fixed_window import WindowCounter
from headgate.limits.limit import AnyRule
from headgate.limits.rate_limit import Gcra
from headgate.limits.sliding_window import SliceCounter
from headgate.limits.strict_rate import SlidingLog

StoredRule = Gcra | SlidingLog | WindowCounter | SliceCounter | SharedCounter | Semaphore

KINDS = ", ".join(repr(kind) for kind in sorted(rule.kind for rule in get_args(StoredRule)))

_decode = msgspec.json.Decoder(StoredRule).decode


def dump_rule(rule: AnyRule) -> str:
    """The rule as JSON, with its kind as the tag; rules that are equal give the same text."""
    return msgspec.json.encode(rule).decode()


def load_rule(text: str) -> AnyRule:
    """The rule that `dump_rule` made text of. Raises DeclarationError for an unknown kind and for what is no rule."""
    try:
        return cast(AnyRule, _decode(text))
    except msgspec.DecodeError as error:
        raise DeclarationError(
            f"{text[:100]!r} is no rule that this version knows: {error}; its kind must be one of {KINDS}"
        ) from None
