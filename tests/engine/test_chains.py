"""Whole lives of chains: what follows a job is there when that ends, and only then."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from headgate import (
    Chain,
    DeclarationError,
    Headgate,
    Job,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobState,
    LeaderNotSucceeded,
    RetryPolicy,
    StrictRate,
    batch,
    chain,
    current_job,
)
from headgate.admin import BulkResult, JobQuery, bulk
from headgate.jobs.event import Event, JobEnqueued
from headgate.storage.store import Store
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.conftest import MakeApp
from tests.engine.faulty_storage import FaultyStorage
from tests.internals import app_on
from tests.until import becomes, result_within


def test_the_steps_of_a_chain_run_one_after_the_other() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        received: list[str] = []

        @app.task
        async def step(name: str) -> str:
            received.append(f"{name} begins")
            await asyncio.sleep(1)
            received.append(f"{name} ends")
            return name

        async with app:
            stored = await chain(step.call("a"), step.call("b"), step.call("c")).enqueue()
            assert len(stored.jobs) == 3
            assert (await stored.jobs[1].status()).is_blocked
            assert (await stored.jobs[1].status()).follows == stored.jobs[0].id
            assert await result_within(stored, 60) == "c"
        assert received == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]

    run_virtual(main)


def test_a_step_reads_the_result_of_the_one_before_it() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def one() -> int:
            assert current_job().follows is None
            return 1

        @app.task
        async def add(more: int) -> int:
            leader = current_job().follows
            assert leader is not None
            before: int = await app.job(leader).result()
            return before + more

        async with app:
            assert await result_within(await chain(one.call(), add.call(10), add.call(100)).enqueue()) == 111

    run_virtual(main)


def test_a_step_waits_for_all_the_retries_of_the_one_before_it() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        tries: list[int] = []

        @app.task(retry=RetryPolicy(retries=5, base=1, jitter=False))
        async def shaky() -> None:
            tries.append(current_job().attempt)
            if len(tries) < 4:
                raise ValueError

        @app.task
        async def after() -> int:
            return len(tries)

        async with app:
            assert await result_within(await chain(shaky.call(), after.call()).enqueue(), 100) == 4

    run_virtual(main)


def test_a_failed_step_cancels_the_rest_with_the_reason() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(retries=0))
        async def fail() -> None:
            raise ValueError("no")

        @app.task
        async def after() -> None:
            raise AssertionError

        async with app:
            stored = await chain(fail.call(), after.call(), after.call()).enqueue()
            with pytest.raises(JobFailed):
                await result_within(stored.jobs[0])
            with pytest.raises(JobCancelled) as cancelled:
                await result_within(stored)
            assert isinstance(cancelled.value.__cause__, LeaderNotSucceeded)
            assert stored.jobs[1].id in str(cancelled.value.__cause__)
            explained = await app.admin.explain(stored.jobs[1].id)
            assert f"it follows {stored.jobs[0].id}, which failed" in explained.reason

    run_virtual(main)


def test_a_retry_of_many_never_runs_a_step_whose_leader_has_failed() -> None:
    """The fault: `retry_many(task="ship")` shipped what nobody had paid for, and so did what its error asked for."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        is_broken = True
        done: list[str] = []

        @app.task(retry=RetryPolicy(retries=0))
        async def charge() -> None:
            if is_broken:
                raise ValueError("declined")
            done.append("charge")

        @app.task
        async def ship() -> None:
            done.append("ship")

        @app.task
        async def mail() -> None:
            done.append("mail")

        async with app:
            stored = await chain(charge.call(), ship.call(), mail.call()).enqueue()
            with pytest.raises(JobCancelled) as cancelled:
                await result_within(stored)
            assert f"because {stored.jobs[0].id} failed with ValueError; retry" in str(cancelled.value.__cause__)
            result = await app.admin.retry_many(JobQuery(task="ship"))
            assert (result.changed, list(result.refused.values())) == (0, [1])
            is_broken = False
            await app.admin.retry_many(JobQuery())
            await result_within(stored)
        assert done == ["charge", "ship", "mail"]

    run_virtual(main)


