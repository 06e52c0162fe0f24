"""A copy of a SQLite file that workers use meanwhile."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from headgate.clock import Clock
from headgate.errors import StorageUnavailable, StorageUnusable, raise_instead
from headgate.storage.migrations import Migration, load_migrations
from headgate.storage.sqlite import connection as sqlite_file

STEP = 2000
"""Pages that are copied in one step, 8 MiB: Ctrl-C is noticed between two steps."""


def back_up(path: Path, copy: Path, clock: Clock, on_step: Callable[[int, int], None]) -> Migration:
    """Copy the file `path` into the new file `copy`, and return the migration up to which the copy was made.

    The copy has what was committed when the call began, and nothing later: all steps read one snapshot. Without it,
    each commit of a worker would start the copy again. Writers do not wait for a reader, but their log grows until
    the last step. `copy` exists only when complete, on the disk, and checked. `on_step` gets the pages left, and all.

    Raises StorageUnusable, for a damaged file too; StorageUnavailable for a `copy` that cannot be written.
    """
    sqlite_file.require_prepared(path, clock, may_be_older=True)  # a release copies it before it migrates it
    part = copy.with_name(f"{copy.name}.part")
    if copy.exists():
        raise StorageUnavailable(f"{copy} exists, and a backup overwrites nothing; name another file, or delete it")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        raise StorageUnavailable(
            f"{part} exists: another backup writes it now, or one that was killed has left it; delete it if none runs"
        ) from None
    except OSError as error:
        raise StorageUnavailable(f"{part} cannot be created: {error.strerror}; choose another folder") from error
    try:
        _copy(path, part, on_step)
        version = _check(path, part)
        part.rename(copy)
        # The disk has to keep the new name, too.
        folder = os.open(copy.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return version
    except sqlite3.Error as error:
        is_damaged = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        raise_instead(sqlite_file.translate(error, path if is_damaged else copy), error)
    finally:
        part.unlink(missing_ok=True)
        part.with_name(f"{part.name}-journal").unlink(missing_ok=True)


def _copy(path: Path, part: Path, on_step: Callable[[int, int], None]) -> None:
    with (
        contextlib.closing(sqlite_file.connect(path, synchronous="FULL", timeout=30)) as source,
        contextlib.closing(sqlite3.connect(part)) as target,
    ):
        # The first read takes the snapshot, which lasts until the transaction ends.
        source.execute("BEGIN")
        source.execute("SELECT 1 FROM migration").fetchone()
        source.backup(target, pages=STEP, progress=lambda _status, remaining, total: on_step(remaining, total))


def _check(path: Path, part: Path) -> Migration:
    """Read all of a copy, and return its last migration. An immutable file needs no log and no locks beside it."""
    with sqlite_file.read_only(part, "immutable=1") as copied:
        damage = sqlite_file.check_file(part, copied).contradictions
        if damage:
            raise StorageUnusable(
                f"{path} is damaged, and so was its copy, which is deleted ({damage[0].seen}); keep older backups, "
                "and run `headgate doctor --deep`"
            )
        return load_migrations("sqlite")[-1 - len(sqlite_file.missing_in(copied, path))]
