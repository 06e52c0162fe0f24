"""What is promised of queues: pauses that no claim misses, and how long their jobs have been ready."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.job import JobState, Origin
from headgate.limits.dynamic_window import DynamicWindow
from headgate.limits.fair import FairOrder
from headgate.storage.facts import MemoryFacts, PostgresFacts, SqliteFacts
from headgate.storage.procedures.following import FOLLOWERS_AT_ONCE
from headgate.storage.records import Claim, FreeSlots, QueueCounts, QueueRecord
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.dependencies import following
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, at_once, rate, strict

BOTH = ("default", "other")


async def record_of(store_user: StoreUser, queue: str = "default") -> QueueRecord:
    """A queue as the store lists it; all None if it does not."""
    for record in await store_user.storage.queues():
        if record.queue == queue:
            return record
    return QueueRecord(queue, None, None, None)


async def left(store_user: StoreUser, *queues: str) -> tuple[bool, bool]:
    """Whether work of these queues is left that could start now, and whether any is."""
    asked = queues or ("default",)
    ready, everything = [
        await store_user.storage.is_work_left(set(asked), store_user.tasks, ready_only=ready_only)
        for ready_only in (True, False)
    ]
    return ready, everything


class QueuesConformance(Conformance):
    # ----------------------------------------------------------------------------------------- counts

    async def test_final_jobs_are_counted_until_they_are_retried_or_deleted(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        ids = await store_user.add(6)
        await store_user.add(1, queue="other")
        jobs = await store_user.take(4)
        await store_user.succeed(*jobs[:2])
        await store_user.fail(jobs[2])
        await store_user.storage.cancel(ids[5])
        assert await store_user.counts() == QueueCounts("default", 1, 1, 2, 1, 1)
        assert await store_user.counts("other") == QueueCounts("other", 1, 0, 0, 0, 0)
        for id in (jobs[2].id, ids[5]):
            await store_user.storage.retry(id)
        assert await store_user.counts() == QueueCounts("default", 3, 1, 2, 0, 0)
        clock.advance(10)
        assert await store_user.storage.prune(clock.now()) == 2
        assert await store_user.counts() == QueueCounts("default", 3, 1, 0, 0, 0)

    async def test_waiting_and_running_jobs_can_be_counted_without_final_ones(self, store_user: StoreUser) -> None:
        await store_user.add(3)
        jobs = await store_user.take(2)
        await store_user.succeed(jobs[0])
        (counts,) = await store_user.storage.counts(finals=False)
        assert (counts.queue, counts.waiting, counts.running) == ("default", 1, 1)
        assert counts.succeeded in (0, 1)

    # ------------------------------------------------------------------------------------ what is left

    async def test_work_is_left_while_jobs_wait_or_run_on_any_node(self, store_user: StoreUser) -> None:
        assert await left(store_user) == (False, False)
        await store_user.add(1)
        assert await left(store_user) == (True, True)
        job = await store_user.take_one()
        store_user.tasks = {"other"}
        # Whose task it is does not matter: it may enqueue what this node runs.
        assert await left(store_user) == (True, True)
        await store_user.succeed(job)
        assert await left(store_user) == (False, False)

    async def test_jobs_that_wait_for_a_time_a_limit_or_a_job_are_left_but_not_ready(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1, 60)}
        await store_user.add(1, delay=30)
        assert await left(store_user) == (False, True)
        clock.advance(31)
        assert await left(store_user) == (True, True)
        await store_user.succeed(await store_user.take_one())
        await store_user.add(2, buckets=[("api", "acme")])
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take() == []
        assert await left(store_user) == (False, True)
        leader = store_user.new(queue="other")
        follower = replace(store_user.new(queue="mail"), origin=Origin(follows=leader.id))
        await store_user.storage.add([leader, follower])
        assert await left(store_user, "mail") == (False, True)
        assert await left(store_user, "mail", "other") == (True, True)

    async def test_followers_that_are_still_to_be_released_are_left(self, store_user: StoreUser) -> None:
        """The fault: a node that drained ended between two portions of the followers of one job."""
        leader = await store_user.add_one()
        await store_user.storage.add([following(store_user, leader) for _ in range(FOLLOWERS_AT_ONCE + 10)])
        await store_user.succeed(await store_user.take_one())
        await store_user.succeed(*await store_user.take(5000))
        assert await left(store_user) == (True, True)
        assert await left(store_user, "other") == (False, False)
        await store_user.storage.release_followers()
        await store_user.succeed(*await store_user.take(5000))
        assert await left(store_user) == (False, False)

    async def test_jobs_of_other_or_paused_queues_and_other_tasks_are_not_left(self, store_user: StoreUser) -> None:
        await store_user.add(1)
        await store_user.add(1, task="other", queue="mail")
        assert await left(store_user, "mail") == await left(store_user, "nothing") == (False, False)
        await store_user.storage.pause_queue("default")
        assert await left(store_user, *BOTH) == (False, False)
        await store_user.storage.resume_queue("default")
        assert await left(store_user, *BOTH) == (True, True)
        job = await store_user.take_one()
        await store_user.storage.pause_queue("default")
        # It still runs, and may enqueue elsewhere.
        assert await left(store_user, *BOTH) == (True, True)
        await store_user.succeed(job)
        assert await left(store_user, *BOTH) == (False, False)

    # ----------------------------------------------------------------------------------------- pauses

    async def test_no_node_claims_a_job_of_a_paused_queue(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.storage.join("node-b", "b")
        free = await store_user.add(2)
        gated = await store_user.add(2, buckets=[("api", "acme")])
        late = await store_user.add(1, delay=5)
        assert await store_user.storage.paused_queues() == {}
        assert await store_user.storage.pause_queue("default")
        assert await store_user.storage.paused_queues() == {"default": clock.now()}
        later = await store_user.add(2)
        clock.advance(10)
        for node in (store_user.node, "node-b"):
            claimed = await store_user.claim(node=node)
            assert (list(claimed.jobs), claimed.more, claimed.next_in) == ([], False, None)
        assert await store_user.storage.resume_queue("default")
        assert sorted(await store_user.take_ids()) == sorted(free + gated + late + later)

    async def test_no_job_is_claimed_from_a_queue_paused_between_two_claims(self, store_user: StoreUser) -> None:
        await store_user.add(12)
        assert [len((await store_user.claim(4)).jobs) for _ in range(2)] == [4, 4]
        await store_user.storage.pause_queue("default")
        assert not (await store_user.claim(4)).jobs
        await store_user.storage.resume_queue("default")
        assert len((await store_user.claim(4)).jobs) == 4

    async def test_other_queues_continue(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(3, buckets=[("api", "acme")])
        await store_user.storage.pause_queue("default")
        ids = await store_user.add(2, queue="other")
        gated = await store_user.add(2, queue="other", buckets=[("api", "acme")])
        assert sorted(await store_user.take_ids(queues=BOTH)) == sorted(ids + gated[:1])
        # Jobs of the paused queue do not block the same bucket.
        clock.advance(60)
        assert await store_user.take_ids(queues=BOTH) == gated[1:]
        clock.advance(60)
        assert await store_user.take_ids(queues=BOTH) == []
        await store_user.storage.resume_queue("default")
        assert len(await store_user.take(queues=BOTH)) == 1

    async def test_lanes_of_a_paused_queue_do_not_block_permits_for_others(self, store_user: StoreUser) -> None:
        store_user.rules = {"one": at_once()}
        first = await store_user.add_one(buckets=[("one", "")])
        (holder,) = await store_user.take()
        waits = await store_user.add_one(buckets=[("one", "")])
        assert await store_user.take() == []
        await store_user.storage.pause_queue("default")
        other = await store_user.add_one(queue="other", buckets=[("one", "")])
        await store_user.succeed(holder)
        (second,) = await store_user.take(queues=BOTH)
        assert (holder.id, second.id) == (first, other)
        await store_user.storage.resume_queue("default")
        assert await store_user.take(queues=BOTH) == []
        await store_user.succeed(second)
        assert await store_user.take_ids(queues=BOTH) == [waits]

    async def test_keys_of_a_paused_queue_get_no_share_of_a_capacity(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        ceiling: Any = DynamicWindow(per=60, capacity=8, min_count=1).rule
        store_user.rules = {"ceiling": ceiling}
        for key in ("a", "b", "c"):
            await store_user.add(20, buckets=[("ceiling", key)])
        await store_user.add(20, queue="other", buckets=[("ceiling", "d")])
        assert len(await store_user.take(queues=BOTH)) == 8
        await store_user.storage.pause_queue("default")
        clock.advance(180)
        assert len(await store_user.take(queues=BOTH)) == 8
        await store_user.storage.resume_queue("default")
        clock.advance(180)
        shares = Counter(job.buckets[0].key for job in await store_user.take(queues=BOTH))
        assert shares == {"a": 2, "b": 2, "c": 2, "d": 2}

    async def test_a_bucket_that_opens_during_a_pause_is_open_after_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        ids = await store_user.add(3, buckets=[("api", "acme")])
        assert await store_user.take_ids() == ids[:1]
        await store_user.storage.pause_queue("default")
        clock.advance(600)
        assert await store_user.take() == []
        await store_user.storage.resume_queue("default")
        assert await store_user.take_ids() == ids[1:2]

    async def test_running_jobs_of_a_paused_queue_continue(self, store_user: StoreUser, clock: ManualClock) -> None:
        await store_user.add(3)
        done, returned, running = await store_user.take()
        await store_user.storage.pause_queue("default")
        await store_user.succeed(done)
        await store_user.give_back(returned)
        assert (await store_user.storage.beat(store_user.node)).owned == {running.id: running.fence}
        assert await store_user.take() == []
        await store_user.storage.resume_queue("default")
        assert await store_user.take_ids() == [returned.id]

    async def test_jobs_of_a_paused_queue_expire_and_are_cancelled(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        await store_user.storage.pause_queue("default")
        late = await store_user.add_one(expires_in=5)
        unwanted = await store_user.add_one()
        await store_user.storage.cancel(unwanted)
        clock.advance(6)
        assert [dropped.id for dropped in await store_user.storage.expire()] == [late]
        assert await store_user.states([late, unwanted]) == [JobState.FAILED, JobState.CANCELLED]

    async def test_pausing_and_resuming_return_whether_they_changed_anything(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        assert not await storage.resume_queue("default")
        # A queue that never had a job is paused as well as any other.
        assert await storage.pause_queue("default")
        paused_at = storage.now()
        clock.advance(5)
        assert not await storage.pause_queue("default")
        assert await storage.pause_queue("a queue")
        assert await storage.paused_queues() == {"default": paused_at, "a queue": storage.now()}
        assert list(await storage.queues()) == [
            QueueRecord("a queue", storage.now(), None, None),
            QueueRecord("default", paused_at, None, None),
        ]
        assert await storage.resume_queue("default")
        assert await storage.resume_queue("a queue")
        assert await storage.paused_queues() == {}
        assert list(await storage.queues()) == []

    async def test_resuming_wakes_watchers(self, store_user: StoreUser) -> None:
        await store_user.storage.pause_queue("default")
        woken: list[Any] = []
        unwatch = store_user.storage.watch(lambda: woken.append(None))
        woken.clear()
        await store_user.storage.resume_queue("default")
        unwatch()
        assert woken

    # ---------------------------------------------------------------------------------- how long it waits

    async def test_the_oldest_job_is_the_one_that_is_ready_for_longest(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        began = clock.now()
        await store_user.add(1, delay=10)
        assert await record_of(store_user) == QueueRecord("default", None, None, None)
        clock.advance(1)
        low = await store_user.add(1)
        clock.advance(1)
        await store_user.add(2, priority=9)
        await store_user.add(2, priority=9, buckets=[("api", "acme")])
        await store_user.add(1, queue="other", buckets=[("api", "acme")])
        assert (await record_of(store_user)).oldest_at == began + SECOND
        assert (await record_of(store_user, "other")).oldest_at == began + 2 * SECOND
        assert [record.queue for record in await store_user.storage.queues()] == ["default", "other"]
        await store_user.storage.cancel(low[0])
        assert (await record_of(store_user)).oldest_at == began + 2 * SECOND
        # One of the two that use the same bucket has to wait.
        assert len(await store_user.take()) == 3
        assert (await record_of(store_user)).oldest_at == began + 2 * SECOND
        clock.advance(8)
        assert len(await store_user.take()) == 1
        await store_user.storage.pause_queue("default")
        clock.advance(3600)
        assert (await record_of(store_user)).oldest_at == began + 2 * SECOND

    async def test_a_retry_is_as_old_as_the_instant_it_was_due_at(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        await store_user.add()
        await store_user.retry_later(await store_user.take_one(), 10)
        due_at = clock.now() + 10 * SECOND
        assert await record_of(store_user) == QueueRecord("default", None, None, None)
        clock.advance(15)
        assert await record_of(store_user) == QueueRecord("default", None, due_at, due_at)

    async def test_the_lag_of_a_job_without_limits_is_since_it_is_ready(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        began = clock.now()
        await store_user.add(3)
        clock.advance(5)
        assert (await record_of(store_user)).ready_at == began
        await store_user.take(2)
        assert (await record_of(store_user)).ready_at == began
        await store_user.take(1)
        assert await store_user.storage.queues() == []

    async def test_the_lag_of_a_job_with_open_limits_is_since_its_lane_is_due(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(100)}
        began = clock.now()
        await store_user.add(3, buckets=[("api", "acme")])
        # Limit time has nothing to do with it.
        clock.step_wall(-3600)
        clock.advance(5)
        assert (await record_of(store_user)).ready_at == began - 3600 * SECOND
        await store_user.take()
        await store_user.add(1, buckets=[("api", "acme")], delay=10)
        due_at = clock.now() + 10 * SECOND
        assert (await record_of(store_user)).ready_at is None
        clock.advance(60)
        assert (await record_of(store_user)).ready_at == due_at

    async def test_the_lag_of_a_job_is_known_beside_a_delayed_one_before_any_node_claims(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: a queue that no worker served had no lag until the delayed job was due, so none was started."""
        store_user.rules = {"api": strict(100)}
        await store_user.add(1, buckets=[("api", "acme")], delay=3600)
        assert await store_user.take() == []
        began = clock.now()
        await store_user.add(1, buckets=[("api", "acme")])
        clock.advance(60)
        assert (await record_of(store_user)).ready_at == began

    async def test_a_turn_of_its_lane_does_not_end_the_lag_of_a_job(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: the lag of a job with an open limit was the time since the last start of its lane."""
        store_user.rules = {"api": strict(3)}
        began = clock.now()
        await store_user.add(10, buckets=[("api", "acme")])
        for _ in range(2):
            clock.advance(5)
            assert len(await store_user.take(1)) == 1
            assert (await record_of(store_user)).ready_at == began
        assert len(await store_user.take(2)) == 1
        assert (await record_of(store_user)).ready_at is None
        clock.advance(60)
        assert len(await store_user.take(1)) == 1
        # Since the limit has opened for it.
        opened = began + 65 * SECOND
        for _ in range(2):
            clock.advance(7)
            assert (await record_of(store_user)).ready_at == opened
            assert len(await store_user.take(1)) == 1

    async def test_a_job_behind_a_closed_bucket_has_no_lag(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1), "one": at_once()}
        began = clock.now()
        await store_user.add(2, buckets=[("api", "acme")])
        await store_user.add(2, buckets=[("one", "")], queue="other")
        first = await store_user.take(queues=BOTH)
        assert len(first) == 2
        assert await record_of(store_user) == QueueRecord("default", None, began, None)
        assert await record_of(store_user, "other") == QueueRecord("other", None, began, None)
        clock.advance(90)
        assert (await record_of(store_user)).ready_at == began + 60 * SECOND
        assert (await record_of(store_user, "other")).ready_at is None
        await store_user.succeed(*first)
        assert (await record_of(store_user, "other")).ready_at == clock.now()

    async def test_a_job_of_a_paused_queue_has_no_lag(self, store_user: StoreUser, clock: ManualClock) -> None:
        began = clock.now()
        await store_user.add()
        await store_user.storage.pause_queue("default")
        clock.advance(5)
        assert await record_of(store_user) == QueueRecord("default", began, began, None)
        await store_user.storage.resume_queue("default")
        assert await record_of(store_user) == QueueRecord("default", None, began, began)

    # -------------------------------------------------------------------------------------- in the way

    async def test_a_store_without_other_clients_has_no_blockers(self, store_user: StoreUser) -> None:
        await store_user.add(2)
        await store_user.take(1)
        assert list(await store_user.storage.blockers()) == []

    async def test_a_store_returns_facts_about_its_server(self, store_user: StoreUser) -> None:
        facts = await store_user.storage.facts()
        match facts:
            case SqliteFacts():
                assert facts.can_write
                assert 0 < facts.free_bytes <= facts.disk_bytes
            case PostgresFacts():
                assert facts.used_connections <= facts.max_connections
                assert "job" in [table.name.rpartition(".")[2] for table in facts.tables]
            case MemoryFacts():
                pass

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)])
    async def test_a_claim_divides_its_slots_among_queues(
        self, store_user: StoreUser, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": rate(1000, burst=1000)}
        for queue in ("one", "two"):
            await store_user.add(20, queue=queue, buckets=buckets)
        free_slots = {"one": FreeSlots(10), "two": FreeSlots(10, weight=3), "none": FreeSlots(10)}
        asked = Claim(store_user.node, free_slots, store_user.rules, frozenset(store_user.tasks), shared_slots=8)
        claimed = await store_user.storage.claim(asked)
        counts = Counter(job.queue for job in claimed.jobs)
        # Of one lane, a claim reads as many jobs as the slots for each lane that it visits.
        assert counts == {"one": 2, "two": 4 if buckets else 6}
        assert claimed.more

    @pytest.mark.parametrize("order", ["api", "fair:one"])
    async def test_a_queue_of_few_keys_gets_its_part_of_the_slots_in_each_claim(
        self, store_user: StoreUser, order: str
    ) -> None:
        """The fault on PostgreSQL: it got none in claims that went on by what the last one had left of other queues."""
        store_user.rules = {"api": rate(1000, burst=1000), "fair:one": FairOrder("{0}", {}).rule}
        await store_user.add(60, queue="one", buckets=[(order, "a")])
        for key in range(40):
            await store_user.add(8, queue="two", buckets=[("api", str(key))])
        free_slots = {"one": FreeSlots(8), "two": FreeSlots(8)}
        asked = Claim(store_user.node, free_slots, store_user.rules, frozenset(store_user.tasks), shared_slots=8)
        for _ in range(6):
            claimed = await store_user.storage.claim(asked)
            assert Counter(job.queue for job in claimed.jobs) == {"one": 4, "two": 4}
            await store_user.succeed(*claimed.jobs)

    async def test_slots_that_jobs_with_limits_cannot_use_go_to_jobs_without_limits(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"api": rate(1, burst=1)}
        await store_user.add(20, queue="one", buckets=[("api", "acme")])
        await store_user.add(20, queue="two")
        free_slots = {"one": FreeSlots(10), "two": FreeSlots(10)}
        asked = Claim(store_user.node, free_slots, store_user.rules, frozenset(store_user.tasks), shared_slots=8)
        claimed = await store_user.storage.claim(asked)
        assert Counter(job.queue for job in claimed.jobs) == {"one": 1, "two": 7}
