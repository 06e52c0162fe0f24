"""The claims of one process: arrivals are merged, expired jobs are ended, and each claim is tried until it succeeds.

What a claim does is in `procedures/claim.py`; why jobs come to lanes as arrivals, in `procedures/lanes.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, NoReturn

import msgspec
from msgspec.structs import replace

from headgate.clock import FARTHEST, SECOND, Clock
from headgate.errors import StorageUnavailable
from headgate.jobs.identity import job_number
from headgate.limits.fair import PREFIX
from headgate.storage.admission import RowId
from headgate.storage.driver import Transaction, Wake
from headgate.storage.live_rules import CachedRules
from headgate.storage.postgres.database import Database, Session
from headgate.storage.postgres.low_watermarks import LowWatermarks
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.postgres.server_time import ServerTime, correct_limit_time
from headgate.storage.procedures import waiting
from headgate.storage.procedures.claim import SOON, TRIES, SnapshotClaim, combined
from headgate.storage.procedures.claim_plan import EXPIRED_A_VISIT, LOCKED_FOR
from headgate.storage.procedures.claim_snapshot import (
    MULTI_WRITER_SNAPSHOT,
    ClaimSnapshot,
    LaneHead,
    MultiWriterSnapshotRow,
    open_lane,
    read_snapshot,
)
from headgate.storage.procedures.claim_writes import ClaimConflict, SkippedJobs
from headgate.storage.procedures.following import without_held
from headgate.storage.procedures.unique import give_back_noted
from headgate.storage.records import Claim, Claimed, Dropped
from headgate.storage.stored_rows import RowDecoder

MERGED_AT_ONCE = 10_000
"""How many of the oldest arrivals one merge takes at most."""

MERGED_OF_A_LANE = 50
"""How many arrivals of each of their lanes it takes besides: a lane with many is written once."""

RECENT = 1_000
"""The number of last arrivals among which those of some queues are searched, while many are left."""

SNAPSHOT_LIFETIME = SECOND // 50
"""The time for which claims reuse a snapshot that had more jobs than they could take. Newer jobs may wait that long."""

LANES_AHEAD = 64
"""How many lanes in line a snapshot has at least if the last claim was full: the next claims visit those after it."""

MERGE_EVERY = SECOND
"""The longest time until a claim merges arrivals."""

MERGE_TIME = SECOND // 50
"""How long a claim that starts no job merges, about. What is merged can start before the rest is."""

LEAST_MERGE_TIME = SECOND // 200

MERGE_SHARE = 2
"""A claim that starts jobs takes so many times as long as its merge, about: lanes in line hardly wait for the rest."""

FIRST_PORTION = 200
"""How many of the oldest arrivals the first merge takes. Later portions are as large as their time allows."""

LEAST_PORTION = 100

LEFT_FOR = SECOND // 10
"""How long after a claim of the queues with a backlog the claimer of the others leaves many arrivals to it.

After that time it looks again for lanes of its queues that another process has merged meanwhile.
"""

NEWEST_SHARE = 5
"""The ratio of oldest to newest arrivals in a portion, if many arrivals are left."""


class LockedJobs(SkippedJobs):
    """Locked jobs that claims of this process skip for a second, each in the lane in which it was found locked.

    A job that was replaced has a new fence, and one that was moved is in another lane: they are not skipped.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._until: dict[tuple[RowId, str, int], int] = {}

    def begin(self) -> None:
        """Begin a claim. It tries jobs again that were found locked more than a second ago."""
        if self._until:
            now = self._clock.monotonic()
            self._until = {job: until for job, until in self._until.items() if until > now}
            self.lanes_with_locked = {lane for lane, _, _ in self._until}
            self.locked_names = [f"{lane}:{job_number(id)}:{fence}" for lane, id, fence in self._until]

    def note_locked(self, heads: Sequence[LaneHead]) -> None:
        until = self._clock.monotonic() + LOCKED_FOR
        self._until |= {(head.lane, head.id, head.fence): until for head in heads}


class _Merged(msgspec.Struct):
    """The result of a merge: the lanes that seem empty now, the last place in line that it assigned, and arrivals."""

    seems_empty: list[RowId]
    queues: list[str]
    since: int | None
    merged: int
    last: int
    first_left: int | None
    merger: int
    oldest_writer: int


class _Empty(msgspec.Struct):
    id: str
    version: int
    behind: str | None


_MERGED = RowDecoder(_Merged, "merge")
_EMPTY = RowDecoder(_Empty, "lane")


class _ReusableSnapshot(NamedTuple):
    """A snapshot that had more jobs than the claims from it could take."""

    node: str
    snapshot: ClaimSnapshot
    slots: int
    at: int

    def later(self, claim: Claim, monotonic: int) -> ClaimSnapshot | None:
        """Return the snapshot with the current time; None if it is too old or lacks something that this claim needs."""
        age = monotonic - self.at
        fits = claim.node == self.node and claim.free_slots.keys() <= self.snapshot.ungated.keys()
        is_usable = age < SNAPSHOT_LIFETIME and fits and _slots(claim) <= self.slots
        return self.snapshot.later(age) if is_usable else None


