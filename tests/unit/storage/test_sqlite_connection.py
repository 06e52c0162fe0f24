"""What a SQLite file must be, and what its errors mean in our words."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import pytest

from headgate.errors import StorageUnavailable, StorageUnusable
from headgate.storage.sqlite import connection, threads
from headgate.storage.sqlite.connection import connect, lock_holder, mount_of, translate
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.manual_clock import ManualClock
from tests.durability.files import open_files

MOUNTS = (
    rb"""proc /proc proc rw 0 0
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/local ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
//box/share /mnt/with\040space cifs rw 0 0
server:/x /srv nfs rw 0 0
/dev/sdc1 /srv xfs rw 0 0
server:/daten /mnt/d"""
    + "ä".encode()
    + rb"""ten nfs rw 0 0
server:/odd /mnt/odd\134\011name nfs rw 0 0
server:/bytes /mnt/"""
    + b"\xff"
    + rb""" nfs rw 0 0
"""
)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib", "ext4"),
        ("/home", "nfs4"),
        ("/home/me", "nfs4"),
        ("/homely", "ext4"),
        ("/home/local", "ext4"),
        ("/home/local/deep/down", "ext4"),
        ("/home/localhost", "nfs4"),
        ("/tmp/x", "tmpfs"),
        ("/mnt/with space", "cifs"),
        ("/mnt/with", "ext4"),
        ("/srv/data", "xfs"),
        ("/mnt/däten/jobs", "nfs"),
        ("/mnt/odd\\\tname", "nfs"),
        ("/mnt/\udcff/jobs", "nfs"),
    ],
)
def test_the_filesystem_of_a_folder_is_that_of_its_nearest_mount(folder: str, kind: str) -> None:
    assert mount_of(Path(folder), MOUNTS)[1] == kind


def test_a_database_on_a_network_filesystem_is_refused_with_the_reason(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_bytes(b"/dev/sda1 / ext4 rw 0 0\nserver:/x " + str(tmp_path).encode() + b" nfs4 rw 0 0\n")
    with pytest.raises(StorageUnusable, match=r"is on a network filesystem \(nfs4 at .*use a local disk"):
        connection._require_local(tmp_path / "jobs.db", mounts)
    mounts.write_bytes(b"/dev/sda1 / ext4 rw 0 0\n")
    connection._require_local(tmp_path / "jobs.db", mounts)
    connection._require_local(tmp_path / "jobs.db", tmp_path / "a machine without such a list")


def failure(code: int, text: str = "it failed") -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    error.sqlite_errorname = f"SQLITE_{code}"
    return error


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (sqlite3.SQLITE_FULL, StorageUnavailable, "free space and try again"),
        (sqlite3.SQLITE_BUSY, StorageUnavailable, "with an open write transaction"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StorageUnavailable, "with an open write transaction"),
        (sqlite3.SQLITE_PROTOCOL, StorageUnavailable, "is locked"),
        (sqlite3.SQLITE_IOERR_WRITE, StorageUnavailable, "could not be used"),
        (sqlite3.SQLITE_IOERR_FSYNC, StorageUnavailable, "could not be used"),
        (sqlite3.SQLITE_READONLY, StorageUnavailable, "could not be used"),
        (sqlite3.SQLITE_CANTOPEN, StorageUnavailable, "could not be used"),
        (sqlite3.SQLITE_CORRUPT, StorageUnusable, "restore a backup"),
        (sqlite3.SQLITE_NOTADB, StorageUnusable, "restore a backup"),
    ],
)
def test_errors_of_the_filesystem_are_translated(code: int, kind: type[Exception], words: str, tmp_path: Path) -> None:
    translated = translate(failure(code), tmp_path / "jobs.db")
    assert type(translated) is kind
    assert str(tmp_path / "jobs.db") in str(translated)
    assert words in str(translated)


def test_a_programming_error_is_not_translated() -> None:
    assert translate(failure(sqlite3.SQLITE_ERROR), Path("jobs.db")) is None
    assert translate(failure(sqlite3.SQLITE_MISUSE), Path("jobs.db")) is None


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "OLDEST_SQLITE", (99, 0, 0))
    refused = r"comes with SQLite .*; Headgate needs 99\.0\.0 or newer"
    with pytest.raises(StorageUnusable, match=refused):
        connection.prepare(tmp_path / "jobs.db", ManualClock(), synchronous="FULL")
    assert not (tmp_path / "jobs.db").exists()
    # The fault: on Debian 11, a job in memory ended with a syntax error near RETURNING.
    with pytest.raises(StorageUnusable, match=refused):
        MemoryStorage(ManualClock())


LOCKS = """1: FLOCK  ADVISORY  WRITE 11 08:01:{inode} 0 EOF
2: POSIX  ADVISORY  READ  12 08:01:{inode} 124 124
3: POSIX  ADVISORY  WRITE 13 08:01:{other} 120 120
4: POSIX  ADVISORY  WRITE 14 08:01:{inode} 121 121
4: -> POSIX  ADVISORY  WRITE 15 08:01:{inode} 120 120
5: POSIX  ADVISORY  WRITE {holder} 08:01:{inode} {first} {last}
"""


@pytest.mark.parametrize(
    ("holder", "stat", "range", "named"),
    [
        (16, "16 (python3) S 1", ("120", "120"), "process 16, python3"),
        (16, "16 (my (odd) name) T 1", ("120", "121"), "process 16, my (odd) name, which is stopped"),
        (16, None, ("0", "EOF"), "process 16"),
        pytest.param(os.getpid(), None, ("120", "120"), "in this process", id="this process"),
        (16, None, ("121", "127"), "None"),
    ],
)
def test_the_process_with_the_write_lock_is_named(
    tmp_path: Path, holder: int, stat: str | None, range: tuple[str, str], named: str
) -> None:
    shared = tmp_path / "jobs.db-shm"
    shared.touch()
    inode = shared.stat().st_ino
    first, last = range
    (tmp_path / "locks").write_text(LOCKS.format(inode=inode, other=inode + 1, holder=holder, first=first, last=last))
    if stat is not None:
        (tmp_path / str(holder)).mkdir()
        (tmp_path / str(holder) / "stat").write_text(stat)
    assert str(lock_holder(tmp_path / "jobs.db", tmp_path)) == named


def test_without_a_list_of_locks_no_process_is_named(tmp_path: Path) -> None:
    assert lock_holder(tmp_path / "jobs.db", tmp_path) is None


def test_a_new_connection_waits_for_the_file_but_its_statements_do_not(tmp_path: Path) -> None:
    """The fault: of apps that created one file together, one failed because the file was locked for a moment."""
    path = tmp_path / "jobs.db"
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA locking_mode = EXCLUSIVE", "CREATE TABLE held (n)"):
        holder.execute(statement)
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(connect, path, synchronous="FULL", timeout=0)
        assert wait([opening], timeout=0.3).not_done
        holder.close()
        connection = opening.result()
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("part", ["reader", "checkpointer"])
def test_a_connection_whose_user_cannot_be_made_is_closed(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the error kept it open, and with it SQLite's locks on the file."""

    def refuse(*_: object) -> None:
        raise OSError("can't start new thread, or open the log")

    path = tmp_path / "jobs.db"
    monkeypatch.setattr(threads, "CallThread", refuse)
    monkeypatch.setattr(os, "open", refuse)
    with contextlib.closing(connect(path, synchronous="FULL", timeout=0)) as writer:
        checkpointer = partial(connection.Checkpointer, path, writer, ManualClock(), "FULL")
        make = partial(threads.Reader, path, "lists") if part == "reader" else checkpointer
        open_before = open_files(path)
        with pytest.raises(OSError, match="can't") as raised:
            make()
        assert open_files(path) == open_before
        assert raised.value.__traceback__ is not None
