"""`headgate backup`: a checked copy, or one line that says what to do; nothing is ever overwritten."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from headgate import Headgate
from headgate.storage.migrations import Migration, load_migrations
from headgate.storage.sqlite import backup, connection
from tests.faces.one_module import OneModule, answer, call, go_into

APP = """
from headgate import Headgate

app = Headgate({url!r})

@app.task
async def sync(tenant: str) -> None: ...
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneModule:
    go_into(tmp_path, monkeypatch)
    return OneModule(tmp_path, APP.format(url="sqlite:///jobs.db"))


def test_a_copy_is_a_store_with_the_same_jobs(project: OneModule) -> None:
    id = project.enqueue("sync", "acme")
    told = answer("backup", project.target, "copy.db")
    assert told == {
        "file": str(project.path / "copy.db"),
        "bytes": (project.path / "copy.db").stat().st_size,
        "migration": told["migration"],
    }

    async def states() -> list[str]:
        async with Headgate("sqlite:///copy.db").open(migrate=False) as app:
            return [(await app.job(id).status()).state.value]

    assert asyncio.run(states()) == ["waiting"]
    printed = call("backup", project.target, "second.db")
    assert printed.exit_code == 0
    assert printed.stdout.startswith("second.db: ")
    assert printed.stdout.endswith(f" MB, checked, up to migration {told['migration']}\n")


def test_a_release_copies_a_file_before_it_migrates_it(project: OneModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: "run `headgate migrate`", after which the release before cannot open the file any more."""
    project.enqueue("sync", "acme")
    known = load_migrations("sqlite")
    newer = Migration(known[-1].number + 1, "more", "CREATE TABLE more (id integer);", "")
    for module in (backup, connection):
        monkeypatch.setattr(module, "load_migrations", lambda _database: [*known, newer])
    assert answer("backup", project.target, "copy.db")["migration"] == str(known[-1])
    assert call("migrate", project.target, "--dry-run").exit_code == 3
    Path("jobs.db").unlink()
    Path("jobs.db").touch()
    assert "there are no Headgate tables" in call("backup", project.target, "second.db").stderr


def test_a_folder_is_not_the_name_of_a_copy(project: OneModule) -> None:
    """The fault: a copy named `sub` for `sub/`, and "sub exists, and a backup overwrites nothing" for a folder."""
    for name in ("sub/", "sub"):
        refused = call("backup", project.target, name)
        assert refused.exit_code == 2
        assert f"{name} is a folder; name a file in it: sub/jobs.db" in refused.stderr
        assert not Path("sub").is_file()
        Path("sub").mkdir(exist_ok=True)


def test_an_existing_file_is_not_overwritten(project: OneModule) -> None:
    Path("copy.db").write_text("kept")
    refused = call("backup", project.target, "copy.db")
    assert refused.exit_code == 1
    assert refused.stderr == (
        "Error: copy.db exists, and a backup overwrites nothing; name another file, or delete it\n"
    )
    Path("copy.db").rename("copy.db.part")
    refused = call("backup", project.target, "copy.db")
    assert refused.exit_code == 1
    assert "copy.db.part exists: another backup writes it now" in refused.stderr
    assert Path("copy.db.part").read_text() == "kept"


def test_a_missing_file_and_a_missing_folder_are_named(project: OneModule) -> None:
    refused = call("backup", project.target, "nowhere/copy.db")
    assert refused.exit_code == 1
    assert refused.stderr == (
        "Error: nowhere/copy.db.part cannot be created: No such file or directory; choose another folder\n"
    )
    Path("jobs.db").unlink()
    refused = call("backup", project.target, "copy.db")
    assert refused.exit_code == 1
    assert "there is no file" in refused.stderr
    assert not Path("jobs.db").exists()


def test_a_copy_that_cannot_be_written_leaves_nothing(project: OneModule) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "headgate", "backup", project.target, "copy.db"],
        cwd=project.path, capture_output=True, text=True, check=False,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: copy.db could not be used: disk I/O error")
    assert len(ended.stderr.splitlines()) == 1
    assert not list(project.path.glob("copy.db*"))


def test_other_stores_are_copied_by_other_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_into(tmp_path, monkeypatch)
    shop = OneModule(tmp_path, APP.format(url="postgresql://ada:secret@db.internal/shop?schema=jobs"))
    refused = call("backup", shop.target, "my jobs.dump")
    assert refused.exit_code == 1
    assert refused.stderr == (
        "Error: this command copies SQLite files; for PostgreSQL, let the owner of the tables run: "
        "pg_dump --schema=jobs --format=custom '--file=my jobs.dump' postgresql://ada@db.internal/shop\n"
    )
    memory = OneModule(tmp_path, APP.format(url="memory://"))
    assert "is in the memory of its process" in call("backup", memory.target, "copy.db").stderr
