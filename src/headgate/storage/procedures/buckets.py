"""Buckets: they are locked, viewed under the rules in force, and charged; and jobs release their permits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, Self

import msgspec

from headgate.jobs.bucket_mask import BucketMask, chosen
from headgate.jobs.identity import JobId
from headgate.jobs.job import BucketRef
from headgate.jobs.terms import LimitTerms
from headgate.limits.concurrency import (
    OF_BATCH,
    UNREADABLE,
    HeldPermits,
    Semaphore,
    batches_of,
    dump_permits,
    load_permits,
    without_unused,
)
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.admission import FOR_ALL_KEYS, BucketView, TurnView
from headgate.storage.driver import Transaction
from headgate.storage.live_rules import LiveRules
from headgate.storage.records import Amendment
from headgate.storage.stored_rows import RowDecoder, bucket_id, load_state


class BucketRow(msgspec.Struct):
    """A bucket as it is stored."""

    id: str
    limit: str
    key: str
    state: str | None
    opens_at: int | None
    closed_until: int

    @property
    def ref(self) -> BucketRef:
        return BucketRef(self.limit, self.key)


class Charged(msgspec.Struct):
    """The new state of a bucket, and the limit time from which it may be deleted."""

    id: str
    limit_name: str
    key: str
    state: str | None
    idle_at: int

    @classmethod
    def of(cls, view: BucketView) -> Self:
        return cls(bucket_id(view.ref), view.ref.limit, view.ref.key, *view.stored)


BUCKETS = RowDecoder(BucketRow, "bucket", state=UNREADABLE)


class BucketViews:
    """The buckets that one transaction reads: one view of each, under the rule in force for its key."""

    def __init__(self, rules: Mapping[str, AnyRule], live: LiveRules, limit_now: int) -> None:
        self._rules = rules
        self._live = live
        self._limit_now = limit_now
        self._found: dict[BucketRef, BucketView] = {}

    def __getitem__(self, ref: BucketRef) -> BucketView:
        view = self._found.get(ref)
        if view is None:
            rule = self.rule_of(ref)
            if not rule.orders_turns:
                raise KeyError(ref)
            view = self._found[ref] = TurnView(ref, rule, None)
        return view

    def add(self, rows: Iterable[BucketRow], buckets: Iterable[BucketRef] = ()) -> None:
        """Create the views of these rows, and of these buckets, which need not have a row.

        The buckets of the limits themselves come before those of their keys.
        """
        for row in sorted(rows, key=lambda row: row.key != FOR_ALL_KEYS):
            self.of(row)
        for ref in sorted(buckets, key=lambda ref: ref.key != FOR_ALL_KEYS):
            if ref not in self._found:
                self._make(ref, None)

    def of(self, row: BucketRow) -> BucketView:
        """Return the view of a row."""
        ref = row.ref
        return self._found.get(ref) or self._make(ref, row)

    def rule_of(self, ref: BucketRef) -> AnyRule:
        """Return the rule in force for a bucket."""
        return self._live.rule(ref, self._rules[ref.limit])

    def with_homes(self, buckets: Iterable[BucketRef]) -> set[BucketRef]:
        """Return these buckets, and the buckets in which their limits keep one state for all keys.

        Without those of fair queues, which are not stored.
        """
        # All rules that a limit may have, of its family, are alike in this.
        found = {ref for ref in buckets if not self._rules[ref.limit].orders_turns}
        return found | {BucketRef(ref.limit, FOR_ALL_KEYS) for ref in found if self._rules[ref.limit].shares_state}

    async def read_rivals(self, tx: Transaction) -> None:
        """Read, for each home, which of its keys have jobs to start now."""
        for view in self._found.values():
            if view.rule.shares_state and view.home is view:
                view.rivals = set(await tx.values("rivals", limit=view.ref.limit, limit_now=self._limit_now))

    @property
    def charged(self) -> list[BucketView]:
        """The views whose states have changed."""
        return [view for view in self._found.values() if view.charged]

    async def charge(self, tx: Transaction) -> bool:
        """Write the states that have changed. Returns whether there were any."""
        charged = self.charged
        if charged:
            await tx.execute("charge", target=[Charged.of(view) for view in charged])
        return bool(charged)

    def _make(self, ref: BucketRef, row: BucketRow | None) -> BucketView:
        rule = self.rule_of(ref)
        view = self._found[ref] = BucketView(ref, rule, None)
        if row is not None:
            view.id, view.opens_at, view.closed_until = row.id, row.opens_at, row.closed_until
            if row.state is not None:
                view.state = load_state(rule, ref, row.state, self._limit_now)
                # The load converts a state of another rule as of now, so it has to be stored as of now.
                view.charged = rule.dump(view.state) != row.state
        if self._live.is_paused(ref):
            view.closed_until = NEVER
        if rule.shares_state and ref.key != FOR_ALL_KEYS:
            home = BucketRef(ref.limit, FOR_ALL_KEYS)
            view.home = self._found.get(home) or self._make(home, None)
        return view


async def lock_buckets(tx: Transaction, buckets: Iterable[BucketRef]) -> list[BucketRow]:
    """Lock the rows of these buckets, in the order of their ids, as every transaction does."""
    ids = sorted({bucket_id(ref) for ref in buckets})
    return await tx.fetch(BUCKETS, "buckets_for_update", ids=ids) if ids else []


async def lock_or_insert(tx: Transaction, buckets: Iterable[BucketRef]) -> list[BucketRow]:
    """As lock_buckets, after inserting missing rows."""
    refs = set(buckets)
    while len(rows := await lock_buckets(tx, refs)) < len(refs):
        # New, or deleted for being idle a moment ago.
        await ensure_rows(tx, refs)
    return rows


async def lock_views(
    tx: Transaction,
    buckets: Iterable[BucketRef],
    rules: Mapping[str, AnyRule],
    live: LiveRules,
    *,
    beside: Set[BucketRef] = frozenset(),
) -> BucketViews:
    """Lock these buckets, after inserting missing rows, and return their views at the time of the lock.

    Those `beside` are locked with them, where they have rows. From then on, the time of the transaction is that of the
    lock.
    """
    refs = BucketViews(rules, live, tx.limit_now).with_homes(buckets)
    ids = sorted(bucket_id(ref) for ref in refs | beside)
    rows = await tx.lock(BUCKETS, "buckets_for_update", ids=ids) if ids else []
    while not tx.has_one_writer and not refs <= {row.ref for row in rows}:
        # New, or deleted for being idle a moment ago.
        await ensure_rows(tx, refs)
        rows = await tx.lock(BUCKETS, "buckets_for_update", ids=ids)
    views = BucketViews(rules, live, tx.limit_now)
    views.add([row for row in rows if row.ref in refs], refs)
    await views.read_rivals(tx)
    return views


async def amend_starts(tx: Transaction, buckets: BucketViews, amendments: Collection[Amendment]) -> None:
    """Correct the cost and the time of starts in locked buckets; the next claim visits those that may have room."""
    for amendment in amendments:
        bucket = buckets[amendment.ref]
        bucket.amend(amendment.charged_at, amendment.cost, amendment.started_at, amendment.actual)
        if amendment.is_refused:
            bucket.refuse(amendment.charged_at, tx.limit_now)
    await buckets.charge(tx)
    ids = sorted({bucket_id(amendment.ref) for amendment in amendments if amendment.actual < amendment.cost})
    if ids:
        await tx.execute("reopen_buckets", ids=ids, limit_now=tx.limit_now)


async def ensure_rows(tx: Transaction, buckets: Iterable[BucketRef]) -> None:
    """Insert a row for each bucket that has none, so that it can be locked and lanes can wait behind it."""
    names = {bucket_id(ref): (bucket_id(ref), ref.limit, ref.key) for ref in buckets}
    if not names:
        return
    missing = await tx.values("missing_buckets", target=list(names.values()))
    if missing:
        await tx.execute("ensure_buckets", target=[names[id] for id in missing], limit_now=tx.limit_now)


async def close_buckets(tx: Transaction, buckets: Iterable[BucketRef], until: int) -> None:
    """Let nothing start on these buckets before that limit time."""
    rows = await lock_or_insert(tx, buckets)
    if rows:
        await tx.execute("close_buckets", ids=[row.id for row in rows], until=until)


class PermitRelease(NamedTuple):
    """The permits that a job releases, and those that it keeps."""

    job_id: str
    buckets: tuple[BucketRef, ...]
    terms: LimitTerms
    given: BucketMask
    kept: BucketMask


class Holder(msgspec.Struct, array_like=True):
    """A job that may hold permits, by itself or by its batch."""

    id: JobId
    buckets: tuple[BucketRef, ...]
    terms: LimitTerms | None
    held: BucketMask


def leaving_holders(jobs: Iterable[PermitRelease]) -> dict[BucketRef, list[str]]:
    """Return the holders that leave each bucket."""
    leaving: dict[BucketRef, list[str]] = {}
    for job in jobs:
        # A row that contradicts itself may name more permits than buckets.
        for ref, holding in chosen(zip(job.buckets, job.terms.holds, strict=False), job.given):
            if holding is not None:
                leaving.setdefault(ref, []).append(holding.holder(job.job_id))
    return leaving


def permits_left(state: str | None, leaving: Iterable[str]) -> HeldPermits:
    """Return the permits of a bucket after these holders have left."""
    permits = load_permits(state)
    for holder in leaving:
        permits = Semaphore.give(permits, holder)
    return permits


def buckets_of_batch(buckets: Sequence[BucketRef], terms: LimitTerms | None) -> list[BucketRef]:
    """Return the buckets of which the job's batch holds permits."""
    return [] if terms is None else chosen(buckets, terms.of_batch)


