"""FixedWindow: at most N starts in each window of the calendar, by one counter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

from headgate.arguments import parse_duration
from headgate.clock import SECOND, Duration
from headgate.errors import DeclarationError
from headgate.limits.limit import AnyRule, Limit, RateOptions, SpelledOptions
from headgate.limits.rate import CountRule, counted_snapshot, described, parse_rate
from headgate.limits.rule import LuaNumbers, Snapshot

Window = tuple[int, int]
"""The instant a window begins, and how much was used in it."""


class WindowCounter(CountRule[Window], frozen=True, tag="fixed", tag_field="kind"):
    """Grants `count` starts in each window; windows are half open and follow one another from the Unix epoch on.

    The state is the latest window with a start. It may lie ahead, after reservations or after the clock went back: the
    rule grants nothing before it begins, since it no longer holds what was used before.
    """

    period: int
    margin: int = 0

    kind: ClassVar[str] = "fixed"
    shape: ClassVar[str] = "a fixed window"
    lua: ClassVar[str | None] = "fixed_window"

    @property
    def declared_period(self) -> int:
        # The margin is a part of the window.
        return self.period

    def take(self, state: Window | None, now: int, cost: int = 1) -> tuple[int, Window]:
        if cost > self.count:
            self.check_cost(cost)
        period = self.period
        # A charge in the last margin of a window could reach the callee in the next window, so it belongs there.
        reached = now + self.margin
        begin = reached - reached % period
        used = cost
        if state is not None and state[0] >= begin:
            begin, used = state
            used += cost
            if used > self.count:
                begin += period
                used = cost
        if begin > now:
            return begin, (begin, used)
        return now, (begin, used)

    def counts_until(self, charged_at: int) -> int:
        return self._window(charged_at) + self.period

    def amend(self, state: Window, charged_at: int, cost: int, started_at: int, actual: int) -> Window:
        begin, used = state
        charged, started = self._window(charged_at), self._window(started_at)
        # An older window is forgotten. What was charged there and starts in this one counts in this one.
        known = cost if charged < begin else min(cost, used) if charged == begin else 0
        if charged == begin:
            used -= known
        moved = max(0, known + actual - cost)
        if started > begin and moved:
            return started, moved
        return begin, used + moved if started == begin else used

    def snapshot(self, state: Window | None, now: int) -> Snapshot:
        used = state[1] if state is not None and state[0] + self.period > now else 0
        return counted_snapshot(self, state, now, used)

    def bound(self, window: int) -> int:
        # The last instant of one window, whole windows after it, and the first instant of another.
        return self.count * (2 + (window - self.margin - 2) // self.period) if window > self.margin + 1 else self.count

    def idle_at(self, state: Window) -> int:
        begin, used = state
        return begin - self.margin + (self.period if used else 0)

    def dump(self, state: Window) -> str:
        return f"1:{self.kind}:{state[0]}:{state[1]}:{self.count}:{self.period}"

    def load(self, stored: str, now: int) -> Window:
        if not stored.startswith(f"1:{self.kind}:"):
            # Another kind of rule wrote this state: what it granted is unknown, so nothing is left.
            return self._window(now), self.count
        begin, used, count, period = (int(part) for part in stored.split(":")[2:])
        if period == self.period:
            return begin, used
        # Written under another period. What was used may have started at any instant of its window until now, so it
        # counts in the latest new window. Older windows are unknown, so those that overlap it count as full.
        latest = self._window(max(now, begin))
        older = -(-(begin - latest) // period)
        return latest, (used if begin + period > latest else 0) + count * max(0, older)

    def describe(self) -> str:
        return f"{described(self.count, self.period, self.margin)} in fixed windows"

    def lua_numbers(self) -> LuaNumbers:
        return LuaNumbers((self.count, self.period, self.margin), self.count, self.period)

    def lua_dump(self, state: Window, now: int) -> bytes:
        return f"{state[0]}:{state[1]}:{self.count}:{self.period}".encode()

    @classmethod
    def lua_load(cls, state: bytes) -> str:
        return f"1:{cls.kind}:{state.decode()}"

    def _window(self, instant: int) -> int:
        """Return the beginning of the window in which a start of this instant counts."""
        reached = instant + self.margin
        return reached - reached % self.period


@dataclass(frozen=True, init=False)
class FixedWindow(Limit):
    """A quota of N starts in each calendar minute, hour or day (UTC), renewed all at once.

    `FixedWindow("15/m")` or `FixedWindow(15, per=60)`; windows are half open, aligned to the Unix epoch, and at least a
    second long. It stores two numbers per key, whatever the count.

    Two windows touch: 4 an hour allows 4 starts at 12:59 and 4 at 13:00, so any hour can hold twice the count. `margin`
    seconds (default 0) keep a start from reaching its callee in the window after the one that it was charged in:
    nothing starts in the last `margin` of a window. The windows do not move.
    """

    rule: WindowCounter

    def __init__(
        self, rate: str | int, per: Duration | None = None, *, margin: Duration = 0, **options: Unpack[RateOptions]
    ) -> None:
        parsed = parse_rate(rate, per)
        if parsed.period < SECOND:
            raise DeclarationError(f"a fixed window of {parsed} is shorter than a second; use RateLimit or StrictRate")
        keepout = parse_duration(margin, "margin", "a fixed window")
        if keepout >= parsed.period:
            raise DeclarationError(f"margin={margin!r} takes up the whole fixed window of {parsed}; lower it")
        super().__init__(WindowCounter(parsed.count, parsed.period, keepout), **options)

    @classmethod
    def spelled(cls, text: str, like: AnyRule | None, options: SpelledOptions) -> Limit:
        return cls(text, margin=like.margin / SECOND if isinstance(like, WindowCounter) else 0)
