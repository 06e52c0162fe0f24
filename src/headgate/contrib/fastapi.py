"""Headgate in a FastAPI or Starlette application: open while it runs, with or without a worker in its process.

api = FastAPI(lifespan=lifespan(jobs))                 # enqueues and reads; jobs run in `headgate worker`
api = FastAPI(lifespan=lifespan(jobs, worker=True))    # runs them in this process, too
api.add_route("/healthz", health(jobs))
api.add_exception_handler(HeadgateError, problems(jobs))   # 404, 409, 429 and 503 instead of 500
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from headgate import Headgate
from headgate.errors import (
    DuplicateJob,
    IdInUse,
    IllegalTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobSkipped,
    LimitRejected,
    NotOpen,
    QueueFull,
    StorageUnavailable,
    needing,
)

with needing("headgate.contrib.fastapi needs", "starlette", install="fastapi, or starlette"):
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response

_ENDED: Mapping[type, str] = {JobFailed: "failed", JobCancelled: "was cancelled", JobSkipped: "was skipped"}

logger = logging.getLogger("headgate")

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


def problems(jobs: Headgate) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return a handler that answers errors: `api.add_exception_handler(HeadgateError, problems(jobs))`.

    The answer is a problem (RFC 9457) whose detail is for clients: no arguments, no errors of your handlers. 404: the
    job or batch is not stored. 409: another job has the unique key or the id; or a job whose result you read, or that
    you change, is in another state. 429: a limit lets no job wait. 503: a queue is full, or the store does not answer.
    The last two have `Retry-After`. It raises all other errors again, because only the program can be wrong.
    """
    from headgate.http.http_error import RETRY_AFTER, HttpError, code_of, try_later

    async def answer(_request: Request, error: Exception) -> Response:
        refused = error.__cause__ if isinstance(error.__cause__, LimitRejected) else error
        headers = try_later(RETRY_AFTER)
        match refused:
            case LimitRejected(opens_at=opens_at):
                if opens_at is not None:
                    headers = try_later((opens_at - jobs.admin.now()).total_seconds())
                status, detail = 429, f"too many jobs at once; try again in {headers['Retry-After']} s"
            case QueueFull():
                status, detail = 503, "nothing was stored: as many jobs wait as this queue allows; try again later"
            case StorageUnavailable():
                logger.warning("a request is answered with 503: %s", refused)
                status, detail = 503, "the jobs cannot be reached; try again later"
            case JobNotFound():
                status, detail = 404, str(refused)
            case IllegalTransition():
                status, detail = 409, str(refused)
            case DuplicateJob(job_id=job) | IdInUse(job_id=job):
                status, detail = 409, f"nothing was stored: job {job} is there already"
            case JobFailed(job_id=job) | JobCancelled(job_id=job) | JobSkipped(job_id=job):
                status, detail = 409, f"job {job} {_ENDED[type(refused)]}"
            case _:
                raise error
        return HttpError(status, code_of(refused), detail, headers=headers if status > 409 else None).response()

    return answer


async def _trouble(jobs: Headgate, *, worker: bool) -> str | None:
    try:
        nodes = await jobs.admin.nodes()
    except NotOpen:
        return "the app is not open, or its worker has crashed"
    except StorageUnavailable:
        return "the store does not answer"
    own = None if jobs._node is None else jobs._node.id
    if worker and not any(node.id == own and node.state == "alive" for node in nodes):
        return "the worker of this process sends no heartbeat"
    return None
