"""Large payloads and results in a folder: what is stored where, what happens without the folder, and the sweep."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import sqlite3
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("fsspec")

from fsspec import register_implementation
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from headgate import (
    AesGcm,
    DeclarationError,
    FolderUnavailable,
    Headgate,
    JobFailed,
    JobState,
    NotOpen,
    PayloadError,
    PayloadFolder,
    RateLimit,
    RetryPolicy,
    StrictRate,
    Zlib,
    chain,
    result_of,
)
from headgate.admin import JobQuery
from headgate.clock import SECOND, Clock, wait_until_done
from headgate.engine.backlog_migrator import LOADED_AT_ONCE
from headgate.engine.large_payloads import AT_ONCE, MARKER, MAX_FAILURES_IN_A_ROW, LargePayloads, sweep_regularly
from headgate.jobs.encoded import codecs_of, is_in_folder
from headgate.jobs.event import Event, JobNotMigrated, StorageFailed
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.forked import answer_of_forked_child
from tests.internals import app_on, client_of, store_of, writer_of
from tests.until import patient, result_within, until

ONCE = RetryPolicy(retries=0)
TEXT = "a fine long letter "
LARGE = TEXT * 100
ABOVE = 1000


class Folder(PayloadFolder):
    """A folder that can be away, and that counts what is done."""

    is_away = False
    answers: threading.Event | None = None
    fails_at = 0

    def __init__(self, url: str = "", **options: Any) -> None:
        super().__init__(url or f"memory://{uuid.uuid4()}", **{"above": ABOVE, **options})
        self.done: list[str] = []
        self._numbers = count(1)

    def read(self, name: str) -> bytes | None:
        self._answer("read")
        return super().read(name)

    def write(self, name: str, data: bytes, *, makes_folder: bool = False) -> None:
        self._answer("write")
        super().write(name, data, makes_folder=makes_folder)

    def _answer(self, verb: str) -> None:
        self.done.append(verb)
        number = next(self._numbers)
        if self.answers is not None:
            self.answers.wait(patient(10))
        if self.is_away or number == self.fails_at:
            raise ConnectionResetError("the store of objects is away")

    def objects(self) -> dict[str, bytes]:
        """What is in the folder, by path below it, but for its markers."""
        found = [path for path in self._files.find(self._opened.root) if not path.endswith(MARKER)]
        return {path.removeprefix(self._opened.root).lstrip("/"): self._files.cat_file(path) for path in found}

    def list(self, name: str) -> Iterator[str]:
        self._answer("list")
        return super().list(name)

    def remove(self, name: str) -> None:
        self._files.rm_file(self._path(name))


@pytest.fixture(autouse=True)
def _no_objects_are_left() -> Iterator[None]:
    yield
    MemoryFileSystem.store.clear()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}", {}
    schema = request.getfixturevalue("postgres_schema")
    return request.getfixturevalue("postgres_url"), {"schema": schema, "migrate": True}


@pytest.fixture(params=["memory", "file"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder() if request.param == "memory" else Folder(f"file://{tmp_path / 'large' / 'payloads'}")


def declare_echo(app: Headgate, **options: Any) -> Any:
    @app.task(**{"retry": ONCE, **options})
    async def echo(text: str, times: int = 1) -> str:
        return text * times

    return echo


async def stored(app: Headgate, job_id: str) -> Any:
    return (await app.admin.job(job_id)).record


# --------------------------------------------------------------------------------------------- what is stored where


async def test_what_is_large_is_in_the_folder_and_the_row_refers_to_it(
    database: tuple[str, dict[str, Any]], folder: Folder
) -> None:
    url, settings = database
    app = Headgate(url, large_payloads=folder, **settings)
    echo = declare_echo(app)
    async with app:
        large, small, grows = await echo.enqueue_many([(LARGE,), ("x",), ("long", 500)])
        assert await result_within(large, 5) == LARGE
        assert await result_within(small, 5) == "x"
        assert await result_within(grows, 5) == "long" * 500
        record = await stored(app, large.id)
        assert codecs_of(record.payload) == ("folder",)
        assert len(record.payload) < 250
        assert is_in_folder(record.result)
        assert (await stored(app, small.id)).payload == '{"text":"x"}'
        assert (await stored(app, grows.id)).payload == '{"text":"long","times":500}'
        assert is_in_folder((await stored(app, grows.id)).result)
        identity = await store_of(app).identity()
    objects = folder.objects()
    assert sorted(objects.values()) == sorted(
        [f'{{"text":"{LARGE}"}}'.encode(), f'"{LARGE}"'.encode(), ('"' + "long" * 500 + '"').encode()]
    )
    assert {name.partition("/")[0] for name in objects} == {identity}
    assert {name.rpartition("/")[2].partition(".")[0] for name in objects} == {large.id, grows.id}


async def test_an_object_is_encoded_before_it_leaves_and_no_content_is_logged(
    database: tuple[str, dict[str, Any]], folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    url, settings = database
    key = AesGcm("k1", AesGcm.new_key())
    app = Headgate(url, large_payloads=folder, codec=[Zlib(above=10_000_000), key], **settings)
    echo = declare_echo(app)
    with caplog.at_level(logging.DEBUG):
        async with app:
            job = await echo.enqueue(LARGE)
            assert await result_within(job, 5) == LARGE
            record = await stored(app, job.id)
            assert codecs_of(record.payload) == codecs_of(record.result) == ("aes-gcm.k1", "folder")
            assert await app.admin.loaded(record.result) == f'"{LARGE}"'
            with pytest.raises(PayloadError, match="it is in a folder"):
                app.admin.decoded(record.payload)
    assert len(folder.objects()) == 2
    assert all(TEXT.encode() not in data for data in folder.objects().values())
    assert TEXT not in caplog.text
    assert TEXT not in "".join(repr(each.args) for each in caplog.records)


async def test_followers_transactions_and_other_runs_have_their_objects(
    database: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    url, settings = database
    folder = Folder()
    app = Headgate(url, large_payloads=folder, **settings)
    echo = declare_echo(app)

    @app.task
    async def length(text: str) -> int:
        return len(text)

    async with app:
        first = echo.call(LARGE)
        flow = await chain(first, length.call(result_of(first))).enqueue()
        assert await result_within(flow) == len(LARGE)
        again = (await app.admin.run_again((await app.admin.jobs(task="echo"))[0].id)).id
        assert await result_within(app.job(again), 5) == LARGE
        written = [name.rpartition("/")[2].partition(".")[0] for name in folder.objects()]
        assert sorted(written).count(again) == 2
        assert len(written) == 4
        if url.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
                connection.execute("BEGIN IMMEDIATE")
                inside = await echo.using(connection=connection).enqueue(LARGE)
                connection.commit()
            assert is_in_folder((await stored(app, inside.id)).payload)
            assert await result_within(inside, 5) == LARGE


async def test_a_payload_that_may_replace_that_of_another_job_stays_in_the_database() -> None:
    folder = Folder()
    app = Headgate("memory://", large_payloads=folder)
    echo = declare_echo(app, unique_key="{times}")
    async with app.open():
        job = await echo.using(delay=60).enqueue(LARGE)
        same = await echo.using(on_conflict="replace", delay=60).enqueue(LARGE + "new")
        assert same.id == job.id
        assert (await stored(app, job.id)).payload == f'{{"text":"{LARGE}new"}}'
    async with Headgate("memory://", large_payloads=folder).open():
        assert len(folder.objects()) == 1


def test_limits_of_a_new_release_read_the_keys_of_waiting_jobs_from_the_folder() -> None:
    async def main(clock: VirtualClock) -> None:
        store, folder = MemoryStorage(clock), Folder()
        before, after = (app_on(store, clock=clock, large_payloads=folder) for _ in range(2))
        old = declare_echo(before)
        declare_echo(after, limits=[StrictRate("1/h", key="{times}", name="by-times")])
        async with before.open():
            jobs = await old.enqueue_many([(LARGE, 1), (LARGE, 1), (LARGE, 2)])
        async with after:
            await asyncio.sleep(60)
            states = [(await after.admin.status(job.id)).state for job in jobs]
            assert states == [JobState.SUCCEEDED, JobState.WAITING, JobState.SUCCEEDED]

    run_virtual(main)


def test_of_a_backlog_only_the_payloads_that_its_new_limits_read_are_loaded_and_few_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        store, folder = MemoryStorage(clock), Folder()
        old = app_on(store, clock=clock, large_payloads=folder)
        echo = declare_echo(old)
        async with old.open():
            await echo.using(delay=86400).enqueue_many([(LARGE, number) for number in range(60)])
        folder.done.clear()
        constant = app_on(store, clock=clock, large_payloads=folder)
        declare_echo(constant, limits=[RateLimit("1/h"), RateLimit("5/h", key="all", name="all")])
        async with constant:
            await asyncio.sleep(60)
        assert folder.done == []
        by_times = app_on(store, clock=clock, large_payloads=folder)
        declare_echo(by_times, limits=[RateLimit("1/h", key="{times}", name="by-times")])
        loading, most = 0, 0
        load = LargePayloads.load

        async def counted_load(self: LargePayloads, text: str, what: str) -> str:
            nonlocal loading, most
            loading += 1
            most = max(most, loading)
            try:
                return await load(self, text, what)
            finally:
                loading -= 1

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LargePayloads, "load", counted_load)
            async with by_times:
                await asyncio.sleep(60)
                moved = await store.gated_jobs(frozenset(["echo"]))
        assert {ref.key for job in moved for ref in job.buckets} == {str(number) for number in range(60)}
        assert folder.done == ["read"] * 60
        assert most == LOADED_AT_ONCE

    run_virtual(main)


def test_a_backlog_moves_while_the_folder_is_away_but_for_the_jobs_that_need_it() -> None:
    async def main(clock: VirtualClock) -> None:
        store, folder = MemoryStorage(clock), Folder()
        received: list[Event] = []
        old, new = (app_on(store, clock=clock, large_payloads=folder) for _ in range(2))
        new.subscribe(received.append, StorageFailed, JobNotMigrated)
        echo = declare_echo(old)
        declare_echo(new, limits=[StrictRate("1/h", key="{times}", name="by-times")])
        async with old.open():
            large = await echo.enqueue_many([(LARGE, number) for number in (1, 1, 2)])
            small = await echo.enqueue_many([("x", number) for number in (3, 4)])
        folder.is_away = True
        async with new:
            await asyncio.sleep(120)
            assert [(await new.admin.status(job.id)).state for job in small] == [JobState.SUCCEEDED] * 2
            assert [(await new.admin.status(job.id)).state for job in large] == [JobState.WAITING] * 3
            assert {type(event) for event in received} == {StorageFailed}
            assert 2 <= len(received) <= 6
            folder.is_away = False
            await asyncio.sleep(120)
            states = [(await new.admin.status(job.id)).state for job in large]
            assert states == [JobState.SUCCEEDED, JobState.WAITING, JobState.SUCCEEDED]

    run_virtual(main)


# ------------------------------------------------------------------------------------------------ damaged references


def in_folder(stored: bytes) -> str:
    return f"encoded:folder:{base64.b64encode(stored).decode()}"


PLACE = f"{'0' * 32}/2026-01-01/{uuid.UUID(int=0)}.{'0' * 16}"
DAMAGED = [
    "encoded:folder",
    "encoded:folder:",
    "encoded:folder:%%%",
    "encoded:folder:é",
    "encoded:zlib+folder:eA==",
    in_folder(b"x"),
    in_folder(b"\xff\xfe"),
    in_folder(f"many:0:{PLACE}".encode()),
    in_folder(f"1:0:../{PLACE}".encode()),
]


@pytest.mark.parametrize("text", DAMAGED)
async def test_a_damaged_reference_is_a_payload_error(text: str) -> None:
    app = Headgate("memory://", large_payloads=Folder())
    async with app.open():
        with pytest.raises(PayloadError, match="it cannot be read: its place in the folder of large payloads is damag"):
            await app.admin.loaded(text)


def test_jobs_with_damaged_references_cannot_be_read_and_do_not_keep_others_from_moving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(clock: VirtualClock) -> None:
        store, folder = MemoryStorage(clock), Folder()
        received: list[Event] = []
        old, new, same = (app_on(store, clock=clock, large_payloads=folder) for _ in range(3))
        new.subscribe(received.append, JobNotMigrated)
        echo = declare_echo(old)
        declare_echo(same)
        declare_echo(new, limits=[StrictRate("1/h", key="{times}", name="by-times")])
        write = LargePayloads._write
        texts = iter(DAMAGED)

        async def write_or_damage(self: LargePayloads, text: str, job_id: str) -> str:
            return next(texts, None) or await write(self, text, job_id)

        monkeypatch.setattr(LargePayloads, "_write", write_or_damage)
        async with old.open():
            jobs = await echo.enqueue_many([(LARGE, number) for number in range(len(DAMAGED) + 1)])
        async with new:
            assert await result_within(new.job(jobs[-1].id), 120) == LARGE * len(DAMAGED)
            assert [(await new.admin.status(job.id)).state for job in jobs[:-1]] == [JobState.WAITING] * len(DAMAGED)
            assert ["is damaged" in event.error for event in received if isinstance(event, JobNotMigrated)] == [True]
        async with same:
            for job in jobs[:-1]:
                with pytest.raises(JobFailed, match="its place in the folder of large payloads is damaged") as failed:
                    await result_within(same.job(job.id), 600)
                assert failed.value.error_type == "headgate.errors.PayloadError"
                assert failed.value.job_id == job.id

    run_virtual(main)


# ------------------------------------------------------------------------------------------- the folder is not there


def test_a_job_whose_object_is_missing_is_tried_again_and_then_kept_for_a_retry() -> None:
    async def main(clock: VirtualClock) -> None:
        folder = Folder()
        app = app_on(MemoryStorage(clock), clock=clock, large_payloads=folder)
        echo = declare_echo(app)
        async with app.open():
            job = await echo.enqueue(LARGE)
        ((name, data),) = folder.objects().items()
        folder.remove(name)
        async with app:
            with pytest.raises(JobFailed, match="is not in the folder of large payloads: memory://") as failed:
                await result_within(job, 600)
            assert failed.value.error_type == "headgate.errors.PayloadError"
            folder.write(name, data + b" ")
            await app.admin.retry(job.id)
            with pytest.raises(JobFailed, match="was changed"):
                await result_within(job, 600)
            folder.write(name, data)
            await app.admin.retry(job.id)
            assert await result_within(job, 5) == LARGE
        async with app.open():
            for name in folder.objects():
                folder.remove(name)
            with pytest.raises(PayloadError, match=f"the result of job {job.id} is not in the folder"):
                await result_within(job, 5)

    run_virtual(main)


def test_while_the_folder_is_away_jobs_wait_without_an_attempt_and_others_run() -> None:
    async def main(clock: VirtualClock) -> None:
        folder = Folder()
        app = app_on(MemoryStorage(clock), clock=clock, large_payloads=folder)
        echo = declare_echo(app)
        async with app:
            folder.is_away = True
            with pytest.raises(FolderUnavailable, match="ConnectionResetError: the store of objects is away"):
                await echo.enqueue(LARGE)
            assert not await app.admin.jobs()
            folder.is_away = False
            async with app.open():
                job = await echo.using(delay=1).enqueue(LARGE)
            folder.is_away = True
            await asyncio.sleep(600)
            assert await result_within(await echo.enqueue("small"), 5) == "small"
            status = await job.status()
            assert (status.state, status.attempt, status.error) == (JobState.WAITING, 0, None)
            lines = (await app.admin.job(job.id)).last_lines
            assert "waits 30 s for its payload" in lines[-1].message
            folder.is_away = False
            assert await result_within(job, 60) == LARGE
            assert (await job.status()).attempt == 1
            folder.is_away = True
            with pytest.raises(FolderUnavailable, match="reading in the folder"):
                await result_within(job, 5)

    run_virtual(main)


def test_a_node_without_the_folder_leaves_a_backlog_to_the_one_that_has_it() -> None:
    """The fault: it took nearly all jobs each time that they came back, so that they ran after 25 minutes, not 15 s."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        url = f"memory://{uuid.uuid4()}"
        away = Folder(url)
        able, unable = (app_on(store, clock=clock, large_payloads=folder) for folder in (Folder(url), away))

        async def echo(text: str) -> int:
            await asyncio.sleep(0.5)
            return len(text)

        for app in (able, unable):
            app.queue("default", concurrency=10)
            app.task(echo)
        async with able.open():
            jobs = await able.tasks["echo"].enqueue_many([(LARGE,)] * 300)
        away.is_away = True
        async with unable, able:
            began = clock.monotonic()
            results = asyncio.as_completed([result_within(job, 600) for job in jobs])
            # Two jobs wait 30 s: those whose payloads could not be read first.
            assert [await next(results) for _ in jobs[2:]] == [len(LARGE)] * 298
            assert clock.monotonic() - began < 20 * SECOND
            # With the folder again, both run the jobs.
            away.is_away = False
            assert [await result for result in results] == [len(LARGE)] * 2
            jobs = await able.tasks["echo"].enqueue_many([(LARGE,)] * 100)
            began = clock.monotonic()
            for job in jobs:
                assert await result_within(job, 60) == len(LARGE)
            assert clock.monotonic() - began < 5 * SECOND

    run_virtual(main)


