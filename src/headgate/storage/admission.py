"""Admission: decide how many jobs of each lane may start now. Pure, and the same for every store.

A store reads the lanes that are due or that wait behind an opened bucket, their buckets and the first jobs of each
lane; `admit` decides; the store writes the decision. Lanes take turns of a few jobs. A lane that meets a closed bucket
waits behind it. A bucket with lanes behind it is closed to other lanes until it opens, so that cheap jobs do not
starve a costly job at the head of its wait list. In a fair queue the lane with the lowest virtual time starts its next
job.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence, Set
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec

from headgate.clock import SECOND
from headgate.errors import CostExceedsLimit
from headgate.jobs.bucket_mask import NO_BUCKETS, BucketMask, without
from headgate.jobs.job import BucketRef, RemoteCharge
from headgate.jobs.terms import LimitTerms
from headgate.limits.concurrency import NO_PERMITS, batches_of
from headgate.limits.fair import TurnGroup, TurnLine
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER, Snapshot
from headgate.storage.fetched import FetchedStarts
from headgate.storage.records import Demand, FreeSlots, LaneCall, NeededFetch

QUANTUM = 4
"""How many jobs a lane may start before the next lane has its turn."""

FAIR_LANES = 16
"""The lanes of a fair queue over which the starts of one claim are spread, if so many are in line."""

FLAWED_FOR = 10 * SECOND
"""How long a key is closed whose rule has raised an error."""

FOR_ALL_KEYS = ""
"""The key of the bucket in which a dynamic window stores one state for all its keys."""


_flawed: set[str] = set()
"""The limits whose rule has raised an error in this process, which logs the first one of each."""

logger = logging.getLogger("headgate.storage")

RowId = str
"""The id of a lane or a bucket."""

NO_PLACES: Set[int] = frozenset()
"""The places of no buckets: a job that starts a call pays in all of them."""


class BucketView:
    """A bucket during one claim.

    `opens_at` is set while lanes wait behind it. `state` is None for a bucket that no job has used.

    A dynamic window has one state for all keys, in `home`, the bucket of the limit itself. `home` also has the
    `rivals`: keys with an opened bucket and lanes behind it. Every other bucket is its own home.
    """

    __slots__ = ("charged", "closed_until", "home", "id", "opens_at", "ref", "rivals", "rule", "state")

    def __init__(
        self, ref: BucketRef, rule: AnyRule, state: Any, *, id: RowId | None = None, opens_at: int | None = None
    ) -> None:
        self.id = id
        self.ref = ref
        self.rule = rule
        self.state = state
        self.opens_at = opens_at
        self.closed_until = 0
        self.charged = False
        self.home: BucketView = self
        self.rivals: set[str] = set()

    def take(self, now: int, cost: int = 1, holder: str = "") -> tuple[int, Any]:
        """Return when the rule admits `cost`, and the state of the home after that."""
        home = self.home
        return self.rule.for_key(self.ref.key, home.rivals, holder).take(home.state, now, cost)

    def snapshot(self, now: int) -> Snapshot:
        """Return what is shown of the bucket."""
        return self.rule.for_key(self.ref.key).snapshot(self.home.state, now)

    @property
    def remote_charge(self) -> RemoteCharge | None:
        """When its starts were charged in another store; None if its limit is kept in this one."""
        state = self.state
        if not isinstance(self.rule, FetchedStarts) or state is None or not state.charged_at:
            return None
        return RemoteCharge(state.charged_at, state.charged_at - state.fetched_at)

    def needs_fetch(self, now: int, cost: int = 1) -> bool:
        """Whether more starts have to be fetched from another store before it can grant `cost`."""
        rule = self.rule
        return self.closed_until <= now and isinstance(rule, FetchedStarts) and rule.needs_fetch(self.state, now, cost)

    def may_be_open(self, now: int, cost: int) -> bool:
        """Whether a closed bucket may be open to a job: only a fetch from another store tells, or its rule does not."""
        has_line = self.opens_at is not None and self.opens_at > now
        is_flawed = self.closed_until <= now and self.is_flawed(now, cost)
        return is_flawed or self.needs_fetch(now, NEVER if has_line else cost)

    def is_flawed(self, now: int, cost: int = 1) -> bool:
        """Whether its rule raises an error, so that it does not say that nothing is left."""
        try:
            self.take(now, cost)
        except Exception as error:
            return not isinstance(error, CostExceedsLimit)
        return False

    def is_held_by(self, holder: str | None) -> bool:
        """Whether `holder` already has a permit and so may start, whichever lanes wait behind the bucket."""
        return holder is not None and self.rule.holds_permits and holder in (self.state or NO_PERMITS).holders

    def set_state(self, state: Any) -> None:
        """Store the state after a charge."""
        home = self.home
        home.state = state
        home.charged = True

    @property
    def stored(self) -> tuple[str | None, int]:
        """The stored state, and the limit time from which it may be deleted; (None, 0) if never used."""
        return (None, 0) if self.state is None else (self.rule.dump(self.state), self.rule.idle_at(self.state))

    def amend(self, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        """Correct the cost and the time of a charged start, as `Rule.amend` does."""
        home, rule = self.home, self.rule.for_key(self.ref.key)
        try:
            if home.state is None:
                home.state = rule.amend_forgotten(charged_at, started_at, actual)
            else:
                home.state = rule.amend(home.state, charged_at, cost, started_at, actual)
        except Exception as error:
            self.log_flaw(error)
            return
        if home.state is not None:
            home.charged = True

    def refuse(self, charged_at: int, now: int) -> None:
        """Note that the callee has refused a start, as `Rule.refused` does."""
        home, rule = self.home, self.rule.for_key(self.ref.key)
        try:
            after = rule.refused(home.state, charged_at, now)
        except Exception as error:
            self.log_flaw(error)
            return
        if after != home.state:
            home.state = after
            home.charged = True

    def grants(self, now: int, most: int) -> int:
        """Return how many starts of cost 1 it grants now, at most `most`."""
        if self.closed_until > now:
            return 0
        home = self.home
        try:
            return self.rule.for_key(self.ref.key, home.rivals).grants(home.state, now, most)
        except Exception as error:
            self.log_flaw(error)
            return 0

    def reopens_at(self, now: int) -> int:
        """Return when it opens for the lanes that still wait behind it; `now` if it is open."""
        if self.opens_at is not None and self.opens_at > now:
            return self.opens_at
        if self.closed_until > now and self.rule.holds_permits and batches_of(self.state or NO_PERMITS):
            # The other jobs of a batch that holds a permit start then, even if all permits are held.
            return self.closed_until
        return max(now, self.closed_until, self.opens_for(now, 1)[0])

    def opens_for(self, now: int, cost: int, holder: str = "") -> tuple[int, Any]:
        """As `take`; but if the rule raises an error, which is a defect, the key is closed for a while.

        So neither the node nor other keys stop. Raises CostExceedsLimit.
        """
        try:
            return self.take(now, cost, holder)
        except CostExceedsLimit:
            raise
        except Exception as error:
            self.log_flaw(error)
            return now + FLAWED_FOR, None

    def log_flaw(self, error: Exception) -> None:
        """Log an error of the rule, once for each limit."""
        if self.ref.limit not in _flawed:
            _flawed.add(self.ref.limit)
            logger.error(
                "the rule of limit %r (%s) raised an error for key %r; where it does, jobs wait, whatever their "
                "on_limit, charges stay as they are, and it is tried again every %d s. Report it, or set another rule",
                self.ref.limit, self.rule.describe(), self.ref.key, FLAWED_FOR // SECOND, exc_info=error,
            )  # fmt: skip


class TurnView(BucketView):
    """The key of a fair queue during one claim: always open, and not stored."""

    def set_state(self, state: Any) -> None:
        pass


class BucketVisit(msgspec.Struct):
    """A bucket that plain code changes in one transaction, with the note that is stored under the id of the request."""

    view: BucketView
    now: int
    note: str | None
    noted_until: int | None = None
    reopens: bool = False
    """Whether permits were returned, so that the lanes behind it have to be read again."""

    def store_note(self, note: str | None, until: int) -> None:
        """Store an answer, None for none, and return the same one to a repeated request until that limit time."""
        self.note, self.noted_until = note, until


class Rejection(NamedTuple):
    """A job that does not wait for a closed bucket: its place among the jobs that were read, the bucket, until when."""

    place: int
    bucket: BucketView
    opens_at: int


class LaneView(msgspec.Struct):
    """A lane during one claim: its buckets, the demands of its first ready jobs, and how many jobs were admitted.

    It waits `since` a limit time, 0 if it has slept. A demand of None is for a start of cost 1 in each bucket and no
    permit. A lane that meets a closed bucket goes `behind` it. One that `discards` its jobs goes on without the job
    that met it, one of the `rejected`, and does not close the bucket; it waits for a fetch, and for a rule that raises.

    `virtual_time` is that of its key in a fair queue, which each start raises by `step`; 0 in other queues. With keys
    of two levels it is that within its `group`. A lane is `complete` if all its ready jobs were read.

    `calls` has an entry for each job if some buckets count the calls of its task, and is empty otherwise. `leaders` has
    one for each admitted job then: the place of the job that was charged for the call.
    """

    id: RowId
    queue: str
    buckets: Sequence[BucketView]
    demands: list[Demand | None]
    discards: bool = False
    since: int = 0
    virtual_time: int = 0
    step: int = 0
    group: TurnGroup | None = None
    complete: bool = True
    calls: list[LaneCall | None] = []
    leaders: list[int] = []
    taken: int = 0
    rejected: list[Rejection] = []
    behind: BucketView | None = None
    failed: CostExceedsLimit | None = None

    def go_behind(self, bucket: BucketView, opens_at: int) -> None:
        """Put the lane behind the closed bucket that its next job has met."""
        self.behind = bucket
        bucket.opens_at = opens_at

    def reject(self, bucket: BucketView, opens_at: int) -> None:
        """Go on without the next job, which has met this closed bucket."""
        self.rejected.append(Rejection(self.taken + len(self.rejected), bucket, opens_at))
        del self.demands[self.taken], self.calls[self.taken : self.taken + 1]

    @property
    def has_more(self) -> bool:
        return self.taken < len(self.demands)

    @property
    def goes_on(self) -> bool:
        """Whether its next job may start, for example after one that was rejected."""
        return self.has_more and self.behind is None and self.failed is None

    @property
    def quantum(self) -> int:
        """How many jobs it starts in its turn.

        1 for keys that share a ceiling, so that each gets its part; a whole call if a limit counts calls.
        """
        if self.calls and (call := self.calls[self.taken]) is not None:
            return call.size
        for bucket in self.buckets:
            if bucket.home is not bucket:
                return 1
        return QUANTUM


def divided(
    slots: int, usable: Mapping[str, int], held: Mapping[str, int], weights: Mapping[str, int]
) -> dict[str, int]:
    """Divide free slots among queues, so that what they hold then is by their weights.

    What a queue does not want goes to the others. A queue that holds more than its part gets none.
    """
    goals = _by_weight(
        slots + sum(held[queue] for queue in usable),
        {queue: held[queue] + count for queue, count in usable.items()},
        weights,
    )
    return _by_weight(slots, {queue: max(0, goal - held[queue]) for queue, goal in goals.items()}, weights)


def _by_weight(slots: int, usable: Mapping[str, int], weights: Mapping[str, int]) -> dict[str, int]:
    parts = dict.fromkeys(usable, 0)
    while slots and (short := [queue for queue, count in usable.items() if parts[queue] < count]):
        total = sum(weights[queue] for queue in short)
        whole = slots
        for queue in short:
            part = min(usable[queue] - parts[queue], max(1, whole * weights[queue] // total), slots)
            parts[queue] += part
            slots -= part
    return parts


def gated_share(free: FreeSlots, ungated_ready: int) -> int:
    """Return how many free slots of a queue gated jobs may take while `ungated_ready` ungated jobs are ready."""
    half = (free.slots + free.gated_first) // 2
    return max(half, free.slots - ungated_ready)


def admit(lanes: Sequence[LaneView], shares: Mapping[str, int], now: int) -> None:
    """Decide how many jobs of each lane start at limit time `now`, and write the decision into lanes and buckets.

    `shares` is how many gated jobs each queue may start. Lanes take turns, those that wait the longest first; a fair
    queue takes those of all its lanes, which are in the order of their virtual times, at the place of the first one.
    """
    left = dict(shares)
    lines: dict[str, TurnLine] = {}
    turns: deque[LaneView | TurnLine] = deque()
    for lane in sorted((lane for lane in lanes if lane.demands), key=attrgetter("since")):
        if not lane.step:
            turns.append(lane)
        elif lane.queue not in lines:
            of_queue = (each for each in lanes if each.demands and each.step and each.queue == lane.queue)
            turns.append(lines.setdefault(lane.queue, TurnLine(of_queue)))
    while turns:
        turn = turns.popleft()
        if _start_in_line(turn, left, now) if isinstance(turn, TurnLine) else _start_in_lane(turn, left, now):
            turns.append(turn)


def awaited_limit(lane: LaneView, now: int) -> str | None:
    """Return the limit of which the next job of the lane waits for a start to be fetched; the lane goes behind it."""
    lacks_starts = any(bucket.needs_fetch(now) and not bucket.grants(now, 1) for bucket in lane.buckets)
    needed = None if not lacks_starts or _start_next(lane, now) else fetch_needed_by(lane, 0, now)
    return None if needed is None else needed.ref.limit


def _start_in_lane(lane: LaneView, left: dict[str, int], now: int) -> bool:
    """Start jobs of a lane in its turn; return whether it has another one."""
    for _ in range(min(lane.quantum, left[lane.queue], len(lane.demands) - lane.taken)):
        if not _start_next(lane, now):
            break
        left[lane.queue] -= 1
    return left[lane.queue] > 0 and lane.goes_on


def _start_in_line(line: TurnLine, left: dict[str, int], now: int) -> bool:
    """Start jobs of a fair queue in its turn: always the next one of the lane with the lowest virtual time.

    If that lane has jobs that were not read, or its group other lanes, its queue starts no more: they come before the
    jobs of the others.
    """
    turns = QUANTUM * line.size
    lane: LaneView | None
    while (lane := line.first) is not None and turns:
        if not left[lane.queue]:
            line.leave()
        elif lane.has_more and _start_next(lane, now):
            left[lane.queue] -= 1
            turns -= 1
            line.start()
        elif not lane.goes_on:
            hides_jobs = not lane.has_more and not lane.complete
            if line.leave() or hides_jobs:
                left[lane.queue] = 0
    return lane is not None


def _start_next(lane: LaneView, now: int) -> bool:
    """Start the lane's next job, and charge its buckets. If one is closed, charge none: it meets the last to open.

    Returns whether it starts.
    """
    place = lane.taken
    demand = lane.demands[place]
    costs, holders = (None, None) if demand is None else demand
    leader, paid = _call_of_next(lane) if lane.calls else (place, NO_PLACES)
    after: list[tuple[BucketView, Any]] = []
    closed: list[tuple[bool, int, BucketView]] = []
    for index, bucket in enumerate(lane.buckets):
        if index in paid:
            continue
        cost = 1 if costs is None else costs[index]
        try:
            opens_at, state = _try_bucket(bucket, cost, None if holders is None else holders[index], now)
        except CostExceedsLimit as error:
            lane.failed = error
            return False
        after.append((bucket, state))
        if opens_at > now:
            closed.append((lane.discards and not bucket.may_be_open(now, cost), opens_at, bucket))
    if closed:
        is_rejected, opens_at, bucket = max(closed, key=itemgetter(0, 1))
        (lane.reject if is_rejected else lane.go_behind)(bucket, opens_at)
        return False
    for bucket, state in after:
        bucket.set_state(state)
    if lane.calls:
        lane.leaders.append(leader)
    lane.taken += 1
    return True


def _call_of_next(lane: LaneView) -> tuple[int, Set[int]]:
    """Return the place of the job that is charged for the call of the next one, and the buckets that are paid by it."""
    place = lane.taken
    call = lane.calls[place]
    leader = lane.leaders[-1] if lane.leaders else place
    if call is not None and leader < place < leader + call.size and lane.calls[leader] == call:
        return leader, call.places
    return place, NO_PLACES


def _try_bucket(bucket: BucketView, cost: int, holder: str | None, now: int) -> tuple[int, Any]:
    if bucket.closed_until > now:
        return bucket.closed_until, None
    if bucket.opens_at is not None and bucket.opens_at > now and not bucket.is_held_by(holder):
        return bucket.opens_at, None
    return bucket.opens_for(now, cost, holder or "")


def remote_charges(buckets: Sequence[BucketView]) -> tuple[RemoteCharge | None, ...] | None:
    """Return the charge of each bucket of a lane in another store; None if no bucket was charged in one."""
    charges = [bucket.remote_charge for bucket in buckets]
    return tuple(charges) if charges.count(None) < len(charges) else None


def fetch_needed_by(lane: LaneView, waiting: int, now: int) -> NeededFetch | None:
    """Return the bucket that the lane waits for, if starts have to be fetched for it; None otherwise."""
    bucket = lane.behind
    if bucket is None:
        return None
    demand = lane.demands[lane.taken]
    costs = None if demand is None else demand.costs
    cost = 1 if costs is None else costs[lane.buckets.index(bucket)]
    if not bucket.needs_fetch(now, cost):
        return None
    return NeededFetch(bucket.ref, bucket.rule, cost, waiting, lane.discards)


def demand_of(
    job_id: str, costs: tuple[int, ...] | None, terms: LimitTerms | None, exempt: BucketMask = NO_BUCKETS
) -> Demand | None:
    """Return the demand of a job for all its buckets except those in `exempt`."""
    holds = () if terms is None else terms.holds
    if costs is None and not holds:
        return None
    holders = tuple(None if holding is None else holding.holder(job_id) for holding in holds)
    return Demand(None if costs is None else without(costs, exempt), without(holders, exempt) if holds else None)


def call_of(terms: LimitTerms | None, exempt: BucketMask = NO_BUCKETS) -> LaneCall | None:
    """Return the call that a job may be part of, without the buckets in `exempt`; None if no limit counts calls."""
    calls = None if terms is None else terms.calls
    if calls is None:
        return None
    all_places = range(calls.buckets.bit_length())
    counted = without([bool(calls.buckets >> place & 1) for place in all_places], exempt)
    places = frozenset(place for place, is_counted in enumerate(counted) if is_counted)
    return LaneCall(calls.size, places) if places else None
