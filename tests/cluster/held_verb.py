"""Two nodes under load while a user's transaction holds one enlisted verb open; prints how long others waited, as JSON.

Run as `python -m tests.cluster.held_verb URL SCHEMA VERB SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from statistics import median
from typing import Any

import asyncpg

from headgate import (
    Concurrency,
    DuplicateJob,
    Headgate,
    Job,
    JobCancelled,
    JobFailed,
    JobState,
    Mutex,
    RateLimit,
    RetryPolicy,
    StorageUnavailable,
    current_job,
)
from headgate.jobs.job import NewJob
from headgate.storage.postgres import database
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.records import Claim, FreeSlots
from tests.internals import client_of, node_of, store_of, swept_by
from tests.until import becomes, patient, result_within, until

PAUSE = 0.5
"""Seconds between two measurements of a kind."""

LEASE = 4.0

LONG = 30
"""Seconds on a quiet machine; whatever is measured is waited for so long, so that what is too slow is told."""

KINDS = (
    "other keys",
    "a shared limit",
    "no limits",
    "other unique keys",
    "endings",
    "cancellations",
    "recovery",
)
"""What is measured."""

AGES = 600
"""Seconds. A lock is waited for as long as it is held: who waits for it is stuck, however fast the machine is."""


class Site:
    """An app with tasks of each kind, and when its jobs began."""

    def __init__(self, name: str, url: str, schema: str, began: dict[str, float]) -> None:
        self.name = name
        self.app = app = Headgate(url, schema=schema, connections=5, heartbeat=0.5, lease=LEASE, grace=1)
        once = RetryPolicy(retries=0)
        app.limit("shared", RateLimit("10000/s", burst=10_000, cost="{weight}"))

        def begin() -> None:
            began[current_job().id] = time.monotonic()

        @app.task(limits=[RateLimit("10000/s", key="{key}", burst=10_000)])
        async def limited(key: str) -> None:
            begin()

        @app.task(limits=["shared"])
        async def weighed(weight: int) -> None:
            begin()

        @app.task
        async def plain() -> None:
            begin()

        @app.task(retry=once)
        async def failing() -> None:
            begin()
            raise ValueError("as it should")

        @app.task(limits=[Mutex("m:{key}")])
        async def exclusive(key: str) -> None:
            begin()

        @app.task(limits=[Concurrency(1, key="{key}", hold="until_final")], retry=RetryPolicy(retries=5, delay=3600))
        async def sticky(key: str, fails: bool = True) -> None:
            begin()
            if fails:
                raise ValueError("later")

        @app.task(retry=once)
        async def endless() -> None:
            begin()
            await asyncio.Event().wait()

        @app.task(retry=once)
        async def brief(seconds: float, fails: bool = False) -> None:
            begin()
            await asyncio.sleep(seconds)
            if fails:
                raise ValueError("as it should")

        self.limited, self.weighed, self.plain, self.failing = limited, weighed, plain, failing
        self.exclusive, self.sticky, self.endless, self.brief = exclusive, sticky, endless, brief


class Scene:
    """Two nodes, a user with a transaction open, and what was measured."""

    def __init__(self, left: Site, right: Site, user: asyncpg.Connection, began: dict[str, float]) -> None:
        self.left = left
        self.right = right
        self.user = user
        self.began = began
        self.seconds: dict[str, list[float]] = defaultdict(list)
        # Since when what is being measured is waited for.
        self.waiting: dict[float, str] = {}
        # The loops of the load, and when the last round that each has completed began.
        self.loops: list[asyncio.Task[None]] = []
        self.rounds: dict[asyncio.Task[Any] | None, float] = {}

    def behind(self, since: float) -> list[str]:
        """The loops that have not completed a round that began since then."""
        return [loop.get_name() for loop in self.loops if self.rounds.get(loop, 0) < since]

    def note(self, kind: str, asked_at: float) -> None:
        self.seconds[kind].append(max(0.0, time.monotonic() - asked_at))

    async def starts(self, job: Job[Any]) -> float:
        await until(lambda: job.id in self.began, LONG)
        return self.began[job.id]

    async def runs(self, job: Job[Any]) -> Job[Any]:
        await self.starts(job)
        return job

    def lonely(self, task: str, unique_key: str | None = None) -> NewJob:
        """A job of a task that the two nodes do not know."""
        now = store_of(self.left.app).now()
        return NewJob(
            id=client_of(self.left.app).new_id(),
            task=task,
            queue="default",
            payload="{}",
            priority=0,
            delayed=False,
            run_at=now,
            enqueued_at=now,
            unique_key=unique_key,
            on_conflict="replace",
        )

    async def dead_node(self, task: str, unique_key: str | None = None) -> str:
        """Start a job of this task on a node that sends no more heartbeats; return its id."""
        storage = store_of(self.right.app)
        job = self.lonely(task, unique_key)
        await storage.add([job])
        node = f"dead-{job.id}"
        await storage.join(node, "dead")
        claimed = await storage.claim(Claim(node, {"default": FreeSlots(1)}, {}, frozenset({task})))
        assert [each.id for each in claimed.jobs] == [job.id]
        return job.id


Hold = Callable[[Scene], Awaitable[None]]
VERBS: dict[str, Callable[[Scene], Awaitable[Hold]]] = {}


def verb(words: str) -> Callable[[Callable[[Scene], Awaitable[Hold]]], Callable[[Scene], Awaitable[Hold]]]:
    """What is done before the transaction begins; what that returns is done in it."""

    def keep(prepare: Callable[[Scene], Awaitable[Hold]]) -> Callable[[Scene], Awaitable[Hold]]:
        VERBS[words] = prepare
        return prepare

    return keep


@verb("nothing")
async def _nothing(scene: Scene) -> Hold:
    async def hold(scene: Scene) -> None:
        return

    return hold


@verb("enqueue")
async def _enqueue(scene: Scene) -> Hold:
    async def hold(scene: Scene) -> None:
        for key in ("other", "never seen"):
            await scene.left.limited.using(connection=scene.user).enqueue(key)
        await scene.left.plain.using(connection=scene.user).enqueue()

    return hold


@verb("enqueue_many")
async def _enqueue_many(scene: Scene) -> Hold:
    async def hold(scene: Scene) -> None:
        await scene.left.limited.using(connection=scene.user).enqueue_many([(f"key-{n % 7}",) for n in range(500)])
        await scene.left.exclusive.using(connection=scene.user).enqueue_many([("other",)] * 20)

    return hold


@verb("keep, of one that waits, one that runs and none")
async def _keep(scene: Scene) -> Hold:
    await scene.left.limited.using(unique_key="waits", delay=3).enqueue("held")
    await scene.runs(await scene.left.brief.using(unique_key="runs").enqueue(5))

    async def hold(scene: Scene) -> None:
        await scene.left.limited.using(unique_key="waits", connection=scene.user).enqueue("held")
        await scene.left.limited.using(unique_key="none", connection=scene.user).enqueue("held")
        await scene.left.brief.using(unique_key="runs", connection=scene.user).enqueue(0)

    return hold


@verb("raise, which it did")
async def _raise(scene: Scene) -> Hold:
    await scene.left.limited.using(unique_key="waits", delay=3).enqueue("held")

    async def hold(scene: Scene) -> None:
        enlisted = scene.left.limited.using(unique_key="waits", on_conflict="raise", connection=scene.user)
        with contextlib.suppress(DuplicateJob):
            await enlisted.enqueue("held")

    return hold


@verb("replace, of jobs that come due meanwhile")
async def _replace(scene: Scene) -> Hold:
    for number in range(20):
        await scene.left.limited.using(unique_key=str(number), delay=2).enqueue(f"held-{number}")
    await scene.left.plain.using(unique_key="plain", delay=2).enqueue()

    async def hold(scene: Scene) -> None:
        for number in range(20):
            enlisted = scene.left.limited.using(unique_key=str(number), on_conflict="replace", connection=scene.user)
            await enlisted.enqueue(f"held-{number}")
        await scene.left.plain.using(unique_key="plain", on_conflict="replace", connection=scene.user).enqueue()

    return hold


@verb("replace, of a costly job due tomorrow")
async def _replace_costly(scene: Scene) -> Hold:
    await scene.left.weighed.using(unique_key="costly", delay=86_400).enqueue(7)

    async def hold(scene: Scene) -> None:
        enlisted = scene.left.weighed.using(unique_key="costly", on_conflict="replace", connection=scene.user)
        await enlisted.using(delay=86_400).enqueue(3)

    return hold


@verb("replace, of a job that holds a permit")
async def _replace_holder(scene: Scene) -> Hold:
    job = await scene.runs(await scene.left.sticky.using(unique_key="holds").enqueue("held"))

    async def state() -> str:
        return (await job.status()).state

    await becomes(state, "waiting")

    async def hold(scene: Scene) -> None:
        enlisted = scene.left.sticky.using(unique_key="holds", on_conflict="replace", connection=scene.user)
        await enlisted.enqueue("elsewhere", fails=False)

    return hold


@verb("replace, of a job that runs, and ends")
async def _follow(scene: Scene) -> Hold:
    await scene.runs(await scene.left.brief.using(unique_key="runs").enqueue(2))

    async def hold(scene: Scene) -> None:
        enlisted = scene.left.brief.using(unique_key="runs", on_conflict="replace", connection=scene.user)
        await enlisted.enqueue(0)

    return hold


@verb("replace, of the successor of a job that runs, and ends")
async def _replace_successor(scene: Scene) -> Hold:
    await scene.runs(await scene.left.brief.using(unique_key="runs").enqueue(3, fails=True))
    await scene.left.brief.using(unique_key="runs", on_conflict="replace").enqueue(0)

    async def hold(scene: Scene) -> None:
        enlisted = scene.left.brief.using(unique_key="runs", on_conflict="replace", connection=scene.user)
        await enlisted.enqueue(0.1)

    return hold


@verb("replace, of a job whose node dies")
async def _follow_dead(scene: Scene) -> Hold:
    await scene.dead_node("held", "runs")

    async def hold(scene: Scene) -> None:
        storage = store_of(scene.left.app)
        assert isinstance(storage, PostgresStorage)
        await storage.add_in(scene.user, [scene.lonely("held", "runs")])

    return hold


# ------------------------------------------------------------------------------------------------------------- measures


@contextlib.contextmanager
def _measured(scene: Scene, kind: str, less: float = 0) -> Iterator[None]:
    """How long the block takes, without so much that it has to; also if it has not ended when the time is over."""
    asked_at = time.monotonic() + less
    scene.waiting[asked_at] = kind
    try:
        yield
    finally:
        del scene.waiting[asked_at]
        scene.note(kind, asked_at)


@contextlib.contextmanager
def _round(scene: Scene) -> Iterator[None]:
    """A round of a loop; one that the storage refuses is not complete."""
    began = time.monotonic()
    with contextlib.suppress(StorageUnavailable):
        yield
        scene.rounds[asyncio.current_task()] = began


async def _starting(scene: Scene, kind: str, enqueue: Callable[[int], Awaitable[Job[Any]]]) -> None:
    """From the enqueue to the start."""
    for number in range(1_000_000):
        with _round(scene), _measured(scene, kind):
            await scene.starts(await enqueue(number))
        await asyncio.sleep(PAUSE)


async def _ending(scene: Scene, enqueue: Callable[[], Awaitable[Job[Any]]]) -> None:
    """From the enqueue of a job to its recorded end."""
    while True:
        with _round(scene), contextlib.suppress(JobFailed), _measured(scene, "endings"):
            await result_within(await enqueue(), LONG)
        await asyncio.sleep(PAUSE)


async def _cancelling(scene: Scene, site: Site) -> None:
    """From the word of a user to the recorded end of a job that runs, and of one that waits."""
    while True:
        with _round(scene):
            for enqueue in (site.endless.enqueue, site.plain.using(delay=600).enqueue):
                with contextlib.suppress(JobCancelled):
                    job: Job[Any] = await enqueue()
                    if enqueue == site.endless.enqueue:
                        await scene.runs(job)
                    with _measured(scene, "cancellations"):
                        await job.cancel()
                        await result_within(job, LONG)
        await asyncio.sleep(PAUSE)


async def _recovering(scene: Scene, site: Site) -> None:
    """From the end of the lease of a node to when its job waits again."""
    while True:
        with _round(scene):
            id = await scene.dead_node("lonely")

            async def waits(id: str = id) -> bool:
                record = await store_of(site.app).job(id)
                return record is not None and record.state is JobState.WAITING

            with _measured(scene, "recovery", less=LEASE):
                await until(waits, LONG)
            await store_of(site.app).cancel(id)


@contextlib.asynccontextmanager
async def _load(scene: Scene) -> AsyncIterator[None]:
    loops = [_cancelling(scene, scene.right), _recovering(scene, scene.left)]
    for site in (scene.left, scene.right):
        loops += [
            _starting(scene, "other keys", lambda number, site=site: site.limited.enqueue(f"other-{number % 3}")),  # type: ignore[misc]
            _starting(scene, "other keys", lambda number, site=site: site.limited.enqueue(f"new-{number}")),  # type: ignore[misc]
            _starting(scene, "a shared limit", lambda number, site=site: site.weighed.enqueue(1)),  # type: ignore[misc]
            _starting(scene, "no limits", lambda number, site=site: site.plain.enqueue()),  # type: ignore[misc]
            _starting(
                scene,
                "other unique keys",
                lambda number, site=site: site.limited.using(unique_key=f"{site.name}-{number}").enqueue("unique"),  # type: ignore[misc]
            ),
            _ending(scene, site.failing.enqueue),
            _ending(scene, lambda site=site: site.exclusive.enqueue("other")),  # type: ignore[misc]
        ]
    async with asyncio.TaskGroup() as group:
        scene.loops = [group.create_task(loop, name=f"{number} {loop!r}") for number, loop in enumerate(loops)]
        yield
        for loop in scene.loops:
            loop.cancel()


async def _stuck(scene: Scene) -> list[str]:
    """The loops that complete no round from now on."""
    since = time.monotonic()
    with contextlib.suppress(AssertionError):
        await until(lambda: not scene.behind(since), LONG / 2)
    return scene.behind(since)


async def main(url: str, schema: str, words: str, seconds: float) -> dict[str, Any]:
    """Hold the verb open for so long and until nobody is stuck, under load; who was, and the worst waits of others."""
    for setting in ("lock_timeout", "statement_timeout"):
        database.SETTINGS[setting] = f"{AGES}s"
    database.HELD_FOR = f"{AGES}s"
    database.COMMAND_TIMEOUT = float(AGES)
    began: dict[str, float] = {}
    left, right = (Site(name, url, schema, began) for name in ("left", "right"))
    user = await asyncpg.connect(url)
    scene = Scene(left, right, user, began)
    async with left.app, right.app, asyncio.timeout(seconds + patient(4 * LONG)):  # real time
        hold = await VERBS[words](scene)
        async with _load(scene):
            await until(lambda: not scene.behind(1), LONG)
            scene.seconds.clear()
            transaction = user.transaction()
            await transaction.start()
            await hold(scene)
            await asyncio.sleep(seconds)
            stuck = await _stuck(scene)
            for asked_at, kind in scene.waiting.items():
                scene.note(kind, asked_at)
            measured = {
                "median": {kind: median(seconds) for kind, seconds in scene.seconds.items()},
                "worst": {kind: max(seconds) for kind, seconds in scene.seconds.items()},
            }
            await transaction.commit()
            await asyncio.sleep(1)
        swept = [swept_by(node) for app in (left.app, right.app) if (node := node_of(app)) is not None]
        # What is in the middle of being written is there a moment later.
        contradictions: list[str] = []

        async def is_consistent() -> bool:
            contradictions[:] = [each.seen for each in await store_of(left.app).check()]
            return not contradictions

        with contextlib.suppress(AssertionError):
            await until(is_consistent, 20)
    await user.close()
    return {**measured, "stuck": stuck, "swept": sum(swept), "contradictions": contradictions}


if __name__ == "__main__":
    # Jobs fail on purpose, and are not logged.
    logging.disable(logging.CRITICAL)
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))))
