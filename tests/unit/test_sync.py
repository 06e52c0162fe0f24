"""Code that cannot await: from many threads, from inside a handler's thread, after a fork, and from the wrong place."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from headgate import Headgate, HeadgateError, JobState, NotOpen, StorageUnavailable
from headgate.client import portal as portal_module
from headgate.client.portal import Portal
from tests.forked import answer_of_forked_child
from tests.internals import store_of
from tests.until import patient, result_within, until, until_now


def make_app(path: Path) -> Headgate:
    app = Headgate(f"sqlite:///{path}/jobs.db", synchronous="OFF")

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    return app


def test_jobs_are_enqueued_from_many_threads_and_the_app_opens_by_itself(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    task = app.tasks["add"]
    ids: list[str] = []

    def enqueue() -> None:
        ids.extend(task.sync.enqueue(1, n).id for n in range(20))

    threads = [threading.Thread(target=enqueue) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 160
    job = task.sync.enqueue_many([(1, 2)])[0]
    assert job.status().state is JobState.WAITING
    assert job.cancel() is True
    with pytest.raises(TimeoutError):
        task.sync.enqueue(1, 1).result(timeout=0.01)
    app.sync.close()
    # Closed is not over: the next call opens it again.
    assert task.sync.enqueue(2, 2).status().state is JobState.WAITING
    app.sync.close()


def test_all_threads_learn_together_that_the_store_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: each tried once the one before had given up, so that the last of 20 waited for 100 s."""
    app = make_app(tmp_path)
    task = app.tasks["add"]
    begun, tries, errors = list[int](), list[int](), list[Exception]()

    async def away(*, migrate: bool) -> None:
        tries.append(len(begun))
        await until(lambda: len(begun) == 8)
        await asyncio.sleep(0.5)
        raise StorageUnavailable("the store is away")

    def enqueue(number: int) -> None:
        begun.append(number)
        try:
            task.sync.enqueue(number, 1)
        except StorageUnavailable as error:
            errors.append(error)

    with monkeypatch.context() as patched:
        patched.setattr(store_of(app), "open", away)
        threads = [threading.Thread(target=enqueue, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({id(error) for error in errors}) == 8
    # A thread may still be on its way on a busy machine.
    assert len(tries) < 4
    assert task.sync.enqueue(1, 2).status().state is JobState.WAITING
    app.sync.close()


async def test_a_plain_handler_enqueues_through_the_loop_that_runs_it(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.task
    def parent() -> int:
        return app.tasks["add"].sync.enqueue(40, 2).result(timeout=patient(5))  # type: ignore[no-any-return]

    async with app:
        assert await result_within(await parent.enqueue()) == 42


async def test_a_sync_method_on_the_event_loop_is_refused_instead_of_blocking_for_ever(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.open():
        with pytest.raises(HeadgateError, match="in a coroutine write `await`"):
            app.tasks["add"].sync.enqueue(1, 1)


def test_a_sync_method_while_the_loop_of_the_app_does_not_run_is_refused_instead_of_waiting_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: on the thread that would have to run the loop, it waited for ever."""
    monkeypatch.setattr(portal_module, "LOOP_STANDS_FOR", 1)
    app = make_app(tmp_path)
    opened = app.open()
    with asyncio.Runner() as runner:
        runner.run(opened.__aenter__())
        with pytest.raises(HeadgateError, match=r"an event loop that does not run.*run_until_complete\(task\.enqueue"):
            app.sync.run(app.tasks["add"].enqueue(1, 1))
        assert runner.run(app.admin.counts()) == []
        runner.run(opened.__aexit__(None, None, None))


def test_a_sync_method_waits_while_another_thread_opens_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: it raised DeclarationError, so what a thread enqueued while a server started was lost."""
    app = make_app(tmp_path)
    open_store, opened_loop = store_of(app).open, app._client.portal._opened_loop
    is_opening, is_called = threading.Event(), threading.Event()

    async def open_when_called(*, migrate: bool) -> None:
        is_opening.set()
        with pytest.raises(HeadgateError, match="in a coroutine write `await`"):
            app.tasks["add"].sync.enqueue(1, 1)
        await until(is_called.is_set)
        await asyncio.sleep(0.2)
        await open_store(migrate=migrate)

    def note_call() -> asyncio.AbstractEventLoop:
        is_called.set()
        return opened_loop()

    monkeypatch.setattr(store_of(app), "open", open_when_called)
    monkeypatch.setattr(app._client.portal, "_opened_loop", note_call)

    def enqueue() -> JobState:
        assert is_opening.wait(patient(5))
        return app.tasks["add"].sync.enqueue(1, 1).status().state

    async def main() -> None:
        async with app.open():
            assert await asyncio.wrap_future(calling) is JobState.WAITING

    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(enqueue)
        asyncio.run(main())


def test_closing_on_the_event_loop_that_it_ends_is_refused_instead_of_blocking_for_ever(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    async def command() -> str:
        app.sync.close()
        return "not reached"

    with app.sync:
        with pytest.raises(HeadgateError, match="would wait for the coroutine that calls it"):
            app.sync.run(command())
        assert app.tasks["add"].sync.enqueue(1, 1).status().state is JobState.WAITING


def test_a_thread_for_which_asyncio_names_the_loop_of_the_portal_enqueues_as_others_do(tmp_path: Path) -> None:
    """The fault: under gevent, whose threads are one to asyncio, each call but the first was refused."""
    app = make_app(tmp_path)
    with app.sync:
        asyncio._set_running_loop(app._client.portal._loop)
        try:
            assert app.tasks["add"].sync.enqueue(1, 1).status().state is JobState.WAITING
        finally:
            asyncio._set_running_loop(None)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_before_the_app_opens_has_an_app_of_its_own(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    task = app.tasks["add"]
    job_id = answer_of_forked_child(lambda: task.sync.enqueue(2, 2).id)
    assert app.job(job_id).id == job_id
    assert task.sync.enqueue(3, 3).status().state is JobState.WAITING
    assert app.sync.job(job_id).status().state is JobState.WAITING
    app.sync.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_while_the_app_is_open_gets_an_error(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    task = app.tasks["add"]
    task.sync.enqueue(1, 1)
    assert "ForkedConnection" in answer_of_forked_child(lambda: task.sync.enqueue(2, 2).id)
    assert task.sync.enqueue(3, 3).status().state is JobState.WAITING
    app.sync.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_while_the_app_is_open_closes_nothing_of_its_parent() -> None:
    """The fault: the garbage collector closed the app in the child, whose own opening waited for that for ever."""
    left = 0

    @contextlib.asynccontextmanager
    async def open_app() -> AsyncIterator[None]:
        nonlocal left
        try:
            yield
        finally:
            left += 1

    def ask() -> str:
        blocks.pop()()
        portal.close()
        gc.collect()
        return f"left {left} times"

    portal = Portal(open_app, lambda: None)
    portal.open()
    blocks = [portal.enter(open_app())]
    assert answer_of_forked_child(ask) == "left 0 times"
    blocks.pop()()
    portal.close()
    assert left == 2


def test_a_script_opens_and_closes_in_one_block(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    with app.sync:
        assert "headgate-sync" in {thread.name for thread in threading.enumerate()}
        assert app.tasks["add"].sync.enqueue(1, 2).status().state is JobState.WAITING
    assert "headgate-sync" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.timeout(60)
def test_a_thread_that_can_make_no_event_loop_ends_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: the call, and those of all other threads, waited for ever."""
    app = make_app(tmp_path)

    def fail() -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.events, "new_event_loop", fail)
        with pytest.raises(OSError, match="Too many open files"):
            app.tasks["add"].sync.enqueue(1, 2)
    assert app.tasks["add"].sync.enqueue(1, 2).status().state is JobState.WAITING
    app.sync.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("does", ["calls", "enters"])
def test_a_call_or_a_block_ends_that_its_loop_did_not_begin_before_it_was_closed(does: str) -> None:
    """The fault: it waited for ever, as a call of a thread at the moment at which the program closes the app."""

    def call() -> None:
        if does == "calls":
            portal.run(asyncio.sleep(0))
        else:
            portal.enter(contextlib.nullcontext())

    class Loop(asyncio.SelectorEventLoop):
        def close(self) -> None:
            calls.append(threads.submit(call))
            until_now(lambda: len(self._ready) > 0)  # type: ignore[attr-defined]
            super().close()

    calls: list[Future[None]] = []
    loop = Loop()
    portal = Portal(lambda: contextlib.nullcontext(), lambda: loop)
    with ThreadPoolExecutor(1) as threads:
        loop.close()
        with pytest.raises(NotOpen):
            calls[0].result()


async def test_a_call_to_a_loop_that_is_closed_says_that_the_app_is_not_open() -> None:
    """The fault: RuntimeError, "Event loop is closed", and a warning about a coroutine that was never awaited."""
    closed = asyncio.new_event_loop()
    closed.close()
    portal = Portal(contextlib.nullcontext, lambda: closed)
    for call in (
        asyncio.to_thread(portal.run, asyncio.sleep(0)),
        portal.reach(asyncio.sleep(0)),
        asyncio.to_thread(portal.enter, contextlib.AsyncExitStack()),
    ):
        with pytest.raises(NotOpen):
            await call


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C does what it does in a program of one's own; what runs in the background of a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_wait_and_not_the_portal(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    with app.sync:
        job = app.tasks["add"].sync.enqueue(1, 2)
        # As Ctrl-C comes to the thread that waits, a moment after it began to.
        main = threading.main_thread().ident
        assert main is not None
        interrupt = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))

        def wait() -> None:
            interrupt.start()
            job.result(timeout=patient(15))

        with pytest.raises(KeyboardInterrupt):
            wait()
        assert job.cancel() is True


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_a_coroutine_that_ends_the_program_does_not_end_the_portal(tmp_path: Path, raised: type[BaseException]) -> None:
    """The fault: asyncio raised it out of the loop of the portal, and each later call met a loop that was closed."""
    app = make_app(tmp_path)

    async def command() -> None:
        raise raised(3)

    with app.sync:
        with pytest.raises(raised, match="3"):
            app.sync.run(command())
        assert app.tasks["add"].sync.enqueue(1, 2).status().state is JobState.WAITING


def test_a_module_that_ends_the_program_does_not_end_the_portal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_that_exits.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    app = Headgate("memory://", imports=["module_that_exits"])

    @app.task
    async def work() -> None: ...

    with app.open():
        with pytest.raises(SystemExit, match="3"), app:
            pass
        assert work.sync.enqueue().status().state is JobState.WAITING


def test_an_interrupt_in_a_transaction_of_the_caller_does_not_end_the_portal(tmp_path: Path) -> None:
    class Interrupted(sqlite3.Connection):
        """A connection whose user types Ctrl-C while it waits for a lock."""

        def cursor(self, *_: object) -> NoReturn:
            raise KeyboardInterrupt

    app = make_app(tmp_path)
    task = app.tasks["add"]
    with app.sync, contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", factory=Interrupted)) as connection:
        connection.execute("BEGIN")
        with pytest.raises(KeyboardInterrupt):
            task.using(connection=connection).sync.enqueue(1, 1)
        connection.rollback()
        assert task.sync.enqueue(1, 2).status().state is JobState.WAITING
