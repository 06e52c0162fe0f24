"""Prediction: when a waiting job will start as far as its limits decide it, from its queue position now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.errors import CostExceedsLimit
from headgate.jobs.job import Draw
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.admission import BucketView
from headgate.storage.fetched import is_balance
from headgate.storage.live_rules import LiveRules
from headgate.storage.records import BucketRecord, QueuePosition
from headgate.storage.stored_rows import load_state

REHEARSED = 200
"""How many starts ahead are simulated; beyond them, the pace of the second half of them is extrapolated."""


class Prediction(NamedTuple):
    """`starts_at` is limit time, None if it cannot be predicted; `waits_for` is the bucket that decides it, if any."""

    starts_at: int | None
    waits_for: Draw | None


def predict(position: QueuePosition, rules: Mapping[str, AnyRule], live: LiveRules, now: int) -> Prediction:
    """Return when the limits let the job at this position start, if nothing else changes and a slot is free."""
    latest = Prediction(now, None)
    for index, record in enumerate(position.buckets):
        declared = rules.get(record.draw.limit)
        if declared is None or live.is_paused(record.draw):
            return Prediction(None, record.draw)
        starts_at = _opens_for(position, index, record, live.rule(record.draw, declared), now)
        if starts_at >= NEVER:
            return Prediction(None, record.draw)
        if latest.starts_at is not None and starts_at > latest.starts_at:
            latest = Prediction(starts_at, record.draw)
    return latest


def _opens_for(position: QueuePosition, index: int, record: BucketRecord, rule: AnyRule, now: int) -> int:
    ahead = _ahead(position, record)
    if is_balance(record.state):
        # How many starts the other store grants to the jobs ahead is unknown here.
        return NEVER if ahead else max(now, record.closed_until, record.opens_at or 0)
    state = None if record.state is None else load_state(rule, record.draw, record.state, now)
    bucket = BucketView(record.draw, rule, state)
    costs, holders = (None, None) if position.demands is None else position.demands
    # A row that contradicts itself may have costs for fewer limits than its lane has.
    cost = 1 if costs is None or index >= len(costs) else costs[index]
    holder = None if holders is None or index >= len(holders) else holders[index]
    if rule.holds_permits:
        free = bucket.is_held_by(holder) or bucket.grants(now, ahead + 1) > ahead
        return now if free else NEVER
    at = max(now, record.closed_until)
    half_way = at
    try:
        for start in range(min(ahead, REHEARSED) + 1):
            opens_at, bucket.state = bucket.take(at, cost)
            at = max(at, opens_at)
            if start == REHEARSED // 2:
                half_way = at
    except CostExceedsLimit:
        return NEVER
    if ahead > REHEARSED:
        at += (ahead - REHEARSED) * (at - half_way) // (REHEARSED - REHEARSED // 2)
    return at


def _ahead(position: QueuePosition, record: BucketRecord) -> int:
    """Return how many starts come first: the jobs ahead in its lane, and as many of each lane in the same line."""
    before = (position.position or position.waiting) - 1
    others = max(0, record.waiting - position.waiting) if position.behind == record.draw else record.waiting
    lanes = max(0, record.lanes - (position.behind == record.draw))
    return before + min(others, (before + 1) * lanes)
