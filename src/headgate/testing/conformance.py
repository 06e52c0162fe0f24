"""The tests that every store has to pass; each attacks one promise of the Storage protocol.

    class TestMyStorage(StorageConformance):
        @pytest_asyncio.fixture
        async def storage(self, clock: ManualClock) -> AsyncIterator[Storage]:
            storage = MyStorage(clock)
            await storage.open()
            yield storage
            await storage.close()

Time stands still unless a test moves it. After each test the store's own `check()` has to find nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import pytest
import pytest_asyncio

from headgate.clock import SECOND, microseconds
from headgate.errors import IllegalTransition
from headgate.jobs.identity import IdSource
from headgate.jobs.job import ClaimedJob, Draw, JobError, JobOptions, JobRecord, JobState, NewJob
from headgate.jobs.lifecycle import POISONOUS_AFTER, Ending, Finished, Returned
from headgate.limits.limit import AnyRule
from headgate.limits.rate_limit import RateLimit
from headgate.limits.strict_rate import StrictRate
from headgate.storage.admission import TURN
from headgate.storage.endings import EXPIRED_ERROR, poison_error
from headgate.storage.protocol import (
    Claim,
    Claimed,
    JobFilter,
    QueueCounts,
    Recovered,
    Room,
    Storage,
    Throttled,
)
from headgate.testing.manual_clock import ManualClock

MINUTE = 60 * SECOND
BOOM = JobError(type="ValueError", message="boom", traceback="Traceback …")


def strict(count: int, per: float = 60) -> AnyRule:
    return StrictRate(count, per=per, margin=0).rule


def rate(count: int, per: float = 60, burst: int | None = None) -> AnyRule:
    return RateLimit(count, per=per, burst=burst).rule


class Hands:
    """What the tests do with a store, in few words. `node` is the node they claim for unless they say otherwise."""

    def __init__(self, storage: Storage, clock: ManualClock) -> None:
        self.storage = storage
        self.clock = clock
        self.rules: dict[str, AnyRule] = {}
        self.tasks = {"work"}
        self.node = "node-a"
        self._ids = IdSource()

    def new(
        self,
        *,
        draws: Iterable[tuple[str, str]] = (),
        costs: tuple[int, ...] | None = None,
        delay: float | None = None,
        expires_in: float | None = None,
        task: str = "work",
        queue: str = "default",
        priority: int = 0,
        payload: str = "{}",
        headers: dict[str, str] | None = None,
        options: JobOptions | None = None,
    ) -> NewJob:
        now = self.clock.now()
        return NewJob(
            id=self._ids.next(now),
            task=task,
            queue=queue,
            payload=payload,
            priority=priority,
            delayed=delay is not None,
            run_at=now + microseconds(delay or 0),
            enqueued_at=now,
            expires_at=None if expires_in is None else now + microseconds(expires_in),
            draws=tuple(Draw(limit, key) for limit, key in draws),
            costs=costs,
            headers=headers,
            options=options,
        )

    async def add(self, count: int = 1, **options: Any) -> list[str]:
        jobs = [self.new(**options) for _ in range(count)]
        await self.storage.add(jobs)
        return [job.id for job in jobs]

    async def add_one(self, **options: Any) -> str:
        return (await self.add(**options))[0]

    async def claim(
        self,
        slots: int = 100,
        *,
        ahead: int = 0,
        gated_first: bool = True,
        queues: Sequence[str] = ("default",),
        node: str | None = None,
        rules: Mapping[str, AnyRule] | None = None,
        tasks: Iterable[str] | None = None,
    ) -> Claimed:
        """One claim, with the same room for each queue."""
        room = Room(slots, ahead, gated_first)
        return await self.storage.claim(
            Claim(
                node or self.node,
                dict.fromkeys(queues, room),
                self.rules if rules is None else rules,
                frozenset(self.tasks if tasks is None else tasks),
            )
        )

    async def take(self, slots: int = 100, **options: Any) -> list[ClaimedJob]:
        """Claim as an engine does: again, with the room that is left, as long as there may be more."""
        taken: list[ClaimedJob] = []
        for _ in range(1000):
            claimed = await self.claim(slots - len(taken), **options)
            taken += claimed.jobs
            if not claimed.more or len(taken) >= slots:
                return taken
        raise AssertionError("a claim said `more` 1000 times over and nothing came of it")

    async def take_ids(self, slots: int = 100, **options: Any) -> list[str]:
        return [job.id for job in await self.take(slots, **options)]

    async def take_one(self, **options: Any) -> ClaimedJob:
        (job,) = await self.take(1, **options)
        return job

    async def succeed(self, *jobs: ClaimedJob) -> None:
        endings = [Finished(job.id, job.fence, JobState.SUCCEEDED, result="null") for job in jobs]
        assert list(await self.storage.finish(self.node, endings)) == [True] * len(jobs)

    async def fail(self, *jobs: ClaimedJob) -> None:
        endings = [Finished(job.id, job.fence, JobState.FAILED, error=BOOM) for job in jobs]
        assert list(await self.storage.finish(self.node, endings)) == [True] * len(jobs)

    async def give_back(self, job: ClaimedJob, outcome: str = "interrupted", **options: Any) -> None:
        options = {"spent": False, **options}
        assert list(await self.storage.finish(self.node, [Returned(job.id, job.fence, outcome, **options)])) == [True]

    async def record(self, job_id: str) -> JobRecord:
        record = await self.storage.job(job_id)
        assert record is not None
        return record

    async def states(self, job_ids: Iterable[str]) -> list[JobState]:
        return [(await self.record(id)).state for id in job_ids]

    async def counts(self, queue: str = "default") -> QueueCounts:
        for counts in await self.storage.counts():
            if counts.queue == queue:
                return counts
        return QueueCounts(queue, 0, 0, 0, 0, 0)

    async def starts(self, seconds: int, step: float = 1, slots: int = 100) -> list[int]:
        """Claim for that long, finishing all at once; the limit times of all starts."""
        starts: list[int] = []
        for _ in range(round(seconds / step)):
            jobs = await self.take(slots)
            starts += [self.storage.limit_now()] * len(jobs)
            await self.succeed(*jobs)
            self.clock.advance(step)
        return starts


class StorageConformance:
    """Subclass it with a fixture `storage` that gives an open, empty store on the fixture `clock`."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest_asyncio.fixture
    async def storage(self, clock: ManualClock) -> AsyncIterator[Storage]:
        raise NotImplementedError("give the class a fixture `storage`")
        yield

    @pytest_asyncio.fixture
    async def hands(self, storage: Storage, clock: ManualClock) -> Hands:
        hands = Hands(storage, clock)
        await storage.join(hands.node, "a")
        return hands

    @pytest_asyncio.fixture(autouse=True)
    async def nothing_contradicts(self, storage: Storage) -> AsyncIterator[None]:
        yield
        assert list(await storage.check()) == []

    def writes(self, storage: Storage) -> int | None:
        """How many rows the store has written so far; None for a store that does not count them."""
        return None

    # ----------------------------------------------------------------------------------------- adding

    async def test_an_added_job_is_read_back_as_it_was_added(self, hands: Hands) -> None:
        new = hands.new(
            draws=[("api", "acme"), ("day", "")],
            costs=(2, 1),
            priority=3,
            delay=5,
            expires_in=60,
            payload='{"page":2}',
            headers={"tenant": "acme"},
            options=JobOptions(timeout=1.5, retries=7),
        )
        await hands.storage.add([new])
        record = await hands.record(new.id)
        assert record.state is JobState.WAITING
        for name in ("id", "task", "queue", "payload", "priority", "delayed", "run_at", "enqueued_at", "expires_at"):
            assert getattr(record, name) == getattr(new, name), name
        assert (record.draws, record.headers, record.options) == (new.draws, new.headers, new.options)
        assert (record.attempt, record.fence, record.lost, record.node) == (0, 0, 0, None)
        assert (record.started_at, record.finished_at, record.result, record.error) == (None, None, None, None)
        assert not record.cancel_requested
        assert record.lane_waiting == 1

    async def test_a_job_that_was_never_added_is_none(self, hands: Hands) -> None:
        assert await hands.storage.job("nobody") is None
        assert list(await hands.storage.attempts("nobody")) == []
        assert list(await hands.storage.final(["nobody"])) == []

    async def test_an_id_that_is_stored_already_is_ignored_and_the_others_are_added(self, hands: Hands) -> None:
        first = hands.new(payload="1")
        await hands.storage.add([first])
        again = hands.new(payload="2")
        second = hands.new()
        await hands.storage.add([_with_id(again, first.id), second])
        assert (await hands.record(first.id)).payload == "1"
        assert (await hands.counts()).waiting == 2
        assert await hands.take_ids() == [first.id, second.id]

    async def test_an_id_that_comes_twice_in_one_add_is_stored_once(self, hands: Hands) -> None:
        new = hands.new(draws=[("api", "acme")])
        await hands.storage.add([new, new])
        assert (await hands.counts()).waiting == 1
        assert (await hands.record(new.id)).lane_waiting == 1

    async def test_repeating_an_add_after_the_job_has_run_does_not_run_it_again(self, hands: Hands) -> None:
        new = hands.new()
        await hands.storage.add([new])
        await hands.succeed(*await hands.take())
        await hands.storage.add([new])
        assert (await hands.record(new.id)).state is JobState.SUCCEEDED
        assert await hands.take_ids() == []

    async def test_any_text_is_kept_exactly(self, hands: Hands) -> None:
        strange = ["", "'; DROP TABLE job; --", 'a|b:c/d\\e"f', "ünïcödé 🚦", "line\nbreak\ttab", "x" * 256]
        hands.rules = {text or "one": strict(1) for text in strange}
        for text in strange:
            await hands.add(
                draws=[(text or "one", text)], payload=f'"{text.encode().hex()}"', headers={"h": text}, queue="q" + text
            )
        queues = ["q" + text for text in strange]
        jobs = {job.queue: job for job in await hands.take(queues=queues)}
        for text in strange:
            job = jobs["q" + text]
            assert job.headers == {"h": text}
            assert job.payload == f'"{text.encode().hex()}"'
            assert (await hands.record(job.id)).draws == (Draw(text or "one", text),)
            (bucket,) = await hands.storage.buckets(limit=text or "one")
            assert bucket.draw == Draw(text or "one", text)

    async def test_doing_nothing_is_allowed(self, hands: Hands) -> None:
        await hands.storage.add([])
        assert list(await hands.storage.finish(hands.node, [])) == []
        assert list(await hands.storage.final([])) == []
        claimed = await hands.claim(queues=[])
        assert (list(claimed.jobs), claimed.next_in, claimed.more) == ([], None, False)
        claimed = await hands.claim(queues=["never-used"])
        assert (list(claimed.jobs), claimed.next_in, claimed.more) == ([], None, False)

    # --------------------------------------------------------------------------------------- claiming

    async def test_a_claimed_job_is_running_and_belongs_to_its_node(self, hands: Hands, clock: ManualClock) -> None:
        new = hands.new(payload="[1]", headers={"a": "b"}, options=JobOptions(retries=2))
        await hands.storage.add([new])
        clock.advance(3)
        job = await hands.take_one()
        assert (job.id, job.task, job.queue, job.payload) == (new.id, "work", "default", "[1]")
        assert (job.attempt, job.fence, job.lost, job.gated) == (1, 1, 0, False)
        assert (job.enqueued_at, job.run_at, job.started_at) == (new.enqueued_at, new.run_at, clock.now())
        assert (job.headers, job.options) == (new.headers, new.options)
        record = await hands.record(new.id)
        assert (record.state, record.node, record.started_at) == (JobState.RUNNING, hands.node, clock.now())
        assert (record.attempt, record.fence) == (1, 1)

    async def test_a_job_that_draws_on_a_limit_is_claimed_as_gated(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(draws=[("api", "acme")])
        assert (await hands.take_one()).gated

    @pytest.mark.parametrize("draws", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_no_more_is_claimed_than_there_is_room(
        self, hands: Hands, draws: tuple[tuple[str, str], ...]
    ) -> None:
        hands.rules = {"api": strict(100)}
        ids = await hands.add(20, draws=draws)
        first = await hands.claim(7)
        assert len(first.jobs) <= 7
        assert first.more or len(first.jobs) == 7
        rest = await hands.take_ids(100)
        assert [job.id for job in first.jobs] + rest == ids

    async def test_more_is_said_while_the_room_was_too_small(self, hands: Hands) -> None:
        hands.rules = {"api": strict(100)}
        await hands.add(3)
        assert (await hands.claim(2)).more
        assert not (await hands.claim(2)).more
        await hands.add(3, draws=[("api", "acme")])
        assert (await hands.claim(2)).more
        assert not (await hands.claim(2)).more

    async def test_more_is_said_while_opened_buckets_are_left(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        for key in "abc":
            await hands.add(2, draws=[("api", key)])
        assert len(await hands.take()) == 3
        clock.advance(60)
        assert (await hands.claim(1)).more
        assert (await hands.claim(1)).more
        assert len(await hands.take()) == 1

    async def test_a_job_is_claimed_once(self, hands: Hands) -> None:
        await hands.storage.join("node-b", "b")
        ids = await hands.add(10)
        both = await asyncio.gather(hands.claim(6), hands.claim(6, node="node-b"))
        taken = [job.id for claimed in both for job in claimed.jobs]
        assert sorted(taken) == sorted(ids)

    async def test_each_queue_has_its_own_room(self, hands: Hands) -> None:
        left = await hands.add(5, queue="left")
        await hands.add(5, queue="right")
        rooms = {"left": Room(5), "right": Room(2)}
        claimed = await hands.storage.claim(Claim(hands.node, rooms, {}, frozenset({"work"})))
        assert [job.id for job in claimed.jobs if job.queue == "left"] == left
        assert sum(1 for job in claimed.jobs if job.queue == "right") == 2

    async def test_a_queue_that_was_not_asked_for_is_left_alone(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(2, queue="other")
        await hands.add(2, queue="other", draws=[("api", "acme")])
        claimed = await hands.claim()
        assert (list(claimed.jobs), claimed.more) == ([], False)
        assert (await hands.counts("other")).waiting == 4

    async def test_only_ungated_jobs_are_claimed_ahead(self, hands: Hands) -> None:
        hands.rules = {"api": strict(100)}
        await hands.add(10, draws=[("api", "acme")])
        assert len(await hands.take(2, ahead=5)) == 2
        ungated = await hands.add(10)
        claimed = await hands.claim(0, ahead=5)
        assert [job.id for job in claimed.jobs] == ungated[:5]

    async def test_a_job_of_an_unknown_task_is_passed_over(self, hands: Hands) -> None:
        hands.rules = {"api": strict(100)}
        for draws in ((), (("api", "acme"),)):
            strangers = await hands.add(3, task="unknown", priority=9, draws=draws)
            known = await hands.add(2, draws=draws)
            claimed = await hands.claim()
            assert [job.id for job in claimed.jobs] == known
            assert list(claimed.unknown) == ["unknown"]
            assert not (await hands.claim()).more
            assert await hands.states(strangers) == [JobState.WAITING] * 3

    async def test_many_jobs_of_an_unknown_task_block_nobody(self, hands: Hands) -> None:
        hands.rules = {"api": strict(100)}
        for draws in ((), (("api", "acme"),)):
            await hands.add(700, task="unknown", draws=draws)
            known = await hands.add(2, draws=draws)
            assert await hands.take_ids(10) == known

    async def test_a_node_that_knows_the_task_takes_what_another_passed_over(self, hands: Hands) -> None:
        hands.rules = {"api": strict(100)}
        for draws in ((), (("api", "acme"),)):
            strangers = await hands.add(3, task="unknown", draws=draws)
            known = await hands.add(2, draws=draws)
            assert await hands.take_ids() == known
            # The order is the order of arrival, whoever came by in between.
            late = await hands.add(1, draws=draws)
            assert await hands.take_ids(tasks={"work", "unknown"}) == [*strangers, *late]

    async def test_a_lane_that_was_passed_over_as_a_whole_is_found_by_a_node_that_knows_it(self, hands: Hands) -> None:
        hands.rules = {"api": strict(100)}
        strangers = await hands.add(3, task="unknown", draws=[("api", "acme")])
        assert await hands.take_ids() == []
        assert await hands.take_ids(tasks={"work", "unknown"}) == strangers

    async def test_a_due_job_of_an_unknown_task_keeps_nobody_awake(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        await hands.add(task="unknown", delay=5, draws=[("api", "acme")])
        clock.advance(10)
        await hands.take()
        claimed = await hands.claim()
        assert (list(claimed.jobs), claimed.more) == ([], False)
        assert claimed.next_in is None or claimed.next_in > 0

    async def test_a_lane_with_an_unknown_limit_is_passed_over(self, hands: Hands) -> None:
        hands.rules = {"api": strict(10)}
        strangers = await hands.add(3, draws=[("elsewhere", "acme")])
        half_known = await hands.add(3, draws=[("api", "acme"), ("elsewhere", "acme")])
        known = await hands.add(2, draws=[("api", "acme")])
        claimed = await hands.claim()
        assert [job.id for job in claimed.jobs] == known
        assert not (await hands.claim()).more
        # Nothing was charged for those that were passed over.
        hands.rules = {"api": strict(10), "elsewhere": strict(10)}
        assert sorted(await hands.take_ids()) == sorted(strangers + half_known)

    async def test_a_node_that_has_not_joined_is_given_nothing(self, hands: Hands) -> None:
        await hands.add(2)
        claimed = await hands.claim(node="stranger")
        assert list(claimed.jobs) == []
        assert (await hands.counts()).waiting == 2

    # ------------------------------------------------------------------------------------------ order

    @pytest.mark.parametrize("draws", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_lane_is_ordered_by_priority_then_time_then_arrival(
        self, hands: Hands, clock: ManualClock, draws: tuple[tuple[str, str], ...]
    ) -> None:
        hands.rules = {"api": strict(100)}
        low = await hands.add(2, draws=draws)
        high = await hands.add(2, draws=draws, priority=9)
        clock.advance(1)
        later_low = await hands.add(2, draws=draws)
        later_high = await hands.add(1, draws=draws, priority=9)
        middle = await hands.add(1, draws=draws, priority=4)
        taken = [await hands.take_ids(1) for _ in range(8)]
        assert [id for (id,) in taken] == [*high, *later_high, *middle, *low, *later_low]

    @pytest.mark.parametrize("draws", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_delayed_job_that_is_due_stands_where_its_time_says(
        self, hands: Hands, clock: ManualClock, draws: tuple[tuple[str, str], ...]
    ) -> None:
        hands.rules = {"api": strict(100)}
        delayed = await hands.add(2, draws=draws, delay=5)
        before = await hands.add(1, draws=draws)
        clock.advance(10)
        after = await hands.add(1, draws=draws)
        urgent = await hands.add(1, draws=draws, delay=0, priority=1)
        assert await hands.take_ids() == [*urgent, *before, *delayed, *after]

    async def test_priority_does_not_cross_lanes(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        (patient,) = await hands.add(draws=[("api", "patient")])
        clock.advance(1)
        await hands.add(draws=[("api", "pushy")], priority=9)
        assert await hands.take_ids(1) == [patient]

    async def test_jobs_added_after_the_wall_clock_stepped_back_are_in_order_of_their_time(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        before = await hands.add(2)
        clock.step_wall(-3600)
        after = await hands.add(2)
        assert await hands.take_ids() == [*after, *before]

    @pytest.mark.parametrize("draws", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_whatever_the_wall_clock_did_the_order_of_a_lane_is_one(
        self, hands: Hands, clock: ManualClock, draws: tuple[tuple[str, str], ...]
    ) -> None:
        hands.rules = {"api": strict(100)}
        last = await hands.add(1, draws=draws)
        clock.step_wall(-20)
        first = await hands.add(1, draws=draws, delay=0)
        clock.step_wall(10)
        second = await hands.add(1, draws=draws)
        third = await hands.add(1, draws=draws, delay=5)
        clock.advance(5)
        assert await hands.take_ids() == [*first, *second, *third, *last]

    # ---------------------------------------------------------------------------------------- delayed

    @pytest.mark.parametrize("draws", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_delayed_job_starts_at_its_time_and_not_before(
        self, hands: Hands, clock: ManualClock, draws: tuple[tuple[str, str], ...]
    ) -> None:
        hands.rules = {"api": strict(100)}
        ids = await hands.add(1, draws=draws, delay=5)
        claimed = await hands.claim()
        assert (list(claimed.jobs), claimed.next_in, claimed.more) == ([], 5 * SECOND, False)
        clock.advance(4.999999)
        claimed = await hands.claim()
        assert (list(claimed.jobs), claimed.next_in) == ([], 1)
        clock.advance(0.000001)
        assert await hands.take_ids() == ids

    async def test_the_next_claim_is_for_the_earliest_of_all(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(delay=50)
        await hands.add(delay=40, draws=[("api", "sleeper")])
        await hands.take()
        assert (await hands.claim()).next_in == 40 * SECOND
        await hands.add(2, draws=[("api", "busy")])
        clock.advance(1)
        await hands.take()
        assert (await hands.claim()).next_in == 39 * SECOND
        await hands.add(delay=10, draws=[("api", "sleeper")])
        assert (await hands.claim()).next_in == 10 * SECOND

    async def test_nothing_to_wait_for_is_none(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(draws=[("api", "acme")])
        await hands.take()
        assert (await hands.claim()).next_in is None

    async def test_the_next_instant_is_never_negative(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(3, delay=1)
        await hands.add(3, delay=1, draws=[("api", "acme")])
        await hands.take()
        clock.advance(500)
        claimed = await hands.claim(1)
        assert claimed.next_in is None or claimed.next_in >= 0

    async def test_an_immediate_job_wakes_a_sleeping_lane(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        (delayed,) = await hands.add(delay=3600, draws=[("api", "acme")], priority=9)
        await hands.take()
        (immediate,) = await hands.add(draws=[("api", "acme")])
        assert await hands.take_ids() == [immediate]
        assert (await hands.claim()).next_in == 3600 * SECOND
        clock.advance(3600)
        assert await hands.take_ids() == [delayed]

    async def test_a_delayed_job_at_the_head_does_not_hold_up_ready_ones(self, hands: Hands) -> None:
        hands.rules = {"api": strict(100)}
        for draws in ((), (("api", "acme"),)):
            await hands.add(50, delay=60, priority=9, draws=draws)
            ready = await hands.add(3, draws=draws)
            assert await hands.take_ids() == ready

    async def test_sleeping_lanes_that_come_due_together_all_start(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        ids = [(await hands.add(delay=5, draws=[("api", str(number))]))[0] for number in range(30)]
        clock.advance(5)
        taken = [id for _ in range(3) for id in await hands.take_ids(10)]
        assert sorted(taken) == sorted(ids)

    async def test_who_came_due_first_starts_first(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        (second,) = await hands.add(delay=6, draws=[("api", "second")])
        (first,) = await hands.add(delay=3, draws=[("api", "first")])
        clock.advance(4)
        (between,) = await hands.add(draws=[("api", "between")])
        clock.advance(4)
        assert [(await hands.take_ids(1))[0] for _ in range(3)] == [first, between, second]

    # ----------------------------------------------------------------------------------------- limits

    async def test_a_key_gets_its_budget_and_then_waits_for_its_next_slot(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"api": strict(3)}
        ids = await hands.add(5, draws=[("api", "acme")])
        assert await hands.take_ids() == ids[:3]
        assert (await hands.claim()).next_in == MINUTE
        clock.advance(59.999999)
        assert await hands.take_ids() == []
        clock.advance(0.000001)
        assert await hands.take_ids() == ids[3:]

    async def test_a_lane_that_meets_a_closed_bucket_is_reported(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(3)}
        await hands.add(5, draws=[("api", "acme")])
        throttled: list[Throttled] = []
        for _ in range(5):
            claimed = await hands.claim()
            throttled += claimed.throttled
        (only,) = throttled
        assert (only.draw, only.opens_at, only.waiting) == (Draw("api", "acme"), clock.now() + MINUTE, 2)

    async def test_no_window_ever_holds_more_than_a_strict_rate_allows(self, hands: Hands) -> None:
        hands.rules = {"api": strict(7, per=10)}
        await hands.add(500, draws=[("api", "acme")])
        starts = await hands.starts(300, step=0.7)
        assert most_in_a_window(starts, 10 * SECOND) == 7
        assert len(starts) >= 0.9 * 7 * 30

    async def test_a_rate_grants_its_burst_and_then_paces(self, hands: Hands) -> None:
        hands.rules = {"api": rate(15)}
        await hands.add(100, draws=[("api", "acme")])
        starts = await hands.starts(60)
        begin = starts[0]
        assert [start - begin for start in starts[:15]] == [0] * 15
        assert [start - begin for start in starts[15:]] == [4 * SECOND * number for number in range(1, 15)]

    async def test_a_saturated_key_uses_its_whole_rate(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(15)}
        await hands.add(1000, draws=[("api", "acme")])
        started = 0
        end = clock.monotonic() + 3600 * SECOND
        while clock.monotonic() < end:
            jobs = await hands.take()
            started += len(jobs)
            await hands.succeed(*jobs)
            next_in = (await hands.claim()).next_in
            assert next_in is not None
            clock.advance(next_in / SECOND)
        assert started == 15 * 60

    async def test_several_limits_open_together_or_not_at_all(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"minute": strict(2), "day": strict(5, per=3600)}
        both = [("minute", "acme"), ("day", "acme")]
        await hands.add(10, draws=both)
        starts = await hands.starts(600)
        begin = starts[0]
        assert [(start - begin) // MINUTE for start in starts] == [0, 0, 1, 1, 2]
        # Nothing was taken from the minute while the day was closed.
        alone = await hands.add(2, draws=[("minute", "acme")])
        assert await hands.take_ids() == alone

    async def test_the_order_of_the_limits_makes_no_difference(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"minute": strict(1), "hour": strict(1, per=3600)}
        (first,) = await hands.add(draws=[("hour", "acme")])
        assert await hands.take_ids() == [first]
        await hands.add(2, draws=[("hour", "acme"), ("minute", "acme")])
        await hands.add(2, draws=[("minute", "acme"), ("hour", "acme")])
        assert await hands.take_ids() == []
        (alone,) = await hands.add(draws=[("minute", "acme")])
        assert await hands.take_ids() == [alone]

    async def test_a_lane_waits_behind_the_bucket_that_opens_last(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"minute": strict(1), "hour": strict(1, per=3600)}
        both = [("minute", "acme"), ("hour", "acme")]
        await hands.add(2, draws=both)
        await hands.take()
        record = (await hands.storage.jobs(JobFilter(state=JobState.WAITING)))[0]
        assert record.waits_for == Draw("hour", "acme")
        assert record.throttled_until == clock.now() + 3600 * SECOND
        assert (await hands.claim()).next_in == 3600 * SECOND

    async def test_costs_are_what_is_charged(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"tokens": strict(10)}
        ids = [(await hands.add(draws=[("tokens", "acme")], costs=(cost,)))[0] for cost in (4, 5, 2, 1)]
        assert await hands.take_ids() == ids[:2]
        assert (await hands.claim()).next_in == MINUTE

    async def test_each_limit_is_charged_its_own_cost(self, hands: Hands) -> None:
        hands.rules = {"tokens": strict(10), "calls": strict(10)}
        await hands.add(10, draws=[("tokens", "acme"), ("calls", "acme")], costs=(5, 1))
        assert len(await hands.take()) == 2
        assert len(await hands.add(10, draws=[("calls", "acme")])) == 10
        assert len(await hands.take()) == 8

    async def test_a_cheap_job_does_not_overtake_a_costly_one_of_its_lane(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"tokens": strict(10)}
        ids = [(await hands.add(draws=[("tokens", "acme")], costs=(cost,)))[0] for cost in (6, 6, 1, 1)]
        assert await hands.take_ids() == ids[:1]
        clock.advance(60)
        assert await hands.take_ids() == ids[1:]

    async def test_a_costly_job_is_not_starved_by_cheap_newcomers(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"tokens": strict(10), "own": strict(1000)}
        await hands.add(draws=[("tokens", ""), ("own", "cheap")], costs=(6, 1))
        await hands.take()
        (costly,) = await hands.add(draws=[("tokens", ""), ("own", "costly")], costs=(10, 1))
        for second in range(61):
            cheap = await hands.add(draws=[("tokens", ""), ("own", f"cheap {second}")], costs=(1, 1))
            taken = await hands.take_ids()
            if costly in taken:
                break
            # What came before the costly one waited may go; then the bucket is closed to newcomers.
            assert not set(taken) & set(cheap) or second == 0
            clock.advance(1)
        else:
            pytest.fail("the costly job never started")

    async def test_a_job_that_could_never_start_fails_and_the_others_go_on(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"tokens": strict(10), "other": strict(1)}
        draws = [("other", "acme"), ("tokens", "acme")]
        (impossible,) = await hands.add(draws=draws, costs=(1, 11))
        (possible,) = await hands.add(draws=draws, costs=(1, 10))
        assert await hands.take_ids() == [possible]
        record = await hands.record(impossible)
        assert (record.state, record.finished_at, record.attempt) == (JobState.FAILED, clock.now(), 0)
        assert record.error is not None
        assert record.error.type == "headgate.errors.CostExceedsLimit"
        assert (await hands.counts()).failed == 1

    async def test_lanes_of_different_queues_share_a_bucket(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(3)}
        await hands.add(5, queue="left", draws=[("api", "acme")])
        await hands.add(5, queue="right", draws=[("api", "acme")])
        assert len(await hands.take(10, queues=["left"])) == 3
        assert await hands.take(10, queues=["right"]) == []
        clock.advance(60)
        assert len(await hands.take(10, queues=["right"])) == 3
        assert await hands.take(10, queues=["left", "right"]) == []

    async def test_a_shared_bucket_goes_to_the_queue_that_waits_longest(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        waiting: list[str] = []
        for queue in ("right", "left"):
            waiting += await hands.add(2, queue=queue, draws=[("api", "acme")])
            clock.advance(1)
        assert await hands.take_ids(queues=["left", "right"]) == waiting[:1]
        clock.advance(60)
        assert await hands.take_ids(queues=["left", "right"]) == waiting[2:3]
        clock.advance(60)
        assert await hands.take_ids(queues=["left", "right"]) == waiting[1:2]

    async def test_keys_are_compared_exactly(self, hands: Hands) -> None:
        hands.rules = {"a": strict(1), "a:b": strict(1), "A": strict(1)}
        distinct = [("a", "b:c"), ("a:b", "c"), ("a", "b"), ("A", "b"), ("a", "B"), ("a", " b"), ("a", "")]
        for draw in distinct:
            await hands.add(2, draws=[draw])
        assert len(await hands.take()) == len(distinct)

    async def test_waiting_saves_up_no_budget(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(3)}
        await hands.add(100, draws=[("api", "acme")])
        await hands.take()
        clock.advance(3600)
        assert len(await hands.take()) == 3

    async def test_delayed_jobs_reserve_nothing(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(3)}
        for minute in range(20):
            await hands.add(3, delay=60 * minute, draws=[("api", "acme")])
        clock.advance(3600)
        assert len(await hands.take()) == 3
        assert len(await hands.take()) == 0

    async def test_cancelling_a_waiting_job_costs_nothing(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(3)}
        ids = await hands.add(9, draws=[("api", "acme")])
        for id in ids[:6]:
            await hands.storage.cancel(id)
        assert await hands.take_ids() == ids[6:]

    async def test_a_second_attempt_is_charged_again(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(2)}
        await hands.add(draws=[("api", "acme")])
        await hands.give_back(await hands.take_one())
        await hands.give_back(await hands.take_one())
        assert await hands.take() == []
        clock.advance(60)
        assert len(await hands.take()) == 1

    async def test_a_lowered_limit_counts_what_has_started_already(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(5)}
        await hands.add(20, draws=[("api", "acme")])
        await hands.take(4)
        hands.rules = {"api": strict(2)}
        assert await hands.take() == []
        clock.advance(60)
        assert len(await hands.take()) == 2

    async def test_a_raised_limit_is_used_by_the_backlog(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(2)}
        await hands.add(20, draws=[("api", "acme")])
        await hands.take()
        hands.rules = {"api": strict(5)}
        clock.advance(60)
        assert len(await hands.take()) == 5

    # --------------------------------------------------------------------------------------- fairness

    async def test_a_full_lane_leaves_room_for_a_small_one(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1000)}
        await hands.add(200, draws=[("api", "big")])
        clock.advance(1)
        (small,) = await hands.add(draws=[("api", "small")])
        assert small in await hands.take_ids(10)

    async def test_lanes_get_equal_shares(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1000)}
        for key in "abcde":
            await hands.add(100, draws=[("api", key)], payload=f'"{key}"')
        taken: list[str] = []
        for _ in range(10):
            taken += [job.payload for job in await hands.take(10)]
            clock.advance(0.001)
        shares = [taken.count(f'"{key}"') for key in "abcde"]
        assert sum(shares) == 100
        # A turn is a few jobs, and the room may end in the middle of one.
        assert max(shares) - min(shares) <= 2 * TURN

    async def test_the_lane_that_waits_longest_comes_first(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1000)}
        ids = []
        for number in (3, 1, 2, 0):
            ids += await hands.add(draws=[("api", str(number))])
            clock.advance(0.001)
        assert [(await hands.take_ids(1))[0] for _ in range(4)] == ids

    async def test_a_lane_that_had_its_turn_goes_to_the_end_of_the_line(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1000)}
        for key in "abc":
            await hands.add(2, draws=[("api", key)], payload=f'"{key}"')
            clock.advance(0.001)
        taken = []
        for _ in range(6):
            taken.append((await hands.take_one()).payload)
            clock.advance(0.001)
        assert taken == ['"a"', '"b"', '"c"'] * 2

    async def test_a_lane_that_got_nothing_keeps_its_place_in_the_line(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"shared": strict(1, per=1), "own": strict(100)}
        for key in "abc":
            await hands.add(2, draws=[("shared", ""), ("own", key)], payload=f'"{key}"')
            clock.advance(0.001)
        taken = []
        for _ in range(6):
            # Asked far too often: being looked at in vain must not send anyone to the end of the line.
            for _ in range(3):
                taken += [job.payload for job in await hands.take()]
                clock.advance(0.4)
        assert taken[:6] == ['"a"', '"b"', '"c"'] * 2

    async def test_a_shared_bucket_releases_only_what_it_grants(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"shared": strict(3, per=1), "own": strict(100)}
        jobs = [hands.new(draws=[("shared", ""), ("own", str(number))]) for number in range(1000)]
        for begin in range(0, 1000, 100):
            await hands.storage.add(jobs[begin : begin + 100])
            clock.advance(0.001)
        taken = await hands.take_ids()
        assert len(taken) == 3
        for _ in range(20):
            clock.advance(1)
            claimed = await hands.claim()
            assert len(claimed.jobs) == 3
            assert not claimed.more
            # Whoever was not released was not looked at either.
            assert len(claimed.throttled) <= 4
            taken += [job.id for job in claimed.jobs]
        # Longest waiting first: the first hundred arrived together, and nobody else goes before them.
        assert set(taken) <= {job.id for job in jobs[:100]}
        assert len(set(taken)) == 63

    async def test_a_bucket_that_grants_more_than_there_is_room_for_stays_open(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"shared": strict(3, per=10), "own": strict(100)}
        for number in range(9):
            await hands.add(draws=[("shared", ""), ("own", str(number))])
        assert len(await hands.take()) == 3
        clock.advance(10)
        assert [len(await hands.take(1)) for _ in range(5)] == [1, 1, 1, 0, 0]
        clock.advance(10)
        assert len(await hands.take()) == 3

    async def test_a_bucket_whose_waiting_lanes_were_emptied_is_open_to_newcomers(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"tokens": strict(10), "own": strict(100)}
        await hands.add(draws=[("tokens", ""), ("own", "first")], costs=(5, 1))
        await hands.take()
        costly = await hands.add_one(draws=[("tokens", ""), ("own", "costly")], costs=(10, 1))
        assert await hands.take() == []
        await hands.storage.cancel(costly)
        cheap = await hands.add(draws=[("tokens", ""), ("own", "cheap")], costs=(5, 1))
        assert await hands.take_ids() == cheap

    async def test_a_released_lane_may_move_behind_another_bucket(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"short": strict(1, per=10), "long": strict(1, per=60)}
        await hands.add(draws=[("short", "")])
        await hands.take()
        (moved,) = await hands.add(draws=[("short", ""), ("long", "")])
        await hands.take()
        await hands.add(draws=[("long", "")])
        assert len(await hands.take()) == 1
        (other,) = await hands.add(draws=[("short", "")])
        clock.advance(10)
        assert await hands.take_ids() == [other]
        assert (await hands.record(moved)).waits_for == Draw("long", "")
        clock.advance(50)
        assert await hands.take_ids() == [moved]

    async def test_gated_and_ungated_jobs_get_half_of_the_room_each(self, hands: Hands) -> None:
        hands.rules = {"api": strict(100)}
        await hands.add(50)
        await hands.add(50, draws=[("api", "acme")])
        claimed = await hands.claim(10)
        assert sum(1 for job in claimed.jobs if job.gated) == 5
        assert len(claimed.jobs) == 10

    async def test_the_odd_slot_goes_to_whoever_is_named_first(self, hands: Hands) -> None:
        hands.rules = {"api": strict(100)}
        await hands.add(50)
        await hands.add(50, draws=[("api", "acme")])
        assert (await hands.claim(1, gated_first=True)).jobs[0].gated
        assert not (await hands.claim(1, gated_first=False)).jobs[0].gated
        claimed = await hands.claim(5, gated_first=False)
        assert sum(1 for job in claimed.jobs if job.gated) == 2

    async def test_what_one_half_leaves_the_other_takes(self, hands: Hands) -> None:
        hands.rules = {"api": strict(3)}
        await hands.add(50, draws=[("api", "acme")])
        await hands.add(50)
        claimed = await hands.claim(10)
        assert sum(1 for job in claimed.jobs if job.gated) == 3
        assert len(claimed.jobs) == 10
        hands.rules = {"api": strict(100)}
        await hands.add(50, queue="gated", draws=[("api", "other")])
        await hands.add(2, queue="gated")
        taken = await hands.take(10, queues=["gated"])
        assert sum(1 for job in taken if not job.gated) == 2
        assert len(taken) == 10

    async def test_an_exhausted_key_does_not_touch_its_neighbours(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(2000, draws=[("api", "noisy")])
        await hands.take()
        for number in range(20):
            neighbour = await hands.add(draws=[("api", f"quiet {number}")])
            ungated = await hands.add()
            claimed = await hands.claim(2)
            assert sorted(job.id for job in claimed.jobs) == sorted(neighbour + ungated)
            assert list(claimed.throttled) == []

    async def test_many_exhausted_keys_do_not_touch_a_fresh_one(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.storage.add([hands.new(draws=[("api", str(number % 500))]) for number in range(1000)])
        assert len(await hands.take(2000)) == 500
        fresh = await hands.add(draws=[("api", "fresh")])
        claimed = await hands.claim()
        assert [job.id for job in claimed.jobs] == fresh
        assert list(claimed.throttled) == []
        assert not claimed.more

    async def test_a_job_that_waits_is_never_written(self, hands: Hands, clock: ManualClock, storage: Storage) -> None:
        before = self.writes(storage)
        if before is None:
            pytest.skip("this store does not count its writes")
        hands.rules = {"api": strict(1)}
        await hands.add(200, draws=[("api", "acme")])
        await hands.add(200, draws=[("api", "other")], delay=3600)
        await hands.take()
        settled = self.writes(storage)
        for _ in range(50):
            clock.advance(1)
            assert await hands.take() == []
        assert self.writes(storage) == settled

    # ------------------------------------------------------------------------------------- wall clock

    async def test_limit_time_begins_at_wall_time_and_only_grows(self, hands: Hands, clock: ManualClock) -> None:
        begin = hands.storage.limit_now()
        assert begin == clock.now()
        clock.step_wall(-3600)
        assert hands.storage.limit_now() == begin
        clock.advance(1)
        assert hands.storage.limit_now() == begin + SECOND
        clock.step_wall(86400)
        assert hands.storage.limit_now() == begin + SECOND

    async def test_immediate_jobs_run_on_when_the_wall_clock_steps_back(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        before = [*await hands.add(2), *await hands.add(2, draws=[("api", "acme")])]
        clock.step_wall(-3600)
        assert sorted(await hands.take_ids()) == sorted(before)
        after = [*await hands.add(2), *await hands.add(2, draws=[("api", "acme")])]
        assert sorted(await hands.take_ids()) == sorted(after)

    async def test_limits_stay_exact_when_the_wall_clock_steps_back(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(3)}
        await hands.add(10, draws=[("api", "acme")])
        assert len(await hands.take()) == 3
        clock.step_wall(-3600)
        assert await hands.take() == []
        assert (await hands.claim()).next_in == MINUTE
        clock.advance(60)
        assert len(await hands.take()) == 3

    async def test_a_wall_clock_that_jumps_a_day_grants_nothing_extra(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"strict": strict(3), "paced": rate(3)}
        await hands.add(50, draws=[("strict", "acme")])
        await hands.add(50, draws=[("paced", "acme")])
        assert len(await hands.take()) == 6
        clock.step_wall(86400)
        assert await hands.take() == []
        clock.step_wall(-86400)
        assert await hands.take() == []

    async def test_a_wall_clock_that_jumps_ahead_makes_delayed_jobs_due(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        ids = [*await hands.add(delay=3600), *await hands.add(delay=3600, draws=[("api", "acme")])]
        await hands.take()
        clock.step_wall(3600)
        assert sorted(await hands.take_ids()) == sorted(ids)

    async def test_a_delayed_job_waits_again_when_the_wall_clock_steps_back(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"api": strict(1)}
        for draws in ((), (("api", "acme"),)):
            await hands.add(delay=60, draws=draws)
        clock.advance(50)
        clock.step_wall(-50)
        clock.advance(10)
        claimed = await hands.claim()
        assert (list(claimed.jobs), claimed.next_in) == ([], 50 * SECOND)

    # -------------------------------------------------------------------------------------- finishing

    async def test_a_success_is_kept_with_its_result(self, hands: Hands, clock: ManualClock) -> None:
        await hands.add()
        job = await hands.take_one()
        clock.advance(2)
        ending = Finished(job.id, job.fence, JobState.SUCCEEDED, result='{"rows":3}')
        assert list(await hands.storage.finish(hands.node, [ending])) == [True]
        record = await hands.record(job.id)
        assert (record.state, record.result, record.error) == (JobState.SUCCEEDED, '{"rows":3}', None)
        assert record.finished_at == clock.now()
        assert list(await hands.storage.attempts(job.id)) == []

    async def test_a_failure_is_kept_with_its_error(self, hands: Hands, clock: ManualClock) -> None:
        await hands.add()
        job = await hands.take_one()
        clock.advance(2)
        await hands.fail(job)
        record = await hands.record(job.id)
        assert (record.state, record.error, record.result) == (JobState.FAILED, BOOM, None)
        (attempt,) = await hands.storage.attempts(job.id)
        assert (attempt.number, attempt.node, attempt.outcome, attempt.error) == (1, hands.node, "failed", BOOM)
        assert (attempt.started_at, attempt.ended_at) == (job.started_at, clock.now())

    async def test_a_cancelled_attempt_ends_as_cancelled(self, hands: Hands) -> None:
        await hands.add()
        job = await hands.take_one()
        ending = Finished(job.id, job.fence, JobState.CANCELLED)
        assert list(await hands.storage.finish(hands.node, [ending])) == [True]
        assert (await hands.record(job.id)).state is JobState.CANCELLED
        assert [attempt.outcome for attempt in await hands.storage.attempts(job.id)] == ["cancelled"]

    async def test_a_success_after_a_failure_leaves_no_error(self, hands: Hands) -> None:
        await hands.add()
        await hands.give_back(await hands.take_one(), "failed", spent=True, error=BOOM)
        await hands.succeed(await hands.take_one())
        (record,) = await hands.storage.jobs(JobFilter())
        assert (record.state, record.error) == (JobState.SUCCEEDED, None)

    async def test_a_finish_is_refused_unless_node_and_fence_still_match(self, hands: Hands) -> None:
        await hands.storage.join("node-b", "b")
        await hands.add(3)
        stale, foreign, mine = await hands.take()
        await hands.give_back(stale)
        again = await hands.take_one()
        assert (again.id, again.fence) == (stale.id, 2)
        endings: list[Ending] = [
            Finished(stale.id, stale.fence, JobState.SUCCEEDED, result="1"),
            Finished("nobody", 1, JobState.SUCCEEDED),
            Finished(mine.id, mine.fence, JobState.SUCCEEDED, result="2"),
            Returned(stale.id, stale.fence, "failed", spent=True, error=BOOM),
        ]
        assert list(await hands.storage.finish(hands.node, endings)) == [False, False, True, False]
        assert list(await hands.storage.finish("node-b", [Finished(foreign.id, 1, JobState.FAILED)])) == [False]
        states = await hands.states([stale.id, foreign.id, mine.id])
        assert states == [JobState.RUNNING, JobState.RUNNING, JobState.SUCCEEDED]
        assert (await hands.record(stale.id)).error is None

    async def test_a_finish_counts_once(self, hands: Hands) -> None:
        await hands.add()
        job = await hands.take_one()
        ending = Finished(job.id, job.fence, JobState.SUCCEEDED, result="1")
        assert list(await hands.storage.finish(hands.node, [ending])) == [True]
        assert list(await hands.storage.finish(hands.node, [ending])) == [False]
        other = Returned(job.id, job.fence, "failed", spent=True)
        assert list(await hands.storage.finish(hands.node, [other])) == [False]
        assert (await hands.counts()) == QueueCounts("default", 0, 0, 1, 0, 0)

    async def test_a_retry_is_delayed_and_its_attempt_is_spent(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        for draws in ((), (("api", "acme"),)):
            await hands.add(draws=draws)
            job = await hands.take_one()
            await hands.give_back(job, "failed", spent=True, run_at=clock.now() + 10 * SECOND, error=BOOM)
            record = await hands.record(job.id)
            assert (record.state, record.attempt, record.error) == (JobState.WAITING, 1, BOOM)
            assert (record.delayed, record.run_at, record.finished_at) == (True, clock.now() + 10 * SECOND, None)
            claimed = await hands.claim()
            assert (list(claimed.jobs), claimed.next_in) == ([], 10 * SECOND)
            clock.advance(10)
            again = await hands.take_one()
            assert (again.id, again.attempt, again.fence) == (job.id, 2, 2)
            await hands.succeed(again)

    async def test_an_unspent_attempt_keeps_its_number_and_the_fence_grows(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        await hands.add()
        for fence in range(1, 4):
            job = await hands.take_one()
            assert (job.attempt, job.fence) == (1, fence)
            await hands.give_back(job, "snoozed", run_at=clock.now())
            assert (await hands.record(job.id)).attempt == 0

    @pytest.mark.parametrize("draws", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_job_that_is_handed_back_keeps_its_place(
        self, hands: Hands, clock: ManualClock, draws: tuple[tuple[str, str], ...]
    ) -> None:
        hands.rules = {"api": strict(100)}
        ids = await hands.add(4, draws=draws)
        jobs = await hands.take(3)
        clock.advance(1)
        await hands.give_back(jobs[1])
        await hands.give_back(jobs[0])
        record = await hands.record(ids[0])
        assert (record.delayed, record.run_at, record.attempt) == (False, jobs[0].run_at, 0)
        assert await hands.take_ids() == [ids[0], ids[1], ids[3]]

    async def test_a_delayed_job_that_is_handed_back_stays_delayed(self, hands: Hands, clock: ManualClock) -> None:
        await hands.add(delay=5)
        clock.advance(5)
        job = await hands.take_one()
        await hands.give_back(job)
        record = await hands.record(job.id)
        assert (record.delayed, record.run_at) == (True, job.run_at)
        assert await hands.take_ids() == [job.id]

    async def test_a_batch_of_endings_is_written_in_one_go(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        await hands.add(2)
        await hands.add(2, draws=[("api", "acme")])
        first, second, third, fourth = await hands.take()
        endings: list[Ending] = [
            Finished(first.id, first.fence, JobState.SUCCEEDED, result="1"),
            Returned(second.id, second.fence, "failed", spent=True, run_at=clock.now() + SECOND, error=BOOM),
            Finished(third.id, third.fence, JobState.FAILED, error=BOOM),
            Returned(fourth.id, fourth.fence, "interrupted", spent=False),
        ]
        assert list(await hands.storage.finish(hands.node, endings)) == [True] * 4
        assert await hands.counts() == QueueCounts("default", 2, 0, 1, 1, 0)

    async def test_every_attempt_that_did_not_succeed_is_kept_in_order(self, hands: Hands, clock: ManualClock) -> None:
        await hands.add()
        for outcome, spent in (("failed", True), ("snoozed", False), ("unreadable", True), ("interrupted", False)):
            await hands.give_back(await hands.take_one(), outcome, spent=spent, error=BOOM if spent else None)
            clock.advance(1)
        job = await hands.take_one()
        await hands.succeed(job)
        attempts = await hands.storage.attempts(job.id)
        kept = [(attempt.number, attempt.outcome, attempt.error) for attempt in attempts]
        assert kept == [(1, "failed", BOOM), (2, "snoozed", None), (2, "unreadable", BOOM), (3, "interrupted", None)]

    async def test_an_attempt_without_an_error_keeps_the_last_error(self, hands: Hands) -> None:
        await hands.add()
        job = await hands.take_one()
        await hands.give_back(job, "failed", spent=True, error=BOOM)
        await hands.give_back(await hands.take_one(), "snoozed")
        assert (await hands.record(job.id)).error == BOOM

    async def test_a_refusal_closes_the_buckets_for_everyone(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100), "own": strict(100)}
        await hands.add(draws=[("api", "acme"), ("own", "one")])
        job = await hands.take_one()
        await hands.give_back(job, "refused", closed_for=30 * SECOND)
        assert (await hands.record(job.id)).attempt == 0
        neighbour = await hands.add(draws=[("api", "acme"), ("own", "two")])
        other_key = await hands.add(draws=[("api", "other"), ("own", "three")])
        assert await hands.take_ids() == other_key
        assert (await hands.claim()).next_in == 30 * SECOND
        clock.advance(29.999999)
        assert await hands.take() == []
        clock.advance(0.000001)
        assert sorted(await hands.take_ids()) == sorted([job.id, *neighbour])

    async def test_the_longest_refusal_counts(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        await hands.add(2, draws=[("api", "acme")])
        first, second = await hands.take()
        await hands.give_back(first, "refused", closed_for=30 * SECOND)
        await hands.give_back(second, "refused", closed_for=10 * SECOND)
        clock.advance(20)
        assert await hands.take() == []
        clock.advance(10)
        assert len(await hands.take()) == 2

    async def test_a_refusal_also_holds_for_lanes_that_wait_already(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(2, per=10), "own": strict(100)}
        await hands.add(2, draws=[("api", ""), ("own", "one")])
        await hands.add(2, draws=[("api", ""), ("own", "two")])
        jobs = await hands.take()
        assert len(jobs) == 2
        await hands.give_back(jobs[0], "refused", closed_for=30 * SECOND)
        clock.advance(29)
        assert await hands.take() == []
        clock.advance(1)
        assert len(await hands.take()) == 2

    # ------------------------------------------------------------------------------------- cancelling

    @pytest.mark.parametrize("draws", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_cancelled_waiting_job_never_runs_and_leaves_no_hole(
        self, hands: Hands, clock: ManualClock, draws: tuple[tuple[str, str], ...]
    ) -> None:
        hands.rules = {"api": strict(100)}
        ids = await hands.add(5, draws=draws)
        clock.advance(1)
        assert await hands.storage.cancel(ids[0]) is JobState.WAITING
        assert await hands.storage.cancel(ids[2]) is JobState.WAITING
        record = await hands.record(ids[0])
        assert (record.state, record.finished_at) == (JobState.CANCELLED, clock.now())
        assert (await hands.record(ids[1])).lane_waiting == 3
        assert await hands.counts() == QueueCounts("default", 3, 0, 0, 0, 2)
        assert await hands.take_ids() == [ids[1], ids[3], ids[4]]

    async def test_cancelling_the_last_job_behind_a_bucket_leaves_nothing_to_wait_for(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1)}
        ids = await hands.add(3, draws=[("api", "acme")])
        await hands.take()
        for id in ids[1:]:
            await hands.storage.cancel(id)
        (bucket,) = await hands.storage.buckets()
        assert (bucket.waiting, bucket.opens_at) == (0, None)
        assert (await hands.claim()).next_in is None

    async def test_cancelling_the_last_delayed_job_leaves_nothing_to_wait_for(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1)}
        for draws in ((), (("api", "acme"),)):
            (id,) = await hands.add(delay=60, draws=draws)
            await hands.take()
            await hands.storage.cancel(id)
            assert (await hands.claim()).next_in is None

    async def test_a_running_job_is_asked_to_stop(self, hands: Hands) -> None:
        await hands.add(2)
        job, other = await hands.take()
        assert await hands.storage.cancel(job.id) is JobState.RUNNING
        record = await hands.record(job.id)
        assert (record.state, record.cancel_requested) == (JobState.RUNNING, True)
        assert (await hands.storage.beat(hands.node)).cancels == {job.id}
        assert await hands.storage.cancels(hands.node) == {job.id}
        assert await hands.storage.cancels("stranger") == frozenset()
        assert not (await hands.record(other.id)).cancel_requested

    async def test_a_job_that_succeeds_before_it_notices_has_succeeded(self, hands: Hands) -> None:
        await hands.add()
        job = await hands.take_one()
        await hands.storage.cancel(job.id)
        await hands.succeed(job)
        assert (await hands.record(job.id)).state is JobState.SUCCEEDED

    async def test_a_job_that_was_asked_to_stop_does_not_wait_again(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        await hands.add(draws=[("api", "acme")])
        job = await hands.take_one()
        await hands.storage.cancel(job.id)
        await hands.give_back(job, "failed", spent=True, run_at=clock.now() + SECOND, error=BOOM)
        record = await hands.record(job.id)
        assert (record.state, record.finished_at) == (JobState.CANCELLED, clock.now())
        assert await hands.counts() == QueueCounts("default", 0, 0, 0, 0, 1)
        assert (await hands.claim()).next_in is None

    async def test_a_final_job_is_left_as_it_is(self, hands: Hands, clock: ManualClock) -> None:
        await hands.add(2)
        first, second = await hands.take()
        await hands.succeed(first)
        await hands.fail(second)
        before = [await hands.record(first.id), await hands.record(second.id)]
        clock.advance(1)
        assert await hands.storage.cancel(first.id) is JobState.SUCCEEDED
        assert await hands.storage.cancel(second.id) is JobState.FAILED
        assert [await hands.record(first.id), await hands.record(second.id)] == before

    async def test_cancelling_an_unknown_job_is_none(self, hands: Hands) -> None:
        assert await hands.storage.cancel("nobody") is None

    # --------------------------------------------------------------------------------------- retrying

    async def test_a_failed_job_can_be_retried_with_all_its_tries(self, hands: Hands, clock: ManualClock) -> None:
        await hands.add(expires_in=60, priority=2)
        job = await hands.take_one()
        await hands.fail(job)
        clock.advance(100)
        assert await hands.storage.retry(job.id) is JobState.FAILED
        record = await hands.record(job.id)
        assert (record.state, record.attempt, record.lost) == (JobState.WAITING, 0, 0)
        assert (record.run_at, record.delayed, record.expires_at) == (clock.now(), False, None)
        assert (record.finished_at, record.result, record.error) == (None, None, BOOM)
        assert await hands.counts() == QueueCounts("default", 1, 0, 0, 0, 0)
        again = await hands.take_one()
        assert (again.id, again.attempt, again.fence) == (job.id, 1, 2)

    async def test_a_cancelled_job_can_be_retried(self, hands: Hands) -> None:
        hands.rules = {"api": strict(100)}
        for draws in ((), (("api", "acme"),)):
            (id,) = await hands.add(draws=draws)
            await hands.storage.cancel(id)
            assert await hands.storage.retry(id) is JobState.CANCELLED
            assert await hands.take_ids() == [id]
            assert not (await hands.record(id)).cancel_requested

    async def test_a_job_cancelled_while_running_is_not_cancelled_again_after_a_retry(self, hands: Hands) -> None:
        await hands.add()
        job = await hands.take_one()
        await hands.storage.cancel(job.id)
        await hands.storage.finish(hands.node, [Finished(job.id, job.fence, JobState.CANCELLED)])
        await hands.storage.retry(job.id)
        again = await hands.take_one()
        assert (await hands.storage.beat(hands.node)).cancels == frozenset()
        await hands.give_back(again)
        assert (await hands.record(job.id)).state is JobState.WAITING

    @pytest.mark.parametrize("draws", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_retried_job_is_claimed_once_however_often_it_was_cancelled(
        self, hands: Hands, clock: ManualClock, draws: tuple[tuple[str, str], ...]
    ) -> None:
        hands.rules = {"api": strict(100)}
        ids = await hands.add(3, draws=draws)
        for _ in range(3):
            clock.advance(1)
            await hands.storage.cancel(ids[1])
            await hands.storage.retry(ids[1])
        assert await hands.take_ids() == [ids[0], ids[2], ids[1]]
        assert await hands.take_ids() == []

    async def test_a_retried_job_waits_for_its_limits_like_any_other(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(draws=[("api", "acme")])
        job = await hands.take_one()
        await hands.fail(job)
        await hands.storage.retry(job.id)
        assert await hands.take() == []
        clock.advance(60)
        assert await hands.take_ids() == [job.id]

    async def test_only_failed_and_cancelled_jobs_can_be_retried(self, hands: Hands) -> None:
        (waiting,) = await hands.add(queue="other")
        await hands.add(2)
        running, done = await hands.take()
        await hands.succeed(done)
        for id in (waiting, running.id, done.id):
            before = await hands.record(id)
            with pytest.raises(IllegalTransition):
                await hands.storage.retry(id)
            assert await hands.record(id) == before

    async def test_retrying_an_unknown_job_is_none(self, hands: Hands) -> None:
        assert await hands.storage.retry("nobody") is None

    # ------------------------------------------------------------------------------------------ nodes

    async def test_a_beat_tells_who_lives_and_what_a_node_owns(self, hands: Hands, clock: ManualClock) -> None:
        await hands.storage.join("node-b", "b")
        await hands.add(3)
        jobs = await hands.take(2)
        first = await hands.storage.beat(hands.node)
        assert first.known
        assert first.owned == {job.id: job.fence for job in jobs}
        assert first.cancels == frozenset()
        nodes = {node.id: node for node in first.nodes}
        assert {id: (node.name, node.running) for id, node in nodes.items()} == {"node-a": ("a", 2), "node-b": ("b", 0)}
        clock.advance(5)
        second = {node.id: node for node in (await hands.storage.beat(hands.node)).nodes}
        assert second["node-a"].beat > nodes["node-a"].beat
        assert second["node-a"].beat_at == clock.now()
        assert second["node-b"].beat == nodes["node-b"].beat
        assert {node.id: node for node in await hands.storage.nodes()} == second

    async def test_a_finished_job_is_owned_no_more(self, hands: Hands) -> None:
        await hands.add(2)
        first, second = await hands.take()
        await hands.succeed(first)
        await hands.give_back(second)
        assert (await hands.storage.beat(hands.node)).owned == {}

    async def test_a_beat_does_not_bring_a_node_back(self, hands: Hands) -> None:
        beat = await hands.storage.beat("stranger")
        assert not beat.known
        assert beat.owned == {}
        assert [node.id for node in (await hands.storage.beat(hands.node)).nodes] == [hands.node]

    async def test_a_node_that_leaves_hands_its_jobs_back_unspent(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        ids = [*await hands.add(2), *await hands.add(2, draws=[("api", "acme")])]
        await hands.take()
        clock.advance(1)
        recovered = await hands.storage.leave(hands.node)
        assert sorted(recovered.returned) == sorted(ids)
        assert list(recovered.poisonous) == []
        assert not (await hands.storage.beat(hands.node)).known
        for id in ids:
            record = await hands.record(id)
            assert (record.state, record.attempt, record.lost) == (JobState.WAITING, 0, 0)
            assert [attempt.outcome for attempt in await hands.storage.attempts(id)] == ["interrupted"]
        await hands.storage.join("node-b", "b")
        assert {job.attempt for job in await hands.take(node="node-b")} == {1}

    async def test_leaving_twice_is_fine(self, hands: Hands) -> None:
        await hands.storage.leave(hands.node)
        recovered = await hands.storage.leave(hands.node)
        assert not recovered.returned
        assert not recovered.poisonous

    async def test_a_node_that_still_beats_is_not_recovered(self, hands: Hands) -> None:
        await hands.add()
        job = await hands.take_one()
        seen = _beat_of(await hands.storage.beat(hands.node), hands.node)
        await hands.storage.beat(hands.node)
        assert await hands.storage.recover(hands.node, seen) is None
        assert (await hands.record(job.id)).state is JobState.RUNNING

    async def test_an_unknown_node_is_not_recovered(self, hands: Hands) -> None:
        assert await hands.storage.recover("stranger", 0) is None

    async def test_a_dead_nodes_jobs_wait_again_with_their_attempt_spent(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"api": strict(2)}
        await hands.add(draws=[("api", "acme")])
        job = await hands.take_one()
        clock.advance(30)
        recovered = await recover(hands)
        assert list(recovered.returned) == [job.id]
        record = await hands.record(job.id)
        assert (record.state, record.attempt, record.lost) == (JobState.WAITING, 1, 1)
        assert (record.run_at, record.delayed) == (job.run_at, False)
        (attempt,) = await hands.storage.attempts(job.id)
        assert (attempt.number, attempt.outcome, attempt.ended_at) == (1, "lost", clock.now())
        again = await hands.take_one(node="node-b")
        assert (again.attempt, again.fence, again.lost) == (2, 2, 1)

    async def test_the_late_result_of_a_dead_node_is_refused(self, hands: Hands) -> None:
        await hands.add()
        job = await hands.take_one()
        await recover(hands)
        late = Finished(job.id, job.fence, JobState.SUCCEEDED, result="1")
        assert list(await hands.storage.finish(hands.node, [late])) == [False]
        again = await hands.take_one(node="node-b")
        assert list(await hands.storage.finish(hands.node, [late])) == [False]
        assert (await hands.record(again.id)).state is JobState.RUNNING

    async def test_a_node_that_was_declared_dead_learns_it_and_may_join_again(self, hands: Hands) -> None:
        await hands.add(2)
        await hands.take(1)
        await recover(hands)
        beat = await hands.storage.beat(hands.node)
        assert not beat.known
        assert beat.owned == {}
        await hands.storage.join(hands.node, "a")
        assert (await hands.storage.beat(hands.node)).known
        assert len(await hands.take()) == 2

    async def test_two_that_notice_a_death_recover_once(self, hands: Hands) -> None:
        await hands.add()
        await hands.take_one()
        seen = _beat_of(await hands.storage.beat(hands.node), hands.node)
        results = await asyncio.gather(*(hands.storage.recover(hands.node, seen) for _ in range(2)))
        assert sum(1 for result in results if result is not None) == 1

    async def test_a_job_that_keeps_killing_its_node_is_failed(self, hands: Hands) -> None:
        await hands.add()
        bystander = await hands.add_one()
        for death in range(1, POISONOUS_AFTER + 1):
            jobs = await hands.take(1)
            recovered = await recover(hands)
            poisonous = death == POISONOUS_AFTER
            assert (len(recovered.poisonous), len(recovered.returned)) == ((1, 0) if poisonous else (0, 1))
            await hands.storage.join(hands.node, "a")
        record = await hands.record(jobs[0].id)
        assert (record.state, record.error) == (JobState.FAILED, poison_error(POISONOUS_AFTER))
        assert record.finished_at is not None
        assert await hands.take_ids() == [bystander]

    async def test_a_poisonous_job_that_is_retried_starts_over(self, hands: Hands) -> None:
        await hands.add()
        for _ in range(POISONOUS_AFTER):
            job = await hands.take_one()
            await recover(hands)
            await hands.storage.join(hands.node, "a")
        assert await hands.storage.retry(job.id) is JobState.FAILED
        again = await hands.take_one()
        assert (again.attempt, again.lost) == (1, 0)
        await recover(hands)
        assert (await hands.record(job.id)).state is JobState.WAITING

    async def test_a_job_of_a_gone_node_that_was_to_be_cancelled_is_cancelled(self, hands: Hands) -> None:
        await hands.add(2)
        first, second = await hands.take()
        await hands.storage.cancel(first.id)
        recovered = await recover(hands)
        assert list(recovered.returned) == [second.id]
        assert (await hands.record(first.id)).state is JobState.CANCELLED
        other = await hands.take_one(node="node-b")
        await hands.storage.cancel(other.id)
        assert list((await hands.storage.leave("node-b")).returned) == []
        assert (await hands.record(other.id)).state is JobState.CANCELLED

    async def test_a_poisonous_job_that_was_to_be_cancelled_is_cancelled(self, hands: Hands) -> None:
        await hands.add()
        for death in range(1, POISONOUS_AFTER + 1):
            job = await hands.take_one()
            if death == POISONOUS_AFTER:
                await hands.storage.cancel(job.id)
            recovered = await recover(hands)
            await hands.storage.join(hands.node, "a")
        assert not recovered.poisonous
        assert (await hands.record(job.id)).state is JobState.CANCELLED

    # -------------------------------------------------------------------------------------- expiring

    @pytest.mark.parametrize("draws", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_claim_fails_what_has_expired_and_takes_the_rest(
        self, hands: Hands, clock: ManualClock, draws: tuple[tuple[str, str], ...]
    ) -> None:
        hands.rules = {"api": strict(2)}
        expired = await hands.add(3, expires_in=5, draws=draws)
        alive = await hands.add(2, expires_in=6, draws=draws)
        clock.advance(5)
        claimed = await hands.claim()
        assert [job.id for job in claimed.jobs] == alive
        assert [(job.id, job.task, job.queue) for job in claimed.dropped] == [(id, "work", "default") for id in expired]
        record = await hands.record(expired[0])
        assert (record.state, record.error, record.finished_at) == (JobState.FAILED, EXPIRED_ERROR, clock.now())
        assert await hands.counts() == QueueCounts("default", 0, 2, 0, 3, 0)

    @pytest.mark.parametrize("draws", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_claim_fails_at_most_a_hundred_expired_jobs_of_a_lane(
        self, hands: Hands, clock: ManualClock, draws: tuple[tuple[str, str], ...]
    ) -> None:
        hands.rules = {"api": strict(2)}
        await hands.add(250, expires_in=5, draws=draws)
        alive = await hands.add(1, draws=draws)
        clock.advance(5)
        expired: list[str] = []
        taken: list[str] = []
        for _ in range(4):
            claimed = await hands.claim(500)
            assert len(claimed.dropped) <= 100
            expired += [job.id for job in claimed.dropped]
            taken += [job.id for job in claimed.jobs]
            if not claimed.more:
                break
        assert len(set(expired)) == len(expired) == 250
        assert taken == alive

    async def test_expired_jobs_are_failed_in_bulk_without_a_claim(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        (running,) = await hands.add(expires_in=5)
        await hands.take()
        ids = [*await hands.add(3, expires_in=5), *await hands.add(3, expires_in=5, draws=[("api", "acme")])]
        (alive,) = await hands.add(expires_in=6)
        assert list(await hands.storage.expire()) == []
        clock.advance(5)
        first = await hands.storage.expire(count=4)
        rest = await hands.storage.expire()
        assert (len(first), len(rest)) == (4, 2)
        assert sorted(job.id for job in (*first, *rest)) == sorted(ids)
        assert await hands.states([running, alive]) == [JobState.RUNNING, JobState.WAITING]
        assert list(await hands.storage.expire()) == []
        assert await hands.take_ids() == [alive]

    async def test_a_lane_whose_jobs_expired_leaves_its_bucket(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(2, expires_in=5, draws=[("api", "acme")])
        await hands.take()
        clock.advance(5)
        assert len(await hands.storage.expire()) == 1
        (bucket,) = await hands.storage.buckets()
        assert (bucket.waiting, bucket.opens_at) == (0, None)
        assert (await hands.claim()).next_in is None

    async def test_a_job_that_waits_again_can_still_expire(self, hands: Hands, clock: ManualClock) -> None:
        (id,) = await hands.add(expires_in=5)
        job = await hands.take_one()
        clock.advance(5)
        assert list(await hands.storage.expire()) == []
        await hands.give_back(job)
        assert [expired.id for expired in await hands.storage.expire()] == [id]

    async def test_a_final_job_does_not_expire(self, hands: Hands, clock: ManualClock) -> None:
        await hands.add(2, expires_in=5)
        done, cancelled = await hands.take()
        await hands.succeed(done)
        await hands.give_back(cancelled)
        await hands.storage.cancel(cancelled.id)
        clock.advance(5)
        assert list(await hands.storage.expire()) == []
        assert await hands.states([done.id, cancelled.id]) == [JobState.SUCCEEDED, JobState.CANCELLED]

    # ---------------------------------------------------------------------------- pruning and evicting

    async def test_only_old_final_jobs_are_pruned(self, hands: Hands, clock: ManualClock) -> None:
        await hands.add(5)
        jobs = await hands.take(4)
        await hands.succeed(jobs[0])
        await hands.fail(jobs[1])
        clock.advance(10)
        await hands.succeed(jobs[2])
        assert await hands.storage.prune(clock.now()) == 2
        assert await hands.storage.job(jobs[0].id) is None
        assert list(await hands.storage.attempts(jobs[1].id)) == []
        assert await hands.counts() == QueueCounts("default", 1, 1, 1, 0, 0)
        assert await hands.storage.prune(clock.now()) == 0
        assert await hands.storage.prune(clock.now() + 1) == 1

    async def test_pruning_goes_in_small_steps(self, hands: Hands, clock: ManualClock) -> None:
        await hands.add(10)
        await hands.succeed(*await hands.take())
        clock.advance(1)
        assert [await hands.storage.prune(clock.now(), count=4) for _ in range(4)] == [4, 4, 2, 0]
        assert list(await hands.storage.jobs(JobFilter())) == []
        assert list(await hands.storage.counts()) == []

    async def test_a_retried_job_is_not_pruned(self, hands: Hands, clock: ManualClock) -> None:
        await hands.add()
        job = await hands.take_one()
        await hands.fail(job)
        await hands.storage.retry(job.id)
        clock.advance(10)
        assert await hands.storage.prune(clock.now()) == 0
        await hands.fail(await hands.take_one())
        assert await hands.storage.prune(clock.now()) == 0
        assert await hands.storage.prune(clock.now() + 1) == 1

    async def test_a_pruned_job_leaves_its_neighbours_pages_whole(self, hands: Hands, clock: ManualClock) -> None:
        ids = await hands.add(6)
        for job in (await hands.take())[:3]:
            await hands.succeed(job)
        clock.advance(1)
        await hands.storage.prune(clock.now())
        assert [record.id for record in await hands.storage.jobs(JobFilter())] == ids[:2:-1]

    async def test_idle_buckets_and_empty_lanes_are_forgotten(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.storage.add([hands.new(draws=[("api", str(number))]) for number in range(20)])
        await hands.succeed(*await hands.take())
        await hands.storage.evict()
        assert len(await hands.storage.buckets()) == 20
        clock.advance(60)
        for _ in range(10):
            await hands.storage.evict()
        assert list(await hands.storage.buckets()) == []
        assert await hands.storage.evict() == 0

    async def test_evicting_goes_in_small_steps(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.storage.add([hands.new(draws=[("api", str(number))]) for number in range(20)])
        await hands.succeed(*await hands.take())
        clock.advance(60)
        while forgotten := await hands.storage.evict(count=3):
            # At most that many lanes, and that many buckets.
            assert forgotten <= 6
        assert list(await hands.storage.buckets()) == []

    async def test_a_bucket_in_use_is_not_forgotten(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1), "refused": strict(100)}
        await hands.add(3, draws=[("api", "waiting")])
        await hands.add(draws=[("refused", "closed")])
        jobs = await hands.take()
        for job in jobs:
            if (await hands.record(job.id)).draws[0].limit == "refused":
                await hands.give_back(job, "refused", closed_for=3600 * SECOND)
                await hands.storage.cancel(job.id)
            else:
                await hands.succeed(job)
        clock.advance(600)
        for _ in range(5):
            await hands.storage.evict()
        await hands.add(draws=[("refused", "closed")])
        assert len(await hands.take()) == 1
        assert {bucket.draw.limit for bucket in await hands.storage.buckets()} == {"api", "refused"}

    async def test_a_bucket_that_is_drawn_on_again_is_not_forgotten(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1), "own": strict(100)}
        await hands.add(draws=[("api", "acme")])
        await hands.succeed(*await hands.take())
        # The empty lane goes, the bucket stays: it is not idle yet. Then both are needed again.
        await hands.storage.evict()
        ids = await hands.add(1, draws=[("api", "acme")])
        clock.advance(60)
        for _ in range(3):
            await hands.storage.evict()
        ids += await hands.add(1, draws=[("api", "acme"), ("own", "")])
        assert len(await hands.take()) == 1
        clock.advance(60)
        assert len(await hands.take()) == 1
        assert (await hands.counts()).running == len(ids)

    async def test_forgetting_changes_nothing_for_a_strict_rate(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(3, per=10)}
        starts: list[int] = []
        for second in range(100):
            if second % 7 < 5:
                await hands.add(draws=[("api", "acme")])
            jobs = await hands.take()
            starts += [hands.storage.limit_now()] * len(jobs)
            await hands.succeed(*jobs)
            await hands.storage.evict()
            clock.advance(1)
        assert most_in_a_window(starts, 10 * SECOND) == 3
        assert len(starts) >= 29

    async def test_forgetting_changes_nothing_for_a_rate_that_starts_empty(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"api": RateLimit(5, per=10, start_empty=True).rule}
        await hands.add(draws=[("api", "acme")])
        await hands.succeed(*await hands.take())
        # It has saved up its burst by now, which a forgotten bucket would not have.
        clock.advance(3600)
        for _ in range(5):
            await hands.storage.evict()
        await hands.add(10, draws=[("api", "acme")])
        assert len(await hands.take()) == 5

    async def test_a_lane_of_running_jobs_survives_evicting(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(draws=[("api", "acme")])
        job = await hands.take_one()
        clock.advance(3600)
        for _ in range(5):
            await hands.storage.evict()
        await hands.give_back(job)
        assert await hands.take_ids() == [job.id]

    # ---------------------------------------------------------------------------------------- looking

    async def test_pages_of_jobs_cover_each_once_while_others_arrive(self, hands: Hands, clock: ManualClock) -> None:
        ids = await hands.add(23)
        seen: list[str] = []
        before: str | None = None
        while page := await hands.storage.jobs(JobFilter(before=before, count=5)):
            assert len(page) <= 5
            seen += [record.id for record in page]
            before = seen[-1]
            await hands.add(2)
        assert seen == ids[::-1]

    async def test_jobs_are_found_by_what_they_are(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1), "day": strict(100)}
        hands.tasks = {"work", "mail"}
        acme = await hands.add(2, draws=[("api", "acme"), ("day", "all")])
        globex = await hands.add(1, draws=[("api", "globex"), ("day", "acme")])
        mail = await hands.add(2, task="mail", queue="emails")
        await hands.take()

        async def found(**options: Any) -> list[str]:
            return [record.id for record in await hands.storage.jobs(JobFilter(**options))]

        assert await found(queue="emails") == mail[::-1]
        assert await found(task="work") == [*globex, *acme[::-1]]
        assert await found(state=JobState.RUNNING) == [*globex, acme[0]]
        assert await found(state=JobState.WAITING, task="work") == [acme[1]]
        assert await found(limit="api") == [*globex, *acme[::-1]]
        assert await found(limit="api", key="acme") == acme[::-1]
        assert await found(limit="day", key="acme") == globex
        assert await found(key="acme") == [*globex, *acme[::-1]]
        assert await found(limit="api", key="nobody") == []

    async def test_jobs_are_counted_by_queue_and_state(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        await hands.add(4)
        await hands.add(4, draws=[("api", "acme")])
        await hands.add(2, queue="other", delay=60)
        jobs = await hands.take()
        await hands.succeed(*jobs[:2])
        await hands.fail(jobs[2])
        await hands.storage.cancel(jobs[3].id)
        await hands.give_back(jobs[3])
        await hands.give_back(jobs[4])
        counts = await hands.storage.counts()
        assert list(counts) == [QueueCounts("default", 1, 3, 2, 1, 1), QueueCounts("other", 2, 0, 0, 0, 0)]

    async def test_a_throttled_job_tells_what_it_waits_for_and_until_when(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"api": strict(1)}
        ids = await hands.add(4, draws=[("api", "acme")])
        before = await hands.record(ids[3])
        assert (before.throttled_until, before.waits_for, before.lane_waiting) == (None, None, 4)
        await hands.take()
        clock.step_wall(3600)
        clock.advance(10)
        record = await hands.record(ids[3])
        assert record.throttled_until == clock.now() + 50 * SECOND
        assert (record.waits_for, record.lane_waiting) == (Draw("api", "acme"), 3)
        running = await hands.record(ids[0])
        assert (running.throttled_until, running.waits_for) == (None, None)
        clock.advance(50)
        record = await hands.record(ids[3])
        assert (record.throttled_until, record.waits_for) == (None, None)

    async def test_buckets_are_listed_with_the_most_waiting_first(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1), "day": strict(1)}
        for key, count in (("few", 2), ("many", 9), ("some", 5)):
            await hands.add(count, draws=[("api", key)])
        await hands.add(draws=[("day", "many")])
        await hands.take()
        buckets = await hands.storage.buckets(limit="api")
        assert [(bucket.draw.key, bucket.waiting) for bucket in buckets] == [("many", 8), ("some", 4), ("few", 1)]
        assert {bucket.opens_at for bucket in buckets} == {hands.storage.limit_now() + MINUTE}
        (only,) = await hands.storage.buckets(limit="day")
        assert (only.draw, only.waiting, only.opens_at) == (Draw("day", "many"), 0, None)
        assert len(await hands.storage.buckets(key="many")) == 2
        assert len(await hands.storage.buckets(count=3)) == 3
        assert list(await hands.storage.buckets(limit="nobody")) == []

    async def test_a_buckets_state_can_be_read_by_its_rule(self, hands: Hands) -> None:
        rule = strict(5)
        hands.rules = {"api": rule}
        await hands.add(3, draws=[("api", "acme")])
        await hands.take()
        (bucket,) = await hands.storage.buckets()
        assert bucket.state is not None
        now = hands.storage.limit_now()
        snapshot = rule.snapshot(rule.load(bucket.state, now), now)
        assert (snapshot.used, snapshot.available) == (3, 2)

    async def test_only_final_jobs_are_given_as_final(self, hands: Hands) -> None:
        (waiting,) = await hands.add(queue="other")
        await hands.add(3)
        running, done, failed = await hands.take()
        await hands.succeed(done)
        await hands.fail(failed)
        asked = [waiting, running.id, done.id, failed.id, "nobody"]
        found = {record.id: record.state for record in await hands.storage.final(asked)}
        assert found == {done.id: JobState.SUCCEEDED, failed.id: JobState.FAILED}

    # --------------------------------------------------------------------------------------- watching

    async def test_whoever_watches_is_woken_by_each_change(self, hands: Hands, clock: ManualClock) -> None:
        woken = asyncio.Event()
        unwatch = hands.storage.watch(woken.set)

        async def wakes() -> None:
            await woken.wait()
            woken.clear()

        (id,) = await hands.add()
        await wakes()
        await hands.give_back(await hands.take_one())
        await wakes()
        await hands.storage.cancel(id)
        await wakes()
        await hands.storage.retry(id)
        await wakes()
        await hands.take_one()
        await hands.storage.leave(hands.node)
        await wakes()
        await hands.storage.join(hands.node, "a")
        await hands.take_one()
        woken.clear()
        await recover(hands)
        await wakes()
        unwatch()

    async def test_a_watch_that_ended_is_silent(self, hands: Hands) -> None:
        ended, still = asyncio.Event(), asyncio.Event()
        unwatch = hands.storage.watch(ended.set)
        hands.storage.watch(still.set)
        unwatch()
        await hands.add()
        await still.wait()
        assert not ended.is_set()

    async def test_opening_and_closing_twice_is_fine(self, hands: Hands, storage: Storage) -> None:
        await hands.add()
        await storage.close()
        await storage.close()
        await storage.open()
        assert await hands.counts() == QueueCounts("default", 1, 0, 0, 0, 0)


def most_in_a_window(starts: Sequence[int], window: int) -> int:
    """The highest number of starts in any half-open window of that length."""
    return max((sum(1 for other in starts if start <= other < start + window) for start in starts), default=0)


async def recover(hands: Hands) -> Recovered:
    """Another node finds that the hands' node has died."""
    if "node-b" not in {node.id for node in await hands.storage.nodes()}:
        await hands.storage.join("node-b", "b")
    seen = _beat_of(await hands.storage.beat("node-b"), hands.node)
    recovered = await hands.storage.recover(hands.node, seen)
    assert recovered is not None
    return recovered


def _beat_of(beat: Any, node: str) -> int:
    (found,) = (record.beat for record in beat.nodes if record.id == node)
    assert isinstance(found, int)
    return found


def _with_id(job: NewJob, id: str) -> NewJob:
    return NewJob(
        id=id,
        task=job.task,
        queue=job.queue,
        payload=job.payload,
        priority=job.priority,
        delayed=job.delayed,
        run_at=job.run_at,
        enqueued_at=job.enqueued_at,
    )
