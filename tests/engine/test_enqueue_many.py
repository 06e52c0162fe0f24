"""Calls of `enqueue_many` keep their own options, and are all stored in one commit or not at all."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from headgate import DeclarationError, Headgate, JobState, QueueFull, RateLimit, RetryPolicy, Task
from headgate.clock import to_datetime
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import store_of


class Shop:
    """An app whose tasks say what they have done."""

    def __init__(self, clock: VirtualClock | None = None, url: str = "memory://") -> None:
        self.app = Headgate(url, clock=clock, retry=RetryPolicy(retries=0))
        self.app.queue("other", max_backlog=3, when_full="raise")
        self.done: list[str] = []

        async def charge(order: int) -> str:
            self.done.append(f"charged {order}")
            return f"charged {order}"

        async def refund(order: int) -> str:
            self.done.append(f"refunded {order}")
            return f"refunded {order}"

        self.charge: Task[[int], str] = self.app.task(charge)
        self.refund: Task[[int], str] = self.app.task(refund)
        self.limited: Task[[int], str] = self.app.task(name="limited", limits=[RateLimit("1/m")])(charge)


def test_each_call_is_enqueued_under_its_own_options() -> None:
    """A call that was to run an hour later, elsewhere, once ran at once: only its arguments were looked at."""

    async def main(clock: VirtualClock) -> None:
        shop = Shop(clock)
        charge = shop.charge
        async with shop.app:
            own = charge.using(delay=3600, priority=7, queue="other", unique_key="k", headers={"a": "b"}, timeout=9)
            jobs = await charge.enqueue_many([charge.call(1), own.call(2), (3,), charge.using(queue="other").call(4)])
            first, later, third, fourth = [await job.status() for job in jobs]
            assert (later.is_scheduled, later.priority, later.queue) == (True, 7, "other")
            assert later.run_at - later.enqueued_at == timedelta(hours=1)
            assert [each.is_scheduled for each in (first, third, fourth)] == [False] * 3
            assert [each.queue for each in (first, third, fourth)] == ["default", "default", "other"]
            record = await store_of(shop.app).job(later.id)
            assert record is not None
            assert record.headers == {"a": "b"}
            assert record.options is not None
            assert record.options.timeout == 9
            assert await charge.using(unique_key="k").enqueue(2) == jobs[1], "its unique key is taken"
            assert [await job.result() for job in (jobs[0], jobs[2], jobs[3])] == [
                "charged 1",
                "charged 3",
                "charged 4",
            ]
            assert len(shop.done) == 3
            await asyncio.sleep(3601)
            assert shop.done[3:] == ["charged 2"]

    run_virtual(main)


def test_options_that_a_call_does_not_set_are_those_of_the_task() -> None:
    async def main(clock: VirtualClock) -> None:
        shop = Shop(clock)
        async with shop.app.open():
            outer = shop.charge.using(
                delay=60, priority=3, headers={"from": "outer", "by": "us"}, audit="none", timeout=5
            )
            then = to_datetime(clock.now()) + timedelta(hours=2)
            inner = shop.charge.using(
                at=then, headers={"from": "inner"}, expires_at=then + timedelta(1), retry=RetryPolicy(retries=4)
            )
            plain, mixed = await outer.enqueue_many([shop.charge.call(1), inner.call(2)])
            records = [await store_of(shop.app).job(job.id) for job in (plain, mixed)]
            one, other = records
            assert one is not None
            assert other is not None
            assert (one.priority, other.priority) == (3, 3)
            assert (one.headers, other.headers) == ({"from": "outer", "by": "us"}, {"from": "inner", "by": "us"})
            assert (one.run_at - one.enqueued_at, to_datetime(other.run_at)) == (60_000_000, then)
            assert one.expires_at is None
            assert other.expires_at is not None
            assert one.options is not None
            assert other.options is not None
            assert (one.options.timeout, other.options.timeout) == (5, 5)
            assert one.options.retry is None
            assert other.options.retry is not None

    run_virtual(main)


async def test_a_call_of_another_task_is_refused_and_nothing_is_stored() -> None:
    """`charge` once charged what was to be refunded."""
    shop, other = Shop(), Shop()
    async with shop.app.open():
        for enqueue in (
            shop.charge.enqueue_many,
            lambda calls: asyncio.to_thread(shop.charge.sync.enqueue_many, calls),
        ):
            with pytest.raises(TypeError, match="task 'charge' cannot enqueue a call of task 'refund'"):
                await enqueue([shop.charge.call(1), shop.refund.call(1)])
        with pytest.raises(TypeError, match="of another app"):
            await shop.charge.enqueue_many([other.charge.call(1)])
        with pytest.raises(TypeError, match=r"connection= is set for one call.*using\(connection=…\)\.enqueue_many"):
            await shop.charge.enqueue_many([shop.charge.using(connection=object()).call(1)])
        assert not await shop.app.admin.jobs()


def test_a_full_queue_of_one_call_refuses_them_all() -> None:
    async def main(clock: VirtualClock) -> None:
        shop = Shop(clock)
        elsewhere = shop.charge.using(queue="other", delay=60)
        async with shop.app.open():
            with pytest.raises(QueueFull, match="'other'"):
                await shop.charge.enqueue_many([shop.charge.call(0), *(elsewhere.call(n) for n in range(4))])
            assert await shop.charge.enqueue_many([]) == []
            assert not await shop.app.admin.jobs()
            assert len(await shop.charge.enqueue_many([elsewhere.call(n) for n in range(3)])) == 3

    run_virtual(main)


def test_only_calls_that_request_it_get_a_predicted_start() -> None:
    async def main(clock: VirtualClock) -> None:
        shop = Shop(clock)
        async with shop.app.open():
            asking = shop.limited.using(predict=True)
            plain, promised = await shop.limited.enqueue_many([shop.limited.call(1), asking.call(2)])
            assert plain.prediction is None
            assert promised.prediction is not None
            assert promised.prediction.position == 2

    run_virtual(main)


async def test_no_start_is_predicted_in_a_transaction_of_the_caller() -> None:
    shop = Shop()
    async with shop.app.open():
        with pytest.raises(DeclarationError, match="predict= needs a committed job"):
            await shop.limited.using(connection=object()).enqueue_many([shop.limited.using(predict=True).call(1)])


async def test_sync_code_enqueues_calls_with_their_own_options(tmp_path: Any) -> None:
    shop = Shop(url=f"sqlite:///{tmp_path}/jobs.db")
    async with shop.app.open():
        calls = [shop.charge.using(priority=n % 2, queue="other").call(n) for n in range(3)]
        jobs = await asyncio.to_thread(shop.charge.sync.enqueue_many, calls)
        statuses = [await shop.app.job(job.id).status() for job in jobs]
        assert [(each.priority, each.queue) for each in statuses] == [(0, "other"), (1, "other"), (0, "other")]
        assert statuses[0].state is JobState.WAITING