def _slots(claim: Claim) -> int:
    slots = sum(free.slots for free in claim.free_slots.values())
    return slots if claim.shared_slots is None else min(slots, claim.shared_slots)


def _is_full(claim: Claim, claimed: Claimed) -> bool:
    """Whether the claim took as many jobs as it had free slots, or kept them."""
    return len(claimed.jobs) + len(claimed.keeping) == _slots(claim) > 0


def _with_room_left(claim: Claim, claimed: Claimed) -> Claim:
    used = Counter(chain((job.queue for job in claimed.jobs), claimed.keeping))
    left = {queue: replace(free, slots=free.slots - used[queue]) for queue, free in claim.free_slots.items()}
    return replace(
        claim,
        free_slots={queue: free for queue, free in left.items() if free.slots},
        shared_slots=None if claim.shared_slots is None else claim.shared_slots - used.total(),
        keeps_for=claim.keeps_for if not claimed.keeping else frozenset(),
    )


class Claimer:
    """Makes claims of one process, one at a time. It calls `wake` for other queues whose arrivals it has merged.

    `beside` is the claimer of the queues with a backlog, if this one is that of the others. While that one merges many
    arrivals, this one merges only the newest of its own queues: their jobs do not wait for a long merge.
    """

    def __init__(
        self,
        database: Database,
        time: ServerTime,
        clock: Clock,
        live: CachedRules,
        wake: Wake,
        beside: Claimer | None = None,
    ) -> None:
        self._database = database
        self._time = time
        self._clock = clock
        self._live = live
        self._wake = wake
        self._beside = beside
        self._claimed_at = 0
        self.expects_arrivals = True
        """Whether jobs with limits were added, in any process: then the next claim merges before it reads."""
        self._merged_at = 0
        self._portion = FIRST_PORTION
        self._merge_time = MERGE_TIME
        self._has_more_arrivals = False
        self._last_place = 0
        self._connects = 0
        self._paused: frozenset[str] = frozenset()
        self._last_snapshot: _ReusableSnapshot | None = None
        self.low_watermarks = LowWatermarks(clock)
        self._locked = LockedJobs(clock)
        # Lanes, each with the version that the last snapshot read, and a rank below which no job waited that asked for
        # no time.
        self._proven: list[tuple[RowId, int, int]] = []
        # Jobs that ended without running, until a claim reports them: one may fail, or start again, after their commit.
        self._dropped: list[Dropped] = []

    @property
    def arrival_floor(self) -> int:
        """An id below which no arrival is stored, nor will be."""
        self._check_connections()
        return self.low_watermarks.arrivals

    async def claim(self, claim: Claim) -> Claimed:
        """Take jobs that may start now."""
        if not claim.free_slots:
            return Claimed(jobs=(), next_in=None)
        self._claimed_at = self._clock.monotonic()
        first = await self._claim_from_last_snapshot(claim)
        if first is not None and _is_full(claim, first):
            return first
        try:
            if first is None:
                claimed = await self._claim_from_new_snapshot(claim)
            else:
                claimed = combined(first, await self._claim_from_new_snapshot(_with_room_left(claim, first)))
        except StorageUnavailable:
            if first is None:
                raise
            # The jobs that were taken stay taken.
            claimed = replace(first, more=True)
        if self._dropped:
            claimed = replace(claimed, dropped=[*self._dropped, *claimed.dropped], more=True)
            self._dropped.clear()
        return claimed

    async def _claim_from_new_snapshot(self, claim: Claim) -> Claimed:
        for _ in range(TRIES):
            try:
                return await self._database.run(lambda session: self._claim(session, claim))
            except ClaimConflict:
                continue
        # Other claims hold the same jobs.
        return Claimed(jobs=(), next_in=0, more=True)

    async def _claim(self, session: Session, request: Claim) -> Claimed:
        # Those that are paused as of the last snapshot.
        claim = replace(
            self._locked.widened(request.without(self._paused)), rules=self._live.rules.usable(request.rules)
        )
        self.low_watermarks.begin()
        self._locked.begin()
        tx = PostgresTransaction(session, self._time, self._clock)
        merges = self._is_merge_due() or self._has_more_arrivals or self._leaves_arrivals
        if merges:
            await self.merge(tx, claim)
        row = await self._read_snapshot(tx, claim)
        if row.has_notes:
            async with tx.atomic():
                await give_back_noted(tx)
        # Those that were left before do not stand between this claim and the lanes that are there.
        has_come = row.has_arrivals and not (merges and (self._has_more_arrivals or self._leaves_arrivals))
        if has_come:
            # Other processes added jobs, and their wake-up has not arrived yet.
            await self.merge(tx, claim)
        if row.has_notes or has_come:
            if self.low_watermarks.has_swept:
                self._snapshot_of(row, claim)
            row = await self._read_snapshot(tx, claim)
        snapshot = self._snapshot_of(row, claim)
        if snapshot.paused != self._paused:
            self._paused = snapshot.paused
            raise ClaimConflict
        # A node that was declared dead must not own jobs: no other node would take them back.
        if not snapshot.has_joined:
            return Claimed(jobs=(), next_in=None)
        tx.now, tx.limit_now = snapshot.now, snapshot.limit_now
        await self._live.refresh(tx, snapshot.revision)
        if self._live.rules.usable(request.rules) != claim.rules:
            raise ClaimConflict
        if row.has_expired:
            self._dropped += await self._expire(tx.session, claim)

        async def read_again() -> ClaimSnapshot | None:
            again = await self._try_read_snapshot(tx, claim, known_only=True)
            # It leaves out lanes in which a job may still arrive that this node can start, so it says no positions.
            return None if again is None else self._snapshot_of(again, claim, is_whole=False)

        one = SnapshotClaim(tx, claim, self._live, snapshot, self._locked)
        began = self._clock.monotonic()
        claimed = await one.run(read_again)
        took = self._clock.monotonic() - began
        self._merge_time = max(LEAST_MERGE_TIME, took // MERGE_SHARE) if claimed.jobs else MERGE_TIME
        if not row.has_expired and _is_full(claim, claimed) and one.leaves_work():
            self._last_snapshot = _ReusableSnapshot(claim.node, snapshot, _slots(claim), self._clock.monotonic())
        # Other claims are about to merge arrivals, or jobs may be below a low watermark.
        again_in = self.low_watermarks.sweeps_in
        if row.has_arrivals:
            again_in = LEFT_FOR if self._leaves_arrivals else SOON
        if again_in is not None:
            claimed = replace(claimed, next_in=again_in if claimed.next_in is None else min(claimed.next_in, again_in))
        return replace(claimed, more=True) if self._has_more_arrivals else claimed

    @property
    def _leaves_arrivals(self) -> bool:
        """Whether many arrivals are left, and the claimer of the queues with a backlog merges them."""
        other = self._beside
        return other is not None and other._has_more_arrivals and self._clock.monotonic() - other._claimed_at < LEFT_FOR

    def _is_merge_due(self) -> bool:
        return self.expects_arrivals or self._clock.monotonic() - self._merged_at >= MERGE_EVERY

    async def _claim_from_last_snapshot(self, request: Claim) -> Claimed | None:
        """Take jobs from the last snapshot, if it is still usable; None if a new one is needed."""
        last, self._last_snapshot = self._last_snapshot, None
        if last is None or self._is_merge_due() or self.low_watermarks.sweeps_in == 0:
            return None
        claim = replace(request.without(self._paused), rules=self._live.rules.usable(request.rules))
        snapshot = last.later(claim, self._clock.monotonic())
        if snapshot is None:
            return None
        self.low_watermarks.begin()
        self._locked.begin()

        async def read_again() -> NoReturn:
            raise ClaimConflict

        async def take(session: Session) -> tuple[Claimed, bool]:
            tx = PostgresTransaction(session, self._time, self._clock)
            tx.now, tx.limit_now = snapshot.now, snapshot.limit_now
            one = SnapshotClaim(tx, claim, self._live, snapshot, self._locked)
            return await one.run(read_again), one.leaves_work()

        try:
            claimed, leaves_work = await self._database.run(take)
        except ClaimConflict:
            return None
        if leaves_work and _is_full(request, claimed):
            self._last_snapshot = last
        return claimed

    async def _expire(self, session: Session, claim: Claim) -> list[Dropped]:
        """End expired jobs in the claim that would have started them."""
        lanes = [open_lane(queue) for queue in claim.free_slots]

        async def expire(held: frozenset[str]) -> list[Dropped]:
            async with session.transaction():
                tx = PostgresTransaction(session, self._time, self._clock)
                return await waiting.expire(tx, held, EXPIRED_A_VISIT, lanes, list(claim.tasks))

        return await without_held(expire)

    async def merge(self, tx: PostgresTransaction, claim: Claim | None = None) -> None:
        """Count arrivals in their lanes: all of them, or a portion if there are many."""
        self.expects_arrivals = False
        self._merged_at = began = self._clock.monotonic()
        self._check_connections()
        oldest, newest = self._portion, self._portion // NEWEST_SHARE if self._has_more_arrivals else 0
        queues: list[str] | None = None
        if claim is not None and self._leaves_arrivals:
            oldest, newest, queues = 0, LEAST_PORTION, list(claim.free_slots)
        rows = await tx.fetch(
            _MERGED,
            "merge",
            after=self._last_place,
            limit_now=tx.limit_now,
            fair=list(self.low_watermarks.virtual_times.items()),
            floor=self.low_watermarks.arrivals,
            oldest=oldest,
            newest=newest,
            queues=queues,
            among=FARTHEST if queues is None else RECENT,
            of_lane=MERGED_OF_A_LANE,
            proven=self._proven,
        )
        self._has_more_arrivals = False
        if not rows:
            return
        (done,) = rows
        self.low_watermarks.record_merge(
            done.last, done.first_left, merger=done.merger, oldest_writer=done.oldest_writer
        )
        if done.seems_empty:
            async with tx.atomic():
                await _empty(tx, done.seems_empty)
        self._has_more_arrivals = done.merged >= oldest > 0
        if done.since is not None:
            self._last_place = max(self._last_place, done.since)
        if claim is not None and (unclaimed := set(done.queues) - claim.free_slots.keys()):
            self._wake(unclaimed)
        if self._has_more_arrivals:
            # Twice as many at most: the time that a merge takes varies.
            fitting = self._portion * self._merge_time // max(1, self._clock.monotonic() - began)
            self._portion = max(LEAST_PORTION, min(fitting, 2 * self._portion, MERGED_AT_ONCE))

    def _check_connections(self) -> None:
        """Drop the low watermark of arrivals after a server restart; behind a pooler a restart cannot be noticed."""
        if not self._database.keeps_sessions or self._database.connects != self._connects:
            self._connects = self._database.connects
            self.low_watermarks.forget_arrivals()

    def _snapshot_of(self, row: MultiWriterSnapshotRow, claim: Claim, *, is_whole: bool = True) -> ClaimSnapshot:
        snapshot = ClaimSnapshot(row, list(claim.free_slots))
        self._proven = [
            (open_lane(queue), lane.version, lane.first)
            for queue, lane in snapshot.ungated.items()
            if lane.version is not None and lane.first is not None
        ]
        due = [lane for lane in snapshot.due if lane.group_id is None]
        opened = [bucket.opens_at or 0 for bucket in snapshot.opened]
        snapshot.passed = self.low_watermarks.passed
        if is_whole:
            fair = [queue for queue in claim.free_slots if PREFIX + queue in claim.rules]
            self.low_watermarks.record_positions(due, opened, snapshot.limit_now, claim.free_slots, fair)
        return snapshot

    async def _read_snapshot(self, tx: PostgresTransaction, claim: Claim) -> MultiWriterSnapshotRow:
        for _ in range(2):
            # The first read may find that the clock has stepped, and corrects that.
            if (row := await self._try_read_snapshot(tx, claim, known_only=False)) is not None:
                return row
        raise ClaimConflict

    async def _try_read_snapshot(
        self, tx: PostgresTransaction, claim: Claim, *, known_only: bool
    ) -> MultiWriterSnapshotRow | None:
        """Read the row of a snapshot; None if the server's clock had stepped. The step is corrected by then."""
        own = self._time.own()
        self._check_connections()
        sent_at = self._clock.monotonic()
        lanes = [open_lane(queue) for queue in claim.free_slots]
        row = await read_snapshot(
            tx,
            MULTI_WRITER_SNAPSHOT,
            claim,
            self._live.limit_sets,
            known_only=known_only,
            open_lanes=lanes,
            now=None if own is None else own.now,
            limit_now=None if own is None else own.limit_now,
            arrival_floor=self.low_watermarks.arrivals,
            merged_at_once=0 if self._leaves_arrivals else MERGED_AT_ONCE,
            due_floors=[self.low_watermarks.due(queue) for queue in claim.free_slots],
            opened_floor=self.low_watermarks.opened(claim.free_slots),
            in_line=max(claim.lanes, LANES_AHEAD) if claim.has_backlog else claim.lanes,
        )
        # If this process passes the time to statements, the server does not measure `took`.
        self.low_watermarks.record_read_duration(row.took if own is None else 0)
        stepped = self._time.observe(sent_at, row.now, row.ahead)
        if stepped:
            await correct_limit_time(tx.session, self._time, row.ahead, stepped)
            return None
        return row


async def _empty(tx: Transaction, lanes: Sequence[str]) -> None:
    # Buckets before lanes, and a read of the lanes only when they are locked: a job that comes now is a new arrival.
    behind = sorted(await tx.values("behind_of_lanes", lanes=lanes))
    locked = {*(await tx.values("buckets_for_update", ids=behind) if behind else ()), None}
    held = [row for row in await tx.fetch(_EMPTY, "lock_empty", lanes=lanes) if row.behind in locked]
    if held:
        await tx.execute("empty_lanes", empty=held)
        await tx.execute("clear_timers", ids=behind)
