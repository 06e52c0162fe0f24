"""Errors and their causes."""

from __future__ import annotations

import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headgate import Headgate, RateLimited, Retry, Snooze
from headgate.errors import (
    AttemptLost,
    BatchNotFound,
    DuplicateJob,
    IdInUse,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobSkipped,
    LeaseLost,
    LimitRejected,
    NotOpen,
    PayloadError,
    QueueFull,
    ScheduleNotFound,
    StorageUnavailable,
    causes_of,
    raise_instead,
)


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


@pytest.mark.parametrize(
    "error",
    [
        AttemptLost("job-1", 2),
        BatchNotFound("batch-1"),
        DuplicateJob("job-1", "send", "acme"),
        IdInUse("job-1", "send", "other"),
        JobCancelled("job-1", "not needed"),
        JobFailed("job-1", "ValueError", "no", "Traceback"),
        JobNotFound("job-1"),
        JobSkipped("job-1", "nothing failed"),
        LeaseLost("acme", 7, 1.5),
        LimitRejected("too late", limit="api", key="acme"),
        NotOpen(),
        PayloadError("too large", "text"),
        QueueFull("mail", 5, 5),
        RateLimited(30),
        Retry(30, "not ready"),
        ScheduleNotFound("nightly"),
        Snooze(60),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_another_process_is_the_same_here(error: Exception) -> None:
    """The fault: a multiprocessing.Pool whose function raised one waited for ever, and other pools were broken."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


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
