"""What is promised of batches: how their jobs are counted, who follows them, and the permits that they hold."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import LeaderNotFound
from headgate.jobs.batch import BatchRecord, NewBatch
from headgate.jobs.job import Draw, JobState, Origin
from headgate.storage.following import LEADER_NOT_SUCCEEDED
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.hands import BOOM, Conformance, Hands, at_once, strict
from tests.conformance.storage_suite.ties import (
    MUTEX,
    add_batch,
    batch_of,
    die,
    follow,
    following,
    hold,
    is_blocked,
    new_batch_id,
    why,
)


class BatchesConformance(Conformance):
    async def test_a_batch_counts_how_its_jobs_end(self, hands: Hands, clock: ManualClock) -> None:
        started = clock.now()
        batch, ids = await add_batch(hands, 4)
        assert await batch_of(hands, batch) == BatchRecord(batch, 4, 4, 0, 0, 0, started, None)
        jobs = await hands.take()
        assert [job.id for job in jobs] == ids
        assert jobs[0].origin == Origin(batch=batch)
        clock.advance(1)
        await hands.succeed(jobs[0], jobs[1])
        await hands.fail(jobs[2])
        assert await batch_of(hands, batch) == BatchRecord(batch, 4, 1, 2, 1, 0, started, None)
        await hands.give_back(jobs[3])
        await hands.storage.cancel(ids[3])
        record = await batch_of(hands, batch)
        assert record == BatchRecord(batch, 4, 0, 2, 1, 1, started, clock.now())
        assert record.ended_as is JobState.FAILED

    async def test_who_follows_a_batch_is_released_by_the_last_of_its_jobs(self, hands: Hands) -> None:
        batch, _ = await add_batch(hands, 2)
        after = await follow(hands, batch)
        first, second = await hands.take()
        await hands.succeed(second)
        assert await hands.take() == []
        await hands.succeed(first)
        assert await hands.take_ids() == [after]

    async def test_an_unhappy_batch_cancels_who_needs_its_success(self, hands: Hands) -> None:
        batch, _ = await add_batch(hands, 2)
        strict_one, lenient = await follow(hands, batch), await follow(hands, batch, "any")
        first, second = await hands.take()
        await hands.fail(first)
        assert await is_blocked(hands, strict_one)
        await hands.succeed(second)
        assert await why(hands, strict_one) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, batch)
        assert await hands.take_ids() == [lenient]

    async def test_batches_are_listed_page_by_page_the_newest_first(self, hands: Hands, clock: ManualClock) -> None:
        ids: list[str] = []
        for size in (1, 0, 2, 1):
            clock.advance(1)
            ids.insert(0, (await add_batch(hands, size))[0])
        await hands.succeed(await hands.take_one())
        storage = hands.storage
        first = await storage.batches(count=3)
        second = await storage.batches(cursor=first[-1].id, count=3)
        assert [batch.id for batch in (*first, *second)] == ids
        assert [(batch.total, batch.pending, batch.succeeded) for batch in first] == [(1, 1, 0), (2, 2, 0), (0, 0, 0)]
        assert await storage.batches(cursor=ids[-1]) == []
        pending = await storage.batches(pending_only=True, count=1)
        assert [batch.id for batch in pending] == ids[:1]
        pending = await storage.batches(pending_only=True, cursor=ids[0], count=5)
        assert [batch.id for batch in pending] == [ids[1]]

    async def test_an_empty_batch_is_final_at_once(self, hands: Hands, clock: ManualClock) -> None:
        batch, _ = await add_batch(hands, 0)
        assert await batch_of(hands, batch) == BatchRecord(batch, 0, 0, 0, 0, 0, clock.now(), clock.now())
        after = await follow(hands, batch)
        assert await hands.take_ids() == [after]

    async def test_a_batch_may_follow_and_be_followed(self, hands: Hands) -> None:
        (first,) = await hands.add()
        batch, ids = await add_batch(hands, 3, first)
        last = await follow(hands, batch)
        await hands.succeed(await hands.take_one())
        middle = await hands.take()
        assert [job.id for job in middle] == ids
        await hands.succeed(*middle)
        assert await hands.take_ids() == [last]

    async def test_a_batch_that_is_cancelled_with_its_leader_tells_its_followers(self, hands: Hands) -> None:
        (first,) = await hands.add()
        batch, _ = await add_batch(hands, 3, first)
        last = await follow(hands, batch)
        await hands.fail(await hands.take_one())
        assert (await batch_of(hands, batch)).ended_as is JobState.CANCELLED
        assert (await why(hands, last))[2] == batch
        await hands.storage.retry(first)
        assert (await batch_of(hands, batch)).pending == 3
        assert await is_blocked(hands, last)
        await hands.succeed(await hands.take_one())
        await hands.succeed(*await hands.take())
        assert await hands.take_ids() == [last]

    async def test_a_batch_with_a_retried_job_is_not_final(self, hands: Hands) -> None:
        batch, _ = await add_batch(hands, 2)
        strict_one, lenient = await follow(hands, batch), await follow(hands, batch, "any")
        first, second = await hands.take()
        await hands.fail(first)
        await hands.succeed(second)
        await hands.succeed(await hands.take_one())
        assert (await hands.record(lenient)).state is JobState.SUCCEEDED
        await hands.storage.retry(first.id)
        record = await batch_of(hands, batch)
        assert (record.pending, record.failed, record.finished_at) == (1, 0, None)
        assert await is_blocked(hands, strict_one)
        await hands.succeed(await hands.take_one())
        assert (await batch_of(hands, batch)).ended_as is JobState.SUCCEEDED
        assert await hands.take_ids() == [strict_one]

    async def test_jobs_that_are_rejected_from_the_start_count_in_their_batch(self, hands: Hands) -> None:
        id = new_batch_id(hands)
        jobs = [replace(hands.new(rejection=BOOM), origin=Origin(batch=id)) for _ in range(2)]
        after = following(hands, id, "any")
        await hands.storage.add([*jobs, after], [NewBatch(id, 2, hands.clock.now())])
        assert (await batch_of(hands, id)).failed == 2
        assert await hands.take_ids() == [after.id]

    async def test_a_batch_goes_with_the_last_of_its_jobs(self, hands: Hands, clock: ManualClock) -> None:
        batch, _ = await add_batch(hands, 2)
        first, second = await hands.take()
        await hands.succeed(first)
        clock.advance(10)
        await hands.succeed(second)
        clock.advance(10)
        assert await hands.storage.prune(clock.now() - 10 * SECOND) == 1
        assert await hands.storage.batch(batch) is not None
        assert await hands.storage.prune(clock.now()) == 1
        assert await hands.storage.batch(batch) is None
        with pytest.raises(LeaderNotFound):
            await follow(hands, batch)

    async def test_a_batch_whose_jobs_went_before_it_was_old_goes_when_there_is_nothing_else_to_prune(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        """How long jobs are kept depends on how they ended, so the last one to go may be the first that ended."""
        batch, _ = await add_batch(hands, 2)
        first, second = await hands.take()
        await hands.fail(first)
        clock.advance(10)
        await hands.succeed(second)
        clock.advance(10)
        assert await hands.storage.prune(clock.now() - SECOND, states=frozenset({JobState.SUCCEEDED})) == 1
        assert await hands.storage.prune(clock.now() - 15 * SECOND, states=frozenset({JobState.FAILED})) == 1
        assert await hands.storage.prune(clock.now() - 15 * SECOND) == 0
        assert await hands.storage.batch(batch) is not None
        assert await hands.storage.prune(clock.now() - SECOND) == 0
        assert await hands.storage.batch(batch) is None

    # ------------------------------------------------------------------------- batches that hold permits

    async def test_all_jobs_of_a_batch_run_under_one_permit(self, hands: Hands) -> None:
        hands.rules = {"mutex": at_once()}
        batch, ids = await hold(hands, 3)
        hands.clock.advance(1)
        other, others = await hold(hands, 2)
        hands.clock.advance(1)
        single = await hands.add_one(draws=MUTEX)
        jobs = await hands.take()
        assert [job.id for job in jobs] == ids
        assert await hands.permits("mutex", "a") == {f"batch:{batch}": 3}
        assert await hands.take() == []
        await hands.succeed(*jobs[:2])
        assert await hands.take() == []
        await hands.fail(jobs[2])
        second = await hands.take()
        assert [job.id for job in second] == others
        assert await hands.permits("mutex", "a") == {f"batch:{other}": 2}
        await hands.succeed(*second)
        assert await hands.take_ids() == [single]

    async def test_a_batch_keeps_its_permit_while_none_of_its_jobs_runs(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"mutex": at_once()}
        batch, ids = await hold(hands, 2)
        first, second = await hands.take()
        single = await hands.add_one(draws=MUTEX)
        await hands.retry_later(first, 10)
        await hands.give_back(second, "snoozed", run_at=clock.now() + 20 * SECOND)
        assert await hands.permits("mutex", "a") == {f"batch:{batch}": 0}
        assert await hands.take() == []
        clock.advance(10)
        again = await hands.take_one()
        assert again.id == ids[0]
        await hands.succeed(again)
        assert await hands.take() == []
        clock.advance(10)
        await hands.succeed(await hands.take_one())
        assert await hands.take_ids() == [single]

    async def test_a_batch_keeps_its_permit_when_its_node_dies(self, hands: Hands) -> None:
        hands.rules = {"mutex": at_once()}
        batch, ids = await hold(hands, 2)
        await hands.storage.join("node-b", "b")
        assert len(await hands.take(node="node-b")) == 2
        single = await hands.add_one(draws=MUTEX)
        await die(hands, "node-b")
        assert await hands.permits("mutex", "a") == {f"batch:{batch}": 0}
        jobs = await hands.take()
        assert [job.id for job in jobs] == ids
        await hands.succeed(*jobs)
        assert await hands.take_ids() == [single]

    @pytest.mark.parametrize("is_running", [True, False], ids=["running", "waiting"])
    async def test_a_batch_whose_last_job_is_cancelled_gives_its_permit_back(
        self, hands: Hands, is_running: bool
    ) -> None:
        hands.rules = {"mutex": at_once()}
        batch, (_, last) = await hold(hands, 2)
        first = await hands.take_one()
        single = await hands.add_one(draws=MUTEX)
        taken = await hands.take() if is_running else []
        await hands.succeed(first)
        await hands.storage.cancel(last)
        for job in taken:
            await hands.give_back(job)
        assert (await batch_of(hands, batch)).pending == 0
        assert await hands.take_ids() == [single]

    async def test_the_jobs_of_a_holding_batch_go_whatever_lanes_they_wait_in(self, hands: Hands) -> None:
        """The fault: a lane that waited for the mutex of its own batch would have waited for itself."""
        hands.rules = {"mutex": at_once(), "api": strict(1)}
        queues = ("default", "other")
        await hands.add(draws=MUTEX)
        single = await hands.take_one()
        api = {"draws": [*MUTEX, ("api", "acme")]}
        _, ids = await hold(hands, api, api, {"queue": "other"}, {"queue": "other"})
        assert await hands.take(queues=queues) == []
        await hands.succeed(single)
        jobs = await hands.take(queues=queues)
        assert {job.id for job in jobs} == {ids[0], *ids[2:]}
        await hands.succeed(*jobs)
        late = await hands.add_one(draws=MUTEX)
        assert await hands.take(queues=queues) == []
        hands.clock.advance(60)
        job = await hands.take_one(queues=queues)
        assert job.id == ids[1]
        await hands.succeed(job)
        assert await hands.take_ids() == [late]

    async def test_a_batch_that_is_claimed_queue_by_queue_is_not_in_its_own_way(self, hands: Hands) -> None:
        hands.rules = {"mutex": at_once()}
        await hands.add(draws=MUTEX)
        single = await hands.take_one()
        _, (first, second) = await hold(hands, {}, {"queue": "other"})
        assert await hands.take(queues=("other", "default")) == []
        await hands.succeed(single)
        jobs = await hands.take()
        assert [job.id for job in jobs] == [first]
        late = await hands.add_one(draws=MUTEX)
        assert await hands.take() == []
        more = await hands.take(queues=("other",))
        assert [job.id for job in more] == [second]
        await hands.succeed(*jobs, *more)
        assert await hands.take_ids() == [late]

    async def test_a_reset_takes_the_permit_of_a_batch_of_which_no_job_runs(self, hands: Hands) -> None:
        hands.rules = {"mutex": at_once()}
        await hold(hands, 1)
        await hands.retry_later(await hands.take_one(), 60)
        single = await hands.add_one(draws=MUTEX)
        assert await hands.take() == []
        assert await hands.storage.reset(Draw("mutex", "a")) == 0
        assert await hands.take_ids() == [single]

    async def test_a_batch_that_comes_back_takes_its_permit_anew(self, hands: Hands) -> None:
        hands.rules = {"mutex": at_once()}
        batch, _ = await hold(hands, 1)
        job = await hands.take_one()
        await hands.fail(job)
        single = await hands.add_one(draws=MUTEX)
        running = await hands.take_one()
        assert running.id == single
        await hands.storage.retry(job.id)
        assert await hands.take() == []
        await hands.succeed(running)
        assert (await hands.take_one()).id == job.id
        assert await hands.permits("mutex", "a") == {f"batch:{batch}": 1}

    async def test_a_batch_that_is_resumed_goes_on_under_its_permit(self, hands: Hands) -> None:
        hands.rules = {"mutex": at_once()}
        _, (_, last) = await hold(hands, 2)
        first = await hands.take_one()
        single = await hands.add_one(draws=MUTEX)
        pause = await hands.pause("mutex")
        assert await hands.take() == []
        await hands.unset(pause)
        taken = await hands.take_one()
        assert taken.id == last
        await hands.succeed(first, taken)
        assert await hands.take_ids() == [single]

    async def test_batches_that_become_final_in_one_commit_all_give_their_permits_back(self, hands: Hands) -> None:
        """The fault: of several under one limit only the last gave its permit back, and the others kept theirs."""
        hands.rules = {"mutex": at_once(3)}
        for _ in range(3):
            await hold(hands, 1)
        jobs = await hands.take()
        assert len(jobs) == 3
        await hands.succeed(*jobs)
        assert await hands.permits("mutex", "a") == {}
        ids = await hands.add(3, draws=MUTEX)
        assert await hands.take_ids() == ids

    @pytest.mark.parametrize("how", ["expires", "is rejected"])
    async def test_a_claim_that_drops_the_last_job_of_a_holding_batch_lets_others_go(
        self, hands: Hands, clock: ManualClock, how: str
    ) -> None:
        """The fault: the claim closed the bucket for good that the batch, ending with that job, had just opened."""
        hands.rules = {"mutex": at_once(), "api": strict(1, 1000)}
        await hands.add(draws=[("api", "acme")])
        await hands.take_one()
        last: dict[str, Any] = {"delay": 50, "expires_in": 60}
        if how == "is rejected":
            last = {"delay": 50, "draws": [*MUTEX, ("api", "acme")], "patience": 0}
        batch, (first, _) = await hold(hands, {}, last)
        job = await hands.take_one()
        assert job.id == first
        await hands.succeed(job)
        clock.advance(70)
        _, (other,) = await hold(hands, 1)
        assert await hands.take_ids() == [other]
        assert (await batch_of(hands, batch)).pending == 0
