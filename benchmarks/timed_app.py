"""The app of a worker that says when it claimed: `headgate worker benchmarks.timed_app:app`."""

from __future__ import annotations

import os
import struct
import time

from benchmarks.latency_probe import raw_start_sender
from benchmarks.stores import storage_at
from headgate import Headgate, Task
from headgate.storage.records import Claim, Claimed
from headgate.storage.store import Store

HOPS = struct.Struct("<qqqq")
"""The number of a probe; when its claim was sent and answered, and when its handler began (monotonic, ns)."""


class LastClaim:
    """When the last claim of a store that took jobs was sent and answered."""

    sent_at = 0
    answered_at = 0

    def __init__(self, store: Store) -> None:
        self._claim = store.claim
        setattr(store, "claim", self._timed)  # noqa: B010

    async def _timed(self, claim: Claim) -> Claimed:
        sent_at = time.monotonic_ns()
        claimed = await self._claim(claim)
        if claimed.jobs:
            self.sent_at, self.answered_at = sent_at, time.monotonic_ns()
        return claimed


def make_app(url: str, receiver: str) -> tuple[Headgate, Task[[int], None]]:
    """The app, and its task that sends its hops to `receiver`."""
    store = storage_at(url)
    last_claim = LastClaim(store)
    app = Headgate._on_store(store, migrate=True)
    send = raw_start_sender(receiver) if receiver else None

    @app.task(name="probe")
    async def probe(number: int) -> None:
        assert send is not None
        send(HOPS.pack(number, last_claim.sent_at, last_claim.answered_at, time.monotonic_ns()))

    return app, probe


app, _ = make_app(os.environ.get("HEADGATE_URL", "memory://"), os.environ.get("BENCHMARK_SOCKET", ""))
