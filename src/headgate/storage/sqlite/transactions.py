"""The write transactions of a SQLite file: as procedures use them, the writes that share one, and that of a caller.

The writes run as one, or with a savepoint each, so that one can be rolled back alone. A caller may have a transaction
open on the file of the jobs, and then jobs are added inside it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from headgate.errors import UnfitConnection
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import NewJob
from headgate.storage.driver import Procedure, Transaction, Wakes, must_wake, run_to_end
from headgate.storage.enlisting import Enlisted, OtherPlace
from headgate.storage.procedures.add import add_jobs
from headgate.storage.sqlite.dialect import STATEMENTS, as_one_value
from headgate.storage.stored_rows import RowDecoder

R = TypeVar("R")
T = TypeVar("T")


class Places:
    """Places in the line of lanes, as one process assigns them."""

    def __init__(self) -> None:
        self._last = 0

    def take(self, limit_now: int, count: int) -> int:
        """Return the first of `count` places: limit time, but after all that were taken before."""
        first = max(limit_now, self._last + 1)
        self._last = first + count - 1
        return first


class SqliteTransaction(Transaction):
    """As `driver.Transaction`; nothing in it suspends. The caller begins and commits on the connection."""

    has_one_writer = True
    stepped = 0

    def __init__(self, connection: sqlite3.Connection, now: int, limit_now: int, places: Places) -> None:
        self._connection = connection
        self._places = places
        self.now = now
        self.limit_now = limit_now

    def take_places(self, count: int) -> int:
        return self._places.take(self.limit_now, count)

    async def fetch(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        known = STATEMENTS[statement]
        bound = known.bind(parameters)
        if known.returns:
            cursor = self._connection.execute(known.sql, bound)
            places = {column[0]: place for place, column in enumerate(cursor.description)}
            order = [places[field.name] for field in decoder.fields]
            rows = [decoder.decode_row([row[place] for place in order]) for row in cursor.fetchall()]
        else:
            # fetchall, not fetchone: it runs the statement to its end, so that no read transaction stays open.
            rows = decoder.decode(self._connection.execute(as_one_value(statement, decoder), bound).fetchall()[0][0])
        if not decoder.ids:
            return rows
        await self._read_own_ids(decoder.own_ids(rows))
        return decoder.with_texts(rows)

    async def row(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> R:
        known = STATEMENTS[statement]
        cursor = self._connection.execute(known.sql, known.bind(parameters))
        places = {column[0]: place for place, column in enumerate(cursor.description)}
        (row,) = cursor.fetchall()
        return decoder.decode_row([row[places[field.name]] for field in decoder.fields])

    async def values(self, statement: str, /, **parameters: Any) -> list[Any]:
        known = STATEMENTS[statement]
        return [row[0] for row in self._connection.execute(known.sql, known.bind(parameters)).fetchall()]

    async def value(self, statement: str, /, **parameters: Any) -> Any:
        found = await self.values(statement, **parameters)
        return found[0] if found else None

    async def execute(self, statement: str, /, **parameters: Any) -> int:
        known = STATEMENTS[statement]
        if known.inserted is not None:
            count = 0
            try:
                for sql, values in known.insertions(parameters[known.inserted]):
                    count += self._connection.execute(sql, values).rowcount
                return count
            except OverflowError as error:
                # An integer of more than 64 bits. Read from JSON, it would violate a constraint of its column.
                raise sqlite3.IntegrityError(str(error)) from error
        return self._connection.execute(known.sql, known.bind(parameters)).rowcount

    def atomic(self, *, prepares: tuple[str, ...] = ()) -> AbstractAsyncContextManager[None]:
        return nullcontext()


@dataclass(slots=True, eq=False)
class Write:
    """A procedure that waits for its commit. Additions that wait together are made together, from their `jobs`."""

    procedure: Procedure[Any]
    _: KW_ONLY
    jobs: Sequence[NewJob] | None = None
    batches: Sequence[NewBatch] = ()
    wakes: Wakes = False
    ends_jobs: bool = False


Change = Literal["any", "endings"] | None


def change_of(writes: Sequence[Write], results: Sequence[Any]) -> Change:
    """Return what watchers are woken for after these results: any change, ended jobs only, or nothing."""
    if any(must_wake(write.wakes, result) for write, result in zip(writes, results, strict=True)):
        return "any"
    return "endings" if any(write.ends_jobs for write in writes) else None


class WriteRolledBack(Exception):
    """A write has failed after it had changed something, so the transaction has to be repeated."""


TransactionAgain = Callable[[], SqliteTransaction]
"""Returns the transaction again after a part of it was rolled back."""


def run_all(connection: sqlite3.Connection, tx: SqliteTransaction, writes: Sequence[Write]) -> list[Any]:
    """Return the results of all writes; the result of a failed write that has changed nothing is its error.

    Raises WriteRolledBack if a failed write has changed something.
    """
    # Additions first, as one: a claim in the same commit already sees them.
    additions = [write for write in writes if write.jobs is not None]
    try:
        _add(tx, additions)
    except Exception as error:
        _require_transaction(connection, error)
        raise WriteRolledBack from error
    results: list[Any] = []
    for write in writes:
        if write.jobs is not None:
            results.append(None)
            continue
        changes = connection.total_changes
        try:
            results.append(run_to_end(write.procedure(tx)))
        except Exception as error:
            _require_transaction(connection, error)
            if connection.total_changes != changes:
                raise WriteRolledBack from error
            results.append(error)
    return results


def run_each(
    connection: sqlite3.Connection, transaction_again: TransactionAgain, _: SqliteTransaction, writes: Sequence[Write]
) -> list[Any]:
    """Return the results of all writes; one that fails is rolled back, and its error is its result."""
    failed = dict(_add_each(connection, transaction_again, [write for write in writes if write.jobs is not None]))
    results: list[Any] = []
    tx = transaction_again()
    for write in writes:
        if write.jobs is not None:
            results.append(failed.get(write))
            continue
        try:
            with _savepoint(connection):
                results.append(run_to_end(write.procedure(tx)))
        except Exception as error:
            _require_transaction(connection, error)
            results.append(error)
            tx = transaction_again()
    return results


def _add_each(
    connection: sqlite3.Connection, transaction_again: TransactionAgain, writes: Sequence[Write]
) -> Iterator[tuple[Write, Exception]]:
    """Yield additions that fail, with their errors; halves are tried until the faulty ones are found."""
    try:
        with _savepoint(connection):
            _add(transaction_again(), writes)
    except Exception as error:
        _require_transaction(connection, error)
        if len(writes) == 1:
            yield writes[0], error
            return
        half = len(writes) // 2
        yield from _add_each(connection, transaction_again, writes[:half])
        yield from _add_each(connection, transaction_again, writes[half:])


def _add(tx: SqliteTransaction, additions: Sequence[Write]) -> None:
    jobs = [job for write in additions if write.jobs is not None for job in write.jobs]
    run_to_end(add_jobs(tx, jobs, [batch for write in additions for batch in write.batches]))


@contextmanager
def _savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("SAVEPOINT one_write")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO one_write")
            connection.execute("RELEASE one_write")
        raise
    connection.execute("RELEASE one_write")


def _require_transaction(connection: sqlite3.Connection, error: Exception) -> None:
    """Raise the error if it concerns all writes: SQLite has rolled back, or the file itself is at fault."""
    if not connection.in_transaction:
        raise error
    if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        # An error in a statement or its values belongs to the write that runs it.
        if code not in (0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE):
            raise error


async def run_in(caller: Enlisted, path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run `work` in the caller's transaction, in the thread of its connection."""
    match caller.driver:
        case "sqlite3":
            return _run(caller.connection, path, work)
        case "aiosqlite":
            # aiosqlite has no public way to run another function in the connection's thread.
            connection = caller.connection
            result: T = await connection._execute(_run, connection._conn, path, work)
            return result
        case _:
            raise OtherPlace(
                f"this connection is from {caller.driver}, but the jobs of this app are in {path}; nothing was stored"
            )


