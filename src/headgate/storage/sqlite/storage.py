"""SqliteStorage: a store in one SQLite file."""

from __future__ import annotations

from pathlib import Path

from headgate.clock import Clock
from headgate.storage.sqlite.driver import SqliteDriver
from headgate.storage.store import Store


class SqliteStorage(Store):
    """Jobs in one SQLite file: embedded, durable, shared by any number of processes of one machine.

    With `synchronous` "FULL" (default), a write is on the disk when it returns. "NORMAL" may lose the last writes in a
    power failure, but not in a crash of the program. `patience` (30 s) is how long a write waits for the transaction of
    another connection before it raises StorageUnavailable.
    """

    driver: SqliteDriver

    def __init__(self, path: str | Path, clock: Clock, *, synchronous: str = "FULL", patience: float = 30.0) -> None:
        super().__init__(SqliteDriver(path, clock, synchronous=synchronous, patience=patience))
