"""Claims: read a snapshot without locks, choose lanes, lock, read the first jobs, let a `ClaimPlan` decide, write.

The parts are `claim_snapshot` (what is read without locks), `claim_plan` (the decision, which is pure) and
`claim_writes`. This module has their order and the locks.

With one writer, all of it is one transaction, and the snapshot is still current. With several writers, these rules keep
claims exact:

1. Every transaction locks buckets in the order of their ids. So there are no deadlocks, and one claim at a time charges
   a bucket. A claim adds missing buckets after that, in the same order: it may wait for another claim that adds them,
   which holds all its locks by then. If that one has added them, this claim starts again.
2. A claim locks lanes after buckets, and skips lanes that another transaction has locked. In a fair queue, it locks the
   next ones in line instead, if they need no other bucket.
3. A claim reads the time and the jobs by later statements than those that lock: a statement sees the rows as of its
   start, and it may have waited for its locks.
4. A claim locks the row of its node, so that no other node declares it dead meanwhile, and compares the revision of the
   settings once more. A transaction that changes settings then locks all nodes, so it waits for claims in progress,
   and reopens the buckets: a claim under the old rules cannot close one after that.
5. A transaction empties a lane only if it has locked the lane and found no job in it. A job that was added meanwhile
   has an arrival, which is merged into the lane after this transaction.
6. A claim does not wait for a locked job: a user's transaction may hold it. The claim starts again and skips that job;
   a lane without other jobs sleeps for a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.clock import FARTHEST, SECOND
from headgate.jobs.identity import job_text
from headgate.jobs.job import BucketRef
from headgate.storage.admission import RowId
from headgate.storage.driver import Transaction
from headgate.storage.live_rules import CachedRules
from headgate.storage.procedures.buckets import BUCKETS, BucketViews, ensure_rows, lock_buckets
from headgate.storage.procedures.claim_plan import LOCKED_FOR, ClaimPlan, LaneVisit, sort_heads
from headgate.storage.procedures.claim_snapshot import (
    LANES,
    LOWEST_RANK,
    SINGLE_WRITER_SNAPSHOT,
    ClaimSnapshot,
    LaneHead,
    LaneRow,
    TurnGroupRow,
    open_lane,
    read_snapshot,
)
from headgate.storage.procedures.claim_writes import BucketsNeeded, ClaimConflict, ClaimWriter, SkippedJobs
from headgate.storage.procedures.fair_lines import FairLines
from headgate.storage.records import Claim, Claimed
from headgate.storage.stored_rows import RowDecoder, bucket_id

SOON = SECOND // 50
"""The time until the next claim if another node has locked lanes or jobs, or is merging arrivals."""

HIDDEN_FOR = 5 * SECOND
"""The time until the next claim if lanes that hold no job for this node may hide a delayed one: to look takes long."""

STATEMENTS = (
    "lock_for_claim",
    "lock_claiming_node",
    "rivals",
    "lock_lanes",
    "heads",
    "heads_ready",
    "take_ungated",
    "take_ungated_due",
    "left_in_lanes",
    "write_claim",
    "set_timers",
)
"""The statements of a claim that holds its locks, without those for jobs that end without having run."""

TRIES = 5
"""How often a claim is tried, if concurrent transactions make it start again, before it returns no jobs."""


class _LanesHidden(Exception):
    """Lanes without a job that this node can start filled the page, or got slots, instead of others."""


ReadAgain = Callable[[], Awaitable[ClaimSnapshot | None]]
"""Reads a new snapshot of the lanes that this node can claim from; None if the server's clock had stepped."""


class _LockedNode(msgspec.Struct):
    id: str


class _HeldLane(msgspec.Struct):
    """A lane that was locked, as it is now. The id is None if no lane was locked."""

    revision: int
    id: str | None
    waiting: int | None
    since: int | None
    behind: str | None
    wakes_at: int | None
    opened_at: int | None
    virtual_time: int | None
    version: int | None
    front: int | None


_NODES = RowDecoder(_LockedNode, "node")
_HEADS = RowDecoder(LaneHead, "job")
_HELD_LANES = RowDecoder(_HeldLane, "lane")
_TURN_GROUPS = RowDecoder(TurnGroupRow, "turn group")


