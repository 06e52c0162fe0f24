"""Writes a claim: the jobs that start or end, the charges, and the new places of the lanes.

It follows the decision of a `ClaimPlan`, in the transaction that has locked its rows. A claim starts again if another
transaction has locked or changed a row that it writes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.bucket_mask import chosen
from headgate.jobs.job import BucketRef
from headgate.storage.admission import RowId
from headgate.storage.driver import Transaction
from headgate.storage.endings import EndedJob
from headgate.storage.procedures.buckets import BucketViews, Charged, ensure_rows, return_permits
from headgate.storage.procedures.claim_plan import ClaimPlan, LaneMove, LaneVisit
from headgate.storage.procedures.claim_snapshot import LaneHead
from headgate.storage.procedures.following import ENDED_JOBS, FollowersHeld, resolve_followers
from headgate.storage.records import Claim, Dropped
from headgate.storage.stored_rows import RowDecoder, bucket_id

MOST_LANES = 256
"""How many lanes a claim visits at most while lanes that it visits start nothing, if it has fewer slots."""


class ClaimConflict(Exception):
    """Rows that the claim has read were changed or locked before it wrote them; it starts again."""


class BucketsNeeded(Exception):
    """Some buckets have no row to lock yet, or were not locked."""

    def __init__(self, refs: set[BucketRef]) -> None:
        self.refs = refs


class SkippedJobs:
    """What claims of this process skip: locked jobs for a second, none with one writer, and mostly long reads."""

    lanes_with_locked: Collection[RowId] = frozenset()
    """The lanes that have locked jobs."""

    locked_names: Sequence[str] = ()
    """Their names in statements that leave them out."""

    def __init__(self) -> None:
        # The queues of which the last claim found jobs without limits locked: how many were ready, and how long until
        # they are to be tried again. It grows while it is the same ones.
        self.pauses: dict[str, tuple[int, int]] = {}
        self._width = 1
        self._began: dict[tuple[str, bool], int] = {}

    def widened(self, claim: Claim) -> Claim:
        """Return the claim with its width."""
        return replace(claim, width=self._width)

    def note_visits(self, claim: Claim, plan: ClaimPlan) -> None:
        """Double the width of the next claim if this one leaves lanes, and more than half of its slots; else halve it.

        A thousand users of a tenant whose limit is used up must not keep others waiting until each of their lanes has
        been visited, as many in a claim as there are free slots.
        """
        started = sum(visit.taken for visit in plan.gated)
        if plan.page_was_full and 2 * started < plan.gated_slots:
            self._width = min(2 * claim.width, max(1, MOST_LANES // claim.page))
        else:
            self._width = max(1, claim.width // 2)

    def since_began(self, claim: Claim, now: int) -> int:
        """Return the age of the present second of a node's claims, of queues with a backlog or without."""
        since = now - self._began.get(key := (claim.node, claim.has_backlog), 0)
        if not 0 <= since < SECOND:
            self._began[key], since = now, 0
        return since

    def note_locked(self, heads: Sequence[LaneHead]) -> None:
        """Note that other transactions have locked these jobs."""


class _Remaining(msgspec.Struct):
    """The jobs left in a lane: is one ready, when is the first delayed one due, and the first one after now."""

    lane: str
    has_ready: bool
    earliest: int | None
    next_due: int | None


_REMAINING = RowDecoder(_Remaining, "lane")


