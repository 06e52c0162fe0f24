"""RateLimit: when jobs start under a rate with a burst."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headgate.clock import SECOND
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.limits.rate import parse_rate
from headgate.limits.rate_limit import START_EMPTY_KEPT, Arrival, Gcra, RateLimit
from headgate.limits.rule import Rule
from tests.unit.limits.timeline import HOUR, MINUTE, NOON, most_in_any_window, seconds, start_all


def test_twenty_jobs_at_once_start_fifteen_now_and_then_one_every_four_seconds() -> None:
    starts, _ = start_all(RateLimit("15/m").rule, 20)
    assert seconds(starts) == [0] * 15 + [4, 8, 12, 16, 20]


def test_a_burst_of_one_starts_one_job_every_four_seconds() -> None:
    starts, _ = start_all(RateLimit("15/m", burst=1).rule, 20)
    assert seconds(starts) == [4 * number for number in range(20)]


def test_a_small_burst_goes_first_and_the_rest_is_paced() -> None:
    starts, _ = start_all(RateLimit("15/m", burst=3).rule, 6)
    assert seconds(starts) == [0, 0, 0, 4, 8, 12]


def test_start_empty_starts_one_at_once_and_paces_the_rest() -> None:
    starts, _ = start_all(RateLimit("15/m", start_empty=True).rule, 5)
    assert seconds(starts) == [0, 4, 8, 12, 16]


def test_the_first_start_of_a_start_empty_limit_goes_at_once_whatever_it_costs() -> None:
    # A refused start leaves no state behind, so a first one that had to wait would wait for ever.
    rule = RateLimit("15/m", start_empty=True).rule
    for cost in (1, 2, 15):
        opens_at, state = rule.take(None, NOON, cost)
        assert opens_at == NOON
        assert rule.take(state, NOON)[0] == NOON + 4 * SECOND


def test_start_empty_saves_up_a_burst_like_any_other() -> None:
    rule = RateLimit("15/m", start_empty=True).rule
    _, state = start_all(rule, 1)
    starts, _ = start_all(rule, 17, NOON + HOUR, state)
    assert seconds(starts) == [3600] * 15 + [3604, 3608]


def test_twenty_nine_jobs_start_in_the_first_minute_which_is_the_bound() -> None:
    rule = RateLimit("15/m").rule
    starts, _ = start_all(rule, 60)
    assert sum(1 for start in starts if start < NOON + MINUTE) == 29
    assert rule.bound(MINUTE) == 29
    assert most_in_any_window(starts, MINUTE) == 29


def test_a_window_is_half_open() -> None:
    rule = RateLimit("15/m", burst=1).rule
    starts, _ = start_all(rule, 31)
    # A start at exactly the end of a window belongs to the next one.
    assert starts[15] == NOON + MINUTE
    assert most_in_any_window(starts, MINUTE) == rule.bound(MINUTE) == 15
    assert most_in_any_window(starts, MINUTE + 1) == rule.bound(MINUTE + 1) == 16


def test_a_burst_of_one_never_exceeds_the_rate_in_a_window() -> None:
    assert RateLimit("100/h", burst=1).rule.bound(HOUR) == 100


def test_unused_budget_is_saved_up_to_the_burst_and_no_further() -> None:
    rule = RateLimit("15/m").rule
    _, state = start_all(rule, 15)
    starts, _ = start_all(rule, 6, NOON + 20 * SECOND, state)
    assert seconds(starts) == [20, 20, 20, 20, 20, 24]
    starts, _ = start_all(rule, 16, NOON + 1000 * HOUR, state)
    assert seconds(starts) == [3_600_000] * 15 + [3_600_004]


def test_a_refused_start_costs_nothing() -> None:
    rule = RateLimit("15/m").rule
    _, state = start_all(rule, 15)
    for now in range(NOON, NOON + 4 * SECOND, SECOND // 10):
        opens_at, _ = rule.take(state, now)
        assert opens_at == NOON + 4 * SECOND


def test_one_microsecond_early_is_refused() -> None:
    rule = RateLimit("15/m").rule
    _, state = start_all(rule, 15)
    assert rule.take(state, NOON + 4 * SECOND - 1)[0] == NOON + 4 * SECOND
    assert rule.take(state, NOON + 4 * SECOND)[0] == NOON + 4 * SECOND


def test_a_reservation_keeps_the_state_and_books_one_slot_after_another() -> None:
    rule = RateLimit("15/m", burst=1).rule
    state: Arrival | None = None
    booked = []
    for _ in range(4):
        opens_at, state = rule.take(state, NOON)
        booked.append(opens_at)
    assert seconds(booked) == [0, 4, 8, 12]


@pytest.mark.parametrize("text", ["7/s", "13/10s", "3000000/s", "1/7s", "999/m"])
def test_a_saturated_key_loses_nothing_and_exceeds_nothing_in_an_hour(text: str) -> None:
    rate = parse_rate(text, None)
    rule = Gcra(rate.count, rate.period, rate.count)
    # Whole periods at a time where single starts would be too many to count.
    cost = max(1, rate.count // 50)
    granted, now, state = 0, NOON, None
    while now < NOON + HOUR:
        opens_at, after = rule.take(state, now, cost)
        if opens_at > now:
            now = opens_at
        else:
            granted += cost
            state = after
    allowed = rate.count * HOUR // rate.period + rule.burst
    assert allowed - cost <= granted <= rule.bound(HOUR) < allowed + 1


@pytest.mark.parametrize("text", ["7/s", "13/10s", "3000000/s"])
def test_starts_of_an_uneven_period_never_come_early(text: str) -> None:
    rate = parse_rate(text, None)
    rule = Gcra(rate.count, rate.period, 2)
    starts, _ = start_all(rule, 2000)
    for number, start in enumerate(starts):
        assert (start - NOON) * rate.count >= (number - 1) * rate.period


def test_even_spacing_of_an_uneven_period_loses_less_than_a_microsecond_a_start() -> None:
    rule = RateLimit("7/s", burst=1).rule
    starts, _ = start_all(rule, 7000)
    assert {later - earlier for earlier, later in pairwise(starts)} == {142_858}


def test_three_million_a_second_is_three_a_microsecond() -> None:
    starts, _ = start_all(RateLimit("3000000/s", burst=3).rule, 9)
    assert [start - NOON for start in starts] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_frozen_clock_grants_exactly_the_burst() -> None:
    for count in range(1, 200):
        rule = Gcra(count, MINUTE, count)
        state: Arrival | None = None
        for _ in range(count):
            opens_at, state = rule.take(state, NOON)
            assert opens_at == NOON
        assert rule.take(state, NOON)[0] > NOON


def test_a_clock_that_steps_back_creates_no_budget() -> None:
    rule = RateLimit("15/m").rule
    _, state = start_all(rule, 15)
    for back in (1, SECOND, MINUTE, 24 * HOUR):
        # Refused until the very instant it would have opened at without the step.
        assert rule.take(state, NOON - back)[0] == NOON + 4 * SECOND


def test_a_clock_that_goes_back_and_returns_grants_what_it_would_have() -> None:
    rule = RateLimit("15/m").rule
    _, state = start_all(rule, 15)
    rule.take(state, NOON - HOUR)
    starts, _ = start_all(rule, 2, NOON + 5 * SECOND, state)
    assert seconds(starts) == [5, 8]


def test_a_clock_that_goes_back_less_than_a_period_closes_no_key_longer_than_the_step_and_its_debt() -> None:
    rule = RateLimit("15/m").rule
    _, state = start_all(rule, 15)
    now = NOON - 30 * SECOND
    assert rule.take(state, now)[0] - now == 34 * SECOND


def test_a_key_that_owes_nothing_stays_open_when_the_clock_goes_back_a_little() -> None:
    rule = RateLimit("15/m").rule
    _, state = rule.take(None, NOON)
    now = NOON - 10 * SECOND
    assert rule.take(state, now)[0] == now


def test_a_clock_that_jumps_forward_refills_one_burst_at_most() -> None:
    rule = RateLimit("15/m", burst=5).rule
    _, state = start_all(rule, 5)
    starts, _ = start_all(rule, 7, NOON + 20 * 365 * 24 * HOUR, state)
    assert len(set(starts[:5])) == 1
    assert starts[5] - starts[4] == starts[6] - starts[5] == 4 * SECOND


def test_a_cost_is_charged_like_so_many_starts() -> None:
    rule = RateLimit("15/m").rule
    opens_at, state = rule.take(None, NOON, 10)
    assert opens_at == NOON
    opens_at, state = rule.take(state, NOON, 5)
    assert opens_at == NOON
    assert rule.take(state, NOON, 1)[0] == NOON + 4 * SECOND
    assert rule.take(state, NOON, 3)[0] == NOON + 12 * SECOND


def test_a_cost_above_the_burst_is_an_error_and_charges_nothing() -> None:
    rule = RateLimit("15/m", burst=5).rule
    _, state = rule.take(None, NOON, 5)
    with pytest.raises(CostExceedsLimit, match=r"cost=6 is more than a rate of 15/m burst 5"):
        rule.take(state, NOON, 6)
    assert rule.take(state, NOON)[0] == NOON + 4 * SECOND


def test_a_cost_of_the_whole_burst_goes_when_the_bucket_is_full() -> None:
    rule = RateLimit("15/m", burst=5).rule
    _, state = rule.take(None, NOON)
    assert rule.take(state, NOON, 5)[0] == NOON + 4 * SECOND


def test_a_declared_cost_above_the_burst_is_refused_at_declaration() -> None:
    with pytest.raises(DeclarationError, match="cost=16 is more than"):
        RateLimit("15/m", cost=16)


@pytest.mark.parametrize("cost", [0, -1, True])
def test_a_declared_cost_is_a_whole_number_of_at_least_one(cost: int) -> None:
    with pytest.raises(DeclarationError, match="at least 1"):
        RateLimit("15/m", cost=cost)


@pytest.mark.parametrize("burst", [0, -1, 1.5, True, "3"])
def test_a_burst_is_a_whole_number_of_at_least_one(burst: int) -> None:
    with pytest.raises(DeclarationError, match="at least 1"):
        RateLimit("15/m", burst=burst)


def test_a_negative_margin_is_refused() -> None:
    with pytest.raises(DeclarationError, match="cannot be negative"):
        RateLimit("15/m", margin=-0.1)


def test_a_margin_widens_the_period() -> None:
    starts, _ = start_all(RateLimit("15/m", burst=1, margin=0.3).rule, 3)
    assert seconds(starts) == [0, 4.02, 8.04]


def test_a_count_with_its_period_is_the_same_rule_as_the_string() -> None:
    assert RateLimit(15, per=60).rule.describe() == RateLimit("15/m").rule.describe()


@pytest.mark.parametrize("name", ["", "n" * 101])
def test_a_name_has_one_to_a_hundred_characters(name: str) -> None:
    with pytest.raises(DeclarationError, match="must be 1 to 100"):
        RateLimit("15/m", name=name)


def test_a_name_of_a_hundred_characters_is_accepted() -> None:
    assert RateLimit("15/m", name="n" * 100).name == "n" * 100


def test_a_snapshot_shows_what_counts_and_what_is_left() -> None:
    rule = RateLimit("15/m").rule
    assert rule.snapshot(None, NOON).available == 15
    assert rule.snapshot(None, NOON).used == 0
    _, state = start_all(rule, 14)
    one_left = rule.snapshot(state, NOON)
    assert (one_left.used, one_left.available, one_left.opens_at) == (14, 1, NOON)
    _, state = start_all(rule, 15)
    none_left = rule.snapshot(state, NOON)
    assert (none_left.used, none_left.available, none_left.opens_at) == (15, 0, NOON + 4 * SECOND)
    later = rule.snapshot(state, NOON + MINUTE)
    assert (later.used, later.available, later.opens_at) == (0, 15, NOON + MINUTE)


def test_a_start_empty_bucket_shows_one_start() -> None:
    snapshot = RateLimit("15/m", start_empty=True).rule.snapshot(None, NOON)
    assert (snapshot.used, snapshot.available, snapshot.opens_at) == (14, 1, NOON)


def test_a_full_bucket_can_be_evicted() -> None:
    rule = RateLimit("15/m").rule
    _, state = start_all(rule, 15)
    assert rule.idle_at(state) == NOON + MINUTE


def test_a_start_empty_bucket_is_kept_for_a_while_because_it_differs_from_a_new_one() -> None:
    rule = RateLimit("15/m", start_empty=True).rule
    _, state = start_all(rule, 1)
    assert rule.idle_at(state) == NOON + MINUTE + START_EMPTY_KEPT


def test_a_state_comes_back_from_storage_as_it_was() -> None:
    for count in (1, 7, 3_000_000):
        rule = Gcra(count, 10 * SECOND, count)
        _, state = rule.take(None, NOON)
        assert rule.load(rule.dump(state), NOON + 5) == state


def test_a_stored_state_names_its_version() -> None:
    rule = RateLimit("15/m").rule
    assert rule.dump(rule.take(None, NOON)[1]).startswith("1:")


@pytest.mark.parametrize(
    ("old", "new", "first_opens"),
    [
        # 15 starts are owed under 15/m. The new rate pays them off at its own speed.
        (RateLimit("15/m"), RateLimit("15/m", burst=1), 15 * 4),
        (RateLimit("15/m"), RateLimit("60/m"), 0),
        (RateLimit("15/m"), RateLimit("60/m", burst=15), 1),
        (RateLimit("15/m"), RateLimit("15/h"), 240),
        (RateLimit("15/m"), RateLimit("1/s"), 15),
        (RateLimit("15/m"), RateLimit("7/s", burst=1), 2.142858),
    ],
)
def test_a_changed_rate_keeps_what_is_owed(old: RateLimit, new: RateLimit, first_opens: float) -> None:
    _, state = start_all(old.rule, 15)
    loaded = new.rule.load(old.rule.dump(state), NOON)
    assert new.rule.snapshot(loaded, NOON).used == 15
    # The first start waits until the debt is down to one less than the new burst.
    assert seconds([new.rule.take(loaded, NOON)[0]]) == [first_opens]


def test_a_raised_rate_does_not_refuse_for_the_old_debt_any_longer_than_the_new_rate_would() -> None:
    old, new = RateLimit("1/h", burst=1).rule, RateLimit("3600/h", burst=1).rule
    _, state = old.take(None, NOON)
    assert new.take(new.load(old.dump(state), NOON), NOON)[0] == NOON + SECOND


def test_a_changed_rate_gives_a_key_that_owes_nothing_its_full_burst() -> None:
    old, new = RateLimit("15/m").rule, RateLimit("30/m").rule
    _, state = start_all(old, 15)
    loaded = new.load(old.dump(state), NOON + HOUR)
    assert new.snapshot(loaded, NOON + HOUR).available == 30


def test_a_state_changed_there_and_back_owes_no_less_than_before() -> None:
    one, other = RateLimit("7/s").rule, RateLimit("13/10s").rule
    _, state = start_all(one, 7)
    back = one.load(other.dump(other.load(one.dump(state), NOON)), NOON)
    assert state[0] <= back[0] <= state[0] + 1


def test_a_rule_describes_all_that_makes_it_another() -> None:
    limits = [
        RateLimit("15/m"),
        RateLimit("16/m"),
        RateLimit("15/h"),
        RateLimit("15/m", burst=1),
        RateLimit("15/m", start_empty=True),
        RateLimit("15/m", margin=0.02),
        RateLimit("15/d", margin=0.02),
        RateLimit("15/d", margin=0.03),
    ]
    assert len({limit.rule.describe() for limit in limits}) == len(limits)


def test_a_rate_rule_is_a_rule() -> None:
    rule: Rule[Arrival] = RateLimit("15/m").rule
    assert rule.kind == "rate"


def test_a_start_that_never_began_is_returned_if_it_was_the_last() -> None:
    rule = RateLimit("15/m", burst=2).rule
    _, one = rule.take(None, NOON)
    _, two = rule.take(one, NOON + SECOND)
    assert rule.amend(two, NOON + SECOND, 1, NOON + SECOND, 0)[0] <= one[0]
    # Charged together: any of them may go back.
    _, both = rule.take(one, NOON)
    assert rule.amend(both, NOON, 1, NOON, 0) == one


def test_a_refund_never_fills_a_bucket_that_would_have_overflowed() -> None:
    """The fault: a start of an hour ago was given back, and two started in a row that had to be 4 s apart."""
    rule = RateLimit("15/m", burst=1).rule
    _, state = rule.take(None, NOON)
    _, state = rule.take(state, NOON + HOUR)
    state = rule.amend(state, NOON, 1, NOON, 0)
    assert rule.take(state, NOON + HOUR)[0] == NOON + HOUR + 4 * SECOND
