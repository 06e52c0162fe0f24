"""A worker that starts its jobs late is killed at once: what it started still counts from the real start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SECOND
from tests.durability.late_worker import PER, make_app
from tests.durability.processes import Children

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
async def test_a_worker_that_is_killed_after_late_starts_leaves_their_charges_late(
    place: str, tmp_path: Path, postgres_url: str, postgres_schema: str, children: Children
) -> None:
    """The fault: a charge moved only after the start, so the next worker granted another one too early."""
    options: dict[str, Any] = {"path": str(tmp_path / "jobs.db")}
    if place == "postgres":
        options = {"url": postgres_url, "schema": postgres_schema}
    app = make_app(options)
    async with app.open():
        await app.tasks["call"].enqueue_many([(number,) for number in range(2)])
    late = await children.start("late_worker.py", **options, late=PER * 0.4)
    _, first = await late.wait_for_line("call", 30)
    await late.end()
    other = await children.start("late_worker.py", **options)
    _, following = await other.wait_for_line("call", 60)
    await other.kill()
    assert following - first >= PER * SECOND
