"""How soon a job on PostgreSQL starts in another process, when there is little else to do and under a steady load."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from benchmarks.board import Board
from benchmarks.contender import Load, contender
from benchmarks.contender_worker import workers
from benchmarks.latency_probe import WARM, probe
from benchmarks.postgres_server import postgres_server
from benchmarks.question import Goal, Metric, Question, Scenario


def latency(folder: Path, *, name: str, slots: int, probes: int, rate: float = 0.0) -> dict[str, float]:
    """`rate` enqueues a second, whether or not jobs start; without, uneven ones, a few at a time."""
    with postgres_server(folder) as url:
        board = Board.new(folder, probes + WARM)
        load = Load(slots=slots)
        asyncio.run(contender(name, url, load).install())
        with workers(name, url, load, board, 1):
            return asyncio.run(probe(name, url, load, board, rate))


_LOADS = (
    ("Headgate", "headgate", 100),
    ("raw", "raw", 0),
    ("pgqueuer", "pgqueuer", 0),
    ("procrastinate", "procrastinate", 30),
    ("DBOS", "dbos", 0),
)
_PEERS = {"raw": "raw", "pgqueuer": "pgqueuer", "procrastinate": "procrastinate", "DBOS": "DBOS"}


def _scenarios() -> Iterator[Scenario]:
    for suffix, rate in (("idle", 0), ("200/s", 200)):
        for title, name, slots in _LOADS:
            yield Scenario(
                name=f"{title}, {suffix}",
                run="benchmarks.questions.postgres_latency:latency",
                conditions=(
                    "200 jobs a second, as even as asyncio's timers are, for 5 s: less than half of what it drains"
                    if rate
                    else "one worker as in *drain*; a job every 20 to 80 ms"
                ),
                params={"name": name, "slots": slots, "probes": 1_000 if rate else 150, "rate": rate},
                quick={"probes": 200 if rate else 40},
                against={peer: f"{peer}, {suffix}" for peer in _PEERS} if name == "headgate" else {},
            )


QUESTION = Question(
    name="postgres-latency",
    heading="Latency, PostgreSQL",
    asks="How long from before the enqueue in one process until the handler begins in another?",
    lead="p50",
    metrics=(Metric("p50", "p50 ms", 2), Metric("p99", "p99 ms", 2)),
    scenarios=tuple(_scenarios()),
    goals=tuple(
        Goal(
            scenario=f"Headgate, {load}",
            over=f"raw, {load}",
            metric="p50",
            text=f"p50 at most 2 × that of two statements and a NOTIFY, {load}",
            at_most=2.0,
        )
        for load in ("idle", "200/s")
    ),
    notes=(
        "*raw* is plain asyncpg: an INSERT with a NOTIFY in one process; LISTEN and an UPDATE to claim in the other.",
        "DBOS polls, here every 50 ms, where its default is a second; the others are woken by LISTEN/NOTIFY.",
    ),
)
