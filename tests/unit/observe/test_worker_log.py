"""The log of a worker: what it says when it starts, and of each job."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest

from headgate import Headgate, JobFailed, RetryPolicy
from headgate.cli.worker import WorkerLogFormatter
from headgate.jobs.event import Event, JobFailure, JobFinished, NodeStarted
from headgate.jobs.job import JobError, JobState
from headgate.observe.log import log_event
from tests.until import result_within


def started(
    tasks: Sequence[str] = ("sync", "report"), limits: dict[str, str] | None = None
) -> tuple[NodeStarted, logging.LogRecord]:
    """An event and its record."""
    event = NodeStarted(
        at=0,
        node="web-1-abc",
        storage="sqlite:////srv/jobs.db",
        version="1.2.3",
        queues={"default": 100, "mail": 1},
        tasks=tuple(tasks),
        limits={"sync:rate": "15/m"} if limits is None else limits,
        grace=30.0,
    )
    return event, record_of(event)


def record_of(event: Event) -> logging.LogRecord:
    """The record that the log makes of an event."""
    handler = BufferingHandler(2)
    logger = logging.getLogger("headgate")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        log_event(event)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    (record,) = handler.buffer
    return record


def test_a_worker_that_starts_writes_one_line_with_its_store_queues_tasks_and_limits() -> None:
    _, record = started()
    assert record.getMessage() == (
        "web-1-abc works on sqlite:////srv/jobs.db with Headgate 1.2.3; "
        "2 queues: default (100 slots), mail (1 slot); 2 tasks: sync, report; 1 limit: sync:rate (15/m)"
    )
    line = WorkerLogFormatter(is_terminal=False).format(record)
    assert "\n" not in line
    assert "; to stop: Ctrl+C or SIGTERM, running jobs may continue for 30 s" in line


def test_on_a_terminal_each_part_has_its_own_indented_line() -> None:
    _, record = started(limits={})
    first, *rest = WorkerLogFormatter(is_terminal=True).format(record).splitlines()
    assert first.endswith("headgate: web-1-abc works on sqlite:////srv/jobs.db with Headgate 1.2.3")
    assert [line.strip() for line in rest[:3]] == [
        "2 queues: default (100 slots), mail (1 slot)",
        "2 tasks: sync, report",
        "no limits",
    ]
    assert all(line.startswith("    ") for line in rest)
    assert len(rest) == 4


def test_a_long_list_of_tasks_is_shortened() -> None:
    _, record = started(tasks=[f"t{number}" for number in range(12)])
    assert "; 12 tasks: t0, t1, t2, t3, t4, t5, t6, t7, t8, t9 and 2 more; " in record.getMessage()


def test_a_name_cannot_forge_a_line_of_the_terminal() -> None:
    _, record = started(tasks=["a\n2026-01-01 CRITICAL"])
    assert len(WorkerLogFormatter(is_terminal=True).format(record).splitlines()) == 5


def failure(traceback: str | None) -> str:
    """The message of a job that failed for good."""
    error = JobError("ValueError", "no such page", traceback)
    return record_of(
        JobFailure(
            at=0, job_id="1", task="sync", queue="default", attempt=4, state=JobState.FAILED, error=error, ran=0.1
        )
    ).getMessage()


def test_a_job_that_ends_has_a_line_with_how_long_it_ran_and_waited() -> None:
    record = record_of(
        JobFinished(
            at=0, job_id="1", task="sync", queue="default", attempt=1, state=JobState.SUCCEEDED, ran=0.1206, waited=0.03
        )
    )
    assert record.levelno == logging.INFO
    assert record.getMessage() == "job 1 (sync) succeeded in 0.121 s, waited 0.030 s"


def test_a_job_that_ends_without_running_has_no_times() -> None:
    record = record_of(JobFinished(at=0, job_id="1", task="sync", queue="default", attempt=0, state=JobState.CANCELLED))
    assert record.getMessage() == "job 1 (sync) cancelled"


def test_the_traceback_follows_a_failure_indented() -> None:
    message = failure('Traceback (most recent call last):\n  File "tasks.py", line 3\nValueError: no such page\n')
    assert message.splitlines() == [
        "job 1 (sync) failed at attempt 4: ValueError: no such page",
        "    Traceback (most recent call last):",
        '      File "tasks.py", line 3',
        "    ValueError: no such page",
    ]
    assert failure(None) == "job 1 (sync) failed at attempt 4: ValueError: no such page"


def test_of_a_long_traceback_the_last_lines_are_logged() -> None:
    lines = failure("\n".join(f"line {number}" for number in range(100))).splitlines()
    assert lines[1:4] == ["    line 0", "    (69 lines left out)", "    line 70"]
    assert lines[-1] == "    line 99"


async def lines_of_jobs(caplog: pytest.LogCaptureFixture, *, log_jobs: bool | None) -> list[str]:
    """What an embedded node logs of a job that succeeds and one that fails at its second attempt."""
    app = Headgate("memory://", log_jobs=log_jobs)

    @app.task
    async def good() -> None: ...

    @app.task(retry=RetryPolicy(retries=1, delay=0))
    async def bad() -> None:
        raise ValueError("no")

    caplog.set_level(logging.INFO, logger="headgate")
    async with app:
        await result_within(await good.enqueue())
        with pytest.raises(JobFailed):
            await result_within(await bad.enqueue())
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("job ")]


async def test_a_node_inside_a_program_logs_failures_only_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    retried, failed = await lines_of_jobs(caplog, log_jobs=None)
    assert "failed at attempt 1, runs again" in retried
    assert "\n" not in retried
    assert "failed at attempt 2: ValueError: no\n    Traceback" in failed


async def test_a_node_inside_a_program_logs_each_job_when_asked(caplog: pytest.LogCaptureFixture) -> None:
    succeeded, *others = await lines_of_jobs(caplog, log_jobs=True)
    assert "good) succeeded in 0." in succeeded
    assert len(others) == 2


@pytest.mark.parametrize(
    ("setting", "asked", "is_logged"),
    [(None, None, True), (False, None, False), (False, True, True), (True, False, False), (True, None, True)],
)
async def test_a_worker_logs_each_job_unless_an_option_turns_it_off(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, setting: bool | None, asked: bool | None, is_logged: bool
) -> None:
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF", log_jobs=setting)

    @app.task
    async def good() -> None: ...

    caplog.set_level(logging.INFO, logger="headgate")
    async with app.open():
        await good.enqueue()
        await app.run(drain="all", log_jobs=asked, handle_signals=False)
    assert any(" succeeded in " in record.getMessage() for record in caplog.records) is is_logged