class ClaimWriter:
    """Writes one claim."""

    def __init__(self, tx: Transaction, node: str, plan: ClaimPlan, buckets: BucketViews, skipped: SkippedJobs) -> None:
        self._tx = tx
        self._node = node
        self._plan = plan
        self._buckets = buckets
        self._skipped = skipped

    async def write(self, locked: set[BucketRef]) -> bool:
        """Write what the plan has decided, under the locks of these buckets. Returns whether there may be more.

        Raises BucketsNeeded if permits of others have to be returned, and ClaimConflict if rows have changed.
        """
        plan, tx = self._plan, self._tx
        dropped = plan.drop()
        if plan.given and not tx.has_one_writer:
            given = {ref for each in plan.given for ref in chosen(each.buckets, each.given)}
            if not given <= locked:
                raise BucketsNeeded(given)
        # With several writers, arrivals count the jobs of lanes without limits, so claims do not wait for each other.
        visits = plan.visits if tx.has_one_writer else plan.gated
        moves = await self._moves(visits, dropped)
        await self._write_claim(visits, moves)
        moved = {move.id for move in moves}
        written = plan.fair.written(visit.row for visit in plan.gated if visit.row.id in moved)
        if written:
            # After the lanes: a group leaves the line with the last of its lanes.
            await tx.execute("write_virtual_times", written=written)
        ended: list[EndedJob] = []
        if dropped:
            ended = await tx.fetch(ENDED_JOBS, "drop_waiting", dropped=dropped, now=plan.now)
            if len(ended) != len(dropped):
                await self._skip_locked({row.id for row in dropped} - {row.id for row in ended})
        # After the charges: they write states that still have the returned permits.
        reopened = await return_permits(tx, plan.given)
        released = 0
        if lanes := plan.batch_lanes:
            released = await tx.execute("release_batch_lanes", released=lanes, now=plan.now, limit_now=plan.limit_now)
        timers = plan.timers(reopened)
        if timers:
            await tx.execute("set_timers", timer=[(bucket_id(view.ref), opens_at) for view, opens_at in timers])
        has_followers = await self._resolve_followers(ended) if dropped else False
        # Lanes wait for the permits that were returned.
        if reopened or has_followers:
            return True
        # If nothing was written, the next claim would read the same rows, so it waits until something changes.
        has_progressed = plan.has_starts or bool(moves) or released > 0
        is_still_open = released > 0 or any(opens_at <= plan.limit_now for _, opens_at in timers)
        return has_progressed and (is_still_open or plan.is_cut_short)

    async def _resolve_followers(self, ended: Sequence[EndedJob]) -> bool:
        """Resolve the followers of jobs that ended; return whether any is followed or in a batch."""
        # After the timers: they do not take into account the permits that the last job of a batch returns.
        try:
            await resolve_followers(self._tx, ended)
        except FollowersHeld as held:
            self._skip(held.leaders)
        return any(row.is_followed or row.batch is not None for row in ended)

    async def _moves(self, visits: Sequence[LaneVisit], dropped: Sequence[Dropped]) -> list[LaneMove]:
        """Return the new places of the lanes. Lanes that may be empty are read once more."""
        plan = self._plan
        # With several writers, the count of a lane lags behind.
        emptied = {visit.row.id for visit in visits if self._tx.has_one_writer and visit.row.waiting == visit.removed}
        unsure = [visit for visit in visits if visit.row.id not in emptied and _is_unsure(visit, plan.now)]
        left: dict[RowId, _Remaining] = {}
        if unsure:
            leaving = [head.id for visit in visits for head in visit.heads[: visit.taken]]
            leaving += [row.id for row in dropped]
            lanes = [(visit.row.id, visit.front, not visit.heads) for visit in unsure]
            values = {"leaving": leaving, "locked": self._skipped.locked_names, "now": plan.now}
            rows = await self._tx.fetch(_REMAINING, "left_in_lanes", named=lanes, **values)
            left = {row.lane: row for row in rows}
        moves: list[LaneMove] = []
        for visit in visits:
            has_ready, earliest, next_due = False, visit.row.wakes_at, None
            found = left.get(visit.row.id)
            if found is not None:
                has_ready, earliest, next_due = found.has_ready, found.earliest, found.next_due
                if not visit.left:
                    # The second read found all that is left.
                    visit.complete = not has_ready and (earliest is None or earliest > plan.now)
            is_emptied = visit.row.id in emptied
            move = plan.move(visit, has_ready=has_ready, earliest=earliest, next_due=next_due, is_emptied=is_emptied)
            if move is not None:
                if move.since == plan.limit_now:
                    # The end of the line, behind all others that came at this instant: time may stand still in tests.
                    # A microsecond apart, so that the lanes stay in the order of their turns. Lanes that keep their
                    # places are in order already.
                    at_end = plan.limit_now + len(moves)
                    move.since = self._tx.take_places(1) if self._tx.has_one_writer else at_end
                moves.append(move)
        return moves

    async def _write_claim(self, visits: Sequence[LaneVisit], moves: Sequence[LaneMove]) -> None:
        if self._tx.has_one_writer:
            await self._write_with_one_writer(visits, moves)
            return
        starting = self._plan.starts(visits)
        charged = [Charged.of(view) for view in self._buckets.charged]
        if not starting and not moves and not charged:
            return
        started = await self._tx.ids(
            "write_claim",
            node=self._node,
            now=self._plan.now,
            limit_now=self._plan.limit_now,
            charged=charged,
            moved=moves,
            starting=starting,
        )
        if len(started) != len(starting):
            await self._skip_locked({id for id, *_ in starting} - set(started))

    async def _write_with_one_writer(self, visits: Sequence[LaneVisit], moves: Sequence[LaneMove]) -> None:
        """Write the claim with one statement for each table: on SQLite a statement is no round trip."""
        tx, plan = self._tx, self._plan
        by_node = {"node": self._node, "now": plan.now, "limit_now": plan.limit_now}
        plain = [head.id for visit in visits for head in visit.heads[: visit.taken] if head.terms is None]
        if plain:
            await tx.execute("start_jobs", ids=plain, deferred=plan.deferred(visits), **by_node)
        with_terms = plan.starts(visits, all=False)
        if with_terms:
            await tx.execute("start_with_terms", starting=with_terms, **by_node)
        if await self._buckets.charge(tx):
            await tx.execute("use_limit_time", limit_now=plan.limit_now)
        if moves:
            # A bucket that is closed without ever having been charged (paused, or by its ceiling) has no row yet.
            behind = [visit.behind for visit in plan.gated]
            await ensure_rows(tx, {bucket.ref for bucket in behind if bucket is not None and bucket.id is None})
            await tx.execute("move_lanes", moved=moves)

    async def _skip_locked(self, ids: set[str]) -> NoReturn:
        """Start again without those of these jobs that are locked. The others have changed since they were read."""
        self._skip(ids - set(await self._tx.ids("lockable", ids=sorted(ids))))

    def _skip(self, ids: Collection[str]) -> NoReturn:
        for visit in self._plan.visits:
            heads = (*visit.heads, *visit.expired, *(head for head, _ in visit.rejected))
            self._skipped.note_locked([head for head in heads if head.id in ids])
        raise ClaimConflict


def _is_unsure(visit: LaneVisit, now: int) -> bool:
    """Whether the lane has to be read again to find what is left in it."""
    # The count may lag behind.
    seems_empty = not visit.complete and visit.row.waiting <= visit.removed
    return visit.wakes_by(now) or visit.is_empty or visit.has_locked or seems_empty
