"""Slots that all queues of a node share, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import cycle

import pytest

from headgate import DeclarationError, Headgate, StrictRate
from headgate.storage.admission import divided
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on

Numbers = tuple[int, int]


class Running:
    """How many jobs of each queue run, and the most that ran at once."""

    def __init__(self, *, uneven: bool = False) -> None:
        self._durations = cycle((0.5, 0.7, 1.1, 1.7) if uneven else (1.0,))
        self.now: Counter[str] = Counter()
        self.most = 0
        self.started: list[str] = []

    async def run(self, kind: str, queue: str) -> None:
        self.now[queue] += 1
        self.started.append(f"{kind}-{queue}")
        self.most = max(self.most, self.now.total())
        await asyncio.sleep(next(self._durations))
        self.now[queue] -= 1


def made(clock: VirtualClock, running: Running, slots: int | None, weights: dict[str, int]) -> Headgate:
    app = app_on(MemoryStorage(clock), clock=clock, slots=slots, labels=[])
    for queue, weight in weights.items():
        app.queue(queue, concurrency=10, weight=weight)

        @app.task(name=f"work-{queue}", queue=queue)
        async def work(number: int, queue: str = queue) -> None:
            await running.run("work", queue)

        @app.task(name=f"limited-{queue}", queue=queue, limits=[StrictRate("1000/s", key="{number}", name="each")])
        async def limited(number: int, queue: str = queue) -> None:
            await running.run("limited", queue)

    return app


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("kind", ["work", "limited"])
def test_queues_share_the_slots_of_a_node_by_weight(kind: str, uneven: bool) -> None:
    """The fault: ten queues of ten slots ran a hundred jobs at once, and no setting bounded that."""

    async def main(clock: VirtualClock) -> None:
        running = Running(uneven=uneven)
        async with made(clock, running, 12, {"a": 1, "b": 1, "c": 2}) as app:
            for queue in "abc":
                await app.tasks[f"{kind}-{queue}"].enqueue_many([(number,) for number in range(200)])
            await asyncio.sleep(5.05)
            for _ in range(15):
                await asyncio.sleep(1)
                assert running.now.total() == running.most == 12
                assert all(abs(running.now[queue] - fair) <= 1 for queue, fair in (("a", 3), ("b", 3), ("c", 6)))

    run_virtual(main)


def test_slots_that_a_queue_does_not_need_go_to_the_others_up_to_their_own_slots() -> None:
    async def main(clock: VirtualClock) -> None:
        running = Running()
        async with made(clock, running, 12, {"a": 1, "b": 1, "c": 1}) as app:
            await app.tasks["work-a"].enqueue_many([(number,) for number in range(50)])
            await asyncio.sleep(0.5)
            assert running.now == {"a": 10}
            await app.tasks["work-b"].enqueue_many([(number,) for number in range(50)])
            await asyncio.sleep(0.2)
            assert running.now == {"a": 10, "b": 2}
            await asyncio.sleep(20)
            assert running.most == 12
            assert len(running.started) == 100

    run_virtual(main)


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("kinds", [("work",), ("work", "limited")])
@pytest.mark.parametrize(("slots", "queues"), [(1, "abc"), (2, "abcd"), (4, "abc")])
def test_few_slots_for_all_queues_starve_no_queue_and_no_kind(
    slots: int, queues: str, kinds: tuple[str, ...], uneven: bool
) -> None:
    """The faults: with one slot and three queues beside `default`, the third one started nothing; with two and four
    queues, one started only jobs with limits, and another only jobs without."""

    async def main(clock: VirtualClock) -> None:
        running = Running(uneven=uneven)
        async with made(clock, running, slots, dict.fromkeys(queues, 1)) as app:
            names = [f"{kind}-{queue}" for kind in kinds for queue in queues]
            for name in names:
                await app.tasks[name].enqueue_many([(number,) for number in range(slots * 60)])
            await asyncio.sleep(59.5)
            assert running.most == slots
            counts = Counter(running.started)
            fair = len(running.started) / len(names)
            assert all(abs(counts[name] - fair) <= 3 for name in names), counts

    run_virtual(main)


def test_a_queue_whose_jobs_this_worker_cannot_run_keeps_no_slots() -> None:
    """The fault: it kept its part of the slots for good, if few lanes waited in all."""

    async def main(clock: VirtualClock) -> None:
        running = Running()
        app = made(clock, running, 12, {"a": 1, "b": 1})

        @app.task(queue="b", requires={"gpu"}, limits=[StrictRate("1000/s")])
        async def train() -> None: ...

        async with app:
            await train.enqueue_many([()] * 20)
            await app.tasks["limited-a"].enqueue_many([(0,)] * 50)
            await asyncio.sleep(3.5)
            assert running.now == {"a": 10}

    run_virtual(main)


@pytest.mark.parametrize(
    ("slots", "wanted", "held", "weights", "parts"),
    [
        (10, (20, 20), (0, 0), (1, 1), (5, 5)),
        (10, (2, 20), (0, 0), (1, 1), (2, 8)),
        (10, (20, 20), (0, 0), (4, 1), (8, 2)),
        (10, (3, 3), (0, 0), (4, 1), (3, 3)),
        (4, (20, 20), (6, 0), (1, 1), (0, 4)),
        (4, (20, 20), (3, 3), (1, 1), (2, 2)),
        (1, (3, 3), (0, 9), (1, 9), (1, 0)),
        (1, (3, 3), (2, 7), (1, 9), (0, 1)),
        (1, (0, 3), (0, 9), (9, 1), (0, 1)),
        (0, (3, 0), (0, 0), (1, 1), (0, 0)),
    ],
)
def test_slots_are_divided_by_weight_and_none_is_left_that_a_queue_wants(
    slots: int, wanted: Numbers, held: Numbers, weights: Numbers, parts: Numbers
) -> None:
    of_queues = [dict(zip("ab", numbers, strict=True)) for numbers in (wanted, held, weights)]
    assert divided(slots, *of_queues) == dict(zip("ab", parts, strict=True))


def test_bounds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DeclarationError, match="slots=0 must be a whole number, at least 1"):
        Headgate("memory://", slots=0)
    with pytest.raises(DeclarationError, match="queue 'mail': weight=0 must be a whole number, at least 1"):
        Headgate("memory://").queue("mail", weight=0)
