"""A worker process that tells its parent what happens, and holds for ever at the point it is told.

Points of a job's life: `claiming` (its claim is about to commit), `claimed` (it has, and no handler has started),
`handling` (inside the handler), `finishing` (the side effect is done, its finish is about to commit) and `finished`
(it has, and the node does not know yet).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate import Headgate, RetryPolicy, StrictRate, current_job
from headgate.clock import SystemClock
from headgate.engine.node import Node
from headgate.jobs.event import Event
from headgate.jobs.lifecycle import Ending
from headgate.limits.limit import AnyRule
from headgate.storage import driver
from headgate.storage.live_rules import CachedRules
from headgate.storage.procedures.claim import claim_alone
from headgate.storage.procedures.claim_writes import SkippedJobs
from headgate.storage.procedures.finish import FinishResult, finish_all
from headgate.storage.records import Claim, Claimed
from headgate.storage.sqlite import peer_notifier
from headgate.storage.sqlite import storage as sqlite_storage
from headgate.storage.sqlite.connection import Checkpointer
from headgate.storage.sqlite.peer_notifier import PeerNotifier
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.sqlite.threads import Reader
from tests.internals import app_on

RATE = 6
PER = 1.0
MARGIN = 0.3


def print_line(word: str, *values: Any) -> None:
    """One line to the parent, in one write."""
    os.write(1, f"{word} {json.dumps(values)}\n".encode())


class Points:
    """Holds at one point, after it was passed `skip` times."""

    def __init__(self, path: Path, hold: str | None, skip: int) -> None:
        self._path = path
        self._hold = hold
        self._skip = skip

    def reach(self, point: str, jobs: Sequence[str]) -> None:
        if point != self._hold or not jobs or not self._nobody_is_poisoned():
            return
        if self._skip > 0:
            self._skip -= 1
            return
        print_line("at", point, list(jobs))
        threading.Event().wait()

    def _nobody_is_poisoned(self) -> bool:
        """Three lost attempts would rightly fail a job, and this is not the test of that."""
        connection = sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True)
        try:
            (lost,) = connection.execute("SELECT coalesce(max(lost), 0) FROM job WHERE state = 'running'").fetchone()
        finally:
            connection.close()
        return int(lost) <= 1


class Written:
    """The jobs that the transaction claims and finishes that is open."""

    claimed: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()

    @classmethod
    def forget(cls) -> None:
        cls.claimed = cls.finished = ()


async def claim_watched(tx: driver.Transaction, claim: Claim, live: CachedRules, skipped: SkippedJobs) -> Claimed:
    """As `claim_alone`; remembers the jobs."""
    claimed = await claim_alone(tx, claim, live, skipped)
    Written.claimed += tuple(job.id for job in claimed.jobs)
    return claimed


async def finish_watched(
    tx: driver.Transaction, node: str, endings: Sequence[Ending], rules: Mapping[str, AnyRule], live: CachedRules
) -> FinishResult:
    """As `finish_all`; remembers the jobs."""
    finished = await finish_all(tx, node, endings, rules, live)
    written = zip(endings, finished.written, strict=True)
    Written.finished += tuple(ending.id for ending, was_written in written if was_written)
    return finished


def watch() -> None:
    """Let the storage of this process remember what it writes."""
    setattr(sqlite_storage, "claim_alone", claim_watched)  # noqa: B010
    setattr(sqlite_storage, "finish_all", finish_watched)  # noqa: B010


class HoldingStorage(SqliteStorage):
    """Stops on either side of a commit."""

    def __init__(self, path: Path, points: Points, patience: float) -> None:
        super().__init__(path, SystemClock(), synchronous="FULL", patience=patience)
        self._points = points

    def _connect(self, migrate: bool) -> tuple[sqlite3.Connection, Checkpointer, dict[str, Reader], int]:
        connections = super()._connect(migrate)
        connections[0].set_trace_callback(self._before)
        return connections

    def _before(self, statement: str) -> None:
        if statement == "COMMIT":
            self._points.reach("claiming", Written.claimed)
            self._points.reach("finishing", Written.finished)

    def _transact(self, group: Any, run: Any) -> Any:
        Written.forget()
        results = super()._transact(group, run)
        self._points.reach("claimed", Written.claimed)
        self._points.reach("finished", Written.finished)
        return results


def make_app(storage: HoldingStorage, run_log: Path, points: Points, **settings: Any) -> Headgate:
    app = app_on(storage, **settings)
    proceed = asyncio.Event()

    def write_down(key: str) -> None:
        job = current_job()
        line = {
            "job": job.id,
            "key": key,
            "at": time.time(),
            "started": job.enqueued_at.timestamp() + job.waited_for,
            "attempt": job.attempt,
            "pid": os.getpid(),
        }
        file = os.open(run_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, json.dumps(line).encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)

    @app.task(limits=[StrictRate(RATE, per=PER, margin=MARGIN, key="{key}", name="calls")])
    async def record(key: str) -> None:
        points.reach("handling", [current_job().id])
        write_down(key)

    @app.task(retry=RetryPolicy(retries=0))
    async def wait_for_word(key: str) -> str:
        """Runs until the parent says so."""
        print_line("running", current_job().id)
        try:
            await proceed.wait()
        except asyncio.CancelledError:
            print_line("cancelled", current_job().id)
            raise
        write_down(key)
        return key

    @app.task
    def hold_a_thread(key: str) -> None:
        """Runs for longer than any test waits, in a thread that nothing can stop."""
        print_line("running", current_job().id)
        threading.Event().wait(600)

    @app.task
    async def block_the_loop(file: str) -> None:
        """Until that file is there."""
        print_line("running", current_job().id)
        while not os.path.exists(file):  # noqa: ASYNC240, PTH110
            time.sleep(0.01)  # noqa: ASYNC251  # the mistake that this task is there to make

    @app.task
    async def die() -> None:
        """Takes its process with it."""
        os.kill(os.getpid(), 9)

    async def listen() -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for _ in reader:
            proceed.set()

    app.subscribe(tell_parent)
    setattr(app, "listen", listen)  # noqa: B010
    return app


def tell_parent(event: Event) -> None:
    kind = type(event).__name__
    if kind in PRINTED:
        print_line(kind, *(getattr(event, name) for name in PRINTED[kind]))


PRINTED = {
    "NodeStarted": ("node",),
    "NodeStopping": ("running",),
    "NodeStopped": ("returned",),
    "NodeLost": ("node", "returned", "poisonous"),
    "NodeDeclaredDead": ("node", "cancelled"),
    "EndingRefused": ("job_id",),
    "StorageFailed": ("doing", "error"),
    "LoopBlocked": ("seconds",),
    "JobStarted": ("job_id", "at"),
}


async def nothing(*_: object) -> None: ...


async def main(options: dict[str, Any]) -> None:
    path = Path(options.pop("path"))
    run_log = Path(options.pop("run_log"))
    grace = options.pop("grace", None)
    points = Points(path, options.pop("hold", None), options.pop("skip", 0))
    if options.pop("only_is_told", False):
        # It learns of jobs by datagrams alone.
        setattr(peer_notifier, "LOOK_EVERY", 3600.0)  # noqa: B010
        setattr(Node, "_check_store", nothing)  # noqa: B010
    if options.pop("only_looks", False):
        # It learns of them by its own looks at the file alone.
        setattr(Node, "_check_store", nothing)  # noqa: B010
        setattr(PeerNotifier, "_receive", lambda self: self._socket.recv(64))  # noqa: B010
    watch()
    app = make_app(HoldingStorage(path, points, options.pop("patience", 30)), run_log, points, **options)
    listening = asyncio.ensure_future(app.listen())  # type: ignore[attr-defined]
    await app.run(grace=grace)
    listening.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(json.loads(sys.argv[1])))
