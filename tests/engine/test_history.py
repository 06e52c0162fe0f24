"""History in virtual time: what charts show adds up, costs no job anything, and is lost before anything else is."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate import DeclarationError, Headgate, RateLimited, RetryPolicy, StrictRate, current_job
from headgate.admin.history import JobsPoint
from headgate.clock import SECOND, Duration
from headgate.engine.bus import EventBus
from headgate.engine.history_writer import MAX_COUNTED_KEYS, MAX_KEYS, MAX_STEPS, HistoryWriter
from headgate.errors import StorageUnavailable
from headgate.jobs.event import StorageFailed
from headgate.jobs.history import ALL, Flush, JobsStep, LimitStep
from headgate.jobs.identity import IdSource
from headgate.jobs.job import BucketRef, ClaimedJob
from headgate.storage.records import Amendment
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, client_of

ONCE = RetryPolicy(retries=0)
GAP = "writing history: some is lost, and charts will have a gap"


class RecordingStorage(MemoryStorage):
    """A store that notes what is added to its history, and refuses it with `refusal`, or adds it and says so."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.writes: list[tuple[Sequence[JobsStep], Sequence[LimitStep]]] = []
        self.refusal: Exception | None = None
        self.loses_replies = False

    async def add_history(
        self, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None = None
    ) -> None:
        if self.refusal is not None and not self.loses_replies:
            raise self.refusal
        self.writes.append((jobs, limits))
        await super().add_history(jobs, limits, flush)
        if self.refusal is not None:
            raise self.refusal


def summed(points: Sequence[JobsPoint], what: str) -> int:
    return sum(getattr(point, what) for point in points)


def counts(points: Sequence[JobsPoint]) -> dict[str, int]:
    names = ("enqueued", "started", "succeeded", "failed", "cancelled", "retried")
    return {name: count for name in names if (count := summed(points, name))}


# ------------------------------------------------------------------------------------------------- adding up


def test_the_history_of_two_nodes_adds_up_in_steps_of_every_length() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        apps = [app_on(store, clock=clock, concurrency=2, retry=ONCE) for _ in range(2)]
        tasks = []
        for app in apps:
            app.queue("mail", concurrency=2)

            @app.task
            async def work(number: int) -> None:
                await asyncio.sleep(1)
                if number % 10 == 0:
                    raise ValueError(number)

            @app.task(queue="mail")
            async def send(number: int) -> None:
                await asyncio.sleep(1)

            @app.task
            async def both(number: int) -> None:
                await asyncio.sleep(1)

            tasks.append((work, send, both))
        async with apps[0], apps[1]:
            for number in range(300):
                await tasks[number % 2][0].enqueue(number)
                await tasks[number % 2][1].enqueue(number)
                await tasks[number % 2][2].using(queue="mail" if number % 4 < 2 else None).enqueue(number)
                await asyncio.sleep(1)
            await asyncio.sleep(30)
            for step, span in ((10, 3600), (60, 3600), (3600, 7200)):
                history = apps[0].admin.history
                everything = await history.jobs(step=step, span=span)
                assert counts(everything) == {"enqueued": 900, "started": 900, "succeeded": 870, "failed": 30}
                of_work = await history.jobs(task="work", step=step, span=span)
                assert counts(of_work) == {"enqueued": 300, "started": 300, "succeeded": 270, "failed": 30}
                assert await history.jobs("default", "work", step=step, span=span) == of_work
                assert counts(await history.jobs("mail", step=step, span=span))["succeeded"] == 450
                # Half of its jobs were enqueued to the other queue.
                assert counts(await history.jobs(task="both", step=step, span=span)) == {
                    "enqueued": 300,
                    "started": 300,
                    "succeeded": 300,
                }
                assert await history.jobs("mail", "work", step=step, span=span) == []
                assert [point.at for point in everything] == sorted({point.at for point in everything})

    run_virtual(main)


def test_each_way_in_which_a_job_ends_is_counted() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=2, delay=1))

        @app.task
        async def work(what: str) -> None:
            if what == "fail" or (what == "retry" and current_job().attempt == 1):
                raise ValueError(what)
            if what == "wait":
                await asyncio.sleep(3600)

        async with app:
            for what in ("succeed", "fail", "retry", "wait"):
                job = await work.enqueue(what)
            await asyncio.sleep(10)
            await job.cancel()
            await work.using(delay=100, expires_at=app.admin.now() + timedelta(seconds=5)).enqueue("expire")
            first = await work.using(delay=3000, unique_key="x").enqueue("once")
            second = await work.using(delay=3000, unique_key="x").enqueue("once")
            assert first.id == second.id
            await second.cancel()
            await asyncio.sleep(30)
            points = await app.admin.history.jobs()
        # 4, the one that expires and the one under a unique key, which never runs; 4 and 2 + 1 more attempts.
        assert counts(points) == {
            "enqueued": 6, "started": 7, "succeeded": 2, "failed": 2, "cancelled": 2, "retried": 3
        }  # fmt: skip

    run_virtual(main)


