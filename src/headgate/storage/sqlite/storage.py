"""SqliteStorage: a store in one SQLite file, with one thread that writes and others that read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, Unpack

import msgspec

from headgate.clock import Clock, microseconds
from headgate.errors import (
    ForkedConnection,
    HeadgateError,
    StorageLost,
    StorageUnavailable,
    StorageUnusable,
    other_loop,
    raise_instead,
)
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import NewJob
from headgate.jobs.lifecycle import Ending
from headgate.jobs.uniqueness import may_have_duplicates
from headgate.limits.limit import AnyRule
from headgate.shielding import OutageLock, shield_until_done
from headgate.storage.batcher import Batcher
from headgate.storage.driver import (
    NO_RULES,
    Procedure,
    ReadKind,
    Transaction,
    WriteOptions,
    refusing_unstorable,
    run_to_end,
)
from headgate.storage.enlisting import enlisted
from headgate.storage.facts import IndexFacts, StoreFacts
from headgate.storage.live_rules import CachedRules
from headgate.storage.migrations import Migration
from headgate.storage.procedures.add import add_jobs
from headgate.storage.procedures.claim import claim_alone
from headgate.storage.procedures.claim_writes import SkippedJobs
from headgate.storage.procedures.finish import FinishResult, complete, finish_all
from headgate.storage.procedures.unique import add_unique, enlist
from headgate.storage.records import Claim, Claimed
from headgate.storage.searching import SEARCH_TIMEOUT, Searches, too_long
from headgate.storage.sqlite import connection as sqlite_file
from headgate.storage.sqlite.connection import Checkpointer
from headgate.storage.sqlite.dialect import STATEMENTS
from headgate.storage.sqlite.peer_notifier import PeerNotifier, lost
from headgate.storage.sqlite.threads import CallThread, Reader
from headgate.storage.sqlite.transactions import (
    Change,
    Places,
    SqliteTransaction,
    Write,
    WriteRolledBack,
    change_of,
    run_all,
    run_each,
    run_in,
)
from headgate.storage.store import Store

R = TypeVar("R")

logger = logging.getLogger("headgate.storage")

# How often each process has opened each file. A fork inherits it, as it inherits the state of the SQLite library.
_opened: Counter[tuple[Path, int]] = Counter()


class UserTransaction:
    """A transaction that a handler has open on a file, or a thread that commits its own jobs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_open = True


# Tasks that are started inside the block inherit it: the block probably waits for them.
_transactions: ContextVar[tuple[UserTransaction, ...]] = ContextVar("headgate_sqlite_transactions", default=())

_PORTS = STATEMENTS["ports"].sql
_OFFSET = "SELECT boot_id, ahead, last_used FROM limit_time"
_decode_ports = msgspec.json.Decoder(list[int]).decode


