"""A FastAPI application as uvicorn runs it: it enqueues, and with HEADGATE_API_WORKER it also runs the jobs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request

from headgate import Headgate, JobNotFound
from headgate.contrib.fastapi import health, lifespan
from headgate.http import CallbackAuth, User, dashboard

IS_WORKER = "HEADGATE_API_WORKER" in os.environ

jobs = Headgate(synchronous="OFF", grace=5)


@jobs.task
async def sync_tenant(tenant: str, seconds: float = 0) -> str:
    await asyncio.sleep(seconds)
    return f"{tenant} by {os.getpid()}"


@asynccontextmanager
async def greeting(_: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
    yield {"greeting": "hello"}


api = FastAPI(lifespan=lifespan(jobs, greeting, worker=IS_WORKER))
api.add_route("/healthz", health(jobs, worker=IS_WORKER))
api.mount("/dashboard", dashboard(jobs, auth=CallbackAuth(lambda request: User("tests", "admin"))))


@api.post("/sync/{tenant}")
async def sync(tenant: str, seconds: float = 0) -> dict[str, str]:
    job = await sync_tenant.enqueue(tenant, seconds)
    return {"id": job.id, "pid": str(os.getpid())}


@api.get("/jobs/{id}")
async def job(id: str) -> dict[str, str]:
    try:
        return {"state": (await jobs.job(id).status()).state}
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from error


@api.get("/greeting")
async def greet(request: Request) -> str:
    greeting: str = request.state.greeting
    return greeting
