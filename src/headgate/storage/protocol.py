"""The storage protocol: what every store promises, whatever it keeps its rows in.

Jobs wait in *lanes*: all waiting jobs of one queue that draw on the same buckets share one, and the jobs that draw on
none share the queue's open lane. A lane is empty, due, asleep until its earliest `run_at`, or waits behind exactly one
closed bucket. What else sets jobs apart is the lane's *variant*: those that do not wait are rejected when they meet a
closed bucket, those of one owner share its permits.

`claim` takes the lanes that are due and those behind buckets that have opened, asks the rules how many jobs may go,
takes that many, charges the buckets and marks the jobs running, in one commit.

Instants are wall microseconds, except where a name says limit time (`limit_now`): the store's own time for limits,
which never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from headgate.clock import SECOND
from headgate.jobs.audit import AuditEntry, AuditFilter, Deed
from headgate.jobs.batch import BatchRecord, NewBatch
from headgate.jobs.gating import NO_GATES, GatedJob, Gates, KnownGates, Regated
from headgate.jobs.history import Flush, JobsStep, LimitStep
from headgate.jobs.job import Attempt, ClaimedJob, Draw, JobError, JobRecord, JobState, NewJob
from headgate.jobs.lifecycle import Ending
from headgate.jobs.report import LogLine, Report
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.facts import StoreFacts
from headgate.storage.fetched import Balance
from headgate.storage.following import FOLLOWERS_AT_ONCE
from headgate.storage.live_rules import EditSetting, LimitSetting
from headgate.storage.migrations import Migration
from headgate.storage.schedules import DueSchedules, Fired, ScheduleRecord

R = TypeVar("R")


GATE_LIVES = 180 * SECOND
"""How long what a release declares counts that no node notes any more, if whoever notes it does not say (µs)."""


class Room(msgspec.Struct, frozen=True):
    """How many jobs of one queue a node can start now.

    `slots` are free; `ahead` more may be claimed of jobs that draw on no limit, to start as soon as a slot frees.
    Gated and ungated jobs get half of the slots each and what the other leaves; `gated_first` has the odd one.
    """

    slots: int
    ahead: int = 0
    gated_first: bool = True


class Claim(msgspec.Struct, frozen=True):
    """A node asks for jobs: room per queue, and the rules, tasks and gates that it knows.

    Without `gates` it gets jobs that carry none, by their tasks.
    """

    node: str
    rooms: Mapping[str, Room]
    rules: Mapping[str, AnyRule]
    tasks: frozenset[str]
    gates: Gates | None = None

    def known(self, newest: Mapping[str, str]) -> KnownGates:
        """What jobs have to be known by so that this node may start them, where these are the newest gates."""
        return KnownGates(self.tasks) if self.gates is None else self.gates.startable(self.rooms, newest)

    def is_astray(self, task: str, queue: str, newest: Mapping[str, str]) -> bool:
        """Whether a job that is not known is one of a gate that this node has, enqueued under another one."""
        return self.gates is not None and task in self.tasks and self.gates.is_newest(task, queue, newest)


class Throttled(msgspec.Struct, frozen=True):
    """A lane met a closed bucket: which one, until when (None: a permit comes back), and how many jobs wait there."""

    draw: Draw
    opens_at: int | None
    waiting: int


class Starved(msgspec.Struct, frozen=True):
    """Starts have to be fetched for a bucket that is kept elsewhere: so many jobs wait, the first one of that cost.

    `rule` is its `Fetched` rule as it is set now.
    """

    draw: Draw
    rule: Any
    cost: int
    waiting: int


class Deposit(msgspec.Struct, frozen=True):
    """What was fetched for a bucket that is kept elsewhere; see `headgate.storage.fetched`."""

    draw: Draw
    balance: Balance


class Dropped(msgspec.Struct, frozen=True, array_like=True):
    """A waiting job that is final without having run again: it expired, or its limits made it wait too long.

    `attempt` counts the tries that it had spent.
    """

    id: str
    task: str
    queue: str
    state: JobState
    error: JobError
    attempt: int = 0


class Claimed(msgspec.Struct, frozen=True):
    """The jobs that are now this node's to run.

    `next_in`: microseconds until the next bucket or `run_at` opens, None if there is none. `more`: there may be jobs
    left that could go at once, so ask again when there is room. `unknown` are tasks that were met and passed over;
    `astray` the ids of jobs that were passed over because they were enqueued under another gate than this node's.
    `has_strange_lanes` says that lanes were passed over that draw on limits which this node does not know.
    """

    jobs: Sequence[ClaimedJob]
    next_in: int | None
    more: bool = False
    throttled: Sequence[Throttled] = ()
    dropped: Sequence[Dropped] = ()
    starved: Sequence[Starved] = ()
    unknown: Sequence[str] = ()
    astray: Sequence[str] = ()
    has_strange_lanes: bool = False


class Amendment(msgspec.Struct, frozen=True, array_like=True):
    """A start that a bucket counts as `cost` at one instant, and that is to count as `actual` at another (limit time).

    A late start moves, a settled cost grows or shrinks, and an attempt that never began counts as 0.
    """

    draw: Draw
    charged_at: int
    cost: int
    started_at: int
    actual: int


class NodeRecord(msgspec.Struct, frozen=True, array_like=True):
    """A node as others see it. `beat` grows with every heartbeat; `is_gone` when its process is known to have ended.

    It serves `queues`, with so many slots each, and runs that `version` of Headgate. `lingering` are the jobs whose
    attempts were told to end, go on, and take a slot, though they may be over for the store: of the first 100 the ids.
    """

    id: str
    name: str
    pid: int
    started_at: int
    beat_at: int
    beat: int
    running: int
    is_gone: bool = False
    queues: Mapping[str, int] = {}
    version: str = ""
    lingering: Sequence[str] = ()


class Beat(msgspec.Struct, frozen=True):
    """What a node learns with its heartbeat.

    `known` is False when the node had been declared dead and its jobs taken back. `owned` are the ids and fences of the
    running jobs that the store has it own; `cancels` those of them that a user wants cancelled.
    """

    known: bool
    nodes: Sequence[NodeRecord]
    owned: Mapping[str, int]
    cancels: frozenset[str]


class Recovered(msgspec.Struct, frozen=True):
    """What became of a dead node's jobs: ids that wait again, and ids that were failed as poisonous."""

    returned: Sequence[str] = ()
    poisonous: Sequence[str] = ()


