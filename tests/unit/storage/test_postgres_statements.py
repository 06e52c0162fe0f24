"""Statements as they are written, and as the driver gets them."""

from __future__ import annotations

import re

import pytest

from headgate.errors import DeclarationError
from headgate.storage.postgres.dialect import checked_schema, in_schema, statements_of
from tests.internals import shapes_of


def test_names_become_numbers_and_the_schema_the_chosen_one() -> None:
    (statement,) = shapes_of(statements_of("shop")["settle_charges"])
    assert statement.names == ("settled.id", "settled.charged_at", "settled.costs")
    assert "unnest($1::bigint[], $2::bigint[], $3::text[])" in statement.sql
    assert 'UPDATE "shop".job' in statement.sql
    assert "headgate." not in statement.sql


@pytest.mark.parametrize("name", sorted(statements_of("headgate")))
def test_nothing_is_left_to_be_replaced(name: str) -> None:
    for statement in shapes_of(statements_of("headgate")[name]):
        assert not re.search(r"@\w", statement.sql)
        assert not re.search(r"(?<![:\w]):[a-z]", statement.sql)
        assert not re.search(r"\{[a-z]+\}", statement.sql)
        assert len(set(statement.names)) == len(statement.names)


@pytest.mark.parametrize("schema", ["headgate", "_x", "a" * 31, "tenant_42"])
def test_a_plain_name_is_taken(schema: str) -> None:
    assert checked_schema(schema) == schema


@pytest.mark.parametrize(
    "schema", ["", "Headgate", "1st", "a-b", 'a"; DROP TABLE job; --', "a" * 32, "pg_temp", "é", "a.b"]
)
def test_any_other_name_is_refused(schema: str) -> None:
    with pytest.raises(DeclarationError, match="schema="):
        checked_schema(schema)


def test_only_table_names_are_put_into_the_schema() -> None:
    assert in_schema("SELECT 'headgate', my_headgate.x FROM headgate.job", "s") == (
        "SELECT 'headgate', my_headgate.x FROM \"s\".job"
    )


def test_no_statement_is_too_long_for_a_pool_that_an_app_lends() -> None:
    """asyncpg keeps no statement of more than 15 KiB, unless the pool is made otherwise, but plans it each time."""
    known = statements_of("s" * 31)
    assert [name for name in known for shape in shapes_of(known[name]) if len(shape.sql) > 15 * 1024] == []
