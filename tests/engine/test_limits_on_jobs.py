"""What limits do to jobs: permits, terms, live changes, promises; on the engine, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from headgate import (
    Concurrency,
    DeclarationError,
    DynamicWindow,
    FixedWindow,
    Headgate,
    JobCancelled,
    JobContext,
    JobFailed,
    JobState,
    LimitInUse,
    LimitRejected,
    Mutex,
    PayloadError,
    RateLimit,
    RateLimited,
    RetryPolicy,
    SlidingWindow,
    Snooze,
    StrictRate,
    UnknownLimit,
    batch,
    chain,
    current_job,
    header,
)
from headgate.clock import SECOND
from headgate.errors import CostExceedsLimit, GateClosed, HeadgateError, IllegalTransition
from headgate.jobs.event import Event, JobEnqueued, JobFailure, JobFinished, JobNotMigrated
from headgate.limits.limit import Limit
from headgate.limits.standalone.limiter import Limiter
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.bad_stores import FailingLeaveStorage
from tests.internals import app_on, new_node
from tests.until import result_within

ONCE = RetryPolicy(retries=1, base=1, jitter=False)


# ------------------------------------------------------------------------------------------------------- permits


@pytest.mark.nightly
def test_ten_thousand_jobs_behind_one_mutex_run_one_at_a_time_first_come_first_served() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        order: list[int] = []
        running = 0

        @app.task(limits=[Mutex("orders")])
        async def work(number: int) -> None:
            nonlocal running
            running += 1
            assert running == 1
            order.append(number)
            await asyncio.sleep(0.001)
            running -= 1

        async with app:
            jobs = await work.enqueue_many([(number,) for number in range(10_000)])
            await jobs[-1].result()
        assert order == list(range(10_000))
        # The next one starts when the one before has ended, and not a poll later.
        assert clock.monotonic() / SECOND < 10_000 * 0.0011 + 5

    run_virtual(main)


def test_a_mutex_excludes_every_task_that_names_the_same_resource() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        running: Counter[int] = Counter()
        highest: Counter[int] = Counter()

        async def hold(order: int) -> None:
            running[order] += 1
            highest[order] = max(highest[order], running[order])
            await asyncio.sleep(1)
            running[order] -= 1

        @app.task(limits=[Mutex("order:{order}")])
        async def charge(order: int) -> None:
            await hold(order)

        @app.task(limits=[Mutex("order:{0}")])
        async def ship(order: int) -> None:
            await hold(order)

        async with app:
            await charge.enqueue_many([(1,)] * 3 + [(2,)] * 3)
            await ship.enqueue_many([(1,)] * 3 + [(2,)] * 3)
            await asyncio.sleep(6.5)
            assert (await app.admin.counts())[0].succeeded == 12
        assert highest == {1: 1, 2: 1}

    run_virtual(main)


def test_a_permit_held_until_final_is_kept_across_retry_and_snooze() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        seen: list[str] = []

        @app.task(limits=[Mutex("order", hold="until_final")], retry=RetryPolicy(retries=1, base=60, jitter=False))
        async def work(name: str) -> None:
            seen.append(name)
            if len(seen) == 1:
                raise Snooze(30)
            if len(seen) == 2:
                raise RuntimeError

        async with app:
            await work.enqueue("first")
            await work.enqueue("second")
            await asyncio.sleep(1000)
        assert seen == ["first", "first", "first", "second"]

    run_virtual(main)


def test_a_permit_that_is_held_while_running_is_free_while_a_retry_waits() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        seen: list[tuple[str, int]] = []

        @app.task(limits=[Mutex("order")], retry=RetryPolicy(retries=1, base=60, jitter=False))
        async def work(name: str) -> None:
            seen.append((name, current_job().attempt))
            if seen == [("first", 1)]:
                raise RuntimeError

        async with app:
            await work.enqueue("first")
            await work.enqueue("second")
            await asyncio.sleep(200)
        assert seen == [("first", 1), ("second", 1), ("first", 2)]

    run_virtual(main)


def test_a_permit_that_is_held_while_running_is_free_while_its_job_snoozes() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        seen: list[tuple[str, int, float]] = []

        @app.task(limits=[Mutex("order")])
        async def work(name: str) -> None:
            seen.append((name, current_job().attempt, clock.monotonic() / SECOND))
            if len(seen) == 1:
                raise Snooze(60)

        async with app:
            await work.enqueue("first")
            await work.enqueue("second")
            await asyncio.sleep(200)
        assert seen == [("first", 1, 0), ("second", 1, 0), ("first", 1, 60)]

    run_virtual(main)


@pytest.mark.parametrize(
    ("limits", "is_returned"),
    [
        ([], True),
        ([Mutex("order")], True),
        ([Mutex("order", hold="until_final")], True),
        ([Mutex("another", hold="until_success")], True),
        ([Mutex("order", hold="until_success"), Concurrency(5)], False),
    ],
)
@pytest.mark.parametrize("fails_late", [False, True])
def test_a_deploy_that_removes_a_limit_releases_the_permits_of_failed_jobs(
    limits: list[Limit], is_returned: bool, fails_late: bool
) -> None:
    """Another task waited for such a permit for as long as the failed job was kept."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        seen: list[str] = []

        def release(limits: list[Limit]) -> Headgate:
            app = app_on(store, clock=clock, retry=RetryPolicy(retries=0))

            @app.task(name="work", limits=limits)
            async def work(seconds: float) -> None:
                await asyncio.sleep(seconds)
                raise RuntimeError

            @app.task(name="other", limits=[Mutex("order")])
            async def other() -> None:
                seen.append("other")

            return app

        before, after = release([Mutex("order", hold="until_success")]), release(limits)
        async with before:
            failed = await before.tasks["work"].enqueue(100 if fails_late else 0)
            await asyncio.sleep(1)
            await before.tasks["other"].enqueue()
            async with after:
                await asyncio.sleep(200)
                assert (await failed.status()).state is JobState.FAILED
                assert seen == (["other"] if is_returned else [])
                assert await store.check() == []

    run_virtual(main)


def test_a_permit_held_until_success_is_kept_after_a_failure_until_a_reset() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        seen: list[str] = []

        @app.task(limits=[Mutex("order", hold="until_success")], retry=RetryPolicy(retries=0))
        async def work(name: str) -> None:
            seen.append(name)
            if seen == ["first"]:
                raise RuntimeError

        async with app:
            first = await work.enqueue("first")
            second = await work.enqueue("second")
            await asyncio.sleep(10)
            assert seen == ["first"]
            explanation = await app.admin.explain(second.id)
            assert "waits for limit 'mutex'" in explanation.reason
            assert "when a permit is returned" in explanation.reason
            # The job that holds it re-enters, and gives it back when it succeeds.
            await app.admin.retry(first.id)
            await asyncio.sleep(1)
            assert seen == ["first", "first", "second"]

            seen.clear()
            await work.enqueue("first")
            await work.enqueue("third")
            await asyncio.sleep(1)
            assert seen == ["first"]
            assert await app.admin.limits.reset("mutex", "order") == 0
            await asyncio.sleep(1)
            assert seen == ["first", "third"]

    run_virtual(main)


