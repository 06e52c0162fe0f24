"""Rules, retries and the lifecycle as properties, against oracles that are slow, plain and written another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headgate.clock import SECOND, microseconds
from headgate.errors import CostExceedsLimit
from headgate.jobs.job import ClaimedJob, JobError, JobState
from headgate.jobs.lifecycle import (
    FOLLOWS,
    UNREADABLE_TRIES,
    CalleeRateLimited,
    Cancelled,
    Ending,
    Failed,
    FailedFinally,
    Finished,
    Interrupted,
    Outcome,
    RetryRequested,
    Returned,
    Snoozed,
    Succeeded,
    Unreadable,
    decide,
)
from headgate.jobs.retry import RetryPolicy
from headgate.limits.rate import Rate, parse_rate
from headgate.limits.rate_limit import START_EMPTY_KEPT, Gcra
from headgate.limits.strict_rate import SlidingLog
from tests.seeds import examples

# A slow machine is no failure.
NOON = 1_767_268_800 * SECOND

# A slow machine is no failure.
thorough = settings(max_examples=examples(25, 100))

TestedRule = Gcra | SlidingLog


# ------------------------------------------------------------------------------------------------------- oracles


class TokenBucket:
    """The oracle of `Gcra`: a bucket of `burst` tokens that fills with exact fractions."""

    def __init__(self, rule: Gcra, now: int, first: int) -> None:
        self.speed = Fraction(rule.count, rule.period)
        self.capacity = Fraction(rule.burst)
        self.tokens = Fraction(first) if rule.start_empty else self.capacity
        self.at = now

    def earliest(self, now: int, cost: int) -> int:
        missing = cost - self._tokens_at(now)
        return now if missing <= 0 else now + ceil(missing / self.speed)

    def spend(self, now: int, cost: int) -> None:
        self.tokens = self._tokens_at(now) - cost
        self.at = now
        assert self.tokens >= 0

    def available(self, now: int) -> int:
        return int(self._tokens_at(now))

    def _tokens_at(self, now: int) -> Fraction:
        return min(self.capacity, self.tokens + (now - self.at) * self.speed)


class AllStarts:
    """The oracle of `SlidingLog`: remembers every start for ever and tries one microsecond after another."""

    def __init__(self, rule: SlidingLog, _now: int, _first: int) -> None:
        self.count = rule.count
        self.period = rule.period
        self.starts: list[int] = []

    def earliest(self, now: int, cost: int) -> int:
        instant = now
        while self._counting(instant) + cost > self.count:
            instant += 1
        return instant

    def spend(self, now: int, cost: int) -> None:
        self.starts += [now] * cost
        assert self._counting(now) <= self.count

    def available(self, now: int) -> int:
        return self.count - self._counting(now)

    def _counting(self, instant: int) -> int:
        return sum(1 for start in self.starts if instant - self.period < start <= instant)


# ---------------------------------------------------------------------------------------------------- strategies


class Step(NamedTuple):
    """A caller requests `cost`, `gap` after the previous one, and waits for the slot or leaves."""

    gap: int
    cost: int
    waits: bool


class Case(NamedTuple):
    rule: TestedRule
    steps: list[Step]


# Short periods make every microsecond matter; the others are what people write.
rates = st.one_of(
    st.builds(Rate, st.integers(1, 12), st.integers(1, 90)),
    st.sampled_from([parse_rate(text, None) for text in ("15/m", "7/s", "13/10s", "3000000/s", "1/7s", "1000/d")]),
)


@st.composite
def gcras(draw: st.DrawFn, start_empty: bool | None = None) -> Gcra:
    rate = draw(rates)
    return Gcra(
        rate.count,
        rate.period,
        draw(st.integers(1, min(2 * rate.count, 30))),
        start_empty=draw(st.booleans()) if start_empty is None else start_empty,
    )


def sliding_logs() -> st.SearchStrategy[SlidingLog]:
    return st.builds(SlidingLog, st.integers(1, 8), st.integers(1, 60))


@st.composite
def cases(draw: st.DrawFn, rules: st.SearchStrategy[TestedRule]) -> Case:
    rule = draw(rules)
    gaps = st.one_of(st.just(0), st.integers(0, max(1, rule.period // rule.count)), st.integers(0, 2 * rule.period))
    steps = st.builds(Step, gaps, st.integers(1, _most(rule)), st.booleans())
    return Case(rule, draw(st.lists(steps, min_size=1, max_size=25)))


def _most(rule: TestedRule) -> int:
    """The highest cost that the rule can grant."""
    return rule.burst if isinstance(rule, Gcra) else rule.count


any_rule: st.SearchStrategy[TestedRule] = st.one_of(gcras(), sliding_logs())
any_case = cases(any_rule)


def play(case: Case, now: int = NOON) -> tuple[list[tuple[int, int]], int, Any]:
    """Every start with its cost, in the order they were granted; the time and the state at the end."""
    starts: list[tuple[int, int]] = []
    state: Any = None
    for gap, cost, waits in case.steps:
        now += gap
        opens_at, after = case.rule.take(state, now, cost)
        if opens_at > now and waits:
            now = opens_at
            opens_at, after = case.rule.take(state, now, cost)
        if opens_at <= now:
            starts.append((now, cost))
            state = after
    return starts, now, state


# ----------------------------------------------------------------------------------------------------- the rules


@given(cases(gcras()))
@thorough
def test_a_rate_grants_exactly_when_a_token_bucket_would(case: Case) -> None:
    assert_grants_like(TokenBucket, case)


@given(cases(sliding_logs()))
@thorough
def test_a_strict_rate_grants_exactly_when_a_count_of_all_starts_would(case: Case) -> None:
    assert_grants_like(AllStarts, case)


def assert_grants_like(make: Callable[..., TokenBucket | AllStarts], case: Case) -> None:
    rule = case.rule
    now = NOON + case.steps[0].gap
    oracle = make(rule, now, case.steps[0].cost)
    state: Any
    opens_at, state = rule.take(None, now, case.steps[0].cost)
    assert opens_at == now, "a new key's first start goes at once"
    oracle.spend(now, case.steps[0].cost)
    for gap, cost, waits in case.steps[1:]:
        now += gap
        opens_at, after = rule.take(state, now, cost)
        assert opens_at == oracle.earliest(now, cost)
        assert rule.snapshot(state, now).available == oracle.available(now)
        if opens_at > now and waits:
            assert rule.take(state, opens_at - 1, cost)[0] == opens_at, "a microsecond earlier is too early"
            now = opens_at
            opens_at, after = rule.take(state, now, cost)
            assert opens_at == now, "at the promised instant it goes"
        if opens_at <= now:
            oracle.spend(now, cost)
            state = after


@given(any_case, st.data())
@thorough
def test_no_window_holds_more_than_the_bound(case: Case, data: st.DataObject) -> None:
    starts, _, _ = play(case)
    assume(starts)
    window = data.draw(st.integers(1, 4 * case.rule.period))
    for length in (window, case.rule.period):
        assert most_in_any_window(starts, length) <= case.rule.bound(length)


@given(any_case, st.lists(st.integers(-1000, 1000), min_size=25, max_size=25), st.data())
@thorough
def test_no_window_holds_more_than_the_bound_wherever_the_clock_jumps(
    case: Case, jumps: Sequence[int], data: st.DataObject
) -> None:
    now, starts = NOON, []
    state: Any = None
    for (gap, cost, _), jump in zip(case.steps, jumps, strict=False):
        now += gap + jump
        opens_at, after = case.rule.take(state, now, cost)
        if opens_at <= now:
            starts.append((now, cost))
            state = after
    assume(starts)
    window = data.draw(st.integers(1, 4 * case.rule.period))
    assert most_in_any_window(starts, window) <= case.rule.bound(window)


def most_in_any_window(starts: Sequence[tuple[int, int]], window: int) -> int:
    # The fullest window begins with a start.
    return max(sum(cost for start, cost in starts if begin <= start < begin + window) for begin, _ in starts)


@given(gcras(start_empty=False), st.data())
@thorough
def test_the_bound_of_a_rate_is_reached_by_a_saturated_key(rule: Gcra, data: st.DataObject) -> None:
    # Otherwise the last start may be rounded up into the next window.
    assume(rule.period % rule.count == 0)
    window = data.draw(st.integers(1, 3 * rule.period))
    assume(rule.bound(window) < 200)
    starts, _, _ = play(Case(rule, [Step(0, 1, True)] * (rule.bound(window) + 1)))
    assert sum(1 for start, _ in starts if start < NOON + window) == rule.bound(window)


@given(any_case, st.integers(0, 500))
@thorough
def test_take_gives_the_same_answer_to_the_same_question_and_leaves_its_state_alone(case: Case, gap: int) -> None:
    _, now, state = play(case)
    before = None if state is None else case.rule.dump(state)
    first = case.rule.take(state, now + gap)
    case.rule.snapshot(state, now + gap)
    assert case.rule.take(state, now + gap) == first
    assert (None if state is None else case.rule.dump(state)) == before


@given(any_case)
@thorough
def test_reservations_are_booked_in_order_and_never_in_the_past(case: Case) -> None:
    now, last = NOON, 0
    state: Any = None
    for gap, cost, _ in case.steps:
        now += gap
        opens_at, state = case.rule.take(state, now, cost)
        assert opens_at >= max(now, last)
        last = opens_at


@given(any_case)
@thorough
def test_reservations_stay_within_the_bound(case: Case) -> None:
    now, starts = NOON, []
    state: Any = None
    for gap, cost, _ in case.steps:
        now += gap
        opens_at, state = case.rule.take(state, now, cost)
        starts.append((opens_at, cost))
    for window in (1, case.rule.period, 2 * case.rule.period + 1):
        # A rate books exact instants and starts them on the next whole microsecond, so two may lie one nearer.
        bound = case.rule.bound(window + isinstance(case.rule, Gcra))
        assert most_in_any_window(starts, window) <= bound


@given(any_case, st.data())
@thorough
def test_a_higher_cost_never_opens_earlier_and_a_later_question_never_gets_an_earlier_slot(
    case: Case, data: st.DataObject
) -> None:
    _, now, state = play(case)
    most = _most(case.rule)
    opens = [case.rule.take(state, now, cost)[0] for cost in range(1, most + 1)]
    assert opens == sorted(opens)
    later = now + data.draw(st.integers(0, 2 * case.rule.period))
    assert case.rule.take(state, later, most)[0] >= (opens[-1] if state is not None else later)


@given(any_case, st.integers(0, 500))
@thorough
def test_a_snapshot_agrees_with_take(case: Case, gap: int) -> None:
    _, now, state = play(case)
    now += gap
    most = _most(case.rule)
    snapshot = case.rule.snapshot(state, now)
    assert snapshot.used + snapshot.available == most
    assert snapshot.opens_at == case.rule.take(state, now)[0]
    assert (snapshot.available > 0) == (snapshot.opens_at <= now)
    for cost in range(1, most + 1 if state is not None else 2):
        assert (case.rule.take(state, now, cost)[0] <= now) == (cost <= snapshot.available)


@given(any_case, st.integers(-300, 300), st.integers(0, 5))
@thorough
def test_a_snapshot_agrees_with_take_on_a_clock_that_jumped_and_after_reservations(
    case: Case, jump: int, reserved: int
) -> None:
    _, now, state = play(case)
    for _ in range(reserved):
        _, state = case.rule.take(state, now)
    snapshot = case.rule.snapshot(state, now + jump)
    assert snapshot.opens_at == case.rule.take(state, now + jump)[0]
    assert (snapshot.available > 0) == (snapshot.opens_at <= now + jump)
    assert snapshot.used >= 0


@given(any_case, st.integers(1, 10))
@thorough
def test_a_cost_beyond_the_rule_is_an_error_whatever_the_state(case: Case, beyond: int) -> None:
    _, now, state = play(case)
    with pytest.raises(CostExceedsLimit, match="can ever grant"):
        case.rule.take(state, now, _most(case.rule) + beyond)


@given(cases(st.one_of(gcras(start_empty=False), sliding_logs())), st.integers(0, 3))
@thorough
def test_evicting_an_idle_state_changes_no_answer(case: Case, later: int) -> None:
    _, now, state = play(case)
    assume(state is not None)
    now = max(now, case.rule.idle_at(state) + later)
    kept: Any = state
    forgotten: Any = None
    for _ in range(_most(case.rule) + 1):
        kept_opens, kept = case.rule.take(kept, now)
        forgotten_opens, forgotten = case.rule.take(forgotten, now)
        assert kept_opens == forgotten_opens


@given(cases(gcras(start_empty=True)))
@thorough
def test_an_idle_start_empty_state_is_kept_because_a_new_one_grants_less(case: Case) -> None:
    _, _, state = play(case)
    rule = case.rule
    assert isinstance(rule, Gcra)
    assume(state is not None and rule.burst > 1)
    full_at = rule.idle_at(state) - START_EMPTY_KEPT
    _, kept = rule.take(state, full_at)
    _, new = rule.take(None, full_at)
    assert rule.take(kept, full_at)[0] == full_at
    assert rule.take(new, full_at)[0] > full_at


@given(any_case, st.integers(0, 10**12))
@thorough
def test_a_state_comes_back_from_storage_as_it_was(case: Case, later: int) -> None:
    _, now, state = play(case)
    assume(state is not None)
    stored = case.rule.dump(state)
    assert stored.startswith("1:")
    assert case.rule.load(stored, now + later) == state


@given(cases(gcras()), gcras(), st.integers(0, 500))
@thorough
def test_a_changed_rate_keeps_what_is_owed_to_less_than_a_start(case: Case, new: Gcra, later: int) -> None:
    _, now, state = play(case)
    assume(state is not None)
    now += later
    loaded = new.load(case.rule.dump(state), now)
    owed = Fraction(max(0, state[0] - now * case.rule.count), case.rule.period)
    kept = Fraction(max(0, loaded[0] - now * new.count), new.period)
    assert owed <= kept < owed + Fraction(1, new.period)


@given(cases(sliding_logs()), sliding_logs())
@thorough
def test_a_changed_strict_rate_counts_the_starts_it_knows(case: Case, new: SlidingLog) -> None:
    starts, now, state = play(case)
    assume(state is not None)
    loaded = new.load(case.rule.dump(state), now)
    # Starts older than the old period are forgotten.
    known = sum(cost for start, cost in starts if start > now - min(new.period, case.rule.period))
    assert new.snapshot(loaded, now).used >= known
    assert new.take(loaded, now)[0] <= now + new.period


@given(rates)
@thorough
def test_a_rate_that_is_written_as_text_reads_back_the_same(rate: Rate) -> None:
    seconds = Rate(rate.count, min(rate.period, 100 * 365 * 86400) * SECOND)
    assert parse_rate(str(seconds), None) == seconds
    count, period = str(rate).split("/")
    assert int(count) == rate.count
    if period.endswith("s") and period != "s":
        assert Fraction(period[:-1]) * SECOND == rate.period


# --------------------------------------------------------------------------------------------------------- retries


durations = st.one_of(st.integers(0, 10**6), st.floats(0, 10**6))


def wait(policy: RetryPolicy, failures: int, random: Random | None = None) -> int:
    microseconds = policy.wait_after(failures, random or Random(0))
    assert microseconds is not None
    return microseconds


@given(durations, durations, st.booleans(), st.integers(1, 10_000), st.randoms(use_true_random=False))
@thorough
def test_a_retry_waits_between_nothing_and_the_cap(
    base: float, cap: float, jitter: bool, failures: int, random: Random
) -> None:
    policy = RetryPolicy(base=base, cap=cap, jitter=jitter)
    assert 0 <= wait(policy, failures, random) <= microseconds(cap)


@given(durations, durations, st.integers(1, 200))
@thorough
def test_without_jitter_no_retry_waits_less_than_the_one_before(base: float, cap: float, failures: int) -> None:
    policy = RetryPolicy(base=base, cap=cap, jitter=False)
    assert wait(policy, failures) <= wait(policy, failures + 1)


@given(st.lists(st.floats(0, 10**6), min_size=1, max_size=10), st.integers(1, 30))
@thorough
def test_named_delays_are_never_negative_for_any_number_of_failures(delays: Sequence[float], failures: int) -> None:
    policy = RetryPolicy(delays=delays)
    assert policy.retries == len(delays)
    assert wait(policy, failures) >= 0


# -------------------------------------------------------------------------------------------------- the lifecycle


ERROR = JobError("ValueError", "no such page")

errors = st.builds(JobError, st.text(max_size=10), st.text(max_size=10))
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Succeeded, st.just("1")),
    st.builds(Failed, errors),
    st.builds(FailedFinally, errors),
    st.builds(RetryRequested, errors, st.none() | st.integers(0, 10**12)),
    st.builds(Unreadable, errors),
    st.builds(Snoozed, st.integers(0, 10**12)),
    st.builds(CalleeRateLimited, st.integers(0, 10**12)),
    st.builds(Cancelled, st.none() | errors),
    st.just(Interrupted()),
)
policies = st.builds(RetryPolicy, retries=st.integers(0, 6))

LOST = "lost"
"""The attempt ended with its node."""

SPENDS_NOTHING: Sequence[Outcome] = (Snoozed(SECOND), CalleeRateLimited(SECOND), Interrupted())

FAILURES: Sequence[Outcome] = (Failed(ERROR), RetryRequested(ERROR, SECOND), RetryRequested(ERROR, None))


class JobLifecycle:
    """A job as its storage would keep it, going from claim to claim."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self.state = JobState.WAITING
        self.spent = 0
        self.lost = 0
        self.fence = 0

    def attempt(self, came_to: Outcome | str) -> Ending | None:
        assert JobState.RUNNING in FOLLOWS[self.state]
        self.fence += 1
        job = ClaimedJob(
            id="job",
            task="task",
            queue="queue",
            payload="[]",
            attempt=self.spent + 1,
            fence=self.fence,
            lost=self.lost,
            enqueued_at=NOON,
            run_at=NOON,
            started_at=NOON,
        )
        if isinstance(came_to, str):
            self.spent += 1
            self.lost += 1
            return None
        end = decide(job, came_to, self.policy, NOON, Random(0))
        match end:
            case Finished():
                self.state = end.state
            case Returned():
                self.spent += end.spent
        return end


