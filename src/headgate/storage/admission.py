"""Admission: how many jobs of which lanes may start now. Pure, and the same for every store.

A store reads the lanes that are due or behind an opened bucket, the buckets they draw on and the first jobs of each;
`admit` decides; the store writes what it decided. Lanes take turns of a few jobs. A lane that meets a closed bucket
waits behind it. A bucket that lanes already wait behind is closed to newcomers until it opens, so that a costly job at
the head of its wait list is not starved by cheap ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.errors import CostExceedsLimit
from headgate.jobs.job import Draw
from headgate.limits.limit import AnyRule
from headgate.storage.protocol import Room

TURN = 4
"""How many jobs a lane may take before the next lane has its turn."""


class BucketView:
    """A bucket during one claim. `opens_at` is set while lanes wait behind it; `state` None is a bucket never seen."""

    __slots__ = ("charged", "closed_until", "draw", "id", "opens_at", "rule", "state")

    def __init__(
        self,
        draw: Draw,
        rule: AnyRule,
        state: Any,
        *,
        id: int | None = None,
        opens_at: int | None = None,
        closed_until: int = 0,
    ) -> None:
        self.id = id
        self.draw = draw
        self.rule = rule
        self.state = state
        self.opens_at = opens_at
        self.closed_until = closed_until
        self.charged = False

    def grants(self, now: int, most: int) -> int:
        """How many starts of cost 1 it would grant now, at most `most`."""
        if self.closed_until > now:
            return 0
        state = self.state
        for granted in range(most):
            opens_at, state = self.rule.take(state, now)
            if opens_at > now:
                return granted
        return most

    def reopens_at(self, now: int) -> int:
        """When it opens for the lanes that still wait behind it; `now` if it is open."""
        if self.opens_at is not None and self.opens_at > now:
            return self.opens_at
        return max(now, self.closed_until, self.rule.take(self.state, now)[0])


class LaneView:
    """A lane during one claim: its buckets and the costs of its first ready jobs; how many of them were admitted."""

    __slots__ = ("behind", "buckets", "costs", "failed", "id", "queue", "taken")

    def __init__(
        self, id: int, queue: str, buckets: Sequence[BucketView], costs: Sequence[tuple[int, ...] | None]
    ) -> None:
        self.id = id
        self.queue = queue
        self.buckets = buckets
        self.costs = costs
        self.taken = 0
        self.behind: BucketView | None = None
        self.failed: CostExceedsLimit | None = None

    @property
    def has_more(self) -> bool:
        return self.taken < len(self.costs)


def gated_share(room: Room, ungated_ready: int) -> int:
    """How many of a queue's free slots gated jobs may take, when so many ungated ones are ready."""
    half = (room.slots + room.gated_first) // 2
    return max(half, room.slots - ungated_ready)


def admit(lanes: Sequence[LaneView], shares: Mapping[str, int], now: int) -> None:
    """Decide how many jobs of each lane start at limit time `now`; the lanes and their buckets hold the decision.

    `lanes` come in the order of their turns; `shares` is how many gated jobs each queue may start.
    """
    left = dict(shares)
    turns = deque(lane for lane in lanes if lane.costs)
    while turns:
        lane = turns.popleft()
        room = left[lane.queue]
        for _ in range(min(TURN, room, len(lane.costs) - lane.taken)):
            closed = _take(lane, now)
            if closed is not None:
                lane.behind = closed
                break
            if lane.failed is not None:
                break
            lane.taken += 1
            room -= 1
        left[lane.queue] = room
        if room and lane.has_more and lane.behind is None and lane.failed is None:
            turns.append(lane)


def _take(lane: LaneView, now: int) -> BucketView | None:
    """Charge all the lane's buckets for its next job, or none and return the closed one that opens last."""
    costs = lane.costs[lane.taken]
    buckets = lane.buckets
    if len(buckets) == 1:
        return _take_one(lane, buckets[0], 1 if costs is None else costs[0], now)
    after: list[Any] = []
    closed: BucketView | None = None
    closed_until = now
    for index, bucket in enumerate(buckets):
        opens_at, state = _ask(lane, bucket, 1 if costs is None else costs[index], now)
        if lane.failed is not None:
            return None
        after.append(state)
        if opens_at > closed_until:
            closed, closed_until = bucket, opens_at
    if closed is not None:
        _close(closed, closed_until)
        return closed
    for bucket, state in zip(buckets, after, strict=True):
        bucket.state = state
        bucket.charged = True
    return None


def _take_one(lane: LaneView, bucket: BucketView, cost: int, now: int) -> BucketView | None:
    opens_at, state = _ask(lane, bucket, cost, now)
    if lane.failed is not None:
        return None
    if opens_at > now:
        _close(bucket, opens_at)
        return bucket
    bucket.state = state
    bucket.charged = True
    return None


def _ask(lane: LaneView, bucket: BucketView, cost: int, now: int) -> tuple[int, Any]:
    if bucket.opens_at is not None and bucket.opens_at > now:
        return bucket.opens_at, None
    if bucket.closed_until > now:
        return bucket.closed_until, None
    try:
        return bucket.rule.take(bucket.state, now, cost)
    except CostExceedsLimit as error:
        lane.failed = error
        return now, None


def _close(bucket: BucketView, until: int) -> None:
    bucket.opens_at = until
