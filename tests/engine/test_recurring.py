"""Whole lives of schedules, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from headgate import (
    Calendar,
    Cron,
    DeclarationError,
    Every,
    Headgate,
    HeadgateError,
    JobContext,
    JobState,
    Mutex,
    RateLimit,
    RateLimited,
    RetryPolicy,
    ScheduleNotFound,
    Snooze,
    StorageUnavailable,
    StrictRate,
    chain,
    current_job,
)
from headgate.clock import SECOND, to_datetime
from headgate.jobs.event import Event, JobFailure, JobFinished, OccurrencesSkipped, ScheduleFailed, ScheduleTooFast
from headgate.schedules.schedule import MOST_COUNTED
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import START, VirtualClock, run_virtual
from tests.internals import app_on, writer_of

HOUR = 3600
TEN_MINUTES = Every(minutes=10)


class Journal:
    """When which jobs started, in seconds since the test began."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.starts: list[float] = []

    def note(self) -> None:
        self.starts.append(self.now)

    @property
    def now(self) -> float:
        return round((self._clock.now() - START) / SECOND, 1)


def at(seconds: float) -> datetime:
    return to_datetime(START + round(seconds * SECOND))


def test_a_job_knows_its_schedule_and_the_instant_that_it_is_for() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)
        seen: list[tuple[str | None, datetime | None, int]] = []

        @app.schedule(Every(minutes=5), name="five minutes")
        @app.task(retry=RetryPolicy(retries=1, delay=60))
        async def pull() -> None:
            job = current_job()
            seen.append((job.schedule, job.occurs_at, job.attempt))
            if job.attempt == 1:
                raise OSError("try again")

        @app.task
        async def other() -> None:
            seen.append((current_job().schedule, current_job().occurs_at, 0))

        async with app:
            await other.enqueue()
            await asyncio.sleep(400)
        first = at(300)
        assert seen == [(None, None, 0), ("five minutes", first, 1), ("five minutes", first, 2)]

    run_virtual(main)


def test_a_schedule_of_the_code_runs_from_the_first_instant_of_its_trigger_on_and_without_drift() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.schedule(Every(minutes=5))
        @app.task
        async def pull() -> None:
            journal.note()
            await asyncio.sleep(7)

        await asyncio.sleep(100)
        async with app:
            await asyncio.sleep(1000)
            assert journal.starts == [400, 700, 1000]
            (status,) = await app.admin.schedules.list()
            assert (status.name, status.task, status.state, status.runs, status.open) == (
                "pull",
                "pull",
                "active",
                3,
                0,
            )
            assert status.next_run == at(1300)
            assert await app.admin.schedules.next_runs("pull", 3) == [at(1300), at(1600), at(1900)]
            (latest, *_) = await app.admin.jobs()
            record = (await app.admin.job(latest.id)).record
            assert record.origin is not None
            assert (record.origin.schedule, record.origin.occurs_at) == ("pull", START + 1000 * SECOND)

    run_virtual(main)


def test_a_plain_function_becomes_a_task_and_two_schedules_of_one_task_need_names() -> None:
    async def main(clock: VirtualClock) -> None:
        app, seen = Headgate("memory://", clock=clock), list[str]()

        @app.schedule(Cron("*/2 * * * *"), name="even", args=["even"])
        @app.schedule(Cron("1-59/2 * * * *"), name="odd", kwargs={"word": "odd"})
        async def say(word: str) -> None:
            seen.append(word)

        with pytest.raises(DeclarationError, match=r"schedule 'odd' is declared twice; .*name="):
            app.schedule(Every(hours=1), name="odd", args=["x"])(say)
        with pytest.raises(DeclarationError, match=r"schedule 'say': .*pass them as args= and kwargs="):
            app.schedule(Every(hours=1))(say)
        async with app:
            await asyncio.sleep(5 * 60 + 1)
        assert seen == ["odd", "even", "odd", "even", "odd"]

    run_virtual(main)


