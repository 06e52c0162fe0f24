"""A chain whose workers are killed again and again completes; each step succeeds once, in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headgate import JobState, batch, chain
from tests.durability.chain_worker import make_app
from tests.durability.processes import Children
from tests.internals import store_of
from tests.until import result_within

pytestmark = pytest.mark.nightly

STEPS = 20


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
async def test_a_chain_whose_workers_are_killed_is_complete(
    place: str, tmp_path: Path, postgres_url: str, postgres_schema: str, children: Children
) -> None:
    options: dict[str, Any] = {"path": str(tmp_path / "jobs.db")}
    if place == "postgres":
        options = {"url": postgres_url, "schema": postgres_schema}
    random = Random(place)
    app = make_app(options)
    look = store_of(app)
    step = app.tasks["step"]
    begun: list[int] = []
    async with app.open():
        middle = batch([step.call(number) for number in (8, 9, 10)])
        plan = chain(*map(step.call, range(8)), middle, *map(step.call, range(11, STEPS)))
        stored = await plan.enqueue()
        done = asyncio.create_task(result_within(stored, 50))
        while not done.done():
            worker = await children.start("chain_worker.py", **options)
            # One that begins a step has not lost the one before it, so none is ever poisonous.
            for _ in range(random.randint(2, 6)):
                hearing = asyncio.create_task(worker.wait_for_line("step"))
                await asyncio.wait([hearing, done], return_when=asyncio.FIRST_COMPLETED)
                if not hearing.done():
                    hearing.cancel()
                    break
                begun.append(hearing.result()[0])
            await asyncio.sleep(random.random() * 0.03)  # somewhere inside a step, or between two
            await worker.kill()
        assert await done == STEPS - 1

        records = [await look.job(job.id) for job in stored.jobs]
        assert [record.state for record in records if record is not None] == [JobState.SUCCEEDED] * STEPS
        assert [record.result for record in records if record is not None] == [str(number) for number in range(STEPS)]
        ended = [record.finished_at or 0 for record in records if record is not None]
        started = [record.started_at or 0 for record in records if record is not None]
        for follower in range(1, STEPS):
            leaders = [follower - 1] if follower not in (8, 9, 10, 11) else [7] if follower < 11 else [8, 9, 10]
            assert all(started[follower] >= ended[leader] for leader in leaders)
        assert list(await look.check()) == []
    # Only what was running when its worker was killed has begun twice.
    assert set(begun) <= set(range(STEPS))
