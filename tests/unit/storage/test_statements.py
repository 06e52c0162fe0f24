"""All statements can be compiled, and a process compiles those that it uses."""

from __future__ import annotations

import pytest

from headgate.storage.sqlite.dialect import STATEMENTS, SqliteDialect
from headgate.storage.statements import Statements, Template


def test_a_statement_is_compiled_once_when_it_is_first_used() -> None:
    prepared: list[str] = []

    def prepare(template: Template) -> str:
        prepared.append(template.sql)
        return template.sql

    statements = Statements(SqliteDialect(), prepare)
    assert len(list(statements)) == len(statements) > 100
    assert "add_jobs" in list(statements)
    assert prepared == []
    assert statements["highest_id"] == statements["highest_id"] == "SELECT max(id) FROM job"
    assert prepared == ["SELECT max(id) FROM job"]


def test_an_unknown_statement_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="no_such"):
        STATEMENTS["no_such"]


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_each_statement_of_sqlite_compiles(name: str) -> None:
    assert "{" not in STATEMENTS[name].sql.replace("'{}'", "")


def test_a_block_with_words_to_choose_from_begins_a_statement_for_each() -> None:
    assert "ORDER BY number DESC" in STATEMENTS["logs_newest"].sql
    assert "ORDER BY number ASC" in STATEMENTS["logs_oldest"].sql
    assert "logs" not in STATEMENTS
    lists = ("all", "failed", "tagged", "known")
    chosen = {name for name in STATEMENTS if name.startswith("jobs_") and name.endswith(("newest", "oldest"))}
    assert chosen == {f"jobs_{jobs}_{order}" for jobs in lists for order in ("newest", "oldest")}
