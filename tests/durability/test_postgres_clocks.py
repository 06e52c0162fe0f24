"""Machines whose clocks are an hour off: the clock of the server decides what is due and which lease has ended.

And a server whose clock steps: no limit opens early.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial

import asyncpg
import pytest

from headgate import Headgate, StrictRate
from headgate.clock import SECOND, SystemClock
from headgate.jobs.event import ClockSkewed, NodeDeclaredDead, NodeLost
from tests.durability.work import Work
from tests.postgres_server import PostgresServer
from tests.until import patient, result_within, until

pytestmark = pytest.mark.nightly

HOUR = 3600


class WrongClock(SystemClock):
    """A machine whose wall clock is wrong."""

    def __init__(self, ahead: int) -> None:
        super().__init__()
        self._ahead = ahead

    def now(self) -> int:
        return super().now() + self._ahead * SECOND


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_a_worker_with_a_clock_off_by_an_hour_starts_jobs_when_they_are_due(
    postgres: PostgresServer, ahead: int
) -> None:
    local, remote = Work(postgres.url), Work(postgres.url, clock=WrongClock(ahead))
    async with local.app.open(), remote.app:
        await remote.has_run(await local.gated.enqueue("acme"), seconds=3)
        began = time.monotonic()
        later = await local.gated.using(delay=1.5).enqueue("acme")
        much_later = await local.gated.using(delay=HOUR / 2).enqueue("acme")
        # By that clock it would be due at once, or in an hour.
        await remote.has_run(later, seconds=5)
        assert time.monotonic() - began > 1.4
        assert much_later.id not in remote.runs
        # The skew of that clock is reported.
        await until(lambda: remote.has_event(ClockSkewed), 5)
        (skewed,) = [event.seconds for event in remote.events if isinstance(event, ClockSkewed)]
        assert abs(skewed - ahead) < patient(1)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_a_delay_by_an_app_with_a_clock_off_by_an_hour_has_the_right_length(
    postgres: PostgresServer, ahead: int
) -> None:
    local, remote = Work(postgres.url, clock=WrongClock(ahead)), Work(postgres.url)
    async with local.app.open(), remote.app:
        await remote.has_run(await local.gated.enqueue("acme"), seconds=3)
        began = time.monotonic()
        later = await local.gated.using(delay=1.5).enqueue("acme")
        await remote.has_run(later, seconds=5)
        assert time.monotonic() - began > 1.4


async def test_nodes_with_clocks_two_hours_apart_declare_none_dead_and_share_a_budget(
    postgres: PostgresServer,
) -> None:
    fast, slow = Work(postgres.url, clock=WrongClock(HOUR)), Work(postgres.url, clock=WrongClock(-HOUR))
    async with fast.app, slow.app:
        held = await fast.patient.enqueue("acme")
        await until(lambda: held.id in fast.runs + slow.runs, 5)
        jobs = await slow.gated.enqueue_many([("acme",)] * 40)
        await until(lambda: {job.id for job in jobs} <= {*fast.runs, *slow.runs}, 10)
        assert await fast.used("acme") == 40
        # By either clock the lease of the other has ended long ago, or ends in an hour. Each has looked at the other.
        for work in (fast, slow):
            await work.looks_at_others(3)
        for work in (fast, slow):
            work.proceed.set()
            assert not work.has_event(NodeLost)
            assert not work.has_event(NodeDeclaredDead)
        assert await result_within(held, 5) == "acme"


async def test_a_job_that_expires_does_so_by_the_server_s_clock(postgres: PostgresServer) -> None:
    local, remote = Work(postgres.url), Work(postgres.url, clock=WrongClock(HOUR))
    async with local.app.open(), remote.app:
        expires_at = datetime.now(UTC) + timedelta(minutes=30)
        job = await local.gated.using(expires_at=expires_at).enqueue("acme")
        await remote.has_run(job, seconds=5)


SHIFTED_CLOCK = """
    CREATE SCHEMA shifted;
    CREATE TABLE shifted.step (by interval NOT NULL);
    CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
        'SELECT pg_catalog.clock_timestamp() + (SELECT coalesce(sum(by), interval ''0'') FROM shifted.step)';
"""


@pytest.mark.parametrize("step", [0.9, 0.2])
async def test_no_step_of_the_servers_clock_opens_a_strict_rate_early(postgres: PostgresServer, step: float) -> None:
    """Steps of 0.9 s, of which none counted as a step, opened windows 0.86 s early."""
    count, per = 3, 1.5
    starts: list[float] = []
    connection = await asyncpg.connect(postgres.url)
    await connection.execute(SHIFTED_CLOCK)
    # Statements of the workers find this clock before the server's own.
    url = f"{postgres.url}?search_path=shifted,pg_catalog"

    def made() -> Headgate:
        app = Headgate(url, heartbeat=0.25)

        @app.task(name="call", limits=[StrictRate(count, per=per)])
        async def call() -> None:
            starts.append(time.monotonic())

        return app

    def has_started(jobs: int) -> bool:
        return len(starts) >= jobs

    first, second = made(), made()
    try:
        async with first, second:
            await first.tasks["call"].enqueue_many([()] * (5 * count))
            for window in range(1, 6):
                await until(partial(has_started, window * count), 20)
                await connection.execute("INSERT INTO shifted.step VALUES ($1)", timedelta(seconds=step))
        gaps = [later - earlier for earlier, later in zip(starts, starts[count:], strict=False)]
        assert min(gaps) >= per
    finally:
        await connection.close()
