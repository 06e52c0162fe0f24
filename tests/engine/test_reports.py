"""What running jobs say of themselves, in virtual time: progress, log lines, and what is kept of their lives."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from headgate import Every, Headgate, JobFailed, JobState, RetryPolicy, current_job
from headgate.clock import SECOND, Clock, SystemClock
from headgate.engine.reporter import Reporter
from headgate.errors import DeclarationError, StorageUnavailable
from headgate.jobs.audit import AuditLevel
from headgate.jobs.event import Event, JobEnqueued, JobProgressed, ReportDropped
from headgate.jobs.job import ClaimedJob
from headgate.jobs.report import LONGEST_LINE, LONGEST_MESSAGE, PLACES, AttemptReport, too_many
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.tasks.status import JobProgress
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.forked import answer_of_forked_child
from tests.internals import app_on, client_of

app_log = logging.getLogger("shop.orders")


@pytest.fixture(autouse=True)
def ordinary_logging_at_info() -> Any:
    """As `headgate worker` sets it up; a program whose root logger is at WARNING keeps only what it lets through."""
    app_log.setLevel(logging.INFO)
    yield
    app_log.setLevel(logging.NOTSET)


class WatchedStorage(MemoryStorage):
    """Counts reports, and refuses as many as requested."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.reports: list[Sequence[AttemptReport]] = []
        self.refuses = 0

    async def report(self, node: str, reports: Sequence[AttemptReport], most_lines: int) -> Sequence[bool | None]:  # type: ignore[misc]
        if self.refuses:
            self.refuses -= 1
            raise StorageUnavailable("the disk is full")
        self.reports.append(reports)
        return await super().report(node, reports, most_lines)


def reporter_on(storage: MemoryStorage, clock: Clock, *, most_lines: int = 10) -> Reporter:
    services = client_of(app_on(storage, clock=clock)).services
    return Reporter(services, "node-1", most_lines=most_lines, lowest=logging.INFO)


async def test_a_fork_can_log_while_another_thread_holds_the_reports_of_its_node() -> None:
    """The fault: a fork of a handler in a thread waited for ever if the node took its reports at that moment."""
    storage = MemoryStorage(SystemClock())
    reporter = reporter_on(storage, SystemClock())
    job = ClaimedJob("id", "work", "default", "{}", 1, 1, 0, 0, 0, 0)
    taken, given_back = threading.Event(), threading.Event()

    def take_reports() -> None:
        with reporter._lock:
            taken.set()
            given_back.wait()

    def log() -> str:
        reporter.log(job, logging.INFO, "shop", "from the fork")
        return "logged"

    thread = threading.Thread(target=take_reports)
    thread.start()
    try:
        taken.wait()
        assert answer_of_forked_child(log) == "logged"
    finally:
        given_back.set()
        thread.join()


async def messages(app: Headgate, job_id: str) -> list[str]:
    return [line.message for line in await app.admin.logs(job_id, count=10_000)]


# ------------------------------------------------------------------------------------------------------ progress


def test_progress_is_stored_once_a_second() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = WatchedStorage(clock)
        app = app_on(storage, clock=clock)
        received: list[Event] = []
        app.subscribe(received.append, JobProgressed)

        @app.task
        async def work() -> None:
            for step in range(100):
                current_job().progress(step / 100, f"step {step}")
                await asyncio.sleep(0.1)
            current_job().progress(1)

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(5.05)
            progress = (await job.status()).progress
            assert progress is not None
            assert 0.38 <= progress.fraction <= 0.51
            assert progress.message == f"step {round(progress.fraction * 100)}"
            await job.result()
            status = await job.status()
            assert status.state is JobState.SUCCEEDED
            assert status.progress is not None
            assert (status.progress.fraction, status.progress.message) == (1.0, None)
        assert 10 <= len(storage.reports) <= 12
        events = [event for event in received if isinstance(event, JobProgressed)]
        assert len(events) == len(storage.reports)
        assert (events[-1].job_id, events[-1].fraction) == (job.id, 1.0)

    run_virtual(main)


def test_the_progress_of_many_jobs_is_one_report() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = WatchedStorage(clock)
        app = app_on(storage, clock=clock)

        @app.task
        async def work() -> None:
            await asyncio.sleep(0.5)
            current_job().progress(0.5)
            await asyncio.sleep(10)

        async with app:
            jobs = await work.enqueue_many([() for _ in range(50)])
            await asyncio.sleep(5)
            assert None not in [(await job.status()).progress for job in jobs]
        assert len(storage.reports) <= 2

    run_virtual(main)


