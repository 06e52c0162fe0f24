"""What a fair order costs where a million jobs of 100,000 keys wait, and how exact it is there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import asyncpg

from benchmarks.postgres_server import postgres_on
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.seeds import add_seeds
from benchmarks.stores import storage_at
from benchmarks.support import Latencies
from headgate.cli.worker_process import tune_process
from headgate.clock import SystemClock
from headgate.jobs.job import ClaimedJob, JobState
from headgate.jobs.lifecycle import Finished
from headgate.limits.fair import PREFIX, FairOrder
from headgate.storage.admission import FAIR_LANES
from headgate.storage.records import Claim, FreeSlots
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.tasks.queue import DEFAULT_QUEUE

TASK = "call"
WEIGHTED_QUEUE = "weighted"
WEIGHTS = {"one-0": 1, "two-0": 2, "three-0": 3, "four-0": 4}
"""Of the keys that `add_seeds` makes of the names without the number."""
STARTS = 1_000
"""Over how many starts shares are measured."""

NODE = "measured"
SERVER = "server"
PLAIN, FAIR, LEVELS = "plain", "fair", "levels"

USERS = 100
"""Of each tenant, where keys have two levels."""


def prepare(folder: Path, *, store: str, jobs: int, keys: int) -> dict[str, float]:
    """Make stores with so many jobs in the default queue: without keys, with so many keys, and with two levels."""
    if store == "postgres":
        with postgres_on(folder / SERVER, "-c", "fsync=off", "-c", "max_wal_size=8GB") as url:
            for name in (PLAIN, FAIR, LEVELS):
                asyncio.run(_make(url, name))
                asyncio.run(_fill(storage_at(_database(url, name)), name, jobs, keys))
                asyncio.run(_settle(_database(url, name)))
    else:
        for name in (PLAIN, FAIR, LEVELS):
            file = SqliteStorage(_file(folder, name), SystemClock(), synchronous="OFF")
            asyncio.run(_fill(file, name, jobs, keys))
    return {}


async def _make(url: str, name: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()


async def _settle(url: str) -> None:
    """What autovacuum would do within minutes."""
    connection = await asyncpg.connect(url)
    await connection.execute("VACUUM (ANALYZE, FREEZE)")
    await connection.close()


async def _fill(storage: Store, name: str, jobs: int, keys: int) -> None:
    await storage.open()
    limit = "" if name == PLAIN else PREFIX + DEFAULT_QUEUE
    tenants = keys // USERS if name == LEVELS else 0
    await add_seeds(storage, jobs + keys, keys, task=TASK, limit=limit, prefix="key", tenants=tenants)
    await storage.join(NODE, NODE)
    # Each key has had a turn: keys that never had one start before others, in the order in which they came.
    started = 0
    while started < keys:
        claimed = (await storage.claim(_claim(DEFAULT_QUEUE, FAIR_LANES))).jobs
        await _finish(storage, claimed)
        started += len(claimed)
    await storage.leave(NODE)
    await storage.close()


@contextlib.contextmanager
def _prepared(folder: Path, store: str, name: str) -> Iterator[str]:
    if store == "postgres":
        with postgres_on(folder / SERVER) as url:
            yield _database(url, name)
    else:
        yield f"sqlite:///{_file(folder, name)}"


def _database(url: str, name: str) -> str:
    return f"{url.rpartition('/')[0]}/{name}"


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.db"


def _claim(queue: str, slots: int) -> Claim:
    rules = {PREFIX + name: FairOrder("{0}", WEIGHTS).rule for name in (DEFAULT_QUEUE, WEIGHTED_QUEUE)}
    # As a node claims a queue whose last claim was full.
    return Claim(NODE, {queue: FreeSlots(slots)}, rules, frozenset([TASK]), has_backlog=True)


async def _finish(storage: Store, jobs: Sequence[ClaimedJob]) -> None:
    await storage.finish(NODE, [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in jobs])


def claims(folder: Path, *, store: str, name: str, slots: int, count: int) -> dict[str, float]:
    """So many claims of so many slots, each followed by the finish of its jobs."""
    tune_process()
    with _prepared(folder, store, name) as url:
        return asyncio.run(_claims(storage_at(url), slots, count))


async def _claims(storage: Store, slots: int, count: int) -> dict[str, float]:
    await storage.open()
    await storage.join(NODE, NODE)
    claiming = Latencies()
    # The first ones connect, and read what the system has not read yet.
    for number in range(count + 10):
        began = time.monotonic()
        jobs = (await storage.claim(_claim(DEFAULT_QUEUE, slots))).jobs
        if number >= 10:
            claiming.add(time.monotonic() - began)
        if len(jobs) != slots:
            raise RuntimeError(f"a claim took {len(jobs)} jobs for {slots} slots")
        await _finish(storage, jobs)
    await storage.leave(NODE)
    await storage.close()
    measured = claiming.metrics()
    return {"claim": measured["p50"], "p99": measured["p99"]}


def order(folder: Path, *, store: str, newcomers: int) -> dict[str, float]:
    """How exact the order is, with two slots."""
    with _prepared(folder, store, FAIR) as url:
        return asyncio.run(_order(storage_at(url), newcomers))


async def _order(storage: Store, newcomers: int) -> dict[str, float]:
    await storage.open()
    await storage.join(NODE, NODE)
    latest = 0
    for number in range(newcomers):
        key = f"new-{time.monotonic_ns()}-{number}"
        await add_seeds(storage, 5, 1, task=TASK, limit=PREFIX + DEFAULT_QUEUE, prefix=key)
        latest = max(latest, 1 + (await _starts(storage, DEFAULT_QUEUE, 20)).index(f"{key}-0"))
    counts = Counter(await _starts(storage, DEFAULT_QUEUE, STARTS))
    for key in WEIGHTS:
        await add_seeds(
            storage,
            STARTS,
            1,
            task=TASK,
            limit=PREFIX + WEIGHTED_QUEUE,
            prefix=key.removesuffix("-0"),
            queue=WEIGHTED_QUEUE,
        )
    shares = Counter(await _starts(storage, WEIGHTED_QUEUE, STARTS))
    total = sum(WEIGHTS.values())
    await storage.leave(NODE)
    await storage.close()
    return {
        "newcomer": latest,
        "most": max(counts.values()),
        "error": max(abs(100 * shares[key] / STARTS - 100 * weight / total) for key, weight in WEIGHTS.items()),
    }


async def _starts(storage: Store, queue: str, count: int) -> list[str]:
    """Return the keys of the next starts."""
    keys: list[str] = []
    while len(keys) < count:
        jobs = (await storage.claim(_claim(queue, 2))).jobs
        keys += [job.buckets[-1].key for job in jobs]
        await _finish(storage, jobs)
    return keys[:count]


def _question(store: str, label: str) -> Question:
    scenarios: list[Scenario] = []
    goals: list[Goal] = []
    keys = {
        PLAIN: ("no keys", "the same without `fair_by`"),
        FAIR: ("fair", "`fair_by`, 100,000 keys"),
        LEVELS: ("two levels", f"`fair_by` of two levels, 1,000 tenants with {USERS} users each"),
    }
    for slots in (10, 100):
        plain, fair, levels = (f"{title}, {slots} slots" for title, _ in keys.values())
        for name, title in zip(keys, (plain, fair, levels), strict=True):
            scenarios.append(
                Scenario(
                    name=title,
                    run="benchmarks.questions.fair:claims",
                    conditions=f"{label}; {keys[name][1]}; a claim of {slots} slots, then the finish of its jobs",
                    params={"store": store, "name": name, "slots": slots, "count": 300},
                    quick={"count": 30},
                    against={} if name == PLAIN else {"no keys": plain},
                )
            )
        goals.append(
            Goal(
                scenario=fair,
                over=plain,
                metric="claim",
                text=f"{slots} slots: a claim takes at most 1.2 × that of a queue without keys",
                at_most=1.2,
            )
        )
    return Question(
        name="fair" if store == "sqlite" else "postgres-fair",
        heading="Fair order" if store == "sqlite" else "Fair order, PostgreSQL",
        asks="A million jobs of 100,000 keys wait: what does it cost that keys take turns?",
        lead="claim",
        metrics=(Metric("claim", "a claim: p50 ms", 2), Metric("p99", "p99 ms", 2)),
        scenarios=tuple(scenarios),
        goals=tuple(goals),
        notes=(
            "Each job of a claim is of another key, so a claim locks and writes as many lanes as it starts jobs.",
            "Jobs without keys have one lane, which claims do not lock.",
        ),
        prepare="benchmarks.questions.fair:prepare",
        prepare_params={"store": store, "jobs": 1_000_000, "keys": 100_000},
        prepare_quick={"jobs": 20_000, "keys": 4_000},
    )


def _exactness(store: str, label: str) -> Question:
    name = "the queue of 100,000 keys"
    return Question(
        name="fair-order" if store == "sqlite" else "postgres-fair-order",
        heading="Exactness of the fair order" if store == "sqlite" else "Exactness of the fair order, PostgreSQL",
        asks="A million jobs of 100,000 keys wait: how soon does a new key start, and are shares those of the weights?",
        lead="error",
        metrics=(
            Metric("newcomer", "latest first start of a new key"),
            Metric("most", f"most starts of a key in {STARTS:,}"),
            Metric("error", "error of a share, %", 2),
        ),
        scenarios=(
            Scenario(
                name=name,
                run="benchmarks.questions.fair:order",
                conditions=f"{label}; each key has started; claims of 2 slots; 20 new keys one after the other, with "
                f"5 jobs each; then {STARTS:,} starts; then "
                f"as many of a second queue with four keys of the weights 1 to 4",
                params={"store": store, "newcomers": 20},
                quick={"newcomers": 5},
            ),
        ),
        goals=(
            Goal(scenario=name, metric="newcomer", text="a new key is among the first 2 starts", at_most=2),
            Goal(scenario=name, metric="most", text="no key starts twice before all others have started", at_most=1),
            Goal(scenario=name, metric="error", text="shares within 1 % of the weights", at_most=1),
        ),
        rounds=1,
        prepare="benchmarks.questions.fair:prepare",
        prepare_params={"store": store, "jobs": 1_000_000, "keys": 100_000},
        prepare_quick={"jobs": 20_000, "keys": 4_000},
    )


SQLITE = _question("sqlite", "SQLite, synchronous=FULL")
POSTGRES = _question("postgres", "PostgreSQL")
SQLITE_ORDER = _exactness("sqlite", "SQLite, synchronous=FULL")
POSTGRES_ORDER = _exactness("postgres", "PostgreSQL")
