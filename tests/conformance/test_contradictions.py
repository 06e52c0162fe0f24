"""What `check()` and `check_indexes()` find in a damaged store; the damage is written past the storage."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest
import pytest_asyncio
from msgspec.structs import replace

from headgate.jobs.identity import job_number
from headgate.jobs.job import JobOptions
from headgate.limits.concurrency import dump_permits, load_permits
from headgate.storage.driver import Transaction
from headgate.storage.facts import Contradiction, IndexFacts
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.dependencies import MUTEX, hold
from tests.conformance.storage_suite.store_user import StoreUser, at_once, strict, with_id
from tests.internals import writer_of
from tests.postgres_server import server_in

NOBODY = dump_permits(load_permits(None))


class Damaged(NamedTuple):
    """A store, and how to run statements on its tables past all verbs."""

    store_user: StoreUser
    run: Callable[[str], Awaitable[None]]

    async def overwrite(self, state: str) -> None:
        """Write the stored state of the bucket "mutex:a"."""
        await self.run(f"UPDATE headgate.bucket SET state = '{state}' WHERE limit_name = 'mutex'")

    async def found(self) -> Contradiction:
        """The only contradiction."""
        (found,) = await self.store_user.storage.check(self.store_user.rules)
        assert found.advice
        return found


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    """The kind of the store, and the URL and schema of one that is on a server."""
    if request.param != "postgres":
        return request.param, "", ""
    return request.param, request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")


@pytest_asyncio.fixture
async def store(server: tuple[str, str, str], tmp_path: Path) -> AsyncIterator[Damaged]:
    kind, url, schema = server
    clock = ManualClock()
    storage: Store
    if kind == "sqlite":
        storage = sqlite = SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")

        async def run(sql: str) -> None:
            writer_of(sqlite).execute(sql.replace("headgate.", ""))

    else:
        storage = PostgresStorage(url, clock, schema=schema, own_time=True)

        async def run(sql: str) -> None:
            connection = await asyncpg.connect(url)
            await connection.execute(sql.replace("headgate.", f"{schema}."))
            await connection.close()

    await storage.open()
    store_user = StoreUser(storage, clock)
    store_user.rules = {"mutex": at_once()}
    await storage.join(store_user.node, "a")
    yield Damaged(store_user, run)
    await storage.close()


async def test_a_batch_that_holds_a_permit_although_it_is_final_is_found(store: Damaged) -> None:
    store_user = store.store_user
    batch, _ = await hold(store_user, 1)
    (job,) = await store_user.take()
    await store_user.retry_later(job)
    held = (await store_user.bucket("mutex", "a")).state
    assert held is not None
    await store_user.storage.cancel(job.id)
    assert list(await store_user.storage.check()) == []
    await store.overwrite(held)
    found = (await store.found()).seen
    assert f"is held by batch {batch}, which is final" in found


async def test_a_batch_that_holds_a_permit_although_it_is_gone_is_found(store: Damaged) -> None:
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
    found = (await store.found()).seen
    assert f"is held by batch {batch}" in found


async def test_a_bucket_that_waits_for_a_permit_without_a_holder_is_found(store: Damaged) -> None:
    store_user = store.store_user
    await hold(store_user, 1)
    (job,) = await store_user.take()
    await store_user.retry_later(job, 60)
    await store_user.add(buckets=MUTEX)
    assert await store_user.take() == []
    assert list(await store_user.storage.check()) == []
    await store.overwrite(NOBODY)
    found = (await store.found()).seen
    assert "opens when a permit is returned, but has no holder" in found


async def test_a_paused_bucket_without_holders_is_not_a_contradiction(store: Damaged) -> None:
    store_user = store.store_user
    await store_user.add(2, buckets=MUTEX)
    job = await store_user.take_one()
    pause = await store_user.pause("mutex")
    await store_user.succeed(job)
    assert await store_user.take() == []
    assert list(await store_user.storage.check()) == []
    await store_user.unset(pause)
    assert len(await store_user.take()) == 1
    assert list(await store_user.storage.check()) == []


async def test_a_job_of_a_node_that_does_not_exist_is_found_and_upkeep_lets_it_wait_again(store: Damaged) -> None:
    """The fault: nothing took it back, as nobody watched the lease of its node."""
    store_user = store.store_user
    storage = store_user.storage
    await storage.join("node-b", "b")
    await store_user.add(buckets=MUTEX)
    job = await store_user.take_one()
    assert await storage.add_missing_nodes() == 0
    await store.run(f"DELETE FROM headgate.node WHERE id = '{store_user.node}'")
    found = await store.found()
    assert found.seen == f"1 job (as {job.id}) runs on node {store_user.node}, which does not exist"
    assert "let a worker run" in found.advice
    assert await storage.add_missing_nodes() == 1
    (dead,) = [peer for peer in (await storage.node_update("node-b")).peers if peer.is_gone]
    recovered = await storage.recover(dead.id, dead.beat)
    assert recovered is not None
    assert list(recovered.returned) == [job.id]
    assert await storage.check() == []
    assert await store_user.take_ids(node="node-b") == [job.id]


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ("failed_as = 'failed', failed_at = 5", "is running, and is found as failed"),
        ("failed_at = 5", "is running, and is found as none that failed"),
        ("holds_key = NOT holds_key", "is running and does not hold its unique key"),
        ("unique_key = NULL", "is running and holds its unique key"),
        ("kept_until = 5", "is running and has the end of a retention"),
    ],
)
async def test_a_column_that_contradicts_the_state_of_its_job_is_found(store: Damaged, change: str, seen: str) -> None:
    await store.store_user.storage.add([replace(store.store_user.new(), unique_key="k")])
    job = await store.store_user.take_one()
    assert await store.store_user.storage.check() == []
    await store.run(f"UPDATE headgate.job SET {change}")
    assert (await store.found()).seen == f"job {job.id} {seen}"


@pytest.mark.parametrize("server", ["postgres"], indirect=True)
async def test_a_running_job_that_no_claim_of_its_node_has_is_found(store: Damaged) -> None:
    await store.store_user.add()
    job = await store.store_user.take_one()
    assert await store.store_user.storage.check() == []
    await store.run("UPDATE headgate.claim SET node = 'other'")
    assert (
        await store.found()
    ).seen == f"job {job.id} runs on node {store.store_user.node}, which has no claim with it"


async def a_job_behind_a_limit(store: Damaged, **options: Any) -> str:
    """Add a job that waits for the limit "rate:a"; its lane and its bucket are stored."""
    store_user = store.store_user
    store_user.rules["rate"] = strict(1)
    ids = await store_user.add(2, buckets=[("rate", "a")], **options)
    (started,) = await store_user.take()
    await store_user.succeed(started)
    assert await store_user.storage.check(store_user.rules) == []
    (waiting,) = set(ids) - {started.id}
    return waiting


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("""buckets = '[["rate","b"]]'""", "rate:b"),
        ("queue = 'other'", "queue 'other'"),
        ("""terms = '{"patience":0}'""", "buckets rate:a [true,[]]"),
        ("passed = 1", "buckets none"),
    ],
)
async def test_a_job_that_waits_in_another_lane_than_its_own_is_found(store: Damaged, change: str, part: str) -> None:
    job = await a_job_behind_a_limit(store)
    await store.run(f"UPDATE headgate.job SET {change} WHERE id = {job_number(job)}")
    found = await store.found()
    assert f"1 job (as {job}) of lane" in found.seen
    assert part in found.seen
    assert "with queue 'default' and buckets rate:a" in found.seen


async def test_a_lane_in_another_queue_is_found(store: Damaged) -> None:
    await a_job_behind_a_limit(store)
    await store.run("UPDATE headgate.lane SET queue = 'other' WHERE waiting = 1")
    found = await store.found()
    assert "is stored with queue 'other' and buckets rate:a, which is another lane" in found.seen


async def test_a_tag_by_which_its_job_is_not_found_any_more_is_found(store: Damaged) -> None:
    job = await a_job_behind_a_limit(store, options=JobOptions(tags=("blue", "vip")))
    await store.run(f"DELETE FROM headgate.job_tag WHERE tag = 'vip' AND job = {job_number(job)}")
    found = await store.found()
    assert found.seen == f"job {job} is not found by its tag vip"
    await store.run(found.advice)
    assert await store.store_user.storage.check() == []


async def test_an_own_id_under_the_number_of_another_is_found(store: Damaged) -> None:
    own, other = str(uuid.uuid4()), str(uuid.uuid4())
    await store.store_user.storage.add([with_id(store.store_user.new(), own)])
    assert await store.store_user.storage.check() == []
    await store.run(f"UPDATE headgate.job SET own_id = '{other}'")
    assert (await store.found()).seen == f"job {other} is stored under the number of another id, {job_number(own)}"


async def test_a_batch_with_the_id_of_a_job_is_found(store: Damaged) -> None:
    await hold(store.store_user, 1)
    (job,) = await store.store_user.add()
    await store.run(
        f"UPDATE headgate.batch SET id = {job_number(job)}, finished_at = 1, pending = 0, succeeded = total"
    )
    found = [each.seen for each in await store.store_user.storage.check(store.store_user.rules)]
    assert f"batch {job} has the id of a job" in found


@pytest.mark.parametrize("state", ["", "nonsense", "1:strict:x", "1:concurrency:{"])
async def test_a_bucket_with_a_state_that_cannot_be_read_is_found(store: Damaged, state: str) -> None:
    await a_job_behind_a_limit(store)
    await store.run(f"UPDATE headgate.bucket SET state = '{state}'")
    found = await store.found()
    assert found.seen.startswith("bucket rate:a has a state that cannot be read")
    assert found.advice == "headgate limits reset rate --key a"


@pytest.mark.parametrize("column", ["closed_until", "opens_at"])
async def test_a_bucket_that_is_closed_until_the_year_9999_is_found(store: Damaged, column: str) -> None:
    await a_job_behind_a_limit(store)
    await store.run(f"UPDATE headgate.bucket SET {column} = 253370764800000000")
    found = await store.found()
    assert found.seen.startswith("bucket rate:a is closed for ")
    assert found.advice == "headgate limits reset rate --key a"


async def test_a_bucket_under_another_name_is_found(store: Damaged) -> None:
    await a_job_behind_a_limit(store)
    await store.run("UPDATE headgate.bucket SET key = 'b'")
    assert "bucket rate:b has the id of another bucket" in (await store.found()).seen


async def test_an_index_of_a_file_that_lacks_a_row_is_found(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "jobs.db", ManualClock(), synchronous="OFF")
    await storage.open()
    store_user = StoreUser(storage, ManualClock())
    assert await storage.check_indexes() == IndexFacts()
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    row = connection.execute("SELECT * FROM sqlite_schema WHERE name = 'job_undelayed'").fetchone()
    connection.execute("DELETE FROM sqlite_schema WHERE name = 'job_undelayed'")
    connection.execute("PRAGMA schema_version = 1000")
    await store_user.add()
    connection.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", row)
    connection.execute("PRAGMA schema_version = 1001")
    connection.close()
    found = await storage.check_indexes()
    await storage.close()
    assert any("missing from index job_undelayed" in each.seen for each in found.contradictions)
    assert all("REINDEX" in each.advice for each in found.contradictions)


@pytest.mark.nightly
@pytest.mark.slow
async def test_an_index_of_a_server_that_lacks_a_row_is_found_if_amcheck_is_there(tmp_path: Path) -> None:
    with server_in(tmp_path) as server:
        storage = PostgresStorage(server.url, ManualClock(), schema="jobs", own_time=True)
        await storage.open()
        unchecked = (await storage.check_indexes()).unchecked
        assert unchecked is not None
        assert "CREATE EXTENSION amcheck" in unchecked.advice
        connection = await asyncpg.connect(server.url)
        await connection.execute("CREATE SCHEMA tools; CREATE EXTENSION amcheck SCHEMA tools")
        assert await storage.check_indexes() == IndexFacts()
        unready = "UPDATE pg_index SET indisready = {} WHERE indexrelid = 'jobs.job_undelayed'::regclass"
        await connection.execute(unready.format("false"))
        await StoreUser(storage, ManualClock()).add()
        await connection.execute(unready.format("true"))
        (found,) = (await storage.check_indexes()).contradictions
        assert 'lacks matching index tuple within index "job_undelayed"' in found.seen
        await connection.execute(found.advice)
        assert await storage.check_indexes() == IndexFacts()
        await connection.execute(
            "CREATE ROLE plain LOGIN; GRANT USAGE ON SCHEMA jobs TO plain; "
            "GRANT ALL ON ALL TABLES IN SCHEMA jobs TO plain"
        )
        await connection.close()
        await storage.close()
        storage = PostgresStorage(
            server.url.replace("postgres@", "plain@"), ManualClock(), schema="jobs", own_time=True
        )
        await storage.open()
        unchecked = (await storage.check_indexes()).unchecked
        await storage.close()
        assert unchecked is not None
        assert "may not" in unchecked.seen


async def test_a_check_reads_the_store_as_of_one_moment(store: Damaged) -> None:
    """The fault: a job that took or returned a permit during `headgate doctor --deep` was reported as a problem."""

    async def look_twice(tx: Transaction) -> list[list[Any]]:
        before = await tx.values("paused_queues")
        await store.run("INSERT INTO headgate.paused_queue (queue, paused_at) VALUES ('mail', 1)")
        return [before, await tx.values("paused_queues")]

    storage = store.store_user.storage
    assert await storage.read(look_twice, "check") == [[], []]
    assert await storage.read(lambda tx: tx.values("paused_queues"), "check") == ["mail"]