@pytest.mark.parametrize("said", [-0.01, 1.01, float("nan"), float("inf"), True, "half", None])
def test_progress_is_a_number_from_0_to_1(said: Any) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))

        @app.task
        async def work() -> None:
            current_job().progress(said)

        async with app:
            with pytest.raises(JobFailed, match="must be a number from 0 to 1"):
                await (await work.enqueue()).result()

    run_virtual(main)


def test_a_long_progress_message_is_cut_and_stored_as_text() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work(word: str) -> None:
            current_job().progress(0.5, word)

        async with app:
            job = await work.enqueue("é\x00" + "x" * 1000)
            await job.result()
            progress = (await job.status()).progress
            assert isinstance(progress, JobProgress)
            assert progress.message is not None
            assert progress.message.startswith("é\\x00xxx")
            assert len(progress.message) <= LONGEST_MESSAGE + 3

    run_virtual(main)


def test_a_thread_can_report_progress_and_log() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        def work() -> None:
            current_job().progress(0.25, "in a thread")
            app_log.info("from a thread")
            current_job().log.info("to the job")

        async with app:
            job = await work.enqueue()
            await job.result()
            progress = (await job.status()).progress
            assert progress is not None
            assert (progress.fraction, progress.message) == (0.25, "in a thread")
            assert await messages(app, job.id) == ["from a thread", "to the job"]

    run_virtual(main)


# ---------------------------------------------------------------------------------------------------------- logs


def test_the_log_lines_of_a_handler_are_stored_when_its_job_is_final() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work(number: int) -> None:
            app_log.info("order %d", number)
            current_job().log.warning("careful with %s", number)
            await asyncio.to_thread(app_log.error, "from a thread of its own: %d", number)
            await asyncio.create_task(inner(number))

        async def inner(number: int) -> None:
            app_log.info("from a task of its own: %d", number)

        async with app:
            jobs = await work.enqueue_many([(number,) for number in range(20)])
            for number, job in enumerate(jobs):
                await job.result()
                assert await messages(app, job.id) == [
                    f"order {number}",
                    f"careful with {number}",
                    f"from a thread of its own: {number}",
                    f"from a task of its own: {number}",
                ]
            first, second, *_ = await app.admin.logs(jobs[0].id)
            assert (first.level, first.logger, first.attempt) == (logging.INFO, "shop.orders", 1)
            assert (second.level, second.logger) == (logging.WARNING, "headgate.job")
            assert first.at <= second.at <= clock.now()
            # Code outside of a handler is not in a job.
            app_log.info("outside")
            await asyncio.sleep(2)
            assert len(await messages(app, jobs[0].id)) == 4

    run_virtual(main)


def test_a_stopped_node_captures_no_logging() -> None:
    async def main(clock: VirtualClock) -> None:
        def state() -> object:
            return logging.Logger.callHandlers, list(logging.getLogger().handlers)

        before = state()
        async with Headgate("memory://", clock=clock):
            await asyncio.sleep(1)
            assert state() != before
        assert state() == before
        async with Headgate("memory://", clock=clock, log_lines=0):
            await asyncio.sleep(1)
            assert state() == before

    run_virtual(main)


def test_lines_below_info_are_not_kept_unless_they_are_asked_for() -> None:
    async def main(clock: VirtualClock) -> None:
        for level, expected in (("INFO", ["info"]), ("DEBUG", ["debug", "info"]), ("ERROR", [])):
            app = Headgate("memory://", clock=clock, log_level=level)

            @app.task
            async def work() -> None:
                current_job().log.debug("debug")
                current_job().log.info("info")

            async with app:
                job = await work.enqueue()
                await job.result()
                assert await messages(app, job.id) == expected

    run_virtual(main)


def test_the_first_thousand_lines_are_kept_and_one_counts_the_rest() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = WatchedStorage(clock)
        app = app_on(storage, clock=clock, retry=RetryPolicy(retries=1, base=1))

        @app.task
        async def work() -> None:
            for number in range(800):
                current_job().log.info("attempt %d line %d", current_job().attempt, number)
            if current_job().attempt == 1:
                raise ValueError("again")
            for number in range(100_000):
                current_job().log.info("more %d", number)

        async with app:
            job = await work.enqueue()
            await job.result()
            kept = await messages(app, job.id)
        assert len(kept) == 1001
        assert (kept[0], kept[799]) == ("attempt 1 line 0", "attempt 1 line 799")
        assert (kept[800], kept[999]) == ("attempt 2 line 0", "attempt 2 line 199")
        assert kept[1000] == too_many(1000)
        assert sum(len(each.lines) for reports in storage.reports for each in reports) <= 800 + 1001

    run_virtual(main)


