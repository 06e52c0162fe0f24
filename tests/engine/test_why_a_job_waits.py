"""Why a job waits: the basic reason first, whatever limits the job has as well."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from headgate import Concurrency, Headgate, JobState, RetryPolicy, StrictRate, batch
from headgate.admin.findings import findings_of
from headgate.errors import StorageUnavailable
from headgate.jobs.event import Event, LimitUnknown, TaskUnknown
from headgate.limits.limit import Limit
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, node_of


def test_a_task_with_a_limit_that_no_worker_declares_is_named_in_the_log_and_the_explanation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fault: "1st in line, starts when a permit is returned", and no line in the log."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        before, after = (app_on(store, clock=clock) for _ in range(2))

        @before.task(name="bill", limits=[StrictRate("1/h", key="{tenant}")])
        async def bill(tenant: str) -> None:
            """Renamed in the next release."""

        @after.task(name="invoice", limits=[StrictRate("1/h", key="{tenant}")])
        async def invoice(tenant: str) -> None:
            """The new name, without an alias."""

        async with before.open():
            job = await bill.enqueue("acme")
            assert (await before.admin.explain(job.id)).reason.startswith("no node is running")
            async with after:
                await asyncio.sleep(10)
                of_worker = (await after.admin.explain(job.id)).reason
                assert of_worker.startswith(
                    "this program does not declare task 'bill', and no running node that serves queue 'default' does;"
                )
                assert "a permit is returned" not in of_worker
                of_web = (await before.admin.explain(job.id)).reason
                assert of_web.startswith(
                    "no running node that serves queue 'default' declares task 'bill', and this program does"
                )
                # The fault: "all waiting jobs belong to declared tasks", from the doctor of the release with the task.
                checkups = [await app.admin.checkup() for app in (before, after)]
                assert [(each.undeclared, each.unknown_tasks) for each in checkups] == [
                    ({("bill", "default"): 1}, {}),
                    ({}, {"bill": 1}),
                ]
                (queue,) = [each for each in (await after.admin.overview()).queues if each.queue == "default"]
                assert (queue.waiting, queue.ready, queue.throttled, queue.undeclared) == (1, 0, 0, 1)

    with caplog.at_level(logging.ERROR, "headgate"):
        run_virtual(main)
    assert [record.message[:23] for record in caplog.records] == ["jobs of task bill wait,"]


def test_a_worker_that_has_stopped_declares_nothing() -> None:
    """The fault: "its limits let it start now", for three minutes after the last worker of a release had stopped."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        before, after = (app_on(store, clock=clock) for _ in range(2))

        @before.task(name="send_mail")
        async def send_mail() -> None:
            """Renamed in the next release."""

        @after.task(name="send_message")
        async def send_message() -> None:
            """The new name, without an alias."""

        async with after:
            async with before:
                await asyncio.sleep(1)
                assert "send_mail@default" in await after.admin.declared_by_nodes()
            async with before.open():
                job = await send_mail.enqueue()
                of_worker = (await after.admin.explain(job.id)).reason
                of_web = (await before.admin.explain(job.id)).reason
            assert of_worker.startswith("this program does not declare task 'send_mail', and no running node that")
            assert of_web.startswith("no running node that serves queue 'default' declares task 'send_mail'")
            (queue,) = [each for each in (await after.admin.overview()).queues if each.queue == "default"]
            assert (queue.waiting, queue.ready, queue.undeclared) == (1, 0, 1)

    run_virtual(main)


