"""Queues that bound their backlog, and queues with limits of their own, on the engine in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    DeclarationError,
    Headgate,
    JobState,
    NotOpen,
    PayloadError,
    QueueFull,
    RateLimit,
    RetryPolicy,
    StorageUnavailable,
    StrictRate,
    batch,
    chain,
)
from headgate.admin import JobQuery
from headgate.clock import SECOND
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.tasks.queue import WhenFull
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, store_of
from tests.until import patient, result_within


def made(clock: VirtualClock, when_full: WhenFull, max_backlog: int = 3, **options: Any) -> Headgate:
    app = app_on(MemoryStorage(clock), clock=clock, retry=RetryPolicy(retries=2))
    app.queue("mail", concurrency=1, max_backlog=max_backlog, when_full=when_full, **options)

    @app.task(name="send", queue="mail")
    async def send(number: int) -> int:
        await asyncio.sleep(10)
        return number

    return app


async def counts(app: Headgate) -> dict[str, int]:
    return {each.queue: each.waiting for each in await app.admin.counts()}


def test_a_full_queue_raises_and_stores_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(clock, "raise")
        send = app.tasks["send"]
        async with app.open():
            await send.enqueue_many([(1,), (2,)])
            with pytest.raises(QueueFull, match="2 jobs wait in queue 'mail'"):
                await send.enqueue_many([(3,), (4,)])
            await send.enqueue(3)
            with pytest.raises(QueueFull):
                await send.using(delay=60).enqueue(4)
            assert await counts(app) == {"mail": 3}
            # Into another queue it goes.
            await send.using(queue="default").enqueue(4)

    run_virtual(main)


@pytest.mark.parametrize("when_full", ["raise", "wait"])
def test_all_callers_learn_together_that_the_waiting_jobs_cannot_be_counted(
    when_full: WhenFull, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: each counted anew once the one before had given up, so that the last of 20 waited for 100 s."""

    async def main(clock: VirtualClock) -> None:
        app = made(clock, when_full, max_backlog=100)
        send = app.tasks["send"]

        async def away(_queue: str) -> int:
            await asyncio.sleep(5)
            raise StorageUnavailable("the store is away")

        async with app.open():
            with monkeypatch.context() as patched:
                patched.setattr(store_of(app), "backlog", away)
                for _ in range(2):
                    began = clock.monotonic()
                    calls = [send.enqueue(number) for number in range(20)]
                    errors = await asyncio.gather(*calls, return_exceptions=True)
                    assert {type(error) for error in errors} == {StorageUnavailable}
                    assert len({id(error) for error in errors}) == 20
                    assert clock.monotonic() - began < 6 * SECOND
            await send.enqueue_many([(number,) for number in range(100)])
            with pytest.raises(QueueFull if when_full == "raise" else TimeoutError):
                await asyncio.wait_for(send.enqueue(100), 60)

    run_virtual(main)


def test_a_caller_waits_for_room_in_the_order_in_which_callers_came() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(clock, "wait")
        send = app.tasks["send"]
        async with app:
            stored: list[int] = []

            async def enqueue(number: int) -> None:
                await send.enqueue(number)
                stored.append(number)

            await asyncio.gather(*[enqueue(number) for number in range(3)])
            waiting = [asyncio.create_task(enqueue(number)) for number in range(3, 9)]
            await asyncio.sleep(5)
            assert len(stored) <= 4
            assert (await counts(app))["mail"] <= 3
            await asyncio.gather(*waiting)
            assert stored == list(range(9))
            await asyncio.sleep(100)
            assert [each.succeeded for each in await app.admin.counts()] == [9]

    run_virtual(main)


def test_a_caller_that_stops_waiting_for_room_has_stored_nothing_and_delays_no_other() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(clock, "wait", max_backlog=1)
        send = app.tasks["send"]
        async with app.open():
            first = await send.enqueue(1)
            second, third = (asyncio.create_task(send.enqueue(number)) for number in (2, 3))
            await asyncio.sleep(3)
            assert not second.done()
            assert not third.done()
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            assert await counts(app) == {"mail": 1}
            await first.cancel()
            # Woken, not by the slow timer alone.
            before = clock.monotonic()
            assert (await (await third).status()).state is JobState.WAITING
            assert clock.monotonic() - before < 100_000
            assert await counts(app) == {"mail": 1}

    run_virtual(main)


