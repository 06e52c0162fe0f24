"""The records that a store takes and returns.

Instants are wall microseconds, except where a name says limit time (`limit_now`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.batch import NewBatch
from headgate.jobs.bucket_mask import NO_BUCKETS, BucketMask
from headgate.jobs.identity import JobId
from headgate.jobs.job import BucketRef, ClaimedJob, JobError, JobOptions, JobState, NewJob
from headgate.jobs.limit_sets import DeclaredLimitSets, KnownLimitSets
from headgate.jobs.query import JobView
from headgate.jobs.scheduled import ScheduledCall
from headgate.limits.limit import AnyRule
from headgate.schedules.schedule import ScheduleProgress, ScheduleRules, Skipped
from headgate.storage.fetched import FetchedBalance

T = TypeVar("T")

Gone = Literal["left", "dead"]

LIMIT_SET_LIVES = 180 * SECOND
"""How long a limit set lives after it was last noted, if the caller gives no other time, in microseconds."""

DECLARATION_LIVES = 3600 * SECOND
"""The time for which the newest declaration of a limit is in force after its last note (microseconds). Then plain code
that no worker accompanies goes by what it declares itself."""


class FreeSlots(msgspec.Struct, frozen=True):
    """How many jobs of one queue a node can start now.

    Jobs with limits and jobs without get half of the slots each, and the slots that the others leave. With
    `gated_first`, jobs with limits get the odd slot.
    """

    slots: int
    gated_first: bool = True
    held: int = 0
    """How many slots its jobs hold now."""
    weight: int = 1
    """Its part of the slots that all queues share, if they are bounded."""


class Claim(msgspec.Struct, frozen=True):
    """A request of a node for jobs: its free slots per queue, and the rules, tasks and limit sets that it has.

    At most `shared_slots` jobs start in all queues together. Without `limit_sets` it gets jobs that carry no limit
    set, by their tasks. It `has_backlog` if the last claim of its queues filled their slots; then the node may claim
    its other queues at the same time. A queue keeps a slot for its first lane if that needs starts of a limit in
    `keeps_for`. It visits `width` times as many lanes as could start jobs.
    """

    node: str
    free_slots: Mapping[str, FreeSlots]
    rules: Mapping[str, AnyRule]
    tasks: frozenset[str]
    limit_sets: DeclaredLimitSets | None = None
    shared_slots: int | None = None
    has_backlog: bool = False
    keeps_for: Set[str] = frozenset()
    width: int = 1

    @property
    def page(self) -> int:
        """How many jobs could start at most in one queue."""
        return max([1, *(free.slots for free in self.free_slots.values())])

    @property
    def lanes(self) -> int:
        """How many lanes, and how many buckets, to read at most."""
        return self.page * self.width

    def without(self, queues: frozenset[str]) -> Claim:
        """Return the claim without some queues."""
        if queues.isdisjoint(self.free_slots):
            return self
        return replace(self, free_slots={each: free for each, free in self.free_slots.items() if each not in queues})

    def known(self, newest: Mapping[str, str]) -> KnownLimitSets:
        """Return the limit sets of jobs that this node may start, where `newest` are the newest ones by subject."""
        if self.limit_sets is None:
            return KnownLimitSets(self.tasks)
        return self.limit_sets.startable(self.free_slots, newest)


class Throttled(msgspec.Struct, frozen=True):
    """A lane met a closed bucket: which, until when (None: until a permit is returned), and how many jobs wait.

    `job_id` is the first of them, which met it.
    """

    ref: BucketRef
    opens_at: int | None
    waiting: int
    job_id: str


class NeededFetch(msgspec.Struct, frozen=True):
    """Starts have to be fetched for a bucket in another store: `waiting` jobs wait, the first one costs `cost`.

    `rule` is its `FetchedStarts` rule as it is set now. `discards` if some of the jobs are rejected if none is fetched.
    """

    ref: BucketRef
    rule: Any
    cost: int
    waiting: int
    discards: bool = False


class Deposit(msgspec.Struct, frozen=True):
    """Starts that were fetched for a bucket in another store; see `headgate.storage.fetched`.

    `period` is that of the rule. `discards` if jobs that do not wait are to be rejected, in case none was fetched.
    """

    ref: BucketRef
    balance: FetchedBalance
    period: int
    discards: bool = False


class Dropped(msgspec.Struct, frozen=True, array_like=True):
    """A job that is final without running again: it expired, its limits made it wait too long, or it is poisonous.

    `attempt` is how many attempts it has had. For the write, it has the lane that it leaves, the permits that it keeps,
    and its fence, if it was read without a lock.
    """

    id: str
    task: str
    queue: str
    state: JobState
    error: JobError
    attempt: int = 0
    lane: str = ""
    kept: BucketMask = NO_BUCKETS
    fence: int | None = None


class Deletion(msgspec.Struct, frozen=True):
    """The jobs that were deleted, those that an unfinished job may need, and the audit entry that records it."""

    deleted: frozenset[str]
    needed: frozenset[str]
    entry: int | None


class Claimed(msgspec.Struct, frozen=True):
    """The jobs that the node may run now.

    `next_in`: microseconds until the next bucket or `run_at` opens, None if there is none. `more`: jobs may be left
    that could start at once, so claim again when there are free slots. `unknown` are the tasks, with the queue, of jobs
    that were skipped because the node does not have them. `limit_set_mismatches` are the ids of jobs that were skipped
    because they were enqueued under another limit set than the node's. `has_unknown_lanes`: lanes were skipped that use
    limits which the node does not have. Each queue in `keeping` has left a slot to starts of that limit.
    """

    jobs: Sequence[ClaimedJob]
    next_in: int | None
    more: bool = False
    throttled: Sequence[Throttled] = ()
    dropped: Sequence[Dropped] = ()
    needed_fetches: Sequence[NeededFetch] = ()
    keeping: Mapping[str, str] = {}
    unknown: Sequence[tuple[str, str]] = ()
    limit_set_mismatches: Sequence[str] = ()
    has_unknown_lanes: bool = False


class Amendment(msgspec.Struct, frozen=True, array_like=True):
    """A start that a bucket counted as `cost` at one instant, and has to count as `actual` at another (limit time).

    A late start moves, a settled cost grows or shrinks, and an attempt that never began counts as 0. `is_refused`: the
    callee refused the start.
    """

    ref: BucketRef
    charged_at: int
    cost: int
    started_at: int
    actual: int
    is_refused: bool = False


class StartMove(msgspec.Struct, frozen=True, array_like=True):
    """A claimed job that is about to start later than it was charged, with the buckets and the costs of its start.

    It counts from `ahead` microseconds after the instant at which the store moves it.
    """

    id: str
    fence: int
    buckets: Sequence[BucketRef]
    costs: Sequence[int]
    ahead: int = 0


class NodeControls(msgspec.Struct, frozen=True):
    """The settings of a node: from its start, and later from operators.

    `queues` has its slots by queue; at most `slots` of them are in use at once (None: all). While it is quiet it
    claims nothing. Once it is stopping it ends when its jobs have ended, or at the end of its grace.
    """

    queues: Mapping[str, int]
    slots: int | None = None
    is_quiet: bool = False
    is_stopping: bool = False

    @property
    def most(self) -> int:
        """The most jobs that run at once."""
        declared = sum(self.queues.values())
        return declared if self.slots is None else min(self.slots, declared)


EditNode = Callable[[NodeControls], NodeControls]
"""Returns what a node is set to do after a change. It may raise a HeadgateError, and then nothing is changed."""


class NodeRecord(msgspec.Struct, frozen=True, array_like=True):
    """A node as others see it. `beat` grows with every heartbeat. `is_gone`: its process has ended.

    `version` is its version of Headgate, `release` that of the user's program. `lingering` are the ids of the first 100
    jobs whose attempts still occupy a slot although they were asked to end; their jobs may have ended in the store.
    """

    id: str
    name: str
    pid: int
    started_at: int
    beat_at: int
    beat: int
    running: int
    is_gone: bool = False
    controls: NodeControls = NodeControls({})
    version: str = ""
    lingering: Sequence[str] = ()
    labels: Sequence[str] = ()
    release: str | None = None


class LostNode(msgspec.Struct, frozen=True):
    """A node that was declared dead at `lost_at`, and how many of its jobs have `returned` to wait again."""

    id: str
    name: str
    pid: int
    started_at: int
    beat_at: int
    version: str
    release: str | None
    lost_at: int
    returned: int


class Peer(msgspec.Struct, frozen=True):
    """The fields of a `NodeRecord` that decide about the node's lease."""

    id: str
    beat: int
    is_gone: bool


