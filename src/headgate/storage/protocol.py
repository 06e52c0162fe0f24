"""The storage protocol: what every store promises, whatever it keeps its rows in.

Jobs wait in *lanes*: all waiting jobs of one queue that draw on the same buckets share one, and the jobs that draw on
none share the queue's open lane. A lane is empty, due, asleep until its earliest `run_at`, or waits behind exactly one
closed bucket. `claim` takes the lanes that are due and those behind buckets that have opened, asks the rules how many
jobs may go, takes that many, charges the buckets and marks the jobs running, in one commit.

Instants are wall microseconds, except where a name says limit time (`limit_now`): the store's own time for limits,
which never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from headgate.jobs.job import Attempt, ClaimedJob, Draw, JobError, JobRecord, JobState, NewJob
from headgate.jobs.lifecycle import Ending
from headgate.limits.limit import AnyRule


class Room(msgspec.Struct, frozen=True):
    """How many jobs of one queue a node can start now.

    `slots` are free; `ahead` more may be claimed of jobs that draw on no limit, to start as soon as a slot frees.
    Gated and ungated jobs get half of the slots each and what the other leaves; `gated_first` has the odd one.
    """

    slots: int
    ahead: int = 0
    gated_first: bool = True


class Claim(msgspec.Struct, frozen=True):
    """A node asks for jobs: room per queue, and the rules and tasks that it knows."""

    node: str
    rooms: Mapping[str, Room]
    rules: Mapping[str, AnyRule]
    tasks: frozenset[str]


class Throttled(msgspec.Struct, frozen=True):
    """A lane met a closed bucket: which one, until when, and how many jobs wait in that lane."""

    draw: Draw
    opens_at: int
    waiting: int


class Expired(msgspec.Struct, frozen=True, array_like=True):
    """A job that was failed because it had not started by its `expires_at`."""

    id: str
    task: str
    queue: str


class Claimed(msgspec.Struct, frozen=True):
    """The jobs that are now this node's to run.

    `next_in`: microseconds until the next bucket or `run_at` opens, None if there is none. `more`: there may be jobs
    left that could go at once, so ask again when there is room. `unknown` are tasks that were met and passed over.
    """

    jobs: Sequence[ClaimedJob]
    next_in: int | None
    more: bool = False
    throttled: Sequence[Throttled] = ()
    expired: Sequence[Expired] = ()
    unknown: Sequence[str] = ()


class LateStart(msgspec.Struct, frozen=True, array_like=True):
    """Starts that a bucket counts at one instant and that happened at a later one, both limit time."""

    draw: Draw
    charged_at: int
    started_at: int
    cost: int


class NodeRecord(msgspec.Struct, frozen=True, array_like=True):
    """A node as others see it. `beat` grows with every heartbeat; `is_gone` when its process is known to have ended."""

    id: str
    name: str
    pid: int
    started_at: int
    beat_at: int
    beat: int
    running: int
    is_gone: bool = False


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


class BucketRecord(msgspec.Struct, frozen=True, array_like=True):
    """A bucket as people look at it: its stored state, how many jobs wait behind it, and when (limit time) it opens."""

    draw: Draw
    state: str | None
    waiting: int
    opens_at: int | None


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list, newest first; `before` is the id that ended the page before."""

    state: JobState | None = None
    queue: str | None = None
    task: str | None = None
    limit: str | None = None
    key: str | None = None
    before: str | None = None
    count: int = 50


class Storage(Protocol):
    """Where jobs live. Every verb is durable when it returns, and raises StorageUnavailable when it may not be.

    `headgate.testing.conformance` holds the tests that a store has to pass.
    """

    async def open(self) -> None:
        """Connect, and bring the schema up to date. Raises StorageUnusable for what is not a Headgate database."""
        ...

    async def close(self) -> None:
        """Let go of everything; twice is fine."""
        ...

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the loop when jobs may have become claimable or final, also by other processes.

        It may be called without cause, and once for many causes. Returns the function that ends the watch.
        """
        ...

    def limit_now(self) -> int:
        """Limit time, microseconds."""
        ...

    async def add(self, jobs: Sequence[NewJob]) -> None:
        """Store waiting jobs, all or none."""
        ...

    async def claim(self, claim: Claim) -> Claimed:
        """Take jobs that may run now, and charge their buckets, atomically."""
        ...

    async def finish(self, node: str, endings: Sequence[Ending]) -> Sequence[bool]:
        """Write how attempts ended; False for each whose job is no longer running under this node and fence.

        A job whose cancellation was asked for is cancelled instead of waiting again.
        """
        ...

    async def postpone(self, late: Sequence[LateStart], rules: Mapping[str, AnyRule]) -> None:
        """Let starts count as of when they happened: the next window is measured from there."""
        ...

    async def cancel(self, job_id: str) -> JobState | None:
        """Cancel a waiting job, or ask for the cancellation of a running one.

        Returns the state it was in; final jobs are left as they are. None if there is no such job.
        """
        ...

    async def retry(self, job_id: str) -> JobState | None:
        """Let a failed or cancelled job wait again, with all its tries.

        Returns the state it was in, None if there is no such job. Raises IllegalTransition for any other state.
        """
        ...

    async def job(self, job_id: str) -> JobRecord | None:
        """One job as it is now."""
        ...

    async def final(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """Those of the jobs that are final."""
        ...

    async def attempts(self, job_id: str) -> Sequence[Attempt]:
        """The attempts of a job that did not succeed, oldest first."""
        ...

    async def jobs(self, filter: JobFilter) -> Sequence[JobRecord]:
        """A page of jobs, newest first."""
        ...

    async def counts(self) -> Sequence[QueueCounts]:
        """Jobs by queue and state."""
        ...

    async def buckets(
        self, limit: str | None = None, key: str | None = None, count: int = 100
    ) -> Sequence[BucketRecord]:
        """Buckets, most waiting first."""
        ...

    async def nodes(self) -> Sequence[NodeRecord]:
        """All nodes."""
        ...

    async def join(self, node: str, name: str) -> None:
        """Register a node, before its first claim."""
        ...

    async def beat(self, node: str) -> Beat:
        """Renew a node's lease."""
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

    async def expire(self, count: int = 100) -> Sequence[Expired]:
        """Fail up to `count` waiting jobs whose `expires_at` has passed."""
        ...

    async def prune(self, finished_before: int, count: int = 1000) -> int:
        """Delete up to `count` final jobs that finished before then; how many were deleted."""
        ...

    async def evict(self, count: int = 1000) -> int:
        """Forget up to `count` idle buckets and empty lanes; nothing changes by it but the room they take."""
        ...

    async def check(self) -> Sequence[str]:
        """Look for contradictions between jobs, lanes and buckets; one sentence for each found."""
        ...


def poison_error(lost: int) -> JobError:
    """What a job is failed with that lost too many running attempts with their nodes."""
    return JobError(
        type="PoisonousJob",
        message=f"{lost} attempts ended with the death of their node; it is not run again until an operator retries it",
    )


EXPIRED_ERROR = JobError(type="headgate.errors.JobExpired", message="the job was not started by its expires_at")
