"""Codecs in the lives of jobs: nothing is stored in clear, keys are renewed, and a node without a key loses no job."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate import (
    AesGcm,
    AttemptContext,
    Every,
    Headgate,
    JobFailed,
    JobState,
    Mutex,
    PayloadError,
    RetryPolicy,
    StrictRate,
    Zlib,
    batch,
    chain,
    current_job,
)
from headgate.clock import SECOND, SystemClock
from headgate.jobs.encoded import codecs_of, is_encoded
from headgate.jobs.event import Event, ScheduleFailed, ScheduleSuperseded
from headgate.storage.records import Beat, ScheduleRecord
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, store_of
from tests.until import result_within, until

SECRET = "hunter2-swordfish"
OLD, NEW = AesGcm("2026-05", AesGcm.new_key()), AesGcm("2026-11", AesGcm.new_key())
ONCE = RetryPolicy(retries=0)

Run = Callable[[], Awaitable[Any]]


def declare_pay(app: Headgate, **options: Any) -> Any:
    @app.task(**{"retry": ONCE, **options})
    async def pay(tenant: str, card: str, cents: int = 0) -> str:
        return f"{tenant} paid {cents} with {card}"

    return pay


async def record_of(app: Headgate, name: str) -> ScheduleRecord:
    (record,) = await store_of(app).schedules(name=name)
    return record


async def is_stored(app: Headgate, name: str) -> bool:
    return bool(await store_of(app).schedules(name=name))


async def stored_payload(app: Headgate, job_id: str) -> str:
    record = await store_of(app).job(job_id)
    assert record is not None
    return record.payload


async def result_of_schedule(app: Headgate, name: str) -> Any:
    """The result of the first job of a schedule."""

    async def has_run() -> bool:
        return bool(await app.admin.jobs(schedule=name))

    await until(has_run)
    (job, *_) = await app.admin.jobs(schedule=name, oldest_first=True)
    return await result_within(app.job(job.id))


# ------------------------------------------------------------------------------------------ in no table, in no log


def dump_files(folder: Path) -> str:
    """All that is in the tables of `jobs.db`, and in its files."""
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as file:
        tables = "\n".join(file.iterdump())
    return tables + "".join(each.read_bytes().decode("latin-1") for each in folder.glob("jobs.db*"))


@pytest.fixture(params=["sqlite", "postgres"])
def database(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[str, dict[str, Any], Callable[[], Awaitable[str]]]:
    """The URL of a database, the settings for it, and all that is in it, as text."""
    if request.param == "sqlite":

        async def dump() -> str:
            return dump_files(tmp_path)

        return f"sqlite:///{tmp_path / 'jobs.db'}", {}, dump
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")

    async def dump_schema() -> str:
        connection = await asyncpg.connect(url)
        try:
            tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
            rows = [
                await connection.fetch(f'SELECT t::text AS row FROM "{schema}"."{table["tablename"]}" t')
                for table in tables
            ]
            return "\n".join(row["row"] for found in rows for row in found)
        finally:
            await connection.close()

    return url, {"schema": schema, "migrate": True}, dump_schema


async def test_nothing_of_arguments_and_results_is_stored_or_logged_however_jobs_are_enqueued(
    database: tuple[str, dict[str, Any], Callable[[], Awaitable[str]]], caplog: pytest.LogCaptureFixture
) -> None:
    url, settings, dump = database
    app = Headgate(url, codec=[Zlib(above=200), NEW], log_jobs=True, **settings)
    pay = declare_pay(app, limits=[StrictRate("9/h", key="{tenant}", name="by-tenant")], unique_key="{cents}")
    plain = app.task(name="plain", retry=ONCE)(pay.function)

    @app.schedule(Every(hours=1), args=[SECRET], first="now")
    @app.task
    async def hourly(card: str) -> str:
        return card

    @app.task(retry=ONCE)
    async def wrong(card: str) -> dict[str, int]:
        return {"card": card}  # type: ignore[dict-item]

    @app.around_attempt
    async def change(job: AttemptContext, run: Run) -> Any:
        if "tenant" in job.arguments:
            job.arguments["cents"] = 7
        return await run()

    caplog.set_level(logging.DEBUG)
    long = SECRET * 40
    async with app:
        one = await pay.enqueue("acme", SECRET, 1)
        many = await plain.enqueue_many([("acme", SECRET), ("acme", long)])
        group = await batch([plain.call("acme", SECRET)] * 2, limits=[Mutex("{tenant}")]).enqueue()
        line = await chain(plain.call("acme", SECRET), plain.call("acme", SECRET)).enqueue()
        later = await pay.using(delay=3600).enqueue("acme", SECRET, 2)
        again = await pay.using(on_conflict="replace").enqueue("b", SECRET, 2)
        await plain.schedule("often", Every(minutes=5), first="now").enqueue("acme", SECRET)
        refused = await wrong.enqueue(SECRET)
        assert await result_within(one) == f"acme paid 7 with {SECRET}"
        assert [await result_within(job) for job in many] == [f"acme paid 7 with {each}" for each in (SECRET, long)]
        assert {await result_within(job) for job in group.jobs} == {f"acme paid 7 with {SECRET}"}
        assert await result_within(line) == f"acme paid 7 with {SECRET}"
        with pytest.raises(JobFailed, match="does not fit its annotation"):
            await result_within(refused)
        assert again.id == later.id
        assert (await store_of(app).job(later.id)).buckets[0].key == "b"  # type: ignore[union-attr]
        for name, result in (("often", f"acme paid 7 with {SECRET}"), ("hourly", SECRET)):
            assert await result_of_schedule(app, name) == result
        encodings = {codecs_of(await stored_payload(app, job.id)) for job in (one, *many, later)}
        assert encodings == {("aes-gcm.2026-11",), ("zlib", "aes-gcm.2026-11")}
        assert await store_of(app).check() == []
    stored = await dump()
    assert "by-tenant" in stored
    assert "encoded:aes-gcm.2026-11:" in stored
    assert "swordfish" not in stored
    assert "swordfish" not in caplog.text


# ------------------------------------------------------------------------------------------ codecs come and go


def test_jobs_from_before_the_codec_run_and_those_from_after_it_run_without_it_being_first() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        jobs: list[str] = []
        releases: list[dict[str, Any]] = [
            {},
            {"codec": OLD},
            {"codec": NEW, "old_codecs": [OLD]},
            {"old_codecs": [OLD, NEW]},
        ]
        for codecs in releases:
            app = app_on(store, clock=clock, **codecs)
            pay = declare_pay(app)
            async with app.open():
                jobs.append((await pay.enqueue("acme", SECRET)).id)
        async with app:
            names = [codecs_of(await stored_payload(app, job)) for job in jobs]
            assert names == [(), ("aes-gcm.2026-05",), ("aes-gcm.2026-11",), ()]
            for job in jobs:
                assert await result_within(app.job(job), 60) == f"acme paid 0 with {SECRET}"

    run_virtual(main)


@pytest.mark.parametrize("lacking", [{}, {"codec": OLD}, {"codec": AesGcm("2026-11", AesGcm.new_key())}])
def test_a_job_that_a_node_cannot_decode_is_tried_again_and_then_kept_for_a_retry(lacking: dict[str, Any]) -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        able, unable = app_on(store, clock=clock, codec=NEW), app_on(store, clock=clock, **lacking)
        pay = declare_pay(able)
        called: list[str] = []
        unable.task(name="pay")(called.append)

        @unable.task
        async def other() -> None: ...

        async with able.open():
            job = await pay.enqueue("acme", SECRET)
        async with unable:
            await result_within(await other.enqueue(), 5)
            before = clock.monotonic()
            with pytest.raises(JobFailed, match="payload of task 'pay' cannot be decoded") as failed:
                await result_within(unable.job(job.id), 600)
            assert failed.value.error_type == "headgate.errors.PayloadError"
            # Three retries, and five attempts more: 30 s apart.
            assert round((clock.monotonic() - before) / SECOND) == 210
        async with able:
            assert not called
            await able.admin.retry(job.id)
            assert await result_within(able.job(job.id), 5) == f"acme paid 0 with {SECRET}"
        async with unable.open():
            with pytest.raises(PayloadError, match="what task 'pay' returned cannot be decoded"):
                await result_within(unable.job(job.id), 5)
        stranger = app_on(store, clock=clock, **lacking)
        async with stranger.open():
            with pytest.raises(PayloadError, match=f"the result of job {job.id} cannot be decoded"):
                await result_within(stranger.job(job.id), 5)

    run_virtual(main)


@pytest.mark.parametrize("retries", [4, 6, 9])
def test_a_job_with_many_failures_is_tried_as_often_by_nodes_that_cannot_decode_it(retries: int) -> None:
    """The fault: from its fifth attempt on it failed at the first claim of a worker without the new key."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        able, unable = app_on(store, clock=clock, codec=NEW), app_on(store, clock=clock, codec=OLD)
        attempts: list[int] = []

        async def pay(card: str) -> str:
            attempts.append(current_job().attempt)
            if len(attempts) < 5:
                raise ConnectionError
            return "paid"

        for app in (able, unable):
            app.task(retry=RetryPolicy(retries=retries, delay=60))(pay)
        async with able:
            job = await able.tasks["pay"].enqueue(SECRET)
            await asyncio.sleep(3 * 60 + 10)
        assert attempts == [1, 2, 3, 4]
        async with unable:
            await asyncio.sleep(60 + 100)
            assert (await unable.admin.job(job.id)).record.state is JobState.WAITING
        async with able:
            assert await result_within(able.job(job.id), 60) == "paid"

    run_virtual(main)


