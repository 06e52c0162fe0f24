"""Events and log lines of throttled jobs: few for many keys, none lost at the end, none if switched off."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headgate import Headgate, Mutex, RateLimit
from headgate.clock import SECOND
from headgate.jobs.event import Event, JobThrottled, LimitsClosed, LimitThrottled
from headgate.limits.limit import Limit
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.testing.virtual_time import VirtualClock, run_virtual


def limited(clock: VirtualClock, *, throttle_events: bool | None = None) -> tuple[Headgate, list[Event]]:
    """An app whose task starts once a second for each tenant, and what it publishes about that."""
    app = Headgate("memory://", clock=clock, throttle_events=throttle_events)
    events: list[Event] = []
    app.subscribe(events.append, JobThrottled, LimitThrottled, LimitsClosed)

    @app.task(name="call", limits=[RateLimit("1/s", key="{tenant}", burst=1, name="calls")])
    async def call(tenant: str) -> None: ...

    return app, events


def test_many_throttled_keys_of_a_limit_are_one_log_line_each_half_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        app, _ = limited(clock)
        async with app:
            await app.tasks["call"].enqueue_many([(f"tenant-{number % 20}",) for number in range(20 * 80)])
            await asyncio.sleep(65)

    with caplog.at_level(logging.INFO, logger="headgate"):
        run_virtual(main)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("limit calls")]
    # At once, after 30 s, after 60 s, and what was left at the end.
    assert len(lines) == 4
    assert all("jobs waiting behind 20 keys, most behind 'tenant-" in line for line in lines[1:])


def test_one_throttled_key_is_named_with_its_next_slot(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        app, _ = limited(clock)
        async with app:
            await app.tasks["call"].enqueue_many([("acme",)] * 3)
            await asyncio.sleep(0.5)

    with caplog.at_level(logging.INFO, logger="headgate"):
        run_virtual(main)
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("limit calls")]
    assert line.startswith("limit calls: 2 jobs waiting behind key 'acme', next slot 2026-01-01T00:00:01")
    # Programs read the fields.
    assert " [throttled limit=calls key=acme keys=1 waiting=2 count=1 opens_at=2026-01-01T00:00:01" in line
    assert line.endswith("]")


def test_what_was_met_since_the_last_event_is_published_when_the_node_stops() -> None:
    async def main(clock: VirtualClock) -> None:
        app, events = limited(clock)
        began_at = clock.now()
        async with app:
            jobs = await app.tasks["call"].enqueue_many([(tenant,) for tenant in ("acme", "globex") for _ in range(50)])
            await asyncio.sleep(42.5)
        met = sum(len(event.limits) for event in events if isinstance(event, LimitsClosed))
        assert met > 80
        assert sum(event.count for event in events if isinstance(event, JobThrottled)) == met
        by_limit = [event for event in events if isinstance(event, LimitThrottled)]
        assert sum(event.count for event in by_limit) == met
        last = by_limit[-1]
        assert (last.limit, last.keys, last.waiting) == ("calls", 2, 14)
        by_bucket = {event.key: event.job_id for event in events if isinstance(event, JobThrottled)}
        assert by_bucket == {"acme": jobs[43].id, "globex": jobs[93].id}
        assert last.at >= began_at + 42 * SECOND

    run_virtual(main)


def test_a_node_says_within_a_minute_that_no_job_waits_any_more() -> None:
    """The fault: "3 jobs waiting" was the last line about a limit, until a job met it again, perhaps days later."""

    async def main(clock: VirtualClock) -> None:
        app, events = limited(clock)
        began_at = clock.now()
        async with app:
            await app.tasks["call"].enqueue_many([("acme",)] * 4)
            await asyncio.sleep(300)
            first, last = [event for event in events if isinstance(event, LimitThrottled)]
        assert (first.waiting, last.waiting, last.keys, last.count) == (3, 0, 0, 2)
        assert last.at <= began_at + 63 * SECOND
        assert [event for event in events if isinstance(event, LimitThrottled)] == [first, last]

    run_virtual(main)


def test_jobs_whose_starts_are_fetched_from_another_store_are_throttled_once_that_grants_none() -> None:
    """The fault: each counted as throttled, and the log said that jobs wait, although the limit was open."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        events: list[Event] = []
        app.subscribe(events.append, JobThrottled, LimitThrottled, LimitsClosed)

        @app.task(limits=[RateLimit("1/m", burst=20, name="calls", store=MemoryBuckets(clock))])
        async def call() -> None: ...

        async with app:
            for _ in range(20):
                await call.enqueue()
                await asyncio.sleep(1)
            assert events == []
            # One goes every minute.
            await call.enqueue_many([()] * 4)
            await asyncio.sleep(300)
            waiting = [event.waiting for event in events if isinstance(event, LimitThrottled)]
            assert (waiting[0], waiting[-1]) == (4, 0)

    run_virtual(main)


@pytest.mark.parametrize("rule", [RateLimit("1/m", burst=1, name="calls"), Mutex("{tenant}", name="calls")])
def test_a_node_that_met_a_closed_limit_once_says_that_no_job_waits_any_more(rule: Limit) -> None:
    """The fault: the last line said "1 job waiting", for days, if no claim had met the limit closed after that line."""

    async def main(clock: VirtualClock) -> None:
        app, events = Headgate("memory://", clock=clock), list[Event]()
        app.subscribe(events.append, LimitThrottled)

        @app.task(limits=[rule])
        async def call(tenant: str) -> None:
            await asyncio.sleep(50)

        async with app:
            await app.tasks[call.name].enqueue_many([("acme",)] * 2)
            await asyncio.sleep(40)
            assert [event.waiting for event in events if isinstance(event, LimitThrottled)] == [1]
            await asyncio.sleep(300)
            assert [event.waiting for event in events if isinstance(event, LimitThrottled)] == [1, 0]

    run_virtual(main)


@pytest.mark.parametrize("rule", [RateLimit("1/s", burst=1, name="calls"), Mutex("{tenant}", name="calls")])
def test_the_last_line_of_a_node_counts_no_job_that_has_run(rule: Limit, caplog: pytest.LogCaptureFixture) -> None:
    """The fault: a worker that had run all jobs ended with "1 job waiting behind key 'acme'", even hours later."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[rule])
        async def call(tenant: str) -> None:
            await asyncio.sleep(0.5)

        async with app:
            await app.tasks[call.name].enqueue_many([("acme",)] * 4)
            await asyncio.sleep(3.6)

    with caplog.at_level(logging.INFO, logger="headgate"):
        run_virtual(main)
    first, last = [record.getMessage() for record in caplog.records if record.getMessage().startswith("limit calls")]
    assert " waiting behind key " in first
    assert last.startswith("limit calls: this node knows of no more waiting jobs [throttled limit=calls key=")
    assert " keys=0 waiting=0 count=" in last


def test_throttle_events_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        app, events = limited(clock, throttle_events=False)
        async with app:
            await app.tasks["call"].enqueue_many([("acme",)] * 50)
            await asyncio.sleep(42)
        # Metrics count them anyway.
        assert {type(event) for event in events} == {LimitsClosed}

    with caplog.at_level(logging.INFO, logger="headgate"):
        run_virtual(main)
    assert "limit calls" not in [record.getMessage()[:11] for record in caplog.records]
