"""How many jobs a second a store claims and finishes, without an engine around it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from benchmarks.claimer import LIMIT, RULE, TASK, claim_all
from benchmarks.full_store import store_for
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.seeds import add_seeds, use_up
from benchmarks.stores import storage_at

LANES = 1_000
ROOMS = (4, 10, 50, 200, 400)


def claims(
    folder: Path, *, store: str, jobs: int, room: int, claimers: int = 1, gated: bool = True, full: bool = False
) -> dict[str, float]:
    """Claims of so many jobs each, and their finish, one after the other in each of the claimers."""
    with store_for(folder, store, full=full) as url:
        asyncio.run(_fill(url, jobs, gated))
        metrics = claim_all(url, room, claimers)
    if metrics.pop("jobs") != jobs:
        raise RuntimeError("the claimers did not get all jobs")
    return metrics


async def _fill(url: str, jobs: int, gated: bool) -> None:
    limit = LIMIT if gated else ""
    storage = storage_at(url)
    await storage.open()
    # Each key was used before: the steady state is measured, not the first call.
    await add_seeds(storage, LANES, LANES, task=TASK, limit=limit, prefix="key")
    await use_up(storage, RULE, task=TASK, limit=LIMIT)
    await add_seeds(storage, jobs, LANES, task=TASK, limit=limit, prefix="key")
    await storage.close()


def _scenarios() -> Iterator[Scenario]:
    for room in ROOMS:
        for claimers in (1, 2):
            yield _scenario("postgres", room, claimers)
    for room in (10, 200):
        yield _scenario("postgres", room, 1, gated=False)
    yield _scenario("sqlite", 200, 1)
    yield _scenario("sqlite", 200, 1, gated=False)


def _scenario(store: str, room: int, claimers: int, *, gated: bool = True) -> Scenario:
    where = {"postgres": "PostgreSQL", "sqlite": "SQLite"}[store]
    jobs = 2_000 if room < 50 else 20_000
    return Scenario(
        name=_name(where, room, claimers, gated=gated),
        run="benchmarks.questions.claims:claims",
        conditions=f"{jobs:,} jobs "
        + ("of 1,000 keys that have budget (RateLimit, 1000/s)" if gated else "without limits")
        + f", claimed at most {room} at a time and finished"
        + (", by two processes" if claimers > 1 else ""),
        params={"store": store, "jobs": jobs, "room": room, "claimers": claimers, "gated": gated},
        quick={"jobs": jobs // 4},
    )


def _name(where: str, room: int, claimers: int, *, gated: bool = True) -> str:
    return f"{where}, {room} slots{', 2 claimers' if claimers > 1 else ''}{'' if gated else ', ungated'}"


QUESTION = Question(
    name="claims",
    asks="How many jobs a second does a store hand out and take back, with no engine around it?",
    lead="rate",
    metrics=(Metric("rate", "jobs/s"), Metric("claim", "a claim, ms", 2), Metric("finish", "a finish, ms", 2)),
    scenarios=tuple(_scenarios()),
    goals=(
        Goal(
            scenario=_name("PostgreSQL", 400, 1),
            metric="rate",
            text="at least 25,000 jobs/s that use a budget, claimed and finished on PostgreSQL",
            at_least=25_000,
        ),
    ),
    notes=("A claimer is a process of its own that claims, finishes all of it, and claims again: nothing overlaps.",),
)
