"""Hooks run in tests as they do in production."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headgate import AttemptContext, Headgate, JobDraft, current_job
from headgate.testing import inline, live, manual
from tests.until import patient


class Hooked:
    """An app with hooks, and what they did."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.app = Headgate("sqlite:////nowhere/jobs.db")
        self.app.on_startup(self.start)
        self.app.on_shutdown(self.stop)

        @self.app.around_enqueue
        async def tag(jobs: Sequence[JobDraft], enqueue: Callable[[], Awaitable[None]]) -> None:
            for job in jobs:
                job.headers["tenant"] = "acme"
            await enqueue()

        @self.app.around_attempt
        async def shout(job: AttemptContext, run: Callable[[], Awaitable[Any]]) -> Any:
            return str(await run()).upper()

        @self.app.task
        async def inner() -> str:
            return current_job().headers["tenant"]

        @self.app.task
        async def outer() -> str:
            return (await inner.enqueue()).id

        self.inner = inner
        self.outer = outer

    async def start(self) -> None:
        self.happened.append("start")

    def stop(self) -> None:
        self.happened.append("stop")


async def test_hooks_run_where_a_test_drains() -> None:
    hooked = Hooked()
    with manual(hooked.app) as bench:
        job = await hooked.inner.using(connection=object()).enqueue()
        assert bench.assert_enqueued(hooked.inner, headers={"tenant": "acme"}).id == job.id
        assert hooked.happened == []
        await bench.drain()
        assert await job.result() == "ACME"
        assert await bench.run_job(hooked.inner) == "ACME"
    assert hooked.happened == ["start", "stop"] * 2, "each of these is a node of its own"


def test_a_job_that_runs_inside_of_another_finds_what_was_started() -> None:
    hooked = Hooked()
    with inline(hooked.app):
        hooked.outer.sync.enqueue()
    assert hooked.happened == ["start", "stop"]


def test_hooks_run_around_a_live_engine() -> None:
    hooked = Hooked()
    with live(hooked.app):
        assert hooked.happened == ["start"]
        assert hooked.inner.sync.enqueue().result(timeout=patient(10)) == "ACME"
    assert hooked.happened == ["start", "stop"]
