"""What is promised of jobs that follow others, and of batches: their end and what comes after it are one commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import LeaderNotFound, LeaderNotRetried, LimitInUse
from headgate.jobs.batch import BatchRecord, NewBatch
from headgate.jobs.gating import Regated
from headgate.jobs.identity import IdSource
from headgate.jobs.job import Draw, JobError, JobState, NewJob, Origin
from headgate.jobs.lifecycle import POISONOUS_AFTER, Finished
from headgate.jobs.terms import GateTerms, Holding
from headgate.storage.endings import EXPIRED_ERROR, REJECTED
from headgate.storage.following import LEADER_NOT_SUCCEEDED
from headgate.storage.protocol import JobFilter
from headgate.testing.conformance.hands import BOOM, Conformance, Hands, at_once, strict
from headgate.testing.manual_clock import ManualClock

On = Literal["success", "any"]
_ids = IdSource()

MUTEX = [("mutex", "a")]


def following(hands: Hands, leader: str, on: On = "success", *, batch: str | None = None, **options: Any) -> NewJob:
    """A job that follows another one."""
    return replace(hands.new(**options), origin=Origin(follows=leader, on=on, batch=batch))


async def follow(hands: Hands, leader: str, on: On = "success", **options: Any) -> str:
    job = following(hands, leader, on, **options)
    await hands.storage.add([job])
    return job.id


async def chain(hands: Hands, count: int, on: On = "success", **options: Any) -> list[str]:
    """Jobs that follow each other, enqueued at once."""
    jobs = [hands.new(**options)]
    for _ in range(count - 1):
        jobs.append(following(hands, jobs[-1].id, on, **options))
    await hands.storage.add(jobs)
    return [job.id for job in jobs]


async def add_batch(hands: Hands, count: int, leader: str | None = None, **options: Any) -> tuple[str, list[str]]:
    """A batch of so many jobs; its id and theirs."""
    id = _ids.next(hands.clock.now())
    jobs = [replace(hands.new(**options), origin=Origin(follows=leader, batch=id)) for _ in range(count)]
    await hands.storage.add(jobs, [NewBatch(id, count, hands.clock.now())])
    return id, [job.id for job in jobs]


async def hold(hands: Hands, *members: int | dict[str, Any]) -> tuple[str, list[str]]:
    """A batch that holds the mutex "a": so many jobs, or one of each of these options."""
    id = _ids.next(hands.clock.now())
    wanted = [{}] * members[0] if isinstance(members[0], int) else list(members)
    jobs: list[NewJob] = []
    for options in wanted:
        assert isinstance(options, dict)
        job = hands.new(**{"draws": MUTEX, **options})
        terms = replace(job.terms or GateTerms(), holds=(Holding("batch", id), *(None for _ in job.draws[1:])))
        jobs.append(replace(job, terms=terms, variant=terms.variant(), origin=Origin(batch=id)))
    await hands.storage.add(jobs, [NewBatch(id, len(jobs), hands.clock.now())])
    return id, [job.id for job in jobs]


async def is_blocked(hands: Hands, id: str) -> bool:
    record = await hands.record(id)
    assert record.state is JobState.WAITING or not record.is_blocked
    return record.is_blocked


async def why(hands: Hands, id: str) -> tuple[JobState, str | None, str | int | None]:
    """Its state, what kind of error it has, and the leader that the error names."""
    record = await hands.record(id)
    if record.error is None:
        return record.state, None, None
    return record.state, record.error.type, (record.error.data or {}).get("leader")


async def error_of(hands: Hands, id: str) -> JobError:
    error = (await hands.record(id)).error
    assert error is not None
    return error


async def batch_of(hands: Hands, id: str) -> BatchRecord:
    record = await hands.storage.batch(id)
    assert record is not None
    return record


Ending = Callable[[Hands, str], Awaitable[Any]]


async def _die(hands: Hands, node: str) -> None:
    (beat,) = [record.beat for record in await hands.storage.nodes() if record.id == node]
    assert await hands.storage.recover(node, beat) is not None


async def _fail(hands: Hands, id: str) -> None:
    await hands.fail(await hands.take_one())


async def _cancel_waiting(hands: Hands, id: str) -> None:
    await hands.storage.cancel(id)


async def _cancel_running(hands: Hands, id: str) -> None:
    job = await hands.take_one()
    await hands.storage.finish(hands.node, [Finished(job.id, job.fence, JobState.CANCELLED)])


async def _cancel_while_it_is_given_back(hands: Hands, id: str) -> None:
    job = await hands.take_one()
    await hands.storage.cancel(id)
    await hands.give_back(job, "failed", spent=True, error=BOOM)


async def _cancel_while_its_node_leaves(hands: Hands, id: str) -> None:
    await hands.storage.join("node-b", "b")
    await hands.take_one(node="node-b")
    await hands.storage.cancel(id)
    await hands.storage.leave("node-b")


async def _cancel_while_its_node_dies(hands: Hands, id: str) -> None:
    await hands.storage.join("node-b", "b")
    await hands.take_one(node="node-b")
    await hands.storage.cancel(id)
    await _die(hands, "node-b")


async def _poison(hands: Hands, id: str) -> None:
    for time in range(POISONOUS_AFTER):
        node = f"node-{time}"
        await hands.storage.join(node, node)
        await hands.take_one(node=node)
        await _die(hands, node)


async def _expire(hands: Hands, id: str) -> None:
    hands.clock.advance(60)
    assert [dropped.id for dropped in await hands.storage.expire()] == [id]


async def _expire_in_a_claim(hands: Hands, id: str) -> None:
    hands.clock.advance(60)
    claimed = await hands.claim()
    assert [dropped.id for dropped in claimed.dropped] == [id]
    for job in claimed.jobs:
        await hands.give_back(job)


UNHAPPY = [
    _fail,
    _cancel_waiting,
    _cancel_running,
    _cancel_while_it_is_given_back,
    _cancel_while_its_node_leaves,
    _cancel_while_its_node_dies,
    _poison,
    _expire,
    _expire_in_a_claim,
]


class FollowingConformance(Conformance):
    # ----------------------------------------------------------------------------------------- waiting

    async def test_a_follower_is_in_no_lane_until_its_leader_is_final(self, hands: Hands) -> None:
        first, second, third = await chain(hands, 3)
        assert [await is_blocked(hands, id) for id in (first, second, third)] == [False, True, True]
        assert await hands.storage.standing(second) is None
        counts = await hands.counts()
        assert (counts.waiting, counts.running) == (3, 0)
        waiting = await hands.storage.jobs(JobFilter(state=JobState.WAITING))
        assert [record.id for record in waiting] == [third, second, first]
        for id in (first, second, third):
            job = await hands.take_one()
            assert job.id == id
            assert await hands.take() == []
            await hands.succeed(job)
        assert await hands.take() == []
        assert (await hands.counts()).succeeded == 3

    async def test_a_follower_knows_whom_it_follows(self, hands: Hands) -> None:
        first, second = await chain(hands, 2)
        assert (await hands.record(second)).origin == Origin(follows=first)
        await hands.succeed(await hands.take_one())
        claimed = await hands.take_one()
        assert claimed.origin == Origin(follows=first)

    async def test_a_queue_with_blocked_jobs_is_a_queue_with_waiting_jobs(self, hands: Hands) -> None:
        (first,) = await hands.add(queue="other")
        await follow(hands, first)
        records = {record.queue: record for record in await hands.storage.queues()}
        assert records["default"].oldest_at is None
        assert records["default"].ready_at is None
        assert {counts.queue: counts.waiting for counts in await hands.storage.counts()} == {"default": 1, "other": 1}

    async def test_a_gated_follower_waits_in_its_lane_once_it_is_released(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1)}
        _first, second = await chain(hands, 2, draws=[("api", "acme")])
        await hands.succeed(await hands.take_one())
        assert await hands.take() == []
        record = await hands.record(second)
        assert (record.is_blocked, record.waits_for, record.lane_waiting) == (False, Draw("api", "acme"), 1)
        hands.clock.advance(60)
        assert (await hands.take_one()).id == second

    async def test_a_released_job_is_ready_from_then_on(self, hands: Hands, clock: ManualClock) -> None:
        _first, second = await chain(hands, 2)
        clock.advance(10)
        (other,) = await hands.add()
        clock.advance(5)
        await hands.succeed(*await hands.take(1))
        record = await hands.record(second)
        assert (record.run_at, record.delayed) == (clock.now(), False)
        assert await hands.take_ids() == [other, second]

    async def test_a_follower_whose_own_time_is_ahead_waits_for_it(self, hands: Hands, clock: ManualClock) -> None:
        (first,) = await hands.add()
        second = await follow(hands, first, delay=60)
        third = await follow(hands, first, delay=5)
        clock.advance(10)
        await hands.succeed(await hands.take_one())
        assert await hands.take_ids() == [third]
        assert (await hands.claim()).next_in == 50 * SECOND
        clock.advance(50)
        assert await hands.take_ids() == [second]

    async def test_many_follow_one(self, hands: Hands) -> None:
        (first,) = await hands.add()
        followers = [await follow(hands, first) for _ in range(5)]
        await hands.succeed(await hands.take_one())
        assert await hands.take_ids() == followers

    async def test_a_leader_that_waits_again_is_not_final(self, hands: Hands, clock: ManualClock) -> None:
        _first, second = await chain(hands, 2)
        await hands.give_back(await hands.take_one(), "failed", spent=True, run_at=clock.now() + SECOND, error=BOOM)
        assert await is_blocked(hands, second)
        clock.advance(1)
        await hands.give_back(await hands.take_one(), "snoozed", run_at=clock.now())
        await hands.storage.join("node-b", "b")
        await hands.take_one(node="node-b")
        await _die(hands, "node-b")
        assert await is_blocked(hands, second)
        await hands.succeed(await hands.take_one())
        assert await hands.take_ids() == [second]

    async def test_the_ending_of_a_leader_counts_once(self, hands: Hands) -> None:
        _first, second = await chain(hands, 2)
        job = await hands.take_one()
        ending = Finished(job.id, job.fence, JobState.SUCCEEDED, result="1")
        for _ in range(2):
            assert list(await hands.storage.finish(hands.node, [ending])) == [True]
        assert (await hands.take_ids(), (await hands.counts()).waiting) == ([second], 0)

    async def test_a_paused_queue_takes_in_who_is_released(self, hands: Hands) -> None:
        _first, second = await chain(hands, 2)
        job = await hands.take_one()
        await hands.storage.pause_queue("default")
        await hands.succeed(job)
        assert await hands.take() == []
        await hands.storage.resume_queue("default")
        assert await hands.take_ids() == [second]

    # --------------------------------------------------------------------------- leaders that do not succeed

    @pytest.mark.parametrize("ends", UNHAPPY, ids=lambda ends: ends.__name__.strip("_"))
    async def test_whoever_follows_an_unhappy_end_is_cancelled_down_the_chain(self, hands: Hands, ends: Ending) -> None:
        expires_in = 60 if ends in (_expire, _expire_in_a_claim) else None
        first = await hands.add_one(expires_in=expires_in)
        second = await follow(hands, first)
        third = await follow(hands, second)
        await ends(hands, first)
        assert (await hands.record(first)).state.is_final
        assert await why(hands, second) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, first)
        assert await why(hands, third) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, second)
        assert (await hands.record(third)).finished_at == hands.clock.now()
        assert await hands.take() == []
        assert (await hands.counts()).waiting == 0

    @pytest.mark.parametrize("ends", UNHAPPY, ids=lambda ends: ends.__name__.strip("_"))
    async def test_whoever_follows_any_end_runs_after_it(self, hands: Hands, ends: Ending) -> None:
        expires_in = 60 if ends in (_expire, _expire_in_a_claim) else None
        first = await hands.add_one(expires_in=expires_in)
        second = await follow(hands, first, "any")
        await ends(hands, first)
        assert await hands.take_ids() == [second]

    async def test_a_job_that_its_limits_reject_tells_its_followers(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(draws=[("api", "acme")])
        await hands.take_one()
        first = await hands.add_one(draws=[("api", "acme")], patience=0)
        strict_one, lenient = await follow(hands, first), await follow(hands, first, "any")
        taken = await hands.take_ids()
        assert (await why(hands, first))[1] == REJECTED
        assert (await hands.record(strict_one)).state is JobState.CANCELLED
        assert taken + await hands.take_ids() == [lenient]

    async def test_a_long_chain_is_cancelled_at_once(self, hands: Hands) -> None:
        ids = await chain(hands, 300)
        await hands.storage.cancel(ids[0])
        assert (await hands.counts()).cancelled == 300

    # ------------------------------------------------------------------------------------------- adding

    async def test_a_leader_that_has_succeeded_lets_its_followers_go_at_once(self, hands: Hands) -> None:
        (first,) = await hands.add()
        await hands.succeed(await hands.take_one())
        second = await follow(hands, first)
        assert not await is_blocked(hands, second)
        assert await hands.take_ids() == [second]

    async def test_a_follower_of_a_failed_job_is_stored_as_cancelled(self, hands: Hands) -> None:
        (first,) = await hands.add()
        await hands.fail(await hands.take_one())
        second, third = following(hands, first), following(hands, first, "any")
        fourth = following(hands, second.id)
        await hands.storage.add([second, third, fourth])
        assert await why(hands, second.id) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, first)
        assert await why(hands, fourth.id) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, second.id)
        assert await hands.take_ids() == [third.id]

    async def test_a_follower_of_a_job_that_was_rejected_in_the_same_commit_is_cancelled(self, hands: Hands) -> None:
        first = hands.new(rejection=BOOM)
        second = following(hands, first.id)
        await hands.storage.add([first, second])
        assert await why(hands, second.id) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, first.id)

    async def test_nobody_follows_what_is_not_stored(self, hands: Hands) -> None:
        lone, lost = hands.new(), following(hands, "nobody")
        with pytest.raises(LeaderNotFound, match="nobody"):
            await hands.storage.add([lone, lost])
        assert await hands.storage.job(lone.id) is None
        assert await hands.storage.job(lost.id) is None

    async def test_an_addition_may_be_repeated(self, hands: Hands) -> None:
        first = hands.new()
        jobs = [first, following(hands, first.id)]
        await hands.storage.add(jobs)
        await hands.storage.add(jobs)
        await hands.succeed(await hands.take_one())
        await hands.storage.add(jobs)
        assert await hands.take_ids() == [jobs[1].id]
        await hands.storage.add(jobs)
        assert await hands.take() == []

    # ------------------------------------------------------------------------------- what people do to them

    async def test_a_blocked_job_can_be_cancelled(self, hands: Hands) -> None:
        _first, second, third = await chain(hands, 3)
        assert await hands.storage.cancel(second) is JobState.WAITING
        assert (await hands.record(second)).state is JobState.CANCELLED
        assert (await hands.record(second)).error is None
        assert await why(hands, third) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, second)
        await hands.succeed(await hands.take_one())
        assert await hands.take() == []

    async def test_a_retried_leader_blocks_again_whom_it_had_cancelled(self, hands: Hands) -> None:
        first, second, third = await chain(hands, 3)
        fourth = await follow(hands, second)
        await hands.storage.cancel(fourth)
        await hands.fail(await hands.take_one())
        await hands.storage.retry(first)
        assert [await is_blocked(hands, id) for id in (second, third)] == [True, True]
        assert (await hands.record(second)).error is None
        assert (await hands.record(fourth)).state is JobState.CANCELLED
        for id in (first, second, third):
            job = await hands.take_one()
            assert job.id == id
            await hands.succeed(job)
        assert await hands.take() == []

    async def test_who_was_retried_and_cancelled_by_hand_does_not_come_back_with_the_leader(self, hands: Hands) -> None:
        first, second = await chain(hands, 2)
        await hands.fail(await hands.take_one())
        await hands.storage.retry(first)
        await hands.storage.cancel(second)
        await hands.fail(await hands.take_one())
        await hands.storage.retry(first)
        assert (await hands.record(second)).state is JobState.CANCELLED

    async def test_a_retried_follower_of_a_final_job_waits_as_any_other_if_that_ended_as_it_needs(
        self, hands: Hands
    ) -> None:
        (first,) = await hands.add()
        await hands.succeed(await hands.take_one())
        second = await follow(hands, first)
        await hands.fail(await hands.take_one())
        third = await follow(hands, second, "any")
        await hands.storage.cancel(third)
        for id in (second, third):
            await hands.storage.retry(id)
        assert await hands.take_ids() == [second]
        assert await is_blocked(hands, third)

    async def test_a_follower_is_not_retried_before_what_went_wrong_ahead_of_it(self, hands: Hands) -> None:
        """The fault: it ran, so an order whose charge had failed was shipped by the retry that its error asked for."""
        charge, ship, mail = await chain(hands, 3)
        await hands.fail(await hands.take_one())
        for id in (mail, ship):
            with pytest.raises(LeaderNotRetried, match=f"retry {charge} first") as refused:
                await hands.storage.retry(id)
            assert refused.value.root == charge
        assert [(await hands.record(id)).state for id in (ship, mail)] == [JobState.CANCELLED] * 2
        assert f"because {charge} failed with {BOOM.type}; retry {charge}," in (await error_of(hands, mail)).message
        assert await hands.take() == []
        await hands.storage.retry(charge)
        for id in (charge, ship, mail):
            job = await hands.take_one()
            assert job.id == id
            await hands.succeed(job)

    async def test_one_that_was_cancelled_by_hand_is_not_retried_before_its_leader_either(self, hands: Hands) -> None:
        first, second = await chain(hands, 2)
        await hands.storage.cancel(second)
        await hands.fail(await hands.take_one())
        with pytest.raises(LeaderNotRetried, match=first):
            await hands.storage.retry(second)
        await hands.storage.retry(first)
        await hands.storage.retry(second)
        assert await is_blocked(hands, second)

    async def test_what_follows_a_failed_batch_is_not_retried_before_its_jobs(self, hands: Hands) -> None:
        batch, (good, bad) = await add_batch(hands, 2)
        after = await follow(hands, batch)
        last = await follow(hands, after)
        for job in await hands.take():
            await (hands.succeed(job) if job.id == good else hands.fail(job))
        for id in (after, last):
            with pytest.raises(
                LeaderNotRetried, match=f"headgate jobs retry --batch {batch} --state failed"
            ) as refused:
                await hands.storage.retry(id)
            assert refused.value.root == batch
        assert f"because batch {batch} failed" in (await error_of(hands, last)).message
        await hands.storage.retry(bad)
        assert await is_blocked(hands, last)

    async def test_a_batch_that_was_cancelled_for_its_leader_names_that(self, hands: Hands) -> None:
        (first,) = await hands.add()
        batch, _ = await add_batch(hands, 2, first)
        after = await follow(hands, batch)
        await hands.fail(await hands.take_one())
        late = await follow(hands, after)
        for id in (after, late):
            assert f"because {first} failed" in (await error_of(hands, id)).message
            with pytest.raises(LeaderNotRetried, match=f"retry {first} first"):
                await hands.storage.retry(id)

    async def test_a_retried_follower_of_a_job_that_is_not_final_is_blocked(self, hands: Hands) -> None:
        _first, second = await chain(hands, 2)
        await hands.storage.cancel(second)
        await hands.storage.retry(second)
        assert await is_blocked(hands, second)
        await hands.succeed(await hands.take_one())
        assert await hands.take_ids() == [second]

    async def test_a_retried_follower_gives_its_permits_back_while_it_is_blocked(self, hands: Hands) -> None:
        hands.rules = {"lock": at_once()}
        (first,) = await hands.add()
        await hands.succeed(await hands.take_one())
        second = await follow(hands, first, "any", draws=[("lock", "a")], hold="until_success")
        await hands.fail(await hands.take_one())
        leader = await hands.add_one()
        third = await follow(hands, leader, "any", draws=[("lock", "a")], hold="until_success")
        assert second != third
        assert (await hands.take_one()).id == leader

    # ------------------------------------------------------------------------------------------- deadlines

    async def test_a_blocked_job_expires(self, hands: Hands, clock: ManualClock) -> None:
        (first,) = await hands.add()
        second = await follow(hands, first, expires_in=60)
        third = await follow(hands, second, "any")
        clock.advance(60)
        assert [dropped.id for dropped in await hands.storage.expire()] == [second]
        record = await hands.record(second)
        assert (record.state, record.error) == (JobState.FAILED, EXPIRED_ERROR)
        assert set(await hands.take_ids()) == {first, third}

    async def test_a_blocked_job_is_not_impatient(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(draws=[("api", "acme")])
        await hands.take_one()
        (first,) = await hands.add()
        second = await follow(hands, first, draws=[("api", "acme")], patience=20)
        clock.advance(30)
        assert list(await hands.storage.expire()) == []
        await hands.succeed(await hands.take_one())
        clock.advance(19)
        assert list(await hands.storage.expire()) == []
        clock.advance(1)
        assert [dropped.id for dropped in await hands.storage.expire()] == [second]
        assert (await why(hands, second))[1] == REJECTED

    # ---------------------------------------------------------------------------------------------- deploys

    async def test_blocked_jobs_are_moved_to_what_their_task_asks_now(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1), "new": strict(5)}
        (first,) = await hands.add()
        second = await follow(hands, first, draws=[("api", "acme")])
        found = await hands.storage.gated_jobs(frozenset({"work"}))
        assert [job.id for job in found] == [first, second]
        unknown = await hands.storage.gated_jobs(frozenset({"work"}), unknown_to=frozenset({"new"}))
        assert [job.id for job in unknown] == [second]
        assert await hands.storage.gated_jobs(frozenset({"work"}), unknown_to=frozenset({"api"})) in ([], ())
        draws = (Draw("new", "acme"),)
        assert await hands.storage.regate([Regated(second, (Draw("api", "acme"),), draws, None, None)]) == 1
        assert await is_blocked(hands, second)
        await hands.succeed(await hands.take_one())
        job = await hands.take_one()
        assert (job.id, job.draws) == (second, draws)

    async def test_a_limit_that_a_blocked_job_asks_for_is_in_use(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1)}
        (first,) = await hands.add()
        await follow(hands, first, draws=[("api", "acme")])
        with pytest.raises(LimitInUse):
            await hands.storage.forget("api")

    # ---------------------------------------------------------------------------------------------- batches

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
        id = _ids.next(hands.clock.now())
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
        await _die(hands, "node-b")
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
