"""A budget that two processes use up: never more than it, and nothing is refused as long as there is some of it."""

from __future__ import annotations

from bisect import bisect_right

from headgate.clock import SECOND
from tests.durability.processes import Children


async def two_takers_use_exactly_the_budget(
    children: Children, url: str, *, count: int, per: float, seconds: float
) -> None:
    """Two processes take from one bucket of a store as fast as they can, for some seconds.

    What a slow machine does not ask for is not used either. So it is the refusals that say whether all of the budget
    can be used: each came at an instant at which the window was full.
    """
    takers = [
        await children.start("bucket_taker.py", url=url, limit="shared", count=count, per=per, seconds=seconds, tasks=4)
        for _ in range(2)
    ]
    for taker in takers:
        await taker.wait_for_line("ready")
    for taker in takers:
        taker.send("go")
    for taker in takers:
        await taker.wait_for_line("refused", seconds + 30)
    starts: list[int] = []
    refused: list[int] = []
    for taker in takers:
        assert await taker.end() == 0
        (own,) = taker.lines_with("granted")
        assert own, "both were granted some"
        starts += own
        refused += [at for line in taker.lines_with("refused") for at in line]
    starts.sort()
    period = round(per * SECOND)
    assert max(used_at(starts, period, at) for at in starts) == count
    assert {used_at(starts, period, at) for at in refused} == {count}


def used_at(starts: list[int], period: int, at: int) -> int:
    """How many of the sorted starts are in the window that ends at that instant, and includes it."""
    return bisect_right(starts, at) - bisect_right(starts, at - period)
