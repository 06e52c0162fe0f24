"""Whole lives of batches: side by side, waited for together, and under one permit where they hold one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from headgate import (
    Batch,
    BatchStatus,
    Concurrency,
    DeclarationError,
    Headgate,
    Job,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobState,
    Mutex,
    NotOpen,
    RateLimit,
    RetryPolicy,
    Task,
    batch,
    chain,
    current_job,
)
from headgate.client.plan import BatchSteps
from headgate.clock import SECOND
from headgate.jobs.job import JobRecord, On
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.tasks.call import Call
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, client_of, store_of
from tests.until import result_within


def test_a_batch_is_final_when_its_last_job_is() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work(seconds: int) -> int:
            await asyncio.sleep(seconds)
            return seconds

        @app.task
        async def report() -> list[int]:
            leader = current_job().follows
            assert leader is not None
            status = await app.batch(leader).status()
            return [status.succeeded, status.pending]

        async with app:
            stored = await batch([work.call(3), work.call(1), work.call(2)]).then(report.call()).enqueue()
            status = await stored.status()
            assert (status.total, status.pending, status.state, status.finished_at) == (3, 3, None, None)
            assert await result_within(stored) == [3, 1, 2]
            status = await stored.wait()
            assert (status.pending, status.succeeded, status.state) == (0, 3, JobState.SUCCEEDED)
            assert await result_within(stored.then[0]) == [3, 0]

    run_virtual(main)


def test_the_results_of_many_jobs_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: each job of a batch was a read of its own, a minute and more for 100,000 of them."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work(number: int) -> int:
            return number

        async with app:
            stored = await batch([work.call(number) for number in range(250)]).enqueue()
            await stored.wait()
            read, final = list[int](), store_of(app).final

            async def counted(ids: Sequence[str]) -> Sequence[JobRecord]:
                read.append(len(ids))
                return await final(ids)

            monkeypatch.setattr(store_of(app), "final", counted)
            assert await stored.result() == list(range(250))
            assert read == [100, 100, 50]

    run_virtual(main)


def test_a_batch_whose_id_was_kept_gives_its_results_and_is_cancelled() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work(seconds: int) -> int:
            await asyncio.sleep(seconds)
            return seconds

        async with app:
            done = await batch([work.call(3), work.call(1), work.call(2)]).enqueue()
            assert await result_within(app.batch(done.id)) == [3, 1, 2]
            left = await batch([work.call(1), work.call(90), work.using(delay=60).call(1)]).then(work.call(1)).enqueue()
            await asyncio.sleep(2)
            assert [status.id for status in await app.admin.batches(pending_only=True)] == [left.id]
            assert await app.batch(left.id).cancel() == 3
            status = await left.wait(timeout=10)
            assert (status.succeeded, status.cancelled) == (1, 2)
            with pytest.raises(JobCancelled):
                await result_within(left.then[0])
            assert [status.id for status in await app.admin.batches()] == [left.id, done.id]
            assert await app.batch(left.id).cancel() == 0

    run_virtual(main)


def test_jobs_of_a_batch_can_read_its_id() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> str | None:
            return current_job().batch

        async with app:
            stored = await batch([work.call(), work.call()]).enqueue()
            assert await result_within(stored) == [stored.id] * 2
            assert await result_within(await work.enqueue()) is None

    run_virtual(main)


@pytest.mark.parametrize(("on", "runs"), [("success", False), ("final", True)])
def test_then_with_any_outcome_runs_after_a_failure(on: str, runs: bool) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[bool] = []

        @app.task(retry=RetryPolicy(retries=0))
        async def work(fails: bool) -> None:
            if fails:
                raise ValueError

        @app.task
        async def report() -> None:
            ran.append(True)

        async with app:
            plan = batch([work.call(True), work.call(False)]).then(report.call(), on=on)  # type: ignore[arg-type]
            stored = await plan.enqueue()
            assert (await stored.wait(timeout=10)).state is JobState.FAILED
            with pytest.raises(JobFailed):
                await stored.result()
            if runs:
                await result_within(stored.then[0])
            else:
                with pytest.raises(JobCancelled):
                    await result_within(stored.then[0])
            assert bool(ran) is runs

    run_virtual(main)


def test_batches_and_chains_follow_each_other() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        received: list[str] = []

        @app.task
        async def step(name: str) -> str:
            received.append(name)
            return name

        async with app:
            stored = await chain(
                step.call("a"),
                batch([chain(step.call("b1"), step.call("b2")), step.call("b3")]),
                batch([]),
                batch([step.call("c")]).then(step.call("d")),
                batch([step.call("e1"), step.call("e2")]),
            ).enqueue()
            assert await result_within(stored) == ["e1", "e2"]
            assert len(stored.jobs) == 8
        assert received[0] == "a"
        assert set(received[1:4]) == {"b1", "b2", "b3"}
        assert received.index("b1") < received.index("b2")
        assert received[4:6] == ["c", "d"]
        assert set(received[6:]) == {"e1", "e2"}

    run_virtual(main)


def test_a_follower_of_an_empty_batch_runs_immediately() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def report() -> str:
            return "nothing"

        async with app:
            stored = await batch([]).then(report.call()).enqueue()
            assert (await stored.wait(timeout=1)).state is JobState.SUCCEEDED
            assert await result_within(stored.then[0]) == "nothing"

    run_virtual(main)


def test_what_follows_an_empty_batch_ends_as_after_one_whose_jobs_succeed() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(retries=0))
        async def work(is_wrong: bool = False) -> None:
            if is_wrong:
                raise ValueError("as planned")

        async def end_of_step(is_wrong: bool, needs: On, calls: Sequence[Call[None] | BatchSteps], on: On) -> JobState:
            step = work.call()
            stored = await batch([work.call(is_wrong)]).then(batch(calls).then(step, on=on), on=needs).enqueue()
            (after,) = stored.then
            assert isinstance(after, Batch)
            (last,) = after.then
            assert isinstance(last, Job)
            await asyncio.sleep(5)
            return (await last.status()).state

        async with app:
            outcomes: tuple[On, ...] = ("success", "failure", "final")
            for is_wrong, needs, on in product((False, True), outcomes, outcomes):
                expected = await end_of_step(is_wrong, needs, [work.call()], on)
                for empty in ([], [batch([]), batch([batch([])])]):
                    assert await end_of_step(is_wrong, needs, empty, on) is expected, (is_wrong, needs, on)

    run_virtual(main)


def test_a_batch_is_cancelled_with_its_followers() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        begun = asyncio.Event()

        @app.task
        async def work() -> None:
            begun.set()
            await asyncio.sleep(1000)

        async with app:
            stored = await batch([work.call(), work.using(delay=60).call()]).then(work.call(), on="final").enqueue()
            await begun.wait()
            assert await stored.cancel() == 3
            assert (await stored.wait(timeout=10)).cancelled == 2
            with pytest.raises(JobCancelled):
                await stored.then[0].result(timeout=1)

    run_virtual(main)


def test_a_batch_that_is_not_final_before_the_timeout_continues() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None: ...

        async with app.open():
            stored = await batch([work.call()]).enqueue()
            with pytest.raises(TimeoutError, match="it continues to run"):
                await stored.wait(timeout=5)
            with pytest.raises(JobNotFound):
                await app.batch("nothing").wait(timeout=5)

    run_virtual(main)


def test_a_job_that_is_retried_while_results_are_read_does_not_extend_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: result() waited for that job without an end."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(retries=0))
        async def fail() -> None:
            raise ValueError("once more")

        async with app:
            stored = await batch([fail.call()]).enqueue()
            client = client_of(app)
            wait = client.wait_for_batch

            async def wait_and_retry(batch_id: str, timeout: float | None) -> BatchStatus:
                status = await wait(batch_id, timeout)
                await app.admin.queues.pause("default")
                await app.admin.retry(stored.jobs[0].id)
                return status

            monkeypatch.setattr(client, "wait_for_batch", wait_and_retry)
            began = clock.monotonic()
            with pytest.raises(TimeoutError, match="was not final within"):
                await asyncio.wait_for(stored.result(timeout=5), 600)
            assert 5 <= (clock.monotonic() - began) / SECOND < 6

    run_virtual(main)


@pytest.mark.parametrize("place", ["memory", "file"])
def test_waiting_for_a_batch_raises_when_the_app_closes(place: str, tmp_path: Path) -> None:
    """The fault: a store that was closed looked like one that was away, and whoever waited for a batch waited for
    ever."""

    async def main(clock: VirtualClock) -> None:
        url = "memory://" if place == "memory" else f"sqlite:///{tmp_path}/jobs.db"
        app = Headgate(url, clock=clock, synchronous="OFF")

        @app.task
        async def work() -> None: ...

        async with app.open():
            stored = await batch([work.call()]).enqueue()
            waiting = asyncio.create_task(stored.wait())
            await asyncio.sleep(10)
        closed = clock.monotonic()
        with pytest.raises(NotOpen):
            await asyncio.wait_for(waiting, 60)
        assert clock.monotonic() - closed <= SECOND
        async with app:
            assert (await stored.wait()).succeeded == 1

    run_virtual(main)


def test_an_invalid_batch_is_refused_when_it_is_created() -> None:
    app = Headgate("memory://")

    @app.task
    async def work(tenant: str = "") -> None: ...

    plan = batch([work.call()])
    with pytest.raises(DeclarationError, match="must be 'success', 'failure' or 'final'"):
        plan.then(work.call(), on="any")  # type: ignore[arg-type]  # what somebody writes by mistake
    for name in ("", "x" * 201, "a\0b"):
        with pytest.raises(DeclarationError, match="must be text, 1 to 200 characters"):
            batch([work.call()], name=name)
    with pytest.raises(DeclarationError, match="a batch with a batch in it"):
        batch([plan], limits=[Mutex("api")])
    with pytest.raises(DeclarationError, match="rates count starts"):
        batch([work.call()], limits=[RateLimit("1/s")])  # type: ignore[list-item]  # what somebody writes by mistake
    with pytest.raises(DeclarationError, match="has no name"):
        batch([work.call()], limits=[Concurrency(2)])

    async def main(clock: VirtualClock) -> None:
        async with app.open():
            with pytest.raises(DeclarationError, match="this batch has no calls"):
                await batch([]).enqueue()
            with pytest.raises(DeclarationError, match="make a batch of each"):
                await batch([work.call("a"), work.call("b")], limits=[Mutex("api:{tenant}")]).enqueue()
            with pytest.raises(DeclarationError, match="is not declared"):
                await batch([work.call("a")], limits=["api"]).enqueue()
            assert await app.admin.jobs() == []

    run_virtual(main)


# ------------------------------------------------------------------------------------------- under one permit


def test_batches_that_hold_a_mutex_run_one_after_the_other() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        running: list[str | None] = []
        order: list[str | None] = []

        @app.task(retry=RetryPolicy(retries=5, base=1))
        async def work(number: int) -> None:
            own = current_job().batch
            running.append(own)
            order.append(own)
            assert set(running) == {own}
            await asyncio.sleep(2)
            running.remove(own)
            if number == 1 and current_job().attempt < 3:
                raise ValueError

        async with app:
            stored = [
                await batch([work.call(number) for number in range(3)], limits=[Mutex("orders-api")]).enqueue()
                for _ in range(3)
            ]
            for each in stored:
                assert (await each.wait(timeout=1000)).succeeded == 3
        assert list(dict.fromkeys(order)) == [each.id for each in stored]
        assert order == [each.id for each in stored for _ in range(5)]
        assert len(order) == 15

    run_virtual(main)


def test_a_job_on_the_mutex_of_a_batch_waits_until_that_is_final() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        received: list[str] = []

        @app.task
        async def member(name: str) -> None:
            await asyncio.sleep(5)
            received.append(name)

        @app.task(limits=[Mutex("orders-api")])
        async def single() -> None:
            received.append("single")

        async with app:
            later = member.using(delay=20)
            stored = await batch([member.call("a"), later.call("b")], limits=[Mutex("orders-api")]).enqueue()
            await asyncio.sleep(1)
            job = await single.enqueue()
            status = await job.status()
            assert status.waits_for == ("mutex", "orders-api")
            await result_within(job, 100)
            assert (await stored.status()).succeeded == 2
        assert received == ["a", "b", "single"]

    run_virtual(main)


def test_a_batch_holds_a_limit_of_its_own_tasks_once() -> None:
    """The fault: a job that needs a mutex by itself, and once more through its batch, waits for itself."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[Mutex("orders-api"), RateLimit("100/s")])
        async def work(number: int) -> int:
            return number

        async with app:
            stored = await batch([work.call(1), work.call(2)], limits=[Mutex("orders-api")]).enqueue()
            assert await result_within(stored) == [1, 2]

    run_virtual(main)


