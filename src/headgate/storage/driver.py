"""The port that a database implements: a driver runs procedures in transactions, and a transaction runs statements.

A procedure is an `async def` over a `Transaction`. It reads rows, decides in plain functions, and writes. It locks
rows where several clients write at once. Where there is only one writer, a procedure never suspends.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict, TypeVar, Unpack

from headgate.arguments import unstorable
from headgate.clock import Clock
from headgate.errors import causes_of
from headgate.jobs.batch import NewBatch
from headgate.jobs.identity import is_own_unknown, job_text, remember_own
from headgate.jobs.job import NewJob
from headgate.jobs.lifecycle import Ending
from headgate.limits.limit import AnyRule
from headgate.storage.facts import IndexFacts, StoreFacts
from headgate.storage.migrations import Migration
from headgate.storage.stored_rows import RowDecoder

if TYPE_CHECKING:
    from headgate.storage.records import Claim, Claimed

R = TypeVar("R")

NO_RULES: Mapping[str, AnyRule] = MappingProxyType({})


class OwnId(NamedTuple):
    """The number that a job is stored under, and the id that its caller chose."""

    id: int
    own_id: str


OWN_IDS = RowDecoder(OwnId, "job")


class Transaction(Protocol):
    """Statements by name, inside one transaction. Parameters are keywords, by their names in the statement."""

    has_one_writer: bool
    """Whether no other client can write until this transaction ends, so that no row is locked by one."""

    stepped: int
    """The step of the database's clock that was found when rows were locked, in microseconds."""

    now: int
    """Wall time, in microseconds."""

    limit_now: int
    """Limit time, in microseconds."""

    def take_places(self, count: int) -> int:
        """Return the first of `count` places in the line of lanes: limit time, but after all places taken before."""
        ...

    async def fetch(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        """Return the rows of a statement. Its columns have the names of the rows' fields."""
        ...

    async def row(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> R:
        """Return the only row of a statement, with its columns as they are: the caller decodes JSON text."""
        ...

    async def lock(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        """As `fetch`, for a statement that locks rows. From then on, the time is that of the lock."""
        # With one writer, nothing waits for a lock.
        return await self.fetch(decoder, statement, **parameters)

    async def values(self, statement: str, /, **parameters: Any) -> list[Any]:
        """Return the first column of a statement's rows: text or numbers."""
        ...

    async def ids(self, statement: str, /, **parameters: Any) -> list[str]:
        """Return the first column of a statement's rows: ids of jobs or batches; without NULL."""
        numbers = await self.values(statement, **parameters)
        await self._read_own_ids(set(filter(is_own_unknown, numbers)))
        return [job_text(number) for number in numbers if number is not None]

    async def _read_own_ids(self, numbers: Collection[int]) -> None:
        """Read the texts of these ids, which callers chose and this process has not seen."""
        if numbers:
            for number, text in await self.fetch(OWN_IDS, "own_ids", numbers=list(numbers)):
                remember_own(number, text)

    async def value(self, statement: str, /, **parameters: Any) -> Any:
        """Return the first column of a statement's first row; None without a row."""
        ...

    async def execute(self, statement: str, /, **parameters: Any) -> int:
        """Run a statement that changes rows, and return how many it changed."""
        ...

    def atomic(self, *, prepares: tuple[str, ...] = ()) -> AbstractAsyncContextManager[None]:
        """Commit the statements of a block together, for a procedure that reads before it locks.

        It is for a procedure whose statements otherwise commit by themselves. If a transaction is already open, as
        always with one writer, the block is part of it. The statements named in `prepares` are prepared before the
        block begins, so that no row is locked meanwhile.
        """
        ...


Procedure = Callable[[Transaction], Coroutine[Any, Any, R]]
"""A coroutine function that runs in a transaction."""

Wakes = bool | Callable[[Any], bool]
"""Whether a write calls the watchers, or a function that decides it by the result."""

ReadKind = Literal["engine", "lookup", "list", "scan", "count", "search", "check"]
"""The cost class of a read, which decides what may wait for it.

"engine": a few rows by index, for an engine that cannot continue without them. "lookup": the same for a caller that
reads one job. "list": many rows by index. "scan": may read whole tables. "count": counts all lanes or jobs; no other
read waits for it. "search": reads payloads, or what a report needs; few run at once, and each for a bounded time.
"check": reads everything as of one moment, for as many minutes as it takes.
"""


class WriteOptions(TypedDict, total=False):
    """How a procedure that writes is run."""

    wakes: Wakes
    """Call the watchers of all processes after it."""
    is_atomic: bool
    """Commit all statements together, the default; else each may commit by itself, except in `Transaction.atomic`."""
    may_repeat: bool
    """It may run again after a lost reply, which then changes nothing; for one that is not `is_atomic`."""
    may_be_lost: bool
    """The commit does not wait for the server's disk."""
    empties_lanes: bool
    """Jobs may leave their lanes."""
    takes_buckets: bool
    """It locks buckets, in a process that may run no node."""
    has_rows: bool
    """Its caller leaves out the row that the store cannot hold, which it finds by the driver's error."""


Wake = Callable[[Collection[str] | None], None]
"""Wakes after a change, with the queues of which jobs may have become claimable.

None: of any queue. An empty collection: jobs have become final, and nothing else has changed.
"""


class Driver(ABC):
    """The part of a store that differs between databases: connections, transactions, time and wake-ups.

    `Store` adds the verbs that are procedures. What a verb has changed is durable when it returns; else it raises
    StorageUnavailable.
    """

    is_in_process = False
    """Whether the jobs are in the memory of this process: no other process can read them, and they end with it."""

    migrates_when_opened = False
    """Whether an app creates the tables when it opens the store, unless a setting decides it."""

    numbers_producers = False
    """Whether the database gives each process that enqueues a number of its own, as far as there are numbers."""

    file: Path | None = None
    """The file of the jobs, if they are in one."""

    is_hurried: bool = False
    """Whether a write waits at most a second for other programs that lock `file`, because this process ends."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._watchers: list[Callable[[], None]] = []
        self._queue_watchers: list[Wake] = []

    @property
    def place(self) -> object | None:
        """The place of its tables, equal to the `place` of a bucket store there; None if there can be none."""
        return None

    @property
    def arrival_floor(self) -> int:
        """An id below which no arrival is stored, nor will be."""
        return 0

    @property
    def port(self) -> int | None:
        """The port on which this process receives wake-ups, if other processes need it."""
        return None

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the loop when jobs may have become claimable or final, in this or another process.

        It may be called without a change, and once for many changes. Returns the function that ends the watch.
        """
        self._watchers.append(wake)
        return lambda: self._watchers.remove(wake)

    def watch_queues(self, wake: Wake) -> Callable[[], None]:
        """As `watch`, for jobs that may have become claimable: `wake` gets their queues, or None if it may be any."""
        self._queue_watchers.append(wake)
        return lambda: self._queue_watchers.remove(wake)

    def _wake(self, queues: Collection[str] | None = None) -> None:
        for wake in list(self._watchers):
            wake()
        if queues is None or queues:
            self._wake_queues(queues)

    def _wake_queues(self, queues: Collection[str] | None) -> None:
        for wake in list(self._queue_watchers):
            wake(queues)

    @abstractmethod
    async def open(self, *, migrate: bool = True) -> None:
        """Connect, and create or migrate the tables.

        Without `migrate` nothing is created. Raises StorageUnusable for what is not a Headgate database, and without
        `migrate` also for one that does not exist or lacks a migration.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections; a second call does nothing."""

    @abstractmethod
    async def migrate(self, *, dry_run: bool = False) -> Sequence[Migration]:
        """Bring the schema up to date without opening the store; what was applied, or with `dry_run` would be."""

    @abstractmethod
    def now(self) -> int:
        """Return the store's wall time in microseconds: all stored instants are compared with it.

        It is the same for all nodes, so a node with a wrong clock runs nothing early or late.
        """

    @abstractmethod
    def limit_now(self) -> int:
        """Return limit time in microseconds."""

    @abstractmethod
    async def facts(self) -> StoreFacts:
        """Return facts about the store and the machine that it runs on."""

    @abstractmethod
    async def check_indexes(self) -> IndexFacts:
        """Return whether indexes have the rows of their tables; all tables and indexes are read for it."""

    @abstractmethod
    async def read(self, procedure: Procedure[R], kind: ReadKind) -> R:
        """Run a procedure that only reads. It may run again after a lost connection."""

    @abstractmethod
    async def write(
        self, procedure: Procedure[R], *, changes_job: str | None = None, **options: Unpack[WriteOptions]
    ) -> R:
        """Run a procedure in a transaction. A driver ignores the options that its database does not need.

        With `changes_job`, a caller waits while this job is changed. Raises JobHeld if it, or a follower of it, is
        locked for a second.
        """

    @abstractmethod
    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        """Store waiting jobs, all or none. Returns, by the ids of duplicates, the ids of the existing jobs.

        Batches are stored with all their jobs, and before jobs that follow them. A job that follows one which is not
        final is blocked and in no lane. The commit that makes its leader final puts it into its lane, ready then or at
        its own `run_at`; or cancels or skips it and its own followers. Raises LeaderNotFound.

        Jobs with unique keys are stored as if one after the other. Raises DuplicateJob. An own id under which another
        enqueue has stored a job is mapped to itself. Raises IdInUse if it is a job of another task. With such a job,
        none of them follows a job or is in a batch.

        Additions that wait at the same time are made together.
        """

    @property
    def can_add_in_thread(self) -> bool:
        """Whether `add_in_thread` would store jobs now; any thread may ask."""
        return False

    def add_in_thread(self, jobs: Sequence[NewJob]) -> Mapping[str, str] | None:
        """As `add`, in the calling thread, which must not be that of the loop; None if only the loop can store them.

        Nothing is stored then. It blocks until the commit, and calls no watcher in this thread.
        """
        return None

    @abstractmethod
    async def add_in(self, connection: Any, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """As `add`, but the jobs exist if and only if the open transaction of the caller's connection commits.

        That commit wakes the watchers. It suspends only where the connection itself is awaited. Raises UnfitConnection,
        for any connection if the store `is_in_process`.
        """

    @abstractmethod
    async def complete_in(self, connection: Any, job_id: str, fence: int) -> bool:
        """Complete a running job if and only if the open transaction of the caller's connection commits.

        However its attempt ends then, and also if its node dies, the job has succeeded. False if it does not run under
        this fence any more. It suspends only where the connection itself is awaited. Raises UnfitConnection, as
        `add_in` does.
        """

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a connection for the caller, with a transaction that commits at the end of the block.

        Raises UnfitConnection if the store `is_in_process`, StorageUnavailable if it cannot be reached.
        """

    @abstractmethod
    async def claim(self, claim: Claim) -> Claimed:
        """Take jobs that may run now, and charge their buckets, atomically."""

    @abstractmethod
    async def finish(
        self, node: str, endings: Sequence[Ending], rules: Mapping[str, AnyRule] = NO_RULES
    ) -> Sequence[bool | None]:
        """Write how attempts ended; False for each whose job is no longer running under this node and fence.

        None is for each whose job another open transaction has locked: it is not written and has to be tried again. It
        delays no other ending.

        To repeat it changes nothing: an ending that is already stored, by this node under this fence, counts as
        written. A job whose cancellation was requested is cancelled instead of waiting again. Permits that its terms do
        not keep are returned in the same commit, and corrections are made in it, for the limits in `rules`.
        """


@contextlib.contextmanager
def refusing_unstorable() -> Iterator[None]:
    """Raise DeclarationError instead of the driver's own error about a text that no database can hold.

    Calls that make something check the text before; this is for the others, of which each passes a text to look for.
    """
    try:
        yield
    except Exception as error:
        for cause in causes_of(error):
            if isinstance(cause, UnicodeEncodeError):
                raise unstorable(f"{cause.object!r:.80} has half of a surrogate pair") from error
            if getattr(cause, "sqlstate", None) == "22021":
                raise unstorable("a text that was passed has NUL") from error
        raise


def must_wake(wakes: Wakes, result: Any) -> bool:
    """Whether watchers have to be called after a write with this result or error."""
    return not isinstance(result, Exception) and (wakes(result) if callable(wakes) else wakes)


def run_to_end(procedure: Coroutine[Any, Any, R]) -> R:
    """Run a procedure that never suspends, and return its result.

    No procedure suspends where there is one writer, or on a connection of the caller's that is not awaited.
    """
    try:
        procedure.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    procedure.close()
    raise RuntimeError(f"{procedure!r} awaited something in a transaction that cannot wait")
