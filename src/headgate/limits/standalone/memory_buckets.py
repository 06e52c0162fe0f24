"""Buckets in memory, for one process; tests compare the shared stores with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from headgate.clock import SECOND, Clock, SystemClock
from headgate.errors import DeclarationError
from headgate.limits.bucket_store import Bucket, Taken, snapshot_of
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.decision import FROM_STORE, Decision, full_again_at
from headgate.limits.standalone.waiting_lines import WaitingLines

V = TypeVar("V")

ENTRIES_PER_CALL = 8
"""How many entries one call checks."""

PASS_PAUSE = SECOND // 10_000
"""The time (µs) for which hits do not continue a running pass; misses always do."""

PASS_INTERVAL = 60 * SECOND
"""How often (µs) a pass checks all entries, however few are added."""


class ExpiringMap(Generic[V]):
    """Values by key, each kept at least until `idle_at(value)`.

    Used entries are in `recent`. A pass turns `recent` into `older` and checks a few entries of it per call: it drops
    idle ones and moves the others to the new `recent`. A pass begins when the number of keys has doubled since the last
    one, and once a minute. So each addition pays for a bounded number of checks, no call checks everything, and the
    size follows the number of active keys. Not thread-safe: the owner's lock guards it.
    """

    __slots__ = ("_idle_at", "_older", "_pass_at", "_pass_size", "check_at", "recent")

    def __init__(self, idle_at: Callable[[V], int]) -> None:
        self.recent: dict[str, V] = {}
        self._older: dict[str, V] = {}
        self._idle_at = idle_at
        self._pass_at = 0
        self._pass_size = 64
        self.check_at = 0
        """The instant from which `find` has to be called even if the key is in `recent`."""

    def find(self, key: str, now: int) -> V | None:
        """Return the value, or None, and move it to `recent`."""
        self._expire(now)
        value = self.recent.get(key)
        if value is None and self._older:
            value = self._older.pop(key, None)
            if value is not None:
                self.recent[key] = value
        return value

    def pop(self, key: str) -> V | None:
        """Remove and return the value, or None."""
        value = self.recent.pop(key, None)
        return self._older.pop(key, None) if value is None else value

    def clear(self) -> None:
        """Remove everything."""
        self.recent.clear()
        self._older.clear()

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def _expire(self, now: int) -> None:
        if self._older:
            for _ in range(ENTRIES_PER_CALL):
                key, value = self._older.popitem()
                if self._idle_at(value) > now:
                    self.recent[key] = value
                if not self._older:
                    self._pass_size = 2 * len(self.recent) + 64
                    break
        elif now >= self._pass_at or len(self.recent) >= self._pass_size:
            self._pass_at = now + PASS_INTERVAL
            self.recent, self._older = {}, self.recent
        self.check_at = now + PASS_PAUSE if self._older else self._pass_at


MANY = 64
"""Keys; at twice the number that was still closed at the last check, those that have opened again are removed."""


class ClosedKeys:
    """The instants until which keys are closed (µs of limit time). Not thread-safe: the owner's lock guards it."""

    __slots__ = ("_look_at", "until_by_key")

    def __init__(self) -> None:
        self.until_by_key: dict[str, int] = {}
        self._look_at = MANY

    def close(self, key: str, until: int, now: int) -> None:
        """Close a key until then; a key that is closed for longer stays so."""
        until_by_key = self.until_by_key
        if len(until_by_key) >= self._look_at:
            for other in [other for other, end in until_by_key.items() if end <= now]:
                del until_by_key[other]
            self._look_at = 2 * len(until_by_key) + MANY
        until_by_key[key] = max(until, until_by_key.get(key, 0))

    def until(self, key: str) -> int:
        """Return when a key opens, or opened; 0 if it was not closed."""
        return self.until_by_key.get(key, 0)


MAX_LATENESS = SECOND // 100
"""How late (µs) a waiter may start and still be charged at its slot: timers are late by a millisecond or two."""

MAX_REFUSALS = 1000
"""The maximum of keys whose latest refusal is kept."""


