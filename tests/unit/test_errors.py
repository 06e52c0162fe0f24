"""Errors and their causes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headgate import Headgate
from headgate.errors import StorageUnavailable, causes_of, raise_instead


def test_an_error_without_another_one_is_raised_as_it_is_and_has_no_cause() -> None:
    error = ValueError("no")
    with pytest.raises(ValueError, match="no") as caught:
        raise_instead(None, error)
    assert caught.value is error
    assert error.__cause__ is None
    with pytest.raises(ValueError, match="no"):
        raise_instead(error, error)
    assert error.__cause__ is None
    with pytest.raises(StorageUnavailable) as other:
        raise_instead(StorageUnavailable("down"), error)
    assert other.value.__cause__ is error


def test_causes_end_even_if_an_error_is_its_own_cause() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(causes_of(first)) == [first, second]
    assert list(causes_of(None)) == []


@pytest.mark.timeout(60)
async def test_a_statement_that_does_not_fit_the_file_raises_instead_of_blocking_the_loop(tmp_path: Path) -> None:
    """SQLite's error was raised from itself, and what follows its causes, to find a text with NUL, never ended."""
    path = tmp_path / "jobs.db"
    app = Headgate(f"sqlite:///{path}")

    @app.task
    async def work() -> None: ...

    async with app.open():
        job = await work.enqueue()
        with closing(sqlite3.connect(path)) as other:
            other.execute("ALTER TABLE job RENAME COLUMN headers TO heads")
        for look in (app.admin.job(job.id), app.admin.jobs(queue="default"), work.enqueue()):
            with pytest.raises(sqlite3.OperationalError, match="headers") as caught:
                await look
            assert caught.value not in list(causes_of(caught.value.__cause__))
