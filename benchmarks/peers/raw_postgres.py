"""The same work in plain asyncpg, without a library: what PostgreSQL and the way to it allow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import uvloop

from benchmarks.board import Board
from benchmarks.contender import Load

BATCH = 100

SCHEMA = """
CREATE TABLE job (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    task text NOT NULL,
    payload text NOT NULL,
    state text NOT NULL DEFAULT 'waiting',
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    result text
);
CREATE INDEX job_waiting ON job (id) WHERE state = 'waiting';
"""
INSERT = "INSERT INTO job (task, payload) SELECT 'noop', * FROM unnest($1::text[])"
INSERT_AND_NOTIFY = "WITH sent AS (SELECT pg_notify('job', '')), " + (
    "added AS (INSERT INTO job (task, payload) VALUES ('noop', $1)) SELECT * FROM sent"
)
CLAIM = """
UPDATE job SET state = 'running', started_at = now()
WHERE id = ANY(
    ARRAY(SELECT id FROM job WHERE state = 'waiting' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
)
RETURNING id, payload
"""
FINISH = """
UPDATE job SET state = 'succeeded', finished_at = now(), result = 'null'
WHERE id = ANY($1::bigint[]) AND state = 'running'
"""


class RawPostgres:
    """A connection claims, another one finishes; each statement commits by itself. NOTIFY is part of the enqueue."""

    ended = "SELECT count(*) FROM job WHERE state = 'succeeded'"

    def __init__(self, url: str, load: Load, board: Board | None = None) -> None:
        self._url = url
        self._board = board

    async def install(self) -> None:
        connection = await asyncpg.connect(self._url)
        await connection.execute(SCHEMA)
        await connection.close()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with asyncpg.create_pool(self._url, min_size=4, max_size=20) as self._pool:
            yield

    async def enqueue(self, number: int) -> None:
        await self._pool.execute(INSERT_AND_NOTIFY, _payload(number))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._pool.execute(INSERT, [_payload(number) for number in numbers])

    async def enqueue_for(self, jobs: Sequence[tuple[int, str]]) -> None:
        raise NotImplementedError("jobs of tenants have budgets, which plain SQL has not")

    def work(self) -> None:
        uvloop.run(self._run())

    async def _run(self) -> None:
        board = self._board
        assert board is not None
        connection = await asyncpg.connect(self._url)
        notified = asyncio.Event()
        await connection.add_listener("job", lambda *_: notified.set())
        begun: asyncio.Queue[int] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._finish(begun))
            while True:
                notified.clear()
                rows = await connection.fetch(CLAIM, BATCH)
                for row in rows:
                    board.begin(json.loads(row["payload"])["number"])
                    begun.put_nowait(row["id"])
                if not rows:
                    await notified.wait()

    async def _finish(self, begun: asyncio.Queue[int]) -> None:
        connection = await asyncpg.connect(self._url)
        while True:
            ids = [await begun.get()]
            while not begun.empty():
                ids.append(begun.get_nowait())
            await connection.execute(FINISH, ids)


def _payload(number: int) -> str:
    return json.dumps({"number": number})