def test_jobs_of_one_owner_share_a_permit_and_another_owner_waits() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        spans: list[tuple[str, float, float]] = []

        @app.task(limits=[Mutex("orders-api", owner="{batch}")])
        async def work(batch: str) -> None:
            began = clock.monotonic() / SECOND
            await asyncio.sleep(5)
            spans.append((batch, began, clock.monotonic() / SECOND))

        async with app:
            await work.enqueue_many([("a",), ("b",), ("a",), ("b",), ("a",)])
            await asyncio.sleep(60)
        of = {batch: [(began, ended) for name, began, ended in spans if name == batch] for batch in "ab"}
        assert len(of["a"]) == 3
        assert len(of["b"]) == 2
        # Each batch ran together, and never beside the other.
        first, second = sorted(of.values())
        assert max(ended for _, ended in first) <= min(began for began, _ in second)
        assert len({began for began, _ in first}) == 1

    run_virtual(main)


def test_a_crashed_holders_permit_returns_with_its_lease() -> None:
    async def main(clock: VirtualClock) -> None:
        store = FailingLeaveStorage(clock)
        ran: list[tuple[str, str]] = []

        def app(name: str) -> Headgate:
            made = app_on(store, clock=clock, lease=30, heartbeat=5)

            @made.task(name="work", limits=[Mutex("resource")])
            async def work(job: str) -> None:
                ran.append((name, job))
                await asyncio.sleep(1000 if name == "doomed" else 1)

            return made

        doomed, other = app("doomed"), app("other")
        async with doomed.open(), other.open():
            await doomed.tasks["work"].enqueue_many([("first",), ("second",)])
            node = new_node(doomed)
            dying = asyncio.create_task(node.run())
            await asyncio.sleep(1)
            # Gone without a word: nothing of it runs on, and it does not leave.
            store.fails_to_leave = True
            dying.cancel()
            await asyncio.gather(dying, return_exceptions=True)
            store.fails_to_leave = False
            async with other:
                await asyncio.sleep(100)
        assert ran == [("doomed", "first"), ("other", "first"), ("other", "second")]
        assert await store.check() == []

    run_virtual(main)


def test_a_lowered_concurrency_lets_nothing_new_start_until_it_fits() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        running = 0
        highest = 0

        @app.task(limits=[Concurrency(5, name="api")])
        async def work() -> None:
            nonlocal running, highest
            running += 1
            highest = max(highest, running)
            await asyncio.sleep(10)
            running -= 1

        async with app:
            await work.enqueue_many([()] * 20)
            await asyncio.sleep(1)
            assert running == 5
            await app.admin.limits.set("api", Concurrency(2))
            await asyncio.sleep(5)
            assert running == 5
            highest = 0
            await asyncio.sleep(10)
            assert (running, highest) == (2, 2)
            await app.admin.limits.set("api", Concurrency(4))
            await asyncio.sleep(0.1)
            assert running == 4

    run_virtual(main)


def test_rates_and_permits_are_charged_together_or_not_at_all() -> None:
    """The fault: a job that gets one of its limits and not the other keeps the first from everybody."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[tuple[str, float]] = []

        @app.task(limits=[Mutex("{tenant}"), StrictRate("10/m", name="all", margin=0)])
        async def work(tenant: str, seconds: float) -> None:
            starts.append((tenant, clock.monotonic() / SECOND))
            await asyncio.sleep(seconds)

        async with app:
            await work.enqueue_many([("busy", 30.0)] * 3)
            await asyncio.sleep(1)
            # Two jobs of `busy` wait for its mutex; none of the nine starts that are left was spent on them.
            await work.enqueue_many([(f"t{number}", 0.0) for number in range(20)])
            await asyncio.sleep(1)
            assert len(starts) == 10
            await asyncio.sleep(300)
        assert len(starts) == 23
        assert all(later - earlier >= 30 for earlier, later in pairwise([at for name, at in starts if name == "busy"]))

    run_virtual(main)


# --------------------------------------------------------------------------------------------------------- terms


def test_a_job_that_is_rejected_at_enqueue_publishes_a_failure() -> None:
    """The fault: it was stored as failed, and no subscriber heard of it."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        received: list[Event] = []
        app.subscribe(received.append, JobEnqueued, JobFailure, JobFinished)
        app.limit("api", StrictRate("1/m", key="{tenant}", max_wait=30, margin=0))

        @app.task(limits=["api"])
        async def call(tenant: str) -> None: ...

        async with app.open():
            await call.enqueue_many([("acme",)] * 2)
            await asyncio.sleep(0.1)
            (refused,) = [event for event in received if isinstance(event, JobFailure)]
            assert (refused.task, refused.attempt, refused.state) == ("call", 0, JobState.FAILED)
            assert refused.error is not None
            assert refused.error.type == "headgate.errors.LimitRejected"
            assert isinstance(received[-2], JobEnqueued), "first that it is there, then that it failed"
            received.clear()
            await chain(call.call("acme"), call.call("acme")).enqueue()
            await asyncio.sleep(0.1)
            assert [type(event) for event in received] == [JobEnqueued, JobEnqueued, JobFailure]

    run_virtual(main)


def test_the_last_event_of_a_retry_that_its_limit_rejects_counts_its_attempts() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=3, delay=1))
        received: list[Event] = []
        app.subscribe(received.append, JobFailure)

        @app.task(limits=[StrictRate("2/m", on_limit="discard", margin=0)])
        async def call() -> None:
            raise ValueError("no")

        async with app:
            job = await call.enqueue()
            await asyncio.sleep(30)
            assert (await job.status()).state is JobState.FAILED
        assert [event.attempt for event in received if isinstance(event, JobFailure)] == [2]

    run_virtual(main)


def test_a_job_that_must_not_wait_fails_immediately_and_names_the_limit() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("2/m", key="{tenant}", name="api", on_limit="discard")])
        async def call(tenant: str) -> str:
            return tenant

        async with app:
            jobs = await call.enqueue_many([("acme",)] * 5)
            other = await call.enqueue("globex")
            await asyncio.sleep(1)
            assert await other.result() == "globex"
            states = [(await job.status()).state for job in jobs]
            assert states == [JobState.SUCCEEDED] * 2 + [JobState.FAILED] * 3
            with pytest.raises(JobFailed, match="key 'acme' of limit 'api' had nothing left") as failed:
                await jobs[-1].result()
            cause = failed.value.__cause__
            assert isinstance(cause, LimitRejected)
            assert (cause.limit, cause.key, cause.option) == ("api", "acme", "on_limit")
            assert cause.opens_at is not None
            await asyncio.sleep(61)
            assert await (await call.enqueue("acme")).result() == "acme"

    run_virtual(main)


