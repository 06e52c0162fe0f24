"""The bucket store protocol: where buckets live that are not charged together with jobs.

A stand-alone `Limiter` draws on one, and so does a job's limit that is kept elsewhere (`store="redis://…"`). Each call
is atomic for its bucket, whoever else calls. All instants are the store's own limit time in microseconds: it never goes
back, and two programs that share the store share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import msgspec

from headgate.errors import DeclarationError
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Snapshot


class Bucket(msgspec.Struct, frozen=True):
    """One limit for one key, with the rule that it is judged by."""

    limit: str
    key: str
    rule: AnyRule


class Taken(msgspec.Struct, frozen=True, gc=False):
    """What a bucket answered, at `now`.

    `granted` starts may go at once. `opens_at` is when the next one of that cost may go, or, of a reservation, when the
    reserved one may. `available` are the starts of cost 1 left at `now`, and at `full_at` the bucket is as good as new
    if nothing else is taken.
    """

    granted: int
    opens_at: int
    now: int
    available: int
    full_at: int


class BucketStore(Protocol):
    """Buckets by limit and key. Raises StorageUnavailable when the answer is not known.

    To an app, whatever else a store raises, an answer that is no `Taken`, and no answer within 10 s mean the same: the
    limit's `on_store_error` decides about its jobs, and the store is asked again less and less often.
    `tests/conformance/bucket_suite.py` holds the tests that a store has to pass.
    """

    async def open(self) -> None:
        """Connect; twice is fine."""
        ...

    async def close(self) -> None:
        """Let go of everything; twice is fine."""
        ...

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        """Let up to `count` starts of `cost` each go now, as many as the bucket grants; a refused one consumes nothing.

        With an `id`, a repeat within the bucket's period is given the same answer and consumes nothing. Raises
        CostExceedsLimit for what could never go.
        """
        ...

    async def reserve(self, bucket: Bucket, cost: int = 1, *, id: str) -> Taken:
        """Book the next slot for one start of `cost`, now or later: `opens_at`. The same id is given the same slot."""
        ...

    async def cancel(self, bucket: Bucket, *, id: str) -> bool:
        """Give back a reservation whose slot is still ahead, if it is the newest of its bucket; False if it stays."""
        ...

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        """Let a start that was charged as `cost` at one instant count as `actual` at another, as `Rule.amend` says."""
        ...

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        """Let nothing go for so long (µs from now), whatever is left; a bucket that is closed for longer stays so.

        What is taken counts as if it was asked for when the bucket opens. Slots that were booked before stay.
        """
        ...

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        """The bucket as people look at it; consumes nothing."""
        ...

    async def reset(self, bucket: Bucket) -> None:
        """Forget the bucket: it is as good as new, and open."""
        ...


@runtime_checkable
class ChecksRules(Protocol):
    """A bucket store that cannot hold every rule, and says so when a limit is declared or set."""

    def check_rule(self, rule: AnyRule) -> None:
        """Raise DeclarationError for a rule that the store cannot hold."""
        ...


def check_rule(store: object, rule: AnyRule, limit: str) -> None:
    """Raise DeclarationError for a rule that the store of a limit cannot hold."""
    if isinstance(store, ChecksRules):
        try:
            store.check_rule(rule)
        except DeclarationError as error:
            raise DeclarationError(f"limit {limit!r} cannot be {rule.describe()} in its store: {error}") from error


def snapshot_of(look: Callable[[int], Snapshot], now: int, closed_until: int) -> Snapshot:
    """What `look` tells of a bucket that grants nothing before then."""
    seen = look(now)
    if closed_until <= now:
        return seen
    return Snapshot(used=seen.used, available=0, opens_at=look(closed_until).opens_at)
