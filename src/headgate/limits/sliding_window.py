"""SlidingWindow: at most N starts in a window that advances slice by slice, by a counter for each slice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Unpack

from headgate.arguments import parse_count, parse_duration
from headgate.clock import SECOND, Duration
from headgate.errors import DeclarationError
from headgate.limits.limit import AnyRule, Limit, RateOptions, SpelledOptions
from headgate.limits.rate import CountRule, counted_snapshot, described, parse_rate
from headgate.limits.rule import LuaNumbers, Snapshot

DEFAULT_SLICES = 60

SHORTEST_SLICE = 1_000
"""The unit is a microsecond."""

Slices = tuple[int, int, int, tuple[int, ...]]
"""The content of a window: the sum, the number of its newest slice and what is used in it, and the older slices that
are not empty, oldest first: number, used, number, used, …"""


class SliceCounter(CountRule[Slices], frozen=True, tag="sliding", tag_field="kind"):
    """Grants a start when the slice it falls in and the `slices - 1` before it hold fewer than `count`.

    Slice number n is the half-open time from `n * slice` to `(n + 1) * slice`. The state may lie ahead, after
    reservations or after the clock went back: the rule grants nothing before its newest slice begins.
    """

    slice: int
    slices: int
    margin: int = 0

    kind: ClassVar[str] = "sliding"
    shape: ClassVar[str] = "a sliding window"
    lua: ClassVar[str | None] = "sliding_window"

    @property
    def period(self) -> int:
        return self.slice * self.slices

    def take(self, state: Slices | None, now: int, cost: int = 1) -> tuple[int, Slices]:
        if cost > self.count:
            self.check_cost(cost)
        at = now // self.slice
        if state is None:
            return now, (cost, at, cost, ())
        if at > state[1]:
            state = self._moved(state, at)
        if state[0] + cost > self.count:
            state = self._moved(state, self._opening(state, cost))
        total, newest, used, older = state
        after = (total + cost, newest, used + cost, older)
        begin = newest * self.slice
        if begin > now:
            return begin, after
        return now, after

    def counts_until(self, charged_at: int) -> int:
        return (charged_at // self.slice + self.slices) * self.slice

    def amend(self, state: Slices, charged_at: int, cost: int, started_at: int, actual: int) -> Slices:
        charged, started, newest = charged_at // self.slice, started_at // self.slice, state[1]
        held = dict(pairs(state))
        # What left the window is forgotten. A charge that left and starts inside the window counts in it.
        known = cost if charged <= newest - self.slices else min(cost, held.get(charged, 0))
        if charged in held:
            held[charged] -= known
        moved = max(0, known + actual - cost)
        if moved:
            held[started] = held.get(started, 0) + moved
            newest = max(newest, started)
        return packed(held.items(), newest, self.slices)

    def snapshot(self, state: Slices | None, now: int) -> Snapshot:
        at = now // self.slice
        used = 0
        if state is not None:
            used = (self._moved(state, at) if at > state[1] else state)[0]
        return counted_snapshot(self, state, now, used)

    def bound(self, window: int) -> int:
        return self.count * -(-slices_touched(window, self.slice) // self.slices)

    def idle_at(self, state: Slices) -> int:
        _, newest, used, older = state
        last = newest if used else older[-2] if older else newest - self.slices
        return (last + self.slices) * self.slice

    def dump(self, state: Slices) -> str:
        held = " ".join(f"{state[1] - number} {used}" for number, used in pairs(state))
        return f"1:{self.kind}:{self.count}:{self.slice}:{self.slices}:{state[1]}:{held}"

    def load(self, stored: str, now: int) -> Slices:
        head = f"1:{self.kind}:"
        if not stored.startswith(head):
            # Another kind of rule wrote this state: what it granted is unknown, so nothing is left for a period.
            return self.count, now // self.slice, self.count, ()
        *numbers, held = stored[len(head) :].split(":")
        count, length, slices, newest = (int(number) for number in numbers)
        flat = [int(number) for number in held.split()]
        known = [(newest - back, used) for back, used in zip(flat[::2], flat[1::2], strict=True)]
        if (length, slices) == (self.slice, self.slices):
            return packed(known, newest, slices)
        # Written under other slices. A start may lie at any instant of its slice until now, so it counts at the last
        # one. What came before the window is unknown, so those windows count as full.
        moved = [(moved_slice(number, length, self.slice, now), used) for number, used in known]
        newest = moved_slice(newest, length, self.slice, now)
        before = (int(numbers[3]) - slices + 1) * length
        moved += full_before(before, count, length * slices, self.slice, newest - self.slices)
        return packed(moved, newest, self.slices)

    def describe(self) -> str:
        return f"{described(self.count, self.declared_period, self.margin)} in {self.slices} slices"

    def require_bounded(self, rounding: int = 0) -> None:
        # Each slice is rounded up, by less than a microsecond.
        super().require_bounded(self.slices)

    def lua_numbers(self) -> LuaNumbers:
        return LuaNumbers((self.count, self.slice, self.slices), self.count, self.period)

    def lua_dump(self, state: Slices, now: int) -> bytes:
        total, newest, used, older = state
        held = "".join(f"{number} " for number in older)
        return f"{self.count}:{self.slice}:{self.slices}:{total}:{newest}:{used}:{held}".encode()

    @classmethod
    def lua_load(cls, state: bytes) -> str:
        count, slice, slices, _, newest, used, older = state.decode().split(":")
        held = [int(number) for number in older.split()] + ([int(newest), int(used)] if used != "0" else [])
        back = " ".join(f"{int(newest) - number} {many}" for number, many in zip(held[::2], held[1::2], strict=True))
        return f"1:{cls.kind}:{count}:{slice}:{slices}:{newest}:{back}"

    def _moved(self, state: Slices, at: int) -> Slices:
        """Return the window advanced to a later slice, without what left it."""
        total, newest, used, older = state
        if used:
            older = (*older, newest, used)
        expired = 0
        while expired < len(older) and older[expired] <= at - self.slices:
            total -= older[expired + 1]
            expired += 2
        return total, at, 0, older[expired:]

    def _opening(self, state: Slices, cost: int) -> int:
        """Return the slice in which enough has left the window for `cost` to fit."""
        total, newest, _, older = state
        excess = total + cost - self.count
        for index in range(0, len(older), 2):
            excess -= older[index + 1]
            if excess <= 0:
                return older[index] + self.slices
        return newest + self.slices


def pairs(state: Slices) -> list[tuple[int, int]]:
    """Return the slices that are not empty, oldest first, each with what is used in it."""
    _, newest, used, older = state
    held = list(zip(older[::2], older[1::2], strict=True))
    return [*held, (newest, used)] if used else held


def packed(held: Iterable[tuple[int, int]], newest: int, slices: int) -> Slices:
    """Return the window of `slices` slices that ends with `newest`; entries of one slice are added up."""
    sums: dict[int, int] = {}
    for number, used in held:
        if used and number > newest - slices:
            sums[number] = sums.get(number, 0) + used
    last = sums.pop(newest, 0)
    return sum(sums.values()) + last, newest, last, tuple(part for pair in sorted(sums.items()) for part in pair)


def slices_touched(window: int, slice: int) -> int:
    """Return how many slices a half-open window of that many microseconds can touch."""
    return (window - 2) // slice + 2


def moved_slice(number: int, length: int, slice: int, now: int) -> int:
    """Return the latest slice that can hold a start of slice `number`, written when slices were `length` long."""
    return min((number + 1) * length - 1, max(now, number * length)) // slice


def full_before(instant: int, count: int, period: int, slice: int, oldest: int) -> list[tuple[int, int]]:
    """Return windows of `count` that end at `instant` and every period before it, by slices after `oldest`."""
    held: list[tuple[int, int]] = []
    ends = instant - 1
    while ends // slice > oldest:
        # Count all windows that end in one slice at once.
        number = ends // slice
        many = (ends - number * slice) // period + 1
        held.append((number, count * many))
        ends -= many * period
    return held


@dataclass(frozen=True, init=False)
class SlidingWindow(Limit):
    """A limit of N starts in a window that advances by slices: cheap at any count, exact to a slice.

    `SlidingWindow("4/h", slices=3)` or `SlidingWindow(4, per=3600, slices=3)`; slices are aligned to the Unix epoch.
    Every interval of whole slices holds at most the count: with 4 starts at 12:59, the next goes at 13:40, when the
    slice from 12:40 to 13:00 leaves the hour. `slices` (default 60) is the precision; a slice is at least a
    millisecond. A key stores two numbers for each slice that is not empty.

    Any window shorter than `slices - 1` slices holds at most the count. A window as long as the period holds at most
    twice the count, when all starts lie at its two ends: see `rule.bound(window)`. To hold the count in *every* window
    of the period, add one slice: `margin = per / (slices - 1)`. `margin` seconds (default 0) widen the period.
    """

    rule: SliceCounter

    def __init__(
        self,
        rate: str | int,
        per: Duration | None = None,
        *,
        slices: int = DEFAULT_SLICES,
        margin: Duration = 0,
        **options: Unpack[RateOptions],
    ) -> None:
        parsed = parse_rate(rate, per)
        widening = parse_duration(margin, "margin", "a sliding window")
        length = slice_length(parsed.period + widening, slices, f"a sliding window of {parsed}")
        super().__init__(SliceCounter(parsed.count, length, slices, widening), **options)

    @classmethod
    def spelled(cls, text: str, like: AnyRule | None, options: SpelledOptions) -> Limit:
        slices = options.get("slices")
        if slices is None:
            slices = like.slices if isinstance(like, SliceCounter) else DEFAULT_SLICES
        return cls(text, slices=slices, margin=like.margin / SECOND if isinstance(like, SliceCounter) else 0)


def slice_length(period: int, slices: int, where: str) -> int:
    """Return the length of each slice, rounded up. Raises DeclarationError if slices would be too short."""
    length = -(-period // parse_count(slices, "slices", where))
    if length < SHORTEST_SLICE:
        raise DeclarationError(f"{slices} slices of {where} are shorter than a millisecond each; use fewer")
    return length