def test_a_job_can_be_cancelled_instead_of_failed_when_it_is_not_to_wait() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[Mutex("import", on_limit="cancel")])
        async def work() -> None:
            await asyncio.sleep(10)

        async with app:
            first = await work.enqueue()
            await asyncio.sleep(1)
            second = await work.enqueue()
            with pytest.raises(JobCancelled) as cancelled:
                await second.result()
            assert isinstance(cancelled.value.__cause__, LimitRejected)
            await first.result()

    run_virtual(main)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ([RateLimit("100/s", on_limit="discard"), Mutex("import", on_limit="wait")], "on_limit does not let"),
        ([RateLimit("100/s", on_limit="discard"), Mutex("import", on_limit="cancel")], "on_limit does not let"),
        ([RateLimit("100/s", max_wait=5), Mutex("import", max_wait="1h")], "longer than its max_wait of 5 s"),
        ([RateLimit("100/s", on_limit="discard")], "LimitRejected: limit 'queue:one' had nothing left"),
    ],
    ids=["waits", "cancels", "waits for less", "of the queue"],
)
def test_the_strictest_limit_of_a_job_decides_for_all_of_them(limits: list[Limit], said: str) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("one", global_concurrency=1)

        @app.task(queue="one", limits=limits)
        async def work() -> None:
            await asyncio.sleep(60)

        async with app:
            first = await work.enqueue()
            await asyncio.sleep(1)
            second = await work.enqueue()
            with pytest.raises(JobFailed, match=said):
                await second.result()
            await first.result()

    run_virtual(main)


@pytest.mark.parametrize(("key", "whose"), [(None, ""), ("{tenant}", " of key 'acme'")])
def test_a_job_that_its_limit_holds_back_cannot_be_run_now(key: str | None, whose: str) -> None:
    """The fault: a limit without a key had the key ''."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("1/h", key=key, name="api")])
        async def call(tenant: str) -> None: ...

        async with app:
            jobs = await call.enqueue_many([("acme",)] * 2)
            await asyncio.sleep(1)
            with pytest.raises(IllegalTransition, match=f"waits for limit 'api'{whose}, not for its time"):
                await app.admin.run_now(jobs[1].id)

    run_virtual(main)


def test_on_limit_applies_again_to_a_retry_without_budget() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("1/h", on_limit="discard")], retry=ONCE)
        async def call() -> None:
            raise RuntimeError

        async with app:
            job = await call.enqueue()
            began = clock.monotonic()
            with pytest.raises(JobFailed, match="LimitRejected"):
                await job.result()
            assert clock.monotonic() - began < 5 * SECOND

    run_virtual(main)


@pytest.mark.parametrize("rule", [StrictRate, RateLimit, FixedWindow, SlidingWindow])
def test_a_job_whose_limit_opens_exactly_at_the_end_of_its_max_wait_runs(rule: Any) -> None:
    """Such a job was accepted by the prediction, and then failed by the claim, which comes no earlier."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        options = {"burst": 1} if rule is RateLimit else {"margin": 0} if rule is StrictRate else {}
        starts: list[float] = []

        for name, max_wait in (("enough", 60), ("short", 59.99)):

            @app.task(name=name, limits=[rule("1/m", name=name, max_wait=max_wait, **options)])
            async def work() -> None:
                starts.append(clock.monotonic() / SECOND)

        async with app:
            # The windows of a fixed window begin at full minutes.
            await asyncio.sleep(60 - clock.now() / SECOND % 60)
            starts.clear()
            first, second = await app.tasks["enough"].enqueue_many([(), ()])
            _, refused = await app.tasks["short"].enqueue_many([(), ()])
            assert (await refused.status()).state is JobState.FAILED
            with pytest.raises(JobFailed, match=r"longer than its max_wait of 59.99 s"):
                await refused.result()
            await second.result()
            assert (await first.status()).state is JobState.SUCCEEDED
            assert starts[-1] - starts[0] == pytest.approx(60, abs=0.5)

    run_virtual(main)


def test_max_wait_rejects_jobs_that_are_predicted_or_found_to_wait_longer() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran = 0

        @app.task(limits=[StrictRate("2/m", key="{tenant}", name="api", max_wait=90, margin=0)])
        async def call(tenant: str) -> None:
            nonlocal ran
            ran += 1

        async with app:
            await call.enqueue_many([("acme",)] * 2)
            await asyncio.sleep(1)
            # Slots at 0, 0, 60, 60, 120, 120: what starts after more than 90 s is rejected at once.
            jobs = await call.enqueue_many([("acme",)] * 4)
            states = [(await job.status()).state for job in jobs]
            assert states == [JobState.WAITING] * 2 + [JobState.FAILED] * 2
            with pytest.raises(JobFailed, match="longer than its max_wait of 90 s") as failed:
                await jobs[-1].result()
            assert isinstance(failed.value.__cause__, LimitRejected)
            assert failed.value.__cause__.option == "max_wait"
            # The API refuses for longer than anybody could know: the ones that wait are ended at their time.
            await app.admin.limits.penalize("api", "acme", 600)
            await asyncio.sleep(88)
            assert (await jobs[0].status()).state is JobState.WAITING
            await asyncio.sleep(4)
            assert (await jobs[0].status()).state is JobState.FAILED
        assert ran == 2

    run_virtual(main)


def test_max_wait_rejects_no_job_for_those_that_start_after_it() -> None:
    """The fault: all jobs of its key counted, also those of lower priority and those that wait for tomorrow."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("2/m", key="{tenant}", max_wait=30, margin=0)])
        async def call(tenant: str) -> None: ...

        async with app.open():
            await call.using(delay="1d").enqueue_many([("acme",)] * 10)
            jobs = await call.enqueue_many([("acme",)] * 3)
            urgent = await call.using(priority=9).enqueue("acme")
            states = [(await job.status()).state for job in (*jobs, urgent)]
            assert states == [JobState.WAITING, JobState.WAITING, JobState.FAILED, JobState.WAITING]

    run_virtual(main)


def test_max_wait_counts_the_more_urgent_jobs_of_the_same_call() -> None:
    """The fault: only those of the same priority counted, so a job was stored that could not start in time."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("2/m", key="{tenant}", max_wait=30, margin=0)])
        async def call(tenant: str) -> None: ...

        async with app.open():
            urgent = call.using(priority=9)
            jobs = [urgent.call("acme"), urgent.call("acme"), call.call("acme")]
            assert (await (await batch(jobs).enqueue()).status()).failed == 1
            # Those that start after it do not count.
            jobs = [call.call("ajax"), call.call("ajax"), urgent.call("ajax"), urgent.call("ajax")]
            assert (await (await batch(jobs).enqueue()).status()).failed == 0

    run_virtual(main)


