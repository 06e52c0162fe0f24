"""A deploy changes the limits of a task while jobs wait: none starts under other limits than the newest ones.

Each release is an app of its own on the same database, as each process of it would be.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate import Headgate, JobState, Mutex, RetryPolicy, StrictRate, batch, chain
from headgate.engine import backlog_migrator
from headgate.jobs.event import Event, JobNotMigrated
from tests.internals import store_of
from tests.until import result_within, until

pytestmark = pytest.mark.nightly

TWO_AN_HOUR = StrictRate("2/h")


class Releases:
    """Releases of one program on one database, and the jobs that have started, by what they were given."""

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        self.url = url
        self.settings = {"heartbeat": 0.25, "lease": 30, "synchronous": "OFF", **settings}
        self.started: list[int] = []
        self.fails = False

    def release(self, *limits: Any, **queue: Any) -> Headgate:
        app = Headgate(self.url, **self.settings)
        if queue:
            app.queue("default", **queue)

        @app.task(name="call", limits=limits, retry=RetryPolicy(retries=5, delay=0.5))
        async def call(number: int, tenant: str = "acme") -> None:
            self.started.append(number)
            if self.fails:
                raise ValueError("not now")

        @app.task(name="first")
        async def first() -> None: ...

        return app

    async def enqueue(self, app: Headgate, count: int, **options: Any) -> Sequence[Any]:
        async with app.open():
            return await app.tasks["call"].using(**options).enqueue_many([(number,) for number in range(count)])

    async def rows(self, sql: str) -> list[Any]:
        if self.url.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file:
                return file.execute(sql).fetchall()
        connection = await asyncpg.connect(self.url, server_settings={"search_path": self.settings["schema"]})
        try:
            return list(await connection.fetch(sql))
        finally:
            await connection.close()

    async def has_limit_sets(self, count: int) -> bool:
        """Whether this number of releases has stored its limit set of the task."""
        return len(await self.rows("SELECT 1 FROM task_limit_set WHERE task = 'call@default'")) == count

    async def has_declared(self, count: int) -> bool:
        """Whether this number of releases has stored its rule of the task's limit."""
        return len(await self.rows("SELECT 1 FROM task_limit_set WHERE task = 'limit call:rate'")) == count

    async def are_in_one_lane(self) -> bool:
        return len(await self.rows("SELECT DISTINCT lane FROM job WHERE state = 'waiting'")) == 1

    async def nothing_more_starts(self, most: int, seconds: float = 2.0) -> None:
        """That none starts can only be seen by waiting for it."""
        await asyncio.sleep(seconds)
        assert len(self.started) <= most


@pytest.fixture(params=["sqlite", "postgres"])
def releases(request: pytest.FixtureRequest, tmp_path: Path) -> Releases:
    if request.param == "sqlite":
        return Releases(f"sqlite:///{tmp_path}/jobs.db", {})
    schema = request.getfixturevalue("postgres_schema")
    return Releases(request.getfixturevalue("postgres_url"), {"schema": schema})


@pytest.mark.parametrize("has_worked", [True, False], ids=["after a worker", "after none"])
async def test_a_limit_added_by_a_deploy_holds_for_all_of_the_backlog(releases: Releases, *, has_worked: bool) -> None:
    older, newer = releases.release(), releases.release(TWO_AN_HOUR)
    if has_worked:
        async with older:
            await asyncio.sleep(0.3)
    jobs = await releases.enqueue(older, 5000)
    async with newer:
        await releases.nothing_more_starts(2, 4)
        assert len(releases.started) == 2
        # The first ones go first: moved jobs keep their places. They run at the same time, and on a busy machine either
        # may move its charge to a later start, so the order of the two calls is not told.
        assert sorted(releases.started) == [0, 1]
        # What an old web process enqueues afterwards has to wait as well.
        await releases.enqueue(older, 50)
        await releases.nothing_more_starts(2)
        await until(lambda: _is_throttled(newer, jobs[-1].id), 60)
        assert await store_of(newer).check() == []
    assert len(releases.started) == 2


async def _is_throttled(app: Headgate, id: str) -> bool:
    status = await app.job(id).status()
    return status.state is JobState.WAITING and status.waits_for is not None


async def test_an_old_worker_that_runs_beside_the_new_one_starts_nothing_under_the_old_limits(
    releases: Releases,
) -> None:
    older, newer = releases.release(), releases.release(TWO_AN_HOUR)
    async with older:
        await result_within((await releases.enqueue(older, 1))[0])
        async with newer:
            await until(lambda: releases.has_limit_sets(2))
            await releases.enqueue(older, 50)
            await releases.enqueue(newer, 50)
            await releases.nothing_more_starts(3, 4)
            # The old one does not take them back.
            await until(lambda: releases.are_in_one_lane(), 20)
            await releases.nothing_more_starts(3, 1)
    assert len(releases.started) == 3


async def test_a_deploy_that_raises_a_limit_starts_the_keys_that_wait(releases: Releases) -> None:
    old = releases.release(StrictRate("2/h", key="{tenant}"))
    await releases.enqueue(old, 5)
    async with old:
        await until(lambda: len(releases.started) == 2, 10)
    async with releases.release(StrictRate("4/h", key="{tenant}")):
        await until(lambda: len(releases.started) == 4, 10)


async def test_a_lowered_limit_holds_for_workers_of_the_older_release_too(releases: Releases) -> None:
    old, new = (releases.release(StrictRate(rate, key="{tenant}")) for rate in ("4/h", "2/h"))
    async with old:
        await until(lambda: releases.has_declared(1), 10)
        async with new:
            await until(lambda: releases.has_declared(2), 10)
            await old.tasks["call"].enqueue_many([(number,) for number in range(5)])
            await until(lambda: len(releases.started) == 2, 10)
            await releases.nothing_more_starts(2)


