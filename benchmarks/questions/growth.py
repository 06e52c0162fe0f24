"""How long each view takes in a store of ten thousand jobs and in one of a million."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path

from prometheus_client import CollectorRegistry

from benchmarks.grown_store import SIZES, grown_store
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import Latencies
from benchmarks.worker_app import LIMIT, Probed
from headgate.admin import Admin, SlowCounts
from headgate.cli.live.snapshot import read_snapshot
from headgate.clock import SystemClock
from headgate.jobs.job import JobState
from headgate.observe.metrics import PrometheusMetrics

LIMIT_MS = 50

NOBODY = "nobody"

COUNTED_BEFORE = ("overview, again and again", "metrics")
"""Views that show counts of the background."""


class Viewer:
    """An open app, and some jobs of its store to read."""

    def __init__(self, url: str) -> None:
        self.app = Probed(url).app
        self.metrics = PrometheusMetrics(registry=CollectorRegistry(), store=True, top_keys=100, max_age=0)
        self.app.instrument(self.metrics)
        self.counts = SlowCounts(SystemClock())
        self.ids: dict[str, str] = {}

    @property
    def admin(self) -> Admin:
        return self.app.admin

    async def find(self) -> None:
        """Jobs of each kind, from the middle of what was enqueued where that matters."""
        for kind in ("throttled", "ready", "blocked", "scheduled"):
            self.ids[kind] = (await self.admin.jobs(view=kind, count=1))[0].id
        self.ids["failed"] = (await self.admin.jobs(state=JobState.FAILED, count=1))[0].id
        self.ids["batch"] = (await self.admin.batches(count=1))[0].id
        self.ids["batch of followers"] = (await self.admin.batches(count=500))[-1].id

    async def count(self) -> None:
        """Wait for the first counts, which a program that reads repeatedly has from an earlier read."""
        seen = await self.admin.overview(self.counts)
        while seen.counted_at is None or seen.finals_at is None:
            seen = await self.admin.overview(self.counts)
        await self.metrics.refresh()


Look = Callable[[Viewer], Awaitable[object]]


def _jobs(**wanted: object) -> Look:
    """A page of jobs, from the top."""
    return lambda viewer: viewer.admin.page(**wanted)  # type: ignore[arg-type]  # as the names say


def _since(**wanted: object) -> Look:
    """The same, of the last hour."""
    return lambda viewer: viewer.admin.page(finished_after=viewer.admin.now() - timedelta(hours=1), **wanted)  # type: ignore[arg-type]


def _count(**wanted: object) -> Look:
    return lambda viewer: viewer.admin.bounded_count(**wanted)  # type: ignore[arg-type]


async def _limit_pages(viewer: Viewer) -> None:
    """The third page of buckets."""
    place = None
    for _ in range(2):
        place = (await viewer.admin.limits.list(LIMIT, after=place))[-1].place
    await viewer.admin.limits.list(LIMIT, after=place)


FAILED, WAITING, SUCCEEDED = JobState.FAILED, JobState.WAITING, JobState.SUCCEEDED
RUNNING, CANCELLED = JobState.RUNNING, JobState.CANCELLED

VIEWS: Mapping[str, Look] = {
    "overview": lambda viewer: viewer.admin.overview(),
    "overview, again and again": lambda viewer: viewer.admin.overview(viewer.counts),
    "top": lambda viewer: read_snapshot(viewer.admin, None, None),
    "metrics": lambda viewer: viewer.metrics.refresh(),
    "doctor": lambda viewer: viewer.admin.checkup(),
    "counts": lambda viewer: viewer.admin.counts(),
    "views": lambda viewer: viewer.admin.views(),
    "waiting by task": lambda viewer: viewer.admin.waiting(),
    "queues": lambda viewer: viewer.admin.queues.list(),
    "is a queue paused": lambda viewer: viewer.admin.queues.is_paused("rare"),
    "nodes": lambda viewer: viewer.admin.nodes(),
    "blockers": lambda viewer: viewer.admin.blockers(),
    "schedules": lambda viewer: viewer.admin.schedules.list(),
    "overdue schedules": lambda viewer: viewer.admin.schedules.overdue(),
    "batches": lambda viewer: viewer.admin.batches(),
    "pending batches": lambda viewer: viewer.admin.batches(pending_only=True),
    "batch": lambda viewer: viewer.admin.batch(viewer.ids["batch"]),
    "audit": lambda viewer: viewer.admin.audit_log(),
    "audit of limits": lambda viewer: viewer.admin.audit_log(kind="limit"),
    "audit of an actor": lambda viewer: viewer.admin.audit_log(actor=NOBODY),
    "history": lambda viewer: viewer.admin.history.jobs(step=60, span=21_600),
    "history of a task": lambda viewer: viewer.admin.history.jobs(task="gated", step=60, span=21_600),
    "history of a limit": lambda viewer: viewer.admin.history.limit(LIMIT),
    "limits": lambda viewer: viewer.admin.limits.list(),
    "limits, third page": _limit_pages,
    "limits by prefix": lambda viewer: viewer.admin.limits.list(LIMIT, prefix="acme-19"),
    "limits by a prefix of none": lambda viewer: viewer.admin.limits.list(LIMIT, prefix=NOBODY),
    "limit of a key": lambda viewer: viewer.admin.limits.bucket(LIMIT, "acme-1"),
    "audit of a limit's starts": lambda viewer: viewer.admin.limits.audit_newest(LIMIT, key="acme-1"),
    "explain, throttled": lambda viewer: viewer.admin.explain(viewer.ids["throttled"]),
    "explain, ready": lambda viewer: viewer.admin.explain(viewer.ids["ready"]),
    "explain, blocked": lambda viewer: viewer.admin.explain(viewer.ids["blocked"]),
    "job, throttled": lambda viewer: viewer.admin.job(viewer.ids["throttled"]),
    "job, failed": lambda viewer: viewer.admin.job(viewer.ids["failed"]),
    "logs": lambda viewer: viewer.admin.logs(viewer.ids["failed"]),
    "jobs": _jobs(),
    "jobs, oldest": _jobs(oldest_first=True),
    **{f"jobs, {state}": _jobs(state=state) for state in (WAITING, RUNNING, SUCCEEDED, FAILED, CANCELLED)},
    **{f"jobs, {state}, oldest": _jobs(state=state, oldest_first=True) for state in (WAITING, SUCCEEDED, FAILED)},
    **{f"jobs, {view}": _jobs(view=view) for view in ("ready", "throttled", "scheduled", "blocked")},
    "jobs, task": _jobs(task="gated"),
    "jobs, task of none": _jobs(task=NOBODY),
    "jobs, queue": _jobs(queue="default"),
    "jobs, queue of few": _jobs(queue="rare"),
    "jobs, queue of none": _jobs(queue=NOBODY),
    "jobs, waiting in a queue of few": _jobs(queue="rare", state=WAITING),
    "jobs, waiting in a queue of none": _jobs(queue=NOBODY, state=WAITING),
    "jobs, failed in a queue of none": _jobs(queue=NOBODY, state=FAILED),
    "jobs, failed, error of none": _jobs(error=NOBODY, state=FAILED),
    "jobs, failed, in the last hour": _since(state=FAILED),
    "jobs, limit": _jobs(limit=LIMIT),
    "jobs, waiting for a limit": _jobs(limit=LIMIT, state=WAITING),
    "jobs, key": _jobs(limit=LIMIT, key="acme-1"),
    "jobs, waiting under a key": _jobs(limit=LIMIT, key="acme-1", state=WAITING),
    "jobs, key of none": _jobs(limit=LIMIT, key=NOBODY),
    "jobs, waiting under a key of none": _jobs(limit=LIMIT, key=NOBODY, state=WAITING),
    "jobs, limit of none": _jobs(limit=NOBODY),
    "jobs, batch": lambda viewer: viewer.admin.page(batch=viewer.ids["batch"]),
    "jobs, schedule": _jobs(schedule="nightly"),
    "jobs, schedule of none": _jobs(schedule=NOBODY),
    "jobs, unique key": _jobs(unique_key="key-1"),
    "jobs, unique key of none": _jobs(unique_key=NOBODY),
    "jobs, node": _jobs(node="node-0"),
    "jobs, node of none": _jobs(node=NOBODY),
    "jobs, text": _jobs(text="acme-1"),
    "jobs, text of none": _jobs(text=NOBODY),
    "jobs, waiting, text of none": _jobs(text=NOBODY, state=WAITING),
    "count": _count(),
    "count, waiting": _count(state=WAITING),
    "count, succeeded": _count(state=SUCCEEDED),
    "count, failed": _count(state=FAILED),
    "count, throttled": _count(view="throttled"),
    "count, queue of few": _count(queue="rare"),
    "count, queue of none": _count(queue=NOBODY),
    "count, key": _count(limit=LIMIT, key="acme-1"),
    "count, text of none": _count(text=NOBODY),
}


def look(folder: Path, *, store: str, view: str, looks: int, sizes: tuple[str, ...] = SIZES) -> dict[str, float]:
    """Return the p50 of so many reads at each size, and the ratio of the full store to the small one."""
    took = {size: asyncio.run(_look(folder, store, size, view, looks)) for size in sizes}
    return {**took, "ratio": took["full"] / took["small"]} if "small" in took else took


async def _look(folder: Path, store: str, size: str, view: str, looks: int) -> float:
    with grown_store(folder, store, size) as url:
        viewer = Viewer(url)
        async with viewer.app.open():
            await viewer.find()
            if view in COUNTED_BEFORE:
                await viewer.count()
            latencies = Latencies()
            # The first one connects, and reads what the system has not read yet.
            for number in range(looks + 1):
                asked_at = time.monotonic()
                await VIEWS[view](viewer)
                if number:
                    latencies.add(time.monotonic() - asked_at)
            await viewer.counts.close()
    return latencies.metrics()["p50"]


def _question(store: str, label: str) -> Question:
    scenarios = tuple(
        Scenario(
            name=view,
            run="benchmarks.questions.growth:look",
            conditions=f"{label}; p50 of 15 reads",
            params={"store": store, "view": view, "looks": 15},
            quick={"looks": 3},
        )
        for view in VIEWS
    )
    return Question(
        name="growth" if store == "sqlite" else "postgres-growth",
        heading="" if store == "sqlite" else "Growth, PostgreSQL",
        asks="Do the views of people take longer in a store of a million waiting jobs and a million final ones?",
        scenarios=scenarios,
        metrics=(
            Metric("small", "10,000 and 10,000: ms", 1),
            Metric("full", "1,000,000 and 1,000,000: ms", 1),
            Metric("ratio", "ratio", 1),
        ),
        lead="full",
        goals=tuple(
            Goal(scenario=each.name, metric="full", text=f"{each.name}: at most {LIMIT_MS} ms", at_most=LIMIT_MS)
            for each in scenarios
        ),
        notes=(
            "Nine of ten waiting jobs wait behind exhausted budgets, of 200,000 keys and of 2,000 in the small store.",
            "The others are ready, delayed, blocked, in batches or of a schedule. A tenth of the final ones failed.",
            "Pages and counts of jobs are the bounded ones: they read at most 5,000 jobs.",
        ),
        rounds=1,
        prepare="benchmarks.grown_store:prepare",
        prepare_params={
            "store": store,
            "jobs": {"small": 10_000, "full": 1_000_000},
            "keys": {"small": 2_000, "full": 200_000},
        },
        prepare_quick={"jobs": {"small": 1_000, "full": 20_000}, "keys": {"small": 200, "full": 4_000}},
    )


SQLITE = _question("sqlite", "SQLite")
POSTGRES = _question("postgres", "PostgreSQL")