def test_retries_can_be_exempt_from_rates_but_never_from_permits() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[tuple[str, int, float]] = []

        @app.task(
            limits=[StrictRate("1/h", key="{tenant}", charge_retries=False, margin=0), Mutex("{tenant}")],
            retry=RetryPolicy(retries=1, base=10, jitter=False),
        )
        async def call(tenant: str) -> None:
            starts.append((tenant, current_job().attempt, clock.monotonic() / SECOND))
            await asyncio.sleep(1)
            if current_job().attempt == 1:
                raise RuntimeError

        async with app:
            began = clock.monotonic() / SECOND
            await call.enqueue("acme")
            await asyncio.sleep(60)
        assert [(attempt, round(at - began)) for _, attempt, at in starts] == [(1, 0), (2, 11)]

    run_virtual(main)


def test_a_retry_reads_the_keys_of_the_limits_that_it_is_exempt_from() -> None:
    """The fault: a handler that reads a key failed at each retry, with a KeyError in place of its own error."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        keys: list[dict[str, str]] = []

        @app.task(
            limits=[
                StrictRate("1/h", name="calls", key="{tenant}", charge_retries=False),
                Mutex("{tenant}", name="one", hold="until_final"),
            ],
            retry=RetryPolicy(retries=1, base=10, jitter=False),
        )
        async def call(tenant: str) -> None:
            keys.append(dict(current_job().limit_keys))
            if current_job().attempt == 1:
                raise RuntimeError

        async with app:
            await (await call.enqueue("acme")).result()
        assert keys == [{"calls": "acme", "one": "acme"}] * 2

    run_virtual(main)


def test_a_settled_cost_returns_the_excess_of_the_estimate() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[float] = []

        @app.task(limits=[SlidingWindow(1000, per=60, name="tokens", cost="{estimate}", slices=60)])
        async def ask(estimate: int, actual: int) -> None:
            starts.append(clock.monotonic() / SECOND)
            await asyncio.sleep(1)
            current_job().settle("tokens", actual)

        async with app:
            await ask.enqueue_many([(500, 100)] * 4)
            await asyncio.sleep(30)
            # Two at once; each gave 400 back, which is room for the other two.
            assert len(starts) == 4
            (bucket,) = await app.admin.limits.list()
            assert bucket.used == 400
            (audited,) = await app.admin.limits.audit("tokens")
            assert (audited.starts, audited.highest, audited.is_within_limit) == (4, 400, True)

    run_virtual(main)


def test_settling_a_limit_that_the_task_does_not_have_is_an_error() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[RateLimit("10/s", name="mine")], retry=RetryPolicy(retries=0))
        async def ask() -> None:
            current_job().settle("other", 3)

        async with app:
            job = await ask.enqueue()
            with pytest.raises(JobFailed, match="has no limit 'other' to settle; it has: mine"):
                await job.result()

    run_virtual(main)


def test_a_thread_that_outlives_its_program_settles_without_an_error() -> None:
    """The fault: it got "Event loop is closed", while its log lines and its progress were dropped without a word."""
    jobs: list[JobContext] = []

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[RateLimit("10/m", name="tokens")])
        def work() -> None:
            jobs.append(current_job())

        async with app:
            await (await work.enqueue()).result()

    run_virtual(main)
    (job,) = jobs
    job.progress(0.5)
    job.settle("tokens", 3)


def test_a_refusal_by_the_callee_costs_nothing_and_closes_the_rate_but_not_the_permits() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[tuple[str, float]] = []

        @app.task(limits=[StrictRate("5/h", key="{tenant}", margin=0), Concurrency(3, name="all")])
        async def call(tenant: str) -> None:
            starts.append((tenant, clock.monotonic() / SECOND))
            if tenant == "acme" and len(starts) == 1:
                raise RateLimited(retry_after=20)

        async with app:
            began = clock.monotonic() / SECOND
            await call.enqueue("acme")
            await asyncio.sleep(1)
            await call.enqueue_many([("acme",)] * 4 + [("globex",)])
            await asyncio.sleep(60)
            assert [(name, round(at - began)) for name, at in starts] == [
                ("acme", 0),
                ("globex", 1),
                *[("acme", 20)] * 5,
            ]
            assert all(verdict.is_within_limit for verdict in await app.admin.limits.audit("call:rate"))

    run_virtual(main)


def test_a_refused_job_without_any_rate_waits_as_long_as_the_callee_said() -> None:
    """The fault: with no bucket to close, the job came back at once, a thousand times a second."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[float] = []

        @app.task(limits=[Mutex("one")])
        async def call() -> None:
            starts.append(clock.monotonic() / SECOND)
            if len(starts) == 1:
                raise RateLimited(retry_after=20)

        async with app:
            await (await call.enqueue()).result()
        assert len(starts) == 2
        assert starts[1] - starts[0] == pytest.approx(20, abs=0.1)

    run_virtual(main)


# ---------------------------------------------------------------------------------------------------------- keys


def test_a_missing_key_runs_ungated_shares_a_bucket_or_is_refused_as_declared() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("1/h", key="{tenant}", name="run")])
        async def run(tenant: str | None) -> None: ...

        @app.task(limits=[StrictRate("1/h", key="{tenant}", name="shared", on_missing_key="shared")])
        async def shared(tenant: str | None) -> None: ...

        @app.task(limits=[StrictRate("1/h", key="{tenant}", name="fail", on_missing_key="fail")])
        async def refuse(tenant: str | None) -> None: ...

        @app.task(limits=[StrictRate("1/h", name="headers", key=header("tenant"))])
        async def by_header() -> None: ...

        async with app:
            await run.enqueue_many([(None,)] * 3)
            await shared.enqueue_many([(None,)] * 3)
            await by_header.enqueue_many([()] * 3)
            await by_header.using(headers={"tenant": "acme"}).enqueue()
            with pytest.raises(PayloadError, match="its key is empty; nothing was stored"):
                await refuse.enqueue(None)
            await asyncio.sleep(1)
            jobs = await app.admin.jobs(count=50)
            done = Counter(job.task for job in jobs if job.state is JobState.SUCCEEDED)
            assert done == {"run": 3, "shared": 1, "by_header": 2}
            assert {(b.limit, b.key) for b in await app.admin.limits.list()} == {
                ("shared", "global"),
                ("headers", "global"),
                ("headers", "acme"),
            }

    run_virtual(main)


def test_a_key_function_that_raises_can_refuse_the_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        def broken(tenant: str) -> str:
            raise LookupError(tenant)

        @app.task(limits=[StrictRate("1/h", key=broken, on_key_error="fail")])
        async def refuse(tenant: str) -> None: ...

        async with app.open():
            with pytest.raises(PayloadError, match="could not be computed: LookupError: acme"):
                await refuse.enqueue("acme")
            assert await app.admin.counts() == []

    run_virtual(main)


