"""Nodes whose own clock is wrong: jobs go by the clock of the store."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

from headgate import Every, Headgate, JobState, Mutex, RateLimited, RetryPolicy, Snooze, StrictRate, current_job
from headgate.clock import SECOND, SystemClock, from_datetime
from headgate.jobs.event import ClockSkewed, Event, JobEnqueued, JobStarted, LeaseNotRenewed
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual
from tests.engine.faulty_storage import Faults, FaultyStorage, History
from tests.internals import app_on

HOUR = 3600


def beside(clock: VirtualClock, seconds: float) -> VirtualClock:
    """A clock of the same loop with another wall time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return VirtualClock(loop, start=clock.now() + round(seconds * SECOND))


@pytest.mark.parametrize("wrong", [-HOUR, HOUR])
def test_a_node_whose_clock_is_an_hour_off_starts_nothing_early_or_late(wrong: int) -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        began = clock.now()
        started: list[tuple[str, float]] = []

        def made(app_clock: VirtualClock) -> Headgate:
            app = app_on(store, clock=app_clock, retry=RetryPolicy(retries=1, base=30, jitter=False))

            @app.task(name="work")
            async def work(what: str) -> None:
                started.append((what, (clock.now() - began) / SECOND))
                if len([name for name, _ in started if name == what]) > 1:
                    return
                match what:
                    case "fails":
                        raise ValueError("as planned")
                    case "snoozes":
                        raise Snooze(40)
                    case "refused":
                        raise RateLimited(retry_after=50)

            return app

        right, skewed = made(clock), made(beside(clock, wrong))
        async with right.open(), skewed:
            for app in (right, skewed):
                await app.tasks["work"].using(delay=60).enqueue("delayed")
                await app.tasks["work"].enqueue("now")
            for what in ("fails", "snoozes", "refused"):
                await skewed.tasks["work"].enqueue(what)
            await asyncio.sleep(100)
        assert sorted((round(at), what) for what, at in started) == sorted(
            [
                *[(0, "now")] * 2,
                *[(60, "delayed")] * 2,
                *[(0, what) for what in ("fails", "snoozes", "refused")],
                *[(30, "fails"), (40, "snoozes"), (50, "refused")],
            ]
        )

    run_virtual(main)


def test_an_instant_given_by_a_user_is_in_the_time_of_the_store() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=beside(clock, -HOUR))
        started: list[int] = []

        @app.task
        async def work() -> None:
            started.append(clock.now())

        async with app:
            at = app.admin.now().replace(microsecond=0)
            job = await work.using(at=at.replace(hour=at.hour + 1)).enqueue()
            await job.result()
            assert started == [from_datetime(at) + HOUR * SECOND]

    run_virtual(main)


@pytest.mark.parametrize("wrong", [-HOUR, HOUR])
def test_events_of_a_node_with_a_wrong_clock_have_the_time_of_the_store(wrong: int) -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=beside(clock, wrong))

        @app.task(limits=[StrictRate("1/m")])
        async def work() -> None: ...

        async with app:
            first, second = await work.enqueue_many([(), ()])
            await first.result()
            status = await second.status()
            assert 0 <= clock.now() - from_datetime(status.enqueued_at) < SECOND
            assert status.predicted_start is not None
            assert status.throttled_until is not None
            (bucket,) = await app.admin.limits.list()
            assert bucket.next_slot_at is not None
            for instant in (status.predicted_start, status.throttled_until, bucket.next_slot_at):
                assert 60 <= (instant - status.enqueued_at).total_seconds() < 62
            await app.admin.limits.penalize("work:rate", "", 300)
            (bucket,) = await app.admin.limits.list()
            assert bucket.penalized_until is not None
            assert round((bucket.penalized_until - app.admin.now()).total_seconds()) == 300
            later = await work.using(delay=10).enqueue()
            assert (await later.status()).is_scheduled

    run_virtual(main)


def test_a_node_whose_clock_is_ahead_deletes_no_job_before_its_retention() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=beside(clock, 30 * 24 * HOUR), retention=HOUR)

        @app.task
        async def work() -> None: ...

        async with app:
            job = await work.enqueue()
            await job.result()
            await asyncio.sleep(HOUR - 60)
            assert (await job.status()).state is JobState.SUCCEEDED
            await asyncio.sleep(180)
            assert await app.admin.jobs() == []

    run_virtual(main)


def test_a_clock_that_is_more_than_5_s_off_is_reported_once_until_it_is_right_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(clock: VirtualClock) -> None:
        wrong = beside(clock, -7200)
        app = app_on(MemoryStorage(clock), clock=wrong)
        received: list[Event] = []
        app.subscribe(received.append, ClockSkewed)

        def skews() -> list[float]:
            return [event.seconds for event in received if isinstance(event, ClockSkewed)]

        async with app:
            await asyncio.sleep(100)
            assert skews() == [-7200]
            wrong.step_wall(7198)
            await asyncio.sleep(10)
            assert skews() == [-7200]
            wrong.step_wall(62)
            await asyncio.sleep(100)
            assert skews() == [-7200, 60]

    with caplog.at_level(logging.WARNING, logger="headgate"):
        run_virtual(main)
    lines = [record.message for record in caplog.records if record.message.startswith("the clock of")]
    assert ["7200.0 s behind the store's" in line for line in lines] == [True, False]
    assert "60.0 s ahead of the store's" in lines[1]