def test_a_batch_holds_one_place_of_a_named_concurrency() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.limit("machines", Concurrency(2, key="{zone}"))
        running: dict[str | None, int] = {}
        most = 0

        @app.task
        async def work(zone: str) -> None:
            nonlocal most
            own = current_job().batch
            running[own] = running.get(own, 0) + 1
            most = max(most, len(running))
            await asyncio.sleep(3)
            running[own] -= 1
            if not running[own]:
                del running[own]

        async with app:
            stored = [await batch([work.call("a")] * 4, limits=["machines"]).enqueue() for _ in range(4)]
            for each in stored:
                await each.wait(timeout=100)
        assert most == 2

    run_virtual(main)


def test_a_batch_may_hold_a_limit_that_was_declared_while_the_node_runs() -> None:
    """The fault: its jobs waited until the program was started again. As in a notebook."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work(number: int) -> int:
            return number

        async with app:
            assert await (await work.enqueue(0)).result() == 0
            app.limit("machines", Concurrency(1))
            stored = await batch([work.call(1), work.call(2)], limits=["machines"]).enqueue()
            assert await result_within(stored) == [1, 2]

    run_virtual(main)


def test_a_deploy_does_not_take_permits_from_a_batch() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = MemoryStorage(clock)

        def release(*limits: RateLimit) -> tuple[Headgate, Task[[int], None]]:
            app = app_on(storage, clock=clock)

            @app.task(name="work", limits=limits)
            async def work(number: int) -> None:
                await asyncio.sleep(1)

            return app, work

        before, old = release()
        async with before:
            await asyncio.sleep(1)
        async with before.open():
            stored = await batch([old.using(delay=30).call(n) for n in (1, 2)], limits=[Mutex("orders-api")]).enqueue()
        after, _ = release(RateLimit("1/s", burst=1))
        async with after:
            await after.batch(stored.id).wait(timeout=300)
            (job, _) = stored.jobs
            details = await after.admin.job(job.id)
            assert {ref.limit for ref in details.record.buckets} == {"mutex", "work:rate"}
            assert list(await storage.check()) == []

    run_virtual(main)
