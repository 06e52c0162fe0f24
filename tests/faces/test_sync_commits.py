"""A thread without an event loop commits its own jobs on SQLite; what needs the loop goes there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, cast
from uuid import NAMESPACE_URL, uuid5

import pytest

from headgate import DuplicateJob, Headgate, HeadgateError, IdInUse, JobState, NotOpen, PayloadError, RateLimit
from headgate.client import portal
from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable
from headgate.jobs.event import JobEnqueued
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.threads import InThread
from tests.internals import app_on, client_of, store_of, writer_of
from tests.interrupts import call_with_signal, interrupt
from tests.until import patient, until_now

MINE = str(uuid5(NAMESPACE_URL, "mine"))


def make_app(path: Path) -> Headgate:
    app = Headgate(f"sqlite:///{path}/jobs.db", synchronous="OFF")

    @app.task
    async def note(number: int) -> int:
        return number

    return app


def storage_of(app: Headgate) -> SqliteStorage:
    return cast(SqliteStorage, store_of(app))


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Headgate]:
    """An open app that has enqueued once, which the loop does."""
    app = make_app(tmp_path)
    with app.open():
        warm_up(app)
        yield app


def warm_up(app: Headgate) -> None:
    app.tasks["note"].sync.enqueue(0)
    until_now(lambda: store_of(app).can_add_in_thread)


def commits_of(app: Headgate, call: Callable[[], object]) -> list[bool]:
    """Return for each commit during the call whether this thread made it."""
    here, found = threading.get_ident(), []
    writer = writer_of(storage_of(app))

    def trace(statement: str) -> None:
        if statement == "COMMIT":
            found.append(threading.get_ident() == here)

    writer.set_trace_callback(trace)
    try:
        call()
    finally:
        writer.set_trace_callback(None)
    return found


def numbers(app: Headgate) -> list[int]:
    """The arguments of all jobs, in the order of their ids."""
    with closing(sqlite3.connect(storage_of(app).path)) as connection:
        rows = connection.execute("SELECT json_extract(payload, '$.number') FROM job ORDER BY id").fetchall()
    return [number for (number,) in rows]


def test_a_thread_commits_its_own_jobs(app: Headgate) -> None:
    note = app.tasks["note"]
    assert commits_of(app, lambda: note.sync.enqueue(1)) == [True]
    assert commits_of(app, lambda: note.sync.enqueue_many([(2,), (3,)])) == [True]
    assert commits_of(app, lambda: note.using(unique_key="four", delay=60).sync.enqueue(4)) == [True]
    assert numbers(app) == [0, 1, 2, 3, 4]


def test_jobs_with_limits_are_committed_by_their_thread(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.task(limits=[RateLimit(1, per=3600, key="{tenant}")])
    async def of_tenant(tenant: str) -> None: ...

    with app.open():
        warm_up(app)
        assert commits_of(app, lambda: of_tenant.sync.enqueue("acme")) == [True]
        assert app.sync.admin.counts()[0].waiting == 2


def with_hook(app: Headgate) -> None:
    @app.around_enqueue
    async def hook(drafts: Any, store: Any) -> None:
        await store()


def with_subscriber(app: Headgate) -> None:
    app.subscribe(lambda _event: None, JobEnqueued)


def with_bounded_queue(app: Headgate) -> None:
    app.queue("default", max_backlog=100)


NEEDS_LOOP: Mapping[str, Callable[[Headgate], None]] = {
    "a hook": with_hook,
    "a subscriber": with_subscriber,
    "a bounded queue": with_bounded_queue,
}


@pytest.mark.parametrize("what", NEEDS_LOOP)
def test_what_needs_the_loop_is_committed_as_before(tmp_path: Path, what: str) -> None:
    app = make_app(tmp_path)
    NEEDS_LOOP[what](app)
    with app.open():
        warm_up(app)
        assert commits_of(app, lambda: app.tasks["note"].sync.enqueue(1)) == [False]
        assert numbers(app) == [0, 1]


def test_a_prediction_and_a_longest_wait_need_the_loop(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.task(limits=[RateLimit(1, per=3600, max_wait=60)])
    async def impatient(number: int) -> None: ...

    with app.open():
        warm_up(app)
        assert True not in commits_of(app, lambda: impatient.sync.enqueue(1))
        assert True not in commits_of(app, lambda: app.tasks["note"].using(predict=True).sync.enqueue(1))


def test_a_skipped_limit_is_published_once_and_then_the_thread_commits(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.task(limits=[RateLimit(1, per=3600, key="{tenant}")])
    async def of_tenant(tenant: str) -> None: ...

    with app.open():
        warm_up(app)
        assert [commits_of(app, lambda: of_tenant.sync.enqueue("")) for _ in range(2)] == [[False], [True]]


def test_errors_are_those_of_the_loop(app: Headgate) -> None:
    note = app.tasks["note"]
    other = app.task(name="other")(lambda number: number)
    note.using(id=MINE, unique_key="one", on_conflict="raise").sync.enqueue(1)
    failing: list[tuple[type[Exception], Any, tuple[Any, ...]]] = [
        (PayloadError, note, (object(),)),
        (TypeError, note, ()),
        (IdInUse, other.using(id=MINE), (1,)),
        (DuplicateJob, note.using(unique_key="one", on_conflict="raise"), (2,)),
    ]
    for kind, task, arguments in failing:
        with pytest.raises(kind) as here:
            task.sync.enqueue(*arguments)
        with pytest.raises(kind) as on_the_loop:
            app.sync.run(task.enqueue(*arguments))
        assert str(here.value) == str(on_the_loop.value)
        assert store_of(app).can_add_in_thread
    assert sorted(numbers(app)) == [0, 1]


def test_a_file_that_another_connection_locks_raises_the_same_error_and_can_be_used_afterwards(tmp_path: Path) -> None:
    app = app_on(SqliteStorage(tmp_path / "jobs.db", SystemClock(), synchronous="OFF", patience=0.01))

    @app.task(name="note")
    async def note(number: int) -> None: ...

    with app.open():
        warm_up(app)
        other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageUnavailable, match="locked by another connection") as here:
            note.sync.enqueue(1)
        with pytest.raises(StorageUnavailable) as on_the_loop:
            app.sync.run(note.enqueue(1))
        assert str(here.value) == str(on_the_loop.value)
        other.execute("ROLLBACK")
        other.close()
        assert commits_of(app, lambda: note.sync.enqueue(2)) == [True]
        assert numbers(app) == [0, 2]


@pytest.mark.filterwarnings(
    # An interrupt may come between the making of a coroutine and its first step, or where a generator is deleted.
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
def test_an_interrupt_at_any_point_leaves_the_store_usable(app: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    note, storage, point, is_whole = app.tasks["note"], storage_of(app), 1, False
    made, acknowledged, has_added = count(1), [0], list[bool]()
    add = storage.add_in_thread

    def add_in_thread(jobs: Any) -> Any:
        added = add(jobs)
        has_added.append(added is not None)
        return added

    def enqueue() -> None:
        number = next(made)
        note.sync.enqueue(number)
        acknowledged.append(number)

    monkeypatch.setattr(storage, "add_in_thread", add_in_thread)
    while not is_whole:
        until_now(lambda: storage.can_add_in_thread)
        has_added.clear()
        if call_with_signal(enqueue, interrupt, at=point):
            until_now(lambda: storage.can_add_in_thread)
            assert not writer_of(storage).in_transaction
            until_now(lambda: commits_of(app, enqueue) == [True])
            point += 1
        else:
            # One that the loop has committed, as its look at the file had the writer, has fewer points: once more.
            is_whole = has_added == [True]
    assert point > 100
    stored = numbers(app)
    assert len(set(stored)) == len(stored)
    assert set(stored) >= set(acknowledged)


@pytest.mark.parametrize("verb", ["sync", "loop"])
def test_what_two_interrupts_have_left_open_is_rolled_back(app: Headgate, verb: str) -> None:
    note, writer = app.tasks["note"], writer_of(storage_of(app))
    writer.execute("BEGIN IMMEDIATE")
    if verb == "sync":
        note.sync.enqueue(1)
    else:
        app.sync.run(note.enqueue(1))
    assert numbers(app) == [0, 1]


def test_a_signal_handler_in_the_middle_of_a_commit_is_refused_instead_of_waiting_for_its_own_thread(
    app: Headgate,
) -> None:
    note = app.tasks["note"]
    errors: list[str] = []

    def handle(statement: str) -> None:
        # SQLite calls this in the middle of a statement, in the thread that commits.
        if statement == "COMMIT" and not errors:
            try:
                note.sync.enqueue(2)
            except HeadgateError as error:
                errors.append(str(error))

    writer_of(storage_of(app)).set_trace_callback(handle)
    note.sync.enqueue(1)
    writer_of(storage_of(app)).set_trace_callback(None)
    assert len(errors) == 1
    assert "this would wait for the transaction that is open here" in errors[0]
    note.sync.enqueue(3)
    assert numbers(app) == [0, 1, 3]


def test_a_signal_handler_at_any_point_enqueues_or_is_refused(app: Headgate) -> None:
    """The fault: while its thread made an id, or counted a job, both waited for ever."""
    note, point, is_handled, stored = app.tasks["note"], 0, True, [0]

    def enqueue(number: int) -> None:
        note.sync.enqueue(number)
        stored.append(number)

    def handle() -> None:
        with contextlib.suppress(HeadgateError):
            enqueue(-point)

    def run() -> None:
        nonlocal is_handled
        is_handled = call_with_signal(partial(enqueue, point), handle, at=point)

    while is_handled:
        point += 1
        until_now(lambda: store_of(app).can_add_in_thread)
        InThread(run).end(5)
    assert point > 100
    assert sorted(numbers(app)) == sorted(stored)


def test_a_signal_handler_at_any_point_of_a_call_calls_too(app: Headgate) -> None:
    """The fault: it waited for the loop, and this for a lock of the result, which the interrupted thread held."""
    point, is_handled, answers = 0, True, list[int]()

    def call() -> None:
        answers.append(app.sync.run(asyncio.sleep(0, point)))

    def run() -> None:
        nonlocal is_handled
        is_handled = call_with_signal(call, call, at=point)

    while is_handled:
        point += 1
        InThread(run).end(15)
    assert point > 20
    assert sorted(answers) == sorted([*range(1, point + 1), *range(1, point)])


@pytest.mark.parametrize("by", ["call", "block"])
def test_a_signal_handler_at_any_point_of_the_opening_enqueues_or_is_refused(tmp_path: Path, by: str) -> None:
    """The fault: while its thread opened the app, or waited for the end of that, both waited for ever."""
    app = make_app(tmp_path)
    note, point, is_interrupted, stored = app.tasks["note"], 0, True, list[int]()
    files = {portal.__file__, concurrent.futures._base.__file__}

    def enqueue() -> None:
        nonlocal is_interrupted
        left = point

        def handle(frame: FrameType, event: str, _argument: object) -> None:
            nonlocal left, is_interrupted
            if event in ("call", "c_return") and frame.f_code.co_filename in files:
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    is_interrupted = True
                    with contextlib.suppress(HeadgateError):
                        note.sync.enqueue(-point)
                        stored.append(-point)

        sys.setprofile(handle)
        with app.open() if by == "block" else contextlib.nullcontext():
            note.sync.enqueue(point)
            sys.setprofile(None)
        stored.append(point)
        app.sync.close()

    while is_interrupted:
        point, is_interrupted = point + 1, False
        InThread(enqueue).end(5)
        assert client_of(app).lifecycle.loop is None
    assert point > 10
    assert sorted(numbers(app)) == sorted(stored)
    assert len(stored) > 1.5 * point


def test_the_loop_of_the_app_is_still_refused(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    async def main() -> None:
        async with app.open():
            await app.tasks["note"].enqueue(0)
            with pytest.raises(HeadgateError, match="in a coroutine write `await`"):
                app.tasks["note"].sync.enqueue(1)

    asyncio.run(main())


def test_a_thread_that_commits_wakes_the_node_of_its_process(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    with app:
        assert app.tasks["note"].sync.enqueue(0).result(patient(10)) == 0
        until_now(lambda: store_of(app).can_add_in_thread)
        woken = threading.Event()
        store_of(app).watch(woken.set)
        assert commits_of(app, lambda: app.tasks["note"].sync.enqueue(1))[:1] == [True]
        assert woken.wait(patient(5))
        until_now(lambda: app.sync.admin.counts()[0].succeeded == 2)


def test_jobs_that_threads_commit_are_in_the_history(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    with app.open():
        for number in range(4):
            app.tasks["note"].sync.enqueue(number)
    with app.open():
        assert sum(point.enqueued for point in app.sync.admin.history.jobs()) == 4


def test_counts_of_a_thread_that_come_after_the_last_write_are_written_by_the_next_opening(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    writer = client_of(app).history_writer
    with app.open():
        warm_up(app)
        add_in_thread = SqliteStorage.add_in_thread

        def close_first(storage: SqliteStorage, jobs: Any) -> Any:
            stored = add_in_thread(storage, jobs)
            app.sync.run(writer.close(1))
            return stored

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SqliteStorage, "add_in_thread", close_first)
            app.tasks["note"].sync.enqueue(1)
    with app.open():
        pass
    with app.open():
        assert sum(point.enqueued for point in app.sync.admin.history.jobs()) == 2


def test_threads_that_enqueue_while_the_app_is_closed_lose_nothing(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    note = app.tasks["note"]
    enough = [threading.Event() for _ in range(3)]

    def enqueue(place: int) -> list[int]:
        done: list[int] = []
        # Raised once the app is closed.
        with contextlib.suppress(NotOpen):
            while client_of(app).lifecycle.is_open:
                number = 1_000_000 * place + len(done)
                note.sync.enqueue(number)
                done.append(number)
                if len(done) == 20:
                    enough[place].set()
        return done

    with ThreadPoolExecutor(3) as pool:
        with app.open():
            running = [pool.submit(enqueue, place) for place in range(3)]
            for each in enough:
                assert each.wait(patient(20))
        acknowledged = [each.result(patient(20)) for each in running]
    app.sync.close()
    stored = numbers(app)
    assert len(set(stored)) == len(stored)
    for place, own in enumerate(acknowledged):
        assert [number for number in stored if number // 1_000_000 == place][: len(own)] == own


def test_a_commit_of_the_loop_waits_for_that_of_a_thread_and_no_thread_begins_before_it(app: Headgate) -> None:
    storage, note = storage_of(app), app.tasks["note"]
    holder = sqlite3.connect(storage.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(2) as pool:
        here = pool.submit(note.sync.enqueue, 1)
        until_now(storage._writer_lock.locked)
        on_the_loop = pool.submit(app.sync.run, note.enqueue(2))
        until_now(lambda: storage._is_writer_wanted)
        assert not storage.can_add_in_thread
        holder.execute("ROLLBACK")
        holder.close()
        here.result(patient(10))
        on_the_loop.result(patient(10))
    until_now(lambda: storage.can_add_in_thread)
    assert sorted(numbers(app)) == [0, 1, 2]


FORK = """
import os, sys, threading
from headgate import Headgate, HeadgateError

app = Headgate("sqlite:///jobs.db", synchronous="OFF")


@app.task
async def note(number: int) -> None: ...


if __name__ == "__main__":
    note.sync.enqueue(0)
    with app._storage._writer_lock:
        child = os.fork()
    if child == 0:
        try:
            note.sync.enqueue(1)
        except HeadgateError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    note.sync.enqueue(2)
"""


def test_a_fork_is_refused_as_before_even_if_another_thread_was_committing(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FORK)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patient(20),
    )
    assert "was forked from it" in done.stdout, done.stderr
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        assert connection.execute("SELECT count(*) FROM job").fetchone() == (2,)


def test_states_are_those_of_jobs_that_the_loop_stores(app: Headgate) -> None:
    note = app.tasks["note"]
    assert note.sync.enqueue(1).status().state is JobState.WAITING
    job = note.using(id=MINE).sync.enqueue(2)
    again = note.using(id=MINE).sync.enqueue(2)
    assert (job.id, again.id, numbers(app).count(2)) == (MINE, MINE, 1)
