"""The plan of one claim: which jobs it starts and which rows it writes, decided from the rows that `claim` has read.

It chooses lanes from the snapshot, and decides from what was read under the locks. It does no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.bucket_mask import NO_BUCKETS, BucketMask, chosen, difference, mask_where, spread, union, without
from headgate.jobs.job import BucketRef, CallShare, ClaimedJob, JobError, JobState, truncated_error
from headgate.jobs.terms import mode_call_size, mode_discards
from headgate.limits.concurrency import batches_of
from headgate.limits.rule import NEVER
from headgate.storage.admission import (
    QUANTUM,
    BucketView,
    LaneView,
    Rejection,
    RowId,
    admit,
    awaited_limit,
    call_of,
    demand_of,
    divided,
    fetch_needed_by,
    gated_share,
    remote_charges,
)
from headgate.storage.endings import late_ending, rejection_error
from headgate.storage.fetched import FetchedStarts
from headgate.storage.procedures.buckets import PermitRelease
from headgate.storage.procedures.claim_snapshot import LaneHead, LaneRow
from headgate.storage.procedures.fair_lines import FairLines
from headgate.storage.records import Claim, Claimed, Dropped, NeededFetch, Throttled
from headgate.storage.stored_rows import bucket_id

EXPIRED_A_VISIT = 100
"""How many expired jobs of one lane a claim ends; it leaves the others in the lane for the next claim."""

LOCKED_FOR = SECOND
"""The time after which a lane is visited again if others have locked all its jobs. Their ends wake it too."""


StartRow = tuple[str, RowId, int, BucketMask, BucketMask, bool]
"""A job that starts: its id, lane and fence as they were read, the permits that it holds now, its buckets that were not
charged, and whether it waited for a limit."""


class LaneMove(msgspec.Struct):
    """The new place of a lane after the claim, and how many jobs have left it."""

    id: RowId
    removed: int
    since: int | None
    behind: RowId | None
    wakes_at: int | None
    opened_at: int | None
    virtual_time: int | None
    version: int
    front: int


class LaneVisit(msgspec.Struct):
    """A lane that a claim visits, and the decision about it."""

    row: LaneRow
    heads: list[LaneHead] = []
    expired: list[LaneHead] = []
    complete: bool = True
    """Whether all ready jobs that this node can run were read."""
    has_locked: bool = False
    """Whether jobs were skipped because other transactions have locked them."""
    is_plain: bool = False
    """Whether exactly the first jobs that requested no start time were read, without leaving one out."""
    taken: int = 0
    rejected: list[tuple[LaneHead, Rejection]] = []
    """The jobs that do not wait for the closed buckets which they met; they are not among the heads any more."""
    view: LaneView | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the claim found no job in it that can start or has expired."""
        return not self.heads and not self.expired and not self.rejected

    def wakes_by(self, now: int) -> bool:
        """Whether delayed jobs of the lane may be due."""
        return self.row.wakes_at is not None and self.row.wakes_at <= now

    @property
    def behind(self) -> BucketView | None:
        """The closed bucket that the lane waits behind from now on."""
        return None if self.view is None else self.view.behind

    def not_charged(self, index: int) -> BucketMask:
        """Return the buckets that count calls, if a job takes part in the call of another."""
        if self.view is None or not self.view.leaders or self.view.leaders[index] == index:
            return NO_BUCKETS
        terms = self.heads[index].terms
        assert terms is not None
        assert terms.calls is not None
        return terms.calls.buckets

    @property
    def left(self) -> int:
        """How many of the heads stay: all but those that start, and one that fails because its cost is impossible."""
        return len(self.heads) - self.taken - (self.view is not None and self.view.failed is not None)

    @property
    def removed(self) -> int:
        """How many jobs leave the lane."""
        return len(self.heads) + len(self.expired) + len(self.rejected) - self.left

    @property
    def front(self) -> int:
        """The lane's front after the claim: no job is left below it."""
        if self.is_plain and not self.has_locked and self.taken:
            return max(self.row.front, self.heads[self.taken - 1].rank)
        return self.row.front

    @property
    def is_exhausted(self) -> bool:
        return self.complete and not self.left


