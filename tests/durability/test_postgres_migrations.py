"""The schema is created once, by the first process; a schema that cannot be used is refused and not changed."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable, StorageUnusable
from headgate.storage.migrations import MIGRATIONS, load_migrations
from headgate.storage.postgres import schema as schema_module
from headgate.storage.postgres.storage import PostgresStorage
from tests.durability.postgres import ask, session_at
from tests.durability.processes import Children
from tests.until import patient, until


def storage_at(url: str, schema: str) -> PostgresStorage:
    return PostgresStorage(url, SystemClock(), schema=schema)


async def opens(url: str, schema: str) -> None:
    storage = storage_at(url, schema)
    await storage.open()
    try:
        assert await storage.queues() == []
    finally:
        await storage.close()


async def columns(url: str, schema: str, table: str) -> list[str]:
    found: list[str] = await ask(
        url,
        "SELECT coalesce(array_agg(column_name::text), '{}') FROM information_schema.columns"
        " WHERE table_schema = $1 AND table_name = $2",
        schema,
        table,
    )
    return found


class Release:
    """The migrations of another release: those of this one, and more."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        shutil.copytree(MIGRATIONS, folder)

    def add(self, name: str, script: str) -> None:
        (self.folder / f"{name}.sql").write_text(script)

    def install(self) -> None:
        """From now on this process is that release."""
        self._monkeypatch.setattr(
            schema_module, "load_migrations", lambda database: load_migrations(database, self.folder)
        )

    def uninstall(self) -> None:
        self._monkeypatch.undo()


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Release:
    return Release(tmp_path / "migrations", monkeypatch)


# ---------------------------------------------------------------------------------------------- coming first


async def test_eight_apps_that_open_a_new_schema_concurrently_create_it_once(
    postgres_url: str, absent_schema: str
) -> None:
    await asyncio.gather(*(opens(postgres_url, absent_schema) for _ in range(8)))
    applied = await ask(postgres_url, f"SELECT array_agg(number) FROM {absent_schema}.migration")
    assert applied == [migration.number for migration in load_migrations("postgres")]
    assert await ask(postgres_url, f"SELECT count(*) FROM {absent_schema}.limit_time") == 1


@pytest.mark.nightly
async def test_processes_that_open_a_new_schema_concurrently_create_it_once(
    postgres_url: str, absent_schema: str, children: Children
) -> None:
    all_ = [await children.start("release.py", url=postgres_url, schema=absent_schema, opens=True) for _ in range(8)]
    for child in all_:
        await child.wait_for_line("ready", seconds=40)
    for child in all_:
        child.send("go")
    for child in all_:
        assert await child.end() == 0
        assert child.has_line("opened"), child.lines
    assert await ask(postgres_url, f"SELECT count(*) FROM {absent_schema}.limit_time") == 1


async def test_readers_do_not_wait_for_a_migration_and_migrations_wait_for_each_other(
    postgres_url: str, absent_schema: str, release: Release
) -> None:
    await opens(postgres_url, absent_schema)
    async with session_at(postgres_url) as other:
        # Another process in the middle of a long migration.
        await other.execute(f"BEGIN; LOCK TABLE {absent_schema}.migration IN SHARE ROW EXCLUSIVE MODE")
        async with asyncio.timeout(patient(5)):
            await opens(postgres_url, absent_schema)
        release.add("0002_note", "ALTER TABLE headgate.job ADD COLUMN note text;")
        release.install()
        waiting = asyncio.ensure_future(opens(postgres_url, absent_schema))
        waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = to_regclass($1)"

        async def waits_for_it() -> bool:
            assert not waiting.done()
            return bool(await ask(postgres_url, waits, f"{absent_schema}.migration"))

        await until(waits_for_it)
        await other.execute("COMMIT")
        await waiting
    assert "note" in await columns(postgres_url, absent_schema, "job")


