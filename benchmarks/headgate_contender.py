"""Headgate as one of the contenders: the worker is the one of `headgate worker`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.board import Board
from benchmarks.contender import Load
from headgate import Headgate, RateLimit, StrictRate
from headgate.cli.main import main


class HeadgateContender:
    ended = "SELECT count(*) FROM headgate.job WHERE state = 'succeeded'"

    def __init__(self, url: str, load: Load, board: Board | None = None) -> None:
        self.app = app = Headgate(url, concurrency=load.slots, migrate=True)
        tenant_limit = StrictRate(load.count, per=load.per, key="{tenant}") if load.count else None

        @app.task(name="noop")
        async def noop(number: int) -> None:
            assert board is not None
            board.begin(number)

        @app.task(name="keyed", limits=[RateLimit("1000/s", key="{key}")])
        async def keyed(number: int, key: int) -> None:
            assert board is not None
            board.begin(number)

        @app.task(name="call", limits=[tenant_limit] if tenant_limit else [])
        async def call(number: int, tenant: str) -> None:
            assert board is not None
            board.attempt()
            board.begin(number)
            await asyncio.sleep(load.work)
            board.end(number)

        self._noop, self._keyed, self._call = noop, keyed, call

    async def install(self) -> None:
        async with self.app.open():
            pass

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self.app.open():
            yield

    async def enqueue(self, number: int) -> None:
        await self._noop.enqueue(number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._noop.enqueue_many([(number,) for number in numbers])

    async def enqueue_keyed(self, numbers: Sequence[int], keys: int) -> None:
        """Each uses one of so many budgets that are never used up."""
        await self._keyed.enqueue_many([(number, number % keys) for number in numbers])

    async def enqueue_for(self, jobs: Sequence[tuple[int, str]]) -> None:
        await self._call.enqueue_many(list(jobs))

    def work(self) -> None:
        global app
        app = self.app
        # The command finds the app by the name of this module.
        main(["worker", "benchmarks.headgate_contender:app", "--log-level", "warning"])


app: Headgate