def test_a_task_counts_as_declared_where_a_node_serves_its_queue() -> None:
    """The fault: "it waits for a free slot", though the node that serves the queue does not have the task."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        billing, mailing = (app_on(store, clock=clock) for _ in range(2))
        for app in (billing, mailing):
            app.queue("mail")

        @billing.task
        async def bill() -> None:
            """An operator has taken the other queue from its worker."""

        async with billing, mailing:
            await billing.admin.set_node_slots(node_of(billing).id, 0, queue="mail")
            job = await bill.using(queue="mail", delay=1).enqueue()
            await asyncio.sleep(5)
            reason = (await billing.admin.explain(job.id)).reason
            assert reason.startswith("no running node that serves queue 'mail' declares task 'bill'")

    run_virtual(main)


def test_a_task_that_is_declared_while_the_node_runs_counts_at_its_next_heartbeat() -> None:
    """As in an interactive session, where the worker runs beside the cells that declare tasks."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        async with app:

            @app.task
            async def later() -> None:
                """Declared in a later cell."""

            await asyncio.sleep(30)
            assert "later@default" in await app.admin.declared_by_nodes()

    run_virtual(main)


def test_a_job_that_waits_for_a_permit_is_throttled() -> None:
    """The fault: `headgate jobs list` did not say so, because it is not known when the permit is given back."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[Concurrency(1)])
        async def sync() -> None:
            await asyncio.sleep(60)

        async with app:
            running, waiting = await sync.enqueue_many([(), ()])
            await asyncio.sleep(1)
            found = await waiting.status()
            assert (found.view, found.throttled_until) == ("throttled", None)
            assert (await running.status()).view is None

    run_virtual(main)


def test_a_task_of_another_program_is_explained_without_its_rule() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        worker, other = (app_on(store, clock=clock) for _ in range(2))

        @worker.task(name="bill", limits=[StrictRate("1/h", key="{tenant}")])
        async def bill(tenant: str) -> None:
            """Only the worker declares it."""

        async with other.open(), worker:
            jobs = [await bill.enqueue("acme") for _ in range(2)]
            await jobs[0].result()
            reason = (await other.admin.explain(jobs[1].id)).reason
            assert "it waits for limit 'bill:rate' of key 'acme'" in reason
            assert "this program does not declare the limit, so it cannot predict the start" in reason

    run_virtual(main)


def test_a_queue_that_no_running_node_serves_is_the_reason() -> None:
    """The fault: "its limits let it start now; it waits for a free slot", and a doctor that found no problem."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app, other = (app_on(store, clock=clock) for _ in range(2))
        app.queue("mail")

        @app.task(queue="mail", limits=[StrictRate("1/h")])
        async def send() -> None:
            """Never runs here."""

        async with app.open():
            jobs = [await send.enqueue() for _ in range(2)]
            async with other:
                await asyncio.sleep(5)
                reason = (await app.admin.explain(jobs[0].id)).reason
                later = (await app.admin.explain(jobs[1].id)).reason
            assert reason == (
                "no worker serves queue 'mail'; start one: `headgate worker --queue mail`, or `with app:`"
            )
            assert later.startswith(reason + ". Then it waits for limit 'send:rate'")
            # The fault: that command for a queue that a deploy has renamed, and that no worker of this code may serve.
            renamed = app_on(store, clock=clock)
            renamed.queue("emails")
            renamed.task(name="send", queue="emails")(send.function)
            undeclared = "no worker serves queue 'mail'; this program does not declare it: start a worker of a "
            async with renamed:
                reason = (await renamed.admin.explain(jobs[0].id)).reason
            assert reason.startswith(undeclared)
            assert (await app.admin.explain(jobs[0].id)).reason.startswith("no node is running")

    run_virtual(main)


def test_a_checkup_names_the_pauses_that_jobs_wait_for() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("mail")

        @app.task(limits=[StrictRate("100/s", key="{tenant}", name="api")])
        async def call(tenant: str) -> None:
            """Paused for some tenants."""

        async with app:
            ada = app.admin.by("ada")
            await ada.queues.pause("mail")
            await ada.limits.pause("api", pattern="a*")
            await ada.limits.pause("api", key="globex")
            assert (await app.admin.checkup()).pauses == []
            for tenant in ("acme", "apex", "initech"):
                await call.enqueue(tenant)
            await call.using(queue="mail").enqueue("initech")
            await asyncio.sleep(5)
            pauses = (await app.admin.checkup()).pauses
            assert [(each.what, each.by, each.waiting, each.command) for each in pauses] == [
                ("queue 'mail' is paused", "ada", 1, "headgate queues resume mail"),
                ("limit 'api' is paused for keys like 'a*'", "ada", 2, "headgate limits resume api --pattern 'a*'"),
            ]
            assert all(each.since is not None for each in pauses)

    run_virtual(main)


