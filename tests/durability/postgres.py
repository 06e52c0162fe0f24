"""What tests ask a PostgreSQL of jobs directly, past the store."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Self

import asyncpg
import pytest
from msgspec.structs import replace

from headgate.engine import node
from headgate.jobs.identity import job_number, job_text
from headgate.storage.postgres import database, wake_ups
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.records import NodeUpdate

AGES = 600
"""Seconds; longer than any test."""


async def count_endings(url: str, schema: str = "headgate") -> None:
    """Record with a trigger of the database each time that a job becomes final."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            f"""
            CREATE TABLE {schema}.ending (job bigint NOT NULL, state text NOT NULL);
            CREATE FUNCTION {schema}.note_ending() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN INSERT INTO {schema}.ending (job, state) VALUES (new.id, new.state); RETURN NULL; END $$;
            CREATE TRIGGER note_ending AFTER UPDATE OF state ON {schema}.job
            FOR EACH ROW WHEN (new.finished_at IS NOT NULL) EXECUTE FUNCTION {schema}.note_ending();
            """
        )
    finally:
        await connection.close()


class Endings(NamedTuple):
    """The state of every job, how often each became final, and how many attempts of each came to nothing."""

    states: dict[str, str]
    times: Counter[str]
    lost: Counter[str]

    @classmethod
    async def of(cls, url: str, schema: str = "headgate") -> Self:
        connection = await asyncpg.connect(url)
        try:
            states = await connection.fetch(f"SELECT id, state FROM {schema}.job")
            times = await connection.fetch(f"SELECT job FROM {schema}.ending")
            lost = await connection.fetch(f"SELECT job FROM {schema}.attempt")
        finally:
            await connection.close()
        return cls(
            {job_text(row["id"]): row["state"] for row in states},
            Counter(job_text(row["job"]) for row in times),
            Counter(job_text(row["job"]) for row in lost),
        )


@contextlib.asynccontextmanager
async def session_at(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A session of another client, which ends with the block."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        connection.terminate()


async def waiting_statements(connection: Any, text: str = "") -> int:
    """How many statements of Headgate with this text wait for a transaction that stays open.

    Its client is idle, or asks this. Those that wait for another statement go on by themselves, as when a vacuum
    shortens a table or an insertion makes room in one.
    """
    await connection.execute("SELECT pg_stat_clear_snapshot()")
    found: int = await connection.fetchval(
        """
        SELECT count(*) FROM pg_stat_activity AS waiting
        WHERE application_name = 'headgate' AND datname = current_database() AND wait_event_type = 'Lock'
            AND strpos(query, $1) > 0 AND EXISTS (
                SELECT FROM pg_stat_activity AS holder
                WHERE pid = ANY (pg_blocking_pids(waiting.pid))
                    AND (state LIKE 'idle in transaction%' OR pid = pg_backend_pid())
            )
        """,
        text,
    )
    return found


async def ask(url: str, statement: str, *values: Any) -> Any:
    """The first value of the answer, on a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement, *values)
    finally:
        await connection.close()


def let_locks_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every statement of the stores that open from now on wait for locks as long as they are held.

    The time limits of the product end such waits after 4 s or more, and on a busy machine that may be sooner than what
    waits for no lock. So whoever waits for the lock of a test is seen to wait until the test ends it.
    """
    for setting in ("lock_timeout", "statement_timeout"):
        monkeypatch.setitem(database.SETTINGS, setting, f"{AGES}s")
    monkeypatch.setattr(database, "HELD_FOR", f"{AGES}s")
    monkeypatch.setattr(database, "COMMAND_TIMEOUT", float(AGES))


class Polling:
    """How workers on PostgreSQL find jobs of other processes besides notifications.

    From the start it is off: only notifications wake workers. When it is on, a worker looks for arrivals once a second,
    as ever. The polls and sweeps that come less often stay off.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_on = False
        node_update = PostgresStorage.node_update

        async def update_and_arrivals(storage: PostgresStorage, node: str = "") -> NodeUpdate:
            found = await node_update(storage, node)
            return replace(found, has_arrived=found.has_arrived and self.is_on)

        monkeypatch.setattr(PostgresStorage, "node_update", update_and_arrivals)
        monkeypatch.setattr(wake_ups, "LISTENING_POLL", float(AGES))
        without_sweeps(monkeypatch)


def without_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no worker claim without a cause: it would find, half a minute later, what a test expects to be told of."""
    monkeypatch.setattr(node, "SWEEP_EVERY", AGES)


def sent_id(job_id: str) -> bytes:
    """The id of a job as it is sent to the server and back."""
    return job_number(job_id).to_bytes(8, "big", signed=True)
