"""A SQLite file: it is opened safely, migrated, checkpointed and checked, and its errors are translated.

SQLite before 3.51.3 has the WAL-reset bug: a checkpoint that runs while another connection commits and resets the log
can leave pages of the new log out of the file, which is then corrupt. The invariant that excludes it, on every version:
a checkpoint runs only under the file's write lock. So:

- no connection that Headgate opens or is lent checkpoints by itself after a commit (`wal_autocheckpoint` is 0);
- `Checkpointer` checkpoints on a connection of its own, while the writer of the same process holds the write lock;
- the last connection of all processes that closes the file checkpoints it, which SQLite does under an exclusive lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import random
import re
import shlex
import sqlite3
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headgate.clock import SECOND, Clock
from headgate.errors import HeadgateError, StorageUnavailable, StorageUnusable, raise_instead
from headgate.storage.facts import NETWORK_FILESYSTEMS, Contradiction, IndexFacts, SqliteFacts
from headgate.storage.migrations import Migration, load_migrations, pending, require_none
from headgate.storage.records import Blocker

logger = logging.getLogger("headgate.storage")

APPLICATION_ID = 0x48_64_67_74
"""`Hdgt`, stored in the file's header: distinguishes a Headgate database from another program's."""

OLDEST_SQLITE = (3, 36, 0)
"""Versions before it have no RETURNING, or may give its columns other names."""

CHECKPOINT_EVERY = 4000
"""Frames of the log between two checkpoints: 16 MiB. Each checkpoint syncs the file twice."""

ALARM_AT = 32 * CHECKPOINT_EVERY  # 500 MiB

LOCK_TIMEOUT = 1.0
"""Seconds for which a checkpoint waits for other writers; after that the next look tries again."""

# The formats of the log's header (page size, sequence number, two salts) and of the frames after it. A frame belongs to
# the log as it is now if it has the salts of the header; the log is reset with other salts and written from its start.
_HEADER = 32
_FRAME_HEADER = 24
_IDENTITY = slice(4, 16)
_SALTS = slice(8, 16)

MOUNTS, MAPS = Path("/proc/self/mounts"), Path("/proc/self/maps")

_WAIT_TO_OPEN = 10.0
"""Seconds for which a new connection waits for the file, before it reads anything."""

_UNUSABLE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
# PROTOCOL: SQLite lost the race for its shared memory a hundred times, which is contention too.
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_ENVIRONMENT = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
}

_FORBIDDEN = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}


def connect(path: Path, *, synchronous: str, timeout: float) -> sqlite3.Connection:
    """Open a connection in autocommit mode: transactions are begun by statements.

    Its statements wait `timeout` seconds for a lock, 0 for not at all. Opening it waits for a file that another process
    opens, recovers or closes. It does not checkpoint after a commit; see `Checkpointer`.
    """
    wait = max(timeout, _WAIT_TO_OPEN)
    connection = sqlite3.connect(path, timeout=wait, isolation_level=None, check_same_thread=False)
    with closing_after_error(connection):
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        # The most that the log keeps of the disk when it is reset: a reader may have let it grow far beyond.
        connection.execute(f"PRAGMA journal_size_limit = {4 * CHECKPOINT_EVERY * 4096}")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -16000")
        # A damaged payload must affect only its own job: with an error here, no job at all could be read.
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        connection.execute(f"PRAGMA busy_timeout = {round(timeout * 1000)}")
    return connection


@contextlib.contextmanager
def closing_after_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Close a connection if the block, which sets it up, raises: the error would keep it and its file open."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def prepare(path: Path, clock: Clock, *, synchronous: str, dry_run: bool = False) -> Sequence[Migration]:
    """Make `path` a current Headgate database, or raise StorageUnusable and change nothing.

    Returns the migrations that were applied. With `dry_run`, it returns those that would be, writes nothing and creates
    no file.
    """
    require_version()
    _require_local(path)
    try:
        _require_headgate_file(path)
        if dry_run:
            return _missing(path)
        if _is_current(path):
            # Not even a lock is taken: the thread that waits for this may hold it.
            return []
        _create_private(path.resolve())
        connection = connect(path, synchronous=synchronous, timeout=30)
        try:
            # SQLite does not wait by itself when several connections change the mode of a new file at once.
            begin(connection, lambda: 30, clock, statement="PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            try:
                applied = migrate(connection, path, clock)
                connection.execute("COMMIT")
                return applied
            finally:
                # After some errors, such as a full disk, SQLite has already rolled back.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise_instead(translate(error, path), error)


def require_version() -> None:
    """Raise StorageUnusable if the SQLite of this Python is too old."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StorageUnusable(
            f"this Python comes with SQLite {sqlite3.sqlite_version}; Headgate needs "
            f"{'.'.join(map(str, OLDEST_SQLITE))} or newer"
        )


