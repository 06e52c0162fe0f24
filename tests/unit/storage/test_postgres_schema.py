"""Each constraint of the schema on PostgreSQL, and an attempt to break it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec
import pytest

from headgate import Headgate, Limiter, RateLimit
from headgate.clock import SystemClock
from headgate.errors import DeclarationError
from headgate.storage.postgres.database import SETTINGS
from headgate.storage.postgres.dialect import statements_of
from headgate.storage.postgres.shared_buckets import PostgresBuckets
from headgate.storage.postgres.storage import PostgresStorage
from tests.internals import shapes_of, store_of
from tests.until import patient

ID, OTHER_ID = "a" * 22, "b" * 22

LANE = {"id": ID, "queue": "default", "buckets": "[]", "waiting": 1, "since": 1}
BUCKET = {"id": ID, "limit_name": "calls", "key": "acme", "idle_at": 0}
JOB = {
    "id": 1,
    "lane": ID,
    "waiting": True,
    "delayed": False,
    "priority": 0,
    "run_at": 1,
    "rank": 1,
    "enqueued_at": 1,
    "task": "work",
    "queue": "default",
    "buckets": "[]",
    "payload": "{}",
}
BLOCKED = {"state": "blocked", "waiting": False, "blocked": True, "follows": 7, "origin": "{}"}
NODE = {
    "id": "node-1",
    "name": "a",
    "pid": 1,
    "pid_space": "",
    "process_started": "",
    "boot_id": "",
    "started_at": 0,
    "beat_at": 0,
}
ARRIVAL = {
    "lane": ID,
    "queue": "default",
    "buckets": "[]",
    "wait_mode": "",
    "jobs": 1,
    "is_ready": True,
    "since": 0,
}
JOBS_HISTORY = {
    "step": 10,
    "queue": "default",
    "task": "work",
    "at": 0,
    "enqueued": 1,
    "started": 1,
    "succeeded": 1,
    "failed": 0,
    "cancelled": 0,
    "skipped": 0,
    "retried": 0,
    "wait_max": 5,
    "run_max": 5,
    "waits": "[1]",
    "runs": "[1]",
}
LIMIT_HISTORY = {"step": 10, "limit_name": "calls", "of_all": False, "key": "acme", "at": 0, "used": 1}
ROWS: dict[str, dict[str, object]] = {
    "lane": LANE,
    "bucket": BUCKET,
    "bucket_note": {"bucket": ID, "id": "claim-1", "until": 0},
    "used_folder": {"url": "s3://jobs/large"},
    "reserved_key": {"task": "work", "unique_key": "acme", "job": 1, "until": 0},
    "alert": {
        "id": "alert-1",
        "alert": "ops",
        "condition": "node_lost",
        "subject": "blue",
        "started_at": 0,
        "seen_at": 0,
        "sent": 0,
        "tries": 0,
        "send_at": 0,
    },
    "alert_turn": {"alert": "ops", "at": 0},
    "lost_node": {"id": "node-1", "name": "blue", "pid": 1, "started_at": 0, "beat_at": 0, "version": "", "lost_at": 0},
    "job_tag": {"tag": "vip", "job": 1},
    "job": JOB,
    "node": NODE,
    "arrival": ARRIVAL,
    "attempt": {"job": 1, "number": 1, "started_at": 0, "ended_at": 0, "outcome": "failed"},
    "limit_setting": {"limit_name": "calls", "scope": "all", "target": ""},
    "paused_queue": {"queue": "default", "paused_at": 0},
    "task_limit_set": {"task": "work", "signature": "x", "first_seen": 0, "last_seen": 0, "is_done": False},
    "jobs_history": JOBS_HISTORY,
    "limit_history": LIMIT_HISTORY,
    "migration": {"number": 999, "name": "x", "checksum": "y", "is_breaking": False},
}


@pytest.fixture(scope="module")
def schema(postgres_url: str) -> Iterator[str]:
    name = f"headgate_{uuid.uuid4().hex[:16]}"

    async def drop() -> None:
        connection = await asyncpg.connect(postgres_url)
        await connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        await connection.close()

    asyncio.run(PostgresStorage(postgres_url, SystemClock(), schema=name).migrate())
    yield name
    asyncio.run(drop())


class Tables:
    """A transaction that is rolled back when the test ends."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def insert(self, table: str, **values: object) -> None:
        columns = ", ".join(values)
        marks = ", ".join(f"${place}" for place in range(1, len(values) + 1))
        await self.connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", *values.values())