def test_a_limit_that_a_batch_holds_and_no_release_declares_any_more_is_named() -> None:
    """The fault: its jobs waited for ever, and neither a log line nor the doctor named the limit."""

    async def main(clock: VirtualClock) -> None:
        store, received = MemoryStorage(clock), list[Event]()
        old, new = (app_on(store, clock=clock) for _ in range(2))
        new.subscribe(received.append, LimitUnknown)
        old.limit("machines", Concurrency(2))
        for app in (old, new):

            @app.task(name="work")
            async def work(number: int) -> None: ...

        async with old.open():
            calls = [old.tasks["work"].call(number) for number in range(3)]
            jobs = (await batch(calls, limits=["machines"]).enqueue()).jobs
            assert (await old.admin.checkup()).unknown_limits == {}
        async with new:
            await asyncio.sleep(300)
            assert (await new.admin.explain(jobs[0].id)).reason.startswith("it waits for limit 'machines'")
            found = [each for each in findings_of(await new.admin.checkup()) if each.check == "limits"]
            said = [event.line() for event in received if isinstance(event, LimitUnknown)]
            for text in (*said, *(each.seen for each in found)):
                assert "machines" in text
                assert jobs[0].id in text
            assert (len(said), len(found)) == (1, 1)
        async with old:
            await asyncio.sleep(60)
            assert [(await old.admin.explain(job.id)).reason for job in jobs] == ["it succeeded"] * 3

    run_virtual(main)


def test_a_limit_that_a_batch_of_another_app_holds_is_not_named() -> None:
    """The fault: the workers and the doctor of an app said to cancel the batch of another app, whose worker ran it."""

    async def main(clock: VirtualClock) -> None:
        store, received = MemoryStorage(clock), list[Event]()
        own, other = (app_on(store, clock=clock) for _ in range(2))
        own.subscribe(received.append, LimitUnknown)
        other.limit("machines", Concurrency(2))

        @other.task
        async def work() -> None: ...

        @own.task
        async def call() -> None: ...

        async with other.open():
            await batch([work.call()], limits=["machines"]).enqueue()
        async with own:
            await asyncio.sleep(300)
            checkup = await own.admin.checkup()
        assert (checkup.unknown_tasks, checkup.unknown_limits, received) == ({"work": 1}, {}, [])

    run_virtual(main)


def test_a_limit_that_a_batch_holds_is_not_named_by_workers_of_the_release_before_while_newer_ones_declare_it() -> None:
    """The fault: in a rolling deploy the older workers told to cancel a batch whose jobs the newer ones ran."""

    async def main(clock: VirtualClock) -> None:
        store, received = MemoryStorage(clock), list[Event]()
        old, new = (app_on(store, clock=clock) for _ in range(2))
        old.subscribe(received.append, LimitUnknown)
        new.limit("machines", Concurrency(1))
        for app in (old, new):

            @app.task(name="work")
            async def work(number: int) -> None:
                await asyncio.sleep(30)

        async with old:
            async with new:
                calls = [new.tasks["work"].call(number) for number in range(30)]
                batches = [await batch(calls, limits=["machines"]).enqueue() for _ in range(20)]
                await asyncio.sleep(300)
                assert (await batches[0].status()).succeeded > 0
                assert received == []
                # The fault: its doctor did.
                assert (await old.admin.checkup()).unknown_limits == {}
            await asyncio.sleep(200)
            (event,) = received
            assert event.line().startswith("no running worker declares limit machines, and the batch of job ")
            assert (await old.admin.checkup()).unknown_limits.keys() == {"machines"}

    run_virtual(main)


