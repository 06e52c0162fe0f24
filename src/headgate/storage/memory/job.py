"""One job as the memory storage keeps it."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from headgate.jobs.draw_set import NO_DRAWS, DrawSet, union
from headgate.jobs.job import Attempt, JobError, JobState, NewJob, Progress
from headgate.storage.admission import Ask, ask_of

WAITING = JobState.WAITING
RUNNING = JobState.RUNNING
SUCCEEDED = JobState.SUCCEEDED
FAILED = JobState.FAILED
CANCELLED = JobState.CANCELLED

# A lane holds its jobs, and a job names its lane: its type comes from above, so that imports point down only.
L = TypeVar("L")


class Start(NamedTuple):
    """A start as it was charged: when (limit time), for which draws not, and the costs it was settled at, if it was."""

    charged_at: int
    uncharged: DrawSet
    settled: tuple[int, ...] | None


class Job(Generic[L]):
    """A job with the state it is in and what became of its attempts.

    `version` is 0 in the fifo that it arrived in, and grows each time it is placed elsewhere. `lane` is the one it
    waits or runs in; a final or blocked job names the open lane of its queue, so that its own can be forgotten.

    `deadline` is the earlier of `expires_at` and `give_up_at`. `held` and `passed` are sets of its draws.
    `charged_at`, `uncharged` and `settled` are its last start, `starts` those of the attempts that ended.
    """

    __slots__ = (
        "asks_more",
        "attempt",
        "attempts",
        "cancel_requested",
        "charged_at",
        "deadline",
        "delayed",
        "error",
        "expires_at",
        "fence",
        "finished_at",
        "give_up_at",
        "held",
        "is_blocked",
        "lane",
        "lost",
        "new",
        "node",
        "passed",
        "progress",
        "result",
        "run_at",
        "seq",
        "settled",
        "started_at",
        "starts",
        "state",
        "uncharged",
        "version",
    )

    def __init__(self, new: NewJob, seq: int, lane: L) -> None:
        self.become(new)
        self.seq = seq
        self.lane = lane
        self.version = 0
        self.state = WAITING
        self.is_blocked = False
        self.run_at = new.run_at
        self.delayed = new.delayed
        self.deadline: int | None = None
        self.expires_at: int | None = None
        self.give_up_at: int | None = None
        self.attempt = 0
        self.fence = 0
        self.lost = 0
        self.held: DrawSet = NO_DRAWS
        self.passed: DrawSet = NO_DRAWS
        self.node: str | None = None
        self.started_at: int | None = None
        self.finished_at: int | None = None
        self.charged_at: int | None = None
        self.uncharged: DrawSet = NO_DRAWS
        self.settled: tuple[int, ...] | None = None
        self.cancel_requested = False
        self.result: str | None = None
        self.progress: Progress | None = None
        self.error: JobError | None = None
        self.attempts: list[Attempt] | None = None
        self.starts: list[Start] | None = None

    def become(self, new: NewJob) -> None:
        """Ask for what `new` asks for."""
        self.new = new
        # Most jobs ask for a start of cost 1 in each bucket, and this is looked at for each of them.
        self.asks_more = new.terms is not None or new.costs is not None

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def leader(self) -> str | None:
        """What it follows."""
        origin = self.new.origin
        return None if origin is None else origin.follows

    @property
    def batch(self) -> str | None:
        origin = self.new.origin
        return None if origin is None else origin.batch

    @property
    def passes(self) -> DrawSet:
        """The draws that it does not ask for when it starts next: it holds their permits, or its retries are free."""
        return union(self.held, self.passed)

    @property
    def ask(self) -> Ask | None:
        """What it asks of the buckets of its lane."""
        return ask_of(self.new.id, self.new.costs, self.new.terms, union(self.held, self.passed))

    @property
    def start(self) -> Start | None:
        """Its last start, unless that came to count as nothing."""
        return None if self.charged_at is None else Start(self.charged_at, self.uncharged, self.settled)

    def set_deadlines(self, expires_at: int | None, give_up_at: int | None) -> None:
        self.expires_at = expires_at
        self.give_up_at = give_up_at
        instants = [instant for instant in (expires_at, give_up_at) if instant is not None]
        self.deadline = min(instants) if instants else None
