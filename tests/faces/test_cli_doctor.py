"""`headgate doctor`: what may go wrong with a real store is found, and nothing is changed by looking."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headgate import Headgate
from headgate.cli.main import main
from headgate.urls import displayed_url
from tests.durability.files import corrupt
from tests.durability.postgres import ask
from tests.postgres_server import free_port
from tests.redis_server import server_in


def project(path: Path, url: str = "sqlite:///jobs.db") -> str:
    name = f"examined_{uuid.uuid4().hex}"
    (path / f"{name}.py").write_text(
        "from headgate import Headgate\nfrom tests.internals import app_on\n"
        f"app = Headgate({url!r}, schema='s_{name[-12:]}')\n"
        "old = app_on(app._storage)\n"
        "@app.task\nasync def sync() -> None: ...\n@old.task\nasync def renamed() -> None: ...\n"
    )
    return f"{name}:app"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def examine(*words: str) -> tuple[int, dict[str, tuple[str, str]]]:
    result: Result = CliRunner().invoke(main, ["doctor", *words, "--json"])
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, {each["check"]: (each["level"], each["seen"]) for each in json.loads(result.stdout)}


def open_(target: str, *, attribute: str = "app", enqueue: str | None = None) -> None:
    app: Headgate = getattr(importlib.import_module(target.partition(":")[0]), attribute)

    async def opened() -> None:
        async with app.open():
            if enqueue is not None:
                await app.tasks[enqueue].enqueue()

    asyncio.run(opened())


def test_a_missing_or_outdated_file_is_a_problem_and_is_not_changed(folder: Path) -> None:
    target = project(folder)
    code, found = examine(target)
    assert (code, found["store"][0]) == (1, "problem")
    assert not (folder / "jobs.db").exists()
    (folder / "jobs.db").touch()
    code, found = examine(target)
    assert (code, found["migrations"]) == (1, ("problem", "missing: 0001 initial"))
    assert (folder / "jobs.db").stat().st_size == 0


def test_a_healthy_file_has_no_problem_and_deep_reads_all_of_it(folder: Path) -> None:
    target = project(folder)
    open_(target)
    code, found = examine(target, "--deep")
    assert code == 0
    for check in ("store", "migrations", "synchronous", "disk space", "permissions", "integrity"):
        assert found[check][0] == "ok", found[check]
    assert "integrity" not in examine(target)[1]
    assert "nodes" in examine(target, "--quiet")[1]
    assert "migrations" not in examine(target, "--quiet")[1]


@pytest.mark.nightly
def test_a_file_that_another_program_keeps_locked_is_a_problem(folder: Path) -> None:
    """The fault: while all writes waited, doctor found nothing."""
    target = project(folder)
    open_(target)
    assert examine(target)[1]["write lock"] == ("ok", "free")
    with contextlib.closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        code, found = examine(target)
    level, seen = found["write lock"]
    assert (code, level) == (1, "problem")
    assert "is locked by another connection with an open write transaction" in seen
    # The other checks follow.
    assert found["permissions"][0] == "ok"


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads what the Linux kernel lists")
def test_a_file_that_a_stopped_process_keeps_locked_is_one_problem(folder: Path) -> None:
    """The fault: it was two, of which only one said what to do."""
    target = project(folder)
    open_(target)
    script = (
        "import os, signal, sqlite3\n"
        "connection = sqlite3.connect('jobs.db', isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=folder) as holder:
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            code, found = examine(target)
        finally:
            holder.kill()
    assert (code, found["blockers"][0]) == (1, "problem")
    assert f"held by process {holder.pid}" in found["blockers"][1]
    assert "write lock" not in found


def test_a_disk_that_nobody_can_write_to_is_a_problem(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: on a file system that the kernel has aborted, what was cached could be read, and nothing was found."""
    target = project(folder)
    open_(target)

    def sync(_file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", sync)
    code, found = examine(target)
    assert (code, found["disk"]) == (
        1,
        ("problem", f"nothing can be written beside {folder}/jobs.db: Input/output error"),
    )


def test_a_server_that_is_away_is_a_problem_and_nothing_else(folder: Path) -> None:
    """The fault: doctor began with "ok store" and the address, of a server that was down."""
    result = CliRunner().invoke(
        main, ["doctor", project(folder, f"postgresql://127.0.0.1:{free_port()}/shop"), "--json"]
    )
    stores = [each for each in json.loads(result.stdout) if each["check"] == "store"]
    assert [each["level"] for each in stores] == ["problem"]
    assert "cannot be reached" in stores[0]["seen"]


def test_work_without_a_worker_is_found_with_advice(folder: Path) -> None:
    target = project(folder)
    open_(target, attribute="old", enqueue="renamed")
    code, found = examine(target)
    assert code == 1
    assert found["nodes"] == ("problem", "none is alive, and 1 job could start")
    assert found["tasks"][0] == "warning"
    text = CliRunner().invoke(main, ["doctor", target]).output
    assert "PROBLEM nodes" in text
    assert "do: start `headgate worker`" in text
    assert "1 problem" in text


@pytest.mark.parametrize("environment", [False, True])
def test_the_advised_commands_can_be_pasted(folder: Path, monkeypatch: pytest.MonkeyPatch, environment: bool) -> None:
    """The fault: with HEADGATE_APP set, `headgate queues resume shop:app mail` names the app twice."""
    target = project(folder)
    open_(target, attribute="old", enqueue="renamed")
    open_(target, enqueue="sync")
    runner = CliRunner(env={"HEADGATE_APP": target if environment else None})
    assert runner.invoke(main, ["queues", "pause", "-A", target, "default"]).exit_code == 0
    text = runner.invoke(main, ["doctor", "-A", target]).output
    commands = re.findall(r"headgate ((?:queues resume|jobs cancel) .*)", text)
    assert len(commands) == 2
    for command in commands:
        done = runner.invoke(main, shlex.split(command), input="y\n")
        assert done.exit_code == 0, done.output
    assert "PROBLEM pauses" not in runner.invoke(main, ["doctor", "-A", target]).output


def test_a_file_that_is_not_a_database_is_a_finding(folder: Path) -> None:
    target = project(folder)
    (folder / "jobs.db").write_text("a letter " * 200)
    code, found = examine(target)
    assert code == 1
    assert found["store"][0] == "problem"
    assert "is not a SQLite database" in found["store"][1]


def test_a_damaged_file_is_a_problem_after_which_no_worker_continues(folder: Path) -> None:
    """The fault: below "restore a backup", it said that workers would continue by themselves."""
    target = project(folder)
    app: Headgate = importlib.import_module(target.partition(":")[0]).app

    async def fill() -> None:
        async with app.open():
            await app.tasks["sync"].enqueue_many([()] * 3000)

    asyncio.run(fill())
    # All but the first pages, where the schema is.
    corrupt(folder / "jobs.db", 100)
    result = CliRunner().invoke(main, ["doctor", target, "--quiet"])
    assert result.exit_code == 1
    assert "is damaged or not a SQLite database" in result.output
    assert "do: the error says what to do\n" in result.output


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_a_problem_with_what_to_repair(folder: Path) -> None:
    """The fault: "do: the error says what to do", below "[Errno 111] Connect call failed", which does not."""
    app = f"away_{uuid.uuid4().hex}"
    Path(f"{app}.py").write_text(
        'from headgate import Headgate\n\napp = Headgate("postgresql://ada@127.0.0.1:1/shop")\n'
    )
    result = CliRunner().invoke(main, ["doctor", f"{app}:app", "--quiet"])
    assert result.exit_code == 1
    assert "do: repair the server, the disk or the address, as the error says; workers then continue" in result.output


def test_a_postgres_server_is_examined(folder: Path, postgres_url: Any) -> None:
    target = project(folder, str(postgres_url))
    assert examine(target)[1]["migrations"][0] == "problem"
    open_(target, enqueue="sync")
    code, found = examine(target, "--deep")
    assert code == 1
    assert found["nodes"][0] == "problem"
    for check in ("pooler", "clock", "integrity", "PostgreSQL version"):
        assert found[check][0] == "ok", found[check]
    assert "dead rows in all" in found["autovacuum"][1] or found["autovacuum"][0] != "ok"


@pytest.mark.parametrize("word", ["false", "off", "0"])
def test_a_table_that_is_never_vacuumed_is_found_with_a_statement_that_ends_it(
    folder: Path, postgres_url: Any, word: str
) -> None:
    """The fault: with `off` it was not found, and the advised statement named a table that the session did not find."""
    target = project(folder, str(postgres_url))
    open_(target)
    table = f"s_{target.partition(':')[0][-12:]}.job"
    asyncio.run(ask(str(postgres_url), f"ALTER TABLE {table} SET (autovacuum_enabled = {word})"))
    text = CliRunner().invoke(main, ["doctor", target]).output
    assert f"PROBLEM autovacuum          off for table {table}" in text, text
    (advice,) = re.findall(r"do: (ALTER TABLE .*)", text)
    asyncio.run(ask(str(postgres_url), advice))
    assert "off for table" not in CliRunner().invoke(main, ["doctor", target]).output


def test_the_store_of_limits_is_examined(folder: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = project(folder)
    open_(target)
    monkeypatch.setenv("HEADGATE_LIMITS_URL", redis_url)
    code, found = examine(project(folder))
    assert code == 0
    level, seen = found["limits"]
    assert level == "ok"
    assert seen.startswith(f"{displayed_url(redis_url)}: Redis ")
    assert seen.endswith(", maxmemory-policy noeviction")


def test_a_redis_that_evicts_buckets_is_a_warning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server_in(tmp_path, "--maxmemory-policy", "allkeys-lru") as server:
        monkeypatch.setenv("HEADGATE_LIMITS_URL", server.url)
        _, found = examine(project(folder))
    assert found["limits"][0] == "warning"


def test_a_store_of_limits_that_does_not_answer_is_a_problem_and_its_password_is_not_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_LIMITS_URL", "redis://ada:secret@127.0.0.1:1/0")
    code, found = examine(project(folder))
    assert code == 1
    level, seen = found["limits"]
    assert level == "problem"
    assert seen.startswith("redis://ada@127.0.0.1:1/0: ")
    assert "secret" not in seen