def test_waits_count_from_when_a_job_was_due_and_runs_from_its_claim() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("narrow", concurrency=1)

        @app.task(queue="narrow")
        async def work() -> None:
            await asyncio.sleep(2)

        async with app:
            # Delayed by ten minutes, which is no wait; each then waits for those before it: 0, 2, 4 … 18 s.
            await work.using(delay=600).enqueue_many([()] * 10)
            await asyncio.sleep(700)
            (point,) = await app.admin.history.jobs(task="work", step=3600, span=3600)
            report = await app.admin.history.report(task="work", step=10, span=3600)
            nothing = await app.admin.history.report(task="absent", step=10, span=3600)
        # The percentiles of the sum are of all jobs, not of the steps.
        assert (report.step, len(report.points) > 1) == (10, True)
        assert report.total is not None
        assert (report.total.started, report.total.wait_p50) == (10, point.wait_p50)
        assert report.total.at == report.points[0].at
        assert (list(nothing.points), nothing.total) == ([], None)
        assert point.wait_p99 == pytest.approx(18, rel=0.26)
        assert point.wait_max == pytest.approx(18, abs=0.1)
        assert point.wait_p50 == pytest.approx(8, rel=0.26)
        assert point.wait_p95 == pytest.approx(18, rel=0.26)
        assert point.run_p50 == point.run_p95 == pytest.approx(2, rel=0.26)
        assert point.run_max == pytest.approx(2, abs=0.01)

    run_virtual(main)


def test_a_process_that_only_enqueues_is_counted_when_it_closes() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RecordingStorage(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def work() -> None: ...

        async with app.open():
            await work.enqueue_many([()] * 5)
            assert store.writes == []
        async with app.open():
            (point,) = await app.admin.history.jobs(step=10)
            assert (point.enqueued, point.started, point.wait_p50, point.run_max) == (5, 0, None, None)

    run_virtual(main)


async def test_jobs_in_a_transaction_of_the_caller_are_counted_when_they_are_enqueued(tmp_path: Path) -> None:
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")

    @app.task
    async def work() -> None: ...

    async with app.open():
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
            connection.execute("CREATE TABLE mine (name TEXT)")
            connection.execute("INSERT INTO mine VALUES ('ada')")
            await work.using(connection=connection).enqueue_many([()] * 3)
    async with app.open():
        assert counts(await app.admin.history.jobs(task="work")) == {"enqueued": 3}


def test_the_verdict_names_attempts_that_fail_and_are_retried() -> None:
    """The fault: while each attempt failed and was retried, an overview said that all was well."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(retries=5, delay=3600))
        async def bad() -> None:
            raise ConnectionError("refused")

        @app.task
        async def good() -> None: ...

        async with app:
            await bad.enqueue_many([()] * 30)
            await good.enqueue_many([()] * 3)
            await asyncio.sleep(60)
            seen = await app.admin.overview()
            assert (seen.retried_lately, seen.succeeded_lately) == (30, 3)
            said = "In the last 5 minutes 30 attempts failed and will be retried; 3 jobs succeeded."
            assert said in map(str, seen.verdict)
            await asyncio.sleep(300)
            seen = await app.admin.overview()
            assert (seen.retried_lately, seen.succeeded_lately) == (0, 0)

    run_virtual(main)


def test_attempts_that_failed_while_the_clock_was_ahead_did_not_fail_lately() -> None:
    """The fault: for the hour by which the clock was set back, 30 attempts "failed in the last 5 minutes"."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(retries=1, delay=86400))
        async def bad() -> None:
            raise ConnectionError("refused")

        clock.step_wall(3600)
        async with app:
            await bad.enqueue_many([()] * 30)
            await asyncio.sleep(60)
            assert (await app.admin.overview()).retried_lately == 30
            clock.step_wall(-3600)
            assert (await app.admin.overview()).retried_lately == 0

    run_virtual(main)


# ----------------------------------------------------------------------------------------------- use of limits


def test_the_use_of_a_limit_is_listed_by_key_with_its_capacity() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("15/m", key="{tenant}", name="calls", margin=0)])
        async def work(tenant: str) -> None: ...

        async with app:
            await work.enqueue_many([("acme",)] * 40 + [("globex",)] * 5)
            await asyncio.sleep(200)
            acme = await app.admin.history.limit("calls", "acme")
            assert [point.used for point in acme.points] == [15, 15, 10]
            assert acme.bound is not None
            assert (acme.step, acme.bound.count, acme.bound.per) == (10, 15, 60.0)
            assert [point.used for point in (await app.admin.history.limit("calls", "globex")).points] == [5]
            # The starts were 200, 140 and 80 s ago; the period of the rule is 60 s.
            late = await app.admin.history.limit("calls", "acme", span=150)
            whole = await app.admin.history.limit("calls", "acme", span=150, with_period_before=True)
            assert [[point.used for point in each.points] for each in (late, whole)] == [[15, 10], [15, 15, 10]]
            # An hour and a minute: steps of 10 s are kept for an hour only.
            hours = [await app.admin.history.limit("calls", "acme", with_period_before=each) for each in (False, True)]
            assert [each.step for each in hours] == [10, 60]
            participants = await app.admin.history.limit("calls", span=86400)
            assert (participants.step, participants.bound, participants.points[0].used) == (60, None, 20)
            await app.admin.limits.set("calls", StrictRate("30/m"), key="acme")
            acme = await app.admin.history.limit("calls", "acme")
            assert acme.bound is not None
            assert acme.bound.count == 30
            assert (await app.admin.history.limit("on_lost_reply of", "x")).points == []

    run_virtual(main)


