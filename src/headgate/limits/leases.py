"""Leases: permits that end by themselves, for holders on several machines."""

from __future__ import annotations

import base64
import struct
from bisect import bisect_left, bisect_right
from typing import ClassVar

import msgspec

from headgate.clock import SECOND
from headgate.limits.rate import PermitRule, counted_snapshot
from headgate.limits.rule import LuaNumbers, Snapshot

KEPT_FOR = 86400 * SECOND
"""How long (µs) the instant of the last grant is kept, so that a clock which is set back repeats no instant."""


class LeaseLog(msgspec.Struct, frozen=True):
    """The instant of the last grant, and when each lease ends, earliest first."""

    last: int
    ends: tuple[int, ...]


class Leases(PermitRule[LeaseLog], frozen=True, tag="lease", tag_field="kind"):
    """Grants a lease of `period` while fewer than `count` have not ended. No two grants have the same instant.

    So the instant of its grant is the fencing token of a lease. A holder renews its lease by moving its start to a
    later instant, and gives it back by changing its cost to 0, both with `amend`. A lease that another rule of the same
    key has granted, with its own period, is respected until its own end.
    """

    period: int

    kind: ClassVar[str] = "lease"
    family: ClassVar[str] = "lease"
    lua: ClassVar[str | None] = "leases"

    def take(self, state: LeaseLog | None, now: int, cost: int = 1) -> tuple[int, LeaseLog]:
        if cost > self.count:
            self.check_cost(cost)
        ends = _open(state, now)
        opens_at = now if state is None else max(now, state.last + 1)
        excess = len(ends) + cost - self.count
        if excess > 0:
            opens_at = max(opens_at, ends[excess - 1])
        return opens_at, LeaseLog(opens_at, _with(_open(state, opens_at), opens_at + self.period, cost))

    def amend(self, state: LeaseLog, charged_at: int, cost: int, started_at: int, actual: int) -> LeaseLog:
        # A lease that has ended, and was granted to another holder since, is not there any more.
        end = charged_at + self.period
        first, past = bisect_left(state.ends, end), bisect_right(state.ends, end)
        known = min(cost, past - first)
        rest = state.ends[:first] + state.ends[first + known :]
        return LeaseLog(state.last, _with(rest, started_at + self.period, max(0, known + actual - cost)))

    def snapshot(self, state: LeaseLog | None, now: int) -> Snapshot:
        return counted_snapshot(self, state, now, len(_open(state, now)))

    def full_at(self, state: LeaseLog) -> int:
        return max(state.ends, default=0)

    def idle_at(self, state: LeaseLog) -> int:
        return max(state.last + KEPT_FOR, self.full_at(state))

    def dump(self, state: LeaseLog) -> str:
        return f"1:{self.kind}:" + base64.b64encode(self.lua_dump(state, 0)).decode()

    def load(self, stored: str, now: int) -> LeaseLog:
        head = f"1:{self.kind}:"
        if not stored.startswith(head):
            # Who holds it is not known, so nothing is granted for a period.
            return LeaseLog(now, (now + self.period,) * self.count)
        packed = base64.b64decode(stored[len(head) :])
        last, *ends = struct.unpack(f"<{len(packed) // 8}q", packed)
        return LeaseLog(last, tuple(ends))

    def describe(self) -> str:
        return f"{self.count} at once, leased for {self.period / SECOND:g} s"

    def lua_numbers(self) -> LuaNumbers:
        return LuaNumbers((self.count, self.period), self.count, self.period)

    def lua_change(self, charged: int, actual: int) -> tuple[int, int]:
        return max(charged, actual), 0

    def lua_dump(self, state: LeaseLog, now: int) -> bytes:
        return struct.pack(f"<{1 + len(state.ends)}q", state.last, *state.ends)

    @classmethod
    def lua_load(cls, state: bytes) -> str:
        if not state or len(state) % 8:
            raise ValueError("each instant takes 8 bytes")
        return f"1:{cls.kind}:" + base64.b64encode(state).decode()


def _open(state: LeaseLog | None, now: int) -> tuple[int, ...]:
    """Return the ends of the leases that have not ended."""
    return () if state is None else state.ends[bisect_right(state.ends, now) :]


def _with(ends: tuple[int, ...], end: int, count: int) -> tuple[int, ...]:
    """Return the ends with `count` more that are equal."""
    place = bisect_right(ends, end)
    return ends[:place] + (end,) * count + ends[place:]