def test_options_that_contradict_each_other_are_refused_at_declaration() -> None:
    with pytest.raises(DeclarationError, match="max_wait"):
        RateLimit("1/s", on_limit="discard", max_wait=5)
    with pytest.raises(DeclarationError, match="on_limit='drop'"):
        RateLimit("1/s", on_limit="drop")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="permits belong to jobs"):
        Concurrency(3, store="redis://localhost")
    with pytest.raises(DeclarationError, match="needs the resource"):
        Mutex("")
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match="needs a key="):

        @app.task(limits=[DynamicWindow(per=60, count=4)])
        async def work() -> None: ...


# --------------------------------------------------------------------------------------------------- live control


def test_a_raised_limit_applies_to_the_whole_backlog_and_unset_restores_the_declared_one() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1000)
        starts: list[float] = []

        @app.task(limits=[StrictRate("1/h", key="{tenant}", name="api", margin=0)])
        async def call(tenant: str) -> None:
            starts.append(clock.monotonic() / SECOND)

        async with app:
            await call.enqueue_many([(tenant,) for tenant in ("acme", "globex") for _ in range(10)])
            await asyncio.sleep(60)
            assert len(starts) == 2
            await app.admin.limits.set("api", StrictRate("5/h", margin=0))
            await asyncio.sleep(0.1)
            assert len(starts) == 10
            assert all(bucket.is_set for bucket in await app.admin.limits.list())
            await app.admin.limits.set("api", StrictRate("8/h", margin=0), key="acme")
            await asyncio.sleep(0.1)
            assert len(starts) == 13
            assert await app.admin.limits.unset("api")
            assert await app.admin.limits.unset("api", key="acme")
            assert not await app.admin.limits.unset("api")
            await asyncio.sleep(3000)
            assert len(starts) == 13
            # An hour after its last start, each key has one again.
            await asyncio.sleep(1000)
            assert len(starts) == 15

    run_virtual(main)


def test_the_most_specific_setting_wins_and_a_tier_moves_all_its_keys() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1000)
        started: Counter[str] = Counter()

        @app.task(limits=[FixedWindow("1/h", key="{tenant}", name="api")])
        async def call(tenant: str) -> None:
            started[tenant] += 1

        async with app:
            limits = app.admin.limits
            await limits.set("api", FixedWindow("2/h"), pattern="stripe:*")
            await limits.set("api", FixedWindow("3/h"), pattern="stripe:eu:*")
            await limits.set("api", FixedWindow("4/h"), tier="gold")
            await limits.assign("api", "stripe:eu:gold", "gold")
            await limits.assign("api", pattern="vip:*", tier="gold")
            await limits.set("api", FixedWindow("5/h"), key="vip:exact")
            tenants = ("plain", "stripe:us", "stripe:eu:1", "stripe:eu:gold", "vip:1", "vip:exact")
            await call.enqueue_many([(tenant,) for tenant in tenants for _ in range(9)])
            await asyncio.sleep(1)
            assert started == dict(zip(tenants, (1, 2, 3, 4, 4, 5), strict=True))
            await limits.set("api", FixedWindow("6/h"), tier="gold")
            await asyncio.sleep(1)
            assert (started["stripe:eu:gold"], started["vip:1"], started["vip:exact"]) == (6, 6, 5)
            await limits.assign("api", pattern="vip:*")
            await asyncio.sleep(3600)
            assert (started["vip:1"], started["vip:exact"]) == (7, 9)

    run_virtual(main)


def test_a_paused_key_starts_nothing_and_other_keys_continue() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        started: Counter[str] = Counter()

        @app.task(limits=[RateLimit("10/s", key="{tenant}", name="api")])
        async def call(tenant: str) -> None:
            started[tenant] += 1

        async with app:
            await app.admin.limits.pause("api", key="acme")
            jobs = await call.enqueue_many([("acme",), ("acme",), ("globex",)])
            await asyncio.sleep(60)
            assert started == {"globex": 1}
            explanation = await app.admin.explain(jobs[0].id)
            command = "headgate limits resume api --key acme"
            assert explanation.reason.startswith(f"limit 'api' is paused for key 'acme' by {app.admin.actor} since 20")
            assert explanation.reason.endswith(f" UTC; resume it with `{command}`")
            assert [b.is_paused for b in await app.admin.limits.list(key="acme")] == [True]
            assert await app.admin.limits.resume("api", key="acme")
            await asyncio.sleep(0.1)
            assert started == {"globex": 1, "acme": 2}
            await app.admin.limits.pause("api")
            await call.enqueue_many([("acme",), ("globex",)])
            await asyncio.sleep(60)
            assert sum(started.values()) == 3
            await app.admin.limits.resume("api")
            await asyncio.sleep(0.1)
            assert sum(started.values()) == 5

    run_virtual(main)


def test_the_reason_of_a_paused_job_names_the_command_that_resumes_it() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[RateLimit("10/s", key="{tenant}", name="the api")])
        async def call(tenant: str) -> None: ...

        async with app.open():
            limits = app.admin.limits
            job = await call.enqueue("it's acme")
            await limits.assign("the api", "it's acme", "gold")
            cases: list[tuple[dict[str, str], str, str]] = [
                ({}, "all keys", ""),
                ({"pattern": "it*"}, "keys like 'it*'", " --pattern 'it*'"),
                ({"tier": "gold"}, "the keys of tier 'gold'", " --tier gold"),
                ({"key": "it's acme"}, 'key "it\'s acme"', """ --key 'it'"'"'s acme'"""),
            ]
            for target, whose, options in cases:
                await limits.pause("the api", **target)
                reason = (await app.admin.explain(job.id)).reason
                command = f"headgate limits resume 'the api'{options}"
                assert reason.startswith(f"limit 'the api' is paused for {whose} by {app.admin.actor} since 20")
                assert reason.endswith(f" UTC; resume it with `{command}`")
            # All are in force; with the most specific one resumed, the next is named.
            await limits.resume("the api", key="it's acme")
            assert "--tier gold" in (await app.admin.explain(job.id)).reason

    run_virtual(main)