def test_a_settled_cost_is_counted_in_the_step_in_which_it_was_charged() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=ONCE)

        @app.task(limits=[StrictRate(1000, per=60, name="tokens", cost=100, key="{key}", margin=0)])
        async def work(key: str, seconds: float, actual: int | None) -> None:
            await asyncio.sleep(seconds)
            if actual is None:
                raise RateLimited(retry_after=3600)
            current_job().settle("tokens", actual)

        async with app:
            await work.enqueue("a", 25, 7)
            await work.enqueue("b", 25, 250)
            await work.enqueue("c", 25, None)
            await asyncio.sleep(15)
            assert [point.used for point in (await app.admin.history.limit("tokens")).points] == [300]
            await asyncio.sleep(30)
            assert [point.used for point in (await app.admin.history.limit("tokens")).points] == [257]
            # So long ago that it is counted now.
            await work.enqueue("d", 1200, 300)
            await asyncio.sleep(1300)
            points = (await app.admin.history.limit("tokens", span=86400)).points
            assert [point.used for point in points] == [257 + 100, 200]

    run_virtual(main)


def test_a_hundred_thousand_keys_take_no_more_room_than_a_thousand() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RecordingStorage(clock)
        history_writer = HistoryWriter(store, clock=clock, bus=EventBus(), ids=IdSource())
        now = store.now()

        def claimed(key: str) -> ClaimedJob:
            buckets = (BucketRef("calls", key),)
            return ClaimedJob("id", "work", "default", "{}", 1, 1, 0, now, now, now, buckets, charged_at=now)

        for turn in range(5):
            for start in range(0, 20_000, 1000):
                history_writer.note_started([claimed(f"key {turn} {start + number}") for number in range(1000)])
                history_writer.note_started([claimed("busy")] * 10)
                (step,) = history_writer._steps.values()
                assert len(step.uses["calls"].keys) <= MAX_COUNTED_KEYS
            await asyncio.sleep(10)
        await history_writer.close(1)
        rows = [row for _, limits in store.writes for row in limits]
        for length in (10, 60):
            named: dict[int, set[str]] = {}
            for row in rows:
                if row.step == length and row.key is not None:
                    named.setdefault(row.at, set()).add(row.key)
            assert max(map(len, named.values())) == MAX_KEYS
            assert all("busy" in keys for keys in named.values())
            whole = await store.limit_history(length, "calls", None, 0)
            busy = await store.limit_history(length, "calls", "busy", 0)
            assert sum(row.used for row in whole) == 5 * 20_200
            assert sum(row.used for row in busy) == 5 * 200

    run_virtual(main)


