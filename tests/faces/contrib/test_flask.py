"""Flask needs nothing of its own: views are plain functions, and `.sync` is for those, in threads and after a fork."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headgate import Headgate
from tests.until import patient, result_within

ROOT = Path(__file__).parents[3]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "HEADGATE_URL": f"sqlite:///{tmp_path}/jobs.db"}


@pytest.fixture
def address(environment: dict[str, str]) -> Iterator[str]:
    """Of a server of several processes."""
    command = [sys.executable, "-m", "tests.faces.contrib.flask_server"]
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        try:
            server.communicate(timeout=patient(10))
        finally:
            server.kill()


@pytest.fixture
def worker(environment: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, "-m", "headgate", "worker", "tests.faces.contrib.flask_server:jobs"]
    worker = subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        worker.terminate()
        try:
            worker.wait(patient(10))
        finally:
            worker.kill()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures("worker")
async def test_views_of_forked_servers_enqueue_and_handlers_have_the_application_context(
    address: str, environment: dict[str, str]
) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=patient(10)) as client:

        async def post(number: int) -> str:
            answer = await client.post(f"/{'sync' if number % 2 else 'soon'}/{number}")
            return str(answer.raise_for_status().json()["id"])

        ids = await asyncio.gather(*(post(number) for number in range(40)))
        async with Headgate(environment["HEADGATE_URL"], synchronous="OFF").open() as jobs:
            results = [await result_within(jobs.job(id)) for id in ids]
        assert (await client.get(f"/jobs/{ids[0]}")).json() == {"state": "succeeded"}
        assert (await client.get("/jobs/123")).status_code == 404
    assert results == [f"{number} in tests.faces.contrib.flask_server" for number in range(40)]