class BucketTable:
    """The buckets of one limit under one rule, and the lines of the callers that wait for them.

    Every method is one step under `lock`, so any number of threads may call. A changed rule of the limit has another
    table; the tables of a limit share their lock, closed keys, lines and holders. A key's state is in the table that
    used it last.
    """

    def __init__(self, rule: AnyRule, clock: Clock, ahead: int, siblings: list[BucketTable]) -> None:
        first = siblings[0] if siblings else None
        self.rule = rule
        self.lock: threading.Lock = threading.Lock() if first is None else first.lock
        self.clock = clock
        self.ahead = ahead
        """How far (µs) limit time is ahead of `clock.monotonic()`."""
        self.closed: ClosedKeys = ClosedKeys() if first is None else first.closed
        self.lines: WaitingLines = WaitingLines(self.lock, clock) if first is None else first.lines
        self._states: ExpiringMap[Any] = ExpiringMap(rule.idle_at)
        self._answers: ExpiringMap[dict[str, _Answer]] = ExpiringMap(_forgettable_at)
        # Slots follow one another at a fixed distance, so each late wake-up would reduce the rate permanently. Rules
        # that count windows lose nothing by it, and must count a start when it happens.
        self._keeps_slots = rule.spaces_starts
        # Holders per key that may give something back: while there are any, a bucket may open sooner than its rule
        # says.
        self._holders: dict[str, int] = {} if first is None else first._holders
        self._siblings = siblings
        siblings.append(self)
        # Shortcuts for `take_nowait`.
        self._lines_by_key = self.lines.by_key
        self._closed = self.closed.until_by_key
        self._refused: dict[str, _Refusal] = {}

    # ------------------------------------------------------------------------------------------------- deciding

    def take_nowait(self, key: str, cost: int = 1) -> Decision:
        """Return a decision about one start of `cost` now, charged if allowed; a refused one consumes nothing.

        While other callers wait for the key, it is refused. Raises CostExceedsLimit if `cost` can never be granted.
        """
        # The only method that is called a million times a second, so it has shortcuts that the others do not have.
        rule, states = self.rule, self._states
        with self.lock:
            now = self.clock.monotonic() + self.ahead
            state = states.recent.get(key)
            if state is None or now >= states.check_at:
                state = self._find(key, now)
            if self._closed and self._closed.get(key, 0) > now:
                check_cost(cost)
                return self._refusal(key, rule, state, cost, now)
            if self._refused:
                known = self._refused.get(key)
                if known is not None and known.state is state and known.cost == cost and now < known.opens_at:
                    return Decision(False, now, known.opens_at, rule, state)
            if type(cost) is not int or cost < 1:
                check_cost(cost)
            opens_at, after = rule.take(state, now, cost)
            if opens_at > now:
                if len(self._refused) >= MAX_REFUSALS:
                    self._refused.clear()
                # Until then the same state gives the same answer, without running the rule.
                self._refused[key] = _Refusal(state, cost, opens_at)
                return Decision(False, now, opens_at, rule, state)
            if self._lines_by_key and self.lines.has_waiter(key):
                return Decision(False, now, now + 1, rule, state)
            states.recent[key] = after
        return Decision(True, now, now, rule, after)

    def take_first(self, key: str, cost: int, refused_at: int) -> Decision:
        """Return a decision for the first in line, which was refused at `refused_at`; the caller holds the lock."""
        rule, now = self._rule_of(key), self.clock.monotonic() + self.ahead
        state = self._find(key, now)
        earliest = max(refused_at, now - MAX_LATENESS) if self._keeps_slots else now
        opens_at, after = rule.take(state, max(earliest, self.closed.until(key)), cost)
        if opens_at > now:
            return self._refusal(key, rule, state, cost, now)
        self._keep(key, after)
        return Decision(True, opens_at, opens_at, rule, after)

    def take(self, key: str, cost: int, count: int, id: str | None) -> Taken:
        """Same as `BucketStore.take`."""
        with self.lock:
            rule, now = self._rule_of(key), self.clock.monotonic() + self.ahead
            if id is not None and (known := self._answered(key, now).get(id)):
                return known.taken
            state = self._find(key, now)
            granted = 0
            earliest = max(now, self.closed.until(key))
            opens_at, after = rule.take(state, earliest, cost)
            while opens_at <= now and granted < count:
                granted += 1
                state = after
                opens_at, after = rule.take(state, now, cost)
            taken = _taken(granted, opens_at, now, rule, state, earliest)
            if granted:
                self._keep(key, state)
                if id is not None:
                    self._answers.recent.setdefault(key, {})[id] = _Answer(taken, now + rule.period)
            return taken

    def reserve(self, key: str, cost: int, id: str) -> Taken:
        """Same as `BucketStore.reserve`."""
        check_cost(cost)
        with self.lock:
            rule, now = self._rule_of(key), self.clock.monotonic() + self.ahead
            before = self._find(key, now)
            if known := self._answered(key, now).get(id):
                slot = known.taken.opens_at
                return _taken(int(slot <= now), slot, now, rule, before, max(now, self.closed.until(key)))
            earliest = max(now, self.closed.until(key))
            slot, after = rule.take(before, earliest, cost)
            self._keep(key, after)
            taken = _taken(int(slot <= now), slot, now, rule, after, earliest)
            self._answers.recent.setdefault(key, {})[id] = _Answer(taken, slot + rule.period, before, after)
            return taken

    def cancel(self, key: str, id: str) -> bool:
        """Same as `BucketStore.cancel`."""
        with self.lock:
            now = self.clock.monotonic() + self.ahead
            answers = self._answered(key, now)
            known = answers.get(id)
            if known is None or known.taken.granted or known.taken.opens_at <= now:
                return False
            if self._find(key, now) != known.after:
                return False
            # Not an amendment: the future slot was booked in a window that no longer holds what counts now.
            self._keep(key, known.before)
            del answers[id]
            self._notify(key)
            return True

    def amend(self, key: str, charged_at: int, cost: int, started_at: int, actual: int) -> int:
        """Same as `BucketStore.amend`."""
        with self.lock:
            rule, now = self._rule_of(key), self.clock.monotonic() + self.ahead
            state = self._find(key, now)
            if state is None:
                after = rule.amend_forgotten(charged_at, started_at, actual)
            else:
                after = rule.amend(state, charged_at, cost, started_at, actual)
            if after is not None:
                self._keep(key, after)
                self._notify(key)
            return 0 if after == state else now

    def give_back(self, key: str, cost: int) -> None:
        """Return permits. Raises ValueError for more than are held."""
        with self.lock:
            state = self._find(key, self.clock.monotonic() + self.ahead)
            if (state or 0) < cost:
                raise ValueError(f"{cost} given back of {state or 0} permits that are out for {key!r}")
            self._keep(key, state - cost)
            self._notify(key)

    def penalize(self, key: str, closed_for: int) -> None:
        """Same as `BucketStore.penalize`."""
        with self.lock:
            now = self.clock.monotonic() + self.ahead
            self.closed.close(key, now + closed_for, now)

    def refuse(self, key: str, charged_at: int | None) -> None:
        """Same as `NotesRefusals.refuse`."""
        with self.lock:
            now = self.clock.monotonic() + self.ahead
            if charged_at is None and self.closed.until(key) > now:
                return
            charged_at = now if charged_at is None else charged_at
            self._keep(key, self._rule_of(key).refused(self._find(key, now), charged_at, now))

    def snapshot(self, key: str) -> Snapshot:
        """Same as `BucketStore.snapshot`."""
        with self.lock:
            rule, now = self._rule_of(key), self.clock.monotonic() + self.ahead
            state = self._find(key, now)
            return snapshot_of(lambda at: rule.snapshot(state, at), now, max(now, self.closed.until(key)))

    def reset(self, key: str) -> None:
        """Same as `BucketStore.reset`. Holders of permits keep them."""
        with self.lock:
            for table in () if self.rule.holds_permits else self._siblings:
                table._keep(key, None)
                table._answers.pop(key)
            self._closed.pop(key, None)
            self._notify(key)

    def clear(self) -> None:
        """Remove all buckets."""
        with self.lock:
            self._states.clear()
            self._answers.clear()
            self._closed.clear()

    # -------------------------------------------------------------------------------------------------- waiting

    def add_holder(self, key: str) -> None:
        """Count a holder that may give something back to this bucket."""
        with self.lock:
            self._holders[key] = self._holders.get(key, 0) + 1

    def remove_holder(self, key: str) -> None:
        """Stop counting a holder."""
        with self.lock:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]

    def refusal(self, key: str, cost: int) -> Decision:
        """Return the decision for a new caller that is refused; nothing is charged."""
        with self.lock:
            rule, now = self._rule_of(key), self.clock.monotonic() + self.ahead
            return self._refusal(key, rule, self._find(key, now), cost, now)

    def opens_only_by_time(self, key: str) -> bool:
        """Return whether no holder and no reservation can give anything back."""
        with self.lock:
            now = self.clock.monotonic() + self.ahead
            booked = self._answered(key, now)
            return key not in self._holders and all(answer.taken.opens_at <= now for answer in booked.values())

    def is_closed_until(self, key: str, instant: int) -> bool:
        """Return whether a penalty keeps the key closed beyond that limit time."""
        with self.lock:
            return self.closed.until(key) > instant

    # --------------------------------------------------------------------------------------------------- within

    def _rule_of(self, key: str) -> AnyRule:
        return self.rule

    def _find(self, key: str, now: int) -> Any:
        state = self._states.find(key, now)
        if state is None and len(self._siblings) > 1:
            for other in self._siblings:
                before = other._states.pop(key)
                if before is not None:
                    state = self.rule.load(other.rule.dump(before), now)
                    self._states.recent[key] = state
        return state

    def _keep(self, key: str, state: Any) -> None:
        if state is None:
            self._states.pop(key)
        else:
            self._states.recent[key] = state

    def _refusal(self, key: str, rule: AnyRule, state: Any, cost: int, now: int) -> Decision:
        until = max(now, self.closed.until(key))
        opens_at = max(rule.take(state, until, cost)[0], now + 1)
        if until <= now:
            return Decision(False, now, opens_at, rule, state)
        return Decision(False, now, opens_at, FROM_STORE, _taken(0, opens_at, now, rule, state, until))

    def _notify(self, key: str) -> None:
        self.lines.call_first(key)

    def _answered(self, key: str, now: int) -> dict[str, _Answer]:
        """Return the answers given under an id that still count, oldest first."""
        answers = self._answers.find(key, now)
        if answers is None:
            return {}
        while answers:
            oldest = next(iter(answers))
            if answers[oldest].until > now:
                break
            del answers[oldest]
        return answers