@pytest.mark.parametrize(
    ("first", "starts"),
    [("now", [50, 110, 170]), ("after", [110, 170]), (at(75), [75, 110, 170]), (at(20), [50, 110, 170])],
)
def test_the_first_occurrence_is_now_or_at_an_instant_or_the_first_one_of_the_trigger(
    first: Any, starts: list[float]
) -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.task
        async def pull(tenant: str) -> None:
            assert tenant == "acme"
            journal.note()

        async with app:
            await asyncio.sleep(50)
            schedule = await pull.schedule("acme", Every(minutes=1), first=first).enqueue("acme")
            assert schedule.name == "acme"
            await asyncio.sleep(150)
        assert journal.starts == starts

    run_virtual(main)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("misfire", "occurrences"),
    [("run_once", [9_600, 10_200]), ("skip", [10_200]), ("run_all", [8_500, 9_000, 9_600, 10_200])],
)
def test_a_first_instant_that_has_passed_long_ago_was_missed(misfire: Any, occurrences: list[int]) -> None:
    """It would never run, whatever `misfire` says, if only a first instant that is to come were kept."""

    async def main(clock: VirtualClock) -> None:
        app, seen = Headgate("memory://", clock=clock), list[int]()

        @app.task
        async def pull() -> None:
            record = (await app.admin.job(current_job().id)).record
            assert record.origin is not None
            seen.append(((record.origin.occurs_at or 0) - START) // SECOND)

        async with app:
            await asyncio.sleep(10_000)
            trigger = Every(minutes=10, start=at(0))
            await pull.schedule("acme", trigger, first=at(8_500), misfire=misfire).enqueue()
            await asyncio.sleep(1)
            assert len(seen) == len(occurrences) - 1
            await asyncio.sleep(200)
        assert seen == occurrences

    run_virtual(main)


@pytest.mark.parametrize(
    ("misfire", "runs"), [("run_once", [9_600, 10_200]), ("skip", [10_200, 10_800]), ("run_all", [600, 1_200])]
)
def test_the_next_runs_of_an_overdue_schedule_are_those_that_will_run(misfire: Any, runs: list[int]) -> None:
    """The fault: after an outage, the list, the plan of the day and the preview of an edit had runs of the past."""

    async def main(clock: VirtualClock) -> None:
        app, seen = Headgate("memory://", clock=clock), list[datetime | None]()

        @app.task
        async def pull() -> None:
            seen.append(current_job().occurs_at)

        async with app.open():
            schedule = await pull.schedule("acme", TEN_MINUTES, misfire=misfire).enqueue()
            paused = await pull.schedule("paused", TEN_MINUTES, misfire=misfire).enqueue()
            await paused.pause()
            await asyncio.sleep(10_000)
            expected = [at(run) for run in runs]
            assert await schedule.next_runs(2) == expected
            assert await app.admin.schedules.preview(None, name="acme", count=2) == expected
            assert await app.admin.schedules.preview(None, name="paused", count=1) == [at(10_200)]
            (planned,) = (await app.admin.schedules.day()).items
            assert planned.runs[:2] == expected
        async with app:
            await asyncio.sleep(900)
        assert seen[:2] == expected

    run_virtual(main)


@pytest.mark.nightly
@pytest.mark.parametrize("lives_for", [5, 20, 290])
def test_a_service_that_restarts_often_runs_a_schedule_at_the_first_instant_it_was_stored_with(lives_for: int) -> None:
    """The fault: a first instant that is computed at each start was put off at each, so that it never came."""

    async def main(clock: VirtualClock) -> None:
        store, journal = MemoryStorage(clock), Journal(clock)
        while clock.monotonic() < 1000 * SECOND:
            app = app_on(store, clock=clock)
            in_five_minutes = to_datetime(clock.now()) + timedelta(minutes=5)

            @app.schedule(TEN_MINUTES, name="report", first=in_five_minutes)
            async def report() -> None:
                journal.note()

            async with app:
                await asyncio.sleep(lives_for)
        # The first one, and then those of the trigger.
        assert [start // 10 * 10 for start in journal.starts] == [300, 600]

    run_virtual(main)


def test_a_schedule_at_the_end_of_time_is_listed_and_ends() -> None:
    """The fault: what comes after the last datetime made every list of schedules fail."""

    class Far:
        def next_after(self, instant: int) -> int | None:
            return 1 << 60

        def latest_at_or_before(self, instant: int) -> int | None:
            return None

        def describe(self) -> str:
            return "far"

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        last = datetime(9999, 12, 31, 12, tzinfo=UTC)

        @app.schedule(Every(weeks=1), name="last", first=last)
        async def report() -> None: ...

        @app.schedule(Far(), name="far")
        async def farther() -> None: ...

        async with app:
            await asyncio.sleep(1)
            listed = {status.name: status.next_run for status in await app.admin.schedules.list()}
            assert listed == {"last": last, "far": None}
            assert await app.admin.schedules.next_runs("last", 5) == [last]

    run_virtual(main)


def test_a_first_instant_is_kept_until_it_is_reached_across_new_declarations() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.task
        async def pull(tenant: str) -> None:
            journal.note()

        async with app:
            await pull.schedule("acme", Every(minutes=10), first=at(450)).enqueue("acme")
            await pull.schedule("acme", Every(minutes=1), first=at(900), max_runs=1).enqueue("acme")
            await asyncio.sleep(1000)
        assert journal.starts == [450]

    run_virtual(main)


def test_a_schedule_that_is_to_run_now_does_so_at_once_where_it_is_stored() -> None:
    """The fault: the node looked for changes of schedules at most once a second, also for those of its own process."""

    async def main(clock: VirtualClock) -> None:
        app, delays = Headgate("memory://", clock=clock), list[int]()
        stored_at = 0

        @app.task
        async def pull() -> None:
            delays.append(clock.monotonic() - stored_at)

        async with app:
            await asyncio.sleep(5)
            for number in range(5):
                # Something else has just changed in the store.
                await pull.using(delay=3600).enqueue()
                await asyncio.sleep(0.1)
                stored_at = clock.monotonic()
                await pull.schedule(f"s{number}", Every(hours=1), first="now").enqueue()
                await asyncio.sleep(0.3)
        assert len(delays) == 5
        assert max(delays) < SECOND // 20

    run_virtual(main)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_schedule_keeps_its_count_and_its_rhythm_when_it_is_declared_again() -> None:
    async def main(clock: VirtualClock) -> None:
        store, journal = MemoryStorage(clock), Journal(clock)

        def release(trigger: Any = TEN_MINUTES, **options: Any) -> Headgate:
            app = app_on(store, clock=clock)

            @app.schedule(trigger, name="report", **options)
            async def report() -> None:
                journal.note()

            return app

        async with (app := release(max_runs=20)):
            await asyncio.sleep(1500)
            runs = (await app.admin.schedules.status("report")).runs
        async with (app := release(max_runs=20)):
            await asyncio.sleep(400)
            assert journal.starts == [600, 1200, 1800]
            assert (await app.admin.schedules.status("report")).runs == runs + 1
        # Another trigger: its next run is that of the trigger as it is now, not the one that was planned before.
        async with (app := release(Every(minutes=1), max_runs=20)):
            await asyncio.sleep(130)
            assert journal.starts[3:] == [1920, 1980]
        async with (app := release(Cron("0 * * * *"), max_runs=20)):
            await asyncio.sleep(HOUR)
            assert journal.starts[5:] == [3600]
            assert (await app.admin.schedules.status("report")).runs == 6
        # It had ended, and the next release continues it; the one after that does not.
        async with (app := release(Every(minutes=1), max_runs=6)):
            await asyncio.sleep(HOUR)
            assert len(journal.starts) == 6
            assert (await app.admin.schedules.status("report")).state == "finished"
        async with release(Every(minutes=1), max_runs=8):
            await asyncio.sleep(HOUR)
        assert len(journal.starts) == 8
        async with release(Every(minutes=1), max_runs=8):
            await asyncio.sleep(HOUR)
        assert len(journal.starts) == 8

    run_virtual(main)


def test_a_series_that_was_removed_or_has_ended_runs_again_when_it_is_declared_again() -> None:
    """It would be accepted and stay silent if only its row were brought up to date, and not what says that it ended."""

    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.task
        async def pull() -> None:
            journal.note()

        async with app:
            schedule = await pull.schedule("s", Every(minutes=1), max_runs=2).enqueue()
            await asyncio.sleep(300)
            assert (await schedule.status()).state == "finished"
            assert await schedule.next_runs() == []
            await pull.schedule("s", Every(minutes=1), max_runs=2).enqueue()
            assert (await schedule.status()).runs == 0
            await asyncio.sleep(300)
            assert len(journal.starts) == 4
            assert await schedule.remove()
            assert not await schedule.remove()
            with pytest.raises(ScheduleNotFound, match="no schedule 's'"):
                await schedule.status()
            again = await pull.schedule("s", Every(minutes=1)).enqueue()
            await asyncio.sleep(121)
            assert len(journal.starts) == 6
            (latest, *_) = await app.admin.jobs(count=1)
            await app.job(latest.id).cancel()
            await again.pause()
            assert not await again.pause()
            await asyncio.sleep(600)
            assert len(journal.starts) == 6
            assert (await again.status()).state == "paused"
            assert await again.next_runs() == ()
            # A pause is a person's word: declaring the schedule again does not end it.
            await pull.schedule("s", Every(minutes=1)).enqueue()
            assert (await again.status()).state == "paused"
            assert await again.resume()
            assert not await again.resume()
            before = journal.now
            await asyncio.sleep(60)
            assert [start > before for start in journal.starts[6:]] == [True]

    run_virtual(main)


def test_until_is_exclusive() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.schedule(Every(minutes=1), until=at(180))
        async def pull() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(600)
            assert journal.starts == [60, 120]
            assert (await app.admin.schedules.status("pull")).state == "finished"

    run_virtual(main)


def test_a_failure_never_stops_the_series_and_only_what_really_ran_counts() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.schedule(Every(minutes=1), max_runs=4)
        @app.task(retry=RetryPolicy(retries=0))
        async def pull() -> None:
            journal.note()
            if len(journal.starts) == 1:
                raise ValueError("no")
            if len(journal.starts) == 2:
                # Two occurrences are skipped meanwhile, and do not count.
                await asyncio.sleep(150)

        async with app:
            await asyncio.sleep(HOUR)
            assert journal.starts == [60, 120, 300, 360]
            status = await app.admin.schedules.status("pull")
            assert (status.runs, status.state, status.next_run) == (4, "finished", None)

    run_virtual(main)


@pytest.mark.parametrize("raised", [asyncio.CancelledError, TimeoutError, SystemExit, KeyboardInterrupt])
def test_a_cancelled_error_never_stops_the_series(raised: type[BaseException]) -> None:
    """The fault: one timeout of an HTTP client was taken for a user's cancellation, and ended the series for good."""

    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.schedule(Every(minutes=1))
        @app.task(retry=RetryPolicy(retries=0))
        async def pull() -> None:
            journal.note()
            raise raised

        async with app:
            await asyncio.sleep(330)
            assert journal.starts == [60, 120, 180, 240, 300]
            # Not even if a user really cancels one of its jobs.
            job = await app.find_schedule("pull").trigger()
            await job.cancel()
            await asyncio.sleep(60)
            assert journal.starts[-1] == 360
            assert (await app.admin.schedules.status("pull")).state == "active"

    run_virtual(main)


@pytest.mark.slow
@pytest.mark.parametrize(("misfire", "made_up"), [("skip", []), ("run_once", [36000]), ("run_all", [3600] * 10)])
def test_occurrences_missed_while_no_node_ran(misfire: Any, made_up: list[float]) -> None:
    async def main(clock: VirtualClock) -> None:
        store, occurrences, skipped = MemoryStorage(clock), list[int](), list[Event]()

        def release() -> Headgate:
            app = app_on(store, clock=clock)
            app.subscribe(skipped.append, OccurrencesSkipped)

            @app.schedule(Cron("0 * * * *"), misfire=misfire)
            async def report() -> None:
                record = (await app.admin.job(current_job().id)).record
                assert record.origin is not None
                assert record.origin.occurs_at is not None
                occurrences.append((record.origin.occurs_at - START) // SECOND)

            return app

        async with release():
            await asyncio.sleep(1)
        await asyncio.sleep(10 * HOUR + 100)
        async with release():
            await asyncio.sleep(10)
            expected = [(index + 1) * HOUR for index in range(10)] if misfire == "run_all" else made_up
            assert occurrences == expected
            counts = [event.count for event in skipped if isinstance(event, OccurrencesSkipped)]
            assert counts == {"skip": [10], "run_once": [9], "run_all": []}[misfire]
            await asyncio.sleep(HOUR)
            assert occurrences == [*expected, 11 * HOUR]

    run_virtual(main)


def test_a_year_of_missed_seconds_is_skipped_without_iterating() -> None:
    async def main(clock: VirtualClock) -> None:
        asked = 0

        class Counting:
            def next_after(self, instant: int) -> int | None:
                nonlocal asked
                asked += 1
                return instant // SECOND * SECOND + SECOND

            def latest_at_or_before(self, instant: int) -> int | None:
                nonlocal asked
                asked += 1
                return instant // SECOND * SECOND

            def describe(self) -> str:
                return "every second"

        store, journal = MemoryStorage(clock), Journal(clock)

        def release() -> Headgate:
            app = app_on(store, clock=clock)

            @app.schedule(Counting())
            async def tick() -> None:
                journal.note()

            return app

        async with release():
            await asyncio.sleep(1.5)
        await asyncio.sleep(365 * 86400)
        before, asked = len(journal.starts), 0
        async with release():
            await asyncio.sleep(0.2)
            assert len(journal.starts) == before + 1
        assert asked < 70 + MOST_COUNTED

    run_virtual(main)


@pytest.mark.parametrize(
    ("overlap", "starts"), [("skip", [60, 300, 540]), ("allow", [60, 120, 180, 240, 300, 360, 420, 480, 540])]
)
def test_an_occurrence_is_skipped_while_the_one_before_is_not_over(overlap: Any, starts: list[float]) -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.schedule(Every(minutes=1), overlap=overlap)
        async def slow() -> None:
            journal.note()
            await asyncio.sleep(200)

        async with app:
            await asyncio.sleep(590)
            status = await app.admin.schedules.status("slow")
            # The last one that did not run, and why.
            skipped = (status.skipped, status.skipped_at, status.skips)
            assert skipped == (("overlap", at(480), 6) if overlap == "skip" else (None, None, 0))
        assert journal.starts == starts

    run_virtual(main)


def test_a_series_faster_than_its_limit_is_reported_and_does_not_pile_up() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal, received = Headgate("memory://", clock=clock), Journal(clock), list[Event]()
        app.subscribe(received.append, ScheduleTooFast)

        @app.schedule(Every(minutes=1))
        @app.task(limits=[StrictRate("1/5m", margin=0)])
        async def pull() -> None:
            journal.note()

        @app.schedule(Every(minutes=10))
        @app.task(limits=[StrictRate("1/5m"), RateLimit("15/m")])
        async def calm() -> None: ...

        async with app:
            await asyncio.sleep(1600)
            assert [type(event) for event in received] == [ScheduleTooFast]
            assert received[0].schedule == "pull"  # type: ignore[attr-defined]
            # What the limit defers runs late; the rhythm stays.
            assert journal.starts == [60, 360, 660, 960, 1260, 1560]
            assert (await app.admin.schedules.status("pull")).open <= 1
            waiting = await app.admin.jobs(state=JobState.WAITING, task="pull")
            assert len(waiting) <= 1

    run_virtual(main)


def test_few_runs_of_a_schedule_that_is_much_slower_than_its_limit_are_computed() -> None:
    """The fault: a thousand were computed for each, so a worker that declares 10,000 schedules began minutes late."""

    class Periodic:
        def __init__(self, period: int) -> None:
            self.period = period
            self.asked = 0

        def next_after(self, instant: int) -> int:
            self.asked += 1
            return (instant // self.period + 1) * self.period

        def latest_at_or_before(self, instant: int) -> int:
            return instant // self.period * self.period

        def describe(self) -> str:
            return f"each {self.period}"

    async def main(clock: VirtualClock) -> None:
        app, received = Headgate("memory://", clock=clock), list[Event]()
        app.subscribe(received.append, ScheduleTooFast)
        slow, fast = Periodic(3600 * SECOND), Periodic(30 * SECOND)

        # Fifty starts are no more than its burst, a thousand are.
        @app.task(limits=[RateLimit("1/m", burst=100), Mutex("one")])
        async def pull() -> None: ...

        app.schedule(slow, name="slow")(pull)
        app.schedule(fast, name="fast")(pull)
        async with app:
            await asyncio.sleep(1)
        assert [event.schedule for event in received] == ["fast"]  # type: ignore[attr-defined]
        assert (slow.asked < 100, fast.asked > 1000) == (True, True)

    run_virtual(main)


def test_a_schedule_whose_holidays_are_known_for_a_day_runs_until_then() -> None:
    """The fault: a thousand occurrences were compared with the limit, and an error in one of them stopped them all."""

    async def main(clock: VirtualClock) -> None:
        app, journal, received = Headgate("memory://", clock=clock), Journal(clock), list[Event]()
        app.subscribe(received.append, ScheduleFailed, ScheduleTooFast)
        holidays = {to_datetime(clock.now()).date(): False}

        @app.schedule(Every(minutes=5), exclude=lambda day: holidays[day])
        @app.task(limits=[StrictRate("1/m")])
        async def pull() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(610)
        assert journal.starts == [300, 600]
        assert received == []

    run_virtual(main)


@pytest.mark.parametrize("options", [{"on_limit": "discard"}, {"max_wait": 1.0}])
def test_an_occurrence_that_a_limit_refuses_is_skipped_without_a_row(options: dict[str, Any]) -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal, received = Headgate("memory://", clock=clock), Journal(clock), list[Event]()
        app.subscribe(received.append, OccurrencesSkipped)

        @app.schedule(Every(minutes=1), max_runs=3)
        @app.task(limits=[StrictRate("1/150s", margin=0, **options)])
        async def pull() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(HOUR)
            assert journal.starts == [60, 240, 420]
            assert await app.admin.jobs(state=JobState.FAILED) == []
            assert await app.admin.jobs(state=JobState.CANCELLED) == []
            status = await app.admin.schedules.status("pull")
            assert (status.state, status.skipped, status.skips) == ("finished", "limit", 4)
        # It goes on with the first occurrence that the limit can serve.
        skips = [(each.reason, each.count, each.next_at) for each in received if isinstance(each, OccurrencesSkipped)]
        assert skips == [("limit", 2, START + 240 * SECOND), ("limit", 2, START + 420 * SECOND)]

    run_virtual(main)


@pytest.mark.parametrize("options", [{"on_limit": "discard"}, {"max_wait": 1.0}])
def test_an_occurrence_whose_retry_a_limit_refuses_is_failed_and_counts_as_a_run(options: dict[str, Any]) -> None:
    async def main(clock: VirtualClock) -> None:
        app, received, reported = Headgate("memory://", clock=clock), list[Event](), list[str]()
        app.subscribe(received.append, JobFailure)

        @app.schedule(Every(minutes=1), max_runs=1)
        @app.task(retry=RetryPolicy(delay=5), limits=[StrictRate("1/h", margin=0, **options)])
        async def pull() -> None:
            raise ValueError("nothing to pull")

        @pull.on_error
        def report(job: JobContext, error: BaseException) -> None:
            reported.append(type(error).__name__)

        async with app:
            await asyncio.sleep(300)
            (failed,) = await app.admin.jobs(state=JobState.FAILED)
            assert (failed.attempt, failed.error and failed.error.type) == (1, "headgate.errors.LimitRejected")
            status = await app.admin.schedules.status("pull")
            assert (status.runs, status.open, status.state) == (1, 0, "finished")
            (attempt,) = (await app.admin.job(failed.id)).attempts
            assert attempt.error is not None
            assert attempt.error.type == "ValueError"
        assert [each.job_id for each in received if isinstance(each, JobFailure)] == [failed.id]
        assert reported == ["LimitRejected"]

    run_virtual(main)


def test_a_failed_occurrence_whose_retry_would_be_after_the_end_is_failed() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.schedule(Every(minutes=1), until=at(90))
        @app.task(retry=RetryPolicy(delay=60))
        async def pull() -> None:
            raise ValueError("nothing to pull")

        async with app:
            await asyncio.sleep(300)
            (failed,) = await app.admin.jobs(state=JobState.FAILED)
            assert failed.error is not None
            assert failed.error.type == "headgate.errors.JobExpired"
            assert (await app.admin.schedules.status("pull")).runs == 1

    run_virtual(main)


@pytest.mark.parametrize("put_back", [Snooze(5), RateLimited(5)])
def test_an_occurrence_that_is_put_back_without_an_attempt_is_skipped_as_if_it_had_not_started(
    put_back: BaseException,
) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.schedule(Every(minutes=1), until=at(90))
        @app.task(limits=[StrictRate("1/h", margin=0, on_limit="discard")])
        async def pull() -> None:
            raise put_back

        async with app:
            await asyncio.sleep(300)
            assert await app.admin.jobs(state=JobState.FAILED) == []
            (skipped,) = await app.admin.jobs(state=JobState.CANCELLED)
            assert skipped.attempt == 0
            assert (await app.admin.schedules.status("pull")).runs == 0

    run_virtual(main)


def test_an_occurrence_that_was_skipped_stays_skipped_when_its_schedule_is_declared_again_and_changed() -> None:
    async def main(clock: VirtualClock) -> None:
        store, journal = MemoryStorage(clock), Journal(clock)

        def declared(every: Every) -> Headgate:
            app = app_on(store, clock=clock)

            @app.schedule(every)
            @app.task
            async def pull() -> None:
                journal.note()

            return app

        async with declared(Every(minutes=10)) as app:
            await asyncio.sleep(1)
            assert await app.admin.schedules.skip("pull") == at(600)
        async with declared(Every(minutes=10)) as app:
            await asyncio.sleep(900)
            assert journal.starts == []
            assert (await app.admin.schedules.status("pull")).next_run == at(1200)
        async with declared(Every(minutes=7)) as app:
            await asyncio.sleep(1)
            assert (await app.admin.schedules.status("pull")).next_run == at(1260)

    run_virtual(main)


@pytest.mark.parametrize("first", ["after", at(600)])
def test_a_last_occurrence_that_was_skipped_stays_skipped_when_its_schedule_is_declared_again(first: Any) -> None:
    async def main(clock: VirtualClock) -> None:
        store, journal = MemoryStorage(clock), Journal(clock)

        def declared(until: int) -> Headgate:
            app = app_on(store, clock=clock)

            @app.schedule(Every(minutes=10), first=first, until=at(until))
            async def pull() -> None:
                journal.note()

            return app

        async with declared(1000) as app:
            await asyncio.sleep(1)
            assert await app.admin.schedules.skip("pull") == at(600)
        async with declared(1000) as app:
            await asyncio.sleep(900)
            assert journal.starts == []
            assert (await app.admin.schedules.status("pull")).state == "finished"
        async with declared(1300):
            await asyncio.sleep(400)
            assert journal.starts == [1200]

    run_virtual(main)


def test_a_series_much_faster_than_its_limit_leaves_no_row_behind() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal, received = Headgate("memory://", clock=clock), Journal(clock), list[Event]()
        app.subscribe(received.append, OccurrencesSkipped)

        @app.schedule(Every(seconds=1))
        @app.task(limits=[StrictRate("1/h", margin=0, on_limit="discard")])
        async def pull() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(2 * HOUR)
            assert journal.starts == [1, 3601]
            assert len(await app.admin.jobs(task="pull")) == 2
            assert len(received) == 2, "once for each hour"

    run_virtual(main)


def test_an_occurrence_that_does_not_wait_for_a_held_permit_is_skipped() -> None:
    """Nobody knows when the permit is free, so each occurrence asks again."""

    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.schedule(Every(minutes=1), overlap="allow")
        @app.task(limits=[Mutex("file", on_limit="cancel")])
        async def pull() -> None:
            journal.note()
            await asyncio.sleep(150)

        async with app:
            await asyncio.sleep(500)
            assert journal.starts == [60, 240, 420]
            assert await app.admin.jobs(state=JobState.CANCELLED) == []

    run_virtual(main)


def test_an_occurrence_that_a_limit_defers_past_the_end_is_skipped() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.schedule(Every(minutes=1), until=at(200), overlap="allow")
        @app.task(limits=[StrictRate("1/h")])
        async def pull() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(300)
            assert journal.starts == [60]
            (one, _) = await app.admin.jobs(state=JobState.CANCELLED)
            assert one.error is not None
            assert one.error.type == "headgate.errors.JobExpired"
            status = await app.admin.schedules.status("pull")
            assert (status.runs, status.open, status.state) == (1, 0, "finished")

    run_virtual(main)


def test_triggering_a_schedule_now_keeps_its_times_and_counts_as_a_run() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.task
        async def pull(word: str) -> str:
            journal.note()
            return word

        async with app:
            schedule = await pull.schedule("s", Every(minutes=1), max_runs=3).enqueue("hello")
            await asyncio.sleep(70)
            job = await schedule.trigger()
            assert await job.result() == "hello"
            assert (await schedule.status()).runs == 2
            await schedule.pause()
            assert await (await schedule.trigger()).result() == "hello"
            await asyncio.sleep(100)
            assert journal.starts == [60, 70, 70]
            assert (await schedule.status()).state == "finished"

    run_virtual(main)


@pytest.mark.parametrize("is_graph", [False, True])
def test_a_schedule_that_ended_by_its_time_can_still_be_triggered(is_graph: bool) -> None:
    """The fault: the job expired at the end of the schedule, so it was cancelled instead of started."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def pull() -> str:
            return "pulled"

        async with app:
            plan = chain(pull.call(), pull.call()) if is_graph else pull
            schedule = await plan.schedule("s", Every(minutes=1), until=at(90)).enqueue()
            await asyncio.sleep(200)
            assert (await schedule.status()).state == "finished"
            assert await (await schedule.trigger()).result() == "pulled"
            status = await schedule.status()
            assert (status.state, status.runs, status.next_run) == ("finished", 2, None)

    run_virtual(main)


def test_clocks_that_step_back_double_nothing_and_clocks_that_step_forward_miss_as_the_rules_say() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal, occurrences = Headgate("memory://", clock=clock), Journal(clock), list[int]()

        @app.schedule(Every(minutes=10))
        async def pull() -> None:
            record = (await app.admin.job(current_job().id)).record
            assert record.origin is not None
            occurrences.append(((record.origin.occurs_at or 0) - START) // SECOND)

        async with app:
            await asyncio.sleep(1300)
            assert occurrences == [600, 1200]
            clock.step_wall(-1000)
            await asyncio.sleep(900)
            assert occurrences == [600, 1200]
            await asyncio.sleep(700)
            assert occurrences == [600, 1200, 1800]
            clock.step_wall(86400)
            await asyncio.sleep(5)
            assert len(occurrences) == 4
            assert journal.now * SECOND // SECOND - occurrences[-1] < 610
            await asyncio.sleep(600)
            assert len(occurrences) == 5
            assert occurrences[-1] - occurrences[-2] == 600

    run_virtual(main)


def test_a_clock_that_steps_back_while_what_is_due_is_read_fails_no_schedule() -> None:
    """The fault: ScheduleFailed: AssertionError, and the node did not run the schedule again for a minute."""

    async def main(clock: VirtualClock) -> None:
        class SetBack(MemoryStorage):
            async def due_schedules(self, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
                found = await super().due_schedules(*args, **options)
                if found.due and journal.starts == [1.0]:
                    clock.step_wall(-0.01)
                return found

        app, journal, failed = app_on(SetBack(clock), clock=clock), Journal(clock), list[ScheduleFailed]()
        app.subscribe(failed.append, ScheduleFailed)

        @app.schedule(Every(seconds=1))
        async def pull() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(4.5)
        assert (failed, journal.starts) == ([], [1.0, 2.0, 3.0, 4.0])

    run_virtual(main)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [7200, 365 * 86400])
@pytest.mark.parametrize("trigger", [Every(minutes=10), Cron("*/10 * * * *")])
def test_a_clock_that_jumps_ahead_and_back_silences_no_schedule(ahead: int, trigger: Any) -> None:
    """Its next occurrence was at the wrong date, maybe in years."""

    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.schedule(trigger)
        async def pull() -> None:
            journal.note()

        @app.task
        async def push() -> None: ...

        async with app:
            by_operator = await push.schedule("by operator", trigger).enqueue()
            await asyncio.sleep(1300)
            clock.step_wall(ahead)
            await asyncio.sleep(30)
            clock.step_wall(-ahead)
            runs = (await by_operator.status()).runs
            journal.starts.clear()
            await asyncio.sleep(1800)
            assert len(journal.starts) == 3
            assert (await by_operator.status()).runs == runs + 3

    run_virtual(main)


@pytest.mark.parametrize("first", ["after", "now", at(300)])
def test_a_schedule_that_was_declared_while_the_clock_was_ahead_begins_when_it_is_right(first: Any) -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.schedule(Every(minutes=10), first=first, max_runs=4)
        async def pull() -> None:
            journal.note()

        clock.step_wall(365 * 86400)
        async with app:
            await asyncio.sleep(1)
            clock.step_wall(-365 * 86400)
            journal.starts.clear()
            await asyncio.sleep(1300)
            assert len(journal.starts) in (2, 3)

    run_virtual(main)


def test_a_lost_write_of_the_advance_cannot_stop_the_series() -> None:
    """Where the run and the advance are two writes, a store that fails between them ends the series for good."""

    async def main(clock: VirtualClock) -> None:
        class Flaky(MemoryStorage):
            losses = 3

            async def fire(self, fired: Any) -> Any:  # type: ignore[misc]
                if self.losses:
                    self.losses -= 1
                    if self.losses % 2:
                        # Written, and the reply is lost.
                        await super().fire(fired)
                    raise StorageUnavailable("no")
                return await super().fire(fired)

        app, journal = app_on(Flaky(clock), clock=clock), Journal(clock)

        @app.schedule(Every(minutes=1))
        async def pull() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(310)
        assert len(journal.starts) == 5
        assert [round(start / 60) for start in journal.starts] == [1, 2, 3, 4, 5]

    run_virtual(main)


def test_schedules_are_declared_while_an_occurrence_cannot_be_enqueued() -> None:
    """The fault: they waited, as long as another transaction held the job that it follows."""

    async def main(clock: VirtualClock) -> None:
        class Held(MemoryStorage):
            async def fire(self, fired: Any) -> Any:  # type: ignore[misc]
                return [False for _ in fired]

        app = app_on(Held(clock), clock=clock)

        @app.schedule(Every(minutes=1))
        @app.task
        async def pull() -> None: ...

        async with app:
            await asyncio.sleep(90)
            app.schedule(Every(hours=1), chain(pull.call()), name="later")
            await asyncio.sleep(120)
            assert [each.name for each in await app.admin.schedules.list()] == ["later", "pull"]

    run_virtual(main)


def test_an_occurrence_that_cannot_be_enqueued_is_tried_once_a_second() -> None:
    """The fault: it was tried eight times a second, as long as another transaction held the job that it follows."""

    async def main(clock: VirtualClock) -> None:
        tries: list[list[str]] = []

        class Held(MemoryStorage):
            async def fire(self, fired: Any) -> Any:  # type: ignore[misc]
                tries.append([each.name for each in fired])
                others = [each for each in fired if each.name != "held"]
                written = iter(await super().fire(others) if others else ())
                return [each.name != "held" and next(written) for each in fired]

        app, journal = app_on(Held(clock), clock=clock), Journal(clock)

        @app.task
        async def pull() -> None:
            journal.note()

        app.schedule(Every(minutes=1), name="held", overlap="queue")(pull)
        app.schedule(Every(seconds=10), name="other")(pull)
        async with app:
            await asyncio.sleep(61)
            tries.clear()
            await asyncio.sleep(100)
        held = [names for names in tries if "held" in names]
        assert 90 <= len(held) <= 125
        assert len(journal.starts) == 16

    run_virtual(main)


def test_a_schedule_of_the_code_is_stored_again_in_tables_that_were_made_anew() -> None:
    """The fault: the worker went on with its jobs there, and without its schedules until it was restarted."""

    async def main(clock: VirtualClock) -> None:
        store, journal = MemoryStorage(clock), Journal(clock)
        app = app_on(store, clock=clock)

        @app.schedule(Every(minutes=1))
        async def pull() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(150)
            for table in ("schedule", "task_limit_set", "node"):
                writer_of(store).execute(f"DELETE FROM {table}")
            before = len(journal.starts)
            await asyncio.sleep(300)
            assert len(journal.starts) >= before + 2

    run_virtual(main)


@pytest.mark.nightly
def test_many_nodes_enqueue_each_occurrence_once() -> None:
    async def main(clock: VirtualClock) -> None:
        store, occurrences = MemoryStorage(clock), list[int]()

        def made() -> Headgate:
            app = app_on(store, clock=clock)

            @app.schedule(Every(seconds=10), overlap="allow")
            async def pull() -> None:
                record = (await app.admin.job(current_job().id)).record
                assert record.origin is not None
                occurrences.append(((record.origin.occurs_at or 0) - START) // SECOND)

            return app

        async with made(), made(), made():
            await asyncio.sleep(1005)
        assert occurrences == list(range(10, 1001, 10))

    for seed in range(3):
        run_virtual(main, seed=seed)


def test_a_node_fires_only_schedules_whose_task_it_has() -> None:
    async def main(clock: VirtualClock) -> None:
        store, journal = MemoryStorage(clock), Journal(clock)
        knowing, other = app_on(store, clock=clock), app_on(store, clock=clock)

        @knowing.task
        async def pull() -> None:
            journal.note()

        async with knowing.open():
            await pull.schedule("s", Every(minutes=1), misfire="run_all").enqueue()
        async with other:
            await asyncio.sleep(150)
            assert await store.counts() == []
        async with knowing:
            await asyncio.sleep(5)
        assert journal.starts == [150, 150]

    run_virtual(main)


def test_a_custom_trigger_is_run_by_nodes_that_declare_it_and_its_errors_are_reported() -> None:
    async def main(clock: VirtualClock) -> None:
        store, journal, received = MemoryStorage(clock), Journal(clock), list[Event]()

        class Squares:
            def __init__(self) -> None:
                self.fails = False

            def next_after(self, instant: int) -> int | None:
                if self.fails:
                    raise RuntimeError("the moon is down")
                return next(s for n in range(100) if (s := START + n * n * 60 * SECOND) > instant)

            def latest_at_or_before(self, instant: int) -> int | None:
                return max((s for n in range(100) if (s := START + n * n * 60 * SECOND) <= instant), default=None)

            def describe(self) -> str:
                return "squares"

        trigger = Squares()
        knowing, other = app_on(store, clock=clock), app_on(store, clock=clock)
        knowing.subscribe(received.append, ScheduleFailed)

        @knowing.schedule(trigger)
        @knowing.task(name="pull")
        async def pull() -> None:
            journal.note()

        @other.task(name="pull")
        async def same() -> None: ...

        async with knowing:
            await asyncio.sleep(1)
            assert (await knowing.admin.schedules.list())[0].trigger == "squares"
            with pytest.raises(DeclarationError, match=r"declare the schedule in the code with @app\.schedule"):
                await pull.schedule("x", trigger).enqueue()
            await asyncio.sleep(250)
            assert journal.starts == [60, 240]
        async with other:
            await asyncio.sleep(600)
            assert len(journal.starts) == 2
        async with knowing:
            await asyncio.sleep(70)
            assert len(journal.starts) == 3
            trigger.fails = True
            await asyncio.sleep(HOUR)
            assert len(journal.starts) == 3
            assert [event.error for event in received] == ["RuntimeError: the moon is down"]  # type: ignore[attr-defined]
            trigger.fails = False
            await asyncio.sleep(61)
            assert len(journal.starts) == 4
            trigger.fails = True
            await asyncio.sleep(HOUR)
            assert len(received) == 2

    run_virtual(main)


def test_a_failing_trigger_stops_neither_the_node_nor_other_schedules() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal, received = Headgate("memory://", clock=clock), Journal(clock), list[Event]()
        app.subscribe(received.append, ScheduleFailed)

        class Broken:
            def next_after(self, instant: int) -> int | None:
                raise RuntimeError("no moon")

            def latest_at_or_before(self, instant: int) -> int | None:
                return None

            def describe(self) -> str:
                return "broken"

        @app.schedule(Broken(), name="broken")
        @app.schedule(Every(minutes=1), name="sound")
        async def pull() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(310)
        assert journal.starts == [60, 120, 180, 240, 300]
        assert [(event.schedule, event.error) for event in received] == [("broken", "RuntimeError: no moon")]  # type: ignore[attr-defined]

    run_virtual(main)


def test_a_trigger_that_fails_when_a_node_starts_is_tried_again_with_the_next_declaration() -> None:
    """The fault: its schedule did not run on that node until it was restarted."""

    async def main(clock: VirtualClock) -> None:
        app, journal, received = Headgate("memory://", clock=clock), Journal(clock), list[Event]()
        app.subscribe(received.append, ScheduleFailed)

        class Remote:
            is_away = True

            def next_after(self, instant: int) -> int | None:
                if self.is_away:
                    raise OSError("no answer")
                return instant + 100 * SECOND

            def latest_at_or_before(self, instant: int) -> int | None:
                return instant

            def describe(self) -> str:
                return "remote"

        trigger = Remote()

        @app.schedule(trigger)
        async def pull() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(130)
            trigger.is_away = False
            await asyncio.sleep(300)
        assert journal.starts
        assert len(received) == 1

    run_virtual(main)


def test_a_trigger_that_fails_again_is_reported_once() -> None:
    """It fails where its occurrence is due, and again where its schedule is declared once more a minute later."""

    async def main(clock: VirtualClock) -> None:
        app, received = Headgate("memory://", clock=clock), list[Event]()
        app.subscribe(received.append, ScheduleFailed)

        class Waning:
            left = 1

            def next_after(self, instant: int) -> int | None:
                self.left -= 1
                if self.left < 0:
                    raise RuntimeError("no moon")
                return instant + 30 * SECOND

            def latest_at_or_before(self, instant: int) -> int | None:
                return None

            def describe(self) -> str:
                return "waning"

        @app.schedule(Waning())
        async def pull() -> None: ...

        async with app:
            await asyncio.sleep(600)
        assert [event.error for event in received] == ["RuntimeError: no moon"]  # type: ignore[attr-defined]

    run_virtual(main)


def test_a_trigger_that_raises_is_named_when_its_schedule_is_skipped_or_resumed() -> None:
    """The fault: both raised what it raised, without a word about the schedule."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        class Term:
            def next_after(self, instant: int) -> int | None:
                if instant > START + 30 * SECOND:
                    raise LookupError("no term after this one")
                return instant + 60 * SECOND

            def latest_at_or_before(self, instant: int) -> int | None:
                return instant

            def describe(self) -> str:
                return "term"

        @app.schedule(Term())
        @app.task
        async def pull() -> None: ...

        async with app:
            await asyncio.sleep(10)
            schedules, said = app.admin.schedules, r"schedule 'pull': its trigger .* raised LookupError.*in the code"
            with pytest.raises(HeadgateError, match=said):
                await schedules.skip("pull")
            assert await schedules.pause("pull")
            await asyncio.sleep(100)
            with pytest.raises(HeadgateError, match=said):
                await schedules.resume("pull")

    run_virtual(main)


def test_a_trigger_that_fails_for_the_instant_at_which_a_limit_opens_is_reported_once_and_ends_no_node() -> None:
    """The fault: what it raised there ended each worker, again at each restart."""

    async def main(clock: VirtualClock) -> None:
        app, journal, received = Headgate("memory://", clock=clock), Journal(clock), list[Event]()
        app.subscribe(received.append, ScheduleFailed)

        class Term:
            def next_after(self, instant: int) -> int | None:
                if instant > START + 24 * HOUR * SECOND:
                    raise LookupError("no term after this one")
                return instant + 60 * SECOND

            def latest_at_or_before(self, instant: int) -> int | None:
                return instant

            def describe(self) -> str:
                return "term"

        @app.schedule(Term())
        @app.task(limits=[StrictRate("1/2d", margin=0, on_limit="discard")])
        async def pull() -> None:
            journal.note()

        @app.schedule(Every(minutes=1))
        @app.task
        async def sound() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(310)
        assert journal.starts == [60, 60, 120, 180, 240, 300]
        (event,) = received
        assert isinstance(event, ScheduleFailed)
        assert (event.schedule, event.error) == ("pull", "LookupError: no term after this one")

    run_virtual(main)


def test_a_trigger_that_cannot_be_described_is_reported_once_and_stops_no_other_schedule() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal, received = Headgate("memory://", clock=clock), Journal(clock), list[Event]()
        app.subscribe(received.append, ScheduleFailed)

        class Nameless:
            def next_after(self, instant: int) -> int | None:
                return instant + SECOND

            def latest_at_or_before(self, instant: int) -> int | None:
                return instant

            def describe(self) -> str:
                raise RuntimeError("no words")

        @app.schedule(Nameless(), name="nameless")
        @app.schedule(Every(minutes=1), name="sound")
        async def pull() -> None:
            journal.note()

        async with app:
            await asyncio.sleep(310)
        assert journal.starts == [60, 120, 180, 240, 300]
        assert [(event.schedule, event.error) for event in received] == [("nameless", "RuntimeError: no words")]  # type: ignore[attr-defined]

    run_virtual(main)


def test_an_occurrence_that_moves_to_the_limits_of_a_new_release_is_still_skipped_and_not_failed() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)

        def release(*limits: StrictRate) -> Headgate:
            app = app_on(store, clock=clock)

            @app.schedule(Every(minutes=1), until=at(200))
            @app.task(limits=limits)
            async def pull() -> None: ...

            return app

        async with release(StrictRate("1/h")):
            await asyncio.sleep(125)
        async with (app := release(StrictRate("1/h", name="other"), StrictRate("1/h"))):
            await asyncio.sleep(5)
            (waiting,) = await app.admin.jobs(state=JobState.WAITING)
            assert len((await app.admin.job(waiting.id)).record.buckets) == 2
            await asyncio.sleep(100)
            assert await app.admin.jobs(state=JobState.FAILED) == []
            assert (await app.job(waiting.id).status()).state is JobState.CANCELLED

    run_virtual(main)


def test_the_limits_of_an_occurrence_are_those_of_the_release_that_fires_it() -> None:
    async def main(clock: VirtualClock) -> None:
        store, journal = MemoryStorage(clock), Journal(clock)

        def release(rate: str) -> Headgate:
            app = app_on(store, clock=clock)

            @app.task(limits=[StrictRate(rate, key="{tenant}", margin=0)])
            async def pull(tenant: str) -> None:
                journal.note()

            return app

        async with (app := release("1/s")):
            await app.tasks["pull"].schedule("s", Every(minutes=1)).enqueue("acme")
            await asyncio.sleep(61)
        async with release("1/5m"):
            await asyncio.sleep(600)
        assert journal.starts[0] == 60
        assert all(b - a >= 300 for a, b in pairwise(journal.starts[1:]))

    run_virtual(main)


def test_a_schedule_whose_jobs_the_limits_of_a_queue_no_longer_fit_ends_no_node() -> None:
    """The fault: each worker of a release whose queue got a limit by an argument that the task lacks ended at once."""

    async def main(clock: VirtualClock) -> None:
        store, journal, received = MemoryStorage(clock), Journal(clock), list[Event]()

        def release(*limits: StrictRate) -> Headgate:
            app = app_on(store, clock=clock)
            app.queue("mail", limits=limits)
            app.subscribe(received.append, ScheduleFailed)

            @app.task
            async def pull() -> None:
                journal.note()

            return app

        async with (app := release()):
            pull = app.tasks["pull"]
            await pull.using(queue="mail").schedule("misfit", Every(minutes=1)).enqueue()
            await pull.schedule("sound", Every(minutes=1)).enqueue()
            await asyncio.sleep(61)
        async with release(StrictRate("1/s", key="{tenant}")):
            await asyncio.sleep(60)
        assert journal.starts == [60, 60, 120]
        assert [event.schedule for event in received] == ["misfit"]  # type: ignore[attr-defined]
        assert "tenant" in received[0].error  # type: ignore[attr-defined]

    run_virtual(main)


def test_sync_code_has_the_same_methods() -> None:
    app = Headgate("memory://")

    @app.task
    async def pull(tenant: str) -> None: ...

    try:
        schedule = pull.sync.schedule("acme", Every(hours=1)).enqueue("acme")
        assert schedule.status().state == "active"
        assert len(schedule.next_runs(3)) == 3
        assert schedule.trigger().status().state is JobState.WAITING
        assert schedule.pause()
        assert schedule.resume()
        assert schedule.remove()
    finally:
        app.sync.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"first": "later"}, 'must be "now", "after" or an aware datetime'),
        ({"first": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"until": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"max_runs": 0}, "must be a whole number, at least 1"),
        ({"misfire": "twice"}, 'must be "run_once", "skip" or "run_all"'),
        ({"overlap": "maybe"}, 'must be "skip", "queue" or "allow"'),
        ({"misfire": "run_all", "overlap": "skip"}, "would skip all but one"),
        ({"name": ""}, "must be 1 to 200 printable characters"),
        # The fault: in the addresses of the dashboard they lead elsewhere, also as %2E.
        ({"name": "."}, "must be 1 to 200 printable characters, but not . or .."),
        ({"name": ".."}, "must be 1 to 200 printable characters, but not . or .."),
        ({"trigger": "0 6 * * *"}, "is not a trigger; pass Cron"),
        ({"trigger": Every}, "is not a trigger; pass Cron"),
    ],
)
def test_impossible_schedules_are_refused_at_declaration(options: dict[str, Any], why: str) -> None:
    app = Headgate("memory://")

    @app.task
    async def pull() -> None: ...

    trigger = options.pop("trigger", Every(hours=1))
    with pytest.raises(DeclarationError) as caught:
        app.schedule(trigger, **options)(pull)
    assert why in str(caught.value)
    with pytest.raises(DeclarationError, match="delay, at and expires_at are options of one job"):
        app.schedule(Calendar())(pull.using(delay=timedelta(seconds=1)))