def require_prepared(path: Path, clock: Clock, *, may_be_older: bool = False) -> None:
    """Raise StorageUnusable unless `path` is a current Headgate database, or `may_be_older`; writes nothing."""
    if not path.exists():
        raise StorageUnusable(
            f"there is no file {path}, where the jobs of this app live; is this the right directory? A relative "
            "sqlite:/// URL is looked for in the current one. The first worker makes the file, and so does "
            "`headgate migrate`"
        )
    missing, known = prepare(path, clock, synchronous="FULL", dry_run=True), load_migrations("sqlite")
    if not may_be_older or len(missing) == len(known):
        require_none(missing, known, absent=f"there are no Headgate tables in {path}", where=str(path))


def translate(error: sqlite3.Error, path: Path) -> HeadgateError | None:
    """Return the error to raise for a SQLite error: what failed, which file, what to do. None for a bug in Headgate."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _UNUSABLE:
        return StorageUnusable(
            f"{path} is damaged or not a SQLite database ({error}); nothing was written: restore a backup, "
            "or move the file away to start with an empty one"
        )
    if code == sqlite3.SQLITE_FULL:
        return StorageUnavailable(f"the disk of {path} is full; nothing of this was stored: free space and try again")
    if code in _BUSY:
        return StorageUnavailable(
            f"{path} is locked by another connection with an open write transaction{held_by(path)}; "
            "end it and try again"
        )
    if code in _ENVIRONMENT:
        advice = "; let this user write to the file and its folder" if code in _FORBIDDEN else ""
        name = getattr(error, "sqlite_errorname", "")
        return StorageUnavailable(f"{path} could not be used: {error} ({name}){advice}")
    if str(error).startswith("no such table"):
        return StorageUnavailable(
            f"a table of {path} is missing ({error}); restore it or a backup, and restart this process"
        )
    return None


# The byte of the file `-shm` that SQLite locks for a write transaction, as its format says.
_WRITE_LOCK = 120


class LockHolder(NamedTuple):
    """A process that holds the write lock of a file; without a `name` if it cannot be read."""

    pid: int
    name: str
    is_stopped: bool

    def __str__(self) -> str:
        if self.pid == os.getpid():
            return "in this process"
        name = self.name and f", {self.name}"
        return f"process {self.pid}{name}{', which is stopped' if self.is_stopped else ''}"


def lock_holder(path: Path, processes: Path = Path("/proc")) -> LockHolder | None:
    """Return the process that holds the write lock; None if none does, or none is known.

    It reads what the Linux kernel lists. The file itself must not be opened: closing it would release our own locks.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        shared = path.resolve().with_name(f"{path.resolve().name}-shm").stat().st_ino
        for line in (processes / "locks").read_text().splitlines():
            fields = line.split()
            # Another connection that waits for a lock has an arrow in its line.
            if fields[1] != "POSIX" or fields[3] != "WRITE" or fields[5].rpartition(":")[2] != str(shared):
                continue
            if int(fields[6]) <= _WRITE_LOCK and (fields[7] == "EOF" or int(fields[7]) >= _WRITE_LOCK):
                return _described_process(processes, int(fields[4]))
    return None


def _described_process(processes: Path, pid: int) -> LockHolder:
    try:
        # The name may hold spaces and parentheses; the state follows the last one.
        name, _, rest = (processes / str(pid) / "stat").read_text(errors="replace").partition("(")[2].rpartition(") ")
    except OSError:
        name = rest = ""
    return LockHolder(pid, name, rest[:1] in ("T", "t"))


def held_by(path: Path) -> str:
    """Return who holds the write lock as the end of a clause: " (process 4711, python3)"; empty if it is not known."""
    holder = lock_holder(path)
    return "" if holder is None else f" ({holder})"


