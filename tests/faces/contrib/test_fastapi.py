"""Headgate inside a FastAPI application: its lifespan, a worker beside it and its health; also under uvicorn."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.applications import Starlette

from headgate import Headgate, NotOpen, StorageUnavailable
from headgate.clock import SystemClock
from headgate.contrib.fastapi import health, lifespan
from headgate.storage.sqlite.memory import MemoryStorage
from tests.internals import app_on
from tests.until import patient, result_within, until

ROOT = Path(__file__).parents[3]


def client_of(api: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://api")


# --------------------------------------------------------------------------------------------------------- in process


async def test_the_app_is_open_while_the_application_runs_and_no_longer() -> None:
    jobs = Headgate("memory://")

    @jobs.task
    async def work() -> int:
        return 1

    api = FastAPI(lifespan=lifespan(jobs))
    async with api.router.lifespan_context(api):
        job = await work.enqueue()
        assert (await job.status()).state == "waiting"
        assert await jobs.admin.nodes() == []
    with pytest.raises(NotOpen):
        await work.enqueue()


async def test_with_worker_it_also_runs_jobs() -> None:
    jobs = Headgate("memory://")

    @jobs.task
    async def work() -> int:
        return 1

    api = FastAPI(lifespan=lifespan(jobs, worker=True))
    async with api.router.lifespan_context(api):
        assert await result_within(await work.enqueue(), 5) == 1


async def test_an_app_that_was_used_before_the_application_started_moves_to_its_event_loop() -> None:
    jobs = Headgate("memory://")

    @jobs.task
    async def work() -> None: ...

    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    await asyncio.to_thread(work.sync.enqueue)
    api = FastAPI(lifespan=lifespan(jobs, worker=True))
    async with api.router.lifespan_context(api):
        # On another loop the worker would not be woken by jobs that threads enqueue.
        assert await asyncio.to_thread(jobs.sync.run, loop()) is asyncio.get_running_loop()


async def test_the_lifespan_of_the_application_runs_inside_that_of_the_app() -> None:
    jobs = Headgate("memory://")
    seen: list[object] = []

    @jobs.task
    async def work() -> None: ...

    @asynccontextmanager
    async def own(api: FastAPI) -> AsyncIterator[dict[str, Any]]:
        seen.append((await work.enqueue()).id)
        yield {"pool": api.title}
        seen.append((await work.enqueue()).id)

    api = FastAPI(title="shop", lifespan=lifespan(jobs, own))

    @api.get("/")
    async def pool(request: Request) -> str:
        return str(request.state.pool)

    async with api.router.lifespan_context(api) as state:
        assert state == {"pool": "shop"}
    assert len(set(seen)) == 2


async def test_an_error_of_the_lifespan_closes_the_app_and_is_raised() -> None:
    jobs = Headgate("memory://")

    @asynccontextmanager
    async def broken(_: Any) -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    api = Starlette(lifespan=lifespan(jobs, broken))
    with pytest.raises(RuntimeError, match="no database"):
        await api.router.lifespan_context(api).__aenter__()
    with pytest.raises(NotOpen):
        _ = jobs.admin


async def test_health_is_that_of_the_store_and_of_the_worker() -> None:
    jobs = Headgate("memory://")
    api = FastAPI(lifespan=lifespan(jobs))
    api.add_route("/healthz", health(jobs))
    api.add_route("/workerz", health(jobs, worker=True))
    async with client_of(api) as client:
        assert (await client.get("/healthz")).status_code == 503
        async with api.router.lifespan_context(api):
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            without = await client.get("/workerz")
            assert (without.status_code, without.json()["reason"]) == (503, "the worker of this process does not beat")
            async with jobs:
                await until(is_healthy(client, "/workerz"))


def is_healthy(client: httpx.AsyncClient, path: str = "/healthz") -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return (await client.get(path)).status_code == 200

    return ask


async def test_health_reports_a_store_that_does_not_answer() -> None:
    class Away(MemoryStorage):
        async def nodes(self) -> Any:
            raise StorageUnavailable("connection refused")

    jobs = app_on(Away(SystemClock()))
    api = FastAPI()
    api.add_route("/healthz", health(jobs))
    async with jobs.open(), client_of(api) as client:
        answer = await client.get("/healthz")
    assert (answer.status_code, answer.json()["reason"]) == (503, "the store does not answer")


# --------------------------------------------------------------------------------------------------------- by uvicorn


@contextmanager
def uvicorn(folder: Path, *options: str, worker: bool = False) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server and its address; stopped at the end, unless it has ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HEADGATE_URL": f"sqlite:///{folder}/jobs.db"}
    if worker:
        environment["HEADGATE_API_WORKER"] = "1"
    command = [sys.executable, "-m", "uvicorn", "tests.faces.contrib.api:api", "--port", "0", *options]
    server = subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = next(line for line in server.stderr if "Uvicorn running on" in line)
        yield server, next(word for word in address.split() if word.startswith("http://"))
    finally:
        try:
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
            server.communicate(timeout=patient(15))
        finally:
            server.kill()


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_server_that_stops_finishes_its_jobs_within_the_grace(tmp_path: Path) -> None:
    with uvicorn(tmp_path, worker=True) as (server, address):
        async with httpx.AsyncClient(base_url=address, timeout=patient(5)) as client:
            await until(is_healthy(client))
            assert (await client.get("/greeting")).json() == "hello"
            id = (await client.post("/sync/acme?seconds=0.5")).json()["id"]

            async def is_running() -> bool:
                return bool((await client.get(f"/jobs/{id}")).json()["state"] == "running")

            await until(is_running)
            (queue,) = (await client.get("/dashboard/api/v1/queues")).json()["items"]
            assert (queue["queue"], queue["running"]) == ("default", 1)
            # A browser that stays, for which the server would wait as long as a stream lasts.
            async with client.stream("GET", "/dashboard/api/v1/stream"):
                server.send_signal(signal.SIGTERM)
                _, said = await asyncio.to_thread(server.communicate, timeout=patient(15))
        assert "Application shutdown complete" in said, said
    async with Headgate(f"sqlite:///{tmp_path}/jobs.db").open() as jobs:
        assert await jobs.job(id).result(timeout=patient(1)) == f"acme by {server.pid}"
        assert await jobs.admin.nodes() == []


@pytest.mark.nightly
@pytest.mark.slow
async def test_several_server_processes_share_the_jobs(tmp_path: Path) -> None:
    with uvicorn(tmp_path, "--workers", "2", worker=True) as (_, address):
        async with (
            Headgate(f"sqlite:///{tmp_path}/jobs.db").open() as jobs,
            httpx.AsyncClient(base_url=address, timeout=patient(5)) as client,
        ):

            async def has_two_nodes() -> bool:
                return len(await jobs.admin.nodes()) == 2

            await until(has_two_nodes)
            ids = [(await client.post(f"/sync/{number}")).json()["id"] for number in range(8)]
            results = [await result_within(jobs.job(id)) for id in ids]
    assert [result.split()[0] for result in results] == [str(number) for number in range(8)]
