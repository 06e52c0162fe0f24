"""Enqueueing jobs in the caller's own transaction, on the caller's own connection.

For every driver, all statements run on that connection and nothing else is awaited, so synchronous code can use it too.
The jobs exist if the caller commits.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from headgate.errors import UnfitConnection

DriverName = Literal["sqlite3", "aiosqlite", "asyncpg", "psycopg", "psycopg async"]

_DRIVERS: dict[tuple[str, str], DriverName] = {
    ("sqlite3", "Connection"): "sqlite3",
    ("aiosqlite", "Connection"): "aiosqlite",
    ("asyncpg", "Connection"): "asyncpg",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg",
    ("psycopg", "Connection"): "psycopg",
    ("psycopg", "AsyncConnection"): "psycopg async",
}
_AWAITED = ("aiosqlite", "asyncpg", "psycopg async")
_SQLALCHEMY = ("AsyncSession", "async_scoped_session", "Session", "scoped_session", "AsyncConnection", "Connection")


class OtherPlace(UnfitConnection):
    """The connection does not lead to the jobs: they are elsewhere, or its driver is unknown."""


class Enlisted(NamedTuple):
    """A connection of the caller: the driver's own, without wrappers."""

    driver: DriverName
    connection: Any


async def enlisted(connection: Any) -> Enlisted:
    """Return the driver's connection, with SQLAlchemy's transaction begun. Raises UnfitConnection if none is found."""
    wrapped, name = connection, _sqlalchemy_name(connection)
    if name is not None:
        wrapped = await _unwrapped(wrapped, name)
    found = _driver(wrapped)
    if found is None:
        given, driver = (f"{type(each).__module__}.{type(each).__qualname__}" for each in (connection, wrapped))
        raise OtherPlace(
            f"connection={given}{'' if wrapped is connection else f' over {driver}'} cannot carry a change of jobs; "
            "pass a connection of sqlite3, aiosqlite, asyncpg or psycopg 3, or one or a session of SQLAlchemy over them"
        )
    if name is not None and "sync" not in name and found in _AWAITED:
        raise UnfitConnection(
            f"this {name} blocks and its driver, {found}, is async, as inside of run_sync; nothing was stored: outside "
            "of it, await the call with the AsyncSession or AsyncConnection itself"
        )
    return Enlisted(found, wrapped)


async def _unwrapped(wrapped: Any, name: str) -> Any:
    if name in ("AsyncSession", "async_scoped_session"):
        wrapped, name = await wrapped.connection(), "AsyncConnection"
    elif name in ("Session", "scoped_session"):
        wrapped, name = wrapped.connection(), "Connection"
    # SQLAlchemy begins the driver's transaction with its first statement.
    if name == "AsyncConnection":
        await wrapped.exec_driver_sql("SELECT 1")
        return (await wrapped.get_raw_connection()).driver_connection
    wrapped.exec_driver_sql("SELECT 1")
    return wrapped.connection.driver_connection


def require_blocking(connection: Any) -> None:
    """Raise UnfitConnection for a connection that has to be awaited."""
    if "sync" in (_sqlalchemy_name(connection) or "") or _driver(connection) in _AWAITED:
        raise UnfitConnection(
            "this connection is async: await the call without .sync, as in `await task.using(connection=…).enqueue(…)`"
        )


def _sqlalchemy_name(connection: Any) -> str | None:
    """Return the name of a class of SQLAlchemy; None for any other connection."""
    return next((name for name in _SQLALCHEMY if _is_a(connection, "sqlalchemy", name)), None)


def _driver(connection: Any) -> DriverName | None:
    return next((driver for (module, name), driver in _DRIVERS.items() if _is_a(connection, module, name)), None)


def _is_a(connection: Any, module: str, name: str) -> bool:
    # Not its type: libraries that monitor programs put a proxy around a connection, which has the class of its own.
    kinds = connection.__class__.__mro__
    return any(each.__name__ == name and each.__module__.partition(".")[0] == module for each in kinds)
