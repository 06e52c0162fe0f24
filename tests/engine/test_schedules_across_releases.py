"""Schedules from one release to the next: renamed tasks, rolling deploys, rollbacks, and undeclared tasks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headgate import Cron, Every, Headgate, JobState, StrictRate, chain, current_job
from headgate.clock import SECOND, from_datetime
from headgate.jobs.event import (
    Event,
    ScheduleFailed,
    ScheduleOverdue,
    ScheduleRenamed,
    ScheduleSuperseded,
    ScheduleTooFast,
)
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import START, VirtualClock, run_virtual
from tests.internals import app_on, node_of, store_of
from tests.until import becomes, patient

HOURLY = Every(hours=1)
TOLD = (ScheduleOverdue, ScheduleRenamed, ScheduleSuperseded, ScheduleTooFast, ScheduleFailed)


def before(store: Any, trigger: Any = HOURLY, **options: Any) -> Headgate:
    """The release in which the task had its old name."""
    app = app_on(store, **{key: options.pop(key) for key in ("clock", "schema", "codec") if key in options})

    @app.schedule(trigger, **options)
    @app.task
    async def invoice() -> None: ...

    return app


def after(store: Any, trigger: Any = HOURLY, *, aliases: Any = ("invoice",), **options: Any) -> Headgate:
    """The release that has renamed it, as the docs advise."""
    app = app_on(store, **{key: options.pop(key) for key in ("clock", "schema") if key in options})

    @app.schedule(trigger, **options)
    @app.task(aliases=aliases)
    async def send_invoice() -> None: ...

    return app


class Tens:
    def next_after(self, instant: int) -> int | None:
        return (instant // (600 * SECOND) + 1) * 600 * SECOND

    def latest_at_or_before(self, instant: int) -> int | None:
        return instant // (600 * SECOND) * 600 * SECOND

    def describe(self) -> str:
        return "tens"


class Reversed:
    name = "reversed"

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    decode = encode


def grown(store: Any, clock: VirtualClock, ran: list[int], *, steps: int) -> Headgate:
    """A release with a chain of so many steps, each of a task of its own; the first one notes its occurrence."""
    app = app_on(store, clock=clock)

    async def step() -> None:
        occurs_at = current_job().occurs_at
        if current_job().task == "step_0" and occurs_at is not None:
            ran.append((from_datetime(occurs_at) - START) // SECOND)

    tasks = [app.task(name=f"step_{number}")(step) for number in range(steps)]
    app.schedule(Every(minutes=10), chain(*(task.call() for task in tasks)), name="nightly")
    return app


async def names(app: Headgate) -> list[str]:
    return [each.name for each in await app.admin.schedules.list()]


async def names_become(app: Headgate, wanted: list[str]) -> None:
    await becomes(lambda: names(app), wanted)


async def test_the_schedule_of_a_renamed_task_continues_under_its_new_name(shared: tuple[Any, dict[str, Any]]) -> None:
    """The fault: the old row stayed, its task was still known by its alias, and every invoice went out twice."""
    store, options = shared
    async with (old := before(store, max_runs=9, **options)):
        await names_become(old, ["invoice"])
        await (await old.find_schedule("invoice").trigger()).result()
        await old.admin.schedules.pause("invoice")
        known = await old.admin.schedules.status("invoice")
    received: list[Event] = []
    async with (new := after(store, max_runs=9, **options)), after(store, max_runs=9, **options):
        new.subscribe(received.append, ScheduleRenamed)
        await names_become(new, ["send_invoice"])
        status = await new.admin.schedules.status("send_invoice")
        assert (status.task, status.state, status.runs) == ("send_invoice", "paused", 1)
        assert (status.started_at, status.max_runs) == (known.started_at, 9)
        # A worker of the old release that starts again meanwhile leaves it so.
        superseded = asyncio.Event()
        again = before(store, max_runs=9, **options)
        again.subscribe(lambda _: superseded.set(), ScheduleSuperseded)
        async with again:
            await asyncio.wait_for(superseded.wait(), patient(5))
            assert await names(new) == ["send_invoice"]
        assert await store_of(new).check() == []


def test_each_occurrence_runs_once_through_a_rolling_deploy_that_renames_its_task() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        minute = Every(minutes=1)
        async with before(store, minute, clock=clock):
            await asyncio.sleep(90)
            async with (new := after(store, minute, clock=clock)):
                await asyncio.sleep(60)
                async with before(store, minute, clock=clock):
                    await asyncio.sleep(300)
                assert await names(new) == ["send_invoice"]
        async with (new := after(store, minute, clock=clock)):
            await asyncio.sleep(150)
            records = [(await new.admin.job(job.id)).record for job in await new.admin.jobs()]
            at = sorted(record.origin.occurs_at or 0 for record in records if record.origin is not None)
            assert [(each - START) // SECOND for each in at] == list(range(60, 600, 60))

    run_virtual(main)


def test_a_rolled_back_rename_restores_the_schedule_when_the_newer_release_is_gone() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        async with (old := before(store, clock=clock)):
            await asyncio.sleep(1)
            started = (await old.admin.schedules.status("invoice")).started_at
        async with after(store, clock=clock):
            await asyncio.sleep(100)
        async with (old := before(store, clock=clock)):
            await asyncio.sleep(150)
            assert await names(old) == ["send_invoice"]
            await asyncio.sleep(150)
            assert await names(old) == ["invoice"]
            status = await old.admin.schedules.status("invoice")
            assert (status.task, status.started_at) == ("invoice", started)
        # And forward again.
        async with (new := after(store, clock=clock)):
            await asyncio.sleep(1)
            assert await names(new) == ["send_invoice"]
            assert (await new.admin.schedules.status("send_invoice")).started_at == started

    run_virtual(main)


def test_of_two_schedules_of_a_task_with_a_late_alias_one_stays() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        async with before(store, clock=clock):
            await asyncio.sleep(1)
        async with (new := after(store, aliases=(), clock=clock)):
            await asyncio.sleep(1)
            assert await names(new) == ["invoice", "send_invoice"]
        async with (new := after(store, clock=clock)):
            await asyncio.sleep(1)
            assert await names(new) == ["send_invoice"]

    run_virtual(main)


def test_a_schedule_that_an_older_release_stored_last_is_corrected_within_a_minute() -> None:
    """It had asked whether it is the newest before the newer one started, and writes after that one has written."""

    async def main(clock: VirtualClock) -> None:
        store, slow = MemoryStorage(clock), asyncio.Event()

        class Slow(MemoryStorage):
            def __init__(self) -> None:
                self.__dict__ = store.__dict__

            async def note_limit_sets(self, limit_sets: Any, **options: Any) -> Any:
                noted = await super().note_limit_sets(limit_sets, **options)
                if any(" " in each for each in limit_sets):
                    await slow.wait()
                return noted

        async with before(Slow(), clock=clock):
            await asyncio.sleep(1)
            async with (new := after(store, clock=clock)):
                await asyncio.sleep(1)
                slow.set()
                await asyncio.sleep(1)
                assert await names(new) != ["send_invoice"]
                await asyncio.sleep(100)
                assert await names(new) == ["send_invoice"]

    run_virtual(main)


def test_a_schedule_that_is_not_of_the_code_or_declared_otherwise_is_not_taken_over() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        older = app_on(store, clock=clock)

        @older.task
        async def invoice() -> None: ...

        async with older.open():
            await invoice.schedule("invoice", HOURLY).enqueue()
        async with (new := after(store, clock=clock)):
            await asyncio.sleep(1)
            assert await names(new) == ["invoice", "send_invoice"]
        # One that has a name of its own keeps it, whatever its task is called.
        async with (named := after(MemoryStorage(clock), name="monthly", clock=clock)):
            await asyncio.sleep(1)
            assert await names(named) == ["monthly"]

    run_virtual(main)


def test_a_name_that_another_schedule_of_the_same_code_has_stays_with_it() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        async with before(store, clock=clock):
            await asyncio.sleep(1)
        both = after(store, clock=clock)
        both.schedule(HOURLY, name="invoice")(both.tasks["send_invoice"])
        async with both:
            await asyncio.sleep(1)
            assert await names(both) == ["invoice", "send_invoice"]

    run_virtual(main)


def test_a_restarted_worker_of_an_older_release_does_not_restore_its_trigger() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        old, new, received = Every(minutes=10), Cron("30 * * * *"), list[Event]()

        async def trigger(app: Headgate) -> str:
            return (await app.admin.schedules.status("invoice")).trigger

        async with before(store, old, clock=clock):
            await asyncio.sleep(10)
            async with (newer := before(store, new, clock=clock)):
                await asyncio.sleep(1)
                assert await trigger(newer) == new.describe()
                again = before(store, old, clock=clock)
                again.subscribe(received.append, *TOLD)
                async with again:
                    await asyncio.sleep(400)
                    assert await trigger(newer) == new.describe()
                    assert [type(event) for event in received] == [ScheduleSuperseded]
            # The newer release was rolled back: when none of it has run for three minutes, the older one holds.
            await asyncio.sleep(300)
            async with (reader := app_on(store, clock=clock)).open():
                assert await trigger(reader) == old.describe()

    run_virtual(main)


def test_a_worker_that_drains_for_long_does_not_hold_up_a_rollback() -> None:
    """The fault: it went on declaring its schedules, so the older trigger applied only when its last job had ended."""

    async def main(clock: VirtualClock) -> None:
        store, old, new = MemoryStorage(clock), Every(minutes=10), Cron("30 * * * *")
        older, newer = before(store, old, clock=clock), app_on(store, clock=clock, grace=7200)

        @newer.task
        async def run_long() -> None:
            await asyncio.sleep(3600)

        @newer.schedule(new)
        @newer.task
        async def invoice() -> None: ...

        async with older:
            await asyncio.sleep(10)
            async with newer:
                job = await run_long.enqueue()
                await asyncio.sleep(10)
                assert (await older.admin.schedules.status("invoice")).trigger == new.describe()
                node_of(newer).stop()
                await asyncio.sleep(300)
                assert (await older.admin.schedules.status("invoice")).trigger == old.describe()
                assert (await job.status()).state is JobState.RUNNING

    run_virtual(main)


@pytest.mark.parametrize("is_canary", [True, False])
def test_the_older_declaration_applies_again_after_a_release_with_a_step_of_a_new_task(is_canary: bool) -> None:
    """The fault: a worker that had once found a step of a task that it lacks never enqueued the schedule again."""

    async def main(clock: VirtualClock) -> None:
        store, ran, failed = MemoryStorage(clock), list[int](), list[Event]()
        old = grown(store, clock, ran, steps=1)
        old.subscribe(failed.append, ScheduleFailed)
        async with AsyncExitStack() as older:
            await older.enter_async_context(old)
            await asyncio.sleep(10)
            if not is_canary:
                await older.aclose()
            async with grown(store, clock, ran, steps=2):
                await asyncio.sleep(1690)
            if not is_canary:
                await older.enter_async_context(old)
            # The newer declaration holds for another three minutes, and the chain is due in these.
            await asyncio.sleep(1400)
            assert ran == [600, 1200, 1800, 2400, 3000]
            status = await old.admin.schedules.status("nightly")
            assert (status.tasks, status.problem) == (["step_0"], None)
        assert len(failed) == 1

    run_virtual(main)


@pytest.mark.parametrize("declares", [True, False])
def test_an_occurrence_whose_arguments_fit_only_the_newer_release_is_left_to_it(declares: bool) -> None:
    """The fault: an older worker that found it first stored it as failed, if a limit has a key from its arguments."""

    async def main(clock: VirtualClock) -> None:
        store, ran, failed = MemoryStorage(clock), list[str](), list[Event]()
        old, new = app_on(store, clock=clock), app_on(store, clock=clock)
        limits = [StrictRate("1/s", key="{tenant}")]

        async def pull(tenant: str) -> None:
            ran.append(tenant)

        task = old.task(limits=limits)(pull)
        if declares:
            old.schedule(Every(minutes=2), args=["acme"])(task)

        @new.schedule(Every(minutes=2), args=["acme", "eu"])
        @new.task(name="pull", limits=limits)
        async def pull_from(tenant: str, region: str) -> None:
            ran.append(f"{tenant} in {region}")

        old.subscribe(failed.append, ScheduleFailed)
        async with old:
            await asyncio.sleep(10)
            async with new:
                await asyncio.sleep(10)
            await asyncio.sleep(110)
            assert await old.admin.jobs() == []
            async with new:
                await asyncio.sleep(50)
            assert ran == ["acme in eu"]
            assert len(failed) == 1
            # After a rollback the older declaration applies again.
            await asyncio.sleep(600)
            assert bool(ran[1:]) is declares

    run_virtual(main)


def test_a_schedule_that_was_removed_is_not_declared_again_by_the_workers_that_run() -> None:
    async def main(clock: VirtualClock) -> None:
        async with (app := before(MemoryStorage(clock), clock=clock)):
            await asyncio.sleep(1)
            assert await app.find_schedule("invoice").remove()
            await asyncio.sleep(300)
            assert await names(app) == []

    run_virtual(main)


def test_an_overdue_schedule_of_an_undeclared_task_is_reported_once() -> None:
    """It stood still without a word: what is due is asked for by the tasks that a node knows."""

    async def main(clock: VirtualClock) -> None:
        store, received = MemoryStorage(clock), list[Event]()
        async with before(store, Every(minutes=10), clock=clock):
            await asyncio.sleep(10)
        other = app_on(store, clock=clock)
        other.subscribe(received.append, *TOLD)
        async with other:
            await asyncio.sleep(595)
            assert received == []
            await asyncio.sleep(3600)
        assert [(type(event), event.lacks, event.task) for event in received] == [  # type: ignore[attr-defined]
            (ScheduleOverdue, "task", "invoice")
        ]
        assert received[0].due_at == START + 600 * SECOND  # type: ignore[attr-defined]

    run_virtual(main)


def test_an_overdue_schedule_with_an_undeclared_custom_trigger_is_reported_once() -> None:
    async def main(clock: VirtualClock) -> None:
        store, received = MemoryStorage(clock), list[Event]()
        async with before(store, Tens(), clock=clock):
            await asyncio.sleep(10)
        other = app_on(store, clock=clock)
        other.subscribe(received.append, *TOLD)

        @other.task
        async def invoice() -> None: ...

        async with other:
            await asyncio.sleep(3600)
        assert [(type(event), event.lacks) for event in received] == [(ScheduleOverdue, "trigger")]  # type: ignore[attr-defined]

    run_virtual(main)


@pytest.mark.parametrize("lacks", ["task", "step", "trigger", "codec", None])
def test_an_overdue_schedule_is_told_where_a_task_a_step_its_trigger_or_its_codec_is_lacking(lacks: str | None) -> None:
    """The fault: `headgate status` told only of those whose first task is not declared, and of none without its key."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        tens, codec = Tens() if lacks == "trigger" else Every(minutes=10), Reversed() if lacks == "codec" else None
        invoices = before(store, tens, clock=clock, codec=codec)
        async with grown(store, clock, [], steps=2) if lacks == "step" else invoices as app:
            await asyncio.sleep(10)
            name = (await names(app))[0]
        other = app_on(store, clock=clock)
        known = {"task": "other", "step": "step_0"}.get(lacks or "", "invoice")

        @other.task(name=known)
        async def work() -> None: ...

        async with other.open():
            await asyncio.sleep(600)
            assert await other.admin.schedules.overdue() == []
            await asyncio.sleep(60)
            overdue = await other.admin.schedules.overdue()
            assert [each.name for each in overdue] == ([] if lacks is None else [name])
            problem = "overdue: the payload of its jobs cannot be decoded: it is encoded with 'reversed'"
            expected = problem if lacks == "codec" else "does not declare"
            assert all(expected in str(each.problem) for each in overdue)

    run_virtual(main)


@pytest.mark.parametrize("lacks", ["task", "trigger"])
def test_a_schedule_that_a_node_could_not_run_is_run_after_it_was_stored_anew(lacks: str) -> None:
    async def main(clock: VirtualClock) -> None:
        store, ran = MemoryStorage(clock), list[int]()
        if lacks == "task":
            other, name = grown(store, clock, [], steps=2), "nightly"
        else:
            other, name = before(store, Tens(), clock=clock), "invoice"
        async with other:
            await asyncio.sleep(10)
        node = app_on(store, clock=clock)

        @node.task(aliases=["step_0"])
        async def invoice() -> None:
            ran.append(clock.now())

        async with node:
            await asyncio.sleep(1800)
            assert ran == []
            assert await node.find_schedule(name).remove()
            await invoice.schedule(name, Every(minutes=10)).enqueue()
            await asyncio.sleep(1210)
            assert len(ran) == 2

    run_virtual(main)
