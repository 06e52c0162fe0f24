"""How many commits of PostgreSQL it takes: the `xmin` of rows is the transaction that wrote them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from headgate import JobState, LeaderNotFound
from headgate.clock import SystemClock
from headgate.jobs.identity import IdSource
from headgate.jobs.job import NewJob, Origin
from headgate.storage.driver import Transaction
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.procedures import add
from headgate.storage.records import Claim, FreeSlots
from tests.durability.postgres import ask
from tests.internals import app_on
from tests.until import becomes, until

pytestmark = [pytest.mark.nightly]

TASKS = frozenset({"work"})


class CommitCounter:
    """A store, and the transactions that wrote its jobs last."""

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.schema = schema
        self.storage = PostgresStorage(url, SystemClock(), schema=schema)

    async def transactions(self, state: str) -> int:
        """How many transactions have written those that are in that state now."""
        written = f"SELECT count(DISTINCT xmin::text) FROM {self.schema}.job WHERE state = $1"
        return int(await ask(self.url, written, state))

    async def jobs(self, state: str) -> int:
        return int(await ask(self.url, f"SELECT count(*) FROM {self.schema}.job WHERE state = $1", state))


@pytest_asyncio.fixture
async def watched(postgres_url: str, postgres_schema: str) -> AsyncIterator[CommitCounter]:
    watched = CommitCounter(postgres_url, postgres_schema)
    await watched.storage.open()
    yield watched
    await watched.storage.close()


async def test_many_jobs_at_once_are_one_commit_and_single_ones_share_theirs(watched: CommitCounter) -> None:
    """The fault: each job was four round trips one after the other, and there was no way to store many at once."""
    app = app_on(watched.storage)

    @app.task
    async def work(number: int) -> int:
        return number

    async with app.open():
        await work.enqueue_many([(number,) for number in range(3000)])
        assert (await watched.jobs("waiting"), await watched.transactions("waiting")) == (3000, 1)
        await asyncio.gather(*(work.enqueue(number) for number in range(500)))
        assert await watched.jobs("waiting") == 3500
        assert await watched.transactions("waiting") <= 20
        async with app:
            await becomes(lambda: watched.jobs("succeeded"), 3500, 15)
        assert await watched.transactions("succeeded") <= 3500 / 5


async def test_more_jobs_than_one_statement_stores_in_its_time_are_stored_in_portions_all_or_none(
    watched: CommitCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: `enqueue_many` of 1,000,000 jobs met the timeout of its only statement; on SQLite it stored them."""
    monkeypatch.setattr(add, "MOST_ALONE", 5, raising=False)
    monkeypatch.setattr(add, "INSERTED_AT_ONCE", 2.1 * add.CHARACTERS_OF_JOB)
    ids, now = IdSource(), watched.storage.now()

    def new(task: str = "work") -> NewJob:
        return NewJob(
            id=ids.next(now), task=task, queue="default", payload="{}", priority=0, delayed=False, run_at=now,
            enqueued_at=now,
        )  # fmt: skip

    with pytest.raises(asyncpg.DataError):
        await watched.storage.add([*(new() for _ in range(6)), new("no\0text")])
    assert await watched.jobs("waiting") == 0
    insert, portions = add._insert, list[int]()

    async def counted(tx: Transaction, jobs: Sequence[NewJob], placed: Any) -> None:
        portions.append(len(jobs))
        await insert(tx, jobs, placed)

    monkeypatch.setattr(add, "_insert", counted)
    await watched.storage.add([new() for _ in range(7)])
    assert portions == [2, 2, 2, 1]
    assert (await watched.jobs("waiting"), await watched.transactions("waiting")) == (7, 1)


async def test_an_enqueue_that_is_refused_leaves_the_others_their_few_commits(watched: CommitCounter) -> None:
    ids, now = IdSource(), watched.storage.now()

    def new(follows: str | None = None) -> NewJob:
        origin = None if follows is None else Origin(follows=follows)
        return NewJob(
            id=ids.next(now), task="work", queue="default", payload="{}", priority=0, delayed=False, run_at=now,
            enqueued_at=now, origin=origin,
        )  # fmt: skip

    jobs = [new("nobody" if number == 333 else None) for number in range(500)]
    results = await asyncio.gather(*(watched.storage.add([job]) for job in jobs), return_exceptions=True)
    assert [number for number, result in enumerate(results) if isinstance(result, LeaderNotFound)] == [333]
    assert await watched.jobs("waiting") == 499
    assert await watched.transactions("waiting") <= 20


async def test_a_thousand_jobs_that_come_due_together_are_released_in_few_commits(watched: CommitCounter) -> None:
    """The fault: a scheduler waited for one write for each job that was due."""
    app = app_on(watched.storage, concurrency=1000)
    started: list[int] = []
    all_started = asyncio.Event()

    @app.task
    async def work(number: int) -> None:
        started.append(number)
        if len(started) == 1000:
            all_started.set()
        await asyncio.Event().wait()

    async with app.open():
        jobs = await work.using(delay=0.5).enqueue_many([(number,) for number in range(1000)])
        node = app._make_node(lambda: app._node_config(grace=0))
        running = asyncio.ensure_future(node.run())
        await until(all_started.is_set)
        assert await watched.jobs("running") == 1000
        assert await watched.transactions("running") <= 20
        node.abort()
        await running
        assert {job.state for job in await app.admin.jobs(count=500)} == {JobState.WAITING}
    assert len(jobs) == 1000


async def test_a_dead_node_is_recovered_in_one_commit_however_much_it_ran(watched: CommitCounter) -> None:
    """The fault: recovery went page by page, a write for each job, and a page that was stuck held up the rest."""
    storage, ids = watched.storage, IdSource()
    now = storage.now()
    await storage.join("dead", "d")
    await storage.add(
        [
            NewJob(
                id=ids.next(now),
                task="work",
                queue=queue,
                payload="{}",
                priority=0,
                delayed=False,
                run_at=now,
                enqueued_at=now,
            )
            for queue in ("default", "other")
            for _ in range(1000)
        ]
    )
    claim = Claim("dead", {"default": FreeSlots(1000), "other": FreeSlots(1000)}, {}, TASKS)

    async def all_run() -> bool:
        await storage.claim(claim)
        return await watched.jobs("running") == 2000

    await until(all_run)
    (dead,) = await storage.nodes()
    recovered = await storage.recover("dead", dead.beat)
    assert recovered is not None
    assert len(recovered.returned) == 2000
    assert (await watched.jobs("waiting"), await watched.transactions("waiting")) == (2000, 1)
    assert await storage.check() == []