class SqliteStorage(Store):
    """Jobs in one SQLite file: embedded, durable, shared by any number of processes of one machine.

    With `synchronous` "FULL" (default), a write is on the disk when it returns. "NORMAL" may lose the last writes in a
    power failure, but not in a crash of the program. `patience` (30 s) is how long a write waits for the transaction of
    another connection before it raises StorageUnavailable.

    One thread writes. Writes that wait while a commit is in flight share the next one. While that thread has nothing to
    do, a thread without an event loop commits its own jobs: see `add_in_thread`.
    """

    migrates_when_opened = True

    def __init__(self, path: str | Path, clock: Clock, *, synchronous: str = "FULL", patience: float = 30.0) -> None:
        super().__init__(clock)
        self.live: CachedRules = CachedRules()
        self._skipped = SkippedJobs()
        self.path: Path = Path(path).absolute()
        self.file: Path | None = self.path
        self.is_hurried: bool = False
        self._synchronous = synchronous
        self._patience = patience
        self._batcher: Batcher[Write] = Batcher(self._commit)
        self._writer: sqlite3.Connection | None = None
        # Held while a thread uses the writer.
        self._writer_lock = threading.Lock()
        self._is_writer_wanted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._checkpointer: Checkpointer | None = None
        self._readers: dict[str, Reader] = {}
        self._searches = Searches(clock, at_once=1)
        self._write_thread: CallThread | None = None
        self._transaction_thread: CallThread | None = None
        self._transaction_turn = asyncio.Lock()
        self._transaction_start = OutageLock()
        self._peers: PeerNotifier | None = None
        self._ports: list[int] = []
        self._pid = 0
        self._ahead = 0
        self._places = Places()
        self._broken: str | None = None
        # What the commit in flight has changed.
        self._change: Change = None

    @property
    def port(self) -> int | None:
        return None if self._peers is None else self._peers.port

    def __str__(self) -> str:
        return f"sqlite:///{self.path}"

    @contextlib.asynccontextmanager
    async def scratch(self) -> AsyncIterator[Callable[[], SqliteStorage]]:
        """As `Store.scratch`: a file of its own in a folder beside this one."""
        import tempfile  # Only benchmarks need it, and it imports 8 modules.

        try:
            folder = tempfile.TemporaryDirectory(prefix=".headgate-scratch-", dir=self.path.parent)
        except OSError as error:
            raise StorageUnusable(f"no file can be created beside {self.path}: {error.strerror or error}") from error
        with folder as name:
            path = Path(name) / self.path.name
            yield lambda: SqliteStorage(path, self.clock, synchronous=self._synchronous, patience=self._patience)

    # ---------------------------------------------------------------------------------------- open, close

    async def open(self, *, migrate: bool = True) -> None:
        self._require_no_fork()
        if self._write_thread is not None:
            return
        if self._pid != os.getpid():
            # A thread that does not exist in this fork may have held it.
            self._writer_lock = threading.Lock()
        self._pid = os.getpid()
        self._broken, self.is_hurried = None, False
        _opened[self._open_file] += 1
        self._write_thread = CallThread("headgate-sqlite-writer")
        self._loop = asyncio.get_running_loop()
        # A lock belongs to one event loop.
        self._transaction_turn, self._transaction_start = asyncio.Lock(), OutageLock()
        try:
            connecting = self._in_thread(self._write_thread, self._connect, migrate)
            # A thread cannot be cancelled, and the connections that it opens have to be closed.
            try:
                await shield_until_done(connecting)
            finally:
                self._writer, self._checkpointer, self._readers, self._ahead = connecting.result()
            self._peers = PeerNotifier(self.path, self.clock, self._read_data_version, self._wake, self._break)
            await self._peers.open()
        except BaseException as error:
            await shield_until_done(self.close())
            if isinstance(error, OSError):
                raise_instead(self._translated(error), error)
            raise

    async def migrate(self, *, dry_run: bool = False) -> Sequence[Migration]:
        self._require_no_fork()
        return await asyncio.to_thread(self._migrate, dry_run)

    def _migrate(self, dry_run: bool) -> Sequence[Migration]:
        applied = sqlite_file.prepare(self.path, self.clock, synchronous=self._synchronous, dry_run=dry_run)
        if not dry_run:
            try:
                writer = sqlite_file.connect(self.path, synchronous=self._synchronous, timeout=0)
                with contextlib.closing(writer):
                    # So that the first process to enqueue may do so in a transaction of its own.
                    self._anchor(writer)
            except sqlite3.Error as error:
                raise_instead(sqlite_file.translate(error, self.path), error)
        return applied

    def _connect(self, migrate: bool) -> tuple[sqlite3.Connection, Checkpointer, dict[str, Reader], int]:
        if migrate:
            sqlite_file.prepare(self.path, self.clock, synchronous=self._synchronous)
        else:
            sqlite_file.require_prepared(self.path, self.clock)
        with contextlib.ExitStack() as made:
            try:
                # `begin` waits for locks.
                writer = sqlite_file.connect(self.path, synchronous=self._synchronous, timeout=0)
                made.callback(writer.close)
                (mode,) = writer.execute("PRAGMA journal_mode").fetchone()
                if mode != "wal":
                    raise StorageUnusable(
                        f"{self.path} has the journal mode {mode!r}, as a copy by VACUUM INTO has, and Headgate needs "
                        "'wal': run `headgate migrate APP`, or pass Headgate(migrate=True)"
                    )
                if sqlite_file.is_index_removed(self.path):
                    # What it writes would replace what other processes have written since.
                    raise lost(self.path)
                readers: dict[str, Reader] = {}
                for name in ("lookups", "lists"):
                    readers[name] = Reader(self.path, name)
                    made.callback(readers[name].discard)
                ahead = self._anchor(writer)
                checkpointer = Checkpointer(self.path, writer, self.clock, self._synchronous)
            except sqlite3.Error as error:
                raise_instead(sqlite_file.translate(error, self.path), error)
            made.pop_all()
        return writer, checkpointer, readers, ahead

    def _anchor(self, writer: sqlite3.Connection) -> int:
        """Return the offset of limit time from the boot clock, set by the first process to open the file in a boot.

        An offset that is set is read without the write lock: the thread that waits for this may hold it.
        """
        boot_id = self.clock.boot_id()
        try:
            row = writer.execute(_OFFSET).fetchone()
        except sqlite3.OperationalError as error:
            logger.debug("the offset of %s is read in a transaction, which waits: %s", self.path, error)
            row = None
        if row is not None and row[0] == boot_id:
            return int(row[1])
        sqlite_file.begin(writer, self._waits_for, self.clock, self._warn_slow)
        try:
            row = writer.execute(_OFFSET).fetchone()
            if row is not None and row[0] == boot_id:
                ahead: int = row[1]
            else:
                wall = self.clock.now()
                began = wall if row is None else max(wall, row[2])
                ahead = began - self.clock.monotonic()
                writer.execute(
                    "INSERT OR REPLACE INTO limit_time (id, boot_id, ahead, last_used) VALUES (1, ?, ?, ?)",
                    (boot_id, ahead, began),
                )
            writer.execute("COMMIT")
        finally:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
        return ahead

    async def close(self) -> None:
        if self._write_thread is None or self._pid != os.getpid():
            return
        if self._peers is not None:
            await self._peers.close()
        await self._batcher.drain()
        peers, self._peers = self._peers, None
        readers, self._readers = self._readers, {}
        if "searches" in readers:
            readers["searches"].interrupt()
        thread, self._write_thread = self._write_thread, None
        checkpointer, self._checkpointer = self._checkpointer, None
        if peers is not None and peers.may_others_have_written():
            sqlite_file.prevent_checkpoints(self.path)
        for reader in readers.values():
            await reader.close()
        if checkpointer is not None:
            await self._in_thread(thread, checkpointer.close)
        await self._in_thread(thread, self._alone, self._close_writer)
        thread.shutdown()
        # A transaction that is still open refers to its thread, which ends after it.
        self._transaction_thread = None
        _opened[self._open_file] -= 1

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    @property
    def _open_file(self) -> tuple[Path, int]:
        return self.path.resolve(), self._pid

    def _require_no_fork(self) -> None:
        """Raise ForkedConnection in a fork: SQLite counts locks per file and process; a fork copies only the count."""
        here = os.getpid()
        for (path, pid), count in _opened.items():
            if count and pid != here and path == self.path.resolve():
                raise ForkedConnection(
                    f"{self.path} was open in process {pid} when this process was forked from it, and SQLite's locks "
                    "do not survive a fork, so a write could be lost; open the app after the fork, or start the "
                    "process with 'spawn'"
                )

    def now(self) -> int:
        return self.clock.now()

    def limit_now(self) -> int:
        return self.clock.monotonic() + self._ahead

    # -------------------------------------------------------------------------------------------- writes

    async def write(
        self, procedure: Procedure[R], *, changes_job: str | None = None, **options: Unpack[WriteOptions]
    ) -> R:
        with contextlib.nullcontext() if options.get("has_rows") else refusing_unstorable():
            return await self._write(Write(procedure, wakes=options.get("wakes", False)))  # type: ignore[no-any-return]

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        return await self._write(_addition(jobs, batches)) or {}

    @property
    def can_add_in_thread(self) -> bool:
        """Whether nothing else uses the writer or waits for it.

        Where several threads enqueue at once, all but one share a commit of the thread that writes.
        """
        if self._is_writer_wanted or self._writer_lock.locked() or not self._batcher.is_idle:
            return False
        # What is wrong with the store is raised on the loop.
        return self._write_thread is not None and self._broken is None and self._pid == os.getpid()

    def add_in_thread(self, jobs: Sequence[NewJob]) -> Mapping[str, str] | None:
        if not self.can_add_in_thread:
            return None
        self._require_no_transaction()
        try:
            # In a context of its own, which ends with it, whatever interrupts it.
            added = copy_context().run(self._add_in_thread, jobs)
        finally:
            self._wake_from_thread()
        if isinstance(added, Exception):
            raise added
        return added

    def _add_in_thread(self, jobs: Sequence[NewJob]) -> Mapping[str, str] | Exception | None:
        # A signal handler that writes in the middle would wait for the thread that it interrupts: this refuses it.
        current = UserTransaction(self.path)
        _transactions.set((*_transactions.get(), current))
        try:
            # A lock in C is released by every interrupt.
            with self._writer_lock:
                if self._write_thread is None or self._writer is None:
                    return None
                self._end_interrupted()
                (result,), _ = self._commit_group([_addition(jobs, ())])
        finally:
            current.is_open = False
        return {} if result is None else result

    def _end_interrupted(self) -> None:
        """Roll back what a second KeyboardInterrupt has left open."""
        if self._writer is not None and self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def _wake_from_thread(self) -> None:
        loop = self._loop
        if loop is not None and (self._watchers or self._queue_watchers):
            # A loop that is closed has no watchers any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake)

    def _alone(self, work: Callable[..., R], *arguments: Any) -> R:
        """Run `work` in the thread that writes, while no other thread uses the writer; no further one begins to."""
        self._is_writer_wanted = True
        try:
            with self._writer_lock:
                self._end_interrupted()
                return work(*arguments)
        finally:
            self._is_writer_wanted = False

    async def add_in(self, connection: Any, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """As `Store.add_in`. Nodes notice the changed file within 250 ms."""
        self._require_usable()

        def add(callers: sqlite3.Connection) -> Mapping[str, str]:
            # A lone job is inserted before anything is read.
            if len(jobs) > 1 or may_have_duplicates(jobs):
                callers.execute(STATEMENTS["begin_to_write"].sql)
            return run_to_end(enlist(self._tx(callers), jobs))

        return await run_in(await enlisted(connection), self.path, add)

    async def complete_in(self, connection: Any, job_id: str, fence: int) -> bool:
        self._require_usable()
        return await run_in(
            await enlisted(connection),
            self.path,
            lambda callers: run_to_end(complete(self._tx(callers), job_id, fence)),
        )

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[sqlite3.Connection]:
        """As `Store.transaction`. No other connection can write until it ends.

        The invariant: what ends a transaction never waits behind what waits for that end.
        - Transactions of this process take turns in the order of their calls, so at most one begins or is open, and its
          commit has the thread of transactions for itself.
        - If one cannot begin because the file is locked, those that wait to begin are refused with it.
        - The writes that wait when a turn begins are committed first. So a heartbeat waits for two transactions at
          most, however many handlers open one.
        - A write inside the block is refused: it would wait for the block, and the block for it.
        """
        self._require_file()
        self._require_no_transaction()
        async with contextlib.AsyncExitStack() as block:
            async with self._transaction_start:
                await block.enter_async_context(self._transaction_turn)
                # It raises if the store has been closed meanwhile.
                await self._write(Write(_change_nothing))
                self._require_file()
                thread = self._transaction_thread
                if thread is None:
                    thread = self._transaction_thread = CallThread("headgate-sqlite-transactions")
                with self._translating():
                    connection = sqlite_file.connect(self.path, synchronous=self._synchronous, timeout=0)
                # A transaction that is still open is rolled back.
                block.callback(connection.close)
                await self._begin(thread, connection)
            current = UserTransaction(self.path)
            block.callback(setattr, current, "is_open", False)
            _transactions.set((*(each for each in _transactions.get() if each.is_open), current))
            yield connection
            self._require_index()
            # To its end, even if the caller is cancelled.
            with self._translating():
                await shield_until_done(self._in_thread(thread, connection.execute, "COMMIT"))
            self._require_same_file()

    async def _begin(self, thread: CallThread, connection: sqlite3.Connection) -> None:
        """Begin a write transaction in a thread, which stops waiting for other processes if the caller is cancelled."""
        is_cancelled = threading.Event()
        begin = partial(sqlite_file.begin, is_over=is_cancelled.is_set)
        beginning = self._in_thread(thread, begin, connection, self._waits_for, self.clock, self._warn_slow)
        try:
            with self._translating():
                await asyncio.shield(beginning)
        except asyncio.CancelledError:
            is_cancelled.set()
            await shield_until_done(asyncio.gather(beginning, return_exceptions=True))
            raise

    def _require_no_transaction(self) -> None:
        """Raise HeadgateError inside the block of a transaction on this file, for which the caller would wait."""
        if any(each.is_open and each.path.resolve() == self.path.resolve() for each in _transactions.get()):
            raise HeadgateError(
                f"this would wait for the transaction that is open here on {self.path}, and nothing was stored: pass "
                "its connection, as in `await task.using(connection=connection).enqueue(…)`, or call it after the block"
            )

    async def claim(self, claim: Claim) -> Claimed:
        # The claim takes the time as late as possible: the writes before it in the same commit have taken some.
        work = Write(lambda tx: claim_alone(self._tx(self._writer), claim, self.live, self._skipped))
        claimed: Claimed = await self._write(work)
        if claimed.dropped:
            # Callers may be waiting for the results of the dropped jobs.
            self._wake()
        return claimed

    async def finish(
        self, node: str, endings: Sequence[Ending], rules: Mapping[str, AnyRule] = NO_RULES
    ) -> Sequence[bool | None]:
        finished: FinishResult = await self._write(
            Write(lambda tx: finish_all(tx, node, endings, rules, self.live), wakes=attrgetter("wakes"), ends_jobs=True)
        )
        return finished.written

    def _write(self, write: Write) -> Awaitable[Any]:
        self._require_usable()
        if asyncio.get_running_loop() is not self._loop:
            raise other_loop()
        if _transactions.get():
            self._require_no_transaction()
        return self._batcher.write(write)

    def _commit(self, group: Sequence[Write]) -> asyncio.Future[Sequence[Any]]:
        assert self._write_thread is not None
        committing = self._in_thread(self._write_thread, self._alone, self._commit_for_loop, group)
        committing.add_done_callback(self._wake_after)
        return committing

    def _wake_after(self, _committed: asyncio.Future[Sequence[Any]]) -> None:
        """Call the watchers, before the callers, if the commit that has ended changed what they watch."""
        change, self._change = self._change, None
        if change is not None:
            self._wake(() if change == "endings" else None)

    def _commit_for_loop(self, group: Sequence[Write]) -> Sequence[Any]:
        results, self._change = self._commit_group(group)
        return results

    def _commit_group(self, group: Sequence[Write]) -> tuple[Sequence[Any], Change]:
        """Run all writes in one transaction; a write that fails is rolled back alone, and its error is its result.

        Returns the results, and what watchers are to be woken for.
        """
        connection = self._writer
        assert connection is not None
        try:
            # Without savepoints at first: hardly any write fails after it has changed something.
            results = self._transact(group, partial(run_all, connection))
        except WriteRolledBack:
            results = self._transact(group, partial(run_each, connection, self._tx_again))
        change, peers = change_of(group, results), self._peers
        if change is not None and peers is not None:
            # From this thread, so that a node of another process does not wait for this process's event loop.
            peers.notify(self._ports, only_endings=change == "endings")
        return [self._translated(each) if isinstance(each, sqlite3.Error) else each for each in results], change

    def _tx_again(self) -> SqliteTransaction:
        """Return the transaction as of now, without the settings that were read before a rollback."""
        self.live.forget()
        return self._tx(self._writer)

    def _transact(
        self, group: Sequence[Write], run: Callable[[SqliteTransaction, Sequence[Write]], Sequence[Any]]
    ) -> Sequence[Any]:
        connection = self._writer
        assert connection is not None
        try:
            try:
                sqlite_file.begin(connection, self._waits_for, self.clock, self._warn_slow)
                results = run(self._tx(connection), group)
                if self._peers is not None and any(write.wakes or write.ends_jobs for write in group):
                    # Read here, so that a node that has just joined is notified too.
                    self._ports = _decode_ports(connection.execute(_PORTS).fetchall()[0][0])
                # What it wrote would replace what others have written since.
                self._require_index()
                connection.execute("COMMIT")
            except BaseException:
                # The settings that were read may not have been committed.
                self.live.forget()
                raise
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except (sqlite3.Error, OSError) as error:
            raise_instead(self._translated(error), error)
        # After the commit: a write to a file that can no longer be opened is not reported as stored.
        self._require_same_file()
        return results

    # --------------------------------------------------------------------------------------------- reads

    async def read(self, procedure: Procedure[R], kind: ReadKind) -> R:
        """As `Driver.read`, on a connection for this kind: an engine does not wait for an operator's list or count."""

        def query(connection: sqlite3.Connection) -> R:
            return run_to_end(procedure(self._tx(connection)))

        with refusing_unstorable():
            match kind:
                case "engine" | "lookup":
                    return await self._query("lookups", query)
                case "list" | "scan":
                    return await self._query("lists", query)
                case "count":
                    return await self._query("counts", query, lambda: False)
                case "check":
                    return await self._query("checks", query, lambda: False)
                case "search":
                    return await self._searches.run(partial(self._search, query))

    async def _search(self, query: Callable[[sqlite3.Connection], R]) -> R:
        until = self.clock.monotonic() + microseconds(SEARCH_TIMEOUT)
        return await self._query("searches", query, lambda: self.clock.monotonic() >= until)

    async def _query(
        self, name: str, query: Callable[[sqlite3.Connection], R], is_over: Callable[[], bool] | None = None
    ) -> R:
        """Return the result of a query on the reader of that name, which is opened if need be.

        With `is_over`, it ends if it is cancelled, and raises SearchTooLong once it is over.
        """
        self._require_usable()
        reader = self._readers.get(name)
        if reader is None:
            opened = await self._open_reader(name)
            reader = self._readers.setdefault(name, opened)
            if reader is not opened:
                # Another query has opened one meanwhile.
                await opened.close()
        try:
            return await (reader.run(query) if is_over is None else reader.run_until(query, is_over))
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise too_long() from None
            raise_instead(self._translated(error), error)

    async def facts(self) -> StoreFacts:
        return await self._query("lists", lambda _: sqlite_file.read_facts(self.path.resolve(), self._synchronous))

    async def check_indexes(self) -> IndexFacts:
        """As `Store.check_indexes`. It reads the whole file, so it is on the connection of checks."""
        return await self._query("checks", partial(sqlite_file.check_file, self.path), lambda: False)

    async def _open_reader(self, name: str) -> Reader:
        self._require_file()
        with self._translating():
            # Handlers may occupy all threads of the loop's own executor.
            reader = await self._in_thread(CallThread(f"headgate-sqlite-open-{name}"), Reader, self.path, name)
        try:
            # The store may have been closed meanwhile, or the file lost: then this connection is to another file.
            self._require_file()
        except BaseException:
            await reader.close()
            raise
        return reader

    def _tx(self, connection: sqlite3.Connection | None) -> SqliteTransaction:
        assert connection is not None
        return SqliteTransaction(connection, self.clock.now(), self.clock.monotonic() + self._ahead, self._places)

    # ------------------------------------------------------------------------------------------- helpers

    def _in_thread(self, thread: CallThread, work: Callable[..., R], *arguments: Any) -> asyncio.Future[R]:
        # Through the loop, so that virtual time stands still meanwhile.
        return asyncio.get_running_loop().run_in_executor(thread, work, *arguments)

    def _require_file(self) -> None:
        """Raise unless the store is open, on the file that it has opened."""
        self._require_usable()
        self._require_same_file()

    def _require_same_file(self) -> None:
        peers = self._peers
        if peers is not None and peers.is_file_lost():
            raise self._lost()

    def _require_index(self) -> None:
        """Raise if SQLite's index of the log is not the one that others use; see `PeerNotifier.is_index_lost`."""
        peers = self._peers
        if peers is not None and peers.is_index_lost():
            raise self._lost()

    def _lost(self) -> StorageLost:
        self._break(error := lost(self.path))
        return error

    def _require_usable(self) -> None:
        if self._broken is not None:
            # A new error each time: an error that is raised again and again keeps a traceback of all its raises.
            raise StorageLost(self._broken)
        if self._pid != os.getpid():
            self._require_no_fork()
            raise StorageUnavailable(f"{self.path} is not open")
        if self._write_thread is None:
            raise StorageUnavailable(f"{self.path} is not open")

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        """Raise an error of the store instead of one of SQLite or of the operating system."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise_instead(self._translated(error), error)

    def _translated(self, error: sqlite3.Error | OSError) -> Exception:
        if isinstance(error, OSError):
            # This process has no file descriptors or memory left, which is temporary.
            return StorageUnavailable(f"{self.path} could not be used: {error}")
        translated = sqlite_file.translate(error, self.path)
        if isinstance(translated, StorageUnusable):
            self._break(translated)
            return StorageLost(str(translated))
        return translated or error

    def _break(self, error: HeadgateError) -> None:
        """Let every verb raise this from now on: the file was damaged or replaced."""
        if self._broken is None:
            self._broken = str(error)
            logger.critical("storage stopped: %s", error)

    def _waits_for(self) -> float:
        return min(self._patience, 1.0) if self.is_hurried else self._patience

    def _warn_slow(self, seconds: float) -> None:
        logger.warning(
            "waiting for %.0f s to write to %s: another connection has an open write transaction%s",
            seconds,
            self.path,
            sqlite_file.held_by(self.path),
        )

    async def _read_data_version(self) -> int:
        """Return the file's data version, which other processes change when they commit; checkpoint a long log."""
        assert self._write_thread is not None
        return await self._in_thread(self._write_thread, self._alone, self._data_version)

    def _data_version(self) -> int:
        if self._writer is None:
            return 0
        with self._translating():
            if self._checkpointer is not None and self._checkpointer.is_due():
                self._require_index()
                self._checkpointer.run()
            return int(self._writer.execute("PRAGMA data_version").fetchone()[0])


def _addition(jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> Write:
    """Return the write that adds the jobs; its result is None, or the existing jobs by the ids of duplicates."""
    if may_have_duplicates(jobs):
        return Write(lambda tx: add_unique(tx, jobs), wakes=True)
    return Write(lambda tx: add_jobs(tx, jobs, batches), jobs=jobs, batches=batches, wakes=True)


async def _change_nothing(tx: Transaction) -> None:
    """Be committed after the writes that wait already."""