class NodeUpdate(msgspec.Struct, frozen=True):
    """The record that a node reads every second.

    `has_expired`: there are jobs for `expire`. `has_followers`: there is work for `release_followers`. `has_arrived`:
    jobs have arrived that the next claim has to merge into their lanes. `controls` is what the node is set to do,
    `name` what it is called.
    """

    peers: Sequence[Peer] = ()
    has_expired: bool = False
    has_followers: bool = False
    has_arrived: bool = False
    controls: NodeControls | None = None
    name: str | None = None


class Beat(msgspec.Struct, frozen=True):
    """The reply to a heartbeat.

    `known` is False if the node was declared dead and its jobs were taken back. `owned` are the ids and fences of the
    running jobs that the store has under this node. `cancels` are those of them whose cancellation was requested.
    """

    known: bool
    owned: Mapping[str, int]
    cancels: frozenset[str]


class Recovered(msgspec.Struct, frozen=True):
    """The jobs of a dead node: the ids of those that wait again, failed as poisonous, were complete, or were cancelled.

    `known`: the node had left, or was found dead, before, and other transactions had locked these jobs.
    """

    returned: Sequence[str] = ()
    poisonous: Sequence[str] = ()
    completed: Sequence[str] = ()
    cancelled: Sequence[str] = ()
    known: Gone | None = None


