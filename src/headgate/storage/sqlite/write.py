"""Writes that share a transaction: run as one, or with a savepoint each, so that one can be rolled back alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from headgate.jobs.batch import NewBatch
from headgate.jobs.job import NewJob
from headgate.storage.driver import Procedure, Wakes, has_woken, run_to_end
from headgate.storage.procedures.add import add_jobs
from headgate.storage.sqlite.procedure_transaction import SqliteTransaction


class Write:
    """A procedure that waits for its commit. Additions that wait together are made together, from their `jobs`."""

    __slots__ = ("batches", "ends_jobs", "jobs", "procedure", "wakes")

    def __init__(
        self,
        procedure: Procedure[Any],
        *,
        jobs: Sequence[NewJob] | None = None,
        batches: Sequence[NewBatch] = (),
        wakes: Wakes = False,
        ends_jobs: bool = False,
    ) -> None:
        self.procedure = procedure
        self.jobs = jobs
        self.batches = batches
        self.wakes = wakes
        self.ends_jobs = ends_jobs


def change_of(writes: Sequence[Write], results: Sequence[Any]) -> Literal["any", "endings"] | None:
    """Return what watchers are woken for after these results: any change, ended jobs only, or nothing."""
    if any(has_woken(write.wakes, result) for write, result in zip(writes, results, strict=True)):
        return "any"
    return "endings" if any(write.ends_jobs for write in writes) else None


class WriteRolledBack(Exception):
    """A write has failed after it had changed something, so the transaction has to be repeated."""


TransactionAgain = Callable[[], SqliteTransaction]
"""Returns the transaction again after a part of it was rolled back."""


def run_all(
    connection: sqlite3.Connection, transaction_again: TransactionAgain, tx: SqliteTransaction, writes: Sequence[Write]
) -> list[Any]:
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
    connection: sqlite3.Connection, transaction_again: TransactionAgain, tx: SqliteTransaction, writes: Sequence[Write]
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