@given(st.integers(1, 50), st.integers(0, 49), outcomes, policies)
@thorough
def test_no_outcome_leads_to_a_forbidden_state(attempt: int, lost: int, outcome: Outcome, policy: RetryPolicy) -> None:
    assume(lost < attempt)
    life = JobLifecycle(policy)
    life.spent, life.lost = attempt - 1, lost
    end = life.attempt(outcome)
    assert end is not None
    assert (end.id, end.fence) == ("job", 1)
    match end:
        case Finished():
            assert end.state.is_final
            assert end.state in FOLLOWS[JobState.RUNNING]
        case Returned():
            assert JobState.WAITING in FOLLOWS[JobState.RUNNING]
            assert end.run_at is None or end.run_at >= NOON
            assert end.closed_for is None or end.closed_for >= 0


@given(policies, st.lists(st.sampled_from([*FAILURES, LOST, *SPENDS_NOTHING]), max_size=40))
@thorough
def test_retries_are_exhausted_by_one_more_failure_and_by_nothing_else(
    policy: RetryPolicy, events: Sequence[Outcome | str]
) -> None:
    life = JobLifecycle(policy)
    failures = 0
    for event in [*events, *[Failed(ERROR)] * 8]:
        life.attempt(event)
        failures += event in FAILURES
        assert (life.state is JobState.FAILED) == (failures == policy.retries + 1)
        if life.state.is_final:
            return
    pytest.fail("eight failures exhaust at most six retries")