@pytest.mark.nightly
async def test_a_migration_that_waits_too_long_for_another_raises(
    postgres_url: str, absent_schema: str, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opens(postgres_url, absent_schema)
    release.add("0002_note", "ALTER TABLE headgate.job ADD COLUMN note text;")
    release.install()
    monkeypatch.setattr(schema_module, "TURN_TIMEOUT", 1)
    async with session_at(postgres_url) as other:
        await other.execute(f"BEGIN; LOCK TABLE {absent_schema}.migration IN SHARE ROW EXCLUSIVE MODE")
        with pytest.raises(StorageUnavailable, match="being migrated by another process"):
            await opens(postgres_url, absent_schema)


# --------------------------------------------------------------------------------------------- other releases


async def test_additions_of_a_newer_release_are_tolerated(
    postgres_url: str, absent_schema: str, release: Release
) -> None:
    release.add("0002_note", "-- For people.\nALTER TABLE headgate.job ADD COLUMN note text;")
    release.install()
    await opens(postgres_url, absent_schema)
    release.uninstall()
    await opens(postgres_url, absent_schema)
    assert await storage_at(postgres_url, absent_schema).migrate() == []


async def test_breaking_changes_of_a_newer_release_are_refused(
    postgres_url: str, absent_schema: str, release: Release
) -> None:
    release.add("0002_renamed", "-- breaking: jobs lie elsewhere\nALTER TABLE headgate.job RENAME TO task;")
    release.install()
    await storage_at(postgres_url, absent_schema).migrate()
    release.uninstall()
    with pytest.raises(StorageUnusable, match=r"newer Headgate \(migration 2 'renamed'.*upgrade this program"):
        await opens(postgres_url, absent_schema)


async def test_a_migration_that_was_edited_is_refused(postgres_url: str, absent_schema: str, release: Release) -> None:
    await opens(postgres_url, absent_schema)
    release.add("0001_initial", "-- Better.\nCREATE TABLE headgate.job ();")
    release.install()
    with pytest.raises(StorageUnusable, match=r"migration 1 'initial'.*differs"):
        await opens(postgres_url, absent_schema)


# --------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    "script",
    ["ALTER TABLE headgate.nothing ADD COLUMN x int;", "INSERT INTO headgate.limit_time VALUES (1, 0, 0);", "SELEKT;"],
)
async def test_a_migration_that_fails_leaves_nothing_half_done(
    postgres_url: str, absent_schema: str, release: Release, script: str
) -> None:
    release.add("0002_note", "ALTER TABLE headgate.job ADD COLUMN note text;")
    release.add("0003_bad", f"CREATE TABLE headgate.extra (); {script}")
    release.install()
    with pytest.raises(StorageUnusable, match=r"migration 0003 bad of schema .* failed, and nothing was changed"):
        await opens(postgres_url, absent_schema)
    # Not even the schema, which was new.
    assert await ask(postgres_url, "SELECT to_regnamespace($1)::text", absent_schema) is None
    release.uninstall()
    await opens(postgres_url, absent_schema)
    release.install()
    with pytest.raises(StorageUnusable):
        await opens(postgres_url, absent_schema)
    assert "note" not in await columns(postgres_url, absent_schema, "job")
    assert await ask(postgres_url, f"SELECT array_agg(number) FROM {absent_schema}.migration") == [1]


@pytest.mark.nightly
async def test_a_migration_does_not_wait_for_a_locked_table_so_long_that_workers_stop(
    postgres_url: str, absent_schema: str, release: Release
) -> None:
    await opens(postgres_url, absent_schema)
    release.add("0002_note", "ALTER TABLE headgate.job ADD COLUMN note text;")
    release.install()
    async with session_at(postgres_url) as reader:
        await reader.execute(f"BEGIN; SELECT FROM {absent_schema}.job")
        with pytest.raises(StorageUnavailable, match=r"migration 0002 note .*lock timeout"):
            async with asyncio.timeout(patient(15)):
                await opens(postgres_url, absent_schema)
    await opens(postgres_url, absent_schema)
    assert "note" in await columns(postgres_url, absent_schema, "job")


@pytest.mark.parametrize("setting", ["statement_timeout=1000", "default_transaction_isolation=serializable"])
async def test_a_migration_does_not_depend_on_settings_of_its_role(
    postgres_url: str, absent_schema: str, release: Release, setting: str
) -> None:
    """The fault: a long statement was ended, and one that had waited for another did not see what that had done."""
    await opens(postgres_url, absent_schema)
    release.add("0002_note", "ALTER TABLE headgate.job ADD COLUMN note text; SELECT pg_sleep(1.5);")
    release.install()
    await asyncio.gather(*(opens(f"{postgres_url}?{setting}", absent_schema) for _ in range(2)))
    assert "note" in await columns(postgres_url, absent_schema, "job")


async def test_a_database_that_lacks_characters_is_refused(postgres_url: str, absent_schema: str) -> None:
    """The fault: log lines and reports of jobs were dropped in it, and an enqueue raised an error of the driver."""
    name = f"latin_{uuid.uuid4().hex[:12]}"
    await ask(postgres_url, f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StorageUnusable, match=r"would have the encoding LATIN1, .* ENCODING 'UTF8'"):
        await opens(f"{postgres_url.rpartition('/')[0]}/{name}", absent_schema)
    await ask(postgres_url, f"DROP DATABASE {name} (FORCE)")


async def test_a_schema_with_a_table_of_another_program_is_refused(postgres_url: str, absent_schema: str) -> None:
    """The fault: `headgate migrate` and all other commands ended with a traceback of the driver."""
    await ask(postgres_url, f"CREATE SCHEMA {absent_schema} CREATE TABLE migration (id integer, applied text)")
    storage = storage_at(postgres_url, absent_schema)
    with pytest.raises(StorageUnusable, match=r"another program's: column \"number\".*; choose another schema"):
        await storage.migrate()
    with pytest.raises(StorageUnusable, match="another program's"):
        await storage.open(migrate=False)


