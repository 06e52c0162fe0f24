"""The virtual times with which lanes come back into the line of a fair queue."""

from __future__ import annotations

from headgate.limits.fair import STEP
from headgate.storage.procedures.claim_snapshot import LaneRow, TurnGroupRow
from headgate.storage.procedures.fair_lines import FairLines

PASSED = 50 * STEP + 1


def returning(virtual_time: int, group: str | None = None) -> int:
    """The virtual time of a lane that waited, where the line is empty and claims have passed `PASSED`."""
    fair = FairLines(["default"], {}, {"default": PASSED}, 1)
    row = LaneRow("lane", "default", (), 1, 1, "bucket", None, "", virtual_time=virtual_time, group_id=group)
    if group is not None:
        fair.note_groups([TurnGroupRow(group, 60 * STEP, None, 3 * STEP)])
    fair._outside = {row.id}
    return fair.virtual_time(row)


def test_a_lane_that_comes_back_below_a_low_watermark_is_not_taken_for_a_new_one() -> None:
    """The fault: an odd low watermark, as that of a new key, became its turn, and its start counted twice."""
    assert returning(2 * STEP) == PASSED + 1


def test_the_low_watermark_of_a_queue_is_no_measure_for_a_user_of_a_tenant() -> None:
    """The fault: turns among users are not those of the queue; it came after all others of its tenant for long."""
    assert returning(2 * STEP, "tenant") == 2 * STEP