def test_flows_that_use_two_full_queues_in_opposite_order_do_not_wait_for_each_other() -> None:
    """The fault: each kept the last room of one queue and waited for the other, for ever, while no job was stored."""

    class SlowStorage(MemoryStorage):
        async def backlog(self, queue: str) -> int:  # type: ignore[misc]
            await asyncio.sleep(0.01)
            return await super().backlog(queue)

    async def main(clock: VirtualClock) -> None:
        app = app_on(SlowStorage(clock), clock=clock)
        for name in ("left", "right"):
            app.queue(name, max_backlog=2)

        @app.task(queue="left")
        async def left() -> None: ...

        @app.task(queue="right")
        async def right() -> None: ...

        flows = [chain(left.call(), right.call()), chain(right.call(), left.call())] * 3
        async with app:
            chains = await asyncio.wait_for(asyncio.gather(*[flow.enqueue() for flow in flows]), 60)
            await asyncio.gather(*[each.result() for each in chains])

    run_virtual(main)


def test_jobs_that_fall_back_wait_for_room_together_with_those_of_the_default_queue() -> None:
    """The fault: the first of them kept the room of the default queue for which the last one waited."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("default", max_backlog=3)
        app.queue("mail", max_backlog=1, when_full="fallback")

        @app.task
        async def work() -> None: ...

        mail = work.using(queue="mail")
        async with app.open():
            await mail.enqueue()
            with pytest.raises(QueueFull, match="'default'"):
                await asyncio.wait_for(batch([mail.call(), mail.call(), work.call(), work.call()]).enqueue(), 60)

    run_virtual(main)


@pytest.mark.parametrize("place", ["memory", "file"])
def test_a_caller_that_waits_for_room_when_the_app_closes_gets_an_error(place: str, tmp_path: Path) -> None:
    """The fault: a caller that waited for room in the moment of a shutdown waited for ever."""

    async def main(clock: VirtualClock) -> None:
        url = "memory://" if place == "memory" else f"sqlite:///{tmp_path}/jobs.db"
        app = Headgate(url, clock=clock, synchronous="OFF")
        app.queue("mail", max_backlog=1)

        @app.task(queue="mail")
        async def send(number: int) -> int:
            return number

        async with app.open():
            first = await send.enqueue(1)
            waiting = [asyncio.create_task(send.enqueue(number)) for number in (2, 3, 4)]
            await asyncio.sleep(3.1)
            closed = clock.monotonic()
        errors = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert [type(error) for error in errors] == [NotOpen] * 3
        assert clock.monotonic() == closed, "at once, and not with the next look"
        async with app:
            assert await first.result() == 1
            assert (await app.admin.counts())[0].succeeded == 1
            # There is room again.
            assert await (await send.enqueue(5)).result() == 5

    run_virtual(main)


def test_what_can_never_fit_is_refused_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(clock, "wait")
        async with app.open():
            with pytest.raises(QueueFull, match=r"one call enqueues 4 jobs .* enqueue at most \d at once"):
                await app.tasks["send"].enqueue_many([(number,) for number in range(4)])

    run_virtual(main)


def test_jobs_of_a_full_queue_fall_back_to_the_default_one_and_keep_their_limits() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(clock, "fallback", limits=[StrictRate("1/m", margin=0)], global_concurrency=1)
        app.queue("default", global_concurrency=5)
        send = app.tasks["send"]
        async with app.open():
            jobs = [await send.enqueue(number) for number in range(5)]
            queues = Counter([(await job.status()).queue for job in jobs])
            assert queues == {"mail": 3, "default": 2}
            record = await store_of(app).job(jobs[-1].id)
            assert record is not None
            assert [ref.limit for ref in record.buckets] == ["queue:mail:rate", "queue:default"]
        async with app:
            await asyncio.sleep(59)
            started = [job for job in jobs if (await job.status()).started_at is not None]
            assert len(started) == 1

    run_virtual(main)


def test_a_retry_is_never_refused_for_a_full_queue() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock, retry=RetryPolicy(retries=2))
        app.queue("mail", max_backlog=1, when_full="raise")
        tries: list[int] = []

        @app.task(queue="mail")
        async def flaky(number: int) -> None:
            tries.append(number)
            if len(tries) == 1:
                await app.tasks["flaky"].using(delay=60).enqueue(2)
                raise ValueError

        async with app:
            job = await flaky.enqueue(1)
            await result_within(job, 30)
        assert tries == [1, 1]

    run_virtual(main)


def test_all_tasks_of_a_queue_use_its_limits_each_with_its_own_arguments() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)
        app.limit("api", RateLimit("100/s"))
        app.queue("mail", limits=[StrictRate("2/m", key="{tenant}", margin=0), "api"])

        @app.task(queue="mail", limits=["api"])
        async def one(tenant: str) -> None: ...

        @app.task(queue="mail")
        async def two(size: int, tenant: str) -> None: ...

        @app.task
        async def three(size: int) -> None: ...

        async with app:
            jobs = [await one.enqueue("acme"), await two.enqueue(1, "acme"), await one.enqueue("acme")]
            other = await two.enqueue(1, "globex")
            await asyncio.sleep(30)
            states = [(await job.status()).state for job in [*jobs, other]]
            assert sorted(states[:3]) == ["succeeded", "succeeded", "waiting"]
            assert states[3] == "succeeded"
            late = await jobs[states.index(JobState.WAITING)].status()
            assert late.waits_for == ("queue:mail:rate", "acme")
            # What its task uses already is not used twice.
            record = await store_of(app).job(jobs[0].id)
            assert record is not None
            assert [ref.limit for ref in record.buckets] == ["api", "queue:mail:rate"]
            # A task of another queue has no such argument.
            with pytest.raises(DeclarationError, match="tenant"):
                await three.using(queue="mail").enqueue(1)

    run_virtual(main)


def test_mistakes_are_reported_when_a_queue_is_declared() -> None:
    app = Headgate("memory://")
    for options, word in (
        ({"max_backlog": 0}, "max_backlog"),
        ({"max_backlog": True}, "max_backlog"),
        ({"max_backlog": 1, "when_full": "drop"}, "when_full"),
        ({"when_full": "raise"}, "max_backlog"),
        ({"limits": ["nowhere"]}, "nowhere"),
        ({"limits": [3]}, "is not a limit"),
        ({"limits": [StrictRate("1/s", name="queue:x")]}, "begin with"),
    ):
        with pytest.raises(DeclarationError, match=word):
            app.queue("mail", **options)
    with pytest.raises(DeclarationError, match="fall back"):
        app.queue("default", max_backlog=1, when_full="fallback")
    app.queue("mail", limits=[StrictRate("1/s", key="{tenant}")])
    with pytest.raises(DeclarationError, match="tenant"):

        @app.task(queue="mail")
        async def no_tenant(size: int) -> None: ...

    app.queue("plain")

    @app.task(queue="plain")
    async def plain(size: int) -> None: ...

    with pytest.raises(DeclarationError, match="tenant"):
        app.queue("plain", limits=[StrictRate("1/s", key="{tenant}")])


def test_queue_limits_do_not_apply_to_a_task_without_their_arguments() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)
        app.queue("mail", limits=[StrictRate("2/m", key="{tenant}")])

        @app.task
        async def three(size: int) -> None: ...

        async with app:
            await (await three.enqueue(1)).result()

    run_virtual(main)


# ------------------------------------------------------------------------------- callers of one process at once


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def bounded(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    """An app whose queue `mail` holds ten jobs, on each store, in real time."""
    options: dict[str, Any] = {"synchronous": "OFF"}
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}.get(request.param)
    if url is None:
        url = request.getfixturevalue("postgres_url")
        options = {"schema": request.getfixturevalue("postgres_schema")}
    app = Headgate(url, **options)
    app.queue("mail", max_backlog=10, when_full="raise")
    app.queue("spill", max_backlog=10, when_full="fallback")
    app.queue("calm", max_backlog=10)
    for queue in ("mail", "spill", "calm"):

        @app.task(name=queue, queue=queue)
        async def send(number: int) -> None: ...

    return app


async def waiting_in(app: Headgate, queue: str) -> int:
    return (await counts(app)).get(queue, 0)


async def test_callers_of_one_process_never_exceed_the_bound_and_use_all_of_it(bounded: Headgate) -> None:
    mail = bounded.tasks["mail"]
    async with bounded.open():
        for _ in range(3):
            answers = await asyncio.gather(*(mail.enqueue(number) for number in range(100)), return_exceptions=True)
            assert Counter(isinstance(answer, QueueFull) for answer in answers) == {False: 10, True: 90}
            assert await waiting_in(bounded, "mail") == 10
            await bounded.admin.cancel_many(JobQuery(task="mail"))


async def test_whatever_is_enqueued_together_counts_together(bounded: Headgate) -> None:
    mail = bounded.tasks["mail"]
    async with bounded.open():
        several = [mail.enqueue_many([(number,) for number in range(3)]) for _ in range(20)]
        answers = await asyncio.gather(*several, return_exceptions=True)
        assert sum(not isinstance(answer, QueueFull) for answer in answers) == 3
        assert await waiting_in(bounded, "mail") == 9
        await bounded.admin.cancel_many(JobQuery(task="mail"))
        batches = [batch([mail.call(number) for number in range(4)]).enqueue() for _ in range(20)]
        in_batches = await asyncio.gather(*batches, return_exceptions=True)
        assert sum(not isinstance(answer, QueueFull) for answer in in_batches) == 2
        assert await waiting_in(bounded, "mail") == 8


async def test_chains_and_single_jobs_share_the_bound(bounded: Headgate) -> None:
    mail, calm = bounded.tasks["mail"], bounded.tasks["calm"]
    async with bounded.open():
        # Both orders of the queues at once: no deadlock.
        mixed = [chain(first.call(1), second.call(2)).enqueue() for first, second in [(mail, calm), (calm, mail)] * 20]
        single = [mail.enqueue(number) for number in range(20)]
        answers = await asyncio.wait_for(asyncio.gather(*single, *mixed, return_exceptions=True), patient(15))
        assert {type(answer) for answer in answers if isinstance(answer, Exception)} == {QueueFull}
        assert await waiting_in(bounded, "mail") <= 10


async def test_only_jobs_that_do_not_fit_fall_back(bounded: Headgate) -> None:
    async with bounded.open():
        await asyncio.gather(*(bounded.tasks["spill"].enqueue(number) for number in range(40)))
        assert (await waiting_in(bounded, "spill"), await waiting_in(bounded, "default")) == (10, 30)


async def test_callers_who_wait_for_room_come_in_one_by_one(bounded: Headgate) -> None:
    calm = bounded.tasks["calm"]
    async with bounded.open():
        callers = [asyncio.create_task(calm.enqueue(number)) for number in range(25)]
        for accepted, left in ((10, 10), (20, 10), (25, 5)):
            while sum(caller.done() for caller in callers) < accepted:
                await asyncio.wait([each for each in callers if not each.done()], return_when="FIRST_COMPLETED")
            assert sum(caller.done() for caller in callers) == accepted
            assert await waiting_in(bounded, "calm") == left
            await bounded.admin.cancel_many(JobQuery(task="calm"))


def test_threads_of_one_process_never_exceed_the_bound(bounded: Headgate) -> None:
    def enqueue(number: int) -> bool:
        try:
            bounded.tasks["mail"].sync.enqueue(number)
        except QueueFull:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(enqueue, range(60))) == 10
    bounded.sync.close()


async def test_jobs_that_could_not_be_stored_leave_their_room_to_others(bounded: Headgate) -> None:
    mail = bounded.tasks["mail"]
    async with bounded.open():
        for _ in range(20):
            with pytest.raises(PayloadError):
                await mail.enqueue(object())
        answers = await asyncio.gather(*(mail.enqueue(number) for number in range(12)), return_exceptions=True)
        assert sum(isinstance(answer, QueueFull) for answer in answers) == 2
