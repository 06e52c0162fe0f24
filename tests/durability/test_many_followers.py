"""Leaders that 100,000 jobs follow: their end is recorded at once beside others, and their followers in portions."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate import Headgate, JobFailed, JobState, batch, chain
from headgate.jobs.identity import job_number, job_text
from headgate.storage.procedures.following import FOLLOWERS_AT_ONCE
from tests.durability.postgres import ask
from tests.internals import store_of
from tests.postgres_server import PostgresServer
from tests.until import patient, result_within, until

pytestmark = pytest.mark.nightly

MANY = 100_000

SOME = 20_000

PROMPT = 10.0
"""Seconds within which an end is recorded, on a worker whose event loop is never idle: one to five on two cores. All of
the followers in one commit took half a minute, or were never recorded."""

BESIDE = 5
"""How many other jobs end one after the other, at the least, while the followers are released in a hundred portions."""


class Store:
    """A database that can be asked directly."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def _file(self) -> str:
        return self.url.removeprefix("sqlite:///")

    async def multiply(self, follower: str, count: int) -> None:
        """Store so many more jobs like this one."""
        if self.url.startswith("sqlite"):
            with sqlite3.connect(self._file, timeout=patient(30)) as connection:
                columns = [row[1] for row in connection.execute("PRAGMA table_info(job)") if row[1] != "id"]
                names = ", ".join(columns)
                connection.execute(
                    f"WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count})"
                    f" INSERT INTO job (id, {names}) SELECT id + n, {names} FROM n, job WHERE id = ?",
                    (job_number(follower),),
                )
            connection.close()
            return
        connection_ = await asyncpg.connect(self.url)
        await connection_.execute(
            "INSERT INTO headgate.job SELECT (jsonb_populate_record(job, jsonb_build_object('id', id + n))).*"
            " FROM headgate.job, generate_series(1, $2::integer) AS n WHERE id = $1",
            job_number(follower),
            count,
            timeout=patient(60),
        )
        await connection_.execute("ANALYZE headgate.job")
        await connection_.close()

    async def count(self, state: str) -> int:
        """How many jobs are stored in that state."""
        if self.url.startswith("sqlite"):
            connection = sqlite3.connect(self._file, timeout=patient(30))
            (count,) = connection.execute("SELECT count(*) FROM job WHERE state = ?", (state,)).fetchone()
            connection.close()
            return int(count)
        return int(await ask(self.url, "SELECT count(*) FROM headgate.job WHERE state = $1", state))


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, database: Path) -> Store:
    if request.param == "sqlite":
        return Store(f"sqlite:///{database}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return Store(server.url)


class ManyFollowers:
    """An app with a task that others follow, one that keeps the event loop from ever being idle, and one besides."""

    def __init__(self, url: str) -> None:
        self.app = Headgate(url, heartbeat=0.5, lease=60)

        @self.app.task
        async def leader(fails: bool = False) -> str:
            if fails:
                raise LookupError("nothing is there")
            return "done"

        @self.app.task
        async def follower() -> None: ...

        @self.app.task
        async def besides() -> None: ...

        self.leader, self.follower, self.besides = leader, follower, besides

    async def enqueue(self, store: Store, *, count: int = MANY, fails: bool = False) -> tuple[Any, Any]:
        """A leader that is due in a moment, and the first of its followers, which would start in an hour."""
        calls = (self.leader.using(delay=1).call(fails), self.follower.using(delay=3600).call())
        leader, follower = (await chain(*calls).enqueue()).jobs
        await store.multiply(follower.id, count - 1)
        return leader, follower


async def keep_busy() -> None:
    while True:
        began = time.monotonic()
        while time.monotonic() - began < 0.01:
            pass
        await asyncio.sleep(0)


async def ends_besides(crowd: ManyFollowers, until_is_over: asyncio.Future[Any]) -> int:
    """How many jobs without followers were enqueued and ended meanwhile, one after the other."""
    ended = 0
    while not until_is_over.done():
        await result_within(await crowd.besides.enqueue(), 40)
        ended += 1
    return ended


async def test_a_leader_of_100_000_that_ends_on_a_busy_worker_is_recorded_and_holds_up_no_other_end(
    store: Store,
) -> None:
    crowd = ManyFollowers(store.url)
    async with crowd.app.open():
        leader, _ = await crowd.enqueue(store)
    busy = asyncio.ensure_future(keep_busy())
    try:
        async with crowd.app:
            assert await result_within(leader, PROMPT) == "done"
            released = asyncio.ensure_future(until(lambda: is_none_left(store, "blocked"), 180))
            assert await ends_besides(crowd, released) >= BESIDE
            await released
            assert await store.count("waiting") == MANY
    finally:
        busy.cancel()
    async with crowd.app.open():
        assert await store_of(crowd.app).check() == []


async def test_a_leader_that_fails_has_its_100_000_followers_cancelled_beside_other_ends(store: Store) -> None:
    crowd = ManyFollowers(store.url)
    async with crowd.app.open():
        leader, follower = await crowd.enqueue(store, fails=True)
    async with crowd.app:
        with pytest.raises(JobFailed):
            await result_within(leader, PROMPT)
        cancelled = asyncio.ensure_future(until(lambda: is_none_left(store, "blocked"), 90))
        assert await ends_besides(crowd, cancelled) >= BESIDE
        await cancelled
        assert await store.count("cancelled") == MANY
        assert (await follower.status()).state is JobState.CANCELLED


async def test_followers_that_a_dead_process_has_not_released_are_released_by_another(store: Store) -> None:
    crowd, other = ManyFollowers(store.url), ManyFollowers(store.url)
    async with crowd.app.open():
        leader, _ = await crowd.enqueue(store, count=SOME)
    async with crowd.app:
        assert await result_within(leader, PROMPT) == "done"
    left = await store.count("blocked")
    assert 0 < left <= SOME - FOLLOWERS_AT_ONCE
    async with other.app:
        await until(lambda: is_none_left(store, "blocked"), 90)
    async with other.app.open():
        assert await store_of(other.app).check() == []
    assert await store.count("waiting") == SOME


async def test_a_job_and_100_000_that_follow_it_are_stored_in_one_commit(postgres: PostgresServer) -> None:
    crowd = ManyFollowers(postgres.url)
    async with crowd.app.open():
        calls = [crowd.follower.using(delay=3600).call()] * MANY
        enqueueing = asyncio.ensure_future(chain(crowd.leader.using(delay=3600).call(), batch(calls)).enqueue())
        counts: set[int] = set()
        while not enqueueing.done():
            counts.add(await Store(postgres.url).count("blocked"))
            await asyncio.sleep(0.2)
        await enqueueing
        assert counts <= {0, MANY}
        assert await Store(postgres.url).count("blocked") == MANY


async def test_a_chain_of_20_000_jobs_is_cancelled_with_its_batch_before_its_table_was_ever_analyzed(
    store: Store,
) -> None:
    """The fault: for each step PostgreSQL read all followers that there are, until its timeout."""
    crowd = ManyFollowers(store.url)
    async with crowd.app.open():
        stored = await batch([chain(*[crowd.follower.call()] * SOME)]).enqueue()
        assert (await crowd.app.admin.cancel_batch(stored.id, dry_run=True)).changed == SOME


async def test_explain_describes_a_follower_that_is_not_released_yet(store: Store) -> None:
    crowd = ManyFollowers(store.url)
    async with crowd.app.open():
        leader, follower = await crowd.enqueue(store, count=SOME)
        last = job_text(job_number(follower.id) + SOME - 1)
        assert "is blocked until that is final" in (await crowd.app.admin.explain(last)).reason
        await leader.cancel()
        reason = (await crowd.app.admin.explain(last)).reason
        assert reason.startswith(f"it follows {leader.id}, which is final")
    async with crowd.app:
        await until(lambda: is_none_left(store, "blocked"), 60)


async def is_none_left(store: Store, state: str) -> bool:
    await asyncio.sleep(0.2)
    return not await store.count(state)
