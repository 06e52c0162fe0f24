"""The buckets of jobs, used by plain code: jobs and plain code share what the limits grant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import DeclarationError, LimitRejected
from headgate.jobs.job import BucketRef
from headgate.limits.bucket_store import Bucket, Taken, TakenOrBooked, snapshot_of
from headgate.limits.key import bucket_key
from headgate.limits.rule import NEVER, Snapshot
from headgate.limits.standalone.decision import full_again_at
from headgate.storage.admission import FOR_ALL_KEYS, BucketView, BucketVisit
from headgate.storage.store import Store
from headgate.storage.stored_rows import load_state, note_unreadable

R = TypeVar("R")

TURN = "\x1fturn"
"""The id of the note about the last turn of callers that wait, unlike any that callers choose."""

MOST_AT_ONCE = 1_000_000
"""The most starts that come free together and are divided with jobs."""

TURN_FOR = SECOND // 2
"""How long a bucket is left open to jobs if it is their turn."""

ASK_EVERY = SECOND // 50
"""How long a caller sleeps that waits for jobs to take their turn."""


class StoredBuckets:
    """A BucketStore on the store of the jobs. Rules that were set at run time apply here too.

    While jobs wait for a bucket, who does not wait is granted nothing before it opens for the first of them, and then
    the bucket serves who asks first. Callers that wait take turns with jobs.
    """

    def __init__(self, storage: Store) -> None:
        self._storage = storage

    async def open(self) -> None:
        """Do nothing: the app opens the store."""

    async def close(self) -> None:
        """Do nothing: the app closes the store."""

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        return await self._visit(bucket, lambda visit: _take(visit, cost, count), id, may_repeat=id is not None)

    async def take_turn(self, bucket: Bucket, cost: int = 1, *, count: int = 1, patience: int) -> TakenOrBooked:
        """As `SharedWithJobs.take_turn`."""
        return await self._visit(bucket, lambda visit: _take_turn(visit, cost, count, patience), TURN)

    async def reserve(self, bucket: Bucket, cost: int = 1, *, id: str) -> Taken:
        """As `BucketStore.reserve`. Raises LimitRejected while the limit is paused for the key."""
        taken = await self._visit(bucket, lambda visit: _reserve(visit, cost), id, may_repeat=True)
        if taken is None:
            raise LimitRejected(
                f"nothing was reserved: limit {bucket.limit!r} is paused for {bucket.key!r}; resume it, or reserve "
                "again later (it also is while a newer release declares it as another sort of limit)",
                limit=bucket.limit,
                key=bucket.key,
            )
        return taken

    async def cancel(self, bucket: Bucket, *, id: str) -> bool:
        return await self._visit(bucket, _cancel, id)

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> int | None:
        def change(visit: BucketVisit) -> int:
            before = visit.view.home.state
            visit.view.amend(charged_at, cost, started_at, actual)
            visit.reopens = actual < cost
            return 0 if visit.view.home.state == before else visit.now

        return await self._visit(bucket, change)

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        ref = BucketRef(bucket.limit, bucket_key(bucket.key))
        await self._ask(lambda: self._storage.penalize(ref, self._storage.limit_now() + closed_for), may_repeat=True)

    async def refuse(self, bucket: Bucket, charged_at: int | None = None) -> None:
        await self._visit(bucket, lambda visit: _refuse(visit, charged_at))

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        return await self._visit(bucket, _snapshot, may_repeat=True)

    async def reset(self, bucket: Bucket) -> None:
        async def reset() -> None:
            await self._storage.reset(BucketRef(bucket.limit, bucket_key(bucket.key)))
            if bucket.rule.shares_state:
                await self._storage.reset(BucketRef(bucket.limit, FOR_ALL_KEYS))

        await self._ask(reset, may_repeat=True)

    async def _ask(self, request: Callable[[], Awaitable[R]], *, may_repeat: bool = False) -> R:
        """Return the answer of the store; `may_repeat`: to ask again after a lost answer gives the same one."""
        return await request()

    async def _visit(
        self,
        bucket: Bucket,
        change: Callable[[BucketVisit], R],
        id: str | None = None,
        *,
        may_repeat: bool = False,
    ) -> R:
        if bucket.rule.holds_permits:
            raise DeclarationError(
                f"limit {bucket.limit!r} grants permits, which belong to jobs: if a job crashes, its permit is "
                "returned, but if plain code crashes, it would not be; make the code a job, or use a rate"
            )
        ref, rules = BucketRef(bucket.limit, bucket_key(bucket.key)), {bucket.limit: bucket.rule}
        return await self._ask(lambda: self._storage.visit(ref, rules, change, id=id), may_repeat=may_repeat)


class _StoredAnswer(msgspec.Struct, array_like=True):
    """The answer that is stored under a request's id, and for a reservation the states before and after it."""

    taken: Taken
    before: str | None = None
    after: str | None = None


class _StoredTurn(msgspec.Struct, array_like=True):
    """The last turn of callers that wait: the state after it, its slot, and how many more of its starts are theirs."""

    after: str | None
    slot: int
    left: int


N = TypeVar("N", _StoredAnswer, _StoredTurn)


