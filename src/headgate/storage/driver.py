"""The port that a database implements: a driver runs procedures in transactions, and a transaction runs statements.

A procedure is an `async def` over a `Transaction`. It reads rows, decides in plain functions, and writes. Rows are
locked where several clients write at once; where there is only one writer, nothing in a procedure ever suspends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from headgate.clock import Clock
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import NewJob
from headgate.jobs.lifecycle import Ending
from headgate.storage.facts import StoreFacts
from headgate.storage.migrations import Migration
from headgate.storage.stored_rows import RowDecoder

if TYPE_CHECKING:
    from headgate.storage.procedures.settings import CachedRules
    from headgate.storage.records import Claim, Claimed

R = TypeVar("R")


class Transaction(Protocol):
    """Statements by name, inside one transaction. A parameter is passed by its name in the statement."""

    has_one_writer: bool
    """Whether nobody else can write until this transaction ends, so that no row is locked by another client."""

    estimates_rows: bool
    """Whether the database plans a statement by how many rows it estimates, for the values that are passed."""

    stepped: int
    """By how much the clock of the database had stepped when rows were locked, microseconds."""

    @property
    def now(self) -> int:
        """Wall time, microseconds."""
        ...

    @property
    def limit_now(self) -> int:
        """Limit time, microseconds."""
        ...

    def take_places(self, count: int) -> int:
        """The first of so many places in the line of lanes: limit time, and after all that were taken before."""
        ...

    async def fetch(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        """The rows of a statement, whose columns are named as the fields of the rows."""
        ...

    async def row(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> R:
        """The only row of a statement, from its columns as they are: JSON text in one is decoded by the caller."""
        ...

    async def lock(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        """As `fetch`, for a statement that locks rows; from then on, the time is that at which they were locked."""
        ...

    async def values(self, statement: str, /, **parameters: Any) -> list[Any]:
        """The first column of a statement's rows: text or numbers."""
        ...

    async def value(self, statement: str, /, **parameters: Any) -> Any:
        """The first column of a statement's first row; None without one."""
        ...

    async def execute(self, statement: str, /, **parameters: Any) -> int:
        """Run a statement that changes rows; how many it changed."""
        ...

    def atomic(self, *, prepares: tuple[str, ...] = ()) -> AbstractAsyncContextManager[None]:
        """Commit the statements of a block together, for a procedure that reads before it locks.

        It is called where each statement would commit by itself; where the transaction is open already, as it always
        is with one writer, the block is part of that. The statements that the block `prepares` are prepared before
        it begins, so that nothing is locked meanwhile.
        """
        ...


Procedure = Callable[[Transaction], Coroutine[Any, Any, R]]
"""What runs in a transaction."""

Wakes = bool | Callable[[Any], bool]
"""Whether watchers are called after a write, or a function that says so of its result."""

ReadKind = Literal["engine", "lookup", "list", "scan", "count", "search"]
"""What a read may take from others.

"engine": a few rows by index, for an engine that cannot go on without them. "lookup": the same for somebody who waits
for one job. "list": many rows by index. "scan": whole tables may be read. "count": all lanes or jobs are counted,
and no other read waits for it. "search": payloads are read, few searches run at once, and each for a bounded time.
"""


class Wake(Protocol):
    """Tells this process that something has changed, or that jobs have become final and nothing else."""

    def __call__(self, *, only_endings: bool = False) -> None: ...


class Watcher(NamedTuple):
    """What is called when something has changed, and whether also when jobs have become final and nothing else."""

    wake: Callable[[], None]
    endings: bool


class Driver(ABC):
    """One database: its connections, its transactions, its time, and its wake-ups.

    It raises StorageUnavailable for what may not have been stored or read, and as `Store` otherwise.
    """

    is_in_process = False
    """Whether its jobs are in the memory of this process."""

    file: Path | None = None
    """The file of the jobs, if they are in one."""

    live: CachedRules
    """What is set about limits, as this process last read it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._watchers: list[Watcher] = []

    @property
    def place(self) -> object | None:
        """As `Store.place`."""
        return None

    @property
    def port(self) -> int | None:
        """The port on which this process hears of changes, if others have to know it."""
        return None

    def watch(self, wake: Callable[[], None], *, endings: bool) -> Callable[[], None]:
        """As `Store.watch`."""
        watcher = Watcher(wake, endings)
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def _wake(self, *, only_endings: bool = False) -> None:
        for wake, endings in list(self._watchers):
            if endings or not only_endings:
                wake()

    @abstractmethod
    async def open(self) -> None:
        """As `Store.open`."""

    @abstractmethod
    async def close(self) -> None:
        """As `Store.close`."""

    @abstractmethod
    async def migrate(self, *, dry_run: bool) -> Sequence[Migration]:
        """As `Store.migrate`."""

    @abstractmethod
    def scratch(self) -> AbstractAsyncContextManager[Callable[[], Driver]]:
        """As `Store.scratch`, of drivers."""

    @abstractmethod
    def now(self) -> int:
        """As `Store.now`."""

    @abstractmethod
    def limit_now(self) -> int:
        """As `Store.limit_now`."""

    @abstractmethod
    async def facts(self) -> StoreFacts:
        """As `Store.facts`."""

    @abstractmethod
    async def read(self, procedure: Procedure[R], kind: ReadKind) -> R:
        """Run a procedure that only reads; it may run again after a lost connection."""

    @abstractmethod
    async def write(
        self,
        procedure: Procedure[R],
        *,
        wakes: Wakes = False,
        is_atomic: bool = True,
        may_repeat: bool = False,
        may_be_lost: bool = False,
        changes_job: str | None = None,
        empties_lanes: bool = False,
        takes_buckets: bool = False,
        reads_summaries: bool = False,
    ) -> R:
        """Run a procedure in a transaction, and call the watchers of all processes after it if it `wakes`.

        What a database has no use for, its driver ignores. Unless it `is_atomic`, each of its statements may commit by
        itself, but for those that it runs in `Transaction.atomic`. It `may_repeat` after a lost reply, which changes
        nothing then. It `may_be_lost` with the server: the commit does not wait for a disk. Somebody waits for it as it
        `changes_job`: JobHeld is raised if that job, or what follows it, is locked for a second. It `empties_lanes`:
        jobs may have left them. It `takes_buckets` in a process that may run no node. It `reads_summaries` of pages.
        """

    @abstractmethod
    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> Mapping[str, str]:
        """As `Store.add`; additions that wait together are made together."""

    @abstractmethod
    async def add_in(self, connection: Any, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """As `Store.add_in`."""

    @abstractmethod
    async def claim(self, claim: Claim) -> Claimed:
        """As `Store.claim`."""

    @abstractmethod
    async def finish(self, node: str, endings: Sequence[Ending]) -> Sequence[bool | None]:
        """As `Store.finish`."""


def has_woken(wakes: Wakes, result: Any) -> bool:
    """Whether watchers are to be called after a write that has had this result, or has failed with it."""
    return not isinstance(result, Exception) and (wakes(result) if callable(wakes) else wakes)


def run_to_end(procedure: Coroutine[Any, Any, R]) -> R:
    """Run a procedure that never suspends, as none does where there is one writer; its result."""
    try:
        procedure.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    procedure.close()
    raise RuntimeError(f"{procedure!r} awaited something in a transaction that cannot wait")
