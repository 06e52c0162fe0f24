"""SqliteStorage: the storage protocol on one SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headgate.clock import Clock, microseconds
from headgate.errors import ForkedConnection, HeadgateError, StorageUnavailable, StorageUnusable
from headgate.jobs.audit import AuditEntry, AuditFilter, Deed
from headgate.jobs.batch import BatchRecord, NewBatch
from headgate.jobs.gating import NO_GATES, GatedJob, KnownGates, Regated
from headgate.jobs.history import Flush, JobsStep, LimitStep
from headgate.jobs.job import Attempt, Draw, JobRecord, JobState, NewJob
from headgate.jobs.lifecycle import Ending
from headgate.jobs.report import LogLine, Report
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.shielding import shield_until_done
from headgate.storage import driver
from headgate.storage.batcher import Batcher
from headgate.storage.driver import run_to_end
from headgate.storage.enlisting import enlisted
from headgate.storage.facts import SAFE_FOR_SEVERAL, SqliteFacts
from headgate.storage.following import FOLLOWERS_AT_ONCE
from headgate.storage.live_rules import EditSetting, LimitSetting
from headgate.storage.migrations import Migration
from headgate.storage.procedures import history, limits, listing, nodes, schedules, upkeep, waiting
from headgate.storage.procedures.add import add_jobs
from headgate.storage.procedures.audit import audit_log, prune_audit
from headgate.storage.procedures.finish import finish_all
from headgate.storage.procedures.following import are_followers_left, release_followers
from headgate.storage.procedures.gates import gates_done, note_gates
from headgate.storage.procedures.reports import logs, report
from headgate.storage.procedures.settings import CachedRules, read_settings
from headgate.storage.procedures.unique import add_unique, enlist
from headgate.storage.protocol import (
    FINAL_STATES,
    GATE_LIVES,
    Amendment,
    Beat,
    BucketPlace,
    BucketRecord,
    Claim,
    Claimed,
    Deposit,
    Dropped,
    JobFilter,
    NodeRecord,
    Obstacle,
    QueueCounts,
    QueueRecord,
    RecordedStart,
    Recovered,
    Standing,
    ViewCount,
    WaitingCount,
)
from headgate.storage.schedules import DueSchedules, Fired, ScheduleRecord
from headgate.storage.searching import SEARCH_TIMEOUT, Searches, too_long
from headgate.storage.sqlite import connection as sqlite_file
from headgate.storage.sqlite.enlisted import run_in
from headgate.storage.sqlite.facts import read_facts
from headgate.storage.sqlite.neighbours import Neighbours
from headgate.storage.sqlite.procedure_transaction import Places, SqliteTransaction
from headgate.storage.sqlite.reader import Reader
from headgate.storage.sqlite.statements import fetch
from headgate.storage.sqlite.transaction import Transaction
from headgate.storage.sqlite.write import Undone, run_all, run_each
from headgate.storage.sqlite.write import Write as _Write

R = TypeVar("R")

Procedure = Callable[[driver.Transaction], Coroutine[Any, Any, R]]
"""What runs in a transaction."""

logger = logging.getLogger("headgate.storage")

# How often each process has opened each file. A fork inherits it, as it inherits the state of the SQLite library.
_opened: Counter[tuple[Path, int]] = Counter()

_decode_ports = msgspec.json.Decoder(list[int]).decode


class SqliteStorage:
    """Jobs in one SQLite file: embedded, durable, shared by any number of processes of one machine.

    One thread writes, one reads. Writes that wait while a commit is in flight share the next one. With `synchronous`
    "FULL" (default) a write has reached the disk when it returns; "NORMAL" may lose the last ones in a power cut, never
    in a crash of the program. `patience` (30 s) is how long a write waits for another connection's transaction before
    it raises StorageUnavailable.
    """

    is_in_process = False
    place = None

    def __init__(self, path: str | Path, clock: Clock, *, synchronous: str = "FULL", patience: float = 30.0) -> None:
        if synchronous not in ("FULL", "NORMAL", "EXTRA", "OFF"):
            raise ValueError(f"synchronous={synchronous!r} of a SQLite storage must be FULL, NORMAL, EXTRA or OFF")
        self.path = Path(path).absolute()
        self._clock = clock
        self._synchronous = synchronous
        self._patience = patience
        self._batcher: Batcher[_Write] = Batcher(self._commit)
        self._watchers: list[Callable[[], None]] = []
        self._writer: sqlite3.Connection | None = None
        # Lookups of an engine must not wait for an operator's list or count, so each kind has a reader of its own.
        self._lookups: Reader | None = None
        self._lists: Reader | None = None
        self._searcher: Reader | None = None
        self._searches = Searches(clock, at_once=1)
        self._write_thread: ThreadPoolExecutor | None = None
        self._neighbours: Neighbours | None = None
        self._ports: list[int] = []
        self._pid = 0
        self._ahead = 0
        self._live = CachedRules()
        self._places = Places()
        self._broken: HeadgateError | None = None

    def __str__(self) -> str:
        return f"sqlite:///{self.path}"

    @contextlib.asynccontextmanager
    async def scratch(self) -> AsyncIterator[Callable[[], SqliteStorage]]:
        """A file of its own in a folder beside this one."""
        try:
            folder = tempfile.TemporaryDirectory(prefix=".headgate-scratch-", dir=self.path.parent)
        except OSError as error:
            raise StorageUnusable(f"no file can be made beside {self.path}: {error.strerror or error}") from error
        with folder as name:
            path = Path(name) / self.path.name
            yield lambda: SqliteStorage(path, self._clock, synchronous=self._synchronous, patience=self._patience)

    # ---------------------------------------------------------------------------------------- open, close

    async def open(self) -> None:
        self._require_no_fork()
        if self._write_thread is not None:
            return
        self._pid = os.getpid()
        self._broken = None
        _opened[self._open_file] += 1
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="headgate-sqlite-writer")
        try:
            await self._take_connections(self._write_thread)
            self._neighbours = Neighbours(self.path, self._clock, self._look_around, self._wake, self._break)
            await self._neighbours.open()
        except BaseException:
            await shield_until_done(self.close())
            raise

    async def migrate(self, *, dry_run: bool = False) -> Sequence[Migration]:
        self._require_no_fork()
        prepare = partial(sqlite_file.prepare, synchronous=self._synchronous, dry_run=dry_run)
        return await asyncio.to_thread(prepare, self.path, self._clock)

    async def _take_connections(self, thread: ThreadPoolExecutor) -> None:
        connecting = asyncio.get_running_loop().run_in_executor(thread, self._connect)
        # A thread cannot be cancelled, and what it has made nobody else would close.
        try:
            await shield_until_done(connecting)
        finally:
            self._writer, self._lookups, self._lists, self._ahead = connecting.result()

    def _connect(self) -> tuple[sqlite3.Connection, Reader, Reader, int]:
        sqlite_file.prepare(self.path, self._clock, synchronous=self._synchronous)
        with contextlib.ExitStack() as made:
            try:
                writer = sqlite_file.connect(self.path, synchronous=self._synchronous, timeout=10)
                made.callback(writer.close)
                # Fewer, larger checkpoints: each one syncs the file twice.
                writer.execute("PRAGMA wal_autocheckpoint = 4000")
                # From here on it waits by its own rules, in `begin`.
                writer.execute("PRAGMA busy_timeout = 0")
                lookups = Reader(self.path, "lookups")
                made.callback(lookups.discard)
                lists = Reader(self.path, "lists")
                made.callback(lists.discard)
                ahead = self._anchor(writer)
            except sqlite3.Error as error:
                raise (sqlite_file.translate(error, self.path) or error) from error
            made.pop_all()
        return writer, lookups, lists, ahead

    def _anchor(self, writer: sqlite3.Connection) -> int:
        """Limit time runs on the boot clock; the first to open the file in a boot sets what to add to it."""
        boot_id = self._clock.boot_id()
        sqlite_file.begin(writer, self._patience, self._clock, self._warn_slow)
        try:
            row = writer.execute("SELECT boot_id, ahead, last_used FROM limit_time").fetchone()
            if row is not None and row[0] == boot_id:
                ahead: int = row[1]
            else:
                wall = self._clock.now()
                began = wall if row is None else max(wall, row[2])
                ahead = began - self._clock.monotonic()
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
        if self._neighbours is not None:
            await self._neighbours.close()
            self._neighbours = None
        await self._batcher.drain()
        if self._searcher is not None:
            self._searcher.interrupt()
        readers, writer, thread = (self._lookups, self._lists, self._searcher), self._writer, self._write_thread
        self._lookups = self._lists = self._searcher = self._writer = self._write_thread = None
        for reader in readers:
            if reader is not None:
                await reader.close()
        if writer is not None:
            await self._in_thread(thread, writer.close)
        thread.shutdown(wait=False)
        _opened[self._open_file] -= 1

    @property
    def _open_file(self) -> tuple[Path, int]:
        return self.path.resolve(), self._pid

    def _require_no_fork(self) -> None:
        """SQLite counts its locks per file and process, and a fork copies the count but not the locks."""
        here = os.getpid()
        for (path, pid), count in _opened.items():
            if count and pid != here and path == self.path.resolve():
                raise ForkedConnection(
                    f"{self.path} was open in process {pid} when this process was forked from it, and SQLite's locks "
                    "do not survive that: what is written now could be lost; open the app only after the fork, or "
                    "start the process with 'spawn'"
                )

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(wake)
        return lambda: self._watchers.remove(wake)

    def now(self) -> int:
        return self._clock.now()

    def limit_now(self) -> int:
        return self._clock.monotonic() + self._ahead

    # -------------------------------------------------------------------------------------------- writes

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        if any(job.unique_key is not None for job in jobs):
            return await self._write(  # type: ignore[no-any-return]
                _Write(lambda transaction: run_to_end(add_unique(transaction.tx, jobs, batches)), wakes=True)
            )
        await self._write(
            _Write(
                lambda transaction: run_to_end(add_jobs(transaction.tx, jobs, batches)),
                jobs=jobs,
                batches=batches,
                wakes=True,
            )
        )
        return {}

    async def add_in(self, connection: Any, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """As `Storage.add_in`. Whoever waits for jobs sees that the file has changed, within 250 ms."""
        self._require_usable()

        def add(callers: sqlite3.Connection) -> Mapping[str, str]:
            return run_to_end(
                enlist(Transaction(callers, self._clock, self._ahead, CachedRules(), self._places).tx, jobs)
            )

        return await run_in(await enlisted(connection), self.path, add)

    async def claim(self, claim: Claim) -> Claimed:
        claimed: Claimed = await self._write(_Write(lambda transaction: transaction.claim(claim)))
        if claimed.dropped:
            # Somebody may wait for their results.
            self._wake()
        return claimed

    async def finish(self, node: str, endings: Sequence[Ending]) -> Sequence[bool | None]:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(finish_all(transaction.tx, node, endings)), wakes=True)
        )

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        refunds = any(amendment.actual < amendment.cost for amendment in amendments)
        await self._write(
            _Write(
                lambda transaction: run_to_end(limits.amend(transaction.tx, amendments, rules, transaction.live)),
                wakes=refunds,
            )
        )

    async def cancel(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(waiting.cancel(transaction.tx, job_id, deed)), wakes=True)
        )

    async def retry(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(waiting.retry(transaction.tx, job_id, deed)), wakes=True)
        )

    async def run_now(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(waiting.run_now(transaction.tx, job_id, deed)), wakes=True)
        )

    async def reschedule(
        self, job_id: str, *, run_at: int | None = None, priority: int | None = None, deed: Deed | None = None
    ) -> JobState | None:
        return await self._write(  # type: ignore[no-any-return]
            _Write(
                lambda transaction: run_to_end(waiting.reschedule(transaction.tx, job_id, run_at, priority, deed)),
                wakes=True,
            )
        )

    async def report(self, node: str, reports: Sequence[Report], most_lines: int) -> Sequence[bool | None]:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(report(transaction.tx, node, reports, most_lines)))
        )

    async def note(self, deed: Deed) -> None:
        await self._write(_Write(lambda transaction: transaction.note(deed)))

    async def pause_queue(self, queue: str, *, deed: Deed | None = None) -> bool:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(upkeep.pause_queue(transaction.tx, queue, deed)))
        )

    async def resume_queue(self, queue: str, *, deed: Deed | None = None) -> bool:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(upkeep.resume_queue(transaction.tx, queue, deed)), wakes=True)
        )

    async def deposit(self, deposits: Sequence[Deposit]) -> None:
        await self._write(_Write(lambda transaction: run_to_end(limits.deposit(transaction.tx, deposits)), wakes=True))

    async def withdraw(self, deposits: Sequence[Deposit]) -> Sequence[int]:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(limits.withdraw(transaction.tx, deposits)))
        )

    async def visit(
        self, draw: Draw, rules: Mapping[str, AnyRule], look: Callable[[Any], R], *, id: str | None = None
    ) -> R:
        answer, reopens = await self._write(
            _Write(
                lambda transaction: run_to_end(limits.visit(transaction.tx, draw, rules, look, id, transaction.live))
            )
        )
        if reopens:
            self._wake()
        return answer  # type: ignore[no-any-return]

    async def change(self, setting: LimitSetting, *, remove: bool = False, deed: Deed | None = None) -> None:
        await self._write(
            _Write(
                lambda transaction: run_to_end(limits.change(transaction.tx, setting, deed, remove=remove)), wakes=True
            )
        )

    async def edit_setting(self, about: LimitSetting, edit: EditSetting, *, deed: Deed | None = None) -> bool:
        becomes = await self._write(
            _Write(lambda transaction: run_to_end(limits.edit_setting(transaction.tx, about, edit, deed)), wakes=True)
        )
        return becomes is not None

    async def penalize(self, draw: Draw, until: int, *, deed: Deed | None = None) -> None:
        await self._write(_Write(lambda transaction: run_to_end(limits.penalize(transaction.tx, draw, until, deed))))

    async def reset(self, draw: Draw, *, deed: Deed | None = None) -> int:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(limits.reset(transaction.tx, draw, deed)), wakes=True)
        )

    async def forget(self, limit: str, *, deed: Deed | None = None) -> bool:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(limits.forget(transaction.tx, limit, deed)))
        )

    async def join(self, node: str, name: str, *, queues: Mapping[str, int] | None = None, version: str = "") -> None:
        port = self._neighbours.port if self._neighbours is not None else 0

        async def join(tx: driver.Transaction) -> None:
            await nodes.join(tx, node, name, os.getpid(), self._clock.boot_id(), queues or {}, version)
            await tx.execute("announce_port", id=node, port=port)

        await self._write(_Write(lambda transaction: run_to_end(join(transaction.tx))))
        is_old = self._neighbours is not None and sqlite3.sqlite_version_info < SAFE_FOR_SEVERAL
        if is_old and len(await self.nodes()) > 1:
            logger.warning(
                "SQLite %s can, rarely, corrupt a file that several processes write and checkpoint at the same moment; "
                "use a Python with SQLite %s or newer, or one worker process",
                sqlite3.sqlite_version,
                ".".join(map(str, SAFE_FOR_SEVERAL)),
            )

    async def beat(self, node: str, *, lingering: Sequence[str] = ()) -> Beat:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(nodes.beat(transaction.tx, node, lingering, self._clock.boot_id())))
        )

    async def leave(self, node: str) -> Recovered:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(nodes.leave(transaction.tx, node)), wakes=True)
        )

    async def recover(self, node: str, beat: int) -> Recovered | None:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(nodes.recover(transaction.tx, node, beat)), wakes=True)
        )

    async def expire(self, count: int = 100) -> Sequence[Dropped]:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(waiting.expire(transaction.tx, count)), wakes=bool)
        )

    async def release_followers(self, count: int = FOLLOWERS_AT_ONCE) -> int:
        if not await self._look(self._lookups, are_followers_left):
            return 0
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(release_followers(transaction.tx, count)), wakes=True)
        )

    async def prune(
        self,
        finished_before: int,
        count: int = 1000,
        states: frozenset[JobState] = FINAL_STATES,
        *,
        ids: Sequence[str] | None = None,
    ) -> int:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(upkeep.prune(transaction.tx, finished_before, count, states, ids)))
        )

    async def prune_audit(self, before: int, count: int = 1000) -> int:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda each: run_to_end(prune_audit(each.tx, before, count)))
        )

    async def add_history(
        self, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None = None
    ) -> None:
        # In portions, each its own commit: a claim that comes meanwhile waits for one of them and not for all.
        for start in range(0, max(len(jobs), len(limits)), history.STEPS_AT_ONCE):
            await self._write(_Write(partial(self._add_history, jobs, limits, flush, start)))

    def _add_history(
        self, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None, start: int, each: Transaction
    ) -> None:
        portion = slice(start, start + history.STEPS_AT_ONCE)
        run_to_end(history.add_history(each.tx, jobs[portion], limits[portion], flush, start))

    async def gather_history(self, count: int = 1000) -> int:
        return 0

    async def prune_history(self, step: int, before: int, count: int = 1000) -> int:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda each: run_to_end(history.prune_history(each.tx, step, before, count)))
        )

    async def evict(self, count: int = 1000) -> int:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(upkeep.evict(transaction.tx, count)))
        )

    async def _write(self, write: _Write) -> Any:
        self._require_usable()
        return await self._batcher.write(write)

    async def _commit(self, group: Sequence[_Write]) -> Sequence[Any]:
        assert self._write_thread is not None
        results = await self._in_thread(self._write_thread, self._commit_group, group)
        if any(write.has_woken(result) for write, result in zip(group, results, strict=True)):
            self._wake()
            if self._neighbours is not None:
                self._neighbours.call(self._ports)
        return results

    def _commit_group(self, group: Sequence[_Write]) -> Sequence[Any]:
        """Everything in one transaction; a write that fails is undone alone, and its error is its result."""
        connection = self._writer
        assert connection is not None
        try:
            try:
                # Without savepoints at first: hardly any write fails after it has changed something.
                results = self._transact(group, partial(run_all, connection, self._begun))
            except Undone:
                results = self._transact(group, partial(run_each, connection, self._begun))
        except Exception as error:
            return [error] * len(group)
        return [self._translated(result) if isinstance(result, sqlite3.Error) else result for result in results]

    def _begun(self) -> Transaction:
        """The transaction as it is now, with nothing remembered of what was undone."""
        assert self._writer is not None
        self._live.forget()
        return Transaction(self._writer, self._clock, self._ahead, self._live, self._places)

    def _transact(
        self, group: Sequence[_Write], run: Callable[[Transaction, Sequence[_Write]], Sequence[Any]]
    ) -> Sequence[Any]:
        connection = self._writer
        assert connection is not None
        try:
            sqlite_file.begin(connection, self._patience, self._clock, self._warn_slow)
            try:
                results = run(Transaction(connection, self._clock, self._ahead, self._live, self._places), group)
                if any(write.wakes for write in group):
                    # Read here, so that a node that has joined a moment ago is told as well.
                    self._ports = _decode_ports(fetch(connection, "ports"))
                connection.execute("COMMIT")
            except BaseException:
                # What was read of the settings may be what was not committed.
                self._live.forget()
                raise
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except (sqlite3.Error, OSError) as error:
            raise self._translated(error) from error
        # After the commit: what was written to a file that nobody can open again is not reported as stored.
        if self._neighbours is not None and self._neighbours.is_file_lost():
            lost = self._neighbours.lost()
            self._break(lost)
            raise StorageUnavailable(str(lost))
        return results

    # --------------------------------------------------------------------------------------------- reads

    async def job(self, job_id: str) -> JobRecord | None:
        return await self._look(self._lookups, lambda tx: listing.job(tx, job_id))

    async def final(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        return await self._look(self._lookups, lambda tx: listing.jobs_by_id(tx, job_ids, final=True))

    async def batch(self, batch_id: str) -> BatchRecord | None:
        return await self._look(self._lookups, lambda tx: listing.batch(tx, batch_id))

    async def batches(
        self, *, pending_only: bool = False, cursor: str | None = None, count: int = 50
    ) -> Sequence[BatchRecord]:
        return await self._look(
            self._lists, lambda tx: listing.batches(tx, pending_only=pending_only, cursor=cursor, count=count)
        )

    async def jobs(self, filter: JobFilter) -> Sequence[JobRecord]:
        return await self._listed(filter, lambda tx: listing.jobs(tx, filter))

    async def count_jobs(self, filter: JobFilter, most: int) -> int:
        return await self._listed(filter, lambda tx: listing.count_jobs(tx, filter, most))

    async def _listed(self, filter: JobFilter, procedure: Procedure[R]) -> R:
        if filter.text is None:
            return await self._look(self._lists, procedure)
        return await self._searches.run(partial(self._search, procedure))

    async def _search(self, procedure: Procedure[R]) -> R:
        """A search in payloads, on a connection of its own, since it reads whole tables and lists must not wait."""
        self._require_usable()
        if self._searcher is None:
            searcher = await asyncio.to_thread(Reader, self.path, "searches")
            try:
                # The store may have been closed meanwhile.
                self._require_usable()
            except BaseException:
                await searcher.close()
                raise
            self._searcher = searcher
        until = self._clock.monotonic() + microseconds(SEARCH_TIMEOUT)
        try:
            return await self._searcher.run_until(
                lambda connection: run_to_end(procedure(self._reading(connection))),
                lambda: self._clock.monotonic() >= until,
            )
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise too_long() from None
            raise self._translated(error) from error

    async def waiting(self, most: int = 100_000) -> Sequence[WaitingCount]:
        return await self._look(self._lists, lambda tx: listing.waiting(tx, most))

    async def views(self) -> Sequence[ViewCount]:
        return await self._look(self._lists, listing.views)

    async def is_work_left(self, queues: Set[str], tasks: Set[str], *, ready_only: bool) -> bool:
        return await self._look(self._lists, lambda tx: listing.is_work_left(tx, queues, tasks, ready_only=ready_only))

    async def logs(self, job_id: str, *, after: int = 0, count: int = 100, newest: bool = False) -> Sequence[LogLine]:
        return await self._look(self._lists, lambda tx: logs(tx, job_id, after, count, newest=newest))

    async def audit_log(self, filter: AuditFilter) -> Sequence[AuditEntry]:
        return await self._look(self._lists, lambda tx: audit_log(tx, filter))

    async def attempts(self, job_id: str) -> Sequence[Attempt]:
        return await self._look(self._lists, lambda tx: listing.attempts(tx, job_id))

    async def counts(self, *, finals: bool = True) -> Sequence[QueueCounts]:
        return await self._look(self._lists, lambda tx: listing.counts(tx, finals=finals))

    async def queues(self) -> Sequence[QueueRecord]:
        return await self._look(self._lists, listing.queues)

    async def backlog(self, queue: str) -> int:
        return await self._look(self._lookups, lambda tx: listing.backlog(tx, queue))

    async def obstacles(self) -> Sequence[Obstacle]:
        return ()

    async def buckets(
        self,
        limit: str | None = None,
        key: str | None = None,
        count: int = 100,
        *,
        prefix: str | None = None,
        after: BucketPlace | None = None,
    ) -> Sequence[BucketRecord]:
        return await self._look(self._lists, lambda tx: listing.buckets(tx, limit, key, count, prefix, after))

    async def throttled(self, count: int = 10) -> Sequence[BucketRecord]:
        return await self._look(self._lists, lambda tx: listing.throttled(tx, count))

    async def standing(self, job_id: str) -> Standing | None:
        return await self._look(self._lists, lambda tx: listing.standing(tx, job_id))

    async def outlook(self, queue: str, draws: Sequence[Draw], variant: str = "") -> Standing:
        return await self._look(self._lookups, lambda tx: listing.outlook(tx, queue, draws, variant))

    async def starts(
        self, limit: str, key: str | None, since: int, *, until: int = NEVER, skip: int = 0, count: int = 10_000
    ) -> Sequence[RecordedStart]:
        return await self._look(self._lists, lambda tx: listing.starts(tx, limit, key, since, until, skip, count))

    async def jobs_history(self, step: int, queue: str, task: str, since: int) -> Sequence[JobsStep]:
        return await self._look(self._lists, lambda tx: history.jobs_history(tx, step, queue, task, since))

    async def limit_history(self, step: int, limit: str, key: str | None, since: int) -> Sequence[LimitStep]:
        return await self._look(self._lists, lambda tx: history.limit_history(tx, step, limit, key, since))

    async def note_gates(self, gates: Mapping[str, str], *, lives: int = GATE_LIVES) -> Mapping[str, bool]:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: run_to_end(note_gates(transaction.tx, gates, lives)).to_move)
        )

    async def gates_done(self, gates: Mapping[str, str]) -> None:
        await self._write(_Write(lambda transaction: run_to_end(gates_done(transaction.tx, gates))))

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
        return await self._look(
            self._lookups if ids is not None else self._lists,
            lambda tx: listing.gated_jobs(tx, tasks, unknown_to, other_than, ids, after, count),
        )

    async def regate(self, jobs: Sequence[Regated]) -> int:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda transaction: _regate(transaction, jobs), wakes=True)
        )

    async def settings(self) -> Sequence[LimitSetting]:
        return await self._look(self._lookups, read_settings)

    async def put_schedule(self, record: ScheduleRecord, *, replaces: int | None, anew: bool = False) -> bool:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda each: run_to_end(schedules.put_schedule(each.tx, record, replaces, anew=anew)), wakes=True)
        )

    async def take_over_schedule(self, record: ScheduleRecord, *, was: str, replaces: int) -> bool:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda each: run_to_end(schedules.take_over_schedule(each.tx, record, was, replaces)), wakes=True)
        )

    async def schedules(
        self, *, name: str | None = None, after: str = "", count: int = 1000
    ) -> Sequence[ScheduleRecord]:
        return await self._look(self._lists, lambda tx: schedules.schedules(tx, name, after, count))

    async def due_schedules(
        self, tasks: frozenset[str], *, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> DueSchedules:
        return await self._look(self._lookups, lambda tx: schedules.due_schedules(tx, tasks, unable, count))

    async def overdue_schedules(
        self, tasks: frozenset[str], *, before: int, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> Sequence[ScheduleRecord]:
        return await self._look(self._lookups, lambda tx: schedules.overdue_schedules(tx, before, tasks, unable, count))

    async def schedules_formerly(self, name: str) -> Sequence[ScheduleRecord]:
        return await self._look(self._lookups, lambda tx: schedules.schedules_formerly(tx, name))

    async def fire(self, fired: Sequence[Fired]) -> Sequence[bool]:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda each: run_to_end(schedules.fire(each.tx, fired)), wakes=True)
        )

    async def remove_schedule(self, name: str) -> bool:
        return await self._write(  # type: ignore[no-any-return]
            _Write(lambda each: run_to_end(schedules.remove_schedule(each.tx, name)), wakes=True)
        )

    async def nodes(self) -> Sequence[NodeRecord]:
        return await self._look(self._lookups, lambda tx: nodes.nodes(tx, self._clock.boot_id()))

    async def cancels(self, node: str) -> frozenset[str]:
        return await self._look(self._lookups, lambda tx: nodes.cancels(tx, node))

    async def facts(self) -> SqliteFacts:
        return await self._read(self._lists, partial(read_facts, self.path, self._synchronous))

    async def check(self) -> Sequence[str]:
        return await self._look(self._lists, upkeep.check)

    async def _look(self, reader: Reader | None, procedure: Procedure[R]) -> R:
        """What a procedure returns that only reads."""
        return await self._read(reader, lambda connection: run_to_end(procedure(self._reading(connection))))

    def _reading(self, connection: sqlite3.Connection) -> SqliteTransaction:
        return SqliteTransaction(connection, self.now(), self.limit_now(), self._places)

    async def _value(self, reader: Reader | None, statement: str, **values: Any) -> Any:
        return await self._read(reader, lambda connection: fetch(connection, statement, **values))

    async def _read(self, reader: Reader | None, query: Callable[[sqlite3.Connection], R]) -> R:
        self._require_usable()
        assert reader is not None
        try:
            return await reader.run(query)
        except (sqlite3.Error, OSError) as error:
            raise self._translated(error) from error

    # ------------------------------------------------------------------------------------------- helpers

    async def _in_thread(self, thread: ThreadPoolExecutor, work: Callable[..., R], *arguments: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(thread, work, *arguments)

    def _require_usable(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._pid != os.getpid():
            self._require_no_fork()
            raise StorageUnavailable(f"{self.path} is not open")
        if self._write_thread is None:
            raise StorageUnavailable(f"{self.path} is not open")

    def _translated(self, error: sqlite3.Error | OSError) -> Exception:
        if isinstance(error, OSError):
            # No files or no memory is left to this process, which passes.
            return StorageUnavailable(f"{self.path} could not be used: {error}")
        translated = sqlite_file.translate(error, self.path)
        if isinstance(translated, StorageUnusable):
            self._break(translated)
            return StorageUnavailable(str(translated))
        return translated or sqlite_file.withdrawn(error, self.path) or error

    def _break(self, error: HeadgateError) -> None:
        """From now on every verb raises this: the file is not what it was."""
        if self._broken is None:
            self._broken = StorageUnavailable(str(error))
            logger.critical("storage stopped: %s", error)

    def _warn_slow(self, seconds: float) -> None:
        logger.warning(
            "waiting for %.0f s to write to %s: another connection holds a write transaction open", seconds, self.path
        )

    def _wake(self) -> None:
        for wake in list(self._watchers):
            wake()

    async def _look_around(self) -> int:
        """The version of the file as other processes have changed it."""
        assert self._write_thread is not None
        return await self._in_thread(self._write_thread, self._data_version)

    def _data_version(self) -> int:
        if self._writer is None:
            return 0
        try:
            return int(self._writer.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error as error:
            raise self._translated(error) from error


def _regate(transaction: Transaction, jobs: Sequence[Regated]) -> int:
    tx = transaction.tx
    moved = sum(run_to_end(waiting.regate(tx, job)) for job in jobs if not job.stays)
    return moved + run_to_end(waiting.restamp(tx, [job for job in jobs if job.stays]))
