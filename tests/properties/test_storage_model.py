"""Whatever is done to a store, in whatever order, it does what the naive model says."""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import asyncpg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from headgate.clock import SECOND, Clock
from headgate.errors import DuplicateJob, IllegalTransition, LimitInUse
from headgate.jobs.batch import NewBatch
from headgate.jobs.bucket_mask import BucketMask
from headgate.jobs.identity import IdSource
from headgate.jobs.job import BucketRef, JobError, JobState, NewJob, Origin
from headgate.jobs.lifecycle import Charge, Correction, Ending, Finished, Returned, Unchanged
from headgate.jobs.query import JobFilter
from headgate.jobs.terms import LimitTerms, PermitTerms
from headgate.limits.concurrency import Concurrency, load_permits
from headgate.limits.fair import PREFIX, FairOrder
from headgate.limits.key import BETWEEN_LEVELS
from headgate.limits.kinds import dump_rule
from headgate.limits.limit import HoldUntil
from headgate.limits.rate_limit import RateLimit
from headgate.limits.strict_rate import StrictRate
from headgate.storage.live_rules import LimitSetting, Scope
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.records import Amendment, Claim, Claimed, FreeSlots
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.limit_settings import change
from tests.properties.storage_model import ModelJob, StorageModel
from tests.seeds import examples

# Each test runs thousands of steps, which may take long on a busy machine.
pytestmark = pytest.mark.timeout(1800)

T = TypeVar("T")

RULES: dict[str, Any] = {
    "strict": StrictRate(2, per=10, margin=0).rule,
    "paced": RateLimit(3, per=9, burst=2).rule,
    "shared": StrictRate(3, per=5, margin=0).rule,
    "tokens": StrictRate(5, per=10, margin=0).rule,
    "mutex": Concurrency(1).rule,
    "slots": Concurrency(3).rule,
}
FAIR = PREFIX + "left"
KNOWN: dict[str, Any] = {**RULES, FAIR: FairOrder("{0}", {"acme": 3}).rule}
"""With the order of the fair queue, which is no limit that anybody steers."""
FAIR_KEYS = (None, "acme", "globex", f"acme{BETWEEN_LEVELS}one", f"acme{BETWEEN_LEVELS}two", f"initech{BETWEEN_LEVELS}")
"""None, as of a release in which the queue was not fair: of one level, and of two."""
MIXED = frozenset({"tokens", "slots"})
PERMITS = frozenset({"mutex", "slots"})
STRICT, PACED, SHARED, TOKENS, MUTEX, SLOTS = (
    BucketRef("strict", "acme"),
    BucketRef("paced", "acme"),
    BucketRef("shared", ""),
    BucketRef("tokens", "acme"),
    BucketRef("mutex", "orders"),
    BucketRef("slots", ""),
)
LANES: list[tuple[BucketRef, ...]] = [
    (),
    (STRICT,),
    (BucketRef("strict", "globex"),),
    (PACED,),
    (STRICT, SHARED),
    (SHARED, PACED),
    (SHARED, BucketRef("strict", "globex")),
    (TOKENS,),
    (TOKENS, SHARED),
    (MUTEX,),
    (MUTEX,),
    (MUTEX, STRICT),
    (SHARED, MUTEX),
    (SLOTS,),
    (SLOTS, PACED),
    (TOKENS, SLOTS),
    (MUTEX, SLOTS),
]
BUCKETS = sorted({ref for lane in LANES for ref in lane}, key=str)
LIVE_RULES: dict[str, list[Any]] = {
    "strict": [StrictRate(count, per=10, margin=0).rule for count in (1, 2, 4)],
    "mutex": [Concurrency(count).rule for count in (1, 2)],
    "slots": [Concurrency(count).rule for count in (2, 3, 5)],
}
TARGETS: list[tuple[Scope, str]] = [
    ("all", ""),
    ("key", "acme"),
    ("key", "orders"),
    ("pattern", "*o*"),
    ("pattern", "ac*"),
]
QUEUES = ("left", "right")
AGING = {"left": None, "right": 7 * SECOND + 3}
"""Not a multiple of the waits, so that no two jobs of different priorities are level."""
NODES = ("one", "two")
ERROR = JobError(type="ValueError", message="boom")
OUTCOMES = ("failed", "snoozed", "refused", "interrupted", "unreadable")

