"""Queues on the engine, in virtual time: paused ones, and what runs at once over all nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from headgate import (
    Concurrency,
    DeclarationError,
    Headgate,
    JobFailed,
    JobState,
    LimitRejected,
    Mutex,
    RetryPolicy,
    StrictRate,
)
from headgate.clock import SECOND
from headgate.errors import UnknownQueue
from headgate.jobs.event import Event, JobsMigrated
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.bad_stores import FailingLeaveStorage
from tests.internals import app_on, new_node, node_of, registry_of, swept_by

# -------------------------------------------------------------------------------------------------------- pauses


def test_a_paused_queue_starts_nothing_on_any_node_and_continues_at_once_when_it_is_resumed() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        started: list[tuple[str, int]] = []

        def made() -> Headgate:
            app = app_on(store, clock=clock)
            app.queue("mail")

            @app.task(name="send", queue="mail")
            async def send(number: int) -> None:
                started.append(("mail", number))
                await asyncio.sleep(20)

            @app.task(name="other")
            async def other(number: int) -> None:
                started.append(("other", number))

            return app

        one, two = made(), made()
        async with one, two:
            running = await one.tasks["send"].enqueue(0)
            await asyncio.sleep(1)
            assert await two.admin.queues.pause("mail")
            assert not await two.admin.queues.pause("mail")
            waiting = await one.tasks["send"].enqueue(1)
            await one.tasks["send"].using(delay=5).enqueue(2)
            await one.tasks["other"].enqueue(3)
            await running.result()
            await asyncio.sleep(600)
            assert started == [("mail", 0), ("other", 3)]
            reason = (await one.admin.explain(waiting.id)).reason
            assert reason.startswith(f"queue 'mail' is paused by {two.admin.actor} since 20")
            assert reason.endswith(" UTC; resume it with `headgate queues resume mail`")
            (mail,) = [queue for queue in await one.admin.queues.list() if queue.queue == "mail"]
            assert mail.paused_at is not None
            assert (mail.is_paused, mail.waiting, mail.succeeded, mail.lag) == (True, 2, 1, 0.0)
            assert mail.oldest is not None
            assert round(mail.oldest) == 619
            began = clock.now()
            assert await one.admin.queues.resume("mail")
            assert not await one.admin.queues.resume("mail")
            await asyncio.sleep(0.1)
            assert sorted(started[2:]) == [("mail", 1), ("mail", 2)]
            assert clock.now() - began < SECOND
            for app in (one, two):
                assert swept_by(node_of(app)) == 0

    run_virtual(main)


def test_a_pause_is_kept_without_any_node() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)

        @app.task
        async def work() -> None: ...

        async with app:
            await app.admin.queues.pause("default")
        async with app:
            job = await work.enqueue()
            await asyncio.sleep(60)
            assert (await job.status()).state is JobState.WAITING
            await app.admin.queues.resume("default")
            await job.result()

    run_virtual(main)


def test_an_undeclared_queue_can_be_paused_only_if_it_has_jobs() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        old, new = app_on(store, clock=clock), app_on(store, clock=clock)
        old.queue("legacy")

        @old.task(queue="legacy")
        async def work() -> None: ...

        async with old.open(), new.open():
            with pytest.raises(UnknownQueue, match=r"queue 'legacy' is not declared .* There are: default"):
                await new.admin.queues.pause("legacy")
            await work.enqueue()
            assert await new.admin.queues.pause("legacy")
            assert [(queue.queue, queue.is_paused) for queue in await new.admin.queues.list()] == [
                ("default", False),
                ("legacy", True),
            ]

    run_virtual(main)


def test_the_lag_of_a_queue_is_how_long_a_ready_job_has_waited_for_a_slot() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)
        may_end = asyncio.Event()

        @app.task
        async def work() -> None:
            await may_end.wait()

        @app.task(limits=[StrictRate("1/h")])
        async def limited() -> None: ...

        async with app:
            await (await limited.enqueue()).result()
            await limited.enqueue()
            await asyncio.sleep(50)
            (queue,) = await app.admin.queues.list()
            # What only its limit holds back lacks no slot.
            assert (queue.waiting, queue.lag) == (1, 0.0)
            assert queue.oldest is not None
            assert round(queue.oldest) == 50
            await work.enqueue_many([(), ()])
            await asyncio.sleep(30)
            (queue,) = await app.admin.queues.list()
            assert (queue.waiting, queue.running, round(queue.lag)) == (2, 1, 30)
            may_end.set()
            await asyncio.sleep(1)
            (queue,) = await app.admin.queues.list()
            assert (queue.waiting, queue.lag) == (1, 0.0)

    run_virtual(main)


# -------------------------------------------------------------------------------------------- global concurrency


class CountingApps:
    """Apps on one store whose tasks count how many of them run at once."""

    def __init__(self, clock: VirtualClock, *, length: float = 1) -> None:
        self.clock = clock
        self.store = FailingLeaveStorage(clock)
        self.length = length
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.doomed: set[str] = set()

    def app(self, name: str, global_concurrency: int | None, **settings: Any) -> Headgate:
        app = app_on(self.store, clock=self.clock, **settings)
        app.queue("mail", global_concurrency=global_concurrency)

        async def work(number: int) -> None:
            self.running["mail"] += 1
            self.most["mail"] = max(self.most["mail"], self.running["mail"])
            try:
                await asyncio.sleep(10_000 if name in self.doomed else self.length)
                self.done["mail"] += 1
            finally:
                self.running["mail"] -= 1

        app.task(name="send", queue="mail")(work)
        app.task(name="limited", queue="mail", limits=[StrictRate("1000/m")])(work)
        app.task(name="elsewhere")(work)
        return app


def test_no_more_jobs_of_a_queue_run_at_once_over_all_nodes_than_its_global_concurrency() -> None:
    async def main(clock: VirtualClock) -> None:
        queues = CountingApps(clock)
        one, two = queues.app("one", 3), queues.app("two", 3)
        began = clock.now()
        async with one, two:
            jobs = [
                *await one.tasks["send"].enqueue_many([(number,) for number in range(30)]),
                *await two.tasks["limited"].enqueue_many([(number,) for number in range(20)]),
                *await one.tasks["elsewhere"].using(queue="mail").enqueue_many([(number,) for number in range(10)]),
            ]
            for job in jobs:
                await job.result()
            # All of them is what may run at once, and all of it was used.
            assert queues.most["mail"] == 3
            assert round((clock.now() - began) / SECOND) == 20
            (bucket,) = [each for each in await one.admin.limits.list() if each.limit == "queue:mail"]
            assert (bucket.rule, bucket.used, bucket.available) == ("3 at once", 0, 3)
            # A task of that queue that is sent elsewhere is none of its business.
            await asyncio.gather(
                *(job.result() for job in await one.tasks["send"].using(queue="default").enqueue_many([(0,)] * 50))
            )
            assert queues.most["mail"] == 50
        assert await queues.store.check() == []

    run_virtual(main)


def test_jobs_of_a_crashed_node_return_their_places_in_the_queue() -> None:
    async def main(clock: VirtualClock) -> None:
        queues = CountingApps(clock)
        queues.doomed = {"doomed"}
        doomed = queues.app("doomed", 2, lease=30, heartbeat=5)
        other = queues.app("other", 2, lease=30, heartbeat=5)
        async with doomed.open(), other.open():
            jobs = await doomed.tasks["send"].enqueue_many([(number,) for number in range(4)])
            node = new_node(doomed)
            dying = asyncio.create_task(node.run())
            await asyncio.sleep(1)
            assert queues.running["mail"] == 2
            queues.store.fails_to_leave = True
            dying.cancel()
            await asyncio.gather(dying, return_exceptions=True)
            queues.store.fails_to_leave = False
            async with other:
                await asyncio.sleep(20)
                # They are still the dead node's.
                assert queues.done["mail"] == 0
                await asyncio.sleep(80)
                assert [(await job.status()).state for job in jobs] == [JobState.SUCCEEDED] * 4
        assert queues.most["mail"] == 2
        assert await queues.store.check() == []

    run_virtual(main)


def test_a_global_concurrency_can_be_changed_at_run_time() -> None:
    async def main(clock: VirtualClock) -> None:
        queues = CountingApps(clock, length=10)
        app = queues.app("one", 2)
        async with app:
            await app.tasks["send"].enqueue_many([(number,) for number in range(40)])
            await asyncio.sleep(1)
            assert queues.running["mail"] == 2
            await app.admin.limits.set("queue:mail", Concurrency(5))
            await asyncio.sleep(1)
            assert queues.running["mail"] == 5
            await app.admin.limits.pause("queue:mail")
            await asyncio.sleep(30)
            assert queues.running["mail"] == 0
            await app.admin.limits.resume("queue:mail")
            await asyncio.sleep(1)
            assert queues.running["mail"] == 5
            await app.admin.limits.unset("queue:mail")
            await asyncio.sleep(15)
            assert queues.running["mail"] == 2

    run_virtual(main)


def test_a_deploy_that_brings_changes_or_drops_a_global_concurrency_moves_the_backlog() -> None:
    async def main(clock: VirtualClock) -> None:
        queues = CountingApps(clock)
        received: list[Event] = []

        def release(global_concurrency: int | None) -> Headgate:
            app = queues.app("one", global_concurrency)
            app.subscribe(received.append, JobsMigrated)
            queues.most.clear()
            return app

        first = release(None)
        async with first.open():
            await first.tasks["send"].enqueue_many([(number,) for number in range(40)])
            await first.tasks["limited"].enqueue_many([(number,) for number in range(20)])
            # So that its limit sets are seen before those of the next.
            await queues.store.note_limit_sets(registry_of(first).limit_sets().subjects)
            await first.admin.queues.pause("mail")
            await asyncio.sleep(0.001)
        async with (second := release(2)):
            await asyncio.sleep(5)
            assert [event.jobs for event in received if isinstance(event, JobsMigrated)] == [60]
            await second.admin.queues.resume("mail")
            await asyncio.sleep(5.5)
            assert queues.most["mail"] == 2
        async with release(4):
            await asyncio.sleep(2.5)
            assert queues.most["mail"] == 4
        # A rollback: it takes some minutes to distinguish it from an old worker that restarts beside the new ones.
        async with release(None):
            await asyncio.sleep(300)
            assert queues.most["mail"] > 4
            assert queues.done["mail"] == 60
        assert await queues.store.check() == []

    run_virtual(main)


def test_a_job_that_does_not_wait_for_its_limits_does_not_wait_for_its_queue_either() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("mail", global_concurrency=1)

        @app.task(queue="mail", limits=[StrictRate("100/m", on_limit="discard")], retry=RetryPolicy(retries=0))
        async def send() -> None:
            await asyncio.sleep(1)

        async with app:
            first, second = await send.enqueue_many([(), ()])
            await first.result()
            with pytest.raises(JobFailed) as failed:
                await second.result()
            assert isinstance(failed.value.__cause__, LimitRejected)
            assert failed.value.__cause__.limit == "queue:mail"

    run_virtual(main)


def test_a_queue_may_get_its_global_concurrency_after_its_tasks_were_declared() -> None:
    async def main(clock: VirtualClock) -> None:
        queues = CountingApps(clock)
        app = queues.app("one", None)
        app.queue("mail", concurrency=50, global_concurrency=2)
        app.queue("default", global_concurrency=1)
        async with app:
            await app.tasks["send"].enqueue_many([(number,) for number in range(6)])
            await asyncio.sleep(10)
            assert (queues.most["mail"], queues.done["mail"]) == (2, 6)
            queues.most.clear()
            await app.tasks["elsewhere"].enqueue_many([(number,) for number in range(3)])
            await asyncio.sleep(10)
            assert (queues.most["mail"], queues.done["mail"]) == (1, 9)

    run_virtual(main)


@pytest.mark.parametrize("count", [0, -1])
def test_a_global_concurrency_below_1_is_refused(count: int) -> None:
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match=r"global_concurrency=.* at least 1.*headgate queues pause mail"):
        app.queue("mail", global_concurrency=count)
    with pytest.raises(UnknownQueue):
        app.task(name="send", queue="mail")(lambda: None)


def test_the_names_of_queue_limits_are_reserved() -> None:
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match=r"names a limit 'queue:mail'.*global_concurrency"):
        app.limit("queue:mail", Concurrency(3))
    with pytest.raises(DeclarationError, match="names a limit 'queue:mail'"):
        app.task(limits=[Concurrency(3, name="queue:mail")])(_nothing)
    # A task of that name is no mistake, as long as no queue needs the same.
    app.task(name="queue", limits=[StrictRate("1/m"), Mutex("one")])(_nothing)
    with pytest.raises(DeclarationError, match=r"queue 'rate' needs the limit name 'queue:rate'"):
        app.queue("rate", global_concurrency=1)
    app.queue("mail:rate", global_concurrency=1)
    with pytest.raises(DeclarationError, match=r"task 'queue:mail' would name a limit 'queue:mail:rate'"):
        app.task(name="queue:mail", limits=[StrictRate("1/m")])(_nothing)


def test_declaring_a_queue_again_replaces_its_options() -> None:
    app = Headgate("memory://")
    app.queue("mail", global_concurrency=3)
    task = app.task(name="send", queue="mail")(_nothing)
    with_limit = registry_of(app).limit_set_name("send", "mail")
    assert registry_of(app).rules["queue:mail"].describe() == "3 at once"
    app.queue("mail", global_concurrency=4)
    assert registry_of(app).rules["queue:mail"].describe() == "4 at once"
    # Another number holds for the same buckets, so nothing is to be moved.
    assert registry_of(app).limit_set_name("send", "mail") == with_limit
    app.queue("mail")
    assert "queue:mail" not in registry_of(app).rules
    assert registry_of(app).limit_set(task, "mail") is task.limit_set
    assert registry_of(app).limit_set_name("send", "mail") != with_limit


async def _nothing() -> None: ...
