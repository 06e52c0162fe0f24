"""Concurrency and Mutex: a maximum of jobs at once, by permits that record their holders."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Unpack

import msgspec

from headgate.arguments import LARGEST_COUNT, parse_count
from headgate.errors import DeclarationError
from headgate.limits.limit import AnyRule, HoldUntil, Key, Limit, LimitOptions, PermitOptions, SpelledOptions
from headgate.limits.rate import PermitRule
from headgate.limits.rule import NEVER, Rule, Snapshot

MUTEX = "mutex"
"""The limit that all mutexes without a name share: the key alone names the resource."""

OF_BATCH = "batch:"
"""The prefix of a holder's name if it is a batch, which keeps its permit also while none of its jobs runs."""


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """One holder's share of a bucket: the cost of its permit, and how many starts use it."""

    cost: int
    uses: int


class HeldPermits(msgspec.Struct, frozen=True, array_like=True):
    """All held permits of one bucket: the sum of their costs, and their holders."""

    held: int = 0
    holders: Mapping[str, Hold] = {}


class Semaphore(PermitRule[HeldPermits], frozen=True, tag="concurrency", tag_field="kind"):
    """Grants a permit while fewer than `count` are held; all starts of one holder share its permit.

    Time opens nothing: a permit comes back when its last use ends.
    """

    kind: ClassVar[str] = "concurrency"
    family: ClassVar[str] = "concurrency"
    holds_permits: ClassVar[bool] = True

    def take(self, state: HeldPermits | None, now: int, cost: int = 1) -> tuple[int, HeldPermits]:
        """Return when a permit is free: now, or NEVER. It takes none: without a holder no one could return it."""
        if cost > self.count:
            self.check_cost(cost)
        permits = state or NO_PERMITS
        return now if permits.held + cost <= self.count else NEVER, permits

    def for_key(self, key: str, rivals: Collection[str] = (), holder: str = "") -> Rule[HeldPermits]:
        return _HolderRule(self.count, holder) if holder else self

    @staticmethod
    def give(state: HeldPermits, holder: str) -> HeldPermits:
        """Return the state after one use by `holder` has ended; the last one frees the permit, except a batch's."""
        known = state.holders.get(holder)
        if known is None or not known.uses:
            return state
        if known.uses > 1 or holder.startswith(OF_BATCH):
            return HeldPermits(state.held, {**state.holders, holder: Hold(known.cost, known.uses - 1)})
        return Semaphore.release(state, holder)

    @staticmethod
    def release(state: HeldPermits, holder: str) -> HeldPermits:
        """Return the state after `holder` has given up its permit."""
        if holder not in state.holders:
            return state
        holders = dict(state.holders)
        known = holders.pop(holder)
        return HeldPermits(state.held - known.cost, holders)

    def counts_until(self, charged_at: int) -> int:
        return NEVER

    def amend(self, state: HeldPermits, charged_at: int, cost: int, started_at: int, actual: int) -> HeldPermits:
        # Permits are held, not spent: neither a late start nor a settled cost changes who holds them.
        return state

    def amend_forgotten(self, charged_at: int, started_at: int, actual: int) -> HeldPermits | None:
        return None

    def snapshot(self, state: HeldPermits | None, now: int) -> Snapshot:
        used = 0 if state is None else state.held
        available = max(0, self.count - used)
        return Snapshot(used=used, available=available, opens_at=now if available else NEVER)

    def idle_at(self, state: HeldPermits) -> int:
        return NEVER if state.holders else 0

    def dump(self, state: HeldPermits) -> str:
        return dump_permits(state)

    def load(self, stored: str, now: int) -> HeldPermits:
        # Under another kind of rule there were no permits.
        return load_permits(stored)


class _HolderRule(Semaphore, frozen=True, gc=False):
    """The rule for one holder."""

    holder: str

    def take(self, state: HeldPermits | None, now: int, cost: int = 1) -> tuple[int, HeldPermits]:
        if cost > self.count:
            self.check_cost(cost)
        permits = state or NO_PERMITS
        holder = self.holder
        known = permits.holders.get(holder)
        if known is not None:
            return now, HeldPermits(permits.held, {**permits.holders, holder: Hold(known.cost, known.uses + 1)})
        held = permits.held + cost
        return now if held <= self.count else NEVER, HeldPermits(held, {**permits.holders, holder: Hold(cost, 1)})


