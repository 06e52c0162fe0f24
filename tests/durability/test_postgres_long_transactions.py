"""A user's transaction that keeps an enqueue open: no other waits for it, and its jobs are visible when it commits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.engine.enqueuer import group_calls
from headgate.jobs.identity import job_number
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.dialect import statements_of
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.procedures.add import add_jobs
from headgate.tasks.call import Call
from tests.durability.postgres import ask, let_locks_be_waited_for, session_at, without_sweeps
from tests.durability.work import Work
from tests.internals import client_of, node_of, store_of, swept_by
from tests.postgres_server import PostgresServer
from tests.until import patient, result_within, until

pytestmark = pytest.mark.nightly

ROUNDS = 10
PROMPT = 2.0
"""Seconds; whoever waits for the user waits as long as the transaction is open."""


async def enqueue_in(connection: Any, work: Work, keys: list[str]) -> list[str]:
    """Enqueue in a transaction of the caller's, as the app would; the ids."""
    calls: list[Call[Any]] = [Call((key,), {}) for key in keys]
    jobs = client_of(work.app).enqueuer._jobs_of(work.gated, group_calls(work.gated, calls))
    session = Session(connection, statements_of("headgate"), is_pooled=False)
    storage = store_of(work.app)
    assert isinstance(storage, PostgresStorage)
    await add_jobs(storage._tx(session), jobs)
    return [job.id for job in jobs]


@pytest.mark.parametrize("ends_with", ["COMMIT", "ROLLBACK"])
async def test_a_transaction_that_keeps_an_enqueue_open_delays_no_other(
    postgres: PostgresServer, ends_with: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_locks_be_waited_for(monkeypatch)
    without_sweeps(monkeypatch)
    work = Work(postgres.url)
    async with work.app, session_at(postgres.url) as user:
        await work.has_run(await work.gated.enqueue("acme"))
        await user.execute("BEGIN")
        # One known lane, and one new lane.
        ids = await enqueue_in(user, work, ["acme", "new"])
        for _ in range(ROUNDS):
            async with asyncio.timeout(patient(PROMPT)):
                jobs = await work.gated.enqueue_many([("acme",), ("new",), ("globex",)])
                jobs.append(await work.plain.enqueue("none"))
            await work.has_run(*jobs, seconds=PROMPT)
            await asyncio.gather(*(result_within(job, PROMPT) for job in jobs))
        assert not set(ids) & set(work.runs)
        await user.execute(ends_with)
        if ends_with == "COMMIT":
            await until(lambda: set(ids) <= set(work.runs), 5, lambda: "a look for what was committed")
            assert swept_by(node_of(work.app)) == 0
        else:
            await work.has_run(await work.gated.enqueue("acme"), await work.gated.enqueue("new"))
            assert (
                await ask(
                    postgres.url,
                    "SELECT count(*) FROM headgate.job WHERE id = ANY($1::bigint[])",
                    [*map(job_number, ids)],
                )
                == 0
            )
        assert await work.used("acme") == sum(1 for job in await work.app.admin.jobs(key="acme", count=10_000))
        assert await store_of(work.app).check() == []


async def test_many_open_transactions_with_enqueues_commit_in_any_order_and_lose_no_job(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_sweeps(monkeypatch)
    work = Work(postgres.url)
    async with work.app:

        async def user(number: int) -> list[str]:
            async with session_at(postgres.url) as connection:
                ids: list[str] = []
                for turn in range(8):
                    await connection.execute("BEGIN")
                    held = await enqueue_in(connection, work, [f"key-{(number + turn) % 3}", "shared"])
                    await asyncio.sleep(0.02 * ((7 * number + 3 * turn) % 5))
                    is_kept = (number + turn) % 4 != 0
                    await connection.execute("COMMIT" if is_kept else "ROLLBACK")
                    ids += held if is_kept else []
                return ids

        committed = [id for ids in await asyncio.gather(*(user(number) for number in range(12))) for id in ids]
        await until(lambda: set(committed) <= set(work.runs), 10)
        assert sorted(work.runs) == sorted(committed)
        await asyncio.gather(*(result_within(work.app.job(id), 5) for id in committed))
        assert await store_of(work.app).check() == []
        assert swept_by(node_of(work.app)) == 0
