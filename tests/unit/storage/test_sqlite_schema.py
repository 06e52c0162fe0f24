"""Each constraint of the schema, and an attempt to break it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from headgate.storage.migrations import load_migrations
from headgate.storage.sqlite.connection import _split


@pytest.fixture
def schema() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for migration in load_migrations("sqlite"):
        for statement in _split(migration.script):
            connection.execute(statement)
    yield connection
    connection.close()


def insert(schema: sqlite3.Connection, table: str, **values: object) -> None:
    columns, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    schema.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values)


LANE = {"id": "lane-1", "queue": "default", "buckets": "[]", "waiting": 1, "since": 1}
BUCKET = {"id": "bucket-1", "limit_name": "calls", "key": "acme", "idle_at": 0}
JOB = {
    "id": 1,
    "task": "work",
    "queue": "default",
    "lane": "lane-1",
    "buckets": "[]",
    "priority": 0,
    "delayed": 0,
    "run_at": 1,
    "rank": 1,
    "enqueued_at": 1,
    "payload": "{}",
}
BLOCKED = {"state": "blocked", "waiting": 0, "blocked": 1, "follows": 7, "origin": "{}"}
NODE = {
    "id": "node-1",
    "name": "a",
    "pid": 1,
    "pid_space": "",
    "process_started": "",
    "boot_id": "",
    "port": 0,
    "started_at": 0,
    "beat_at": 0,
}
LIMIT_TIME = {"id": 1, "boot_id": "boot", "ahead": 0, "last_used": 0}
ATTEMPT = {"job": 1, "number": 1, "started_at": 0, "ended_at": 0, "outcome": "failed"}
MIGRATION = {"number": 999, "name": "x", "checksum": "y", "applied_at": 0}
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
LIMIT_HISTORY = {"step": 10, "limit_name": "calls", "of_all": 0, "key": "acme", "at": 0, "used": 1}
ROWS: dict[str, dict[str, object]] = {
    "lane": LANE,
    "bucket": BUCKET,
    "job": JOB,
    "node": NODE,
    "limit_time": LIMIT_TIME,
    "attempt": ATTEMPT,
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
    "jobs_history": JOBS_HISTORY,
    "limit_history": LIMIT_HISTORY,
}


def test_the_rows_of_these_tests_are_sound(schema: sqlite3.Connection) -> None:
    for table, row in ROWS.items():
        insert(schema, table, **row)
    insert(schema, "job", **{**JOB, **BLOCKED, "id": 2})


@pytest.mark.parametrize(
    ("table", "broken"),
    [
        ("lane", {"buckets": "not json"}),
        ("lane", {"behind": "bucket-1", "since": None, "wakes_at": 5}),
        ("job", {"priority": -1}),
        ("job", {"priority": 10}),
        ("job", {"schedule": "nightly"}),
        ("job", {"state": "lost", "waiting": 0}),
        ("job", {"annotations": "not json"}),
        ("job", {"waiting": 0}),
        ("job", {"waiting": 2}),
        ("job", {"attempt": -1}),
        ("job", {"lost": -1}),
        ("job", {"state": "running", "node": "node-1"}),
        ("job", {"state": "running", "waiting": 0}),
        ("job", {"state": "succeeded", "waiting": 0}),
        ("job", {"state": "failed", "waiting": 0}),
        ("job", {"state": "cancelled", "waiting": 0}),
        ("job", {"state": "skipped", "waiting": 0}),
        ("job", {"state": "succeeded", "finished_at": 5}),
        ("job", {"state": "failed", "finished_at": 5}),
        ("job", {"state": "cancelled", "finished_at": 5}),
        ("job", {**BLOCKED, "blocked": 0}),
        ("job", {**BLOCKED, "waiting": 1}),
        ("job", {**BLOCKED, "follows": None}),
        ("job", {**BLOCKED, "origin": None}),
        ("job", {**BLOCKED, "node": "node-1"}),
        ("job", {**BLOCKED, "held": 1}),
        ("job", {**BLOCKED, "finished_at": 5}),
        ("job", {"finished_at": 5}),
        ("job", {"state": "running", "waiting": 0, "node": "node-1", "finished_at": 5}),
        ("job", {"run_at": 8.64e19}),
        ("job", {"run_at": "soon"}),
        ("job", {"buckets": "[["}),
        ("job", {"costs": "one"}),
        ("job", {"headers": "{"}),
        ("job", {"options": "{timeout"}),
        ("job", {"enqueued_at": 1.5}),
        ("job", {"expires_at": 8.64e19}),
        ("node", {"gone": "lost"}),
        ("node", {"is_quiet": 2}),
        ("limit_time", {"id": 2}),
        ("jobs_history", {"step": 0}),
        ("jobs_history", {"waits": "[1"}),
        ("jobs_history", {"runs": "1,"}),
        ("limit_history", {"step": 0}),
        ("limit_history", {"of_all": 1}),
        ("limit_history", {"of_all": 2, "key": ""}),
    ],
)
def test_an_impossible_row_is_refused(schema: sqlite3.Connection, table: str, broken: dict[str, object]) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        insert(schema, table, **{**ROWS[table], **broken})


@pytest.mark.parametrize(
    ("table", "column"),
    [
        (table, column)
        for table, row in ROWS.items()
        for column in row
        # An integer key that is not given is made up; a lane may be without since.
        if (table, column) not in {("job", "id"), ("lane", "id"), ("lane", "since"), ("bucket", "id"), ("node", "id")}
        and not (table == "limit_time" and column == "id")
    ],
)
def test_what_a_row_needs_cannot_be_left_out(schema: sqlite3.Connection, table: str, column: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="NOT NULL constraint failed"):
        insert(schema, table, **{**ROWS[table], column: None})


@pytest.mark.parametrize(
    ("table", "again"),
    [
        ("lane", {"id": "lane-2"}),
        ("lane", {"queue": "other"}),
        ("bucket", {"id": "bucket-2"}),
        ("bucket", {"key": "globex"}),
        ("job", {"task": "other"}),
        ("node", {"name": "b"}),
        ("limit_time", {"ahead": 5}),
        ("used_folder", {}),
        ("reserved_key", {"job": 2, "until": 5}),
        ("job_tag", {}),
        ("alert", {"id": "alert-2"}),
        ("alert", {"subject": "green"}),
        ("alert_turn", {"at": 5}),
        ("lost_node", {"name": "green"}),
    ],
)
def test_what_is_there_once_cannot_be_there_twice(
    schema: sqlite3.Connection, table: str, again: dict[str, object]
) -> None:
    insert(schema, table, **ROWS[table])
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE constraint failed"):
        insert(schema, table, **{**ROWS[table], **again})


def test_whether_a_lane_is_gated_follows_from_its_buckets(schema: sqlite3.Connection) -> None:
    insert(schema, "lane", **LANE)
    insert(schema, "lane", **{**LANE, "id": "lane-2", "buckets": '[["calls","acme"]]'})
    assert schema.execute("SELECT id, gated FROM lane ORDER BY id").fetchall() == [("lane-1", 0), ("lane-2", 1)]
    with pytest.raises(sqlite3.OperationalError, match="gated"):
        schema.execute("UPDATE lane SET gated = 1")


def test_updates_are_held_to_the_same(schema: sqlite3.Connection) -> None:
    insert(schema, "lane", **LANE)
    insert(schema, "job", **JOB)
    for statement in (
        "UPDATE lane SET behind = id, since = NULL",
        "UPDATE job SET state = 'running', waiting = 0",
        "UPDATE job SET state = 'succeeded', waiting = 0",
        "UPDATE job SET finished_at = 5",
        "UPDATE job SET waiting = 0",
        "UPDATE job SET attempt = attempt - 1",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
            schema.execute(statement)
