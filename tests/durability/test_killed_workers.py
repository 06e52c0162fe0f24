"""Workers killed with SIGKILL at every point of a job's life: nothing is lost, nothing is finished twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from headgate import Job, StrictRate
from headgate.clock import SystemClock
from headgate.jobs.job import JobState
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.processes import Children
from tests.durability.run_log import count_endings, damage, endings, most_in_a_window, read_run_log, runs_by_job
from tests.durability.worker import MARGIN, PER, RATE
from tests.internals import app_on
from tests.until import result_within

ROUNDS = 10
KEYS = ("acme", "globex", "initech", "umbrella")

pytestmark = pytest.mark.nightly


class Enqueuer:
    """The parent's own app on the file: it only enqueues and looks."""

    def __init__(self, path: Path) -> None:
        self.storage = SqliteStorage(path, SystemClock())
        self.app = app_on(self.storage)

        @self.app.task(limits=[StrictRate(RATE, per=PER, margin=MARGIN, key="{key}", name="calls")])
        async def record(key: str) -> None: ...

        @self.app.task
        async def die() -> None: ...

        self.record = record
        self.die = die


@pytest.mark.parametrize("point", ["claiming", "claimed", "handling", "finishing", "finished"])
async def test_a_worker_killed_at_any_point_loses_nothing_and_finishes_nothing_twice(
    point: str, database: Path, tmp_path: Path, children: Children
) -> None:
    run_log = tmp_path / "run_log"
    random = Random(point)
    local = Enqueuer(database)
    held: dict[str, int] = {}
    async with local.app.open():
        count_endings(database)
        acknowledged: list[Job[None]] = []
        for _ in range(ROUNDS):
            worker = await children.start(
                "worker.py",
                path=str(database),
                run_log=str(run_log),
                hold=point,
                skip=random.randrange(3),
                concurrency=4,
            )
            acknowledged += await local.record.enqueue_many([(random.choice(KEYS),) for _ in range(10)])
            name, jobs = await worker.wait_for_line("at")
            assert name == point
            await worker.kill()
            ran = runs_by_job(read_run_log(run_log))
            for job in jobs:
                held[job] = ran[job]
                record = await local.storage.job(job)
                assert record is not None
                assert record.state == {"claiming": "waiting", "finished": "succeeded"}.get(point, "running")

        # A process that is gone is taken over at once, not after its lease, which no test would wait for.
        last = await children.start("worker.py", path=str(database), run_log=str(run_log), lease=3600)
        await last.wait_for_line("NodeLost")
        await asyncio.gather(*(result_within(job, 30) for job in acknowledged))

        for job in acknowledged:
            record = await local.storage.job(job.id)
            assert record is not None
            assert record.state is JobState.SUCCEEDED
        lost = {job: [a.outcome for a in await local.storage.attempts(job)].count("lost") for job in held}
        assert await local.storage.check() == []
    await last.kill()

    lines = read_run_log(run_log)
    runs = runs_by_job(lines)
    ids = {job.id for job in acknowledged}
    assert set(runs) == ids
    assert endings(database) == dict.fromkeys(ids, 1)
    for job, ran_before in held.items():
        match point:
            case "claiming":
                assert runs[job] - ran_before >= 1
            case "claimed" | "handling" | "finishing":
                assert runs[job] - ran_before >= 1
                assert lost[job] >= 1
            case "finished":
                assert runs[job] == ran_before, "its end was on the disk, so it is not run again"

    # Charges are exact; a handler's own clock is read a little later, which the rule's margin is there for.
    assert most_in_a_window(lines, PER + MARGIN, "started") <= RATE
    assert most_in_a_window([line for line in lines if line.at - line.started < MARGIN], PER, "at") <= RATE
    assert damage(database) == "ok"


async def test_a_job_that_kills_its_worker_every_time_is_not_run_for_ever(
    database: Path, tmp_path: Path, children: Children
) -> None:
    local = Enqueuer(database)
    async with local.app.open():
        job = await local.die.enqueue()
        for attempt in range(3):
            worker = await children.start("worker.py", path=str(database), run_log=str(tmp_path / "run_log"))
            assert await worker.end() == -9, f"attempt {attempt + 1} should have taken the process along"
        last = await children.start("worker.py", path=str(database), run_log=str(tmp_path / "run_log"))
        _node, returned, poisonous = await last.wait_for_line("NodeLost")
        assert (returned, poisonous) == (0, 1)
        record = await local.storage.job(job.id)
        assert record is not None
        assert record.state is JobState.FAILED
        assert record.error is not None
        assert record.error.type == "PoisonousJob"
        assert [attempt.outcome for attempt in await local.storage.attempts(job.id)] == ["lost"] * 3
