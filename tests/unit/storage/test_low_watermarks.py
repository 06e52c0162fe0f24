"""Where reading begins while dead rows make it slow to read from the start."""

from __future__ import annotations

import pytest

from headgate.clock import SECOND
from headgate.storage.postgres.low_watermarks import SLACK, SLOW, SWEEP_EVERY, LowWatermarks
from headgate.testing.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def floors(clock: ManualClock) -> LowWatermarks:
    return LowWatermarks(clock)


def test_what_is_fast_has_no_floor(floors: LowWatermarks) -> None:
    floors.begin()
    floors.saw([10 * SLACK], [], 60 * SLACK)
    floors.looked(SLOW)
    floors.begin()
    assert (floors.due, floors.opened, floors.sweeps_in) == (0, 0, None)


def test_what_is_slow_begins_at_what_was_seen_first(floors: LowWatermarks) -> None:
    floors.begin()
    floors.saw([50 * SLACK, 40 * SLACK], [], 60 * SLACK)
    floors.looked(SLOW + 1)
    assert (floors.due, floors.opened) == (0, 0)
    floors.begin()
    assert (floors.due, floors.opened) == (39 * SLACK, 59 * SLACK)


def test_it_sweeps_from_the_start_every_second_and_stops_when_that_is_fast(
    floors: LowWatermarks, clock: ManualClock
) -> None:
    floors.begin()
    floors.saw([10 * SLACK], [], 60 * SLACK)
    floors.looked(SLOW + 1)
    for _ in range(9):
        clock.advance(0.1)
        floors.begin()
        floors.looked(10)
        assert floors.due > 0
    clock.advance(0.1)
    floors.begin()
    assert floors.due == 0
    floors.looked(10)
    clock.advance(0.1)
    floors.begin()
    assert floors.due == 0


@pytest.mark.parametrize(("took", "waits"), [(SLOW + 1, SWEEP_EVERY), (SWEEP_EVERY // 2, 5 * SWEEP_EVERY)])
def test_sweeps_are_a_tenth_of_the_time_at_most(
    floors: LowWatermarks, clock: ManualClock, took: int, waits: int
) -> None:
    floors.begin()
    floors.looked(took)
    assert floors.sweeps_in == waits
    clock.advance(waits / SECOND)
    assert floors.is_sweep_due


def test_a_slow_snapshot_above_the_floors_puts_off_no_sweep(floors: LowWatermarks, clock: ManualClock) -> None:
    floors.begin()
    floors.looked(SLOW + 1)
    clock.advance(0.5)
    floors.begin()
    floors.looked(SWEEP_EVERY)
    assert floors.sweeps_in == SWEEP_EVERY // 2


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