class QueueCounts(msgspec.Struct, frozen=True, array_like=True):
    """How many jobs of a queue are in each state."""

    queue: str
    waiting: int
    running: int
    succeeded: int
    failed: int
    cancelled: int


class QueueRecord(msgspec.Struct, frozen=True, array_like=True):
    """A queue that is paused or has waiting jobs, as people look at it; instants are wall time.

    `oldest_at` is when the waiting job that has been ready for longest became ready, by its `run_at` and whatever its
    limits say; a job whose `run_at` is ahead does not count. `ready_at` is since when a job has lacked nothing but a
    free slot: the first ready one of the open lane, the `since` of a lane that is due, the `run_at` of one that has
    slept long enough, the opening of a bucket that lanes of the queue wait behind. Both are None if no job is ready,
    and `ready_at` also while the queue is paused, which it is since `paused_at`.
    """

    queue: str
    paused_at: int | None
    oldest_at: int | None
    ready_at: int | None


class Obstacle(msgspec.Struct, frozen=True, array_like=True):
    """What stands in the way of the store: a "long transaction" of whoever, or a connection that "blocks" others.

    `pid` is that of its connection as the database tells it, `since` wall time, `what` a line for people. `statement`
    is how its last statement begins, which may hold the data of whoever sent it; None where it cannot be seen.
    """

    kind: Literal["long transaction", "blocks"]
    pid: int
    since: int
    what: str
    statement: str | None = None

    def __str__(self) -> str:
        return self.what if self.statement is None else f"{self.what}; last statement: {self.statement}"


class BucketRecord(msgspec.Struct, frozen=True, array_like=True):
    """A bucket as people look at it; instants are limit time.

    `state` is as stored: the limit's own where one state covers all keys. `waiting` jobs in `lanes` lanes wait behind
    it until it opens at `opens_at` (NEVER: when a permit is given back). It is penalised until `closed_until`.
    """

    draw: Draw
    state: str | None
    waiting: int
    opens_at: int | None
    closed_until: int = 0
    lanes: int = 0


class BucketPlace(msgspec.Struct, frozen=True, array_like=True):
    """A place in the list of buckets: those with an `opens_at` come first, then most waiting, then by limit and key."""

    opens: bool
    waiting: int
    limit: str
    key: str


