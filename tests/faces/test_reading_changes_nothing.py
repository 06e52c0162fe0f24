"""Reading makes no file, no schema and no table; what lacks its tables says so, and what makes them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sqlite3
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import asyncpg
import pytest

from headgate import Headgate, StorageUnavailable, StorageUnusable
from headgate.http import dashboard
from headgate.storage.migrations import Migration, load_migrations
from headgate.storage.postgres import schema
from headgate.storage.sqlite import connection
from tests.faces.http.stage import EVERYBODY
from tests.faces.http.stage import client as client_of
from tests.faces.one_module import OneModule, call

READING = [
    ["status"],
    ["top", "--count", "1"],
    ["audit"],
    ["jobs", "list"],
    ["jobs", "show", "ID"],
    ["jobs", "explain", "ID"],
    ["limits", "list"],
    ["limits", "settings"],
    ["queues", "list"],
    ["nodes", "list"],
    ["schedules", "list"],
    ["batches", "list"],
    ["dashboard", "--port", "0"],
    ["purge", "--all", "--yes"],
]
"""Commands that need what is there already; those that change jobs are refused in the same place."""

ADVICE = "run `headgate migrate APP`, or pass Headgate(migrate=True)"


@pytest.fixture(autouse=True)
def default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_MIGRATE", raising=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delenv("HEADGATE_APP", raising=False)
    return tmp_path


@pytest.fixture
def absent(postgres_url: str) -> Iterator[str]:
    """The name of a schema that is not in the database, neither before nor after the test."""
    name = f"typo_{uuid.uuid4().hex[:12]}"

    async def is_there() -> bool:
        database = await asyncpg.connect(postgres_url)
        try:
            return await database.fetchval("SELECT to_regnamespace($1)", name) is not None
        finally:
            await database.close()

    yield name
    assert not asyncio.run(is_there())


def module(folder: Path, *arguments: str) -> str:
    source = f"from headgate import Headgate\napp = Headgate({', '.join(arguments)})\n"
    source += "@app.task\nasync def sync() -> None: ...\n"
    return OneModule(folder, source).target


def words_of(command: Sequence[str], target: str) -> list[str]:
    id = "01a2b3c4-0000-7000-8000-000000000000"
    return [*(id if word == "ID" else word for word in command), "-A", target]


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_command_creates_no_file(folder: Path, command: list[str]) -> None:
    target = module(folder, "'sqlite:///jobs.db'", "migrate=True")
    result = call(*words_of(command, target))
    assert result.exit_code == 1, result.output
    assert "there is no file" in result.stderr
    assert sorted(path.suffix for path in folder.iterdir() if path.is_file()) == [".py"]


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_command_creates_no_tables_in_an_empty_file(folder: Path, command: list[str]) -> None:
    target = module(folder, "'sqlite:///jobs.db'", "migrate=True")
    (folder / "jobs.db").touch()
    result = call(*words_of(command, target))
    assert result.exit_code == 1, result.output
    assert f"there are no Headgate tables in {folder / 'jobs.db'}: {ADVICE}" in result.stderr
    assert (folder / "jobs.db").stat().st_size == 0


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_command_creates_no_schema(folder: Path, postgres_url: str, absent: str, command: list[str]) -> None:
    target = module(folder, repr(postgres_url), f"schema={absent!r}", "migrate=True")
    result = call(*words_of(command, target))
    assert result.exit_code == 1, result.output
    assert f"there is no Headgate schema {absent!r} in postgresql://" in result.stderr
    assert "(HEADGATE_SCHEMA or schema= names it): run `headgate migrate APP`" in result.stderr
    assert ADVICE in result.stderr


def test_a_misspelt_variable_is_named(folder: Path, postgres_url: str, absent: str) -> None:
    result = call("jobs", "list", module(folder, repr(postgres_url)), env={"HEADGATE_SCHEMA": absent})
    assert result.exit_code == 1
    assert f"there is no Headgate schema {absent!r}" in result.stderr


def test_a_worker_on_postgresql_creates_a_schema_only_with_migrate(
    folder: Path, postgres_url: str, absent: str
) -> None:
    result = call("worker", module(folder, repr(postgres_url), f"schema={absent!r}"))
    assert result.exit_code == 1
    assert f"there is no Headgate schema {absent!r}" in result.stderr
    assert ADVICE in result.stderr


async def test_an_app_opens_a_database_without_tables_only_with_migrate(postgres_url: str, absent_schema: str) -> None:
    with pytest.raises(StorageUnusable, match=f"no Headgate schema '{absent_schema}' in .*{ADVICE[:20]}"):
        async with Headgate(postgres_url, schema=absent_schema).open():
            raise AssertionError
    app = Headgate(postgres_url, schema=absent_schema, migrate=True)
    with pytest.raises(StorageUnusable, match="no Headgate schema"):
        async with app.open(migrate=False):
            raise AssertionError
    async with app.open():
        assert await app.admin.counts() == []
    async with Headgate(postgres_url, schema=absent_schema).open() as opened:
        assert await opened.admin.counts() == []


async def test_enqueueing_creates_the_file_unless_migrate_is_off(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with pytest.raises(StorageUnusable, match="there is no file"):
        async with Headgate(url, migrate=False).open():
            raise AssertionError
    assert not (tmp_path / "jobs.db").exists()
    async with Headgate(url).open() as app:
        assert await app.admin.counts() == []
    async with Headgate(url, migrate=False).open() as app:
        assert await app.admin.counts() == []


async def test_a_copy_in_another_journal_mode_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    app, copied = (Headgate(f"sqlite:///{tmp_path / name}", migrate=False) for name in ("jobs.db", "copy.db"))
    await app.migrate()
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as file:
        file.execute(f"VACUUM INTO '{tmp_path / 'copy.db'}'")
    before = (tmp_path / "copy.db").read_bytes()
    with pytest.raises(StorageUnusable, match=rf"copy\.db has the journal mode 'delete'.*{ADVICE[:20]}"):
        async with copied.open():
            raise AssertionError
    assert (tmp_path / "copy.db").read_bytes() == before
    await copied.migrate()
    async with copied.open():
        assert await copied.admin.counts() == []


@pytest.mark.parametrize(("module", "name"), [(os, "open"), (socket, "socket")])
async def test_a_process_without_file_descriptors_is_named_when_a_file_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    app = Headgate(f"sqlite:///{tmp_path / 'jobs.db'}", migrate=False)
    await app.migrate()

    def no_more(*_arguments: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(module, name, no_more)
        with pytest.raises(StorageUnavailable, match=r"jobs\.db could not be .* open files"):
            async with app.open():
                raise AssertionError
    async with app.open():
        assert await app.admin.counts() == []


async def test_the_dashboard_creates_no_file(tmp_path: Path) -> None:
    app = Headgate(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with client_of(dashboard(app, auth=EVERYBODY)) as client:
        answer = await client.get("/api/v1/overview")
        assert answer.status_code == 503, answer.text
    assert not (tmp_path / "jobs.db").exists()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_tables_of_an_older_release_are_named_with_both_versions(
    kind: str, tmp_path: Path, postgres_url: str, absent_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "sqlite":
        app = Headgate(f"sqlite:///{tmp_path / 'jobs.db'}", migrate=False)
    else:
        app = Headgate(postgres_url, schema=absent_schema, migrate=False)
    await app.migrate()
    later = Migration(2, "later", "CREATE TABLE later (id integer)", "checksum")
    known = [*load_migrations(kind), later]
    monkeypatch.setattr(connection if kind == "sqlite" else schema, "load_migrations", lambda _database: known)
    with pytest.raises(StorageUnusable) as raised:
        async with app.open():
            raise AssertionError
    assert f"is at version 0001 initial, and this program needs version 0002 later: {ADVICE}" in str(raised.value)
    assert await app.migrate(dry_run=True) == ["0002 later"]
