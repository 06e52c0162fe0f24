"""Transient errors of the network and of databases, for which a retry may succeed."""

from __future__ import annotations

import asyncio
import errno
import socket
import sqlite3
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transient:
    """A set of errors for `retry_on` and `give_up_on`: `RetryPolicy.NETWORK` or `RetryPolicy.DATABASE`.

    Libraries are named and not imported: their errors match once the program itself has imported them. An error caused
    by a refused certificate never matches.
    """

    name: str
    classes: tuple[type[BaseException], ...]
    named: tuple[str, ...]
    excluded: tuple[str, ...]
    is_transient: Callable[[BaseException], bool]

    def matches(self, error: BaseException) -> bool:
        """Return whether the error is in the set."""
        if isinstance(error, _imported(self.excluded)) or _is_of_certificate(error):
            return False
        return isinstance(error, (*self.classes, *_imported(self.named))) or self.is_transient(error)

    def __repr__(self) -> str:
        return f"RetryPolicy.{self.name}"


def _imported(names: tuple[str, ...]) -> tuple[type[BaseException], ...]:
    """Return the classes with these names whose modules are imported."""
    found: list[type[BaseException]] = []
    for name in names:
        module, _, attribute = name.rpartition(".")
        kind = getattr(sys.modules.get(module), attribute, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            found.append(kind)
    return tuple(found)


def _is_of_certificate(error: BaseException | None) -> bool:
    seen = 0
    while error is not None and seen < 20:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


_UNREACHABLE = frozenset(
    getattr(errno, name)
    for name in ("ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH", "ENOBUFS", "ENOTCONN")
    if hasattr(errno, name)
)


def _is_unreachable(error: BaseException) -> bool:
    if not isinstance(error, OSError):
        return False
    # For a host with several addresses, none of which answers, asyncio raises an OSError without a number.
    return error.errno in _UNREACHABLE or (error.errno is None and str(error).startswith("Multiple exceptions: "))


_SQLITE = frozenset(
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_CANTOPEN,
    )
)


def _is_of_database(error: BaseException) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        # A missing table raises the same class; the low byte of the code is the kind of error.
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE
    original = getattr(error, "orig", None)
    if isinstance(original, BaseException) and isinstance(error, _imported(("sqlalchemy.exc.DBAPIError",))):
        return bool(getattr(error, "connection_invalidated", False)) or DATABASE.matches(original)
    # SQLAlchemy wraps an error of asyncpg in its own class, with the original as the cause.
    return type(error).__module__.startswith("sqlalchemy.") and (
        error.__cause__ is not None and DATABASE.matches(error.__cause__)
    )


_CONNECTION: tuple[type[BaseException], ...] = (
    ConnectionError,
    TimeoutError,
    socket.gaierror,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
    asyncio.IncompleteReadError,
)

NETWORK = Transient(
    "NETWORK",
    _CONNECTION,
    (
        "http.client.IncompleteRead",
        "httpx.TimeoutException",
        "httpx.NetworkError",
        "httpx.RemoteProtocolError",
        "httpx.ProxyError",
        "httpcore.TimeoutException",
        "httpcore.NetworkError",
        "httpcore.RemoteProtocolError",
        "httpcore.ProxyError",
        "aiohttp.ClientConnectionError",
        "aiohttp.ClientPayloadError",
        "requests.ConnectionError",
        "requests.Timeout",
        "requests.exceptions.ChunkedEncodingError",
        "urllib3.exceptions.TimeoutError",
        "urllib3.exceptions.ProtocolError",
        "urllib3.exceptions.MaxRetryError",
        "redis.exceptions.ConnectionError",
        "redis.exceptions.TimeoutError",
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.HTTPClientError",
    ),
    ("redis.exceptions.AuthenticationError", "redis.exceptions.AuthorizationError"),
    _is_unreachable,
)

DATABASE = Transient(
    "DATABASE",
    _CONNECTION,
    (
        "asyncpg.PostgresConnectionError",
        "asyncpg.InterfaceError",
        "asyncpg.TransactionRollbackError",
        "asyncpg.OperatorInterventionError",
        "asyncpg.InsufficientResourcesError",
        "asyncpg.LockNotAvailableError",
        "psycopg.OperationalError",
        "psycopg_pool.PoolTimeout",
        "psycopg2.OperationalError",
        "pymysql.err.OperationalError",
        "MySQLdb.OperationalError",
        "sqlalchemy.exc.TimeoutError",
        "django.db.utils.OperationalError",
    ),
    (),
    lambda error: _is_unreachable(error) or _is_of_database(error),
)
