"""Fair order: the keys of a queue take turns, by weight. It is declared like a limit and never makes a job wait.

Each key has a virtual time, a number that grows by `STEP` divided by its weight with each start; the key with the
lowest virtual time starts next (start-time fair queueing; Goyal, Vin and Cheng, 1996). A key that comes back goes on
from its own virtual time, or from the lowest in line if that is higher: turns cannot be saved up.

A key that has had no virtual time yet enters at the present virtual time: the highest virtual time at which a job has
started so far, but not below the lowest in line, nor beyond the present round (one `STEP` after the lowest). Its
virtual time is odd, all others are even, so it comes just before the keys that have had turns. Its first start counts
twice. So each new key that starts moves the present virtual time on for those after it, and new keys never stay before
old ones.

With two levels of keys, such as tenants and their users, each key of the first level has a virtual time, a group. The
group with the lowest virtual time starts next, and in it the lane with the lowest virtual time. A start raises both:
the virtual time of the group by its weight, that of the lane by `STEP`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Any, ClassVar, Protocol

from headgate.arguments import parse_count
from headgate.errors import DeclarationError
from headgate.limits.key import levels_of, stored_level
from headgate.limits.limit import Key, Limit
from headgate.limits.rule import NEVER, Rule, Snapshot

PREFIX = "fair:"
"""The prefix of the names of these limits: `fair:default`. Statements recognize the lanes of fair queues by it."""

STEP = 10_080
"""How much one start raises the virtual time of a key of weight 1. Weights from 1 to 10 divide its half."""

MOST_WEIGHT = 100

FairKey = Key | tuple[Key, Key]
"""The key of a fair queue: of one level, or of two."""


class TurnOrder(Rule[None], frozen=True):
    """The order of the keys of one queue. It is always open, and has no state, so nothing amends or stores one."""

    weights: Mapping[str, int] = {}

    kind: ClassVar[str] = "fair"
    family: ClassVar[str] = "fair"
    orders_turns: ClassVar[bool] = True

    @property
    def period(self) -> int:
        return 0

    def step(self, key: str) -> int:
        """Return by how much one start raises the virtual time of the first level of a key, an even number."""
        return 2 * (STEP // 2 // self.weights.get(levels_of(key)[0], 1)) if self.weights else STEP

    def take(self, state: None, now: int, cost: int = 1) -> tuple[int, None]:
        return now, None

    def check_cost(self, cost: int) -> None:
        pass

    def grants(self, state: None, now: int, most: int) -> int:
        return most

    def counts_until(self, charged_at: int) -> int:
        return NEVER

    def amend_forgotten(self, charged_at: int, started_at: int, actual: int) -> None:
        return None

    def snapshot(self, state: None, now: int) -> Snapshot:
        return Snapshot(used=0, available=NEVER, opens_at=now)

    def bound(self, window: int) -> int:
        return NEVER

    def describe(self) -> str:
        weights = ", ".join(f"{key}: {weight}" for key, weight in sorted(self.weights.items())[:10])
        return f"turns by weight ({weights})" if weights else "turns"


@dataclass(frozen=True, init=False)
class FairOrder(Limit):
    """The keys of a queue take turns; `weights` are those of keys whose weight is not 1."""

    def __init__(self, key: FairKey, weights: Mapping[str, int]) -> None:
        levels = key if isinstance(key, tuple) else (key,)
        weights = {**weights, **{stored_level(level): weight for level, weight in weights.items()}}
        # A job without a key takes turns with the others without one.
        super().__init__(
            TurnOrder(weights),
            key=levels,  # type: ignore[arg-type]  # no other limit has a key of levels
            on_limit="wait",
            on_missing_key="shared",
            on_key_error="fail",
        )


def first_virtual_time(lowest: int) -> int:
    """Return the virtual time of a key that has had none, where `lowest` is the lowest one in line.

    Such keys are in line already, as those of a queue that has become fair. Statements compute that of a key that
    comes new (`first_virtual_time` in lanes.sql).
    """
    return lowest if lowest % 2 else lowest - 1


def returning_virtual_time(own: int, lowest: int | None, highest: int | None) -> int:
    """Return the virtual time of a key that was not in line, from the `lowest` one in line and the `highest`.

    Keys that wait for one limit may be a round apart, so one that came meanwhile and is alone in line is no measure.
    """
    present = min((each for each in (lowest, highest and highest - STEP) if each is not None), default=own)
    return max(own, present + present % 2)


def next_virtual_time(virtual_time: int, step: int) -> int:
    """Return the virtual time of a key after a start. The first one counts twice."""
    return virtual_time + 1 + 2 * step if virtual_time % 2 else virtual_time + step


class TurnGroup:
    """The lanes of one key of the first level, if keys have two: its virtual time, which each start raises by `step`.

    It `is_complete` if all its lanes in line are visited.
    """

    __slots__ = ("first", "has_started", "is_complete", "is_exhausted", "last", "step", "virtual_time")

    def __init__(self, virtual_time: int, step: int = STEP) -> None:
        self.virtual_time = virtual_time
        self.step = step
        self.first: int | None = None
        """The lowest virtual time of its lanes in line, None if none is."""
        self.last: int | None = None
        """The highest virtual time of its lanes so far."""
        self.is_complete = True
        self.has_started = False
        """Whether a visited lane has started a job."""
        self.is_exhausted = False
        """Whether all visited lanes have started all their jobs."""


class TakesTurns(Protocol):
    """An entry in a line of turns: a lane. Its start raises its `virtual_time` by `step`."""

    virtual_time: int
    step: int

    @property
    def group(self) -> TurnGroup | None: ...


class TurnLine:
    """Lanes by their virtual times: the group with the lowest one first, and in it the lane with the lowest one.

    A lane without a group is a group by itself. Of equal virtual times, the lane that was passed first comes first.
    """

    def __init__(self, takers: Iterable[TakesTurns]) -> None:
        members: dict[TurnGroup | int, list[tuple[int, int, TakesTurns]]] = {}
        for place, taker in enumerate(takers):
            known = place if taker.group is None else taker.group
            members.setdefault(known, []).append((taker.virtual_time, place, taker))
        self.size = sum(map(len, members.values()))
        """How many lanes it has at first."""
        self._groups = []
        for known, lanes in members.items():
            heapify(lanes)
            virtual_time = known.virtual_time if isinstance(known, TurnGroup) else lanes[0][0]
            self._groups.append((virtual_time, lanes[0][1], lanes))
        heapify(self._groups)

    @property
    def first(self) -> Any:
        """The lane whose job starts next; None if there is no lane."""
        return self._groups[0][2][0][2] if self._groups else None

    def start(self) -> None:
        """Note that the first lane has started a job."""
        _, place, lanes = self._groups[0]
        _, own_place, taker = lanes[0]
        taker.virtual_time = virtual_time = next_virtual_time(taker.virtual_time, taker.step)
        heapreplace(lanes, (virtual_time, own_place, taker))
        if taker.group is not None:
            taker.group.has_started = True
            taker.group.virtual_time = virtual_time = next_virtual_time(taker.group.virtual_time, taker.group.step)
        heapreplace(self._groups, (virtual_time, place, lanes))

    def leave(self) -> bool:
        """Remove the first lane. Returns whether jobs of its group come next, in lanes in line that are not visited.

        They are not waited for if no visited lane of the group could start a job: a tenant has thousands of users. If
        one of them can, the group is the first one in the next claim.
        """
        lanes = self._groups[0][2]
        _, _, taker = heappop(lanes)
        if lanes:
            return False
        heappop(self._groups)
        if taker.group is None:
            return False
        taker.group.is_exhausted = True
        return taker.group.has_started and not taker.group.is_complete


def checked_key(key: Any, where: str) -> FairKey:
    """Return the key of a fair queue. Raises DeclarationError for a list that is not of two keys."""
    if not isinstance(key, (list, tuple)):
        return key  # type: ignore[no-any-return]  # it is checked with the arguments of each task
    if len(key) != 2 or any(level is None or isinstance(level, (list, tuple)) for level in key):
        raise DeclarationError(
            f"{where}: fair_by={key!r:.80} is not a list of two keys; write "
            'fair_by=["{tenant_id}", "{user_id}"], or one key alone'
        )
    return tuple(key)


def checked_weights(weights: Any, where: str) -> Mapping[str, int]:
    """Return the weights of keys. Raises DeclarationError unless they are whole numbers from 1 to 100."""
    if not isinstance(weights, Mapping):
        raise DeclarationError(f'{where}: weights={weights!r:.80} is not a mapping; write weights={{"enterprise": 4}}')
    for key, weight in weights.items():
        if not isinstance(key, str):
            raise DeclarationError(
                f"{where}: weights has the key {key!r:.80}, but keys are texts; write {str(key)!r:.80}"
            )
        parse_count(weight, f"the weight of {key!r:.80}", where, most=MOST_WEIGHT)
    return weights