def test_a_job_that_costs_more_than_one_starts_beside_plain_code_that_takes_each_slot() -> None:
    """The fault: plain code took each start as it came free, so two were never free at once, and no job started."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.limit("api", RateLimit("60/m", burst=10, cost=2))
        limiter = app.limiter("api")
        plain: list[int] = []

        @app.task(limits=["api"])
        async def call() -> None: ...

        async def take_each_slot() -> None:
            while True:
                await limiter.acquire()
                plain.append(clock.monotonic())

        async with app:
            taking = asyncio.create_task(take_each_slot())
            await asyncio.sleep(30)
            jobs = await call.enqueue_many([()] * 5)
            await result_within(jobs[-1], 12)
            # Plain code has the rest: what a job that is cancelled waited for, and each slot once no job waits.
            before = len(plain)
            cancelled = await call.enqueue()
            await asyncio.sleep(0.1)
            assert await cancelled.cancel()
            await asyncio.sleep(60)
            assert len(plain) >= before + 59
            taking.cancel()

    run_virtual(main)


@pytest.mark.parametrize("limit", [StrictRate("2/h", key="{tenant}"), DynamicWindow(per=3600, count=2, key="{tenant}")])
def test_a_refusal_that_plain_code_gets_delays_jobs_until_it_is_lifted(limit: Limit) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.limit("api", limit)
        outside = app.limiter("api")

        @app.task(limits=["api"])
        async def call(tenant: str) -> None: ...

        async with app:
            await outside.penalize("acme", 600)
            held = await call.enqueue("acme")
            await result_within(await call.enqueue("globex"), 5)
            await asyncio.sleep(300)
            assert (await held.status()).state is JobState.WAITING
            await app.admin.limits.reset("api", "acme")
            await result_within(held, 5)

    run_virtual(main)


def test_reset_gives_a_key_its_whole_budget_and_penalize_takes_it_for_a_while() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[float] = []

        @app.task(limits=[StrictRate("2/h", key="{tenant}", name="api")])
        async def call(tenant: str) -> None:
            starts.append(clock.monotonic() / SECOND)

        async with app:
            await call.enqueue_many([("acme",)] * 10)
            await asyncio.sleep(1)
            assert len(starts) == 2
            await app.admin.limits.reset("api", "acme")
            await asyncio.sleep(1)
            assert len(starts) == 4
            await app.admin.limits.penalize("api", "globex", 30)
            began = clock.monotonic() / SECOND
            await call.enqueue("globex")
            await asyncio.sleep(100)
            assert starts[-1] - began == pytest.approx(30, abs=0.1)

    run_virtual(main)


def test_a_limit_in_use_is_not_removed_and_an_unknown_one_is_named() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[Mutex("resource", name="lock")])
        async def work() -> None:
            await asyncio.sleep(10)

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(1)
            with pytest.raises(LimitInUse, match="held permits: 1"):
                await app.admin.limits.remove("lock")
            await job.result()
            assert await app.admin.limits.remove("lock")
            assert await app.admin.limits.list() == []
            assert not await app.admin.limits.remove("lock")
            assert not await app.admin.limits.remove("other")
            with pytest.raises(UnknownLimit, match=r"declares no limit 'other'\. It declares: lock"):
                await app.admin.limits.pause("other")
            with pytest.raises(DeclarationError, match="cannot become"):
                await app.admin.limits.set("lock", RateLimit("1/s"))

    run_virtual(main)


# -------------------------------------------------------------------------------------------------------- promises


def test_the_prediction_has_position_limit_and_start_and_is_kept() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=50)
        started: dict[int, int] = {}

        @app.task(limits=[RateLimit("10/s", key="{account}", name="stripe", burst=1)])
        async def call(account: str, number: int) -> None:
            started[number] = clock.now()

        async with app:
            jobs = await call.enqueue_many([("acct_9", number) for number in range(300)])
            await asyncio.sleep(2)
            status = await jobs[250].status()
            assert status.waits_for == ("stripe", "acct_9")
            assert status.position == 250 - len(started) + 1
            explanation = await app.admin.explain(jobs[250].id)
            assert "231st in line, runs about" in explanation.reason
            assert status.predicted_start is not None
            await jobs[250].result()
            assert abs(status.predicted_start.timestamp() - started[250] / SECOND) < 0.2

    run_virtual(main)


def test_enqueue_predicts_a_start_on_request() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("2/m", key="{tenant}", name="api", margin=0)])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue_many([("acme",)] * 5)
            await asyncio.sleep(1)
            job = await call.using(predict=True).enqueue("acme")
            assert job.prediction is not None
            assert (job.prediction.position, job.prediction.waits_for) == (4, ("api", "acme"))
            await job.result()
            started = (await job.status()).started_at
            assert started is not None
            assert job.prediction.predicted_start is not None
            assert abs((started - job.prediction.predicted_start).total_seconds()) < 0.1
            free = await call.using(predict=True).enqueue("globex")
            assert free.prediction is not None
            assert free.prediction.waits_for is None
            assert (await call.enqueue("globex")).prediction is None

    run_virtual(main)


def test_explain_says_what_a_job_waits_for_if_it_is_not_a_limit() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app = app_on(store, clock=clock, concurrency=1)

        @app.task
        async def work(seconds: float) -> None:
            await asyncio.sleep(seconds)

        async with app.open():
            job = await work.enqueue(0)
            assert "no node is running" in (await app.admin.explain(job.id)).reason
            later = await work.using(delay=3600).enqueue(0)
            assert "it waits for its time" in (await app.admin.explain(later.id)).reason
        async with app:
            long = await work.enqueue(50)
            await asyncio.sleep(1)
            assert "it runs on node-" in (await app.admin.explain(long.id)).reason
            behind = await work.enqueue(0)
            assert "waits for a free slot" in (await app.admin.explain(behind.id)).reason
            assert "it succeeded" in (await app.admin.explain(job.id)).reason

    run_virtual(main)


def test_the_audit_proves_a_limit_from_recorded_starts_and_finds_when_it_was_exceeded() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("3/m", key="{tenant}", name="api")], retry=ONCE)
        async def call(tenant: str) -> None:
            if tenant == "failing":
                raise RuntimeError

        async with app:
            await call.enqueue_many([("acme",)] * 10 + [("failing",)] * 4)
            await asyncio.sleep(600)
            verdicts = {verdict.key: verdict for verdict in await app.admin.limits.audit("api")}
            assert {key: (v.starts, v.highest, v.is_within_limit) for key, v in verdicts.items()} == {
                "acme": (10, 3, True),
                "failing": (8, 3, True),
            }
            # The bucket is evicted: the audit does not depend on it.
            await app.admin.limits.reset("api", "acme")
            await call.enqueue_many([("acme",)] * 3)
            await asyncio.sleep(1)
            await app.admin.limits.reset("api", "acme")
            await call.enqueue_many([("acme",)] * 3)
            await asyncio.sleep(1)
            worst = (await app.admin.limits.audit("api"))[0]
            assert (worst.key, worst.highest, worst.is_within_limit) == ("acme", 6, False)

    run_virtual(main)


async def test_an_audit_of_permits_names_a_command_with_the_limit_as_one_word() -> None:
    app = Headgate("memory://")
    app.limit("big; exports", Concurrency(2))
    async with app.open():
        with pytest.raises(DeclarationError, match="`headgate limits list --limit 'big; exports' --key KEY` shows"):
            await app.admin.limits.audit("big; exports")


def test_an_audit_of_the_newest_starts_says_how_far_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("2/m", key="{tenant}", name="api", margin=0)])
        async def call(tenant: str) -> None: ...

        async with app:
            began = app.admin.now()
            await call.enqueue_many([("acme",)] * 10)
            await asyncio.sleep(600)
            limits = app.admin.limits
            (every,) = await limits.audit("api")
            for at_once in (1, 2, 3, 100):
                monkeypatch.setattr("headgate.admin.limits.AUDITED_AT_ONCE", at_once)
                # However many are asked for at once, the verdict is the same.
                assert list(await limits.audit("api")) == [every]
                for most in (1, 2, 3, 4, 9):
                    newest = await limits.audit_newest("api", most=most)
                    assert (newest.starts, newest.is_cut) == (most, True)
                    assert newest.verdicts[0].highest == min(most, 2)
                    reached = began + timedelta(minutes=4 - (most - 1) // 2)
                    assert newest.since is not None
                    assert abs(newest.since - reached) < timedelta(seconds=1)
                for most in (10, 11, 50):
                    whole = await limits.audit_newest("api", most=most)
                    assert (list(whole.verdicts), whole.since, whole.is_cut) == ([every], None, False)
                recent = app.admin.now() - timedelta(minutes=7)
                few = await limits.audit_newest("api", since=recent, most=50)
                assert (few.starts, few.since, few.is_cut) == (4, recent, False)

    run_virtual(main)


def test_jobs_and_plain_code_use_one_budget() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[float] = []

        @app.task(limits=[StrictRate("10/m", key="{tenant}", name="openai", margin=0)])
        async def call(tenant: str) -> None:
            starts.append(clock.monotonic() / SECOND)

        async with app:
            began = clock.monotonic() / SECOND
            limiter = app.limiter("openai")
            async with limiter.hold("acme", cost=3):
                starts.extend([clock.monotonic() / SECOND] * 3)
            await call.enqueue_many([("acme",)] * 20)
            await asyncio.sleep(1)
            assert len(starts) == 10
            assert not await limiter.try_acquire("acme")
            assert await limiter.try_acquire("globex")
            # Plain code in line beside the jobs.
            assert await limiter.acquire("acme", timeout=300)
            starts.append(clock.monotonic() / SECOND)
            await asyncio.sleep(300)
            for window in range(5):
                assert sum(window * 60 <= at - began < window * 60 + 60 for at in starts) <= 10
            assert len(starts) == 24
            with pytest.raises(UnknownLimit):
                app.limiter("other")
            await limiter.close()

    run_virtual(main)


@pytest.mark.parametrize(
    ("limit", "turns", "most"),
    [
        (RateLimit("60/m", burst=1), 118, 1),
        (RateLimit("60/m", burst=10), 118, 1),
        (RateLimit("60/m", burst=10, cost=5), 39, 1),
        (StrictRate("60/m", margin=0), 3, 30),
        (FixedWindow("10/m"), 3, 5),
    ],
    ids=["spaced", "burst", "costly jobs", "strict", "window"],
)
@pytest.mark.parametrize(("limiters", "callers"), [(1, 1), (3, 1), (1, 50)])
def test_plain_code_that_waits_takes_turns_with_a_backlog(
    limit: Limit, turns: int, most: int, limiters: int, callers: int
) -> None:
    """The fault: who asked first got a start as it came free, and that was a claim: a caller waited for minutes."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.limit("api", limit)
        starts: list[tuple[int, str]] = []

        @app.task(limits=["api"])
        async def call() -> None:
            assert isinstance(limit.cost, int)
            starts.extend([(clock.monotonic(), "job")] * limit.cost)

        async def ask(limiter: Limiter) -> None:
            while True:
                await limiter.acquire()
                starts.append((clock.monotonic(), "plain"))

        async with app:
            await call.enqueue_many([()] * 1000)
            await asyncio.sleep(120)
            began = clock.monotonic()
            shared = [app.limiter("api") for _ in range(limiters)]
            asking = [asyncio.create_task(ask(limiter)) for limiter in shared for _ in range(callers)]
            await asyncio.sleep(240)
            counts = Counter(who for at, who in starts if at >= began)
            assert counts["plain"] >= 0.8 * turns * min(limiters * callers, most)
            assert 2 * counts["job"] >= 0.9 * counts.total()
            for at, _ in starts:
                assert sum(at <= other < at + 60 * SECOND for other, _ in starts) <= limit.rule.bound(60 * SECOND)
            for each in asking:
                each.cancel()

    run_virtual(main)