class Exiting:
    """A codec that ends the program, as code that was written for a script does."""

    name = "exiting"

    def __init__(self) -> None:
        self.fails_to: set[str] = set()

    def encode(self, data: bytes) -> bytes:
        self._exit("encode")
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        self._exit("decode")
        return data[::-1]

    def _exit(self, verb: str) -> None:
        if verb in self.fails_to:
            raise SystemExit(f"cannot {verb}")


def test_a_codec_that_raises_system_exit_fails_its_payload_and_not_the_program() -> None:
    async def main(clock: VirtualClock) -> None:
        codec = Exiting()
        app = app_on(MemoryStorage(clock), clock=clock, codec=codec)
        pay = declare_pay(app)
        async with app.open():
            codec.fails_to = {"encode"}
            with pytest.raises(PayloadError, match="SystemExit: cannot encode"):
                await pay.enqueue("acme", "4111")
            codec.fails_to = set()
            first = await pay.enqueue("acme", "4111")
            codec.fails_to = {"decode"}
            assert len((await app.admin.page()).items) == 1
            async with app:
                with pytest.raises(JobFailed, match="SystemExit: cannot decode"):
                    await result_within(first, 3600)
                codec.fails_to = set()
                assert await result_within(await pay.enqueue("acme", "4111"), 60) == "acme paid 0 with 4111"

    run_virtual(main)