class ClaimPlan:
    """One claim at one instant: `now` in wall time, `limit_now` in limit time."""

    def __init__(self, claim: Claim, now: int, limit_now: int, newest: Mapping[str, str], fair: FairLines) -> None:
        self.claim = claim
        self.page = claim.page
        self.newest = newest
        self.known = claim.known(newest)
        """The limit sets of jobs that may start on this node."""
        self.free_slots = claim.free_slots
        """The free slots of each queue, fewer if all queues share slots."""
        self.fair = fair
        """The lines of the fair queues."""
        self.next_in_line: list[LaneRow] = []
        """The lanes of fair queues after those that were chosen."""
        self.unknown: set[tuple[str, str]] = set()
        self.limit_set_mismatches: set[str] = set()
        self.has_unknown_lanes = False
        self.page_was_full = False
        """Whether the lanes to visit were expected to fill the slots, so that others may be left."""
        self.share({})
        self.begin(now, limit_now)

    def begin(self, now: int, limit_now: int) -> None:
        """Begin to decide, at this instant. What was decided before, as by a claim that starts again, is forgotten."""
        self.now = now
        self.limit_now = self.fair.limit_now = limit_now
        self.gated: list[LaneVisit] = []
        self.ungated: list[LaneVisit] = []
        self.opened: list[BucketView] = []
        self.given: list[PermitRelease] = []
        self._dropped: list[Dropped] = []
        # The opened buckets of other stores that had no start left before anything was taken.
        self._awaiting_fetch: set[BucketRef] = set()
        # The queues that leave a slot to their first lane, and the limit of which it needs a start.
        self._keeping: dict[str, str] = {}
        self._more_opened = False
        # How long it is until a bucket opens or a delayed job is due.
        self._waits: list[int] = []

    def share(self, ungated_ready: Mapping[str, int]) -> None:
        """Set how many gated jobs each queue may start while so many ungated jobs are ready."""
        self.ungated_ready = ungated_ready
        self.shares = {queue: gated_share(free, ungated_ready.get(queue, 0)) for queue, free in self.free_slots.items()}
        self.gated_slots = sum(self.shares.values())

    # --------------------------------------------------------------------------------------- what to read

    def note_skipped(self, id: str, task: str, queue: str) -> None:
        """Note a job that must not start here: its task is unknown, or it was enqueued under another limit set."""
        if task not in self.claim.tasks:
            self.unknown.add((task, queue))
        elif self.claim.limit_sets is not None and self.claim.limit_sets.is_newest(task, queue, self.newest):
            self.limit_set_mismatches.add(id)

    def has_unknown(self, heads: Iterable[LaneHead]) -> bool:
        """Note those of these jobs that must not start here; return whether there are any."""
        known = self.known
        unknown = [head for head in heads if head.limit_set not in known]
        for head in unknown:
            self.note_skipped(head.id, head.task, head.queue)
        return bool(unknown)

    def usable(self, rows: Sequence[LaneRow]) -> list[LaneRow]:
        """Return the lanes of which this node has the rules of all limits."""
        rules = self.claim.rules
        usable = [row for row in rows if all(ref.limit in rules for ref in row.buckets)]
        self.has_unknown_lanes = self.has_unknown_lanes or len(usable) < len(rows)
        return usable

    def grants(self) -> dict[RowId, int]:
        """Return how many starts each opened bucket grants, without buckets that grant none.

        A bucket without fetched starts counts as if it granted 1: its first waiting job determines what is fetched, or
        does not wait for it.
        """
        grants = {view.id: view.grants(self.limit_now, self.page) or self._lacks_starts(view) for view in self.opened}
        return {id: int(grant) for id, grant in grants.items() if grant and id is not None}

    def _lacks_starts(self, view: BucketView) -> bool:
        """Whether the limit is kept in another store, and no start is left here."""
        is_fetched = isinstance(view.rule, FetchedStarts) and view.closed_until <= self.limit_now
        return is_fetched and not view.grants(self.limit_now, 1)

    def choose(
        self, grants: Mapping[RowId, int], behind: Sequence[LaneRow], due: Sequence[LaneRow], woken: Sequence[LaneRow]
    ) -> list[LaneVisit]:
        """Return lanes that are due or behind opened buckets, the longest waiting first.

        Those of a fair queue are in the order of their virtual times. It returns at most as many lanes as are expected
        to fill the `shares`, or as many times as the claim is wide: to read and lock lanes in vain costs the most.
        """
        shares = self.shares
        self.fair.note_in_line(due, behind)
        rows = sorted(self.usable([*behind, *due, *woken]), key=_by_age)
        # How long lanes wait decides how many of each queue a bucket releases, and their turns decide which.
        ready = _released((row for row in rows if shares.get(row.queue, 0) > 0), grants)
        released = Counter((row.behind, row.queue) for row in ready if row.behind is not None)
        self.fair.sort(rows, outside=(*behind, *woken), shares=shares)
        candidates: list[LaneRow] = []
        for row in rows:
            if row.behind is not None:
                if not released[row.behind, row.queue]:
                    continue
                released[row.behind, row.queue] -= 1
            candidates.append(row)
        if self.claim.width > 1:
            candidates = self.fair.mixed(candidates, shares, self.claim.width)
        sharing = Counter(row.behind for row in candidates)
        awaiting_fetch = {view.id for view in self.opened if self._lacks_starts(view)}
        left = {queue: share * self.claim.width for queue, share in shares.items()}
        visits: dict[RowId, LaneVisit] = {}
        for row in candidates:
            # A lane behind a bucket that needs a fetch starts no job yet. Slots must be free for the starts fetched.
            needs_fetch = row.behind is not None and row.behind in awaiting_fetch
            if row.id not in visits and (shares if needs_fetch else left).get(row.queue, 0) > 0:
                if not needs_fetch:
                    left[row.queue] -= self._expected(row, sharing, grants)
                visits[row.id] = LaneVisit(row)
        self.page_was_full = any(count <= 0 for count in left.values())
        left_in_line = [row for row in candidates if row.id not in visits]
        self.fair.note_not_visited(left_in_line)
        self.next_in_line = [
            row
            for row in left_in_line
            if row.virtual_time is not None and row.group_id is None and shares.get(row.queue, 0) > 0
        ]
        return list(visits.values())

    def _expected(self, row: LaneRow, sharing: Mapping[RowId | None, int], grants: Mapping[RowId, int]) -> int:
        """Return how many starts a lane is likely to make. Lanes that share the grants of a bucket may get one each."""
        quantum = self.fair.quantum(row, self.shares[row.queue])
        quantum = max(quantum, min(row.waiting, mode_call_size(row.wait_mode)))
        if row.behind is None:
            return quantum
        return 1 if sharing[row.behind] > 1 else min(quantum, grants.get(row.behind, 1))

    def divide(self, slots: int, rows: Iterable[LaneRow], grants: Mapping[RowId, int]) -> bool:
        """Divide the slots that all queues share among those with jobs: in these lanes, or without limits.

        Of lanes behind a bucket, those count that wait the longest, as many as it grants.

        Returns whether a queue gets fewer than it has jobs for. One whose jobs cannot start leaves slots unused.
        """
        waiting = Counter(self.ungated_ready)
        for row in _released(sorted(rows, key=_by_age), grants):
            waiting[row.queue] += max(1, row.waiting)
        usable = {queue: min(free.slots, waiting[queue]) for queue, free in self.claim.free_slots.items()}
        parts = self._divided(slots, usable)
        self.free_slots = {queue: replace(free, slots=parts[queue]) for queue, free in self.claim.free_slots.items()}
        self.share(self.ungated_ready)
        return parts != usable

    def _divided(self, slots: int, usable: Mapping[str, int]) -> dict[str, int]:
        """Divide these slots among the queues; the jobs of this claim hold slots, too."""
        free_slots = self.claim.free_slots
        held = Counter({queue: free.held for queue, free in free_slots.items()})
        for visit in self.gated:
            held[visit.row.queue] += visit.taken
        return divided(slots, usable, held, {queue: free.weight for queue, free in free_slots.items()})

    def heads_to_read(self, visits: Sequence[LaneVisit], view: Callable[[BucketRef], BucketView]) -> int:
        """Return how many jobs of each lane to read: those that can start, and one more that finds a bucket closed.

        More jobs can start if they cost nothing. A lane from which all read jobs were taken is visited again.
        """
        most = self.most_heads(visits)
        count = 1
        for visit in visits:
            count = max(count, 1 + self.can_start(visit.row, view, most - 1))
            if count >= most:
                return most
        return count

    def most_heads(self, visits: Sequence[LaneVisit]) -> int:
        """Return how many jobs of each lane to read at most, whatever their buckets grant."""
        slots, rows = self.gated_slots, [visit.row for visit in visits]
        # A lane of a fair queue starts no more than its turns.
        in_turns = all(self.fair.step(row) and not row.wait_mode for row in rows)
        least = 1 if in_turns else max(QUANTUM, -(-slots // len(rows)))
        return max(least, self.fair.most_of_one(rows, slots))

    def can_start(self, row: LaneRow, view: Callable[[BucketRef], BucketView], most: int) -> int:
        """Return how many jobs of cost 1 all buckets of the lane grant now, at most `most`."""
        if row.wait_mode:
            # These jobs are rejected instead of waiting, or share permits that one of them holds.
            return most
        for ref in row.buckets:
            bucket = view(ref)
            is_closed = bucket.opens_at is not None and bucket.opens_at > self.limit_now
            most = 0 if is_closed else bucket.grants(self.limit_now, most)
        return most

    def assign_heads(self, visits: Sequence[LaneVisit], heads: list[LaneHead], count: int) -> None:
        """Assign the jobs that were read to their lanes, at most `count` to each, in the order of their starts."""
        sort_heads(heads)
        lanes = {visit.row.id: visit for visit in visits}
        for visit in visits:
            visit.heads, visit.expired, visit.complete = [], [], True
        for head in heads:
            visit = lanes[head.lane]
            # `count` jobs with a requested start time and `count` without one were read. Beyond the first `count` of
            # both together, jobs may be missing between those that were read.
            if len(visit.heads) + len(visit.expired) >= count or len(visit.expired) >= EXPIRED_A_VISIT:
                visit.complete = False
            elif head.is_late(self.now):
                visit.expired.append(head)
            else:
                if head.costs is not None or head.terms is not None:
                    head.check_bucket_count(len(visit.row.buckets))
                visit.heads.append(head)
        for visit in visits:
            if len(visit.heads) + len(visit.expired) >= count:
                visit.complete = False

    # --------------------------------------------------------------------------------------------- decide

    def decide(self, gated: Sequence[LaneVisit], view: Callable[[BucketRef], BucketView]) -> None:
        """Decide by the rules how many jobs of each lane start."""
        self.gated = list(gated)
        opened_at = {view.id: view.opens_at for view in self.opened}
        lanes: list[LaneView] = []
        for visit in gated:
            if visit.row.behind is not None:
                visit.row.opened_at = min(self.limit_now, opened_at.get(visit.row.behind) or self.limit_now)
            views = [view(ref) for ref in visit.row.buckets]
            demands = [demand_of(head.id, head.costs, head.terms, head.exempt) for head in visit.heads]
            discards = mode_discards(visit.row.wait_mode)
            calls = [call_of(head.terms, head.exempt) for head in visit.heads] if visit.row.wait_mode else []
            step = self.fair.step(visit.row)
            visit.view = lane = LaneView(
                visit.row.id,
                visit.row.queue,
                views,
                demands,
                discards=discards,
                since=visit.row.since or 0,
                virtual_time=self.fair.virtual_time(visit.row) if step else 0,
                step=step,
                group=self.fair.group(visit.row),
                complete=visit.complete,
                calls=calls if any(calls) else [],
            )
            lanes.append(lane)
        self._awaiting_fetch = {view.ref for view in self.opened if self._lacks_starts(view)}
        if self.claim.keeps_for:
            firsts = {lane.queue: lane for lane in reversed(lanes) if lane.demands and self.shares[lane.queue]}
            limits = {queue: awaited_limit(lane, self.limit_now) for queue, lane in firsts.items()}
            self._keeping = {queue: limit for queue, limit in limits.items() if limit and limit in self.claim.keeps_for}
        shares = {queue: share - (queue in self._keeping) for queue, share in self.shares.items()}
        admit(lanes, shares, self.limit_now)
        if self.fair.hides_lanes:
            self.page_was_full = True
        for visit, lane in zip(gated, lanes, strict=True):
            visit.taken = lane.taken
            visit.rejected = [(visit.heads[each.place], each) for each in lane.rejected]
            if lane.rejected:
                places = {each.place for each in lane.rejected}
                visit.heads = [head for place, head in enumerate(visit.heads) if place not in places]

    def ungated_slots(self) -> dict[str, int]:
        """Return how many ungated jobs each queue may start after the gated jobs are decided."""
        left = {queue: free.slots - (queue in self._keeping) for queue, free in self.claim.free_slots.items()}
        for visit in self.gated:
            left[visit.row.queue] -= visit.taken
        left = {queue: max(0, slots) for queue, slots in left.items()}
        if self.claim.shared_slots is None:
            return left
        usable = {queue: min(slots, self.ungated_ready.get(queue, 0)) for queue, slots in left.items()}
        taken = sum(visit.taken for visit in self.gated) + len(self._keeping)
        return self._divided(max(0, self.claim.shared_slots - taken), usable)

    @property
    def visits(self) -> list[LaneVisit]:
        return [*self.gated, *self.ungated]

    # ------------------------------------------------------------------------------------- what to write

    @property
    def has_starts(self) -> bool:
        """Whether any job starts."""
        return any(visit.taken for visit in self.visits)

    def starts(self, visits: Iterable[LaneVisit], *, all: bool = True) -> list[StartRow]:
        """Return the jobs of these lanes that start: all of them, or only those that have terms."""
        rows: list[StartRow] = []
        for visit in visits:
            views = () if visit.view is None else visit.view.buckets
            are_permits = [view.rule.holds_permits for view in views]
            opened_at = self._opened_at(visit.row)
            for index, head in enumerate(visit.heads[: visit.taken]):
                held = uncharged = NO_BUCKETS
                if head.terms is not None:
                    taken = mask_where(spread(are_permits, head.exempt, False))
                    held, uncharged = union(head.held, taken), union(head.exempt, visit.not_charged(index))
                elif not all:
                    continue
                is_deferred = throttled_for(head.run_at, self.now, opened_at) > 0
                rows.append((head.id, head.lane, head.fence, held, uncharged, is_deferred))
        return rows

    def deferred(self, visits: Iterable[LaneVisit]) -> list[str]:
        """Return the ids of the jobs without terms that start after they waited for a limit."""
        ids: list[str] = []
        for visit in visits:
            opened_at = self._opened_at(visit.row)
            if opened_at is not None:
                taken = (head for head in visit.heads[: visit.taken] if head.terms is None)
                ids += [head.id for head in taken if throttled_for(head.run_at, self.now, opened_at) > 0]
        return ids

    def _opened_at(self, row: LaneRow) -> int | None:
        """Return when a lane's limit last opened for it, in wall time."""
        return None if row.opened_at is None else self.now - (self.limit_now - row.opened_at)

    def drop(self) -> list[Dropped]:
        """Return the jobs that end without running: expired, rejected, or with a cost that no limit can ever grant.

        Afterwards `given` has the permits that they release.
        """
        for visit in self.visits:
            for head, state, error in self._endings(visit):
                kept = NO_BUCKETS
                if head.held and head.terms is not None and head.buckets is not None:
                    kept = head.terms.kept(head.held, state)
                    self.given.append(
                        PermitRelease(head.id, head.buckets, head.terms, difference(head.held, kept), kept)
                    )
                self._dropped.append(
                    Dropped(head.id, head.task, head.queue, state, error, head.attempt, head.lane, kept, head.fence)
                )
        return self._dropped

    def _endings(self, visit: LaneVisit) -> Iterator[tuple[LaneHead, JobState, JobError]]:
        for head in visit.expired:
            yield head, *late_ending(self.now, head.expires_at, head.give_up_at, head.terms, head.attempt, None)
        for head, (_, bucket, opens_at) in visit.rejected:
            # Terms that cannot be read say nothing, while the lane of the job still says that it does not wait.
            state = JobState.FAILED if head.terms is None else head.terms.rejected_as(head.attempt)
            yield head, state, rejection_error(bucket.ref, self._in_wall_time(opens_at), None)
        if visit.view is not None and visit.view.failed is not None:
            # A limit was lowered below the cost of a job, so the job would wait for ever.
            yield visit.heads[visit.taken], JobState.FAILED, truncated_error(visit.view.failed)

    def move(
        self,
        visit: LaneVisit,
        *,
        has_ready: bool,
        earliest: int | None,
        next_due: int | None = None,
        is_emptied: bool = False,
    ) -> LaneMove | None:
        """Return the new place of the lane after this claim: empty, asleep, behind a bucket or last in line.

        None if it does not move. `has_ready`: a job that requested no start time is left in it. `earliest` is when the
        first delayed job is due, `next_due` when the first is that is not due yet. The first two ignore jobs that other
        transactions have locked. `is_emptied`: no job is left.
        """
        row, removed, behind, front = visit.row, visit.removed, visit.behind, visit.front
        stays_behind = behind is not None and row.behind is not None and bucket_id(behind.ref) == row.behind
        if not removed and visit.heads and (behind is None or stays_behind):
            return None
        # None in a queue that is fair no more: with a virtual time that stands still, the lane would always be the
        # first.
        virtual_time = visit.view.virtual_time if visit.view is not None and visit.view.step else None
        if is_emptied:
            return LaneMove(row.id, removed, None, None, None, None, virtual_time, row.version, front)
        wakes_at = row.wakes_at
        if visit.wakes_by(self.now):
            # Delayed jobs of this lane were due and may have left it.
            wakes_at = earliest
        if visit.has_locked:
            wakes_at = min(self.now + LOCKED_FOR, self.now + LOCKED_FOR if wakes_at is None else wakes_at)
        is_ready = not visit.is_exhausted or (wakes_at is not None and wakes_at <= self.now) or has_ready
        if is_ready and not removed and not visit.heads and row.behind is None:
            # All jobs that are ready are unknown to this node: the lane stays as it is. A later one may be known.
            self.note_wake(next_due)
            return None
        since: int | None = None
        bucket: RowId | None = None
        if not is_ready:
            self.note_wake(wakes_at)
            if not removed and row.since is None and wakes_at == row.wakes_at:
                return None
        elif behind is None:
            since = self.limit_now
        else:
            # A lane that started nothing keeps its place in the line.
            since = row.since if not removed and row.since is not None else self.limit_now
            bucket = bucket_id(behind.ref)
        return LaneMove(row.id, removed, since, bucket, wakes_at, row.opened_at, virtual_time, row.version, front)

    @property
    def batch_lanes(self) -> list[tuple[RowId, str]]:
        """The buckets that lanes wait behind and that batches hold permits of, by id, each with the batch.

        All lanes of such a batch may start jobs: the batch returns its permit only when all its jobs are final. A
        paused bucket is left out until it is resumed and its lanes are visited again.
        """
        lanes: list[tuple[RowId, str]] = []
        for view in self._touched():
            if view.id is None or view.closed_until > self.limit_now:
                continue
            if view.rule.holds_permits and view.state is not None:
                lanes += [(view.id, batch) for batch in batches_of(view.state)]
        return lanes

    def _touched(self) -> list[BucketView]:
        """Return the buckets that lanes wait behind, or waited behind before this claim."""
        behind = (visit.behind for visit in self.gated)
        return list(dict.fromkeys([*self.opened, *(view for view in behind if view is not None)]))

    def timers(self, reopened: Set[BucketRef]) -> list[tuple[BucketView, int]]:
        """Return when each bucket with lanes behind it opens; permits were returned to the `reopened` ones."""
        timers = [
            (view, self.limit_now if view.ref in reopened else self._reopens_at(view)) for view in self._touched()
        ]
        opened = set(self.opened)
        for view, opens_at in timers:
            if opens_at > self.limit_now:
                self.note_timer(opens_at)
                # A bucket that closes again makes room on the page: for one that is open, or for a lane in line.
                self._more_opened |= len(self.opened) >= self.page or (self.page_was_full and view in opened)
        return timers

    def _reopens_at(self, view: BucketView) -> int:
        opens_at = view.reopens_at(self.limit_now)
        if (opens_at <= self.limit_now or self._lacks_starts(view)) and view.opens_at is not None:
            # Unchanged, so that no write is needed: a lane behind it waits for another node, or no lane has yet
            # requested a fetch for it. The next claim visits it.
            return view.opens_at
        return opens_at

    def note_timer(self, opens_at: int | None) -> None:
        """Note that a bucket opens then (limit time)."""
        if opens_at is not None and opens_at < NEVER:
            self._waits.append(opens_at - self.limit_now)

    def note_wake(self, wakes_at: int | None) -> None:
        """Note that a delayed job of another lane is due then (wall time)."""
        if wakes_at is not None:
            self._waits.append(wakes_at - self.now)

    # ---------------------------------------------------------------------------------------------- result

    @property
    def is_cut_short(self) -> bool:
        """Whether lanes, or jobs of visited lanes, may be left that could start at once."""
        return self.page_was_full or any(visit.behind is None and not visit.is_exhausted for visit in self.visits)

    def claimed(self, *, more: bool) -> Claimed:
        """Return the result; the next claim may also find `more` if other buckets have opened than it had room for."""
        return Claimed(
            jobs=[job for visit in self.visits if visit.taken for job in self._jobs(visit)],
            next_in=max(0, min(self._waits)) if self._waits else None,
            more=more or self._more_opened,
            throttled=[throttled for visit in self.gated if (throttled := self._throttled(visit)) is not None],
            needed_fetches=self._needed_fetches(),
            keeping=self._keeping,
            dropped=self._dropped,
            unknown=sorted(self.unknown),
            limit_set_mismatches=sorted(self.limit_set_mismatches),
            has_unknown_lanes=self.has_unknown_lanes,
        )

    def _throttled(self, visit: LaneVisit) -> Throttled | None:
        behind = visit.behind
        if behind is None or behind.opens_at is None:
            return None
        if self._lacks_starts(behind) and not (behind.state and behind.state.is_refused):
            # Its limit may be open: nobody has asked the other store since.
            return None
        first = visit.heads[visit.taken]
        return Throttled(behind.ref, self._in_wall_time(behind.opens_at), visit.row.waiting - visit.removed, first.id)

    def _needed_fetches(self) -> list[NeededFetch]:
        """Return the buckets that need starts from another store, each once."""
        now = self.limit_now
        needed: dict[BucketRef, NeededFetch] = {}
        for visit in self.gated:
            found = None if visit.view is None else fetch_needed_by(visit.view, visit.row.waiting - visit.removed, now)
            if found is None:
                continue
            # The first job in line sets the cost of each start: starts fetched at a lower cost are no use to it.
            first = needed.setdefault(found.ref, replace(found, waiting=0))
            discards = first.discards or found.discards
            needed[found.ref] = replace(first, waiting=first.waiting + found.waiting, discards=discards)
        for ref in needed.keys() & self._awaiting_fetch:
            # Only one of the lanes behind it was visited.
            needed[ref] = replace(needed[ref], waiting=max(self.page, needed[ref].waiting))
        return list(needed.values())

    def _in_wall_time(self, instant: int | None) -> int | None:
        """Convert limit time to wall time; None for never."""
        return None if instant is None or instant >= NEVER else self.now + (instant - self.limit_now)

    def _jobs(self, visit: LaneVisit) -> list[ClaimedJob]:
        """Return the jobs of a lane that start."""
        now, limit_now, row = self.now, self.limit_now, visit.row
        opened_at = self._opened_at(row)
        charges = None if visit.view is None else remote_charges(visit.view.buckets)
        jobs = [
            ClaimedJob(
                head.id,
                head.task,
                head.queue,
                head.payload,
                head.attempt + 1,
                head.fence + 1,
                head.lost,
                head.enqueued_at,
                head.run_at,
                now,
                row.buckets,
                None if head.costs is None else without(head.costs, head.exempt),
                limit_now,
                charges,
                head.headers,
                head.options,
                head.origin,
                throttled_for(head.run_at, now, opened_at),
                head.annotations,
                head.unreadable,
                uncharged=() if head.buckets is None else tuple(chosen(head.buckets, head.exempt)),
            )
            for head in visit.heads[: visit.taken]
        ]
        if visit.view is not None and visit.view.leaders:
            return [_with_call(job, visit.view, index, jobs) for index, job in enumerate(jobs)]
        return jobs


def _by_age(row: LaneRow) -> tuple[int, RowId]:
    return row.since or 0, row.id


def _released(rows: Iterable[LaneRow], grants: Mapping[RowId, int]) -> Iterator[LaneRow]:
    """Return the lanes in line, and of those behind each bucket the first ones, as many as it grants."""
    left = dict(grants)
    for row in rows:
        if row.behind is None:
            yield row
        elif left.get(row.behind, 0) > 0:
            left[row.behind] -= 1
            yield row


def _with_call(job: ClaimedJob, view: LaneView, index: int, jobs: Sequence[ClaimedJob]) -> ClaimedJob:
    """Return a claimed job with its call, and without the charges that only the leader of the call has."""
    call, leader = view.calls[index], view.leaders[index]
    if call is None:
        return job
    limits = tuple(job.buckets[place].limit for place in sorted(call.places))
    share = CallShare(jobs[leader].id, view.id, limits)
    if leader == index:
        return replace(job, call=share)
    free = mask_where(place in call.places for place in range(len(job.buckets)))
    return replace(
        job,
        call=share,
        buckets=without(job.buckets, free),
        uncharged=(*job.uncharged, *chosen(job.buckets, free)),
        costs=None if job.costs is None else without(job.costs, free),
        remote_charges=None if job.remote_charges is None else without(job.remote_charges, free),
    )


def sort_heads(heads: list[LaneHead]) -> None:
    """Sort jobs of a lane in the order in which they start."""
    heads.sort(key=_by_rank)


_by_rank = attrgetter("rank", "id")


def throttled_for(run_at: int, started_at: int, opened_at: int | None) -> int:
    """Return how long a job waited for a limit that opened for its lane at `opened_at`; all times in wall time."""
    return 0 if opened_at is None else max(0, min(opened_at, started_at) - run_at)
