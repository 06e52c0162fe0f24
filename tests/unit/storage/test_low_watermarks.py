"""Where reading begins while dead rows make it slow to read from the start."""

from __future__ import annotations

import pytest

from headgate.clock import SECOND
from headgate.storage.postgres.low_watermarks import (
    AFTER_FAILURE,
    REACH,
    SLACK,
    SLOW,
    SWEEP_EVERY,
    WHOLE_EVERY,
    LowWatermarks,
)
from headgate.storage.procedures.claim_snapshot import LaneRow
from headgate.testing.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def low_watermarks(clock: ManualClock) -> LowWatermarks:
    return LowWatermarks(clock)


def lane(place: int, queue: str = "plain") -> LaneRow:
    return LaneRow(f"{queue}-{place}", queue, (), 1, place, None, None, "")


def test_fast_reads_use_no_low_watermark(low_watermarks: LowWatermarks) -> None:
    low_watermarks.begin()
    low_watermarks.record_positions([lane(10 * SLACK)], [], 60 * SLACK, ["plain"])
    low_watermarks.record_read_duration(SLOW)
    low_watermarks.begin()
    assert (low_watermarks.due("plain"), low_watermarks.opened(["plain"]), low_watermarks.sweeps_in) == (0, 0, None)


def test_slow_reads_begin_at_the_first_position_of_the_last_read(low_watermarks: LowWatermarks) -> None:
    low_watermarks.begin()
    low_watermarks.record_positions([lane(50 * SLACK), lane(40 * SLACK)], [], 60 * SLACK, ["plain"])
    low_watermarks.record_read_duration(SLOW + 1)
    assert (low_watermarks.due("plain"), low_watermarks.opened(["plain"])) == (0, 0)
    low_watermarks.begin()
    assert (low_watermarks.due("plain"), low_watermarks.opened(["plain"])) == (39 * SLACK, 59 * SLACK)


def test_each_fair_queue_has_its_own_low_watermark_which_stays_while_its_line_is_empty(
    low_watermarks: LowWatermarks,
) -> None:
    fair = ["fair", "empty"]
    low_watermarks.begin()
    low_watermarks.record_positions([lane(50 * SLACK), lane(5 * SLACK, "fair")], [], 60 * SLACK, ["plain", *fair], fair)
    low_watermarks.record_read_duration(SLOW + 1)
    low_watermarks.begin()
    assert [low_watermarks.due(queue) for queue in ("plain", "fair", "empty")] == [49 * SLACK, 4 * SLACK, -SLACK]
    low_watermarks.record_positions([], [], 70 * SLACK, ["plain", *fair], fair)
    assert [low_watermarks.due(queue) for queue in ("plain", "fair", "empty")] == [69 * SLACK, 4 * SLACK, -SLACK]
    # Turns may be above limit time, where a lane without one would join.
    low_watermarks.record_positions([lane(90 * SLACK, "fair")], [], 70 * SLACK, ["fair"], ["fair"])
    assert low_watermarks.virtual_times == {"fair": 69 * SLACK, "empty": -SLACK}


def test_reads_of_other_queues_do_not_raise_the_low_watermarks_of_a_queue(low_watermarks: LowWatermarks) -> None:
    low_watermarks.begin()
    low_watermarks.record_positions([lane(50 * SLACK)], [40 * SLACK], 60 * SLACK, ["plain"])
    low_watermarks.record_read_duration(SLOW + 1)
    low_watermarks.begin()
    low_watermarks.record_positions([], [], 70 * SLACK, ["other"])
    assert [low_watermarks.due(queue) for queue in ("plain", "other", "new")] == [49 * SLACK, 69 * SLACK, -SLACK]
    read = (["plain"], ["other"], ["plain", "other"], ["other", "new"])
    assert [low_watermarks.opened(queues) for queues in read] == [39 * SLACK, 69 * SLACK, 39 * SLACK, -SLACK]
    # All queues are paused.
    assert low_watermarks.opened([]) > 70 * SLACK


def test_claims_sweep_every_second_a_little_below_the_first_position(
    low_watermarks: LowWatermarks, clock: ManualClock
) -> None:
    low_watermarks.begin()
    low_watermarks.record_read_duration(SLOW + 1)
    low_watermarks.record_positions(
        [lane(990 * SLACK), lane(40 * SLACK, "fair")], [], 1000 * SLACK, ["plain", "fair"], ["fair"]
    )
    for _ in range(2):
        for _ in range(9):
            clock.advance(0.1)
            low_watermarks.begin()
            low_watermarks.record_read_duration(10)
            assert not low_watermarks.has_swept
            assert (low_watermarks.due("plain"), low_watermarks.opened(["plain"])) == (989 * SLACK, 999 * SLACK)
        clock.advance(0.1)
        low_watermarks.begin()
        low_watermarks.record_read_duration(10)
        assert low_watermarks.has_swept
        assert (low_watermarks.due("plain"), low_watermarks.opened(["plain"])) == (
            990 * SLACK - REACH,
            1000 * SLACK - REACH,
        )
        assert low_watermarks.virtual_times == {"fair": 40 * SLACK - REACH}
        # Where a claim may put a lane does not depend on whether it sweeps.
        assert low_watermarks.passed == {"fair": 39 * SLACK}
        # What the sweep has found is where the claim reads again.
        low_watermarks.record_positions([lane(970 * SLACK)], [], 1000 * SLACK, ["plain"])
        assert (low_watermarks.has_swept, low_watermarks.due("plain")) == (False, 969 * SLACK)
        low_watermarks.record_positions([lane(990 * SLACK)], [], 1000 * SLACK, ["plain"])


