"""What jobs cost that wait behind an exhausted budget: very many of one key, and some of very many keys."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg

from benchmarks.full_store import store_for
from benchmarks.latency_probe import StartReceiver, gaps
from benchmarks.question import Goal, Metric, Params, Question, Scenario
from benchmarks.support import Latencies
from benchmarks.worker import headgate_worker
from benchmarks.worker_app import Probed
from headgate.engine.history_writer import WRITE_EVERY

QUIET_SETTINGS = {"heartbeat": 120.0, "lease": 600.0}
"""The heartbeat is a write of its own; what is counted here is what waiting costs."""


def probe(folder: Path, *, full: bool, probes: int, quiet: float, store: str = "sqlite") -> dict[str, float]:
    """Other keys and ungated jobs, each started on its own; then nothing but waiting."""
    with (
        store_for(folder, store, full=full) as url,
        StartReceiver(folder) as receiver,
        headgate_worker(url, receiver.path, **QUIET_SETTINGS) as worker,
    ):
        metrics = asyncio.run(_probe(url, receiver, probes))
        # By then the endings of the last probes are written, and the charts of the ten seconds in which they ran.
        time.sleep(WRITE_EVERY + 1.5)
        cpu, began = worker.cpu_seconds(), time.monotonic()
        metrics["commits"] = asyncio.run(_postgres_commits(url, quiet)) if store == "postgres" else _commits(url, quiet)
        metrics["cpu"] = 100 * (worker.cpu_seconds() - cpu) / (time.monotonic() - began)
        metrics["memory"] = worker.memory()
    return metrics


async def _probe(url: str, receiver: StartReceiver, probes: int) -> dict[str, float]:
    probed = Probed(url)
    kinds: dict[str, tuple[Callable[[int], Awaitable[object]], Latencies]] = {
        "other_": (lambda number: probed.gated.enqueue(f"other-{number}", number), Latencies()),
        "ungated_": (lambda number: probed.ungated.enqueue(number), Latencies()),
    }
    async with probed.app.open():
        for number, gap in enumerate(gaps(probes, 0.002, 0.016)):
            for probe_number, (enqueue, latencies) in enumerate(kinds.values(), start=2 * number):
                await asyncio.sleep(gap)
                asked_at = time.monotonic_ns()
                await enqueue(probe_number)
                latencies.add((await asyncio.to_thread(receiver.wait_for_start, probe_number) - asked_at) / 1e9)
    return {key: value for prefix, (_, latencies) in kinds.items() for key, value in latencies.metrics(prefix).items()}


def _commits(url: str, seconds: float) -> int:
    """How often others changed the file."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        seen = _data_version(connection)
        commits = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.02)
            version = _data_version(connection)
            commits += version != seen
            seen = version
        return commits
    finally:
        connection.close()


def _data_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


async def _postgres_commits(url: str, seconds: float) -> int:
    """How many transactions wrote anything: only those are given a number."""
    next_number = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    connection = await asyncpg.connect(url)
    before: int = await connection.fetchval(next_number)
    await asyncio.sleep(seconds)
    after: int = await connection.fetchval(next_number)
    await connection.close()
    return after - before


_KINDS = {"other": "jobs of other keys", "ungated": "ungated jobs"}
_DURABLE = {"sqlite": "SQLite, synchronous=FULL", "postgres": "PostgreSQL"}


def _question(name: str, asks: str, load: str, prepare: Params, quick: Params, store: str = "sqlite") -> Question:
    loaded = f"Headgate, {name}"
    on_postgres = store == "postgres"
    scenarios = (
        Scenario(
            name=loaded,
            run="benchmarks.questions.waiting:probe",
            conditions=(
                f"{load}; {_DURABLE[store]}; `headgate worker` in its own process, 100 slots; one probe at "
                "a time from another process, every 2 to 16 ms; then 3 s in which nothing is enqueued"
            ),
            params={"full": True, "probes": 200, "quiet": 3.0, "store": store},
            quick={"probes": 60, "quiet": 1.0},
            against={"empty": "Headgate, empty"},
        ),
        Scenario(
            name="Headgate, empty",
            run="benchmarks.questions.waiting:probe",
            conditions="the same on an empty store",
            params={"full": False, "probes": 200, "quiet": 3.0, "store": store},
            quick={"probes": 60, "quiet": 1.0},
        ),
        *(_claims(full=full) for full in (True, False) if on_postgres),
    )
    return Question(
        name=f"postgres-{name}" if on_postgres else name,
        heading=f"{name.capitalize()}, PostgreSQL" if on_postgres else "",
        asks=asks,
        lead="other_p50",
        metrics=(
            Metric("other_p50", "other keys: p50 ms", 2),
            Metric("other_p99", "p99 ms", 2),
            Metric("ungated_p50", "ungated: p50 ms", 2),
            Metric("ungated_p99", "p99 ms", 2),
            Metric("memory", "worker MB", 0),
            Metric("commits", "commits", 0),
            Metric("cpu", "CPU %", 2),
            *((Metric("rate", "claims of other keys/s"),) if on_postgres else ()),
        ),
        scenarios=scenarios,
        goals=tuple(_goals(loaded)),
        notes=("Heartbeats are set to 120 s here. What a node commits on an empty store is the upkeep of its charts.",),
        prepare="benchmarks.full_store:prepare",
        prepare_params={**prepare, "store": store},
        prepare_quick=quick,
    )


def _claims(*, full: bool) -> Scenario:
    return Scenario(
        name="claims behind it" if full else "claims, empty",
        run="benchmarks.questions.claims:claims",
        conditions="10,000 jobs of 1,000 other keys that have budget, claimed up to 200 at a time by one process"
        if full
        else "the same on an empty store",
        params={"store": "postgres", "jobs": 10_000, "room": 200, "full": full},
        quick={"jobs": 2_000},
    )


def _goals(loaded: str) -> Iterator[Goal]:
    for kind, label in _KINDS.items():
        for at in ("p50", "p99"):
            yield Goal(
                scenario=loaded,
                over="Headgate, empty",
                metric=f"{kind}_{at}",
                text=f"{label}: start {at} at most 1.5 × that on an empty store",
                at_most=1.5,
            )
    yield Goal(
        scenario=loaded,
        minus="Headgate, empty",
        metric="memory",
        text="worker memory at most 50 MB above that on an empty store",
        at_most=50,
    )
    yield Goal(
        scenario=loaded,
        minus="Headgate, empty",
        metric="commits",
        text="while jobs only wait, no commit more than on an empty store",
        at_most=0,
    )


_DEEP = (
    "deep",
    "Does a million jobs on one exhausted key delay anybody else?",
    "1,000,000 jobs wait on one key whose budget is used up",
    {"jobs": 1_000_000, "keys": 1},
    {"jobs": 50_000},
)
_WIDE = (
    "wide",
    "Do 100,000 exhausted keys delay anybody else?",
    "100,000 keys whose budget is used up, one job waits on each",
    {"jobs": 100_000, "keys": 100_000},
    {"jobs": 5_000, "keys": 5_000},
)

DEEP = _question(*_DEEP)
WIDE = _question(*_WIDE)
POSTGRES_DEEP = _question(*_DEEP, store="postgres")
POSTGRES_WIDE = _question(*_WIDE, store="postgres")
