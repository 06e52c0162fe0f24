"""The Lua twins of the rules: which script judges a rule, by which numbers, and how its state reads there."""

from __future__ import annotations

import base64
import hashlib
import struct
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from headgate.clock import FARTHEST
from headgate.errors import DeclarationError
from headgate.limits.concurrency import Semaphore
from headgate.limits.dynamic_window import SharedCounter, Shares
from headgate.limits.fixed_window import WindowCounter
from headgate.limits.limit import AnyRule
from headgate.limits.rate_limit import Gcra
from headgate.limits.sliding_window import SliceCounter, Slices
from headgate.limits.strict_rate import MAX_COUNT, SlidingLog

COUNTABLE: Final = 1 << 52
"""Lua counts in doubles, exactly up to 2^53; half of that leaves room for one sum."""


class Script:
    """A script as Redis is given it; known there by its SHA-1."""

    def __init__(self, *parts: str) -> None:
        folder = files("headgate.limits.redis") / "lua"
        self.source = b"\n".join((folder / f"{part}.lua").read_bytes() for part in parts)
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


@cache
def script(kind: str) -> Script:
    """The script of one kind of rule."""
    return Script(kind, "bucket", "verbs")


def numbers(rule: AnyRule) -> tuple[bytes, ...]:
    """The rule as its script is told it. Raises DeclarationError for one that no script can judge."""
    told: tuple[int, ...]
    match rule:
        case Gcra():
            _check(rule, rule.period, rule.period * rule.burst // rule.count)
            _check_count(rule, rule.burst * rule.count)
            told = (rule.count, rule.period, rule.burst, int(rule.start_empty))
        case SlidingLog():
            _check(rule, rule.period)
            told = (rule.count, rule.period)
        case WindowCounter():
            _check(rule, rule.period)
            _check_count(rule, rule.count)
            told = (rule.count, rule.period, rule.margin)
        case SliceCounter():
            _check(rule, rule.period)
            _check_count(rule, rule.count)
            told = (rule.count, rule.slice, rule.slices)
        case SharedCounter():
            _check(rule, rule.period)
            _check_count(rule, max(rule.capacity, rule.max_count))
            told = (rule.slice, rule.slices, rule.capacity, rule.most_keys, rule.max_count)
        case Semaphore():
            raise DeclarationError(
                f"{rule.describe()} cannot be kept in Redis: permits belong to jobs and live where the jobs do, so "
                "that a crashed holder gives them back"
            )
        case _:
            raise DeclarationError(f"a rule of kind {rule.kind!r} has no script for Redis; keep it in another store")
    return tuple(b"%d" % number for number in told)


def check_change(rule: AnyRule, charged: int, actual: int) -> None:
    """Raise DeclarationError if a start of one cost cannot be made into one of another."""
    change = abs(actual - charged)
    if isinstance(rule, Gcra):
        _check(rule, change * rule.period // rule.count)
        _check_count(rule, change * rule.count)
    elif isinstance(rule, SlidingLog) and actual > 10 * MAX_COUNT:
        raise DeclarationError(f"a cost of {actual} is too much for a log of starts; use RateLimit or SlidingWindow")
    else:
        _check_count(rule, actual)


def from_script(text: bytes) -> str:
    """The state that a script wrote, as `Rule.load` reads it; other text where no rule of ours wrote."""
    try:
        _, kind, _, _, state = text.split(b":", 4)
        match kind:
            case b"rate":
                us, part, count, period, last = map(int, state.split(b":"))
                return f"1:rate:{us * count + part}:{count}:{period}:{last}"
            case b"strict" if len(state) % 8 == 0:
                return "1:strict:" + base64.b64encode(state).decode()
            case b"fixed":
                return "1:fixed:" + state.decode()
            case b"sliding":
                return _sliding_from_script(state.decode())
            case b"dynamic":
                return _dynamic_from_script(state)
    except (ValueError, msgspec.DecodeError):
        pass
    return "unknown"


def for_script(rule: AnyRule, state: Any, now: int) -> bytes:
    """A state as the rule's script reads it."""
    match rule:
        case Gcra():
            # Many starts owed under a fast rate may be centuries under a slow one.
            us, part = divmod(min(state[0], (now + FARTHEST) * rule.count), rule.count)
            return f"{us}:{part}:{rule.count}:{rule.period}:{state[1]}".encode()
        case SlidingLog():
            return struct.pack(f"<{len(state)}q", *state)
        case WindowCounter():
            return f"{state[0]}:{state[1]}:{rule.count}:{rule.period}".encode()
        case SliceCounter():
            return _sliding_for_script(rule, state)
        case SharedCounter():
            return _dynamic_for_script(rule, state)
        case _:
            raise AssertionError(f"{rule.kind} has no script")


def _sliding_from_script(state: str) -> str:
    count, slice, slices, _, newest, used, older = state.split(":")
    held = [int(number) for number in older.split()] + ([int(newest), int(used)] if used != "0" else [])
    back = " ".join(f"{int(newest) - number} {many}" for number, many in zip(held[::2], held[1::2], strict=True))
    return f"1:sliding:{count}:{slice}:{slices}:{newest}:{back}"


def _sliding_for_script(rule: SliceCounter, state: Slices) -> bytes:
    total, newest, used, older = state
    held = "".join(f"{number} " for number in older)
    return f"{rule.count}:{rule.slice}:{rule.slices}:{total}:{newest}:{used}:{held}".encode()


class _Packed(msgspec.Struct, array_like=True):
    """`Shares` as a script packs it: Lua's tables have no order, so that the keys are a list."""

    used: int
    active: int
    slices: list[tuple[int, int, int]]
    keys: list[tuple[str, list[int]]]


_unpack = msgspec.msgpack.Decoder(_Packed).decode


def _dynamic_from_script(state: bytes) -> str:
    slice, slices, packed = state.split(b":", 2)
    shares = _unpack(packed)
    parts = (shares.used, shares.active, shares.slices, dict(shares.keys))
    return f"1:dynamic:{int(slice)}:{int(slices)}:{msgspec.json.encode(parts).decode()}"


def _dynamic_for_script(rule: SharedCounter, state: Shares) -> bytes:
    packed = msgspec.msgpack.encode((state.used, state.active, state.slices, list(state.keys.items())))
    return f"{rule.slice}:{rule.slices}:".encode() + packed


def _check(rule: AnyRule, *durations: int) -> None:
    if any(duration > FARTHEST for duration in durations):
        raise DeclarationError(
            f"{rule.describe()} reaches further than the hundred years that fit into Redis's numbers"
        )


def _check_count(rule: AnyRule, count: int) -> None:
    if count > COUNTABLE:
        raise DeclarationError(
            f"{rule.describe()} counts up to {count}, beyond the {COUNTABLE} that Redis's numbers hold exactly; "
            "lower its count or burst"
        )
