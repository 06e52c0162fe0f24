"""What a rule is: one pure question, when may the next one go, and what is the state after it went?"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

S = TypeVar("S")

NEVER = 1 << 62
"""No instant: a bucket that time does not open, only a holder that gives back what it holds."""


class Snapshot(msgspec.Struct, frozen=True):
    """A bucket for people: how many starts count now, how many are left, and when (µs of limit time) one opens."""

    used: int
    available: int
    opens_at: int


class Rule(Protocol[S]):
    """The pure algorithm of a limit, on integer microseconds of limit time. No clock, no I/O, no floats.

    `None` is the state of a bucket never seen. A state is stored as text that begins with a version. Rules are
    immutable structs: equal when their numbers are, and stored as JSON with their kind as the tag.
    """

    @property
    def kind(self) -> str:
        """The rule's own name."""
        ...

    def take(self, state: S | None, now: int, cost: int = 1) -> tuple[int, S]:
        """When may `cost` go, and what is the state after it went then?

        If the instant is at most `now` it may go now and the caller keeps the new state; otherwise the caller throws
        the new state away, or keeps it as a reservation. Raises CostExceedsLimit if it could never go.
        """
        ...

    def check_cost(self, cost: int) -> None:
        """Raise CostExceedsLimit if `cost` could never go."""
        ...

    @property
    def margin(self) -> int:
        """How far apart (µs) charge and call may lie; the period is widened by it. 0 takes no account of it."""
        ...

    @property
    def period(self) -> int:
        """The length of its window, the margin included (µs)."""
        ...

    def counts_until(self, charged_at: int) -> int:
        """The instant from which a start that was charged at `charged_at` may make room for others.

        If it happens later than its charge, the charge has to be moved well before this.
        """
        ...

    def amend(self, state: S, charged_at: int, cost: int, started_at: int, actual: int) -> S:
        """The state in which a start that was charged as `cost` at one instant counts as `actual` at another.

        A late start moves (`started_at` is later), a settled cost grows or shrinks, one that never happened counts
        as 0. What the state holds no more is not brought back.
        """
        ...

    def snapshot(self, state: S | None, now: int) -> Snapshot:
        """The bucket as people look at it."""
        ...

    def bound(self, window: int) -> int:
        """The highest cost that can start in any half-open window of that many microseconds."""
        ...

    def idle_at(self, state: S) -> int:
        """From this instant on the state may be forgotten."""
        ...

    def dump(self, state: S) -> str:
        """The state as stored."""
        ...

    def load(self, stored: str, now: int) -> S:
        """The stored state, rescaled if it was written under another rate."""
        ...

    def describe(self) -> str:
        """The numbers in a few words, for people and to tell one declaration from another."""
        ...