def test_a_long_line_is_cut() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None:
            app_log.info("x" * 100_000)

        async with app:
            job = await work.enqueue()
            await job.result()
            assert await messages(app, job.id) == ["x" * LONGEST_LINE]

    run_virtual(main)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


def test_a_line_that_cannot_be_formatted_never_fails_its_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None:
            log = current_job().log
            log.info("%d apples", "many")
            log.info("%s and %s", "one")
            log.info("%s", Unprintable())
            log.info(Unprintable())
            log.info({"event": "structured", "apples": 3})
            try:
                raise ValueError("told with its traceback")
            except ValueError:
                log.exception("it failed")

        async with app:
            job = await work.enqueue()
            await job.result()
            kept = await messages(app, job.id)
        assert kept[0] == "%d apples ('many',) (TypeError while formatting it)"
        assert kept[1] == "%s and %s ('one',) (TypeError while formatting it)"
        assert "RuntimeError while formatting it" in kept[2]
        assert "RuntimeError while formatting it" in kept[3]
        assert kept[4] == "{'event': 'structured', 'apples': 3}"
        assert kept[5].startswith("it failed\nTraceback")
        assert kept[5].endswith("ValueError: told with its traceback")

    run_virtual(main)


def test_lines_go_to_ordinary_logging_with_their_job_id(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None:
            current_job().log.warning("careful with %s", "this")

        async with app:
            job = await work.enqueue()
            await job.result()
            (record,) = [record for record in caplog.records if record.name == "headgate.job"]
            assert record.getMessage() == "careful with this"
            assert (record.__dict__["job_id"], record.__dict__["task"]) == (job.id, "work")
            assert record.funcName == "work"
            assert len(await messages(app, job.id)) == 1

    run_virtual(main)


def test_log_lines_of_headgate_are_not_log_lines_of_a_job() -> None:
    """A subscriber that is woken by a handler runs in the handler's context."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.subscribe(lambda event: logging.getLogger("headgate").warning("%s", event), JobEnqueued)

        @app.task
        async def other() -> None: ...

        @app.task
        async def work() -> None:
            await other.enqueue()

        async with app:
            job = await work.enqueue()
            await job.result()
            await asyncio.sleep(5)
            assert await messages(app, job.id) == []

    run_virtual(main)


def test_logs_are_kept_when_an_attempt_fails_times_out_or_is_cancelled() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))

        @app.task(timeout=3)
        async def work(how: str) -> None:
            app_log.info("begins")
            if how == "fails":
                raise ValueError(how)
            await asyncio.sleep(2)
            app_log.info("goes on")
            await asyncio.sleep(100)

        async with app:
            fails, late, cancelled = await work.enqueue_many([("fails",), ("late",), ("cancelled",)])
            await asyncio.sleep(2.5)
            await cancelled.cancel()
            await asyncio.sleep(2)
            assert await messages(app, fails.id) == ["begins"]
            assert await messages(app, late.id) == await messages(app, cancelled.id) == ["begins", "goes on"]
            states = [(await job.status()).state for job in (fails, late, cancelled)]
            assert states == [JobState.FAILED, JobState.FAILED, JobState.CANCELLED]

    run_virtual(main)


def test_logs_are_kept_when_the_node_is_asked_to_stop() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = MemoryStorage(clock)
        app = app_on(storage, clock=clock, grace=0)

        @app.task
        async def work() -> None:
            await asyncio.sleep(10)
            app_log.info("just now")
            await asyncio.sleep(0.01)
            current_job().progress(0.75)
            await asyncio.sleep(100)

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(10.02)
        record = await storage.job(job.id)
        assert record is not None
        assert record.state is JobState.WAITING
        assert record.progress is not None
        assert [line.message for line in await storage.logs(job.id)] == ["just now"]

    run_virtual(main)


def test_an_unavailable_store_loses_no_line() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = WatchedStorage(clock)
        app = app_on(storage, clock=clock)

        @app.task
        async def work() -> None:
            for number in range(5):
                app_log.info("line %d", number)
                current_job().progress(number / 4)
                await asyncio.sleep(1)

        async with app:
            storage.refuses = 3
            job = await work.enqueue()
            await job.result()
            assert await messages(app, job.id) == [f"line {number}" for number in range(5)]
            progress = (await job.status()).progress
            assert progress is not None
            assert progress.fraction == 1.0

    run_virtual(main)


def test_a_node_that_was_declared_dead_writes_nothing_to_jobs_of_another() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = MemoryStorage(clock)
        app = app_on(storage, clock=clock)
        freed = threading.Event()

        @app.task
        async def work() -> None:
            app_log.info("attempt %d", current_job().attempt)
            current_job().progress(0.1 * current_job().attempt)
            try:
                await asyncio.sleep(1000)
            finally:
                app_log.info("late word of attempt %d", current_job().attempt)
                current_job().progress(0.9)

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(2)
            (node,) = await storage.nodes()
            assert await storage.recover(node.id, node.beat) is not None
            await storage.join("other", "other")
            await asyncio.sleep(20)
            status = await job.status()
            assert status.attempt == 2
            assert await messages(app, job.id) == ["attempt 1", "attempt 2"]
            assert status.progress is not None
            assert status.progress.fraction == 0.2
        freed.set()

    run_virtual(main)


def test_lines_of_a_thread_that_outlives_its_attempt_do_not_count_for_the_next_one() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = WatchedStorage(clock)
        reporter = reporter_on(storage, clock)
        first, second = (ClaimedJob("job-1", "work", "default", "{}", fence, fence, 0, 0, 0, 0) for fence in (1, 2))
        reporter.log(second, logging.INFO, "app", "one")
        reporter.log(first, logging.INFO, "app", "late")
        reporter.progress(first, 0.9, None)
        reporter.log(second, logging.INFO, "app", "two")
        await reporter.flush()
        ((report,),) = storage.reports
        assert (report.fence, report.progress, [line.message for line in report.lines]) == (2, None, ["one", "two"])

    run_virtual(main)


def test_a_refused_report_of_a_thread_that_outlives_its_attempt_drops_nothing_of_the_next_one() -> None:
    """The fault: what the next attempt had said meanwhile was dropped with it, and its lines were numbered anew."""

    class SlowStorage(WatchedStorage):
        async def report(self, node: str, reports: Sequence[AttemptReport], most_lines: int) -> Sequence[bool | None]:  # type: ignore[misc]
            self.reports.append(reports)
            await asyncio.sleep(1)
            return [each.fence == 2 for each in reports]

    async def main(clock: VirtualClock) -> None:
        storage = SlowStorage(clock)
        reporter = reporter_on(storage, clock)
        first, second = (ClaimedJob("job-1", "work", "default", "{}", fence, fence, 0, 0, 0, 0) for fence in (1, 2))
        reporter.log(first, logging.INFO, "app", "late")
        flushing = asyncio.create_task(reporter.flush())
        await asyncio.sleep(0.5)
        reporter.log(second, logging.INFO, "app", "one")
        await flushing
        reporter.log(second, logging.INFO, "app", "two")
        await reporter.flush()
        lines = [line for (report,) in storage.reports[1:] for line in report.lines]
        assert [(line.number, line.message) for line in lines] == [(2 * PLACES, "one"), (2 * PLACES + 1, "two")]

    run_virtual(main)


def test_a_level_of_any_size_is_kept_in_the_range_that_every_store_has() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None:
            for level in (40_000, 1 << 70):
                app_log.log(level, "loud")
                current_job().log.log(level, "loud")

        async with app:
            job = await work.enqueue()
            await job.result()
            assert [line.level for line in await app.admin.logs(job.id)] == [32767] * 4

    run_virtual(main)


def test_a_record_that_holds_anything_does_not_reach_the_handler_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records can be created by hand, or by a custom factory whose message is not a text."""

    class Odd(logging.LogRecord):
        def getMessage(self) -> Any:  # noqa: N802  # as logging calls it
            return {"event": self.msg}

    # The handlers of the test runner cannot format such records, and raise.
    monkeypatch.setattr(app_log, "propagate", False)
    monkeypatch.setattr(app_log, "handlers", [logging.NullHandler()])

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None:
            app_log.handle(Odd("shop", 30, "", 0, "a dict", (), None))
            app_log.handle(logging.makeLogRecord({"levelno": 40.5, "msg": "half a level"}))
            app_log.handle(logging.makeLogRecord({"levelno": 30, "name": None, "msg": b"no name"}))

        async with app:
            job = await work.enqueue()
            await job.result()
            lines = await app.admin.logs(job.id)
            assert [line.logger for line in lines] == ["shop", "None"]
            assert [line.message for line in lines] == ["{'event': 'a dict'}", "b'no name'"]

    run_virtual(main)


def test_a_report_that_the_store_cannot_keep_is_dropped_with_one_warning_and_ends_nothing() -> None:
    """Such an error, as a value out of range, once ended the node with all that ran on it."""

    class RefusingStorage(WatchedStorage):
        async def report(self, node: str, reports: Sequence[AttemptReport], most_lines: int) -> Sequence[bool | None]:  # type: ignore[misc]
            if any("bad" in line.message for report in reports for line in report.lines):
                raise OverflowError("value out of int16 range")
            return await super().report(node, reports, most_lines)

    async def main(clock: VirtualClock) -> None:
        app = app_on(RefusingStorage(clock), clock=clock)
        dropped: list[ReportDropped] = []
        app.subscribe(dropped.append, ReportDropped)  # told of this kind only

        @app.task
        async def work(word: str) -> str:
            for _ in range(3):
                app_log.info("%s", word)
                await asyncio.sleep(2)
            app_log.info("the end")
            return word

        async with app:
            jobs = [await work.enqueue(word) for word in ("good", "bad", "better")]
            assert [await job.result() for job in jobs] == ["good", "bad", "better"]
            good, bad, better = [await messages(app, job.id) for job in jobs]
            assert (good, better) == (["good"] * 3 + ["the end"], ["better"] * 3 + ["the end"])
            assert bad == ["the end"]
        assert [(event.job_id, event.error) for event in dropped] == [
            (jobs[1].id, "OverflowError: value out of int16 range")
        ]

    run_virtual(main)


def test_a_job_that_logs_all_the_time_delays_no_ending() -> None:
    """One flush once continued as long as there were new lines, and endings waited for it."""

    async def main(clock: VirtualClock) -> None:
        class Patient(WatchedStorage):
            async def report(  # type: ignore[misc]
                self, node: str, reports: Sequence[AttemptReport], most_lines: int
            ) -> Sequence[bool | None]:
                await asyncio.sleep(0.01)
                return await super().report(node, reports, most_lines)

        storage = Patient(clock)
        app = app_on(storage, clock=clock)

        @app.task
        async def talk() -> None:
            for step in range(12_000):
                current_job().progress(step / 12_000)
                await asyncio.sleep(0.001)

        @app.task
        async def quick() -> None: ...

        async with app:
            talker = await talk.enqueue()
            await asyncio.sleep(1.5)
            began = clock.now()
            await (await quick.enqueue()).result()
            assert clock.now() - began < SECOND
            await talker.result()
        assert len(storage.reports) <= 14

    run_virtual(main)


def test_what_the_garbage_collector_logs_while_a_line_is_taken_freezes_nothing_and_is_kept() -> None:
    """Libraries warn of what was not closed from `__del__`, which runs in the middle of whatever allocates."""

    async def main(clock: VirtualClock) -> None:
        storage = WatchedStorage(clock)
        reporter = reporter_on(storage, clock, most_lines=10_000)
        job = ClaimedJob("job-1", "work", "default", "{}", 1, 1, 0, 0, 0, 0)

        class Unclosed:
            def __init__(self) -> None:
                self.itself = self

            def __del__(self) -> None:
                reporter.log(job, logging.WARNING, "library", "unclosed")
                reporter.progress(job, 0.5, None)

        def work() -> None:
            for number in range(1000):
                # It comes by at another place each time.
                gc.set_threshold(1 + number % 40)
                Unclosed()
                reporter.log(replace(job, id=f"other-{number}"), logging.INFO, "app", "line")

        thread = threading.Thread(target=work, daemon=True)
        before = gc.get_threshold()
        try:
            thread.start()
            thread.join(5)
            assert not thread.is_alive()
            gc.collect()
            await reporter.flush()
        finally:
            gc.set_threshold(*before)
        reports = [report for reports in storage.reports for report in reports]
        own = [line.number - PLACES for report in reports if report.id == job.id for line in report.lines]
        assert own == list(range(1000))
        assert len(reports) == 1001

    run_virtual(main)


def test_a_job_without_progress_and_logs_writes_no_report() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = WatchedStorage(clock)
        app = app_on(storage, clock=clock)

        @app.task
        async def work() -> None: ...

        async with app:
            for job in await work.enqueue_many([() for _ in range(100)]):
                await job.result()
        assert storage.reports == []

    run_virtual(main)


# --------------------------------------------------------------------------------------------- audit, retention


def test_the_task_overrides_the_app_and_the_job_overrides_the_task() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, audit="errors")

        @app.task
        async def plain() -> None: ...

        @app.task(audit="none")
        async def quiet() -> None: ...

        async with app.open():
            jobs = [
                await plain.enqueue(),
                await quiet.enqueue(),
                await quiet.using(audit="full").enqueue(),
                await quiet.using(audit="minimal").using(priority=3).enqueue(),
            ]
            levels = [(await app.admin.job(job.id)).record.audit for job in jobs]
        assert levels == [AuditLevel.ERRORS, AuditLevel.NONE, AuditLevel.FULL, AuditLevel.MINIMAL]

    run_virtual(main)


