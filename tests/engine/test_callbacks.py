"""Callbacks of a task: which are called for its jobs, when, and that their errors change nothing."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from headgate import (
    DeclarationError,
    Handler,
    Headgate,
    JobCancelled,
    JobContext,
    JobFailed,
    JobState,
    LimitRejected,
    RetryPolicy,
    Snooze,
    StrictRate,
    current_job,
)
from headgate.client.task import Task
from headgate.clock import SECOND, to_datetime
from headgate.engine import callback_runner
from headgate.errors import JobExpired, PayloadError, StorageUnavailable
from headgate.jobs.event import CallbackFailed, Event
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.bad_stores import UnwritableStorage
from tests.internals import app_on, new_node, node_of
from tests.until import patient, result_within


@dataclass
class Order:
    tenant: str


def listen(task: Task[Any, Any]) -> list[tuple[Any, ...]]:
    """The calls of all callbacks of a task."""
    received: list[tuple[Any, ...]] = []

    @task.on_started
    async def started(job: JobContext) -> None:
        received.append(("started", job.attempt))

    @task.on_completed
    async def completed(job: JobContext, result: Any) -> None:
        received.append(("completed", result))

    @task.on_error
    async def error(job: JobContext, error: BaseException) -> None:
        received.append(("error", error))

    @task.on_retry
    async def retry(job: JobContext, error: BaseException, attempt: int, delay: float) -> None:
        received.append(("retry", repr(error), attempt, delay))

    return received


def test_callbacks_are_called_at_the_start_the_retries_and_the_end_of_a_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(delays=[10, 20]))
        async def work(fails: int) -> str:
            if current_job().attempt <= fails:
                raise ValueError(current_job().attempt)
            return "done"

        received = listen(work)
        async with app:
            await (await work.enqueue(2)).result()
            await asyncio.sleep(1)
            assert received == [
                ("started", 1),
                ("retry", "ValueError(1)", 1, 10.0),
                ("started", 2),
                ("retry", "ValueError(2)", 2, 20.0),
                ("started", 3),
                ("completed", "done"),
            ]
            received.clear()
            with pytest.raises(JobFailed):
                await (await work.enqueue(9)).result()
            await asyncio.sleep(1)
            assert [each[0] for each in received] == ["started", "retry", "started", "retry", "started", "error"]
            error = received[-1][1]
            assert isinstance(error, ValueError)
            assert error.args == (3,)
            assert error.__traceback__ is not None

    run_virtual(main)


def test_no_callback_is_called_before_the_ending_is_stored() -> None:
    """The fault: a callback sent the invoice, the record of it failed, and the job ran and sent it again."""

    async def main(clock: VirtualClock) -> None:
        store = UnwritableStorage(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def work() -> int:
            return 7

        received = listen(work)
        async with app:
            store.is_full = True
            job = await work.enqueue()
            await asyncio.sleep(60)
            assert received == [("started", 1)]
            store.is_full = False
            await job.result()
            await asyncio.sleep(1)
            assert received == [("started", 1), ("completed", 7)]

    run_virtual(main)


def test_no_callback_is_called_for_a_refused_ending() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app = app_on(store, clock=clock)
        runs: list[int] = []

        @app.task
        async def work() -> int:
            runs.append(1)
            await asyncio.sleep(3 if len(runs) == 1 else 0)
            return len(runs)

        received = listen(work)
        async with app:
            job = await work.enqueue()
            await asyncio.sleep(1)
            node = node_of(app)
            assert node is not None
            await store.recover(node.id, (await store.nodes())[0].beat)
            assert await job.result() == 2
            await asyncio.sleep(1)
            assert [each for each in received if each[0] == "completed"] == [("completed", 2)]

    run_virtual(main)


def test_what_a_callback_raises_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        failures: list[Event] = []
        others: list[str] = []
        app.subscribe(failures.append, CallbackFailed)

        @app.task
        async def work() -> str:
            return "fine"

        @work.on_started
        def stops(job: JobContext) -> None:
            raise StopIteration

        @work.on_completed
        async def exits(job: JobContext, result: str) -> None:
            raise SystemExit(3)

        @work.on_completed
        async def cancels(job: JobContext, result: str) -> None:
            raise asyncio.CancelledError

        @work.on_completed
        async def fails(job: JobContext, result: str) -> None:
            raise ValueError("in a callback")

        @work.on_completed
        async def goes_on(job: JobContext, result: str) -> None:
            others.append(result)

        with caplog.at_level(logging.ERROR, "headgate"):
            async with app:
                job = await work.enqueue()
                assert await job.result() == "fine"
                await asyncio.sleep(1)
                assert others == ["fine"]
                assert await (await work.enqueue()).result() == "fine"
        assert len(failures) == 8
        assert f"on_completed of work failed on job {job.id}: ValueError: in a callback" in caplog.text

    run_virtual(main)


def test_slow_callbacks_delay_neither_the_ending_of_a_job_nor_other_jobs() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)

        @app.task
        async def work() -> int:
            return clock.monotonic()

        @work.on_completed
        async def slow(job: JobContext, result: int) -> None:
            await asyncio.sleep(30)

        async with app:
            jobs = await work.enqueue_many([()] * 5)
            ran = [await job.result() for job in jobs]
            assert ran[-1] - ran[0] < SECOND

    run_virtual(main)


def test_the_callbacks_of_one_job_are_called_in_order_even_when_the_first_is_slow() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        received: list[str] = []

        @app.task
        async def work() -> None: ...

        @work.on_started
        async def started(job: JobContext) -> None:
            await asyncio.sleep(10)
            received.append("started")

        @work.on_completed
        async def completed(job: JobContext, result: None) -> None:
            received.append("completed")

        async with app:
            await (await work.enqueue()).result()
            await asyncio.sleep(11)
            assert received == ["started", "completed"]

    run_virtual(main)


def test_a_callback_that_never_ends_is_cancelled_and_logged() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        failures: list[Event] = []
        app.subscribe(failures.append, CallbackFailed)

        @app.task
        async def work() -> None: ...

        @work.on_completed
        async def hangs(job: JobContext, result: None) -> None:
            await asyncio.Event().wait()

        async with app:
            await work.enqueue()
            await asyncio.sleep(59)
            assert not failures
            await asyncio.sleep(2)
            assert "longer than 60 s" in str(failures[0])

    run_virtual(main)


def test_running_callbacks_get_time_to_finish_when_the_app_closes() -> None:
    async def main(clock: VirtualClock) -> None:
        received: list[str] = []

        def make() -> tuple[Headgate, Task[[float], None]]:
            app = Headgate("memory://", clock=clock)

            @app.task
            async def work(seconds: float) -> None: ...

            @work.on_completed
            async def completed(job: JobContext, result: None) -> None:
                try:
                    await asyncio.sleep(float(job.headers["seconds"]))
                    received.append("ended")
                except asyncio.CancelledError:
                    received.append("cancelled")
                    raise

            return app, work

        for seconds in ("3", "3000"):
            app, work = make()
            async with app:
                await (await work.using(headers={"seconds": seconds}).enqueue(0)).result()
                await asyncio.sleep(0.1)
                began = clock.monotonic()
            assert clock.monotonic() - began <= callback_runner.CALLBACK_TIMEOUT * SECOND
        assert received == ["ended", "cancelled"]

    run_virtual(main)


def test_running_callbacks_get_time_to_finish_each_time_an_app_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: what they wait with belonged to the first event loop, so on the second they were cancelled at once."""
    monkeypatch.setattr(callback_runner, "MAX_RUNNING", 1)
    app = Headgate("memory://")
    received: list[int] = []

    @app.task
    async def work(number: int) -> int:
        return number

    @work.on_completed
    async def completed(job: JobContext, result: int) -> None:
        await asyncio.sleep(0.1)
        received.append(result)

    for first in (1, 3):
        with app:
            for job in work.sync.enqueue_many([(first,), (first + 1,)]):
                job.result(timeout=patient(5))
    assert sorted(received) == [1, 2, 3, 4]