def test_claims_sweep_from_the_start_every_minute_until_that_is_fast(
    low_watermarks: LowWatermarks, clock: ManualClock
) -> None:
    low_watermarks.begin()
    low_watermarks.record_read_duration(SLOW + 1)
    low_watermarks.record_positions([lane(990 * SLACK)], [], 1000 * SLACK, ["plain"])
    clock.advance(WHOLE_EVERY / SECOND - 1)
    low_watermarks.begin()
    low_watermarks.record_read_duration(10)
    assert low_watermarks.due("plain") > 0
    for took, then in ((SLOW + 1, 989 * SLACK), (10, 0)):
        clock.advance(WHOLE_EVERY / SECOND)
        low_watermarks.begin()
        assert (low_watermarks.due("plain"), low_watermarks.opened(["plain"]), low_watermarks.virtual_times) == (
            0,
            0,
            {},
        )
        low_watermarks.record_read_duration(took)
        low_watermarks.record_positions([lane(990 * SLACK)], [], 1000 * SLACK, ["plain"])
        clock.advance(0.1)
        low_watermarks.begin()
        assert low_watermarks.due("plain") == then


def test_a_whole_sweep_that_fails_is_not_tried_again_by_the_next_claim(
    low_watermarks: LowWatermarks, clock: ManualClock
) -> None:
    low_watermarks.begin()
    low_watermarks.record_read_duration(SLOW + 1)
    low_watermarks.record_positions([lane(990 * SLACK)], [], 1000 * SLACK, ["plain"])
    clock.advance(WHOLE_EVERY / SECOND)
    low_watermarks.begin()
    assert low_watermarks.due("plain") == 0
    # The server ended it.
    low_watermarks.begin()
    assert low_watermarks.due("plain") > 0
    clock.advance(AFTER_FAILURE / SECOND)
    low_watermarks.begin()
    assert low_watermarks.due("plain") == 0


@pytest.mark.parametrize(("took", "waits"), [(SLOW + 1, WHOLE_EVERY), (SECOND, 100 * SECOND)])
def test_whole_sweeps_are_a_hundredth_of_the_time_at_most(
    low_watermarks: LowWatermarks, clock: ManualClock, took: int, waits: int
) -> None:
    low_watermarks.begin()
    low_watermarks.record_read_duration(took)
    low_watermarks.record_positions([lane(990 * SLACK)], [], 1000 * SLACK, ["plain"])
    clock.advance(waits / SECOND - 0.1)
    low_watermarks.begin()
    assert low_watermarks.due("plain") > 0
    clock.advance(0.1)
    low_watermarks.begin()
    assert low_watermarks.due("plain") == 0


@pytest.mark.parametrize(("took", "waits"), [(SLOW + 1, SWEEP_EVERY), (SWEEP_EVERY // 2, 5 * SWEEP_EVERY)])
def test_sweeps_are_a_tenth_of_the_time_at_most(
    low_watermarks: LowWatermarks, clock: ManualClock, took: int, waits: int
) -> None:
    low_watermarks.begin()
    low_watermarks.record_read_duration(took)
    assert low_watermarks.sweeps_in == waits
    clock.advance(waits / SECOND)
    assert low_watermarks.sweeps_in == 0


def test_a_slow_read_above_the_low_watermarks_does_not_postpone_a_sweep(
    low_watermarks: LowWatermarks, clock: ManualClock
) -> None:
    low_watermarks.begin()
    low_watermarks.record_read_duration(SLOW + 1)
    clock.advance(0.5)
    low_watermarks.begin()
    low_watermarks.record_read_duration(SWEEP_EVERY)
    assert low_watermarks.sweeps_in == SWEEP_EVERY // 2


def test_the_low_watermark_of_arrivals_rises_once_older_transactions_have_ended(
    low_watermarks: LowWatermarks,
) -> None:
    low_watermarks.record_merge(10, None, merger=100, oldest_writer=90)
    assert low_watermarks.arrivals == 0
    low_watermarks.record_merge(20, None, merger=110, oldest_writer=99)
    assert low_watermarks.arrivals == 0
    low_watermarks.record_merge(30, None, merger=120, oldest_writer=100)
    assert low_watermarks.arrivals == 11
    low_watermarks.record_merge(40, None, merger=130, oldest_writer=120)
    assert low_watermarks.arrivals == 31


def test_arrivals_that_a_merge_has_left_are_above_the_low_watermark(low_watermarks: LowWatermarks) -> None:
    low_watermarks.record_merge(10, None, merger=100, oldest_writer=90)
    low_watermarks.record_merge(30, 5, merger=110, oldest_writer=105)
    assert low_watermarks.arrivals == 5


def test_the_low_watermark_of_arrivals_is_proven_again_after_a_reset(low_watermarks: LowWatermarks) -> None:
    low_watermarks.record_merge(10, None, merger=100, oldest_writer=90)
    low_watermarks.record_merge(20, None, merger=110, oldest_writer=105)
    low_watermarks.forget_arrivals()
    assert low_watermarks.arrivals == 0
    low_watermarks.record_merge(3, None, merger=50, oldest_writer=45)
    low_watermarks.record_merge(5, None, merger=60, oldest_writer=55)
    assert low_watermarks.arrivals == 4
