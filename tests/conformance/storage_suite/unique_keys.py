"""What is promised of unique keys: one job of a task waits under each, and what becomes of the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.errors import DuplicateJob, IllegalTransition
from headgate.jobs.job import ClaimedJob, JobError, JobOptions, JobState, NewJob, OnConflict
from headgate.jobs.lifecycle import Returned
from headgate.limits.concurrency import Concurrency
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import BOOM, Conformance, StoreUser, at_once, rate, recover


def unique(store_user: StoreUser, key: str = "acme", on_conflict: OnConflict = "keep", **options: Any) -> NewJob:
    return replace(store_user.new(**options), unique_key=key, on_conflict=on_conflict)


class UniqueKeysConformance(Conformance):
    async def add(
        self, store_user: StoreUser, key: str = "acme", on_conflict: OnConflict = "keep", **options: Any
    ) -> str:
        """Return the id of the stored job for what was added."""
        new = unique(store_user, key, on_conflict, **options)
        return (await store_user.storage.add([new])).get(new.id, new.id)

    async def waiting(self, store_user: StoreUser) -> int:
        return (await store_user.counts()).waiting

    async def test_a_job_that_is_rejected_at_enqueue_does_not_affect_the_running_one(
        self, store_user: StoreUser
    ) -> None:
        """A job that stood nowhere was looked for under its key until the store gave up."""
        first = await self.add(store_user)
        await store_user.take_one()
        rejected = await self.add(store_user, on_conflict="replace", rejection=BOOM)
        assert rejected != first
        record = await store_user.record(rejected)
        assert (record.state, record.error) == (JobState.FAILED, BOOM)
        assert await self.waiting(store_user) == 0

    # ------------------------------------------------------------------------------------------ keep, raise

    async def test_a_second_job_with_a_key_is_not_stored_and_the_first_is_returned(self, store_user: StoreUser) -> None:
        first = await self.add(store_user, payload="1")
        assert await self.add(store_user, payload="2") == first
        record = await store_user.record(first)
        assert (record.payload, record.unique_key) == ("1", "acme")
        assert await store_user.take_ids() == [first]

    async def test_keys_are_of_a_task_and_compared_exactly(self, store_user: StoreUser) -> None:
        await self.add(store_user)
        for key, task in (("acme", "other"), ("Acme", "work"), ("acme ", "work"), ("\N{SNOWMAN}" * 200, "work")):
            await self.add(store_user, key, task=task)
            await self.add(store_user, key, task=task)
        assert await self.waiting(store_user) == 5

    async def test_a_running_job_is_kept_as_well(self, store_user: StoreUser) -> None:
        first = await self.add(store_user)
        await store_user.take_one()
        assert await self.add(store_user) == first
        assert await self.waiting(store_user) == 0

    @pytest.mark.parametrize("is_running", [False, True])
    async def test_on_conflict_raise_names_the_existing_job_and_stores_nothing(
        self, store_user: StoreUser, is_running: bool
    ) -> None:
        first = await self.add(store_user)
        if is_running:
            await store_user.take_one()
        stored = (await store_user.counts()).waiting
        before, after = store_user.new(), store_user.new()
        with pytest.raises(DuplicateJob, match="acme") as caught:
            await store_user.storage.add([before, unique(store_user, on_conflict="raise"), after])
        assert caught.value.job_id == first
        assert await self.waiting(store_user) == stored
        assert await store_user.storage.job(before.id) is None

    async def test_a_key_twice_in_one_call_acts_like_two_calls(self, store_user: StoreUser) -> None:
        jobs = [unique(store_user, payload=payload) for payload in "123"]
        assert await store_user.storage.add(jobs) == {jobs[1].id: jobs[0].id, jobs[2].id: jobs[0].id}
        assert (await store_user.record(jobs[0].id)).payload == "1"
        jobs = [unique(store_user, "globex", "replace", payload=payload) for payload in "123"]
        assert await store_user.storage.add(jobs) == {jobs[1].id: jobs[0].id, jobs[2].id: jobs[0].id}
        assert (await store_user.record(jobs[0].id)).payload == "3"
        with pytest.raises(DuplicateJob):
            await store_user.storage.add([unique(store_user, "hooli", "raise"), unique(store_user, "hooli", "raise")])
        assert await self.waiting(store_user) == 2

    @pytest.mark.parametrize("ending", ["succeeded", "failed", "cancelled"])
    async def test_a_final_job_does_not_conflict_and_stays_as_it_is(self, store_user: StoreUser, ending: str) -> None:
        first = await self.add(store_user)
        if ending == "cancelled":
            await store_user.storage.cancel(first)
        elif ending == "failed":
            await store_user.fail(await store_user.take_one())
        else:
            await store_user.succeed(await store_user.take_one())
        second = await self.add(store_user, on_conflict="raise")
        assert second != first
        assert (await store_user.record(first)).state is JobState(ending)
        assert await store_user.take_ids() == [second]

    async def test_a_job_that_waits_for_its_retry_conflicts(self, store_user: StoreUser) -> None:
        first = await self.add(store_user)
        await store_user.retry_later(await store_user.take_one())
        assert await self.add(store_user) == first

    async def test_an_expired_job_does_not_conflict(self, store_user: StoreUser, clock: ManualClock) -> None:
        first = await self.add(store_user, expires_in=5)
        clock.advance(6)
        await store_user.storage.expire()
        assert await self.add(store_user) != first

    async def test_repeating_an_add_changes_nothing(self, store_user: StoreUser) -> None:
        new = unique(store_user, on_conflict="raise")
        assert await store_user.storage.add([new]) == {}
        assert await store_user.storage.add([new]) == {}
        await store_user.succeed(await store_user.take_one())
        assert await store_user.storage.add([new]) == {}
        assert await store_user.take_ids() == []

    async def test_a_job_that_is_rejected_at_enqueue_never_conflicts(self, store_user: StoreUser) -> None:
        rejected = replace(unique(store_user, rejection=JobError("LimitRejected", "no")), unique_key="acme")
        assert await store_user.storage.add([rejected]) == {}
        assert (await store_user.record(rejected.id)).state is JobState.FAILED
        assert await self.add(store_user, on_conflict="raise") != rejected.id

    async def test_of_many_concurrent_duplicates_one_is_stored(self, store_user: StoreUser) -> None:
        ids = await asyncio.gather(*[self.add(store_user, payload=str(number)) for number in range(20)])
        assert len(set(ids)) == 1
        assert await self.waiting(store_user) == 1

    async def test_a_duplicate_fails_alone_in_a_group_commit(self, store_user: StoreUser) -> None:
        first = await self.add(store_user)
        results = await asyncio.gather(
            *[store_user.add_one() for _ in range(5)],
            *[self.add(store_user, on_conflict="raise") for _ in range(5)],
            return_exceptions=True,
        )
        errors = [result for result in results if isinstance(result, DuplicateJob)]
        assert [error.job_id for error in errors] == [first] * 5
        assert await self.waiting(store_user) == 6

    # --------------------------------------------------------------------------------------------- replace

    async def test_the_latest_arguments_win_and_run_exactly_once(self, store_user: StoreUser) -> None:
        first = await self.add(store_user, payload="1", priority=1, headers={"a": "1"}, options=JobOptions(timeout=1.0))
        new: dict[str, Any] = {"payload": "2", "priority": 3, "headers": {"b": "2"}, "options": JobOptions(timeout=5.0)}
        assert await self.add(store_user, on_conflict="replace", **new, expires_in=60) == first
        record = await store_user.record(first)
        assert (record.payload, record.priority, record.headers, record.options) == tuple(new.values())
        assert record.expires_at == store_user.clock.now() + 60_000_000
        taken = await store_user.take_one()
        assert (taken.id, taken.payload, taken.attempt) == (first, "2", 1)
        assert await store_user.take_ids() == []

    async def test_a_replaced_job_says_when_and_by_which_process_it_was_enqueued_first(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        first = replace(unique(store_user), enqueued_by="web-1:77")
        await store_user.storage.add([first])
        clock.advance(5)
        assert await self.add(store_user, on_conflict="replace") == first.id
        record = await store_user.record(first.id)
        assert (record.enqueued_at, record.enqueued_by) == (first.enqueued_at, "web-1:77")

    async def test_an_immediate_job_replaced_by_a_delayed_one_runs_once_with_the_last_arguments(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """Elsewhere the entry of the first stays in its channel: it is delivered at once with the old arguments and
        ends the one row that both share, and when the delay is over the row is final, so the arguments that came last
        are lost, although their caller was given an id."""
        first = await self.add(store_user, payload='"old"')
        assert await self.add(store_user, on_conflict="replace", payload='"new"', delay=10) == first
        assert await store_user.take_ids() == []
        clock.advance(11)
        taken = await store_user.take_one()
        assert (taken.id, taken.payload) == (first, '"new"')
        await store_user.succeed(taken)
        assert await store_user.take_ids() == []

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]])
    async def test_a_replacement_can_make_a_delayed_job_immediate_or_move_it(
        self, store_user: StoreUser, clock: ManualClock, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": at_once(100)}
        for delay in (60, 20, 40):
            first = await self.add(store_user, on_conflict="replace", buckets=buckets, delay=delay)
        assert await store_user.take_ids() == []
        clock.advance(21)
        assert await store_user.take_ids() == []
        await self.add(store_user, on_conflict="replace", buckets=buckets)
        assert await store_user.take_ids() == [first]

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]])
    async def test_a_replaced_job_keeps_its_place_in_its_lane(
        self, store_user: StoreUser, clock: ManualClock, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": at_once(100)}
        first = await self.add(store_user, buckets=buckets)
        clock.advance(1)
        second = await store_user.add_one(buckets=buckets)
        clock.advance(1)
        await self.add(store_user, on_conflict="replace", buckets=buckets, payload="2")
        assert await store_user.take_ids() == [first, second]

    async def test_a_lane_keeps_its_place_in_line_when_its_only_job_is_replaced(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"all": rate(1, burst=1), "tenant": at_once(100)}
        await store_user.add_one(buckets=[("all", "")])
        await store_user.take_one()
        first = await self.add(store_user, buckets=[("all", ""), ("tenant", "a")])
        clock.advance(0.1)
        second = await store_user.add_one(buckets=[("all", ""), ("tenant", "b")])
        assert await store_user.take_ids() == []
        clock.advance(0.1)
        await self.add(store_user, on_conflict="replace", buckets=[("all", ""), ("tenant", "a")], payload="2")
        clock.advance(100)
        assert await store_user.take_ids(1) == [first]
        clock.advance(100)
        assert await store_user.take_ids(1) == [second]

    async def test_a_replacement_with_another_limit_key_goes_to_the_end_of_its_new_lane(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": at_once(100)}
        first = await self.add(store_user, buckets=[("api", "acme")])
        clock.advance(1)
        second = await store_user.add_one(buckets=[("api", "globex")])
        clock.advance(1)
        await self.add(store_user, on_conflict="replace", buckets=[("api", "globex")])
        record = await store_user.record(first)
        assert ([ref.key for ref in record.buckets], record.lane_waiting) == (["globex"], 2)
        assert await store_user.take_ids() == [second, first]

    async def test_a_replacement_can_move_a_job_to_another_queue(self, store_user: StoreUser) -> None:
        first = await self.add(store_user)
        await self.add(store_user, on_conflict="replace", queue="slow")
        assert await store_user.take_ids() == []
        assert (await store_user.record(first)).queue == "slow"
        assert await store_user.take_ids(queues=["slow"]) == [first]

    async def test_a_replaced_retry_has_all_its_attempts_again(self, store_user: StoreUser, clock: ManualClock) -> None:
        first = await self.add(store_user)
        await store_user.retry_later(await store_user.take_one(), 60)
        await self.add(store_user, on_conflict="replace", payload="2")
        record = await store_user.record(first)
        assert (record.attempt, record.lost, record.error, record.delayed) == (0, 0, None, False)
        assert len(await store_user.storage.attempts(first)) == 1
        assert (await store_user.take_one()).attempt == 1

    async def test_a_job_that_no_longer_uses_the_limit_returns_the_permit_it_held(self, store_user: StoreUser) -> None:
        rules: dict[str, Any] = {"mutex": Concurrency(1).rule}
        store_user.rules = rules
        first = await self.add(store_user, buckets=[("mutex", "m")], hold="until_final")
        await store_user.retry_later(await store_user.take_one(), 60)
        assert await store_user.permits("mutex", "m") == {first: 1}
        await self.add(store_user, on_conflict="replace", buckets=[("mutex", "m")], hold="until_final", payload="2")
        assert await store_user.permits("mutex", "m") == {first: 1}
        await self.add(store_user, on_conflict="replace", payload="3")
        assert await store_user.permits("mutex", "m") == {}
        assert (await store_user.take_one()).payload == "3"

    async def test_replacing_a_costly_job_makes_its_lane_due(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": rate(10, burst=10)}
        await store_user.add_one(buckets=[("api", "a")], costs=(5,))
        await store_user.take_one()
        first = await self.add(store_user, buckets=[("api", "a")], costs=(10,))
        assert await store_user.take_ids() == []
        await self.add(store_user, on_conflict="replace", buckets=[("api", "a")], costs=(2,))
        assert await store_user.take_ids() == [first]

    async def test_replacing_again_and_again_leaves_one_job(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": at_once(100)}
        for number in range(100):
            buckets = [("api", str(number % 3))] if number % 4 else []
            await self.add(
                store_user, on_conflict="replace", buckets=buckets, delay=(None, 5, 10)[number % 3], payload=str(number)
            )
            clock.advance(0.01)
        assert await self.waiting(store_user) == 1
        clock.advance(20)
        assert [job.payload for job in await store_user.take()] == ["99"]

    async def test_of_many_concurrent_replacements_one_runs(self, store_user: StoreUser) -> None:
        await asyncio.gather(
            *[self.add(store_user, on_conflict="replace", payload=str(number)) for number in range(20)]
        )
        assert len(await store_user.take()) == 1

    async def test_a_replaced_job_expires_as_its_last_replacement_says(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        first = await self.add(store_user, expires_in=5)
        await self.add(store_user, on_conflict="replace", expires_in=50)
        clock.advance(10)
        assert list(await store_user.storage.expire()) == []
        clock.advance(50)
        assert [dropped.id for dropped in await store_user.storage.expire()] == [first]

    # ------------------------------------------------------------------------------------------- successor

    async def running(self, store_user: StoreUser, **options: Any) -> tuple[ClaimedJob, str]:
        """A running job, and the one that is to run after it."""
        await self.add(store_user, payload="1", **options)
        running = await store_user.take_one()
        successor = await self.add(store_user, on_conflict="replace", payload="2", **options)
        assert successor != running.id
        return running, successor

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]])
    @pytest.mark.parametrize("fails", [False, True])
    async def test_replacing_a_running_job_lets_it_run_once_more_however_it_ends(
        self, store_user: StoreUser, fails: bool, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": at_once(100)}
        running, successor = await self.running(store_user, buckets=buckets)
        record = await store_user.record(successor)
        assert (record.state, record.is_blocked) == (JobState.WAITING, True)
        assert await store_user.take_ids() == []
        await (store_user.fail(running) if fails else store_user.succeed(running))
        assert (await store_user.record(running.id)).state is (JobState.FAILED if fails else JobState.SUCCEEDED)
        taken = await store_user.take()
        assert [(job.id, job.payload) for job in taken] == [(successor, "2")]
        assert await store_user.take_ids() == []

    async def test_a_second_replacement_replaces_the_successor(self, store_user: StoreUser) -> None:
        running, successor = await self.running(store_user)
        assert await self.add(store_user, on_conflict="replace", payload="3", queue="slow", priority=2) == successor
        assert await self.add(store_user, payload="4") == successor
        with pytest.raises(DuplicateJob) as caught:
            await self.add(store_user, on_conflict="raise")
        assert caught.value.job_id == successor
        await store_user.succeed(running)
        taken = await store_user.take(queues=["slow", "default"])
        assert [(job.id, job.payload, job.queue, job.attempt) for job in taken] == [(successor, "3", "slow", 1)]

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]])
    @pytest.mark.parametrize("outcome", ["retry", "snooze", "leave", "recover"])
    async def test_a_running_job_with_a_successor_is_not_retried(
        self, store_user: StoreUser, outcome: str, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": at_once(100)}
        running, successor = await self.running(store_user, buckets=buckets)
        if outcome == "retry":
            await store_user.retry_later(running)
        elif outcome == "snooze":
            await store_user.give_back(running, "snoozed", run_at=store_user.clock.now() + 60_000_000)
        else:
            if outcome == "leave":
                recovered = await store_user.storage.leave(store_user.node)
            else:
                recovered = await recover(store_user)
            assert (list(recovered.returned), list(recovered.poisonous)) == ([], [])
            await store_user.storage.join(store_user.node, "a")
        record = await store_user.record(running.id)
        assert record.state is JobState.CANCELLED
        assert record.error is not None
        assert (record.error.type, record.error.data) == ("Superseded", {"successor": successor})
        assert len(await store_user.storage.attempts(running.id)) == 1
        assert record.attempt == 1, "spent or not, it was its last"
        assert await store_user.unrun() == (0, 1)
        assert [(job.id, job.payload) for job in await store_user.take()] == [(successor, "2")]

    async def test_the_permit_of_a_job_replaced_by_its_successor_is_returned(self, store_user: StoreUser) -> None:
        rules: dict[str, Any] = {"mutex": Concurrency(1).rule}
        store_user.rules = rules
        running, successor = await self.running(store_user, buckets=[("mutex", "m")], hold="until_final")
        await store_user.retry_later(running)
        assert await store_user.permits("mutex", "m") == {}
        assert await store_user.take_ids() == [successor]
        assert await store_user.permits("mutex", "m") == {successor: 1}

    async def test_a_running_job_whose_successor_was_cancelled_is_retried(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        running, successor = await self.running(store_user)
        assert await store_user.storage.cancel(successor) is JobState.WAITING
        await store_user.retry_later(running, 10)
        clock.advance(11)
        assert await store_user.take_ids() == [running.id]

    async def test_the_successor_of_a_cancelled_running_job_runs(self, store_user: StoreUser) -> None:
        running, successor = await self.running(store_user)
        assert await store_user.storage.cancel(running.id) is JobState.RUNNING
        await store_user.give_back(running)
        assert (await store_user.record(running.id)).error is None
        assert await store_user.take_ids() == [successor]

    async def test_a_final_job_cannot_wait_again_while_another_waits_under_its_key(self, store_user: StoreUser) -> None:
        first = await self.add(store_user)
        await store_user.fail(await store_user.take_one())
        second = await self.add(store_user)
        with pytest.raises(IllegalTransition, match=second):
            await store_user.storage.retry(first)
        assert (await store_user.record(first)).state is JobState.FAILED
        await store_user.succeed(await store_user.take_one())
        await store_user.storage.retry(first)
        assert await store_user.take_ids() == [first]

    async def test_of_two_running_jobs_with_one_key_one_is_retried(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        first = await self.add(store_user)
        await store_user.fail(await store_user.take_one())
        second = await self.add(store_user)
        later = await store_user.take_one()
        await store_user.storage.retry(first)
        sooner = await store_user.take_one()
        run_at = clock.now() + 1
        endings = [Returned(job.id, job.fence, "failed", spent=True, run_at=run_at) for job in (later, sooner)]
        assert list(await store_user.storage.finish(store_user.node, endings)) == [True, True]
        states = await store_user.states([first, second])
        assert sorted(states) == [JobState.CANCELLED, JobState.WAITING]
        clock.advance(1)
        assert len(await store_user.take()) == 1

    # --------------------------------------------------------------------------------------------- backlog

    async def test_the_backlog_of_a_queue_is_the_sum_of_its_lanes(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": at_once(1)}
        assert await store_user.storage.backlog("default") == 0
        ids = await store_user.add(3)
        await store_user.add(2, buckets=[("api", "acme")])
        await store_user.add(4, delay=5)
        await store_user.add(1, queue="other")
        assert await store_user.storage.backlog("default") == 9
        taken = await store_user.take(2)
        assert await store_user.storage.backlog("default") == 7
        await store_user.give_back(taken[0])
        await store_user.storage.cancel(next(id for id in ids if id not in {job.id for job in taken}))
        assert await store_user.storage.backlog("default") == 7
        await store_user.succeed(*taken[1:])
        assert (await store_user.counts()).waiting == await store_user.storage.backlog("default")
        assert await store_user.storage.backlog("other") == 1
