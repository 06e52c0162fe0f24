"""Counting in the background: as fresh as it is cheap, and no reader waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from headgate.clock import SECOND, to_datetime
from headgate.errors import StorageUnavailable
from headgate.storage.background_counts import BackgroundCounts, CountReading
from headgate.storage.records import QueueCounts
from headgate.testing.virtual_time import VirtualClock, run_virtual


class Counting:
    """Counts as many as it was asked, in so many seconds."""

    def __init__(self, clock: VirtualClock, takes: float) -> None:
        self._clock = clock
        self._finals = BackgroundCounts[Sequence[QueueCounts]](clock, "final jobs")
        self.takes = takes
        self.times = 0
        self.error: Exception | None = None

    def now(self) -> datetime:
        return to_datetime(self._clock.now())

    async def count(self) -> Sequence[QueueCounts]:
        self.times += 1
        found = [QueueCounts("default", 0, 0, self.times, 0, 0)]
        await asyncio.sleep(self.takes)
        if self.error is not None:
            raise self.error
        return found

    async def read(self) -> CountReading[Sequence[QueueCounts]] | None:
        self._finals.begin(self.count, self.now)
        return await self._finals.read()

    async def close(self) -> None:
        await self._finals.close()


def test_fast_counts_are_in_the_first_read_and_at_most_a_second_old() -> None:
    async def main(clock: VirtualClock) -> None:
        counting = Counting(clock, takes=0.001)
        for times in (1, 1, 2, 2, 3):
            found = await counting.read()
            assert found is not None
            assert found.found[0].succeeded == times
            await asyncio.sleep(0.6)

    run_virtual(main)


def test_slow_counts_delay_no_reader_and_are_at_most_ten_seconds_old() -> None:
    async def main(clock: VirtualClock) -> None:
        counting = Counting(clock, takes=2)
        began = clock.monotonic()
        assert await counting.read() is None
        assert await counting.read() is None
        assert clock.monotonic() - began <= 100_000
        await asyncio.sleep(2)
        found = await counting.read()
        assert found is not None
        # Its age counts from when it began.
        assert found.at == to_datetime(clock.now()) - (to_datetime(2_060_000) - to_datetime(0))
        # It is counted again in time: no read shows a result that is older than 10 s.
        for _ in range(600):
            await asyncio.sleep(0.1)
            found = await counting.read()
            assert found is not None
            assert (to_datetime(clock.now()) - found.at).total_seconds() <= 10.2
        assert 6 <= counting.times <= 9
        await counting.close()

    run_virtual(main)


def test_a_reader_that_comes_rarely_waits_for_the_present_count() -> None:
    """The fault: an overview that was polled every 15 s was 15 s old, with 5 jobs in the store."""

    async def main(clock: VirtualClock) -> None:
        counting = Counting(clock, takes=0.1)
        await counting.read()
        for _ in range(4):
            await asyncio.sleep(15)
            found = await counting.read()
            assert found is not None
            assert (to_datetime(clock.now()) - found.at).total_seconds() <= 0.2

    run_virtual(main)


def test_counts_that_take_long_take_at_most_half_of_the_time() -> None:
    async def main(clock: VirtualClock) -> None:
        counting, began = Counting(clock, takes=20), clock.monotonic()
        while clock.monotonic() < began + 400 * SECOND:
            await asyncio.sleep(1)
            await counting.read()
        assert 9 <= counting.times <= 11
        await counting.close()

    run_virtual(main)


def test_a_failing_count_affects_no_other_and_is_not_repeated_more_often() -> None:
    """As on PostgreSQL, which ends what takes longer than its statement timeout."""

    async def main(clock: VirtualClock) -> None:
        counting = Counting(clock, takes=0.001)
        known = await counting.read()
        assert known is not None
        counting.error, counting.takes = StorageUnavailable("canceling statement due to statement timeout"), 9
        for _ in range(400):
            await asyncio.sleep(1)
            assert await counting.read() is known
        assert counting.times == 2
        counting.error = None
        await asyncio.sleep(100)
        assert await counting.read() is known
        await asyncio.sleep(10)
        found = await counting.read()
        assert found is not None
        assert found.found[0].succeeded == 3

    run_virtual(main)


def test_a_first_count_that_fails_at_once_is_tried_again_in_a_second() -> None:
    async def main(clock: VirtualClock) -> None:
        counting = Counting(clock, takes=0.001)
        counting.error = StorageUnavailable("away")
        assert await counting.read() is None
        counting.error = None
        assert await counting.read() is None
        await asyncio.sleep(1)
        assert await counting.read() is not None

    run_virtual(main)
