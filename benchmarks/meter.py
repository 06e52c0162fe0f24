"""What a stretch of work costs: processor time here and in the database, commits, syncs, bytes of log, and waits."""

from __future__ import annotations

import os
import resource
import struct
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path

import asyncpg

_TRANSACTIONS_AT = 8
"""Where SQLite keeps the number of transactions in the first bytes of its index of the log (`-shm`)."""

_SYNCS = {
    True: "SELECT coalesce(sum(fsyncs), 0)::bigint FROM pg_stat_io WHERE object = 'wal'",
    False: "SELECT wal_sync FROM pg_stat_wal",
}
"""By whether the server is at least PostgreSQL 18."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters that only grow; seconds, bytes and numbers."""

    python: float
    other_threads: float
    server: float
    commits: int
    log: int
    waits: int

    def __sub__(self, earlier: Reading) -> Reading:
        return Reading(*(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)))


class FileMeter:
    """Of this process and the SQLite file that it has open."""

    def __init__(self, file: Path) -> None:
        self._shared = file.with_name(f"{file.name}-shm")

    async def read(self) -> Reading:
        with self._shared.open("rb") as shared:
            commits = struct.unpack_from("=I", shared.read(16), _TRANSACTIONS_AT)[0]
        written = int(_field(Path("/proc/self/io"), "wchar"))
        return Reading(time.process_time(), _of_other_threads(), 0, commits, written, _waits())

    async def syncs(self) -> int | None:
        """Nothing counts them: there is one a commit, and three a checkpoint."""
        return None


class ServerMeter:
    """Of this process and a PostgreSQL server that only it uses."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def read(self) -> Reading:
        connection = await asyncpg.connect(self._url)
        try:
            own, commits, log = await connection.fetchrow(
                "SELECT pg_backend_pid(), txid_snapshot_xmax(txid_current_snapshot()), "
                "(pg_current_wal_insert_lsn() - '0/0')::bigint"
            )
            return Reading(time.process_time(), _of_other_threads(), _of_server(own), commits, log, _waits())
        finally:
            await connection.close()

    async def syncs(self) -> int | None:
        """Return how often the log was synced, as counted by sessions that have ended."""
        connection = await asyncpg.connect(self._url)
        try:
            is_new = connection.get_server_version().major >= 18
            syncs: int = await connection.fetchval(_SYNCS[is_new])
            return syncs
        finally:
            await connection.close()


def _field(path: Path, name: str) -> str:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    raise LookupError(f"{path} has no {name}")


def _of_other_threads() -> float:
    """Processor time of the threads beside this one that are alive."""
    own = f"{os.getpid()}"
    tasks = (task for task in Path("/proc/self/task").iterdir() if task.name != own)
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _of_server(backend: int) -> float:
    """Processor time of all processes of a server, one of which is this backend."""
    server = _field(Path(f"/proc/{backend}/status"), "PPid")
    seconds = 0.0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or process.name == f"{backend}":
            continue
        try:
            if process.name == server or _field(process / "status", "PPid") == server:
                seconds += int((process / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            # It has just ended.
            continue
    return seconds


def _waits() -> int:
    """How often a thread of this process gave up its processor to wait."""
    if sys.platform == "win32":
        raise NotImplementedError("waits are counted by getrusage, which Windows does not have")
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