class SharedStateTable(BucketTable):
    """The buckets of a limit whose rule has one state for all keys and receives the key with each call."""

    def take_nowait(self, key: str, cost: int = 1) -> Decision:
        check_cost(cost)
        with self.lock:
            if not self.lines.has_waiter(key):
                return self.take_first(key, cost, 0)
        return self.refusal(key, cost)

    def opens_only_by_time(self, key: str) -> bool:
        with self.lock:
            return not self._holders and not len(self._answers)

    def _rule_of(self, key: str) -> AnyRule:
        return self.rule.for_key(key)

    def _find(self, key: str, now: int) -> Any:
        return super()._find(_ALL_KEYS, now)

    def _keep(self, key: str, state: Any) -> None:
        super()._keep(_ALL_KEYS, state)

    def _notify(self, key: str) -> None:
        # What one key gives back may be granted to another.
        for waited_for in list(self.lines.by_key):
            self.lines.call_first(waited_for)


_ALL_KEYS = ""


class MemoryBuckets:
    """A BucketStore in this process's memory; it never waits, and any number of threads may use it.

    It removes idle buckets, a few at each call, and never one that still counts something. Limit time is the wall time
    when the store was made, plus the time since then on the monotonic clock.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.ahead = self.clock.now() - self.clock.monotonic()
        """How far (µs) limit time is ahead of `clock.monotonic()`."""
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, AnyRule], BucketTable] = {}
        self._siblings: dict[str, list[BucketTable]] = {}

    def table(self, limit: str, rule: AnyRule) -> BucketTable:
        """Return the buckets of a limit, to decide without awaiting; the same table for the same limit and rule."""
        with self._lock:
            table = self._tables.get((limit, rule))
            if table is None:
                kind = SharedStateTable if rule.shares_state else BucketTable
                table = kind(rule, self.clock, self.ahead, self._siblings.setdefault(limit, []))
                self._tables[limit, rule] = table
            return table

    async def open(self) -> None:
        """Do nothing: there is no connection."""

    async def close(self) -> None:
        """Remove all buckets."""
        for table in list(self._tables.values()):
            table.clear()

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        return self._table_of(bucket).take(bucket.key, cost, count, id)

    async def reserve(self, bucket: Bucket, cost: int = 1, *, id: str) -> Taken:
        return self._table_of(bucket).reserve(bucket.key, cost, id)

    async def cancel(self, bucket: Bucket, *, id: str) -> bool:
        return self._table_of(bucket).cancel(bucket.key, id)

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> int | None:
        return self._table_of(bucket).amend(bucket.key, charged_at, cost, started_at, actual)

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        self._table_of(bucket).penalize(bucket.key, closed_for)

    async def refuse(self, bucket: Bucket, charged_at: int | None = None) -> None:
        self._table_of(bucket).refuse(bucket.key, charged_at)

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        return self._table_of(bucket).snapshot(bucket.key)

    async def reset(self, bucket: Bucket) -> None:
        self._table_of(bucket).reset(bucket.key)

    def _table_of(self, bucket: Bucket) -> BucketTable:
        if bucket.rule.holds_permits:
            raise DeclarationError(
                "a bucket store counts starts; permits belong to their holders: use `Limiter(Concurrency(…)).hold()`"
            )
        return self.table(bucket.limit, bucket.rule)


def check_cost(cost: int) -> None:
    """Raise ValueError unless `cost` is a whole number, at least 1."""
    if isinstance(cost, bool) or not isinstance(cost, int) or cost < 1:
        raise ValueError(f"cost={cost!r} must be a whole number, at least 1")


class _Refusal(msgspec.Struct, frozen=True, gc=False):
    state: Any
    cost: int
    opens_at: int


class _Answer(msgspec.Struct, frozen=True, gc=False):
    """The answer given under an id, how long it is kept, and the states before and after a reservation."""

    taken: Taken
    until: int
    before: Any = None
    after: Any = None


def _taken(granted: int, opens_at: int, now: int, rule: AnyRule, state: Any, closed_until: int) -> Taken:
    full_at = max(now, closed_until, full_again_at(rule, state))
    available = 0 if closed_until > now else rule.snapshot(state, now).available
    return Taken(granted, opens_at, now, available, full_at)


def _forgettable_at(answers: dict[str, _Answer]) -> int:
    return max((answer.until for answer in answers.values()), default=0)
