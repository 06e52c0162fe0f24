"""What a claim makes of the rows that it has read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headgate import StrictRate
from headgate.clock import SECOND
from headgate.jobs.bucket_mask import BucketMask
from headgate.jobs.job import BucketRef, JobState
from headgate.jobs.terms import CallTerms, LimitTerms
from headgate.limits.concurrency import HeldPermits, Semaphore
from headgate.storage.admission import BucketView
from headgate.storage.fetched import FetchedBalance, FetchedStarts
from headgate.storage.procedures.claim_plan import ClaimPlan, LaneVisit
from headgate.storage.procedures.claim_snapshot import LaneHead, LaneRow
from headgate.storage.procedures.claim_writes import SkippedJobs
from headgate.storage.procedures.fair_lines import FairLines
from headgate.storage.records import Claim, Claimed, FreeSlots

NOW = 1_000 * SECOND
RULE = FetchedStarts(StrictRate("100/h", margin=0).rule)
TOKENS = BucketRef("tokens", "")
SLOTS = BucketRef("slots", "")


def a_bucket(state: FetchedBalance | None = None, ref: BucketRef = TOKENS) -> BucketView:
    return BucketView(ref, RULE, state, id=ref.key or "tokens", opens_at=NOW - 1)


def refused(cost: int, opens_at: int) -> FetchedBalance:
    return FetchedBalance(0, NOW - SECOND, 0, opens_at, RULE.real.describe(), cost)


def a_lane(id: str = "lane", behind: str | None = "tokens", buckets: Sequence[BucketRef] = (TOKENS,)) -> LaneRow:
    return LaneRow(id, "q", tuple(buckets), 10, NOW - 10, behind, None, "")


def a_head(cost: int | None = None, lane: str = "lane", id: str = "1") -> LaneHead:
    values: dict[str, Any] = dict.fromkeys(LaneHead.__struct_fields__)
    values.update(id=id, lane=lane, task="t", queue="q", rank=0, run_at=0, attempt=0, fence=0, lost=0, held=0, passed=0)
    return LaneHead(**{**values, "costs": None if cost is None else (cost,)})


def a_plan(*opened: BucketView, slots: int = 5) -> ClaimPlan:
    rules = {"tokens": RULE}
    claim = Claim("node", {"q": FreeSlots(slots)}, rules, frozenset({"t"}))
    plan = ClaimPlan(claim, NOW, NOW, {}, FairLines(claim.free_slots, rules, {}, NOW))
    plan.opened = list(opened)
    return plan


def claim(plan: ClaimPlan, rows: Sequence[LaneRow], due: Sequence[LaneRow], heads: Sequence[LaneHead]) -> Claimed:
    """One whole claim, with what it would write left out."""
    visits = plan.choose(plan.grants(), rows, due, [])
    visited = {visit.row.id for visit in visits}
    views = {view.ref: view for view in plan.opened}
    if visits:
        read = [head for head in heads if head.lane in visited]
        plan.assign_heads(visits, read, plan.most_heads(visits))
    plan.decide(visits, lambda ref: views.setdefault(ref, BucketView(ref, RULE, None)))
    timers = plan.timers(set())
    moves = [plan.move(visit, has_ready=True, earliest=None) for visit in visits]
    is_open = any(opens_at <= NOW for _, opens_at in timers)
    return plan.claimed(more=(plan.has_starts or any(moves)) and (is_open or plan.is_cut_short))


def asked(claimed: Claimed) -> list[tuple[BucketRef, int]]:
    return [(needed.ref, needed.cost) for needed in claimed.needed_fetches]


@pytest.mark.parametrize("cost", [None, 1, 60])
def test_a_bucket_that_needs_a_fetch_takes_the_cost_of_its_first_job(cost: int | None) -> None:
    claimed = claim(a_plan(a_bucket()), [a_lane()], [], [a_head(cost)])
    assert asked(claimed) == [(TOKENS, cost or 1)]
    assert not claimed.jobs


def test_a_bucket_that_needs_a_fetch_is_closed_until_the_next_fetch_and_causes_no_claim() -> None:
    claimed = claim(a_plan(a_bucket()), [a_lane()], [], [a_head(60)])
    assert claimed.next_in == SECOND
    assert not claimed.more


def test_a_job_refused_by_another_store_waits_and_no_smaller_cost_is_fetched() -> None:
    opens_at = NOW + 600 * SECOND
    claimed = claim(a_plan(a_bucket(refused(60, opens_at))), [a_lane()], [], [a_head(60)])
    assert not claimed.needed_fetches
    assert claimed.next_in == 600 * SECOND
    assert not claimed.more


def test_a_smaller_cost_than_the_refused_one_is_fetched() -> None:
    claimed = claim(a_plan(a_bucket(refused(60, NOW + 600 * SECOND))), [a_lane()], [], [a_head(59)])
    assert asked(claimed) == [(TOKENS, 59)]


def test_the_first_lane_of_a_bucket_that_needs_a_fetch_sets_the_fetched_cost() -> None:
    lanes = [a_lane("first"), a_lane("second", None)]
    claimed = claim(a_plan(a_bucket()), lanes[:1], lanes[1:], [a_head(60, "first"), a_head(5, "second")])
    assert asked(claimed) == [(TOKENS, 60)]


def test_claims_widen_while_their_lanes_start_nothing_and_narrow_when_they_fill_their_slots() -> None:
    skipped, widths = SkippedJobs(), list[int]()
    for taken in [0] * 9 + [2] + [5] * 9:
        plan = a_plan(slots=5)
        request = skipped.widened(plan.claim)
        plan.gated = [LaneVisit(a_lane(f"{n}"), taken=int(n < taken)) for n in range(request.lanes)]
        plan.page_was_full = True
        skipped.note_visits(request, plan)
        widths.append(skipped.widened(plan.claim).width)
    assert widths == [2, 4, 8, 16, 32, 51, 51, 51, 51, 51, 25, 12, 6, 3, 1, 1, 1, 1, 1]
    plan.page_was_full, plan.gated = False, []
    skipped.note_visits(request, plan)
    assert skipped.widened(plan.claim).width == 1


def test_a_bucket_that_needs_a_fetch_without_a_visited_lane_stays_open_and_fetches_nothing() -> None:
    bucket = a_bucket()
    plan = a_plan(bucket)
    claimed = claim(plan, [], [], [])
    assert not claimed.needed_fetches
    assert plan.timers(set()) == [(bucket, bucket.opens_at)]
    assert claimed.next_in is None
    assert not claimed.more


def test_lanes_behind_buckets_that_need_a_fetch_use_no_slots_of_others() -> None:
    buckets = [BucketRef("tokens", str(number)) for number in range(4)]
    lanes = [a_lane(f"lane {ref.key}", ref.key, [ref]) for ref in buckets]
    filled = FetchedBalance(5, NOW, NOW, NOW, RULE.real.describe())
    ready = a_bucket(filled, BucketRef("tokens", "ready"))
    plan = a_plan(*(a_bucket(ref=ref) for ref in buckets), ready, slots=1)
    heads = [a_head(60, lane.id, lane.id) for lane in lanes]
    ready_lane = a_lane("ready", "ready", [ready.ref])
    claimed = claim(plan, [*lanes, ready_lane], [], [*heads, a_head(None, "ready", "job")])
    assert [job.id for job in claimed.jobs] == ["job"]
    assert asked(claimed) == [(ref, 60) for ref in buckets]


def test_nothing_is_fetched_without_free_slots() -> None:
    claimed = claim(a_plan(a_bucket(), slots=0), [a_lane()], [], [a_head(60)])
    assert not claimed.needed_fetches


def test_a_claim_that_starts_again_rejects_no_job_for_a_bucket_that_has_opened_meanwhile() -> None:
    lane, head = a_lane(behind=None, buckets=[SLOTS]), a_head()
    lane.wait_mode, head.terms = "[true,[]]", LimitTerms(patience=0)
    visit = LaneVisit(lane)
    for held, ended in ((1, ["1"]), (0, [])):
        plan = a_plan()
        plan.assign_heads([visit], [head], 4)
        plan.decide([visit], {SLOTS: BucketView(SLOTS, Semaphore(1), HeldPermits(held))}.__getitem__)
        assert [dropped.id for dropped in plan.drop()] == ended
        assert visit.removed == 1


def test_a_job_that_does_not_wait_fails_at_a_closed_bucket_although_its_terms_cannot_be_read() -> None:
    lane = a_lane(behind=None, buckets=[SLOTS])
    lane.wait_mode = "[true,[]]"
    visit, plan = LaneVisit(lane), a_plan()
    plan.assign_heads([visit], [a_head()], 4)
    plan.decide([visit], {SLOTS: BucketView(SLOTS, Semaphore(1), HeldPermits(1))}.__getitem__)
    assert [(dropped.id, dropped.state) for dropped in plan.drop()] == [("1", JobState.FAILED)]


@pytest.mark.parametrize(("size", "buckets"), [(0, 0b1), (2, 0b100)])
def test_a_job_whose_call_has_no_room_or_an_unknown_limit_is_charged_by_itself(size: int, buckets: int) -> None:
    """The fault: the claim never ended, or it ended the node."""
    lane, head = a_lane(behind=None, buckets=[SLOTS]), a_head()
    lane.wait_mode, head.terms = '[false,[],"t",2]', LimitTerms(calls=CallTerms("t", size, BucketMask(buckets)))
    visit, plan = LaneVisit(lane), a_plan()
    plan.assign_heads([visit], [head], 4)
    plan.decide([visit], {SLOTS: BucketView(SLOTS, Semaphore(1), None)}.__getitem__)
    (job,) = plan.claimed(more=False).jobs
    assert job.call is None
    assert "calls" in (job.unreadable or "")


# ------------------------------------------------------------------------------------------------ jobs worth reading


@pytest.mark.parametrize(
    ("permits", "held", "lanes", "expected"),
    [
        pytest.param(1, 0, 1, 2, id="a mutex: who starts, and who meets it closed"),
        pytest.param(1, 1, 1, 1, id="a mutex that is held"),
        pytest.param(5, 2, 1, 4, id="permits that are left"),
        pytest.param(500, 0, 1, 100, id="no more than there is room for"),
        pytest.param(500, 0, 50, 4, id="a turn of each lane"),
    ],
)
def test_of_a_lane_no_more_jobs_are_read_than_its_bucket_grants_and_one(
    permits: int, held: int, lanes: int, expected: int
) -> None:
    bucket = BucketView(SLOTS, Semaphore(permits), HeldPermits(held, {}), id="slots")
    visits = [LaneVisit(a_lane(str(number), None, [SLOTS])) for number in range(lanes)]
    assert a_plan(slots=100).heads_to_read(visits, {SLOTS: bucket}.__getitem__) == expected


def test_of_a_lane_with_several_limits_the_tightest_counts_and_of_several_lanes_the_one_that_can_start_most() -> None:
    views = {
        BucketRef("slots", str(count)): BucketView(BucketRef("slots", str(count)), Semaphore(count), None)
        for count in (1, 7, 20)
    }
    one, seven, twenty = views
    both = LaneVisit(a_lane("both", None, [twenty, seven]))
    mutex = LaneVisit(a_lane("mutex", None, [one]))
    plan = a_plan(slots=100)
    assert plan.heads_to_read([both], views.__getitem__) == 8
    assert plan.heads_to_read([mutex, both], views.__getitem__) == 8


def test_a_bucket_with_waiting_lanes_grants_new_lanes_nothing() -> None:
    bucket = BucketView(SLOTS, Semaphore(50), None, id="slots", opens_at=NOW + SECOND)
    visits = [LaneVisit(a_lane(behind=None, buckets=[SLOTS]))]
    assert a_plan(slots=100).heads_to_read(visits, {SLOTS: bucket}.__getitem__) == 1


@pytest.mark.parametrize("wait_mode", ["[true,[]]", '[false,["batch:b"]]'])
def test_jobs_that_are_rejected_or_share_a_permit_are_all_read(wait_mode: str) -> None:
    bucket = BucketView(SLOTS, Semaphore(1), HeldPermits(1, {}), id="slots")
    lane = a_lane(buckets=[SLOTS])
    lane.wait_mode = wait_mode
    assert a_plan(slots=100).heads_to_read([LaneVisit(lane)], {SLOTS: bucket}.__getitem__) == 100