def test_the_counts_kept_during_an_outage_are_bounded_by_the_keys_with_a_row() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RecordingStorage(clock)
        store.refusal = StorageUnavailable("away")
        history_writer = HistoryWriter(store, clock=clock, bus=EventBus(), ids=IdSource())
        for _ in range(3):
            now = store.now()
            for number in range(3000):
                buckets = (BucketRef("calls", f"key {number}"),)
                job = ClaimedJob("id", "work", "default", "{}", 1, 1, 0, now, now, now, buckets, charged_at=now)
                history_writer.note_started([job])
            await asyncio.sleep(11)
            for step in history_writer._waiting.values():
                assert len(step.uses["calls"].keys) == MAX_KEYS
        assert (history_writer._unwritten, history_writer._lost) == (3, 0)
        store.refusal = None
        await history_writer.close(1)
        assert sum(row.used for row in await store.limit_history(60, "calls", None, 0)) == 9000

    run_virtual(main)


def test_a_charge_that_is_amended_in_another_store_is_counted_now() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RecordingStorage(clock)
        history_writer = HistoryWriter(store, clock=clock, bus=EventBus(), ids=IdSource())
        await asyncio.sleep(5)
        # Its instants are in the time of that store, which differs from all clocks here.
        history_writer.note_amended(Amendment(BucketRef("calls", "acme"), 7, 10, 7, 3), is_local=False)
        history_writer.note_amended(Amendment(BucketRef("calls", "acme"), 7, 10, 9, 10), is_local=False)
        await history_writer.close(1)
        (row,) = await store.limit_history(10, "calls", "acme", 0)
        assert (row.used, store.now() - row.at < 10 * SECOND) == (-7, True)

    run_virtual(main)


# ------------------------------------------------------------------------------------------------ when it is written


