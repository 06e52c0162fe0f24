"""Prediction: when a waiting job will start as far as its limits decide it, from its queue position now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headgate.errors import CostExceedsLimit
from headgate.jobs.job import BucketRef
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.admission import BucketView
from headgate.storage.fetched import is_balance
from headgate.storage.live_rules import LiveRules
from headgate.storage.records import BucketRecord, Demand, QueuePosition
from headgate.storage.stored_rows import load_state

REHEARSED = 200
"""How many starts ahead are simulated; beyond them, the pace of the second half of them is extrapolated."""


class Prediction(NamedTuple):
    """`starts_at` is limit time, None if it cannot be predicted; `waits_for` is the bucket that decides it, if any.

    `opens_at` is when that bucket lets the next job of the lane start; None for permits, and if it is unknown. With
    `is_flawed` its rule raises an error, so nothing says that the bucket is closed.
    """

    starts_at: int | None
    waits_for: BucketRef | None
    opens_at: int | None = None
    is_flawed: bool = False


def predict(position: QueuePosition, rules: Mapping[str, AnyRule], live: LiveRules, now: int) -> Prediction:
    """Return when the limits let the job at this position start, if nothing else changes and a slot is free.

    Permits that are free now, and that the jobs ahead take, are returned in time if another limit delays them.
    """
    latest, permits = Prediction(now, None), None
    for index, record in sorted(enumerate(position.buckets), key=lambda each: each[1].ref != position.behind):
        declared = rules.get(record.ref.limit)
        if declared is None or live.is_paused(record.ref):
            return Prediction(None, record.ref)
        rule = live.rule(record.ref, declared)
        starts_at = _opens_for(position, index, record, rule, now, _ahead(position, index, record))
        if rule.holds_permits and starts_at >= NEVER > _opens_for(position, index, record, rule, now, 0):
            permits = record.ref
            continue
        is_flawed = starts_at > now and not is_balance(record.state) and _view(record, rule, now).is_flawed(now)
        if starts_at >= NEVER:
            return Prediction(None, record.ref, is_flawed=is_flawed)
        if latest.starts_at is not None and starts_at > latest.starts_at:
            opens_at = None if rule.holds_permits else _opens_for(position, index, record, rule, now, 0)
            latest = Prediction(starts_at, record.ref, opens_at, is_flawed)
    return latest if permits is None or latest.waits_for is not None else Prediction(None, permits)


def predict_clear(bucket: BucketRecord, rule: AnyRule, now: int, cost: int = 1, call: int = 1) -> int | None:
    """Return when (limit time) the last of the jobs that wait for a bucket may start, if no more come.

    Each is taken to cost `cost`; of a limit that counts calls, so many jobs start with one `call`. None if time alone
    does not open the bucket, as for permits.
    """
    position = QueuePosition(None, 0, False, bucket.ref, [bucket], Demand((cost,), None))
    clears_at = _opens_for(position, 0, bucket, rule, now, max(0, bucket.waiting - 1) // call)
    return None if rule.holds_permits or clears_at >= NEVER else clears_at


def predict_backlog(
    bucket: BucketRecord, rule: AnyRule, now: int, cost: int, steps: int, call: int = 1
) -> Sequence[tuple[int, int]]:
    """Return how many jobs still wait for a bucket after some of their starts, which `steps` divide evenly.

    Each is the instant (limit time) of a start and what waits after it, up to the instant of `predict_clear`. Empty if
    no job waits, and where `predict_clear` is None. The time it takes does not grow with the number of jobs.
    """
    jobs = bucket.waiting
    if not jobs or predict_clear(bucket, rule, now, cost, call) is None:
        return ()
    position = QueuePosition(None, 0, False, bucket.ref, [bucket], Demand((cost,), None))
    last = (jobs - 1) // call
    ahead = sorted({last * step // steps for step in range(steps + 1)})
    return [(_opens_for(position, 0, bucket, rule, now, each), max(0, jobs - (each + 1) * call)) for each in ahead]


def _opens_for(position: QueuePosition, index: int, record: BucketRecord, rule: AnyRule, now: int, ahead: int) -> int:
    if is_balance(record.state):
        # How many starts the other store grants to the jobs ahead is unknown here.
        return NEVER if ahead else max(now, record.closed_until, record.opens_at or 0)
    bucket = _view(record, rule, now)
    costs, holders = (None, None) if position.demand is None else position.demand
    # A row that contradicts itself may have costs for fewer limits than its lane has.
    cost = 1 if costs is None or index >= len(costs) else costs[index]
    holder = None if holders is None or index >= len(holders) else holders[index]
    if rule.holds_permits:
        free = bucket.is_held_by(holder) or bucket.grants(now, ahead + 1) > ahead
        return max(now, record.closed_until) if free else NEVER
    at = max(now, record.closed_until)
    half_way = at
    try:
        if rule.repeats_every_count and rule.count:
            return _opens_in_rounds(bucket, at, ahead, cost, rule.count)
        for start in range(min(ahead, REHEARSED) + 1):
            opens_at, bucket.state = bucket.opens_for(at, cost)
            at = max(at, opens_at)
            if start == REHEARSED // 2:
                half_way = at
    except CostExceedsLimit:
        return NEVER
    if ahead > REHEARSED:
        at += (ahead - REHEARSED) * (at - half_way) // (REHEARSED - REHEARSED // 2)
    return at


def _view(record: BucketRecord, rule: AnyRule, now: int) -> BucketView:
    state = None if record.state is None else load_state(rule, record.ref, record.state, now)
    return BucketView(record.ref, rule, state)


def _opens_in_rounds(bucket: BucketView, at: int, ahead: int, cost: int, count: int) -> int:
    """Return when start number `ahead` (0 is the next) may go under a rule that repeats its starts every `count`.

    Whole rounds first, then the rest. In a round, the last of k starts may go when k of them may go at once, since
    none of a round leaves the window before the round is over. The same start of the next round may go when this one
    no longer counts.
    """
    bucket.rule.check_cost(cost)
    rounds, rest = divmod(ahead, count // max(1, cost))
    opens_at = max(at, bucket.opens_for(at, cost * (rest + 1))[0])
    if rounds:
        first = bucket.rule.counts_until(opens_at)
        opens_at = first + (rounds - 1) * (bucket.rule.counts_until(first) - first)
    return opens_at


def _ahead(position: QueuePosition, index: int, record: BucketRecord) -> int:
    """Return how many starts come first: the jobs ahead in its lane, and as many of each lane in the same line.

    A bucket that counts calls has a start for each call, which is taken to be full.
    """
    before = (position.position or position.waiting) - 1
    beside = max(0, record.waiting - position.waiting) if position.behind == record.ref else record.waiting
    lanes = max(0, record.lanes - (position.behind == record.ref))
    ahead = before + min(beside, (before + 1) * lanes)
    return ahead // position.call.size if position.call is not None and index in position.call.places else ahead