@asynccontextmanager
async def tables_of(url: str, schema: str) -> AsyncIterator[Tables]:
    connection = await asyncpg.connect(url, server_settings={"search_path": schema})
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield Tables(connection)
    finally:
        await transaction.rollback()
        await connection.close()


async def test_the_rows_of_these_tests_are_sound(postgres_url: str, schema: str) -> None:
    async with tables_of(postgres_url, schema) as tables:
        for table, row in ROWS.items():
            await tables.insert(table, **row)
        await tables.insert("job", **{**JOB, **BLOCKED, "id": 2})


@pytest.mark.parametrize(
    ("table", "broken"),
    [
        ("lane", {"behind": ID, "since": None}),
        ("job", {"priority": -1}),
        ("job", {"priority": 10}),
        ("job", {"attempt": -1}),
        ("job", {"lost": -1}),
        ("job", {"state": "lost", "waiting": False}),
        ("job", {"waiting": False}),
        ("job", {"state": "running", "node": "node-1"}),
        ("job", {"state": "running", "waiting": False}),
        ("job", {"state": "running", "waiting": False, "node": "node-1", "finished_at": 5}),
        ("job", {"state": "succeeded", "waiting": False}),
        ("job", {"state": "failed", "waiting": False}),
        ("job", {"state": "cancelled", "waiting": False}),
        ("job", {"state": "skipped", "waiting": False}),
        ("job", {"state": "succeeded", "finished_at": 5}),
        ("job", {"finished_at": 5}),
        ("job", {"schedule": "nightly"}),
        ("job", {**BLOCKED, "blocked": False}),
        ("job", {**BLOCKED, "waiting": True}),
        ("job", {**BLOCKED, "follows": None}),
        ("job", {**BLOCKED, "origin": None}),
        ("job", {**BLOCKED, "node": "node-1"}),
        ("job", {**BLOCKED, "held": 1}),
        ("job", {**BLOCKED, "finished_at": 5}),
        ("limit_setting", {"scope": "tenant"}),
        ("jobs_history", {"step": 0}),
        ("limit_history", {"step": 0}),
        ("limit_history", {"of_all": True}),
    ],
)
async def test_an_impossible_row_is_refused(
    postgres_url: str, schema: str, table: str, broken: dict[str, object]
) -> None:
    async with tables_of(postgres_url, schema) as tables:
        with pytest.raises(asyncpg.CheckViolationError):
            await tables.insert(table, **{**ROWS[table], **broken})


@pytest.mark.parametrize("table", ["limit_time", "limit_revision"])
async def test_what_is_kept_in_one_row_cannot_be_in_two(postgres_url: str, schema: str, table: str) -> None:
    columns = "id, ahead, last_used" if table == "limit_time" else "id, revision"
    values = columns.replace("id", "2", 1)
    async with tables_of(postgres_url, schema) as tables:
        assert await tables.connection.fetchval(f"SELECT count(*) FROM {table}") == 1
        with pytest.raises(asyncpg.CheckViolationError):
            await tables.connection.execute(f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table}")


@pytest.mark.parametrize(
    ("table", "column"),
    # A lane may be without since, and one without counted jobs is empty.
    [(table, column) for table, row in ROWS.items() for column in row if (table, column) != ("lane", "since")],
)
async def test_what_a_row_needs_cannot_be_left_out(postgres_url: str, schema: str, table: str, column: str) -> None:
    async with tables_of(postgres_url, schema) as tables:
        with pytest.raises(asyncpg.NotNullViolationError):
            await tables.insert(table, **{**ROWS[table], column: None})


@pytest.mark.parametrize(
    ("table", "again"),
    [
        ("lane", {"queue": "other"}),
        ("bucket", {"key": "globex"}),
        ("bucket_note", {"until": 5}),
        ("used_folder", {}),
        ("reserved_key", {"job": 2, "until": 5}),
        ("job_tag", {}),
        ("alert", {"id": "alert-2"}),
        ("alert", {"subject": "green"}),
        ("alert_turn", {"at": 5}),
        ("lost_node", {"name": "green"}),
        ("job", {"task": "other"}),
        ("node", {"name": "b"}),
        ("limit_setting", {"is_paused": True}),
        ("paused_queue", {"paused_at": 5}),
        ("task_limit_set", {"is_done": True}),
        ("jobs_history", {"enqueued": 5}),
        ("limit_history", {"used": 5}),
        ("migration", {"name": "z"}),
    ],
)
async def test_what_is_there_once_cannot_be_there_twice(
    postgres_url: str, schema: str, table: str, again: dict[str, object]
) -> None:
    async with tables_of(postgres_url, schema) as tables:
        await tables.insert(table, **ROWS[table])
        with pytest.raises(asyncpg.UniqueViolationError):
            await tables.insert(table, **{**ROWS[table], **again})


