"""RateLimit: an average rate with a burst, by the generic cell rate algorithm (ITU-T I.371, virtual scheduling)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

import msgspec

from headgate.clock import SECOND, Duration
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.limits.limit import Limit, RateOptions
from headgate.limits.rate import described, parse_margin, parse_rate
from headgate.limits.rule import Snapshot

START_EMPTY_KEPT = 7 * 86400 * SECOND
"""How long an idle bucket of a `start_empty` limit is kept: unlike others it differs from a new one."""


class Gcra(msgspec.Struct, frozen=True, tag="rate", tag_field="kind"):
    """Grants `burst` starts after a quiet stretch, then one each `period / count`.

    The state is the theoretical arrival time: when the bucket will be full again. It counts in `1 / count` of a
    microsecond, so a period that does not divide evenly loses nothing and exceeds nothing.
    """

    count: int
    period: int
    burst: int
    start_empty: bool = False
    margin: int = 0

    kind: ClassVar[str] = "rate"

    def take(self, state: int | None, now: int, cost: int = 1) -> tuple[int, int]:
        if cost > self.burst:
            self.check_cost(cost)
        arrival = self._fresh(now, cost) if state is None else state
        ticks = now * self.count
        arrival = max(arrival, ticks)
        opens = arrival + self.period * (cost - self.burst)
        if opens <= ticks:
            return now, arrival + self.period * cost
        return -(-opens // self.count), arrival + self.period * cost

    def check_cost(self, cost: int) -> None:
        if cost > self.burst:
            raise CostExceedsLimit(
                f"a cost of {cost} can never be granted by a rate of {self.describe()}; "
                "raise its burst or lower the cost"
            )

    def amend(self, state: int, charged_at: int, cost: int, started_at: int, actual: int) -> int:
        # A refund is a credit from now on, as tokens that come back: what the charge has kept others from meanwhile
        # is not made up for, and what had been saved up since stays saved.
        return state + (started_at - charged_at) * self.count + (actual - cost) * self.period

    def snapshot(self, state: int | None, now: int) -> Snapshot:
        arrival = self._fresh(now, 1) if state is None else state
        debt = max(0, arrival - now * self.count)
        used = -(-debt // self.period)
        available = max(0, self.burst - used)
        opens_at = now if available else self.take(state, now)[0]
        return Snapshot(used=used, available=available, opens_at=opens_at)

    def bound(self, window: int) -> int:
        return self.burst + (window - 1) * self.count // self.period

    def idle_at(self, state: int) -> int:
        full_at = -(-state // self.count)
        return full_at + START_EMPTY_KEPT if self.start_empty else full_at

    def dump(self, state: int) -> str:
        return f"1:{self.kind}:{state}:{self.count}:{self.period}"

    def load(self, stored: str, now: int) -> int:
        if not stored.startswith(f"1:{self.kind}:"):
            # Another kind of rule stood under this name: what it granted is not known, so nothing is left for a period.
            return now * self.count + self.period * self.burst
        state, count, period = (int(part) for part in stored.split(":")[2:])
        if count == self.count and period == self.period:
            return state
        # Written under another rate: what is owed, counted in starts, stays owed.
        owed = max(0, state - now * count)
        return now * self.count + -(-owed * self.period // period)

    def describe(self) -> str:
        rate = described(self.count, self.period, self.margin)
        return f"{rate} burst {self.burst}{' start empty' if self.start_empty else ''}"

    def _fresh(self, now: int, cost: int) -> int:
        # The first start goes at once whatever it costs: a refusal leaves no state, so it would wait for ever.
        return now * self.count + (self.period * (self.burst - cost) if self.start_empty else 0)


@dataclass(frozen=True, init=False)
class RateLimit(Limit):
    """At most a rate on average, and `burst` at once after a quiet stretch.

    `RateLimit("15/m")` or `RateLimit(15, per=60)`. `burst` (default: the count) is how much unused budget a key can
    save up; `burst=1` spaces starts evenly. `start_empty=True` gives a new key nothing saved: its first job runs at
    once, the rest are paced. `margin` seconds (default 0) widen the period.

    In one period up to `burst + count - 1` jobs can start: 29 in the first minute of `RateLimit("15/m")`. An outside
    API that counts its callers in windows wants `StrictRate`, or `burst=1`.
    """

    rule: Gcra

    def __init__(
        self,
        rate: str | int,
        *,
        per: Duration | None = None,
        burst: int | None = None,
        start_empty: bool = False,
        margin: Duration = 0,
        **options: Unpack[RateOptions],
    ) -> None:
        parsed = parse_rate(rate, per)
        burst = parsed.count if burst is None else burst
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise DeclarationError(f"burst={burst!r} of a rate limit must be a whole number of at least 1")
        widening = parse_margin(margin, "a rate limit")
        rule = Gcra(parsed.count, parsed.period + widening, burst, start_empty, widening)
        super().__init__(rule, **options)