@given(policies, st.integers(0, 20), st.lists(st.sampled_from(SPENDS_NOTHING), max_size=20))
@thorough
def test_outcomes_that_spend_nothing_change_no_count_and_end_no_job(
    policy: RetryPolicy, spent: int, events: Sequence[Outcome]
) -> None:
    life = JobLifecycle(policy)
    life.spent = spent
    for event in events:
        end = life.attempt(event)
        assert isinstance(end, Returned)
        assert not end.spent
    assert (life.spent, life.lost, life.state) == (spent, 0, JobState.WAITING)


@given(policies, st.integers(0, 10), errors)
@thorough
def test_an_error_that_is_not_retryable_ends_the_job(policy: RetryPolicy, lost: int, error: JobError) -> None:
    life = JobLifecycle(policy)
    for _ in range(lost):
        life.attempt(LOST)
    assert life.attempt(FailedFinally(error)) == Finished("job", lost + 1, JobState.FAILED, error=error)


@given(policies, st.lists(st.sampled_from([LOST, *SPENDS_NOTHING]), max_size=20))
@thorough
def test_a_job_that_cannot_be_read_fails_after_its_tries_however_it_is_interrupted(
    policy: RetryPolicy, events: Sequence[Outcome | str]
) -> None:
    life = JobLifecycle(policy)
    for event in events:
        life.attempt(event)
    for _ in range(policy.retries + UNREADABLE_TRIES - 1):
        assert isinstance(life.attempt(Unreadable(ERROR)), Returned)
    assert isinstance(life.attempt(Unreadable(ERROR)), Finished)