@pytest.mark.parametrize("limits", [[], [StrictRate("10/m", name="api")]], ids=["free", "limited"])
def test_a_task_is_not_named_by_workers_of_the_release_before_while_newer_ones_declare_it(limits: list[Limit]) -> None:
    """The fault: in a rolling deploy the older workers and their doctor said to cancel jobs that the newer ones ran."""

    async def main(clock: VirtualClock) -> None:
        store, received = MemoryStorage(clock), list[Event]()
        old, new = (app_on(store, clock=clock) for _ in range(2))
        old.subscribe(received.append, TaskUnknown)

        @new.task(limits=limits)
        async def report() -> None:
            await asyncio.sleep(30)

        async with old:
            async with new:
                jobs = await report.enqueue_many([()] * 5000)
                await asyncio.sleep(300)
                assert (await jobs[0].status()).state is JobState.SUCCEEDED
                assert (received, (await old.admin.checkup()).unknown_tasks) == ([], {})
            await asyncio.sleep(200)
            assert [event.task for event in received if isinstance(event, TaskUnknown)] == ["report"]
            assert (await old.admin.checkup()).unknown_tasks.keys() == {"report"}

    run_virtual(main)


def test_a_task_that_others_declare_for_other_queues_only_is_named() -> None:
    """The fault: the log was silent, and nobody ran its jobs of this queue."""

    async def main(clock: VirtualClock) -> None:
        store, received = MemoryStorage(clock), list[Event]()
        old, new = (app_on(store, clock=clock) for _ in range(2))
        old.subscribe(received.append, TaskUnknown)
        for app in (old, new):
            app.queue("mail")

        @new.task(queue="mail")
        async def send() -> None: ...

        async with old.open(), new.open(), asyncio.TaskGroup() as group:
            nodes = [
                old._make_node(lambda: old._node_config({"default": 1})),
                new._make_node(lambda: new._node_config({"mail": 1})),
            ]
            for node in nodes:
                group.create_task(node.run())
            await asyncio.sleep(1)
            await send.using(queue="default").enqueue()
            await asyncio.sleep(60)
            assert [event.task for event in received if isinstance(event, TaskUnknown)] == ["send"]
            for node in nodes:
                node.stop()

    run_virtual(main)


