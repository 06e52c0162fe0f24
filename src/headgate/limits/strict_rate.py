"""StrictRate: never more than N starts in any window, by a log of the starts that still count."""

from __future__ import annotations

import base64
import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import ClassVar, Unpack

from headgate.arguments import parse_duration
from headgate.clock import SECOND, Duration
from headgate.errors import DeclarationError
from headgate.limits.limit import AnyRule, Limit, RateOptions, SpelledOptions
from headgate.limits.rate import CountRule, counted_snapshot, described, parse_rate
from headgate.limits.rule import LuaNumbers, Snapshot

MAX_COUNT = 1000
DEFAULT_MARGIN = 0.02

Starts = tuple[int, ...]


class SlidingLog(CountRule[Starts], frozen=True, tag="strict", tag_field="kind"):
    """Grants a start when fewer than `count` lie in the period that ends with it.

    The state is the instants that still count, oldest first. A window is half open: a start at `t` stops counting at
    exactly `t + period`.
    """

    period: int
    margin: int = 0

    kind: ClassVar[str] = "strict"
    shape: ClassVar[str] = "a strict rate"
    lua: ClassVar[str | None] = "strict_rate"

    def take(self, state: Starts | None, now: int, cost: int = 1) -> tuple[int, Starts]:
        if cost > self.count:
            self.check_cost(cost)
        starts = self._counting(state or (), now)
        # The oldest `excess` starts must leave the window first.
        excess = len(starts) + cost - self.count
        opens_at = now
        if starts and starts[-1] > now:
            opens_at = starts[-1]
        if excess > 0:
            opens_at = max(opens_at, starts[excess - 1] + self.period)
            starts = self._counting(starts, opens_at)
        return opens_at, starts + (opens_at,) * cost

    def counts_until(self, charged_at: int) -> int:
        return charged_at + self.period

    def amend(self, state: Starts, charged_at: int, cost: int, started_at: int, actual: int) -> Starts:
        # More starts at one instant than any count allows would all be stored and close the window no longer.
        cost, actual = min(cost, MAX_COUNT), min(actual, MAX_COUNT)
        # What has left the window meanwhile no longer counts and is not brought back.
        known = min(cost, state.count(charged_at))
        first = bisect_left(state, charged_at)
        rest = state[:first] + state[first + known :]
        place = bisect_right(rest, started_at)
        return rest[:place] + (started_at,) * max(0, known + actual - cost) + rest[place:]

    def snapshot(self, state: Starts | None, now: int) -> Snapshot:
        return counted_snapshot(self, state, now, len(self._counting(state or (), now)))

    def bound(self, window: int) -> int:
        return self.count * -(-window // self.period)

    def idle_at(self, state: Starts) -> int:
        return state[-1] + self.period if state else 0

    def dump(self, state: Starts) -> str:
        return f"1:{self.kind}:" + base64.b64encode(struct.pack(f"<{len(state)}q", *state)).decode()

    def load(self, stored: str, now: int) -> Starts:
        head = f"1:{self.kind}:"
        if not stored.startswith(head):
            # Another kind of rule wrote this state: what it granted is unknown, so nothing is left for a period.
            return (now,) * self.count
        # Instants mean the same under every rate, so nothing is rescaled.
        packed = base64.b64decode(stored[len(head) :])
        return struct.unpack(f"<{len(packed) // 8}q", packed)

    def describe(self) -> str:
        return described(self.count, self.declared_period, self.margin)

    def lua_numbers(self) -> LuaNumbers:
        return LuaNumbers((self.count, self.period), self.count, self.period)

    def lua_dump(self, state: Starts, now: int) -> bytes:
        return struct.pack(f"<{len(state)}q", *state)

    @classmethod
    def lua_load(cls, state: bytes) -> str:
        if len(state) % 8:
            raise ValueError("the instants of starts take 8 bytes each")
        return f"1:{cls.kind}:" + base64.b64encode(state).decode()

    def _counting(self, starts: Starts, now: int) -> Starts:
        expired_until = now - self.period
        if not starts or starts[0] > expired_until:
            return starts
        return starts[bisect_right(starts, expired_until) :]


@dataclass(frozen=True, init=False)
class StrictRate(Limit):
    """Never more than N starts in *any* window of that length: what an outside API counts.

    `StrictRate("15/m")` or `StrictRate(15, per=60)`. `margin` (default 0.02 s) widens the window: it is how much later
    or earlier than its charge the call may reach the callee, and costs `margin / per` of the budget. The count is at
    most 1,000, since every start in the window is stored; use `SlidingWindow` for higher counts.
    """

    rule: SlidingLog

    def __init__(
        self,
        rate: str | int,
        per: Duration | None = None,
        *,
        margin: Duration = DEFAULT_MARGIN,
        **options: Unpack[RateOptions],
    ) -> None:
        parsed = parse_rate(rate, per)
        if parsed.count > MAX_COUNT:
            raise DeclarationError(
                f"StrictRate remembers every start and so takes at most {MAX_COUNT}, not {parsed.count}; "
                "use SlidingWindow for higher counts"
            )
        widening = parse_duration(margin, "margin", "a strict rate")
        super().__init__(SlidingLog(parsed.count, parsed.period + widening, widening), **options)

    @classmethod
    def spelled(cls, text: str, like: AnyRule | None, options: SpelledOptions) -> Limit:
        return cls(text, margin=like.margin / SECOND if isinstance(like, SlidingLog) else DEFAULT_MARGIN)
