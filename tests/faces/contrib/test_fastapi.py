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

from headgate import Headgate, HeadgateError, NotOpen, StorageUnavailable, StrictRate
from headgate.clock import SystemClock
from headgate.contrib.fastapi import health, lifespan, problems
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing import manual
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
            assert (without.status_code, without.json()["reason"]) == (
                503,
                "the worker of this process sends no heartbeat",
            )
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


def answering(jobs: Headgate, work: Callable[[], Awaitable[object]]) -> httpx.AsyncClient:
    """A client of an application whose only endpoint does this work."""
    api = FastAPI()
    api.add_exception_handler(HeadgateError, problems(jobs))

    @api.get("/")
    async def endpoint() -> object:
        return await work()

    return client_of(api)


async def test_errors_that_a_client_can_act_on_are_problems() -> None:
    jobs = Headgate("memory://")
    jobs.queue("small", max_backlog=1, when_full="raise")

    @jobs.task
    async def fails(password: str) -> None:
        raise ValueError(f"wrong {password}")

    @jobs.task(queue="small")
    async def work() -> None: ...

    @jobs.task(unique_key="acme", on_conflict="raise")
    async def once() -> None: ...

    async def answer(doing: Callable[[], Awaitable[object]]) -> tuple[int, str, str, str | None]:
        async with answering(jobs, doing) as client:
            got = await client.get("/")
        assert got.headers["content-type"] == "application/problem+json"
        problem = got.json()
        return got.status_code, problem["type"].partition("#")[2], problem["detail"], got.headers.get("retry-after")

    with manual(jobs) as bench:
        failed, cancelled = await fails.using(retry=None).enqueue("hunter2!"), await once.enqueue()
        await bench.drain(until="idle", raising=False)
        cancelled = await once.enqueue()
        assert await answer(once.enqueue) == (
            409, "duplicate_job", f"nothing was stored: job {cancelled.id} is there already", None,
        )  # fmt: skip
        await cancelled.cancel()
        await work.enqueue()
        said = "nothing was stored: as many jobs wait as this queue allows; try again later"
        assert await answer(work.enqueue) == (503, "queue_full", said, "5")
        assert await answer(failed.result) == (409, "job_failed", f"job {failed.id} failed", None)
        assert await answer(cancelled.result) == (409, "job_cancelled", f"job {cancelled.id} was cancelled", None)
        assert (await answer(jobs.job("none").status))[:2] == (404, "job_not_found")
        assert (await answer(jobs.batch("none").status))[:2] == (404, "batch_not_found")
        assert (await answer(lambda: jobs.admin.run_now(failed.id)))[:2] == (409, "illegal_transition")


async def test_a_job_whose_limit_lets_it_not_wait_is_429_with_the_time_until_it_may_start() -> None:
    jobs = Headgate("memory://")

    @jobs.task(limits=[StrictRate("1/m", margin=0, max_wait=10)])
    async def report() -> None: ...

    async def order() -> None:
        job = await report.enqueue()
        if (await job.status()).state == "failed":
            await job.result()

    with manual(jobs) as bench:
        async with answering(jobs, order) as client:
            assert (await client.get("/")).status_code == 200
            await bench.drain()
            await bench.travel(seconds=20)
            refused = await client.get("/")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "40")
    assert refused.json()["detail"] == "too many jobs at once; try again in 40 s"


async def test_a_store_that_does_not_answer_is_503_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def away() -> None:
        raise StorageUnavailable("connection to db.internal refused")

    async with answering(Headgate("memory://"), away) as client:
        answer = await client.get("/")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "db.internal" not in answer.text
    assert caplog.messages == ["a request is answered with 503: connection to db.internal refused"]


async def test_mistakes_of_the_program_stay_errors_of_the_server() -> None:
    jobs = Headgate("memory://")

    @jobs.task
    async def work() -> None: ...

    async with answering(jobs, work.enqueue) as client:
        with pytest.raises(NotOpen):
            await client.get("/")


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
