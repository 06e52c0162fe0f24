"""Transactions of a user's program, with each driver: what a user's own connection may be."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import aiosqlite
import asyncpg
import psycopg
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

Run = Callable[[str], Awaitable[Any]]
"""Runs a statement of the caller's in the caller's transaction."""


class HasPlace(Protocol):
    """A program that knows where its jobs are: a URL, or the path of a file."""

    place: str


def postgres_in(kind: str) -> Any:
    """The caller's transaction by a driver: commits at the end of the block, rolls back with its error."""

    @contextlib.asynccontextmanager
    async def begin(program: HasPlace) -> AsyncIterator[tuple[Any, Run]]:
        url = program.place
        if kind == "asyncpg":
            connection = await asyncpg.connect(url)
            try:
                async with connection.transaction():
                    yield connection, connection.execute
            finally:
                await connection.close()
        elif kind == "asyncpg pool":
            async with (
                asyncpg.create_pool(url, min_size=0) as pool,
                pool.acquire() as pooled,
                pooled.transaction(),
            ):
                yield pooled, pooled.execute
        elif kind == "psycopg":
            with psycopg.connect(url, row_factory=dict_row) as connection_:
                yield connection_, _awaitable(connection_.execute)
        elif kind == "psycopg async":
            async with await psycopg.AsyncConnection.connect(url, row_factory=dict_row) as each:
                yield each, each.execute
        elif kind.startswith("sqlalchemy async"):
            driver = "psycopg" if kind.endswith("psycopg") else "asyncpg"
            engine = create_async_engine(url.replace("postgresql://", f"postgresql+{driver}://"))
            try:
                if "session" in kind:
                    async with AsyncSession(engine) as session, session.begin():
                        yield session, lambda sql: session.execute(sqlalchemy.text(sql))
                else:
                    async with engine.begin() as async_connection:
                        yield async_connection, async_connection.exec_driver_sql
            finally:
                await engine.dispose()
        else:
            sync_engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
            try:
                if "session" in kind:
                    with Session(sync_engine) as sync_session, sync_session.begin():
                        yield sync_session, _awaitable(lambda sql: sync_session.execute(sqlalchemy.text(sql)))
                else:
                    with sync_engine.begin() as sync_connection:
                        yield sync_connection, _awaitable(sync_connection.exec_driver_sql)
            finally:
                sync_engine.dispose()

    return begin


def sqlite_in(kind: str) -> Any:
    """The same on a file."""

    @contextlib.asynccontextmanager
    async def begin(program: HasPlace) -> AsyncIterator[tuple[Any, Run]]:
        path = program.place
        if kind == "sqlite3":
            connection = sqlite3.connect(path, isolation_level=None)
            connection.row_factory = lambda cursor, row: {"row": row}
            with contextlib.closing(connection):
                connection.execute("BEGIN")
                with connection:
                    yield connection, _awaitable(connection.execute)
        elif kind == "sqlite3 legacy":
            connection = sqlite3.connect(path)
            with contextlib.closing(connection), connection:
                yield connection, _awaitable(connection.execute)
        elif kind == "aiosqlite":
            async with aiosqlite.connect(path) as each:
                try:
                    yield each, each.execute
                    await each.commit()
                except BaseException:
                    await each.rollback()
                    raise
        elif kind == "sqlalchemy async session":
            engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
            try:
                async with AsyncSession(engine) as session, session.begin():
                    yield session, lambda sql: session.execute(sqlalchemy.text(sql))
            finally:
                await engine.dispose()
        else:
            sync_engine = sqlalchemy.create_engine(f"sqlite:///{path}")
            try:
                if "session" in kind:
                    with Session(sync_engine) as sync_session, sync_session.begin():
                        yield sync_session, _awaitable(lambda sql: sync_session.execute(sqlalchemy.text(sql)))
                else:
                    with sync_engine.begin() as sync_connection:
                        yield sync_connection, _awaitable(sync_connection.exec_driver_sql)
            finally:
                sync_engine.dispose()

    return begin


def _awaitable(run: Callable[[Any], Any]) -> Run:
    async def awaitable(sql: str) -> Any:
        return run(sql)

    return awaitable


POSTGRES = [
    "asyncpg",
    "asyncpg pool",
    "psycopg",
    "psycopg async",
    "sqlalchemy",
    "sqlalchemy session",
    "sqlalchemy async",
    "sqlalchemy async session",
    "sqlalchemy async psycopg",
    "sqlalchemy async session psycopg",
]
SQLITE = ["sqlite3", "sqlite3 legacy", "aiosqlite", "sqlalchemy", "sqlalchemy session", "sqlalchemy async session"]
KINDS = [("postgres", kind) for kind in POSTGRES] + [("sqlite", kind) for kind in SQLITE]
IDS = [f"{store} by {kind}" for store, kind in KINDS]