def test_an_occurrence_with_a_misfit_payload_fails_instead_of_bypassing_its_limits() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        old, new = app_on(store, clock=clock), app_on(store, clock=clock)

        @old.task(name="pull", limits=[StrictRate("1/s", key="{tenant}")])
        async def before(tenant: str) -> None: ...

        @new.task(name="pull", limits=[StrictRate("1/s", key="{customer}")])
        async def after(customer: str) -> None: ...

        received: list[Event] = []
        new.subscribe(received.append, JobFinished)
        async with old:
            await before.schedule("s", Every(minutes=1)).enqueue("acme")
        async with new:
            await asyncio.sleep(125)
            failed = await new.admin.jobs(state=JobState.FAILED)
            assert [job.error.type for job in failed if job.error] == ["headgate.errors.PayloadError"] * 2
            # Each one is reported, as any failed job.
            assert [event.job_id for event in received] == [job.id for job in reversed(failed)]  # type: ignore[attr-defined]
            status = await new.admin.schedules.status("s")
            assert (status.runs, status.open, status.state) == (0, 0, "active")

    run_virtual(main)


def test_a_schedule_of_a_renamed_task_continues_under_its_alias() -> None:
    async def main(clock: VirtualClock) -> None:
        store, journal = MemoryStorage(clock), Journal(clock)
        old, new = app_on(store, clock=clock), app_on(store, clock=clock)

        @old.task
        async def pull() -> None: ...

        @new.task(aliases=["pull"])
        async def fetch() -> None:
            journal.note()

        async with old:
            await pull.schedule("s", Every(minutes=1)).enqueue()
        async with new:
            await asyncio.sleep(65)
        assert journal.starts == [60]

    run_virtual(main)


