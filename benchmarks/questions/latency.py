"""How soon a job starts when there is nothing else to do."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.board import Board
from benchmarks.contender import Load, contender
from benchmarks.contender_worker import workers
from benchmarks.latency_probe import WARM, StartReceiver, gaps, probe
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import Latencies, new_file
from benchmarks.worker import headgate_worker
from benchmarks.worker_app import Probed
from headgate import Headgate
from headgate.cli.worker_process import tune_process


def embedded(folder: Path, *, probes: int, memory: bool = False) -> dict[str, float]:
    """Producer and worker in one process."""
    tune_process()
    return asyncio.run(_embedded("memory://" if memory else f"sqlite:///{new_file(folder)}", probes))


async def _embedded(url: str, probes: int) -> dict[str, float]:
    app = Headgate(url, migrate=True)
    began: asyncio.Queue[float] = asyncio.Queue()

    @app.task
    async def probe(number: int) -> None:
        began.put_nowait(time.perf_counter())

    latencies = Latencies()
    async with app:
        for number, gap in enumerate(gaps(probes)):
            await asyncio.sleep(gap)
            asked_at = time.perf_counter()
            await probe.enqueue(number)
            latencies.add(await began.get() - asked_at)
    return latencies.metrics()


def two_processes(folder: Path, *, probes: int) -> dict[str, float]:
    """The producer here, a worker in another process."""
    url = f"sqlite:///{new_file(folder)}"
    with StartReceiver(folder) as receiver, headgate_worker(url, receiver.path):
        return asyncio.run(_two_processes(url, receiver, probes))


async def _two_processes(url: str, receiver: StartReceiver, probes: int) -> dict[str, float]:
    probed = Probed(url)
    latencies = Latencies()
    async with probed.app.open():
        for number, gap in enumerate(gaps(probes)):
            await asyncio.sleep(gap)
            asked_at = time.monotonic_ns()
            await probed.ungated.enqueue(number)
            latencies.add((await asyncio.to_thread(receiver.wait_for_start, number) - asked_at) / 1e9)
    return latencies.metrics()


def under_load(folder: Path, *, jobs: int, rate: int) -> dict[str, float]:
    """`rate` jobs a second, whether or not they start, and a worker in another process."""
    url = f"sqlite:///{new_file(folder)}"
    board = Board.new(folder, jobs + WARM)
    load = Load()
    asyncio.run(contender("headgate", url, load).install())
    with workers("headgate", url, load, board, 1):
        return asyncio.run(probe("headgate", url, load, board, rate))


_HUEY = "benchmarks.peers.huey_sqlite:latency"
_PEERS = {"huey": "huey, two processes", "huey polling fast": "huey, polling every 10 ms", "raw": "raw, two processes"}

QUESTION = Question(
    name="latency",
    asks="How long from before the enqueue until the handler begins, when nothing else happens?",
    lead="p50",
    metrics=(Metric("p50", "p50 ms", 2), Metric("p99", "p99 ms", 2)),
    scenarios=(
        Scenario(
            name="Headgate, embedded",
            run="benchmarks.questions.latency:embedded",
            conditions="SQLite, synchronous=FULL; producer and worker in one process; one probe every 5 to 35 ms",
            params={"probes": 150},
            quick={"probes": 60},
            against=_PEERS,
        ),
        Scenario(
            name="Headgate, two processes",
            run="benchmarks.questions.latency:two_processes",
            conditions="SQLite, synchronous=FULL; `headgate worker` in another process",
            params={"probes": 150},
            quick={"probes": 60},
            against=_PEERS,
        ),
        Scenario(
            name="huey, two processes",
            run=_HUEY,
            conditions="SqliteHuey(fsync=True), its consumer with 1 thread in another process, polling as by default",
            params={"probes": 30, "poll": None},
            quick={"probes": 12},
        ),
        Scenario(
            name="huey, polling every 10 ms",
            run=_HUEY,
            conditions="the same with initial_delay and max_delay of 10 ms",
            params={"probes": 100, "poll": 0.01},
            quick={"probes": 40},
        ),
        Scenario(
            name="raw, two processes",
            run="benchmarks.peers.raw_sqlite:latency",
            conditions="plain sqlite3, FULL: insert, commit, send a datagram; the other process claims and commits",
            params={"probes": 150},
            quick={"probes": 60},
        ),
        Scenario(
            name="Headgate, two processes, 1,000 jobs/s",
            run="benchmarks.questions.latency:under_load",
            conditions="the same worker; 1,000 jobs a second, as even as asyncio's timers are, for 5 s",
            params={"jobs": 5_000, "rate": 1_000},
            quick={"jobs": 1_000},
        ),
        Scenario(
            name="Headgate in memory",
            run="benchmarks.questions.latency:embedded",
            conditions="memory://, nothing durable; one process",
            params={"probes": 150, "memory": True},
            quick={"probes": 60},
            against=_PEERS,
        ),
    ),
    goals=(
        Goal(
            scenario="Headgate, two processes",
            over="raw, two processes",
            metric="p50",
            text="p50 at most 2 × that of two commits and a datagram",
            at_most=2.0,
        ),
    ),
)
