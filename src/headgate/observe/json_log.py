"""A formatter for ordinary logging that writes each line as one JSON object, with the job that it came from."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from headgate.clock import to_datetime
from headgate.errors import HeadgateError
from headgate.jobs.job import truncated_error
from headgate.tasks.context import current_job

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes that every record has; others were passed as `extra`."""

_encoder = msgspec.json.Encoder(enc_hook=repr, decimal_format="string")


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON, for log collectors: `handler.setFormatter(JsonFormatter())`.

    Each has `time`, `level`, `logger` and `message`, the fields passed as `extra`, and for an exception the `error`,
    with `type`, `message` and `traceback`. Fields with a name that the line has already are under `extra`. Inside a
    job: `job_id`, `task`, `queue` and `attempt`. Inside a span of OpenTelemetry: `trace_id` and `span_id`. Headgate's
    own lines have `event`, its kind, and `headgate`, its fields. Payloads never appear. `fields` are added to every
    line: `JsonFormatter({"service": "billing"})`.
    """

    def __init__(self, fields: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON; a value without a JSON form appears as its `repr`."""
        line: dict[str, Any] = {
            "time": to_datetime(int(record.created * 1_000_000)).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
            **job_fields(),
            **_trace_fields(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self._error(record.exc_info[1])
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        extra: dict[str, Any] = {}
        for name, value in vars(record).items():
            if name not in _ORDINARY and (name not in line or line[name] is not value):
                (extra if name in line else line)[name] = value
        if extra:
            line["extra"] = {**extra, **({"extra": line["extra"]} if "extra" in line else {})}
        return _encoded(line)

    def _error(self, error: BaseException) -> dict[str, str]:
        truncated = truncated_error(error, self.formatException((type(error), error, error.__traceback__)))
        return {"type": truncated.type, "message": truncated.message, "traceback": truncated.traceback or ""}


def job_fields() -> dict[str, str | int]:
    """Return `job_id`, `task`, `queue` and `attempt` of the current job; empty outside of a job."""
    try:
        job = current_job()
    except HeadgateError:
        return {}
    return {"job_id": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt}


def _trace_fields() -> dict[str, str]:
    # Only if the program has loaded it: otherwise there are no spans.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(span.trace_id), "span_id": trace.format_span_id(span.span_id)}


def _encoded(line: Mapping[str, Any]) -> str:
    try:
        return _encoder.encode(line).decode()
    except Exception:
        # A key that is not text, a repr that raises, a structure that contains itself: the line is still written.
        return _encoder.encode({name: _safe(value) for name, value in line.items()}).decode()


def _safe(value: object) -> object:
    try:
        _encoder.encode(value)
    except Exception:
        try:
            return repr(value)
        except Exception:
            return f"<{type(value).__name__} that cannot be shown>"
    return value