def test_a_rule_that_was_set_at_run_time_is_named_with_who_set_it_and_what_the_code_says() -> None:
    """The fault: a limit was shown with its rule in force, and nothing said that the code has another one."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("30/m", key="{tenant}", name="api", margin=0)])
        async def call(tenant: str) -> None:
            """Two keys: one with a setting."""

        async with app:
            ada = app.admin.by("ada")
            await ada.limits.set_rule("api", "9/m")
            await ada.limits.set_rule("api", "1/m", key="acme")
            at = app.admin.now()
            jobs = [await call.enqueue("acme") for _ in range(2)]
            await jobs[0].result()
            said = f"set for key 'acme' by ada since {at:%Y-%m-%d %H:%M:%S} UTC; the code says 30/m"
            explained = await app.admin.explain(jobs[1].id)
            assert f"limit 'api' (1/m, {said}) of key 'acme'" in explained.reason
            assert [each.setting for each in explained.limits] == [said]
            assert [each.setting for each in await app.admin.limits.list("api", key="acme")] == [said]
            other = await app.admin.limits.bucket("api", "globex")
            assert other.setting == said.replace("key 'acme'", "all keys")
            await app.admin.limits.unset("api")
            assert (await app.admin.limits.bucket("api", "globex")).setting is None

    run_virtual(main)


@pytest.mark.parametrize("has_other", [False, True])
def test_no_job_waits_for_a_node_that_is_stopping(has_other: bool) -> None:
    """The fault: for a slot of that node, or, while nodes of other queues ran, for one that declares the task."""

    def sender(store: MemoryStorage, clock: VirtualClock) -> Headgate:
        app = app_on(store, clock=clock)
        app.queue("mail", concurrency=1)

        @app.task(queue="mail")
        async def send() -> None:
            await asyncio.sleep(20)

        return app

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        web, other = sender(store, clock), app_on(store, clock=clock)

        @other.task
        async def work() -> None: ...

        async with web.open(), sender(store, clock), other if has_other else other.open():
            jobs = await web.tasks["send"].enqueue_many([(), ()])
            await asyncio.sleep(1)
            assert "free slot of a node" in (await web.admin.explain(jobs[1].id)).reason
            (node,) = [each for each in await web.admin.nodes() if "mail" in each.queues]
            await web.admin.stop_node(node.id)
            await asyncio.sleep(3)
            expected = (
                "no worker serves queue 'mail'; start one: `headgate worker --queue mail`, or `with app:`"
                if has_other
                else "no node is running; start one with `headgate worker`"
            )
            assert (await web.admin.explain(jobs[1].id)).reason == expected
            assert (await web.admin.explain(jobs[0].id)).reason.startswith("it runs on")

    run_virtual(main)


def test_no_start_is_predicted_for_a_limit_whose_own_store_does_not_answer() -> None:
    """The fault: "1st in line, runs about … (in 0.9 s)", for as long as Redis was away."""

    class Away(MemoryBuckets):
        async def take(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(1.2)
            raise StorageUnavailable("away")

        async def snapshot(self, *args: Any, **kwargs: Any) -> Any:
            raise StorageUnavailable("away")

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("30/m", name="api", margin=0, store=Away(clock), on_store_error="wait")])
        async def call() -> None:
            """Waits for the store."""

        async with app:
            job = await call.enqueue()
            await asyncio.sleep(30.5)
            # Also while it is tried again, when the limit counts as open.
            for _ in range(50):
                await asyncio.sleep(0.1)
                explained = await app.admin.explain(job.id)
                assert explained.reason == (
                    "it waits for limit 'api' (30/m): 1st in line, held up as its own store does not answer or its "
                    "rule raises an error; a worker's log says which"
                )
                assert explained.status.predicted_start is None, "below the reason, the dashboard had an earliest start"

    run_virtual(main)


@pytest.mark.parametrize("is_remote", [False, True])
def test_no_job_waits_for_a_permit_that_nobody_holds(is_remote: bool) -> None:
    """The fault: "starts when a permit is returned", of the fourth behind a rate, or of the second in Redis."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        store = MemoryBuckets(clock) if is_remote else None
        rate, slots = StrictRate("2/m", name="api", margin=0, store=store), Concurrency(3, name="slots")

        @app.task(name="both", limits=[slots, rate])
        async def both() -> None: ...

        @app.task(name="one", limits=[rate])
        async def one() -> None: ...

        async with app:
            for task in (both, one):
                jobs = await task.enqueue_many([()] * 10)
                await asyncio.sleep(5)
                waiting = [job for job in jobs if (await job.status()).state is JobState.WAITING]
                assert len(waiting) >= 8
                for job in waiting:
                    explained = await app.admin.explain(job.id)
                    assert explained.reason.startswith("it waits for limit 'api' (2/m)")
                    assert "permit" not in explained.reason
                    assert explained.status.predicted_start is not None or is_remote
                last = (await app.admin.explain(jobs[-1].id)).reason
                assert "the next starts " in last if is_remote else "runs about " in last

    run_virtual(main)


def test_a_job_waits_for_permits_that_the_jobs_before_it_take() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[Concurrency(3, name="slots"), StrictRate("100/m", name="api")])
        async def call() -> None: ...

        async with app.open():
            jobs = await call.enqueue_many([()] * 4)
            assert (await jobs[2].status()).waits_for is None
            assert (await jobs[3].status()).waits_for == ("slots", "")

    run_virtual(main)


