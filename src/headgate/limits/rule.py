"""The protocol of a rule: when the next start may go, the state after it, and all that differs by kind."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from headgate.clock import FARTHEST, SECOND
from headgate.errors import CostExceedsLimit, DeclarationError

S = TypeVar("S")

NEVER = 1 << 62
"""An instant that never comes: time does not open the bucket, only a holder that returns its permit."""

RATE = "rate"
"""The family of all rules that count the starts of each key separately."""


class Snapshot(msgspec.Struct, frozen=True):
    """A bucket's state for display: starts that count now, starts left, and when (µs of limit time) the next may go.

    `present` is the present rate of a rule that adapts, in words; None for all others.
    """

    used: int
    available: int
    opens_at: int
    present: str | None = None


class LuaNumbers(NamedTuple):
    """The arguments of a rule's script, and the highest count and longest time (µs) that the script computes with."""

    arguments: tuple[int, ...]
    highest_count: int
    longest_time: int


class Rule(msgspec.Struct, Generic[S], frozen=True):
    """The pure algorithm of a limit, on integer microseconds of limit time. No clock, no I/O, no floats.

    `None` is the state of a new bucket. A state is stored as text that begins with a version. Rules are immutable
    structs: equal when their numbers are, and stored as JSON with their kind as the tag.

    One kind of rule is one class. All that other code needs of a kind is an attribute or a method here, so a new kind
    needs its file, its Lua script, its line in `kinds.py` and the export of its declaration, and nothing else.
    """

    kind: ClassVar[str]
    """The rule's own name."""

    family: ClassVar[str] = RATE
    """A limit in use can change to another kind of the same family; its generated name contains the family."""

    holds_permits: ClassVar[bool] = False
    """Whether it grants permits, which holders return, instead of starts. Stores expect the state `HeldPermits`."""

    shares_state: ClassVar[bool] = False
    """Whether one state covers all keys of the limit."""

    orders_turns: ClassVar[bool] = False
    """Whether it only decides which key starts next, and never makes one wait. Its buckets are not stored."""

    spaces_starts: ClassVar[bool] = False
    """Whether its slots follow one another at a fixed distance, so that a late start delays all later ones."""

    repeats_every_count: ClassVar[bool] = False
    """Whether, under a backlog, each start goes at the instant at which the start `count` before it stops counting."""

    adapts: ClassVar[bool] = False
    """Whether refusals of the callee change its state, by `refused`."""

    shape: ClassVar[str]
    """Its kind in words, for messages: "a sliding window"."""

    most_cost: ClassVar[str] = "count"
    """The field that is the highest cost of a start."""

    lua: ClassVar[str | None] = None
    """The Lua script beside its file that does the same in Redis; None: Redis cannot hold it."""

    @property
    def count(self) -> int | None:
        """How many starts a key may have in the period, or permits at once; None if that is not one number."""
        return None

    @property
    def period(self) -> int:
        """The length of its window with the margin (µs); 0 if time gives nothing back."""
        raise NotImplementedError

    @property
    def margin(self) -> int:
        """The longest time (µs) between charge and call; the period is widened by it. 0 ignores it."""
        return 0

    @property
    def declared_period(self) -> int:
        """The length of its window without the margin (µs)."""
        return self.period - self.margin

    # ---------------------------------------------------------------------------------------------- deciding

    def take(self, state: S | None, now: int, cost: int = 1) -> tuple[int, S]:
        """Return when `cost` may go, and the state after it went then.

        If the instant is at most `now` it may go now and the caller keeps the new state. Otherwise the caller discards
        the new state, or keeps it as a reservation. Raises CostExceedsLimit if it can never go.
        """
        raise NotImplementedError

    def check_cost(self, cost: int) -> None:
        """Raise CostExceedsLimit if `cost` can never go."""
        if cost > getattr(self, self.most_cost):
            raise CostExceedsLimit(
                f"cost={cost} is more than {self.shape} of {self.describe()} can ever grant; "
                f"raise its {self.most_cost} or lower the cost"
            )

    def for_key(self, key: str, rivals: Collection[str] = (), holder: str = "") -> Rule[S]:
        """Return the rule for one key: itself, unless it depends on the key.

        `rivals` are other keys with starts that wait now. `holder` is who a permit is for; without one, none is taken.
        """
        return self

    def grants(self, state: S | None, now: int, most: int) -> int:
        """Return how many starts of cost 1 the rule would grant now, at most `most`."""
        return min(most, self.snapshot(state, now).available)

    def divided(self, sharers: int) -> Rule[S]:
        """Return the rule of each of so many that use this rule's budget apart from one another.

        Raises DeclarationError if it cannot be divided, or if less than one start is left for each.
        """
        raise DeclarationError(
            f'{self.describe()} cannot be divided among {sharers}; write on_store_error="run" or "wait"'
        )

    def share_of(self, count: int, sharers: int) -> int:
        """Return `count` divided by `sharers`, rounded down. Raises DeclarationError if nothing is left."""
        if count < sharers:
            raise DeclarationError(
                f"{self.describe()} divided among {sharers} leaves less than one start for each; lower sharers, or "
                'write on_store_error="run" or "wait"'
            )
        return count // sharers

    def counts_until(self, charged_at: int) -> int:
        """Return the instant from which a start that was charged at `charged_at` may make room for others.

        If the start happens later than its charge, the charge must be moved well before this instant.
        """
        raise NotImplementedError

    def amend(self, state: S, charged_at: int, cost: int, started_at: int, actual: int) -> S:
        """Return the state in which a start that was charged as `cost` at one instant counts as `actual` at another.

        A late start moves (`started_at` is later), a settled cost grows or shrinks, and a start that never happened
        counts as 0. What the state no longer holds is not brought back.
        """
        raise NotImplementedError

    def amend_forgotten(self, charged_at: int, started_at: int, actual: int) -> S | None:
        """Same as `amend` for a bucket whose idle state was forgotten; None: it stays forgotten.

        Nothing else counted in it, so the new state holds only this start.
        """
        return self.amend(self.take(None, charged_at)[1], charged_at, 1, started_at, actual) if actual else None

    def refused(self, state: S | None, charged_at: int, now: int) -> S | None:
        """Return the state after the callee has refused a start that was charged at `charged_at`."""
        return state

    def snapshot(self, state: S | None, now: int) -> Snapshot:
        """Return the state of the bucket for display."""
        raise NotImplementedError

    def bound(self, window: int) -> int:
        """Return the highest cost that can start in any half-open window of that many microseconds.

        For permits: how many can be held at once.
        """
        raise NotImplementedError

    def full_at(self, state: S) -> int:
        """Return the instant from which the bucket has its whole budget again."""
        return self.idle_at(state)

    def idle_at(self, state: S) -> int:
        """Return the instant from which the state may be forgotten."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------------- storing

    def dump(self, state: S) -> str:
        """Return the state in its stored form."""
        raise NotImplementedError

    def load(self, stored: str, now: int) -> S:
        """Return the stored state, rescaled if it was written under another rate."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return the numbers in a few words, for display and to distinguish declarations."""
        raise NotImplementedError

    def require_bounded(self, rounding: int = 0) -> None:
        """Raise DeclarationError unless every store can hold every instant that follows from its counts.

        A period with its margin, less what it was rounded up by, is at most a hundred years.
        """
        if self.period - rounding > FARTHEST:
            raise DeclarationError(
                f"{self.kind} limit: a period of {self.period / SECOND:g} s with its margin is more than a hundred "
                "years, the longest"
            )

    # ------------------------------------------------------------------------------------------ its twin in Redis

    def lua_numbers(self) -> LuaNumbers:
        """Return the arguments of its script."""
        raise NotImplementedError

    def lua_change(self, charged: int, actual: int) -> tuple[int, int]:
        """Return the highest count and the longest time (µs) that the script computes with to change a cost to another.

        Raises DeclarationError if the rule cannot make this change.
        """
        return actual, 0

    def lua_dump(self, state: S, now: int) -> bytes:
        """Return the state in the form that its script reads."""
        raise NotImplementedError

    @classmethod
    def lua_load(cls, state: bytes) -> str:
        """Return the state its script wrote, in the form that `load` reads. Raises ValueError for any other text."""
        raise NotImplementedError
