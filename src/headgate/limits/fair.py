"""Fair order: the keys of a queue take turns, by weight. It is declared like a limit and never makes a job wait.

Each key has a turn, a number that grows by `STEP` divided by its weight with each start; the key with the lowest turn
starts next (start-time fair queueing; Goyal, Vin and Cheng, 1996). A key that comes back goes on from its own turn, or
from the lowest in line if that is higher: turns cannot be saved up. A key that has had no turn yet comes just before
the lowest in line: its turn is odd, all others are even.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from headgate.arguments import parse_count
from headgate.errors import DeclarationError
from headgate.limits.limit import Key, Limit
from headgate.limits.rule import NEVER, Rule, Snapshot

PREFIX = "fair:"
"""The prefix of the names of these limits: `fair:default`. Statements recognize the lanes of fair queues by it."""

STEP = 10_080
"""How much one start raises the turn of a key of weight 1. Weights from 1 to 10 divide its half."""

MOST_WEIGHT = 100


class TurnOrder(Rule[None], frozen=True):
    """The order of the keys of one queue. It is always open, and has no state."""

    weights: Mapping[str, int] = {}

    kind: ClassVar[str] = "fair"
    family: ClassVar[str] = "fair"
    orders_turns: ClassVar[bool] = True
    counted: ClassVar[tuple[str, ...]] = ()

    @property
    def period(self) -> int:
        return 0

    def step(self, key: str) -> int:
        """Return by how much one start raises the turn of a key, an even number."""
        return 2 * (STEP // 2 // self.weights.get(key, 1))

    def take(self, state: None, now: int, cost: int = 1) -> tuple[int, None]:
        return now, None

    def check_cost(self, cost: int) -> None:
        pass

    def grants(self, state: None, now: int, most: int) -> int:
        return most

    def counts_until(self, charged_at: int) -> int:
        return NEVER

    def amend(self, state: None, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        return None

    def amend_forgotten(self, charged_at: int, started_at: int, actual: int) -> None:
        return None

    def snapshot(self, state: None, now: int) -> Snapshot:
        return Snapshot(used=0, available=NEVER, opens_at=now)

    def bound(self, window: int) -> int:
        return NEVER

    def idle_at(self, state: None) -> int:
        return 0

    def dump(self, state: None) -> str:
        return ""

    def load(self, stored: str, now: int) -> None:
        return None

    def describe(self) -> str:
        weights = ", ".join(f"{key}: {weight}" for key, weight in sorted(self.weights.items())[:10])
        return f"turns by weight ({weights})" if weights else "turns"


@dataclass(frozen=True, init=False)
class FairOrder(Limit):
    """The keys of a queue take turns; `weights` are those of keys whose weight is not 1."""

    def __init__(self, key: Key, weights: Mapping[str, int]) -> None:
        # A job without a key takes turns with the others without one.
        super().__init__(
            TurnOrder(dict(weights)), key=key, on_limit="wait", on_missing_key="shared", on_key_error="fail"
        )


def first_turn(lowest: int) -> int:
    """Return the turn of a key that has had none, where `lowest` is the lowest one in line."""
    return lowest if lowest % 2 else lowest - 1


def returning_turn(own: int, lowest: int) -> int:
    """Return the turn of a key that was not in line, where `lowest` is the lowest one in line."""
    return max(own, lowest + lowest % 2)


def next_turn(turn: int, step: int) -> int:
    """Return the turn of a key after a start."""
    return turn + turn % 2 + step


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