@pytest.mark.parametrize(
    "kind", ["TYPE migration AS (id integer)", "TYPE migration AS ENUM ('a')", "SEQUENCE migration"]
)
async def test_a_schema_with_a_type_of_another_program_is_refused(
    postgres_url: str, absent_schema: str, kind: str
) -> None:
    """The fault: all commands ended with a traceback of the driver."""
    await ask(postgres_url, f"CREATE SCHEMA {absent_schema}")
    await ask(postgres_url, f"CREATE {kind.replace('migration', f'{absent_schema}.migration')}")
    storage = storage_at(postgres_url, absent_schema)
    with pytest.raises(StorageUnusable, match=r"another program's: .*; choose another schema"):
        await storage.migrate()
    with pytest.raises(StorageUnusable, match="another program's"):
        await storage.open(migrate=False)


# ----------------------------------------------------------------------------------------------------- rights


@pytest_asyncio.fixture
async def clerk(postgres_url: str) -> AsyncIterator[str]:
    """A role that may do nothing yet."""
    role = f"clerk_{uuid.uuid4().hex[:12]}"
    await ask(postgres_url, f"CREATE ROLE {role} LOGIN")
    yield role
    await ask(postgres_url, f"DROP OWNED BY {role}")
    await ask(postgres_url, f"DROP ROLE {role}")


def as_user(url: str, role: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{role}@{rest.rpartition('@')[2]}"


async def grant(url: str, schema: str, role: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(
        f"GRANT USAGE ON SCHEMA {schema} TO {role};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
    )
    await connection.close()


async def test_a_role_without_create_rights_opens_only_an_up_to_date_schema(
    postgres_url: str, absent_schema: str, clerk: str, release: Release
) -> None:
    with pytest.raises(
        StorageUnusable, match=r"has to be created or changed, and this user may not.*needs CREATE on the database"
    ):
        await opens(as_user(postgres_url, clerk), absent_schema)
    await opens(postgres_url, absent_schema)
    with pytest.raises(StorageUnusable, match=r"cannot be read by this user.*GRANT USAGE"):
        await opens(as_user(postgres_url, clerk), absent_schema)
    await grant(postgres_url, absent_schema, clerk)
    await opens(as_user(postgres_url, clerk), absent_schema)
    release.add("0002_note", "ALTER TABLE headgate.job ADD COLUMN note text;")
    release.install()
    with pytest.raises(StorageUnusable, match="has to be created or changed, and this user may not"):
        await opens(as_user(postgres_url, clerk), absent_schema)
    # The owner, before the deploy.
    assert list(map(str, await storage_at(postgres_url, absent_schema).migrate())) == ["0002 note"]
    await opens(as_user(postgres_url, clerk), absent_schema)


async def test_a_role_that_may_not_call_a_function_is_told_what_to_grant(
    postgres_url: str, absent_schema: str, clerk: str
) -> None:
    """The fault: where the owner's default privileges keep functions from others, it was told to grant what it had."""
    await opens(postgres_url, absent_schema)
    await grant(postgres_url, absent_schema, clerk)
    await ask(postgres_url, f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {absent_schema} FROM PUBLIC")
    storage = storage_at(as_user(postgres_url, clerk), absent_schema)
    await storage.open()
    try:
        with pytest.raises(
            StorageUnavailable, match=r"denies access: .*next_producer; .*, and EXECUTE on its functions"
        ):
            await storage.producer()
    finally:
        await storage.close()


async def test_the_owner_of_an_empty_schema_may_migrate_it(postgres_url: str, absent_schema: str, clerk: str) -> None:
    await ask(postgres_url, f"CREATE SCHEMA {absent_schema} AUTHORIZATION {clerk}")
    await opens(as_user(postgres_url, clerk), absent_schema)


async def test_tables_whose_rows_are_hidden_do_not_look_absent(
    postgres_url: str, absent_schema: str, clerk: str
) -> None:
    """The fault: it said that there was no schema and asked for `headgate migrate`, which found nothing to do."""
    await opens(postgres_url, absent_schema)
    await grant(postgres_url, absent_schema, clerk)
    await ask(postgres_url, f"ALTER TABLE {absent_schema}.migration ENABLE ROW LEVEL SECURITY")
    with pytest.raises(StorageUnusable, match=r"cannot be read by this user: .*row-level security"):
        await opens(as_user(postgres_url, clerk), absent_schema)


# ----------------------------------------------------------------------------------------------------- dry run


async def test_a_dry_run_lists_what_is_missing_and_writes_nothing(
    postgres_url: str, absent_schema: str, clerk: str, release: Release
) -> None:
    storage = storage_at(postgres_url, absent_schema)
    assert list(map(str, await storage.migrate(dry_run=True))) == ["0001 initial"]
    assert await ask(postgres_url, "SELECT to_regnamespace($1)::text", absent_schema) is None
    assert list(map(str, await storage.migrate())) == ["0001 initial"]
    assert await storage.migrate(dry_run=True) == []
    assert await storage.migrate() == []
    release.add("0002_note", "ALTER TABLE headgate.job ADD COLUMN note text;")
    release.install()
    await grant(postgres_url, absent_schema, clerk)
    # Looking needs no right to change anything.
    missing = await storage_at(as_user(postgres_url, clerk), absent_schema).migrate(dry_run=True)
    assert list(map(str, missing)) == ["0002 note"]
