"""The app of a worker that logs each of its claims: `headgate worker benchmarks.claim_log:app`."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.stores import storage_at
from headgate import Headgate, RateLimit, Task
from headgate.storage.records import Claim, Claimed
from headgate.storage.store import Store

_LINE = struct.Struct("<qqq")


class LoggedClaim(NamedTuple):
    """A claim that took jobs: when it was sent and answered (monotonic, ns), and how many it took."""

    sent_at: int
    answered_at: int
    jobs: int


class ClaimLog:
    """The claims that a worker has logged, read by another process while the worker runs."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.claims: list[LoggedClaim] = []
        self.jobs = 0

    def read(self) -> int:
        """How many jobs have been claimed so far."""
        text = self._file.read()
        # A line is written at once.
        new = [LoggedClaim(*line) for line in _LINE.iter_unpack(text)]
        self.claims += new
        self.jobs += sum(claim.jobs for claim in new)
        return self.jobs

    def between(self, first: int, last: int) -> list[LoggedClaim]:
        """Those that were answered between two instants."""
        return [claim for claim in self.claims if first <= claim.answered_at < last]


def _log_claims(store: Store, path: Path) -> None:
    """Let the store write each claim that takes jobs to a file."""
    file, claim = path.open("ab", buffering=0), store.claim

    async def logged(request: Claim) -> Claimed:
        sent_at = time.monotonic_ns()
        claimed = await claim(request)
        if claimed.jobs:
            file.write(_LINE.pack(sent_at, time.monotonic_ns(), len(claimed.jobs)))
        return claimed

    setattr(store, "claim", logged)  # noqa: B010


class LoggedApp:
    """An app with a task that has no limits and one that uses a budget per key, which is never used up."""

    def __init__(self, url: str, log: str = "") -> None:
        store = storage_at(url)
        if log:
            _log_claims(store, Path(log))
        self.app = Headgate._on_store(store, concurrency=100, migrate=True)
        self.plain: Task[[int], None] = self.app.task(name="plain")(_do_nothing)
        self.keyed: Task[[int], None] = self.app.task(name="keyed", limits=[RateLimit("1000/s", key="{key}")])(
            _do_nothing
        )


async def _do_nothing(key: int) -> None:
    pass


app = LoggedApp(os.environ.get("HEADGATE_URL", "memory://"), os.environ.get("BENCHMARK_SOCKET", "")).app
