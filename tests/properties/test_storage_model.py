"""Whatever is done to a store, in whatever order, it does what the naive model says."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.clock import SECOND, Clock
from headgate.errors import IllegalTransition
from headgate.jobs.identity import IdSource
from headgate.jobs.job import Draw, JobError, JobState, NewJob
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.limits.limit import AnyRule
from headgate.limits.rate_limit import RateLimit
from headgate.limits.strict_rate import StrictRate
from headgate.storage.memory import MemoryStorage
from headgate.storage.protocol import Claim, JobFilter, Room, Storage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.testing.manual_clock import ManualClock
from tests.properties.storage_model import ModelJob, StorageModel

T = TypeVar("T")

RULES: dict[str, AnyRule] = {
    "strict": StrictRate(2, per=10, margin=0).rule,
    "paced": RateLimit(3, per=9, burst=2).rule,
    "shared": StrictRate(3, per=5, margin=0).rule,
    "tokens": StrictRate(5, per=10, margin=0).rule,
}
MIXED = frozenset({"tokens"})
STRICT, PACED, SHARED, TOKENS = (
    Draw("strict", "acme"),
    Draw("paced", "acme"),
    Draw("shared", ""),
    Draw("tokens", "acme"),
)
LANES: list[tuple[Draw, ...]] = [
    (),
    (STRICT,),
    (Draw("strict", "globex"),),
    (PACED,),
    (STRICT, SHARED),
    (SHARED, PACED),
    (SHARED, Draw("strict", "globex")),
    (TOKENS,),
    (TOKENS, SHARED),
]
QUEUES = ("left", "right")
NODES = ("one", "two")
ERROR = JobError(type="ValueError", message="boom")
OUTCOMES = ("failed", "snoozed", "refused", "interrupted", "unreadable")

queues = st.sets(st.sampled_from(QUEUES), min_size=1)
waits = st.sampled_from([0, 1, SECOND, 3 * SECOND, 10 * SECOND, 60 * SECOND])


@st.composite
def jobs_to_add(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Mostly a handful of the same kind, so that lanes fill up."""
    draws = draw(st.sampled_from(LANES))
    return [
        {
            "draws": draws,
            "queue": draw(st.sampled_from(QUEUES)),
            "task": draw(st.sampled_from(["work", "work", "work", "rare"])),
            "priority": draw(st.sampled_from([0, 0, 0, 1, 9])),
            "delay": draw(st.sampled_from([None, None, None, 0, SECOND, 10 * SECOND])),
            "lifetime": draw(st.sampled_from([None, None, None, 2 * SECOND, 20 * SECOND])),
            "cost": draw(st.sampled_from([1, 2, 4, 5, 6])),
        }
        for _ in range(draw(st.integers(1, 6)))
    ]


