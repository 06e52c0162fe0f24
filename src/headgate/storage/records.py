"""The records that a store takes and returns.

Instants are wall microseconds, except where a name says limit time (`limit_now`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from headgate.clock import SECOND
from headgate.jobs.gating import Gates, KnownGates
from headgate.jobs.job import ClaimedJob, Draw, JobError, JobRecord, JobState
from headgate.limits.limit import AnyRule
from headgate.storage.fetched import FetchedBalance

GATE_LIVES = 180 * SECOND
"""How long what a release declares counts that no node notes any more, if whoever notes it does not say (µs)."""


class Room(msgspec.Struct, frozen=True):
    """How many jobs of one queue a node can start now.

    Jobs with limits and jobs without get half of the slots each and what the others leave; `gated_first` says who has
    the odd one.
    """

    slots: int
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
    balance: FetchedBalance


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


class Peer(msgspec.Struct, frozen=True):
    """What the lease of a node is judged by: as of `NodeRecord`."""

    id: str
    beat: int
    is_gone: bool


class Upkeep(msgspec.Struct, frozen=True):
    """What a node asks for every second.

    `has_expired` says whether there are jobs for `expire`, `has_followers` whether there is something for
    `release_followers`, `has_arrived` whether jobs have arrived that the next claim is to merge into their lanes.
    """

    peers: Sequence[Peer] = ()
    has_expired: bool = False
    has_followers: bool = False
    has_arrived: bool = False


class Beat(msgspec.Struct, frozen=True):
    """What a node learns with its heartbeat.

    `known` is False when the node had been declared dead and its jobs taken back. `owned` are the ids and fences of the
    running jobs that the store has it own; `cancels` those of them that a user wants cancelled.
    """

    known: bool
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


class Blocker(msgspec.Struct, frozen=True, array_like=True):
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
    """A place in the list of buckets: those with an `opens_at` come first, then most waiting, then by limit and key.

    Where very many are waited for, only by limit and key.
    """

    opens: bool
    waiting: int
    limit: str
    key: str


class QueuePosition(msgspec.Struct, frozen=True):
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


class JobPage(msgspec.Struct, frozen=True):
    """A page of jobs; `next` is the cursor of the next one, None at the end.

    One that `is_cut` ends before it is full, as so many jobs were read for it: the next one may have more.
    """

    jobs: Sequence[JobRecord]
    next: str | None
    is_cut: bool = False


class JobCount(msgspec.Struct, frozen=True):
    """How many jobs there are; not `is_exact` where there may be more than were counted."""

    count: int
    is_exact: bool


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