async def test_the_backlog_starts_when_a_deploy_removes_a_limit(releases: Releases) -> None:
    older, newer = releases.release(TWO_AN_HOUR), releases.release()
    await releases.enqueue(older, 1000)
    async with older:
        await until(lambda: len(releases.started) == 2)
    async with newer:
        await until(lambda: len(releases.started) == 1000, 20)
        # And what an old web process enqueues afterwards, as soon as it is looked for.
        await releases.enqueue(older, 5)
        await until(lambda: len(releases.started) == 1005, 20)


async def test_the_backlog_waits_by_the_new_key_when_a_deploy_changes_it(releases: Releases) -> None:
    older = releases.release(StrictRate("2/h", name="api"))
    newer = releases.release(StrictRate("2/h", name="api", key="{tenant}"))
    async with older.open():
        call = older.tasks["call"]
        await call.enqueue_many([call.call(number, f"tenant {number % 3}") for number in range(300)])
    async with newer:
        await until(lambda: len(releases.started) == 6, 20)
        await releases.nothing_more_starts(6)


async def test_after_a_rollback_the_backlog_waits_under_the_older_limits_again(
    releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_migrator, "NOTE_EVERY", 0.3)
    monkeypatch.setattr(backlog_migrator, "LIVE_FOR", 2_000_000)
    older, newer = releases.release(StrictRate("2/h", name="old")), releases.release(StrictRate("3/h", name="new"))
    await releases.enqueue(older, 100)
    async with older:
        await until(lambda: len(releases.started) == 2)
    async with newer:
        await until(lambda: len(releases.started) == 5)
        await releases.enqueue(newer, 10)
    async with older:
        # The newer release may only have paused: for a while nothing starts, and then what the older one allows.
        await releases.nothing_more_starts(5, 6)
        assert await releases.are_in_one_lane()


async def test_a_retry_of_a_job_that_ran_before_the_deploy_waits_under_the_new_limits(releases: Releases) -> None:
    older, newer = releases.release(), releases.release(TWO_AN_HOUR)
    releases.fails = True
    async with older:
        await releases.enqueue(older, 20)
        await until(lambda: len(releases.started) == 20)
    releases.fails = False
    releases.started.clear()
    async with newer:
        await until(lambda: len(releases.started) == 2)
        await releases.nothing_more_starts(2)


async def test_jobs_that_were_blocked_at_the_deploy_are_released_under_the_new_limits(releases: Releases) -> None:
    older, newer = releases.release(), releases.release(TWO_AN_HOUR)
    async with older.open():
        call = older.tasks["call"]
        for number in range(10):
            await chain(older.tasks["first"].call(), call.call(number)).enqueue()
    async with newer:
        await until(lambda: len(releases.started) == 2)
        await releases.nothing_more_starts(2)
        # So are those whose chains an old web process enqueues afterwards.
        async with older.open():
            await chain(older.tasks["first"].call(), older.tasks["call"].call(99)).enqueue()
        await releases.nothing_more_starts(2)


async def test_the_jobs_of_a_batch_keep_what_it_holds_and_wait_under_the_new_limits(releases: Releases) -> None:
    older, newer = releases.release(), releases.release(TWO_AN_HOUR)
    async with older.open():
        calls = [older.tasks["call"].call(number) for number in range(10)]
        await batch(calls, limits=[Mutex("nightly")]).enqueue()
        await batch([older.tasks["call"].call(99)], limits=[Mutex("nightly")]).enqueue()
    async with newer:
        await until(lambda: len(releases.started) == 2)
        await releases.nothing_more_starts(2)
        assert 99 not in releases.started
        assert await store_of(newer).check() == []


async def test_a_job_whose_new_limits_cannot_be_computed_waits_and_is_reported(releases: Releases) -> None:
    older, newer = releases.release(), releases.release(StrictRate("2/h", key="{number}"))
    (job,) = await releases.enqueue(older, 1)
    payload = '{"numbers": 1}'
    if releases.url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(releases.url.removeprefix("sqlite:///"))) as connection:
            connection.execute("UPDATE job SET payload = ?", (payload,))
            connection.commit()
    else:
        await releases.rows(f"UPDATE job SET payload = '{payload}' RETURNING id")
    alarms: list[Event] = []
    newer.subscribe(alarms.append, JobNotMigrated)
    async with newer:
        await until(lambda: bool(alarms))
        others = await releases.enqueue(newer, 20)
        await result_within(others[-1])
        assert (await newer.job(job.id).status()).state is JobState.WAITING
        assert [event.job_id for event in alarms if isinstance(event, JobNotMigrated)] == [job.id]
        # It can still be cancelled.
        await newer.job(job.id).cancel()
        assert (await newer.job(job.id).status()).state is JobState.CANCELLED


async def test_jobs_that_fell_back_to_the_default_queue_keep_the_limits_of_their_own(releases: Releases) -> None:
    def release(*limits: Any) -> Headgate:
        app = Headgate(releases.url, **releases.settings)
        app.queue("bulk", max_backlog=1, when_full="fallback", limits=[StrictRate("2/h", name="bulk")])

        @app.task(name="call", queue="bulk", limits=limits)
        async def call(number: int) -> None:
            releases.started.append(number)

        return app

    older, newer = release(), release(StrictRate("1000/h", name="more"))
    await releases.enqueue(older, 20)
    async with newer:
        await until(lambda: len(releases.started) == 2)
        await releases.nothing_more_starts(2)