class StorageMachine(RuleBasedStateMachine):
    """Does the same to a store and to the model."""

    open_store: Callable[[Clock], AbstractContextManager[Storage]]

    @initialize()
    def start(self) -> None:
        self.clock = ManualClock()
        self.runner = asyncio.Runner()
        self.scope = type(self).open_store(self.clock)
        self.store = self.scope.__enter__()
        self.run(self.store.open())
        self.model = StorageModel(RULES, MIXED)
        self.ids = IdSource()
        self.late: list[tuple[str, Ending]] = []
        for node in NODES:
            self.join(node)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.run(self.store.close())
            self.scope.__exit__(None, None, None)
            self.runner.close()

    def run(self, verb: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(verb)

    def join(self, node: str) -> None:
        self.run(self.store.join(node, node))
        self.model.nodes.add(node)

    def pick(self, data: st.DataObject, *states: JobState) -> ModelJob | None:
        found = [job for job in self.model.jobs.values() if job.state in states]
        return data.draw(st.sampled_from(found)) if found else None

    # ------------------------------------------------------------------------------------------ verbs

    @rule(options=jobs_to_add(), repeat=st.booleans())
    def add(self, options: list[dict[str, Any]], repeat: bool) -> None:
        now = self.clock.now()
        jobs = [
            NewJob(
                id=self.ids.next(now),
                task=option["task"],
                queue=option["queue"],
                payload="{}",
                priority=option["priority"],
                delayed=option["delay"] is not None,
                run_at=now + (option["delay"] or 0),
                enqueued_at=now,
                expires_at=None if option["lifetime"] is None else now + option["lifetime"],
                draws=option["draws"],
                costs=tuple(option["cost"] if draw.limit in MIXED else 1 for draw in option["draws"])
                if any(draw.limit in MIXED for draw in option["draws"])
                else None,
            )
            for option in options
        ]
        for _ in range(1 + repeat):
            self.run(self.store.add(jobs))
            self.model.add(jobs)

    @rule(
        node=st.sampled_from(NODES),
        asked=queues,
        slots=st.integers(0, 8),
        ahead=st.sampled_from([0, 0, 3]),
        gated_first=st.booleans(),
        unknown_limit=st.sampled_from([None, None, None, "paced", "shared"]),
        knows_rare=st.booleans(),
    )
    def claim(
        self,
        node: str,
        asked: set[str],
        slots: int,
        ahead: int,
        gated_first: bool,
        unknown_limit: str | None,
        knows_rare: bool,
    ) -> None:
        if node not in self.model.nodes:
            return
        claim = Claim(
            node,
            {queue: Room(slots, ahead, gated_first) for queue in sorted(asked)},
            {name: known for name, known in RULES.items() if name != unknown_limit},
            frozenset({"work", "rare"} if knows_rare else {"work"}),
        )
        claimed = self.run(self.store.claim(claim))
        self.model.judge(claim, claimed, self.found_impossible(), self.clock.now(), self.store.limit_now())

    def found_impossible(self) -> list[str]:
        failed = self.run(self.store.jobs(JobFilter(state=JobState.FAILED, count=1000)))
        found = []
        for record in failed:
            job = self.model.jobs[record.id]
            if job.state is JobState.WAITING and record.error is not None and "CostExceedsLimit" in record.error.type:
                assert any(job.cost(draw) > 5 for draw in job.new.draws)
                job.error = record.error
                found.append(record.id)
        return found

    @rule(data=st.data(), wait=waits)
    def finish(self, data: st.DataObject, wait: int) -> None:
        running = [job for job in self.model.jobs.values() if job.state is JobState.RUNNING]
        if not running:
            return
        chosen = data.draw(st.lists(st.sampled_from(running), min_size=1, max_size=6, unique_by=id))
        by_node: dict[str, list[Ending]] = {}
        for job in chosen:
            assert job.node is not None
            by_node.setdefault(job.node, []).append(self.draw_ending(data, job, wait))
        for node, endings in by_node.items():
            written = self.run(self.store.finish(node, endings))
            wall, now = self.clock.now(), self.store.limit_now()
            assert list(written) == [self.model.finish(node, ending, wall, now) for ending in endings]
            self.late += [(node, ending) for ending in endings]

    def draw_ending(self, data: st.DataObject, job: ModelJob, wait: int) -> Ending:
        final = data.draw(st.sampled_from([JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, None, None]))
        if final is not None:
            error = ERROR if final is JobState.FAILED else None
            return Finished(job.new.id, job.fence, final, result="1" if error is None else None, error=error)
        outcome = data.draw(st.sampled_from(OUTCOMES))
        return Returned(
            job.new.id,
            job.fence,
            outcome,
            spent=outcome in ("failed", "unreadable"),
            run_at=self.clock.now() + wait if outcome in ("failed", "snoozed", "unreadable") else None,
            error=ERROR if outcome == "failed" else None,
            closed_for=wait if outcome == "refused" else None,
        )

    @precondition(lambda self: self.late)
    @rule(data=st.data(), foreign=st.booleans())
    def finish_late(self, data: st.DataObject, foreign: bool) -> None:
        node, ending = data.draw(st.sampled_from(self.late))
        if foreign:
            node = NODES[1 - NODES.index(node)]
        written = self.run(self.store.finish(node, [ending]))
        assert list(written) == [self.model.finish(node, ending, self.clock.now(), self.store.limit_now())] == [False]

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = self.pick(data, *JobState)
        if job is not None:
            before = self.run(self.store.cancel(job.new.id))
            assert before is self.model.cancel(job.new.id, self.clock.now())

    @rule(data=st.data())
    def cancel_waiting(self, data: st.DataObject) -> None:
        job = self.pick(data, JobState.WAITING)
        if job is not None:
            assert self.run(self.store.cancel(job.new.id)) is JobState.WAITING
            self.model.cancel(job.new.id, self.clock.now())

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job = self.pick(data, *JobState)
        if job is None:
            return
        try:
            before = self.run(self.store.retry(job.new.id))
        except IllegalTransition:
            assert job.state not in (JobState.FAILED, JobState.CANCELLED)
        else:
            assert before is job.state
            assert before in (JobState.FAILED, JobState.CANCELLED)
            self.model.retry(job.new.id, self.clock.now())

    @rule(duration=waits)
    def advance(self, duration: int) -> None:
        self.clock.advance(duration / SECOND)

    @rule(step=st.sampled_from([-3600, -5, 5, 86400]))
    def step_wall(self, step: int) -> None:
        self.clock.step_wall(step)

    @rule(node=st.sampled_from(NODES), dies=st.booleans(), beats=st.booleans())
    def lose_a_node(self, node: str, dies: bool, beats: bool) -> None:
        if node not in self.model.nodes:
            assert not self.run(self.store.beat(node)).known
            self.join(node)
            return
        if not dies:
            self.run(self.store.leave(node))
            self.model.leave(node, self.clock.now())
            return
        (beat,) = (record.beat for record in self.run(self.store.nodes()) if record.id == node)
        if beats:
            assert self.run(self.store.beat(node)).owned == {job.new.id: job.fence for job in self.model.owned(node)}
            assert self.run(self.store.recover(node, beat)) is None
            return
        owned = {job.new.id for job in self.model.owned(node)}
        recovered = self.run(self.store.recover(node, beat))
        assert recovered is not None
        assert sorted(recovered.poisonous) == sorted(self.model.recover(node, self.clock.now()))
        assert set(recovered.returned) == {id for id in owned if self.model.jobs[id].state is JobState.WAITING}

    @rule(count=st.sampled_from([1, 100]))
    def expire(self, count: int) -> None:
        expired = self.run(self.store.expire(count))
        self.model.expire([job.id for job in expired], count, self.clock.now())

    @rule(count=st.sampled_from([1, 1000]))
    def evict(self, count: int) -> None:
        self.run(self.store.evict(count))

    @rule(age=waits, count=st.sampled_from([1, 1000]))
    def prune(self, age: int, count: int) -> None:
        before = self.clock.now() - age
        allowed = sum(1 for job in self.model.jobs.values() if job.finished_at is not None and job.finished_at < before)
        deleted = self.run(self.store.prune(before, count))
        kept = {record.id for record in self.run(self.store.jobs(JobFilter(count=1000)))}
        assert self.model.prune(before, kept) == deleted == min(count, allowed)

    # ------------------------------------------------------------------------------------- invariants

    @invariant()
    def nothing_contradicts(self) -> None:
        if hasattr(self, "store"):
            assert list(self.run(self.store.check())) == []

    @invariant()
    def every_job_is_as_the_model_says(self) -> None:
        if not hasattr(self, "store"):
            return
        records = {record.id: record for record in self.run(self.store.jobs(JobFilter(count=1000)))}
        assert records.keys() == self.model.jobs.keys()
        for id, record in records.items():
            job = self.model.jobs[id]
            assert (record.state, record.fence, record.attempt, record.lost) == (
                job.state,
                job.fence,
                job.attempt,
                job.lost,
            )
            assert (record.run_at, record.delayed, record.expires_at) == (job.run_at, job.delayed, job.expires_at)
            assert (record.finished_at, record.result, record.error) == (job.finished_at, job.result, job.error)
            assert record.started_at == job.started_at
            if job.state is JobState.WAITING:
                assert record.lane_waiting == self.model.lane_waiting(job)
            if job.state is JobState.RUNNING:
                assert (record.node, record.cancel_requested) == (job.node, job.cancel_requested)

    @invariant()
    def the_counts_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        counts = {counts.queue: counts for counts in self.run(self.store.counts())}
        for queue in QUEUES:
            for state in JobState:
                found = getattr(counts[queue], state.value) if queue in counts else 0
                assert found == self.model.count(queue, state)

    @invariant()
    def no_budget_is_exceeded(self) -> None:
        if hasattr(self, "store"):
            self.model.judge_budgets()

    @rule(data=st.data())
    def attempts_are_kept(self, data: st.DataObject) -> None:
        job = self.pick(data, *JobState)
        if job is not None:
            kept = self.run(self.store.attempts(job.new.id))
            assert [(attempt.number, attempt.outcome) for attempt in kept] == job.attempts


@contextmanager
def memory(clock: Clock) -> Iterator[Storage]:
    yield MemoryStorage(clock)


class MemoryMachine(StorageMachine):
    open_store = staticmethod(memory)


TestMemoryStorage = MemoryMachine.TestCase
TestMemoryStorage.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


@contextmanager
def sqlite(clock: Clock) -> Iterator[Storage]:
    with tempfile.TemporaryDirectory(prefix="headgate-model-") as folder:
        yield SqliteStorage(Path(folder) / "jobs.db", clock, synchronous="OFF")


class SqliteMachine(StorageMachine):
    open_store = staticmethod(sqlite)


TestSqliteStorage = SqliteMachine.TestCase
TestSqliteStorage.settings = settings(
    max_examples=int(os.environ.get("HEADGATE_MODEL_EXAMPLES", "40")), stateful_step_count=40, deadline=None
)
