"""Jobs that an older release has enqueued: under an old name, with old arguments, or of an unknown task."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pydantic
import pytest

from headgate import DeclarationError, Headgate, JobFailed, JobState, RetryPolicy, StrictRate, current_job
from headgate.jobs.event import Event, JobFinished, JobsMigrated, TaskUnknown
from headgate.jobs.identity import job_number
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on
from tests.until import result_within


class Invoice(pydantic.BaseModel):
    number: int
    note: str | None = None


def test_jobs_stored_under_an_alias_run_with_the_current_task_and_keep_their_name() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        older, newer = app_on(store, clock=clock), app_on(store, clock=clock)
        events: list[Event] = []
        newer.subscribe(events.append, JobFinished, TaskUnknown)
        seen: list[str] = []

        @older.task
        async def make_pdf(number: int) -> Invoice:
            raise AssertionError

        @newer.task(name="invoices.render", aliases=["make_pdf", "make_document"])
        async def render(number: int) -> Invoice:
            seen.append(current_job().task)
            return Invoice(number=number)

        async with older.open():
            old = await make_pdf.enqueue(1)
        async with newer:
            new = await render.enqueue(2)
            assert await newer.job(old.id).result() == Invoice(number=1)
            assert await new.result() == Invoice(number=2)
            assert (await old_status(newer, old.id)).task == "make_pdf"
        assert sorted(seen) == ["invoices.render", "make_pdf"]
        assert sorted(event.task for event in events if isinstance(event, JobFinished)) == [
            "invoices.render",
            "make_pdf",
        ]
        assert not any(isinstance(event, TaskUnknown) for event in events)

    async def old_status(app: Headgate, job_id: str) -> Any:
        return await app.job(job_id).status()

    run_virtual(main)


def test_the_backlog_under_an_alias_is_moved_to_the_current_limits() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        older, newer = app_on(store, clock=clock), app_on(store, clock=clock)
        moved: list[JobsMigrated] = []
        newer.subscribe(moved.append, JobsMigrated)
        started: list[float] = []

        @older.task(limits=[StrictRate("1/h", key="{tenant}", margin=0)])
        async def call(tenant: str) -> None:
            started.append(asyncio.get_running_loop().time())

        @newer.task(name="call_tenant", aliases=["call"], limits=[StrictRate("1/s", key="{tenant}", margin=0)])
        async def call_tenant(tenant: str) -> None:
            started.append(asyncio.get_running_loop().time())

        async with older:
            jobs = [await call.enqueue("acme") for _ in range(5)]
            await jobs[0].result()
        async with newer:
            for job in jobs[1:]:
                await newer.job(job.id).result()
            assert [event.jobs for event in moved] == [4]
        assert started[-1] - started[1] == pytest.approx(3, abs=0.1)

    run_virtual(main)


def test_a_job_of_an_unknown_task_waits_for_a_release_that_has_it() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        before, broken, repaired = (app_on(store, clock=clock) for _ in range(3))
        alarms: list[Event] = []
        broken.subscribe(alarms.append, TaskUnknown)

        @before.task
        async def old_name(x: int) -> int:
            return x

        @broken.task(name="new_name")
        async def renamed_only(x: int) -> int:
            return x

        @repaired.task(name="new_name", aliases=["old_name"])
        async def renamed(x: int) -> int:
            return x + 1

        async with before.open():
            job = await old_name.enqueue(1)
        async with broken:
            await asyncio.sleep(3600)
            status = await broken.job(job.id).status()
            assert (status.state, status.attempt) == (JobState.WAITING, 0)
            assert [event.task for event in alarms if isinstance(event, TaskUnknown)] == ["old_name"]
            assert "does not declare task 'old_name'" in (await broken.admin.explain(job.id)).reason
            async with repaired.open():
                reason = (await repaired.admin.explain(job.id)).reason
                assert reason.startswith("no running node that serves queue 'default' declares task 'old_name'")
        async with repaired:
            assert await repaired.job(job.id).result() == 2

    run_virtual(main)


@pytest.mark.parametrize(
    ("aliases", "reason"),
    [
        (["other"], "which already leads to task 'other'"),
        (["older"], "which already leads to task 'other'"),
        (["work"], "which already leads to task 'work'"),
        (["a", "a"], "names an alias twice"),
        (["no good"], "alias name 'no good'"),
        ("old", "write aliases="),
        ([1], "write aliases="),
    ],
)
def test_an_alias_leads_to_one_task_only(aliases: Any, reason: str) -> None:
    app = Headgate("memory://")

    @app.task(aliases=["older"])
    async def other() -> None: ...

    with pytest.raises(DeclarationError, match=reason):

        @app.task(aliases=aliases)
        async def work() -> None: ...

    assert "work" not in app.tasks
    with pytest.raises(DeclarationError, match="is also an alias of task 'other'"):

        @app.task(name="older")
        async def late() -> None: ...


def with_page(stored: dict[str, Any]) -> dict[str, Any]:
    stored["page"] = stored.pop("pages") + 1
    return stored


def test_old_arguments_are_upgraded_and_stay_stored_as_they_were() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        older, newer = app_on(store, clock=clock), app_on(store, clock=clock)

        @older.task
        async def scan(tenant: str, pages: int) -> int:
            raise AssertionError

        @newer.task(name="scan_tenant", aliases=["scan"], upgrade=with_page)
        async def scan_tenant(tenant: str, page: int) -> int:
            return page

        async with older.open():
            job = await scan.enqueue("acme", 1)
        async with newer:
            assert await newer.job(job.id).result() == 2
            record = await store.job(job.id)
            assert record is not None
            assert record.payload == '{"tenant":"acme","pages":1}'

    run_virtual(main)


def test_a_failing_upgrade_uses_five_tries_and_keeps_the_stored_payload() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        older, newer, fixed = (app_on(store, clock=clock) for _ in range(3))

        @older.task(name="scan")
        async def old_scan(pages: int) -> int:
            raise AssertionError

        @newer.task(name="scan", upgrade=lambda stored: {"page": stored["pagez"]})
        async def scan(page: int) -> int:
            raise AssertionError

        @fixed.task(name="scan", upgrade=with_page)
        async def fixed_scan(page: int) -> int:
            return page

        async with older.open():
            job = await old_scan.enqueue(1)
        async with newer:
            with pytest.raises(JobFailed) as failed:
                await newer.job(job.id).result()
            assert failed.value.error_type.endswith("PayloadError")
            assert "KeyError: 'pagez'" in failed.value.message
            assert "test_renamed_tasks.py" in (failed.value.traceback or "")
            attempts = (await newer.admin.job(job.id)).attempts
            assert [attempt.outcome for attempt in attempts] == ["unreadable"] * 7 + ["failed"]
        async with fixed:
            await fixed.admin.retry(job.id)
            assert await fixed.job(job.id).result() == 2

    run_virtual(main)


DAMAGED = [
    b"",
    b"{",
    b"null",
    b"[1]",
    b'{"x":1.5}',
    b'{"x":NaN}',
    b"[" * 100_000,
    b'{"x":' + b"9" * 50_000 + b"}",
    b'{"z":1}',
    b'{"x":"\xff\xfe"}',
]


async def test_damaged_rows_are_skipped_and_the_worker_continues(tmp_path: Path) -> None:
    """The fault: one row that could not be read stopped the loop that read it, and with it all other jobs."""
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def work(x: int) -> int:
        return x

    async with app.open():
        jobs = await work.enqueue_many([(i,) for i in range(len(DAMAGED))])
    database = sqlite3.connect(tmp_path / "jobs.db")
    with database:
        for job, payload in zip(jobs, DAMAGED, strict=True):
            # As after seven tries: the eighth is the last, with three retries.
            database.execute(
                "UPDATE job SET payload = CAST(? AS TEXT), attempt = 7 WHERE id = ?", (payload, job_number(job.id))
            )
    async with app:
        fine = await work.enqueue(7)
        assert await result_within(fine, 5) == 7
        for job, payload in zip(jobs, DAMAGED, strict=True):
            with pytest.raises(JobFailed, match="PayloadError"):
                await result_within(job, 5)
            stored = database.execute(
                "SELECT CAST(payload AS BLOB) FROM job WHERE id = ?", (job_number(job.id),)
            ).fetchone()
            assert stored == (payload,)
    database.close()


TEXT = 'NUL \x00, separator \u2028, astral \U0001f600, quote " and \\u0000'


async def keeps_odd_characters(url: str, **settings: Any) -> None:
    app = Headgate(url, retry=RetryPolicy(retries=0), **settings)
    seen: list[str] = []

    @app.task
    async def work(text: str) -> str:
        seen.append(text)
        return text

    async with app:
        job = await work.enqueue(TEXT)
        assert await result_within(job) == TEXT
    assert seen == [TEXT]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_odd_characters_in_payloads_and_results_are_kept(store: str, tmp_path: Path) -> None:
    await keeps_odd_characters("memory://" if store == "memory" else f"sqlite:///{tmp_path}/jobs.db")


async def test_odd_characters_in_payloads_and_results_are_kept_by_postgresql_too(
    postgres_url: str, postgres_schema: str
) -> None:
    """Its text cannot hold NUL, so what is stored is the escape."""
    await keeps_odd_characters(postgres_url, schema=postgres_schema)