def permit_contradictions(
    holders: Iterable[Holder], buckets: Mapping[BucketRef, BucketRow], pending: Container[str], rules: LiveRules
) -> Iterator[str]:
    """Yield a sentence for each contradiction between buckets, jobs and `pending` batches about held permits.

    `buckets` are those that grant permits.
    """
    expected: dict[BucketRef, Counter[str]] = {}
    for job in holders:
        holds = () if job.terms is None else job.terms.holds
        for ref, holding in chosen(zip(job.buckets, holds, strict=False), job.held):
            if holding is not None:
                expected.setdefault(ref, Counter())[holding.holder(job.id)] += 1
    for ref, bucket in buckets.items():
        permits = load_permits(bucket.state)
        # A batch keeps its permit while none of its jobs uses it.
        by_bucket = {holder: hold.uses for holder, hold in permits.holders.items() if hold.uses}
        by_jobs = dict(expected.pop(ref, {}))
        for batch in batches_of(permits):
            if batch not in pending:
                yield f"bucket {ref.limit}:{ref.key} is held by batch {batch}, which is final"
        if by_bucket != by_jobs:
            yield f"bucket {ref.limit}:{ref.key} is held by {by_bucket}, and jobs hold {by_jobs}"
        if permits.held != sum(hold.cost for hold in permits.holders.values()):
            yield f"bucket {ref.limit}:{ref.key} counts {permits.held} held, but its holders have another sum"
        if bucket.opens_at == NEVER and not permits.holders and not rules.is_paused(ref):
            yield f"bucket {ref.limit}:{ref.key} opens when a permit is returned, but has no holder"
    for ref, by_jobs in expected.items():
        yield f"jobs hold {dict(by_jobs)} of bucket {ref.limit}:{ref.key}, which does not record that"


