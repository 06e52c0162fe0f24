"""Admission of a lane whose limit counts calls: one start for each call, and no call without one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate import StrictRate
from headgate.clock import SECOND
from headgate.jobs.job import BucketRef
from headgate.storage.admission import BucketView, LaneView, admit
from headgate.storage.records import LaneCall

NOON = 43_200 * SECOND


@given(
    jobs=st.integers(0, 30),
    size=st.integers(2, 8),
    slots=st.integers(0, 30),
    calls=st.integers(1, 5),
    starts=st.integers(1, 30),
    other_lanes=st.integers(0, 2),
    uncounted=st.sets(st.integers(0, 29)),
)
def test_each_call_is_charged_once_and_each_job_is_charged_where_jobs_count(
    jobs: int, size: int, slots: int, calls: int, starts: int, other_lanes: int, uncounted: set[int]
) -> None:
    per_call = BucketView(BucketRef("calls", ""), StrictRate(calls, per=60, margin=0).rule, None)
    per_job = BucketView(BucketRef("jobs", ""), StrictRate(starts, per=60, margin=0).rule, None)
    call = LaneCall(size, frozenset({0}))
    lanes = [
        LaneView(
            str(number),
            "default",
            [per_call, per_job],
            [None] * jobs,
            calls=[None if place in uncounted else call for place in range(jobs)],
        )
        for number in range(1 + other_lanes)
    ]
    admit(lanes, {"default": slots}, NOON)
    assert sum(lane.taken for lane in lanes) == len(per_job.state or ()) <= min(slots, starts)
    charged = [(lane.id, leader) for lane in lanes for leader in lane.leaders]
    assert len(set(charged)) == len(per_call.state or ()) <= calls
    for lane in lanes:
        assert len(lane.leaders) == lane.taken
        for place, leader in enumerate(lane.leaders):
            assert lane.leaders[leader] == leader <= place < leader + size
            assert place == leader or not uncounted.intersection(range(leader, place + 1))
    if not uncounted and not other_lanes:
        # None is charged twice for what one call could handle, and none waits although it could join a call.
        lane = lanes[0]
        assert len(set(lane.leaders)) == -(-lane.taken // size)
        assert lane.taken == min(jobs, slots, starts, calls * size)
