"""Log lines as JSON: one object a line, whatever is logged."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from decimal import Decimal
from typing import Any

from headgate import Headgate, current_job
from headgate.jobs.event import JobRetried
from headgate.observe.json_log import JsonFormatter, job_fields
from headgate.observe.log import log_event
from tests.until import result_within


def line(formatter: JsonFormatter | None = None, message: str = "hello", **fields: Any) -> dict[str, Any]:
    record = logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": message, **fields})
    text = (formatter or JsonFormatter()).format(record)
    assert "\n" not in text
    return dict(json.loads(text))


def test_a_line_has_its_time_its_level_its_logger_its_message_and_what_was_passed_along() -> None:
    logged = line(created=1_767_225_600.25, msg="%s of %d", args=("page", 3), tenant="acme", price=Decimal("1.50"))
    assert logged == {
        "time": "2026-01-01T00:00:00.250+00:00",
        "level": "INFO",
        "logger": "shop",
        "message": "page of 3",
        "tenant": "acme",
        "price": "1.50",
    }


def test_fields_of_the_program_are_in_every_line_and_nothing_takes_their_place() -> None:
    logged = line(JsonFormatter({"service": "billing"}), service="other", message="hello")
    assert logged["service"] == "billing"
    assert logged["message"] == "hello"


def test_an_error_is_there_with_its_type_its_message_and_its_traceback_in_the_same_line() -> None:
    try:
        raise ValueError("no such page")
    except ValueError:
        logged = line(exc_info=sys.exc_info())
    assert (logged["error"]["type"], logged["error"]["message"]) == ("ValueError", "no such page")
    assert logged["error"]["traceback"].startswith("Traceback")
    assert logged["error"]["traceback"].endswith("ValueError: no such page")


def test_a_field_with_a_reserved_name_is_kept_under_another_name() -> None:
    """The fault: it was dropped, and nobody was told."""
    logged = line(JsonFormatter({"service": "billing"}), level="of the sea", service="other", extra=1)
    assert logged["level"] == "INFO"
    assert logged["service"] == "billing"
    assert logged["extra"] == {"level": "of the sea", "service": "other", "extra": 1}


def test_a_value_without_a_json_form_does_not_drop_the_line() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    circle: list[Any] = []
    circle.append(circle)
    logged = line(odd=Odd(), circle=circle, keys={(1, 2): 3}, plain=object, bad="\ud800", good=1)
    assert logged["message"] == "hello"
    assert logged["good"] == 1
    assert logged["odd"] == "<Odd that cannot be shown>"
    assert logged["keys"] == {"(1, 2)": 3}


def test_a_log_line_of_a_handler_has_its_job() -> None:
    app = Headgate("memory://")
    logged: list[dict[str, Any]] = []

    @app.task
    async def work() -> None:
        logged.append(line())

    async def main() -> str:
        async with app:
            job = await work.enqueue()
            await result_within(job, 5)
        return job.id

    job_id = asyncio.run(main())
    assert {"job_id": job_id, "task": "work", "queue": "default", "attempt": 1}.items() <= logged[0].items()
    assert job_fields() == {}


def test_a_line_of_the_log_of_a_job_has_its_job_once() -> None:
    """The fault: each line had the id, the task and the attempt a second time, as `extra` that nobody had passed."""
    app = Headgate("memory://")
    logged: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(json.loads(JsonFormatter().format(record)))

    @app.task
    async def work() -> None:
        current_job().log.error("three items", extra={"order": 5, "note": None})

    async def main() -> str:
        async with app:
            job = await work.enqueue()
            await result_within(job, 5)
        return job.id

    handler, logger = Keep(), logging.getLogger("headgate.job")
    logger.addHandler(handler)
    try:
        job_id = asyncio.run(main())
    finally:
        logger.removeHandler(handler)
    assert logged[0].keys() == {
        "time", "level", "logger", "message", "job_id", "task", "queue", "attempt", "order", "note",
    }  # fmt: skip
    assert (logged[0]["job_id"], logged[0]["order"], logged[0]["note"]) == (job_id, 5, None)


def test_a_log_line_of_headgate_has_its_event_and_fields() -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keep()
    logger = logging.getLogger("headgate")
    logger.addHandler(handler)
    try:
        log_event(JobRetried(at=0, job_id="1", task="work", queue="mail", attempt=2, run_at=0, error=None, ran=1.5))
    finally:
        logger.removeHandler(handler)
    logged = json.loads(JsonFormatter().format(records[0]))
    assert logged["event"] == "JobRetried"
    assert logged["headgate"]["queue"] == "mail"
    assert logged["headgate"]["ran"] == 1.5
