"""Claiming from PostgreSQL: look without locks, lock, read, let a `ClaimPlan` decide, write.

What keeps it exact:

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

from msgspec.structs import replace

from headgate.clock import SECOND, Clock
from headgate.jobs.draw_set import NO_DRAWS, chosen
from headgate.jobs.job import Draw
from headgate.storage.admission import RowId
from headgate.storage.claiming import ClaimPlan, Head, LaneRow, Move, Visit
from headgate.storage.following import Ended
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.floors import Floors
from headgate.storage.postgres.heads import head_of
from headgate.storage.postgres.locked_jobs import LockedJobs
from headgate.storage.postgres.look import Look, decode_lanes
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.postgres.server_time import StoreTime
from headgate.storage.procedures.buckets import BucketRow, BucketViews, ensure_rows
from headgate.storage.procedures.following import FollowersHeld, tell_followers
from headgate.storage.procedures.limits import Timer
from headgate.storage.procedures.permits import give_permits
from headgate.storage.procedures.settings import CachedRules
from headgate.storage.procedures.waiting import DroppedRow
from headgate.storage.protocol import Claim, Claimed, Dropped
from headgate.storage.row_ids import bucket_id, lane_id

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


class Overtaken(Exception):
    """Something that the claim had read was changed before it was written; it begins anew."""


LookAgain = Callable[[], Awaitable[Look | None]]
"""Looks once more, only for what this node can do something with; None if the time had stepped, which is made good."""


class OneClaim:
    """One claim, after its look."""

    def __init__(
        self,
        session: Session,
        claim: Claim,
        live: CachedRules,
        time: StoreTime,
        clock: Clock,
        look: Look,
        floors: Floors,
        locked: LockedJobs,
    ) -> None:
        self._session = session
        self._claim = claim
        self._live = live
        self._time = time
        self._clock = clock
        self._look = look
        self._floors = floors
        self._locked = locked
        self._plan = ClaimPlan(claim, look.now, look.limit_now, live.gates)
        self._buckets = self._no_buckets(look.limit_now)
        self._shares = self._plan.shares({queue: seen.ready + seen.ripe for queue, seen in look.ungated.items()})
        for queue, seen in look.ungated.items():
            for id, task in chain(seen.unknown, *seen.ripe_unknown):
                self._plan.pass_over(id, task, queue)
        self._wanted = sum(self._shares.values())
        # Whether lanes of another release took the places of those that this node could claim from.
        self._was_hidden = False

    async def run(self, look_again: LookAgain, dropped: list[Dropped]) -> Claimed:
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
        if not visits:
            return _together(claimed, await self._claim_ungated_only())
        return _together(claimed, await self._claim_gated(visits, is_first=False))

    async def _choose_known(self, look_again: LookAgain, known: Sequence[Visit]) -> list[Visit]:
        """Lanes that this node can do something with, other than these."""
        again = await look_again()
        if again is None:
            raise Overtaken
        self._look.opened, self._look.due, self._look.woken = again.opened, again.due, again.woken
        seen = {visit.row.id for visit in known}
        return [visit for visit in await self._choose(known_only=True) if visit.row.id not in seen]

    # --------------------------------------------------------------------------------------------- choose

    def _tx(self, limit_now: int) -> PostgresTransaction:
        return PostgresTransaction(self._session, self._plan.now, limit_now)

    def _no_buckets(self, limit_now: int) -> BucketViews:
        return BucketViews(self._claim.rules, self._live.rules, limit_now)

    async def _choose(self, *, known_only: bool = False) -> list[Visit]:
        """The lanes to lock, by what the look has seen."""
        plan, look = self._plan, self._look
        buckets = self._no_buckets(look.limit_now)
        plan.opened = [buckets.of(row) for row in look.opened]
        grants = plan.grants()
        look.behind = await self._lanes_behind(grants, known_only=known_only) if grants else []
        return plan.choose(grants, look.behind, look.due + look.woken, self._shares)

    async def _lanes_behind(self, grants: Mapping[RowId, int], *, known_only: bool) -> list[LaneRow]:
        return decode_lanes(
            await self._session.value(
                "behind",
                buckets=list(grants),
                counts=list(grants.values()),
                queues=list(self._claim.rooms),
                limits=list(self._claim.rules),
                known=self._plan.known.as_lines,
                known_only=known_only,
                now=self._look.now,
                limit_now=self._look.limit_now,
            )
        )

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

    async def _claim_gated(self, visits: Sequence[Visit], *, is_first: bool = True) -> Claimed:
        opened = [Draw(row.limit, row.key) for row in self._look.opened]
        draws = self._buckets.with_homes([*opened, *(draw for visit in visits for draw in visit.row.draws)])
        for _ in range(TRIES):
            try:
                async with self._session.transaction(prepares=STATEMENTS):
                    claimed = await self._in_transaction(visits, opened, draws, is_first=is_first)
            except _BucketsNeeded as needed:
                # Not inside of the transaction: what is locked later would be waited for out of its order.
                draws |= needed.draws
                await ensure_rows(self._tx(self._look.limit_now), draws)
            else:
                self._remember_floors()
                return claimed
        raise Overtaken

    async def _in_transaction(
        self, visits: Sequence[Visit], opened: Sequence[Draw], draws: set[Draw], *, is_first: bool
    ) -> Claimed:
        await self._lock(draws)
        plan, buckets = self._plan, self._buckets
        views = [buckets[draw] for draw in opened]
        plan.opened = [view for view in views if view.opens_at is not None and view.opens_at <= plan.limit_now]
        held = await self._lock_lanes(visits)
        if held:
            await self._read_heads(held)
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
        sent_at = self._clock.monotonic()
        ids = sorted(bucket_id(draw) for draw in draws)
        rows = await self._session.fetch("lock_for_claim", ids=ids, node=self._claim.node) if ids else []
        if len(rows) < len(draws) or not rows:
            raise _BucketsNeeded(set())
        now, ahead = max((row[6], row[7]) for row in rows)
        stepped = self._time.heard(sent_at, now, ahead)
        if stepped:
            # Looked at again, which makes it good.
            raise Overtaken
        own = self._time.own()
        self._plan = plan = self._plan.at(now, now + ahead) if own is None else self._plan.at(*own)
        self._buckets = self._no_buckets(plan.limit_now)
        self._buckets.add([BucketRow(*row[:6]) for row in rows])
        await self._buckets.read_rivals(self._tx(plan.limit_now))

    async def _lock_lanes(self, visits: Sequence[Visit]) -> list[Visit]:
        """Those of the lanes that can be had, as they are now."""
        rows = await self._session.fetch(
            "lock_lanes",
            lanes=[visit.row.id for visit in visits],
            opened=[view.id for view in self._plan.opened],
            now=self._plan.now,
        )
        if rows[0]["revision"] != self._look.revision:
            raise Overtaken
        newest = {row["id"]: row for row in rows}
        held = [visit for visit in visits if visit.row.id in newest]
        for visit in held:
            row, newer = visit.row, newest[visit.row.id]
            _, _, row.waiting, row.since, row.behind, row.wakes_at, row.opened_at = newer
        return held

    async def _read_heads(self, visits: Sequence[Visit]) -> None:
        plan = self._plan
        lanes = self._locked.lanes
        for visit in visits:
            visit.has_locked = visit.row.id in lanes
        most = plan.heads_wanted(visits, self._wanted)
        mixed = [visit for visit in visits if visit.wakes_by(plan.now)]
        plain = [visit for visit in visits if not visit.wakes_by(plan.now)]
        if plain:
            floors = [self._floors.of(str(visit.row.id)) for visit in plain]
            began = self._clock.monotonic()
            heads = await self._heads("heads", plain, most, floors=floors)
            self._floors.took(self._clock.monotonic() - began)
            if plan.has_unknown(heads):
                mixed, plain, heads = [*visits], [], []
            plan.sort_in(plain, heads, most)
            for visit, floor in zip(plain, floors, strict=False):
                # Below the floor jobs may be left.
                visit.complete = visit.complete and not floor
        if mixed:
            asked = {"known": plan.known.as_lines, "now": plan.now}
            heads = await self._heads("heads_ready", mixed, most, **asked, all=True)
            if plan.has_unknown(heads):
                heads = await self._heads("heads_ready", mixed, most, **asked, all=False)
            plan.sort_in(mixed, heads, most)
            for visit in mixed:
                # Jobs of unknown tasks may be left in it.
                visit.complete = False

    async def _heads(self, statement: str, visits: Sequence[Visit], most: int, **values: Any) -> list[Head]:
        lanes = [visit.row.id for visit in visits]
        asked = {"lanes": lanes, "counts": [most] * len(lanes), "locked": self._locked.names}
        rows = await self._session.fetch(statement, **asked, **values)
        return [head_of(row) for row in rows]

    async def _take_ungated(self) -> None:
        """Take jobs without limits, with the room that is left."""
        plan = self._plan
        rest = plan.rest_for_ungated()
        look = self._look.ungated
        wanted = {queue: count for queue, count in rest.items() if count and look[queue].has_any}
        if not wanted:
            return
        lanes = [lane_id(queue, (), "") for queue in wanted]
        values = {
            "node": self._claim.node,
            "now": plan.now,
            "limit_now": plan.limit_now,
            "lanes": lanes,
            "counts": list(wanted.values()),
            "known": plan.known.as_lines,
            "revision": self._look.revision,
        }
        if any(look[queue].ripe for queue in wanted):
            rows = await self._session.fetch("take_ungated_ripe", **values)
        else:
            floors = [self._floors.of(lane) for lane in lanes]
            rows = await self._session.fetch("take_ungated", **values, floors=floors)
        visits = {queue: Visit(LaneRow(lane_id(queue, (), ""), queue, (), 0, None, None, None, "")) for queue in wanted}
        for row in rows:
            head = head_of(row)
            # As it was before it was taken.
            head.attempt -= 1
            head.fence -= 1
            if head.costs is not None or head.terms is not None:
                head.hold_against(0)
            visits[head.queue].heads.append(head)
        for queue, visit in visits.items():
            visit.heads.sort(key=lambda head: (-head.priority, head.run_at, head.seq))
            visit.taken = len(visit.heads)
            visit.complete = visit.taken < wanted[queue]
        plan.ungated = list(visits.values())

    async def _claim_ungated_only(self) -> Claimed:
        plan = self._plan
        await self._take_ungated()
        self._remember_floors()
        return self._told(progressed=bool(plan.taken), reopened=False, still_open=False)

    # ---------------------------------------------------------------------------------------------- write

    async def _write(self, locked: set[Draw]) -> Claimed:
        plan, session = self._plan, self._session
        dropped = plan.drop()
        given = {draw for each in plan.given for draw in chosen(each.draws, each.given)}
        if not given <= locked:
            raise _BucketsNeeded(given)
        starting = [head for visit in plan.gated for head in visit.heads[: visit.taken]]
        moves = await self._moves([head.id for head in starting] + [str(row[0]) for row in dropped])
        await self._write_claim(starting, moves)
        ended: Sequence[Any] = ()
        has_told = False
        if dropped:
            ids, states, errors = zip(*dropped, strict=True)
            lanes = {head.seq: visit.row.id for visit in plan.visits for head in (*visit.heads, *visit.expired)}
            kept = {given.seq: given.kept for given in plan.given}
            rows = [
                DroppedRow(str(id), str(lanes[id]), state, error, kept.get(id, NO_DRAWS))
                for id, state, error in zip(ids, states, errors, strict=True)
            ]
            ended = await session.fetch("drop_waiting", dropped=rows, now=plan.now)
            if len(ended) != len(dropped):
                await self._pass_over_locked(set(ids) - {row["id"] for row in ended})
        # After the charges, which know nothing of what comes back.
        tx = PostgresTransaction(session, plan.now, plan.limit_now)
        reopened = await give_permits(tx, plan.given)
        lines = plan.lines_of_batches
        has_let_in = bool(lines) and bool(
            await session.execute(
                "let_in",
                buckets=[bucket for bucket, _ in lines],
                batches=[batch for _, batch in lines],
                limit_now=plan.limit_now,
            )
        )
        timers = plan.timers(reopened)
        if timers:
            await session.execute("set_timers", timer=[Timer(str(view.id), opens_at) for view, opens_at in timers])
        still_open = any(opens_at <= plan.limit_now for _, opens_at in timers)
        if dropped:
            became = {str(row[0]): row[1] for row in dropped}
            told = [Ended(row["id"], became[row["id"]], row["is_followed"], row["batch"]) for row in ended]
            has_told = any(each.is_followed or each.batch is not None for each in told)
            # After the timers, which know nothing of permits that come back with the last job of a batch.
            try:
                await tell_followers(tx, told)
            except FollowersHeld as held:
                self._pass_over(held.leaders)
        return self._told(
            progressed=bool(plan.taken or moves) or has_let_in,
            reopened=bool(reopened) or has_told,
            still_open=still_open or has_let_in,
        )

    async def _moves(self, gone: Sequence[str]) -> list[Move]:
        """Where the lanes are now. Lanes of which nothing more may be left are looked into once more."""
        plan = self._plan
        unsure = [visit for visit in plan.gated if _is_unsure(visit, plan.now)]
        left: dict[RowId, tuple[bool, int | None]] = {}
        if unsure:
            lanes = [visit.row.id for visit in unsure]
            rows = await self._session.fetch("left_in_lanes", lanes=lanes, gone=[*gone, *self._locked.ids])
            left = {row[0]: (row[1], row[2]) for row in rows}
        moves: list[Move] = []
        for visit in plan.gated:
            has_ready, earliest = left.get(visit.row.id, (False, visit.row.wakes_at))
            if visit.row.id in left and visit.gone == len(visit.heads) + len(visit.expired):
                # What the look into it says is all there is to know.
                visit.complete = not has_ready and (earliest is None or earliest > plan.now)
            move = plan.move(visit, lambda found=has_ready: found, lambda found=earliest: found)  # type: ignore[misc]
            if move is not None:
                moves.append(move)
        return moves

    async def _write_claim(self, starting: Sequence[Head], moves: Sequence[Move]) -> None:
        charged = self._buckets.charged
        stored = [view.stored for view in charged]
        ids = [bucket_id(view.draw) for view in charged]
        states, idle_at = [state for state, _ in stored], [idle_at for _, idle_at in stored]
        if not starting and not moves and not ids:
            return
        plan = self._plan
        permits = {row[0]: row for row in plan.permit_rows()}
        started = await self._session.fetch(
            "write_claim",
            node=self._claim.node,
            now=plan.now,
            limit_now=plan.limit_now,
            buckets=ids,
            states=states,
            idle_at=idle_at,
            lanes=[move.lane for move in moves],
            gone=[move.gone for move in moves],
            # A microsecond apart, so that they stay in the order in which they had their turns.
            since=[None if move.since is None else move.since + place for place, move in enumerate(moves)],
            behind=[
                None if move.behind_limit is None else bucket_id(Draw(move.behind_limit, move.behind_key or ""))
                for move in moves
            ],
            wakes_at=[move.wakes_at for move in moves],
            opened_at=[move.opened_at for move in moves],
            ids=[head.id for head in starting],
            job_lanes=[head.lane for head in starting],
            fences=[head.fence for head in starting],
            held=[permits[head.seq][1] if head.seq in permits else 0 for head in starting],
            uncharged=[permits[head.seq][2] if head.seq in permits else 0 for head in starting],
        )
        if len(started) != len(starting):
            await self._pass_over_locked({head.id for head in starting} - {row[0] for row in started})

    async def _pass_over_locked(self, ids: set[str]) -> NoReturn:
        """Begin anew without those of these jobs that somebody has locked; the others are not as they were read."""
        self._pass_over(ids - {row[0] for row in await self._session.fetch("lockable", ids=sorted(ids))})

    def _pass_over(self, ids: Collection[str]) -> NoReturn:
        heads = [head for visit in self._plan.visits for head in (*visit.heads, *visit.expired)]
        self._locked.met(head for head in heads if head.id in ids)
        raise Overtaken

    def _remember_floors(self) -> None:
        """What was taken is committed: the next claim may begin after it."""
        for visit in self._plan.visits:
            if visit.taken:
                self._floors.taken(str(visit.row.id), visit.heads[: visit.taken])

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


def _together(first: Claimed, second: Claimed) -> Claimed:
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


def _is_unsure(visit: Visit, now: int) -> bool:
    """Whether it takes another look into the lane to know what is left in it."""
    return visit.wakes_by(now) or visit.is_barren or visit.has_locked or _seems_empty(visit)


def _seems_empty(visit: Visit) -> bool:
    """Whether the count says that nothing is left, where not all was read. The count may lag behind."""
    return not visit.complete and visit.row.waiting <= visit.gone
