"""The Lua versions of the rules: the script of a rule, its arguments, and its stored state."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import msgspec

from headgate.clock import FARTHEST
from headgate.errors import DeclarationError, StorageUnavailable
from headgate.limits.bucket_store import Bucket
from headgate.limits.kinds import KINDS
from headgate.limits.leases import Leases
from headgate.limits.limit import AnyRule

LARGEST_EXACT_COUNT: Final = 1 << 52
"""Lua computes with doubles, exact up to 2^53; half of that leaves room for one sum."""

MAX_TRIES: Final = 20
"""How often one call converts a bucket's state from another rule before it fails."""


_LIBRARY = {"strict_rate": "instants", "leases": "instants"}
"""The shared part that the own part of a rule uses."""


class Script(NamedTuple):
    """The source of a script, and its SHA-1, by which Redis identifies it."""

    source: bytes
    sha: bytes


@cache
def script(*parts: str, rule: str | None = None) -> Script:
    """Return a script: the Lua file of a rule, above the shared parts that use it."""
    own, shared = files("headgate.limits"), files("headgate.limits.redis") / "lua"
    sources = [] if rule is None else [own / f"{rule}.lua"]
    sources += [shared / f"{part}.lua" for part in parts]
    if rule in _LIBRARY:
        sources.insert(0, shared / f"{_LIBRARY[rule]}.lua")
    source = b"\n".join(each.read_bytes() for each in sources)
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


def numbers(rule: AnyRule) -> tuple[bytes, ...]:
    """Return a rule as arguments of its script. Raises DeclarationError for a rule without a script."""
    if rule.holds_permits:
        raise DeclarationError(
            f"{rule.describe()} cannot be kept in Redis: permits belong to jobs and live where the jobs do, so "
            "that a crashed holder gives them back"
        )
    if rule.lua is None:
        raise DeclarationError(f"a rule of kind {rule.kind!r} has no script for Redis; keep it in another store")
    arguments, highest_count, longest_time = rule.lua_numbers()
    _check(rule, highest_count, longest_time)
    return tuple(b"%d" % number for number in arguments)


def check_change(rule: AnyRule, charged: int, actual: int) -> None:
    """Raise DeclarationError if a start of one cost cannot be changed into one of another."""
    _check(rule, *rule.lua_change(charged, actual))


def from_script(text: bytes) -> str:
    """Return the state that a script wrote, for `Rule.load`; "unknown" if no rule of Headgate wrote it."""
    try:
        _, kind, _, _, state = text.split(b":", 4)
        name = kind.decode()
        # Leases are no rule of jobs, so they are not among the kinds.
        return Leases.lua_load(state) if name == Leases.kind else KINDS[name].lua_load(state)
    except (KeyError, ValueError, NotImplementedError, msgspec.DecodeError):
        return "unknown"


def load_state(rule: AnyRule, text: bytes, now: int) -> Any:
    """Return the state that a script of any rule wrote; one that cannot be read counts as another rule's."""
    try:
        return rule.load(from_script(text), now)
    except Exception:  # the stored text may fail in any way
        return rule.load("unknown", now)


def converted(rule: AnyRule, reply: list[Any]) -> tuple[bytes, bytes]:
    """Return the state that another rule wrote, from the reply of a script that cannot use it, and its replacement."""
    _, now, offset, text = reply
    state = rule.lua_dump(load_state(rule, text, now), now)
    return text, f"1:{rule.kind}:{now}:{offset}:".encode() + state


def rewritten(key: bytes, bucket: Bucket) -> StorageUnavailable:
    """Return the error for a state that other programs convert back each time."""
    return StorageUnavailable(
        f"{key.decode()} is rewritten all the time: programs use limit {bucket.limit!r} with different rules; give "
        "them the same rule, or different names"
    )


def _check(rule: AnyRule, highest_count: int, longest_time: int) -> None:
    if longest_time > FARTHEST:
        raise DeclarationError(
            f"{rule.describe()} reaches further than the hundred years that fit into Redis's numbers"
        )
    if highest_count > LARGEST_EXACT_COUNT:
        raise DeclarationError(
            f"{rule.describe()} counts up to {highest_count}, beyond the {LARGEST_EXACT_COUNT} that Redis's "
            "numbers hold exactly; lower its count or burst"
        )