HOLDS: list[HoldUntil] = ["running", "running", "until_final", "until_success"]

RARE = [
    "a_job_stands_where_it_should",
    "amend",
    "amend",
    "attempts_are_kept",
    "cancel",
    "cancel_waiting",
    "evict",
    "expire",
    "finish_late",
    "forget",
    "lose_a_node",
    "pause_a_queue",
    "penalize",
    "prune",
    "reschedule",
    "reschedule",
    "reset",
    "resume_a_queue",
    "resume_a_queue",
    "retry",
    "set_limit",
    "set_limit",
    "starts_are_recorded",
    "step_wall",
    "unset_limit",
]

queues = st.sets(st.sampled_from(QUEUES), min_size=1)
FREE_SLOTS = st.builds(
    FreeSlots, st.integers(0, 8), st.booleans(), held=st.integers(0, 3), weight=st.sampled_from([1, 1, 4])
)
waits = st.sampled_from([0, 1, SECOND, 3 * SECOND, 10 * SECOND, 60 * SECOND])


@st.composite
def jobs_to_add(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Mostly a handful of the same kind, so that lanes fill up."""
    buckets = draw(st.sampled_from(LANES))
    hold: HoldUntil = draw(st.sampled_from(HOLDS))
    owner = draw(st.sampled_from([None, None, "one", "two"]))
    rates = sum(1 << index for index, used in enumerate(buckets) if used.limit not in PERMITS)
    holds = tuple(
        # What an owner's permit costs is what its first job says, so only where all cost the same.
        PermitTerms(hold, owner if used.limit == "mutex" else None) if used.limit in PERMITS else None
        for used in buckets
    )
    terms = LimitTerms(
        holds=holds if any(holds) else (),
        free_retries=BucketMask(rates if draw(st.sampled_from([False, False, True])) else 0),
        patience=draw(st.sampled_from([None, None, None, 0, 5 * SECOND, 30 * SECOND])) if buckets else None,
        cancels=draw(st.booleans()),
        skips=draw(st.sampled_from([False, False, True])),
    )
    options: list[dict[str, Any]] = [
        {
            "buckets": buckets,
            "queue": draw(st.sampled_from(QUEUES)),
            "task": draw(st.sampled_from(["work", "work", "work", "rare"])),
            "priority": draw(st.sampled_from([0, 0, 0, 1, 9])),
            "delay": draw(st.sampled_from([None, None, None, 0, SECOND, 10 * SECOND])),
            "lifetime": draw(st.sampled_from([None, None, None, 2 * SECOND, 20 * SECOND])),
            "fair_key": draw(st.sampled_from(FAIR_KEYS)),
            "cost": draw(st.sampled_from([1, 2, 4, 5, 6])),
            "places": draw(st.sampled_from([1, 1, 2, 3, 4])),
            "terms": terms,
            "unique_key": draw(st.sampled_from([None] * 5 + ["acme", "globex"])),
            "on_conflict": draw(st.sampled_from(["keep", "replace", "replace", "raise"])),
            "is_rejected": draw(st.sampled_from([False] * 9 + [True])),
            "follows": draw(st.sampled_from([None, None, None, "one before", "any other", "any other"])),
            "on": draw(st.sampled_from(["success", "success", "final"])),
        }
        for _ in range(draw(st.integers(1, 6)))
    ]
    return [with_turns(option) if option["queue"] == "left" else option for option in options]


def with_turns(option: dict[str, Any]) -> dict[str, Any]:
    """The options of a job of the fair queue."""
    if (key := option["fair_key"]) is None:
        return option
    terms = option["terms"]
    holds = (*terms.holds, None) if terms.holds else ()
    buckets = (*option["buckets"], BucketRef(FAIR, key))
    return {**option, "buckets": buckets, "terms": replace(terms, holds=holds)}


def costs_of(option: dict[str, Any]) -> dict[str, int]:
    return {**dict.fromkeys(KNOWN, 1), "tokens": option["cost"], "slots": option["places"]}


def held_by(batch: str, job: NewJob) -> NewJob:
    """The job as one whose batch holds the mutex for it."""
    assert job.terms is not None
    holds = tuple(
        PermitTerms("batch", batch) if ref == MUTEX else hold
        for ref, hold in zip(job.buckets, job.terms.holds, strict=True)
    )
    terms = replace(job.terms, holds=holds)
    return replace(job, terms=terms, wait_mode=terms.wait_mode())


class StorageMachine(RuleBasedStateMachine):
    """Does the same to a store and to the model."""

    open_store: Callable[[Clock], AbstractContextManager[Store]]

    @initialize()
    def start(self) -> None:
        self.clock = ManualClock()
        self.runner = asyncio.Runner()
        self.scope = type(self).open_store(self.clock)
        self.store = self.scope.__enter__()
        self.run(self.store.open())
        self.model = StorageModel(KNOWN, MIXED)
        self.ids = IdSource(producer=1)
        self.late: list[tuple[str, Ending]] = []
        self.charges: dict[tuple[str, int], Charge] = {}
        self.paused: set[str] = set()
        for node in NODES:
            self.join(node)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.run(self.store.close())
            self.runner.close()
            self.scope.__exit__(None, None, None)

    def run(self, verb: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(verb)

    def join(self, node: str) -> None:
        self.run(self.store.join(node, node))
        self.model.nodes.add(node)

    def pick(self, data: st.DataObject, *states: JobState) -> ModelJob | None:
        found = [job for job in self.model.jobs.values() if job.state in states]
        return data.draw(st.sampled_from(found)) if found else None

    # ------------------------------------------------------------------------------------------ verbs

    @rule(
        options=jobs_to_add(),
        repeat=st.booleans(),
        together=st.sampled_from([False, False, True]),
        leaders=st.randoms(use_true_random=False),
    )
    def add(self, options: list[dict[str, Any]], repeat: bool, together: bool, leaders: Random) -> None:
        now = self.clock.now()
        batches = [NewBatch(self.ids.next(now), len(options), now)] if together else []
        jobs = [
            NewJob(
                id=self.ids.next(now),
                task=option["task"],
                queue=option["queue"],
                payload=f'"{number}"',
                priority=option["priority"],
                delayed=option["delay"] is not None,
                run_at=now + (option["delay"] or 0),
                enqueued_at=now,
                aging=AGING[option["queue"]],
                expires_at=None if option["lifetime"] is None else now + option["lifetime"],
                buckets=option["buckets"],
                costs=tuple(costs_of(option)[ref.limit] for ref in option["buckets"])
                if any(ref.limit in MIXED for ref in option["buckets"])
                else None,
                terms=option["terms"],
                wait_mode=option["terms"].wait_mode(),
                give_up_at=now + (option["delay"] or 0) + option["terms"].patience
                if option["terms"].patience
                else None,
                rejection=ERROR if option["is_rejected"] else None,
                unique_key=option["unique_key"],
                on_conflict=option["on_conflict"],
            )
            for number, option in enumerate(options, len(self.model.jobs))
        ]
        # What is to run after one that runs follows it, which is another test's matter.
        jobs = [
            replace(job, on_conflict="keep") if self.model.existing(job, JobState.RUNNING) is not None else job
            for job in jobs
        ]
        for place, option in enumerate(options):
            batch = batches[0].id if together else None
            origin = Origin(self.leader(option, jobs[:place], leaders), option["on"], batch)
            if batch is not None and MUTEX in option["buckets"]:
                # It must not wait for one that waits for what its batch holds.
                origin = replace(origin, follows=None)
                jobs[place] = held_by(batch, jobs[place])
            if origin.follows is not None or together:
                jobs[place] = replace(jobs[place], origin=origin)
        is_tied = any(job.origin is not None for job in jobs)
        if is_tied:
            # Another job may stand for one with a key, and then it would be no part of its chain.
            jobs = [replace(job, unique_key=None) for job in jobs]
        for _ in range(1 + repeat):
            try:
                others = self.model.add_unique(jobs, now) if not is_tied else self.model.add(jobs, batches, now)
            except DuplicateJob:
                with pytest.raises(DuplicateJob):
                    self.run(self.store.add(jobs))
            else:
                assert self.run(self.store.add(jobs, batches)) == others

    def leader(self, option: dict[str, Any], before: list[NewJob], leaders: Random) -> str | None:
        """The leader of a new job: the one that is enqueued before it, or a stored one."""
        if option["follows"] == "one before" and before:
            return before[-1].id
        stored = [*self.model.jobs, *(id for id in self.model.batches if self.model.is_stored(id))]
        return leaders.choice(stored) if option["follows"] == "any other" and stored else None

    @rule(
        node=st.sampled_from(NODES),
        asked=queues,
        free=st.fixed_dictionaries(dict.fromkeys(QUEUES, FREE_SLOTS)),
        shared_slots=st.one_of(st.none(), st.integers(1, 8)),
        unknown_limit=st.sampled_from([None, None, None, "paced", "shared", FAIR]),
        knows_rare=st.booleans(),
    )
    def claim(
        self,
        node: str,
        asked: set[str],
        free: dict[str, FreeSlots],
        shared_slots: int | None,
        unknown_limit: str | None,
        knows_rare: bool,
    ) -> None:
        if node not in self.model.nodes:
            return
        self.claim_and_judge(
            Claim(
                node,
                {queue: free[queue] for queue in sorted(asked)},
                {name: known for name, known in KNOWN.items() if name != unknown_limit},
                frozenset({"work", "rare"} if knows_rare else {"work"}),
                shared_slots=shared_slots,
            )
        )

    def claim_and_judge(self, claim: Claim) -> Claimed:
        claimed = self.run(self.store.claim(claim))
        claim = replace(
            claim, free_slots={queue: free for queue, free in claim.free_slots.items() if queue not in self.paused}
        )
        self.model.judge(claim, claimed, self.clock.now(), self.store.limit_now())
        return claimed

    @rule(slots=st.sampled_from([1, 3, 8]))
    def claim_all(self, slots: int) -> None:
        """Claim as an engine that knows everything, as long as there is more."""
        node = next((node for node in NODES if node in self.model.nodes), None)
        for _ in range(20):
            if node is None:
                return
            claimed = self.claim_and_judge(
                Claim(node, dict.fromkeys(QUEUES, FreeSlots(slots)), KNOWN, frozenset({"work", "rare"}))
            )
            if not claimed.more:
                return
        raise AssertionError("a claim said `more` 20 times over")

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
            written = self.run(self.store.finish(node, endings, KNOWN))
            wall, now = self.clock.now(), self.store.limit_now()
            assert list(written) == [self.model.finish(node, ending, wall, now) for ending in endings]
            self.late += [(node, ending) for ending in endings]

    def draw_ending(self, data: st.DataObject, job: ModelJob, wait: int) -> Ending:
        final = data.draw(st.sampled_from([JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, None, None]))
        charge = self.charges.get((job.new.id, job.fence))
        corrections: tuple[Correction, ...] = ()
        if data.draw(st.sampled_from([False, False, True])) and (known := self.known_charge(job)) is not None:
            charge, corrections = Charge(None), tuple(Correction(ref, cost, 0) for ref, cost in known[1].items())
        if final is not None:
            error = ERROR if final is JobState.FAILED else None
            result = "1" if error is None else None
            return Finished(
                job.new.id, job.fence, final, result=result, error=error, charge=charge, corrections=corrections
            )
        outcome = data.draw(st.sampled_from(OUTCOMES))
        return Returned(
            job.new.id,
            job.fence,
            outcome,
            spent=outcome in ("failed", "unreadable"),
            run_at=self.clock.now() + wait if outcome in ("failed", "snoozed", "unreadable") else None,
            error=ERROR if outcome == "failed" else None,
            closed_for=wait if outcome == "refused" else None,
            charge=charge,
            corrections=corrections,
        )

    def known_charge(self, job: ModelJob) -> tuple[int, dict[BucketRef, int]] | None:
        """Return when the start of a running job counts, and its costs; None if it was given back."""
        if not job.starts or (start := job.starts[-1]).at is None:
            return None
        known = self.charges.get((job.new.id, job.fence), Charge(start.at))
        if known.at is None:
            return None
        return known.at, dict(start.costs) if known.costs is None else dict(zip(start.costs, known.costs, strict=True))

    def finish_late(self, data: st.DataObject) -> None:
        if not self.late:
            return
        foreign = data.draw(st.booleans())
        node, ending = data.draw(st.sampled_from(self.late))
        if foreign:
            node = NODES[1 - NODES.index(node)]
        written = self.run(self.store.finish(node, [ending], KNOWN))
        expected = self.model.finish(node, ending, self.clock.now(), self.store.limit_now())
        assert list(written) == [expected]
        assert not (foreign and expected)

    def cancel(self, data: st.DataObject) -> None:
        job = self.pick(data, *JobState)
        if job is not None:
            try:
                before = self.run(self.store.cancel(job.new.id))
            except Unchanged:
                with pytest.raises(Unchanged):
                    self.model.cancel(job.new.id, self.clock.now())
            else:
                assert before is self.model.cancel(job.new.id, self.clock.now())

    def cancel_waiting(self, data: st.DataObject) -> None:
        job = self.pick(data, JobState.WAITING)
        if job is not None:
            assert self.run(self.store.cancel(job.new.id)) is JobState.WAITING
            self.model.cancel(job.new.id, self.clock.now())

    def reschedule(self, data: st.DataObject) -> None:
        job = self.pick(data, *JobState)
        if job is None:
            return
        after = data.draw(st.sampled_from([None, -10, 0, 1, 5, 60]))
        priority = data.draw(st.sampled_from([None, None, 0, 5, 9]))
        run_at = None if after is None else self.clock.now() + after * SECOND
        try:
            before = self.run(self.store.reschedule(job.new.id, run_at=run_at, priority=priority))
        except IllegalTransition:
            assert job.state is not JobState.WAITING
        except Unchanged:
            with pytest.raises(Unchanged):
                self.model.reschedule(job.new.id, run_at, priority, self.clock.now())
        else:
            assert before is job.state is JobState.WAITING
            self.model.reschedule(job.new.id, run_at, priority, self.clock.now())

    def retry(self, data: st.DataObject) -> None:
        job = self.pick(data, *JobState)
        if job is None:
            return
        try:
            before = self.run(self.store.retry(job.new.id))
        except IllegalTransition:
            is_taken = self.model.existing(job.new, JobState.WAITING) is not None
            is_left_behind = not self.model.may_be_retried(job)
            assert is_taken or is_left_behind or job.state not in (JobState.FAILED, JobState.CANCELLED)
        else:
            assert before is job.state
            assert before in (JobState.FAILED, JobState.CANCELLED)
            assert self.model.existing(job.new, JobState.WAITING) is None
            assert self.model.may_be_retried(job)
            self.model.retry(job.new.id, self.clock.now())

    @rule(duration=waits)
    def advance(self, duration: int) -> None:
        self.clock.advance(duration / SECOND)

    def step_wall(self, data: st.DataObject) -> None:
        self.clock.step_wall(data.draw(st.sampled_from([-3600, -5, 5, 86400])))

    def lose_a_node(self, data: st.DataObject) -> None:
        node, dies, beats = data.draw(st.tuples(st.sampled_from(NODES), st.booleans(), st.booleans()))
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

    def expire(self, data: st.DataObject) -> None:
        count = data.draw(st.sampled_from([1, 100]))
        is_due = self.run(self.store.node_update()).has_expired
        dropped = self.run(self.store.expire(count))
        # Without a node there is no claim.
        assert is_due == bool(dropped) or not self.run(self.store.nodes())
        self.model.expire(dropped, count, self.clock.now())

    def evict(self, data: st.DataObject) -> None:
        self.run(self.store.evict(data.draw(st.sampled_from([1, 1000]))))

    def prune(self, data: st.DataObject) -> None:
        count = data.draw(st.sampled_from([1, 1000]))
        before = self.clock.now() - data.draw(waits)
        allowed = sum(1 for job in self.model.jobs.values() if job.finished_at is not None and job.finished_at < before)
        deleted = self.run(self.store.prune(before, count))
        kept = {record.id for record in self.run(self.store.jobs(JobFilter(count=1000)))}
        assert self.model.prune(before, kept) == deleted == min(count, allowed)

    def pause_a_queue(self, data: st.DataObject) -> None:
        queue = data.draw(st.sampled_from(QUEUES))
        assert self.run(self.store.pause_queue(queue)) is (queue not in self.paused)
        self.paused.add(queue)

    def resume_a_queue(self, data: st.DataObject) -> None:
        queue = data.draw(st.sampled_from(QUEUES))
        assert self.run(self.store.resume_queue(queue)) is (queue in self.paused)
        self.paused.discard(queue)

    @rule(data=st.data(), verb=st.sampled_from(RARE))
    def something_else(self, data: st.DataObject, verb: str) -> None:
        """What is done now and then; as rules of their own these would leave no time for claims."""
        getattr(self, verb)(data)

    # ----------------------------------------------------------------------------------------- limits

    def amend(self, data: st.DataObject) -> None:
        """A running attempt is refunded, or one of its costs is settled."""
        actual, refund = data.draw(st.tuples(st.sampled_from([0, 0, 1, 3]), st.booleans()))
        job = self.pick(data, JobState.RUNNING)
        if job is None or (known := self.known_charge(job)) is None:
            return
        at, costs = known
        rates = [ref for ref in costs if ref.limit not in PERMITS]
        settled = rates if refund or not rates else [data.draw(st.sampled_from(rates))]
        amendments = [Amendment(ref, at, costs[ref], at, 0 if refund else actual) for ref in settled]
        self.run(self.store.amend(amendments, KNOWN))
        for amendment in amendments:
            self.model.amend(amendment)
            costs[amendment.ref] = amendment.actual
        self.charges[job.new.id, job.fence] = Charge(None) if refund else Charge(at, tuple(costs.values()))

    def set_limit(self, data: st.DataObject) -> None:
        limit, keys = data.draw(st.tuples(st.sampled_from(sorted(RULES)), st.sampled_from(TARGETS)))
        is_paused = data.draw(st.sampled_from([False, False, True]))
        known = LIVE_RULES.get(limit, [])
        new = data.draw(st.sampled_from([None, *known]))
        setting = LimitSetting(limit, *keys, None if new is None else dump_rule(new), is_paused)
        self.run(change(self.store, setting))
        # What sets nothing is not kept.
        self.model.change(setting, remove=new is None and not is_paused)

    def unset_limit(self, data: st.DataObject) -> None:
        if not self.model.settings:
            return
        setting = data.draw(st.sampled_from(list(self.model.settings.values())))
        self.run(change(self.store, setting, remove=True))
        self.model.change(setting, remove=True)

    def penalize(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(BUCKETS))
        until = self.store.limit_now() + data.draw(waits)
        self.run(self.store.penalize(ref, until))
        self.model.penalize(ref, until)

    def reset(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(BUCKETS))
        assert self.run(self.store.reset(ref)) == self.model.reset(ref)

    def forget(self, data: st.DataObject) -> None:
        limit = data.draw(st.sampled_from(sorted(RULES)))
        try:
            self.run(self.store.forget(limit))
        except LimitInUse:
            assert self.model.is_in_use(limit)
        else:
            assert not self.model.is_in_use(limit)
            self.model.forget(limit)

    @precondition(lambda self: self.model.count_waiting() > 7)
    @rule()
    def nothing_waits_for_ever(self) -> None:
        """Without further changes all jobs run, and none waits at the end."""
        for setting in list(self.model.settings.values()):
            self.run(change(self.store, setting, remove=True))
            self.model.change(setting, remove=True)
        for queue in list(self.paused):
            assert self.run(self.store.resume_queue(queue))
        self.paused.clear()
        for node in NODES:
            if node not in self.model.nodes:
                self.join(node)
        claim = Claim(NODES[0], dict.fromkeys(QUEUES, FreeSlots(6)), KNOWN, frozenset({"work", "rare"}))
        for _ in range(400):
            for job in list(self.model.jobs.values()):
                if job.state is JobState.FAILED and job.held and self.model.may_be_retried(job):
                    # It may be one that can never start, so an operator gives it up.
                    self.run(self.store.retry(job.new.id))
                    self.model.retry(job.new.id, self.clock.now())
                    self.run(self.store.cancel(job.new.id))
                    self.model.cancel(job.new.id, self.clock.now())
            claimed = self.claim_and_judge(claim)
            wall, now = self.clock.now(), self.store.limit_now()
            running = [job for job in self.model.jobs.values() if job.state is JobState.RUNNING]
            for job in running:
                ending = Finished(job.new.id, job.fence, JobState.SUCCEEDED)
                assert job.node is not None
                assert list(self.run(self.store.finish(job.node, [ending]))) == [True]
                assert self.model.finish(job.node, ending, wall, now)
            if not any(job.state is JobState.WAITING for job in self.model.jobs.values()):
                return
            if not running and not claimed.more and not claimed.dropped:
                assert claimed.next_in is not None, "jobs wait, and nothing is going to happen"
                self.clock.advance(claimed.next_in / SECOND)
        raise AssertionError("jobs wait for ever")

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
            assert record.payload == job.new.payload
            assert (record.run_at, record.delayed, record.expires_at) == (job.run_at, job.delayed, job.expires_at)
            assert (record.finished_at, record.result, record.error) == (job.finished_at, job.result, job.error)
            assert record.started_at == job.started_at
            assert {ref for index, ref in enumerate(job.new.buckets) if record.held >> index & 1} == job.held
            assert (record.is_blocked, record.origin) == (job.is_blocked, job.new.origin)
            if job.state is JobState.WAITING:
                assert record.lane_waiting == self.model.lane_waiting(job)
            if job.state is JobState.RUNNING:
                assert (record.node, record.cancel_requested) == (job.node, job.cancel_requested)

    @invariant()
    def batches_are_as_the_model_says(self) -> None:
        if not hasattr(self, "store"):
            return
        for id, ends in self.model.batches.items():
            record = self.run(self.store.batch(id))
            if record is None:
                assert not self.model.is_stored(id)
                continue
            found = list(ends.values())
            assert (record.total, record.pending) == (len(found), found.count(None))
            assert [record.succeeded, record.failed, record.cancelled] == [
                found.count(state) for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
            ]
            assert (record.finished_at is None) == (None in found)

    @invariant()
    def permits_are_held_by_those_who_took_them(self) -> None:
        if not hasattr(self, "store"):
            return
        for limit in PERMITS:
            for bucket in self.run(self.store.buckets(limit=limit, count=1000)):
                permits = load_permits(bucket.state)
                holders = {holder: [hold.cost, hold.uses] for holder, hold in permits.holders.items()}
                assert holders == self.model.bucket(bucket.ref).holders
                assert permits.held == self.model.bucket(bucket.ref).held

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
    def the_queues_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        records = {record.queue: record for record in self.run(self.store.queues())}
        assert records.keys() == self.paused | {queue for queue in QUEUES if self.model.count(queue, JobState.WAITING)}
        for queue, record in records.items():
            assert (record.paused_at is not None) is (queue in self.paused)
            assert record.oldest_at == self.model.oldest(queue, self.clock.now())
            if record.oldest_at is None or queue in self.paused:
                assert record.ready_at is None

    @invariant()
    def no_budget_is_exceeded(self) -> None:
        if hasattr(self, "store"):
            self.model.judge_budgets()

    def attempts_are_kept(self, data: st.DataObject) -> None:
        job = self.pick(data, *JobState)
        if job is not None:
            kept = self.run(self.store.attempts(job.new.id))
            assert [(attempt.number, attempt.outcome) for attempt in kept] == job.attempts

    def starts_are_recorded(self, data: st.DataObject) -> None:
        limit = data.draw(st.sampled_from(sorted(RULES)))
        starts = self.run(self.store.starts(limit, None, 0))
        found = [(start.key, start.started_at, start.cost) for start in starts]
        assert sorted(found) == self.model.starts(limit)
        assert [start.started_at for start in starts] == sorted((start.started_at for start in starts), reverse=True)

    def a_job_stands_where_it_should(self, data: st.DataObject) -> None:
        job = self.pick(data, *JobState)
        if job is not None:
            existing = self.run(self.store.queue_position(job.new.id))
            assert (existing is None) == (not job.waits_in_lane)
            if existing is not None:
                assert (existing.position, existing.waiting) == (self.model.place(job), self.model.lane_waiting(job))
                assert tuple(bucket.ref for bucket in existing.buckets) == job.asked

    @invariant()
    def settings_are_as_they_were_stored(self) -> None:
        if hasattr(self, "store"):
            assert sorted(self.run(self.store.settings()), key=str) == sorted(self.model.settings.values(), key=str)


@contextmanager
def memory(clock: Clock) -> Iterator[Store]:
    yield MemoryStorage(clock)


class MemoryMachine(StorageMachine):
    open_store = staticmethod(memory)


# The store in memory is SQLite, as the one below.
TestMemoryStorage = pytest.mark.slow(MemoryMachine.TestCase)
TestMemoryStorage.settings = settings(
    max_examples=int(os.environ.get("HEADGATE_TEST_MODEL_EXAMPLES", examples(15, 80))), stateful_step_count=40
)


@contextmanager
def sqlite(clock: Clock) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="headgate-model-") as folder:
        yield SqliteStorage(Path(folder) / "jobs.db", clock, synchronous="OFF")


class SqliteMachine(StorageMachine):
    open_store = staticmethod(sqlite)


TestSqliteStorage = SqliteMachine.TestCase
TestSqliteStorage.settings = settings(
    max_examples=int(os.environ.get("HEADGATE_TEST_MODEL_EXAMPLES", examples(10, 25))), stateful_step_count=40
)


@contextmanager
def postgres(url: str, clock: Clock) -> Iterator[Store]:
    schema = f"model_{uuid.uuid4().hex[:16]}"
    yield PostgresStorage(url, clock, schema=schema, own_time=True)
    asyncio.run(drop_schema(url, schema))


async def drop_schema(url: str, schema: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    await connection.close()


@pytest.mark.nightly
def test_postgres_agrees_with_the_model(postgres_url: str) -> None:
    class PostgresMachine(StorageMachine):
        open_store = staticmethod(partial(postgres, postgres_url))

    run_state_machine_as_test(
        PostgresMachine,
        settings=settings(
            max_examples=int(os.environ.get("HEADGATE_TEST_MODEL_EXAMPLES", "12")),
            stateful_step_count=40,
        ),
    )
