"""Where reading begins while dead rows make it slow to read from the start."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.storage.claiming import LaneHead
from headgate.storage.postgres.low_watermarks import SLACK, SLOW, SWEEP_EVERY, LowWatermarks
from headgate.testing.manual_clock import ManualClock

LANE = "lane"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def floors(clock: ManualClock) -> LowWatermarks:
    return LowWatermarks(clock)


def head(run_at: int, priority: int = 0) -> LaneHead:
    values: dict[str, Any] = dict.fromkeys(LaneHead.__struct_fields__)
    return LaneHead(**{**values, "run_at": run_at, "priority": priority})


def test_what_is_fast_has_no_floor(floors: LowWatermarks) -> None:
    floors.begin()
    floors.taken(LANE, [head(10 * SLACK)])
    floors.took(SLOW)
    floors.begin()
    assert floors.of(LANE) == 0


def test_what_is_slow_begins_at_what_was_taken_last(floors: LowWatermarks) -> None:
    floors.begin()
    floors.taken(LANE, [head(9 * SLACK), head(10 * SLACK)])
    floors.saw([50 * SLACK, 40 * SLACK], [], 60 * SLACK)
    floors.took(SLOW + 1)
    floors.begin()
    assert (floors.of(LANE), floors.of("other")) == (9 * SLACK, 0)
    assert (floors.due, floors.opened) == (39 * SLACK, 59 * SLACK)


def test_a_far_server_is_not_a_slow_one(floors: LowWatermarks) -> None:
    floors.begin()
    floors.taken(LANE, [head(10 * SLACK)])
    floors.looked(20 * SLOW, 10)
    floors.took(20 * SLOW)
    assert floors.sweeps_in is None
    floors.took(22 * SLOW)
    assert floors.sweeps_in == SWEEP_EVERY


def test_it_sweeps_from_the_start_every_second_and_stops_when_that_is_fast(
    floors: LowWatermarks, clock: ManualClock
) -> None:
    floors.begin()
    floors.taken(LANE, [head(10 * SLACK)])
    floors.took(SLOW + 1)
    for _ in range(9):
        clock.advance(0.1)
        floors.begin()
        floors.took(10)
        assert floors.of(LANE) > 0
    clock.advance(0.1)
    floors.begin()
    assert floors.of(LANE) == 0
    floors.took(10)
    clock.advance(0.1)
    floors.begin()
    assert floors.of(LANE) == 0


def test_jobs_of_a_higher_priority_raise_no_floor(floors: LowWatermarks) -> None:
    """Older jobs of a lower one may be left."""
    floors.begin()
    floors.taken(LANE, [head(5 * SLACK)])
    floors.taken(LANE, [head(100 * SLACK, priority=3)])
    floors.took(SLOW + 1)
    floors.begin()
    assert floors.of(LANE) == 4 * SLACK


def test_a_claim_that_sweeps_does_so_in_all_that_it_reads(floors: LowWatermarks) -> None:
    floors.begin()
    floors.taken(LANE, [head(10 * SLACK)])
    floors.looked(SLOW + 1, SLOW + 1)
    assert (floors.of(LANE), floors.due, floors.opened) == (0, 0, 0)
    floors.begin()
    assert floors.of(LANE) > 0


def test_a_second_passes_between_the_end_of_a_sweep_and_the_next(floors: LowWatermarks, clock: ManualClock) -> None:
    floors.begin()
    clock.advance(3)
    floors.took(3 * SWEEP_EVERY)
    assert floors.sweeps_in == SWEEP_EVERY
    clock.advance(1)
    assert floors.is_sweep_due


def test_arrivals_have_a_floor_once_all_are_seen_that_were_under_way_when_a_higher_one_was(
    floors: LowWatermarks,
) -> None:
    floors.merged_up_to(10, None, merger=100, oldest_writer=90)
    assert floors.arrivals == 0
    floors.merged_up_to(20, None, merger=110, oldest_writer=99)
    assert floors.arrivals == 0
    floors.merged_up_to(30, None, merger=120, oldest_writer=100)
    assert floors.arrivals == 11
    floors.merged_up_to(40, None, merger=130, oldest_writer=120)
    assert floors.arrivals == 31


def test_arrivals_that_a_merge_has_left_are_not_below_the_floor(floors: LowWatermarks) -> None:
    floors.merged_up_to(10, None, merger=100, oldest_writer=90)
    floors.merged_up_to(30, 5, merger=110, oldest_writer=105)
    assert floors.arrivals == 5


def test_the_floor_of_arrivals_is_proven_anew_after_it_was_forgotten(floors: LowWatermarks) -> None:
    floors.merged_up_to(10, None, merger=100, oldest_writer=90)
    floors.merged_up_to(20, None, merger=110, oldest_writer=105)
    floors.forget_arrivals()
    assert floors.arrivals == 0
    floors.merged_up_to(3, None, merger=50, oldest_writer=45)
    floors.merged_up_to(5, None, merger=60, oldest_writer=55)
    assert floors.arrivals == 4
