"""How soon and how fast jobs start that were stored while no worker ran: on a hundred keys, and on very many."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import asyncpg

from benchmarks.backlog_app import ELSEWHERE, FAIR, LIMIT, LIMITED, app, lone
from benchmarks.latency_probe import StartReceiver, gaps
from benchmarks.postgres_server import postgres_on
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.seeds import add_seeds
from benchmarks.stores import storage_at
from benchmarks.support import Latencies, new_file
from benchmarks.worker import headgate_worker
from headgate import RateLimit
from headgate.cli.worker_process import tune_process
from headgate.clock import SystemClock
from headgate.jobs.job import JobState
from headgate.jobs.lifecycle import Finished
from headgate.limits.fair import PREFIX, FairOrder
from headgate.limits.limit import AnyRule
from headgate.storage.records import Claim, FreeSlots
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store

SLOTS = 100
NODE = "measured"
SERVER = "server"

RULES: dict[str, AnyRule] = {LIMIT: RateLimit("1000/s").rule, PREFIX + FAIR: FairOrder("{key}", {}).rule}

FEW, MANY = 100, 100_000
KEYS = (FEW, 20_000, MANY)


def prepare(folder: Path, *, store: str, jobs: int, keys: Sequence[int], share: int = 1) -> dict[str, float]:
    """Make a store for each queue and number of keys, with so many jobs that no worker has seen.

    A quick run has a `share` of the keys.
    """
    names = [(queue, count) for queue in (LIMITED, FAIR) for count in keys]
    if store == "postgres":
        with postgres_on(folder / SERVER, "-c", "fsync=off", "-c", "max_wal_size=8GB") as url:
            for queue, count in names:
                asyncio.run(_execute(url, f"CREATE DATABASE {queue}_{count}"))
                own = storage_at(f"{url.rpartition('/')[0]}/{queue}_{count}")
                asyncio.run(_fill(own, queue, jobs, max(FEW, count // share)))
    else:
        for queue, count in names:
            file = SqliteStorage(folder / f"{queue}_{count}.db", SystemClock(), synchronous="OFF")
            asyncio.run(_fill(file, queue, jobs, max(FEW, count // share)))
    return {}


async def _fill(storage: Store, queue: str, jobs: int, keys: int) -> None:
    await storage.open()
    limit = LIMIT if queue == LIMITED else PREFIX + FAIR
    limit_set = app._registry.limit_set_name(queue, queue)
    await add_seeds(storage, jobs, keys, task=queue, limit=limit, prefix="key", limit_set=limit_set, queue=queue)
    await storage.close()


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


@contextlib.contextmanager
def _copy(folder: Path, store: str, name: str) -> Iterator[str]:
    """Copy a prepared store; an empty one without a name."""
    if store == "postgres":
        with postgres_on(folder / SERVER) as url:
            server = url.rpartition("/")[0]
            template = f"TEMPLATE {name} STRATEGY file_copy" if name else ""
            asyncio.run(_execute(url, f"CREATE DATABASE measured {template}", "CHECKPOINT"))
            try:
                yield f"{server}/measured"
            finally:
                asyncio.run(_execute(url, "DROP DATABASE measured WITH (FORCE)"))
    else:
        file = new_file(folder)
        if name:
            shutil.copyfile(folder / f"{name}.db", file)
        yield f"sqlite:///{file}"
        shutil.rmtree(file.parent)


def starts(folder: Path, *, store: str, queue: str, keys: int, seconds: float) -> dict[str, float]:
    """Claims of up to a hundred jobs, each followed by the finish of its jobs, for so many seconds."""
    tune_process()
    with _copy(folder, store, f"{queue}_{keys}") as url:
        return asyncio.run(_starts(storage_at(url), queue, seconds))


async def _starts(storage: Store, queue: str, seconds: float) -> dict[str, float]:
    await storage.open()
    await storage.join(NODE, NODE)
    claim = Claim(NODE, {queue: FreeSlots(SLOTS)}, RULES, frozenset([LIMITED, FAIR]), app._registry.limit_sets())
    claiming = Latencies()
    began = time.monotonic()
    first = in_first_second = jobs = 0.0
    while (since := time.monotonic() - began) < seconds:
        claimed = await storage.claim(claim)
        taken_at = time.monotonic() - began
        claiming.add(taken_at - since)
        if not claimed.jobs and not claimed.more:
            break
        await storage.finish(NODE, [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in claimed.jobs])
        first = first or (taken_at if claimed.jobs else 0.0)
        jobs += len(claimed.jobs)
        in_first_second = jobs if taken_at <= 1 else in_first_second
    took = time.monotonic() - began
    await storage.close()
    return {
        "rate": jobs / took,
        "first": 1000 * first,
        "first_second": in_first_second,
        **{f"claim_{name}": value for name, value in claiming.metrics().items()},
    }


def lone_jobs(folder: Path, *, store: str, backlog: str, probes: int) -> dict[str, float]:
    """Jobs of another queue, one at a time, from the moment at which the worker has joined."""
    with (
        _copy(folder, store, backlog) as url,
        StartReceiver(folder) as receiver,
        headgate_worker(url, receiver.path, app="benchmarks.backlog_app:app"),
    ):
        return asyncio.run(_lone_jobs(url, receiver, probes))


async def _lone_jobs(url: str, receiver: StartReceiver, probes: int) -> dict[str, float]:
    storage = storage_at(url)
    await storage.open()
    latencies = Latencies()
    limit_set = app._registry.limit_set_name(lone.name, ELSEWHERE)
    for number, gap in enumerate(gaps(probes, 0.02, 0.1)):
        await asyncio.sleep(gap)
        asked_at = time.monotonic_ns()
        await add_seeds(
            storage,
            1,
            1,
            task=lone.name,
            limit=LIMIT,
            prefix=f"lone-{number}",
            limit_set=limit_set,
            queue=ELSEWHERE,
            number=number,
        )
        latencies.add((await asyncio.to_thread(receiver.wait_for_start, number) - asked_at) / 1e9)
    await storage.close()
    return {f"lone_{name}": value for name, value in latencies.metrics().items()}


_LABELS = {"sqlite": "SQLite, synchronous=FULL", "postgres": "PostgreSQL"}
_KINDS = {LIMITED: "limits", FAIR: "fair"}


def _scenarios(store: str) -> Iterator[Scenario]:
    for queue, kind in _KINDS.items():
        for keys in KEYS:
            yield Scenario(
                name=f"{kind}, {keys:,} keys",
                run="benchmarks.questions.backlog:starts",
                conditions=(
                    f"{_LABELS[store]}; claims of {SLOTS} slots for 10 s, each followed by the finish of its jobs"
                ),
                params={"store": store, "queue": queue, "keys": keys, "seconds": 10.0},
                quick={"seconds": 2.0},
                against={} if keys == FEW else {"100 keys": f"{kind}, {FEW} keys"},
            )


def _lone_scenarios(store: str) -> Iterator[Scenario]:
    backlogs = {"": "an empty store"} | {
        f"{queue}_{keys}": f"{kind}, {keys:,} keys" for queue, kind in _KINDS.items() for keys in (FEW, MANY)
    }
    for backlog, label in backlogs.items():
        yield Scenario(
            name=label,
            run="benchmarks.questions.backlog:lone_jobs",
            conditions=(
                f"{_LABELS[store]}; `headgate worker` in its own process, {SLOTS} slots for both queues; one job of "
                "another queue at a time, from another process"
            ),
            params={"store": store, "backlog": backlog, "probes": 60},
            quick={"probes": 20},
            against={"empty": "an empty store"} if backlog else {},
        )


def _question(store: str) -> Question:
    return Question(
        name="backlog" if store == "sqlite" else "postgres-backlog",
        heading="Backlog" if store == "sqlite" else "Backlog, PostgreSQL",
        asks="500,000 jobs were stored while no worker ran: how fast do they start, on few keys and on many?",
        lead="rate",
        metrics=(
            Metric("rate", "jobs/s"),
            Metric("first", "first start, ms"),
            Metric("first_second", "starts in the first second"),
            Metric("claim_p50", "a claim: p50 ms", 2),
            Metric("claim_p99", "p99 ms", 2),
        ),
        scenarios=tuple(_scenarios(store)),
        goals=tuple(
            Goal(
                scenario=f"{kind}, {MANY:,} keys",
                over=f"{kind}, {FEW} keys",
                metric="rate",
                text=f"{kind}: {MANY:,} keys start at no less than half the rate of {FEW} keys",
                at_least=0.5,
            )
            for kind in _KINDS.values()
        ),
        notes=("Jobs of 100 keys are in 100 lanes. A claim starts at most four jobs of a lane before the next one.",),
        prepare="benchmarks.questions.backlog:prepare",
        prepare_params={"store": store, "jobs": 500_000, "keys": [*KEYS]},
        prepare_quick={"jobs": 20_000, "share": 50},
    )


def _lone_question(store: str) -> Question:
    return Question(
        name="lone" if store == "sqlite" else "postgres-lone",
        heading="A job beside a backlog" if store == "sqlite" else "A job beside a backlog, PostgreSQL",
        asks="While a backlog of 500,000 jobs starts, how long does a job of another queue wait?",
        lead="lone_p50",
        metrics=(Metric("lone_p50", "start: p50 ms", 2), Metric("lone_p99", "p99 ms", 2)),
        scenarios=tuple(_lone_scenarios(store)),
        goals=tuple(
            Goal(
                scenario=f"{kind}, {MANY:,} keys",
                over="an empty store",
                metric="lone_p50",
                text=f"{kind}, {MANY:,} keys: start p50 at most 1.5 × that on an empty store",
                at_most=1.5,
            )
            for kind in _KINDS.values()
        ),
        prepare="benchmarks.questions.backlog:prepare",
        prepare_params={"store": store, "jobs": 500_000, "keys": [FEW, MANY]},
        prepare_quick={"jobs": 20_000, "share": 50},
    )


SQLITE = _question("sqlite")
POSTGRES = _question("postgres")
SQLITE_LONE = _lone_question("sqlite")
POSTGRES_LONE = _lone_question("postgres")
