"""Virtual time: hours in milliseconds, exact to the microsecond, and the same every time."""

from __future__ import annotations

import asyncio
import hashlib
import math
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.clock import SECOND, Clock, sleep, sleep_until
from headgate.testing.virtual_time import START, VirtualClock, VirtualDeadlock, VirtualTimeLoop, run_virtual
from tests.until import patient

HOUR = 3600 * SECOND


def test_a_day_of_sleep_takes_no_real_time_to_speak_of() -> None:
    async def main(clock: VirtualClock) -> int:
        for _ in range(24):
            await asyncio.sleep(3600)
        return clock.monotonic()

    began = time.monotonic()
    assert run_virtual(main) == 24 * HOUR
    assert time.monotonic() - began < 24 * 3600 / 1000


def test_virtual_time_does_not_advance_while_code_runs() -> None:
    async def main(clock: VirtualClock) -> None:
        before = clock.monotonic()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert clock.monotonic() == before

    run_virtual(main)


def test_it_returns_what_main_returns_and_raises_what_it_raises() -> None:
    async def answer(_clock: VirtualClock) -> int:
        return 42

    async def fail(_clock: VirtualClock) -> None:
        raise LookupError("nothing here")

    assert run_virtual(answer) == 42
    with pytest.raises(LookupError, match="nothing here"):
        run_virtual(fail)


def test_a_virtual_clock_is_a_clock() -> None:
    async def main(clock: VirtualClock) -> None:
        as_clock: Clock = clock
        await sleep(as_clock, 1.5)
        assert as_clock.monotonic() == 1_500_000

    run_virtual(main)


def test_timeouts_run_on_virtual_time() -> None:
    async def main(clock: VirtualClock) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7200):
                await asyncio.Event().wait()
        assert clock.monotonic() == 2 * HOUR
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1)
        assert clock.monotonic() == 2 * HOUR + SECOND

    run_virtual(main)


def test_a_wait_longer_than_the_longest_select_ends_on_time() -> None:
    async def main(clock: VirtualClock) -> int:
        await asyncio.sleep(400 * 86400)
        return clock.monotonic()

    assert run_virtual(main) == 400 * 86400 * SECOND


def test_timers_fire_at_their_microsecond_and_in_order() -> None:
    async def main(clock: VirtualClock) -> None:
        fired: list[tuple[int, int]] = []
        instants = [3, 1, 2, 1_000_000, 999_999, 1_000_001, 31_536_000_000_001, 31_536_000_000_000]
        for instant in instants:
            clock.call_at(instant, lambda instant=instant: fired.append((instant, clock.monotonic())))  # type: ignore[misc]
        await sleep_until(clock, max(instants))
        assert fired == [(instant, instant) for instant in sorted(instants)]

    run_virtual(main)


def test_timers_of_one_microsecond_fire_in_the_order_they_were_set() -> None:
    async def main(clock: VirtualClock) -> None:
        fired: list[int] = []
        for number in range(100):
            clock.call_at(5, lambda number=number: fired.append(number))  # type: ignore[misc]
        await sleep_until(clock, 6)
        assert fired == list(range(100))

    run_virtual(main)


