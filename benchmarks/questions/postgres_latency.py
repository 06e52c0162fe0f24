"""How soon a job on PostgreSQL starts in another process, when there is little else to do and under a steady load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.board import Board
from benchmarks.contender import Load, contender
from benchmarks.contender_worker import workers
from benchmarks.latency_probe import gaps
from benchmarks.postgres_server import postgres_server
from benchmarks.question import Metric, Question, Scenario
from benchmarks.support import Latencies

WARM = 20
"""Probes at the beginning that do not count: the worker is coming up."""


def probe(folder: Path, *, name: str, slots: int, probes: int, rate: float = 0.0) -> dict[str, float]:
    """`rate` enqueues a second, whether or not jobs start; without, uneven ones, a few at a time."""
    with postgres_server(folder) as url:
        board = Board.new(folder, probes + WARM)
        load = Load(slots=slots)
        asyncio.run(contender(name, url, load).install())
        with workers(name, url, load, board, 1):
            return asyncio.run(_probe(name, url, load, board, rate))


async def _probe(name: str, url: str, load: Load, board: Board, rate: float) -> dict[str, float]:
    asked = [0] * len(board.began())
    producer = contender(name, url, load)

    async def ask(number: int) -> None:
        asked[number] = time.monotonic_ns()
        await producer.enqueue(number)

    async with producer.open(), asyncio.TaskGroup() as group:
        waits = list(gaps(len(asked), 0.02, 0.08))
        next_at = time.monotonic()
        for number in range(len(asked)):
            group.create_task(ask(number))
            if number < WARM:
                await _until_begun(board, number + 1)
                next_at = time.monotonic()
            next_at += 1 / rate if rate else waits[number]
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        await _until_begun(board, len(asked))
    latencies = Latencies()
    for asked_at, began_at in zip(asked[WARM:], board.began()[WARM:], strict=True):
        latencies.add((began_at - asked_at) / 1e9)
    return latencies.metrics()


async def _until_begun(board: Board, jobs: int) -> None:
    deadline = time.monotonic() + 60
    while 0 in board.began()[:jobs]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{board.began()[:jobs].count(0)} jobs have not begun")
        await asyncio.sleep(0.005)


_LOADS = (
    ("Headgate", "headgate", 100),
    ("pgqueuer", "pgqueuer", 0),
    ("procrastinate", "procrastinate", 30),
    ("DBOS", "dbos", 0),
)
_PEERS = {"pgqueuer": "pgqueuer", "procrastinate": "procrastinate", "DBOS": "DBOS"}


def _scenarios() -> Iterator[Scenario]:
    for suffix, rate in (("idle", 0), ("200/s", 200)):
        for title, name, slots in _LOADS:
            yield Scenario(
                name=f"{title}, {suffix}",
                run="benchmarks.questions.postgres_latency:probe",
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
    goals=(),
    notes=("DBOS polls, here every 50 ms, where its default is a second; the others are woken by LISTEN/NOTIFY.",),
)
