"""Whatever is enqueued under a few keys and ids, in whatever order, a store does what a simple model of keys says."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from headgate.clock import SECOND, Clock
from headgate.errors import DuplicateJob, IdInUse
from headgate.jobs.job import ClaimedJob, JobOptions, JobState, NewJob, UniqueTerms
from headgate.jobs.lifecycle import Ending, Finished, Returned, Unchanged
from headgate.jobs.query import JobFilter
from headgate.jobs.uniqueness import Key, key_of
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import BOOM, StoreUser
from tests.properties.test_storage_model import memory, postgres, sqlite

# A slow machine is no failure.
T = TypeVar("T")

IDS = [str(uuid.uuid5(uuid.NAMESPACE_URL, str(number))) for number in range(3)]
TIMES = st.sampled_from([None, None, 2, 10, 60])


@dataclass
class KeyedJob:
    """A job under a key, or with an own id."""

    new: NewJob
    state: JobState = JobState.WAITING
    run_at: int = 0
    attempt: int = 0
    leader: str | None = None
    is_cancelled: bool = False
    claimed: ClaimedJob | None = None

    @property
    def is_blocked(self) -> bool:
        return self.leader is not None and self.state is JobState.WAITING


@dataclass
class KeyModel:
    """Jobs by id, and until when the key of which job stays taken."""

    jobs: dict[str, KeyedJob] = field(default_factory=dict)
    kept: dict[Key, tuple[str, int]] = field(default_factory=dict)

    def add(self, jobs: Sequence[NewJob], now: int) -> dict[str, str]:
        """Return the duplicates by their ids. Raises IdInUse and DuplicateJob."""
        others: dict[str, str] = {}
        stored = [(job, self.jobs[job.id].new) for job in jobs if job.id in self.jobs]
        for job, other in stored:
            if other.task != job.task:
                raise IdInUse(job.id, job.task, other.task)
            if other.enqueued_by != job.enqueued_by:
                others[job.id] = job.id
        known = {job.id for job, _ in stored}
        for job in jobs:
            if job.id not in known:
                other_id = self._add(job, now)
                if other_id is not None:
                    others[job.id] = other_id
        return others

    def _add(self, new: NewJob, now: int) -> str | None:
        key = key_of(new)
        leader = None
        if key is not None:
            waiting, running = self.under(key, JobState.WAITING), self.under(key, JobState.RUNNING)
            held_by_running = running if new.unique_terms.while_running else None
            kept_for, until = self.kept.get(key, ("", 0))
            if new.on_conflict in ("keep", "raise"):
                holder = waiting or held_by_running or (kept_for if until > now else None)
                if holder is not None and new.on_conflict == "raise":
                    raise DuplicateJob(holder, *key)
                if holder is not None:
                    return holder
            else:
                if running is not None and new.on_conflict == "cancel_running":
                    self.jobs[running].is_cancelled = True
                if waiting is not None:
                    self._replace(self.jobs[waiting], new)
                    return waiting
                leader = held_by_running
            if new.unique_terms.taken_for is not None:
                self.kept[key] = new.id, new.enqueued_at + new.unique_terms.taken_for
        self.jobs[new.id] = KeyedJob(new, run_at=new.run_at, leader=leader)
        return None

    def under(self, key: Key, state: JobState) -> str | None:
        """A job in that state under a key."""
        return next(iter(self.all_under(key, state)), None)

    def all_under(self, key: Key, state: JobState) -> list[str]:
        return [id for id, job in self.jobs.items() if key_of(job.new) == key and job.state is state]

    def _replace(self, job: KeyedJob, new: NewJob) -> None:
        before = job.new
        latest = None if before.options is None or job.attempt else before.options.latest_start
        if latest is not None and new.options is not None:
            new = replace(new, run_at=min(new.run_at, latest), options=replace(new.options, latest_start=latest))
        if before.delayed or new.delayed:
            job.run_at = new.run_at
        stored = {"id": before.id, "enqueued_at": before.enqueued_at, "enqueued_by": before.enqueued_by}
        job.new, job.attempt = replace(new, **stored), 0

    def end(self, id: str, state: JobState, now: int) -> None:
        self.jobs[id].state = state
        for job in self.jobs.values():
            if job.leader == id and job.is_blocked:
                job.leader = None
                job.new = replace(job.new, delayed=job.new.delayed and job.run_at > now)
                job.run_at = max(job.run_at, now)

    def wait_again(self, id: str, run_at: int, now: int) -> None:
        job = self.jobs[id]
        key = key_of(job.new)
        if not job.is_cancelled and key is not None and self.under(key, JobState.WAITING) is not None:
            self.end(id, JobState.CANCELLED, now)
            return
        job.run_at, job.new = run_at, replace(job.new, delayed=True)
        if job.is_cancelled:
            self.end(id, JobState.CANCELLED, now)
        else:
            job.state = JobState.WAITING


@st.composite
def jobs_to_add(draw: st.DrawFn) -> list[dict[str, Any]]:
    own = draw(st.permutations(IDS))
    return [
        {
            "task": draw(st.sampled_from(["work", "work", "work", "other"])),
            "key": draw(st.sampled_from([None, "acme", "acme", "globex"])),
            "on_conflict": draw(st.sampled_from(["keep", "keep", "replace", "cancel_running", "raise"])),
            "taken_for": draw(TIMES),
            "while_running": draw(st.sampled_from([True, True, False])),
            "own_id": own[place] if draw(st.sampled_from([False, False, True])) else None,
            "debounce": draw(st.sampled_from([None, None, 5])),
            "latest": draw(st.sampled_from([None, 8])),
        }
        for place in range(draw(st.integers(1, 3)))
    ]


class KeyMachine(RuleBasedStateMachine):
    """Does the same to a store and to the model."""

    open_store: Callable[[Clock], AbstractContextManager[Store]]

    takes_all = True
    """Whether each claim finds the newest jobs."""

    @initialize()
    def start(self) -> None:
        self.clock = ManualClock()
        self.runner = asyncio.Runner()
        self.scope = type(self).open_store(self.clock)
        self.store_user = StoreUser(self.scope.__enter__(), self.clock)
        self.store_user.tasks = {"work", "other"}
        self.run(self.store_user.storage.open())
        self.run(self.store_user.storage.join(self.store_user.node, "a"))
        self.model = KeyModel()
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.run(self.store_user.storage.close())
            self.runner.close()
            self.scope.__exit__(None, None, None)

    def run(self, verb: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(verb)

    @rule(options=jobs_to_add(), repeat=st.booleans())
    def add(self, options: list[dict[str, Any]], repeat: bool) -> None:
        jobs = [self.made(option) for option in options]
        for _ in range(1 + repeat):
            after = deepcopy(self.model)
            try:
                others = after.add(jobs, self.clock.now())
            except (DuplicateJob, IdInUse) as expected:
                with pytest.raises(type(expected)):
                    self.run(self.store_user.storage.add(jobs))
            else:
                assert self.run(self.store_user.storage.add(jobs)) == others
                self.model = after

    def made(self, option: dict[str, Any]) -> NewJob:
        self.count += 1
        job = self.store_user.new(
            task=option["task"],
            payload=str(self.count),
            delay=option["debounce"],
            options=None
            if option["debounce"] is None or option["latest"] is None
            else JobOptions(latest_start=self.clock.now() + option["latest"] * SECOND),
        )
        running = [] if option["key"] is None else self.model.all_under((job.task, option["key"]), JobState.RUNNING)
        # Which of several running jobs is met is not promised.
        on_conflict = "replace" if len(running) > 1 else option["on_conflict"]
        terms = UniqueTerms(
            None if option["taken_for"] is None else option["taken_for"] * SECOND,
            on_conflict == "cancel_running" or (option["while_running"] and len(running) < 2),
        )
        return replace(
            job,
            id=option["own_id"] or job.id,
            has_own_id=option["own_id"] is not None,
            enqueued_by=f"web:{self.count}",
            unique_key=option["key"],
            on_conflict=on_conflict,
            unique_terms=terms,
        )

    @rule(slots=st.sampled_from([1, 2, 8]))
    def claim(self, slots: int) -> None:
        ready = {
            id
            for id, job in self.model.jobs.items()
            if job.state is JobState.WAITING
            and not job.is_blocked
            and (not job.new.delayed or job.run_at <= self.clock.now())
        }
        taken = self.run(self.store_user.take(slots))
        assert {job.id for job in taken} <= ready
        assert not self.takes_all or len(taken) == min(slots, len(ready))
        for claimed in taken:
            job = self.model.jobs[claimed.id]
            assert claimed.payload == job.new.payload
            job.attempt += 1
            job.state, job.claimed = JobState.RUNNING, claimed

    @rule(data=st.data(), outcome=st.sampled_from(["succeeded", "succeeded", "failed", "retried"]))
    def finish(self, data: st.DataObject, outcome: str) -> None:
        running = [id for id, job in self.model.jobs.items() if job.state is JobState.RUNNING]
        if not running:
            return
        id = data.draw(st.sampled_from(running))
        claimed = self.model.jobs[id].claimed
        assert claimed is not None
        run_at = self.clock.now() + SECOND
        ending: Ending = Returned(id, claimed.fence, "failed", spent=True, run_at=run_at, error=BOOM)
        if outcome != "retried":
            ending = Finished(id, claimed.fence, JobState(outcome), error=BOOM if outcome == "failed" else None)
        assert self.run(self.store_user.finish(ending)) == [True]
        if outcome == "retried":
            self.model.wait_again(id, run_at, self.clock.now())
        else:
            self.model.end(id, JobState(outcome), self.clock.now())

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        open_jobs = [id for id, job in self.model.jobs.items() if not job.state.is_final]
        if not open_jobs:
            return
        id = data.draw(st.sampled_from(open_jobs))
        job = self.model.jobs[id]
        if job.is_cancelled:
            with pytest.raises(Unchanged):
                self.run(self.store_user.storage.cancel(id))
            return
        assert self.run(self.store_user.storage.cancel(id)) is job.state
        if job.state is JobState.RUNNING:
            job.is_cancelled = True
        else:
            self.model.end(id, JobState.CANCELLED, self.clock.now())

    @rule(seconds=st.sampled_from([0, 1, 5, 30]))
    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def prune(self) -> None:
        """Keys stay taken also when their jobs are deleted."""
        final = [id for id, job in self.model.jobs.items() if job.state.is_final]
        assert self.run(self.store_user.storage.prune(self.clock.now() + 1, 1000)) == len(final)
        for id in final:
            del self.model.jobs[id]
        over = [key for key, (_, until) in self.model.kept.items() if until <= self.clock.now()]
        assert self.run(self.store_user.storage.evict()) == len(over)
        for key in over:
            del self.model.kept[key]

    @invariant()
    def every_job_is_as_the_model_says(self) -> None:
        if not hasattr(self, "store_user"):
            return
        records = {record.id: record for record in self.run(self.store_user.storage.jobs(JobFilter(count=1000)))}
        assert records.keys() == self.model.jobs.keys()
        for id, record in records.items():
            job = self.model.jobs[id]
            assert (record.state, record.payload, record.unique_key) == (job.state, job.new.payload, job.new.unique_key)
            assert (record.run_at, record.attempt, record.is_blocked) == (job.run_at, job.attempt, job.is_blocked)
            if job.state is JobState.RUNNING:
                assert record.cancel_requested is job.is_cancelled
        assert list(self.run(self.store_user.storage.check())) == []


def limits(examples: int) -> settings:
    return settings(
        max_examples=int(os.environ.get("HEADGATE_TEST_MODEL_EXAMPLES", examples)),
        stateful_step_count=30,
    )


class MemoryMachine(KeyMachine):
    open_store = staticmethod(memory)


TestMemoryStorage = MemoryMachine.TestCase
TestMemoryStorage.settings = limits(8)


class SqliteMachine(KeyMachine):
    open_store = staticmethod(sqlite)


# The store in memory is SQLite as well.
TestSqliteStorage = pytest.mark.slow(SqliteMachine.TestCase)
TestSqliteStorage.settings = limits(40)


@pytest.mark.nightly
def test_postgres_agrees_with_the_model(postgres_url: str) -> None:
    class PostgresMachine(KeyMachine):
        open_store = staticmethod(partial(postgres, postgres_url))
        takes_all = False

    run_state_machine_as_test(PostgresMachine, settings=limits(12))
