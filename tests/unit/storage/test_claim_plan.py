"""What a claim makes of the rows that it has read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headgate import StrictRate
from headgate.clock import SECOND
from headgate.jobs.job import Draw
from headgate.storage.admission import BucketView
from headgate.storage.claiming import ClaimPlan, Head, LaneRow
from headgate.storage.fetched import Balance, Fetched
from headgate.storage.protocol import Claim, Claimed, Room

NOW = 1_000 * SECOND
RULE = Fetched(StrictRate("100/h", margin=0).rule)
TOKENS = Draw("tokens", "")


def a_bucket(state: Balance | None = None, draw: Draw = TOKENS) -> BucketView:
    return BucketView(draw, RULE, state, id=draw.key or "tokens", opens_at=NOW - 1)


def refused(cost: int, opens_at: int) -> Balance:
    return Balance(0, NOW - SECOND, 0, opens_at, RULE.real.describe(), cost)


def a_lane(id: str = "lane", behind: str | None = "tokens", draws: Sequence[Draw] = (TOKENS,)) -> LaneRow:
    return LaneRow(id, "q", tuple(draws), 10, NOW - 10, behind, None, "")


def a_head(cost: int | None = None, lane: str = "lane", id: str = "1") -> Head:
    values: dict[str, Any] = dict.fromkeys(Head.__struct_fields__)
    values.update(
        id=id, lane=lane, task="t", queue="q", priority=0, run_at=0, attempt=0, fence=0, lost=0, held=0, passed=0
    )
    return Head(**{**values, "costs": None if cost is None else (cost,)})


def a_plan(*opened: BucketView, slots: int = 5) -> ClaimPlan:
    rules = {"tokens": RULE}
    plan = ClaimPlan(Claim("node", {"q": Room(slots)}, rules, frozenset({"t"})), NOW, NOW, {})
    plan.opened = list(opened)
    return plan


def claim(plan: ClaimPlan, rows: Sequence[LaneRow], due: Sequence[LaneRow], heads: Sequence[Head]) -> Claimed:
    """One whole claim, with what it would write left out."""
    shares = plan.shares({})
    visits = plan.choose(plan.grants(), rows, due, shares)
    visited = {visit.row.id for visit in visits}
    if visits:
        read = [head for head in heads if head.lane in visited]
        plan.sort_in(visits, read, plan.heads_wanted(visits, sum(shares.values())))
    views = {view.draw: view for view in plan.opened}
    plan.decide(visits, lambda draw: views.setdefault(draw, BucketView(draw, RULE, None)), shares)
    timers = plan.timers(set())
    moves = [plan.move(visit, has_ready=True, earliest=None) for visit in visits]
    return plan.claimed(
        progressed=bool(plan.taken or any(moves)),
        reopened=False,
        still_open=any(opens_at <= NOW for _, opens_at in timers),
    )


def asked(claimed: Claimed) -> list[tuple[Draw, int]]:
    return [(starved.draw, starved.cost) for starved in claimed.starved]


@pytest.mark.parametrize("cost", [None, 1, 60])
def test_a_starving_bucket_is_asked_what_the_first_job_in_line_costs(cost: int | None) -> None:
    claimed = claim(a_plan(a_bucket()), [a_lane()], [], [a_head(cost)])
    assert asked(claimed) == [(TOKENS, cost or 1)]
    assert not claimed.jobs


def test_a_starving_bucket_is_closed_until_it_is_asked_again_and_no_claim_follows_at_once() -> None:
    claimed = claim(a_plan(a_bucket()), [a_lane()], [], [a_head(60)])
    assert claimed.next_in == SECOND
    assert not claimed.more


def test_a_job_that_was_refused_elsewhere_waits_until_it_was_told_to_and_nothing_is_fetched_for_less() -> None:
    opens_at = NOW + 600 * SECOND
    claimed = claim(a_plan(a_bucket(refused(60, opens_at))), [a_lane()], [], [a_head(60)])
    assert not claimed.starved
    assert claimed.next_in == 600 * SECOND
    assert not claimed.more


def test_a_cheaper_job_than_the_one_that_was_refused_is_asked_for() -> None:
    claimed = claim(a_plan(a_bucket(refused(60, NOW + 600 * SECOND))), [a_lane()], [], [a_head(59)])
    assert asked(claimed) == [(TOKENS, 59)]


def test_the_first_of_lanes_that_share_a_starving_bucket_says_the_cost_whatever_comes_after_it() -> None:
    lanes = [a_lane("first"), a_lane("second", None)]
    claimed = claim(a_plan(a_bucket()), lanes[:1], lanes[1:], [a_head(60, "first"), a_head(5, "second")])
    assert asked(claimed) == [(TOKENS, 60)]


def test_a_starving_bucket_of_which_no_lane_was_visited_stays_open_and_is_not_asked() -> None:
    bucket = a_bucket()
    plan = a_plan(bucket)
    claimed = claim(plan, [], [], [])
    assert not claimed.starved
    assert plan.timers(set()) == [(bucket, bucket.opens_at)]
    assert claimed.next_in is None
    assert not claimed.more


def test_lanes_behind_starving_buckets_take_no_room_from_those_that_can_go() -> None:
    draws = [Draw("tokens", str(number)) for number in range(4)]
    lanes = [a_lane(f"lane {draw.key}", draw.key, [draw]) for draw in draws]
    filled = Balance(5, NOW, NOW, NOW, RULE.real.describe())
    ready = a_bucket(filled, Draw("tokens", "ready"))
    plan = a_plan(*(a_bucket(draw=draw) for draw in draws), ready, slots=1)
    heads = [a_head(60, lane.id, lane.id) for lane in lanes]
    ready_lane = a_lane("ready", "ready", [ready.draw])
    claimed = claim(plan, [*lanes, ready_lane], [], [*heads, a_head(None, "ready", "job")])
    assert [job.id for job in claimed.jobs] == ["job"]
    assert asked(claimed) == [(draw, 60) for draw in draws]


def test_nothing_is_fetched_where_there_is_no_room_for_it() -> None:
    claimed = claim(a_plan(a_bucket(), slots=0), [a_lane()], [], [a_head(60)])
    assert not claimed.starved