def test_a_booked_start_of_a_caller_that_leaves_is_given_back() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.limit("api", RateLimit("60/m", burst=1))
        limiter, ran = app.limiter("api"), list[int]()

        @app.task(limits=["api"])
        async def call() -> None:
            ran.append(clock.monotonic())

        async with app:
            await call.enqueue_many([()] * 200)
            await asyncio.sleep(10.5)
            ran.clear()
            # Of a slot that is too far away, nothing is booked.
            assert not await limiter.acquire(timeout=0.1)
            for _ in range(5):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(limiter.acquire(), 0.1)
            await asyncio.sleep(9.9)
            assert len(ran) in (10, 11)
            # One that is closed meanwhile gives back, too.
            waiting = asyncio.create_task(limiter.acquire())
            await asyncio.sleep(0.1)
            await limiter.close()
            with pytest.raises(GateClosed):
                await waiting
            ran.clear()
            await asyncio.sleep(10)
            assert len(ran) in (9, 10)

    run_virtual(main)


@pytest.mark.nightly
def test_keys_that_share_a_capacity_are_rebalanced_for_a_new_key() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=100)
        started: list[tuple[str, float]] = []

        @app.task(limits=[DynamicWindow(per=3600, capacity=20, min_count=2, max_count=20, key="{tenant}", name="api")])
        async def call(tenant: str) -> None:
            started.append((tenant, clock.now() / SECOND))

        def in_window(number: int) -> Counter[str]:
            first = began - began % 3600 + number * 3600
            return Counter(tenant for tenant, at in started if first <= at < first + 3600)

        async with app:
            began = clock.now() / SECOND
            await call.enqueue_many([("a",)] * 200)
            await asyncio.sleep(1)
            assert in_window(0) == {"a": 20}
            await call.enqueue_many([("b",)] * 200)
            await asyncio.sleep(3600)
            assert in_window(1) == {"a": 10, "b": 10}
            await call.enqueue_many([("c",)] * 200)
            await asyncio.sleep(3600)
            assert sorted(in_window(2).values()) == [6, 7, 7]
            await call.enqueue_many([("d",)] * 200)
            await asyncio.sleep(3600)
            assert in_window(3) == {"a": 5, "b": 5, "c": 5, "d": 5}

    run_virtual(main)


