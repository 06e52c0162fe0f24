"""An app with a bit of everything in its store, and a client that asks its dashboard in process."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx

from headgate import Concurrency, Every, Headgate, JobFailed, RetryPolicy, StrictRate, batch, chain
from headgate.http import CallbackAuth, User, dashboard
from headgate.storage.store import Store
from tests.internals import app_on
from tests.until import result_within, until

PASSWORD = "correct horse battery"
"""A value that must not be shown where `password` is redacted."""

HOSTILE = "a/b?c=<script>alert('ü&\"x\"')</script> %2F.."
"""A key and a name that must always be treated as data."""

LIMIT = "bucket/<b>\"x\"'ü' %25"
"""A limit may be called so."""

EVERYBODY = CallbackAuth(lambda request: User("local", "admin"))
"""For tests that are not about who asks."""

log = logging.getLogger("jobs.of.the.stage")


def make_app(url: str = "memory://", *, storage: Store | None = None, **settings: Any) -> Headgate:
    app = app_on(url if storage is None else storage, **settings)

    @app.task(limits=[StrictRate("1/h", key="{tenant}", name=LIMIT)])
    async def sync(tenant: str, secret: dict[str, str] | None = None) -> str:
        return tenant

    @app.task(limits=[Concurrency(2, name="permits")], queue="default")
    async def hold(tenant: str) -> None: ...

    @app.task(retry=RetryPolicy(retries=1, delay=0))
    async def login(user: str, password: str) -> None:
        log.warning("trying %s with %s", user, password)
        log.warning("password=%s", "another one")
        raise ValueError(f"wrong password {password!r} of {user}")

    @app.task
    async def answer(question: str) -> dict[str, str]:
        return {"question": question, "password": PASSWORD}

    @app.schedule(Every(hours=1))
    async def hourly() -> None: ...

    return app


@dataclass(frozen=True, slots=True)
class Seeds:
    """Ids and names of what is in the store."""

    failed: str
    succeeded: str
    throttled: str
    scheduled: str
    blocked: str
    cancelled: str
    batch: str
    schedule: str


async def has_schedules(app: Headgate) -> bool:
    """Whether a node has declared its schedules."""
    return bool(await app.admin.schedules.list())


async def seed(app: Headgate) -> Seeds:
    """Run what has to have run, and leave some of each kind behind."""
    tasks = app.tasks
    async with app:
        failed = await tasks["login"].using(headers={"password": PASSWORD, "tenant": "acme"}).enqueue("ada", PASSWORD)
        succeeded = await tasks["answer"].enqueue("why?")
        charged = await tasks["sync"].enqueue(HOSTILE)
        await result_within(succeeded)
        await result_within(charged)
        with suppress(JobFailed):
            await result_within(failed)
        # A node declares its schedules while it runs its first jobs.
        await until(lambda: has_schedules(app))
    throttled = await tasks["sync"].using(unique_key=HOSTILE).enqueue(HOSTILE, {"password": PASSWORD})
    scheduled = await tasks["answer"].using(delay=3600).enqueue("later?")
    chained = await chain(tasks["answer"].using(delay=3600).call("first"), tasks["answer"].call("then")).enqueue()
    cancelled = await tasks["answer"].enqueue("never")
    await cancelled.cancel()
    batched = await batch([tasks["answer"].call("one"), tasks["answer"].call("two")]).enqueue()
    await tasks["answer"].schedule(HOSTILE, Every(minutes=5)).enqueue("often")
    await app.admin.limits.set(LIMIT, StrictRate("2/h"), key="x")
    return Seeds(
        failed=failed.id,
        succeeded=succeeded.id,
        throttled=throttled.id,
        scheduled=scheduled.id,
        blocked=chained.jobs[1].id,
        cancelled=cancelled.id,
        batch=batched.id,
        schedule=HOSTILE,
    )


def client(
    site: Any, *, peer: str = "127.0.0.1", base_url: str = "http://localhost:8000", root_path: str = ""
) -> httpx.AsyncClient:
    """Asks an ASGI app in process, as if from that address; `root_path` is what a proxy has taken from the path."""
    transport = httpx.ASGITransport(site, client=(peer, 40_000), root_path=root_path)
    return httpx.AsyncClient(transport=transport, base_url=base_url)


@asynccontextmanager
async def browser(app: Headgate, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client that has read its session, and sends its token with all that it asks."""
    site = dashboard(app, **{"auth": EVERYBODY, **options})
    async with client(site) as caller:
        session = await caller.get("/api/v1/session")
        caller.headers["X-Headgate-Token"] = session.json()["token"]
        yield caller
    await site.close()


def problem(answer: Any) -> str:
    """The code of the problem (RFC 9457) that an answer has, which must be whole."""
    assert answer.headers["Content-Type"] == "application/problem+json", answer.headers
    stated = answer.json()
    assert stated["status"] == answer.status_code
    assert stated["title"]
    assert stated["detail"]
    return str(stated["type"]).rpartition("#")[2]
