"""What `enqueue` promises: when a job runs, what it carries, and who knows whether it was stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate import (
    Headgate,
    HeadgateError,
    Job,
    JobState,
    RetryPolicy,
    StorageUnavailable,
    StrictRate,
    current_job,
)
from headgate.clock import SECOND, to_datetime
from headgate.jobs.batch import NewBatch
from headgate.jobs.event import Event
from headgate.jobs.job import NewJob
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.tasks.options import EnqueueOptions
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on

# ---------------------------------------------------------------------------------------------------------- when


@pytest.mark.nightly
def test_a_job_starts_after_its_delay_or_at_its_instant_and_an_instant_that_has_passed_is_now() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))
        began = clock.now()
        starts: dict[str, float] = {}

        @app.task
        async def work(name: str) -> None:
            starts[name] = (clock.now() - began) / SECOND
            assert current_job().waited_for < 0.01, "it waits from the instant on that it was to run at"

        def at(seconds: float, zone: timezone = UTC) -> Any:
            return to_datetime(began).astimezone(zone) + timedelta(seconds=seconds)

        async with app:
            await asyncio.sleep(100)
            jobs = {
                "in a while": await work.using(delay=30).enqueue("in a while"),
                "in a timedelta": await work.using(delay=timedelta(minutes=1)).enqueue("in a timedelta"),
                "then": await work.using(at=at(7300.5)).enqueue("then"),
                "elsewhere": await work.using(at=at(200, timezone(timedelta(hours=-7)))).enqueue("elsewhere"),
                "past": await work.using(at=at(-86_400)).enqueue("past"),
                "just past": await work.using(at=at(99.999)).enqueue("just past"),
                "no delay": await work.using(delay=0).enqueue("no delay"),
            }
            seen = {name: (await job.status()).is_scheduled for name, job in jobs.items()}
            await asyncio.sleep(8000)
            assert {(await job.status()).state for job in jobs.values()} == {JobState.SUCCEEDED}
        assert seen == {name: name in ("in a while", "in a timedelta", "then", "elsewhere") for name in jobs}
        assert starts == {
            **dict.fromkeys(("past", "just past", "no delay"), 100.0),
            "in a while": 130.0,
            "in a timedelta": 160.0,
            "elsewhere": 200.0,
            "then": 7300.5,
        }

    run_virtual(main)


def test_a_job_of_higher_priority_starts_first_without_limits() -> None:
    """The fault: whatever came first went first, however urgent what came later was."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)
        ran: list[int] = []

        @app.task(priority=3)
        async def work(number: int) -> None:
            ran.append(number)
            await asyncio.sleep(1)

        async with app.open():
            await work.enqueue(3)
            for priority in (0, 9, 5):
                await work.using(priority=priority).enqueue(priority)
            async with app:
                await asyncio.sleep(10)
        assert ran == [9, 5, 3, 0]

    run_virtual(main)


# ------------------------------------------------------------------------------------------------- what it carries


def test_ids_are_in_the_order_of_enqueueing() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work(number: int) -> None: ...

        async with app.open():
            ids: list[str] = []
            for number in range(20):
                ids.append((await work.enqueue(number)).id)
                ids += [job.id for job in await work.using(delay=60).enqueue_many([(number,)] * 10)]
                if number % 3 == 0:
                    await asyncio.sleep(0.001)
            assert ids == sorted(ids)
            assert len(set(ids)) == 220
            assert {len(id) for id in ids} == {13}

    run_virtual(main)


def test_id_and_headers_are_the_same_in_each_attempt_wherever_it_runs(tmp_path: Path) -> None:
    """An idempotency key towards the outside, and a tenant or a trace, are of the job and not of one try."""

    async def main(clock: VirtualClock) -> None:
        seen: list[tuple[str, int, Mapping[str, str]]] = []

        def made() -> Headgate:
            app = Headgate(f"sqlite:///{tmp_path}/jobs.db", clock=clock, synchronous="OFF")

            @app.task(retry=RetryPolicy(retries=2, delay=10))
            async def work() -> None:
                job = current_job()
                seen.append((job.id, job.attempt, dict(job.headers)))
                if job.attempt < 3:
                    raise ConnectionError

            return app

        first, second = made(), made()
        async with first:
            using = first.tasks["work"].using(headers={"tenant": "acme", "traceparent": "00-1"})
            job = await using.using(headers={"tenant": "globex"}).enqueue()
            await asyncio.sleep(1)
        async with second:
            await second.job(job.id).result()
        headers = {"tenant": "globex", "traceparent": "00-1"}
        assert seen == [(job.id, attempt, headers) for attempt in (1, 2, 3)]
        with pytest.raises(HeadgateError, match="only known inside a handler"):
            current_job()

    run_virtual(main)