def blockers(path: Path, now: int) -> list[Blocker]:
    """Return another process that holds the write lock, and is stopped or lets nobody commit for 10 s.

    Each commit writes to the log, and each node commits every few seconds.
    """
    holder = lock_holder(path)
    log = path.resolve().with_name(f"{path.resolve().name}-wal")
    since = min(now, int(log.stat().st_mtime * SECOND)) if log.exists() else now
    if holder is None or holder.pid == os.getpid() or not (holder.is_stopped or now - since >= 10 * SECOND):
        return []
    return [Blocker("blocks", holder.pid, since, f"the write lock of {path} is held by {holder}")]


def begin(
    connection: sqlite3.Connection,
    patience: Callable[[], float],
    clock: Clock,
    on_slow: Callable[[float], None] = lambda _waited: None,
    is_over: Callable[[], bool] = lambda: False,
    *,
    statement: str = "BEGIN IMMEDIATE",
) -> None:
    """Begin a write transaction, waiting up to `patience()` seconds for other writers, and not once it `is_over`.

    SQLite's own busy handler sleeps ever longer and starves some processes; short random waits share the lock evenly.
    `on_slow` is called once, when the wait has lasted a second. Another `statement` may wait for the file in this way.
    """
    began: int | None = None
    is_warned = False
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _BUSY:
                raise
            now = clock.monotonic()
            began = now if began is None else began
            waited = (now - began) / SECOND
            if waited > patience() or is_over():
                raise
            if waited > 1 and not is_warned:
                is_warned = True
                on_slow(waited)
            threading.Event().wait(random.uniform(0.0002, 0.003))


def _require_local(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise StorageUnusable on a network filesystem: WAL needs shared memory between all processes."""
    if not mounts.exists():
        return
    point, kind = mount_of(path.resolve().parent, mounts.read_bytes())
    if kind in NETWORK_FILESYSTEMS:
        raise StorageUnusable(
            f"{path} is on a network filesystem ({kind} at {point}), where SQLite corrupts under several processes; "
            "use a local disk, or PostgreSQL for several machines"
        )


def mount_of(folder: Path, mounts: bytes) -> tuple[str, str]:
    """Return the mount point and the kind of a folder's filesystem, from the kernel's list of mounts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        _, raw, filesystem, *_ = line.split(b" ")
        # Spaces and some other characters are written in octal, everything else as the bytes it is.
        point = os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), raw))
        # A later mount covers an earlier one at the same place.
        if folder.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, filesystem.decode()
    return best, kind


def _require_headgate_file(path: Path) -> None:
    """Check the header before SQLite opens the file: a file of another program is left exactly as it is."""
    if path.is_dir():
        raise StorageUnusable(f"{path} is a folder; add a file name to the path")
    if not path.parent.is_dir():
        raise StorageUnusable(f"the folder of {path} does not exist; create it first")
    if not path.exists() or path.stat().st_size == 0:
        return
    found = _application_id_in_header(path)
    if found is None:
        raise StorageUnusable(f"{path} is not a SQLite database; nothing was changed: choose another file")
    if found != APPLICATION_ID:
        # 1. A crash right after creation leaves a header without an id and without any table: it can be completed.
        # 2. After another process has just created the file, the tables and the id are in the write-ahead log first.
        if found == 0 and _is_empty_or_ours(path):
            return
        raise StorageUnusable(
            f"{path} is another program's SQLite database (application id {found:#010x}); nothing was changed: "
            "choose another file"
        )


def _create_private(path: Path) -> None:
    """Create a missing file for its owner alone; SQLite gives the files beside it the same permissions.

    `path` is no link: SQLite itself would let all read the file that it refers to. In a folder that is shared with a
    group (setgid and writable for the group), the group may read and write it too, whatever the umask is.
    """
    mode = 0o660 if is_shared(path.parent) else 0o600
    # It may be there already. If the folder is not writable, SQLite reports it better.
    with contextlib.suppress(OSError):
        try:
            # Created without being opened if possible: closing a file drops all locks that this process has on it.
            os.mknod(path, stat.S_IFREG | mode)
        except (AttributeError, PermissionError):
            # Some systems allow only root to call mknod.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode))
        path.chmod(mode)