@given(outcomes, policies, st.integers(1, 5), st.integers())
@thorough
def test_a_decision_is_the_same_for_the_same_inputs(
    outcome: Outcome, policy: RetryPolicy, attempt: int, seed: int
) -> None:
    job = ClaimedJob("job", "task", "queue", "[]", attempt, 1, 0, NOON, NOON, NOON, ())
    assert decide(job, outcome, policy, NOON, Random(seed)) == decide(job, outcome, policy, NOON, Random(seed))


@given(outcomes, policies, st.integers(1, 5))
@thorough
def test_an_ending_comes_back_from_json_as_it_was(outcome: Outcome, policy: RetryPolicy, attempt: int) -> None:
    job = ClaimedJob("job", "task", "queue", "[]", attempt, 1, 0, NOON, NOON, NOON, ())
    end = decide(job, outcome, policy, NOON, Random(0))
    assert msgspec.json.decode(msgspec.json.encode(end), type=type(end)) == end


@given(
    count=st.integers(1, 5),
    gaps=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    lateness=st.lists(st.integers(0, 40), min_size=30, max_size=30),
)
def test_windows_measured_from_postponed_starts_hold_no_more_than_the_count(
    count: int, gaps: list[int], lateness: list[int]
) -> None:
    period = 100
    log = SlidingLog(count, period)
    state: tuple[int, ...] | None = None
    now = 1_000
    starts: list[int] = []
    for gap, late in zip(gaps, lateness, strict=False):
        # Time passes at least until the last start has happened.
        now = max(now + gap, starts[-1] if starts else 0)
        charged_at, taken = log.take(state, now)
        if charged_at > now:
            continue
        state = log.amend(taken, now, 1, now + late, 1)
        starts.append(now + late)
        assert list(state) == sorted(state)
    for start in starts:
        assert sum(1 for other in starts if start - period < other <= start) <= count


