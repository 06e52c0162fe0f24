"""Work that is completed although its caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.shielding import in_thread, shield_until_done
from tests.until import patient


async def _until(proceed: asyncio.Event, done: list[str]) -> str:
    await proceed.wait()
    done.append("done")
    return "result"


async def test_it_returns_what_a_coroutine_or_a_future_returns() -> None:
    proceed = asyncio.Event()
    proceed.set()
    assert await shield_until_done(_until(proceed, [])) == "result"
    assert await shield_until_done(asyncio.ensure_future(_until(proceed, []))) == "result"


async def test_a_cancellation_is_raised_when_the_work_is_done_however_often_it_is_asked_for() -> None:
    proceed, done = asyncio.Event(), list[str]()
    waiting = asyncio.create_task(shield_until_done(_until(proceed, done)))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done == ["done"]


async def test_an_error_of_the_work_takes_precedence_over_a_cancellation() -> None:
    proceed = asyncio.Event()

    async def fail() -> None:
        await proceed.wait()
        raise ValueError("its own")

    waiting = asyncio.create_task(shield_until_done(fail()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    proceed.set()
    with pytest.raises(ValueError, match="its own"):
        await waiting


async def test_work_that_is_cancelled_from_outside_ends_the_wait() -> None:
    working = asyncio.ensure_future(_until(asyncio.Event(), []))
    waiting = asyncio.create_task(shield_until_done(working))
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert working.cancelled()


async def test_a_call_for_which_no_thread_can_be_started_is_not_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: the pool kept it for a thread that became free, so a job ran beside the next attempt of it."""
    may_end, made = threading.Event(), list[str]()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ThreadPoolExecutor(2) as pool:
        first = in_thread(pool, lambda: may_end.wait(patient(5)))
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                in_thread(pool, lambda: made.append("late"))
        may_end.set()
        await first
        await in_thread(pool, lambda: made.append("next"))
    assert made == ["next"]
