"""Where the microseconds of a job go: what each step of its life costs, here and in the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import uvloop

from benchmarks.claimer import LIMIT, RULE, TASK
from benchmarks.full_store import store_for
from benchmarks.meter import FileMeter, Reading, ServerMeter
from benchmarks.question import Metric, Question, Scenario
from benchmarks.seeds import add_seeds, use_up
from benchmarks.stores import storage_at
from benchmarks.support import bulks, until_finished
from headgate import Headgate
from headgate.cli.worker_process import tune_process
from headgate.jobs.job import ClaimedJob, JobState
from headgate.jobs.lifecycle import Finished
from headgate.storage.records import Claim, FreeSlots
from headgate.tasks.queue import DEFAULT_QUEUE

Work = Callable[[], Awaitable[None]]
Step = Callable[[str, int], AbstractAsyncContextManager[Work]]
"""Opens and fills a store of this URL with so many jobs; the work is what is metered."""

NODE = "meter"
SLOTS = 100
KEYS = 1_000


def costs(folder: Path, *, store: str, step: str, jobs: int, full: bool = False) -> dict[str, float]:
    """What a step costs for one job, of so many, in an empty store or in a copy of the full one."""
    with store_for(folder, store, full=full) as url:
        return uvloop.run(_costs(url, step, jobs))


async def _costs(url: str, step: str, jobs: int) -> dict[str, float]:
    meter = ServerMeter(url) if url.startswith("postgresql:") else FileMeter(Path(url.removeprefix("sqlite:///")))
    async with STEPS[step](url, jobs) as work:
        tune_process()
        synced_before = await meter.syncs()
        began = await meter.read()
        await work()
        spent = await meter.read() - began
    synced = await meter.syncs()
    metrics = _each(spent, jobs)
    if synced is not None and synced_before is not None:
        metrics["syncs"] = 1_000 * (synced - synced_before) / jobs
    return metrics


def _each(spent: Reading, jobs: int) -> dict[str, float]:
    return {
        "python": 1e6 * spent.python / jobs,
        "other_threads": 1e6 * spent.other_threads / jobs,
        "server": 1e6 * spent.server / jobs,
        "commits": 1_000 * spent.commits / jobs,
        "log": spent.log / jobs,
        "waits": 1_000 * spent.waits / jobs,
    }


@asynccontextmanager
async def _lone_enqueues(url: str, jobs: int) -> AsyncIterator[Work]:
    app = Headgate(url, migrate=True)

    @app.task
    async def noop(number: int) -> None:
        raise AssertionError("never run")

    async def work() -> None:
        for number in range(jobs):
            await noop.enqueue(number)

    async with app.open():
        yield work


@asynccontextmanager
async def _bulks(url: str, jobs: int) -> AsyncIterator[Work]:
    app = Headgate(url, migrate=True)

    @app.task
    async def noop(number: int) -> None:
        raise AssertionError("never run")

    async def work() -> None:
        for numbers in bulks(jobs):
            await noop.enqueue_many([(number,) for number in numbers])

    async with app.open():
        yield work


def _claims(*, is_gated: bool, finishes: bool) -> Step:
    """Claims alone, or the ends of what was claimed before."""

    @asynccontextmanager
    async def step(url: str, jobs: int) -> AsyncIterator[Work]:
        storage = storage_at(url)
        await storage.open()
        limit = LIMIT if is_gated else ""
        await add_seeds(storage, KEYS, KEYS, task=TASK, limit=limit, prefix="key")
        await use_up(storage, RULE, task=TASK, limit=LIMIT)
        await add_seeds(storage, jobs, KEYS, task=TASK, limit=limit, prefix="key")
        await storage.join(NODE, NODE)
        claim = Claim(NODE, {DEFAULT_QUEUE: FreeSlots(SLOTS)}, {LIMIT: RULE}, frozenset([TASK]))
        claimed: list[ClaimedJob] = []

        async def take() -> None:
            while len(claimed) < jobs:
                claimed.extend((await storage.claim(claim)).jobs)

        async def finish() -> None:
            for numbers in bulks(jobs, SLOTS):
                ended = [
                    Finished(job.id, job.fence, JobState.SUCCEEDED) for job in claimed[numbers.start : numbers.stop]
                ]
                await storage.finish(NODE, ended)

        if finishes:
            await take()
        yield finish if finishes else take
        await storage.close()

    return step


@asynccontextmanager
async def _worker(url: str, jobs: int) -> AsyncIterator[Work]:
    app = Headgate(url, concurrency=SLOTS, migrate=True)
    all_began = asyncio.Event()
    began = 0

    @app.task
    async def noop(number: int) -> None:
        nonlocal began
        began += 1
        if began == jobs:
            all_began.set()

    async with app.open():
        for numbers in bulks(jobs):
            await noop.enqueue_many([(number,) for number in numbers])

    async def work() -> None:
        async with app:
            await all_began.wait()
            await until_finished(app, jobs)

    async with app.open():
        yield work


STEPS: dict[str, Step] = {
    "enqueue": _lone_enqueues,
    "bulk": _bulks,
    "claim": _claims(is_gated=False, finishes=False),
    "claim, gated": _claims(is_gated=True, finishes=False),
    "finish": _claims(is_gated=False, finishes=True),
    "finish, gated": _claims(is_gated=True, finishes=True),
    "all but enqueue": _worker,
}
_CONDITIONS = {
    "enqueue": "one awaited `enqueue` after another",
    "bulk": "`enqueue_many` of 500, one after the other",
    "claim": f"claims of {SLOTS} jobs without limits, without an engine",
    "claim, gated": f"claims of {SLOTS} jobs, each of which uses one of 1,000 budgets",
    "finish": f"the ends of {SLOTS} jobs without limits at a time",
    "finish, gated": f"the ends of {SLOTS} jobs at a time, each of which drew on one of 1,000 budgets",
    "all but enqueue": f"an embedded worker with {SLOTS} slots claims, runs and finishes jobs without limits",
}


def _scenarios(*, full: bool) -> Iterator[Scenario]:
    for store, where in (("sqlite", "SQLite"), ("postgres", "PostgreSQL")):
        for step, conditions in _CONDITIONS.items():
            if full and step == "all but enqueue":
                # It polls the counts, which takes longer than the work where a million jobs are kept.
                continue
            jobs = 4_000 if step == "enqueue" else 20_000
            yield Scenario(
                name=f"{where}, {step}",
                run="benchmarks.questions.costs:costs",
                conditions=conditions,
                params={"store": store, "step": step, "jobs": jobs, "full": full},
                quick={"jobs": jobs // 4},
            )


_METRICS = (
    Metric("python", "CPU here, µs/job", 1),
    Metric("other_threads", "of it in other threads", 1),
    Metric("server", "CPU of the server, µs/job", 1),
    Metric("commits", "commits/1,000 jobs", 1),
    Metric("syncs", "syncs/1,000 jobs", 1),
    Metric("log", "bytes written/job"),
    Metric("waits", "waits/1,000 jobs"),
)

QUESTION = Question(
    name="costs",
    heading="Where the microseconds of a job go",
    asks="What does each step of a job cost, here and in the database?",
    lead="python",
    metrics=_METRICS,
    scenarios=tuple(_scenarios(full=False)),
    notes=(
        "CPU here is that of the process with Headgate in it; on SQLite also SQLite's own, in a thread beside. What "
        "the engine costs, with the handler, is the last row of each store without its claims and ends.",
        "Bytes are those of PostgreSQL's log; on SQLite all that the process wrote: log, checkpoints and the rest. "
        "SQLite syncs its log once a commit, and three files a checkpoint.",
        "A wait is a thread that gave up its processor: for a disk, a reply, another thread or a timer.",
    ),
)

KEPT = Question(
    name="kept",
    heading="The same beside a million jobs that have ended",
    asks="What does each step cost in a store that keeps 1,000,000 ended jobs?",
    lead="python",
    metrics=_METRICS,
    scenarios=tuple(_scenarios(full=True)),
    prepare="benchmarks.full_store:prepare_ended",
    prepare_params={"stores": ["sqlite", "postgres"], "jobs": 1_000_000},
    prepare_quick={"jobs": 20_000},
    notes=(
        "A quarter of the ended jobs used a feature that has an index: batches, tags, unique keys, deadlines. One in "
        "ten has failed. Autovacuum is on, as it comes.",
        "`python -m benchmarks kept --against FOLDER` compares two commits: FOLDER is a checkout of the other one.",
    ),
)
