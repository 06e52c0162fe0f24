"""Four worker processes, two hundred tenants and one PostgreSQL, while processes, connections and the server fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from headgate import Headgate
from headgate.clock import SECOND
from headgate.errors import StorageUnavailable
from tests.cluster.load import EVERYONE, MAIL, TENANT, RunLog, Tasks, daily
from tests.cluster.result import (
    Span,
    by_key,
    calm_between,
    excesses,
    excesses_of_a_day,
    lateness,
    mean_wait,
    overlaps,
    read_run_logs,
)
from tests.durability.postgres import Endings, ask, count_endings
from tests.durability.processes import Child, Children, children_of
from tests.internals import store_of
from tests.postgres_server import PostgresServer, server_in
from tests.until import patient, until

SECONDS = float(os.environ.get("HEADGATE_TEST_CLUSTER_SECONDS", "28"))
SEED = os.environ.get("HEADGATE_TEST_CLUSTER_SEED", "four workers")

WORKERS = 4
BUSY = [f"busy-{number}" for number in range(6)]
GREEDY = [f"greedy-{number}" for number in range(4)]
QUIET = [f"quiet-{number}" for number in range(190)]

LEASE = 3.0

# What is not held against the budget: so long after the fault nothing may start, or less.
RECOVERY = {"kill": 2.0, "freeze": 3.5, "cut": 2.5, "restart": 5.0}

CALM = 8.0
"""Seconds without a fault at the end."""

LATE = 0.03
"""Seconds that a start of a tenant who waits for the budget may be late, beyond what any start is late just then."""

# Every session of the workers and of this process itself, at once.
CUT = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'headgate'"

pytestmark = pytest.mark.nightly


class Cluster:
    """The workers, and the faults that befall them."""

    def __init__(self, server: PostgresServer, children: Children, app: Headgate, folder: Path) -> None:
        self.outages: list[Span] = []
        self.gone: list[Child] = []
        self._server = server
        self._children = children
        self._app = app
        self._folder = folder
        self._workers: list[Child] = []
        self._started = 0

    async def start_worker(self) -> None:
        self._started += 1
        child = await self._children.start(
            str(Path(__file__).with_name("worker.py")),
            url=self._server.url,
            run_log=str(self._folder / f"{self._started}.run_log"),
            seconds=SECONDS,
            settings={"heartbeat": 0.5, "lease": LEASE, "concurrency": 20},
        )
        await child.wait_for_line("started")
        self._workers.append(child)

    async def cause(self, fault: str, random: Random) -> None:
        """Cause a fault, and wait until the killed or stopped parts run again."""
        began = boottime()
        worker = random.choice(self._workers)
        match fault:
            case "kill":
                await worker.kill()
                self._workers.remove(worker)
                self.gone.append(worker)
                await self.start_worker()
            case "freeze":
                with worker.frozen():
                    await until(lambda: self._is_dead(worker), LEASE + 5)
                await worker.wait_for_line("disowned")
            case "cut":
                await ask(self._server.url, CUT)
            case "restart":
                await asyncio.to_thread(self._server.stop, random.choice([signal.SIGINT, signal.SIGQUIT]))
                await asyncio.to_thread(self._server.start)
            case _:
                raise AssertionError(fault)
        self.outages.append((began, max(began + round(RECOVERY[fault] * SECOND), boottime())))

    async def _is_dead(self, worker: Child) -> bool:
        """Whether the others have declared it dead."""
        return not any(node.pid == worker.pid and not node.is_gone for node in await store_of(self._app).nodes())

    async def stop(self) -> None:
        for worker in self._workers:
            worker.signal(signal.SIGTERM)
        for worker in self._workers:
            assert await worker.end(30) == 0
        self.gone += self._workers


def faults(random: Random) -> list[tuple[float, str]]:
    """Return the times of the faults: each kind once, then random ones, and none at the end."""
    plan = [(5.5, "kill"), (7.5, "freeze"), (12.5, "cut"), (15, "restart")]
    at = 26.0
    while at < SECONDS - CALM:
        plan.append((at, random.choice(list(RECOVERY))))
        at += random.uniform(7, 12)
    return plan


class Enqueuer:
    """The app of the test process: it enqueues all the time, and keeps the acknowledged ids."""

    def __init__(self, app: Headgate) -> None:
        self.acknowledged: dict[str, int] = {}
        """When, by id."""
        self._tasks = Tasks(app, SECONDS, RunLog(Path(os.devnull)))

    async def fill(self) -> None:
        """Enqueue a backlog for the tenants whose budget is used up."""
        sync, mail, edit = self._tasks.sync, self._tasks.mail, self._tasks.edit
        rounds = round(SECONDS * 8 / 3) + 20
        await self._add(await sync.enqueue_many([(tenant,) for tenant in BUSY for _ in range(rounds)]))
        await self._add(await sync.enqueue_many([(tenant, 10) for tenant in GREEDY for _ in range(rounds // 4)]))
        await self._add(await mail.enqueue_many([(number,) for number in range(round(SECONDS * 20) + 100)]))
        await self._add(await edit.enqueue_many([(number % 3,) for number in range(round(SECONDS * 30))]))

    async def enqueue_forever(self, random: Random) -> None:
        while True:
            with contextlib.suppress(StorageUnavailable):
                calls = [(random.choice(QUIET),) for _ in range(random.randrange(1, 4))]
                await self._add(await self._tasks.sync.enqueue_many(calls))
            await asyncio.sleep(0.2)

    async def _add(self, jobs: object) -> None:
        self.acknowledged |= dict.fromkeys((job.id for job in jobs), boottime())  # type: ignore[attr-defined]


def boottime() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


async def test_four_workers_keep_every_limit_lose_no_job_and_use_the_budget_under_all_faults(tmp_path: Path) -> None:
    random = Random(SEED)
    with server_in(tmp_path, durable=True) as server:
        async with children_of(tmp_path) as children:
            app = Headgate(server.url)
            enqueuer = Enqueuer(app)
            async with app.open():
                await count_endings(server.url)
                await enqueuer.fill()
                cluster = Cluster(server, children, app, tmp_path)
                for _ in range(WORKERS):
                    await cluster.start_worker()
                began = boottime()
                enqueuing = asyncio.ensure_future(enqueuer.enqueue_forever(random))
                for at, fault in faults(random):
                    await asyncio.sleep(at - (boottime() - began) / SECOND)
                    await cluster.cause(fault, random)
                await asyncio.sleep(max(CALM, SECONDS - (boottime() - began) / SECOND))
                ended = boottime()
                enqueuing.cancel()
                await cluster.stop()
                contradictions = await store_of(app).check()
            endings = await Endings.of(server.url)

    lines = read_run_logs(tmp_path)
    starts = [line for line in lines if line.kind == "begin"]
    syncs = [start for start in starts if start.task == "sync"]
    mails = [start for start in starts if start.task == "mail"]

    # No key over its limit, by what the handlers themselves have seen.
    assert excesses(by_key(syncs), TENANT, period=3) == []
    assert excesses({"": syncs}, EVERYONE, period=1) == []
    assert excesses({"": mails}, MAIL, period=1) == []
    assert excesses_of_a_day(syncs, daily(SECONDS).rule.count) == []
    assert overlaps(lines) == []

    # Nothing lost, nothing finished twice, nothing run again without a reason on record.
    assert enqueuer.acknowledged.keys() <= endings.states.keys()
    assert Counter(endings.states.values()).keys() <= {"waiting", "succeeded"}
    assert set(endings.times.values()) <= {1}
    runs = Counter(start.job for start in starts)
    assert {job for job, state in endings.states.items() if state == "succeeded"} <= runs.keys()
    again = {job: count for job, count in runs.items() if count > 1 + endings.lost[job]}
    assert again == {}
    assert contradictions == []
    # The poll for lost notifications finds only what was added just before its notification.
    assert sum(received["swept"] for child in cluster.gone for (received,) in child.lines_with("stopping")) <= WORKERS

    # The budget is used: its starts are hardly later than those that wait for nothing.
    calm = calm_between(cluster.outages, began + 2 * SECOND, ended)
    usual = mean_wait([start for start in syncs if start.key in QUIET], enqueuer.acknowledged, calm)
    assert usual < patient(0.25)
    late = {tenant: lateness([start for start in syncs if start.key == tenant], TENANT, calm) for tenant in BUSY}
    late["mail"] = lateness(mails, MAIL, calm)
    assert statistics.mean(late.values()) <= LATE + 2 * usual, (late, usual)
    assert max(late.values()) <= 3 * LATE + 2 * usual, (late, usual)