async def test_whether_a_lane_is_gated_and_by_which_limits_follows_from_its_buckets(
    postgres_url: str, schema: str
) -> None:
    async with tables_of(postgres_url, schema) as tables:
        await tables.insert("lane", **LANE)
        buckets = r'[["calls","ac\"me"],["all",""]]'
        await tables.insert("lane", **{**LANE, "id": OTHER_ID, "buckets": buckets})
        rows = await tables.connection.fetch("SELECT gated, limits FROM lane ORDER BY id")
        assert [tuple(row) for row in rows] == [(False, "[]"), (True, '[["calls"],["all"]]')]
        with pytest.raises(asyncpg.GeneratedAlwaysError):
            await tables.connection.execute("UPDATE lane SET gated = true")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lane SET behind = id, since = NULL",
        "UPDATE job SET state = 'running'",
        "UPDATE job SET state = 'succeeded', waiting = false",
        "UPDATE job SET state = 'blocked', waiting = false, follows = 2, origin = '{}'",
        "UPDATE job SET blocked = true",
        "UPDATE job SET finished_at = 5",
        "UPDATE job SET attempt = attempt - 1",
    ],
)
async def test_updates_are_held_to_the_same(postgres_url: str, schema: str, statement: str) -> None:
    async with tables_of(postgres_url, schema) as tables:
        await tables.insert("lane", **LANE)
        await tables.insert("job", **JOB)
        with pytest.raises(asyncpg.CheckViolationError):
            await tables.connection.execute(statement)


async def test_no_plan_reads_a_whole_key_for_a_list_of_rows(postgres_url: str, schema: str) -> None:
    """The fault: after a plan that was made while jobs were few, each end compared all jobs with all that ended.

    Of statements that write or lock; what people read may read whole tables.
    """
    keys, whole = ("job_pkey", "lane_pkey", "bucket_pkey"), set()
    connection = await asyncpg.connect(postgres_url, server_settings=SETTINGS)
    try:
        await connection.execute(f"VACUUM ANALYZE {schema}.job, {schema}.lane, {schema}.bucket")
        for name, statement in statements_of(schema).items():
            for number, shape in enumerate(shapes_of(statement)):
                if "unnest(" not in shape.sql or not shape.names:
                    continue
                await connection.execute(f"PREPARE {name}_{number} AS {shape.sql}")
                nothing = ", ".join(["NULL"] * len(shape.names))
                plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE {name}_{number}({nothing})")
                nodes = [*nodes_of(msgspec.json.decode(plan)[0]["Plan"])]
                if any(node["Node Type"] in ("ModifyTable", "LockRows") for node in nodes):
                    scans = [node for node in nodes if node.get("Index Name") in keys and "Index Cond" not in node]
                    whole |= {(name, node["Index Name"]) for node in scans}
    finally:
        await connection.close()
    assert whole == set()


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


async def test_each_table_has_a_primary_key(postgres_url: str, schema: str) -> None:
    """The fault: where all tables are published for logical replication, rows without a key cannot be deleted."""
    async with tables_of(postgres_url, schema) as tables:
        without = await tables.connection.fetch(
            """
            SELECT relname FROM pg_class
            WHERE relkind = 'r' AND relnamespace = $1::regnamespace
                AND NOT EXISTS (SELECT 1 FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary)
            """,
            schema,
        )
    assert without == []


async def test_no_index_names_a_column_that_the_success_of_a_plain_job_changes(postgres_url: str, schema: str) -> None:
    """Else each end would write every index: they are left alone only if nothing that they name changes."""
    changed = {"state", "result", "error", "finished_at", "charged_at"}
    async with tables_of(postgres_url, schema) as tables:
        named = await tables.connection.fetch(
            """
            SELECT index.relname AS index, column_of.attname AS column
            FROM pg_index
            JOIN pg_class AS index ON index.oid = pg_index.indexrelid
            JOIN pg_am AS kind ON kind.oid = index.relam AND kind.amname <> 'brin'
            JOIN pg_depend ON pg_depend.objid = index.oid AND pg_depend.refobjid = pg_index.indrelid
            JOIN pg_attribute AS column_of
                ON column_of.attrelid = pg_index.indrelid AND column_of.attnum = pg_depend.refobjsubid
            WHERE pg_index.indrelid = 'job'::regclass
            """
        )
    columns = {row["column"] for row in named}
    assert {"lane", "waiting", "blocked", "failed_as", "holds_key", "kept_until"} <= columns
    assert not columns & changed