class Standing(msgspec.Struct, frozen=True):
    """Where a waiting job stands: its place in its lane (1 is next), and the buckets that its lane draws on.

    `place` is None beyond the first 100,000. `is_due` lanes are looked at by the next claim that has room.
    """

    place: int | None
    waiting: int
    is_due: bool
    behind: Draw | None
    buckets: Sequence[BucketRecord]
    asks: tuple[tuple[int, ...] | None, tuple[str | None, ...] | None] | None = None


class RecordedStart(msgspec.Struct, frozen=True, array_like=True):
    """A start as it was charged: the key, when (limit time), and the cost."""

    key: str
    started_at: int
    cost: int


JobView = Literal["scheduled", "throttled", "ready", "blocked"]
"""What a waiting job waits for: its time, a limit, a slot, another job."""

FINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list, by id and so by when they were enqueued, the newest first, or the `oldest_first`.

    `cursor` is the id that ended the page before. Instants are wall microseconds, each range from `…_from` up to, not
    including, `…_until`. `limit` and `key` may be one draw's; `node` is whose job it is or was last; `error` is how the
    type of its last error begins; `text` is part of its payload, which is JSON text.
    """

    state: JobState | None = None
    view: JobView | None = None
    queue: str | None = None
    task: str | None = None
    limit: str | None = None
    key: str | None = None
    unique_key: str | None = None
    schedule: str | None = None
    batch: str | None = None
    node: str | None = None
    error: str | None = None
    enqueued_from: int | None = None
    enqueued_until: int | None = None
    finished_from: int | None = None
    finished_until: int | None = None
    text: str | None = None
    oldest_first: bool = False
    cursor: str | None = None
    count: int = 50


class WaitingCount(msgspec.Struct, frozen=True, array_like=True):
    """How many jobs of one queue and task wait for the same kind of thing."""

    queue: str
    task: str
    view: JobView
    jobs: int


class ViewCount(msgspec.Struct, frozen=True, array_like=True):
    """How many jobs of one queue wait for the same kind of thing."""

    queue: str
    view: JobView
    jobs: int


class Storage(Protocol):
    """Where jobs live. Every verb is durable when it returns, and raises StorageUnavailable when it may not be.

    `tests/conformance/storage_suite` holds the tests that a store has to pass.
    """

    @property
    def is_in_process(self) -> bool:
        """Whether its jobs are in the memory of this process: no other process sees them, and they end with it."""
        ...

    @property
    def place(self) -> object | None:
        """Where its tables are, equal to the `place` of a bucket store that is there too; None if none can be."""
        ...

    async def open(self) -> None:
        """Connect, and bring the schema up to date. Raises StorageUnusable for what is not a Headgate database."""
        ...

    async def close(self) -> None:
        """Let go of everything; twice is fine."""
        ...

    async def migrate(self, *, dry_run: bool = False) -> Sequence[Migration]:
        """Bring the schema up to date without opening the store; what was applied, or with `dry_run` would be."""
        ...

    def scratch(self) -> AbstractAsyncContextManager[Callable[[], Storage]]:
        """Make an empty store beside this one, on the same disk or server; what is given opens it, any number of times.

        It is deleted when the block ends, however it ends; all that was opened has to be closed by then. Raises
        StorageUnusable where none can be made, as beside a store that `is_in_process`.
        """
        ...

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the loop when jobs may have become claimable or final, also by other processes.

        It may be called without cause, and once for many causes. Returns the function that ends the watch.
        """
        ...

    def now(self) -> int:
        """Wall time as the store has it, microseconds: what every stored instant is compared with.

        It is the same for all nodes, so one whose own clock is wrong runs nothing early or late.
        """
        ...

    def limit_now(self) -> int:
        """Limit time, microseconds."""
        ...

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        """Store waiting jobs, all or none; by their ids, those for which another job stands that was there already.

        Batches are stored with all their jobs, and before any that follow them. A job that follows one which is not
        final is blocked: it is in no lane, and goes there in the commit that makes its leader final, ready then or at
        its own `run_at`; or is cancelled by it, and whoever follows it in turn. Raises LeaderNotFound.

        Jobs with unique keys are stored as if one after the other. Raises DuplicateJob.
        """
        ...

    async def add_in(self, connection: Any, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """As `add`, but the jobs are there if and only if the open transaction of the caller's connection commits.

        Watchers hear of them at that commit. It suspends only where the connection itself is awaited. Raises
        UnfitConnection, as for any connection where the store `is_in_process`.
        """
        ...

    async def claim(self, claim: Claim) -> Claimed:
        """Take jobs that may run now, and charge their buckets, atomically."""
        ...

    async def finish(self, node: str, endings: Sequence[Ending]) -> Sequence[bool | None]:
        """Write how attempts ended; False for each whose job is no longer running under this node and fence.

        None is for each whose job somebody else holds in an open transaction: it is not written, and is to be tried
        again. Nobody else's ending waits for that.

        To repeat it changes nothing: what this node made final under this fence and as it says now counts as written.
        A job whose cancellation was asked for is cancelled instead of waiting again. Permits that its terms do not
        keep are given back in the same commit.
        """
        ...

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        """Let starts count as what they were and when; what is refunded is there for the next claim."""
        ...

    async def cancel(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        """Cancel a waiting job, or ask for the cancellation of a running one.

        Returns the state it was in; final jobs are left as they are. None if there is no such job. A verb that takes a
        `deed` keeps it in the commit that changes something; of a job, if it is audited in full.
        """
        ...

    async def retry(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        """Let a failed or cancelled job wait again, with all its tries.

        It is blocked if what it follows is not final. What was cancelled because of it is blocked again. Raises
        LeaderNotRetried for one that needs the success of what failed or was cancelled: that is to be retried first.
        Returns the state it was in, None if there is no such job. Raises IllegalTransition for any other state.
        """
        ...

    async def run_now(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        """Let a waiting job whose `run_at` is ahead be ready at once; its limits hold as ever.

        Returns the state it was in, None if there is no such job. Raises IllegalTransition if it is not scheduled.
        """
        ...

    async def reschedule(
        self, job_id: str, *, run_at: int | None = None, priority: int | None = None, deed: Deed | None = None
    ) -> JobState | None:
        """Give a waiting job another time to be ready at, another priority, or both; None leaves it as it is.

        A `run_at` that has passed means now. What its limits let it wait counts from its new time. Returns the state it
        was in, None if there is no such job. Raises IllegalTransition if it does not wait. It may be blocked.
        """
        ...

    async def report(self, node: str, reports: Sequence[Report], most_lines: int) -> Sequence[bool | None]:
        """Keep what running attempts say of themselves; False for each that is not this node's under that fence.

        None, as by `finish`, is for what was not kept and is to be tried again.

        Of a job's lines the first `most_lines` are kept, over all its attempts, and one that tells that there were
        more. To repeat it changes nothing.
        """
        ...

    async def logs(self, job_id: str, *, after: int = 0, count: int = 100, newest: bool = False) -> Sequence[LogLine]:
        """What a job has logged, oldest first: the first lines after that number, or the `newest`."""
        ...

    async def note(self, deed: Deed) -> None:
        """Keep what somebody did that no other verb keeps."""
        ...

    async def audit_log(self, filter: AuditFilter) -> Sequence[AuditEntry]:
        """A page of what people did, newest first."""
        ...

    async def job(self, job_id: str) -> JobRecord | None:
        """One job as it is now."""
        ...

    async def batch(self, batch_id: str) -> BatchRecord | None:
        """One batch as it is now."""
        ...

    async def batches(
        self, *, pending_only: bool = False, cursor: str | None = None, count: int = 50
    ) -> Sequence[BatchRecord]:
        """A page of batches, by id and so the newest first; `cursor` is the id that ended the page before."""
        ...

    async def final(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """Those of the jobs that are final."""
        ...

    async def attempts(self, job_id: str) -> Sequence[Attempt]:
        """The attempts of a job that did not succeed, oldest first."""
        ...

    async def jobs(self, filter: JobFilter) -> Sequence[JobRecord]:
        """A page of jobs."""
        ...

    async def count_jobs(self, filter: JobFilter, most: int) -> int:
        """How many jobs a filter lets through, from its cursor on; counted up to `most`."""
        ...

    async def waiting(self, most: int = 100_000) -> Sequence[WaitingCount]:
        """What waiting jobs wait for, by queue and task; of at most so many jobs, whichever they are."""
        ...

    async def views(self) -> Sequence[ViewCount]:
        """What waiting jobs wait for, by queue; all of them, as their lanes have counted them."""
        ...

    async def is_work_left(self, queues: Set[str], tasks: Set[str], *, ready_only: bool) -> bool:
        """Whether a job of these queues runs, on whichever node, or one of these tasks is left to run in one of them.

        What waits in a paused queue is not left; with `ready_only`, nor is what waits for a limit, for its time or for
        another job. It is one look at the store, so what a job adds before it ends is never missed.
        """
        ...

    async def counts(self, *, finals: bool = True) -> Sequence[QueueCounts]:
        """Jobs by queue and state.

        Without `finals` those that are final may be left out: a store that has to look at each of them does not.
        """
        ...

    async def queues(self) -> Sequence[QueueRecord]:
        """The queues that are paused or have waiting jobs, by name; it looks at lanes, never at all their jobs.

        What was added counts at once, whether any node runs or not.
        """
        ...

    async def backlog(self, queue: str) -> int:
        """How many jobs wait in the lanes of a queue; it adds up what lanes count, and looks at no job."""
        ...

    async def pause_queue(self, queue: str, *, deed: Deed | None = None) -> bool:
        """Give out no job of a queue to any node from the next claim on, until it is resumed; False if it was paused.

        Its jobs are added, expired, cancelled and finished as ever. A claim behaves as if it had not asked for the
        queue: it is no reason for `more` or `next_in`. The queue need not have had a job.
        """
        ...

    async def resume_queue(self, queue: str, *, deed: Deed | None = None) -> bool:
        """End a pause, and wake whoever watches; False if there was none."""
        ...

    async def obstacles(self) -> Sequence[Obstacle]:
        """What stands in the way of the store right now, longest first; nothing where nothing can."""
        ...

    async def buckets(
        self,
        limit: str | None = None,
        key: str | None = None,
        count: int = 100,
        *,
        prefix: str | None = None,
        after: BucketPlace | None = None,
    ) -> Sequence[BucketRecord]:
        """Buckets, most waiting first; `prefix` is how their keys begin, `after` where the page before ended."""
        ...

    async def throttled(self, count: int = 10) -> Sequence[BucketRecord]:
        """The buckets that lanes wait behind, most waiting first; it looks at no other, however many keys there are."""
        ...

    async def deposit(self, deposits: Sequence[Deposit]) -> None:
        """Lay down what was fetched from elsewhere, in place of what lies there; who waits for it is looked at."""
        ...

    async def withdraw(self, deposits: Sequence[Deposit]) -> Sequence[int]:
        """Take what is left of these deposits, so that it can be given back; how much of each."""
        ...

    async def visit(
        self, draw: Draw, rules: Mapping[str, AnyRule], look: Callable[[Any], R], *, id: str | None = None
    ) -> R:
        """Call `look` with a `BucketVisit` of the bucket, and keep what it changes, atomically.

        It may be called again if the commit does not succeed. What it notes under an `id` is there at the next visit
        with that id, until it is forgotten.
        """
        ...

    async def standing(self, job_id: str) -> Standing | None:
        """Where a job stands; None if it does not wait."""
        ...

    async def outlook(self, queue: str, draws: Sequence[Draw], variant: str = "") -> Standing:
        """Where a job would stand that was added to this lane now."""
        ...

    async def starts(
        self, limit: str, key: str | None, since: int, *, until: int = NEVER, skip: int = 0, count: int = 10_000
    ) -> Sequence[RecordedStart]:
        """The newest `count` starts that were charged to a limit, newest first, as far as jobs are kept.

        Those from `since` to `until`, both limit time and both included; the first `skip` are left out. The next page
        is until the instant of the last one, and skips those of that instant.
        """
        ...

    async def note_gates(self, gates: Mapping[str, str], *, lives: int = GATE_LIVES) -> Mapping[str, bool]:
        """Note the gates of this release by their subjects; every node repeats that, several times in `lives`.

        Returns the subjects of which no newer gate lives, each with whether its backlog is still to be moved to this
        one. Newer is what was seen for the first time later, so an old worker that starts again is not; a gate lives
        for `lives` microseconds after it was last noted, so after a rollback the older one is the newest again. The
        backlog has to be moved to a gate that is new, and when another one was noted since it was moved to this one.
        Once it has returned, no claim starts a job of a subject for a node whose gate is not the newest one.
        What a release declares of a schedule is noted in the same way, as "schedule NAME", and has no backlog.
        """
        ...

    async def gates_done(self, gates: Mapping[str, str]) -> None:
        """The backlog of these subjects is where these gates would have it, and no longer where others would."""
        ...

    async def gated_jobs(
        self,
        tasks: frozenset[str],
        *,
        unknown_to: frozenset[str] | None = None,
        other_than: KnownGates = NO_GATES,
        ids: Sequence[str] | None = None,
        after: str = "",
        count: int = 100,
    ) -> Sequence[GatedJob]:
        """Waiting jobs of these tasks that carry other gates, by id; of `ids` only those, whatever they carry.

        With `unknown_to`, those that draw on a limit that is not in that set.
        """
        ...

    async def regate(self, jobs: Sequence[Regated]) -> int:
        """Move jobs that still wait to the lanes of what they ask for now; how many were.

        They keep their priority and their place by `run_at`, and can be started by who knows their new gate. A permit
        that a job holds and does not ask for any more is given back.
        """
        ...

    async def settings(self) -> Sequence[LimitSetting]:
        """What is set about limits at run time."""
        ...

    async def change(self, setting: LimitSetting, *, remove: bool = False, deed: Deed | None = None) -> None:
        """Store a setting, or remove it; the jobs that wait for its limit are looked at again under what holds now."""
        ...

    async def edit_setting(self, about: LimitSetting, edit: EditSetting, *, deed: Deed | None = None) -> bool:
        """Let `edit` say what is set for the limit, scope and target of `about`; whether that is a change.

        It is given what is set, and no other change comes in between. What sets nothing any more is removed. The deed
        is recorded with a change.
        """
        ...

    async def penalize(self, draw: Draw, until: int, *, deed: Deed | None = None) -> None:
        """Let nothing start on a bucket before that limit time."""
        ...

    async def reset(self, draw: Draw, *, deed: Deed | None = None) -> int:
        """Make a bucket as good as new; permits held by jobs that are not running come back. How many are still held.

        The bucket with the key "" of a dynamic window is the state of all its keys.
        """
        ...

    async def forget(self, limit: str, *, deed: Deed | None = None) -> bool:
        """Delete a limit's settings and buckets; False, and the deed is not kept, if there were none.

        Raises LimitInUse while jobs wait for it or hold its permits.
        """
        ...

    async def put_schedule(self, record: ScheduleRecord, *, replaces: int | None, anew: bool = False) -> bool:
        """Store a schedule in place of the one of its name and of that revision; None: there is none.

        False, and nothing is written, if that is not so any more. What its jobs come to is counted by the store: the
        `open` of the record is not looked at, and its `runs` only if it begins `anew`.
        """
        ...

    async def take_over_schedule(self, record: ScheduleRecord, *, was: str, replaces: int) -> bool:
        """Store a schedule in place of the one of another name, `was`, and of that revision, in one commit.

        Its jobs that are not final become those of the new name, and its count is kept. False, and nothing is written,
        if it is not so any more, or there is one of the new name.
        """
        ...

    async def schedules(
        self, *, name: str | None = None, after: str = "", count: int = 1000
    ) -> Sequence[ScheduleRecord]:
        """Schedules by name: the one of that name, or a page of those above `after`."""
        ...

    async def due_schedules(
        self, tasks: frozenset[str], *, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> DueSchedules:
        """The schedules of these tasks that are due and not paused, but for those that a node is `unable` to fire."""
        ...

    async def overdue_schedules(
        self, tasks: frozenset[str], *, before: int, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> Sequence[ScheduleRecord]:
        """The schedules that were due before then and are not paused, of other tasks than these or named `unable`."""
        ...

    async def schedules_formerly(self, name: str) -> Sequence[ScheduleRecord]:
        """The schedules that had this name before they were taken over."""
        ...

    async def fire(self, fired: Sequence[Fired]) -> Sequence[bool]:
        """Add the jobs of occurrences and advance their schedules, in one commit; False for each that has changed.

        So each occurrence is enqueued once, however many nodes see that it is due, and a schedule whose advance is
        lost has not enqueued anything either.
        """
        ...

    async def remove_schedule(self, name: str) -> bool:
        """Delete a schedule; what it has enqueued stays. Whether there was one."""
        ...

    async def nodes(self) -> Sequence[NodeRecord]:
        """All nodes."""
        ...

    async def join(self, node: str, name: str, *, queues: Mapping[str, int] | None = None, version: str = "") -> None:
        """Register a node, before its first claim, with its slots by queue. One that is known stays as it is."""
        ...

    async def beat(self, node: str, *, lingering: Sequence[str] = ()) -> Beat:
        """Renew a node's lease, and tell which jobs linger on it."""
        ...

    async def cancels(self, node: str) -> frozenset[str]:
        """The running jobs of a node that a user wants cancelled."""
        ...

    async def leave(self, node: str) -> Recovered:
        """Remove a node that has stopped; what it still owned goes back unspent."""
        ...

    async def recover(self, node: str, beat: int) -> Recovered | None:
        """Take back the jobs of a dead node, unless it has sent a heartbeat since `beat`: then None."""
        ...

    async def expire(self, count: int = 100) -> Sequence[Dropped]:
        """End up to `count` waiting jobs whose `expires_at` or `give_up_at` has passed."""
        ...

    async def release_followers(self, count: int = FOLLOWERS_AT_ONCE) -> int:
        """Release or cancel up to about `count` more followers of what is final, in one commit.

        The commit that makes a job or batch final does so with the first `FOLLOWERS_AT_ONCE`, and notes that others are
        left. Returns of how many leaders some were looked for; 0 when none are left, or others work on all of them.
        """
        ...

    async def prune(
        self,
        finished_before: int,
        count: int = 1000,
        states: frozenset[JobState] = FINAL_STATES,
        *,
        ids: Sequence[str] | None = None,
    ) -> int:
        """Delete up to `count` jobs that finished in these states before then; how many were deleted.

        With `ids` only those of them; what somebody holds in an open transaction is passed over.

        With them go their attempts, log lines and audit entries. Fewer are deleted at once of those that have logged
        much; 0 means that there are none left.
        """
        ...

    async def prune_audit(self, before: int, count: int = 1000) -> int:
        """Delete up to `count` audit entries of before then that are not about a job; how many were deleted."""
        ...

    async def add_history(
        self, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None = None
    ) -> None:
        """Add these steps to what is kept of the same curves; several nodes may do it at once.

        No other verb is kept waiting by it, so it may take several commits. To repeat the last `flush` of a writer with
        the same steps, within an hour, adds what was not added; without one, or later, everything is counted twice.

        What no attempt tells of is counted by the store itself, in the commit that does it: jobs that become final
        without an attempt's word (rejected, expired, cancelled as they wait or with what they follow, poisonous, or
        cancelled instead of waiting again), and what `fire` and `add_in` have added.
        """
        ...

    async def gather_history(self, count: int = 1000) -> int:
        """Add up to `count` notes of what the store has counted itself to its history; how many there were.

        Nodes do it every ten seconds. A store in which commits can add to the same rows without waiting for each other
        leaves no notes.
        """
        ...

    async def jobs_history(self, step: int, queue: str, task: str, since: int) -> Sequence[JobsStep]:
        """The steps of that length which began then or later, in order: of a queue and a task, a queue and ALL, or ALL.

        Of ALL queues and one task they are those of each queue, and not added up. Steps in which nothing happened are
        not there.
        """
        ...

    async def limit_history(self, step: int, limit: str, key: str | None, since: int) -> Sequence[LimitStep]:
        """The same of a limit: of one key, or of all together."""
        ...

    async def prune_history(self, step: int, before: int, count: int = 1000) -> int:
        """Forget up to `count` steps of that length of jobs, and as many of limits, of before then; how many."""
        ...

    async def evict(self, count: int = 1000) -> int:
        """Forget up to `count` idle buckets and empty lanes; nothing changes by it but the room they take."""
        ...

    async def facts(self) -> StoreFacts:
        """What the store says of itself, and of the ground that it stands on."""
        ...

    async def check(self) -> Sequence[str]:
        """Look for contradictions between jobs, lanes and buckets; one sentence for each found."""
        ...


def asked_buckets(
    limit: str | None, key: str | None, count: int, prefix: str | None, after: BucketPlace | None
) -> dict[str, Any]:
    """What `buckets` is asked for, as a statement is told."""
    return {
        "limit": limit,
        "key": key,
        "count": count,
        "prefix": prefix,
        "after_opens": None if after is None else int(after.opens),
        "after_waiting": 0 if after is None else after.waiting,
        "after_limit": "" if after is None else after.limit,
        "after_key": "" if after is None else after.key,
    }