def test_an_upgrade_that_raises_system_exit_fails_its_job_and_not_the_program() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        old, new = app_on(store, clock=clock), app_on(store, clock=clock)

        @old.task(name="pay")
        async def pay(card: str) -> None: ...

        def leave(stored: dict[str, Any]) -> dict[str, Any]:
            raise SystemExit("cannot upgrade")

        @new.task(name="pay", upgrade=leave, retry=ONCE)
        async def pay_more(number: int) -> int:
            return number

        async with old.open(), new:
            with pytest.raises(JobFailed, match="SystemExit: cannot upgrade"):
                await result_within(new.job((await pay.enqueue("4111")).id), 3600)
            assert await result_within(await pay_more.enqueue(7), 60) == 7

    run_virtual(main)


def test_a_job_that_one_node_cannot_decode_runs_on_another_meanwhile() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        able, unable = app_on(store, clock=clock, codec=NEW), app_on(store, clock=clock)
        pay = declare_pay(able)
        declare_pay(unable)
        async with unable:
            async with able.open():
                job = await pay.enqueue("acme", SECRET)
            await asyncio.sleep(5)
        async with able:
            assert await result_within(job, 60) == f"acme paid 0 with {SECRET}"
            assert (await job.status()).attempt == 2

    run_virtual(main)


def declare_slow(*apps: Headgate) -> None:
    async def pay(number: int) -> int:
        await asyncio.sleep(0.5)
        return number

    for app in apps:
        app.queue("default", concurrency=10)
        app.task(retry=ONCE)(pay)


def test_a_node_without_the_key_leaves_a_backlog_to_the_one_that_has_it() -> None:
    """The fault: it took most of the jobs each time that they came back, until their tries were used up."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        able, unable = app_on(store, clock=clock, codec=NEW), app_on(store, clock=clock, codec=OLD)
        declare_slow(able, unable)
        async with able.open():
            jobs = await able.tasks["pay"].enqueue_many([(number,) for number in range(300)])
        async with unable, able:
            began = clock.monotonic()
            for number, job in enumerate(jobs[2:], 2):
                assert await result_within(job, 600) == number
            # 15 s of work; the first two jobs wait 30 s.
            assert clock.monotonic() - began < 20 * SECOND
            assert [await result_within(job, 60) for job in jobs[:2]] == [0, 1]
            assert max([(await job.status()).attempt for job in jobs]) == 2
            assert await store.declared_subjects() == {"pay@default"}

    run_virtual(main)


def test_single_jobs_do_not_fail_on_nodes_without_the_key_while_another_one_has_it() -> None:
    """The fault: a job failed where a node without the key took it each time."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        able, *unable = (app_on(store, clock=clock, codec=codec) for codec in (NEW, OLD, None))
        declare_slow(able, *unable)
        async with contextlib.AsyncExitStack() as nodes:
            for app in (*unable, able):
                await nodes.enter_async_context(app)
            for number in range(20):
                job = await able.tasks["pay"].enqueue(number)
                assert await result_within(job, 300) == number
                assert (await job.status()).attempt <= 5

    run_virtual(main)


