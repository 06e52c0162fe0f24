"""Jobs under unique keys: at most one of them waits, and the latest arguments run."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headgate import DuplicateJob, Headgate, JobState, current_job
from headgate.errors import StorageUnavailable
from headgate.jobs.job import JobRecord, NewJob
from headgate.jobs.uniqueness import SUPERSEDED
from tests.engine.simulation.job_checker import Change, JobChecker

if TYPE_CHECKING:
    from tests.engine.simulation.cluster_simulation import ClusterSimulation

KEYS = "xyz"


class UniqueKeys:
    """What is enqueued under few keys, and what each job was asked for last."""

    def __init__(self, simulation: ClusterSimulation, job_checker: JobChecker) -> None:
        self._simulation = simulation
        self._job_checker = job_checker
        self._tokens = 0
        self._latest: dict[str, str] = {}
        self._asked: set[tuple[str, int]] = set()
        self._acknowledged: set[tuple[str, int]] = set()
        self._ran: set[tuple[str, int]] = set()

    def declare(self, app: Headgate, node: str) -> None:
        @app.task(name="keyed", limits=["pool"])
        async def keyed(key: str, token: int, length: float, fails: bool) -> None:
            self._ran.add((current_job().id, token))
            await self._simulation.work(node, length, fails)

    async def act(self) -> None:
        random = self._simulation.random
        conflict: Literal["keep", "replace", "raise"] = random.choice(("keep", "replace", "replace", "raise"))
        task = self._simulation.producer.tasks["keyed"].using(unique_key=random.choice(KEYS), on_conflict=conflict)
        if random.random() < 0.3:
            task = task.using(delay=random.uniform(0, 30))
        calls = []
        for _ in range(random.choice((1, 1, 1, 3))):
            self._tokens += 1
            calls.append((random.choice("ab"), self._tokens, random.choice((0.0, 0.5, 5.0)), random.random() < 0.3))
        try:
            jobs = await task.enqueue_many(calls)
        except (StorageUnavailable, DuplicateJob):
            return
        self._simulation.acknowledged |= {job.id for job in jobs}
        if conflict == "replace":
            self._acknowledged |= {(job.id, call[1]) for job, call in zip(jobs, calls, strict=True)}
        if random.random() < 0.2:
            self._simulation.cancelled.add(jobs[-1].id)
            with contextlib.suppress(StorageUnavailable):
                await jobs[-1].cancel()

    # ------------------------------------------------------------------------------------- what must hold

    async def look(self, change: Change) -> None:
        if change.verb == "add":
            self._look_at_add(change)
        if not self._job_checker.is_exact:
            return
        waiting = Counter(
            key_of(job) for job in self._job_checker.open if job.unique_key and job.state is JobState.WAITING
        )
        for key, count in waiting.items():
            self._job_checker.require(count == 1, f"{count} jobs wait under {key}")
        if change.verb == "claim":
            for job in change.result.jobs:
                latest = self._latest.get(job.id, job.payload)
                self._job_checker.require(
                    job.payload == latest, f"job {job.id} started with {job.payload}, not {latest}"
                )

    def _look_at_add(self, change: Change) -> None:
        jobs: Sequence[NewJob] = change.arguments[0]
        existing = [job for job in change.before.values() if job.unique_key and not job.state.is_final]
        waiting = {key_of(job): job.id for job in existing if job.state is JobState.WAITING}
        running: dict[tuple[str, str | None], set[str]] = {}
        for record in existing:
            if record.state is JobState.RUNNING:
                running.setdefault(key_of(record), set()).add(record.id)
        for job in jobs:
            if job.unique_key is None:
                continue
            key = key_of(job)
            other = change.result.get(job.id)
            if self._job_checker.is_exact:
                first = {waiting[key]} if key in waiting else running.get(key, set())
                stored = not first or (job.on_conflict == "replace" and key not in waiting)
                self._job_checker.require(stored == (other is None), f"{job} was stored beside {first}, or not alone")
                self._job_checker.require(other is None or other in first, f"{other} stands for {job}, and not {first}")
                if other is None and first:
                    origin = self._job_checker.jobs[job.id].origin
                    self._job_checker.require(
                        origin is not None and origin.follows in first, f"{job.id} is to follow {first}, not {origin}"
                    )
            if other is None:
                waiting[key] = job.id
            if other is None or job.on_conflict == "replace":
                self._latest[other or job.id] = job.payload
                self._asked.add((other or job.id, token_of(job.payload)))

    async def check(self) -> None:
        assert self._acknowledged <= self._asked, f"promised and not stored: {self._acknowledged - self._asked}"
        for id in self._job_checker.refused:
            assert await self._job_checker.store.job(id) is None, f"job {id} was refused, and is stored"
        for id, payload in self._latest.items():
            job = self._job_checker.jobs[id]
            assert job.payload == payload, f"job {id} was asked for {payload} last, and is of {job.payload}"
            match job.state:
                case JobState.SUCCEEDED:
                    assert (id, token_of(payload)) in self._ran, f"job {id} succeeded, and never ran with {payload}"
                case JobState.CANCELLED if id not in self._simulation.cancelled:
                    assert job.error is not None, f"nobody cancelled job {id}"
                    assert job.error.type == SUPERSEDED, f"nobody cancelled job {id}"
                    instead = self._job_checker.jobs[str((job.error.data or {})["successor"])]
                    assert key_of(instead) == key_of(job), f"job {id} gave way to {instead}"


def key_of(job: JobRecord | NewJob) -> tuple[str, str | None]:
    return job.task, job.unique_key


def token_of(payload: str) -> int:
    arguments: Any = msgspec.json.decode(payload)
    token: int = arguments["token"] if isinstance(arguments, dict) else arguments[1]
    return token