@pytest.mark.parametrize("declare", ["app", "task", "using"])
def test_an_unknown_audit_level_is_refused_at_declaration(declare: str) -> None:
    word: Any = "verbose"

    async def work() -> None: ...

    def declared() -> None:
        app = Headgate("memory://", audit=word if declare == "app" else None)
        app.task(audit=word if declare == "task" else None)(work).using(audit=word)

    with pytest.raises(DeclarationError, match="audit='verbose' must be one of none, errors, minimal, full"):
        declared()


@pytest.mark.nightly
@pytest.mark.slow
def test_final_jobs_are_kept_for_the_retention_of_their_state() -> None:
    async def main(clock: VirtualClock) -> None:
        kept = {"succeeded": 3600, "failed": 3 * 3600}
        app = Headgate("memory://", clock=clock, retention=kept, retry=RetryPolicy(retries=0))

        @app.task
        async def work(fails: bool) -> None:
            if fails:
                raise ValueError("no")

        async with app:
            good, bad = await work.enqueue_many([(False,), (True,)])
            cancelled = await work.using(delay=1000).enqueue(False)
            await cancelled.cancel()
            left: list[int] = []
            for _ in range(5):
                await asyncio.sleep(3600 - 100)
                left.append(len(await app.admin.jobs()))
                await asyncio.sleep(200)
                left.append(len(await app.admin.jobs()))
            assert left[0] == 3
            assert left[1] == left[2] == 2
            assert left[-1] == 1
            assert [job.id for job in await app.admin.jobs()] == [cancelled.id]
            assert good.id != bad.id

    run_virtual(main)