def test_options_are_passed_to_using_and_enqueue_takes_only_the_arguments_of_the_task() -> None:
    assert set(EnqueueOptions.__annotations__) >= {
        "queue",
        "delay",
        "at",
        "priority",
        "unique_key",
        "on_conflict",
        "expires_at",
        "headers",
        "retry",
        "timeout",
        "audit",
        "connection",
    }

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def wait(delay: float, priority: str) -> tuple[float, str]:
            return delay, priority

        async with app:
            # Its own arguments, whatever they are called.
            job = await wait.enqueue(delay=1000, priority="high")
            assert await job.result(timeout=1) == (1000, "high")
            with pytest.raises(TypeError, match="queue"):
                await wait.enqueue(1, "low", queue="default")  # type: ignore[call-arg]

    run_virtual(main)


def test_events_of_a_job_have_neither_its_arguments_nor_its_result() -> None:
    """The fault: the arguments of every job were in every event and every log line, passwords among them."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=1, delay=1))
        received: list[Event] = []
        app.subscribe(received.append)

        @app.task(limits=[StrictRate("1/m", key="{tenant}")])
        async def login(tenant: str, password: str) -> str:
            if current_job().attempt == 1:
                raise ConnectionError("not yet")
            return f"token of {password}"

        async with app:
            jobs = await login.enqueue_many([("acme", "s3cret")] * 3)
            await jobs[1].cancel()
            await jobs[0].result()
            await jobs[2].result()
        kinds = {type(event).__name__ for event in received}
        assert kinds >= {"JobEnqueued", "JobStarted", "JobRetried", "JobThrottled", "JobFinished"}
        assert not [event for event in received if "s3cret" in repr(msgspec.to_builtins(event))]

    run_virtual(main)


# ---------------------------------------------------------------------------------------------- whether it is stored


def test_an_unavailable_store_raises_at_enqueue_and_nothing_is_stored() -> None:
    async def main(clock: VirtualClock) -> None:
        class Away(MemoryStorage):
            is_away = False

            async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
                if self.is_away:
                    raise StorageUnavailable("nobody answers")
                return await super().add(jobs, batches)

        store = Away(clock)
        app = app_on(store, clock=clock)
        ran: list[int] = []

        @app.task
        async def work(number: int) -> None:
            ran.append(number)

        async with app:
            store.is_away = True
            with pytest.raises(StorageUnavailable):
                await work.enqueue(1)
            with pytest.raises(StorageUnavailable):
                await work.enqueue_many([(2,), (3,)])
            store.is_away = False
            await asyncio.sleep(100)
            assert ran == []
            # The caller got the error and may try again.
            await (await work.enqueue(1)).result()
            assert ran == [1]

    run_virtual(main)


@pytest.mark.parametrize("steps", range(12))
def test_a_caller_that_is_cancelled_leaves_a_job_that_runs_or_none(steps: int, tmp_path: Path) -> None:
    """The fault: a job whose caller was cancelled at the wrong moment stayed in a state that only the next start of the
    process rescued."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate(f"sqlite:///{tmp_path}/jobs.db", clock=clock, synchronous="OFF")
        app.queue("narrow", max_backlog=2)
        ran: list[int] = []

        @app.task(queue="narrow", limits=[StrictRate("1/s", key="one")])
        async def work(number: int) -> None:
            ran.append(number)

        async with app:
            callers = [asyncio.ensure_future(work.enqueue(number)) for number in range(20)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for caller in callers[::2]:
                caller.cancel()
            handles = await asyncio.gather(*callers, return_exceptions=True)
            await asyncio.sleep(60)
            (counts,) = await app.admin.counts()
            assert (counts.waiting, counts.running, counts.failed, counts.cancelled) == (0, 0, 0, 0)
            assert counts.succeeded == len(ran) == len(set(ran))
            got_a_handle = {number for number, got in enumerate(handles) if isinstance(got, Job)}
            assert got_a_handle <= set(ran)
            assert set(range(1, 20, 2)) <= set(ran)
            states = {job.state for job in await app.admin.jobs(count=100)}
            assert states == {JobState.SUCCEEDED}

    run_virtual(main)