class QueueCounts(msgspec.Struct, frozen=True, array_like=True):
    """How many jobs of a queue are in each state."""

    queue: str
    waiting: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int = 0


class QueueRecord(msgspec.Struct, frozen=True, array_like=True):
    """A queue that is paused or has waiting jobs; instants are wall time.

    `oldest_at` is when the job became ready that has been ready for longest, by its `run_at` and whatever its limits. A
    job with a `run_at` in the future does not count; nor does, with aging, one behind 1,000 jobs of its lane.
    `ready_at` is since when a job has lacked only a free slot: since it is ready, or since the bucket has opened that
    its lane last waited behind. Both are None if no job is ready, and `ready_at` also while the queue is paused. It is
    paused since `paused_at`.
    """

    queue: str
    paused_at: int | None
    oldest_at: int | None
    ready_at: int | None


class Blocker(msgspec.Struct, frozen=True, array_like=True):
    """A session that delays the store: it has a "long transaction" open, or its connection "blocks" others.

    `pid` is the connection's id in the database (0: a prepared transaction), or the process that holds a SQLite file;
    `since` is wall time; `what` is for users. `statement` is the beginning of its last one, if readable.
    """

    kind: Literal["long transaction", "blocks"]
    pid: int
    since: int
    what: str
    statement: str | None = None

    def __str__(self) -> str:
        return self.what if self.statement is None else f"{self.what}; last statement: {self.statement}"


class BucketRecord(msgspec.Struct, frozen=True, array_like=True):
    """A bucket; instants are limit time.

    `state` is as stored: that of the limit where one state covers all keys. `waiting` jobs in `lanes` lanes wait behind
    it until it opens at `opens_at` (NEVER: when a permit is returned). It is penalized until `closed_until`.
    """

    ref: BucketRef
    state: str | None
    waiting: int
    opens_at: int | None
    closed_until: int = 0
    lanes: int = 0


class BucketPlace(msgspec.Struct, frozen=True, array_like=True):
    """A position in the list of buckets: those with an `opens_at` first, then most waiting, then by limit and key.

    Where lanes wait behind very many buckets, it is only by limit and key.
    """

    opens: bool
    waiting: int
    limit: str
    key: str


class Demand(NamedTuple):
    """What a job needs of its lane's buckets: each cost (None: 1) and each permit holder (None: rates)."""

    costs: tuple[int, ...] | None
    holders: tuple[str | None, ...] | None


class LaneCall(NamedTuple):
    """A call that handles up to `size` jobs of a lane; `places` are those of the lane's buckets that count calls."""

    size: int
    places: frozenset[int]


class QueuePosition(msgspec.Struct, frozen=True):
    """The position of a waiting job in its lane (1 is next), and the buckets that the lane uses.

    `position` is None beyond the first 100,000. `is_due`: the next claim with free slots visits the lane.
    """

    position: int | None
    waiting: int
    is_due: bool
    behind: BucketRef | None
    buckets: Sequence[BucketRecord]
    demand: Demand | None = None
    call: LaneCall | None = None


