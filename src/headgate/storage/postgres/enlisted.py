"""Adding jobs inside a transaction that the caller has open on the database of the jobs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from headgate.errors import StorageUnavailable, UnfitConnection
from headgate.jobs.encoded import is_in_folder
from headgate.jobs.job import NewJob
from headgate.jobs.uniqueness import may_have_duplicates
from headgate.storage.driver import Transaction
from headgate.storage.enlisting import Enlisted, OtherPlace
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.dialect import AnyStatement
from headgate.storage.procedures.unique import ClaimedMeanwhile, enlist

IDLE = 0
"""libpq's state of a connection without an open transaction."""

TRIES = 100
"""How often another job under the key may begin to run before the addition fails."""

UNDO = "ROLLBACK TO SAVEPOINT headgate_add; RELEASE SAVEPOINT headgate_add"


async def session_of(caller: Enlisted, statements: Mapping[str, AnyStatement], name: str) -> Session:
    """Return the caller's connection as a session. Raises UnfitConnection without a transaction."""
    connection = caller.connection
    match caller.driver:
        case "asyncpg":
            # A closed one says so itself.
            if not connection.is_closed() and not connection.is_in_transaction():
                raise _no_transaction("`async with connection.transaction():`")
            return Session(connection, statements, is_pooled=False)
        case "psycopg" | "psycopg async":
            _require_psycopg_transaction(connection)
            return PsycopgSession(connection, statements, is_pooled=False)
        case _:
            raise OtherPlace(
                f"this connection is from {caller.driver}, but the jobs of this app are in {name}; nothing was stored"
            )


async def add_enlisted(session: Session, tx: Transaction, jobs: Sequence[NewJob], place_id: str) -> Mapping[str, str]:
    """Store jobs in the transaction of this session, all or none. `place_id` is that of the tables."""
    has_unique = any(job.unique_key is not None for job in jobs)
    await require_same_place(session, place_id, has_unique=has_unique)
    if not may_have_duplicates(jobs) and not any(is_in_folder(job.payload) for job in jobs):
        return await enlist(tx, jobs)
    # Jobs that were stored before a duplicate was found, or an id that is taken, must not stay if the caller continues.
    for _ in range(TRIES):
        await session.script("SAVEPOINT headgate_add")
        try:
            duplicates = await enlist(tx, jobs)
        except ClaimedMeanwhile:
            await session.script(UNDO)
        except Exception:
            await session.script(UNDO)
            raise
        else:
            await session.script("RELEASE SAVEPOINT headgate_add")
            return duplicates
    raise StorageUnavailable("other jobs under the same unique keys kept starting; nothing was stored; try again")


async def require_same_place(session: Session, place_id: str, *, has_unique: bool) -> None:
    """Check the tables without naming a table that may not exist: that error would abort the caller's transaction."""
    ((has_tables, isolation, database),) = await session.fetch("enlisted_at")
    if has_tables:
        ((*_, found),) = await session.fetch("identity")
        if found == place_id:
            if has_unique and isolation != "read committed":
                raise UnfitConnection(
                    f"this transaction is {isolation}, in which unique keys cannot be checked; nothing was stored: "
                    "use READ COMMITTED, PostgreSQL's default"
                )
            return
    raise OtherPlace(
        f"this connection is to database {database!r}, which does not have the jobs of this app; nothing was stored: "
        "connect to the app's database and schema"
    )


class PsycopgSession(Session):
    """Statements by name on a connection of psycopg, synchronous or async."""

    async def fetch(self, statement: str, /, **values: Any) -> list[Any]:
        cursor = await self._run(statement, values)
        return [] if cursor.description is None else list(await _ready(cursor.fetchall()))

    async def execute(self, statement: str, /, **values: Any) -> int:
        return int((await self._run(statement, values)).rowcount)

    async def script(self, sql: str) -> None:
        await _ready(self._cursor().execute(sql))

    async def _run(self, statement: str, values: Mapping[str, Any]) -> Any:
        known, bound = self._statements[statement].fit(values)
        # psycopg sends a tuple as a row, asyncpg as an array.
        lists = [list(value) if isinstance(value, tuple) else value for value in bound]
        named = dict(zip(known.names, lists, strict=True))
        return await _ready(self._cursor().execute(_for_psycopg(known.sql, known.names), named))

    def _cursor(self) -> Any:
        from psycopg import AsyncConnection, AsyncCursor, Cursor
        from psycopg.rows import namedtuple_row

        # The caller may have set other factories, of rows and of cursors.
        kind = AsyncCursor if isinstance(self._connection, AsyncConnection) else Cursor
        return kind(self._connection, row_factory=namedtuple_row)


async def _ready(answer: Any) -> Any:
    # Nothing is awaited on a synchronous connection: its caller runs this to the end without a loop.
    return await answer if isinstance(answer, Awaitable) else answer


@lru_cache(500)
def _for_psycopg(sql: str, names: tuple[str, ...]) -> str:
    return re.sub(r"\$(\d+)", lambda found: f"%({names[int(found[1]) - 1]})s", sql.replace("%", "%%"))


def _require_psycopg_transaction(connection: Any) -> None:
    if connection.info.pipeline_status:
        raise UnfitConnection(
            "this connection is in pipeline mode, in which statements are not answered at once; nothing was stored: "
            "enqueue or complete after the block of connection.pipeline()"
        )
    if connection.info.transaction_status == IDLE and connection.autocommit:
        raise _no_transaction("`with connection.transaction():`")


def _no_transaction(how: str) -> UnfitConnection:
    return UnfitConnection(
        f"this connection has no open transaction, so the job would not be part of your changes; nothing was stored: "
        f"begin one first, with {how}; a SQLAlchemy engine needs another isolation_level than AUTOCOMMIT"
    )