@given(cost=st.integers(1, 5), late=st.integers(0, 1_000_000))
def test_postponing_moves_a_charge_and_never_adds_or_drops_one(cost: int, late: int) -> None:
    log = SlidingLog(5, 60_000_000)
    _, state = log.take(None, 1_000, cost)
    moved = log.amend(state, 1_000, cost, 1_000 + late, cost)
    assert moved == (1_000 + late,) * cost
    # What has been pruned meanwhile is not brought back.
    assert log.amend((), 1_000, cost, 2_000, cost) == ()
    gcra = Gcra(5, 60_000_000, 5)
    _, arrival = gcra.take(None, 1_000)
    assert gcra.amend(arrival, 1_000, 1, 1_000 + late, 1) == gcra.take(None, 1_000 + late)[1]


@given(
    count=st.integers(1, 7),
    burst=st.integers(1, 5),
    starts=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 2), st.integers(0, 400)), min_size=1, max_size=12),
)
def test_moved_starts_of_a_rate_are_charged_at_least_as_much_as_at_their_instant(
    count: int, burst: int, starts: list[tuple[int, int, int]]
) -> None:
    gcra = Gcra(count, 100, burst)
    state: tuple[int, int] | None = None
    now = 1_000
    happened: list[tuple[int, int]] = []
    for gap, cost, late in starts:
        now += gap
        if cost > burst or gcra.take(state, now, cost)[0] > now:
            continue
        state = gcra.amend(gcra.take(state, now, cost)[1], now, cost, now + late, cost)
        happened.append((now + late, cost))
    owed = 0
    for at, cost in sorted(happened):
        owed = max(owed, at * count) + cost * 100
    assert state is None or state[0] >= owed


def test_many_starts_of_a_fast_rate_that_are_late_together_do_not_close_it_for_long() -> None:
    gcra = Gcra(100, 1_000_000, 100)
    now = 10**15
    state = gcra.take(None, now, 100)[1]
    for _ in range(100):
        state = gcra.amend(state, now, 1, now + 300_000, 1)
    assert gcra.take(state, now)[0] <= now + 1_300_000


@given(count=st.integers(1, 20), later=st.integers(0, 59_999_999))
def test_a_state_of_another_kind_of_rule_counts_as_exhausted_for_one_period(count: int, later: int) -> None:
    """The fault: a deploy that changed the kind of a named limit could not read its buckets, and the worker ended."""
    gcra, log = Gcra(count, 60_000_000, count), SlidingLog(count, 60_000_000)
    now = 10**15
    of_log = log.dump(log.take(None, now)[1])
    of_gcra = gcra.dump(gcra.take(None, now)[1])
    assert log.take(log.load(of_gcra, now), now + later)[0] == now + 60_000_000
    assert gcra.take(gcra.load(of_log, now), now, count)[0] == now + 60_000_000
