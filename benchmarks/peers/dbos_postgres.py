"""DBOS Transact: every job is a workflow on a queue, enqueued by its client; budgets are its `partition_limiter`."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions

from benchmarks.board import Board
from benchmarks.contender import Load

NAME = "bench"
JOBS = "jobs"
TENANTS = "tenants"

POLL = 0.05
"""Seconds between two polls of a queue. DBOS polls for workflows, every second by default."""


class Dbos:
    ended = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"

    def __init__(self, url: str, load: Load, board: Board | None = None) -> None:
        self._url = url
        self._load = load
        self._board = board

    async def install(self) -> None:
        await asyncio.to_thread(self._install)

    def _install(self) -> None:
        self._launch()
        DBOS.register_queue(JOBS, worker_concurrency=self._load.slots or None, polling_interval_sec=POLL)
        if self._load.count:
            DBOS.register_queue(
                TENANTS,
                worker_concurrency=self._load.slots,
                partition_limiter={"limit": self._load.count, "period": self._load.per},
                polling_interval_sec=POLL,
            )
        DBOS.destroy()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        # Its client enqueues in asyncio's threads, which are fewer than that on a small machine.
        self._client = await asyncio.to_thread(
            DBOSClient, system_database_url=self._url, application_name=NAME, system_database_pool_size=20
        )
        self._engine = sqlalchemy.create_engine(self._url.replace("postgresql:", "postgresql+psycopg:"))
        yield
        self._engine.dispose()
        self._client.destroy()

    async def enqueue(self, number: int) -> None:
        await self._client.enqueue_async(_noop_options(), number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        def store() -> None:
            with self._engine.begin() as connection:
                for number in numbers:
                    self._client.enqueue_in_transaction(connection, _noop_options(), number)

        await asyncio.to_thread(store)

    async def enqueue_for(self, jobs: Sequence[tuple[int, str]]) -> None:
        def store() -> None:
            with self._engine.begin() as connection:
                for number, tenant in jobs:
                    options: EnqueueOptions = {
                        "workflow_name": "call",
                        "queue_name": TENANTS,
                        "queue_partition_key": tenant,
                    }
                    self._client.enqueue_in_transaction(connection, options, number)

        await asyncio.to_thread(store)

    def work(self) -> None:
        self._launch()
        signal.pause()

    def _launch(self) -> None:
        config: DBOSConfig = {
            "name": NAME,
            "system_database_url": self._url,
            "application_version": "1",
            "executor_id": str(uuid4()),
            "log_level": "CRITICAL",
        }
        DBOS(config=config)
        board, load = self._board, self._load

        @DBOS.workflow(name="noop")
        def noop(number: int) -> None:
            assert board is not None
            board.begin(number)

        @DBOS.workflow(name="call")
        def call(number: int) -> None:
            assert board is not None
            board.attempt()
            board.begin(number)
            time.sleep(load.work)
            board.end(number)

        DBOS.launch()


def _noop_options() -> EnqueueOptions:
    return {"workflow_name": "noop", "queue_name": JOBS}
