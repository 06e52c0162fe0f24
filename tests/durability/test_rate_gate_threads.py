"""Gates and limiters under real threads and event loops, in real time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.clock import SECOND, SystemClock
from headgate.errors import GateClosed
from headgate.limits.concurrency import Mutex
from headgate.limits.rate_limit import RateLimit
from headgate.limits.standalone.limit_rate import limit_rate
from headgate.limits.standalone.limiter import Limiter
from headgate.limits.standalone.rate_gate import RateGate
from headgate.limits.strict_rate import StrictRate


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


def check_strictly(passes: list[int], count: int, period: int) -> None:
    passes = sorted(passes)
    for first, one_too_many in zip(passes, passes[count:], strict=False):
        assert one_too_many - first >= period


@pytest.fixture
def in_threads() -> Callable[..., None]:
    """Run functions, each in a thread of its own, to their end; an error in one is an error of the test."""

    def run(*functions: Callable[[], object]) -> None:
        with ThreadPoolExecutor(len(functions)) as pool:
            for done in [pool.submit(function) for function in functions]:
                done.result()

    return run


def test_two_threads_and_two_loops_use_all_of_a_gate_and_never_more(in_threads: Callable[..., None]) -> None:
    clock = RecordingClock()
    gate = RateGate(40, per=0.5, clock=clock)
    passes: list[int] = []
    end = clock.monotonic() + 2 * SECOND + SECOND // 4

    def thread() -> None:
        while clock.monotonic() < end:
            gate.wait()
            passes.append(clock.last())

    async def task() -> None:
        while clock.monotonic() < end:
            await gate.wait_async()
            passes.append(clock.last())

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(5)))

    in_threads(thread, thread, lambda: asyncio.run(tasks()), lambda: asyncio.run(tasks()))
    check_strictly(passes, 40, SECOND // 2)
    begun = min(passes)
    # Five windows begin in 2.25 s; the last waiters pass in the sixth.
    used = sum(one < begun + 2 * SECOND + SECOND // 4 for one in passes)
    assert used >= 0.99 * 5 * 40


def test_threads_pass_in_the_order_of_their_arrival() -> None:
    gate = RateGate(1, per=0.02)
    gate.wait()
    passed: list[int] = []
    lock = threading.Lock()
    threads = []

    def one(number: int) -> None:
        gate.wait()
        with lock:
            passed.append(number)

    for number in range(10):
        threads.append(threading.Thread(target=one, args=(number,)))
        waiting = number + 1
        threads[-1].start()
        while gate.delay() < 0.02 * waiting and threads[-1].is_alive() and len(passed) == 0:
            time.sleep(0.0005)
        time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert passed == list(range(10))


def test_a_rate_of_two_per_second_paces_ten_calls_in_threads() -> None:
    gate = RateGate(2, per=0.4)
    begun = time.monotonic()
    starts: list[float] = []

    def call(_: int) -> None:
        gate.wait()
        starts.append(time.monotonic() - begun)
        time.sleep(0.1)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(call, range(10)))
    assert sorted(starts) == [pytest.approx(number // 2 * 0.4, abs=0.09) for number in range(10)]


def test_a_rate_of_five_per_second_paces_twenty_items_in_a_thread() -> None:
    begun = time.monotonic()
    seen = [time.monotonic() - begun for _ in limit_rate(range(20), 5, per=0.2)]
    assert seen == [pytest.approx(number // 5 * 0.2, abs=0.09) for number in range(20)]


def test_closing_wakes_threads_and_loops(in_threads: Callable[..., None]) -> None:
    gate = RateGate(1, per=3600)
    gate.wait()

    def thread() -> None:
        with pytest.raises(GateClosed):
            gate.wait()

    async def task() -> None:
        with pytest.raises(GateClosed):
            await gate.wait_async(timeout=7200)

    def close() -> None:
        while gate.delay() < 4 * 3600:
            time.sleep(0.001)
        gate.close()

    begun = time.monotonic()
    in_threads(thread, lambda: asyncio.run(task()), thread, lambda: asyncio.run(task()), close)
    assert time.monotonic() - begun < 5


def test_a_thread_that_waits_behind_a_task_is_woken_by_it(in_threads: Callable[..., None]) -> None:
    gate = RateGate(1, per=0.1)
    gate.wait()
    passed: list[str] = []

    async def task() -> None:
        await gate.wait_async()
        passed.append("task")

    def thread() -> None:
        while gate.delay() < 0.1:
            time.sleep(0.001)
        gate.wait()
        passed.append("thread")

    in_threads(lambda: asyncio.run(task()), thread)
    assert passed == ["task", "thread"]


def test_a_waiter_whose_loop_was_closed_is_skipped() -> None:
    gate = RateGate(1, per=0.2)
    gate.wait()
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(gate.wait_async())
    loop.run_until_complete(asyncio.sleep(0))
    behind = threading.Thread(target=gate.wait)
    behind.start()
    while gate.delay() < 0.2:
        time.sleep(0.001)
    loop.close()
    # The next caller notices it.
    assert gate.wait(timeout=2) is True
    behind.join(2)
    assert not behind.is_alive()
    # What the interpreter would do some time later, with a warning.
    abandoned._log_destroy_pending = False  # type: ignore[attr-defined,unused-ignore]
    coroutine = abandoned.get_coro()
    assert coroutine is not None
    coroutine.close()


def test_a_wait_in_a_thread_has_a_timeout() -> None:
    gate = RateGate(1, per=0.3)
    gate.wait()
    ahead = threading.Thread(target=gate.wait)
    ahead.start()
    while gate.delay() < 0.3:
        time.sleep(0.001)
    begun = time.monotonic()
    assert gate.wait(timeout=0.4) is False
    assert 0.39 <= time.monotonic() - begun <= 0.6
    ahead.join()


def test_a_limiter_is_strict_across_threads_and_loops(in_threads: Callable[..., None]) -> None:
    limiter = Limiter(StrictRate(40, per=0.25, margin=0))
    starts: list[int] = []

    def thread() -> None:
        starts.extend(limiter.sync.acquire("a").decided_at for _ in range(60))

    async def task() -> None:
        starts.extend([(await limiter.acquire("a")).decided_at for _ in range(20)])

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(3)))

    in_threads(thread, thread, lambda: asyncio.run(tasks()), lambda: asyncio.run(tasks()))
    assert len(starts) == 240
    check_strictly(starts, 40, SECOND // 4)


def test_threads_that_only_try_share_one_budget(in_threads: Callable[..., None]) -> None:
    limiter = Limiter(RateLimit(1000, per=3600))
    granted: list[bool] = []

    def thread() -> None:
        granted.extend(bool(limiter.sync.try_acquire("a")) for _ in range(1000))

    in_threads(*[thread] * 4)
    assert granted.count(True) == 1000


def test_a_mutex_is_held_by_one_thread_or_task_at_a_time(in_threads: Callable[..., None]) -> None:
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

    in_threads(thread, thread, lambda: asyncio.run(task()), lambda: asyncio.run(task()))
    assert most == 1
    assert limiter.sync.snapshot("a").used == 0


async def test_ten_thousand_waiters_are_served_at_the_full_rate() -> None:
    limiter = Limiter(RateLimit("5000/s", burst=1))
    begun = time.monotonic()
    await asyncio.gather(*(limiter.acquire("a") for _ in range(10_000)))
    # 2 s on a machine that has nothing else to do; timed anew from each late wake-up it would be 11 s.
    assert time.monotonic() - begun < 6
