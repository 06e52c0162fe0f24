"""What type checkers see of the testing kit: checked by mypy and basedpyright, never run."""

from __future__ import annotations

from typing import assert_type

from headgate import Headgate
from headgate.testing import DrainResult, Enqueued, LiveApp, Workbench, inline, live, manual

app = Headgate("memory://")


@app.task
async def greet(name: str, polite: bool = False) -> str:
    return name


@app.task
def count(number: int) -> list[int]:
    return [number]


async def a_test_is_typed_all_the_way() -> None:
    with manual(app) as jobs:
        assert_type(jobs, Workbench)
        assert_type(jobs.assert_enqueued(greet, "ada"), Enqueued)
        assert_type(jobs.assert_enqueued(greet.call("ada", polite=True), delay=60), Enqueued)
        assert_type(jobs.all_enqueued(greet), list[Enqueued])
        assert_type(await jobs.drain(until="idle"), DrainResult)
        assert_type(await jobs.travel(hours=1), DrainResult)
        assert_type(await jobs.run_job(greet, "ada"), str)
        assert_type(jobs.sync.run_job(count, 5), list[int])
        assert_type(jobs.sync.drain(), DrainResult)

        jobs.assert_enqueued("greet")  # type: ignore[arg-type]
        jobs.assert_enqueued(greet, delay=["5m"])  # type: ignore[arg-type]
        jobs.assert_enqueued(greet.call(5))  # type: ignore[arg-type]
        await jobs.drain(until=["later"])  # type: ignore[arg-type]
        await jobs.travel(hours="one")  # type: ignore[arg-type]
        await jobs.run_job(greet, 5)  # type: ignore[arg-type]
        await jobs.run_job(greet)  # type: ignore[call-arg]
        jobs.sync.run_job(count, "5")  # type: ignore[arg-type]
    with inline(app, raising=False) as jobs:
        assert_type(jobs, Workbench)
    async with live(app) as running:
        assert_type(running, LiveApp)
    with live(app, file="jobs.db") as beside:
        assert_type(beside, LiveApp)
        assert_type(beside.sync.wait_until_idle(timeout=1), None)
