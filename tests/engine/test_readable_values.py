"""Values for people about jobs and limits: readable instants, and complete counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from headgate import Headgate, StrictRate
from headgate.admin import SlowCounts
from headgate.admin.overview import FINAL_COUNTS
from headgate.storage.records import QueueCounts
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on
from tests.until import result_within


def test_a_full_rate_has_its_next_slot_although_no_job_waits_for_it() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("2/m", key="{tenant}", margin=0, name="api")])
        async def sync(tenant: str) -> None: ...

        async with app:
            jobs = await sync.enqueue_many([("acme",), ("acme",), ("globex",)])
            for job in jobs:
                await result_within(job, 5)
            full, half = await app.admin.limits.bucket("api", "acme"), await app.admin.limits.bucket("api", "globex")
            assert (full.available, full.waiting, half.next_slot_at) == (0, 0, None)
            assert full.next_slot_at is not None
            assert timedelta(seconds=50) < full.next_slot_at - app.admin.now() <= timedelta(seconds=60)
            await asyncio.sleep(60)
            assert (await app.admin.limits.bucket("api", "acme")).next_slot_at is None

    run_virtual(main)


def test_waits_are_shown_in_readable_units() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("1/d", name="daily")])
        async def report() -> None: ...

        async with app:
            later = report.using(delay=timedelta(hours=10, minutes=22))
            assert "(in 10 h 22 min)" in (await app.admin.explain((await later.enqueue()).id)).reason
            assert "(in 45 min)" in (await app.admin.explain((await report.using(delay=2700).enqueue()).id)).reason
            assert "(in 1 h 6 min)" in (await app.admin.explain((await report.using(delay=3990).enqueue()).id)).reason
            assert "(in 1 min 30 s)" in (await app.admin.explain((await report.using(delay=90).enqueue()).id)).reason
            jobs = await report.enqueue_many([()] * 6)
            await result_within(jobs[0], 5)
            reason = (await app.admin.explain(jobs[5].id)).reason
            assert reason.startswith("it waits for limit 'daily' (1/d): 5th in line, runs about ")
            assert reason.endswith("(in 5 d)")

    run_virtual(main)


def test_the_first_overview_counts_waiting_jobs_and_names_unknown_tasks() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app, other = app_on(store, clock=clock), app_on(store, clock=clock)

        @app.task
        async def known() -> None: ...

        async with app.open(), other.open():
            await known.enqueue_many([()] * 3)
            await known.using(delay=60).enqueue()
            counts = SlowCounts(clock)
            seen = await app.admin.overview(counts)
            assert (seen.totals.ready, seen.totals.scheduled, seen.unknown_tasks) == (3, 1, [])
            await counts.close()

    run_virtual(main)


def test_an_overview_does_not_wait_for_counts_and_says_how_old_they_are() -> None:
    async def main(clock: VirtualClock) -> None:
        store = _SlowToCount(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def known() -> None: ...

        async with app.open():
            await known.enqueue_many([()] * 3)
            await app.admin.queues.pause("default")
            counts, began_at = SlowCounts(clock), clock.now()
            first = await app.admin.overview(counts)
            assert clock.now() - began_at <= 500_000
            assert (first.counted_at, first.totals.waiting, first.failed_last_hour) == (None, None, None)
            assert [(queue.queue, queue.is_paused) for queue in first.queues] == [("default", True)]
            await asyncio.sleep(8)
            await known.enqueue()
            await app.admin.queues.resume("default")
            second = await app.admin.overview(counts)
            assert second.counted_at is not None
            assert second.now - second.counted_at >= timedelta(seconds=7)
            assert (second.totals.waiting, second.totals.ready, second.failed_last_hour) == (3, 3, 0)
            assert [queue.is_paused for queue in second.queues] == [False]
            await counts.close()
            assert (await app.admin.overview()).totals.waiting == 4

    run_virtual(main)


def test_final_jobs_that_are_not_counted_yet_are_not_zero() -> None:
    """The fault: the first overview of a large store had no queue yet, and said "0 in the store" of 1,500 failed."""

    async def main(clock: VirtualClock) -> None:
        app = app_on(_SlowToCount(clock), clock=clock)
        async with app.open():
            counts = SlowCounts(clock)
            seen = await app.admin.overview(counts)
            assert (seen.queues, seen.finals_at) == ([], None)
            assert [getattr(seen.totals, state) for state in FINAL_COUNTS] == [None] * 4
            await counts.close()

    run_virtual(main)


def test_nothing_in_an_overview_was_read_after_its_instant() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(_SlowToCount(clock), clock=clock)

        @app.task
        async def known() -> None: ...

        async with app.open():
            counts = SlowCounts(clock, queue_patience=None)
            for kept in (counts, None):
                reading = asyncio.ensure_future(app.admin.overview(kept))
                # The jobs are counted in the second that follows: these are counted, too.
                await asyncio.sleep(1)
                await known.enqueue()
                enqueued_at = app.admin.now()
                seen = await reading
                assert seen.now > enqueued_at
                assert seen.counted_at is not None
                assert seen.counted_at < enqueued_at
            await counts.close()

    run_virtual(main)


class _SlowToCount(MemoryStorage):
    async def counts(self, *, finals: bool = True) -> Sequence[QueueCounts]:  # type: ignore[misc]
        found = await super().counts(finals=finals)
        await asyncio.sleep(2)
        return found
