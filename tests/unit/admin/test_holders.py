"""The holders of permits, in a line."""

from __future__ import annotations

import pytest

from headgate.admin.holders import MOST_HOLDERS, PermitHolder, describe_holders
from headgate.jobs.state import JobState


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, ""), (1, ""), (3, ""), (4, " and 1 more"), (19, " and 16 more"), (20, " and at least 17 more")],
)
def test_three_holders_are_named_and_the_others_are_counted_as_far_as_they_are_known(count: int, said: str) -> None:
    """The fault: "and 17 more" of a limit with 100 holders, because 20 are read."""
    assert count <= MOST_HOLDERS
    holders = [PermitHolder("job", f"job-{number}", JobState.RUNNING, 1) for number in range(count)]
    assert describe_holders(holders) == ", ".join(f"job job-{at} (running)" for at in range(min(count, 3))) + said
