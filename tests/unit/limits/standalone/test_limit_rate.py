"""limit_rate: items at a pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from headgate.clock import SECOND
from headgate.errors import DeclarationError
from headgate.limits.standalone.rate_gate import limit_rate
from headgate.testing.manual_clock import ManualClock
from headgate.testing.virtual_time import VirtualClock, run_virtual


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


def test_a_rate_of_five_per_second_paces_twenty_items() -> None:
    async def main(clock: VirtualClock) -> None:
        seen = [(item, clock.monotonic() // SECOND) async for item in limit_rate(numbers(20), 5, per=1, clock=clock)]
        assert seen == [(number, number // 5) for number in range(20)]
        # The end is not waited for.
        assert clock.monotonic() == 3 * SECOND

    run_virtual(main)


def test_a_slow_consumer_is_not_slowed_down_further() -> None:
    async def main(clock: VirtualClock) -> None:
        async for _ in limit_rate(numbers(10), "1/s", clock=clock):
            await asyncio.sleep(2)
        assert clock.monotonic() == 20 * SECOND

    run_virtual(main)


def test_a_plain_iterable_is_paced_in_its_thread() -> None:
    clock = ManualClock()
    items = limit_rate(iter("abc"), "3/m", clock=clock)
    assert list(items) == ["a", "b", "c"]


def test_no_item_is_pulled_before_it_is_requested() -> None:
    pulled = []

    def source() -> Iterator[int]:
        for number in range(10):
            pulled.append(number)
            yield number

    items = limit_rate(source(), 3, per=60, clock=ManualClock())
    assert pulled == []
    assert next(items) == 0
    assert pulled == [0]


def test_a_rate_that_cannot_work_is_refused_before_the_first_item() -> None:
    with pytest.raises(DeclarationError):
        limit_rate([1], 0, per=1)


def test_an_error_of_the_source_comes_out() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    items = limit_rate(source(), 3, per=60, clock=ManualClock())
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_closing_a_paced_iterable_closes_a_source_without_other_references() -> None:
    ended = []

    def source() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            ended.append(True)

    items = limit_rate(source(), 3, per=60, clock=ManualClock())
    next(items)
    items.close()
    assert ended == [True]


def test_a_source_with_other_references_can_be_read_further() -> None:
    source = iter(range(5))
    items = limit_rate(source, 3, per=60, clock=ManualClock())
    assert next(items) == 0
    items.close()
    assert list(source) == [1, 2, 3, 4]


def test_an_async_one_closes_cleanly_in_the_middle() -> None:
    async def main(clock: VirtualClock) -> None:
        items = limit_rate(numbers(10), 2, per=1, clock=clock)
        assert [await anext(items), await anext(items)] == [0, 1]
        await items.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(items)

    run_virtual(main)


def test_a_consumer_cancelled_during_the_wait_leaves_nothing_behind() -> None:
    async def main(clock: VirtualClock) -> None:
        items = limit_rate(numbers(10), 1, per=60, clock=clock)
        await anext(items)
        waiting = asyncio.ensure_future(anext(items))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await items.aclose()
        timers = [
            timer
            for timer in asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
            if not timer.cancelled()
        ]
        assert timers == []

    run_virtual(main)
