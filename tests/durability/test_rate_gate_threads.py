"""Gates and limiters under real threads and event loops.

That none passes early, and that all pass, is checked in real time; that none passes late, in virtual time.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import pytest

from headgate.clock import SECOND, SystemClock
from headgate.errors import GateClosed
from headgate.limits.concurrency import Mutex
from headgate.limits.dynamic_window import DynamicWindow
from headgate.limits.limit import Limit
from headgate.limits.rate_limit import RateLimit
from headgate.limits.standalone import waiting_lines
from headgate.limits.standalone.limiter import Limiter
from headgate.limits.standalone.rate_gate import RateGate, limit_rate
from headgate.limits.strict_rate import StrictRate
from tests.durability.thread_time import ThreadTime
from tests.durability.threads import InThread, side_by_side
from tests.forked import answer_of_forked_child
from tests.interrupts import call_with_signal, interrupt
from tests.until import patient, until_now


class RecordingClock(SystemClock):
    """Remembers, for each thread, what it read last: a pass counts from the last reading before it."""

    def __init__(self) -> None:
        super().__init__()
        self._last = threading.local()

    def monotonic(self) -> int:
        self._last.reading = reading = super().monotonic()
        return reading

    def last(self) -> int:
        reading: int = self._last.reading
        return reading


class WatchedGate(RateGate):
    """Notes its passes, and each time that the first in line is told to wait for another instant than the best one."""

    def __init__(self, count: int, per: float, clock: RecordingClock) -> None:
        super().__init__(count, per=per, clock=clock)
        self.passes: list[int] = []
        self.wrong: list[tuple[int, int]] = []
        self._per_window, self._window, self._recorded = count, round(per * SECOND), clock

    def try_now(self) -> int | None:
        opens_at = super().try_now()
        if opens_at is None:
            self.passes.append(self._recorded.last())
        elif opens_at != (best := self.passes[-self._per_window] + self._window):
            self.wrong.append((opens_at, best))
        return opens_at


def check_strictly(passes: list[int], count: int, period: int) -> None:
    passes = sorted(passes)
    for first, one_too_many in zip(passes, passes[count:], strict=False):
        assert one_too_many - first >= period


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> ThreadTime:
    return ThreadTime(monkeypatch)


def test_two_threads_and_two_loops_use_all_of_a_gate_and_never_more() -> None:
    gate = WatchedGate(40, 0.2, RecordingClock())

    def thread() -> None:
        while len(gate.passes) < 5 * 40:
            gate.wait()

    async def task() -> None:
        while len(gate.passes) < 5 * 40:
            await gate.wait_async()

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(5)))

    side_by_side(thread, thread, lambda: asyncio.run(tasks()), lambda: asyncio.run(tasks()))
    assert len(gate.passes) >= 5 * 40
    check_strictly(gate.passes, 40, SECOND // 5)
    # Whoever is first in line sleeps until the instant at which the gate opens, and not longer.
    assert gate.wrong == []


def test_many_threads_use_all_of_a_gate(virtual: ThreadTime) -> None:
    gate = RateGate(40, per=0.5, clock=virtual)
    passes: list[float] = []

    def thread() -> None:
        for _ in range(50):
            gate.wait()
            passes.append(virtual.seconds())

    virtual.run(*[thread] * 8)
    assert passes == [number // 40 * 0.5 for number in range(400)]


def test_threads_pass_in_the_order_of_their_arrival(virtual: ThreadTime) -> None:
    gate = RateGate(1, per=0.02, clock=virtual)
    gate.wait()
    passed: list[int] = []

    def one(number: int) -> None:
        gate.wait()
        passed.append(number)

    virtual.run(*(lambda number=number: one(number) for number in range(10)), one_by_one=True)
    assert passed == list(range(10))


def test_a_rate_of_two_per_second_paces_ten_calls_in_threads(virtual: ThreadTime) -> None:
    gate = RateGate(2, per=1, clock=virtual)
    starts: list[float] = []

    def call() -> None:
        gate.wait()
        starts.append(virtual.seconds())
        virtual.sleep(0.25)

    virtual.run(*[call] * 10)
    assert starts == [number // 2 for number in range(10)]


def test_a_rate_of_five_per_second_paces_twenty_items_in_a_thread(virtual: ThreadTime) -> None:
    seen: list[float] = []

    def consume() -> None:
        seen.extend(virtual.seconds() for _ in limit_rate(range(20), 5, per=1, clock=virtual))

    virtual.run(consume)
    assert seen == [number // 5 for number in range(20)]


def test_a_thread_passes_no_sooner_than_the_rate_allows() -> None:
    begun = time.monotonic()
    seen = [time.monotonic() - begun for _ in limit_rate(range(20), 5, per=0.05)]
    assert all(at >= number // 5 * 0.05 for number, at in enumerate(seen))


def test_closing_wakes_threads_and_loops() -> None:
    gate = RateGate(1, per=3600)
    gate.wait()

    def thread() -> None:
        with pytest.raises(GateClosed):
            gate.wait()

    async def task() -> None:
        with pytest.raises(GateClosed):
            await gate.wait_async(timeout=7200)

    def close() -> None:
        until_now(lambda: gate.delay() >= 4 * 3600)
        gate.close()

    # Without it they would wait for an hour.
    side_by_side(thread, lambda: asyncio.run(task()), thread, lambda: asyncio.run(task()), close)


def test_a_thread_that_waits_behind_a_task_is_woken_by_it() -> None:
    gate = RateGate(1, per=0.1)
    gate.wait()
    passed: list[str] = []

    async def task() -> None:
        await gate.wait_async()
        passed.append("task")

    def thread() -> None:
        until_now(lambda: gate.delay() >= 0.1 or passed)
        gate.wait()
        passed.append("thread")

    side_by_side(lambda: asyncio.run(task()), thread)
    assert passed == ["task", "thread"]


def test_a_waiter_whose_loop_was_closed_is_skipped() -> None:
    gate = RateGate(1, per=0.2)
    gate.wait()
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(gate.wait_async())
    loop.run_until_complete(asyncio.sleep(0))
    behind = InThread(gate.wait)
    until_now(lambda: gate.delay() >= 0.4)
    loop.close()
    # The next caller notices it.
    assert gate.wait(timeout=patient(10)) is True
    behind.end()
    end_abandoned(abandoned)


@pytest.mark.parametrize(
    "limit", [RateLimit(1, per=0.2), DynamicWindow(per=0.2, count=1)], ids=["rate", "shared state"]
)
def test_a_waiter_whose_loop_was_closed_refuses_no_other_caller(limit: Limit) -> None:
    limiter = Limiter(limit)
    assert limiter.sync.try_acquire()
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(limiter.acquire())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    until_now(limiter.sync.try_acquire)
    end_abandoned(abandoned)


def test_a_task_behind_a_waiter_whose_loop_was_closed_passes_when_that_is_collected() -> None:
    gate = RateGate(1, per=0.2)
    gate.wait()
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(gate.wait_async())
    loop.run_until_complete(asyncio.sleep(0))
    behind = InThread(lambda: asyncio.run(asyncio.wait_for(gate.wait_async(), patient(10))))
    until_now(lambda: gate.delay() >= 0.4)
    loop.close()
    end_abandoned(abandoned)
    behind.end()


def end_abandoned(task: asyncio.Task[Any]) -> None:
    """Do what the interpreter would do some time later, with a warning."""
    task._log_destroy_pending = False  # type: ignore[attr-defined,unused-ignore]
    coroutine = task.get_coro()
    assert coroutine is not None
    coroutine.close()


def test_a_wait_in_a_thread_has_a_timeout(virtual: ThreadTime) -> None:
    gate = RateGate(1, per=0.3, clock=virtual)
    gate.wait()
    ended: list[tuple[bool, float]] = []

    def wait(timeout: float | None) -> None:
        ended.append((gate.wait(timeout), virtual.seconds()))

    virtual.run(lambda: wait(None), lambda: wait(0.4), one_by_one=True)
    assert ended == [(True, 0.3), (False, 0.4)]


def test_a_limiter_is_strict_across_threads_and_loops() -> None:
    limiter = Limiter(StrictRate(40, per=0.25, margin=0))
    starts: list[int] = []

    def thread() -> None:
        starts.extend(limiter.sync.acquire("a").decided_at for _ in range(60))

    async def task() -> None:
        starts.extend([(await limiter.acquire("a")).decided_at for _ in range(20)])

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(3)))

    side_by_side(thread, thread, lambda: asyncio.run(tasks()), lambda: asyncio.run(tasks()))
    assert len(starts) == 240
    check_strictly(starts, 40, SECOND // 4)


def test_threads_that_only_try_share_one_budget() -> None:
    limiter = Limiter(RateLimit(1000, per=3600))
    granted: list[bool] = []

    def thread() -> None:
        granted.extend(bool(limiter.sync.try_acquire("a")) for _ in range(1000))

    side_by_side(*[thread] * 4)
    assert granted.count(True) == 1000


def test_a_mutex_is_held_by_one_thread_or_task_at_a_time() -> None:
    limiter = Limiter(Mutex("orders"))
    inside = 0
    most = 0

    def enter() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)

    def leave() -> None:
        nonlocal inside
        inside -= 1

    def thread() -> None:
        for _ in range(50):
            with limiter.sync.hold("a"):
                enter()
                time.sleep(0.0002)
                leave()

    async def task() -> None:
        for _ in range(50):
            async with limiter.hold("a"):
                enter()
                await asyncio.sleep(0.0002)
                leave()

    side_by_side(thread, thread, lambda: asyncio.run(task()), lambda: asyncio.run(task()))
    assert most == 1
    assert limiter.sync.snapshot("a").used == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", ["gate", "limiter", "task"])
def test_a_fork_does_not_wait_behind_what_waits_in_its_parent_only(kind: str) -> None:
    """The fault: the first in line was not there, so the fork waited for ever, and `try_acquire` was refused."""
    gate, limiter = RateGate(1, per=1), Limiter(StrictRate(1, per=1, margin=0))

    def passes(timeout: float) -> bool:
        return gate.wait(timeout) if kind == "gate" else bool(limiter.sync.acquire("acme", timeout=timeout))

    async def passes_later() -> bool:
        return bool(await limiter.acquire("acme"))

    lines: Any = gate._lines if kind == "gate" else cast(Any, limiter)._budget.table.lines
    assert passes(0)
    waiter = InThread((lambda: asyncio.run(passes_later())) if kind == "task" else (lambda: passes(patient(5))))
    until_now(lambda: lines.by_key)
    assert answer_of_forked_child(lambda: str(passes(patient(5)))) == "True"
    waiter.end()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_the_lock_of_a_thread_of_its_parent() -> None:
    gate, limiter = RateGate(1, per=1), Limiter(StrictRate("1/s"))
    with gate._lock, cast(Any, limiter)._budget.table.lock:
        assert answer_of_forked_child(lambda: f"{gate.delay()} {bool(limiter.sync.try_acquire())}") == "0.0 True"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_does_not_end_the_tasks_that_wait_in_its_parent() -> None:
    """The fault: the garbage collector closed them in the fork, so it ran what the parent does after its wait."""
    limiter, ended = Limiter(StrictRate(1, per=3600, margin=0)), 0
    lines = cast(Any, limiter)._budget.table.lines
    assert limiter.sync.try_acquire("acme")

    async def pass_later() -> None:
        nonlocal ended
        try:
            await limiter.acquire("acme")
        finally:
            ended += 1

    def ask() -> str:
        gc.collect()
        return f"{ended} of them ended"

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        waiting = [loop.create_task(pass_later()) for _ in range(3)]
        runner.run(asyncio.sleep(0.01))
        assert len(lines.by_key["acme"]) == 3
        waiting.clear()
        assert answer_of_forked_child(ask) == "0 of them ended"


@pytest.mark.parametrize("kind", ["gate", "limiter"])
def test_an_interrupt_at_any_point_holds_up_nobody(kind: str) -> None:
    """The fault: after Ctrl-C, all threads waited for a lock, or for a place in line, that nobody gave back."""

    def new_call() -> Callable[[], object]:
        if kind == "limiter":
            return Limiter(RateLimit("1000/s", burst=1000)).sync.try_acquire
        gate = RateGate(1, per=0.001)
        gate.wait()
        return gate.wait

    point, call = 1, new_call()
    while call_with_signal(call, interrupt, at=point):
        InThread(call).end(2)
        point, call = point + 1, new_call()
    assert point > 10


def test_an_interrupt_at_any_point_after_its_sleep_holds_up_nobody_behind_it() -> None:
    """The fault: a thread that was already in line slept for a minute, as nobody called it when it became the first."""
    is_behind = threading.Event()

    class Gate(RateGate):
        def is_closed(self) -> bool:
            if threading.current_thread() is not threading.main_thread():
                is_behind.set()
            return super().is_closed()

    def is_interrupted(left: int) -> bool:
        gate, behind = Gate(1, per=0.001), list[InThread]()
        is_behind.clear()

        def interrupt(frame: FrameType, event: str, _argument: object) -> None:
            nonlocal left
            if not behind:
                if event == "call" and frame.f_code.co_name == "sleep":
                    behind.append(InThread(gate.wait))
                    is_behind.wait()
            elif event in ("call", "c_return") and frame.f_code.co_filename == waiting_lines.__file__:
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            # Until it has to sleep.
            while not behind:
                gate.wait()
        except KeyboardInterrupt:
            return True
        else:
            return False
        finally:
            sys.setprofile(None)
            behind[0].end(2)

    point = 1
    while is_interrupted(point):
        point += 1
    assert point > 10
