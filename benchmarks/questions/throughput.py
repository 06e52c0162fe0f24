"""How many jobs a second go all the way: enqueued, run, recorded as finished."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import new_file, until_finished
from headgate import Headgate, RateLimit
from headgate.cli.worker_process import tune_process

BULK = 500


def headgate(
    folder: Path, *, jobs: int, slots: int, keys: int = 0, memory: bool = False, untuned: bool = False
) -> dict[str, float]:
    """One process enqueues and runs; with `keys`, each job uses one of so many budgets that are never used up."""
    if not untuned:
        tune_process()
    url = "memory://" if memory else f"sqlite:///{new_file(folder)}"
    return asyncio.run(_headgate(url, jobs, slots, keys))


async def _headgate(url: str, jobs: int, slots: int, keys: int) -> dict[str, float]:
    app = Headgate(url, concurrency=slots, migrate=True)
    all_began = asyncio.Event()
    began_jobs = 0

    @app.task(limits=[RateLimit("1000/s", key="{number}")] if keys else [])
    async def noop(number: int) -> None:
        nonlocal began_jobs
        began_jobs += 1
        if began_jobs == jobs:
            all_began.set()

    async with app:
        began = time.perf_counter()
        for first in range(0, jobs, BULK):
            await noop.enqueue_many([(number % keys if keys else number,) for number in range(first, first + BULK)])
        await all_began.wait()
        # Only now: counting costs, and must not slow down what it counts.
        await until_finished(app, jobs)
        seconds = time.perf_counter() - began
    return {"rate": jobs / seconds}


_HEADGATE = "benchmarks.questions.throughput:headgate"
_HUEY = "benchmarks.peers.huey_sqlite:throughput"
_EMBEDDED = "bulks of 500 enqueued while a worker in the same process runs them"
_PEERS = {"huey": "huey, 1 thread", "raw": "raw sqlite3"}

QUESTION = Question(
    name="throughput",
    asks="How many no-op jobs a second are enqueued, run and durably recorded as finished?",
    lead="rate",
    metrics=(Metric("rate", "jobs/s"),),
    scenarios=(
        Scenario(
            name="Headgate, 100 slots",
            run=_HEADGATE,
            conditions=f"SQLite, synchronous=FULL; {_EMBEDDED}; 100 slots (default); one integer",
            params={"jobs": 20_000, "slots": 100},
            quick={"jobs": 10_000},
            against=_PEERS,
        ),
        Scenario(
            name="Headgate, 400 slots",
            run=_HEADGATE,
            conditions="the same with concurrency=400",
            params={"jobs": 20_000, "slots": 400},
            quick={"jobs": 10_000},
            against=_PEERS,
        ),
        Scenario(
            name="Headgate, Python's defaults",
            run=_HEADGATE,
            conditions="100 slots; switch interval and garbage collection as Python has them",
            params={"jobs": 20_000, "slots": 100, "untuned": True},
            quick={"jobs": 10_000},
            against=_PEERS,
        ),
        Scenario(
            name="Headgate, 1,000 budgets",
            run=_HEADGATE,
            conditions="100 slots; each job uses one of 1,000 keys of a RateLimit that is never used up",
            params={"jobs": 20_000, "slots": 100, "keys": 1_000},
            quick={"jobs": 10_000},
            against=_PEERS,
        ),
        Scenario(
            name="huey, 4 threads",
            run=_HUEY,
            conditions=(
                "SqliteHuey(fsync=True); enqueued one by one (it has no bulk), 4 worker threads in the same process, "
                "one integer; nothing is recorded for a result of None"
            ),
            params={"jobs": 4_000, "threads": 4, "results": False},
            quick={"jobs": 2_000},
        ),
        Scenario(
            name="huey, 1 thread",
            run=_HUEY,
            conditions="the same with 1 worker thread",
            params={"jobs": 4_000, "threads": 1, "results": False},
            quick={"jobs": 2_000},
        ),
        Scenario(
            name="huey, results kept",
            run=_HUEY,
            conditions="4 threads, store_none=True: that a job ended is recorded, as Headgate does",
            params={"jobs": 4_000, "threads": 4, "results": True},
            quick={"jobs": 2_000},
        ),
        Scenario(
            name="raw sqlite3",
            run="benchmarks.peers.raw_sqlite:throughput",
            conditions="one thread: insert in commits of 500, claim in commits of 100, finish in commits of 100; FULL",
            params={"jobs": 50_000, "bulk": BULK, "batch": 100},
        ),
        Scenario(
            name="Headgate in memory, 100 slots",
            run=_HEADGATE,
            conditions=f"memory://, nothing durable; {_EMBEDDED}; 100 slots (default)",
            params={"jobs": 40_000, "slots": 100, "memory": True},
            quick={"jobs": 20_000},
            against=_PEERS,
        ),
        Scenario(
            name="Headgate in memory, 400 slots",
            run=_HEADGATE,
            conditions="the same with concurrency=400",
            params={"jobs": 40_000, "slots": 400, "memory": True},
            quick={"jobs": 20_000},
            against=_PEERS,
        ),
        Scenario(
            name="Headgate in memory, 1,000 budgets",
            run=_HEADGATE,
            conditions="100 slots; each job uses one of 1,000 keys of a RateLimit that is never used up",
            params={"jobs": 40_000, "slots": 100, "keys": 1_000, "memory": True},
            quick={"jobs": 20_000},
            against=_PEERS,
        ),
    ),
    goals=(
        Goal(
            scenario="Headgate, 100 slots",
            metric="rate",
            text="at least 15,000 jobs/s on SQLite with 100 slots",
            at_least=15_000,
        ),
        Goal(
            scenario="Headgate, 400 slots",
            metric="rate",
            text="at least 15,000 jobs/s on SQLite with 400 slots",
            at_least=15_000,
        ),
        Goal(
            scenario="Headgate in memory, 100 slots",
            metric="rate",
            text="at least 40,000 jobs/s in memory with 100 slots",
            at_least=40_000,
        ),
    ),
    notes=(
        "`memory://` is SQLite's own database in memory, and runs the same procedures and SQL as a file. The first "
        "version of Headgate kept these jobs in Python dictionaries, at 57,500 jobs/s. That was a second program for "
        "each procedure, with defects of its own, and it is gone. Side by side, in one run, the change made 35,884 "
        "jobs/s of 44,644 ([decision 38](decisions/0038-procedures-once-over-two-drivers.md)). The rest is what was "
        "added to each job since, and the machine: in the run above, plain `sqlite3` is half as fast as on the days "
        "before ([decision 42](decisions/0042-what-speed-is-still-to-be-had.md)). Only the ratios carry over.",
        "Where the time of a job in memory goes (15,000 jobs, 100 slots; shares of the CPU time of the thread, calls "
        "counted by cProfile; 27 November 2026, 2 cores of AMD EPYC that other programs used, too): a third is SQLite, "
        "in 0.11 statements a job; a tenth is asyncio, which makes and runs a task for each job; the rest is Python: "
        "144 calls a job, of which 30 are in asyncio, 16 bind and decode arguments, 11 read and write rows, and 56 are "
        "to built-in functions and the standard library. No Python function takes more than 4 %, so nothing is left "
        "that is cheap to save. With 1,000 budgets, statements take 38 %.",
        "Engines without a store start hundreds of thousands of functions a second, because they only pass a function "
        "to a task: no state, no attempt, nothing to retry after a crash. An asyncio task for each call, and nothing "
        "else, took a tenth of the CPU of a job in memory. If nothing has to be kept, put a [limiter](standalone.md) "
        "before the call instead of a job around it: in memory it decides a million times a second.",
    ),
)