@pytest.mark.nightly
def test_a_hundred_thousand_final_jobs_are_pruned_in_portions() -> None:
    async def main(clock: VirtualClock) -> None:
        sizes: list[int] = []

        class Pruned(MemoryStorage):
            async def prune(self, finished_before: int, count: int = 1000, states: Any = frozenset(), **of: Any) -> int:  # type: ignore[misc]
                pruned = await super().prune(finished_before, count, states, **of)
                sizes.append(pruned)
                return pruned

        storage = Pruned(clock)
        app = app_on(storage, clock=clock, retention=3600, concurrency=20_000)

        @app.task
        async def work() -> None: ...

        async with app:
            jobs = await work.enqueue_many([() for _ in range(100_000)])
            await jobs[-1].result()
            await asyncio.sleep(3600 - 60)
            sizes.clear()
            delays: list[int] = []
            for _ in range(200):
                began = clock.now()
                await (await work.enqueue()).result()
                delays.append(clock.now() - began)
                await asyncio.sleep(1)
            assert max(sizes) <= 500
            assert sum(sizes) >= 100_000
            assert max(delays) < SECOND // 10

    run_virtual(main)


def test_actions_on_a_schedule_are_recorded_with_their_actor() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(audit="none")
        async def work() -> None: ...

        async with app.open():
            await work.schedule("nightly", Every(hours=24)).enqueue()
            ada = app.admin.by("ada@desk").schedules
            assert await ada.pause("nightly")
            assert not await ada.pause("nightly")
            assert await ada.resume("nightly")
            job_id = await app.admin.schedules.trigger("nightly")
            assert await app.admin.by("bob@desk").schedules.remove("nightly")
            entries = await app.admin.audit_log(kind="schedule", subject="nightly")
            assert [(each.actor, each.action) for each in entries[::-1]] == [
                ("ada@desk", "pause"),
                ("ada@desk", "resume"),
                (app.admin.actor, "trigger"),
                ("bob@desk", "remove"),
            ]
            # Its jobs are audited as their task is.
            assert (await app.admin.job(job_id)).record.audit is AuditLevel.NONE

    run_virtual(main)
