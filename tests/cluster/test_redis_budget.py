"""A budget in Redis that two processes use to its end. It measures how late each start is: alone on the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from headgate.clock import SECOND
from tests.durability.processes import children_of
from tests.redis_server import server_in

pytestmark = pytest.mark.slow


def most_in_any_window(starts: Sequence[int], period: int) -> int:
    most = first = 0
    for last, at in enumerate(starts):
        while starts[first] <= at - period:
            first += 1
        most = max(most, last - first + 1)
    return most


async def test_two_processes_use_exactly_the_budget(tmp_path: Path) -> None:
    with server_in(tmp_path) as server:
        async with children_of(tmp_path) as children:
            count, per, seconds = 40, 1.0, 6.0
            takers = [
                await children.start(
                    "bucket_taker.py", url=server.url, limit="shared", count=count, per=per, seconds=seconds, tasks=4
                )
                for _ in range(2)
            ]
            for taker in takers:
                await taker.wait_for_line("ready")
            for taker in takers:
                taker.send("go")
            starts: list[int] = []
            for taker in takers:
                own = await taker.wait_for_line("granted")
                assert own, "both were granted some"
                assert (await taker.wait_for_line("refused"))[0] > len(own), "both competed for all of it"
                starts += own
                assert await taker.end() == 0
            starts.sort()
            period = round(per * SECOND)
            assert most_in_any_window(starts, period) == count
            # From the start in the first window to the one in its place in the last: whole periods, over what it was.
            windows, place = divmod(len(starts) - 1, count)
            assert windows * period / (starts[-1] - starts[place]) >= 0.99
            assert len(starts) >= seconds / per * count * 0.9