NO_PERMITS = HeldPermits()


def without_unused(permits: HeldPermits) -> HeldPermits:
    """Return the permits without those of batches of which no job runs."""
    for holder, hold in permits.holders.items():
        if not hold.uses:
            permits = Semaphore.release(permits, holder)
    return permits


def batches_of(permits: HeldPermits) -> list[str]:
    """Return the ids of the batches that hold permits."""
    return [holder[len(OF_BATCH) :] for holder in permits.holders if holder.startswith(OF_BATCH)]


UNREADABLE = "unreadable"
"""The value that stores use in place of a state that no rule can read."""

UNKNOWN_PERMITS = HeldPermits(held=2**53)
"""Permits whose holders are unknown, so none is free; `reset` clears them."""

_HEAD = "1:concurrency:"
_decode = msgspec.json.Decoder(HeldPermits).decode


def dump_permits(permits: HeldPermits) -> str:
    """Return permits in their stored form."""
    return _HEAD + msgspec.json.encode(permits).decode()


def load_permits(stored: str | None) -> HeldPermits:
    """Return stored permits: none if another kind of rule wrote them, UNKNOWN_PERMITS if they cannot be read."""
    if stored is None:
        return NO_PERMITS
    if stored.startswith(_HEAD):
        try:
            return _decode(stored[len(_HEAD) :])
        except (msgspec.DecodeError, UnicodeError):
            return UNKNOWN_PERMITS
    # Written by another version, or the store's substitute for a state that is not text.
    return (
        UNKNOWN_PERMITS if stored == UNREADABLE or stored.partition(":")[2].startswith("concurrency:") else NO_PERMITS
    )


@dataclass(frozen=True, init=False)
class Concurrency(Limit):
    """Never more than `count` jobs at once.

    `Concurrency(20)`, or `Concurrency(3, key="{tenant_id}")` for each key. A waiting job starts within milliseconds of
    the release before it, first come, first served. The commit that finishes the attempt frees the permit; a crashed
    holder's permit returns with its lease.

    `hold="until_final"` keeps the permit across retries, snoozes and crashes until the job is final. `"until_success"`
    keeps it also after a failure, until the job is retried and succeeds, or is cancelled, or the permit is reset.
    `owner` is a template over the arguments: jobs with the same owner share one permit.
    """

    rule: Semaphore
    hold: HoldUntil = "running"
    owner: Key = None

    def __init__(
        self, count: int, *, hold: HoldUntil = "running", owner: Key = None, **options: Unpack[LimitOptions]
    ) -> None:
        parse_count(count, "count", "a concurrency limit")
        if hold not in ("running", "until_final", "until_success"):
            raise DeclarationError(f"hold={hold!r} must be 'running', 'until_final' or 'until_success'")
        if options.get("store") is not None:
            raise DeclarationError(
                "store= of a concurrency limit: permits belong to jobs and live where the jobs do, so that a crashed "
                "holder gives them back; leave store= out"
            )
        object.__setattr__(self, "hold", hold)
        object.__setattr__(self, "owner", owner)
        super().__init__(Semaphore(count), **options)

    @classmethod
    def spelled(cls, text: str, like: AnyRule | None, options: SpelledOptions) -> Limit:
        # One with more digits is above every count that a limit can have.
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_COUNT))):
            raise DeclarationError(f"{text!r} is not a whole number; write how many may run at once, such as 5")
        return cls(int(text))

    @property
    def permit(self) -> PermitOptions | None:
        return PermitOptions(self.hold, self.owner)


@dataclass(frozen=True, init=False)
class Mutex(Concurrency):
    """One job at a time for each resource, in the whole program: `Mutex("orders:{order_id}")`.

    All tasks that name the same resource exclude each other. Options are those of `Concurrency`.
    """

    may_repeat: ClassVar[bool] = True

    def __init__(
        self, resource: Key = None, *, hold: HoldUntil = "running", owner: Key = None, **options: Unpack[LimitOptions]
    ) -> None:
        if "key" in options:
            raise DeclarationError(
                f"a mutex has no key=: its resource comes first; write Mutex({options['key']!r:.80})"
            )
        if resource is None or resource == "":
            raise DeclarationError('a mutex needs the resource that it guards: Mutex("orders:{order_id}")')
        options.setdefault("name", MUTEX)
        options["key"] = resource
        super().__init__(1, hold=hold, owner=owner, **options)
