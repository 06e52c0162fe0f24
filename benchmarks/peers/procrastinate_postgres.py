"""procrastinate with psycopg: a worker runs many jobs at once on its event loop, as its how-to on concurrency says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import uvloop
from procrastinate import App, BaseRetryStrategy, PsycopgConnector, RetryDecision
from procrastinate.jobs import Job

from benchmarks.board import Board
from benchmarks.contender import Load
from benchmarks.peers.moving_window import MovingWindow


class Procrastinate:
    ended = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"

    def __init__(self, url: str, load: Load, board: Board | None = None) -> None:
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
        self._load = load
        self._app = app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=20))
        limiter = MovingWindow(load.count, load.per) if load.count else None

        @app.task(name="noop")
        async def noop(number: int) -> None:
            assert board is not None
            board.begin(number)

        @app.task(name="call", retry=_RetryLater())
        async def call(number: int, tenant: str) -> None:
            assert board is not None
            assert limiter is not None
            board.attempt()
            if seconds := limiter.wait(tenant):
                raise _Later(seconds)
            board.begin(number)
            await asyncio.sleep(load.work)
            board.end(number)

        self._noop, self._call = noop, call

    async def install(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self._app.open_async():
            yield

    async def enqueue(self, number: int) -> None:
        await self._noop.defer_async(number=number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        arguments: list[dict[str, Any]] = [{"number": number} for number in numbers]
        await self._noop.batch_defer_async(*arguments)

    async def enqueue_for(self, jobs: Sequence[tuple[int, str]]) -> None:
        arguments: list[dict[str, Any]] = [{"number": number, "tenant": tenant} for number, tenant in jobs]
        await self._call.batch_defer_async(*arguments)

    def work(self) -> None:
        async def run() -> None:
            async with self._app.open_async():
                await self._app.run_worker_async(concurrency=self._load.slots)

        uvloop.run(run())


class _Later(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class _RetryLater(BaseRetryStrategy):
    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        if not isinstance(exception, _Later):
            return None
        # Among equals the lower id goes first: without this, those that come back kept all others waiting forever.
        return RetryDecision(retry_at=datetime.now(UTC) + timedelta(seconds=exception.seconds), priority=-1)