def test_a_retry_of_many_changes_jobs_that_concern_no_others_together(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[str] = []

    async def retry(store: Store, job_id: str, **options: Any) -> JobState | None:
        alone.append(job_id)
        return await retry_one(store, job_id, **options)

    retry_one = Store.retry
    monkeypatch.setattr(Store, "retry", retry)

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None: ...

        async with app.open():
            jobs = await work.enqueue_many([()] * 5)
            unique = await work.using(unique_key="acme").enqueue()
            await app.admin.cancel_many(JobQuery())
            rival = await work.using(unique_key="acme").enqueue()
            first = await app.admin.retry_many(JobQuery(), most=3)
            assert (first.changed, first.is_cut, alone) == (3, True, [])
            rest = await app.admin.retry_many(JobQuery(), most=100)
            assert (rest.changed, rest.is_cut) == (2, False)
            assert list(rest.refused.values()) == [1]
            assert alone == [unique.id]
            states = {job.id: (await job.status()).state for job in [*jobs, unique, rival]}
        assert [id for id, state in states.items() if state is not JobState.WAITING] == [unique.id]

    run_virtual(main)


async def test_a_change_of_many_counts_the_jobs_that_change_with_what_they_follow(make_app: MakeApp) -> None:
    """The fault: of 90 jobs in chains, which were all cancelled, 60 were refused as "changed meanwhile"."""
    app = make_app()

    @app.task
    async def work() -> None: ...

    async with app.open():
        for _ in range(30):
            await chain(work.call(), work.call(), work.call()).enqueue()
        for change in (app.admin.cancel_many, app.admin.retry_many, app.admin.cancel_many, app.admin.retry_many):
            result = await change(JobQuery())
            assert (result.changed, result.refused) == (90, {})
        purged = await app.admin.queues.purge("default")
        assert (purged.changed, purged.refused) == (90, {})
        assert (await app.admin.audit_log(kind="queue"))[0].detail == "90 waiting jobs cancelled"


async def test_a_change_of_many_counts_what_it_would_have_changed(make_app: MakeApp) -> None:
    """The fault: of a chain of 1,000 jobs it counted 960, as those that end with their leader were listed no more."""
    app = make_app()

    @app.task
    async def work() -> None: ...

    async with app.open():
        jobs = [*(await chain(*(work.call() for _ in range(250))).enqueue()).jobs]
        leader = work.call()
        jobs += (await batch([leader, *(work.call().after(leader) for _ in range(250))]).enqueue()).jobs
        admin, ids = app.admin, [job.id for job in jobs]
        for query in (JobQuery(), ids):
            for verb in (admin.cancel_many, admin.retry_many):
                counted = await verb(query, dry_run=True)
                assert (counted.matched, counted.changed) == (501, 501)
                assert await verb(query) == replace(counted, is_dry_run=False)
        assert await admin.queues.purge("default") == replace(counted, is_dry_run=False)


async def test_jobs_beyond_those_that_are_chosen_at_once_are_changed_next(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHOSEN_AT_ONCE", 200)
    app = make_app()

    @app.task
    async def work() -> None: ...

    async with app.open():
        await work.enqueue_many([()] * 450)
        assert (await app.admin.cancel_many(JobQuery(), most=420)).changed == 420
        assert (await app.admin.cancel_many(JobQuery())).changed == 30


async def test_changes_of_many_at_the_same_time_count_each_job_once(make_app: MakeApp) -> None:
    """The fault: two cancellations of 300 jobs at once each counted 300, and so did the other verbs but `purge`."""
    app = make_app()

    @app.task
    async def work() -> None: ...

    async with app.open(), make_app().open() as other:
        later, admins = work.using(delay=3600), (app.admin, other.admin)
        await later.enqueue_many([()] * 60)
        grouped = await batch([later.call() for _ in range(30)]).enqueue()

        async def count(changes: Sequence[Awaitable[BulkResult]]) -> int:
            results = await asyncio.gather(*changes)
            assert {reason for each in results for reason in each.refused} <= {"changed meanwhile"}
            return sum(each.changed for each in results)

        assert await count([each.run_many_now(JobQuery()) for each in admins]) == 90
        assert await count([each.cancel_batch(grouped.id) for each in admins]) == 30
        assert await count([each.queues.purge("default") for each in admins]) == 60
        assert await count([each.retry_many(JobQuery()) for each in admins]) == 90
        for _ in range(10):
            await chain(later.call(), later.call(), later.call()).enqueue()
        assert await count([each.cancel_many(JobQuery()) for each in admins]) == 120
        assert await count([each.purge() for each in admins]) == 120


async def test_requests_of_many_at_the_same_time_count_and_record_each_job_once(make_app: MakeApp) -> None:
    """The fault: two cancellations of 30 running jobs each counted and recorded all of them; so did new times."""
    app, ended = make_app(), asyncio.Event()

    @app.task
    async def work() -> None:
        while not ended.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ended.wait()

    async with app, make_app().open() as other:
        admins = (app.admin.by("ada"), other.admin.by("bob"))

        async def change(changes: Sequence[Awaitable[BulkResult]], jobs: Sequence[Job[None]]) -> set[str]:
            results = await asyncio.gather(*changes)
            assert sum(each.changed for each in results) == len(jobs)
            for job in jobs:
                assert len(await app.admin.audit_log(subject=job.id)) == 1
            return {reason for each in results for reason in each.refused}

        waiting = await work.using(delay=3600).enqueue_many([()] * 30)
        at = datetime(2100, 1, 1, tzinfo=UTC)
        assert await change([each.reschedule_many(JobQuery(), at=at, priority=3) for each in admins], waiting) == set()
        running = await work.enqueue_many([()] * 30)
        try:
            await becomes(lambda: app.admin.count(state=JobState.RUNNING), 30)
            query = JobQuery(state=JobState.RUNNING)
            reasons = await change([each.cancel_many(query) for each in admins], running)
            assert reasons <= {"its cancellation was already requested"}
            assert await running[0].cancel(), "it is asked to end already"
            assert len(await app.admin.audit_log(subject=running[0].id)) == 1
        finally:
            ended.set()


def test_the_steps_of_a_retried_chain_do_not_expire() -> None:
    """The fault: they kept their time to expire, unlike the job that was retried, and so expired at once."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        is_broken = True

        @app.task(retry=RetryPolicy(retries=0), expires_in=60)
        async def step() -> str:
            if is_broken:
                raise ValueError
            return "done"

        async with app:
            stored = await chain(step.call(), step.call(), step.call()).enqueue()
            with pytest.raises(JobCancelled):
                await result_within(stored)
            await asyncio.sleep(3600)
            is_broken = False
            await app.admin.retry(stored.jobs[0].id)
            assert await result_within(stored) == "done"

    run_virtual(main)


def test_a_retried_step_restores_the_rest_of_its_chain() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        is_broken = True

        @app.task(retry=RetryPolicy(retries=0))
        async def step() -> str:
            if is_broken:
                raise ValueError
            return "done"

        async with app:
            stored = await chain(step.call(), step.call(), step.call()).enqueue()
            with pytest.raises(JobCancelled):
                await result_within(stored)
            is_broken = False
            await app.admin.retry(stored.jobs[0].id)
            assert await result_within(stored) == "done"

    run_virtual(main)


def test_a_chain_is_explained_while_it_waits() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def step() -> None: ...

        async with app.open():
            stored = await chain(step.call(), step.call()).enqueue()
            reason = (await app.admin.explain(stored.jobs[1].id)).reason
            assert reason == f"it follows {stored.jobs[0].id} and is blocked until that is final"

    run_virtual(main)


def test_the_rest_of_a_chain_can_be_cancelled() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        begun = asyncio.Event()

        @app.task
        async def quick() -> None: ...

        @app.task
        async def slow() -> None:
            begun.set()
            await asyncio.sleep(1000)

        async with app:
            stored = await chain(quick.call(), slow.call(), quick.call()).enqueue()
            await begun.wait()
            assert await stored.cancel() == 2
            with pytest.raises(JobCancelled):
                await result_within(stored.jobs[1])
            states = [(await job.status()).state for job in stored.jobs]
            assert states == [JobState.SUCCEEDED, JobState.CANCELLED, JobState.CANCELLED]

    run_virtual(main)


def test_a_chain_is_cancelled_with_the_jobs_that_were_added_to_its_batches() -> None:
    """The fault: these jobs ran on, and what was after them waited."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None: ...

        async with app.open():
            inner = chain(work.call(), batch([work.call()]))
            stored = await batch([work.call()]).then(chain(batch([inner, work.call()]), work.call())).enqueue()
            (after,) = stored.then
            assert isinstance(after, Chain)
            batches = [each.id for each in await app.admin.batches() if each.id != stored.id]
            assert len(batches) == 2
            added = [job for id in batches for job in await app.batch(id).add([chain(work.call(), work.call())])]
            beside = [*stored.jobs, *await stored.add([work.call()])]
            assert await after.cancel() == 8
            assert {(await job.status()).state for job in [*after.jobs, *added]} == {JobState.CANCELLED}
            assert {(await job.status()).state for job in beside} == {JobState.WAITING}
            assert await after.cancel() == 0

    run_virtual(main)


def test_a_chain_is_cancelled_after_its_first_job_has_been_pruned() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retention="1m")

        @app.task
        async def work() -> None: ...

        async with app:
            stored = await chain(work.call(), work.using(delay="1h").call()).enqueue()
            await asyncio.sleep(200)
            with pytest.raises(JobNotFound):
                await stored.jobs[0].status()
            assert await stored.cancel() == 1

    run_virtual(main)


async def test_a_loop_makes_a_chain_of_any_length() -> None:
    """The fault: a RecursionError from 500 steps on."""
    app = Headgate("memory://")

    @app.task
    async def step(place: int) -> None: ...

    async with app.open():
        first = plan = chain(step.call(0))
        for place in range(1, 3000):
            plan = chain(plan, step.call(place))
        jobs = (await plan.enqueue()).jobs
        follows = [(await job.status()).follows for job in jobs]
        assert follows == [None, *(job.id for job in jobs[:-1])]
        both = await batch([chain(first, step.call(1)), step.call(2).after(first)]).enqueue()
        assert (await both.jobs[2].status()).follows == both.jobs[0].id
        # Later also if the loop began with the last step.
        last = plan
        for place in range(3000):
            plan = chain(step.call(place), plan)
        both = await batch([plan, step.call(1).after(last)]).enqueue()
        assert (await both.jobs[-1].status()).follows == both.jobs[-2].id


def test_calls_keep_the_options_they_were_made_with() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("slow")
        started: list[float] = []

        @app.task
        async def step() -> None:
            started.append(clock.now() / 1_000_000)

        async with app:
            before = clock.now() / 1_000_000
            later = step.using(delay=60, queue="slow", priority=3, headers={"tenant": "acme"})
            stored = await chain(step.call(), later.call()).enqueue()
            await result_within(stored, 100)
            status = await stored.jobs[1].status()
            assert (status.queue, status.priority) == ("slow", 3)
            assert started[1] - before == pytest.approx(60, abs=0.1)

    run_virtual(main)


def test_limits_hold_for_the_steps_of_many_chains() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[int] = []

        @app.task(limits=[StrictRate("2/s", margin=0)])
        async def step() -> None:
            starts.append(clock.now())

        async with app:
            stored = [await chain(*(step.call() for _ in range(5))).enqueue() for _ in range(4)]
            for each in stored:
                await result_within(each, 60)
        assert len(starts) == 20
        assert all(later - earlier >= 1_000_000 for earlier, later in zip(starts, starts[2:], strict=False))

    run_virtual(main)


def test_a_chain_publishes_an_event_for_each_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        received: list[Event] = []
        app.subscribe(received.append, JobEnqueued)

        @app.task
        async def step() -> None: ...

        async with app.open():
            stored = await chain(step.call(), batch([step.call(), step.call()])).enqueue()
            await asyncio.sleep(1)
        assert [event.job_id for event in received if isinstance(event, JobEnqueued)] == [job.id for job in stored.jobs]

    run_virtual(main)


def test_an_invalid_chain_is_refused_when_it_is_created() -> None:
    one, other = Headgate("memory://"), Headgate("memory://")

    @one.task
    async def here() -> None: ...

    @other.task
    async def there() -> None: ...

    with pytest.raises(DeclarationError, match="at least one step"):
        chain()
    with pytest.raises(DeclarationError, match=r"write task\.call"):
        chain(here)  # type: ignore[call-overload]  # what somebody writes by mistake
    with pytest.raises(DeclarationError, match="leave the key out"):
        chain(here.using(unique_key="one").call())

    async def main(clock: VirtualClock) -> None:
        async with one.open(), other.open():
            with pytest.raises(DeclarationError, match="several apps"):
                await chain(here.call(), there.call()).enqueue()
            assert await one.admin.jobs() == []

    run_virtual(main)


def test_a_chain_is_enqueued_and_followed_from_a_thread() -> None:
    app = Headgate("memory://")

    @app.task
    async def step(name: str) -> str:
        return name

    async def main() -> None:
        async with app:
            results: list[object] = []

            def work() -> None:
                stored = chain(step.call("a"), step.call("b")).sync.enqueue()
                results.append(stored.result(timeout=10))
                members = batch([step.call("c"), step.call("d")]).sync.enqueue()
                results.append(members.result(timeout=10))
                results.append(members.status().succeeded)

            thread = threading.Thread(target=work)
            thread.start()
            await asyncio.to_thread(thread.join)
            assert results == ["b", ["c", "d"], 2]

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(5))
def test_no_step_is_lost_when_connections_of_nodes_fail(seed: int, tmp_path: Path) -> None:
    """Endings are repeated, refused and doubled; a chain continues after each, exactly once a step."""

    from headgate.storage.sqlite.memory import MemoryStorage
    from tests.engine.faulty_storage import Faults, History

    async def main(clock: VirtualClock) -> None:
        random = Random(seed)
        shared = MemoryStorage(clock)
        faults = Faults(before=0.1, after=0.1, delay=0.2)
        history = History()
        succeeded: list[str] = []

        def node(number: int) -> Headgate:
            storage = FaultyStorage(f"n{number}", shared, faults, random, history)
            app = app_on(cast(Store, storage), clock=clock, random=random)

            @app.task(retry=RetryPolicy(retries=50, base=0.1), name="step")
            async def step(name: str) -> None:
                await asyncio.sleep(random.random())
                if random.random() < 0.3:
                    raise ValueError
                succeeded.append(name)

            return app

        one, two = node(1), node(2)
        enqueuer = app_on(shared, clock=clock, random=random)

        @enqueuer.task(name="step")
        async def step(name: str) -> None: ...

        async with enqueuer.open(), one, two:
            chains = [await chain(*(step.call(f"{each}.{place}") for place in range(8))).enqueue() for each in range(5)]
            for stored in chains:
                await result_within(stored, 3600)
            assert list(await shared.check()) == []
        for each in range(5):
            steps = [name for name in dict.fromkeys(succeeded) if name.startswith(f"{each}.")]
            assert steps == [f"{each}.{place}" for place in range(8)]

    run_virtual(main)