def test_a_result_that_the_folder_does_not_take_stays_in_the_database() -> None:
    async def main(clock: VirtualClock) -> None:
        folder = Folder()
        app = app_on(MemoryStorage(clock), clock=clock, large_payloads=folder)
        runs: list[int] = []

        @app.task
        async def grow() -> str:
            runs.append(1)
            return LARGE

        async with app:
            folder.is_away = True
            job = await grow.enqueue()
            assert await result_within(job, 5) == LARGE
            record = await stored(app, job.id)
            assert record.result == f'"{LARGE}"'
            assert runs == [1]
            assert folder.done == ["write"]
            lines = (await app.admin.job(job.id)).last_lines
            assert "is kept in the database" in lines[-1].message

    run_virtual(main)


async def test_a_folder_that_does_not_answer_holds_a_slot_only_for_its_timeout() -> None:
    folder = Folder()
    app = Headgate("memory://", large_payloads=folder, concurrency=1)
    echo = declare_echo(app)
    async with app.open():
        job = await echo.enqueue(LARGE)
    folder.answers, folder.timeout = threading.Event(), 0.05
    try:
        async with app.open(), app:
            with pytest.raises(FolderUnavailable, match=r"no answer for 0\.05 s"):
                await echo.enqueue(LARGE)
            assert await result_within(await echo.enqueue("small"), 5) == "small"
            assert job.id
    finally:
        folder.answers.set()


