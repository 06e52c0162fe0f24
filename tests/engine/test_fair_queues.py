"""Fair queues on the engine, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from headgate import (
    Concurrency,
    DeclarationError,
    Headgate,
    JobState,
    Mutex,
    PayloadError,
    RateLimit,
    RateLimited,
    StrictRate,
    batch,
    header,
)
from headgate.clock import SECOND, to_datetime
from headgate.limits.limit import Limit
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on


def made(store: MemoryStorage, clock: VirtualClock, started: list[str], **queue: object) -> Headgate:
    app = app_on(store, clock=clock)
    app.queue("default", concurrency=2, **queue)  # type: ignore[arg-type]  # each test has options of its own

    @app.task(name="work")
    async def work(tenant: str, number: int = 0) -> None:
        started.append(tenant)
        await asyncio.sleep(1)

    return app


def test_a_tenant_with_five_jobs_does_not_wait_for_the_200_of_another() -> None:
    async def main(clock: VirtualClock) -> None:
        started: list[str] = []
        app = made(MemoryStorage(clock), clock, started, fair_by="{tenant}")
        async with app:
            await app.tasks["work"].enqueue_many([("a", number) for number in range(200)])
            await asyncio.sleep(1.5)
            before = len(started)
            await app.tasks["work"].enqueue_many([("b", number) for number in range(5)])
            await asyncio.sleep(20)
            assert "b" in started[before : before + 2]
            assert started[before : before + 10].count("b") == 5

    run_virtual(main)


@pytest.mark.parametrize("limit", [Mutex("orders:{tenant}:{number}"), RateLimit("1/s", key="{number}")])
def test_a_tenant_takes_turns_as_one_key_whatever_else_its_jobs_are_limited_by(limit: Limit) -> None:
    """The fault: each of its mutexes had a turn of its own, so its 200 jobs kept the five of another waiting."""

    async def main(clock: VirtualClock) -> None:
        started: list[str] = []
        app = made(MemoryStorage(clock), clock, started, fair_by="{tenant}", weights={"c": 2}, limits=[limit])
        async with app:
            work = app.tasks["work"]
            await work.enqueue_many([("a", number) for number in range(200)])
            await asyncio.sleep(1.5)
            before = len(started)
            await work.enqueue_many([("b", number) for number in range(300, 305)])
            await asyncio.sleep(20)
            assert started[before : before + 11].count("b") == 5
            before = len(started)
            await work.enqueue_many([("c", number) for number in range(400, 440)])
            await asyncio.sleep(20)
            assert abs(started[before : before + 30].count("c") - 20) <= 2
            (first, *_) = (await app.admin.queues.keys("default")).keys
            assert first.key == "a"
            # The page of the queue leads to these jobs. The fault: it led to none.
            listed = await app.admin.jobs(state=JobState.WAITING, limit="fair:default", key="a", count=500)
            assert len(listed) == first.waiting
            assert len((await app.admin.ended_jobs(after=to_datetime(0), limit="fair:default", key="b")).items) == 5
            (newest, *_) = await app.admin.jobs(state=JobState.WAITING)
            assert "its key 'c' takes turns" in (await app.admin.explain(newest.id)).reason

    run_virtual(main)


def test_a_tenant_takes_turns_as_one_key_however_many_batches_with_a_limit_it_has() -> None:
    """The fault: each of its batches had a turn, so its hundred kept the five of another waiting."""

    async def main(clock: VirtualClock) -> None:
        started: list[str] = []
        app = made(MemoryStorage(clock), clock, started, fair_by="{tenant}", weights={"c": 2})
        app.limit("machines", Concurrency(1000))
        async with app:
            work = app.tasks["work"]
            for number in range(100):
                await batch([work.call("a", number)] * 2, limits=["machines"]).enqueue()
            await asyncio.sleep(1.5)
            before = len(started)
            for number in range(5):
                await batch([work.call("b", number)], limits=["machines"]).enqueue()
            await asyncio.sleep(20)
            assert started[before : before + 11].count("b") == 5
            before = len(started)
            await batch([work.call("c", number) for number in range(40)], limits=["machines"]).enqueue()
            await asyncio.sleep(20)
            assert abs(started[before : before + 30].count("c") - 20) <= 2

    run_virtual(main)


def test_weights_hold_while_slots_are_freed_one_by_one() -> None:
    async def main(clock: VirtualClock) -> None:
        started: list[str] = []
        app = made(MemoryStorage(clock), clock, started, fair_by="{tenant}", weights={"big": 3})
        async with app:
            for tenant in ("small", "big"):
                await app.tasks["work"].enqueue_many([(tenant, number) for number in range(200)])
            await asyncio.sleep(100)
            counts = Counter(started[:200])
            assert abs(counts["big"] - 150) <= 3

    run_virtual(main)


def test_a_queue_becomes_fair_by_a_deploy_and_jobs_that_wait_move() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        started: list[str] = []
        async with made(store, clock, started).open() as before:
            await before.tasks["work"].enqueue_many([("a", number) for number in range(50)])
            await before.tasks["work"].enqueue_many([("b", number) for number in range(50)])
        async with made(store, clock, started, fair_by="{tenant}"):
            await asyncio.sleep(30)
            # The first jobs may have started before the others had moved.
            assert abs(started[10:40].count("a") - started[10:40].count("b")) <= 2
            await asyncio.sleep(60)
            assert Counter(started) == {"a": 50, "b": 50}

    run_virtual(main)


def test_keys_may_come_from_headers_and_jobs_without_one_share_a_key() -> None:
    async def main(clock: VirtualClock) -> None:
        started: list[str] = []
        app = made(MemoryStorage(clock), clock, started, fair_by=header("customer"))
        async with app:
            work = app.tasks["work"]
            await work.enqueue_many([("none", number) for number in range(100)])
            await work.using(headers={"customer": "acme"}).enqueue_many([("acme", number) for number in range(10)])
            await asyncio.sleep(15)
            assert started[:20].count("acme") >= 8

    run_virtual(main)


def test_a_key_function_that_raises_is_an_error_of_enqueue() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(MemoryStorage(clock), clock, [], fair_by=lambda tenant: {}[tenant])
        async with app.open():
            with pytest.raises(PayloadError, match="'fair:default' of queue 'default': its key could not be comp"):
                await app.tasks["work"].enqueue("a")
            assert await app.admin.jobs() == []

    run_virtual(main)


def test_the_order_of_a_queue_is_no_limit_that_can_be_set_or_shown() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(MemoryStorage(clock), clock, [], fair_by="{tenant}")
        async with app.open():
            job = await app.tasks["work"].enqueue("a")
            assert "fair:default" not in [limit.limit for limit in app.admin.limits.all_declared()]
            assert (await app.admin.explain(job.id)).limits == []
            assert await app.admin.limits.list() == []

    run_virtual(main)


def test_a_job_that_waits_for_the_turn_of_its_key_says_so_and_predicts_no_start() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(MemoryStorage(clock), clock, [], fair_by="{tenant}")
        async with app:
            work = app.tasks["work"]
            jobs = await work.enqueue_many([("a", number) for number in range(6)])
            await asyncio.sleep(0.5)
            # Two of them run.
            (predicted,) = await work.using(predict=True).enqueue_many([("b", 0)])
            assert predicted.prediction is not None
            assert (predicted.prediction.position, predicted.prediction.predicted_start) == (1, None)
            last, next_one = await app.admin.explain(jobs[-1].id), await app.admin.explain(predicted.id)
            assert last.reason == (
                "it waits for a free slot of a node that serves queue 'default' and for its turn: its key 'a' takes "
                "turns with the other keys, and 3 jobs with its key are before it"
            )
            assert (last.status.position, last.status.predicted_start) == (4, None)
            assert "key 'b' takes turns with the other keys, and it is the next job with its key" in next_one.reason
            assert "and 1 job with its key is before it" in (await app.admin.explain(jobs[3].id)).reason
            await app.admin.queues.pause("default")
            assert "is paused" in (await app.admin.explain(jobs[-1].id)).reason

    run_virtual(main)


def test_a_job_that_waits_for_a_limit_in_a_fair_queue_keeps_its_predicted_start() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(MemoryStorage(clock), clock, [], fair_by="{tenant}", limits=[StrictRate("1/m", key="{tenant}")])
        async with app:
            jobs = await app.tasks["work"].enqueue_many([("a", number) for number in range(3)])
            await asyncio.sleep(5)
            explained = await app.admin.explain(jobs[-1].id)
            assert "it waits for limit 'queue:default:rate'" in explained.reason
            assert explained.status.predicted_start is not None

    run_virtual(main)


def test_the_keys_of_a_fair_queue_are_listed_with_their_weights_and_its_declaration() -> None:
    async def main(clock: VirtualClock) -> None:
        app = made(MemoryStorage(clock), clock, [], fair_by=["{tenant}", header("who")], weights={"b": 4}, aging=60)
        app.queue("plain")
        async with app.open():
            work = app.tasks["work"]
            await work.enqueue_many([("a", number) for number in range(3)])
            await work.using(headers={"who": "ann"}).enqueue_many([("b", number) for number in range(5)])
            found = await app.admin.queues.keys("default")
            assert [(key.key, key.waiting, key.weight) for key in found.keys] == [("b", 5, 4), ("a", 3, 1)]
            assert (found.count, found.is_exact) == (2, True)
            assert len((await app.admin.queues.keys("default", count=1)).keys) == 1
            assert (await app.admin.queues.keys("plain")).keys == []
            declared = app.admin.queues.declared("default")
            assert declared is not None
            assert (declared.fair_by, declared.weights, declared.aging, declared.concurrency) == (
                ["{tenant}", 'header("who")'], {"b": 4}, 60, 2
            )  # fmt: skip
            listed = {each.queue: each.declared for each in await app.admin.queues.list()}
            assert listed["default"] == declared
            assert app.admin.queues.declared("nothing") is None

    run_virtual(main)


@pytest.mark.parametrize("limits", [[], [Mutex("one")]])
def test_a_refused_job_of_a_fair_queue_without_any_rate_waits_as_long_as_the_callee_said(limits: list[Limit]) -> None:
    """The fault: the order of its queue was closed, which makes no job wait, and the job came back at once."""

    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)
        app.queue("default", fair_by="{tenant}")
        starts: list[float] = []

        @app.task(limits=limits)
        async def call(tenant: str) -> None:
            starts.append(clock.monotonic() / SECOND)
            if len(starts) == 1:
                raise RateLimited(retry_after=20)

        async with app:
            job = await call.enqueue("acme")
            await asyncio.sleep(10)
            assert await app.admin.limits.list("fair:default") == []
            await job.result()
        assert len(starts) == 2
        assert starts[1] - starts[0] == pytest.approx(20, abs=0.1)

    run_virtual(main)


def test_a_refused_job_of_a_fair_queue_closes_its_rate_alone() -> None:
    """The fault: `headgate limits list` had the order of the queue, as a limit that nobody declares."""

    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)
        app.queue("default", fair_by="{tenant}")

        @app.task(limits=[StrictRate("5/m", name="calls")])
        async def call(tenant: str) -> None:
            raise RateLimited(retry_after=20)

        async with app:
            await call.enqueue("acme")
            await asyncio.sleep(10)
            assert [each.limit for each in await app.admin.limits.list()] == ["calls"]

    run_virtual(main)


def test_nothing_else_may_have_a_name_of_an_order() -> None:
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match="names that begin with 'fair:' belong to queues"):
        app.limit("fair:default", StrictRate("1/s"))


def test_a_tenant_with_many_users_gets_as_many_turns_as_one_with_a_single_user() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)
        app.queue("default", concurrency=2, fair_by=["{tenant}", "{user}"])
        started: list[str] = []

        @app.task
        async def work(tenant: str, user: int) -> None:
            started.append(f"{tenant}{user}")
            await asyncio.sleep(1)

        async with app:
            await work.enqueue_many([("a", user) for _ in range(4) for user in range(50)])
            await asyncio.sleep(5.5)
            before = len(started)
            await work.enqueue_many([("b", 0) for _ in range(30)])
            await asyncio.sleep(30)
            assert "b0" in started[before : before + 2]
            assert abs(started[before : before + 40].count("b0") - 20) <= 1
            # The users of A take turns, too: none starts twice before all have started.
            of_a = [each for each in started if each[0] == "a"][:40]
            assert len(set(of_a)) == len(of_a)

    run_virtual(main)


@pytest.mark.parametrize(
    "fair_by", [["{tenant}"], ["{tenant}", "{number}", "{tenant}"], ["{tenant}", None], [["{tenant}"], "{number}"]]
)
def test_a_fair_queue_has_one_or_two_levels(fair_by: object) -> None:
    with pytest.raises(DeclarationError, match="is not a list of two keys; write fair_by="):
        Headgate("memory://").queue("default", fair_by=fair_by)  # type: ignore[arg-type]