def test_the_end_of_a_penalty_returns_no_permit() -> None:
    """The fault: a limit whose permits are held opened when its penalty was over."""

    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)

        @app.task(limits=[Concurrency(1, name="slots")])
        async def call() -> None:
            await asyncio.sleep(7200)

        async with app:
            jobs = await call.enqueue_many([(), ()])
            await asyncio.sleep(5)
            await app.admin.limits.penalize("slots", "", 60)
            (limit,) = (await app.admin.explain(jobs[1].id)).limits
            assert limit.penalized_until is not None
            assert limit.next_slot_at is None
            await jobs[0].cancel()
            await asyncio.sleep(5)
            (limit,) = (await app.admin.explain(jobs[1].id)).limits
            assert limit.next_slot_at == limit.penalized_until is not None

    run_virtual(main)


def test_a_limit_whose_rule_is_changed_while_no_worker_runs_says_when_it_opens() -> None:
    """The fault: the list of limits said "now", and the explanation of a job said nothing."""

    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)

        @app.task(limits=[StrictRate("1/h", name="api", margin=0)])
        async def call() -> None: ...

        async with app:
            began = app.admin.now()
            jobs = await call.enqueue_many([(), ()])
            await asyncio.sleep(5)
        async with app.open():
            await app.admin.limits.set_rule("api", "1/d")
            bucket = await app.admin.limits.bucket("api")
            (limit,) = (await app.admin.explain(jobs[1].id)).limits
            for opens_at in (bucket.next_slot_at, limit.next_slot_at):
                assert opens_at is not None
                assert round((opens_at - began).total_seconds()) == 86_400

    run_virtual(main)


def test_a_job_that_cannot_be_moved_to_new_limits_does_not_wait_for_a_slot() -> None:
    """The fault: "its limits let it start now; it waits for a free slot"."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        old, new = (app_on(store, clock=clock) for _ in range(2))

        @old.task(name="ask")
        async def old_ask(request: dict[str, int]) -> None: ...

        @new.task(limits=[StrictRate("10/h", name="tokens", cost=lambda request: request["tokens"])])
        async def ask(request: dict[str, int]) -> None: ...

        async with old.open():
            job = await old_ask.enqueue({})
        async with new:
            await asyncio.sleep(5)
            reason = (await new.admin.explain(job.id)).reason
            assert reason.startswith("it waits for a worker that declares the limits of its task as the newest release")
            moved = await ask.enqueue({"tokens": 10})
            await moved.result()
            later = await ask.enqueue({"tokens": 1})
            await asyncio.sleep(5)
            assert (await new.admin.explain(moved.id)).reason == "it succeeded"
            assert (await new.admin.explain(later.id)).reason.startswith("it waits for limit 'tokens'")

    run_virtual(main)


def test_a_job_waits_for_a_slot_of_a_worker_of_another_release_than_the_program_that_explains_it() -> None:
    """The fault: it "waits for a worker that declares the limits …", of which all slots were taken."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        apps = [app_on(store, clock=clock, slots=1) for _ in range(2)]
        for app, limit in zip(apps, (Concurrency(5), Concurrency(5, hold="until_final")), strict=True):

            @app.task(name="call", limits=[limit])
            async def call() -> None:
                await asyncio.sleep(60)

        running, newer = apps
        async with running, newer.open():
            jobs = await running.tasks["call"].enqueue_many([(), ()])
            await asyncio.sleep(5)
            reason = (await newer.admin.explain(jobs[1].id)).reason
            assert reason.startswith("it waits for a free slot of a node that serves queue 'default' and declares")

    run_virtual(main)