async def test_writes_that_hang_end_after_one_timeout_and_the_rest_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Folder()
    app = Headgate("memory://", large_payloads=folder)
    echo = declare_echo(app)
    timeouts: list[float] = []

    async def note(clock: Clock, work: asyncio.Future[Any], seconds: float) -> bool:
        timeouts.append(seconds)
        return await wait_until_done(clock, work, seconds)

    monkeypatch.setattr("headgate.engine.large_payloads.wait_until_done", note)
    async with app.open():
        await echo.enqueue(LARGE)
        folder.done.clear()
        timeouts.clear()
        folder.answers, folder.timeout = threading.Event(), 0.2
        try:
            with pytest.raises(FolderUnavailable, match=r"no answer for 0\.2 s"):
                await echo.enqueue_many([(LARGE,) for _ in range(300)])
            assert folder.done == ["write"] * AT_ONCE
            assert timeouts == [0.2] * AT_ONCE, "those at once, and none after them"
        finally:
            folder.answers.set()


async def test_calls_that_wait_for_a_thread_when_the_app_is_closed_say_so() -> None:
    """They once ended as if somebody had cancelled them, which a task group passes over in silence."""
    folder = Folder()
    app = Headgate("memory://", large_payloads=folder)
    echo = declare_echo(app)
    async with app.open():
        await echo.enqueue(LARGE)
        folder.answers = threading.Event()
        writes = [asyncio.create_task(echo.enqueue(LARGE)) for _ in range(AT_ONCE + 3)]
        await until(lambda: len(folder.done) == 1 + AT_ONCE)
    folder.answers.set()
    ended = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(each) for each in ended[AT_ONCE:]] == [NotOpen] * 3
    assert not any(isinstance(each, asyncio.CancelledError) for each in ended)


