"""Why a job waits: the basic reason first, whatever limits the job has as well."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headgate import Headgate, StrictRate
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on


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
                assert of_worker.startswith("this program does not declare task 'bill', and no running node does;")
                assert "a permit is returned" not in of_worker
                of_web = (await before.admin.explain(job.id)).reason
                assert of_web.startswith(
                    "no running node declares task 'bill' in queue 'default', and this program does"
                )
                (queue,) = [each for each in (await after.admin.overview()).queues if each.queue == "default"]
                assert (queue.waiting, queue.ready, queue.throttled, queue.undeclared) == (1, 0, 0, 1)

    with caplog.at_level(logging.ERROR, "headgate"):
        run_virtual(main)
    assert [record.message[:23] for record in caplog.records] == ["jobs of task bill wait,"]


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