def is_shared(folder: Path) -> bool:
    """Whether a folder is shared with a group: files in it get that group, which may write there."""
    shared = stat.S_ISGID | stat.S_IWGRP
    return folder.stat().st_mode & shared == shared


def _application_id_in_header(path: Path) -> int | None:
    """Return the application id in the file's header, without its log; None if it is no database, 0 if there is no id.

    SQLite reads it: it neither locks nor writes an immutable file. If this process opened and closed the file itself,
    it would lose all its locks on it, even those of the caller's own connections (sqlite.org/howtocorrupt.html, 2.2).
    """
    # One page of the smallest size.
    if path.stat().st_size < 512:
        return None
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
    except sqlite3.OperationalError as error:
        raise StorageUnusable(
            f"{path} cannot be opened: {error}; let this user read and write the file, and files beside it"
        ) from error
    try:
        return int(connection.execute("PRAGMA application_id").fetchone()[0]) & 0xFFFFFFFF
    except sqlite3.DatabaseError as error:
        match error.sqlite_errorcode & 0xFF:
            case sqlite3.SQLITE_NOTADB:
                return None
            case sqlite3.SQLITE_CORRUPT:
                # While another process copies its log into it, the file is shorter than its header says.
                return 0
        raise
    finally:
        connection.close()


def _is_empty_or_ours(path: Path) -> bool:
    try:
        with read_only(path) as connection:
            is_empty = connection.execute("SELECT count(*) = 0 FROM sqlite_master").fetchone()[0]
            return bool(is_empty or connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)
    except sqlite3.OperationalError as error:
        # A process that was killed while it made the file has left one page, and a journal that a writer rolls back.
        if error.sqlite_errorcode == sqlite3.SQLITE_READONLY_ROLLBACK and path.stat().st_size <= 4096:
            return True
        raise


def read_only(path: Path, mode: str = "mode=ro") -> contextlib.closing[sqlite3.Connection]:
    """Open a connection that changes nothing, and close it at the end of the block."""
    return contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=30))


def _missing(path: Path) -> Sequence[Migration]:
    if not path.exists() or path.stat().st_size == 0:
        return load_migrations("sqlite")
    with read_only(path) as connection:
        known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migration'").fetchone()
        return load_migrations("sqlite") if known is None else missing_in(connection, path)


