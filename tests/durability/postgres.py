"""What tests ask a PostgreSQL of jobs directly, past the store."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Self

import asyncpg


async def count_endings(url: str, schema: str = "headgate") -> None:
    """Record with a trigger of the database each time that a job becomes final."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            f"""
            CREATE TABLE {schema}.ending (job text NOT NULL, state text NOT NULL);
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
            {row["id"]: row["state"] for row in states},
            Counter(row["job"] for row in times),
            Counter(row["job"] for row in lost),
        )


@contextlib.asynccontextmanager
async def session_at(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A session of another client, which ends with the block."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        connection.terminate()


async def ask(url: str, statement: str, *values: Any) -> Any:
    """The first value of the answer, on a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement, *values)
    finally:
        await connection.close()
