"""The schema with the tables: created and migrated."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from headgate.clock import sleep
from headgate.errors import StorageUnavailable, StorageUnusable
from headgate.storage.migrations import Migration, load_migrations, pending, require_none
from headgate.storage.postgres.database import BEGIN, COMMAND_TIMEOUT, Database, translate
from headgate.storage.postgres.dialect import in_schema

MIGRATION_TIMEOUT = 600.0
"""Seconds that one migration may take; building an index on a large table takes long."""

TURN_TIMEOUT = 60
"""Seconds for which one process waits for another that migrates."""

DEFAULT_SCHEMA = "headgate"

# Two processes that begin at once can conflict before there is a table to lock.
_RACED = (asyncpg.UniqueViolationError, asyncpg.DuplicateSchemaError, asyncpg.DuplicateTableError)


async def migrate(database: Database, *, dry_run: bool = False) -> Sequence[Migration]:
    """Apply pending migrations, once even if several processes begin together. Returns what (would be) applied.

    If nothing is pending, the user only needs the right to read and write the tables. Releases that are older than the
    database continue to work, unless the first line of a migration marks it as breaking. Raises StorageUnusable.
    """
    for tries_left in range(9, -1, -1):
        try:
            return await database.repeated(lambda: _migrate(database, dry_run))
        except asyncpg.InsufficientPrivilegeError as error:
            raise StorageUnusable(
                f"the schema {database.schema!r} of {database.name} has to be created or changed, and this user may "
                f"not: {error}; run `headgate migrate` as its owner; a new one needs CREATE on the database"
            ) from error
        except _RACED:
            if not tries_left:
                raise
        await sleep(database.clock, 0.05)
    raise AssertionError


async def require_migrated(database: Database) -> None:
    """Raise StorageUnusable unless the tables are there and up to date; nothing is written."""
    chosen = "" if database.schema == DEFAULT_SCHEMA else " (HEADGATE_SCHEMA or schema= names it)"
    require_none(
        await database.repeated(lambda: _migrate(database, dry_run=True)),
        load_migrations("postgres"),
        absent=f"there is no Headgate schema {database.schema!r} in {database.name}{chosen}",
        where=f"schema {database.schema!r} of {database.name}",
    )


async def create(database: Database, schema: str) -> None:
    """Create another, empty schema in the database. Raises StorageUnusable if this user may not."""
    try:
        with database.translated(opening=True):
            async with database.connection() as connection:
                await connection.execute(f'CREATE SCHEMA "{schema}"')
    except asyncpg.InsufficientPrivilegeError as error:
        raise StorageUnusable(
            f"{database.name} needs another schema, and this user may not create it: {error}; run it as the owner"
        ) from error


async def drop(database: Database, schema: str) -> None:
    """Delete another schema of the database with everything in it, if it exists."""
    with database.translated(opening=True):
        async with database.connection() as connection:
            await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


async def _migrate(database: Database, dry_run: bool) -> Sequence[Migration]:
    where = f"schema {database.schema!r} of {database.name}"
    with database.translated(opening=True):
        async with database.connection() as connection:
            try:
                # A pooler may give each statement another connection, unless they are in a transaction.
                async with connection.transaction(readonly=True):
                    missing = await _pending(connection, database, where)
            except asyncpg.InsufficientPrivilegeError as error:
                raise StorageUnusable(
                    f"{where} cannot be read by this user: {error}; let its owner GRANT USAGE on the schema, and "
                    "SELECT, INSERT, UPDATE and DELETE on its tables, without row level security"
                ) from error
            except (asyncpg.UndefinedColumnError, asyncpg.UndefinedTableError, asyncpg.WrongObjectTypeError) as error:
                told = f"the table or type migration in {where} is another program's: {error.args[0]}"
                raise StorageUnusable(f"{told}; choose another schema with HEADGATE_SCHEMA or schema=") from error
            return missing if dry_run or not missing else await _apply(connection, database, where)


async def _apply(connection: asyncpg.Connection, database: Database, where: str) -> list[Migration]:
    """Apply pending migrations in one transaction. Other readers see the schema as it was before."""
    schema = f'"{database.schema}"'
    longest = f"{TURN_TIMEOUT + MIGRATION_TIMEOUT:.0f}s"
    # Whatever the role or the database has for itself.
    settings = {**database.bounds.of_transaction, "lock_timeout": f"{TURN_TIMEOUT}s", "statement_timeout": longest}
    if "transaction_timeout" in settings:
        settings["transaction_timeout"] = longest
    await connection.execute("; ".join([BEGIN, *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items())]))
    # The server asks for CREATE on the database even if the schema exists.
    if await connection.fetchval("SELECT to_regnamespace($1)", schema) is None:
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
    # Other transactions on a table that a migration waits for wait behind it, even those of workers: it must be short.
    await connection.execute("SET LOCAL lock_timeout = '5s'")
    missing = await _pending(connection, database, where)
    encoding = await connection.fetchval("SHOW server_encoding")
    if missing and missing[0].number == 1 and encoding not in ("UTF8", "SQL_ASCII"):
        raise StorageUnusable(
            f"{where} would have the encoding {encoding}, which lacks characters of payloads, errors and log lines; "
            "use a database that was made with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )
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
    except asyncpg.InsufficientPrivilegeError:
        raise
    except asyncpg.PostgresError as error:
        message = f"migration {migration} of {where} failed, and nothing was changed: {error}"
        is_away = isinstance(translate(error, database.url, opening=True), StorageUnavailable)
        raise (StorageUnavailable if is_away else StorageUnusable)(message) from error


async def _pending(connection: asyncpg.Connection, database: Database, where: str) -> list[Migration]:
    """Return pending migrations, inside or outside the transaction that applies them."""
    table = f'"{database.schema}".migration'
    applied: dict[int, tuple[str, str]] = {}
    tolerated: set[int] = set()
    # With row security, a policy that hides rows would make a schema look empty; without it, reading them is an error.
    find = "SELECT coalesce(to_regclass($1)::text, to_regtype($1)::text) FROM set_config('row_security', 'off', true)"
    if await connection.fetchval(find, table) is not None:
        for number, name, checksum, is_breaking in await connection.fetch(
            f"SELECT number, name, checksum, is_breaking FROM {table}"
        ):
            applied[number] = (name, checksum)
            if not is_breaking:
                tolerated.add(number)
    return pending(load_migrations("postgres"), applied, where, tolerated)