def test_a_node_declares_a_task_again_once_it_reads_jobs_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: only a job of the kind that it could not read ended that; each heartbeat wrote what it declares."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        able, reader = app_on(store, clock=clock, codec=NEW), app_on(store, clock=clock, codec=OLD)
        declare_slow(able, reader)
        beat, written = store.beat, 0

        async def counted_beat(node: str, **options: Any) -> Beat:
            nonlocal written
            written += options["tasks"] is not None
            return await beat(node, **options)

        async with reader:
            async with able:
                jobs = await able.tasks["pay"].enqueue_many([(number,) for number in range(100)])
                for job in jobs:
                    await result_within(job, 600)
                await asyncio.sleep(60)
            assert await store.declared_subjects() == set(), "it has left the task, and met none of its jobs since"
            monkeypatch.setattr(store, "beat", counted_beat)
            await asyncio.sleep(60)
            assert written == 0
            assert await result_within(await reader.tasks["pay"].enqueue(7), 60) == 7
            await asyncio.sleep(60)
            assert await store.declared_subjects() == {"pay@default"}
            assert written == 1

    run_virtual(main)


@pytest.mark.parametrize("why", ["it lacks a label", "it is quiet"])
def test_jobs_that_no_node_can_decode_fail_beside_a_node_that_does_not_run_them(why: str) -> None:
    """The fault: they were left for ever to a node that declares their task and does not run it."""

    async def main(clock: VirtualClock) -> None:
        store, requires = MemoryStorage(clock), ["gpu"] if why == "it lacks a label" else []
        encoder, unable = (app_on(store, clock=clock, codec=codec, labels=requires) for codec in (NEW, OLD))
        other = app_on(store, clock=clock, codec=OLD)
        for app in (encoder, unable, other):
            declare_pay(app, requires=requires)

        @other.task
        async def runnable() -> None: ...

        async with encoder.open():
            job, *_ = await encoder.tasks["pay"].enqueue_many([("a", "b")] * 5)
            async with other:
                await asyncio.sleep(1)
                (node,) = await other.admin.nodes()
                if not requires:
                    await other.admin.quiet_node(node.id)
                    await asyncio.sleep(3)
                async with unable:
                    with pytest.raises(JobFailed, match="payload of task 'pay' cannot be decoded"):
                        await result_within(job, 600)

    run_virtual(main)


