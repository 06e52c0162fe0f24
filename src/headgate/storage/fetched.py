"""Starts that are fetched from a limit in another store, and stored in a local bucket from which claims take them.

A limit in Redis cannot be charged in the commit that claims the jobs. So a node fetches starts from Redis and stores
them in a local bucket; a claim takes them as from any other bucket. Starts that are not taken soon are withdrawn and
given back. If all nodes die in between, the fetched starts are lost budget; the limit is never exceeded.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Rule, Snapshot

ASK_AGAIN = SECOND
"""The time after which a claim visits a bucket again without fetched starts, in microseconds."""

KEPT = 60 * SECOND
"""How long a balance is kept at least, in microseconds. Starts that are older should not be taken."""


class FetchedBalance(msgspec.Struct, frozen=True, array_like=True):
    """The starts that are left of those that were fetched.

    `fetched_at` is local limit time. `charged_at` is the time of the charge in the other store (0: the store could not
    be reached, and nothing was charged). More may be fetched at `opens_at` (local limit time), or earlier if the rule
    is no longer the one described by `asked_for`, or if a job costs less than `asked_cost`.
    """

    left: int
    fetched_at: int
    charged_at: int
    opens_at: int
    asked_for: str = ""
    asked_cost: int = 1

    @property
    def idle_at(self) -> int:
        """The limit time from which the balance has no effect."""
        return max(self.fetched_at + KEPT, self.opens_at)

    @property
    def is_refused(self) -> bool:
        """Whether the other store granted less than was requested, or was not available."""
        return self.opens_at > self.fetched_at

    def left_at(self, now: int, period: int) -> int:
        """Return how many starts can be taken at this limit time: none once half a period has passed."""
        return self.left if 2 * (now - self.fetched_at) <= period else 0

    def after(self, stored: FetchedBalance, now: int, period: int) -> FetchedBalance:
        """Return what to store if another node may have stored `stored` since this one was requested."""
        is_recent = stored.asked_for == self.asked_for and self.fetched_at - stored.fetched_at < ASK_AGAIN
        if is_recent and stored.left_at(now, period) >= max(self.left, self.asked_cost):
            return stored
        # A refund may have opened it after the other store has answered.
        is_opened = is_recent and not self.left and self.fetched_at < stored.opens_at < self.opens_at
        return replace(self, opens_at=stored.opens_at) if is_opened else self


NOTHING = FetchedBalance(0, 0, 0, 0)


class FetchedStarts(Rule[FetchedBalance], frozen=True):
    """The rule of a local bucket with fetched starts: it grants them for half a window after the fetch."""

    real: AnyRule

    kind: ClassVar[str] = "fetched"

    @property
    def period(self) -> int:
        return self.real.period

    def take(self, state: FetchedBalance | None, now: int, cost: int = 1) -> tuple[int, FetchedBalance]:
        self.real.check_cost(cost)
        balance = state or NOTHING
        if cost <= balance.left_at(now, self.period):
            return now, replace(balance, left=balance.left - cost)
        return now + ASK_AGAIN if self.needs_fetch(balance, now, cost) else balance.opens_at, balance

    def needs_fetch(self, state: FetchedBalance | None, now: int, cost: int = 1) -> bool:
        """Whether starts should be fetched again."""
        balance = state or NOTHING
        return balance.opens_at <= now or cost < balance.asked_cost or balance.asked_for != self.real.describe()

    def check_cost(self, cost: int) -> None:
        self.real.check_cost(cost)

    def snapshot(self, state: FetchedBalance | None, now: int) -> Snapshot:
        return Snapshot(
            used=0, available=(state or NOTHING).left_at(now, self.period), opens_at=self.take(state, now)[0]
        )

    def idle_at(self, state: FetchedBalance) -> int:
        return state.idle_at

    def dump(self, state: FetchedBalance) -> str:
        return dump_balance(state)

    def load(self, stored: str, now: int) -> FetchedBalance:
        if is_balance(stored):
            return load_balance(stored)
        # From when the limit was kept here: the other store does not know these starts, so no more until none counts.
        full_at = self.real.full_at(self.real.load(stored, now))
        return replace(NOTHING, opens_at=full_at, asked_for=self.real.describe())

    def describe(self) -> str:
        return f"{self.real.describe()}, kept elsewhere"


_HEAD = "1:fetched:"
_decode = msgspec.json.Decoder(FetchedBalance).decode


def dump_balance(balance: FetchedBalance) -> str:
    """Return the text of a balance as it is stored."""
    return _HEAD + msgspec.json.encode(balance).decode()


def load_balance(stored: str | None) -> FetchedBalance:
    """Return a stored balance. A state from when the limit was kept in this store counts as an empty balance."""
    try:
        return _decode(stored[len(_HEAD) :]) if stored is not None and stored.startswith(_HEAD) else NOTHING
    except (msgspec.DecodeError, UnicodeError):
        # The fetched starts are lost, as with a node that dies: the other store has charged them.
        return NOTHING


def is_balance(stored: str | None) -> bool:
    """Whether a stored state is a balance, so that the limit is kept in another store."""
    return stored is not None and stored.startswith(_HEAD)