def _is_current(path: Path) -> bool:
    """Return whether a reader sees a file with all migrations, in WAL mode; a copy of a file may have another mode."""
    try:
        if _missing(path):
            return False
        with read_only(path) as connection:
            return bool(connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal")
    except sqlite3.Error:
        # A writer decides: it also opens files that no reader can, such as one with the journal of a crash.
        return False


def migrate(connection: sqlite3.Connection, path: Path, clock: Clock) -> Sequence[Migration]:
    """Apply pending migrations in the open transaction, and return them. `path` is for errors."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS migration"
        " (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL)"
    )
    missing = missing_in(connection, path)
    for migration in missing:
        for statement in _split(migration.script):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO migration (number, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
            (migration.number, migration.name, migration.checksum, clock.now()),
        )
    if missing:
        # A file that is up to date is not written to: it can be read even while its disk is full.
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    return missing


def missing_in(connection: sqlite3.Connection, path: Path) -> Sequence[Migration]:
    """Return the migrations that a file with tables lacks. Raises StorageUnusable for one of a newer release."""
    applied = {
        number: (name, checksum)
        for number, name, checksum in connection.execute("SELECT number, name, checksum FROM migration")
    }
    return pending(load_migrations("sqlite"), applied, str(path))


def _split(script: str) -> list[str]:
    """Split a script into statements. sqlite3's executescript would commit the transaction in which this runs."""
    statements: list[str] = []
    pending = ""
    for line in script.splitlines():
        if not pending and (not line.strip() or line.startswith("--")):
            continue
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements


class Checkpointer:
    """Checkpoints the file of one writer; all methods are called in the writer's thread."""

    def __init__(self, path: Path, writer: sqlite3.Connection, clock: Clock, synchronous: str) -> None:
        self._writer = writer
        self._clock = clock
        self._connection = connect(path, synchronous=synchronous, timeout=0)
        # SQLite locks no bytes of its log, so closing this descriptor releases no lock of this process.
        self._log_path = path.resolve().with_name(f"{path.resolve().name}-wal")
        with closing_after_error(self._connection):
            self._log = os.open(self._log_path, os.O_RDONLY)
        self._identity = b""
        self._due_at = CHECKPOINT_EVERY
        # The code of an error that has been logged, until a checkpoint succeeds.
        self._failure = 0

    def is_due(self) -> bool:
        """Whether the log has `CHECKPOINT_EVERY` frames more than at its reset or last checkpoint: two small reads."""
        header = os.pread(self._log, 16, 8)
        if len(header) < 16:
            return False
        if header[_IDENTITY] != self._identity:
            self._identity = header[_IDENTITY]
            self._due_at = CHECKPOINT_EVERY
        frame = _FRAME_HEADER + int.from_bytes(header[:4], "big")
        return os.pread(self._log, 8, _HEADER + (self._due_at - 1) * frame + 8) == header[_SALTS]

    def run(self) -> None:
        """Checkpoint now; without effect while other writers hold the file. An error is logged."""
        try:
            begin(self._writer, lambda: LOCK_TIMEOUT, self._clock)
            try:
                ((_, frames, _),) = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                # A reader may keep the log from being reset; then it grows, and is copied again after as many frames.
                due_before, self._due_at, self._failure = self._due_at, max(frames, 0) + CHECKPOINT_EVERY, 0
                if due_before <= ALARM_AT < self._due_at:
                    logger.warning("%s grows, because an open reader keeps SQLite from emptying it", self._log_path)
            finally:
                self._writer.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF
            if code not in (self._failure, *_BUSY):
                self._failure = code
                logger.warning("%s grows, because it cannot be copied into the file: %s", self._log_path, error)

    def close(self) -> None:
        self._connection.close()
        os.close(self._log)


# The bytes of a database that each connection to it locks, and the last one locks alone to checkpoint when it closes.
_SHARED_LOCK = 0x4000_0002, 510


def prevent_checkpoints(path: Path) -> None:
    """Let this process close its connections to the file without a checkpoint (on Linux), until it ends.

    A lock of an open file, other than those of SQLite, conflicts with all others of the same process. The file stays
    open: closing it would release SQLite's locks, also of connections that another app of this process has open.
    """
    if sys.platform == "linux":
        lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, *_SHARED_LOCK, 0)
        fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_OFD_SETLK, lock)


def is_index_removed(path: Path) -> bool:
    """Whether this process uses SQLite's index of the log, `-shm`, after its removal (on Linux).

    An app or a connection in this process that is older than the removal has it, and SQLite shares it with newer ones.
    """
    index = os.fsencode(f"{path.resolve()}-shm")
    mapped = MAPS.read_bytes() if MAPS.exists() else b""
    return index + b" (deleted)\n" in mapped and index + b"\n" not in mapped


def read_facts(path: Path, synchronous: str) -> SqliteFacts:
    """Return the facts about an open file; `path` is resolved: the log of a link is beside its target."""
    import shutil  # Only the facts need it, and it imports compression modules.

    disk = shutil.disk_usage(path.parent)
    log = path.with_name(f"{path.name}-wal")
    status = path.stat()
    return SqliteFacts(
        path=str(path),
        version=sqlite3.sqlite_version_info,
        synchronous=synchronous,
        filesystem=mount_of(path.parent, MOUNTS.read_bytes())[1] if MOUNTS.exists() else "",
        free_bytes=disk.free,
        disk_bytes=disk.total,
        file_bytes=status.st_size,
        log_bytes=log.stat().st_size if log.exists() else 0,
        mode=status.st_mode & 0o777,
        is_folder_shared=is_shared(path.parent),
        can_write=os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK),
    )


def check_file(path: Path, connection: sqlite3.Connection) -> IndexFacts:
    """Return whether the indexes have the rows of their tables, and whether all of the file can be read."""
    found = [str(message) for (message,) in connection.execute("PRAGMA integrity_check(20)")]
    advice = (
        f"stop all workers, and run: sqlite3 {shlex.quote(str(path))} REINDEX; if it is found again, restore a backup"
    )
    # SQLite heads a list of damaged pages with a line of its own.
    damaged = [" ".join(message.split()) for message in found if message != "ok"]
    return IndexFacts(contradictions=tuple(Contradiction(message, advice) for message in damaged))
