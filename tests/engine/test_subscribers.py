"""Subscribers: after any failure of one, the others get events, jobs run, and the app can be closed."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest

from headgate import Headgate
from headgate.clock import SECOND
from headgate.engine.bus import ROOM
from headgate.jobs.event import Event, JobFinished, LoopBlocked
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import bus_of


def test_a_subscriber_that_hangs_does_not_delay_closing_the_app(caplog: pytest.LogCaptureFixture) -> None:
    """The fault: a worker could not be stopped any more, not even by a second signal."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ended: list[str] = []

        @app.task
        async def work() -> None:
            pass

        async def hang(event: Event) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                assert isinstance(event, JobFinished)
                ended.append(event.job_id)

        app.subscribe(hang, JobFinished)
        async with app:
            jobs = [await work.enqueue() for _ in range(3)]
            for job in jobs:
                await job.result()
            began = clock.monotonic()
        assert clock.monotonic() - began <= 10 * SECOND
        assert ended == [jobs[0].id], "it is cancelled"
        assert bus_of(app).lost == 3
        assert "events lost: 3" in caplog.text
        # And it gets events again when the app is opened again.
        async with app:
            again = await work.enqueue()
            await again.result()
        assert ended == [jobs[0].id, again.id]

    run_virtual(main)


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="new in Python 3.12")
def test_a_subscriber_gets_every_event_on_a_loop_that_starts_its_tasks_at_once() -> None:
    """The fault: it got the first one, and the others were lost when the app was closed, after 6 s."""

    async def main(clock: VirtualClock) -> None:
        # Unknown to the types of Python 3.11.
        asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
        app = Headgate("memory://", clock=clock)
        ended: list[Event] = []
        app.subscribe(ended.append, JobFinished)

        @app.task
        async def work() -> None: ...

        async with app:
            for _ in range(3):
                await (await work.enqueue()).result()
        assert len(ended) == 3

    run_virtual(main)


def test_events_that_a_subscriber_has_lost_stay_counted_when_it_unsubscribes() -> None:
    """The fault: `headgate_events_lost_total` fell, which Prometheus takes for a restart, and counts the rest again."""

    async def main(clock: VirtualClock) -> None:
        bus = bus_of(Headgate("memory://", clock=clock))
        unsubscribe = [bus.subscribe(lambda event: None, LoopBlocked) for _ in range(2)]
        for _ in range(ROOM + 3):
            bus.publish(LoopBlocked(at=0, seconds=1))
        assert bus.lost == 6
        for _ in range(2):
            unsubscribe[0]()
        assert bus.lost == 6

    run_virtual(main)


@pytest.mark.parametrize("how", ["cancelled", "exit", "interrupt"])
def test_a_subscriber_that_raises_gets_the_next_event(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """The fault: an error that is no Exception ended the delivery without a word, or the whole program."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        received: list[str] = []

        @app.task
        async def work() -> None:
            pass

        async def listen(event: Event) -> None:
            assert isinstance(event, JobFinished)
            received.append(event.job_id)
            match how:
                case "cancelled":
                    answer = asyncio.get_running_loop().create_future()
                    answer.cancel()
                    await answer
                case "exit":
                    sys.exit(4)
                case _:
                    raise KeyboardInterrupt

        app.subscribe(listen, JobFinished)
        async with app:
            jobs = await work.enqueue_many([(), ()])
            for job in jobs:
                await job.result()
        assert sorted(received) == sorted(job.id for job in jobs)
        failures = [record for record in caplog.records if "a subscriber failed on JobFinished" in record.message]
        assert len(failures) == 2
        assert all(record.levelno == logging.ERROR for record in failures)

    run_virtual(main)
