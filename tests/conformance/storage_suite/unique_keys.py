"""What is promised of unique keys: one job of a task waits under each, and what becomes of the next one."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from headgate.errors import DuplicateJob, IllegalTransition
from headgate.jobs.job import ClaimedJob, JobError, JobOptions, JobState, NewJob, Origin
from headgate.jobs.lifecycle import Returned
from headgate.limits.concurrency import Concurrency
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.hands import BOOM, Conformance, Hands, at_once, rate, recover

Policy = Literal["keep", "replace", "raise"]


def unique(hands: Hands, key: str = "acme", on_conflict: Policy = "keep", **options: Any) -> NewJob:
    return replace(hands.new(**options), unique_key=key, on_conflict=on_conflict)


class UniqueKeysConformance(Conformance):
    async def add(self, hands: Hands, key: str = "acme", on_conflict: Policy = "keep", **options: Any) -> str:
        """The id of the job that stands for what was added."""
        new = unique(hands, key, on_conflict, **options)
        return (await hands.storage.add([new])).get(new.id, new.id)

    async def waiting(self, hands: Hands) -> int:
        return (await hands.counts()).waiting

    async def test_a_job_that_is_rejected_as_it_comes_ends_beside_the_one_that_runs(self, hands: Hands) -> None:
        """A job that stood nowhere was looked for under its key until the store gave up."""
        first = await self.add(hands)
        await hands.take_one()
        rejected = await self.add(hands, on_conflict="replace", rejection=BOOM)
        assert rejected != first
        record = await hands.record(rejected)
        assert (record.state, record.error) == (JobState.FAILED, BOOM)
        assert await self.waiting(hands) == 0

    # ------------------------------------------------------------------------------------------ keep, raise

    async def test_a_second_job_under_a_key_is_not_stored_and_the_first_stands_for_it(self, hands: Hands) -> None:
        first = await self.add(hands, payload="1")
        assert await self.add(hands, payload="2") == first
        record = await hands.record(first)
        assert (record.payload, record.unique_key) == ("1", "acme")
        assert await hands.take_ids() == [first]

    async def test_keys_are_of_a_task_and_compared_exactly(self, hands: Hands) -> None:
        await self.add(hands)
        for key, task in (("acme", "other"), ("Acme", "work"), ("acme ", "work"), ("\N{SNOWMAN}" * 200, "work")):
            await self.add(hands, key, task=task)
            await self.add(hands, key, task=task)
        assert await self.waiting(hands) == 5

    async def test_a_running_job_is_kept_as_well(self, hands: Hands) -> None:
        first = await self.add(hands)
        await hands.take_one()
        assert await self.add(hands) == first
        assert await self.waiting(hands) == 0

    @pytest.mark.parametrize("is_running", [False, True])
    async def test_raise_tells_which_job_stands_there_and_stores_none_of_the_call(
        self, hands: Hands, is_running: bool
    ) -> None:
        first = await self.add(hands)
        if is_running:
            await hands.take_one()
        stored = (await hands.counts()).waiting
        before, after = hands.new(), hands.new()
        with pytest.raises(DuplicateJob, match="acme") as caught:
            await hands.storage.add([before, unique(hands, on_conflict="raise"), after])
        assert caught.value.job_id == first
        assert await self.waiting(hands) == stored
        assert await hands.storage.job(before.id) is None

    async def test_a_key_that_comes_twice_in_one_call_is_as_if_one_came_after_the_other(self, hands: Hands) -> None:
        jobs = [unique(hands, payload=payload) for payload in "123"]
        assert await hands.storage.add(jobs) == {jobs[1].id: jobs[0].id, jobs[2].id: jobs[0].id}
        assert (await hands.record(jobs[0].id)).payload == "1"
        jobs = [unique(hands, "globex", "replace", payload=payload) for payload in "123"]
        assert await hands.storage.add(jobs) == {jobs[1].id: jobs[0].id, jobs[2].id: jobs[0].id}
        assert (await hands.record(jobs[0].id)).payload == "3"
        with pytest.raises(DuplicateJob):
            await hands.storage.add([unique(hands, "hooli", "raise"), unique(hands, "hooli", "raise")])
        assert await self.waiting(hands) == 2

    @pytest.mark.parametrize("ending", ["succeeded", "failed", "cancelled"])
    async def test_a_final_job_is_in_nobodys_way_and_stays_as_it_is(self, hands: Hands, ending: str) -> None:
        first = await self.add(hands)
        if ending == "cancelled":
            await hands.storage.cancel(first)
        elif ending == "failed":
            await hands.fail(await hands.take_one())
        else:
            await hands.succeed(await hands.take_one())
        second = await self.add(hands, on_conflict="raise")
        assert second != first
        assert (await hands.record(first)).state is JobState(ending)
        assert await hands.take_ids() == [second]

    async def test_a_job_that_waits_for_its_retry_stands_there(self, hands: Hands) -> None:
        first = await self.add(hands)
        await hands.retry_later(await hands.take_one())
        assert await self.add(hands) == first

    async def test_an_expired_job_stands_there_no_more(self, hands: Hands, clock: ManualClock) -> None:
        first = await self.add(hands, expires_in=5)
        clock.advance(6)
        await hands.storage.expire()
        assert await self.add(hands) != first

    async def test_repeating_an_add_changes_nothing(self, hands: Hands) -> None:
        new = unique(hands, on_conflict="raise")
        assert await hands.storage.add([new]) == {}
        assert await hands.storage.add([new]) == {}
        await hands.succeed(await hands.take_one())
        assert await hands.storage.add([new]) == {}
        assert await hands.take_ids() == []

    async def test_a_job_that_its_limits_reject_at_once_stands_there_never(self, hands: Hands) -> None:
        rejected = replace(unique(hands, rejection=JobError("LimitRejected", "no")), unique_key="acme")
        assert await hands.storage.add([rejected]) == {}
        assert (await hands.record(rejected.id)).state is JobState.FAILED
        assert await self.add(hands, on_conflict="raise") != rejected.id

    async def test_of_many_that_come_at_once_one_is_stored(self, hands: Hands) -> None:
        ids = await asyncio.gather(*[self.add(hands, payload=str(number)) for number in range(20)])
        assert len(set(ids)) == 1
        assert await self.waiting(hands) == 1

    async def test_a_duplicate_fails_alone_among_those_that_are_added_at_the_same_moment(self, hands: Hands) -> None:
        first = await self.add(hands)
        results = await asyncio.gather(
            *[hands.add_one() for _ in range(5)],
            *[self.add(hands, on_conflict="raise") for _ in range(5)],
            return_exceptions=True,
        )
        errors = [result for result in results if isinstance(result, DuplicateJob)]
        assert [error.job_id for error in errors] == [first] * 5
        assert await self.waiting(hands) == 6

    # --------------------------------------------------------------------------------------------- replace

    async def test_the_latest_arguments_win_and_run_exactly_once(self, hands: Hands) -> None:
        first = await self.add(hands, payload="1", priority=1, headers={"a": "1"}, options=JobOptions(timeout=1.0))
        new: dict[str, Any] = {"payload": "2", "priority": 3, "headers": {"b": "2"}, "options": JobOptions(timeout=5.0)}
        assert await self.add(hands, on_conflict="replace", **new, expires_in=60) == first
        record = await hands.record(first)
        assert (record.payload, record.priority, record.headers, record.options) == tuple(new.values())
        assert record.expires_at == hands.clock.now() + 60_000_000
        taken = await hands.take_one()
        assert (taken.id, taken.payload, taken.attempt) == (first, "2", 1)
        assert await hands.take_ids() == []

    async def test_a_replaced_job_says_when_and_by_which_process_it_was_enqueued_first(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        first = replace(unique(hands), enqueued_by="web-1:77")
        await hands.storage.add([first])
        clock.advance(5)
        assert await self.add(hands, on_conflict="replace") == first.id
        record = await hands.record(first.id)
        assert (record.enqueued_at, record.enqueued_by) == (first.enqueued_at, "web-1:77")

    async def test_an_immediate_job_that_a_delayed_one_replaces_runs_once_then_and_with_what_came_last(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        """Elsewhere the entry of the first stays in its channel: it is delivered at once with the old arguments and
        ends the one row that both share, and when the delay is over the row is final, so the arguments that came last
        are lost, although their caller was given an id."""
        first = await self.add(hands, payload='"old"')
        assert await self.add(hands, on_conflict="replace", payload='"new"', delay=10) == first
        assert await hands.take_ids() == []
        clock.advance(11)
        taken = await hands.take_one()
        assert (taken.id, taken.payload) == (first, '"new"')
        await hands.succeed(taken)
        assert await hands.take_ids() == []

    @pytest.mark.parametrize("draws", [[], [("api", "acme")]])
    async def test_a_delayed_job_can_be_had_at_once_or_at_another_time(
        self, hands: Hands, clock: ManualClock, draws: list[tuple[str, str]]
    ) -> None:
        hands.rules = {"api": at_once(100)}
        for delay in (60, 20, 40):
            first = await self.add(hands, on_conflict="replace", draws=draws, delay=delay)
        assert await hands.take_ids() == []
        clock.advance(21)
        assert await hands.take_ids() == []
        await self.add(hands, on_conflict="replace", draws=draws)
        assert await hands.take_ids() == [first]

    @pytest.mark.parametrize("draws", [[], [("api", "acme")]])
    async def test_a_replaced_job_keeps_its_place_in_its_lane(
        self, hands: Hands, clock: ManualClock, draws: list[tuple[str, str]]
    ) -> None:
        hands.rules = {"api": at_once(100)}
        first = await self.add(hands, draws=draws)
        clock.advance(1)
        second = await hands.add_one(draws=draws)
        clock.advance(1)
        await self.add(hands, on_conflict="replace", draws=draws, payload="2")
        assert await hands.take_ids() == [first, second]

    async def test_a_lane_keeps_its_place_in_line_when_its_only_job_is_replaced(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"all": rate(1, burst=1), "tenant": at_once(100)}
        await hands.add_one(draws=[("all", "")])
        await hands.take_one()
        first = await self.add(hands, draws=[("all", ""), ("tenant", "a")])
        clock.advance(0.1)
        second = await hands.add_one(draws=[("all", ""), ("tenant", "b")])
        assert await hands.take_ids() == []
        clock.advance(0.1)
        await self.add(hands, on_conflict="replace", draws=[("all", ""), ("tenant", "a")], payload="2")
        clock.advance(100)
        assert await hands.take_ids(1) == [first]
        clock.advance(100)
        assert await hands.take_ids(1) == [second]

    async def test_with_another_key_it_goes_to_the_end_of_its_new_lane(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": at_once(100)}
        first = await self.add(hands, draws=[("api", "acme")])
        clock.advance(1)
        second = await hands.add_one(draws=[("api", "globex")])
        clock.advance(1)
        await self.add(hands, on_conflict="replace", draws=[("api", "globex")])
        record = await hands.record(first)
        assert ([draw.key for draw in record.draws], record.lane_waiting) == (["globex"], 2)
        assert await hands.take_ids() == [second, first]

    async def test_it_can_go_to_another_queue(self, hands: Hands) -> None:
        first = await self.add(hands)
        await self.add(hands, on_conflict="replace", queue="slow")
        assert await hands.take_ids() == []
        assert (await hands.record(first)).queue == "slow"
        assert await hands.take_ids(queues=["slow"]) == [first]

    async def test_a_retry_that_is_replaced_has_never_been_tried(self, hands: Hands, clock: ManualClock) -> None:
        first = await self.add(hands)
        await hands.retry_later(await hands.take_one(), 60)
        await self.add(hands, on_conflict="replace", payload="2")
        record = await hands.record(first)
        assert (record.attempt, record.lost, record.error, record.delayed) == (0, 0, None, False)
        assert len(await hands.storage.attempts(first)) == 1
        assert (await hands.take_one()).attempt == 1

    async def test_a_job_that_no_longer_draws_gives_back_the_permit_it_held(self, hands: Hands) -> None:
        rules: dict[str, Any] = {"mutex": Concurrency(1).rule}
        hands.rules = rules
        first = await self.add(hands, draws=[("mutex", "m")], hold="until_final")
        await hands.retry_later(await hands.take_one(), 60)
        assert await hands.permits("mutex", "m") == {first: 1}
        await self.add(hands, on_conflict="replace", draws=[("mutex", "m")], hold="until_final", payload="2")
        assert await hands.permits("mutex", "m") == {first: 1}
        await self.add(hands, on_conflict="replace", payload="3")
        assert await hands.permits("mutex", "m") == {}
        assert (await hands.take_one()).payload == "3"

    async def test_a_costly_job_that_is_replaced_lets_its_lane_be_looked_at(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"api": rate(10, burst=10)}
        await hands.add_one(draws=[("api", "a")], costs=(5,))
        await hands.take_one()
        first = await self.add(hands, draws=[("api", "a")], costs=(10,))
        assert await hands.take_ids() == []
        await self.add(hands, on_conflict="replace", draws=[("api", "a")], costs=(2,))
        assert await hands.take_ids() == [first]

    async def test_replacing_again_and_again_leaves_one_job(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": at_once(100)}
        for number in range(100):
            draws = [("api", str(number % 3))] if number % 4 else []
            await self.add(
                hands, on_conflict="replace", draws=draws, delay=(None, 5, 10)[number % 3], payload=str(number)
            )
            clock.advance(0.01)
        assert await self.waiting(hands) == 1
        clock.advance(20)
        assert [job.payload for job in await hands.take()] == ["99"]

    async def test_of_many_that_replace_at_once_one_runs(self, hands: Hands) -> None:
        await asyncio.gather(*[self.add(hands, on_conflict="replace", payload=str(number)) for number in range(20)])
        assert len(await hands.take()) == 1

    async def test_a_replaced_job_expires_when_the_latest_says(self, hands: Hands, clock: ManualClock) -> None:
        first = await self.add(hands, expires_in=5)
        await self.add(hands, on_conflict="replace", expires_in=50)
        clock.advance(10)
        assert list(await hands.storage.expire()) == []
        clock.advance(50)
        assert [dropped.id for dropped in await hands.storage.expire()] == [first]

    # ------------------------------------------------------------------------------------------- successor

    async def running(self, hands: Hands, **options: Any) -> tuple[ClaimedJob, str]:
        """A running job, and the one that is to run after it."""
        await self.add(hands, payload="1", **options)
        running = await hands.take_one()
        successor = await self.add(hands, on_conflict="replace", payload="2", **options)
        assert successor != running.id
        return running, successor

    @pytest.mark.parametrize("draws", [[], [("api", "acme")]])
    @pytest.mark.parametrize("fails", [False, True])
    async def test_replacing_a_running_job_lets_it_run_once_more_however_it_ends(
        self, hands: Hands, fails: bool, draws: list[tuple[str, str]]
    ) -> None:
        hands.rules = {"api": at_once(100)}
        running, successor = await self.running(hands, draws=draws)
        record = await hands.record(successor)
        assert (record.state, record.is_blocked) == (JobState.WAITING, True)
        assert await hands.take_ids() == []
        await (hands.fail(running) if fails else hands.succeed(running))
        assert (await hands.record(running.id)).state is (JobState.FAILED if fails else JobState.SUCCEEDED)
        taken = await hands.take()
        assert [(job.id, job.payload) for job in taken] == [(successor, "2")]
        assert await hands.take_ids() == []

    async def test_what_replaces_next_swaps_the_successor(self, hands: Hands) -> None:
        running, successor = await self.running(hands)
        assert await self.add(hands, on_conflict="replace", payload="3", queue="slow", priority=2) == successor
        assert await self.add(hands, payload="4") == successor
        with pytest.raises(DuplicateJob) as caught:
            await self.add(hands, on_conflict="raise")
        assert caught.value.job_id == successor
        await hands.succeed(running)
        taken = await hands.take(queues=["slow", "default"])
        assert [(job.id, job.payload, job.queue, job.attempt) for job in taken] == [(successor, "3", "slow", 1)]

    @pytest.mark.parametrize("draws", [[], [("api", "acme")]])
    @pytest.mark.parametrize("outcome", ["retry", "snooze", "leave", "recover"])
    async def test_a_running_job_that_would_wait_again_gives_its_place_to_its_successor(
        self, hands: Hands, outcome: str, draws: list[tuple[str, str]]
    ) -> None:
        hands.rules = {"api": at_once(100)}
        running, successor = await self.running(hands, draws=draws)
        if outcome == "retry":
            await hands.retry_later(running)
        elif outcome == "snooze":
            await hands.give_back(running, "snoozed", run_at=hands.clock.now() + 60_000_000)
        else:
            if outcome == "leave":
                recovered = await hands.storage.leave(hands.node)
            else:
                recovered = await recover(hands)
            assert (list(recovered.returned), list(recovered.poisonous)) == ([], [])
            await hands.storage.join(hands.node, "a")
        record = await hands.record(running.id)
        assert record.state is JobState.CANCELLED
        assert record.error is not None
        assert (record.error.type, record.error.data) == ("Superseded", {"successor": successor})
        assert len(await hands.storage.attempts(running.id)) == 1
        assert record.attempt == 1, "spent or not, it was its last"
        assert await hands.unrun() == (0, 1)
        assert [(job.id, job.payload) for job in await hands.take()] == [(successor, "2")]

    async def test_a_permit_of_the_one_that_gave_its_place_comes_back(self, hands: Hands) -> None:
        rules: dict[str, Any] = {"mutex": Concurrency(1).rule}
        hands.rules = rules
        running, successor = await self.running(hands, draws=[("mutex", "m")], hold="until_final")
        await hands.retry_later(running)
        assert await hands.permits("mutex", "m") == {}
        assert await hands.take_ids() == [successor]
        assert await hands.permits("mutex", "m") == {successor: 1}

    async def test_a_running_job_whose_successor_was_cancelled_is_tried_again_as_ever(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        running, successor = await self.running(hands)
        assert await hands.storage.cancel(successor) is JobState.WAITING
        await hands.retry_later(running, 10)
        clock.advance(11)
        assert await hands.take_ids() == [running.id]

    async def test_a_running_job_that_is_cancelled_lets_its_successor_run(self, hands: Hands) -> None:
        running, successor = await self.running(hands)
        assert await hands.storage.cancel(running.id) is JobState.RUNNING
        await hands.give_back(running)
        assert (await hands.record(running.id)).error is None
        assert await hands.take_ids() == [successor]

    async def test_a_final_job_cannot_wait_again_while_another_waits_under_its_key(self, hands: Hands) -> None:
        first = await self.add(hands)
        await hands.fail(await hands.take_one())
        second = await self.add(hands)
        with pytest.raises(IllegalTransition, match=second):
            await hands.storage.retry(first)
        assert (await hands.record(first)).state is JobState.FAILED
        await hands.succeed(await hands.take_one())
        await hands.storage.retry(first)
        assert await hands.take_ids() == [first]

    async def test_of_two_that_run_under_one_key_one_waits_again(self, hands: Hands, clock: ManualClock) -> None:
        first = await self.add(hands)
        await hands.fail(await hands.take_one())
        second = await self.add(hands)
        later = await hands.take_one()
        await hands.storage.retry(first)
        sooner = await hands.take_one()
        run_at = clock.now() + 1
        endings = [Returned(job.id, job.fence, "failed", spent=True, run_at=run_at) for job in (later, sooner)]
        assert list(await hands.storage.finish(hands.node, endings)) == [True, True]
        states = await hands.states([first, second])
        assert sorted(states) == [JobState.CANCELLED, JobState.WAITING]
        clock.advance(1)
        assert len(await hands.take()) == 1

    async def test_a_job_that_follows_a_unique_one_follows_the_one_that_stands_for_it(self, hands: Hands) -> None:
        first = await self.add(hands)
        again = unique(hands)
        after = replace(hands.new(payload="2"), origin=Origin(follows=again.id))
        assert await hands.storage.add([again, after]) == {again.id: first}
        assert await hands.take_ids() == [first]

    async def test_a_follower_that_was_cancelled_comes_back_only_if_nobody_waits_under_its_key(
        self, hands: Hands
    ) -> None:
        leader = hands.new()
        follower = replace(unique(hands), origin=Origin(follows=leader.id))
        await hands.storage.add([leader, follower])
        await hands.fail(await hands.take_one())
        assert (await hands.record(follower.id)).state is JobState.CANCELLED
        second = await self.add(hands)
        await hands.storage.retry(leader.id)
        assert (await hands.record(follower.id)).state is JobState.CANCELLED
        assert sorted(await hands.take_ids()) == sorted([leader.id, second])

    # --------------------------------------------------------------------------------------------- backlog

    async def test_a_backlog_is_what_waits_in_the_lanes_of_a_queue(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": at_once(1)}
        assert await hands.storage.backlog("default") == 0
        ids = await hands.add(3)
        await hands.add(2, draws=[("api", "acme")])
        await hands.add(4, delay=5)
        await hands.add(1, queue="other")
        assert await hands.storage.backlog("default") == 9
        taken = await hands.take(2)
        assert await hands.storage.backlog("default") == 7
        await hands.give_back(taken[0])
        await hands.storage.cancel(next(id for id in ids if id not in {job.id for job in taken}))
        assert await hands.storage.backlog("default") == 7
        await hands.succeed(*taken[1:])
        assert (await hands.counts()).waiting == await hands.storage.backlog("default")
        assert await hands.storage.backlog("other") == 1