@pytest.mark.parametrize(
    "name",
    ["", "Jobs", "1st", "pg_jobs", "a" * 32, "jobs-app", "jobs.app", 'jobs"; DROP SCHEMA public; --', "jobs\n", "jöbs"],
)
def test_a_schema_whose_name_needs_care_is_refused_at_declaration(name: str) -> None:
    with pytest.raises(DeclarationError, match="schema="):
        PostgresStorage("postgresql://localhost/db", SystemClock(), schema=name)


@pytest.mark.parametrize("name", ["user", "select", "_", "order"])
async def test_a_name_that_means_something_in_sql_is_quoted(postgres_url: str, name: str) -> None:
    storage = PostgresStorage(postgres_url, SystemClock(), schema=name)
    try:
        await storage.open()
        assert await storage.queues() == []
        assert await storage.check() == []
    finally:
        await storage.close()
        connection = await asyncpg.connect(postgres_url)
        await connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
        await connection.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:pass@localhost/shop?schema=limits",
        "postgres://ada@localhost:5432/shop?schema=limits",
        "postgresql://localhost/shop?sslmode=disable&schema=limits",
        "postgresql://localhost/shop?schema=limits&sslmode=disable",
        "postgresql:///shop?host=/run/postgresql&schema=limits&port=5432",
        "postgresql://one:5432,two:5433/shop?schema=limits&target_session_attrs=primary",
        "postgresql://localhost?schema=%6cimits",
    ],
)
def test_each_form_of_a_url_may_name_the_schema(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for app in (Headgate(url), Headgate(url, schema="limits"), Headgate(url, listen_url=url)):
        assert store_of(app).place == PostgresBuckets.from_url(url).place
        place: Any = store_of(app).place
        assert place[-1] == "limits"
    monkeypatch.setenv("HEADGATE_URL", url)
    assert store_of(Headgate()).place == store_of(app).place
    with pytest.raises(DeclarationError, match=r"the URL names schema='limits', and .* names 'jobs'; name it once"):
        Headgate(url, schema="jobs")
    monkeypatch.setenv("HEADGATE_SCHEMA", "jobs")
    with pytest.raises(DeclarationError, match="HEADGATE_SCHEMA"):
        Headgate(url)
    monkeypatch.delenv("HEADGATE_SCHEMA")
    with pytest.raises(DeclarationError, match="schema='LIMITS' must be"):
        Headgate(url.replace("limits", "LIMITS").replace("%6cimits", "LIMITS"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@swordfish@localhost/shop",
        "postgresql://ada:12/hunter2@localhost/shop",
        "postgresql://ada:12#hunter2@localhost/shop",
        "postgresql://ada:12?hunter2@localhost/shop",
        "postgresql://localhost/shop?sslmode=require&",
    ],
)
def test_a_url_that_ends_too_early_is_refused_at_declaration(url: str) -> None:
    """The fault: these led to another host, which could not be reached, or to an error of the driver."""
    for declare in (Headgate, PostgresBuckets.from_url, lambda url: Headgate("postgresql:///shop", listen_url=url)):
        with pytest.raises(DeclarationError, match=r"percent-encode / # \? @ and : in a user, a password") as refused:
            declare(url)
        assert "hunter2" not in str(refused.value)


async def test_jobs_and_limits_are_in_the_schema_of_their_url(postgres_url: str, postgres_schema: str) -> None:
    named = f"{postgres_url}?application_name=shop&schema={postgres_schema}"
    app = Headgate(named, listen_url=named, migrate=True)

    @app.task(name="run")
    async def run() -> str:
        return "ran"

    limiter = Limiter(RateLimit("2/h", name="shared"), store=named)
    async with app, limiter:
        assert await (await run.enqueue()).result(timeout=patient(10)) == "ran"
        assert await limiter.try_acquire("acme")
        elsewhere = Headgate(postgres_url, schema=postgres_schema)
        elsewhere.limit("shared", RateLimit("2/h", key="{tenant}"))
        async with elsewhere.open():
            assert (await elsewhere.admin.limits.bucket("shared", "acme")).used == 1
