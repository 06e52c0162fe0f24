"""What is promised of permits: how many are held, by which jobs, for how long, and which job is next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar

import pytest

from headgate.clock import SECOND
from headgate.jobs.job import BucketRef, ClaimedJob, JobState
from headgate.jobs.lifecycle import POISONOUS_AFTER, Finished
from headgate.jobs.limit_sets import NO_LIMIT_SETS, KnownLimitSets, LimitSetChange
from headgate.jobs.query import JobFilter
from headgate.jobs.terms import LimitTerms, PermitTerms
from headgate.limits.concurrency import Semaphore
from headgate.limits.limit import HoldUntil
from headgate.limits.rule import NEVER
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import BOOM, Conformance, StoreUser, at_once, recover, strict

MUTEX = [("mutex", "orders")]

KEEPS: list[HoldUntil] = ["until_final", "until_success"]


class BrokenRule(Semaphore, frozen=True, tag="broken", tag_field="kind"):
    """A rule whose states cannot be stored: a claim by it fails while it writes."""

    kind: ClassVar[str] = "broken"

    def dump(self, state: Any) -> str:
        raise ZeroDivisionError

    def for_key(self, *_: Any) -> Any:
        return self


class PermitsConformance(Conformance):
    # ------------------------------------------------------------------------------------ taking turns

    async def test_no_more_jobs_than_the_count_run_at_once(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": at_once(3)}
        ids = await store_user.add(8, buckets=[("api", "acme")])
        jobs = await store_user.take()
        assert [job.id for job in jobs] == ids[:3]
        assert await store_user.take() == []
        for done in range(5):
            await store_user.succeed(jobs[done])
            jobs += await store_user.take()
            assert [job.id for job in jobs] == ids[: 4 + done]

    async def test_a_mutex_is_handed_over_first_come_first_served(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        ids = []
        for _ in range(5):
            ids += await store_user.add(buckets=MUTEX)
            clock.advance(1)
        order = []
        while jobs := await store_user.take():
            (job,) = jobs
            order.append(job.id)
            await store_user.succeed(job)
        assert order == ids

    async def test_a_mutex_is_handed_over_across_queues_and_limits_in_the_order_of_arrival(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"mutex": at_once(), "api": strict(100)}
        queues = ["left", "right"]
        ids = []
        for number in range(6):
            buckets = [*MUTEX, ("api", str(number))] if number % 3 else MUTEX
            ids += await store_user.add(buckets=buckets, queue=queues[number % 2])
            clock.advance(1)
        order = []
        while jobs := await store_user.take(queues=queues):
            (job,) = jobs
            order.append(job.id)
            await store_user.succeed(job)
            clock.advance(1)
        assert order == ids

    async def test_each_key_has_its_own_permits(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": at_once(2)}
        for key in "abc":
            await store_user.add(5, buckets=[("api", key)])
        assert len(await store_user.take()) == 6

    async def test_a_job_that_waits_for_a_permit_has_no_predicted_start(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        holder, first, second = await store_user.add(3, buckets=MUTEX)
        claims = [await store_user.claim() for _ in range(3)]
        (throttled,) = [throttled for claim in claims for throttled in claim.throttled]
        assert (throttled.ref, throttled.opens_at, throttled.waiting) == (BucketRef("mutex", "orders"), None, 2)
        assert (claims[-1].next_in, claims[-1].more) == (None, False)
        record = await store_user.record(second)
        assert (record.throttled_until, record.waits_for, record.lane_waiting) == (
            None,
            BucketRef("mutex", "orders"),
            2,
        )
        assert [(await store_user.record(id)).held for id in (holder, first)] == [1, 0]
        bucket = await store_user.bucket("mutex", "orders")
        assert (bucket.opens_at, bucket.waiting, bucket.lanes) == (NEVER, 2, 1)
        assert await store_user.permits("mutex", "orders") == {holder: 1}

    async def test_only_jobs_that_can_start_are_read_when_a_permit_is_returned(
        self, store_user: StoreUser, storage: Store
    ) -> None:
        store_user.rules = {"mutex": at_once(), "own": strict(100)}
        jobs = [store_user.new(buckets=[*MUTEX, ("own", str(number))]) for number in range(300)]
        await storage.add(jobs)
        holder = await store_user.take_one()
        while (await store_user.claim(100)).more:
            pass
        for _ in range(20):
            before = self.writes(storage)
            await store_user.succeed(holder)
            claimed = await store_user.claim(100)
            (holder,) = claimed.jobs
            assert len(claimed.throttled) <= 1
            after = self.writes(storage)
            assert before is None or after is None or after - before < 20

    async def test_ten_thousand_jobs_wait_for_one_mutex(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        jobs = [store_user.new(buckets=MUTEX) for _ in range(10_000)]
        await store_user.storage.add(jobs)
        for job in jobs[:50]:
            holder = await store_user.take_one()
            assert holder.id == job.id
            await store_user.succeed(holder)
        assert (await store_user.counts()).waiting == 9_950

    async def test_jobs_of_other_keys_start_while_a_mutex_is_held(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(500, buckets=MUTEX)
        await store_user.take()
        for number in range(10):
            (other,) = await store_user.add(buckets=[("mutex", f"other {number}")])
            claimed = await store_user.claim(2)
            assert [job.id for job in claimed.jobs] == [other]
            assert list(claimed.throttled) == []

    # ------------------------------------------------------------------------------------- giving back

    @pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled", "handed back", "snoozed", "retried"])
    async def test_a_permit_is_returned_in_the_commit_that_ends_its_attempt(
        self, store_user: StoreUser, clock: ManualClock, outcome: str
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, priority=1)
        job = await store_user.take_one()
        (waiting,) = await store_user.add(buckets=MUTEX)
        assert await store_user.take() == []
        match outcome:
            case "succeeded":
                await store_user.succeed(job)
            case "failed":
                await store_user.fail(job)
            case "cancelled":
                await store_user.storage.finish(store_user.node, [Finished(job.id, job.fence, JobState.CANCELLED)])
            case "handed back":
                await store_user.give_back(job)
                await store_user.storage.cancel(job.id)
            case "snoozed":
                await store_user.give_back(job, "snoozed", run_at=clock.now() + SECOND)
            case _:
                await store_user.retry_later(job)
        assert (await store_user.record(job.id)).held == 0
        assert await store_user.permits("mutex", "orders") == {}
        assert await store_user.take_ids() == [waiting]

    async def test_a_returned_permit_wakes_watchers(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(2, buckets=MUTEX)
        job = await store_user.take_one()
        woken: list[bool] = []
        unwatch = store_user.storage.watch_queues(lambda queues: woken.append(True))
        await store_user.succeed(job)
        assert woken
        unwatch()

    async def test_a_permit_is_returned_when_the_node_of_its_holder_dies(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        first, second = await store_user.add(2, buckets=MUTEX)
        await store_user.take_one()
        await recover(store_user)
        assert await store_user.permits("mutex", "orders") == {}
        job = await store_user.take_one(node="node-b")
        assert job.id == first
        assert await store_user.permits("mutex", "orders") == {first: 1}
        assert await store_user.take(node="node-b") == []
        await store_user.storage.finish("node-b", [Finished(first, job.fence, JobState.SUCCEEDED)])
        assert await store_user.take_ids(node="node-b") == [second]

    async def test_a_permit_is_returned_when_the_node_of_its_holder_leaves(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        ids = await store_user.add(2, buckets=MUTEX)
        await store_user.take_one()
        await store_user.storage.leave(store_user.node)
        assert await store_user.permits("mutex", "orders") == {}
        await store_user.storage.join(store_user.node, "a")
        assert await store_user.take_ids() == ids[:1]

    async def test_a_poisonous_job_returns_its_permit(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        (poisonous,) = await store_user.add(buckets=MUTEX, priority=1, hold="until_final")
        (next_one,) = await store_user.add(buckets=MUTEX)
        for _ in range(POISONOUS_AFTER):
            assert await store_user.take_ids() == [poisonous]
            await recover(store_user)
            await store_user.storage.join(store_user.node, "a")
        assert (await store_user.record(poisonous)).state is JobState.FAILED
        assert await store_user.take_ids() == [next_one]

    async def test_a_job_asked_to_stop_returns_its_permit_instead_of_waiting_again(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold="until_success")
        job = await store_user.take_one()
        (waiting,) = await store_user.add(buckets=MUTEX)
        await store_user.take()
        await store_user.storage.cancel(job.id)
        await store_user.retry_later(job)
        assert (await store_user.record(job.id)).state is JobState.CANCELLED
        assert await store_user.take_ids() == [waiting]

    async def test_a_late_finish_returns_no_permit(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(2, buckets=MUTEX)
        job = await store_user.take_one()
        await recover(store_user)
        again = await store_user.take_one(node="node-b")
        assert again.id == job.id
        late = Finished(job.id, job.fence, JobState.SUCCEEDED)
        assert list(await store_user.storage.finish(store_user.node, [late])) == [False]
        assert await store_user.permits("mutex", "orders") == {job.id: 1}
        assert await store_user.take(node="node-b") == []

    async def test_cancelling_a_waiting_job_does_not_change_the_holder(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        holder, cancelled, next_one = await store_user.add(3, buckets=MUTEX)
        job = await store_user.take_one()
        await store_user.take()
        await store_user.storage.cancel(cancelled)
        assert await store_user.permits("mutex", "orders") == {holder: 1}
        assert await store_user.take() == []
        await store_user.succeed(job)
        assert await store_user.take_ids() == [next_one]

    async def test_held_permits_are_not_evicted(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold="until_final")
        job = await store_user.take_one()
        await store_user.retry_later(job)
        clock.advance(3600)
        for _ in range(5):
            await store_user.storage.evict()
        (other,) = await store_user.add(buckets=MUTEX)
        again = await store_user.take_one()
        assert again.id == job.id
        assert await store_user.take() == []
        await store_user.succeed(again)
        assert await store_user.take_ids() == [other]

    async def test_a_bucket_without_holders_is_evicted(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold="until_success")
        job = await store_user.take_one()
        await store_user.fail(job)
        for _ in range(5):
            await store_user.storage.evict()
        await store_user.storage.cancel(job.id)
        assert len(await store_user.storage.buckets()) == 1
        await store_user.storage.retry(job.id)
        await store_user.succeed(await store_user.take_one())
        for _ in range(5):
            await store_user.storage.evict()
        assert list(await store_user.storage.buckets()) == []

    async def test_a_claim_that_fails_holds_and_charges_nothing(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once(), "api": strict(1), "own": at_once()}
        buckets = [*MUTEX, ("api", ""), ("own", "")]
        ids = await store_user.add(3, buckets=buckets)
        ungated = await store_user.add(2)
        with pytest.raises(ZeroDivisionError):
            await store_user.claim(rules={**store_user.rules, "own": BrokenRule(1)})
        assert await store_user.permits("mutex", "orders") == {}
        assert list(await store_user.storage.check()) == []
        assert (await store_user.storage.beat(store_user.node)).owned == {}
        assert sorted(await store_user.take_ids()) == sorted([ids[0], *ungated])

    async def test_a_claim_that_fails_leaves_waiting_jobs_in_their_lanes(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"mutex": at_once(), "own": strict(100)}
        ids = []
        for number in range(4):
            ids += await store_user.add(buckets=[*MUTEX, ("own", str(number))])
            clock.advance(1)
        for id in ids[:3]:
            holder = await store_user.take_one()
            assert holder.id == id
            await store_user.succeed(holder)
            with pytest.raises(ZeroDivisionError):
                await store_user.claim(rules={**store_user.rules, "own": BrokenRule(1)})
        assert await store_user.take_ids() == ids[3:]

    # --------------------------------------------------------------------------- holding until the end

    @pytest.mark.parametrize("hold", KEEPS)
    async def test_a_permit_is_kept_across_a_retry_and_its_holder_starts_first(
        self, store_user: StoreUser, clock: ManualClock, hold: HoldUntil
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold=hold)
        job = await store_user.take_one()
        others = await store_user.add(2, buckets=MUTEX, priority=9)
        await store_user.retry_later(job, 10)
        record = await store_user.record(job.id)
        assert (record.held, record.waits_for, record.lane_waiting) == (1, None, 1)
        for _ in range(3):
            assert await store_user.take() == []
        clock.advance(10)
        again = await store_user.take_one()
        assert (again.id, again.attempt) == (job.id, 2)
        assert await store_user.permits("mutex", "orders") == {job.id: 1}
        assert await store_user.take() == []
        await store_user.succeed(again)
        assert await store_user.take_ids() == others[:1]

    @pytest.mark.parametrize("hold", KEEPS)
    async def test_a_permit_is_kept_when_its_job_is_returned_snoozed_or_lost(
        self, store_user: StoreUser, clock: ManualClock, hold: HoldUntil
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold=hold)
        job = await store_user.take_one()
        await store_user.add(2, buckets=MUTEX, priority=9)

        async def again(give_up: Callable[[ClaimedJob], Awaitable[object]]) -> None:
            nonlocal job
            await give_up(job)
            assert await store_user.permits("mutex", "orders") == {job.id: 1}
            await store_user.storage.join(store_user.node, "a") if store_user.node not in await nodes() else None
            (job,) = await store_user.take()
            assert job.id == holder
            assert await store_user.permits("mutex", "orders") == {job.id: 1}

        async def nodes() -> set[str]:
            return {node.id for node in await store_user.storage.nodes()}

        holder = job.id
        await again(store_user.give_back)
        await again(lambda job: store_user.give_back(job, "snoozed", run_at=clock.now()))
        await again(lambda job: store_user.storage.leave(store_user.node))
        await again(lambda job: recover(store_user))
        await store_user.succeed(job)
        assert await store_user.permits("mutex", "orders") == {}

    async def test_a_permit_held_until_final_is_returned_by_a_failure(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold="until_final")
        job = await store_user.take_one()
        (waiting,) = await store_user.add(buckets=MUTEX)
        await store_user.retry_later(job, 0)
        await store_user.fail(await store_user.take_one())
        assert (await store_user.record(job.id)).held == 0
        assert await store_user.take_ids() == [waiting]

    @pytest.mark.parametrize("hold", KEEPS)
    async def test_a_holder_that_is_cancelled_while_it_waits_returns_its_permit(
        self, store_user: StoreUser, hold: HoldUntil
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold=hold)
        job = await store_user.take_one()
        (waiting,) = await store_user.add(buckets=MUTEX)
        await store_user.retry_later(job)
        assert await store_user.take() == []
        await store_user.storage.cancel(job.id)
        assert (await store_user.record(job.id)).held == 0
        assert await store_user.take_ids() == [waiting]

    async def test_a_holder_that_expires_returns_its_permit(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold="until_final", expires_in=5)
        job = await store_user.take_one()
        (waiting,) = await store_user.add(buckets=MUTEX)
        await store_user.retry_later(job, 60)
        assert await store_user.take() == []
        clock.advance(5)
        assert [dropped.id for dropped in await store_user.storage.expire()] == [job.id]
        assert await store_user.take_ids() == [waiting]

    @pytest.mark.parametrize("buckets", [MUTEX, [*MUTEX, ("api", "")]], ids=["then ungated", "then gated"])
    async def test_the_permit_of_a_holder_that_a_claim_finds_expired_is_free_immediately(
        self, store_user: StoreUser, clock: ManualClock, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"mutex": at_once(), "api": strict(100)}
        await store_user.add(buckets=buckets, hold="until_final", expires_in=5)
        job = await store_user.take_one()
        (waiting,) = await store_user.add(buckets=MUTEX)
        await store_user.retry_later(job, 4)
        assert await store_user.take() == []
        clock.advance(5)
        # Nothing else is going to happen, so the claim itself has to say that there is more.
        assert await store_user.take_ids() == [waiting]
        assert (await store_user.record(job.id)).state is JobState.FAILED

    async def test_a_job_from_before_its_limit_granted_permits_waits_for_one_and_leaves_none_held(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        (holder,) = await store_user.add(buckets=MUTEX)
        # Of a release to which it was a rate.
        store_user.rules = {"mutex": strict(1)}
        (old,) = await store_user.add(buckets=MUTEX)
        store_user.rules = {"mutex": at_once()}
        first = await store_user.take_one()
        assert first.id == holder
        assert await store_user.take() == []
        await store_user.succeed(first)
        assert await store_user.take_ids() == [old]
        assert await store_user.permits("mutex", "orders") == {}

    async def test_a_claim_that_finds_a_holder_expired_and_starts_another_one_counts_both(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"slots": at_once(2), "api": strict(100)}
        await store_user.add(buckets=[("slots", ""), ("api", "")], hold="until_final", expires_in=5)
        job = await store_user.take_one()
        await store_user.retry_later(job, 4)
        clock.advance(5)
        ids = await store_user.add(3, buckets=[("slots", "")])
        assert await store_user.take_ids() == ids[:2]
        assert await store_user.permits("slots") == dict.fromkeys(ids[:2], 1)

    async def test_a_permit_held_until_success_is_kept_by_a_failed_job_until_it_succeeds(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold="until_success")
        job = await store_user.take_one()
        (waiting,) = await store_user.add(buckets=MUTEX)
        await store_user.fail(job)
        record = await store_user.record(job.id)
        assert (record.state, record.held) == (JobState.FAILED, 1)
        assert await store_user.take() == []
        await store_user.storage.retry(job.id)
        again = await store_user.take_one()
        assert again.id == job.id
        assert await store_user.permits("mutex", "orders") == {job.id: 1}
        await store_user.succeed(again)
        assert await store_user.take_ids() == [waiting]

    async def test_a_permit_held_until_success_is_returned_by_a_reset(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold="until_success")
        job = await store_user.take_one()
        (waiting,) = await store_user.add(buckets=MUTEX)
        await store_user.fail(job)
        assert await store_user.take() == []
        assert await store_user.storage.reset(BucketRef("mutex", "orders")) == 0
        assert (await store_user.record(job.id)).held == 0
        assert await store_user.take_ids() == [waiting]

    async def test_a_permit_held_until_success_is_returned_when_a_new_limit_set_does_not_have_it(
        self, store_user: StoreUser
    ) -> None:
        storage = store_user.storage
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold="until_success")
        job = await store_user.take_one()
        (waiting,) = await store_user.add(buckets=MUTEX)
        tasks = frozenset({"work"})
        assert list(await storage.failed_holders(tasks, other_than=NO_LIMIT_SETS)) == []
        buckets = (BucketRef("mutex", "orders"),)
        without = LimitSetChange(job.id, buckets, (), None, None)
        # It is not failed yet.
        assert await storage.release_failed([without]) == 0
        await store_user.fail(job)
        (holder,) = await storage.failed_holders(tasks, other_than=NO_LIMIT_SETS)
        assert (holder.id, holder.buckets) == (job.id, buckets)
        assert list(await storage.failed_holders(tasks, other_than=KnownLimitSets([holder.limit_set]))) == []
        assert list(await storage.failed_holders(frozenset({"other"}), other_than=NO_LIMIT_SETS)) == []
        assert list(await storage.failed_holders(tasks, other_than=NO_LIMIT_SETS, after=job.id)) == []
        same = LimitTerms((PermitTerms("until_success"),))
        assert await storage.release_failed([LimitSetChange(job.id, buckets, buckets, None, same)]) == 0
        assert await store_user.take() == []
        assert await storage.release_failed([without]) == 1
        assert await storage.release_failed([without]) == 0
        assert (await store_user.record(job.id)).held == 0
        assert await store_user.take_ids() == [waiting]
        # A retried one waits for a permit, like any other.
        await storage.retry(job.id)
        assert await store_user.take() == []

    async def test_a_permit_held_until_success_is_returned_when_the_failed_job_is_pruned(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold="until_success")
        job = await store_user.take_one()
        (waiting,) = await store_user.add(buckets=MUTEX)
        await store_user.fail(job)
        assert await store_user.take() == []
        clock.advance(1)
        assert await store_user.storage.prune(clock.now()) == 1
        assert await store_user.take_ids() == [waiting]

    async def test_a_failed_holder_that_is_retried_and_cancelled_returns_its_permit(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX, hold="until_success")
        job = await store_user.take_one()
        (waiting,) = await store_user.add(buckets=MUTEX)
        await store_user.fail(job)
        await store_user.storage.retry(job.id)
        await store_user.storage.cancel(job.id)
        assert await store_user.take_ids() == [waiting]

    async def test_a_holder_waits_for_its_other_limits(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"mutex": at_once(), "api": strict(1)}
        await store_user.add(buckets=[*MUTEX, ("api", "acme")], hold="until_final")
        job = await store_user.take_one()
        assert job.buckets == (BucketRef("mutex", "orders"), BucketRef("api", "acme"))
        await store_user.give_back(job)
        assert await store_user.take() == []
        record = await store_user.record(job.id)
        assert (record.waits_for, record.held) == (BucketRef("api", "acme"), 1)
        clock.advance(60)
        again = await store_user.take_one()
        assert (again.id, again.buckets, again.gated) == (job.id, (BucketRef("api", "acme"),), True)
        await store_user.succeed(again)

    async def test_costs_stay_with_their_limits_when_a_permit_is_kept(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"slots": at_once(5), "tokens": strict(10)}
        await store_user.add(buckets=[("slots", ""), ("tokens", "")], costs=(4, 7), hold="until_final")
        job = await store_user.take_one()
        assert job.costs == (4, 7)
        await store_user.retry_later(job, 0)
        assert await store_user.take() == []
        clock.advance(60)
        again = await store_user.take_one()
        assert again.costs == (7,)
        assert len(await store_user.take_ids()) == 0
        (small,) = await store_user.add(buckets=[("slots", ""), ("tokens", "")], costs=(1, 3))
        await store_user.add(buckets=[("slots", ""), ("tokens", "")], costs=(1, 1))
        assert await store_user.take_ids() == [small]
        assert await store_user.permits("slots") == {job.id: 1, small: 1}

    # ------------------------------------------------------------------------------------------ owners

    async def test_jobs_of_one_owner_share_a_permit_and_others_wait(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        batch = await store_user.add(3, buckets=MUTEX, owner="batch 1")
        other = await store_user.add(2, buckets=MUTEX, owner="batch 2")
        jobs = await store_user.take()
        assert [job.id for job in jobs] == batch
        assert await store_user.permits("mutex", "orders") == {"owner:batch 1": 3}
        late = await store_user.add(buckets=MUTEX, owner="batch 1")
        jobs += await store_user.take()
        assert [job.id for job in jobs] == [*batch, *late]
        for job in jobs:
            assert await store_user.take() == []
            await store_user.succeed(job)
        assert await store_user.take_ids() == other

    async def test_an_owner_is_not_the_job_with_that_id(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        (holder,) = await store_user.add(buckets=MUTEX)
        await store_user.take_one()
        await store_user.add(buckets=MUTEX, owner=holder)
        assert await store_user.take() == []

    async def test_an_owner_keeps_its_permit_while_one_of_its_jobs_does(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(2, buckets=MUTEX, owner="batch", hold="until_final")
        (outsider,) = await store_user.add(buckets=MUTEX)
        first, second = await store_user.take()
        await store_user.retry_later(first, 10)
        await store_user.succeed(second)
        assert await store_user.permits("mutex", "orders") == {"owner:batch": 1}
        (late,) = await store_user.add(buckets=MUTEX, owner="batch", hold="until_final")
        assert await store_user.take_ids() == [late]
        clock.advance(10)
        again = await store_user.take_one()
        assert again.id == first.id
        assert await store_user.permits("mutex", "orders") == {"owner:batch": 2}
        await store_user.succeed(again)
        assert await store_user.take() == []
        await store_user.storage.leave(store_user.node)
        assert await store_user.permits("mutex", "orders") == {"owner:batch": 1}
        await store_user.storage.cancel(late)
        await store_user.storage.join(store_user.node, "a")
        assert await store_user.take_ids() == [outsider]

    async def test_an_owner_shares_its_permit_across_queues(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        (left,) = await store_user.add(buckets=MUTEX, owner="batch", queue="left")
        assert await store_user.take_ids(queues=["left"]) == [left]
        (right,) = await store_user.add(buckets=MUTEX, owner="batch", queue="right")
        assert await store_user.take_ids(queues=["right"]) == [right]
        assert await store_user.permits("mutex", "orders") == {"owner:batch": 2}

    async def test_a_crashed_owner_returns_one_use_for_each_of_its_jobs(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.storage.join("node-b", "b")
        mine, theirs = await store_user.add(2, buckets=MUTEX, owner="batch")
        assert await store_user.take_ids(1) == [mine]
        assert await store_user.take_ids(1, node="node-b") == [theirs]
        (outsider,) = await store_user.add(buckets=MUTEX)
        await recover(store_user)
        assert await store_user.permits("mutex", "orders") == {"owner:batch": 1}
        await store_user.storage.cancel(mine)
        assert await store_user.take(node="node-b") == []
        await store_user.storage.leave("node-b")
        await store_user.storage.cancel(theirs)
        await store_user.storage.join("node-b", "b")
        assert await store_user.take_ids(node="node-b") == [outsider]

    # ------------------------------------------------------------------------------- together with rates

    async def test_a_job_refused_by_a_rate_holds_no_permit(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"mutex": at_once(), "api": strict(1)}
        both = [*MUTEX, ("api", "acme")]
        for buckets in (both, both[::-1]):
            await store_user.add(2, buckets=buckets)
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take() == []
        assert await store_user.permits("mutex", "orders") == {}
        (other,) = await store_user.add(buckets=MUTEX)
        assert await store_user.take_ids() == [other]

    async def test_a_job_refused_for_a_permit_is_charged_for_no_rate(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once(), "api": strict(2)}
        both = [*MUTEX, ("api", "acme")]
        for buckets in (both, both[::-1]):
            await store_user.add(2, buckets=buckets)
        holder = await store_user.take_one()
        for _ in range(3):
            assert await store_user.take() == []
        (other,) = await store_user.add(buckets=[("api", "acme")])
        assert await store_user.take_ids() == [other]
        assert [start.cost for start in await store_user.storage.starts("api", "acme", 0)] == [1, 1]
        await store_user.succeed(holder)
        assert await store_user.take() == []
        assert await store_user.permits("mutex", "orders") == {}

    async def test_a_job_that_waits_for_a_rate_does_not_block_the_permit_for_others(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"mutex": at_once(), "api": strict(1)}
        holder = await store_user.add_one(buckets=[*MUTEX, ("api", "acme")])
        assert await store_user.take_ids() == [holder]
        (slow,) = await store_user.add(buckets=[*MUTEX, ("api", "acme")])
        await store_user.take()
        clock.advance(1)
        quick = await store_user.add(2, buckets=MUTEX)
        await store_user.take()
        for id in (holder, *quick):
            (running,) = await store_user.storage.jobs(JobFilter(state=JobState.RUNNING))
            assert running.id == id
            await store_user.storage.finish(store_user.node, [Finished(id, running.fence, JobState.SUCCEEDED)])
            await store_user.take()
        clock.advance(60)
        assert await store_user.take_ids() == [slow]

    # ------------------------------------------------------------------------------------------- costs

    async def test_a_permit_may_cost_more_than_one(self, store_user: StoreUser) -> None:
        store_user.rules = {"slots": at_once(5)}
        ids = [await store_user.add_one(buckets=[("slots", "")], costs=(cost,)) for cost in (2, 2, 2, 1)]
        jobs = await store_user.take()
        # No overtaking inside a lane: the cheap one waits behind the costly one.
        assert [job.id for job in jobs] == ids[:2]
        await store_user.succeed(jobs[0])
        assert await store_user.take_ids() == ids[2:]

    async def test_a_costly_permit_is_not_starved_by_cheap_ones(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"slots": at_once(3), "own": strict(1000)}
        cheap = await store_user.add(3, buckets=[("slots", ""), ("own", "first")], costs=(1, 1))
        running = await store_user.take()
        assert [job.id for job in running] == cheap
        (costly,) = await store_user.add(buckets=[("slots", ""), ("own", "costly")], costs=(3, 1))
        await store_user.take()
        for number in range(3):
            await store_user.add(buckets=[("slots", ""), ("own", str(number))], costs=(1, 1))
            clock.advance(1)
            await store_user.succeed(running.pop())
            started = await store_user.take_ids()
            assert started == ([costly] if number == 2 else [])

    @pytest.mark.parametrize("limit", ["slots", "tokens"])
    async def test_a_cheap_job_does_not_wait_behind_a_rejected_costly_one(
        self, store_user: StoreUser, clock: ManualClock, limit: str
    ) -> None:
        store_user.rules = {"slots": at_once(3), "tokens": strict(3)}
        buckets = [(limit, "")]
        await store_user.add(buckets=buckets, costs=(2,))
        await store_user.take_one()
        (costly,) = await store_user.add(buckets=buckets, costs=(2,), patience=0)
        clock.advance(1)
        (cheap,) = await store_user.add(buckets=buckets, costs=(1,))
        assert await store_user.take_ids() == [cheap]
        assert await store_user.states([costly]) == [JobState.FAILED]

    @pytest.mark.parametrize("limit", ["slots", "tokens"])
    @pytest.mark.parametrize("same_lane", [True, False])
    async def test_a_cheap_job_does_not_wait_behind_a_cancelled_costly_one(
        self, store_user: StoreUser, limit: str, same_lane: bool
    ) -> None:
        store_user.rules = {"slots": at_once(3), "tokens": strict(3), "own": strict(100)}
        buckets = [(limit, ""), ("own", "")]
        await store_user.add(buckets=buckets, costs=(2, 1))
        await store_user.take_one()
        (costly,) = await store_user.add(buckets=buckets, costs=(2, 1))
        assert await store_user.take() == []
        (cheap,) = await store_user.add(
            buckets=buckets if same_lane else buckets[:1], costs=(1, 1) if same_lane else (1,)
        )
        assert await store_user.take() == []
        await store_user.storage.cancel(costly)
        assert await store_user.take_ids() == [cheap]

    async def test_a_job_that_needs_more_permits_than_there_are_fails(self, store_user: StoreUser) -> None:
        store_user.rules = {"slots": at_once(5)}
        (impossible,) = await store_user.add(buckets=[("slots", "")], costs=(6,))
        (possible,) = await store_user.add(buckets=[("slots", "")], costs=(5,))
        assert await store_user.take_ids() == [possible]
        record = await store_user.record(impossible)
        assert record.error is not None
        assert (record.state, record.error.type) == (JobState.FAILED, "headgate.errors.CostExceedsLimit")

    # ------------------------------------------------------------------------------------------ counts

    async def test_a_count_lowered_below_the_held_permits_starts_no_job_until_enough_are_returned(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"api": at_once(4)}
        ids = await store_user.add(8, buckets=[("api", "")])
        jobs = await store_user.take()
        store_user.rules = {"api": at_once(2)}
        for number, job in enumerate(jobs[:2]):
            assert await store_user.take() == [], number
            await store_user.succeed(job)
        assert await store_user.take() == []
        assert len(await store_user.permits("api")) == 2
        await store_user.succeed(jobs[2])
        assert await store_user.take_ids() == ids[4:5]

    async def test_holders_whose_count_was_lowered_keep_their_permits_across_retries(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"api": at_once(2)}
        ids = await store_user.add(3, buckets=[("api", "")], hold="until_final")
        first, second = await store_user.take()
        store_user.rules = {"api": at_once(1)}
        await store_user.give_back(first)
        await store_user.give_back(second)
        assert sorted(await store_user.take_ids()) == sorted(ids[:2])

    async def test_permits_are_not_closed_by_a_refusal(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"mutex": at_once(), "api": strict(100)}
        await store_user.add(buckets=[*MUTEX, ("api", "acme")])
        job = await store_user.take_one()
        await store_user.give_back(job, "refused", closed_for=30 * SECOND)
        (other,) = await store_user.add(buckets=MUTEX)
        assert await store_user.take_ids() == [other]
        assert (await store_user.record(job.id)).waits_for == BucketRef("api", "acme")

    # ------------------------------------------------------------------------------------ many at random

    @pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
    async def test_a_mutex_never_has_two_holders(self, store_user: StoreUser, clock: ManualClock, seed: int) -> None:
        store_user.rules = {"mutex": at_once(), "api": strict(20, per=10)}
        for number in range(60):
            buckets = [("mutex", "ab"[number % 2]), ("api", "")]
            await store_user.add(buckets=buckets[: 1 + number % 3 % 2], hold=("running", "until_final")[number % 5 % 2])
        dice = _numbers(seed)
        running: list[ClaimedJob] = []
        finished = 0
        for _ in range(600):
            for key in "ab":
                assert len(await store_user.permits("mutex", key)) <= 1
            running += await store_user.take(1 + next(dice) % 3)
            clock.advance(0.5)
            while running and next(dice) % 3:
                job = running.pop(next(dice) % len(running))
                if next(dice) % 3:
                    await store_user.succeed(job)
                    finished += 1
                else:
                    await store_user.give_back(job, "failed", spent=True, run_at=clock.now() + SECOND, error=BOOM)
            if finished == 60:
                break
        assert finished == 60


def _numbers(seed: int) -> Iterator[int]:
    """The same numbers for the same seed, everywhere."""
    number = seed
    while True:
        number = (number * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        yield number >> 33
