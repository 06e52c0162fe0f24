"""Headgate in a FastAPI or Starlette application: open while it runs, with or without a worker in its process.

api = FastAPI(lifespan=lifespan(jobs))                 # enqueues and reads; jobs run in `headgate worker`
api = FastAPI(lifespan=lifespan(jobs, worker=True))    # runs them in this process, too
api.add_route("/healthz", health(jobs))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from headgate import DeclarationError, Headgate, NotOpen, StorageUnavailable

try:
    from starlette.requests import Request
    from starlette.responses import JSONResponse
except ModuleNotFoundError as error:
    if error.name != "starlette":
        raise
    raise DeclarationError(
        "headgate.contrib.fastapi needs the starlette package, which is missing; pip install fastapi, or starlette"
    ) from None

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]
"""The `lifespan=` argument of FastAPI and Starlette: a context that is open while the application runs."""

OwnLifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
"""A lifespan as applications write it: it may yield nothing."""


def lifespan(jobs: Headgate, inner: OwnLifespan | None = None, *, worker: bool = False) -> Lifespan:
    """Keep `jobs` open while the application runs: `FastAPI(lifespan=lifespan(jobs))`.

    With `worker=True` this process also runs jobs; when the server stops, running ones get the app's `grace` (30 s) to
    end, and the others are returned. `inner` is the application's own lifespan: it begins when the app is open and
    ends before the app is closed, and what it yields is the state of requests.
    """

    @asynccontextmanager
    async def opened(api: Any) -> AsyncIterator[Mapping[str, Any]]:
        # Enqueueing by `.sync` during imports has opened it on another event loop than this one.
        await asyncio.to_thread(jobs.sync.close)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(jobs if worker else jobs.open())
            state = None if inner is None else await stack.enter_async_context(inner(api))
            yield state or {}

    return opened


def health(jobs: Headgate, *, worker: bool = False) -> Callable[[Request], Awaitable[JSONResponse]]:
    """Return a route that reports whether this process can enqueue: `api.add_route("/healthz", health(jobs))`.

    200 if the store answers, and with `worker=True` if this process also has a node with a current heartbeat; else 503,
    with the reason. Serve it only where it may be known that the process exists.
    """

    async def healthz(_request: Request) -> JSONResponse:
        reason = await _trouble(jobs, worker=worker)
        if reason is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "unavailable", "reason": reason}, status_code=503)

    return healthz


async def _trouble(jobs: Headgate, *, worker: bool) -> str | None:
    try:
        nodes = await jobs.admin.nodes()
    except NotOpen:
        return "the app is not open, or its worker has crashed"
    except StorageUnavailable:
        return "the store does not answer"
    own = None if jobs._node is None else jobs._node.id
    if worker and not any(node.id == own and node.state == "alive" for node in nodes):
        return "the worker of this process does not beat"
    return None
