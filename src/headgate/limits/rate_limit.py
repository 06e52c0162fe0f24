"""RateLimit: an average rate with a burst, by the generic cell rate algorithm (ITU-T I.371, virtual scheduling)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

from msgspec.structs import replace

from headgate.arguments import parse_count, parse_duration
from headgate.clock import FARTHEST as HUNDRED_YEARS
from headgate.clock import SECOND, Duration
from headgate.errors import DeclarationError
from headgate.limits.limit import AnyRule, Limit, RateOptions, SpelledOptions
from headgate.limits.rate import described, parse_rate
from headgate.limits.rule import LuaNumbers, Rule, Snapshot

START_EMPTY_KEPT = 7 * 86400 * SECOND
"""How long an idle bucket of a `start_empty` limit is kept, because it differs from a new one."""


Arrival = tuple[int, int]
"""The theoretical arrival time, in `1 / count` of a microsecond, and the instant of the last start (µs)."""

FAST_COUNTED = 2 * SECOND
"""How long (µs) a start of a rate above one per second counts, when deciding whether it is too late."""

FARTHEST = 1 << 61
"""The latest instant until which a bucket can be closed: a charge at that time still fits a database integer."""


class Gcra(Rule[Arrival], frozen=True, tag="rate", tag_field="kind"):
    """Grants `burst` starts after a quiet period, then one each `period / count`.

    The theoretical arrival time is when the bucket will be full again. Its unit is `1 / count` of a microsecond, so a
    period that does not divide evenly neither loses budget nor exceeds the limit.
    """

    count: int
    period: int
    burst: int
    start_empty: bool = False
    margin: int = 0

    kind: ClassVar[str] = "rate"
    shape: ClassVar[str] = "a rate"
    most_cost: ClassVar[str] = "burst"
    spaces_starts: ClassVar[bool] = True
    lua: ClassVar[str | None] = "rate_limit"

    def take(self, state: Arrival | None, now: int, cost: int = 1) -> tuple[int, Arrival]:
        count, period = self.count, self.period
        ticks = now * count
        arrival = self._fresh(now, cost) if state is None else state[0]
        if arrival < ticks:
            arrival = ticks
        arrival += period * cost
        opens = arrival - period * self.burst
        if opens <= ticks:
            return now, (arrival, now)
        # Every cost that is too high reaches this line.
        self.check_cost(cost)
        opens_at = -(-opens // count)
        return opens_at, (arrival, opens_at)

    def divided(self, sharers: int) -> Gcra:
        # A burst below the number of sharers is one start for each of them: nothing could start otherwise.
        return replace(self, period=self.period * sharers, burst=max(1, self.burst // sharers))

    def counts_until(self, charged_at: int) -> int:
        # Room for one start is made each `period / count`. Fast rates use a longer time, in which a few may go too
        # early; with the interval, every start on a slow store would be too late.
        interval = self.period // self.count
        return charged_at + (interval if interval >= SECOND else FAST_COUNTED)

    def amend(self, state: Arrival, charged_at: int, cost: int, started_at: int, actual: int) -> Arrival:
        arrival, last = state
        if actual < cost and charged_at != last:
            # Others have started since. Without this start the bucket might have been full and have overflowed
            # meanwhile; the state does not record that, so nothing is given back.
            actual = cost
        # A later start shifts the debt by its delay, and by no more than a new start at that instant would.
        anew = max(arrival, started_at * self.count) + cost * self.period
        moved = min(arrival + (started_at - charged_at) * self.count, anew) + (actual - cost) * self.period
        return min(moved, FARTHEST * self.count), max(last, started_at)

    def snapshot(self, state: Arrival | None, now: int) -> Snapshot:
        arrival = self._fresh(now, 1) if state is None else state[0]
        debt = max(0, arrival - now * self.count)
        used = -(-debt // self.period)
        available = max(0, self.burst - used)
        opens_at = now if available else self.take(state, now)[0]
        return Snapshot(used=used, available=available, opens_at=opens_at)

    def bound(self, window: int) -> int:
        return self.burst + (window - 1) * self.count // self.period

    def full_at(self, state: Arrival) -> int:
        return -(-state[0] // self.count)

    def idle_at(self, state: Arrival) -> int:
        return self.full_at(state) + (START_EMPTY_KEPT if self.start_empty else 0)

    def dump(self, state: Arrival) -> str:
        return f"1:{self.kind}:{state[0]}:{self.count}:{self.period}:{state[1]}"

    def load(self, stored: str, now: int) -> Arrival:
        if not stored.startswith(f"1:{self.kind}:"):
            # Another kind of rule wrote this state: what it granted is unknown, so nothing is left for a period.
            return now * self.count + self.period * self.burst, now
        arrival, count, period, last = (int(part) for part in stored.split(":")[2:])
        if count == self.count and period == self.period:
            return arrival, last
        # Written under another rate: the debt, counted in starts, stays the same.
        owed = max(0, arrival - now * count)
        return min(now * self.count + -(-owed * self.period // period), FARTHEST * self.count), last

    def describe(self) -> str:
        rate = described(self.count, self.declared_period, self.margin)
        return f"{rate} burst {self.burst}{' start empty' if self.start_empty else ''}"

    def require_bounded(self, rounding: int = 0) -> None:
        super().require_bounded(rounding)
        if self.period * self.burst > HUNDRED_YEARS * self.count:
            fills_in = self.period * self.burst / self.count / SECOND
            raise DeclarationError(
                f"{self.kind} limit: a burst of {self.burst} takes {fills_in:g} s to fill at {self.count} in "
                f"{self.period / SECOND:g} s, more than a hundred years; lower the burst"
            )

    def lua_numbers(self) -> LuaNumbers:
        arguments = (self.count, self.period, self.burst, int(self.start_empty))
        return LuaNumbers(arguments, self.burst * self.count, max(self.period, self.period * self.burst // self.count))

    def lua_change(self, charged: int, actual: int) -> tuple[int, int]:
        change = abs(actual - charged)
        return change * self.count, change * self.period // self.count

    def lua_dump(self, state: Arrival, now: int) -> bytes:
        # A debt of many starts under a fast rate may be centuries under a slow one.
        us, part = divmod(min(state[0], (now + HUNDRED_YEARS) * self.count), self.count)
        return f"{us}:{part}:{self.count}:{self.period}:{state[1]}".encode()

    @classmethod
    def lua_load(cls, state: bytes) -> str:
        us, part, count, period, last = map(int, state.split(b":"))
        return f"1:{cls.kind}:{us * count + part}:{count}:{period}:{last}"

    def _fresh(self, now: int, cost: int) -> int:
        # The first start goes at once whatever it costs: a refusal stores no state, so it would wait forever.
        return now * self.count + (self.period * (self.burst - cost) if self.start_empty else 0)


@dataclass(frozen=True, init=False)
class RateLimit(Limit):
    """A rate that holds on average, with `burst` starts at once after a quiet period.

    `RateLimit("15/m")` or `RateLimit(15, per=60)`. `burst` (default: the count) is how much unused budget a key can
    save; `burst=1` spaces starts evenly. `start_empty=True` gives a new key no saved budget: its first job runs at
    once, the others are paced. `margin` seconds (default 0) widen the period.

    In one period up to `burst + count - 1` jobs can start: 29 in the first minute of `RateLimit("15/m")`. For an
    outside API that counts its callers in windows, use `StrictRate`, or `burst=1`.
    """

    rule: Gcra

    def __init__(
        self,
        rate: str | int,
        per: Duration | None = None,
        *,
        burst: int | None = None,
        start_empty: bool = False,
        margin: Duration = 0,
        **options: Unpack[RateOptions],
    ) -> None:
        parsed = parse_rate(rate, per)
        burst = parsed.count if burst is None else parse_count(burst, "burst", "a rate limit")
        widening = parse_duration(margin, "margin", "a rate limit")
        rule = Gcra(parsed.count, parsed.period + widening, burst, start_empty, widening)
        super().__init__(rule, **options)

    @classmethod
    def spelled(cls, text: str, like: AnyRule | None, options: SpelledOptions) -> Limit:
        burst = options.get("burst")
        if not isinstance(like, Gcra):
            return cls(text, burst=burst)
        if burst is None and like.burst != like.count:
            # Left out in the declaration too, it is the count.
            burst = like.burst
        return cls(text, burst=burst, start_empty=like.start_empty, margin=like.margin / SECOND)