def test_a_job_waits_for_its_release_in_the_minute_after_a_rollback() -> None:
    """The fault: "its limits let it start now; it waits for a free slot"."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)

        def release(limit: Limit) -> Headgate:
            app = app_on(store, clock=clock)

            @app.task(name="call", limits=[limit])
            async def call(tenant: str) -> None: ...

            return app

        old, new = release(Concurrency(5)), release(Concurrency(5, hold="until_final"))
        for app in (old, new):
            async with app:
                await asyncio.sleep(1)
        async with new.open():
            jobs = [await new.tasks["call"].enqueue("acme")]
        async with old:
            jobs.append(await old.tasks["call"].enqueue("acme"))
            await asyncio.sleep(5)
            of_new, of_old = [(await old.admin.explain(job.id)).reason for job in jobs]
            assert "declares the limits of its task as the newest release does, and not as this program" in of_new
            assert of_old.startswith("it waits for a worker that declares the limits of its task as the newest release")
            await asyncio.sleep(300)
            assert [(await old.admin.explain(job.id)).reason for job in jobs] == ["it succeeded"] * 2

    run_virtual(main)


@pytest.mark.parametrize(
    "limit", [StrictRate("60/m", key="{tenant}", name="crm"), Concurrency(2, key="{tenant}", name="crm")]
)
def test_a_penalty_is_named_with_the_command_that_ends_it(limit: Limit) -> None:
    """The faults: "it waits for limit 'crm' (60/m) …, runs in 1 h 29 min", beside a budget of which nothing was used;
    and with permits "runs about …, now", 90 minutes too early."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[limit])
        async def sync(tenant: str) -> None:
            """Its key is penalized by mistake."""

        async with app:
            await app.admin.limits.penalize("crm", "acme inc", 5400)
            job = await sync.enqueue("acme inc")
            await asyncio.sleep(1)
            explanation = await app.admin.explain(job.id)
            (found,) = explanation.limits
            assert found.penalized_until == explanation.status.predicted_start == found.next_slot_at
            assert f"which is penalized until {found.penalized_until:%Y-%m-%d %H:%M:%S} UTC" in explanation.reason
            assert "(`headgate limits reset crm --key 'acme inc'` ends that" in explanation.reason

            await app.admin.limits.reset("crm", "acme inc")
            await job.result()
            second = await sync.enqueue("acme inc")
            assert [each.penalized_until for each in (await app.admin.explain(second.id)).limits] == [None]

    run_virtual(main)


def test_a_job_that_waits_after_an_error_names_it() -> None:
    """The fault: with the API down, a job of a limited task seemed to wait for its limit and for nothing else."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("1/m", key="{tenant}", name="crm")], retry=RetryPolicy(retries=3, delay=1))
        async def sync(tenant: str) -> None:
            raise ConnectionError(f"503 for {tenant}\nand {'more ' * 100}")

        async with app:
            job = await sync.enqueue("acme")
            await asyncio.sleep(10)
            reason = (await app.admin.explain(job.id)).reason
            assert reason.startswith("it waits for limit 'crm' (1/m) of key 'acme'")
            assert reason.endswith("; its last error: ConnectionError")
            await app.admin.limits.pause("crm", key="acme")
            paused = (await app.admin.explain(job.id)).reason
            assert paused.startswith("limit 'crm' is paused")
            assert paused.endswith("; its last error: ConnectionError")
            await app.admin.cancel(job.id)
            assert (await app.admin.explain(job.id)).reason == "it was cancelled", "by a user, and not for that error"

    run_virtual(main)


def test_a_job_that_waits_for_the_permit_of_an_owner_names_the_owner() -> None:
    """The fault: it was said to be held by "job owner:ann (no longer stored)"."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[Concurrency(1, owner="{owner}")])
        async def stay(owner: str) -> None:
            await asyncio.sleep(10)

        async with app:
            await stay.enqueue("ann")
            await asyncio.sleep(1)
            job = await stay.enqueue("bob")
            await asyncio.sleep(1)
            assert (await app.admin.explain(job.id)).reason.endswith("held by owner 'ann'")

    run_virtual(main)
