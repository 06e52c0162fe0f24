"""What `check()` finds of permits in a damaged store; the damage is written past the storage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest
import pytest_asyncio

from headgate.limits.concurrency import dump_permits, load_permits
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import StoreUser, at_once
from tests.conformance.storage_suite.ties import MUTEX, hold
from tests.internals import writer_of

NOBODY = dump_permits(load_permits(None))


class Overwritable(NamedTuple):
    """A store, and how to write the stored state of its bucket "mutex:a" past all verbs."""

    store_user: StoreUser
    overwrite: Callable[[str], Awaitable[None]]


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    """The kind of the store, and the URL and schema of one that is on a server."""
    if request.param != "postgres":
        return request.param, "", ""
    return request.param, request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")


@pytest_asyncio.fixture
async def store(server: tuple[str, str, str], tmp_path: Path) -> AsyncIterator[Overwritable]:
    kind, url, schema = server
    clock = ManualClock()
    storage: Store
    if kind == "sqlite":
        storage = sqlite = SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")

        async def overwrite(state: str) -> None:
            writer_of(sqlite.driver).execute("UPDATE bucket SET state = ? WHERE limit_name = 'mutex'", (state,))

    else:
        storage = PostgresStorage(url, clock, schema=schema, own_time=True)

        async def overwrite(state: str) -> None:
            connection = await asyncpg.connect(url)
            await connection.execute(f"UPDATE {schema}.bucket SET state = $1 WHERE limit_name = 'mutex'", state)
            await connection.close()

    await storage.open()
    store_user = StoreUser(storage, clock)
    store_user.rules = {"mutex": at_once()}
    await storage.join(store_user.node, "a")
    yield Overwritable(store_user, overwrite)
    await storage.close()


async def test_a_batch_that_holds_a_permit_although_it_is_final_is_found(store: Overwritable) -> None:
    store_user = store.store_user
    batch, _ = await hold(store_user, 1)
    (job,) = await store_user.take()
    await store_user.retry_later(job)
    held = (await store_user.bucket("mutex", "a")).state
    assert held is not None
    await store_user.storage.cancel(job.id)
    assert list(await store_user.storage.check()) == []
    await store.overwrite(held)
    (found,) = await store_user.storage.check()
    assert f"is held by batch {batch}, which is final" in found


async def test_a_batch_that_holds_a_permit_although_it_is_gone_is_found(store: Overwritable) -> None:
    store_user = store.store_user
    batch, _ = await hold(store_user, 1)
    (job,) = await store_user.take()
    await store_user.retry_later(job)
    held = (await store_user.bucket("mutex", "a")).state
    assert held is not None
    await store_user.storage.cancel(job.id)
    store_user.clock.advance(1)
    assert await store_user.storage.prune(store_user.clock.now()) == 1
    assert await store_user.storage.batch(batch) is None
    await store.overwrite(held)
    (found,) = await store_user.storage.check()
    assert f"is held by batch {batch}" in found


async def test_a_bucket_that_waits_for_a_permit_without_a_holder_is_found(store: Overwritable) -> None:
    store_user = store.store_user
    await hold(store_user, 1)
    (job,) = await store_user.take()
    await store_user.retry_later(job, 60)
    await store_user.add(draws=MUTEX)
    assert await store_user.take() == []
    assert list(await store_user.storage.check()) == []
    await store.overwrite(NOBODY)
    (found,) = await store_user.storage.check()
    assert "opens when a permit is returned, but has no holder" in found


async def test_a_paused_bucket_without_holders_is_not_a_contradiction(store: Overwritable) -> None:
    store_user = store.store_user
    await store_user.add(2, draws=MUTEX)
    job = await store_user.take_one()
    pause = await store_user.pause("mutex")
    await store_user.succeed(job)
    assert await store_user.take() == []
    assert list(await store_user.storage.check()) == []
    await store_user.unset(pause)
    assert len(await store_user.take()) == 1
    assert list(await store_user.storage.check()) == []
