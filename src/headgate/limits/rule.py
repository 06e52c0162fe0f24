"""What a rule is: when may the next one go, what is the state after it went, and all else that differs by kind."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypedDict, TypeVar

import msgspec

from headgate.arguments import LARGEST_COUNT
from headgate.clock import FARTHEST, SECOND
from headgate.errors import DeclarationError

if TYPE_CHECKING:
    from headgate.limits.limit import Limit

S = TypeVar("S")

NEVER = 1 << 62
"""No instant: a bucket that time does not open, only a holder that gives back what it holds."""

RATE = "rate"
"""The family of all rules that count the starts of each key by itself."""


class Snapshot(msgspec.Struct, frozen=True):
    """A bucket for people: how many starts count now, how many are left, and when (µs of limit time) one opens."""

    used: int
    available: int
    opens_at: int


class SpelledOptions(TypedDict, total=False):
    """What people can say of a rule beside its rate; None where they said nothing."""

    burst: int | None
    slices: int | None


class LuaNumbers(NamedTuple):
    """A rule as its script receives it, with the highest count and the longest time (µs) the script computes with."""

    told: tuple[int, ...]
    counts_to: int
    reaches: int


class Rule(msgspec.Struct, Generic[S], frozen=True):
    """The pure algorithm of a limit, on integer microseconds of limit time. No clock, no I/O, no floats.

    `None` is the state of a bucket never seen. A state is stored as text that begins with a version. Rules are
    immutable structs: equal when their numbers are, and stored as JSON with their kind as the tag.

    One kind of rule is one class. What other code asks of a kind is an attribute or a method here, so that a new kind
    needs its file, its Lua script, its line in `kinds.py` and the export of its declaration, and nothing else.
    """

    kind: ClassVar[str]
    """The rule's own name."""

    family: ClassVar[str] = RATE
    """A limit in use can change to another kind of the same family; its generated name contains the family."""

    holds_permits: ClassVar[bool] = False
    """Whether it grants permits, which holders give back, instead of starts. Stores expect the state `Permits`."""

    shares_state: ClassVar[bool] = False
    """Whether one state covers all keys of the limit."""

    spaces_starts: ClassVar[bool] = False
    """Whether its slots follow one another at a fixed distance, so that a late start delays all that come after it."""

    spelling: ClassVar[str | None] = None
    """An example of how people write it on a command line; None: it is set from code only."""

    lua: ClassVar[str | None] = None
    """The Lua script beside its file that decides as it does in Redis; None: it cannot be kept there."""

    counted: ClassVar[tuple[str, ...]] = ("count",)
    """The fields that are counts, as against durations."""

    @property
    def count(self) -> int | None:
        """How many a key may have in the period, or at once; None where that is not one number."""
        return None

    @property
    def period(self) -> int:
        """The length of its window, the margin included (µs); 0 where time gives nothing back."""
        raise NotImplementedError

    @property
    def margin(self) -> int:
        """How far apart (µs) charge and call may lie; the period is widened by it. 0 takes no account of it."""
        return 0

    # ---------------------------------------------------------------------------------------------- deciding

    def take(self, state: S | None, now: int, cost: int = 1) -> tuple[int, S]:
        """When may `cost` go, and what is the state after it went then?

        If the instant is at most `now` it may go now and the caller keeps the new state; otherwise the caller throws
        the new state away, or keeps it as a reservation. Raises CostExceedsLimit if it could never go.
        """
        raise NotImplementedError

    def check_cost(self, cost: int) -> None:
        """Raise CostExceedsLimit if `cost` could never go."""
        raise NotImplementedError

    def for_key(self, key: str, rivals: Collection[str] = (), holder: str = "") -> Rule[S]:
        """The rule as one key asks it: itself, unless it has to know who asks.

        `rivals` are other keys that want to start now. `holder` is who a permit is for; without one none is taken.
        """
        return self

    def grants(self, state: S | None, now: int, most: int) -> int:
        """How many starts of cost 1 it would grant now, at most `most`."""
        return min(most, self.snapshot(state, now).available)

    def counts_until(self, charged_at: int) -> int:
        """The instant from which a start that was charged at `charged_at` may make room for others.

        If it happens later than its charge, the charge has to be moved well before this.
        """
        raise NotImplementedError

    def amend(self, state: S, charged_at: int, cost: int, started_at: int, actual: int) -> S:
        """The state in which a start that was charged as `cost` at one instant counts as `actual` at another.

        A late start moves (`started_at` is later), a settled cost grows or shrinks, one that never happened counts
        as 0. What the state holds no more is not brought back.
        """
        raise NotImplementedError

    def amend_forgotten(self, charged_at: int, started_at: int, actual: int) -> S | None:
        """As `amend` where the bucket was idle and forgotten; None: it stays so.

        Nothing else counted in it, so the start stands alone.
        """
        return self.amend(self.take(None, charged_at)[1], charged_at, 1, started_at, actual) if actual else None

    def snapshot(self, state: S | None, now: int) -> Snapshot:
        """The bucket as people look at it."""
        raise NotImplementedError

    def bound(self, window: int) -> int:
        """The highest cost that can start in any half-open window of that many microseconds.

        Of permits: how many can be held at once.
        """
        raise NotImplementedError

    def full_at(self, state: S) -> int:
        """From this instant on the bucket has its whole budget again."""
        return self.idle_at(state)

    def idle_at(self, state: S) -> int:
        """From this instant on the state may be forgotten."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------------- storing and spelling

    def dump(self, state: S) -> str:
        """The state as stored."""
        raise NotImplementedError

    def load(self, stored: str, now: int) -> S:
        """The stored state, rescaled if it was written under another rate."""
        raise NotImplementedError

    def describe(self) -> str:
        """The numbers in a few words, for people and to tell one declaration from another."""
        raise NotImplementedError

    @classmethod
    def spelled(cls, text: str, like: Rule[Any] | None, options: SpelledOptions) -> Limit:
        """The limit that people mean by `text`; what they left out is as in `like`. Raises DeclarationError."""
        raise DeclarationError(f"rules of kind {cls.kind!r} are set from code: app.admin.limits.set(…)")

    def require_bounded(self, rounding: int = 0) -> None:
        """Raise DeclarationError unless every store can hold what it counts, and every instant that follows from it.

        Counts are at most a trillion, a period with its margin (less what it was rounded up by) a hundred years.
        """
        for name in self.counted:
            value = getattr(self, name)
            if value > LARGEST_COUNT:
                raise DeclarationError(
                    f"{self.kind} limit: {name}={value} is more than {LARGEST_COUNT:,}, the most that a limit counts"
                )
        if self.period - rounding > FARTHEST:
            raise DeclarationError(
                f"{self.kind} limit: a period of {self.period / SECOND:g} s with its margin is more than a hundred "
                "years, the longest"
            )

    # ------------------------------------------------------------------------------------------ its twin in Redis

    def lua_numbers(self) -> LuaNumbers:
        """What its script receives."""
        raise NotImplementedError

    def lua_change(self, charged: int, actual: int) -> tuple[int, int]:
        """The highest count and the longest time (µs) that the script computes with to make one cost another.

        Raises DeclarationError if the rule cannot make this change.
        """
        return actual, 0

    def lua_dump(self, state: S, now: int) -> bytes:
        """The state as its script reads it."""
        raise NotImplementedError

    @classmethod
    def lua_load(cls, state: bytes) -> str:
        """The state that its script wrote, as `load` reads it. Raises ValueError for what it did not write."""
        raise NotImplementedError