async def return_permits(tx: Transaction, jobs: Iterable[PermitRelease]) -> Set[BucketRef]:
    """Take permits from their holders. Returns their buckets; the next claim visits the lanes behind them."""
    given = list(jobs)
    if not given:
        return set()
    leaving = leaving_holders(given)
    await tx.execute("keep_permits", given=given)
    await remove_holders(tx, leaving)
    return leaving.keys()


async def remove_holders(tx: Transaction, leaving: Mapping[BucketRef, Sequence[str]]) -> None:
    """Remove one use of a permit from each of these holders."""
    rows = await lock_buckets(tx, leaving)
    await _write(tx, [(row, permits_left(row.state, leaving[row.ref])) for row in rows])


async def release_batch_permits(tx: Transaction, batch: str, buckets: Iterable[BucketRef]) -> None:
    """Take the permits of a batch that is final."""
    holder = OF_BATCH + batch
    held = [(row, load_permits(row.state)) for row in await lock_buckets(tx, buckets)]
    await _write(tx, [(row, Semaphore.release(permits, holder)) for row, permits in held if holder in permits.holders])


async def release_unused_batches(tx: Transaction, ref: BucketRef) -> int:
    """Take permits from batches of which no job is running. Returns how many permits others hold."""
    (row,) = await lock_buckets(tx, [ref])
    held = load_permits(row.state)
    left = without_unused(held)
    if left != held:
        await _write(tx, [(row, left)])
    return left.held


async def _write(tx: Transaction, left: Sequence[tuple[BucketRow, HeldPermits]]) -> None:
    if left:
        rows = [(row.id, dump_permits(held), NEVER if held.holders else tx.limit_now) for row, held in left]
        await tx.execute("write_permits", target=rows, limit_now=tx.limit_now)