def test_nodes_that_meet_damaged_jobs_do_not_leave_a_task_at_the_same_time() -> None:
    """The fault: two nodes left it to each other for some seconds each time that they met three in a row."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        encoder, *readers = (app_on(store, clock=clock, codec=codec) for codec in (NEW, OLD, OLD))
        for app in (encoder, *readers):
            app.queue("default", concurrency=2)
            declare_pay(app)
        async with encoder.open(), readers[0], readers[1]:
            for _ in range(20):
                await encoder.tasks["pay"].enqueue_many([("a", "b")] * 8)
                await asyncio.sleep(0.1)
                assert await result_within(await readers[0].tasks["pay"].enqueue("a", "b"), 1)
                await asyncio.sleep(0.5)

    run_virtual(main)


def test_jobs_that_no_node_can_decode_wait_for_a_deploy_and_fail_in_the_end() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        able, *unable = (app_on(store, clock=clock, codec=codec) for codec in (NEW, OLD, None))
        declare_slow(able, *unable)
        async with able.open():
            jobs = await able.tasks["pay"].enqueue_many([(number,) for number in range(100)])
        async with unable[0], unable[1]:
            await asyncio.sleep(60)
            async with able:
                assert [await result_within(job, 100) for job in jobs] == list(range(100))
                late = await able.tasks["pay"].enqueue(7)
            with pytest.raises(JobFailed, match="payload of task 'pay' cannot be decoded"):
                await result_within(unable[0].job(late.id), 600)

    run_virtual(main)


def test_an_app_without_the_tasks_returns_decoded_results_with_the_codec() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app = app_on(store, clock=clock, codec=NEW)
        pay = declare_pay(app)
        async with app:
            job = await pay.enqueue("acme", SECRET)
            await result_within(job, 5)
            record = (await app.admin.job(job.id)).record
            assert is_encoded(record.payload)
            assert record.result is not None
            assert is_encoded(record.result)
            assert app.admin.decoded(record.payload) == f'{{"tenant":"acme","card":"{SECRET}"}}'
        reader = app_on(store, clock=clock, old_codecs=[NEW])
        async with reader.open():
            assert await result_within(reader.job(job.id), 5) == f"acme paid 0 with {SECRET}"

    run_virtual(main)


def test_an_upgrade_gets_the_decoded_arguments_and_its_errors_show_none() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        before, after = (app_on(store, clock=clock, codec=NEW, retry=ONCE) for _ in range(2))

        @before.task(name="pay")
        async def paid(number: str) -> None: ...

        @after.task(upgrade=lambda stored: {"card": int(stored["number"])})
        async def pay(card: int) -> int:
            return card

        async with before.open():
            good, bad = await paid.enqueue("4111"), await paid.enqueue(SECRET)
        async with after:
            assert await result_within(after.job(good.id), 5) == 4111
            with pytest.raises(JobFailed) as failed:
                await result_within(after.job(bad.id), 600)
            assert "its upgrade does not help: ValueError" in str(failed.value)
            details = await after.admin.job(bad.id)
            assert SECRET not in repr(details)

    run_virtual(main)


# ----------------------------------------------------------------------------------------------------- schedules


def scheduling(store: Any, card: str = SECRET, **settings: Any) -> Headgate:
    app = app_on(store, **settings)

    @app.schedule(Every(hours=1), args=[card])
    @app.task
    async def invoice(card: str) -> str:
        return card

    return app


async def test_a_schedule_that_is_declared_again_is_not_written_and_supersedes_nobody(
    shared: tuple[Any, dict[str, Any]],
) -> None:
    store, settings = shared
    received: list[Event] = []
    async with (first := scheduling(store, codec=[Zlib(1), NEW], **settings)):
        first.subscribe(received.append, ScheduleSuperseded)
        await until(lambda: is_stored(first, "invoice"))
        known = await record_of(first, "invoice")
        assert is_encoded(known.call.payload)
        async with (second := scheduling(store, codec=[Zlib(1), NEW], **settings)):
            second.subscribe(received.append, ScheduleSuperseded)
            fired = await second.find_schedule("invoice").trigger()
            assert await result_within(fired) == SECRET
        again = await record_of(first, "invoice")
        assert again.call == known.call
    assert received == []


def test_a_node_writes_a_schedule_only_if_its_arguments_or_its_codecs_have_changed() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        seen: list[tuple[int, tuple[str, ...], str]] = []
        releases: list[dict[str, Any]] = [
            {},
            {"codec": OLD},
            {"codec": OLD},
            {"codec": NEW, "old_codecs": [OLD]},
            {"codec": NEW},
            {"codec": NEW, "card": "another"},
            {"old_codecs": [NEW], "card": "another"},
        ]
        for release in releases:
            app = scheduling(store, clock=clock, **release)
            async with app:
                await asyncio.sleep(200)
                record = await record_of(app, "invoice")
                payload = app.admin.decoded(record.call.payload)
                seen.append((record.revision, codecs_of(record.call.payload), payload))
            await asyncio.sleep(300)
        cards = [f'{{"card":"{card}"}}' for card in (*[SECRET] * 5, "another", "another")]
        assert [payload for _, _, payload in seen] == cards
        assert [names for _, names, _ in seen] == [(), *[(OLD.name,)] * 2, *[(NEW.name,)] * 3, ()]
        revisions = [revision for revision, _, _ in seen]
        changes = [later - earlier for earlier, later in itertools.pairwise(revisions)]
        assert changes == [1, 0, 1, 0, 1, 1]

    run_virtual(main)


def test_a_schedule_whose_key_was_lost_is_stored_anew_by_the_code_that_declares_it() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        async with scheduling(store, codec=OLD, clock=clock):
            await asyncio.sleep(1)
        async with (app := scheduling(store, codec=NEW, clock=clock)):
            await asyncio.sleep(1)
            assert codecs_of((await record_of(app, "invoice")).call.payload) == (NEW.name,)

    run_virtual(main)


def test_a_schedule_that_a_node_cannot_decode_is_left_to_others_and_loses_no_limit() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        able, unable = app_on(store, clock=clock, codec=NEW), app_on(store, clock=clock)
        limits = [StrictRate("1/h", key="{tenant}")]
        pay = declare_pay(able, limits=limits)
        declare_pay(unable, limits=limits)
        failed: list[Event] = []
        unable.subscribe(failed.append, ScheduleFailed)
        async with able.open():
            await pay.schedule("acme", Every(minutes=5), first="now").enqueue("acme", SECRET)
        async with unable:
            await asyncio.sleep(1000)
            assert await unable.admin.jobs() == []
            (event,) = failed
            assert isinstance(event, ScheduleFailed)
            assert "encoded with 'aes-gcm.2026-11', and this app has no codec" in event.error
            with pytest.raises(PayloadError, match="the payload of schedule 'acme' cannot be decoded"):
                await unable.admin.schedules.trigger("acme")
        async with able:
            await asyncio.sleep(1)
            (job,) = await able.admin.jobs()
            assert job.state is JobState.SUCCEEDED

    run_virtual(main)


async def test_schedules_made_at_run_time_are_encoded_anew_on_request(shared: tuple[Any, dict[str, Any]]) -> None:
    store, settings = shared
    old = app_on(store, codec=OLD, **settings)
    pay = declare_pay(old)
    new = app_on(store, codec=NEW, old_codecs=[OLD], **settings)
    declare_pay(new)
    async with old.open(migrate=True):
        for name in ("one", "two"):
            await pay.schedule(name, Every(hours=1), max_runs=5).enqueue("acme", SECRET)
        await old.admin.schedules.pause("two")
        async with new.open():
            before = await record_of(new, "two")
            assert await new.admin.schedules.reencode() == 2
            assert await new.admin.schedules.reencode() == 0
            after = await record_of(new, "two")
            assert codecs_of(after.call.payload) == (NEW.name,)
            assert json.loads(new.admin.decoded(after.call.payload)) == {"tenant": "acme", "card": SECRET}
            assert (after.course, after.paused_at, after.rules) == (before.course, before.paused_at, before.rules)
            await pay.schedule("zero", Every(hours=1)).enqueue("acme", SECRET)
            cleared = app_on(store, old_codecs=[OLD], **settings)
            said = "1 schedule encoded anew, and 2 not: the payload of schedule 'one' cannot be decoded"
            async with cleared.open():
                with pytest.raises(PayloadError, match=said):
                    await cleared.admin.schedules.reencode()
                assert codecs_of((await record_of(cleared, "zero")).call.payload) == ()


# ------------------------------------------------------------------------------------------------- processes


def reveal(card: str) -> str:
    return f"{card} {os.getpid()}"


def miscount(card: str) -> dict[str, int]:
    return {card: card}  # type: ignore[dict-item]


@pytest.mark.slow
async def test_a_child_process_gets_arguments_in_clear_and_its_result_is_encoded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStorage(SystemClock())
    app = app_on(store, codec=[Zlib(1), NEW], retry=ONCE)
    process = app.task(process=True)(reveal)
    wrong = app.task(process=True)(miscount)
    done: list[object] = []
    process.on_completed(lambda job, result: done.append(result))
    async with app:
        job, bad = await process.enqueue(SECRET), await wrong.enqueue(SECRET)
        card, pid = (await result_within(job, 30)).split()
        assert card == SECRET
        assert int(pid) != os.getpid()
        record = (await app.admin.job(job.id)).record
        assert record.result is not None
        assert codecs_of(record.result) == (NEW.name,)
        await until(lambda: bool(done))
        assert done == [f"{SECRET} {pid}"]
        with pytest.raises(JobFailed) as failed:
            await result_within(bad, 30)
        assert "miscount' returned" in str(failed.value)
        assert SECRET not in repr(await app.admin.job(bad.id))
    unable = app_on(store)
    unable.task(process=True)(reveal)
    async with app.open():
        job = await process.enqueue(SECRET)
    async with unable:

        async def was_tried() -> bool:
            return bool((await unable.admin.job(job.id)).attempts)

        await until(was_tried, 30)
        (attempt,) = (await unable.admin.job(job.id)).attempts
        assert attempt.error is not None
        assert "payload of task 'reveal' cannot be decoded" in attempt.error.message
    assert SECRET not in caplog.text
