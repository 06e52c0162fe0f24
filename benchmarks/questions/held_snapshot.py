"""What an open snapshot of another session does to claims, while dead rows cannot be removed."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.claim_log import ClaimLog, LoggedApp, LoggedClaim
from benchmarks.postgres_server import postgres_server
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import percentile
from benchmarks.worker import headgate_worker

BACKLOG = 3_000
"""So many jobs wait all the time."""

BULK = 500

WARM = 5.0

WINDOW = 20.0
"""Seconds at the start and at the end that are compared."""


def held_snapshot(folder: Path, *, seconds: float, held: bool, keys: int = 1_000) -> dict[str, float]:
    """Jobs a second and the p50 of claims, in the first and in the last seconds."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "claims"
    path.touch()
    with postgres_server(folder) as url:
        asyncio.run(_install(url))
        with headgate_worker(url, str(path), app="benchmarks.claim_log:app"):
            return asyncio.run(run_load(url, ClaimLog(path), seconds, held=held, keys=keys))


async def _install(url: str) -> None:
    async with LoggedApp(url).app.open():
        pass


async def run_load(url: str, log: ClaimLog, seconds: float, *, held: bool, keys: int) -> dict[str, float]:
    """Keep so many jobs waiting, half of them without limits, for so long after a few seconds to warm up."""
    logged = LoggedApp(url)
    async with logged.app.open():
        enqueuing = asyncio.create_task(_enqueue(logged, log, keys))
        try:
            await _first_of(enqueuing, WARM)
            async with _snapshot(url) if held else contextlib.nullcontext():
                began = time.monotonic_ns()
                await _first_of(enqueuing, seconds)
                ended = time.monotonic_ns()
        finally:
            enqueuing.cancel()
    log.read()
    window = round(WINDOW * 1e9)
    first, last = log.between(began, began + window), log.between(ended - window, ended)
    metrics = {**_metrics("first_", first), **_metrics("last_", last)}
    metrics["rate_ratio"] = metrics["last_rate"] / metrics["first_rate"]
    metrics["claim_ratio"] = metrics["last_claim"] / metrics["first_claim"]
    return metrics


async def _enqueue(logged: LoggedApp, log: ClaimLog, keys: int) -> None:
    enqueued = 0
    while True:
        if enqueued - log.read() > BACKLOG - BULK:
            await asyncio.sleep(0.005)
            continue
        numbers = range(enqueued, enqueued + BULK, 2)
        await logged.plain.enqueue_many([(number,) for number in numbers])
        await logged.keyed.enqueue_many([(number // 2 % keys,) for number in numbers])
        enqueued += BULK


async def _first_of(task: asyncio.Task[None], seconds: float) -> None:
    """Wait so long, unless the task fails."""
    done, _ = await asyncio.wait([task], timeout=seconds)
    for each in done:
        each.result()


@contextlib.asynccontextmanager
async def _snapshot(url: str) -> AsyncIterator[None]:
    connection: Any = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.execute("SELECT count(*) FROM headgate.node")
            yield
    finally:
        await connection.close()


def _metrics(prefix: str, claims: Sequence[LoggedClaim]) -> dict[str, float]:
    if not claims:
        raise RuntimeError("nothing was claimed")
    return {
        f"{prefix}rate": sum(claim.jobs for claim in claims) / WINDOW,
        f"{prefix}claim": percentile([claim.answered_at - claim.sent_at for claim in claims], 0.5) / 1e6,
    }


_RUN = "benchmarks.questions.held_snapshot:held_snapshot"

QUESTION = Question(
    name="held-snapshot",
    heading="A snapshot held open, PostgreSQL",
    asks="Does a worker slow down while another session keeps all dead rows from being cleared away?",
    lead="last_rate",
    metrics=(
        Metric("first_rate", "first 20 s: jobs/s"),
        Metric("last_rate", "last 20 s: jobs/s"),
        Metric("rate_ratio", "ratio", 2),
        Metric("first_claim", "first 20 s: claim p50 ms", 1),
        Metric("last_claim", "last 20 s: claim p50 ms", 1),
        Metric("claim_ratio", "ratio", 2),
    ),
    scenarios=(
        Scenario(
            name="held",
            run=_RUN,
            conditions=(
                "`headgate worker`, 100 slots; 3,000 jobs wait all the time, half of them without limits, half on "
                "1,000 keys of a RateLimit that is never used up; a REPEATABLE READ transaction is open for 10 minutes"
            ),
            params={"seconds": 600, "held": True},
            quick={"seconds": 60},
            against={"free": "free"},
        ),
        Scenario(
            name="free",
            run=_RUN,
            conditions="the same without that transaction, for 2 minutes",
            params={"seconds": 120, "held": False},
            quick={"seconds": 60},
        ),
    ),
    goals=(
        Goal(scenario="held", metric="rate_ratio", text="jobs/s at the end at least 1/1.5 of the start", at_least=0.67),
        Goal(scenario="held", metric="claim_ratio", text="claims at most 1.5 × as long as at the start", at_most=1.5),
    ),
    rounds=1,
)
