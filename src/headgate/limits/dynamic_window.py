"""DynamicWindow: a window for each key under one ceiling, which the active keys share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import ClassVar, Unpack

import msgspec

from headgate.arguments import parse_count, parse_duration
from headgate.clock import Duration
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.limits.limit import Limit, RateOptions
from headgate.limits.rate import described, parse_rate
from headgate.limits.rule import LuaNumbers, Rule, Snapshot
from headgate.limits.sliding_window import moved_slice, slice_length, slices_touched

DEFAULT_MAX_KEYS = 1000

UNKNOWN = 1 << 40
"""The starts and keys of a slice whose content is unknown: no start fits beside them."""

Held = tuple[int, ...]
"""The use of one key in the window, oldest first: slice, used, slice, used, …"""


class Slice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The use in one slice, and how many keys have their last start in it."""

    number: int
    used: int
    keys: int


class WindowUse(msgspec.Struct, frozen=True, array_like=True):
    """The use of all keys in the window and in the slice that leaves it: in total, by slice, and by key.

    The keys are in the order in which they became active. The newest slice may be empty after a refund.
    """

    used: int
    active: int
    slices: tuple[Slice, ...]
    keys: dict[str, Held]


class SharedCounter(Rule[WindowUse], frozen=True, tag="dynamic", tag_field="kind"):
    """Grants each key its share of `capacity`, and all keys together no more than that.

    A key is active while it has starts in the window: the slice of the instant and the `slices - 1` before it. The
    capacity is split evenly over the active keys; the remainder goes to those that became active first. A share is at
    most `max_count`. No more keys become active than can have `min_count` each, nor more than `max_keys`. Without a
    capacity (0), each key may use `max_count`.

    When a slice leaves the window, its places open at once to keys without starts in the window, and a microsecond
    later to the others. So a new key goes before a key that has used its share, and reduces that share.

    One state covers all keys. It may lie ahead, after reservations or after the clock went back: the rule grants
    nothing before its newest slice begins.
    """

    capacity: int
    min_count: int
    max_count: int
    slice: int
    slices: int = 1
    max_keys: int = DEFAULT_MAX_KEYS
    margin: int = 0

    kind: ClassVar[str] = "dynamic"
    family: ClassVar[str] = "dynamic"
    shares_state: ClassVar[bool] = True
    lua: ClassVar[str | None] = "dynamic_window"

    @property
    def period(self) -> int:
        return self.slice * self.slices

    @property
    def most_keys(self) -> int:
        """The number of keys that can be active at once."""
        return min(self.max_keys, self.capacity // self.min_count) if self.capacity else self.max_keys

    def for_key(self, key: str, rivals: Collection[str] = (), holder: str = "") -> Rule[WindowUse]:
        """Return the rule that decides about one key. Its rivals get their shares as if they were active."""
        return _KeyRule(self, key, rivals)

    def check_cost(self, cost: int) -> None:
        if cost > self.max_count:
            raise CostExceedsLimit(
                f"cost={cost} is more than a dynamic window of {self.describe()} can ever grant; "
                "raise its count or lower the cost"
            )

    def counts_until(self, charged_at: int) -> int:
        return (charged_at // self.slice + self.slices) * self.slice

    def bound(self, window: int) -> int:
        """Return the highest cost of one key that can start in any half-open window of that many microseconds."""
        # A key that refills its window starts a microsecond after the slice begins.
        return self.max_count * -(-slices_touched(max(1, window - 1), self.slice) // self.slices)

    def idle_at(self, state: WindowUse) -> int:
        for part in reversed(state.slices):
            if part.used:
                # In the first microsecond after it, keys with starts in it still come after keys without.
                return (part.number + self.slices) * self.slice + (1 if state.keys else 0)
        return state.slices[-1].number * self.slice

    def dump(self, state: WindowUse) -> str:
        return f"1:{self.kind}:{self.slice}:{self.slices}:{msgspec.json.encode(state).decode()}"

    def load(self, stored: str, now: int) -> WindowUse:
        head = f"1:{self.kind}:"
        if not stored.startswith(head):
            # Another kind of rule wrote this state: what it granted is unknown, so nothing is left for a period.
            return WindowUse(UNKNOWN, UNKNOWN, (Slice(now // self.slice, UNKNOWN, UNKNOWN),), {})
        length, slices, rest = stored[len(head) :].split(":", 2)
        state = _decode(rest)
        if (int(length), int(slices)) == (self.slice, self.slices):
            return state
        return self._resliced(state, int(length), int(slices), now)

    def describe(self) -> str:
        counts = str(self.max_count) if self.min_count == self.max_count else f"{self.min_count} to {self.max_count}"
        rate = described(self.capacity or self.max_count, self.declared_period, self.margin)
        shared = f"shared, {counts} a key" if self.capacity else "a key"
        return f"{rate} {shared}, in {self.slices} slices, up to {self.max_keys} keys"

    def require_bounded(self, rounding: int = 0) -> None:
        # Each slice is rounded up, by less than a microsecond.
        super().require_bounded(self.slices)

    def lua_numbers(self) -> LuaNumbers:
        arguments = (self.slice, self.slices, self.capacity, self.most_keys, self.max_count)
        return LuaNumbers(arguments, max(self.capacity, self.max_count), self.period)

    def lua_dump(self, state: WindowUse, now: int) -> bytes:
        # Lua's tables have no order, so the keys are a list.
        packed = msgspec.msgpack.encode((state.used, state.active, state.slices, list(state.keys.items())))
        return f"{self.slice}:{self.slices}:".encode() + packed

    @classmethod
    def lua_load(cls, state: bytes) -> str:
        slice, slices, packed = state.split(b":", 2)
        used, active, parts, keys = _unpack(packed)
        use = msgspec.json.encode((used, active, parts, dict(keys))).decode()
        return f"1:{cls.kind}:{int(slice)}:{int(slices)}:{use}"

    def _resliced(self, state: WindowUse, length: int, slices: int, now: int) -> WindowUse:
        """Return a state that was written under other slices.

        A start may lie at any instant of its slice until now, so it counts at the last one. What came before the old
        window is unknown: no key starts until it can no longer matter.
        """

        def lies(number: int) -> int:
            # A reservation starts as its slice begins, or a microsecond later.
            return moved_slice(number, length, self.slice, max(now, number * length + 1))

        first, newest = state.slices[0].number, state.slices[-1].number
        keep = lies(newest) - self.slices
        sums: dict[int, list[int]] = {}
        keys: dict[str, Held] = {}
        for part in state.slices:
            sums.setdefault(lies(part.number), [0, 0])[0] += part.used
        unknown = ((newest - slices + 1) * length - 1) // self.slice
        if unknown >= keep:
            sums[unknown] = [sums.get(unknown, [0, 0])[0] + UNKNOWN, UNKNOWN]
        for name, held in state.keys.items():
            moved: dict[int, int] = {}
            for number, used in _pairs(held):
                at = lies(number)
                if number >= first and at >= keep:
                    moved[at] = moved.get(at, 0) + used
            if moved:
                keys[name] = tuple(chain.from_iterable(moved.items()))
                sums[max(moved)][1] += 1
        parts = tuple(Slice(number, used, count) for number, (used, count) in sorted(sums.items()) if number >= keep)
        return WindowUse(sum(part.used for part in parts), sum(part.keys for part in parts), parts, keys)


_NOTHING = WindowUse(0, 0, (), {})
_decode = msgspec.json.Decoder(WindowUse).decode
_unpack = msgspec.msgpack.Decoder(tuple[int, int, list[tuple[int, int, int]], list[tuple[str, list[int]]]]).decode


class _KeyRule(Rule[WindowUse], frozen=True, gc=False):
    """The rule for one of the keys that share its state."""

    rule: SharedCounter
    key: str
    rivals: Collection[str]

    @property
    def period(self) -> int:
        return self.rule.period

    def take(self, state: WindowUse | None, now: int, cost: int = 1) -> tuple[int, WindowUse]:
        rule, key = self.rule, self.key
        if cost > rule.max_count:
            rule.check_cost(cost)
        state = _NOTHING if state is None else state
        view = _View(rule, state, now, key, self.rivals)
        while view.room(cost) < cost:
            view.move_on()
        at = view.at
        # Keep the slice that leaves until the first microsecond of slice `at` is over.
        keep = at - rule.slices + (now > at * rule.slice)
        return view.instant, _changed(state, key, at, cost, keep, becomes_active=not view.own)

    def grants(self, state: WindowUse | None, now: int, most: int) -> int:
        # What other keys leave changes with each start, and a snapshot has no rivals.
        for granted in range(most):
            opens_at, state = self.take(state, now)
            if opens_at > now:
                return granted
        return most

    def amend(self, state: WindowUse, charged_at: int, cost: int, started_at: int, actual: int) -> WindowUse:
        rule, key = self.rule, self.key
        charged, started, newest = charged_at // rule.slice, started_at // rule.slice, state.slices[-1].number
        oldest = newest - rule.slices + 1
        held = dict(_pairs(state.keys.get(key, ())))
        # What left the window is forgotten. A charge that left and starts inside the window counts in it.
        known = cost if charged < oldest else min(cost, held.get(charged, 0))
        moved = max(0, known + actual - cost)
        keep = max(oldest, started - rule.slices + 1 if moved else oldest) - 1
        # Add before removing: in between, the key must not lose its place among the active ones.
        if moved and started > keep:
            state = _changed(state, key, started, moved, keep)
        if known and charged >= max(oldest, keep):
            state = _changed(state, key, charged, -known, keep)
        return state

    def snapshot(self, state: WindowUse | None, now: int) -> Snapshot:
        view = _View(self.rule, _NOTHING if state is None else state, now, self.key)
        # Closed although places are left: the state lies ahead.
        available = max(0, view.room(self.rule.max_count)) if view.instant <= now else 0
        opens_at = now if available else self.rule.for_key(self.key).take(state, now)[0]
        return Snapshot(used=view.own, available=available, opens_at=opens_at)

    def idle_at(self, state: WindowUse) -> int:
        return self.rule.idle_at(state)


class _View:
    """The counts for one key at an instant; `move_on` goes to a later one, without starts between."""

    __slots__ = (
        "_expired",
        "_held",
        "_key",
        "_left",
        "_rivals",
        "_rule",
        "_state",
        "_waits",
        "active",
        "at",
        "instant",
        "oldest",
        "own",
        "used",
    )

    def __init__(self, rule: SharedCounter, state: WindowUse, now: int, key: str, rivals: Collection[str] = ()) -> None:
        at = now // rule.slice
        if state.slices and at < state.slices[-1].number:
            at = state.slices[-1].number
            now = at * rule.slice
        self._rule, self._state, self._key, self._rivals = rule, state, key, rivals
        self.at, self.instant = at, now
        self.used, self.active = state.used, state.active
        self._held = state.keys.get(key, ())
        self.own = sum(self._held[1::2])
        self._expired = self._left = 0
        self._leave(at - rule.slices)
        # In the first microsecond of a slice, what leaves the window still counts for keys that have starts in it.
        self._waits = now == at * rule.slice and self._left < len(self._held) and self._held[self._left] < at
        if not self._waits:
            self._leave(at - rule.slices + 1)

    def room(self, cost: int) -> int:
        """Return how much of the key may go at the instant; exact up to `cost`."""
        rule, own = self._rule, self.own
        active = self.active if own else self.active + 1
        if (not own or self._waits) and active > rule.most_keys:
            return 0
        if self.used >= UNKNOWN:
            return 0
        if not rule.capacity:
            return rule.max_count - own
        if self._rivals:
            active = max(active, min(rule.most_keys, active + self._newcomers()))
        left = rule.capacity - self.used
        share, rest = divmod(rule.capacity, active)
        if share >= rule.max_count:
            share = rule.max_count
        elif own and share - own < min(cost, left) and self._is_among_first(rest):
            share += 1
        return min(share - own, left)

    def _newcomers(self) -> int:
        """Return how many of the rivals have no starts in the window."""
        keys, oldest = self._state.keys, self.oldest
        return sum(
            1 for name in self._rivals if name != self._key and ((held := keys.get(name)) is None or held[-2] < oldest)
        )

    def move_on(self) -> None:
        """Go to the next instant at which there may be more room."""
        slices = self._rule.slices
        if self._waits:
            self._waits = False
            self.instant += 1
        elif self._expired == len(self._state.slices):
            # Nothing counts any more. The shares of rivals would keep a higher cost waiting for ever.
            self._rivals = ()
        else:
            self.at = self._state.slices[self._expired].number + slices
            self.instant = self.at * self._rule.slice + (self._left < len(self._held))
        self._leave(self.at - slices + 1)

    def _is_among_first(self, rest: int) -> bool:
        """Return whether the key is among the first `rest` keys that became active."""
        keys = self._state.keys
        active: Iterable[str] = keys
        if len(keys) != self.active:
            active = (name for name, held in keys.items() if held[-2] >= self.oldest)
        return self._key in islice(active, rest)

    def _leave(self, oldest: int) -> None:
        """Stop counting what lies before slice `oldest`."""
        self.oldest = oldest
        slices = self._state.slices
        while self._expired < len(slices) and slices[self._expired].number < oldest:
            self.used -= slices[self._expired].used
            self.active -= slices[self._expired].keys
            self._expired += 1
        held = self._held
        while self._left < len(held) and held[self._left] < oldest:
            self.own -= held[self._left + 1]
            self._left += 2


def _changed(
    state: WindowUse, key: str, number: int, change: int, keep: int, *, becomes_active: bool = False
) -> WindowUse:
    """Return the state in which `key` has `change` more in one slice, without what lies before slice `keep`."""
    state = _kept(state, keep)
    keys = state.keys.copy()
    before = keys.pop(key, ()) if becomes_active else keys.get(key, ())
    # Starts of the key before the first slice no longer count, although its own record still holds them.
    after = _held_after(before, number, change, state.slices[0].number if state.slices else number)
    if after:
        keys[key] = after
    else:
        keys.pop(key, None)
    parts = state.slices
    if before and after and parts[-1].number == number == before[-2] == after[-2]:
        newest = parts[-1]
        parts = (*parts[:-1], Slice(number, newest.used + change, newest.keys))
    else:
        parts = _slices_after(parts, number, change, before, after)
    active = state.active + bool(after) - bool(before)
    return WindowUse(state.used + change, active, parts, keys)


def _kept(state: WindowUse, keep: int) -> WindowUse:
    """Return the state without what lies before slice `keep`."""
    expired = used = left = 0
    while expired < len(state.slices) and state.slices[expired].number < keep:
        used += state.slices[expired].used
        left += state.slices[expired].keys
        expired += 1
    if not expired:
        return state
    keys = {key: held for key, held in state.keys.items() if held[-2] >= keep} if left else state.keys
    return WindowUse(state.used - used, state.active - left, state.slices[expired:], keys)


def _held_after(before: Held, number: int, change: int, oldest: int) -> Held:
    first = 0
    while first < len(before) and before[first] < oldest:
        first += 2
    if first == len(before) or before[-2] < number:
        return (*before[first:], number, change)
    if before[-2] == number:
        used = before[-1] + change
        return (*before[first:-1], used) if used else before[first:-2]
    held = dict(_pairs(before[first:]))
    held[number] = held.get(number, 0) + change
    return tuple(chain.from_iterable(pair for pair in sorted(held.items()) if pair[1]))


def _slices_after(parts: tuple[Slice, ...], number: int, change: int, before: Held, after: Held) -> tuple[Slice, ...]:
    sums = {part.number: [part.used, part.keys] for part in parts}
    sums.setdefault(number, [0, 0])[0] += change
    if before:
        sums[before[-2]][1] -= 1
    if after:
        sums[after[-2]][1] += 1
    newest = max(sums)
    return tuple(Slice(at, used, keys) for at, (used, keys) in sorted(sums.items()) if used or at == newest)


def _pairs(held: Held) -> Iterable[tuple[int, int]]:
    return zip(held[::2], held[1::2], strict=True)


@dataclass(frozen=True, init=False)
class DynamicWindow(Limit):
    """A window for each key, under one ceiling that the active keys share fairly.

    `DynamicWindow(per=3600, capacity=20, min_count=2, key="{tenant_id}")`: 20 an hour for all keys together. One active
    key gets 20, two get 10 each, three get 7, 7 and 6, ten get 2 each. An eleventh waits until one of the ten has had
    no start for an hour. `max_count` (default: the capacity) is the most that one key gets. `min_count` (default 1)
    is the smallest share: keys that could not have it wait. `capacity=20, count=4` is 4 for each key and at most 5
    keys; `count=4` alone is a window for each key without a ceiling. At most `max_keys` (default 1,000) are active.

    A key is active while it has starts in the window. A new key reduces the other shares at once. It waits until what
    they have already used leaves the window, and then goes before them (they go a microsecond later). Other keys
    do not get what an active key leaves unused. A cost above a key's present share waits until other keys leave. What
    a key gives back does not wake jobs of other keys that wait already.

    `slices` (default 1): 1 is a fixed window, aligned to the Unix epoch; more make a sliding one, as `SlidingWindow`.
    `margin` seconds (default 0) widen the period. All keys share one state of up to `max_keys` entries, which is read
    and written as a whole.
    """

    rule: SharedCounter

    def __init__(
        self,
        *,
        per: Duration,
        count: int | None = None,
        capacity: int | None = None,
        min_count: int | None = None,
        max_count: int | None = None,
        slices: int = 1,
        max_keys: int = DEFAULT_MAX_KEYS,
        margin: Duration = 0,
        **options: Unpack[RateOptions],
    ) -> None:
        where = "a dynamic window"
        given = {
            "count": count,
            "capacity": capacity,
            "min_count": min_count,
            "max_count": max_count,
            "max_keys": max_keys,
        }
        for name, value in given.items():
            if value is not None:
                parse_count(value, name, where)
        if count is None and capacity is None:
            raise DeclarationError(f"{where} needs a count for each key, a capacity for all of them, or both")
        if count is not None and (min_count is not None or max_count is not None):
            raise DeclarationError(f"count={count} of {where} is fixed; leave out min_count and max_count, or count")
        if capacity is None and (min_count is not None or max_count is not None):
            raise DeclarationError(f"min_count and max_count of {where} share out a capacity; say which")
        most = count or max_count or capacity or 0
        least = count or min_count or 1
        if not least <= most <= (capacity or most):
            raise DeclarationError(
                f"{where} of min_count={least}, max_count={most} and capacity={capacity} can never be shared out; "
                "they have to be in this order"
            )
        period = parse_rate(capacity or most, per).period
        widening = parse_duration(margin, "margin", where)
        length = slice_length(period + widening, slices, where)
        super().__init__(SharedCounter(capacity or 0, least, most, length, slices, max_keys, widening), **options)
