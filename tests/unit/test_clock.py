"""Clocks: exact, never early, and the waits built on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

import pytest

from headgate.clock import (
    SECOND,
    SystemClock,
    Timer,
    from_datetime,
    microseconds,
    sleep,
    sleep_until,
    to_datetime,
    wait_for_event,
)
from headgate.testing.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual


def test_the_system_clock_returns_wall_time_in_microseconds() -> None:
    before = time.time_ns() // 1000
    assert before <= SystemClock().now() <= time.time_ns() // 1000


def test_monotonic_time_never_runs_backwards() -> None:
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)


def test_all_clocks_of_a_machine_share_their_boot_and_its_time() -> None:
    one, other = SystemClock(), SystemClock()
    assert one.boot_id() == other.boot_id()
    assert one.boot_id()
    assert one.monotonic() <= other.monotonic() <= one.monotonic()


async def test_a_system_timer_fires_at_its_instant_or_later() -> None:
    clock = SystemClock()
    when = clock.monotonic() + 2_500
    await sleep_until(clock, when)
    assert clock.monotonic() >= when


class LoopClock(SystemClock):
    """Counts the time of the loop that it is used on: nothing passes between two statements."""

    def monotonic(self) -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        return loop.microseconds()


def test_system_timers_fire_in_order() -> None:
    async def main(_clock: VirtualClock) -> None:
        clock = LoopClock()
        fired: list[int] = []
        start = clock.monotonic()
        for offset in (3000, 1000, 2000):
            clock.call_at(start + offset, lambda offset=offset: fired.append(offset))  # type: ignore[misc]
        await sleep_until(clock, start + 4000)
        assert fired == [1000, 2000, 3000]

    run_virtual(main)


def test_a_cancelled_system_timer_does_not_fire() -> None:
    async def main(_clock: VirtualClock) -> None:
        clock = LoopClock()
        fired: list[str] = []
        now = clock.monotonic()
        clock.call_at(now + 500, lambda: fired.append("cancelled")).cancel()
        clock.call_at(now + 500, lambda: fired.append("kept"))
        await sleep_until(clock, now + 1500)
        assert fired == ["kept"]

    run_virtual(main)


class SlowClock(LoopClock):
    """Runs slower than the loop it is used on, so that each of the loop's timers fires early for it."""

    def monotonic(self) -> int:
        return super().monotonic() * 9 // 10


def test_a_timer_that_the_loop_fires_early_waits_on() -> None:
    async def main(_clock: VirtualClock) -> None:
        clock = SlowClock()
        fired_at: list[int] = []
        clock.call_at(1_000_003, lambda: fired_at.append(clock.monotonic()))
        await asyncio.sleep(100)
        assert fired_at == [1_000_003]

    run_virtual(main)


def test_a_timer_that_the_loop_fired_early_can_still_be_cancelled() -> None:
    async def main(_clock: VirtualClock) -> None:
        clock = SlowClock()
        fired: list[str] = []
        timer = clock.call_at(10 * SECOND, lambda: fired.append("fired"))
        await asyncio.sleep(10.5)
        timer.cancel()
        await asyncio.sleep(100)
        assert fired == []

    run_virtual(main)


class SuspendedClock(SystemClock):
    """The clock of a machine that sleeps for an hour after 30 s: it advances, and the time of the loop does not."""

    def monotonic(self) -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        return loop.microseconds() + (3600 * SECOND if loop.microseconds() >= 30 * SECOND else 0)


def test_a_long_timer_notices_within_a_minute_that_the_machine_slept() -> None:
    async def main(clock: VirtualClock) -> None:
        await sleep_until(SuspendedClock(), 3000 * SECOND)
        assert clock.monotonic() <= 90 * SECOND

    run_virtual(main)


def test_sleep_until_returns_at_its_instant() -> None:
    async def main(clock: VirtualClock) -> None:
        await sleep_until(clock, 1_234_567)
        assert clock.monotonic() == 1_234_567
        await sleep_until(clock, 5)
        assert clock.monotonic() == 1_234_567

    run_virtual(main)


def test_sleep_counts_seconds_from_now() -> None:
    async def main(clock: VirtualClock) -> None:
        await sleep_until(clock, 10)
        await sleep(clock, 0.25)
        assert clock.monotonic() == 250_010

    run_virtual(main)