def test_a_correct_clock_is_not_reported() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=beside(clock, 4))
        received: list[Event] = []
        app.subscribe(received.append, ClockSkewed)
        async with app:
            await asyncio.sleep(100)
        assert received == []

    run_virtual(main)


def test_events_have_the_time_of_the_process_that_publishes_them() -> None:
    async def main(clock: VirtualClock) -> None:
        own = beside(clock, HOUR)
        app = app_on(MemoryStorage(clock), clock=own)
        received: list[Event] = []
        app.subscribe(received.append, JobEnqueued, JobStarted)

        @app.task
        async def work() -> float:
            return current_job().waited_for

        async with app:
            assert await (await work.enqueue()).result() < 1
        assert [0 <= own.now() - event.at < SECOND for event in received] == [True, True]

    run_virtual(main)


def test_a_step_of_the_stores_clock_wakes_a_node_for_the_delayed_jobs_that_are_due_now() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=beside(clock, 0))
        started = asyncio.Event()

        @app.task
        async def work() -> None:
            started.set()

        async with app:
            await work.using(delay=HOUR).enqueue()
            await asyncio.sleep(5)
            clock.step_wall(HOUR)
            await asyncio.sleep(1.5)
            assert started.is_set()

    run_virtual(main)


class MachineClock(SystemClock):
    """The clock of a machine that may sleep: it counts that time, and the timers of the event loop do not."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self._slept = 0

    def now(self) -> int:
        return self._clock.now() + self._slept

    def monotonic(self) -> int:
        return self._clock.monotonic() + self._slept

    def sleep(self, seconds: float) -> None:
        self._slept += round(seconds * SECOND)


def test_a_node_whose_machine_has_slept_starts_what_became_due_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        machine = MachineClock(clock)
        app = app_on(MemoryStorage(machine), clock=machine)
        started: list[str] = []

        @app.task
        async def delayed() -> None:
            started.append("delayed")

        @app.schedule(Every(hours=1))
        async def hourly() -> None:
            started.append("hourly")

        async with app:
            await delayed.using(delay=HOUR).enqueue()
            await asyncio.sleep(4.5)
            machine.sleep(HOUR)
            await asyncio.sleep(1.5)
            assert sorted(started) == ["delayed", "hourly"]

    run_virtual(main)


def test_a_node_whose_machine_has_slept_beyond_its_lease_leaves_a_mutex_before_it_reaches_the_store() -> None:
    async def main(clock: VirtualClock) -> None:
        machine, faults = MachineClock(clock), Faults()
        line: Any = FaultyStorage("node", MemoryStorage(machine), faults, Random(1), History())
        app = app_on(line, clock=machine)
        left_at: list[int] = []
        seen: list[Event] = []
        app.subscribe(seen.append, LeaseNotRenewed)

        @app.task(limits=[Mutex("door")])
        async def enter() -> None:
            try:
                await asyncio.sleep(2 * HOUR)
            finally:
                left_at.append(clock.monotonic())

        async with app:
            await enter.enqueue()
            await asyncio.sleep(4.5)
            machine.sleep(HOUR)
            woke_at = clock.monotonic()
            # The network comes back later.
            faults.freeze("node")
            await asyncio.sleep(20)
            assert [at - woke_at <= SECOND for at in left_at] == [True]
            faults.thaw("node")
            await asyncio.sleep(5)
            assert len(seen) == 1

    run_virtual(main)


def test_a_job_that_ended_before_the_clock_was_set_back_can_be_deleted() -> None:
    """The fault: "another open transaction has locked" it, for an hour."""

    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)

        @app.task
        async def work() -> None: ...

        async with app:
            job = await work.enqueue()
            await job.result()
            clock.step_wall(-HOUR)
            await app.admin.delete(job.id)
            assert await app.admin.count() == 0

    run_virtual(main)


def test_a_purge_takes_jobs_that_ended_just_now_or_a_little_ahead() -> None:
    """The fault: it left a job that had ended in the same microsecond, or that a clock a little ahead had ended."""

    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)

        @app.task
        async def work() -> None: ...

        async with app:
            for back in (0, 0.05):
                job = await work.enqueue()
                await job.result()
                ended = (await job.status()).finished_at
                assert ended is not None
                clock.step_wall((from_datetime(ended) - clock.now()) / SECOND - back)
                assert (await app.admin.purge(older_than=0)).changed == 1

    run_virtual(main)
