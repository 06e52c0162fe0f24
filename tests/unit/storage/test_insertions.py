"""Rows that a statement inserts: what is sent of them to each database."""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

import pytest

from headgate.jobs.identity import job_number, job_text
from headgate.jobs.job import NewJob
from headgate.storage.postgres.dialect import Insertion, PostgresDialect, statements_of
from headgate.storage.procedures.add import _COLUMNS, add_jobs, needs_transaction
from headgate.storage.sqlite.dialect import STATEMENTS, SqliteDialect, Statement
from headgate.storage.statements import ParameterColumn, Table, Template

COLUMNS = [
    ParameterColumn("id", "text"),
    ParameterColumn("place", "bigint"),
    ParameterColumn("kind", "text", 1),
    ParameterColumn("tags", "json", 2),
]


class Row(NamedTuple):
    id: str
    place: int
    kind: str | None
    tags: list[str] | None


class Backwards(NamedTuple):
    tags: list[str] | None
    kind: str | None
    place: int
    id: str


def sqlite_statement() -> Statement:
    table = SqliteDialect().values("new")
    sql = f"INSERT INTO kept (id, place, kind, tags) SELECT id, place, kind, tags FROM {table} WHERE true"
    return Statement(sql, {"new": Table(COLUMNS, is_inserted=True)}, False, "new", "")


def postgres_statement() -> Insertion:
    sql = f"INSERT INTO kept SELECT id, :at::bigint FROM {PostgresDialect('headgate').values('new')}"
    return Insertion(Template(sql, {"new": Table(COLUMNS, is_inserted=True)}))


@pytest.mark.parametrize("count", [2, 9, 10, 11, 99, 100, 111, 250])
def test_sqlite_inserts_any_number_of_rows_in_their_order(count: int) -> None:
    rows = [Row(f"{number:03d}", number, None if number % 3 else "a", ["b"]) for number in range(count)]
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE kept (id TEXT, place INTEGER, kind TEXT, tags TEXT)")
    for sql, values in sqlite_statement().insertions(rows):
        connection.execute(sql, values)
    found = connection.execute("SELECT * FROM kept ORDER BY rowid").fetchall()
    connection.close()
    assert found == [(row.id, row.place, row.kind, '["b"]') for row in rows]


def test_sqlite_is_sent_once_what_is_the_same_in_all_rows() -> None:
    rows = [Row(str(number), number, "alike", None) for number in range(3)]
    assert [values for _, values in sqlite_statement().insertions(rows)] == [
        ["alike", "0", 0, "1", 1],
        ["alike", "2", 2],
    ]


def test_postgres_is_sent_one_row_without_arrays() -> None:
    known, given = postgres_statement().fit({"new": [Row("1", 5, None, ["b"])], "at": 7})
    assert "unnest" not in known.sql
    assert dict(zip(known.names, given, strict=True)) == {
        "new.id": "1",
        "new.place": 5,
        "new.kind": None,
        "new.tags": '["b"]',
        "at": 7,
    }


@pytest.mark.parametrize(
    ("rows", "arrays"),
    [
        ([Row("1", 5, "a", None), Row("2", 5, "a", None)], {"new.id", "new.place"}),
        ([Row("1", 5, "a", None), Row("2", 5, None, None)], {"new.id", "new.place", "new.kind"}),
        ([Row("1", 5, "a", None), Row("2", 5, "a", ["b"])], {"new.id", "new.place", "new.kind", "new.tags"}),
    ],
)
def test_postgres_is_sent_arrays_of_the_columns_up_to_the_last_that_differ(rows: list[Row], arrays: set[str]) -> None:
    statement = postgres_statement()
    known, given = statement.fit({"new": rows, "at": 7})
    bound = dict(zip(known.names, given, strict=True))
    assert {name for name, value in bound.items() if isinstance(value, (list, tuple))} == arrays
    assert all(len(bound[name]) == 2 for name in arrays)
    assert statement.fit({"new": rows, "at": 7})[0] is known


def test_rows_are_read_by_name_where_their_fields_are_in_another_order() -> None:
    table = Table(COLUMNS, is_inserted=True)
    row = Row("1", 5, "a", ["b"])
    backwards = Backwards(row.tags, row.kind, row.place, row.id)
    assert table.read_one(backwards) == table.read_one(row) == ["1", 5, "a", '["b"]']


def test_new_jobs_and_their_lanes_are_in_the_order_of_their_statement() -> None:
    """Otherwise each of them is read field by field."""
    assert STATEMENTS["add_jobs"].tables["new"].columns == _COLUMNS
    statement = statements_of("headgate")["add_jobs"]
    assert isinstance(statement, Insertion)
    shape = {name: table.columns for name, table in statement.tables.items()}
    assert shape == {"new": _COLUMNS, "lanes": ("id", "queue", "buckets", "wait_mode", "place")}


class Sent:
    """A transaction of one of several clients, which notes the rows of each statement."""

    has_one_writer = False
    limit_now = 0

    def __init__(self) -> None:
        self.rows: list[list[dict[str, Any]]] = []

    async def value(self, _statement: str, *, new: list[tuple[Any, ...]], **_others: Any) -> int:
        self.rows.append([dict(zip(_COLUMNS, row, strict=True)) for row in new])
        return len(new)


def jobs_of(*payloads: str) -> list[NewJob]:
    common: dict[str, Any] = {"task": "t", "queue": "q", "priority": 0, "delayed": False, "run_at": 0, "enqueued_at": 0}
    return [NewJob(id=job_text(number), payload=payload, **common) for number, payload in enumerate(payloads, start=1)]


async def test_no_statement_stores_so_much_that_it_would_reach_its_timeout() -> None:
    """PostgreSQL stores a few dozen megabytes in a second, and takes no message of a gigabyte."""
    large, small = "x" * 20_000_000, "{}"
    sent, jobs = Sent(), jobs_of(*[large] * 60, *[small] * 12_000, *[large] * 3)
    await add_jobs(sent, jobs)  # type: ignore[arg-type]
    assert [row["id"] for rows in sent.rows for row in rows] == [job_number(job.id) for job in jobs]
    assert max(sum(len(row["payload"]) for row in rows) for rows in sent.rows) < 100_000_000
    assert max(map(len, sent.rows)) <= 5000
    assert len(sent.rows) < 40
    assert needs_transaction(jobs[:4], [])
    assert not needs_transaction(jobs_of(*[large] * 2), [])
    assert not needs_transaction(jobs_of(*[small] * 12_000), [])