async def claim_alone(tx: Transaction, request: Claim, live: CachedRules, skipped: SkippedJobs) -> Claimed:
    """Take jobs that may start now, in the open transaction of the one writer."""
    claim = replace(skipped.widened(request), rules=live.rules.usable(request.rules))

    async def read(*, known_only: bool) -> ClaimSnapshot:
        values = {"now": tx.now, "limit_now": tx.limit_now}
        row = await read_snapshot(tx, SINGLE_WRITER_SNAPSHOT, claim, live.limit_sets, known_only=known_only, **values)
        return ClaimSnapshot(row, list(claim.free_slots))

    found = await read(known_only=False)
    # The snapshot has no lanes of paused queues.
    claim = claim.without(found.paused)
    # A node that was declared dead must not own jobs: no other node would take them back.
    if not claim.free_slots or not found.has_joined:
        return Claimed(jobs=(), next_in=None)
    await live.refresh(tx, found.revision)
    if live.rules.usable(request.rules) != claim.rules:
        # The snapshot has buckets of limits that are of another release by now, or lacks those of this one.
        return await claim_alone(tx, request, live, skipped)
    return await SnapshotClaim(tx, claim, live, found, skipped).run(lambda: read(known_only=True))


class SnapshotClaim:
    """One claim, from a snapshot: it chooses lanes, and takes jobs in a transaction, again if that conflicts."""

    def __init__(
        self, tx: Transaction, claim: Claim, live: CachedRules, snapshot: ClaimSnapshot, skipped: SkippedJobs
    ) -> None:
        self._tx = tx
        self._claim = claim
        self._live = live
        self._snapshot = snapshot
        self._skipped = skipped
        fair = FairLines(claim.free_slots, claim.rules, snapshot.passed, snapshot.limit_now)
        self._plan = ClaimPlan(claim, snapshot.now, snapshot.limit_now, live.limit_sets, fair)
        self._buckets = self._no_buckets(snapshot.limit_now)
        # Whether a queue got fewer of the shared slots than it has jobs for.
        self._is_divided = False
        self._visits: dict[RowId, LaneVisit] = {}

    async def run(self, read_again: ReadAgain) -> Claimed:
        """Take jobs that may start now."""
        self._plan.share(await self._read_ungated())
        visits = await self._choose() if self._plan.gated_slots else []
        if self._page_is_filled_by_unknown_lanes():
            visits += await self._choose_known(read_again, visits)
        try:
            return await self._claim_from(visits, may_be_hidden=True)
        except _LanesHidden:
            return await self._claim_from([*visits, *await self._choose_known(read_again, visits)])

    async def _claim_from(self, visits: Sequence[LaneVisit], *, may_be_hidden: bool = False) -> Claimed:
        if visits or self._plan.opened:
            return await self._claim_gated(visits, may_be_hidden=may_be_hidden)
        return await self._claim_ungated_only()

    def leaves_work(self) -> bool:
        """Whether the snapshot has enough work for another such claim; lanes that had their turns leave it.

        There must be only lanes in line, in each queue that had any enough to fill its slots with one turn of each, or
        no lanes at all and jobs without limits. With fewer lanes, these lanes, other queues and jobs without limits
        would get more than their shares. Lanes of a fair queue at whose turn one that was visited comes again are not
        left.
        """
        snapshot, free_slots = self._snapshot, self._claim.free_slots
        is_mixed = any(lane.due or lane.unknown or any(lane.due_unknown) for lane in snapshot.ungated.values())
        has_groups = any(row.group_id is not None for row in snapshot.due)
        if snapshot.opened or snapshot.woken or snapshot.paused or is_mixed or has_groups:
            return False
        if not snapshot.due:
            return any(lane.ready for lane in snapshot.ungated.values())
        turns = dict.fromkeys((row.queue for row in snapshot.due if row.queue in free_slots), 0)
        views = [visit.view for visit in self._visits.values() if visit.view is not None and visit.view.step]
        # In place: the snapshot may be a later copy of the one that is kept.
        snapshot.due[:] = [
            row
            for row in snapshot.due
            if row.id not in self._visits
            and all(row.queue != view.queue or (row.virtual_time or 0) < view.virtual_time for view in views)
        ]
        for row in snapshot.due:
            if row.queue in turns:
                turns[row.queue] += self._plan.fair.quantum(row, free_slots[row.queue].slots)
        return all(count >= free_slots[queue].slots for queue, count in turns.items())

    async def _choose_known(self, read_again: ReadAgain, known: Sequence[LaneVisit]) -> list[LaneVisit]:
        """Return lanes that this node can claim from, without those already known."""
        again = await read_again()
        if again is None:
            raise ClaimConflict
        self._snapshot.opened, self._snapshot.due, self._snapshot.woken = again.opened, again.due, again.woken
        # When delayed jobs of the lanes that are left out become due is not known.
        self._snapshot.next_wake = min(again.next_wake or FARTHEST, again.now + HIDDEN_FOR)
        seen = {visit.row.id for visit in known}
        return [visit for visit in await self._choose(known_only=True) if visit.row.id not in seen]

    # --------------------------------------------------------------------------------------------- choose

    def _no_buckets(self, limit_now: int) -> BucketViews:
        return BucketViews(self._claim.rules, self._live.rules, limit_now)

    async def _choose(self, *, known_only: bool = False) -> list[LaneVisit]:
        """Return the lanes to lock, chosen from the snapshot."""
        plan, snapshot = self._plan, self._snapshot
        buckets = self._no_buckets(snapshot.limit_now)
        plan.opened = [buckets.of(row) for row in snapshot.opened]
        grants = plan.grants()
        snapshot.behind = await self._lanes_behind(grants, known_only=known_only) if grants else []
        groups = {row.group_id for row in (*snapshot.behind, *snapshot.due, *snapshot.woken)} - {None}
        if groups:
            found = await self._tx.fetch(_TURN_GROUPS, "turn_groups", ids=list(groups))
            if len(found) < len(groups):
                # Others have emptied and evicted all lanes of a group since the snapshot.
                raise ClaimConflict
            plan.fair.note_groups(found)
        if self._claim.shared_slots is not None:
            rows = plan.usable([*snapshot.behind, *snapshot.due, *snapshot.woken])
            self._is_divided = plan.divide(self._claim.shared_slots, rows, grants)
        visits = plan.choose(grants, snapshot.behind, snapshot.due, snapshot.woken)
        self._visits.update((visit.row.id, visit) for visit in visits)
        return visits

    async def _lanes_behind(self, grants: Mapping[RowId, int], *, known_only: bool) -> list[LaneRow]:
        return await self._tx.fetch(
            LANES,
            "behind",
            granting=list(grants.items()),
            most=max(grants.values()),
            queues=list(self._claim.free_slots),
            limits=list(self._claim.rules),
            known_only=known_only,
            now=self._snapshot.now,
            **self._known,
        )

    @property
    def _known(self) -> Mapping[str, Any]:
        known = self._plan.known
        return {"known": known.as_lines, "known_json": known.as_json}

    def _page_is_filled_by_unknown_lanes(self) -> bool:
        """Whether there may be more lanes, and some that were read use limits that only another release has."""
        read = [*self._snapshot.due, *self._snapshot.woken, *self._snapshot.behind]
        return self._is_cut_short() and len(self._plan.usable(read)) < len(read)

    def _is_cut_short(self) -> bool:
        """Whether there may be more lanes than were read."""
        snapshot, page = self._snapshot, self._plan.page
        # At most as many lanes are read behind a bucket as it grants, so they are always cut short.
        if len(snapshot.due) + len(snapshot.woken) >= page or len(snapshot.opened) >= page or bool(snapshot.behind):
            return True
        return self._plan.fair.cuts_groups(snapshot.due, self._claim.lanes)

    # ---------------------------------------------------------------------------------------------- claim

    async def _claim_gated(self, visits: Sequence[LaneVisit], *, may_be_hidden: bool) -> Claimed:
        opened = [row.ref for row in self._snapshot.opened]
        refs = self._buckets.with_homes([*opened, *(ref for visit in visits for ref in visit.row.buckets)])
        for _ in range(TRIES):
            try:
                async with self._tx.atomic(prepares=STATEMENTS):
                    claimed = await self._in_transaction(visits, opened, refs, may_be_hidden=may_be_hidden)
            except BucketsNeeded as needed:
                # Not inside the transaction: later locks would be out of order.
                refs |= needed.refs
                await ensure_rows(self._tx, refs)
            else:
                return claimed
        raise ClaimConflict

    async def _in_transaction(
        self, visits: Sequence[LaneVisit], opened: Sequence[BucketRef], refs: set[BucketRef], *, may_be_hidden: bool
    ) -> Claimed:
        await self._lock(refs)
        plan, buckets = self._plan, self._buckets
        views = [buckets[ref] for ref in opened]
        plan.opened = [view for view in views if view.opens_at is not None and view.opens_at <= plan.limit_now]
        held = await self._lock_lanes(visits, refs)
        if held:
            count = plan.heads_to_read(held, buckets.__getitem__)
            await self._read_heads(held, count)
            if any(visit.expired for visit in held) and count < (most := plan.most_heads(held)):
                # Expired jobs took places of jobs that can start.
                await self._read_heads(held, most)
        is_empty = any(visit.is_empty and not visit.has_locked for visit in held)
        if may_be_hidden and is_empty and (self._is_divided or plan.page_was_full or self._is_cut_short()):
            # Beside jobs that may start, it reads again in a tenth of its own seconds: thousands of lanes take long.
            may_start = any(visit.heads and plan.can_start(visit.row, buckets.__getitem__, 1) for visit in held)
            since = self._skipped.since_began(self._claim, plan.limit_now) if may_start else 0
            if since < SECOND // 10:
                raise _LanesHidden
            plan.note_wake(plan.now + SECOND - since)
        plan.decide(held, buckets.__getitem__)
        self._skipped.note_visits(self._claim, plan)
        await self._take_ungated()
        claimed = await self._write(refs)
        if held != visits:
            # Other transactions have locked some of them. They are still due if that was only a merge.
            claimed = replace(claimed, next_in=min(claimed.next_in or SOON, SOON))
        return claimed

    async def _lock(self, refs: set[BucketRef]) -> None:
        """Lock the buckets, then take the time of the plan."""
        tx = self._tx
        if tx.has_one_writer:
            known = {row.ref for row in self._snapshot.opened}
            rows = [*self._snapshot.opened, *await lock_buckets(tx, refs - known)]
        else:
            node = self._claim.node
            if names := sorted((bucket_id(ref), ref.limit, ref.key) for ref in refs):
                ids = [id for id, _, _ in names]
                rows = await tx.lock(
                    BUCKETS, "lock_for_claim", ids=ids, target=names, node=node, limit_now=tx.limit_now
                )
                is_locked = bool(rows)
            else:
                rows, is_locked = [], bool(await tx.lock(_NODES, "lock_claiming_node", node=node))
            if len(rows) < len(refs) or not is_locked:
                raise BucketsNeeded(set())
            if tx.stepped:
                # The clock of the server has stepped. The next try reads a snapshot, which corrects the time.
                raise ClaimConflict
            self._plan.begin(tx.now, tx.limit_now)
        self._buckets = self._no_buckets(self._plan.limit_now)
        # With several writers, all buckets have rows, and all rows were locked.
        self._buckets.add(rows, refs if tx.has_one_writer else ())
        await self._buckets.read_rivals(tx)

    async def _lock_lanes(self, visits: Sequence[LaneVisit], refs: Set[BucketRef]) -> list[LaneVisit]:
        """Lock lanes that no other transaction has locked, and return them as they are now."""
        if self._tx.has_one_writer:
            return list(visits)
        most = Counter(visit.row.queue for visit in visits)
        held = await self._lock_first(await self._lock_groups(visits), most)
        missing = most - Counter(visit.row.queue for visit in held)
        in_line = (row for row in self._plan.next_in_line if missing[row.queue])
        if rows := [row for row in in_line if self._buckets.with_homes(row.buckets) <= refs]:
            # The next ones in line of the same queue, of which all buckets are locked.
            held += await self._lock_first([LaneVisit(row) for row in rows], missing)
            self._visits.update((visit.row.id, visit) for visit in held)
        if (
            not self._snapshot.is_fresh
            and len(held) < len(visits)
            and any(self._plan.fair.step(visit.row) for visit in visits)
        ):
            # Others have visited nearly all that an older snapshot has left. One key would get the turns of several.
            raise ClaimConflict
        return held

    async def _lock_first(self, visits: Sequence[LaneVisit], most: Mapping[str, int]) -> list[LaneVisit]:
        """Lock the first of these lanes that are free, at most so many of each queue."""
        rows = await self._tx.fetch(
            _HELD_LANES,
            "lock_lanes",
            seen=[visit.row for visit in visits],
            most=list(most.items()),
            opened=[view.id for view in self._plan.opened],
            now=self._plan.now,
            is_fresh=self._snapshot.is_fresh,
        )
        if rows[0].revision != self._snapshot.revision:
            raise ClaimConflict
        newest = {row.id: row for row in rows}
        held = [visit for visit in visits if visit.row.id in newest]
        for visit in held:
            row, newer = visit.row, newest[visit.row.id]
            row.waiting, row.version = newer.waiting or 0, newer.version or 0
            row.front = LOWEST_RANK if newer.front is None else newer.front
            row.since, row.behind, row.wakes_at = newer.since, newer.behind, newer.wakes_at
            row.opened_at, row.virtual_time = newer.opened_at, newer.virtual_time
        return held

    async def _lock_groups(self, visits: Sequence[LaneVisit]) -> Sequence[LaneVisit]:
        """Lock the groups of lanes, and return the lanes without those whose group another transaction has locked."""
        ids = {visit.row.group_id for visit in visits} - {None}
        if not ids:
            return visits
        rows = await self._tx.fetch(_TURN_GROUPS, "lock_turn_groups", ids=list(ids))
        self._plan.fair.note_groups(rows)
        held = {row.id for row in rows}
        return [visit for visit in visits if visit.row.group_id is None or visit.row.group_id in held]

    # ---------------------------------------------------------------------------------------------- heads

    async def _read_heads(self, visits: Sequence[LaneVisit], most: int) -> None:
        plan, skipped = self._plan, self._skipped
        for visit in visits:
            visit.has_locked = visit.row.id in skipped.lanes_with_locked
            visit.is_plain = not visit.wakes_by(plan.now)
        plain = [visit for visit in visits if visit.is_plain]
        if plain:
            floors = [(visit.row.id, visit.row.front) for visit in plain]
            heads = await self._heads("heads", plain, most, visited=floors)
            if plan.has_unknown(heads):
                for visit in plain:
                    visit.is_plain = False
            else:
                plan.assign_heads(plain, heads, most)
        mixed = [visit for visit in visits if not visit.is_plain]
        if mixed:
            values = {**self._known, "now": plan.now}
            heads = await self._heads("heads_ready", mixed, most, **values, all=True)
            if plan.has_unknown(heads):
                heads = await self._heads("heads_ready", mixed, most, **values, all=False)
            plan.assign_heads(mixed, heads, most)
            for visit in mixed:
                # Jobs of unknown tasks may be left in the lane.
                visit.complete = False

    async def _heads(self, statement: str, visits: Sequence[LaneVisit], most: int, **values: Any) -> list[LaneHead]:
        lanes = [visit.row.id for visit in visits]
        return await self._tx.fetch(
            _HEADS, statement, lanes=lanes, count=most, locked=self._skipped.locked_names, **values
        )

    # -------------------------------------------------------------------------------------------- ungated

    async def _read_ungated(self) -> Mapping[str, int]:
        """Read the first jobs without limits into the plan; return how many are ready in each queue."""
        plan, snapshot = self._plan, self._snapshot
        if self._tx.has_one_writer:
            plan.ungated = [LaneVisit(row) for row in snapshot.open if row.queue in self._claim.free_slots]
            if plan.ungated:
                await self._read_heads(plan.ungated, max(free.slots for free in self._claim.free_slots.values()))
            return {visit.row.queue: len(visit.heads) for visit in plan.ungated}
        for queue, seen in snapshot.ungated.items():
            for id, task in chain(seen.unknown, *seen.due_unknown):
                plan.note_skipped(job_text(id), task, queue)
        return {queue: seen.ready + seen.due for queue, seen in snapshot.ungated.items()}

    async def _take_ungated(self) -> None:
        """Take jobs without limits for the slots that are left."""
        plan = self._plan
        rest = plan.ungated_slots()
        if self._tx.has_one_writer:
            for visit in plan.ungated:
                visit.taken = min(len(visit.heads), rest[visit.row.queue])
            return
        ungated = self._snapshot.ungated
        pauses = {queue: self._skipped.pauses.pop(queue, (0, 0)) for queue in rest}
        # Unknown jobs may be in front of one to take.
        filled = {queue for queue, lane in ungated.items() if lane.ready or lane.due or lane.unknown}
        counts = {queue: count for queue, count in rest.items() if count and queue in filled}
        if not counts:
            return
        lanes = {queue: open_lane(queue) for queue in counts}
        # The snapshot found no job below the first one.
        firsts = {queue: ungated[queue].first for queue in lanes}
        floors = {queue: ungated[queue].front if first is None else first for queue, first in firsts.items()}
        heads = await self._tx.fetch(
            _HEADS,
            "take_ungated_due" if any(ungated[queue].due for queue in counts) else "take_ungated",
            node=self._claim.node,
            now=plan.now,
            limit_now=plan.limit_now,
            visited=[(lane, counts[queue], floors[queue]) for queue, lane in lanes.items()],
            revision=self._snapshot.revision,
            queues=list(counts),
            **self._known,
        )
        visits = {queue: LaneVisit(LaneRow(lane, queue, (), 0, None, None, None, "")) for queue, lane in lanes.items()}
        for head in heads:
            # The row was returned after the update; a head has the values before it.
            head.attempt -= 1
            head.fence -= 1
            if head.costs is not None or head.terms is not None:
                head.check_bucket_count(0)
            visits[head.queue].heads.append(head)
        has_gated = bool(self._snapshot.due or self._snapshot.woken or self._snapshot.opened)
        is_shared = has_gated or self._is_divided or (self._claim.shared_slots is not None and len(filled) > 1)
        for queue, visit in visits.items():
            sort_heads(visit.heads)
            visit.taken = len(visit.heads)
            visit.complete = visit.taken < counts[queue]
            ready = plan.ungated_ready[queue]
            if visit.taken < min(counts[queue], ready):
                # Another claim has locked more due jobs than it takes: some of each priority. Or there are other jobs
                # for the slots. Or a transaction has locked these ones, and may release them, for as long as it likes.
                before, pause = pauses[queue]
                pause = min(2 * pause, LOCKED_FOR) if ready == before else SOON if ungated[queue].due else LOCKED_FOR
                self._skipped.pauses[queue] = ready, pause
                plan.note_wake(plan.now + (SOON if is_shared else pause))
        plan.ungated = list(visits.values())

    async def _claim_ungated_only(self) -> Claimed:
        plan = self._plan
        await self._take_ungated()
        if self._tx.has_one_writer:
            return await self._write(set())
        return self._result(more=plan.has_starts and plan.is_cut_short)

    # ---------------------------------------------------------------------------------------------- write

    async def _write(self, locked: set[BucketRef]) -> Claimed:
        writer = ClaimWriter(self._tx, self._claim.node, self._plan, self._buckets, self._skipped)
        return self._result(more=await writer.write(locked))

    def _result(self, *, more: bool) -> Claimed:
        plan, snapshot = self._plan, self._snapshot
        plan.note_timer(snapshot.next_bucket)
        plan.note_wake(snapshot.next_wake)
        for seen in snapshot.ungated.values():
            plan.note_wake(seen.next_wake)
        if not plan.gated_slots and (snapshot.due or snapshot.woken or snapshot.opened):
            # No slot was free for gated jobs.
            plan.note_wake(plan.now)
        if self._is_divided and not plan.has_starts:
            # The slots went to queues that cannot use them yet, and another queue has its turn next.
            plan.note_wake(plan.now + SOON)
        return plan.claimed(more=more)


def combined(first: Claimed, second: Claimed) -> Claimed:
    """Return the result of two successive claims."""
    waits = [claimed.next_in for claimed in (first, second) if claimed.next_in is not None]
    return Claimed(
        jobs=[*first.jobs, *second.jobs],
        next_in=min(waits, default=None),
        more=first.more or second.more,
        throttled=[*first.throttled, *second.throttled],
        dropped=[*first.dropped, *second.dropped],
        needed_fetches=[*first.needed_fetches, *second.needed_fetches],
        keeping={**first.keeping, **second.keeping},
        unknown=sorted({*first.unknown, *second.unknown}),
        limit_set_mismatches=sorted({*first.limit_set_mismatches, *second.limit_set_mismatches}),
        has_unknown_lanes=first.has_unknown_lanes or second.has_unknown_lanes,
    )
