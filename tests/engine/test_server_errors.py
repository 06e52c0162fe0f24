"""No error that a PostgreSQL server reports ends a node: it goes on as soon as the cause is gone."""

from __future__ import annotations

import contextlib
from pathlib import Path

import asyncpg
import pytest

from headgate import Headgate, RetryPolicy, StrictRate, current_job
from headgate.jobs.event import Event, JobFailure, StorageFailed
from tests.postgres_server import server_in
from tests.until import result_within, until

QUICK = ["2201B", "42703", "XX000"]
CODES = ["22023", "23514", "42883", "0A000", "53100", "P0001", "XX001", "99999"]
"""Bad values, a changed schema, a full disk, a user's trigger, damaged indexes, and a code that is not known."""


@pytest.mark.parametrize("code", [*QUICK, *(pytest.param(code, marks=pytest.mark.nightly) for code in CODES)])
async def test_a_node_outlives_the_error_of_its_claims_and_runs_the_job_afterwards(
    postgres_url: str, postgres_schema: str, code: str
) -> None:
    app = Headgate(postgres_url, schema=postgres_schema)
    events: list[Event] = []
    app.subscribe(events.append, StorageFailed)

    @app.task(limits=[StrictRate("100/s")])
    async def double(number: int) -> int:
        return 2 * number

    connection = await asyncpg.connect(postgres_url)
    table, function = f"{postgres_schema}.job", f"{postgres_schema}.refuse"
    try:
        async with app:
            await connection.execute(
                f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END $$;"
                f"CREATE TRIGGER refuse BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}()"
            )
            job = await double.enqueue(21)
            await until(lambda: any(isinstance(each, StorageFailed) and each.doing == "claiming" for each in events))
            await connection.execute(f"DROP TRIGGER refuse ON {table}; DROP FUNCTION {function}")
            assert await result_within(job) == 42
    finally:
        await connection.execute(f"DROP TRIGGER IF EXISTS refuse ON {table}; DROP FUNCTION IF EXISTS {function}")
        await connection.close()


async def test_jobs_run_and_are_counted_whatever_standard_conforming_strings_is(
    postgres_url: str, absent_schema: str
) -> None:
    app = Headgate(f"{postgres_url}?standard_conforming_strings=off", schema=absent_schema, migrate=True)
    app.queue("work", fair_by="{tenant}")

    @app.task(queue="work", limits=[StrictRate("100/s", key="{tenant}")])
    async def double(tenant: str, number: int) -> int:
        return 2 * number

    async with app:
        for tenant in ('a"b', "a\\b", "plain"):
            jobs = await double.enqueue_many([(tenant, 1), (tenant, 2)])
            assert [await result_within(job) for job in jobs] == [2, 4]
    connection = await asyncpg.connect(postgres_url)
    try:
        # What the tables compute themselves, too: no stored column depends on the setting.
        definitions = await connection.fetch(
            "SELECT pg_get_expr(adbin, adrelid) AS text FROM pg_attrdef WHERE adrelid::regclass::text LIKE $1",
            f"{absent_schema}.%",
        )
        assert any("u001f" in row["text"] for row in definitions)
    finally:
        await connection.close()


@pytest.mark.nightly
async def test_a_job_whose_transaction_is_refused_runs_again_without_a_spent_attempt(tmp_path: Path) -> None:
    with server_in(tmp_path, "max_connections=20") as server:
        app = Headgate(server.url)
        failures: list[Event] = []
        app.subscribe(failures.append, JobFailure)
        others: list[asyncpg.Connection] = []
        attempts: list[int] = []
        messages: list[str] = []

        @app.task(retry=RetryPolicy(retries=0))
        async def pay() -> None:
            attempts.append(current_job().attempt)
            if len(attempts) == 1:
                with contextlib.suppress(asyncpg.PostgresError):
                    while True:
                        others.append(await asyncpg.connect(server.url))
            try:
                async with current_job().transaction() as connection:
                    await connection.execute("SELECT 1")
            except Exception as error:
                messages.append(str(error))
                raise
            finally:
                for other in others:
                    await other.close()

        async with app:
            await result_within(await pay.enqueue(), 20)
        assert attempts == [1, 1]
        assert "too many clients" in messages[0]
        assert failures == []
