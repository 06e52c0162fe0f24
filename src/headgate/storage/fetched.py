"""Starts that were fetched from a bucket elsewhere, laid down where jobs can take them in the commit that claims them.

A limit that is kept in Redis cannot be charged in the same commit as the jobs are claimed. So a node fetches starts
there and lays them down in a local bucket; the claim takes them from it as from any other. What is not taken soon is
withdrawn and given back. If all nodes die in between, what was fetched and not taken is lost budget, never too much.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.job import ChargedElsewhere
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Rule, Snapshot

ASK_AGAIN = SECOND
"""When a bucket that nobody has fetched for is looked at again."""

KEPT = 60 * SECOND
"""How long a balance is kept at least; what nobody has taken by then nobody should."""


class FetchedBalance(msgspec.Struct, frozen=True, array_like=True):
    """What is left of what was fetched.

    `fetched_at` is local limit time, `charged_at` the instant of the charge in the time of the other store (0: it could
    not be asked, and nothing was charged). `opens_at` is when (local limit time) more may be fetched, as long as the
    rule is still the one that was `asked_for`, and no less than `asked_cost` is wanted.
    """

    left: int
    fetched_at: int
    charged_at: int
    opens_at: int
    asked_for: str = ""
    asked_cost: int = 1

    @property
    def idle_at(self) -> int:
        """From this limit time on it says nothing any more."""
        return max(self.fetched_at + KEPT, self.opens_at)


NOTHING = FetchedBalance(0, 0, 0, 0)


class FetchedStarts(Rule[FetchedBalance], frozen=True):
    """The rule of a local bucket of fetched starts: it grants what lies there, for half a window of the real rule."""

    real: AnyRule

    kind: ClassVar[str] = "fetched"

    @property
    def period(self) -> int:
        return self.real.period

    @property
    def margin(self) -> int:
        return self.real.margin

    def take(self, state: FetchedBalance | None, now: int, cost: int = 1) -> tuple[int, FetchedBalance]:
        self.real.check_cost(cost)
        balance = state or NOTHING
        if cost <= balance.left and 2 * (now - balance.fetched_at) <= self.period:
            return now, replace(balance, left=balance.left - cost)
        return now + ASK_AGAIN if self.is_starved(balance, now, cost) else balance.opens_at, balance

    def is_starved(self, state: FetchedBalance | None, now: int, cost: int = 1) -> bool:
        """Whether it is time to fetch again."""
        balance = state or NOTHING
        return balance.opens_at <= now or cost < balance.asked_cost or balance.asked_for != self.real.describe()

    def check_cost(self, cost: int) -> None:
        self.real.check_cost(cost)

    def counts_until(self, charged_at: int) -> int:
        return self.real.counts_until(charged_at)

    def amend(self, state: FetchedBalance, charged_at: int, cost: int, started_at: int, actual: int) -> FetchedBalance:
        # Charges are amended where they were made.
        return state

    def amend_forgotten(self, charged_at: int, started_at: int, actual: int) -> FetchedBalance | None:
        return None

    def snapshot(self, state: FetchedBalance | None, now: int) -> Snapshot:
        left = (state or NOTHING).left
        return Snapshot(used=0, available=left, opens_at=self.take(state, now)[0])

    def bound(self, window: int) -> int:
        return self.real.bound(window)

    def idle_at(self, state: FetchedBalance) -> int:
        return state.idle_at

    def dump(self, state: FetchedBalance) -> str:
        return dump_balance(state)

    def load(self, stored: str, now: int) -> FetchedBalance:
        return load_balance(stored)

    def describe(self) -> str:
        return f"{self.real.describe()}, kept elsewhere"


def set_in_place_of(declared: AnyRule, new: AnyRule) -> AnyRule:
    """The rule that a bucket is judged by when `new` was set at run time: of fetched starts if it is declared so."""
    return FetchedStarts(new) if isinstance(declared, FetchedStarts) else new


def is_starved(rule: AnyRule, state: Any, now: int, cost: int) -> bool:
    """Whether starts have to be fetched for a bucket."""
    return isinstance(rule, FetchedStarts) and rule.is_starved(state, now, cost)


def charged_elsewhere(rule: AnyRule, state: Any) -> ChargedElsewhere | None:
    """When what a bucket grants was charged in the store where its limit is kept, if that is another."""
    if not isinstance(rule, FetchedStarts) or state is None or not state.charged_at:
        return None
    return ChargedElsewhere(state.charged_at, state.charged_at - state.fetched_at)


_HEAD = "1:fetched:"
_decode = msgspec.json.Decoder(FetchedBalance).decode


def dump_balance(balance: FetchedBalance) -> str:
    """A balance as a store keeps it."""
    return _HEAD + msgspec.json.encode(balance).decode()


def load_balance(stored: str | None) -> FetchedBalance:
    """A stored balance. What stood here while the limit was kept in this store says nothing about the other."""
    if stored is None or not stored.startswith(_HEAD):
        return NOTHING
    try:
        return _decode(stored[len(_HEAD) :])
    except (msgspec.DecodeError, UnicodeError):
        # What was fetched is lost, as with a node that dies: the other store has charged it.
        return NOTHING


def is_balance(stored: str | None) -> bool:
    """Whether it is one: the bucket stands for one in another store."""
    return stored is not None and stored.startswith(_HEAD)
