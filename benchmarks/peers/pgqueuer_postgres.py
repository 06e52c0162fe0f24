"""pgqueuer with asyncpg, tuned as its guide says: a connection for the worker, a pool for producers, its autovacuum."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.errors import RetryRequested
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.board import Board
from benchmarks.contender import Load
from benchmarks.peers.moving_window import MovingWindow

BATCH = 100


class Pgqueuer:
    ended = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"

    def __init__(self, url: str, load: Load, board: Board | None = None) -> None:
        logging.getLogger("pgqueuer").setLevel(logging.CRITICAL)
        self._url = url
        self._load = load
        self._board = board

    async def install(self) -> None:
        connection = await asyncpg.connect(self._url)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with asyncpg.create_pool(self._url, min_size=4, max_size=20) as pool:
            self._queries = Queries(AsyncpgPoolDriver(pool))
            yield

    async def enqueue(self, number: int) -> None:
        await self._queries.enqueue("noop", b"%d" % number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._store("noop", [b"%d" % number for number in numbers])

    async def enqueue_for(self, jobs: Sequence[tuple[int, str]]) -> None:
        await self._store("call", [json.dumps(job).encode() for job in jobs])

    async def _store(self, entrypoint: str, payloads: list[bytes | None]) -> None:
        await self._queries.enqueue([entrypoint] * len(payloads), payloads, [0] * len(payloads))

    def work(self) -> None:
        uvloop.run(self._run())

    async def _run(self) -> None:
        board, load = self._board, self._load
        assert board is not None
        limiter = MovingWindow(load.count, load.per) if load.count else None
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(self._url)))

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            assert job.payload is not None
            board.begin(int(job.payload))

        @queuer.entrypoint("call")
        async def call(job: Job) -> None:
            assert job.payload is not None
            assert limiter is not None
            number, tenant = json.loads(job.payload)
            board.attempt()
            if seconds := limiter.wait(tenant):
                raise RetryRequested(timedelta(seconds=seconds))
            board.begin(number)
            await asyncio.sleep(load.work)
            board.end(number)

        # Without a cap on its slots it is fastest; a cap has to have room for two batches.
        batch = min(BATCH, load.slots // 2) if load.slots else BATCH
        await queuer.run(batch_size=batch, max_concurrent_tasks=load.slots or None)
