"""RateGate: when those who wait for it pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from headgate.clock import SECOND, Timer
from headgate.errors import DeclarationError, GateClosed
from headgate.limits.standalone.rate_gate import RateGate
from headgate.testing.manual_clock import ManualClock
from headgate.testing.virtual_time import VirtualClock, run_virtual

DAY = 86400


class FarClock(ManualClock):
    """A clock of a machine that has been up for very long."""

    def __init__(self, since_boot: int) -> None:
        super().__init__()
        self._monotonic = since_boot


def most_in_any_window(passes: list[int], period: int) -> int:
    return max(sum(first <= later < first + period for later in passes) for first in passes)


# -------------------------------------------------------------------------------------------------------- passing


def test_a_rate_of_two_per_second_paces_ten_calls_of_a_quarter_second() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(2, per=1, clock=clock)
        starts = []
        for _ in range(10):
            await gate.wait_async()
            starts.append(clock.monotonic() / SECOND)
            await asyncio.sleep(0.25)
        assert starts == [0, 0.25, 1, 1.25, 2, 2.25, 3, 3.25, 4, 4.25]

    run_virtual(main)


def test_a_rate_may_be_written_as_text() -> None:
    gate = RateGate("2/m", clock=ManualClock())
    assert [gate.wait(0) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("rate", [0, -1, 1.5, "15", "15/x"])
def test_a_rate_that_cannot_work_is_refused(rate: int) -> None:
    with pytest.raises(DeclarationError):
        RateGate(rate, per=None if isinstance(rate, str) else 1)


def test_many_tasks_pass_in_the_order_of_their_arrival() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(7, per=1, clock=clock)
        passed: list[tuple[int, int]] = []

        async def one(number: int) -> None:
            await gate.wait_async()
            passed.append((number, clock.monotonic()))

        await asyncio.gather(*(one(number) for number in range(100)))
        assert passed == [(number, number // 7 * SECOND) for number in range(100)]

    run_virtual(main)


@pytest.mark.parametrize("seed", range(10))
def test_no_window_ever_holds_one_too_many(seed: int) -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(5, per=1, clock=clock)
        passes: list[int] = []

        async def one(number: int) -> None:
            # In lumps, and at odd distances.
            await asyncio.sleep(number // 11 * 0.737)
            if await gate.wait_async(timeout=None if number % 3 else 1.5):
                passes.append(clock.monotonic())

        await asyncio.gather(*(one(number) for number in range(200)))
        assert most_in_any_window(passes, SECOND) == 5

    run_virtual(main, seed=seed)


def test_an_hour_of_waiting_does_not_drift() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(10, per=1, clock=clock)
        for _ in range(36_000):
            await gate.wait_async()
        assert clock.monotonic() == 3599 * SECOND

    run_virtual(main)


def test_a_pass_counts_from_when_the_waiter_was_awake() -> None:
    async def main(clock: VirtualClock) -> None:
        # Timers of this clock come 30 ms late, as on a busy machine.
        late = LateClock(clock, 30_000)
        gate = RateGate(2, per=1, clock=late)
        passes = []
        for _ in range(20):
            await gate.wait_async()
            passes.append(clock.monotonic())
        assert most_in_any_window(passes, SECOND) == 2
        assert passes[-1] == 9 * (SECOND + 30_000)

    run_virtual(main)


class LateClock:
    """Its timers come late; `armed` is for what instants they were set, and when."""

    def __init__(self, clock: VirtualClock, late: int) -> None:
        self._clock = clock
        self._late = late
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.boot_id = clock.boot_id
        self.armed: list[tuple[int, int]] = []

    def call_at(self, when: int, callback: Callable[[], object]) -> Timer:
        self.armed.append((when, self.monotonic()))
        return self._clock.call_at(when + self._late, callback)


class ShiftedClock:
    """A clock that reads more than the loop that it runs on."""

    def __init__(self, clock: VirtualClock, ahead: int) -> None:
        self._clock = clock
        self._ahead = ahead
        self.now = clock.now
        self.boot_id = clock.boot_id

    def monotonic(self) -> int:
        return self._clock.monotonic() + self._ahead

    def call_at(self, when: int, callback: Callable[[], object]) -> Timer:
        return self._clock.call_at(when - self._ahead, callback)


def test_any_number_of_waiters_sets_one_timer() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(1, per=60, clock=clock)
        waiting = [asyncio.ensure_future(gate.wait_async()) for _ in range(1000)]
        await asyncio.sleep(1)
        timers = [
            timer
            for timer in asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
            if not timer.cancelled()
        ]
        assert len(timers) == 1
        gate.close()
        await asyncio.gather(*waiting, return_exceptions=True)

    run_virtual(main)


def test_no_timer_is_ever_armed_for_an_instant_that_has_passed() -> None:
    async def main(clock: VirtualClock) -> None:
        # Everything wakes later than a period after its instant, when those behind it are due as well.
        late = LateClock(clock, 1_700_000)
        gate = RateGate(3, per=1, clock=late)
        await asyncio.gather(*(gate.wait_async() for _ in range(30)))
        assert len(late.armed) == 9
        assert all(when > armed_at for when, armed_at in late.armed)

    run_virtual(main)


# ------------------------------------------------------------------------------------------------ delay, timeouts


def test_delay_returns_the_wait_of_the_next_caller() -> None:
    clock = ManualClock()
    gate = RateGate(2, per=10, clock=clock)
    assert gate.delay() == 0
    gate.wait()
    assert gate.delay() == 0
    clock.advance(3)
    gate.wait()
    assert gate.delay() == 7
    clock.advance(6.999999)
    assert gate.delay() == 0.000001
    clock.advance(0.000001)
    assert gate.delay() == 0


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("per", [0.1, 1 / 3, 7.77, 60])
def test_waiting_as_long_as_delay_says_is_exactly_long_enough(count: int, per: float) -> None:
    clock = ManualClock()
    gate = RateGate(count, per=per, clock=clock)
    for _ in range(40):
        delay = gate.delay()
        if delay:
            clock.advance(delay - 0.000001)
            assert not gate.wait(0)
            clock.advance(0.000001)
        assert gate.wait(0)
        clock.advance(per / 11)


def test_delay_includes_waiters() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(3, per=10, clock=clock)
        passed: list[float] = []

        async def one() -> None:
            received = gate.delay()
            came = clock.monotonic()
            await gate.wait_async()
            passed.append((clock.monotonic() - came) / SECOND - received)

        tasks = []
        for _ in range(20):
            tasks.append(asyncio.ensure_future(one()))
            await asyncio.sleep(0.3)
        await asyncio.gather(*tasks)
        assert passed == [pytest.approx(0, abs=1e-9)] * 20

    run_virtual(main)


def test_a_timeout_of_zero_only_tries() -> None:
    gate = RateGate(1, per=60, clock=ManualClock())
    assert gate.wait(timeout=0) is True
    assert gate.wait(timeout=0) is False
    assert gate.wait(timeout=-5) is False


def test_a_timeout_that_cannot_be_met_raises_immediately() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(1, per=60, clock=clock)
        await gate.wait_async()
        assert await gate.wait_async(timeout=59.9) is False
        assert clock.monotonic() == 0
        assert await gate.wait_async(timeout=60) is True
        assert clock.monotonic() == 60 * SECOND

    run_virtual(main)


def test_a_waiter_that_times_out_uses_no_pass() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(1, per=60, clock=clock)
        await gate.wait_async()
        first = asyncio.ensure_future(gate.wait_async())
        await asyncio.sleep(0)
        second = asyncio.ensure_future(gate.wait_async(timeout=90))
        await asyncio.sleep(0)
        third = asyncio.ensure_future(gate.wait_async())
        assert await second is False
        assert clock.monotonic() == 90 * SECOND
        assert await first
        assert await third
        assert clock.monotonic() == 120 * SECOND

    run_virtual(main)


def test_a_cancelled_waiter_uses_no_pass_and_frees_its_place() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(1, per=60, clock=clock)
        await gate.wait_async()
        first, second = (asyncio.ensure_future(gate.wait_async()) for _ in range(2))
        await asyncio.sleep(30)
        first.cancel()
        assert await second
        assert clock.monotonic() == 60 * SECOND

    run_virtual(main)


@pytest.mark.parametrize("seed", range(20))
def test_cancelling_at_the_very_slot_loses_no_pass(seed: int) -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(1, per=60, clock=clock)
        await gate.wait_async()
        waiting = [asyncio.ensure_future(gate.wait_async()) for _ in range(2)]

        async def cancel() -> None:
            await asyncio.sleep(60)
            waiting[0].cancel()

        await asyncio.gather(cancel(), *waiting, return_exceptions=True)
        passed = [task for task in waiting if not task.cancelled()]
        assert clock.monotonic() == 60 * len(passed) * SECOND

    run_virtual(main, seed=seed)


# ----------------------------------------------------------------------------------------------- clocks, periods


@pytest.mark.parametrize("milliseconds", [2**31, 2**32, 2**63])
@pytest.mark.parametrize("before", [0, 1, 30_000])
def test_no_clock_wraps_around(milliseconds: int, before: int) -> None:
    clock = FarClock((milliseconds - before) * 1000)
    gate = RateGate(2, per=60, clock=clock)
    assert gate.wait(0)
    assert gate.wait(0)
    clock.advance(59.999999)
    assert not gate.wait(0)
    clock.advance(0.000001)
    assert gate.wait(0)


@pytest.mark.parametrize("milliseconds", [2**31, 2**32, 2**53, 2**63])
def test_waiters_are_woken_on_a_clock_with_large_values(milliseconds: int) -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(2, per=60, clock=ShiftedClock(clock, milliseconds * 1000 - 90 * SECOND))
        await asyncio.gather(*(gate.wait_async() for _ in range(6)))
        assert clock.monotonic() == 120 * SECOND

    run_virtual(main)


def test_a_period_may_be_a_year_or_a_millisecond() -> None:
    for per in (365 * DAY, 100 * 365 * DAY, 0.001):
        clock = ManualClock()
        gate = RateGate(1, per=per, clock=clock)
        assert gate.wait(0)
        clock.advance(per / 2)
        assert not gate.wait(0)
        assert gate.delay() == pytest.approx(per / 2)
        clock.advance(per / 2)
        assert gate.wait(0)


def test_a_year_is_waited_out() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(1, per=365 * DAY, clock=clock)
        await gate.wait_async()
        await gate.wait_async()
        assert clock.monotonic() == 365 * DAY * SECOND

    run_virtual(main)


def test_steps_of_the_wall_clock_change_nothing() -> None:
    clock = ManualClock()
    gate = RateGate(1, per=60, clock=clock)
    gate.wait()
    clock.step_wall(3600)
    assert gate.delay() == 60
    clock.step_wall(-7200)
    assert gate.delay() == 60


# -------------------------------------------------------------------------------------------------------- closing


def test_closing_wakes_all_waiters() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(1, per=60, clock=clock)
        await gate.wait_async()
        waiting = [asyncio.ensure_future(gate.wait_async(timeout)) for timeout in (None, 100, None, 1000)]
        await asyncio.sleep(1)
        gate.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [GateClosed] * 4
        assert clock.monotonic() == SECOND

    run_virtual(main)


@pytest.mark.parametrize("seed", range(10))
def test_closing_at_the_very_slot_is_safe(seed: int) -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(1, per=60, clock=clock)
        await gate.wait_async()
        waiting = [asyncio.ensure_future(gate.wait_async()) for _ in range(3)]

        async def close() -> None:
            await asyncio.sleep(60)
            gate.close()

        outcomes = (await asyncio.gather(close(), *waiting, return_exceptions=True))[1:]
        assert outcomes.count(True) <= 1
        assert [type(outcome) for outcome in outcomes if outcome is not True] in ([GateClosed] * 2, [GateClosed] * 3)

    run_virtual(main, seed=seed)


def test_a_closed_gate_says_so_and_may_be_closed_again() -> None:
    gate = RateGate(1, per=60, clock=ManualClock())
    gate.close()
    gate.close()
    with pytest.raises(GateClosed):
        gate.wait()
    with pytest.raises(GateClosed):
        gate.wait(0)
    with pytest.raises(GateClosed):
        gate.delay()


def test_a_block_closes_its_gate() -> None:
    with RateGate(1, per=60, clock=ManualClock()) as gate:
        # Nothing was used up by entering.
        assert gate.wait(0)
    with pytest.raises(GateClosed):
        gate.wait(0)


async def test_an_async_block_closes_its_gate() -> None:
    async with RateGate(1, per=60) as gate:
        assert await gate.wait_async(0)
    with pytest.raises(GateClosed):
        await gate.wait_async(0)


# ------------------------------------------------------------------------------------------------------ decorating


def test_a_decorated_function_passes_the_gate_at_each_call() -> None:
    clock = ManualClock()
    gate = RateGate(2, per=60, clock=clock)

    @gate
    def double(number: int, *, times: int = 2) -> int:
        """Twice."""
        return number * times

    assert double(4) == 8
    assert double(4, times=3) == 12
    assert gate.delay() == 60
    assert (double.__name__, double.__doc__) == ("double", "Twice.")


def test_a_decorated_coroutine_waits_as_a_task_does() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(2, per=1, clock=clock)

        @gate
        async def call(number: int) -> tuple[int, int]:
            return number, clock.monotonic() // SECOND

        assert await asyncio.gather(*(call(number) for number in range(5))) == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2)]

    run_virtual(main)


def test_an_exception_in_a_decorated_function_comes_out_and_its_pass_stays_used() -> None:
    gate = RateGate(1, per=60, clock=ManualClock())

    @gate
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gate.delay() == 60


def test_an_exception_in_a_decorated_coroutine_does_not_affect_waiters() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = RateGate(1, per=60, clock=clock)

        @gate
        async def fail() -> None:
            raise ZeroDivisionError

        outcomes = await asyncio.gather(*(fail() for _ in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError] * 3
        assert clock.monotonic() == 120 * SECOND

    run_virtual(main)


def test_an_async_generator_is_not_decorated() -> None:
    async def items() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(DeclarationError, match="limit_rate"):
        RateGate(1, per=1)(items)