def _known(visit: BucketVisit, kind: type[N]) -> N | None:
    """Return what is stored of an earlier request; None if nothing is, or if it cannot be read."""
    if visit.note is None:
        return None
    try:
        return msgspec.json.decode(visit.note, type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        ref = visit.view.ref
        note_unreadable("request to bucket", f"{ref.limit}:{ref.key}", f"note: {error}")
        return None


def _take(visit: BucketVisit, cost: int, count: int) -> Taken:
    known = _known(visit, _StoredAnswer)
    if known is not None:
        return known.taken
    taken = _start(visit, cost, count)
    if taken.granted:
        visit.store_note(_encode(_StoredAnswer(taken)), visit.now + visit.view.rule.period)
    return taken


def _start(visit: BucketVisit, cost: int, count: int) -> Taken:
    view, now = visit.view, visit.now
    granted = 0
    opens_at, after = _try_take(view, now, cost)
    while opens_at <= now and granted < count:
        granted += 1
        view.set_state(after)
        opens_at, after = _try_take(view, now, cost)
    return _taken(visit, granted, opens_at)


def _take_turn(visit: BucketVisit, cost: int, count: int, patience: int) -> TakenOrBooked:
    """Take turns with jobs that wait: one start each, or half each of those that come free together.

    It is the turn of jobs until one has started since the last turn, which changes the state, or until the bucket has
    been open to them for `TURN_FOR`: then no worker takes them.
    """
    view, now, before = visit.view, visit.now, _state(visit.view)
    if view.opens_at is None or view.closed_until >= NEVER:
        # No job waits, or nothing opens it.
        return TakenOrBooked(_start(visit, cost, count))
    last = _known(visit, _StoredTurn)
    slot, after = view.take(max(now, view.closed_until), cost)
    if last is None or last.after != before:
        left = max(1, view.grants(slot, MOST_AT_ONCE) // 2)
    elif last.left and slot <= max(now, last.slot):
        left = last.left
    else:
        if now < view.opens_at + TURN_FOR:
            return TakenOrBooked(_taken(visit, 0, max(view.opens_at, now + ASK_EVERY)))
        left = count
    if slot > now + patience:
        return TakenOrBooked(_taken(visit, 0, slot))
    starts, opens_at = 0, slot
    while opens_at <= slot and starts < min(count, left):
        starts += 1
        view.set_state(after)
        opens_at, after = view.take(slot, cost)
    visit.store_note(_encode(_StoredTurn(_state(view), slot, left - starts)), slot + view.rule.period)
    return (
        TakenOrBooked(_taken(visit, starts, opens_at)) if slot <= now else TakenOrBooked(_taken(visit, 0, slot), starts)
    )


def _reserve(visit: BucketVisit, cost: int) -> Taken | None:
    """Reserve a slot. None while the bucket is paused: a reservation without a time would close it for ever."""
    view, now = visit.view, visit.now
    known = _known(visit, _StoredAnswer)
    if known is not None:
        slot = known.taken.opens_at
        return _taken(visit, int(slot <= now), slot)
    if view.closed_until >= NEVER:
        return None
    before = _state(view)
    slot, state = view.take(max(now, view.closed_until), cost)
    view.set_state(state)
    taken = _taken(visit, int(slot <= now), slot)
    visit.store_note(_encode(_StoredAnswer(taken, before, _state(view))), slot + view.rule.period)
    return taken


def _cancel(visit: BucketVisit) -> bool:
    view = visit.view
    known = _known(visit, _StoredAnswer)
    if known is None or known.taken.opens_at <= visit.now or known.after is None or _state(view) != known.after:
        return False
    view.set_state(None if known.before is None else load_state(view.rule, view.ref, known.before, visit.now))
    visit.store_note(None, until=0)
    visit.reopens = True
    return True


def _refuse(visit: BucketVisit, charged_at: int | None) -> None:
    if charged_at is not None or visit.view.closed_until <= visit.now:
        visit.view.refuse(visit.now if charged_at is None else charged_at, visit.now)


def _snapshot(visit: BucketVisit) -> Snapshot:
    view = visit.view
    if view.closed_until >= NEVER:
        return replace(view.snapshot(visit.now), available=0, opens_at=NEVER)
    return snapshot_of(view.snapshot, visit.now, _closed_until(view))


def _try_take(view: BucketView, now: int, cost: int) -> tuple[int, Any]:
    if view.closed_until >= NEVER:
        return NEVER, None
    if view.opens_at is not None and view.opens_at > now:
        # What is left is for the first job that waits, which may cost more: plain code is in the line with later jobs.
        return view.opens_at, None
    return view.take(max(now, view.closed_until), cost)


def _taken(visit: BucketVisit, granted: int, opens_at: int) -> Taken:
    view, now = visit.view, visit.now
    available = 0 if _closed_until(view) > now else view.snapshot(now).available
    full_at = max(now, view.closed_until, full_again_at(view.rule, view.home.state))
    return Taken(granted, min(opens_at, NEVER), now, available, full_at)


def _closed_until(view: BucketView) -> int:
    """Return until when plain code is granted nothing. What is left before that is for the first job that waits."""
    return max(view.closed_until, view.opens_at or 0)


def _state(view: BucketView) -> str | None:
    home = view.home
    return None if home.state is None else home.rule.dump(home.state)


def _encode(note: _StoredAnswer | _StoredTurn) -> str:
    return msgspec.json.encode(note).decode()
