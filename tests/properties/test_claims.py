"""A node starts jobs of every lane that it can claim from, whatever else is in line: a backlog, or jobs of others."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.engine.running_attempts import Slots
from headgate.jobs.identity import IdSource
from headgate.jobs.job import BucketRef, ClaimedJob, JobState, NewJob
from headgate.jobs.lifecycle import Finished
from headgate.limits.fair import PREFIX, FairOrder
from headgate.limits.key import BETWEEN_LEVELS
from headgate.limits.strict_rate import StrictRate
from headgate.storage.records import Claim
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.manual_clock import ManualClock
from tests.seeds import examples

FAIR = "fair"
QUEUES = ("plain", "other", FAIR)
RULES: dict[str, Any] = {
    "tenant": StrictRate(1000, per=1, margin=0).rule,
    "shared": StrictRate(2, per=1, margin=0).rule,
    PREFIX + FAIR: FairOrder("{0}", {}).rule,
}
ROUNDS = 80
MOST_ROUNDS = 60
"""How many rounds a lane waits for its turn at most: of five lanes in three queues, of one slot at least."""


class Lane(NamedTuple):
    """Jobs that wait for the same: there are always so many of them.

    The node knows neither the task `rare` nor the limit `theirs`. In the fair queue, tenant 0 has a key of one level.
    """

    queue: str
    task: str
    limits: tuple[str, ...]
    tenant: int
    jobs: int

    @property
    def is_known(self) -> bool:
        return self.task == "work" and "theirs" not in self.limits

    def buckets(self, number: int) -> tuple[BucketRef, ...]:
        """The buckets of the lane of that number."""
        keys = {"tenant": f"{number}", "shared": "", "theirs": f"{number}"}
        refs = tuple(BucketRef(limit, keys[limit]) for limit in self.limits)
        if self.queue != FAIR:
            return refs
        key = f"{number}" if self.tenant == 0 else f"t{self.tenant}{BETWEEN_LEVELS}{number}"
        return (*refs, BucketRef(PREFIX + FAIR, key))


SHARED = ("tenant", "shared")
LIMITS = st.sampled_from([("tenant",), ("tenant",), SHARED, SHARED, ("theirs",), ()])
LANES = st.builds(
    Lane,
    st.sampled_from(QUEUES),
    st.sampled_from(["work", "work", "rare"]),
    LIMITS,
    st.integers(0, 2),
    st.integers(1, 10),
)
CAPACITY = st.fixed_dictionaries(dict.fromkeys(QUEUES, st.integers(1, 8)))


async def longest_waits(lanes: list[Lane], slots: Slots) -> Counter[int]:
    """Return in how many rounds in a row each lane started no job. In a round, jobs fill the slots and end at once."""
    clock = ManualClock()
    storage = MemoryStorage(clock)
    await storage.open()
    await storage.join("node", "node")
    ids = IdSource(producer=1)
    lane_of: dict[str, int] = {}

    async def add(numbers: list[int]) -> None:
        now = clock.now()
        jobs = [
            NewJob(
                id=ids.next(now),
                task=lanes[number].task,
                queue=lanes[number].queue,
                payload="{}",
                priority=0,
                delayed=False,
                run_at=now,
                enqueued_at=now,
                buckets=lanes[number].buckets(number),
            )
            for number in numbers
        ]
        lane_of.update(zip((job.id for job in jobs), numbers, strict=True))
        await storage.add(jobs)

    await add([number for number, lane in enumerate(lanes) for _ in range(lane.jobs)])
    waited: Counter[int] = Counter()
    longest: Counter[int] = Counter()
    for _ in range(ROUNDS):
        jobs: list[ClaimedJob] = []
        has_more = True
        while has_more and (free := slots.free_slots()):
            claim = Claim("node", free, RULES, frozenset({"work"}), shared_slots=slots.shared_by(free))
            claimed = await storage.claim(claim)
            slots.note_claimed(free, Counter(job.queue for job in claimed.jobs))
            for job in claimed.jobs:
                slots.take(job.queue)
            jobs += claimed.jobs
            has_more = claimed.more
        for job in jobs:
            slots.release(job.queue)
        await storage.finish("node", [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in jobs], RULES)
        started = [lane_of[job.id] for job in jobs]
        await add(started)
        for number in range(len(lanes)):
            waited[number] = 0 if number in started else waited[number] + 1
            longest[number] = max(longest[number], waited[number])
        clock.advance(0.5)
    await storage.close()
    return longest


# The queue with turns started all that the shared limit granted, and the other none.
@example(
    lanes=[Lane(FAIR, "work", SHARED, 0, 10), Lane("plain", "work", SHARED, 0, 3), Lane(FAIR, "work", SHARED, 0, 10)],
    capacity=dict.fromkeys(QUEUES, 3),
    most=None,
)
# The lane of jobs that the node does not know used the slots of its queue, so the one behind it was never looked at.
@example(
    lanes=[
        Lane("plain", "rare", SHARED, 0, 6),
        Lane("plain", "work", SHARED, 0, 3),
        Lane("other", "work", SHARED, 0, 6),
    ],
    capacity=dict.fromkeys(QUEUES, 4),
    most=None,
)
# The start that the shared limit granted was kept for the lane that waited the longest, whose queue got no slot in that
# claim, and its slot came when another queue had used the start.
@example(
    lanes=[
        Lane("plain", "work", ("tenant",), 0, 1),
        Lane("plain", "work", ("tenant",), 0, 1),
        Lane("plain", "work", SHARED, 0, 1),
        Lane("other", "work", SHARED, 0, 1),
        Lane(FAIR, "work", SHARED, 0, 1),
    ],
    capacity=dict.fromkeys(QUEUES, 1),
    most=2,
)
@settings(max_examples=examples(3, 60))
@given(lanes=st.lists(LANES, min_size=2, max_size=5), capacity=CAPACITY, most=st.one_of(st.none(), st.integers(1, 8)))
def test_a_lane_has_its_turn_whatever_else_is_in_line(
    lanes: list[Lane], capacity: dict[str, int], most: int | None
) -> None:
    longest = asyncio.run(longest_waits(lanes, Slots(capacity, most)))
    for number, lane in enumerate(lanes):
        if lane.is_known:
            assert longest[number] <= MOST_ROUNDS, f"{lane} waited for {longest[number]} rounds"