class KeyWaiting(msgspec.Struct, frozen=True):
    """A key of a fair queue and its number of waiting jobs; with two levels, the first key."""

    key: str
    jobs: int


class WaitingByKey(msgspec.Struct, frozen=True):
    """The keys of a fair queue with most waiting jobs, among `keys`; it is not exact if not all lanes were read."""

    counts: Sequence[KeyWaiting]
    keys: int
    is_exact: bool


class RecordedStart(msgspec.Struct, frozen=True, array_like=True):
    """A start as it was charged: its key, its time (limit time), and its cost."""

    key: str
    started_at: int
    cost: int


CountedView = Literal["scheduled", "throttled", "ready", "blocked", "running"]
"""What the jobs of a count wait for, as `JobView`, or that they run."""

FINAL_STATES = frozenset(state for state in JobState if state.is_final)


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list; `next` is the cursor of the next page, null at the end."""

    items: Sequence[T]
    next: str | None = None


class JobCount(msgspec.Struct, frozen=True):
    """How many jobs there are. Without `is_exact` there may be more than were counted."""

    count: int
    is_exact: bool


class WaitingCount(msgspec.Struct, frozen=True, array_like=True):
    """How many jobs of one queue and task wait for the same kind of thing.

    `due_at` is when the first of them was due (wall microseconds); None if they follow other jobs.
    """

    queue: str
    task: str
    view: JobView
    jobs: int
    due_at: int | None = None


class ViewCount(msgspec.Struct, frozen=True, array_like=True):
    """How many jobs of one queue wait for the same kind of thing, or how many run."""

    queue: str
    view: CountedView
    jobs: int


class LimitBacklog(msgspec.Struct, frozen=True, array_like=True):
    """How many jobs wait for one limit, and for how many of its keys."""

    limit: str
    jobs: int
    keys: int


class KeyBacklog(msgspec.Struct, frozen=True, array_like=True):
    """A bucket with the jobs that wait for it to open, and how much one of these jobs costs."""

    bucket: BucketRecord
    cost: int = 1


class BacklogCounts(msgspec.Struct, frozen=True):
    """How many jobs run and wait, by queue and what they wait for; those that wait for limits also by limit.

    All are of one instant: the sum over `limits` is the sum of the throttled jobs in `views`. `worst` are the keys with
    most waiting jobs of each limit, most first.
    """

    views: Sequence[ViewCount]
    limits: Sequence[LimitBacklog] = ()
    worst: Sequence[KeyBacklog] = ()


class LimitFigures(msgspec.Struct, frozen=True, array_like=True):
    """How many keys of a limit have a stored state, and how many starts since an instant were not charged to it."""

    limit: str
    keys: int
    unlimited: int


class Dependency(msgspec.Struct, frozen=True):
    """A job or a batch before or after a job; a batch has no task.

    `state` is that of the job, "blocked" included; a batch that is not final is "pending". None if it is not stored any
    more. `needs` is which end of its leader the follower needs: "success", "failure" or "final"; None: the default.
    """

    id: JobId
    task: str | None
    state: str | None
    needs: str | None


class Dependencies(msgspec.Struct, frozen=True):
    """The jobs that a job follows, and those that follow it: the first 100 of each, by id."""

    leaders: Sequence[Dependency]
    followers: Sequence[Dependency]


class Downstream(msgspec.Struct, frozen=True):
    """The ids of the jobs that are cancelled with a batch: those in it and after it, in the order to cancel them.

    First those that the end of others would release, each before the jobs that it follows. Of the `others`, blocked
    ones come last: those that a leader's end cancels come back when that leader is retried. `requested` are jobs whose
    cancellation was requested before.
    """

    released: Sequence[str]
    others: Sequence[str]
    requested: Sequence[str]


class DeployRecord(msgspec.Struct, frozen=True, array_like=True):
    """The start of another release of the user's program: its first node's wall time in microseconds."""

    at: int
    release: str


class GraphNode(msgspec.Struct, frozen=True):
    """A job, a batch, or a group of a graph.

    A batch has no task, but perhaps a `name`, and counts its jobs: `total`, of which `done` are final.

    `state` is that of the job; for a waiting one what it waits for: "ready", "throttled", "scheduled" or "blocked". A
    batch that is not final is "pending". None if it is not stored any more.

    A group has `counts`, how many of its `total` jobs (or batches, without a task) are in each state, and the most
    urgent of these states; no job has its id. `depth` is its layer. If `is_at_least`, there may be more than it counts.
    """

    id: str
    task: str | None
    state: str | None
    total: int | None = None
    done: int | None = None
    counts: Mapping[str, int] | None = None
    depth: int | None = None
    is_at_least: bool = False
    name: str | None = None


class GraphEdge(msgspec.Struct, frozen=True):
    """The job `target` follows `source`, and needs its "success", its "failure", or any end: "final".

    If `needs` is "member", `source` is a job or batch in the batch `target`.
    """

    source: str
    target: str
    needs: str


class JobGraph(msgspec.Struct, frozen=True):
    """Jobs and batches that are connected, and what follows what.

    If it `is_folded`, they were too many: those with one task and the same depth are one group. `critical` are the ids
    on the path that decides when the last one ends, in order; none if it is folded.
    """

    nodes: Sequence[GraphNode]
    edges: Sequence[GraphEdge]
    is_folded: bool
    critical: Sequence[str] = ()


class ScheduleRecord(msgspec.Struct, frozen=True, array_like=True):
    """A schedule as it is stored; instants are wall microseconds.

    `last_job` is the id of the last job that it enqueued, or of the last batch around a graph. It is paused since
    `paused_at`. `revision` grows with each write; a write compares it with the one that it has read. `is_declared`:
    code has declared it with `@app.schedule`; `formerly` is its earlier name if that code has renamed it. `skipped` is
    why its last occurrence that did not run was skipped, at `skipped_at`; `skips` of them were counted. `unreadable`
    names the fields of the row that could not be read, and why; they are blank, and such a record is never written
    back.
    """

    name: str
    call: ScheduledCall
    rules: ScheduleRules
    course: ScheduleProgress
    last_job: JobId | None = None
    paused_at: int | None = None
    revision: int = 0
    is_declared: bool = False
    formerly: str | None = None
    skipped: Skipped | None = None
    skipped_at: int | None = None
    skips: int = 0
    unreadable: str | None = None


class Fired(msgspec.Struct, frozen=True):
    """The jobs of one schedule, and its progress after them; written only if the schedule's revision is unchanged."""

    name: str
    revision: int
    next_at: int | None
    last_at: int | None
    jobs: Sequence[NewJob] = ()
    skipped: Skipped | None = None
    skipped_at: int | None = None
    skips: int = 0
    batches: Sequence[NewBatch] = ()

    @property
    def runs(self) -> Sequence[str]:
        """The ids of the batches that are occurrences: those of a graph."""
        return [batch.id for batch in self.batches if batch.schedule is not None]

    @property
    def last_job(self) -> str | None:
        """The id of the last job; for a graph, the id of its batch."""
        return self.runs[-1] if self.batches else self.jobs[-1].id if self.jobs else None

    @property
    def opened(self) -> int:
        """How many of the jobs are not final at once; of graphs, how many there are."""
        return len(self.runs) if self.batches else sum(job.rejection is None for job in self.jobs)


