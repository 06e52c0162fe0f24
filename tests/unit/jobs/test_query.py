"""The query for jobs: defined once, for Python, the command line and the HTTP API."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from headgate.cli.query import FLAGS, METAVARS
from headgate.errors import DeclarationError
from headgate.http.jobs import JobsQuery
from headgate.jobs.job import JobState
from headgate.jobs.query import JobCriteria, JobFilter, JobQuery
from headgate.storage.procedures.listing import _conditions


def test_the_arguments_of_a_call_are_the_fields_of_a_query() -> None:
    assert list(JobCriteria.__annotations__) == list(JobQuery.__struct_fields__)
    assert set(JobsQuery.__struct_fields__) == {*JobQuery.__struct_fields__, "order", "before", "count"}
    assert {*FLAGS, *METAVARS} <= set(JobQuery.__struct_fields__)


def test_every_field_of_a_query_reaches_the_store() -> None:
    instant = datetime(2026, 5, 1, tzinfo=UTC)
    values = {
        field.name: instant if field.name.endswith(("_after", "_before")) else "words"
        for field in msgspec.structs.fields(JobQuery)
    }
    values |= {"state": JobState.FAILED, "view": "ready", "header": "source=api", "annotation": "invoice=42"}
    for name, value in values.items():
        query = JobQuery(**{name: value})  # type: ignore[arg-type]
        assert _conditions(query.filter()) != _conditions(JobFilter()), name
    page = {"cursor": "id", "count": 7, "oldest_first": True}
    assert JobQuery(queue="mail").filter(**page) == JobFilter(queue="mail", **page)  # type: ignore[arg-type]
    assert JobQuery().filter() == JobFilter()


def test_invalid_values_are_refused() -> None:
    for said in ({"text": ""}, {"text": "x" * 201}, {"view": "never"}, {"state": "lost"}):
        with pytest.raises(DeclarationError):
            JobQuery(**said)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="the filter: tag 'two words' must be a word"):
        JobQuery(tag="two words")
    with pytest.raises(DeclarationError, match="header='source' is not a name with its value; write header=\"source="):
        JobQuery(header="source")
    with pytest.raises(DeclarationError, match='write annotation="invoice=42"'):
        JobQuery(annotation="=42")
    with pytest.raises(DeclarationError, match="header="):
        JobQuery(header="source=\ud800")
