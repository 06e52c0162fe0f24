"""AdaptiveRate: a rate that finds the unknown limit of a callee from its refusals.

The method is additive increase, multiplicative decrease: D.-M. Chiu and R. Jain, "Analysis of the increase and decrease
algorithms for congestion avoidance in computer networks" (1989), as TCP applies it: one decrease for all refusals of
what was sent before it (RFC 5681), no increase while the rate is not used (RFC 7661), and 0.7 as the factor (RFC 9438).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Unpack

from msgspec.structs import replace

from headgate.arguments import parse_count, parse_duration
from headgate.clock import FARTHEST as HUNDRED_YEARS
from headgate.clock import SECOND, Duration
from headgate.errors import DeclarationError
from headgate.limits.limit import AnyRule, Limit, RateOptions, SpelledOptions, changed
from headgate.limits.rate import Rate, parse_rate
from headgate.limits.rate_limit import FARTHEST, FAST_COUNTED
from headgate.limits.rule import LuaNumbers, Rule, Snapshot

KEPT = 7 * 86400 * SECOND
"""How long an idle bucket is kept, because it has found a rate."""

PARTS = 1_000_000
"""A rate is counted in millionths of a start per period, so that it can grow by little."""

TICKS = 1000
"""Ticks in a microsecond: the distance of starts is rounded up to a nanosecond."""

DEFAULT_CLIMB = 1800
DEFAULT_BACKOFF = 0.7
LEAST_SHARE = 100

LONGEST_IN_LUA = 1 << 52
"""The longest distance of two starts (ticks) that the Lua script computes with: doubles are exact up to 2^53."""


class AimdState(NamedTuple):
    """The state: the present rate (millionths per period), and when the bucket has its whole burst again (ticks).

    Also the last start, and the last decrease (µs).
    """

    rate: int
    arrival: int
    last: int
    cut_at: int


class Aimd(Rule[AimdState], frozen=True, tag="adaptive", tag_field="kind"):
    """Spaces starts by the present rate, as `Gcra` does; the rate is at least `low` and at most `high`.

    Rates are millionths of a start per `period`. A new bucket has the rate `start`. At full use it grows from nothing
    to `high` in `climb` microseconds; a refusal leaves `kept` percent of it. `burst` starts may go at once after a
    quiet time.
    """

    low: int
    high: int
    period: int
    start: int
    climb: int
    kept: int
    burst: int = 1

    kind: ClassVar[str] = "adaptive"
    shape: ClassVar[str] = "a rate"
    most_cost: ClassVar[str] = "burst"
    spaces_starts: ClassVar[bool] = True
    adapts: ClassVar[bool] = True
    lua: ClassVar[str | None] = "adaptive_rate"

    def take(self, state: AimdState | None, now: int, cost: int = 1) -> tuple[int, AimdState]:
        rate, arrival, cut_at = self._grown(state, now)
        if cost > self.burst:
            self.check_cost(cost)
        distance = self._distance(rate)
        ticks = now * TICKS
        arrival = max(arrival, ticks) + cost * distance
        opens_at = max(now, -(-(arrival - self.burst * distance) // TICKS))
        return opens_at, AimdState(rate, arrival, opens_at, cut_at)

    def divided(self, sharers: int) -> Aimd:
        low, high = max(1, self.low // sharers), self.share_of(self.high, sharers)
        start = max(low, self.start // sharers)
        return replace(self, low=low, high=high, start=start, burst=max(1, self.burst // sharers))

    def counts_until(self, charged_at: int) -> int:
        distance = self._distance(self.high) // TICKS
        return charged_at + (distance if distance >= SECOND else FAST_COUNTED)

    def amend(self, state: AimdState, charged_at: int, cost: int, started_at: int, actual: int) -> AimdState:
        if actual < cost and charged_at != state.last:
            # As in `Gcra`: whether it may be given back is not known.
            actual = cost
        distance = self._distance(state.rate)
        anew = max(state.arrival, started_at * TICKS) + cost * distance
        moved = min(state.arrival + (started_at - charged_at) * TICKS, anew) + (actual - cost) * distance
        return state._replace(arrival=min(moved, FARTHEST * TICKS), last=max(state.last, started_at))

    def refused(self, state: AimdState | None, charged_at: int, now: int) -> AimdState:
        """Return the state after the callee has refused a start that was charged at `charged_at`.

        Starts that were charged before the last decrease do not decrease the rate again: it could not know them.
        """
        known = AimdState(self.start, now * TICKS, now, 0) if state is None else state
        if charged_at <= known.cut_at:
            return known
        return self._at_rate(known, max(self.low, known.rate * self.kept // 100), now)._replace(cut_at=now)

    def snapshot(self, state: AimdState | None, now: int) -> Snapshot:
        rate, arrival, _ = self._grown(state, now)
        used = -(-max(0, arrival - now * TICKS) // self._distance(rate))
        available = max(0, self.burst - used)
        opens_at = now if available else self.take(state, now)[0]
        present = _spelled(self.start if state is None else state.rate, self.period)
        return Snapshot(used=used, available=available, opens_at=opens_at, present=present)

    def bound(self, window: int) -> int:
        return self.burst + (window - 1) * TICKS // self._distance(self.high)

    def full_at(self, state: AimdState) -> int:
        return -(-state.arrival // TICKS)

    def idle_at(self, state: AimdState) -> int:
        return self.full_at(state) + KEPT

    def dump(self, state: AimdState) -> str:
        rate, arrival, last, cut_at = state
        return f"1:{self.kind}:{rate}:{self.period}:{arrival}:{last}:{cut_at}"

    def load(self, stored: str, now: int) -> AimdState:
        if not stored.startswith(f"1:{self.kind}:"):
            # Another kind of rule wrote this state: what it granted is unknown, so nothing is left.
            return AimdState(self.start, now * TICKS + self.burst * self._distance(self.start), now, 0)
        rate, period, arrival, last, cut_at = (int(part) for part in stored.split(":")[2:])
        found = AimdState(rate, arrival, last, cut_at)
        if period == self.period and self.low <= rate <= self.high:
            return found
        # Written under other bounds: the nearest rate within these, and the debt, counted in starts, stays the same.
        owed = -(-max(0, arrival - now * TICKS) * rate // (period * TICKS * PARTS))
        found = found._replace(rate=min(self.high, max(self.low, rate * self.period // period)))
        return found._replace(arrival=_opening(now, owed * self._distance(found.rate))) if owed else found

    def require_bounded(self, rounding: int = 0) -> None:
        super().require_bounded(rounding)
        fills_in = self.burst * self._distance(self.low) // TICKS
        if fills_in > HUNDRED_YEARS:
            raise DeclarationError(
                f"{self.kind} limit: a burst of {self.burst} takes {fills_in / SECOND:g} s to fill at its lowest rate, "
                f"{_spelled(self.low, self.period)}, more than a hundred years; lower the burst or raise its min"
            )

    def lua_numbers(self) -> LuaNumbers:
        longest = self._distance(self.low)
        if longest > LONGEST_IN_LUA:
            raise DeclarationError(
                f"{self.describe()} has {longest / TICKS / SECOND / 86400:.0f} days between two starts at its lowest, "
                "more than the 52 that fit into Redis's numbers; raise its min"
            )
        arguments = (self.low, self.high, self.period, self.start, self.climb, self.kept, self.burst)
        return LuaNumbers(arguments, self.high, max(self.period, self.burst * longest // TICKS))

    def lua_change(self, charged: int, actual: int) -> tuple[int, int]:
        change = abs(actual - charged)
        return change, change * self._distance(self.low) // TICKS

    def lua_dump(self, state: AimdState, now: int) -> bytes:
        rate, arrival, last, cut_at = state
        us, ns = divmod(arrival, TICKS)
        return f"{rate}:{self.period}:{us}:{ns}:{last}:{cut_at}".encode()

    @classmethod
    def lua_load(cls, state: bytes) -> str:
        rate, period, us, ns, last, cut_at = map(int, state.split(b":"))
        return f"1:{cls.kind}:{rate}:{period}:{us * TICKS + ns}:{last}:{cut_at}"

    def describe(self) -> str:
        bounds = f"{_spelled(self.low, self.period)} to {_spelled(self.high, self.period)}"
        return f"adaptive, {bounds}{f' burst {self.burst}' if self.burst > 1 else ''}"

    def _grown(self, state: AimdState | None, now: int) -> tuple[int, int, int]:
        """Return the rate for a start now, the arrival, and the last decrease."""
        if state is None:
            return self.start, now * TICKS, 0
        rate, arrival, last, cut_at = state
        # A rate that is not used is not tested: the bucket was full for longer than it takes to fill.
        is_used = now * TICKS - arrival <= self.burst * self._distance(rate)
        if is_used and now > last:
            rate = min(self.high, rate + self.high * (now - last) // self.climb)
        return rate, arrival, cut_at

    def _at_rate(self, state: AimdState, rate: int, now: int) -> AimdState:
        """Return the state at a lower rate, with the same debt, counted in starts."""
        owed = max(0, state.arrival - now * TICKS)
        if not owed:
            return state._replace(rate=rate)
        moved = -(-owed * self._distance(rate) // self._distance(state.rate))
        return state._replace(rate=rate, arrival=max(state.arrival, _opening(now, moved)))

    def _distance(self, rate: int) -> int:
        """Return the distance of two starts in ticks, rounded up."""
        return -(-self.period * TICKS * PARTS // rate)


@dataclass(frozen=True, init=False)
class AdaptiveRate(Limit):
    """A rate that finds the unknown limit of a callee from its refusals, by additive increase, multiplicative decrease.

    `AdaptiveRate("600/m", min="10/m")`: never more than the first rate, never less than `min` (default: a hundredth of
    it). A new key has the rate `start` (default: `min`). While a key uses its rate it grows, by the whole maximum in
    `climb` seconds (default: 1,800). `raise RateLimited(…)`, and a 429 that a transport or `penalize` of a limiter
    reports, multiply it by `backoff` (0.1 to 0.99, default: 0.7), once for all starts before it. `burst` (default: 1,
    evenly spaced) is how many starts may go at once after a quiet time, and the highest cost.

    The present rate is stored with the bucket, so all machines share it. A key that is not used for a week begins anew.
    Source: Chiu and Jain (1989); RFC 5681, 7661 and 9438.
    """

    rule: Aimd

    def __init__(
        self,
        rate: str | int,
        per: Duration | None = None,
        *,
        min: str | None = None,
        start: str | None = None,
        climb: Duration = DEFAULT_CLIMB,
        backoff: float = DEFAULT_BACKOFF,
        burst: int = 1,
        **options: Unpack[RateOptions],
    ) -> None:
        highest = parse_rate(rate, per)
        high, where = highest.count * PARTS, "an adaptive rate"
        low = _parts(min, highest, "min") if min is not None else -(-high // LEAST_SHARE)
        first = _parts(start, highest, "start") if start is not None else low
        if not low <= first <= high:
            raise DeclarationError(
                f"{where} from {min or _spelled(low, highest.period)} to {highest} cannot start at "
                f"{start or _spelled(first, highest.period)}: min, start and maximum must be in this order"
            )
        if isinstance(backoff, bool) or not isinstance(backoff, (int, float)) or not 0.1 <= backoff <= 0.99:
            raise DeclarationError(f"backoff={backoff!r} of {where} must be from 0.1 to 0.99: what a refusal leaves")
        parse_count(burst, "burst", where)
        climbing = parse_duration(climb, "climb", where, allow_zero=False)
        rule = Aimd(low, high, highest.period, first, climbing, round(backoff * 100), burst)
        super().__init__(rule, **options)

    @classmethod
    def spelled(cls, text: str, like: AnyRule | None, options: SpelledOptions) -> Limit:
        burst = options.get("burst")
        if not isinstance(like, Aimd):
            return cls(text, burst=1 if burst is None else burst)
        highest = parse_rate(text, None)
        high = highest.count * PARTS
        low = min(high, max(1, like.low * highest.period // like.period))
        limit = cls(
            text, climb=like.climb / SECOND, backoff=like.kept / 100, burst=like.burst if burst is None else burst
        )
        start = min(high, max(low, like.start * highest.period // like.period))
        found = changed(limit, rule=Aimd(low, high, highest.period, start, like.climb, like.kept, limit.rule.burst))
        found.rule.require_bounded()
        return found


def _opening(now: int, debt: int) -> int:
    """Return when a debt is paid; both in ticks. Many starts of a fast rate may be centuries of a slow one."""
    return now * TICKS + min(debt, HUNDRED_YEARS * TICKS)


def _parts(text: object, highest: Rate, option: str) -> int:
    """Return a rate in millionths per period of the highest one. Raises DeclarationError if it is none, or too low."""
    if not isinstance(text, str):
        raise DeclarationError(f'{option}={text!r:.80} of an adaptive rate is not a rate; write {option}="10/m"')
    rate = parse_rate(text, None)
    parts = rate.count * PARTS * highest.period // rate.period
    if parts < 1:
        raise DeclarationError(f"adaptive rate: {option}={text!r} is less than a millionth of {highest}; raise it")
    return parts


def _spelled(rate: int, period: int) -> str:
    """Return a rate in words, rounded to two decimals: "72.5/m"."""
    count = f"{rate / PARTS:.2f}".rstrip("0").rstrip(".") if rate >= PARTS // 100 else f"{rate / PARTS:g}"
    return f"{count}{str(Rate(1, period))[1:]}"
