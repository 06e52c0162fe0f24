"""The choice of a store by its URL, and the address of the chosen store."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from headgate.clock import Clock
from headgate.errors import DeclarationError, needing
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.urls import displayed_url


def choose_storage(
    url: str,
    clock: Clock,
    *,
    synchronous: str,
    schema: str,
    listen_url: str | None,
    connections: int,
    pool: object | None = None,
) -> Store:
    """Return the store for a URL; it connects when it is opened.

    `synchronous` applies to SQLite; `schema`, `listen_url`, `connections` and `pool` to PostgreSQL. Raises
    DeclarationError.
    """
    if pool is not None and not str(url).startswith(("postgresql://", "postgres://")):
        raise DeclarationError(
            f"pool= is for PostgreSQL, and the store is {displayed_url(str(url))!r}; pass the URL of the pool's "
            'database, too: Headgate("postgresql://host/database", pool=…)'
        )
    if not isinstance(url, str):
        raise DeclarationError(f"storage URL {url!r:.80} is not text; use sqlite:///path or postgresql://host/database")
    scheme, separator, path = url.partition("://")
    match scheme if separator else "":
        case "memory":
            return MemoryStorage(clock)
        case "sqlite":
            return SqliteStorage(_file_of(url, path), clock, synchronous=synchronous)
        case "postgresql" | "postgres":
            with needing("a postgresql:// URL needs", "asyncpg", install="'headgate[postgres]'"):
                from headgate.storage.postgres.storage import PostgresStorage
            return PostgresStorage(url, clock, schema=schema, listen_url=listen_url, connections=connections, pool=pool)
        case "redis" | "rediss" | "valkey":
            raise DeclarationError(
                f"jobs cannot be kept in Redis, where {displayed_url(url)!r} is: use sqlite:///path or "
                'postgresql://host/database. The limits that count starts can: Headgate(limits_url="redis://…")'
            )
        case _:
            raise DeclarationError(
                f"storage URL {displayed_url(url)!r} has an unknown scheme; use sqlite:///path, "
                "postgresql://host/database, or memory:// for tests and temporary work"
            )


def _file_of(url: str, path: str) -> str:
    if not path.startswith("/") or not path.strip("/"):
        raise DeclarationError(
            f"storage URL {displayed_url(url)!r} has no path; write sqlite:///jobs.db, or sqlite:////var/lib/jobs.db "
            "for an absolute path"
        )
    if "?" in path:
        raise DeclarationError(
            f"storage URL {displayed_url(url)!r} has options; pass them to Headgate(…), such as synchronous="
        )
    return unquote(path[1:])


def address_of(url: str | None, storage: Store) -> StoreAddress:
    """Return the address of a store. One without a `url` is shown by the name of its class."""
    if storage.file is not None:
        return StoreAddress(str(storage.file), storage.file)
    return StoreAddress(type(storage).__name__ if url is None else displayed_url(url))


class StoreAddress(NamedTuple):
    """The address of a store as it is shown, and the file of the store if it is in one."""

    shown: str
    file: Path | None = None
