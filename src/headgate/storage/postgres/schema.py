"""The schema in which the tables live, made and brought up to date."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from headgate.clock import Clock, sleep
from headgate.errors import StorageUnavailable, StorageUnusable
from headgate.storage.migrations import Migration, load_migrations, pending
from headgate.storage.postgres.database import COMMAND_TIMEOUT, Database, connect, translate
from headgate.storage.postgres.dialect import in_schema

MIGRATION_TIMEOUT = 600.0
"""Seconds that one migration may take; an index on a large table takes its time."""

TURN_TIMEOUT = 60
"""Seconds that one waits for another who migrates."""

# Two that begin at once get in each other's way before there is a table to lock.
_RACED = ("23505", "42P06", "42P07", "XX000")
_FORBIDDEN = "42501"


async def migrate(database: Database, clock: Clock, *, dry_run: bool = False) -> Sequence[Migration]:
    """Apply what is missing, once, whoever else begins at the same time; what was, or with `dry_run` would be, applied.

    A database that is up to date needs no right but to read and write its tables. Releases that are older than the
    database work on, unless a migration says in its first line that it is breaking. Raises StorageUnusable.
    """
    for tries_left in range(9, -1, -1):
        try:
            return await database.repeated(lambda: _migrate(database, dry_run))
        except asyncpg.PostgresError as error:
            if error.sqlstate == _FORBIDDEN:
                raise StorageUnusable(
                    f"the schema {database.schema!r} of {database.name} has to be made or changed, and this user may "
                    f"not: {error}; run `headgate migrate` once as its owner"
                ) from error
            if error.sqlstate not in _RACED or not tries_left:
                raise
        await sleep(clock, 0.05)
    raise AssertionError


async def create(database: Database, schema: str) -> None:
    """Make another, empty schema in the database. Raises StorageUnusable if this user may not."""
    try:
        connection = await connect(database.url)
        try:
            await connection.execute(f'CREATE SCHEMA "{schema}"')
        finally:
            connection.terminate()
    except asyncpg.InsufficientPrivilegeError as error:
        raise StorageUnusable(
            f"{database.name} has to get another schema, and this user may not make it: {error}; its owner may"
        ) from error
    except Exception as error:
        raise (translate(error, database.url, opening=True) or error) from error


async def drop(database: Database, schema: str) -> None:
    """Delete another schema of the database with all that is in it, if it is there."""
    try:
        connection = await connect(database.url)
        try:
            await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        finally:
            connection.terminate()
    except Exception as error:
        raise (translate(error, database.url, opening=True) or error) from error


async def _migrate(database: Database, dry_run: bool) -> Sequence[Migration]:
    where = f"schema {database.schema!r} of {database.name}"
    try:
        connection = await connect(database.url)
        try:
            missing = await _look(connection, database, where)
            return missing if dry_run or not missing else await _apply(connection, database, where)
        finally:
            connection.terminate()
    except Exception as error:
        raise (translate(error, database.url, opening=True) or error) from error


async def _look(connection: asyncpg.Connection, database: Database, where: str) -> list[Migration]:
    """What is missing. In a transaction, as a pooler may give each statement another connection otherwise."""
    try:
        async with connection.transaction(readonly=True):
            return await _pending(connection, database, where)
    except asyncpg.InsufficientPrivilegeError as error:
        raise StorageUnusable(
            f"{where} cannot be read by this user: {error}; let its owner GRANT USAGE on the schema, and SELECT, "
            "INSERT, UPDATE and DELETE on its tables"
        ) from error


async def _apply(connection: asyncpg.Connection, database: Database, where: str) -> list[Migration]:
    """Everything that is missing in one transaction. Those who only look meanwhile see what there was before."""
    schema = f'"{database.schema}"'
    settings = {**database.bounds.of_transaction, "lock_timeout": f"{TURN_TIMEOUT}s"}
    if "transaction_timeout" in settings:
        settings["transaction_timeout"] = f"{TURN_TIMEOUT + MIGRATION_TIMEOUT:.0f}s"
    await connection.execute(
        "; ".join(["BEGIN", *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items())])
    )
    await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}", timeout=TURN_TIMEOUT + COMMAND_TIMEOUT)
    await connection.execute(
        f"CREATE TABLE IF NOT EXISTS {schema}.migration (number integer PRIMARY KEY, name text NOT NULL,"
        " checksum text NOT NULL, is_breaking boolean NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())",
        timeout=TURN_TIMEOUT + COMMAND_TIMEOUT,
    )
    try:
        await connection.execute(
            f"LOCK TABLE {schema}.migration IN SHARE ROW EXCLUSIVE MODE", timeout=TURN_TIMEOUT + COMMAND_TIMEOUT
        )
    except asyncpg.LockNotAvailableError as error:
        raise StorageUnavailable(f"{where} is being migrated by another process; try again when it is done") from error
    # Whoever wants a table that a migration waits for waits behind it, workers included: that must not last.
    await connection.execute("SET LOCAL lock_timeout = '5s'")
    missing = await _pending(connection, database, where)
    for migration in missing:
        await _run(connection, database, migration, where)
        await connection.execute(
            f"INSERT INTO {schema}.migration (number, name, checksum, is_breaking) VALUES ($1, $2, $3, $4)",
            migration.number,
            migration.name,
            migration.checksum,
            migration.is_breaking,
        )
    await connection.execute("COMMIT")
    return missing


async def _run(connection: asyncpg.Connection, database: Database, migration: Migration, where: str) -> None:
    try:
        await connection.execute(in_schema(migration.script, database.schema), timeout=MIGRATION_TIMEOUT)
    except asyncpg.PostgresError as error:
        if error.sqlstate == _FORBIDDEN:
            raise
        told = f"migration {migration} of {where} failed, and nothing was changed: {error}"
        if isinstance(translate(error, database.url, opening=True), StorageUnavailable):
            raise StorageUnavailable(told) from error
        raise StorageUnusable(told) from error


async def _pending(connection: asyncpg.Connection, database: Database, where: str) -> list[Migration]:
    """What is missing, inside or outside of the transaction that applies it."""
    table = f'"{database.schema}".migration'
    applied: dict[int, tuple[str, str]] = {}
    tolerated: set[int] = set()
    if await connection.fetchval("SELECT to_regclass($1)", table) is not None:
        for number, name, checksum, is_breaking in await connection.fetch(
            f"SELECT number, name, checksum, is_breaking FROM {table}"
        ):
            applied[number] = (name, checksum)
            if not is_breaking:
                tolerated.add(number)
    return pending(load_migrations(__package__), applied, where, tolerated)
