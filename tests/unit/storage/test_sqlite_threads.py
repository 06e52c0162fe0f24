"""The thread of calls: they run one after another, and each answers the loop that it came from."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.storage.sqlite.threads import CallThread
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.durability.stores import open_store
from tests.until import patient

NAME = "headgate-test-calls"


@pytest.fixture
def thread() -> Iterator[CallThread]:
    thread = CallThread(NAME)
    yield thread
    thread.shutdown()


async def wait_for_its_end() -> None:
    for thread in threading.enumerate():
        if thread.name == NAME:
            await asyncio.to_thread(thread.join, patient(5))
            assert not thread.is_alive()


async def test_calls_run_in_the_thread_in_their_order(thread: CallThread) -> None:
    ran: list[int] = []

    def run(number: int) -> str:
        ran.append(number)
        return threading.current_thread().name

    names = await asyncio.gather(*(thread.submit(run, number) for number in range(20)))
    assert ran == list(range(20))
    assert set(names) == {NAME}


async def test_the_loop_runs_calls_in_it_as_in_any_executor(thread: CallThread) -> None:
    assert await asyncio.get_running_loop().run_in_executor(thread, pow, 2, 10) == 1024


async def test_an_error_is_raised_in_its_caller(thread: CallThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await thread.submit(divmod, 1, 0)
    assert await thread.submit(divmod, 7, 2) == (3, 1)


async def test_a_cancelled_caller_affects_no_other(thread: CallThread) -> None:
    may_end = threading.Event()
    first, second = thread.submit(may_end.wait), thread.submit(pow, 2, 3)
    first.cancel()
    may_end.set()
    assert await second == 8


async def test_a_call_that_is_cancelled_before_its_turn_is_not_run(thread: CallThread) -> None:
    may_end = threading.Event()
    ran: list[int] = []
    first, second = thread.submit(may_end.wait), thread.submit(ran.append, 1)
    second.cancel()
    may_end.set()
    await first
    await thread.submit(pow, 2, 2)
    assert ran == []


def test_calls_of_two_loops_answer_their_own(thread: CallThread) -> None:
    async def ask(number: int) -> int:
        return await thread.submit(pow, number, 2)

    assert [asyncio.run(ask(number)) for number in (3, 4)] == [9, 16]


def test_a_closed_loop_gets_no_answer(thread: CallThread) -> None:
    may_end = threading.Event()

    async def leave() -> None:
        thread.submit(may_end.wait)

    asyncio.run(leave())
    may_end.set()

    async def ask() -> int:
        return await thread.submit(pow, 2, 2)

    assert asyncio.run(ask()) == 4


def test_virtual_time_does_not_advance_while_the_thread_works(thread: CallThread) -> None:
    async def main(clock: VirtualClock) -> int:
        began = clock.monotonic()
        timer = asyncio.get_running_loop().call_later(3600, lambda: None)
        await asyncio.get_running_loop().run_in_executor(thread, time.sleep, 0.05)
        timer.cancel()
        return clock.monotonic() - began

    assert run_virtual(main) == 0


async def test_the_thread_ends_after_waiting_calls(thread: CallThread) -> None:
    last = thread.submit(pow, 2, 5)
    thread.shutdown()
    thread.shutdown()
    assert await last == 32
    await wait_for_its_end()


async def test_the_thread_ends_with_its_owner() -> None:
    thread = CallThread(NAME)
    await thread.submit(pow, 2, 5)
    del thread
    gc.collect()
    await wait_for_its_end()


async def test_threads_end_if_not_all_of_them_could_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: each attempt left those that were started before, until the process could start no thread at all."""
    start = threading.Thread.start
    began: list[threading.Thread] = []

    def start_two(self: threading.Thread) -> None:
        if len(began) == 2:
            raise RuntimeError("can't start new thread")
        began.append(self)
        start(self)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start_two)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            CallThread(NAME, 3)
    assert len(began) == 2
    gc.collect()
    await wait_for_its_end()


async def test_the_thread_keeps_no_reference_to_finished_calls(thread: CallThread) -> None:
    class Work:
        def __call__(self) -> None:
            raise ValueError("it fails")

    work = Work()
    known = weakref.ref(work)
    with pytest.raises(ValueError, match="it fails"):
        await thread.submit(work)
    del work
    await thread.submit(pow, 2, 2)
    gc.collect()
    assert known() is None


async def test_a_first_count_waits_for_no_thread_of_the_loop(tmp_path: Path) -> None:
    async with open_store(tmp_path / "jobs.db") as storage:
        may_end = threading.Event()
        with ThreadPoolExecutor(1) as only_thread:
            asyncio.get_running_loop().set_default_executor(only_thread)
            handler = asyncio.ensure_future(asyncio.to_thread(may_end.wait))
            try:
                assert await asyncio.wait_for(storage.counts(), patient(5)) == []
                assert (await storage.check_indexes()).contradictions == ()
            finally:
                may_end.set()
                await handler
