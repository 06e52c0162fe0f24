"""Facts about a SQLite file and its disk."""

from __future__ import annotations

import os
import shlex
import sqlite3
from pathlib import Path

from headgate.storage.facts import Contradiction, IndexFacts, SqliteFacts
from headgate.storage.sqlite.connection import is_shared, mount_of

MOUNTS = Path("/proc/self/mounts")


def read_facts(path: Path, synchronous: str, connection: sqlite3.Connection) -> SqliteFacts:
    """Return the facts about an open file."""
    import shutil  # Only the facts need it, and it imports compression modules.

    disk = shutil.disk_usage(path.parent)
    log = path.with_name(f"{path.name}-wal")
    status = path.stat()
    return SqliteFacts(
        path=str(path),
        version=sqlite3.sqlite_version_info,
        journal_mode=str(connection.execute("PRAGMA journal_mode").fetchone()[0]),
        synchronous=synchronous,
        filesystem=mount_of(path.resolve().parent, MOUNTS.read_bytes())[1] if MOUNTS.exists() else "",
        free_bytes=disk.free,
        disk_bytes=disk.total,
        file_bytes=status.st_size,
        log_bytes=log.stat().st_size if log.exists() else 0,
        mode=status.st_mode & 0o777,
        is_folder_shared=is_shared(path.resolve().parent),
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