class DueSchedules(msgspec.Struct, frozen=True):
    """The due schedules, the longest overdue first, and when the next one is due (None: never)."""

    due: Sequence[ScheduleRecord]
    next_at: int | None


class EndedAttempt(msgspec.Struct, frozen=True, array_like=True):
    """An attempt that did not succeed: of which job, its number, when it ended, and whether it has an error."""

    job: JobId
    number: int
    ended_at: int
    has_error: bool


class StoredEnd(msgspec.Struct, frozen=True, array_like=True):
    """How a job became final, and when (wall microseconds); `error` is the type of its last error."""

    id: JobId
    task: str
    queue: str
    state: JobState
    attempt: int
    finished_at: int
    batch: JobId | None
    buckets: tuple[BucketRef, ...]
    options: JobOptions | None
    error: str | None


class EndsRead(NamedTuple):
    """Ends in their order, as read at `now`; `is_full` says that more may follow the last one."""

    ends: Sequence[StoredEnd]
    now: int
    is_full: bool


class StoredError(msgspec.Struct, frozen=True, array_like=True):
    """A job with its last error. `attempt` is how many attempts it has had."""

    id: JobId
    task: str
    queue: str
    state: JobState
    attempt: int
    finished_at: int | None
    error: JobError | None
    buckets: tuple[BucketRef, ...]
