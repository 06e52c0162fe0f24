"""What is promised of the history that charts show."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.history import ALL, Flush, JobsStep, LimitStep, step_at
from headgate.jobs.job import Origin
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import BOOM, Conformance, StoreUser

AT = 1_700_000_000 * SECOND
"""A whole multiple of ten seconds."""


def at(steps: int) -> int:
    return AT + steps * 10 * SECOND


class ChartsConformance(Conformance):
    async def test_the_counts_of_several_nodes_in_one_step_are_added_up(self, store_user: StoreUser) -> None:
        await store_user.storage.add_history(
            [JobsStep(10, "q", "t", AT, 1, 2, 3, 4, 5, 9, 6, 70, 8, (1, 0, 2), (5,))], ()
        )
        await store_user.storage.add_history(
            [JobsStep(10, "q", "t", AT, 10, 20, 30, 40, 50, 90, 60, 7, 80, (4,), (0, 9))], ()
        )
        (both,) = await store_user.storage.jobs_history(10, "q", "t", AT)
        assert both == JobsStep(10, "q", "t", AT, 11, 22, 33, 44, 55, 99, 66, 70, 80, (5, 0, 2), (5, 9))

    async def test_empty_histograms_are_added_up_as_well(self, store_user: StoreUser) -> None:
        empty = JobsStep(10, "q", "t", AT, enqueued=1)
        await store_user.storage.add_history([empty], ())
        await store_user.storage.add_history([empty], ())
        assert list(await store_user.storage.jobs_history(10, "q", "t", AT)) == [JobsStep(10, "q", "t", AT, enqueued=2)]

    async def test_a_histogram_of_more_than_ten_buckets_keeps_their_order(self, store_user: StoreUser) -> None:
        counts = tuple(range(1, 92))
        for _ in range(3):
            await store_user.storage.add_history([JobsStep(10, "q", "t", AT, waits=counts)], ())
        (row,) = await store_user.storage.jobs_history(10, "q", "t", AT)
        assert row.waits == tuple(3 * count for count in counts)

    async def test_a_curve_is_read_from_an_instant_on_in_order_and_alone(self, store_user: StoreUser) -> None:
        places = [(10, "q", "t"), (10, "q", "u"), (10, "q", ALL), (10, ALL, ALL), (60, "q", "t")]
        rows = [JobsStep(*place, at(number), enqueued=number) for place in places for number in (3, 1, 2, 0)]
        await store_user.storage.add_history(rows, ())
        for place in places:
            found = await store_user.storage.jobs_history(*place, at(1))
            assert list(found) == [JobsStep(*place, at(number), enqueued=number) for number in (1, 2, 3)]
        assert list(await store_user.storage.jobs_history(10, "nobody", "t", 0)) == []

    async def test_the_history_of_a_task_has_the_steps_of_each_queue(self, store_user: StoreUser) -> None:
        rows = [
            JobsStep(10, queue, task, at(number), enqueued=1)
            for queue in ("q", "r")
            for task in ("t", "u", ALL)
            for number in (1, 0)
        ]
        await store_user.storage.add_history([*rows, JobsStep(60, "q", "t", AT, enqueued=1)], ())
        found = await store_user.storage.jobs_history(10, ALL, "t", at(0))
        assert [(row.at, row.queue, row.task) for row in found] == [
            (at(number), queue, "t") for number in (0, 1) for queue in ("q", "r")
        ]
        assert [row.at for row in await store_user.storage.jobs_history(10, ALL, "t", at(1))] == [at(1)] * 2

    async def test_the_newest_steps_of_all_tasks_are_read_last_ones_first(self, store_user: StoreUser) -> None:
        rows = [
            JobsStep(step, "q", task, at(number), enqueued=1)
            for step in (10, 60)
            for task in ("t", "u", ALL)
            for number in (0, 1, 2)
        ]
        await store_user.storage.add_history([*rows, JobsStep(10, ALL, ALL, at(1), enqueued=1)], ())
        found = await store_user.storage.recent_history(10, at(1), 100)
        assert [row.at for row in found] == [at(2), at(2), at(1), at(1)]
        assert {(row.step, row.queue, row.task) for row in found} == {(10, "q", "t"), (10, "q", "u")}
        assert [row.at for row in await store_user.storage.recent_history(10, at(0), 3)] == [at(2), at(2), at(1)]

    async def test_the_use_of_a_limit_is_added_up_by_key_and_for_all_together(self, store_user: StoreUser) -> None:
        rows = [
            LimitStep(10, "calls", "acme", AT, 3),
            LimitStep(10, "calls", "", AT, 5),
            LimitStep(10, "calls", None, AT, 8, 3),
            LimitStep(10, "other", "acme", AT, 1),
            LimitStep(60, "calls", "acme", AT, 2),
        ]
        await store_user.storage.add_history((), rows)
        await store_user.storage.add_history((), [*rows, LimitStep(10, "calls", "acme", at(1), -1)])
        for row in rows:
            (found, *later) = await store_user.storage.limit_history(row.step, row.limit, row.key, AT)
            assert found == LimitStep(row.step, row.limit, row.key, AT, 2 * row.used, 2 * row.unlimited)
            assert len(later) == (row == rows[0])
        after = await store_user.storage.limit_history(10, "calls", "acme", at(1))
        assert list(after) == [LimitStep(10, "calls", "acme", at(1), -1)]

    async def test_steps_from_before_the_clock_was_set_back_are_not_read_until_their_time_comes(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        now = step_at(storage.now(), 10)
        times = (now, now + 3600 * SECOND)
        await storage.add_history(
            [JobsStep(10, "q", "t", each, retried=1) for each in times],
            [LimitStep(10, "calls", "acme", each, 1) for each in times],
        )

        async def curves() -> list[list[int]]:
            return [
                [each.at for each in await storage.jobs_history(10, "q", "t", now)],
                [each.at for each in await storage.jobs_history(10, ALL, "t", now)],
                [each.at for each in reversed(await storage.recent_history(10, now, 100))],
                [each.at for each in await storage.limit_history(10, "calls", "acme", now)],
            ]

        assert await curves() == [[now]] * 4
        clock.advance(3600)
        assert await curves() == [list(times)] * 4

    async def test_old_steps_are_deleted_in_small_portions_and_by_their_length(self, store_user: StoreUser) -> None:
        jobs = [JobsStep(step, "q", "t", at(number), enqueued=1) for step in (10, 60) for number in range(5)]
        limits = [LimitStep(step, "calls", None, at(number), 1) for step in (10, 60) for number in range(5)]
        await store_user.storage.add_history(jobs, limits)
        assert await store_user.storage.prune_history(10, at(4), 3) == 6
        assert await store_user.storage.prune_history(10, at(4), 3) == 2
        assert await store_user.storage.prune_history(10, at(4), 3) == 0
        assert [row.at for row in await store_user.storage.jobs_history(10, "q", "t", 0)] == [at(4)]
        assert [row.at for row in await store_user.storage.limit_history(10, "calls", None, 0)] == [at(4)]
        assert len(await store_user.storage.jobs_history(60, "q", "t", 0)) == 5
        assert len(await store_user.storage.limit_history(60, "calls", None, 0)) == 5

    async def test_a_write_that_is_repeated_under_its_number_adds_nothing(self, store_user: StoreUser) -> None:
        jobs = [JobsStep(10, "q", f"t{number}", AT, enqueued=1) for number in range(150)]
        used = [LimitStep(10, "calls", f"k{number}", AT, 1) for number in range(250)]
        for number, writer in ((1, "a"), (1, "a"), (1, "b"), (2, "a"), (2, "a"), (1, "a")):
            await store_user.storage.add_history(jobs, used, Flush(writer, number))
        for task in ("t0", "t149"):
            assert [row.enqueued for row in await store_user.storage.jobs_history(10, "q", task, AT)] == [3]
        for key in ("k0", "k249"):
            assert [row.used for row in await store_user.storage.limit_history(10, "calls", key, AT)] == [3]
        # Long after, no write is repeated.
        await store_user.storage.prune_history(10, store_user.clock.now() + 3600 * SECOND)
        await store_user.storage.add_history(jobs[:1], (), Flush("a", 1))
        assert [row.enqueued for row in await store_user.storage.jobs_history(10, "q", "t0", AT)] == [1]

    async def test_counts_of_the_store_itself_are_in_steps_of_every_length_and_curve(
        self, store_user: StoreUser
    ) -> None:
        now = store_user.storage.now()
        for queue, task in (("q", "t"), ("q", "t"), ("q", "u"), ("r", "t")):
            await store_user.storage.cancel(await store_user.add_one(queue=queue, task=task))
        await store_user.storage.add_history([JobsStep(10, "q", "t", step_at(now, 10), succeeded=1, runs=(1,))], ())
        while await store_user.storage.gather_history(1):
            pass
        for step in (10, 60, 3600):
            at = step_at(now, step)
            for place, cancelled in (
                (("q", "t"), 2),
                (("q", "u"), 1),
                (("q", ALL), 3),
                (("r", ALL), 1),
                ((ALL, ALL), 4),
            ):
                (row,) = await store_user.storage.jobs_history(step, *place, 0)
                is_both = (step, *place) == (10, "q", "t")
                assert row == JobsStep(step, *place, at, cancelled=cancelled, succeeded=is_both, runs=(1,) * is_both)

    async def test_a_job_that_is_final_as_it_is_stored_is_counted_once_however_often_it_is_added(
        self, store_user: StoreUser
    ) -> None:
        leader = await store_user.add_one()
        await store_user.fail(*await store_user.take())
        rejected = store_user.new(patience=30, rejection=BOOM)
        follower = replace(store_user.new(), origin=Origin(follows=leader))
        for _ in range(3):
            await store_user.storage.add([rejected, follower])
        assert await store_user.unrun() == (1, 1)

    @pytest.mark.parametrize("name", ['"quoted"', "it's", "Zoë 🎈", "%s :name {}"])
    async def test_any_text_can_be_a_name(self, store_user: StoreUser, name: str) -> None:
        row, used = JobsStep(10, name, name, AT, enqueued=1), LimitStep(10, name, name, AT, 1)
        await store_user.storage.add_history([row], [used])
        assert list(await store_user.storage.jobs_history(10, name, name, AT)) == [row]
        assert list(await store_user.storage.limit_history(10, name, name, AT)) == [used]

    async def test_many_nodes_that_add_to_the_same_steps_at_once_lose_nothing(self, store_user: StoreUser) -> None:
        names = [f"task-{number}" for number in range(20)]
        rows = [JobsStep(10, "q", name, AT, enqueued=1, waits=(1, 1)) for name in names]
        uses = [LimitStep(10, "calls", name, AT, 1) for name in names]
        await asyncio.gather(
            *(store_user.storage.add_history(rows[:: (-1) ** turn], uses[:: (-1) ** turn]) for turn in range(10))
        )
        for name in names:
            (row,) = await store_user.storage.jobs_history(10, "q", name, AT)
            assert (row.enqueued, row.waits) == (10, (10, 10))
            (used,) = await store_user.storage.limit_history(10, "calls", name, AT)
            assert used.used == 10
