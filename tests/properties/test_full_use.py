"""No job waits that could start: while nothing happens, each waiting job has no slot or a closed limit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Concurrency, Headgate, RateLimit, StrictRate
from headgate.clock import SECOND
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, node_of, swept_by
from tests.seeds import examples

QUEUES = ("plain", "turns", "tenants")
"""Without turns, with those of tenants, and with those of tenants and their users."""

FAIR: dict[str, Any] = {"turns": "{tenant}", "tenants": ["{tenant}", "{user}"]}

KEYS = {"own": "tenant", "partner": None, "order": "user", "pool": None}
"""The argument by which each limit counts, if it does not count all jobs together."""


def limit_of(name: str, store: MemoryBuckets | None) -> Any:
    """A limit, kept in this store, or beside the jobs."""
    key = None if KEYS[name] is None else f"{{{KEYS[name]}}}"
    match name:
        case "own":
            return StrictRate(3, per=2, margin=0, key=key, store=store)
        case "partner":
            return RateLimit("4/s", burst=2, key=key, store=store)
        case "order":
            return Concurrency(1, key=key)
        case _:
            return Concurrency(2, key=key)


RATES = frozenset({"own", "partner"})


class TaskShape(NamedTuple):
    queue: str
    limits: tuple[str, ...]
    is_new: bool
    """Whether only the nodes of the newer release have it."""


class JobShape(NamedTuple):
    """Times are in tenths of a second."""

    task: int
    tenant: int
    user: int
    comes: int
    delay: int
    lasts: int
    priority: int


class NodeShape(NamedTuple):
    capacity: dict[str, int]
    slots: int | None
    is_new: bool


class Run(NamedTuple):
    """What happened to a job: from when it could start, when it did and where, and when it ended."""

    shape: JobShape
    ready_at: int
    started_at: int
    ended_at: int
    node: int


LIMIT_NAMES = st.lists(st.sampled_from(sorted(KEYS)), max_size=3, unique=True).map(tuple)
TASKS = st.lists(st.builds(TaskShape, st.sampled_from(QUEUES), LIMIT_NAMES, st.booleans()), min_size=1, max_size=5)
JOBS = st.lists(
    st.builds(
        JobShape,
        st.integers(0, 4),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from([0, 0, 0, 1, 5, 20]),
        st.sampled_from([0, 0, 0, 3, 20]),
        st.sampled_from([0, 0, 1, 7]),
        st.sampled_from([0, 0, 5]),
    ),
    min_size=1,
    max_size=60,
)
NODE = st.builds(
    NodeShape,
    st.fixed_dictionaries(dict.fromkeys(QUEUES, st.integers(1, 5))),
    st.one_of(st.none(), st.integers(1, 5)),
    st.booleans(),
)


def played(tasks: list[TaskShape], jobs: list[JobShape], nodes: list[NodeShape], remote: frozenset[str]) -> list[Run]:
    """Run these jobs; return what happened to each, in microseconds since the beginning."""
    runs: list[Run] = []

    async def main(clock: VirtualClock) -> None:
        storage, buckets = MemoryStorage(clock), MemoryBuckets(clock)
        begun = clock.monotonic()

        def app_of(number: int, node: NodeShape) -> Headgate:
            app = app_on(storage, clock=clock, slots=node.slots)
            for queue, concurrency in node.capacity.items():
                app.queue(queue, concurrency=concurrency, fair_by=FAIR.get(queue))
            for name in KEYS:
                app.limit(name, limit_of(name, buckets if name in remote else None))
            for place, shape in enumerate(tasks):
                if node.is_new or not shape.is_new:
                    app.task(name=f"task-{place}", queue=shape.queue, limits=list(shape.limits))(handler_of(number))
            return app

        def handler_of(number: int) -> Any:
            async def handle(tenant: int, user: int, index: int) -> None:
                started_at = clock.monotonic() - begun
                job = jobs[index]
                if job.lasts:
                    await asyncio.sleep(job.lasts / 10)
                ready_at = (job.comes + job.delay) * SECOND // 10
                runs.append(Run(job, ready_at, started_at, clock.monotonic() - begun, number))

            return handle

        apps = [app_of(number, node) for number, node in enumerate(nodes)]
        async with AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app)
            begun = clock.monotonic()
            for index, job in sorted(enumerate(jobs), key=lambda each: each[1].comes):
                await asyncio.sleep(job.comes / 10 - (clock.monotonic() - begun) / SECOND)
                task = apps[0].tasks[f"task-{job.task % len(tasks)}"]
                task = task.using(priority=job.priority)
                if job.delay:
                    task = task.using(delay=job.delay / 10)
                await task.enqueue(job.tenant, job.user, index)
            for _ in range(600):
                if len(runs) == len(jobs):
                    break
                await asyncio.sleep(0.5)
            assert len(runs) == len(jobs), f"{len(jobs) - len(runs)} jobs did not run within five minutes"
            for app in apps:
                assert swept_by(node_of(app)) == 0, "a wake-up was lost"

    run_virtual(main)
    return runs


def idle(tasks: Sequence[TaskShape], nodes: Sequence[NodeShape], runs: Sequence[Run], least: int) -> list[str]:
    """Return what could have started while nothing started or ended for at least so many microseconds."""
    found: list[str] = []
    events = sorted({0, *(run.started_at for run in runs), *(run.ended_at for run in runs)})
    for begin, end in pairwise(events):
        if end - begin <= least:
            continue
        for run in runs:
            if run.started_at >= end and run.ready_at < end - least:
                opens_at = startable_at(tasks, nodes, runs, run, begin)
                if opens_at is not None and opens_at < end - least:
                    found.append(f"{run} could have started at {opens_at}, and nothing happened before {end}")
    return found


def startable_at(
    tasks: Sequence[TaskShape], nodes: Sequence[NodeShape], runs: Sequence[Run], run: Run, now: int
) -> int | None:
    """Return when a job can start if nothing happens after `now`; None if never."""
    task = tasks[run.shape.task % len(tasks)]
    active = [other for other in runs if other.started_at <= now < other.ended_at]

    def has_slot(number: int, node: NodeShape) -> bool:
        own = [tasks[other.shape.task % len(tasks)].queue for other in active if other.node == number]
        has_shared = node.slots is None or len(own) < node.slots
        return (node.is_new or not task.is_new) and has_shared and own.count(task.queue) < node.capacity[task.queue]

    if not any(has_slot(number, node) for number, node in enumerate(nodes)):
        return None
    opens_at = max(now, run.ready_at)
    for name in task.limits:
        key = KEYS[name]
        same = [
            other
            for other in runs
            if name in tasks[other.shape.task % len(tasks)].limits
            and (key is None or getattr(other.shape, key) == getattr(run.shape, key))
        ]
        rule = limit_of(name, None).rule
        if name not in RATES:
            if sum(other in active for other in same) >= rule.count:
                return None
            continue
        state = None
        for at in sorted(other.started_at for other in same if other.started_at <= now):
            state = rule.take(state, at)[1]
        opens_at = max(opens_at, rule.take(state, opens_at)[0])
    return opens_at


@settings(max_examples=examples(10, 100))
@given(tasks=TASKS, jobs=JOBS, first=NODE, others=st.lists(NODE, max_size=2))
def test_no_job_waits_that_could_start(
    tasks: list[TaskShape], jobs: list[JobShape], first: NodeShape, others: list[NodeShape]
) -> None:
    nodes = [first._replace(is_new=True), *others]
    runs = played(tasks, jobs, nodes, frozenset())
    assert idle(tasks, nodes, runs, SECOND // 10) == []


def test_a_queue_that_awaits_starts_keeps_no_shared_slot_from_others() -> None:
    """The fault: a claim gave it the only slot, started nothing and set no time for the next one: a hang."""
    tasks = [
        TaskShape("plain", ("order", "own"), False),
        TaskShape("plain", ("order",), False),
        TaskShape("turns", ("order", "own"), False),
    ]
    shapes = [(0, 0, 0, 0), (2, 0, 3, 7), (1, 0, 0, 0), (2, 0, 0, 7), (1, 2, 0, 0)]
    jobs = [JobShape(task, tenant, 0, 0, delay, lasts, 0) for task, tenant, delay, lasts in shapes]
    nodes = [NodeShape({"plain": 1, "tenants": 1, "turns": 1}, 1, True)]
    assert idle(tasks, nodes, played(tasks, jobs, nodes, frozenset({"own"})), SECOND) == []


@settings(max_examples=examples(5, 50))
@given(
    tasks=TASKS,
    jobs=JOBS,
    first=NODE,
    others=st.lists(NODE, max_size=2),
    remote=st.sets(st.sampled_from(sorted(RATES))),
)
def test_no_job_waits_that_could_start_whose_limits_are_in_another_store(
    tasks: list[TaskShape], jobs: list[JobShape], first: NodeShape, others: list[NodeShape], remote: set[str]
) -> None:
    nodes = [first._replace(is_new=True), *others]
    runs = played(tasks, jobs, nodes, frozenset(remote))
    assert idle(tasks, nodes, runs, SECOND) == []
