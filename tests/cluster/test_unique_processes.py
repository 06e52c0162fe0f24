"""Processes that enqueue under the same keys and ids at once store one job for each, in both databases."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headgate import Headgate
from headgate.jobs.query import JobFilter
from tests.internals import store_of

PROGRAM = """
import asyncio, sys
from uuid import NAMESPACE_URL, uuid5
from headgate import Headgate

url, schema = sys.argv[1:]
app = Headgate(url, **({"schema": schema} if schema else {}))

@app.task(unique_key="{number}", unique_for=3600)
async def once(number: int) -> None: ...

@app.task
async def own(number: int) -> None: ...

@app.task(unique_key="{number}", debounce=60, debounce_max=600)
async def debounced(number: int) -> None: ...

async def main() -> None:
    async with app.open():
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(20):
            same = own.using(id=uuid5(NAMESPACE_URL, str(number)))
            await asyncio.gather(*[call.enqueue(number) for call in (once, same, debounced) for _ in range(2)])

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The URL of a store, and the schema if it has one."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db", ""
    return request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")


@pytest.mark.nightly
async def test_of_three_processes_one_stores_the_job_of_each_key_and_id(place: tuple[str, str]) -> None:
    url, schema = place
    options: dict[str, Any] = {"schema": schema} if schema else {}
    async with Headgate(url, **options).open(migrate=True) as app:
        processes: list[asyncio.subprocess.Process] = []
        try:
            for _ in range(3):
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", PROGRAM, url, schema),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
                processes.append(process)
            for process in processes:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"ready\n"
            ended = await asyncio.gather(*[process.communicate(b"go\n") for process in processes])
            assert [process.returncode for process in processes] == [0, 0, 0], ended
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        stored = Counter(record.task for record in await store_of(app).jobs(JobFilter(count=1000)))
        assert stored == {"once": 20, "own": 20, "debounced": 20}
        assert list(await store_of(app).check()) == []
