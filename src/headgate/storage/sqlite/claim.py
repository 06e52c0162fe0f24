"""Claiming from SQLite: look, decide with `admit`, write, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence, Set

import msgspec

from headgate.jobs.job import ClaimedJob, Draw, JobError, JobOptions, JobState, truncated_error
from headgate.jobs.terms import GateTerms, variant_discards, without
from headgate.limits.concurrency import Semaphore
from headgate.limits.rule import NEVER
from headgate.storage.admission import (
    TURN,
    BucketView,
    LaneView,
    admit,
    ask_of,
    charges_elsewhere,
    gated_share,
    starved_by,
)
from headgate.storage.endings import late_ending, rejection_error
from headgate.storage.protocol import Claim, Claimed, Dropped, Starved, Throttled
from headgate.storage.sqlite.bucket_views import BucketViews, ensure_rows
from headgate.storage.sqlite.permits import Given, give_permits
from headgate.storage.sqlite.rows import BucketRow
from headgate.storage.sqlite.settings import CachedRules
from headgate.storage.sqlite.statements import as_json, execute, fetch

EXPIRED_A_VISIT = 100
"""How many expired jobs of one lane a claim passes over before it leaves the lane for the next claim."""


class LaneRow(msgspec.Struct, array_like=True):
    id: int
    queue: str
    draws: tuple[Draw, ...]
    waiting: int
    since: int | None
    behind: int | None
    wakes_at: int | None
    variant: str


class Head(msgspec.Struct, array_like=True):
    """A job near the front of its lane."""

    seq: int
    lane: int
    id: str
    task: str
    queue: str
    payload: str
    priority: int
    run_at: int
    attempt: int
    fence: int
    lost: int
    enqueued_at: int
    expires_at: int | None
    costs: tuple[int, ...] | None
    headers: dict[str, str] | None
    options: JobOptions | None
    terms: GateTerms | None
    held: int
    passed: int
    give_up_at: int | None
    draws: tuple[Draw, ...] | None
    """All its draws, if it holds permits of some."""

    @property
    def passes(self) -> int:
        """The draws of the job that its lane does not have."""
        return self.held | self.passed

    @property
    def deadline(self) -> int | None:
        if self.expires_at is None or self.give_up_at is None:
            return self.give_up_at if self.expires_at is None else self.expires_at
        return min(self.expires_at, self.give_up_at)


class Look(msgspec.Struct, array_like=True):
    opened: list[BucketRow]
    due: list[LaneRow]
    woken: list[LaneRow]
    open: list[LaneRow]
    next_bucket: int | None
    next_wake: int | None
    known_only: bool
    revision: int
    behind: list[LaneRow] = []


_decode_look = msgspec.json.Decoder(Look).decode
_decode_lanes = msgspec.json.Decoder(list[LaneRow]).decode
_decode_heads = msgspec.json.Decoder(list[Head]).decode


Move = tuple[int, int, int | None, str | None, str | None, int | None]
"""A lane's id, how many jobs are gone from it, its new since, limit and key of the bucket it is behind, wakes_at."""


class _Visit:
    """A lane that this claim looks at, and what became of it."""

    __slots__ = ("complete", "expired", "heads", "rejected", "row", "taken", "view")

    def __init__(self, row: LaneRow) -> None:
        self.row = row
        self.heads: list[Head] = []
        self.expired: list[Head] = []
        # Whether all ready jobs of the lane that this node knows were read.
        self.complete = True
        self.taken = 0
        self.rejected: list[Head] = []
        self.view: LaneView | None = None

    @property
    def closed(self) -> BucketView | None:
        """The closed bucket that the lane met."""
        return self.view.behind if self.view is not None else None

    @property
    def behind(self) -> BucketView | None:
        """The closed bucket that the lane waits behind from now on."""
        return None if self.view is None or self.view.discards else self.view.behind

    @property
    def gone(self) -> int:
        """How many jobs left the lane: started, expired, rejected, or failed for being impossible."""
        impossible = self.view is not None and self.view.failed is not None
        return self.taken + len(self.expired) + len(self.rejected) + impossible

    @property
    def all_gone(self) -> bool:
        return self.complete and self.gone == len(self.heads) + len(self.expired)

    @property
    def cut_short(self) -> bool:
        """Whether jobs of the lane may be left that could go at once."""
        return self.behind is None and not self.all_gone


