"""Where the time goes from an enqueue to the start of the job in another process."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from pathlib import Path

from benchmarks.latency_probe import WARM, gaps
from benchmarks.question import Metric, Question, Scenario
from benchmarks.stores import new_store
from benchmarks.support import percentile
from benchmarks.timed_app import HOPS, make_app
from benchmarks.worker import headgate_worker


def hops(folder: Path, *, store: str, probes: int) -> dict[str, float]:
    """Medians, each counted from before the enqueue."""
    path = tempfile.mktemp(prefix="hops-", dir=folder)
    with new_store(folder, store) as url, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(30)
        asyncio.run(_migrated(url))
        with headgate_worker(url, path, app="benchmarks.timed_app:app"):
            return asyncio.run(_hops(url, receiver, probes))


async def _migrated(url: str) -> None:
    app, _ = make_app(url, "")
    async with app.open():
        pass


async def _hops(url: str, receiver: socket.socket, probes: int) -> dict[str, float]:
    app, probe = make_app(url, "")
    instants: dict[str, list[float]] = {"stored": [], "sent": [], "answered": [], "began": []}
    async with app.open():
        for number, gap in enumerate(gaps(probes + WARM)):
            await asyncio.sleep(gap)
            asked_at = time.monotonic_ns()
            await probe.enqueue(number)
            stored_at = time.monotonic_ns()
            probed, *rest = HOPS.unpack(await asyncio.to_thread(receiver.recv, HOPS.size))
            if probed != number:
                raise RuntimeError(f"probe {probed} began where {number} was enqueued")
            if number >= WARM:
                for at, each in zip((stored_at, *rest), instants.values(), strict=True):
                    each.append((at - asked_at) / 1e6)
    return {name: percentile(each, 0.5) for name, each in instants.items()}


QUESTION = Question(
    name="hops",
    heading="From enqueue to start, hop by hop",
    asks="When has a lone job got how far, in ms since before its enqueue in another process?",
    lead="began",
    metrics=(
        Metric("stored", "enqueue has returned", 2),
        Metric("sent", "worker sends its claim", 2),
        Metric("answered", "claim is answered", 2),
        Metric("began", "handler begins", 2),
    ),
    scenarios=tuple(
        Scenario(
            name=title,
            run="benchmarks.questions.hops:hops",
            conditions="`headgate worker` in another process, idle; a job every 5 to 35 ms; medians",
            params={"store": store, "probes": 200},
            quick={"probes": 60},
        )
        for store, title in (("sqlite", "SQLite"), ("postgres", "PostgreSQL"))
    ),
    notes=(
        "Before the claim is sent there are a commit that stores the job, and a datagram (SQLite) or a NOTIFY on "
        "another connection (PostgreSQL). On SQLite the datagram leaves the thread that commits, so the worker may "
        "be notified of a job before the enqueue has returned. A claim is one commit on SQLite; on PostgreSQL it is a "
        "snapshot, and an UPDATE that commits.",
    ),
)