def test_a_timer_between_two_microseconds_fires_at_the_later_one() -> None:
    async def main(clock: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        fired = asyncio.Event()
        when = 0.0000021
        loop.call_at(when, fired.set)
        await fired.wait()
        assert loop.time() >= when
        assert clock.monotonic() == 3

    run_virtual(main)


def test_many_tenths_of_a_second_add_up_exactly() -> None:
    async def main(clock: VirtualClock) -> int:
        for _ in range(1000):
            await asyncio.sleep(0.1)
        return clock.monotonic()

    assert run_virtual(main) == 100 * SECOND


def test_a_timer_set_for_the_past_fires_now() -> None:
    async def main(clock: VirtualClock) -> int:
        await asyncio.sleep(10)
        await sleep_until(clock, 3)
        return clock.monotonic()

    assert run_virtual(main) == 10 * SECOND


def test_a_cancelled_timer_does_not_fire() -> None:
    async def main(clock: VirtualClock) -> None:
        fired: list[str] = []
        clock.call_at(10, lambda: fired.append("cancelled")).cancel()
        clock.call_at(20, lambda: fired.append("kept"))
        await sleep_until(clock, 30)
        assert fired == ["kept"]

    run_virtual(main)


def test_wall_time_runs_with_the_loop_and_steps_on_request() -> None:
    async def main(clock: VirtualClock) -> None:
        assert clock.now() == START
        await asyncio.sleep(60)
        assert clock.now() == START + 60 * SECOND
        clock.step_wall(-3600)
        assert clock.now() == START - 3540 * SECOND
        assert clock.monotonic() == 60 * SECOND
        clock.step_wall(7200.5)
        assert clock.now() == START + 3660 * SECOND + SECOND // 2

    run_virtual(main)


def test_a_step_of_wall_time_moves_no_timer() -> None:
    async def main(clock: VirtualClock) -> int:
        waiting = asyncio.create_task(sleep(clock, 60))
        await asyncio.sleep(1)
        clock.step_wall(86400)
        await waiting
        return clock.monotonic()

    assert run_virtual(main) == 60 * SECOND


def test_each_run_is_a_boot_of_its_own_that_its_clocks_share() -> None:
    async def main(clock: VirtualClock) -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        assert VirtualClock(loop).boot_id() == clock.boot_id()
        return clock.boot_id()

    assert run_virtual(main) != run_virtual(main)


def test_a_clock_may_start_at_any_wall_time() -> None:
    async def main(clock: VirtualClock) -> int:
        await asyncio.sleep(1)
        return clock.now()

    assert run_virtual(main, start=5 * SECOND) == 6 * SECOND


def test_two_clocks_of_one_loop_have_their_own_wall_time() -> None:
    async def main(one: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        await asyncio.sleep(5)
        other = VirtualClock(loop, start=START)
        one.step_wall(10)
        assert one.now() == START + 15 * SECOND
        assert other.now() == START
        assert one.monotonic() == other.monotonic()

    run_virtual(main)


def _race(seed: int | None) -> list[str]:
    async def main(_clock: VirtualClock) -> list[str]:
        trace: list[str] = []

        async def runner(name: str) -> None:
            for step in range(5):
                await asyncio.sleep(0 if step % 2 else 1)
                trace.append(f"{name}{step}")

        async with asyncio.TaskGroup() as group:
            for name in "abcdef":
                group.create_task(runner(name))
        return trace

    return run_virtual(main, seed=seed)


def test_the_same_seed_gives_the_same_trace() -> None:
    assert all(_race(seed) == _race(seed) for seed in range(20))


def test_other_seeds_give_other_traces() -> None:
    assert len({tuple(_race(seed)) for seed in range(20)}) == 20


def test_without_a_seed_tasks_run_in_the_order_they_became_ready() -> None:
    assert _race(None) == [f"{name}{step}" for steps in ([0, 1], [2, 3], [4]) for step in steps for name in "abcdef"]


def test_a_seed_shuffles_timers_of_one_microsecond_and_no_others() -> None:
    def order(seed: int) -> list[tuple[int, int]]:
        async def main(clock: VirtualClock) -> list[tuple[int, int]]:
            fired: list[tuple[int, int]] = []
            for instant in (10, 11):
                for number in range(8):
                    clock.call_at(instant, lambda key=(instant, number): fired.append(key))  # type: ignore[misc]
            await sleep_until(clock, 12)
            return fired

        return run_virtual(main, seed=seed)

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert [instant for instant, _ in order(1)] == [10] * 8 + [11] * 8


def test_a_seed_keeps_plain_callbacks_in_the_order_asyncio_promises() -> None:
    async def main(_clock: VirtualClock) -> list[int]:
        called: list[int] = []
        for number in range(50):
            asyncio.get_running_loop().call_soon(called.append, number)
        await asyncio.sleep(1)
        return called

    assert all(run_virtual(main, seed=seed) == list(range(50)) for seed in range(5))


def test_virtual_time_waits_for_a_thread() -> None:
    async def main(clock: VirtualClock) -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(1)
                ticks += 1

        ticking = asyncio.create_task(tick())
        assert await asyncio.to_thread(_busy) == "done"
        assert clock.monotonic() == 0
        assert ticks == 0
        ticking.cancel()

    run_virtual(main)


def test_virtual_time_waits_for_every_thread_and_then_continues() -> None:
    async def main(clock: VirtualClock) -> int:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(2) as pool:
            calls = [loop.run_in_executor(pool, _busy, 1 + 20_000 * number) for number in range(5)]
            async with asyncio.timeout(0.001):
                assert await asyncio.gather(*calls) == ["done"] * 5
        await asyncio.sleep(3600)
        return clock.monotonic()

    assert run_virtual(main) == HOUR


def test_virtual_time_waits_for_a_thread_whose_caller_was_cancelled() -> None:
    async def main(_clock: VirtualClock) -> list[str]:
        seen: list[str] = []
        began = threading.Event()

        def work() -> None:
            began.set()
            _busy()
            seen.append("thread")

        call = asyncio.create_task(asyncio.to_thread(work))
        await asyncio.to_thread(began.wait)
        call.cancel()
        await asyncio.sleep(1)
        seen.append("loop")
        return seen

    assert run_virtual(main) == ["thread", "loop"]


def test_an_error_in_a_thread_reaches_its_caller() -> None:
    def fail() -> None:
        raise LookupError("in the thread")

    async def main(_clock: VirtualClock) -> None:
        with pytest.raises(LookupError, match="in the thread"):
            await asyncio.to_thread(fail)

    run_virtual(main)


def test_a_thread_may_call_into_the_loop() -> None:
    async def main(clock: VirtualClock) -> int:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[int] = loop.create_future()
        thread = threading.Thread(target=lambda: (_busy(), loop.call_soon_threadsafe(arrived.set_result, 7)))
        thread.start()
        answer = await arrived
        thread.join()
        assert clock.monotonic() == 0
        return answer

    assert run_virtual(main) == 7


def test_virtual_time_does_not_advance_while_it_is_held() -> None:
    async def main(clock: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        asleep = asyncio.create_task(asyncio.sleep(3600))
        arrived = asyncio.Event()
        thread = threading.Thread(target=lambda: (_busy(), loop.call_soon_threadsafe(arrived.set)))
        with loop.standing_still():
            thread.start()
            await arrived.wait()
            assert clock.monotonic() == 0
        thread.join()
        await asleep
        assert clock.monotonic() == HOUR

    run_virtual(main)


def test_sockets_work() -> None:
    async def main(_clock: VirtualClock) -> bytes:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            answer = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return answer

    assert run_virtual(main, seed=3) == b"hello\n"


def test_a_deadlock_raises_and_names_the_waiting_tasks() -> None:
    async def stuck_here(_clock: VirtualClock) -> None:
        await asyncio.Event().wait()

    with pytest.raises(
        VirtualDeadlock, match=r"nothing can happen any more.*stuck_here at .*test_virtual_time\.py:\d+"
    ):
        # Other threads of the process, such as those of pytest-xdist, might wake it.
        run_virtual(stuck_here, patience=0.05)


LEFT_ALONE = """
import asyncio, signal, threading, time
from headgate.testing.virtual_time import VirtualDeadlock, run_virtual

def deadlocks(main):
    try:
        run_virtual(main, patience=3600)
    except VirtualDeadlock:
        print(main.__name__)

async def nothing_is_left(clock):
    await asyncio.Event().wait()

async def the_threads_of_the_loop_have_no_call(clock):
    await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.01) for _ in range(3)))
    await asyncio.Event().wait()

async def the_only_thread_ends_without_a_word(clock):
    threading.Thread(target=time.sleep, args=(0.05,)).start()
    await asyncio.Event().wait()

async def an_alarm_wakes_the_loop(clock):
    rung = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, rung.set)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    await rung.wait()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGALRM)
    print("an alarm woke it")

async def a_thread_wakes_the_loop_late(clock):
    rung = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Timer(1.2, loop.call_soon_threadsafe, [rung.set]).start()
    await rung.wait()
    print("a thread woke it")

for main in (
    nothing_is_left,
    the_threads_of_the_loop_have_no_call,
    the_only_thread_ends_without_a_word,
    an_alarm_wakes_the_loop,
    a_thread_wakes_the_loop_late,
):
    deadlocks(main)
"""


def test_what_waits_for_ever_waits_and_is_a_deadlock_when_nothing_else_can_happen() -> None:
    """The fault: `asyncio.sleep(math.inf)`, as anyio.sleep_forever() calls it, raised OverflowError."""

    async def main(clock: VirtualClock) -> None:
        endless = asyncio.create_task(asyncio.sleep(math.inf))
        async with asyncio.timeout(math.inf):
            await asyncio.sleep(3600)
        assert not endless.done()
        await endless

    with pytest.raises(VirtualDeadlock, match="nothing can happen any more"):
        run_virtual(main)


def test_a_loop_waits_for_what_can_still_wake_it_and_for_nothing_else() -> None:
    """In a process of its own, because pytest and its plugins have threads that the loop would wait for."""
    done = subprocess.run(
        [sys.executable, "-c", LEFT_ALONE], capture_output=True, text=True, timeout=patient(30), check=False
    )
    assert done.stdout.split("\n") == [
        "nothing_is_left",
        "the_threads_of_the_loop_have_no_call",
        "the_only_thread_ends_without_a_word",
        "an alarm woke it",
        "a thread woke it",
        "",
    ], done.stderr


def test_a_loop_waits_for_an_open_socket() -> None:
    async def main(_clock: VirtualClock) -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            threading.Timer(0.05, theirs.send, [b"late"]).start()
            return await asyncio.get_running_loop().sock_recv(ours, 4)

    assert run_virtual(main) == b"late"


def test_a_thread_that_waits_for_virtual_time_is_detected() -> None:
    async def main(_clock: VirtualClock) -> None:
        hour_is_over = threading.Event()
        asyncio.get_running_loop().call_later(3600, hour_is_over.set)
        try:
            await asyncio.to_thread(hour_is_over.wait)
        finally:
            hour_is_over.set()

    with pytest.raises(VirtualDeadlock, match="waits for virtual time"):
        run_virtual(main, patience=0.05)


@pytest.mark.parametrize("seed", [None, 1])
def test_what_is_left_over_is_cancelled(seed: int | None) -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")

    async def main(_clock: VirtualClock) -> asyncio.Task[None]:
        task = asyncio.create_task(forever())
        await asyncio.sleep(10)
        return task

    assert run_virtual(main, seed=seed).cancelled()
    assert ended == ["cancelled"]


def test_the_loop_is_closed_and_its_threads_have_ended() -> None:
    async def main(_clock: VirtualClock) -> asyncio.AbstractEventLoop:
        await asyncio.gather(*(asyncio.to_thread(_busy, 1000) for _ in range(4)))
        return asyncio.get_running_loop()

    assert run_virtual(main).is_closed()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("virtual")]


def test_a_call_in_a_thread_that_outlives_the_loop_harms_nothing() -> None:
    pool = ThreadPoolExecutor(1)
    proceed = threading.Event()

    async def main(_clock: VirtualClock) -> None:
        asyncio.get_running_loop().run_in_executor(pool, proceed.wait).cancel()

    run_virtual(main)
    proceed.set()
    pool.shutdown(wait=True)


def test_the_loop_works_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")

    async def main(clock: VirtualClock) -> int:
        assert asyncio.get_running_loop().get_debug()
        await asyncio.sleep(60)
        await asyncio.to_thread(_busy, 1000)
        return clock.monotonic()

    assert run_virtual(main, seed=1) == 60 * SECOND


@pytest.mark.parametrize("seed", [None, 5])
def test_synchronisation_works_under_every_order(seed: int | None) -> None:
    async def main(_clock: VirtualClock) -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        lock = asyncio.Lock()
        taken: list[int] = []

        async def produce(first: int) -> None:
            for number in range(first, first + 10):
                await queue.put(number)

        async def consume() -> None:
            while True:
                number = await queue.get()
                async with lock:
                    await asyncio.sleep(0.5)
                    taken.append(number)
                queue.task_done()

        consumers = [asyncio.create_task(consume()) for _ in range(3)]
        await asyncio.gather(produce(0), produce(10))
        await queue.join()
        for consumer in consumers:
            consumer.cancel()
        return taken

    assert sorted(run_virtual(main, seed=seed)) == list(range(20))


def _busy(rounds: int = 100_000) -> str:
    """Real work in a real thread; virtual time must not care how long it takes."""
    hashlib.pbkdf2_hmac("sha256", b"work", b"salt", rounds)
    return "done"
