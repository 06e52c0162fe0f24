"""Permits on SQLite: what handing one over costs, and a holder that is killed."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate import Headgate, Mutex, RateLimit
from headgate.jobs.job import JobState, NewJob
from headgate.jobs.lifecycle import Finished
from headgate.jobs.terms import LimitTerms, PermitTerms
from headgate.limits.concurrency import Semaphore
from headgate.limits.rate_limit import RateLimit as Rate
from headgate.storage.records import Claim
from headgate.testing.manual_clock import ManualClock
from tests.durability.processes import Children
from tests.durability.stores import claim_for, new_job, open_store
from tests.durability.test_claim_work import Meter, add
from tests.until import patient, until

RULES: dict[str, Any] = {"mutex": Semaphore(1), "each": Rate("1000000/s").rule}
TERMS = LimitTerms(holds=(PermitTerms(),))
MIXED = LimitTerms(holds=(PermitTerms(), None))

pytestmark = pytest.mark.nightly


def held(job: NewJob, terms: LimitTerms) -> NewJob:
    return replace(job, terms=terms)


async def steps_of_a_hand_over(path: Path, waiting: int, *, a_lane_each: bool) -> int:
    """Return the most steps of a claim that hands a mutex over, with so many waiting jobs."""
    clock = ManualClock()
    async with open_store(path, clock) as storage:
        if a_lane_each:
            jobs = [
                held(new_job(("mutex", "one"), ("each", str(number)), now=clock.now()), MIXED)
                for number in range(waiting)
            ]
        else:
            jobs = [held(new_job(("mutex", "one"), now=clock.now()), TERMS) for _ in range(waiting)]
        await add(storage, jobs)
        claim: Claim = claim_for(RULES)
        meter = Meter(storage)
        claimed = await storage.claim(claim)
        while claimed.more:
            # Lanes that had not met the mutex yet go behind it.
            more = await storage.claim(claim)
            assert not more.jobs
            if not more.more:
                break
        most = 0
        running = claimed.jobs
        for _ in range(20):
            (job,) = running
            await storage.finish(claim.node, [Finished(job.id, job.fence, JobState.SUCCEEDED, result="null")])
            steps, claimed = await meter.claim(claim)
            running = claimed.jobs
            most = max(most, steps)
        assert await storage.check() == []
        return most


@pytest.mark.parametrize("a_lane_each", [False, True])
async def test_handing_a_mutex_over_costs_the_same_however_many_wait(tmp_path: Path, a_lane_each: bool) -> None:
    few = await steps_of_a_hand_over(tmp_path / "few.db", 100, a_lane_each=a_lane_each)
    many = await steps_of_a_hand_over(tmp_path / "many.db", 10_000, a_lane_each=a_lane_each)
    assert many <= 1.5 * few + 200, (few, many)


APP = """
    import asyncio, os, sys
    from headgate import Headgate, Mutex

    app = Headgate("sqlite:///jobs.db", lease=2, heartbeat=0.5)


    @app.task(limits=[Mutex("resource", hold="until_final")])
    async def work(name: str) -> None:
        with open("run_log", "a") as run_log:
            run_log.write(f"{name} begins in {os.getpid()}\\n")
        if name == "first" and not os.path.exists("was-killed"):
            await asyncio.Event().wait()
        with open("run_log", "a") as run_log:
            run_log.write(f"{name} ends\\n")
"""


async def test_the_permit_of_a_killed_worker_is_returned_and_its_job_starts_first(
    tmp_path: Path, children: Children
) -> None:
    (tmp_path / "jobs_app.py").write_text(textwrap.dedent(APP))
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(limits=[Mutex("resource", hold="until_final")])
    async def work(name: str) -> None: ...

    async with app.open():
        await work.enqueue_many([("first",), ("second",)])

    run_log = tmp_path / "run_log"
    run_log.touch()
    first = await children.start("headgate_worker.py", folder=str(tmp_path), target="jobs_app:app")
    await until(lambda: "first begins" in run_log.read_text())
    (tmp_path / "was-killed").touch()
    await first.kill()
    await children.start("headgate_worker.py", folder=str(tmp_path), target="jobs_app:app")
    await until(lambda: "second ends" in run_log.read_text())
    lines = [line.split(" in ")[0] for line in (tmp_path / "run_log").read_text().splitlines()]
    assert lines == ["first begins", "first begins", "first ends", "second begins", "second ends"]


async def test_a_real_engine_runs_ten_thousand_jobs_behind_a_mutex_in_order(tmp_path: Path) -> None:
    """As many as there is time for: what counts is the order, and that a release is followed by the next start."""
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    order: list[int] = []
    done = asyncio.Event()

    @app.task(limits=[Mutex("one"), RateLimit("1000000/s", key="{number}")])
    async def work(number: int) -> None:
        order.append(number)
        if len(order) == 300:
            done.set()

    async with app.open():
        await work.enqueue_many([(number,) for number in range(10_000)])
    async with app:
        await asyncio.wait_for(done.wait(), patient(30))
    assert order == sorted(order)