def test_the_last_callbacks_of_a_closing_app_can_enqueue_and_read() -> None:
    """The fault: the app counted as closed before they were told, and they met NotOpen."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        enqueued: list[str] = []

        @app.task
        async def follow() -> None: ...

        @app.task
        async def work() -> None: ...

        @work.on_completed
        async def completed(job: JobContext, result: None) -> None:
            await asyncio.sleep(1)
            assert (await app.admin.status(job.id)).state is JobState.SUCCEEDED
            enqueued.append((await follow.enqueue()).id)

        async with app:
            await (await work.enqueue()).result()
        async with app.open():
            assert [each.id for each in await app.admin.jobs(task="follow")] == enqueued != []

    run_virtual(main)


def test_a_plain_callback_runs_in_a_thread_and_can_read_its_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        received: list[tuple[str, bool]] = []

        @app.task
        async def work() -> None: ...

        @work.on_completed
        def completed(job: JobContext, result: None) -> None:
            try:
                asyncio.get_running_loop()
                on_the_loop = True
            except RuntimeError:
                on_the_loop = False
            received.append((current_job().id, on_the_loop))

        async with app:
            job = await work.enqueue()
            await job.result()
            await asyncio.sleep(1)
            assert received == [(job.id, False)]

    run_virtual(main)


def test_throttling_snoozing_and_cancelling_call_neither_on_error_nor_on_retry() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        snoozed: list[bool] = []

        @app.task(limits=[StrictRate("1/m")])
        async def work(how: str) -> None:
            if how == "snooze" and not snoozed:
                snoozed.append(True)
                raise Snooze(5)
            if how == "cancel":
                await asyncio.sleep(1000)

        received = listen(work)
        async with app:
            await (await work.enqueue("plain")).result()
            await (await work.enqueue("snooze")).result()
            cancelled = await work.enqueue("cancel")
            await asyncio.sleep(70)
            await cancelled.cancel()
            with pytest.raises(JobCancelled):
                await cancelled.result()
            await asyncio.sleep(1)
            assert [each[0] for each in received] == ["started", "completed"] + ["started"] * 2 + [
                "completed",
                "started",
            ]

    run_virtual(main)


def test_the_callback_of_a_dropped_job_gets_its_typed_error() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("1/h", name="hourly", on_limit="discard")])
        async def discarded() -> None: ...

        @app.task(limits=[StrictRate("1/h", name="patient", max_wait=60)])
        async def impatient() -> None: ...

        @app.task(limits=[StrictRate("1/h", name="expiring")])
        async def expiring() -> None: ...

        lists = [listen(task) for task in (discarded, impatient, expiring)]
        async with app:
            soon = to_datetime(clock.now() + 30 * SECOND)
            for task in (discarded, impatient, expiring):
                await (await task.enqueue()).result()
                with pytest.raises(JobFailed):
                    await (await task.using(expires_at=soon if task is expiring else None).enqueue()).result()
            await asyncio.sleep(1)
            kinds = [[type(each[1]) for each in received if each[0] == "error"] for received in lists]
            assert kinds == [[LimitRejected], [LimitRejected], [JobExpired]]
            assert lists[0][-1][1].limit == "hourly"

    run_virtual(main)


def test_misfit_payloads_and_unstorable_results_call_on_error() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        old, app = app_on(store, clock=clock), app_on(store, clock=clock)

        @old.task(name="work")
        async def work_of_old(number: str) -> None: ...

        @app.task
        async def work(number: int) -> None: ...

        @app.task
        async def unstorable() -> Any:
            return object()

        received, lost = listen(work), listen(unstorable)
        async with old.open():
            await work_of_old.enqueue("a word")
        async with app:
            await unstorable.enqueue()
            await asyncio.sleep(300)
            assert [each[0] for each in received] == ["retry"] * 7 + ["error"]
            assert isinstance(received[-1][1], PayloadError)
            assert [each[0] for each in lost] == ["started", "error"]
            assert isinstance(lost[-1][1], PayloadError)

    run_virtual(main)


def test_callbacks_of_a_poisonous_job_run_on_the_node_that_recovers_it() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def bomb() -> None:
            await asyncio.sleep(1000)

        received = listen(bomb)
        async with app.open():
            job = await bomb.enqueue()
            for _ in range(3):
                node = new_node(app)
                running = asyncio.ensure_future(node.run())
                await asyncio.sleep(40)
                # As good as dead: it beats no more and leaves nothing.
                setattr(node, "_storage", UnreachableStore(store))  # noqa: B010
                running.cancel()
                await asyncio.wait([running])
            survivor = new_node(app)
            running = asyncio.ensure_future(survivor.run())
            with pytest.raises(JobFailed, match="lost with their nodes"):
                await result_within(job, 300)
            await asyncio.sleep(1)
            assert isinstance(received[-1][1], JobFailed)
            survivor.stop()
            await running

    run_virtual(main)


class UnreachableStore:
    """A store that a dying node cannot reach any more."""

    def __init__(self, store: MemoryStorage) -> None:
        self._store = store

    async def leave(self, node: str) -> None:
        raise StorageUnavailable("gone")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_handler_that_cannot_be_made_for_its_callback_ends_only_the_callback() -> None:
    """The fault: a constructor that left the program, by SystemExit, ended the worker, again at each retry."""

    async def main(clock: VirtualClock) -> None:
        app, failed = Headgate("memory://", clock=clock), list[Event]()
        app.subscribe(failed.append, CallbackFailed)

        @app.handler(name="leaves", retry=RetryPolicy(retries=0))
        class Leaves(Handler[Order]):
            def __init__(self) -> None:
                raise SystemExit("no credentials")

            async def run(self, payload: Order) -> None: ...

            async def on_error(self, job: JobContext, error: BaseException) -> None: ...

        @app.task
        async def work() -> int:
            return 1

        async with app:
            job = await Leaves.enqueue(Order("acme"))
            with pytest.raises(JobFailed, match="no credentials"):
                await job.result()
            assert await (await work.enqueue()).result() == 1
        assert [event.error for event in failed] == ["SystemExit: no credentials"]  # type: ignore[attr-defined]

    run_virtual(main)


def test_a_callback_with_wrong_arguments_is_refused_at_declaration() -> None:
    app = Headgate("memory://")

    @app.task
    async def work() -> None: ...

    with pytest.raises(DeclarationError, match=r"@on_completed of task 'work': '<lambda>' gets \(job, result\)"):
        work.on_completed(lambda job: None)  # type: ignore[misc,arg-type]
    with pytest.raises(DeclarationError, match="needs a function"):
        work.on_error("log it")  # type: ignore[arg-type]


def test_callbacks_belong_to_the_task_however_it_was_enqueued() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> int:
            return 1

        later = work.using(delay=5)
        received = listen(work)
        async with app:
            await (await later.enqueue()).result()
            await asyncio.sleep(1)
            assert received == [("started", 1), ("completed", 1)]

    run_virtual(main)
