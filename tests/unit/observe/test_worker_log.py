"""The log of a worker: what it says when it starts, and of each job."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from logging.handlers import BufferingHandler

from headgate.cli.worker import WorkerLogFormatter
from headgate.jobs.event import Event, NodeStarted
from headgate.observe.log import log_event


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
