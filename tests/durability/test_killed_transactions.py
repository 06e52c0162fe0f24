"""Workers killed while their jobs complete in transactions: each job has written its rows exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
import pytest

from tests.durability.paying_worker import paying_app
from tests.durability.processes import Children
from tests.until import patient, result_within

ROUNDS = 2
"""Three lost attempts would rightly fail a job."""

pytestmark = pytest.mark.nightly


class Payments:
    """The table of the user, beside the jobs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.table = "public.payment" if url.startswith("postgres") else "payment"

    async def execute(self, sql: str) -> list[int]:
        if self.url.startswith("postgres"):
            connection = await asyncpg.connect(self.url)
            try:
                return [row[0] for row in await connection.fetch(sql)]
            finally:
                await connection.close()
        with (
            contextlib.closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=patient(30))) as file,
            file,
        ):
            return [row[0] for row in file.execute(sql)]


@pytest.fixture(params=["sqlite", "postgres"])
def payments(request: pytest.FixtureRequest, database: Path) -> Payments:
    if request.param == "sqlite":
        return Payments(f"sqlite:///{database}")
    return Payments(request.getfixturevalue("postgres").url)


@pytest.mark.parametrize("point", ["begun", "written", "committed", None])
async def test_the_rows_of_killed_attempts_are_written_exactly_once(
    payments: Payments, point: str | None, children: Children
) -> None:
    random = Random(point)
    app = paying_app(payments.url, payments.table)
    pay = app.tasks.get("pay")
    assert pay is not None
    held: list[str] = []
    async with app.open():
        await payments.execute(f"CREATE TABLE {payments.table} (number integer)")
        jobs: list[Any] = []
        workers = []
        for _ in range(ROUNDS):
            worker = await children.start("paying_worker.py", url=payments.url, table=payments.table, hold=point)
            workers.append(worker)
            jobs += await pay.enqueue_many([(len(jobs) + number,) for number in range(25)])
            if point is None:
                await worker.wait_for_line("runs")
                await asyncio.sleep(random.uniform(0, 0.2))
            else:
                _, job = await worker.wait_for_line("at")
                held.append(job)
            await worker.kill()
        last = await children.start("paying_worker.py", url=payments.url, table=payments.table)
        workers.append(last)
        await asyncio.gather(*(result_within(job, 60) for job in jobs))
        rows = Counter(await payments.execute(f"SELECT number FROM {payments.table}"))
        assert rows == dict.fromkeys(range(len(jobs)), 1)
        await last.kill()
        if point == "committed":
            # A job that is held in round 2 may have been begun, and lost, in round 1.
            for number, job in enumerate(held):
                runs = Counter(ran for worker in workers[number:] for (ran,) in worker.lines_with("runs"))
                assert runs[job] == 1, "a job that was complete must not run again"