def _run(connection: sqlite3.Connection, path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    # It belongs to the connection, so the cursors below have the caller's as well.
    factory, connection.text_factory = connection.text_factory, str
    try:
        _require_same_file(connection, path)
        _require_open_transaction(connection)
        plain = _PlainConnection(connection)
        # From its next commit on, this connection does not checkpoint by itself; see `Checkpointer`.
        plain.execute("PRAGMA wal_autocheckpoint = 0")
        return work(cast(sqlite3.Connection, plain))
    finally:
        connection.text_factory = factory


class _PlainConnection:
    """The connection with rows as tuples, whatever the caller's row factory is."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        cursor = self._connection.cursor(sqlite3.Cursor)
        cursor.row_factory = None
        return cursor.execute(sql, values)


def _require_same_file(connection: sqlite3.Connection, path: Path) -> None:
    files = {name: file for _, name, file in _PlainConnection(connection).execute("PRAGMA database_list").fetchall()}
    main = files["main"]
    if not main or not Path(main).exists() or not Path(main).samefile(path):
        raise OtherPlace(
            f"this connection is open on {main or 'a database in memory'}, and the jobs of this app are in {path}; "
            "nothing was stored: one transaction covers one file, so keep your tables in the file of the jobs"
        )


def _require_open_transaction(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        return
    legacy = getattr(connection, "autocommit", -1) == -1
    if not legacy or connection.isolation_level is None:
        raise UnfitConnection(
            'this connection has no open transaction; nothing was stored: begin one first, as by execute("BEGIN")'
        )
    # sqlite3 would itself begin a transaction before the first change, which commit() or rollback() ends.
    connection.execute(f"BEGIN {connection.isolation_level}")
