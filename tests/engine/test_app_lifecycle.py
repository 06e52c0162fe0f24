"""Many who open an app open its store once and on one loop, also where the first of them fails or is cancelled."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from headgate import Headgate, HeadgateError, batch
from headgate.clock import SECOND, SystemClock
from headgate.engine.app_lifecycle import AppLifecycle
from headgate.errors import DeclarationError, StorageUnavailable, StorageUnusable
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on
from tests.until import patient, result_within


class SlowOpeningStorage(MemoryStorage):
    """A memory store that takes a second to open, and cannot be opened the first time."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.opening = self.most_at_once = self.openings = 0

    async def open(self, *, migrate: bool = True) -> None:
        self.openings += 1
        self.opening += 1
        self.most_at_once = max(self.most_at_once, self.opening)
        try:
            is_first = self.openings == 1
            await asyncio.sleep(1)
            if is_first:
                raise StorageUnusable("its folder is not there yet")
        finally:
            self.opening -= 1
        await super().open(migrate=migrate)


def test_when_opening_fails_one_waiter_tries_again_and_the_others_wait_for_it() -> None:
    """The fault: all who had waited opened the store at once, and those of them who were late opened it over again."""

    async def main(clock: VirtualClock) -> None:
        store = SlowOpeningStorage(clock)
        app = app_on(store, clock=clock)

        async def use() -> None:
            async with app.open():
                await asyncio.sleep(10)

        ended = await asyncio.gather(*(use() for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in ended] == [StorageUnusable, *[type(None)] * 4]
        assert (store.openings, store.most_at_once) == (2, 1)

    run_virtual(main)


def test_all_tasks_learn_together_that_the_store_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: each tried once the one before had given up, so that the last of 20 waited for 100 s."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app = app_on(store, clock=clock)

        async def away(*, migrate: bool) -> None:
            await asyncio.sleep(5)
            raise StorageUnavailable("the store is away")

        async def use() -> None:
            async with app.open():
                await asyncio.sleep(10)

        with monkeypatch.context() as patched:
            patched.setattr(store, "open", away)
            for _ in range(2):
                began = clock.monotonic()
                errors = await asyncio.gather(*(use() for _ in range(20)), return_exceptions=True)
                assert {type(error) for error in errors} == {StorageUnavailable}
                assert len({id(error) for error in errors}) == 20
                assert clock.monotonic() - began < 6 * SECOND
        await asyncio.gather(*(use() for _ in range(5)))

    run_virtual(main)


def test_an_app_that_sync_code_has_opened_is_not_opened_on_another_loop_beside() -> None:
    """The fault: it was, without a word, and jobs then waited for wake-ups that went to the other loop."""
    app = Headgate("memory://")

    @app.task
    async def work() -> int:
        return 3

    async def main() -> int:
        async with app:
            return await result_within(await work.enqueue(), 5)

    work.sync.enqueue()
    try:
        with pytest.raises(DeclarationError, match=r"open on another event loop.*app\.sync\.close"):
            asyncio.run(main())
    finally:
        app.sync.close()
    assert asyncio.run(main()) == 3


def test_an_app_that_is_open_on_one_loop_refuses_coroutines_on_another_and_says_how_to_run_them(tmp_path: Path) -> None:
    """The fault: an enqueue that met a commit of the other loop waited for ever."""
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")

    @app.task
    async def work() -> int:
        return 3

    async def main() -> None:
        job = app.job(stored.id)
        for verb in (work.enqueue, job.result, job.cancel, app.batch("b").wait, batch([work.call()]).enqueue):
            with pytest.raises(HeadgateError, match=r"open on another event loop; write `await asyncio\.to_thread"):
                await verb()
        with pytest.raises(HeadgateError, match="open on another event loop"):
            await app.admin.cancel(stored.id)
        assert (await asyncio.to_thread(app.sync.run, job.status())).id == stored.id
        again = await asyncio.to_thread(app.sync.run, work.enqueue())
        assert await asyncio.to_thread(app.sync.run, again.cancel())

    with app.open():
        stored = work.sync.enqueue()
        asyncio.run(main())


def test_an_app_whose_store_could_not_be_closed_is_open_on_no_loop_any_more() -> None:
    class UnclosableStorage(MemoryStorage):
        async def close(self) -> None:
            raise OSError("the disk is gone")

    app = app_on(UnclosableStorage(SystemClock()))

    async def use() -> None:
        async with app.open():
            pass

    with pytest.raises(OSError, match="the disk is gone"):
        asyncio.run(use())
    # Not on the loop that has ended.
    assert app.sync.admin.counts() == []
    with pytest.raises(OSError, match="the disk is gone"):
        app.sync.close()


async def test_a_sqlite_file_whose_opening_is_cancelled_has_no_connection_left(tmp_path: Path) -> None:
    """The fault: the thread went on, and gave its connections to whoever had opened the file next."""
    is_connecting, may_connect = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class Slow(SqliteStorage):
        def _anchor(self, writer: sqlite3.Connection) -> int:
            loop.call_soon_threadsafe(is_connecting.set)
            may_connect.wait(patient(5))
            return super()._anchor(writer)

    store = Slow(tmp_path / "jobs.db", SystemClock(), synchronous="OFF")
    opening = asyncio.create_task(store.open())
    await is_connecting.wait()
    for _ in range(3):
        opening.cancel()
        await asyncio.sleep(0)
    assert not opening.done()
    may_connect.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    other = sqlite3.connect(tmp_path / "jobs.db", timeout=0)
    # SQLite deletes the log only if no other process has the file open.
    assert other.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    other.close()
    await store.open()
    await store.close()


async def nothing() -> None:
    """A step that needs no time."""


@pytest.mark.parametrize("change", ["opening", "closing"])
def test_an_app_that_is_just_being_opened_or_closed_on_one_loop_is_not_opened_on_another(change: str) -> None:
    """The fault: whoever came second waited for ever for what the other loop would have told it, or got in there."""
    is_changing, may_end = threading.Event(), threading.Event()

    async def change_slowly() -> None:
        is_changing.set()
        await asyncio.to_thread(may_end.wait, patient(5))

    slowly, at_once = change_slowly, nothing
    opening = AppLifecycle(
        open=slowly if change == "opening" else at_once,
        before_close=at_once,
        close=slowly if change == "closing" else at_once,
    )

    async def use() -> None:
        await opening.enter()
        await opening.leave()

    first = threading.Thread(target=lambda: asyncio.run(use()))
    first.start()
    try:
        assert is_changing.wait(patient(5))
        with pytest.raises(DeclarationError, match="open on another event loop"):
            asyncio.run(asyncio.wait_for(opening.enter(), patient(1)))
    finally:
        may_end.set()
        first.join()
    asyncio.run(use())
    assert (opening.is_open, opening.loop) == (False, None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_while_the_app_is_being_opened_does_not_wait_for_its_parent() -> None:
    parent = os.getpid()

    is_opening, may_open = asyncio.Event(), asyncio.Event()

    async def open() -> None:
        if os.getpid() == parent:
            is_opening.set()
            await may_open.wait()

    opening = AppLifecycle(open=open, before_close=nothing, close=nothing)

    async def begin() -> asyncio.Task[None]:
        task = asyncio.ensure_future(opening.enter())
        await is_opening.wait()
        return task

    async def end() -> None:
        may_open.set()
        await entering
        await opening.leave()

    with asyncio.Runner() as runner:
        entering = runner.run(begin())
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(asyncio.wait_for(opening.enter(), patient(1)))
            finally:
                os._exit(0 if opening.is_open else 1)
        assert os.waitpid(child, 0)[1] == 0
        runner.run(end())
    assert not opening.is_open


def test_of_two_threads_that_come_first_after_a_fork_one_opens_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: the other one forgot that the app was being opened, and opened it on its own loop beside."""
    parent, opened = os.getpid(), 0
    is_asked, is_opening, may_open = (threading.Event() for _ in range(3))

    async def open() -> None:
        nonlocal opened
        opened += 1
        is_opening.set()
        await asyncio.to_thread(may_open.wait, patient(5))

    def child() -> int:
        if threading.current_thread().name.startswith("late") and not is_asked.is_set():
            is_asked.set()
            is_opening.wait(patient(5))
        return parent + 1

    opening = AppLifecycle(open=open, before_close=nothing, close=nothing)
    monkeypatch.setattr(os, "getpid", child)
    with ThreadPoolExecutor(1, "late") as late, ThreadPoolExecutor(1) as early:
        second = late.submit(lambda: asyncio.run(opening.enter()))
        assert is_asked.wait(patient(5))
        first = early.submit(lambda: asyncio.run(opening.enter()))
        wait([second], timeout=0.5)
        may_open.set()
        first.result(patient(5))
        with pytest.raises(DeclarationError, match="open on another event loop"):
            second.result(patient(5))
    assert opened == 1


def test_an_app_whose_closing_is_cancelled_is_closed() -> None:
    """The fault: its store stayed open, with its threads and connections, and nobody could close it any more."""

    async def main(clock: VirtualClock) -> None:
        closed: list[int] = []

        async def close() -> None:
            await asyncio.sleep(1)
            closed.append(clock.now())

        opening = AppLifecycle(open=nothing, before_close=nothing, close=close)
        await opening.enter()
        began = clock.now()
        leaving = asyncio.ensure_future(opening.leave())
        for _ in range(3):
            await asyncio.sleep(0.1)
            leaving.cancel()
        # Callers wait meanwhile until it is closed.
        await opening.enter()
        assert closed == [began + SECOND]
        await asyncio.wait([leaving])
        assert leaving.cancelled()
        assert opening.is_open

    run_virtual(main)


def test_an_error_of_a_cancelled_closing_is_raised() -> None:
    async def close() -> None:
        await asyncio.sleep(1)
        raise OSError("the disk is gone")

    async def main(clock: VirtualClock) -> None:
        opening = AppLifecycle(open=nothing, before_close=nothing, close=close)
        await opening.enter()
        leaving = asyncio.ensure_future(opening.leave())
        await asyncio.sleep(0.5)
        leaving.cancel()
        with pytest.raises(OSError, match="the disk is gone"):
            await leaving
        assert not opening.is_open

    run_virtual(main)


@pytest.mark.parametrize("moment", ["while it opens", "as it has opened", "in spite of which it opens"])
async def test_an_app_whose_opening_is_cancelled_is_not_open(moment: str) -> None:
    """The fault: cancelled at the moment at which it was open, it stayed so, and was said not to be."""
    store: list[str] = []

    async def open() -> None:
        asyncio.get_running_loop().call_soon(entering.cancel)
        if moment != "as it has opened":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if moment == "while it opens":
                    raise
        store.append("opened")

    async def close() -> None:
        await asyncio.sleep(0)
        store.append("closed")

    opening = AppLifecycle(open=open, before_close=nothing, close=close)
    entering = asyncio.create_task(opening.enter())
    await asyncio.wait([entering])
    assert entering.cancelled()
    assert (opening.is_open, opening.loop) == (False, None)
    assert store == ([] if moment == "while it opens" else ["opened", "closed"])


def test_an_app_that_is_shown_names_its_store_without_its_password() -> None:
    """A notebook shows it below `await app.start()`, where it was an address in memory."""
    assert repr(Headgate("memory://")) == "<Headgate on memory://>"
    shown = repr(Headgate("postgresql://shop:secret@db.internal/jobs"))
    assert "db.internal/jobs" in shown
    assert "secret" not in shown