class ClaimTransaction:
    """One claim, inside a write transaction that the caller commits."""

    def __init__(
        self, connection: sqlite3.Connection, claim: Claim, live: CachedRules, now: int, limit_now: int
    ) -> None:
        self._connection = connection
        self._claim = claim
        self._live = live
        self._now = now
        self._limit_now = limit_now
        self._rooms = claim.rooms
        self._buckets = self._no_buckets()
        self._opened: list[BucketView] = []
        self._unknown: set[str] = set()
        self._page_was_full = False
        self._given: list[Given] = []
        self._next_timer: int | None = None
        self._next_wake: int | None = None

    def run(self) -> Claimed:
        """Take what may go now."""
        # A node that was declared dead must not own jobs: nobody would take them back.
        if not self._rooms or not fetch(self._connection, "has_joined", node=self._claim.node):
            return Claimed(jobs=(), next_in=None)
        look = self._look(known_only=False)
        self._live.refresh(self._connection, look.revision)
        ungated = [_Visit(row) for row in look.open if row.queue in self._rooms]
        self._next_wake = look.next_wake

        self._read_heads(ungated, max(room.slots + room.ahead for room in self._rooms.values()))
        shares = self._shares(ungated)
        wanted = sum(shares.values())
        gated = self._gated_visits(look, wanted)
        if wanted and self._others_stand_in_the_way(look, gated):
            # What gave nothing is kept: lanes without any ready job are put to sleep on this occasion.
            barren = [visit for visit in gated if not visit.heads and not visit.expired]
            gated = barren + self._gated_visits(self._look(known_only=True), wanted)
        if wanted:
            self._buckets.read(draw for visit in gated for draw in visit.row.draws)
            for visit in gated:
                views = [self._buckets[draw] for draw in visit.row.draws]
                asks = [ask_of(head.id, head.costs, head.terms, head.passes) for head in visit.heads]
                discards = variant_discards(visit.row.variant)
                visit.view = LaneView(visit.row.id, visit.row.queue, views, asks, discards=discards)
            admit([visit.view for visit in gated if visit.view is not None], shares, self._limit_now)
            for visit in gated:
                visit.taken = visit.view.taken if visit.view is not None else 0
                if visit.closed is not None and visit.behind is None:
                    visit.rejected = visit.heads[visit.taken :]
        else:
            gated = []
        return self._write(gated, ungated, look.next_bucket)

    def _no_buckets(self) -> BucketViews:
        return BucketViews(self._connection, self._claim.rules, self._live.rules, self._limit_now)

    # ---------------------------------------------------------------------------------------------- look

    def _look(self, *, known_only: bool) -> Look:
        return _decode_look(
            fetch(
                self._connection,
                "look",
                now=self._now,
                limit_now=self._limit_now,
                queues=as_json(list(self._rooms)),
                count=self._page,
                **self._knowledge(known_only=known_only),
            )
        )

    @property
    def _page(self) -> int:
        """How many lanes and buckets of each kind a look reads; more could not be used."""
        return max(1, *(room.slots for room in self._rooms.values()))

    def _knowledge(self, *, known_only: bool) -> dict[str, object]:
        return {
            "known_only": int(known_only),
            "limits": as_json(list(self._claim.rules)),
            "tasks": as_json(list(self._claim.tasks)),
        }

    def _gated_visits(self, look: Look, wanted: int) -> list[_Visit]:
        """Lanes behind opened buckets, then due ones, each kind longest waiting first; as many as there is room."""
        self._buckets, self._opened = self._no_buckets(), []
        behind = self._behind_opened(look)
        due = sorted(self._usable(look.due + look.woken), key=lambda row: (row.since or 0, row.id))
        visits: list[_Visit] = []
        left = {queue: room.slots for queue, room in self._rooms.items()}
        seen: set[int] = set()
        for row in (*behind, *due):
            if left.get(row.queue, 0) > 0 and row.id not in seen:
                left[row.queue] -= 1
                seen.add(row.id)
                visits.append(_Visit(row))
        self._page_was_full = any(not count for count in left.values())
        if visits and wanted:
            self._read_heads(visits, max(TURN, -(-wanted // len(visits))))
        return visits

    def _behind_opened(self, look: Look) -> list[LaneRow]:
        for row in look.opened:
            view = self._buckets.of(row)
            self._opened.append(view)
        grants = {view.id: view.grants(self._limit_now, self._page) for view in self._opened if view.id is not None}
        granting = [id for id, grant in grants.items() if grant]
        if not granting:
            return []
        look.behind = _decode_lanes(
            fetch(
                self._connection,
                "behind",
                buckets=as_json(granting),
                queues=as_json(list(self._rooms)),
                count=max(grants.values()),
                now=self._now,
                **self._knowledge(known_only=look.known_only),
            )
        )
        rows = self._usable(look.behind)
        rows.sort(key=lambda row: (row.since or 0, row.id))
        order = {id: index for index, id in enumerate(grants)}
        chosen: list[LaneRow] = []
        for lane in rows:
            assert lane.behind is not None
            if grants[lane.behind] > 0:
                grants[lane.behind] -= 1
                chosen.append(lane)
        chosen.sort(key=lambda row: order[row.behind or 0])
        return chosen

    def _others_stand_in_the_way(self, look: Look, visits: Sequence[_Visit]) -> bool:
        """Whether what was read is cut short, and some of it was of no use to this node.

        The limits or the tasks of such lanes are those of another release. They must not hide the lanes after them.
        """
        read = [*look.due, *look.woken, *look.behind]
        # Of the lanes behind a bucket no more are read than it grants, so they are always cut short.
        if len(read) < self._page and len(look.opened) < self._page and not look.behind:
            return False
        return len(self._usable(read)) < len(read) or any(not visit.heads and not visit.expired for visit in visits)

    def _usable(self, rows: Iterable[LaneRow]) -> list[LaneRow]:
        rules = self._claim.rules
        return [row for row in rows if all(draw.limit in rules for draw in row.draws)]

    def _shares(self, ungated: Sequence[_Visit]) -> dict[str, int]:
        ready = {visit.row.queue: len(visit.heads) for visit in ungated}
        return {queue: gated_share(room, ready.get(queue, 0)) for queue, room in self._rooms.items()}

    # --------------------------------------------------------------------------------------------- heads

    def _read_heads(self, visits: Sequence[_Visit], count: int) -> None:
        plain: list[_Visit] = []
        mixed: list[_Visit] = []
        for visit in visits:
            some_may_be_due = visit.row.wakes_at is not None and visit.row.wakes_at <= self._now
            (mixed if some_may_be_due else plain).append(visit)
        tasks = self._claim.tasks
        if plain:
            heads = _decode_heads(
                fetch(self._connection, "heads", lanes=as_json([visit.row.id for visit in plain]), count=count)
            )
            unknown = {head.task for head in heads if head.task not in tasks}
            if unknown:
                self._unknown |= unknown
                mixed, heads = [*visits], []
            self._sort_in(plain, heads, count)
        if mixed:
            heads = _decode_heads(
                fetch(
                    self._connection,
                    "heads_known",
                    lanes=as_json([visit.row.id for visit in mixed]),
                    tasks=as_json(list(tasks)),
                    now=self._now,
                    count=count,
                )
            )
            self._sort_in(mixed, heads, count)

    def _sort_in(self, visits: Sequence[_Visit], heads: list[Head], count: int) -> None:
        heads.sort(key=lambda head: (-head.priority, head.run_at, head.seq))
        lanes = {visit.row.id: visit for visit in visits}
        for visit in visits:
            visit.heads, visit.expired, visit.complete = [], [], True
        for head in heads:
            visit = lanes[head.lane]
            if len(visit.heads) >= count or len(visit.expired) >= EXPIRED_A_VISIT:
                visit.complete = False
            elif (
                (head.expires_at is not None or head.give_up_at is not None)
                and (deadline := head.deadline) is not None
                and deadline <= self._now
            ):
                visit.expired.append(head)
            else:
                visit.heads.append(head)
        for visit in visits:
            if len(visit.heads) + len(visit.expired) >= count:
                visit.complete = False

    # --------------------------------------------------------------------------------------------- write

    def _write(self, gated: Sequence[_Visit], ungated: Sequence[_Visit], next_bucket: int | None) -> Claimed:
        left = {queue: room.slots for queue, room in self._rooms.items()}
        for visit in gated:
            left[visit.row.queue] -= visit.taken
        for visit in ungated:
            visit.taken = min(len(visit.heads), max(0, left[visit.row.queue]) + self._rooms[visit.row.queue].ahead)
            left[visit.row.queue] -= visit.taken
        visits = [*gated, *ungated]

        taken = [head for visit in visits for head in visit.heads[: visit.taken]]
        self._take(taken)
        self._hold(visits)
        dropped = self._drop(visits)
        if self._buckets.charge():
            execute(self._connection, "use_limit_time", limit_now=self._limit_now)
        # After the charges, which know nothing of what comes back.
        reopened = give_permits(self._connection, self._given, self._limit_now)
        moves = [move for visit in visits if (move := self._move(visit)) is not None]
        if moves:
            self._ensure_rows(gated)
            execute(self._connection, "move_lanes", lanes=as_json(moves))
        still_open = self._set_timers(gated, reopened)

        progressed = bool(taken or moves)
        cut_short = still_open or self._page_was_full or any(visit.cut_short for visit in visits)
        return Claimed(
            jobs=[self._claimed(head, visit) for visit in visits for head in visit.heads[: visit.taken]],
            next_in=self._next_in(next_bucket),
            # Without progress the next look would see the same, so it waits for something to change.
            # Whoever waits for what came back is to be looked at again.
            more=(progressed and cut_short) or bool(reopened),
            throttled=[throttled for visit in gated if (throttled := self._throttled(visit)) is not None],
            starved=self._starved(gated),
            dropped=dropped,
            unknown=sorted(self._unknown),
        )

    def _has_ready(self, visit: _Visit) -> bool:
        return bool(fetch(self._connection, "has_ready", lane=visit.row.id))

    def _take(self, taken: Sequence[Head]) -> None:
        if taken:
            seqs = as_json([head.seq for head in taken])
            execute(
                self._connection,
                "claim_jobs",
                seqs=seqs,
                node=self._claim.node,
                now=self._now,
                limit_now=self._limit_now,
            )

    def _hold(self, visits: Sequence[_Visit]) -> None:
        """Write down who holds which permits now, and what was not charged."""
        rows: list[tuple[int, int, int]] = []
        for visit in visits:
            held = [isinstance(self._buckets[draw].rule, Semaphore) for draw in visit.row.draws if visit.taken]
            for head in visit.heads[: visit.taken]:
                if head.terms is not None:
                    drawn = without(range(len(held) + head.passes.bit_count()), head.passes)
                    now_held = sum(1 << draw for draw, is_held in zip(drawn, held, strict=True) if is_held)
                    rows.append((head.seq, head.held | now_held, head.passes))
        if rows:
            execute(self._connection, "hold_permits", jobs=as_json(rows))

    def _drop(self, visits: Sequence[_Visit]) -> list[Dropped]:
        """End the jobs that will not run: expired ones, rejected ones, and those that cost more than can ever be."""
        rows: list[tuple[int, JobState, JobError]] = []
        dropped: list[Dropped] = []
        given: list[Given] = []
        for visit in visits:
            for head, state, error in self._endings(visit):
                rows.append((head.seq, state, error))
                dropped.append(Dropped(head.id, head.task, head.queue, state, error))
                if head.held and head.terms is not None and head.draws is not None:
                    kept = head.terms.kept(head.held, state)
                    given.append(Given(head.seq, head.id, head.draws, head.terms, head.held & ~kept, kept))
        if rows:
            execute(self._connection, "drop_waiting", jobs=as_json(rows), now=self._now)
        self._given = given
        return dropped

    def _endings(self, visit: _Visit) -> Iterator[tuple[Head, JobState, JobError]]:
        for head in visit.expired:
            yield head, *late_ending(self._now, head.expires_at, head.give_up_at, head.terms, None)
        closed = visit.closed
        for head in visit.rejected:
            assert head.terms is not None
            assert closed is not None
            assert visit.view is not None
            opens_at = self._in_wall_time(visit.view.opens_at)
            yield head, head.terms.rejected_as, rejection_error(closed.draw, opens_at, 0)
        if visit.view is not None and visit.view.failed is not None:
            # A limit was lowered below what a job costs: the job could only wait for ever.
            yield visit.heads[visit.taken], JobState.FAILED, truncated_error(visit.view.failed)

    def _ensure_rows(self, gated: Sequence[_Visit]) -> None:
        """A bucket that is closed without ever having been charged (paused, or by its ceiling) has no row yet."""
        new = {visit.behind.draw for visit in gated if visit.behind is not None and visit.behind.id is None}
        if new:
            ensure_rows(self._connection, list(new), self._limit_now)

    def _move(self, visit: _Visit) -> Move | None:
        """Where the lane is after this claim: empty, asleep, behind a bucket or last in line; None if unmoved."""
        row, gone, behind = visit.row, visit.gone, visit.behind
        stays_behind = behind is not None and behind.id is not None and behind.id == row.behind
        if not gone and visit.heads and (behind is None or stays_behind):
            return None
        if row.waiting == gone:
            return (row.id, gone, None, None, None, None)
        wakes_at = row.wakes_at
        if wakes_at is not None and wakes_at <= self._now:
            # Delayed jobs of this lane were due and may be gone.
            wakes_at = fetch(self._connection, "earliest", lane=row.id)
        is_ready = not visit.all_gone or (wakes_at is not None and wakes_at <= self._now) or self._has_ready(visit)
        if is_ready and not gone and not visit.heads and row.behind is None:
            # Only jobs that this node does not know: the lane is left as it is.
            return None
        if not is_ready:
            if wakes_at is not None and (self._next_wake is None or wakes_at < self._next_wake):
                self._next_wake = wakes_at
            if not gone and row.since is None and wakes_at == row.wakes_at:
                return None
            return (row.id, gone, None, None, None, wakes_at)
        if behind is None:
            return (row.id, gone, self._limit_now, None, None, wakes_at)
        # Who got nothing keeps the place that it had in the line.
        since = row.since if not gone and row.since is not None else self._limit_now
        return (row.id, gone, since, behind.draw.limit, behind.draw.key, wakes_at)

    def _throttled(self, visit: _Visit) -> Throttled | None:
        behind = visit.behind
        if behind is None or behind.opens_at is None:
            return None
        return Throttled(behind.draw, self._in_wall_time(behind.opens_at), visit.row.waiting - visit.gone)

    def _starved(self, gated: Sequence[_Visit]) -> list[Starved]:
        """The buckets that are kept elsewhere and have nothing left here, each once."""
        # Opened, and empty: those in line were not even looked at.
        now = self._limit_now
        starved = {
            view.draw: Starved(view.draw, view.rule, 1, self._page)
            for view in self._opened
            if view.is_starved(now) and not view.grants(now, 1)
        }
        for visit in gated:
            if visit.view is not None:
                found = starved_by(visit.view, visit.row.waiting - visit.gone, now)
                if found is not None:
                    starved[found.draw] = found
        return list(starved.values())

    def _in_wall_time(self, instant: int | None) -> int | None:
        """An instant of limit time as wall time; None for never."""
        return None if instant is None or instant >= NEVER else self._now + (instant - self._limit_now)

    def _set_timers(self, gated: Sequence[_Visit], reopened: Set[Draw]) -> bool:
        """Write when each bucket opens that lanes wait behind; True if one of them is open still."""
        touched = {id(view): view for view in self._opened}
        for visit in gated:
            if visit.behind is not None:
                touched[id(visit.behind)] = visit.behind
        if not touched:
            return False
        timers = [
            (view.draw.limit, view.draw.key, self._limit_now if view.draw in reopened else self._reopens_at(view))
            for view in touched.values()
        ]
        execute(self._connection, "set_timers", buckets=as_json(timers))
        for _, _, opens_at in timers:
            if opens_at > self._limit_now:
                self._closes_until(opens_at)
        return any(opens_at <= self._limit_now for _, _, opens_at in timers)

    def _reopens_at(self, view: BucketView) -> int:
        opens_at = view.reopens_at(self._limit_now)
        if opens_at <= self._limit_now and view.opens_at is not None:
            # Open as it was: a lane that another node is waited for behind it costs no write.
            return view.opens_at
        return opens_at

    def _closes_until(self, opens_at: int) -> None:
        if opens_at < NEVER and (self._next_timer is None or opens_at < self._next_timer):
            self._next_timer = opens_at

    def _next_in(self, next_bucket: int | None) -> int | None:
        if next_bucket is not None:
            self._closes_until(next_bucket)
        waits: list[int] = []
        if self._next_timer is not None:
            waits.append(self._next_timer - self._limit_now)
        if self._next_wake is not None:
            waits.append(self._next_wake - self._now)
        return max(0, min(waits)) if waits else None

    def _claimed(self, head: Head, visit: _Visit) -> ClaimedJob:
        return ClaimedJob(
            head.id,
            head.task,
            head.queue,
            head.payload,
            head.attempt + 1,
            head.fence + 1,
            head.lost,
            head.enqueued_at,
            head.run_at,
            self._now,
            visit.row.draws,
            None if head.costs is None else without(head.costs, head.passes),
            self._limit_now,
            None if visit.view is None else charges_elsewhere(visit.view.buckets),
            head.headers,
            head.options,
        )