def let_each_take(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let whatever is done in the folder take so long in virtual time, in which a thread cannot wait."""
    threads = asyncio.Semaphore(AT_ONCE)

    def in_virtual_thread(_pool: object, call: Callable[[], Any]) -> asyncio.Future[Any]:
        async def do() -> Any:
            async with threads:
                await asyncio.sleep(seconds)
                return call()

        return asyncio.ensure_future(do())

    monkeypatch.setattr("headgate.engine.large_payloads.in_thread", in_virtual_thread)


def test_after_a_write_that_fails_no_other_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(clock: VirtualClock) -> None:
        folder = Folder()
        app = app_on(MemoryStorage(clock), clock=clock, large_payloads=folder)
        echo = declare_echo(app)
        async with app.open():
            let_each_take(monkeypatch, 0.01)
            folder.fails_at = 1
            with pytest.raises(FolderUnavailable, match="the store of objects is away"):
                await echo.enqueue_many([(LARGE,) for _ in range(300)])
            assert len(folder.done) <= 2 * AT_ONCE
            assert not await app.admin.jobs()

    run_virtual(main)


def test_many_writes_may_take_longer_together_than_one_of_them_may(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(clock: VirtualClock) -> None:
        folder = Folder(timeout=1)
        app = app_on(MemoryStorage(clock), clock=clock, large_payloads=folder)
        echo = declare_echo(app)
        async with app.open():
            let_each_take(monkeypatch, 0.6)
            jobs = await echo.enqueue_many([(LARGE,) for _ in range(8 * AT_ONCE)])
        assert len(jobs) == len(folder.objects())
        assert clock.monotonic() >= 8 * 0.6 * SECOND

    run_virtual(main)


def test_jobs_wait_while_the_disk_of_the_folder_is_not_mounted(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        mounted, away = tmp_path / "mnt" / "headgate", tmp_path / "away"
        mounted.parent.mkdir()
        app = app_on(MemoryStorage(clock), clock=clock, large_payloads=Folder(f"file://{mounted}"))
        echo = declare_echo(app)
        async with app.open():
            job = await echo.enqueue(LARGE)
            mounted.rename(away)
            async with app:
                await asyncio.sleep(600)
                status = await job.status()
                assert (status.state, status.attempt, status.error) == (JobState.WAITING, 0, None)
                assert "is it mounted?" in (await app.admin.job(job.id)).last_lines[-1].message
                for _ in range(2):
                    with pytest.raises(FolderUnavailable, match="writing in the folder"):
                        await echo.enqueue(LARGE)
                with pytest.raises(FolderUnavailable, match="is it mounted"):
                    await app.admin.sweep_large_payloads()
                assert list(mounted.parent.iterdir()) == []
                away.rename(mounted)
                assert await result_within(job, 60) == LARGE
                assert await result_within(await echo.enqueue(LARGE), 5) == LARGE

    run_virtual(main)


async def test_a_new_process_writes_nothing_where_the_disk_of_a_used_folder_is_mounted(
    database: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    url, settings = database
    mounted, away = tmp_path / "mnt", tmp_path / "away"
    folders = [Folder(f"file://{mounted}") for _ in range(3)]
    apps = [Headgate(url, large_payloads=each, **settings) for each in folders]
    echoes = [declare_echo(app) for app in apps]
    async with apps[0].open():
        await echoes[0].enqueue(LARGE)
    mounted.rename(away)
    mounted.mkdir()
    async with apps[1].open():
        with pytest.raises(FolderUnavailable, match=f"it has no .*{MARKER}, so the folder of this database is not th"):
            await echoes[1].enqueue(LARGE)
    assert list(mounted.iterdir()) == []
    mounted.rmdir()
    away.rename(mounted)
    async with apps[2].open():
        await echoes[2].enqueue(LARGE)
    assert len(folders[2].objects()) == 2
    other = Headgate(url, large_payloads=Folder(f"file://{tmp_path / 'other'}"), **settings)
    async with other.open():
        await declare_echo(other).enqueue(LARGE)


async def test_a_folder_in_memory_is_there_although_each_process_has_another(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    for _ in range(2):
        app = Headgate(url, large_payloads=Folder("memory://same"))
        echo = declare_echo(app)
        async with app:
            assert await result_within(await echo.enqueue(LARGE), 5) == LARGE
        MemoryFileSystem.store.clear()


async def test_a_folder_that_is_first_used_in_a_transaction_is_noted_by_the_sweep(tmp_path: Path) -> None:
    folder = Folder(f"file://{tmp_path / 'mnt'}")
    app = Headgate(f"sqlite:///{tmp_path / 'jobs.db'}", large_payloads=folder)
    echo = declare_echo(app)
    async with app.open():
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            async with asyncio.timeout(patient(3)):
                await echo.using(connection=connection).enqueue(LARGE)
            connection.commit()
        assert not await store_of(app).is_folder_used(folder.shown_url)
        assert await app.admin.sweep_large_payloads() == 0
        assert await store_of(app).is_folder_used(folder.shown_url)


class AsyncStore(AsyncFileSystem):  # type: ignore[misc]
    """As those of S3, Google and Azure: it has a thread with an event loop, which a fork does not have."""

    protocol = "asyncstore"
    objects: dict[str, bytes] = {}  # noqa: RUF012

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self.objects[path] = value

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        try:
            return self.objects[path]
        except KeyError:
            raise FileNotFoundError(path) from None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_store_of_objects_can_be_used_after_a_fork(tmp_path: Path) -> None:
    register_implementation("asyncstore", AsyncStore, clobber=True)
    folder = PayloadFolder("asyncstore://jobs", above=ABOVE, timeout=5)
    app = Headgate(f"sqlite:///{tmp_path / 'jobs.db'}", large_payloads=folder)
    echo = declare_echo(app)
    with app.open():
        first = echo.sync.enqueue(LARGE).id
    large_payloads = client_of(app).large_payloads
    assert large_payloads is not None

    def ask() -> str:
        with app.open():
            return str(echo.sync.enqueue(LARGE).id)

    second = answer_of_forked_child(ask)
    with app.open():
        third = echo.sync.enqueue(LARGE).id
        assert {app.sync.job(id).status().state for id in (first, second, third)} == {JobState.WAITING}
    assert sum(first in path or third in path for path in AsyncStore.objects) == 2


# --------------------------------------------------------------------------------------------------------- the sweep


def test_objects_are_deleted_when_their_jobs_have_been_pruned_and_never_before() -> None:
    async def main(clock: VirtualClock) -> None:
        folder = Folder()
        app = app_on(MemoryStorage(clock), clock=clock, large_payloads=folder)
        other = app_on(MemoryStorage(clock), clock=clock, large_payloads=folder)
        echo, echo_of_other = declare_echo(app), declare_echo(other)
        async with app.open(), other.open():
            kept = await echo_of_other.enqueue(LARGE)
            async with app:
                done, waits = await echo.enqueue(LARGE), await echo.using(delay=86400 * 30).enqueue(LARGE)
                assert await result_within(done, 5) == LARGE
            large_payloads = client_of(app).large_payloads
            assert large_payloads is not None
            # Written, and its process died before the commit.
            await large_payloads.store(LARGE, str(uuid.uuid4()))
            sweeping = asyncio.create_task(sweep_regularly(large_payloads, client_of(app).services))
            await app.admin.purge(JobQuery(state=JobState.SUCCEEDED), older_than=0)
            await asyncio.sleep(86400 * 1.5)
            assert len(folder.objects()) == 5
            await asyncio.sleep(86400 * 2.5)
            assert {name.rpartition("/")[2].partition(".")[0] for name in folder.objects()} == {waits.id, kept.id}
            folder.is_away = True
            await asyncio.sleep(86400)
            assert not sweeping.done()
            sweeping.cancel()
            folder.is_away = False
            await app.admin.run_now(waits.id)
            async with app:
                assert await result_within(waits, 60) == LARGE
            assert await other.admin.sweep_large_payloads() == 0

    run_virtual(main)


def test_workers_that_are_replaced_every_hour_sweep_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: the first sweep came three hours after the start at the earliest, so objects were never deleted."""

    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock, large_payloads=Folder())
        swept: list[int] = []

        async def sweep() -> None:
            swept.append(clock.now())

        async with app.open():
            large_payloads = client_of(app).large_payloads
            assert large_payloads is not None
            monkeypatch.setattr(large_payloads, "sweep", sweep)
            for _ in range(300):
                sweeping = asyncio.create_task(sweep_regularly(large_payloads, client_of(app).services))
                await asyncio.sleep(3600)
                sweeping.cancel()
        # One in twelve hours of work, as each may come in the first twelve.
        assert 1 <= len(swept) <= 100

    run_virtual(main)


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_sweep_leaves_the_objects_of_a_database_that_another_one_has_replaced(
    meanwhile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: a worker that went on deleted all of them, as their jobs were not in the other one."""

    async def main(clock: VirtualClock) -> None:
        folder, store = Folder(), MemoryStorage(clock)
        stored_ids = store.stored_ids

        async def exchanged(ids: Sequence[str] = ()) -> Sequence[str]:
            for statement in ("DELETE FROM job", "UPDATE identity SET id = lower(hex(randomblob(16)))"):
                writer_of(store).execute(statement)
            return await stored_ids(ids)

        app = app_on(store, clock=clock, large_payloads=folder)
        echo = declare_echo(app)
        async with app.open():
            await echo.enqueue(LARGE)
            (kept,) = folder.objects()
            await asyncio.sleep(86400 * 4)
            if meanwhile:
                # A sweep of many objects may take hours.
                monkeypatch.setattr(store, "stored_ids", exchanged)
            else:
                await exchanged()
            assert await app.admin.sweep_large_payloads() == 0
            assert list(folder.objects()) == [kept]
            if not meanwhile:
                await echo.enqueue(LARGE)
                (place,) = {name.partition("/")[0] for name in folder.objects()} - {kept.partition("/")[0]}
                assert place == await store.identity()

    run_virtual(main)


async def test_a_sweep_of_a_folder_on_a_disk_deletes_empty_days_and_leaves_other_files(tmp_path: Path) -> None:
    folder = Folder(f"file://{tmp_path}")
    app = Headgate("memory://", large_payloads=folder)
    async with app.open():
        assert await app.admin.sweep_large_payloads() == 0
        place = tmp_path / await store_of(app).identity()
        old, name = place / "2020-01-01", f"{uuid.uuid4()}.{'0' * 16}"
        for path in (old / name, place / "2020-01-02" / "notes.txt", place / "mine" / name):
            path.parent.mkdir(parents=True)
            path.write_text("x")
        assert await app.admin.sweep_large_payloads() == 1
        assert sorted(each.name for each in place.iterdir()) == ["2020-01-02", "mine"]


async def test_a_sweep_deletes_no_folder_with_objects_where_that_deletes_them_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As in HDFS.
    monkeypatch.setattr(MemoryFileSystem, "rmdir", lambda files, path: files.rm(path, recursive=True))
    folder = LockedFolder()
    app = Headgate("memory://", large_payloads=folder)
    echo = declare_echo(app)
    async with app.open():
        job = await echo.using(delay="10d").enqueue(LARGE)
        (name,) = folder.objects()
        place = await store_of(app).identity()
        old = f"{place}/2020-01-01/{job.id}.{'0' * 16}"
        folder.write(old, b"x")
        orphans(folder, place, days=2, each=1)
        assert await app.admin.sweep_large_payloads() == 2
        assert sorted(folder.objects()) == sorted([name, old])


class LockedFolder(Folder):
    """A folder in which some objects cannot be deleted, and some days cannot be listed."""

    locked: tuple[str, ...] = ()

    def delete(self, name: str) -> bool:
        self._require_unlocked(name)
        return super().delete(name)

    def list(self, name: str) -> Iterator[str]:
        self._require_unlocked(name)
        return super().list(name)

    def _require_unlocked(self, name: str) -> None:
        if name.endswith(self.locked):
            raise PermissionError(f"{name} is locked")


def orphans(folder: LockedFolder, place: str, days: int, each: int) -> list[str]:
    names = [
        f"{place}/2020-01-{day + 1:02}/{uuid.UUID(int=number)}.{'0' * 16}"
        for day in range(days)
        for number in range(each)
    ]
    for name in names:
        folder.write(name, b"x")
    return names


async def test_two_sweeps_at_once_count_each_object_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: an object that the other one had deleted counted as deleted by both."""
    folder = LockedFolder()
    app = Headgate("memory://", large_payloads=folder)
    async with app.open():
        names = orphans(folder, await store_of(app).identity(), days=1, each=3)
        delete = folder.delete

        def delete_behind_another(name: str) -> bool:
            Folder.delete(folder, names[0])
            return delete(name)

        monkeypatch.setattr(folder, "delete", delete_behind_another)
        assert await app.admin.sweep_large_payloads() == 2


async def test_a_sweep_goes_on_after_objects_and_days_that_it_may_not_change_and_then_raises() -> None:
    folder = LockedFolder()
    app = Headgate("memory://", large_payloads=folder)
    async with app.open():
        names = orphans(folder, await store_of(app).identity(), days=5, each=4)
        folder.locked = ("2020-01-02", names[0], names[10])
        with pytest.raises(FolderUnavailable, match=f"deleting {names[0]} in the folder .* PermissionError"):
            await app.admin.sweep_large_payloads()
        assert sorted(folder.objects()) == sorted([names[0], *names[4:8], names[10]])
        folder.locked = ("2020-01-02",)
        with pytest.raises(FolderUnavailable, match=r"listing .*/2020-01-02 in the folder"):
            await app.admin.sweep_large_payloads()
        assert sorted(folder.objects()) == names[4:8]
        folder.locked = ()
        assert await app.admin.sweep_large_payloads() == 4


async def test_a_sweep_leaves_a_day_of_which_it_may_delete_nothing_and_ends_after_many_such_days() -> None:
    folder = LockedFolder()
    app = Headgate("memory://", large_payloads=folder)
    async with app.open():
        each = MAX_FAILURES_IN_A_ROW + 5
        names = orphans(folder, await store_of(app).identity(), days=MAX_FAILURES_IN_A_ROW + 2, each=each)
        folder.locked = tuple(names[: 2 * each])
        with pytest.raises(FolderUnavailable, match=names[0]):
            await app.admin.sweep_large_payloads()
        assert sorted(folder.objects()) == names[: 2 * each]
        names = orphans(folder, await store_of(app).identity(), days=MAX_FAILURES_IN_A_ROW + 2, each=each)
        folder.locked = tuple(names[: MAX_FAILURES_IN_A_ROW * each])
        with pytest.raises(FolderUnavailable, match=names[0]):
            await app.admin.sweep_large_payloads()
        assert sorted(folder.objects()) == names


def test_a_list_may_take_longer_than_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(clock: VirtualClock) -> None:
        folder = Folder(timeout=0.2)
        app = app_on(MemoryStorage(clock), clock=clock, large_payloads=folder)
        async with app.open():
            let_each_take(monkeypatch, 1.5)
            assert await app.admin.sweep_large_payloads() == 0
            assert folder.done == ["list"]
            let_each_take(monkeypatch, 2.5)
            with pytest.raises(FolderUnavailable, match="no answer for 2 s"):
                await app.admin.sweep_large_payloads()

    run_virtual(main)


# ------------------------------------------------------------------------------------------------------ declarations


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PayloadFolder("large"), "is not the URL of a folder"),
        (lambda: PayloadFolder("nowhere://x"), "nowhere://x cannot be opened"),
        (lambda: PayloadFolder("memory://x", above="big"), "above='big' is not a size"),
        (lambda: PayloadFolder("memory://x", timeout=0), "must be above 0 seconds"),
        (lambda: Headgate("memory://", large_payloads="s3://x"), "is not a PayloadFolder"),  # type: ignore[arg-type]
        (lambda: Headgate("memory://", large_payloads=PayloadFolder("memory://x", above="1MB")), "raise max_payload"),
    ],
)
def test_a_folder_that_cannot_work_is_refused_when_it_is_declared(make: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        make()


def test_a_codec_cannot_have_the_name_that_marks_the_folder() -> None:
    class Named(Zlib):
        name = "folder"

    with pytest.raises(DeclarationError, match="marks large payloads"):
        Headgate("memory://", codec=Named())


def test_no_secret_of_the_url_or_the_options_is_shown() -> None:
    folder = PayloadFolder("memory://ada:hunter2@host/x", above=5, token="hunter3")
    assert "hunter" not in repr(folder)
    assert folder.shown_url


# ---------------------------------------------------------------------------------------- servers with sessions


class ServerFiles(MemoryFileSystem):  # type: ignore[misc]
    """A server with real folders and with sessions, each of which ends with the server."""

    protocol = "smb"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    starts = 0
    opened_in: ClassVar[list[threading.Thread]] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._start = ServerFiles.starts
        self.opened_in.append(threading.current_thread())

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("smb://").strip("/")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._require_session()
        if not self.isdir(self._parent(path)):
            raise FileNotFoundError(path)
        super().pipe_file(path, value, mode, **options)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        if not create_parents and not self.isdir(self._parent(path)):
            raise FileNotFoundError(path)
        super().mkdir(path, create_parents, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self._require_session()
        data: bytes = super().cat_file(path, start, end, **options)
        return data

    def _require_session(self) -> None:
        if self._start != ServerFiles.starts:
            raise OSError("the session has ended")


@pytest.fixture
def server() -> type[ServerFiles]:
    register_implementation("smb", ServerFiles, clobber=True)
    ServerFiles.store, ServerFiles.pseudo_dirs = {}, [""]
    return ServerFiles


async def test_on_a_server_with_real_folders_they_are_made_as_on_a_disk(server: type[ServerFiles]) -> None:
    """The fault: on a server whose writes make no folders, nothing was ever stored."""
    folder = Folder("smb://files/jobs/headgate")
    app = Headgate("memory://", large_payloads=folder)
    echo = declare_echo(app)
    async with app:
        assert await result_within(await echo.enqueue(LARGE)) == LARGE
        for path in [path for path in server.pseudo_dirs if path.startswith("/files")]:
            server.pseudo_dirs.remove(path)
        server.store.clear()
        with pytest.raises(FolderUnavailable, match="FileNotFoundError"):
            await echo.enqueue(LARGE)
        assert not server.store, "what is above the day may be on a disk that is not mounted"


async def test_a_folder_on_a_server_that_was_restarted_is_connected_anew(server: type[ServerFiles]) -> None:
    """The fault: once the session had ended, each access failed until the program was started again."""
    app = Headgate("memory://", large_payloads=Folder("smb://files/jobs"))
    echo = declare_echo(app)
    async with app:
        await echo.enqueue(LARGE)
        server.starts += 1
        with pytest.raises(FolderUnavailable, match="the session has ended"):
            await echo.enqueue(LARGE)
        assert await result_within(await echo.enqueue(LARGE)) == LARGE
    assert server.opened_in.pop() is not threading.main_thread(), "the loop does not wait for the server"


def test_a_client_that_serves_one_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: fsspec's clients of FTP and SFTP mix up the answers to several threads, which waited forever."""
    register_implementation("sftp", ServerFiles, clobber=True)
    monkeypatch.setattr(ServerFiles, "protocol", ("sftp", "ssh"))
    with pytest.raises(DeclarationError, match="for SFTP, pip install sshfs"):
        PayloadFolder("sftp://files/jobs")


SILENT = """
import asyncio, threading
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem
from headgate import FolderUnavailable, Headgate, PayloadFolder

class Silent(MemoryFileSystem):
    protocol = "silent"

    def pipe_file(self, *_args, **_options):
        threading.Event().wait()

register_implementation("silent", Silent)
app = Headgate("memory://", large_payloads=PayloadFolder("silent://jobs", above=100, timeout=0.1))

@app.task
async def echo(text: str) -> None: ...

async def main():
    async with app.open():
        try:
            await echo.enqueue("x" * 500)
        except FolderUnavailable as error:
            print(error)

asyncio.run(main())
"""


async def test_a_program_ends_while_its_store_does_not_answer() -> None:
    """The fault: it waited at its exit for the threads of the store, which may never answer."""
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SILENT,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    try:
        async with asyncio.timeout(patient(15)):
            output, _ = await program.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            program.kill()
    assert (program.returncode, b"no answer for 0.1 s" in output) == (0, True)
