"""What is promised of unique keys that stay taken beyond their jobs, or only while they wait, and of debounced jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import DuplicateJob
from headgate.jobs.audit import AuditFilter
from headgate.jobs.job import ClaimedJob, JobOptions, JobState, NewJob, OnConflict, UniqueTerms
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import BOOM, Conformance, StoreUser, at_once
from tests.conformance.storage_suite.unique_keys import unique

MINUTE = 60


def keyed(
    store_user: StoreUser,
    key: str = "acme",
    on_conflict: OnConflict = "keep",
    *,
    seconds: int | None = None,
    while_running: bool = True,
    **options: Any,
) -> NewJob:
    """Return a job whose key stays taken for so many seconds."""
    terms = UniqueTerms(None if seconds is None else seconds * SECOND, while_running)
    return replace(unique(store_user, key, on_conflict, **options), unique_terms=terms)


async def stored(store_user: StoreUser, new: NewJob) -> str:
    """Return the id of the stored job for it."""
    return (await store_user.storage.add([new])).get(new.id, new.id)


class UniqueTermsConformance(Conformance):
    # ------------------------------------------------------------------------------------- for some time

    @pytest.mark.parametrize("ending", ["succeeded", "failed", "cancelled", "expired"])
    async def test_a_key_stays_taken_for_its_time_however_its_job_ends(
        self, store_user: StoreUser, clock: ManualClock, ending: str
    ) -> None:
        expires_in = 5 if ending == "expired" else None
        first = await stored(store_user, keyed(store_user, seconds=MINUTE, expires_in=expires_in))
        if ending == "cancelled":
            await store_user.storage.cancel(first)
        elif ending == "failed":
            await store_user.fail(await store_user.take_one())
        elif ending == "succeeded":
            await store_user.succeed(await store_user.take_one())
        clock.advance(MINUTE - 1)
        await store_user.storage.expire()
        assert (await store_user.record(first)).state.is_final
        assert await stored(store_user, keyed(store_user, seconds=MINUTE)) == first
        with pytest.raises(DuplicateJob, match="acme") as caught:
            await stored(store_user, keyed(store_user, on_conflict="raise"))
        assert caught.value.job_id == first
        assert (await store_user.counts()).waiting == 0
        clock.advance(1)
        second = await stored(store_user, keyed(store_user, seconds=MINUTE))
        assert second != first
        assert await store_user.take_ids() == [second]

    async def test_pruning_its_job_does_not_free_a_key(self, store_user: StoreUser, clock: ManualClock) -> None:
        first = await stored(store_user, keyed(store_user, seconds=MINUTE))
        await store_user.succeed(await store_user.take_one())
        clock.advance(1)
        assert await store_user.storage.prune(clock.now()) == 1
        assert await store_user.storage.job(first) is None
        assert await store_user.storage.evict() == 0
        assert await stored(store_user, keyed(store_user)) == first
        assert (await store_user.counts()).waiting == 0
        clock.advance(MINUTE)
        assert await store_user.storage.evict() == 1, "the key is forgotten when its time is over"
        assert await store_user.storage.evict() == 0
        assert await stored(store_user, keyed(store_user)) != first

    async def test_a_job_that_waits_longer_holds_its_key_until_it_has_ended(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        first = await stored(store_user, keyed(store_user, seconds=5, delay=MINUTE))
        clock.advance(MINUTE)
        assert await stored(store_user, keyed(store_user, seconds=5)) == first
        running = await store_user.take_one()
        assert await stored(store_user, keyed(store_user, seconds=5)) == first
        await store_user.succeed(running)
        assert await stored(store_user, keyed(store_user, seconds=5)) != first

    async def test_a_key_is_kept_by_the_job_that_was_stored_last(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        await stored(store_user, keyed(store_user, seconds=10))
        await store_user.succeed(await store_user.take_one())
        clock.advance(10)
        second = await stored(store_user, keyed(store_user, seconds=10))
        await store_user.succeed(await store_user.take_one())
        clock.advance(9)
        assert await stored(store_user, keyed(store_user)) == second
        clock.advance(1)
        assert await stored(store_user, keyed(store_user)) != second

    async def test_a_key_is_kept_for_its_task_alone_and_other_keys_are_free(self, store_user: StoreUser) -> None:
        await stored(store_user, keyed(store_user, seconds=MINUTE))
        await store_user.succeed(await store_user.take_one())
        new = [keyed(store_user, "globex"), keyed(store_user, task="other")]
        assert await store_user.storage.add(new) == {}

    async def test_an_enqueue_that_replaces_is_stored_although_the_key_is_kept(self, store_user: StoreUser) -> None:
        first = await stored(store_user, keyed(store_user, seconds=MINUTE))
        await store_user.succeed(await store_user.take_one())
        second = await stored(store_user, keyed(store_user, on_conflict="replace"))
        assert second != first
        assert await store_user.take_ids() == [second]

    async def test_a_job_that_is_rejected_at_enqueue_keeps_no_key(self, store_user: StoreUser) -> None:
        rejected = await stored(store_user, keyed(store_user, seconds=MINUTE, rejection=BOOM))
        assert await stored(store_user, keyed(store_user, on_conflict="raise")) != rejected

    async def test_a_key_twice_in_one_call_is_kept_for_the_first_job(self, store_user: StoreUser) -> None:
        jobs = [keyed(store_user, seconds=MINUTE, payload=payload) for payload in "12"]
        assert await store_user.storage.add(jobs) == {jobs[1].id: jobs[0].id}
        await store_user.succeed(await store_user.take_one())
        again = [keyed(store_user, "globex", seconds=MINUTE), keyed(store_user), keyed(store_user)]
        assert await store_user.storage.add(again) == {again[1].id: jobs[0].id, again[2].id: jobs[0].id}

    async def test_of_many_concurrent_enqueues_one_is_stored_also_when_it_has_ended(
        self, store_user: StoreUser
    ) -> None:
        new = [keyed(store_user, seconds=MINUTE) for _ in range(20)]
        ids = set(await asyncio.gather(*[stored(store_user, job) for job in new]))
        assert len(ids) == 1
        await store_user.succeed(*await store_user.take())
        new = [keyed(store_user, seconds=MINUTE) for _ in range(20)]
        assert set(await asyncio.gather(*[stored(store_user, job) for job in new])) == ids

    # ---------------------------------------------------------------------------------- only while waiting

    async def test_a_running_job_does_not_hold_a_key_that_is_held_while_waiting(self, store_user: StoreUser) -> None:
        first = await stored(store_user, keyed(store_user, while_running=False))
        assert await stored(store_user, keyed(store_user, while_running=False)) == first
        assert await store_user.take_ids() == [first]
        second = await stored(store_user, keyed(store_user, while_running=False, on_conflict="raise"))
        assert second != first
        assert await stored(store_user, keyed(store_user)) == second
        assert await store_user.take_ids() == [second], "both run"

    async def test_a_job_that_does_not_replace_a_running_one_does_not_follow_it(self, store_user: StoreUser) -> None:
        first = await stored(store_user, keyed(store_user))
        await store_user.take_one()
        second = await stored(store_user, keyed(store_user, while_running=False, on_conflict="replace"))
        assert second != first
        assert await store_user.take_ids() == [second]

    # -------------------------------------------------------------------------------- cancelling the running one

    async def running_and_next(self, store_user: StoreUser, **options: Any) -> tuple[ClaimedJob, str]:
        """A running job, and the one that was enqueued to come instead."""
        await stored(store_user, keyed(store_user, payload="1", **options))
        running = await store_user.take_one()
        successor = await stored(store_user, keyed(store_user, on_conflict="cancel_running", payload="2", **options))
        assert successor != running.id
        return running, successor

    async def cancellations(self, store_user: StoreUser, job_id: str) -> list[str | None]:
        entries = await store_user.storage.audit_log(AuditFilter(subject=job_id, count=10))
        return [entry.detail for entry in entries if entry.action == "cancel"]

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]])
    async def test_the_running_job_is_cancelled_and_the_new_one_starts_when_it_has_ended(
        self, store_user: StoreUser, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": at_once(100)}
        running, successor = await self.running_and_next(store_user, buckets=buckets)
        assert list(await store_user.storage.cancels(store_user.node, [running.id])) == [running.id]
        assert await self.cancellations(store_user, running.id) == [f"job {successor} was enqueued under its key"]
        assert await store_user.take_ids() == []
        await store_user.give_back(running)
        assert (await store_user.record(running.id)).state is JobState.CANCELLED
        assert [(job.id, job.payload) for job in await store_user.take()] == [(successor, "2")]

    async def test_a_running_job_that_ends_by_itself_first_keeps_its_result(self, store_user: StoreUser) -> None:
        running, successor = await self.running_and_next(store_user)
        await store_user.succeed(running)
        assert (await store_user.record(running.id)).state is JobState.SUCCEEDED
        assert await store_user.take_ids() == [successor]

    async def test_a_waiting_job_is_replaced_and_the_running_one_is_cancelled_once(self, store_user: StoreUser) -> None:
        running, successor = await self.running_and_next(store_user)
        new = keyed(store_user, on_conflict="cancel_running", payload="3")
        assert await stored(store_user, new) == successor
        assert len(await self.cancellations(store_user, running.id)) == 1
        await store_user.give_back(running)
        assert [(job.id, job.payload) for job in await store_user.take()] == [(successor, "3")]

    async def test_a_follower_that_was_enqueued_before_is_replaced_and_its_leader_cancelled(
        self, store_user: StoreUser
    ) -> None:
        await stored(store_user, keyed(store_user))
        running = await store_user.take_one()
        follower = await stored(store_user, keyed(store_user, on_conflict="replace", payload="2"))
        new = keyed(store_user, on_conflict="cancel_running", payload="3")
        assert await stored(store_user, new) == follower
        assert (await store_user.record(running.id)).cancel_requested
        await store_user.give_back(running)
        assert [(job.id, job.payload) for job in await store_user.take()] == [(follower, "3")]

    async def test_without_a_running_job_nothing_is_cancelled(self, store_user: StoreUser) -> None:
        first = await stored(store_user, keyed(store_user, payload="1"))
        assert await stored(store_user, keyed(store_user, on_conflict="cancel_running", payload="2")) == first
        taken = await store_user.take_one()
        assert (taken.id, taken.payload) == (first, "2")
        await store_user.succeed(taken)
        assert await stored(store_user, keyed(store_user, on_conflict="cancel_running")) != first
        assert await self.cancellations(store_user, first) == []

    async def test_a_job_that_is_rejected_at_enqueue_cancels_nothing(self, store_user: StoreUser) -> None:
        first = await stored(store_user, keyed(store_user))
        await store_user.take_one()
        await stored(store_user, keyed(store_user, on_conflict="cancel_running", rejection=BOOM))
        assert not (await store_user.record(first)).cancel_requested

    # --------------------------------------------------------------------------------------------- debounced

    def debounced(self, store_user: StoreUser, seconds: int, most: int | None = None, **options: Any) -> NewJob:
        """Return a job as an enqueue with debounce= makes it."""
        job = keyed(store_user, on_conflict="replace", delay=seconds, **options)
        if most is None:
            return job
        return replace(job, options=JobOptions(latest_start=job.enqueued_at + most * SECOND))

    async def test_each_enqueue_postpones_the_start_and_the_last_arguments_run_once(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        ids: set[str] = set()
        for payload in "123":
            ids.add(await stored(store_user, self.debounced(store_user, 5, payload=payload)))
            clock.advance(4)
            assert await store_user.take_ids() == []
        clock.advance(1)
        assert [(job.id, job.payload) for job in await store_user.take()] == [(*ids, "3")]
        assert (await store_user.counts()).waiting == 0

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]])
    async def test_a_start_is_postponed_no_longer_than_its_first_enqueue_allows(
        self, store_user: StoreUser, clock: ManualClock, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": at_once(100)}
        began = clock.now()
        for second in range(0, 20, 4):
            first = await stored(store_user, self.debounced(store_user, 5, 18, buckets=buckets, payload=str(second)))
            assert (await store_user.record(first)).run_at == began + min(second + 5, 18) * SECOND
            clock.advance(4 if second < 16 else 1)
            assert await store_user.take_ids() == []
        clock.advance(1)
        assert [job.payload for job in await store_user.take()] == ["16"]

    @pytest.mark.parametrize("buckets", [[], [("api", "acme")]])
    async def test_a_job_that_nothing_starts_in_time_keeps_its_time_and_gets_the_last_arguments(
        self, store_user: StoreUser, clock: ManualClock, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": at_once(100)}
        began = clock.now()
        first = await stored(store_user, self.debounced(store_user, 5, 10, buckets=buckets, payload="1"))
        for payload in "23":
            clock.advance(30)
            new = self.debounced(store_user, 5, 10, buckets=buckets, payload=payload)
            assert await stored(store_user, new) == first
            assert (await store_user.record(first)).run_at == began + 10 * SECOND
        assert [job.payload for job in await store_user.take()] == ["3"]

    async def test_a_new_window_begins_after_an_attempt(self, store_user: StoreUser, clock: ManualClock) -> None:
        first = await stored(store_user, self.debounced(store_user, 5, 10))
        clock.advance(5)
        await store_user.retry_later(await store_user.take_one(), MINUTE)
        clock.advance(20)
        assert await stored(store_user, self.debounced(store_user, 5, 10)) == first
        record = await store_user.record(first)
        assert (record.run_at, record.attempt) == (clock.now() + 5 * SECOND, 0)

    async def test_during_a_run_one_more_is_debounced_which_starts_after_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        await stored(store_user, self.debounced(store_user, 5, 10, payload="1"))
        clock.advance(5)
        running = await store_user.take_one()
        successor = await stored(store_user, self.debounced(store_user, 5, 10, payload="2"))
        assert successor != running.id
        clock.advance(4)
        assert await stored(store_user, self.debounced(store_user, 5, 10, payload="3")) == successor
        await store_user.succeed(running)
        clock.advance(4)
        assert await store_user.take_ids() == []
        clock.advance(1)
        assert [(job.id, job.payload) for job in await store_user.take()] == [(successor, "3")]

    async def test_of_many_concurrent_debounced_enqueues_one_runs(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        new = [self.debounced(store_user, 5, 10, payload=str(number)) for number in range(20)]
        assert len(set(await asyncio.gather(*[stored(store_user, job) for job in new]))) == 1
        clock.advance(5)
        assert len(await store_user.take()) == 1
