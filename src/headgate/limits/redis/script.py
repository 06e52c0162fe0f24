"""The Lua twins of the rules: which script judges a rule, by which numbers, and how its state reads there."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from headgate.clock import FARTHEST
from headgate.errors import DeclarationError
from headgate.limits import kinds
from headgate.limits.limit import AnyRule

COUNTABLE: Final = 1 << 52
"""Lua counts in doubles, exactly up to 2^53; half of that leaves room for one sum."""


class Script:
    """A script as Redis is given it, a rule's own above the shared parts; Redis knows it by its SHA-1."""

    def __init__(self, *parts: str, rule: str | None = None) -> None:
        own, shared = files("headgate.limits"), files("headgate.limits.redis") / "lua"
        sources = [] if rule is None else [own / f"{rule}.lua"]
        sources += [shared / f"{part}.lua" for part in parts]
        self.source = b"\n".join(source.read_bytes() for source in sources)
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


@cache
def script(lua: str | None) -> Script:
    """The script of the rule whose twin has that name."""
    return Script("bucket", "verbs", rule=lua)


def numbers(rule: AnyRule) -> tuple[bytes, ...]:
    """The rule as its script is told it. Raises DeclarationError for one that no script can judge."""
    if rule.holds_permits:
        raise DeclarationError(
            f"{rule.describe()} cannot be kept in Redis: permits belong to jobs and live where the jobs do, so "
            "that a crashed holder gives them back"
        )
    if rule.lua is None:
        raise DeclarationError(f"a rule of kind {rule.kind!r} has no script for Redis; keep it in another store")
    told, counts_to, reaches = rule.lua_numbers()
    _check(rule, counts_to, reaches)
    return tuple(b"%d" % number for number in told)


def check_change(rule: AnyRule, charged: int, actual: int) -> None:
    """Raise DeclarationError if a start of one cost cannot be made into one of another."""
    _check(rule, *rule.lua_change(charged, actual))


def from_script(text: bytes) -> str:
    """The state that a script wrote, as `Rule.load` reads it; other text where no rule of ours wrote."""
    try:
        _, kind, _, _, state = text.split(b":", 4)
        return kinds.KINDS[kind.decode()].lua_load(state)
    except (KeyError, ValueError, NotImplementedError, msgspec.DecodeError):
        return "unknown"


def _check(rule: AnyRule, counts_to: int, reaches: int) -> None:
    if reaches > FARTHEST:
        raise DeclarationError(
            f"{rule.describe()} reaches further than the hundred years that fit into Redis's numbers"
        )
    if counts_to > COUNTABLE:
        raise DeclarationError(
            f"{rule.describe()} counts up to {counts_to}, beyond the {COUNTABLE} that Redis's numbers hold exactly; "
            "lower its count or burst"
        )
