"""What jobs cost that wait behind an exhausted budget: very many of one key, and some of very many keys."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from benchmarks.latency_probe import Ears, gaps
from benchmarks.question import Goal, Metric, Params, Question, Scenario
from benchmarks.support import Latencies, new_file
from benchmarks.worker import headgate_worker
from benchmarks.worker_app import LIMIT, Probed
from headgate.clock import SystemClock
from headgate.jobs.identity import IdSource
from headgate.jobs.job import Draw, JobState, NewJob
from headgate.jobs.lifecycle import Finished
from headgate.storage.protocol import Claim, Room
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.tasks.registry import DEFAULT_QUEUE

BATCH = 10_000

QUIET_SETTINGS = {"heartbeat": 120.0, "lease": 600.0}
"""The heartbeat is a write of its own; what is counted here is what waiting costs."""


def prepare(folder: Path, *, jobs: int, keys: int) -> dict[str, float]:
    """A store whose `keys` have all used their budget, with `jobs` waiting, evenly spread."""
    asyncio.run(_prepare(folder / "full.db", jobs, keys))
    return {}


async def _prepare(file: Path, jobs: int, keys: int) -> None:
    storage = SqliteStorage(file, SystemClock(), synchronous="OFF")
    await storage.open()
    # One more for each key: the one that uses up its budget.
    seeds = _seeds(jobs + keys, keys)
    while batch := [job for job, _ in zip(seeds, range(BATCH), strict=False)]:
        await storage.add(batch)
    probed = Probed()
    rules = {bound.name: bound.limit.rule for bound in probed.gated.gate.limits}
    await storage.join("preparing", "preparing")
    claim = Claim("preparing", {DEFAULT_QUEUE: Room(2_000)}, rules, frozenset(probed.app.tasks))
    while (claimed := await storage.claim(claim)).jobs or claimed.more:
        await storage.finish("preparing", [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in claimed.jobs])
    await storage.leave("preparing")
    await storage.close()


def _seeds(jobs: int, keys: int) -> Iterator[NewJob]:
    clock, ids = SystemClock(), IdSource()
    for number in range(jobs):
        key = f"acme-{number % keys}"
        now = clock.now()
        yield NewJob(
            id=ids.next(now),
            task="gated",
            queue=DEFAULT_QUEUE,
            payload=f'{{"key":"{key}","number":0}}',
            priority=0,
            delayed=False,
            run_at=now,
            enqueued_at=now,
            draws=(Draw(LIMIT, key),),
        )


def probe(folder: Path, *, full: bool, probes: int, quiet: float) -> dict[str, float]:
    """Other keys and ungated jobs, each started on its own; then nothing but waiting."""
    file = new_file(folder)
    if full:
        shutil.copyfile(folder / "full.db", file)
    with Ears(folder) as ears, headgate_worker(file, ears, **QUIET_SETTINGS) as worker:
        metrics = asyncio.run(_probe(file, ears, probes))
        cpu, began = worker.cpu_seconds(), time.monotonic()
        metrics["commits"] = _commits(file, quiet)
        metrics["cpu"] = 100 * (worker.cpu_seconds() - cpu) / (time.monotonic() - began)
        metrics["memory"] = worker.memory()
    shutil.rmtree(file.parent)
    return metrics


async def _probe(file: Path, ears: Ears, probes: int) -> dict[str, float]:
    probed = Probed(f"sqlite:///{file}")
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
                latencies.add((await asyncio.to_thread(ears.hear, probe_number) - asked_at) / 1e9)
    return {key: value for prefix, (_, latencies) in kinds.items() for key, value in latencies.metrics(prefix).items()}


def _commits(file: Path, seconds: float) -> int:
    """How often others changed the file; endings of the last probes have been written by then."""
    time.sleep(0.5)
    connection = sqlite3.connect(file)
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


def _question(name: str, asks: str, load: str, prepare: Params, quick: Params) -> Question:
    loaded = f"Headgate, {name}"
    scenarios = (
        Scenario(
            name=loaded,
            run="benchmarks.questions.waiting:probe",
            conditions=(
                f"{load}; SQLite, synchronous=FULL; `headgate worker` in its own process, 100 slots; one probe at "
                "a time from another process, every 2 to 16 ms; then 3 s in which nothing is enqueued"
            ),
            params={"full": True, "probes": 200, "quiet": 3.0},
            quick={"probes": 60, "quiet": 1.0},
            against={"empty": "Headgate, empty"},
        ),
        Scenario(
            name="Headgate, empty",
            run="benchmarks.questions.waiting:probe",
            conditions="the same on an empty store",
            params={"full": False, "probes": 200, "quiet": 3.0},
            quick={"probes": 60, "quiet": 1.0},
        ),
    )
    kinds = {"other": "jobs of other keys", "ungated": "ungated jobs"}
    starts = tuple(
        Goal(
            scenario=loaded,
            over="Headgate, empty",
            metric=f"{kind}_{at}",
            text=f"{label}: start {at} at most 1.5 × that on an empty store",
            at_most=1.5,
        )
        for kind, label in kinds.items()
        for at in ("p50", "p99")
    )
    return Question(
        name=name,
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
        ),
        scenarios=scenarios,
        goals=(
            *starts,
            Goal(
                scenario=loaded,
                minus="Headgate, empty",
                metric="memory",
                text="worker memory at most 50 MB above that on an empty store",
                at_most=50,
            ),
            Goal(scenario=loaded, metric="commits", text="no commit while jobs only wait", at_most=0),
        ),
        notes=("Heartbeats are set to 120 s here: the commits that are counted are those that waiting would cause.",),
        prepare="benchmarks.questions.waiting:prepare",
        prepare_params=prepare,
        prepare_quick=quick,
    )


DEEP = _question(
    "deep",
    "Does a million jobs on one exhausted key delay anybody else?",
    "1,000,000 jobs wait on one key whose budget is used up",
    {"jobs": 1_000_000, "keys": 1},
    {"jobs": 50_000},
)
WIDE = _question(
    "wide",
    "Do 100,000 exhausted keys delay anybody else?",
    "100,000 keys whose budget is used up, one job waits on each",
    {"jobs": 100_000, "keys": 100_000},
    {"jobs": 5_000, "keys": 5_000},
)
