"""Checkpoints of a SQLite file: its write-ahead log is copied into it while nobody can commit.

SQLite before 3.51.3 has the WAL-reset bug: a checkpoint that runs while another connection commits and resets the log
can leave pages of the new log out of the file, which is then corrupt. The invariant that excludes it, on every version:
a checkpoint runs only under the file's write lock. So:

- no connection that Headgate opens or is lent checkpoints by itself after a commit (`wal_autocheckpoint` is 0);
- this class checkpoints on a connection of its own, while the writer of the same process holds the write lock;
- the last connection of all processes that closes the file checkpoints it, which SQLite does under an exclusive lock.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from headgate.clock import Clock
from headgate.storage.sqlite.connection import begin, connect

CHECKPOINT_EVERY = 4000
"""Frames of the log between two checkpoints: 16 MiB. Each checkpoint syncs the file twice."""

LOCK_TIMEOUT = 1.0
"""Seconds for which a checkpoint waits for other writers; after that the next look tries again."""

# The formats of the log's header (page size, sequence number, two salts) and of the frames after it. A frame belongs to
# the log as it is now if it has the salts of the header; the log is reset with other salts and written from its start.
_HEADER = 32
_FRAME_HEADER = 24
_IDENTITY = slice(4, 16)
_SALTS = slice(8, 16)


class Checkpointer:
    """Checkpoints the file of one writer; all methods are called in the writer's thread."""

    def __init__(self, path: Path, writer: sqlite3.Connection, clock: Clock, synchronous: str) -> None:
        self._path = path
        self._writer = writer
        self._clock = clock
        self._connection = connect(path, synchronous=synchronous, timeout=0)
        # SQLite locks no bytes of its log, so closing this descriptor releases no lock of this process.
        self._log = os.open(path.resolve().with_name(f"{path.resolve().name}-wal"), os.O_RDONLY)
        self._identity = b""
        self._due_at = CHECKPOINT_EVERY

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
        """Checkpoint now; without effect while other writers hold the file, or its disk is full."""
        with suppress(sqlite3.OperationalError):
            begin(self._writer, LOCK_TIMEOUT, self._clock, lambda _waited: None)
            try:
                ((_, frames, _),) = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                # A reader may keep the log from being reset; then it grows, and is copied again after as many frames.
                self._due_at = max(frames, 0) + CHECKPOINT_EVERY
            finally:
                self._writer.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()
        os.close(self._log)
