"""Claiming: look without locks, choose lanes, lock, read their first jobs, let a `ClaimPlan` decide, write.

Where there is one writer, all of it is one transaction, and what the look has read still holds. Where many write, this
keeps it exact:

1. Buckets are locked in the order of their ids, by everybody; so nobody deadlocks, and a bucket is charged by one claim
   at a time.
2. Lanes are locked after them, and one that somebody else holds is left to him.
3. Time and jobs are read by later statements than those that locked: a statement sees what was there when it began, and
   it may have waited for its locks.
4. The claiming node's row is held, so that nobody takes it for dead meanwhile; and what is set about limits is looked
   at once more. Who changes it reopens the buckets after that, when no node is in the middle of a claim: a claim under
   the old rules cannot close one after it.
5. A lane is emptied only by who holds it and found no job in it. A job that came meanwhile has an arrival, which is
   merged into the lane after this transaction.
6. A job is not waited for: a user's transaction may hold it. A claim that meets such a job begins anew and passes over
   it; a lane that has no other sleeps for a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND, Clock
from headgate.jobs.draw_set import chosen
from headgate.jobs.job import Draw
from headgate.storage.admission import RowId
from headgate.storage.claiming import ClaimPlan, LaneHead, LaneMove, LaneRow, LaneVisit, put_in_order
from headgate.storage.driver import Transaction
from headgate.storage.endings import DroppedRow
from headgate.storage.following import EndedJob
from headgate.storage.procedures.buckets import BUCKETS, BucketViews, Charged, ensure_rows, lock_buckets
from headgate.storage.procedures.claim_snapshot import LANES, LOOK_ALONE, ClaimSnapshot, open_lane, read_snapshot
from headgate.storage.procedures.following import FollowersHeld, resolve_followers
from headgate.storage.procedures.limits import BucketTimer
from headgate.storage.procedures.permits import return_permits
from headgate.storage.procedures.settings import CachedRules
from headgate.storage.procedures.waiting import TIED, EndedWaitingJob
from headgate.storage.records import Claim, Claimed, Dropped
from headgate.storage.row_ids import bucket_id
from headgate.storage.stored_rows import RowDecoder

SOON = SECOND // 50
"""When to look again for what another node holds at this moment."""

STATEMENTS = (
    "lock_for_claim",
    "rivals",
    "lock_lanes",
    "heads",
    "heads_ready",
    "take_ungated",
    "take_ungated_ripe",
    "left_in_lanes",
    "write_claim",
    "set_timers",
)
"""What a claim runs while it holds its locks; what is left out is for jobs that end without having run."""

TRIES = 5
"""How often a claim begins anew that others have overtaken, before it leaves it to the next."""


class ClaimConflict(Exception):
    """Something that the claim had read was changed before it was written; it begins anew."""


LookAgain = Callable[[], Awaitable[ClaimSnapshot | None]]
"""Looks once more, only for what this node can do something with; None if the time had stepped, which is made good."""


class SkippedJobs:
    """The locked jobs that claims of this process leave out for a moment; none where there is one writer."""

    lanes_with_locked: Collection[RowId] = frozenset()
    """The lanes that have locked jobs."""

    locked_ids: Sequence[str] = ()
    locked_names: Sequence[str] = ()
    """What they are called by statements that leave them out."""

    def met(self, heads: Sequence[LaneHead]) -> None:
        """These are locked by somebody else."""


class LaneRange(msgspec.Struct):
    """A lane whose first jobs are read, from that `run_at` on; `most` of them, where they are taken at once."""

    lane: RowId
    floor: int
    most: int = 0


class _LookedInto(msgspec.Struct):
    lane: RowId
    front: int


class _Granting(msgspec.Struct):
    """An opened bucket, and how many starts it grants."""

    bucket: RowId
    grants: int


class _HeldLane(msgspec.Struct):
    """A lane that was locked, as it is now; without an id if none was."""

    revision: int
    id: str | None
    waiting: int | None
    since: int | None
    behind: str | None
    wakes_at: int | None
    opened_at: int | None
    version: int | None
    front: int | None


class _Left(msgspec.Struct):
    lane: str
    has_ready: bool
    earliest: int | None


_HEADS = RowDecoder(LaneHead, "job")
_HELD_LANES = RowDecoder(_HeldLane, "lane")
_LEFT = RowDecoder(_Left, "lane")


async def claim_alone(tx: Transaction, asked: Claim, live: CachedRules, clock: Clock) -> Claimed:
    """Take what may go now, in a transaction that is open, where there is one writer."""
    claim = asked

    async def look(*, known_only: bool) -> ClaimSnapshot:
        values = {"now": tx.now, "limit_now": tx.limit_now}
        row = await read_snapshot(tx, LOOK_ALONE, claim, live.gates, known_only=known_only, **values)
        return ClaimSnapshot(row, list(claim.rooms))

    found = await look(known_only=False)
    if found.paused:
        # The look has left them out.
        claim = replace(asked, rooms={queue: room for queue, room in asked.rooms.items() if queue not in found.paused})
    # A node that was declared dead must not own jobs: nobody would take them back.
    if not claim.rooms or not found.has_joined:
        return Claimed(jobs=(), next_in=None)
    await live.refresh(tx, found.revision)
    dropped: list[Dropped] = []
    claimed = await ClaimTransaction(tx, claim, live, clock, found, SkippedJobs()).run(
        lambda: look(known_only=True), dropped
    )
    return replace(claimed, dropped=[*dropped, *claimed.dropped]) if dropped else claimed


class ClaimTransaction:
    """One claim, after its look."""

    def __init__(
        self,
        tx: Transaction,
        claim: Claim,
        live: CachedRules,
        clock: Clock,
        look: ClaimSnapshot,
        passed_over: SkippedJobs,
    ) -> None:
        self._tx = tx
        self._claim = claim
        self._live = live
        self._clock = clock
        self._look = look
        self._passed_over = passed_over
        self._plan = ClaimPlan(claim, look.now, look.limit_now, live.gates)
        self._buckets = self._no_buckets(look.limit_now)
        self._shares: Mapping[str, int] = {}
        self._wanted = 0
        # Whether lanes of another release took the places of those that this node could claim from.
        self._was_hidden = False
        self.visited: set[RowId] = set()
        """The lanes whose turn it was."""

    async def run(self, look_again: LookAgain, dropped: list[Dropped]) -> Claimed:
        """Take what may go now; of what is `dropped` before something else is looked at, the caller tells."""
        self._shares = self._plan.shares(await self._ready_ungated())
        self._wanted = sum(self._shares.values())
        visits = await self._choose() if self._wanted else []
        if self._others_stand_in_the_way():
            visits += await self._choose_known(look_again, visits)
        if not visits and not self._plan.opened:
            return await self._claim_ungated_only()
        claimed = await self._claim_gated(visits)
        if not self._was_hidden:
            return claimed
        # Lanes whose tasks are those of another release hide the lanes after them. Nothing was started yet.
        dropped += claimed.dropped
        claimed = replace(claimed, dropped=())
        visits = await self._choose_known(look_again, visits)
        if self._tx.has_one_writer:
            self._plan = self._later_plan()
            await self._ready_ungated()
        if not visits:
            return together(claimed, await self._claim_ungated_only())
        return together(claimed, await self._claim_gated(visits, is_first=False))

    async def _choose_known(self, look_again: LookAgain, known: Sequence[LaneVisit]) -> list[LaneVisit]:
        """Lanes that this node can do something with, other than these."""
        again = await look_again()
        if again is None:
            raise ClaimConflict
        self._look.opened, self._look.due, self._look.woken = again.opened, again.due, again.woken
        seen = {visit.row.id for visit in known}
        return [visit for visit in await self._choose(known_only=True) if visit.row.id not in seen]

    # --------------------------------------------------------------------------------------------- choose

    def _no_buckets(self, limit_now: int) -> BucketViews:
        return BucketViews(self._claim.rules, self._live.rules, limit_now)

    def _later_plan(self) -> ClaimPlan:
        return self._plan.at(self._tx.now, self._tx.limit_now)

    async def _choose(self, *, known_only: bool = False) -> list[LaneVisit]:
        """The lanes to lock, by what the look has seen."""
        plan, look = self._plan, self._look
        buckets = self._no_buckets(look.limit_now)
        plan.opened = [buckets.of(row) for row in look.opened]
        grants = plan.grants()
        look.behind = await self._lanes_behind(grants, known_only=known_only) if grants else []
        visits = plan.choose(grants, look.behind, look.due + look.woken, self._shares)
        self.visited.update(visit.row.id for visit in visits)
        return visits

    async def _lanes_behind(self, grants: Mapping[RowId, int], *, known_only: bool) -> list[LaneRow]:
        return await self._tx.fetch(
            LANES,
            "behind",
            granting=[_Granting(bucket, count) for bucket, count in grants.items()],
            most=max(grants.values()),
            queues=list(self._claim.rooms),
            limits=list(self._claim.rules),
            known_only=known_only,
            now=self._look.now,
            **self._known,
        )

    @property
    def _known(self) -> Mapping[str, Any]:
        known = self._plan.known
        return {"known": known.as_lines, "known_json": known.as_json}

    def _others_stand_in_the_way(self) -> bool:
        """Whether lanes that were read draw on limits which only another release knows."""
        read = [*self._look.due, *self._look.woken, *self._look.behind]
        return self._is_cut_short() and len(self._plan.usable(read)) < len(read)

    def _is_cut_short(self) -> bool:
        """Whether there may be more lanes than were read."""
        look, page = self._look, self._plan.page
        # Of the lanes behind a bucket no more are read than it grants, so they are always cut short.
        return len(look.due) + len(look.woken) >= page or len(look.opened) >= page or bool(look.behind)

    # ---------------------------------------------------------------------------------------------- claim

    async def _claim_gated(self, visits: Sequence[LaneVisit], *, is_first: bool = True) -> Claimed:
        opened = [row.draw for row in self._look.opened]
        draws = self._buckets.with_homes([*opened, *(draw for visit in visits for draw in visit.row.draws)])
        for _ in range(TRIES):
            try:
                async with self._tx.atomic(prepares=STATEMENTS):
                    claimed = await self._in_transaction(visits, opened, draws, is_first=is_first)
            except _BucketsNeeded as needed:
                # Not inside of the transaction: what is locked later would be waited for out of its order.
                draws |= needed.draws
                await ensure_rows(self._tx, draws)
            else:
                return claimed
        raise ClaimConflict

    async def _in_transaction(
        self, visits: Sequence[LaneVisit], opened: Sequence[Draw], draws: set[Draw], *, is_first: bool
    ) -> Claimed:
        await self._lock(draws)
        plan, buckets = self._plan, self._buckets
        views = [buckets[draw] for draw in opened]
        plan.opened = [view for view in views if view.opens_at is not None and view.opens_at <= plan.limit_now]
        held = await self._lock_lanes(visits)
        if held:
            count = plan.heads_wanted(held, self._wanted, buckets.__getitem__)
            await self._read_heads(held, count)
            most = plan.most_heads(held, self._wanted)
            if count < most and any(visit.expired for visit in held):
                # They stand in front of those that can start.
                await self._read_heads(held, most)
        plan.decide(held, buckets.__getitem__, self._shares)
        barren = [visit for visit in held if visit.is_barren and not visit.has_locked]
        self._was_hidden = is_first and bool(barren) and self._is_cut_short() and not any(visit.taken for visit in held)
        if not self._was_hidden:
            await self._take_ungated()
        claimed = await self._write(draws)
        if len(held) < len(visits):
            # Somebody holds the others; if it is only to count what arrived, they are still due.
            claimed = replace(claimed, next_in=min(claimed.next_in or SOON, SOON))
        return claimed

    async def _lock(self, draws: set[Draw]) -> None:
        """Hold the buckets, and know what time it is since they are held."""
        tx = self._tx
        if tx.has_one_writer:
            known = {row.draw for row in self._look.opened}
            rows = [*self._look.opened, *await lock_buckets(tx, draws - known)]
        else:
            ids = sorted(bucket_id(draw) for draw in draws)
            rows = await tx.lock(BUCKETS, "lock_for_claim", ids=ids, node=self._claim.node) if ids else []
            if len(rows) < len(draws) or not rows:
                raise _BucketsNeeded(set())
            if tx.stepped:
                # Looked at again, which makes it good.
                raise ClaimConflict
            self._plan = self._later_plan()
        self._buckets = self._no_buckets(self._plan.limit_now)
        # Of many writers, each has locked the rows of all.
        self._buckets.add(rows, draws if tx.has_one_writer else ())
        await self._buckets.read_rivals(tx)

    async def _lock_lanes(self, visits: Sequence[LaneVisit]) -> list[LaneVisit]:
        """Those of the lanes that can be had, as they are now."""
        if self._tx.has_one_writer:
            return list(visits)
        rows = await self._tx.fetch(
            _HELD_LANES,
            "lock_lanes",
            seen=[visit.row for visit in visits],
            opened=[view.id for view in self._plan.opened],
            now=self._plan.now,
        )
        if rows[0].revision != self._look.revision:
            raise ClaimConflict
        newest = {row.id: row for row in rows}
        held = [visit for visit in visits if visit.row.id in newest]
        if not self._look.is_fresh:
            # Those that others have visited since then have had their turns.
            held = [visit for visit in held if visit.row.since == newest[visit.row.id].since]
        for visit in held:
            row, newer = visit.row, newest[visit.row.id]
            row.waiting, row.version, row.front = newer.waiting or 0, newer.version or 0, newer.front or 0
            row.since, row.behind, row.wakes_at, row.opened_at = (
                newer.since,
                newer.behind,
                newer.wakes_at,
                newer.opened_at,
            )
        return held

    # ---------------------------------------------------------------------------------------------- heads

    async def _read_heads(self, visits: Sequence[LaneVisit], most: int) -> None:
        plan, passed_over = self._plan, self._passed_over
        for visit in visits:
            visit.has_locked = visit.row.id in passed_over.lanes_with_locked
        mixed = [visit for visit in visits if visit.wakes_by(plan.now)]
        plain = [visit for visit in visits if not visit.wakes_by(plan.now)]
        if plain:
            visited = [LaneRange(visit.row.id, visit.row.front) for visit in plain]
            heads = await self._heads("heads", plain, most, visited=visited)
            if plan.has_unknown(heads):
                mixed, plain, heads = [*visits], [], []
            plan.sort_in(plain, heads, most)
        for visit in visits:
            visit.is_plain = False
        for visit in plain:
            visit.is_plain = True
        if mixed:
            asked = {**self._known, "now": plan.now}
            heads = await self._heads("heads_ready", mixed, most, **asked, all=True)
            if plan.has_unknown(heads):
                heads = await self._heads("heads_ready", mixed, most, **asked, all=False)
            plan.sort_in(mixed, heads, most)
            for visit in mixed:
                # Jobs of unknown tasks may be left in it.
                visit.complete = False

    async def _heads(self, statement: str, visits: Sequence[LaneVisit], most: int, **values: Any) -> list[LaneHead]:
        lanes = [visit.row.id for visit in visits]
        return await self._tx.fetch(
            _HEADS, statement, lanes=lanes, count=most, locked=self._passed_over.locked_names, **values
        )

    # -------------------------------------------------------------------------------------------- ungated

    async def _ready_ungated(self) -> Mapping[str, int]:
        """How many jobs without limits each queue could start."""
        plan, look = self._plan, self._look
        if self._tx.has_one_writer:
            plan.ungated = [LaneVisit(row) for row in look.open if row.queue in self._claim.rooms]
            if plan.ungated:
                rooms = self._claim.rooms.values()
                await self._read_heads(plan.ungated, max(room.slots for room in rooms))
            return {visit.row.queue: len(visit.heads) for visit in plan.ungated}
        for queue, seen in look.ungated.items():
            for id, task in chain(seen.unknown, *seen.ripe_unknown):
                plan.pass_over(id, task, queue)
        return {queue: seen.ready + seen.ripe for queue, seen in look.ungated.items()}

    async def _take_ungated(self) -> None:
        """Take jobs without limits, with the room that is left."""
        plan = self._plan
        rest = plan.rest_for_ungated()
        if self._tx.has_one_writer:
            for visit in plan.ungated:
                visit.taken = min(len(visit.heads), rest[visit.row.queue])
            return
        look = self._look.ungated
        wanted = {queue: count for queue, count in rest.items() if count and look[queue].has_any}
        if not wanted:
            return
        lanes = {queue: open_lane(queue) for queue in wanted}
        # The snapshot has just read what is before its first job.
        floors = {queue: max(look[queue].first or 0, look[queue].front) for queue in lanes}
        heads = await self._tx.fetch(
            _HEADS,
            "take_ungated_ripe" if any(look[queue].ripe for queue in wanted) else "take_ungated",
            node=self._claim.node,
            now=plan.now,
            limit_now=plan.limit_now,
            visited=[LaneRange(lane, floors[queue], wanted[queue]) for queue, lane in lanes.items()],
            revision=self._look.revision,
            queues=list(wanted),
            **self._known,
        )
        visits = {queue: LaneVisit(LaneRow(lane, queue, (), 0, None, None, None, "")) for queue, lane in lanes.items()}
        for head in heads:
            # As it was before it was taken.
            head.attempt -= 1
            head.fence -= 1
            if head.costs is not None or head.terms is not None:
                head.hold_against(0)
            visits[head.queue].heads.append(head)
        for queue, visit in visits.items():
            put_in_order(visit.heads)
            visit.taken = len(visit.heads)
            visit.complete = visit.taken < wanted[queue]
        plan.ungated = list(visits.values())

    async def _claim_ungated_only(self) -> Claimed:
        plan = self._plan
        await self._take_ungated()
        if self._tx.has_one_writer:
            return await self._write(set())
        return self._told(progressed=bool(plan.taken), reopened=False, still_open=False)

    # ---------------------------------------------------------------------------------------------- write

    async def _write(self, locked: set[Draw]) -> Claimed:
        plan, tx = self._plan, self._tx
        dropped = plan.drop()
        if plan.given and not tx.has_one_writer:
            given = {draw for each in plan.given for draw in chosen(each.draws, each.given)}
            if not given <= locked:
                raise _BucketsNeeded(given)
        # Of many writers, none waits for another to count the jobs of a lane without limits.
        visits = plan.visits if tx.has_one_writer else plan.gated
        moves = await self._moves(visits, dropped)
        await self._write_claim(visits, moves)
        ended = await self._drop(dropped) if dropped else []
        # After the charges, which know nothing of what comes back.
        reopened = await return_permits(tx, plan.given)
        lines = plan.lines_of_batches
        has_let_in = bool(lines) and await tx.execute("let_in", line=lines, limit_now=plan.limit_now) > 0
        timers = plan.timers(reopened)
        if timers:
            rows = [BucketTimer(bucket_id(view.draw), opens_at) for view, opens_at in timers]
            await tx.execute("set_timers", timer=rows)
        still_open = any(opens_at <= plan.limit_now for _, opens_at in timers)
        has_told = await self._tell(dropped, ended) if dropped else False
        return self._told(
            progressed=bool(plan.taken or moves) or has_let_in,
            reopened=bool(reopened) or has_told,
            still_open=still_open or has_let_in,
        )

    async def _drop(self, dropped: Sequence[DroppedRow]) -> list[EndedWaitingJob]:
        ended = await self._tx.fetch(TIED, "drop_waiting", dropped=dropped, now=self._plan.now)
        if len(ended) != len(dropped):
            await self._pass_over_locked({row.id for row in dropped} - {row.id for row in ended})
        return ended

    async def _tell(self, dropped: Sequence[DroppedRow], ended: Sequence[EndedWaitingJob]) -> bool:
        """Let those hear of it that follow jobs which have ended; whether anybody does."""
        became = {row.id: row.state for row in dropped}
        # After the timers, which know nothing of permits that come back with the last job of a batch.
        try:
            await resolve_followers(
                self._tx, [EndedJob(row.id, became[row.id], row.is_followed, row.batch) for row in ended]
            )
        except FollowersHeld as held:
            self._pass_over(held.leaders)
        return any(row.is_followed or row.batch is not None for row in ended)

    async def _moves(self, visits: Sequence[LaneVisit], dropped: Sequence[DroppedRow]) -> list[LaneMove]:
        """Where the lanes are now. Lanes of which nothing more may be left are looked into once more."""
        plan = self._plan
        # Where others come and go, the count of a lane lags behind.
        emptied = {visit.row.id for visit in visits if self._tx.has_one_writer and visit.row.waiting == visit.gone}
        unsure = [visit for visit in visits if visit.row.id not in emptied and _is_unsure(visit, plan.now)]
        left: dict[RowId, _Left] = {}
        if unsure:
            gone = [head.id for visit in visits for head in visit.heads[: visit.taken]]
            gone += [*(row.id for row in dropped), *self._passed_over.locked_ids]
            wanted = [_LookedInto(visit.row.id, visit.front) for visit in unsure]
            left = {row.lane: row for row in await self._tx.fetch(_LEFT, "left_in_lanes", wanted=wanted, gone=gone)}
        moves: list[LaneMove] = []
        for visit in visits:
            has_ready, earliest = False, visit.row.wakes_at
            found = left.get(visit.row.id)
            if found is not None:
                has_ready, earliest = found.has_ready, found.earliest
                if visit.gone == len(visit.heads) + len(visit.expired):
                    # What the look into it says is all there is to know.
                    visit.complete = not has_ready and (earliest is None or earliest > plan.now)
            move = plan.move(visit, has_ready=has_ready, earliest=earliest, is_emptied=visit.row.id in emptied)
            if move is not None:
                if move.since == plan.limit_now:
                    # A microsecond apart, so that they stay in the order in which they had their turns. Those that
                    # keep their places are so already.
                    move.since += len(moves)
                moves.append(move)
        return moves

    async def _write_claim(self, visits: Sequence[LaneVisit], moves: Sequence[LaneMove]) -> None:
        if self._tx.has_one_writer:
            await self._write_alone(visits, moves)
            return
        starting = self._plan.starts(visits)
        charged = [Charged.of(view) for view in self._buckets.charged]
        if not starting and not moves and not charged:
            return
        started = await self._tx.values(
            "write_claim",
            node=self._claim.node,
            now=self._plan.now,
            limit_now=self._plan.limit_now,
            charged=charged,
            moved=moves,
            starting=starting,
        )
        if len(started) != len(starting):
            await self._pass_over_locked({start.id for start in starting} - set(started))

    async def _write_alone(self, visits: Sequence[LaneVisit], moves: Sequence[LaneMove]) -> None:
        """A statement for each table: none of them is a round trip."""
        tx, plan = self._tx, self._plan
        by_node = {"node": self._claim.node, "now": plan.now, "limit_now": plan.limit_now}
        plain = [head.id for visit in visits for head in visit.heads[: visit.taken] if head.terms is None]
        if plain:
            await tx.execute("start_jobs", ids=plain, **by_node)
        with_terms = plan.starts(visits, all=False)
        if with_terms:
            await tx.execute("start_with_terms", starting=with_terms, **by_node)
        if await self._buckets.charge(tx):
            await tx.execute("use_limit_time", limit_now=plan.limit_now)
        if moves:
            # A bucket that is closed without ever having been charged (paused, or by its ceiling) has no row yet.
            behind = [visit.behind for visit in plan.gated]
            await ensure_rows(tx, {bucket.draw for bucket in behind if bucket is not None and bucket.id is None})
            await tx.execute("move_lanes", moved=moves)

    async def _pass_over_locked(self, ids: set[str]) -> NoReturn:
        """Begin anew without those of these jobs that somebody has locked; the others are not as they were read."""
        self._pass_over(ids - set(await self._tx.values("lockable", ids=sorted(ids))))

    def _pass_over(self, ids: Collection[str]) -> NoReturn:
        heads = [head for visit in self._plan.visits for head in (*visit.heads, *visit.expired)]
        self._passed_over.met([head for head in heads if head.id in ids])
        raise ClaimConflict

    def _told(self, *, progressed: bool, reopened: bool, still_open: bool) -> Claimed:
        plan, look = self._plan, self._look
        if look.next_bucket is not None:
            plan.note_timer(look.next_bucket)
        plan.note_wake(look.next_wake)
        for seen in look.ungated.values():
            plan.note_wake(seen.next_wake)
        if not self._wanted and (look.due or look.woken or look.opened):
            # There was no room for them.
            plan.note_wake(plan.now)
        return plan.claimed(progressed=progressed, reopened=reopened, still_open=still_open)


class _BucketsNeeded(Exception):
    """Buckets have no row to be locked yet, or more are needed than were locked."""

    def __init__(self, draws: set[Draw]) -> None:
        self.draws = draws


def together(first: Claimed, second: Claimed) -> Claimed:
    """What two claims came to, one after the other."""
    waits = [claimed.next_in for claimed in (first, second) if claimed.next_in is not None]
    return Claimed(
        jobs=[*first.jobs, *second.jobs],
        next_in=min(waits, default=None),
        more=first.more or second.more,
        throttled=[*first.throttled, *second.throttled],
        dropped=[*first.dropped, *second.dropped],
        starved=[*first.starved, *second.starved],
        unknown=sorted({*first.unknown, *second.unknown}),
        astray=sorted({*first.astray, *second.astray}),
        has_strange_lanes=first.has_strange_lanes or second.has_strange_lanes,
    )


def _is_unsure(visit: LaneVisit, now: int) -> bool:
    """Whether it takes another look into the lane to know what is left in it."""
    return visit.wakes_by(now) or visit.is_barren or visit.has_locked or _seems_empty(visit)


def _seems_empty(visit: LaneVisit) -> bool:
    """Whether the count says that nothing is left, where not all was read. The count may lag behind."""
    return not visit.complete and visit.row.waiting <= visit.gone
