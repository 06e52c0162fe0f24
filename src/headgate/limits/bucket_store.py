"""The bucket store protocol: where buckets live that are not charged together with jobs.

A stand-alone `Limiter` uses a bucket store, and so does a job's limit with `store="redis://…"`. Each call is atomic
for its bucket, whatever other callers do. All instants are the store's own limit time in microseconds: it never goes
back, and all programs that use the store share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from headgate.errors import DeclarationError
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Snapshot


class Bucket(msgspec.Struct, frozen=True):
    """One limit for one key, with the rule that decides about it."""

    limit: str
    key: str
    rule: AnyRule


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The answer of a bucket at `now`.

    `granted` starts may go at once. `opens_at` is when the next one of that cost may go, or, for a reservation, when
    the reserved one may. `available` starts of cost 1 are left at `now`. At `full_at` the bucket has its whole budget
    again if nothing else is taken.
    """

    granted: int
    opens_at: int
    now: int
    available: int
    full_at: int


class BucketStore(Protocol):
    """Buckets by limit and key. Raises StorageUnavailable when the answer is not known.

    An app treats any other exception, an answer that is not a `Taken`, and no answer within 10 s the same way: the
    limit's `on_store_error` decides about its jobs, and the app calls the store less and less often.
    `tests/conformance/bucket_suite.py` holds the tests that every store must pass.
    """

    async def open(self) -> None:
        """Connect; a second call does nothing."""
        ...

    async def close(self) -> None:
        """Release all resources; a second call does nothing."""
        ...

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        """Start up to `count` starts of `cost` each now, as many as the bucket grants; a refused one consumes nothing.

        With an `id`, a repeat within the bucket's period returns the same answer and consumes nothing. Raises
        CostExceedsLimit if `cost` can never be granted.
        """
        ...

    async def reserve(self, bucket: Bucket, cost: int = 1, *, id: str) -> Taken:
        """Book the next slot for one start of `cost`, now or later: `opens_at`. The same id returns the same slot."""
        ...

    async def cancel(self, bucket: Bucket, *, id: str) -> bool:
        """Give back a reservation whose slot is still ahead, if it is the newest of its bucket; False if it stays."""
        ...

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> int | None:
        """Count a start that was charged as `cost` at one instant as `actual` at another; see `Rule.amend`.

        Returns the limit time of the change; 0 if it changed nothing, as for a lease that has ended and was granted to
        another holder since. A store that returns None does not say.
        """
        ...

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        """Close the bucket for that long (µs from now), whatever is left; a bucket that is closed for longer stays so.

        A reservation made meanwhile counts as if made when the bucket opens. Slots that were booked before stay.
        """
        ...

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        """Return the state of the bucket for display; consumes nothing."""
        ...

    async def reset(self, bucket: Bucket) -> None:
        """Forget the bucket: it is open and has its whole budget again."""
        ...


@runtime_checkable
class ChecksRules(Protocol):
    """A bucket store that cannot hold every rule. `check_rule` runs when a limit is declared or set."""

    def check_rule(self, rule: AnyRule) -> None:
        """Raise DeclarationError for a rule that this store cannot hold."""
        ...


@runtime_checkable
class NotesRefusals(Protocol):
    """A bucket store that can hold rules that adapt, such as `AdaptiveRate`."""

    async def refuse(self, bucket: Bucket, charged_at: int | None = None) -> None:
        """Note that the callee has refused a start that was charged at that instant; see `Rule.refused`.

        None: an unknown instant before now. While the bucket is closed, such a refusal counts as one with the refusal
        that closed it.
        """
        ...


class TakenOrBooked(NamedTuple):
    """The answer to a caller that waits: `booked` starts, charged already, may go at `taken.opens_at`."""

    taken: Taken
    booked: int = 0


@runtime_checkable
class SharedWithJobs(Protocol):
    """A bucket store in which jobs wait, too."""

    async def take_turn(self, bucket: Bucket, cost: int = 1, *, count: int = 1, patience: int) -> TakenOrBooked:
        """As `take`, for callers that wait, who take turns with jobs. It books starts that go later in their turn.

        It is their turn if a job has started since the last start of such a caller. A start after `patience` (µs) is
        not booked.
        """
        ...


async def take_turn(store: BucketStore, bucket: Bucket, cost: int, *, count: int, patience: int) -> TakenOrBooked:
    """As `SharedWithJobs`, for any store: only one in which jobs wait books starts."""
    if isinstance(store, SharedWithJobs):
        return await store.take_turn(bucket, cost, count=count, patience=patience)
    return TakenOrBooked(await store.take(bucket, cost, count=count))


class ServerReport(msgspec.Struct, frozen=True):
    """The server of a bucket store, for `headgate doctor`; `advice` is what to change about it, if anything."""

    server: str
    advice: str | None = None


@runtime_checkable
class ReportsServer(Protocol):
    """A bucket store on a server."""

    async def report(self) -> ServerReport:
        """Connect and return the report; changes nothing. Raises StorageUnavailable, StorageUnusable."""
        ...


def check_rule(store: object, rule: AnyRule, limit: str) -> None:
    """Raise DeclarationError for a rule that the limit's store cannot hold."""
    if rule.adapts and not isinstance(store, NotesRefusals):
        raise DeclarationError(
            f"limit {limit!r} cannot be {rule.describe()} in its store: a {type(store).__name__} has no `refuse`, "
            "so the rate would never be lowered"
        )
    if isinstance(store, ChecksRules):
        try:
            store.check_rule(rule)
        except DeclarationError as error:
            raise DeclarationError(f"limit {limit!r} cannot be {rule.describe()} in its store: {error}") from error


def snapshot_of(snapshot_at: Callable[[int], Snapshot], now: int, closed_until: int) -> Snapshot:
    """Return the snapshot of a bucket that grants nothing before `closed_until`."""
    current = snapshot_at(now)
    if closed_until <= now:
        return current
    return replace(current, available=0, opens_at=snapshot_at(closed_until).opens_at)