def test_two_keys_with_costs_above_their_shares_take_turns_by_window() -> None:
    """The fault: the rule raised, which ended the worker, and each one after it."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        started: list[tuple[int, str]] = []

        @app.task(limits=[DynamicWindow(per=60, capacity=20, key="{tenant}", cost="{tokens}", name="tokens")])
        async def ask(tenant: str, tokens: int) -> None:
            started.append((clock.now() // SECOND // 60, tenant))

        async with app:
            await ask.enqueue_many([(tenant, 15) for tenant in ("acme", "globex")] * 2)
            await asyncio.sleep(300)
        assert Counter(tenant for _, tenant in started) == {"acme": 2, "globex": 2}
        assert len({minute for minute, _ in started}) == 4

    run_virtual(main)


def test_a_cost_above_what_a_raised_and_lowered_limit_can_grant_fails_the_job_instead_of_keeping_it_for_ever() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[SlidingWindow("10/m", name="tokens", cost="{tokens}")])
        async def ask(tokens: int) -> None: ...

        async with app:
            await (await ask.enqueue(10)).result()
            job = await ask.enqueue(8)
            await app.admin.limits.set("tokens", SlidingWindow("5/m"))
            with pytest.raises(JobFailed, match="CostExceedsLimit"):
                await result_within(job, 200)
            with pytest.raises(HeadgateError):
                await ask.enqueue(11)
            # Where jobs are enqueued, the rule in the code decides, whatever is set: that needs no store.
            await app.admin.limits.set("tokens", SlidingWindow("100/m"))
            with pytest.raises(CostExceedsLimit):
                await ask.enqueue(11)

    run_virtual(main)


# --------------------------------------------------------------------------------------------------------- deploys


def test_a_deploy_that_changes_limits_or_keys_moves_the_backlog_and_an_old_worker_does_not_move_it_back() -> None:
    """The fault: jobs that drew on a limit of the release before waited for ever, for nobody knew it any more."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        started: Counter[tuple[str, str]] = Counter()

        def release(name: str, *limits: Limit) -> Headgate:
            app = app_on(store, clock=clock)

            @app.task(name="call", limits=limits)
            async def call(tenant: str, region: str) -> None:
                started[name, tenant] += 1

            return app

        old = release("old", StrictRate("1/h", key="{tenant}"))
        async with old:
            await old.tasks["call"].enqueue_many([("acme", f"r{number}") for number in range(5)])
            await asyncio.sleep(1)
        assert started == {("old", "acme"): 1}
        # Another kind of rule, and another key.
        new = release("new", RateLimit("2/m", key="{tenant}:{region}"))
        async with new:
            await asyncio.sleep(1)
            assert started == {("old", "acme"): 1, ("new", "acme"): 4}
            await new.tasks["call"].enqueue_many([("globex", "r1")] * 6)
            await asyncio.sleep(1)
            assert started["new", "globex"] == 2
            again = release("old", StrictRate("1/h", key="{tenant}"))
            async with again:
                await asyncio.sleep(10)
                # What an old release still enqueues goes under the new limits.
                await again.tasks["call"].enqueue_many([("initech", f"r{number}") for number in range(3)])
                await asyncio.sleep(1)
                assert (started["old", "initech"], started["new", "initech"]) == (0, 3)
            await asyncio.sleep(200)
            assert started["new", "globex"] == 6
        assert await store.check() == []

    run_virtual(main)


@pytest.mark.parametrize("survivors", [True, False])
def test_a_rollback_takes_the_backlog_back_once_the_newer_release_is_gone(survivors: bool) -> None:
    """The fault: to the old release the limits of the new one are unknown, and nobody moved what drew on them."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        started: Counter[str] = Counter()

        def release(name: str, *limits: Limit) -> Headgate:
            app = app_on(store, clock=clock)

            @app.task(name="call", limits=limits)
            async def call(tenant: str) -> None:
                started[name] += 1

            return app

        def old() -> Headgate:
            return release("old", Concurrency(5))

        async with old() as app:
            await app.tasks["call"].enqueue("acme")
            await asyncio.sleep(1)
        async with release("new", StrictRate("1/h", key="{tenant}")) as new:
            await new.tasks["call"].enqueue_many([("acme",)] * 10)
            await asyncio.sleep(1)
        assert started == {"old": 1, "new": 1}
        async with old():
            if survivors:
                async with release("new", StrictRate("1/h", key="{tenant}")):
                    await asyncio.sleep(1800)
                    assert started["old"] == 1
            await asyncio.sleep(300)
        assert started == {"old": 10, "new": 1}
        assert await store.check() == []

    run_virtual(main)


@pytest.mark.parametrize("delay", [2, 60])
@pytest.mark.parametrize("key", ["{tenant}", "t-{tenant}"])
def test_a_job_that_fails_on_an_old_worker_is_retried_under_the_limits_of_the_new_release(key: str, delay: int) -> None:
    """The fault: it had a node by then, so nobody moved it, and it waited for ever."""

    async def main(clock: VirtualClock) -> None:
        store, attempts = MemoryStorage(clock), list[str]()

        def release(name: str, *limits: Limit) -> Headgate:
            app = app_on(store, clock=clock)

            @app.task(name="call", limits=limits, retry=RetryPolicy(delay=delay))
            async def call(tenant: str) -> None:
                attempts.append(name)
                if name == "old":
                    await asyncio.sleep(30)
                    raise ConnectionError

            return app

        async with release("old", Concurrency(5, name="slots", key="{tenant}")) as old:
            job = await old.tasks["call"].enqueue("acme")
            await asyncio.sleep(1)
            async with release("new", Concurrency(5, name="slots", key=key, hold="until_final")):
                await asyncio.sleep(200)
                assert attempts == ["old", "new"], (await old.admin.explain(job.id)).reason
        assert await store.check() == []

    run_virtual(main)


def test_a_waiting_job_whose_current_cost_cannot_be_computed_is_not_started() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        started: list[int] = []
        received: list[Event] = []

        def release(cost: int | Callable[[dict[str, int]], int]) -> Headgate:
            app = app_on(store, clock=clock)
            app.subscribe(received.append, JobNotMigrated)

            @app.task(name="ask", limits=[StrictRate("10/h", name="tokens", cost=cost)])
            async def ask(request: dict[str, int]) -> None:
                started.append(request["number"])

            return app

        async with (old := release(10)):
            await old.tasks["ask"].enqueue_many([({"number": number},) for number in range(3)])
            await asyncio.sleep(1)
        async with (new := release(lambda request: request["tokens"])):
            await new.tasks["ask"].enqueue({"number": 3, "tokens": 1})
            await asyncio.sleep(3 * 3700)
        assert started == [0, 3]
        assert [event.error for event in received if isinstance(event, JobNotMigrated)] == ["KeyError: 'tokens'"]

    run_virtual(main)