class CountingClock:
    """A clock that knows how many of its timers are still set."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.boot_id = clock.boot_id
        self.pending = 0

    def call_at(self, when: int, callback: Callable[[], object]) -> Timer:
        self.pending += 1
        return _CountedTimer(self, self._clock.call_at(when, callback))


class _CountedTimer:
    def __init__(self, clock: CountingClock, timer: Timer) -> None:
        self._clock = clock
        self._timer = timer

    def cancel(self) -> None:
        self._timer.cancel()
        self._clock.pending -= 1


def test_a_cancelled_sleep_leaves_no_timer_behind() -> None:
    async def main(virtual: VirtualClock) -> None:
        clock = CountingClock(virtual)
        sleeping = asyncio.create_task(sleep(clock, 3600))
        await asyncio.sleep(1)
        assert clock.pending == 1
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        assert clock.pending == 0

    run_virtual(main)


def test_waiting_for_an_event_that_is_set_is_over_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        event = asyncio.Event()
        event.set()
        assert await wait_for_event(clock, event, 10)
        assert await wait_for_event(clock, event, 0)
        assert await wait_for_event(clock, event, None)
        assert clock.monotonic() == 0

    run_virtual(main)


@pytest.mark.parametrize("seconds", [10, None])
def test_an_event_ends_the_wait_when_it_is_set(seconds: float | None) -> None:
    async def main(clock: VirtualClock) -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(3, event.set)
        assert await wait_for_event(clock, event, seconds)
        assert clock.monotonic() == 3 * SECOND

    run_virtual(main)


@pytest.mark.parametrize("seconds", [10, 0, -1])
def test_a_wait_for_an_event_ends_when_its_time_is_up(seconds: float) -> None:
    async def main(clock: VirtualClock) -> None:
        assert not await wait_for_event(clock, asyncio.Event(), seconds)
        assert clock.monotonic() == max(0, seconds) * SECOND

    run_virtual(main)


@pytest.mark.parametrize("seed", range(5))
def test_an_event_set_in_the_instant_the_time_is_up_counts_as_set(seed: int) -> None:
    async def main(clock: VirtualClock) -> None:
        event = asyncio.Event()
        clock.call_at(10 * SECOND, event.set)
        assert await wait_for_event(clock, event, 10)

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("seconds", [10, None])
def test_an_event_that_is_set_and_cleared_again_still_ends_the_wait_as_set(seconds: float | None) -> None:
    async def main(clock: VirtualClock) -> None:
        event = asyncio.Event()

        def pulse() -> None:
            event.set()
            event.clear()

        clock.call_at(3 * SECOND, pulse)
        assert await wait_for_event(clock, event, seconds)
        assert clock.monotonic() == 3 * SECOND

    run_virtual(main)


def test_a_cancelled_wait_for_an_event_is_cancelled_and_leaves_nothing_behind() -> None:
    async def main(virtual: VirtualClock) -> None:
        clock = CountingClock(virtual)
        waiting = asyncio.create_task(wait_for_event(clock, asyncio.Event(), 3600))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        assert clock.pending == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)


async def test_an_event_that_cannot_be_waited_for_does_not_count_as_set() -> None:
    """The fault: a wait for an event of another loop ended at once, as if the event had been set."""

    class Unusable(asyncio.Event):
        async def wait(self) -> Literal[True]:
            raise RuntimeError("bound to a different event loop")

    for seconds in (10, None):
        with pytest.raises(RuntimeError, match="bound to a different event loop"):
            await wait_for_event(SystemClock(), Unusable(), seconds)


def test_many_may_wait_for_one_event() -> None:
    async def main(clock: VirtualClock) -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(5, event.set)
        waits = [wait_for_event(clock, event, seconds) for seconds in (1, 4, 6, 9)]
        assert await asyncio.gather(*waits) == [False, False, True, True]

    run_virtual(main)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (0, 0),
        (1, SECOND),
        (60, 60 * SECOND),
        (0.1, 100_000),
        (1e-6, 1),
        (4e-7, 0),
        (1.1, 1_100_000),
        (-2.5, -2_500_000),
        (timedelta(minutes=5), 300 * SECOND),
        (timedelta(microseconds=1), 1),
        (timedelta(seconds=-1, microseconds=1), -999_999),
        (timedelta.max, 86_399_999_999_999_999_999),
    ],
)
def test_a_duration_is_seconds_or_a_timedelta(duration: float | timedelta, expected: int) -> None:
    assert microseconds(duration) == expected


@pytest.mark.parametrize("duration", [float("nan"), float("inf"), -float("inf"), 1e308])
def test_a_duration_that_does_not_end_in_any_number_of_microseconds_is_refused(duration: float) -> None:
    with pytest.raises(ValueError, match="not a finite duration"):
        microseconds(duration)


def test_an_instant_comes_back_from_a_datetime_as_it_was() -> None:
    for instant in (0, 1, -1, 1_767_225_600_000_001, 253_402_300_799_999_999):
        assert from_datetime(to_datetime(instant)) == instant
        assert to_datetime(instant).tzinfo is UTC


def test_a_datetime_of_any_zone_is_the_same_instant() -> None:
    rome = timezone(timedelta(hours=2))
    assert from_datetime(datetime(2026, 7, 1, 14, 0, 0, 5, tzinfo=rome)) == from_datetime(
        datetime(2026, 7, 1, 12, 0, 0, 5, tzinfo=UTC)
    )


def test_the_operators_of_a_library_for_dates_are_not_called() -> None:
    """The fault: `at=` and `delay=` of pendulum's kinds raised AttributeError, as its // takes only its own."""

    class Moment(datetime):
        def __sub__(self, other: Any) -> Any:
            return Span(seconds=1)

    class Span(timedelta):
        def __floordiv__(self, other: Any) -> Any:
            raise AttributeError("'datetime.timedelta' object has no attribute '_to_microseconds'")

    assert from_datetime(Moment(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=1)))) == 3600 * SECOND
    assert microseconds(Span(minutes=5, microseconds=1)) == 300 * SECOND + 1


def test_a_naive_datetime_is_refused_with_a_way_out() -> None:
    with pytest.raises(ValueError, match=r"no time zone.*datetime\.now\(UTC\)"):
        from_datetime(datetime(2026, 7, 1))  # noqa: DTZ001


def test_an_instant_beyond_the_calendar_is_its_end() -> None:
    assert to_datetime(10**18).year == 9999
    assert to_datetime(-(10**18)).year == 1
    assert to_datetime(10**18).tzinfo is not None