def test_a_process_writes_once_in_ten_seconds_and_never_while_nothing_happens() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RecordingStorage(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def work() -> None: ...

        async with app:
            await asyncio.sleep(3600)
            assert store.writes == []
            for _ in range(200):
                await work.enqueue_many([()] * 3)
                await asyncio.sleep(0.5)
            assert 9 <= len(store.writes) <= 10
            await asyncio.sleep(60)
            written = len(store.writes)
            await asyncio.sleep(3600)
            assert len(store.writes) == written

    run_virtual(main)


def test_a_killed_process_loses_at_most_ten_seconds_of_history() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def work() -> None: ...

        async with app:
            for second in range(100):
                # What is in the store is what is left if it were killed now.
                rows = await store.jobs_history(10, ALL, ALL, 0)
                assert sum(row.succeeded for row in rows) >= second - 11
                await work.enqueue()
                await asyncio.sleep(1)

    run_virtual(main)


def test_a_store_that_takes_no_history_delays_nothing_and_loses_none_for_minutes() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RecordingStorage(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def work() -> None: ...

        failures: list[StorageFailed] = []
        app.subscribe(failures.append, StorageFailed)
        async with app:
            store.refusal = StorageUnavailable("away")
            for _ in range(240):
                await (await work.enqueue()).result(timeout=1)
                await asyncio.sleep(1)
            store.refusal = None
            await asyncio.sleep(20)
            assert counts(await app.admin.history.jobs()) == {"enqueued": 240, "started": 240, "succeeded": 240}
            assert failures == []

    run_virtual(main)


def test_a_history_write_without_a_reply_is_counted_once() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RecordingStorage(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def work() -> None: ...

        async with app:
            for second in range(300):
                # Every other half minute no answer comes.
                store.loses_replies = True
                store.refusal = StorageUnavailable("no answer") if second // 30 % 2 else None
                await (await work.enqueue()).result(timeout=1)
                await asyncio.sleep(1)
            store.refusal = None
            await asyncio.sleep(20)
            assert counts(await app.admin.history.jobs()) == {"enqueued": 300, "started": 300, "succeeded": 300}

    run_virtual(main)


def test_during_an_outage_five_minutes_of_history_are_kept_and_the_rest_is_counted_as_lost() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RecordingStorage(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def work() -> None: ...

        failures: list[StorageFailed] = []
        app.subscribe(failures.append, StorageFailed)
        async with app:
            store.refusal = StorageUnavailable("away")
            for _ in range(600):
                await work.enqueue()
                await asyncio.sleep(1)
            assert client_of(app).history_writer._unwritten <= MAX_STEPS + 1
            lost = client_of(app).history_writer._lost
            assert 29 <= lost <= 32
            assert [failure.doing for failure in failures] == [GAP]
            store.refusal = None
            await asyncio.sleep(20)
            assert summed(await app.admin.history.jobs(), "succeeded") == 600 - 10 * lost

    run_virtual(main)


def test_history_that_the_store_refuses_is_reported_and_harms_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RecordingStorage(clock)
        store.refusal = TypeError("no such verb")
        app = app_on(store, clock=clock)

        @app.task
        async def work() -> int:
            return 7

        failures: list[StorageFailed] = []
        app.subscribe(failures.append, StorageFailed)
        async with app:
            assert await (await work.enqueue()).result(timeout=1) == 7
            await asyncio.sleep(60)
            assert await (await work.enqueue()).result(timeout=1) == 7
        assert [(failure.doing, failure.error) for failure in failures] == [(GAP, "TypeError: no such verb")]

    run_virtual(main)


def test_closing_waits_two_seconds_for_a_store_that_hangs() -> None:
    class Hanging(MemoryStorage):
        async def add_history(
            self, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None = None
        ) -> None:
            await asyncio.sleep(3600)

    async def main(clock: VirtualClock) -> None:
        app = app_on(Hanging(clock), clock=clock)

        @app.task
        async def work() -> None: ...

        async with app.open():
            await work.enqueue()
            await asyncio.sleep(15)
            closed_at = clock.monotonic()
        assert clock.monotonic() - closed_at == 2 * SECOND

    run_virtual(main)


def test_without_history_nothing_is_counted_or_written() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RecordingStorage(clock)
        app = app_on(store, clock=clock, history=False)

        @app.task(limits=[StrictRate("15/m", name="calls")])
        async def work() -> None:
            raise RateLimited(retry_after=1)

        async with app:
            await work.enqueue()
            await asyncio.sleep(60)
            assert client_of(app).history_writer._steps == {}
        assert store.writes == []

    run_virtual(main)


# ------------------------------------------------------------------------------------------------- how long


def test_short_steps_are_deleted_after_an_hour_and_longer_ones_are_kept() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app = app_on(store, clock=clock)

        @app.task(limits=[StrictRate("15/m", name="calls")])
        async def work() -> None: ...

        async with app:
            await work.enqueue()
            await asyncio.sleep(3500)
            assert await store.jobs_history(10, ALL, ALL, 0)
            assert await store.limit_history(10, "calls", None, 0)
            await asyncio.sleep(200)
            assert not await store.jobs_history(10, ALL, ALL, 0)
            assert not await store.limit_history(10, "calls", None, 0)
            assert await store.jobs_history(60, "default", "work", 0)
            assert await store.limit_history(60, "calls", None, 0)
            assert await store.jobs_history(3600, "default", "work", 0)

    run_virtual(main)


@pytest.mark.parametrize(
    ("asked", "received"),
    [
        ({"step": 30}, "step=30 must be one of 10, 60, 3600 seconds"),
        (
            {"step": 10, "span": 3601},
            "must be from 10 to 3600 seconds, because steps of 10 s are kept for 1h; write "
            'span="10s" to span="1h", or for more time step=60 or 3600$',
        ),
        ({"step": 60, "span": 30}, "must be from 60 to 86400 seconds"),
        ({"step": 60, "span": timedelta(days=2)}, "must be from 60 to 86400 seconds"),
        ({"step": 3600, "span": 1}, "must be from 3600 to 5184000 seconds"),
        ({"step": 3600, "span": -1}, "span=-1 cannot be negative"),
        ({"step": "90s"}, "step='90s' must be one of 10, 60, 3600 seconds"),
        ({"step": timedelta(seconds=59)}, "must be one of 10, 60, 3600 seconds"),
    ],
)
def test_a_chart_of_more_points_than_are_kept_is_refused(asked: dict[str, Any], received: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with Headgate("memory://", clock=clock).open() as app:
            with pytest.raises(DeclarationError, match=received):
                await app.admin.history.jobs(**asked)

    run_virtual(main)


@pytest.mark.parametrize("span", [100_000, "2d", timedelta(days=2), 1])
def test_a_span_that_the_history_of_a_limit_does_not_have_is_shown_as_it_was_written(span: Duration) -> None:
    """The fault: `span="2d"` was refused as `span=172800.0`."""

    async def main(clock: VirtualClock) -> None:
        async with Headgate("memory://", clock=clock).open() as app:
            with pytest.raises(DeclarationError) as refused:
                await app.admin.history.limit("calls", "acme", span=span)
            assert str(refused.value) == (
                f"history: span={span!r} must be from 10 to 86400 seconds, because the history of a limit is kept for "
                '1d; write span="10s" to span="1d"'
            )
            await app.admin.history.limit("calls", "acme", span="10s")
            await app.admin.history.limit("calls", "acme", span="1d")

    run_virtual(main)
