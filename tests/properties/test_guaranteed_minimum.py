"""A fair queue under one shared rate: the rate holds, none of it is lost, and each key has its part by weight."""

from __future__ import annotations

import asyncio
from itertools import combinations, groupby
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate import RateLimit
from headgate.clock import SECOND
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on
from tests.seeds import examples


class Key(NamedTuple):
    """So many jobs of a key come, the first so long after the beginning, one each `every` (tenths of a second).

    With 0 they come at once.
    """

    weight: int
    comes: int
    jobs: int
    every: int = 0

    @property
    def arrivals(self) -> list[int]:
        """When its jobs come, in tenths of a second."""
        return [self.comes + number * self.every for number in range(self.jobs)]


class Start(NamedTuple):
    at: int
    key: str


WEIGHT, COMES = st.integers(1, 4), st.integers(0, 40)
AT_ONCE = st.builds(Key, WEIGHT, COMES, st.integers(1, 25), st.just(0))
ONE_BY_ONE = st.builds(Key, WEIGHT, COMES, st.integers(1, 10), st.integers(3, 20))
KEYS = st.builds(list.__add__, st.lists(AT_ONCE, min_size=2, max_size=4), st.lists(ONE_BY_ONE, max_size=2))


def played(keys: dict[str, Key], limit: RateLimit, slots: int) -> list[Start]:
    """Run the jobs of these keys; return when each started, from the beginning."""
    starts: list[Start] = []

    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)
        weights = {name: key.weight for name, key in keys.items()}
        app.queue("default", concurrency=slots, fair_by="{tenant}", weights=weights)
        app.limit("partner", limit)

        @app.task(limits=["partner"])
        async def call(tenant: str) -> None:
            starts.append(Start(clock.monotonic() - begin, tenant))

        async with app:
            begin = clock.monotonic()
            arrivals = sorted((tenth, name) for name, key in keys.items() for tenth in key.arrivals)
            for (tenth, name), jobs in groupby(arrivals):
                await asyncio.sleep(tenth / 10 - (clock.monotonic() - begin) / SECOND)
                await call.enqueue_many([(name,)] * len(list(jobs)))
            await asyncio.sleep(1 + sum(key.jobs for key in keys.values()) / 10)

    run_virtual(main)
    return starts


def greedy(keys: dict[str, Key], limit: RateLimit) -> list[int]:
    """The instants of the starts if no part of the rate is lost, whichever job each is of."""
    state: Any = None
    instants: list[int] = []
    for arrived in sorted(tenth * SECOND // 10 for key in keys.values() for tenth in key.arrivals):
        now = max(arrived, instants[-1] if instants else 0)
        opens_at, state = limit.rule.take(state, now)
        instants.append(opens_at)
    return instants


# Each key comes in the instant in which the bucket opens. A new key that started before those that waited behind the
# bucket went a step beyond them, and the next one came after it: the last of these waited for half a minute.
@example(keys=[Key(1, number, 12) for number in range(16)], burst=1, slots=1)
@example(keys=[Key(2, 11, 25), Key(2, 9, 11), Key(3, 6, 23), Key(3, 8, 7)], burst=1, slots=1)
@settings(max_examples=examples(6, 12))
@given(keys=KEYS, burst=st.sampled_from([1, 1, 5]), slots=st.sampled_from([1, 20]))
def test_a_shared_rate_is_used_whole_and_divided_by_weight(keys: list[Key], burst: int, slots: int) -> None:
    named = {f"tenant-{number}": key for number, key in enumerate(keys)}
    limit = RateLimit("10/s", burst=burst)
    starts = played(named, limit, slots)

    # 1. The total is that of one bucket which is never left unused while a job waits, and never more.
    expected = greedy(named, limit)
    assert len(starts) == len(expected)
    for start, instant in zip(starts, expected, strict=True):
        assert 0 <= start.at - instant <= SECOND // 100

    # 2. While two keys have jobs and neither joins, what each got for its weight differs by one start of each, at most,
    # whatever others do whose jobs come one by one.
    # A key that joins lanes behind a bucket comes after the highest turn there: up to two starts of the lowest weight
    # come before it, and what the others start by their weights meanwhile.
    last = {
        name: max(start.at for start in starts if start.key == name) for name, key in named.items() if not key.every
    }
    joined = max(key.comes for key in keys if not key.every) * SECOND // 10
    lowest = 1 / min(key.weight for key in keys)
    settled = joined + round(2 * lowest * sum(key.weight for key in keys)) * SECOND // 10
    for one, other in combinations(last, 2):
        both = max(named[one].comes, named[other].comes) * SECOND // 10
        part, rest = 1 / named[one].weight, 1 / named[other].weight
        for begin, most in ((settled, part + rest), (both, part + rest + 2 * lowest)):
            during = [start.key for start in starts if begin < start.at < min(last[one], last[other])]
            for first in range(len(during)):
                ahead = 0.0
                for key in during[first:]:
                    ahead += part if key == one else -rest if key == other else 0
                    assert abs(ahead) <= most + 1e-9