def test_occurrences_that_queue_up_run_one_after_another_and_none_is_skipped() -> None:
    async def main(clock: VirtualClock) -> None:
        app, journal = Headgate("memory://", clock=clock), Journal(clock)

        @app.schedule(Every(minutes=1), until=at(300), overlap="queue")
        @app.task(retry=RetryPolicy(retries=0))
        async def slow() -> None:
            journal.note()
            await asyncio.sleep(100)
            if len(journal.starts) == 2:
                raise ValueError("no")

        async with app:
            await asyncio.sleep(250)
            (latest, *_) = await app.admin.jobs()
            assert latest.state is JobState.WAITING
            assert (await app.admin.job(latest.id)).record.is_blocked
            await asyncio.sleep(600)
            # Two of them were still in line when the schedule ended.
            assert journal.starts == [60, 160, 260]
            status = await app.admin.schedules.status("slow")
            assert (status.runs, status.open, status.state) == (3, 0, "finished")

    run_virtual(main)


def test_all_missed_occurrences_run_one_after_another() -> None:
    async def main(clock: VirtualClock) -> None:
        store, journal = MemoryStorage(clock), Journal(clock)

        def release() -> Headgate:
            app = app_on(store, clock=clock)

            @app.schedule(Every(minutes=10), misfire="run_all")
            async def report() -> None:
                journal.note()
                await asyncio.sleep(5)

            return app

        async with release():
            await asyncio.sleep(1)
        await asyncio.sleep(HOUR + 59)
        async with release() as app:
            await asyncio.sleep(60)
            assert journal.starts == [3660, 3665, 3670, 3675, 3680, 3685]
            job = await app.find_schedule("report").trigger()
            assert await job.result() is None

    run_virtual(main)


def test_options_of_a_single_job_are_refused_for_a_schedule() -> None:
    app = Headgate("memory://")

    @app.task
    async def pull() -> None: ...

    with pytest.raises(DeclarationError, match="unique_key and connection are options of one job; overlap="):
        app.schedule(Every(hours=1))(pull.using(unique_key="x"))


@pytest.mark.nightly
def test_an_idle_store_is_polled_every_thirty_seconds_only() -> None:
    async def main(clock: VirtualClock) -> None:
        class Counting(MemoryStorage):
            looks = 0

            async def due_schedules(self, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
                self.looks += 1
                return await super().due_schedules(*args, **options)

        store = Counting(clock)
        app = app_on(store, clock=clock)

        @app.schedule(Every(days=1))
        async def pull() -> None: ...

        async with app:
            await asyncio.sleep(HOUR)
            assert store.looks <= HOUR / 30 + 3
            # It polls once a second under any load.
            store.looks = 0
            for _ in range(500):
                await pull.enqueue()
                await asyncio.sleep(0.02)
            assert store.looks <= 12

    run_virtual(main)
