"""The log of a job, written through `current_job().log` or through ordinary logging."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from headgate.jobs.annotation import Annotation
from headgate.jobs.job import ClaimedJob

LOGGER = "headgate.job"
"""The logger that the lines of `current_job().log` also go to."""


class Reports(Protocol):
    """Receives the reports of running jobs, from any thread; child processes send theirs to it."""

    @property
    def lowest(self) -> int | None:
        """The lowest level of lines that are kept; None: no lines are kept."""
        ...

    def progress(self, job: ClaimedJob, fraction: float, message: str | None) -> None: ...

    def annotate(self, job: ClaimedJob, changes: Mapping[str, Annotation | None]) -> None: ...

    def log(self, job: ClaimedJob, level: int, logger: str, message: str) -> None: ...


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """A logger of one job: its lines of INFO and above are kept with the job, whatever the level of ordinary logging.

    All of them also go to the logger `headgate.job`, with `job_id`, `task` and `attempt` as `extra`. A line that cannot
    be formatted is kept unformatted.
    """

    def __init__(self, job: ClaimedJob, reports: Reports | None) -> None:
        super().__init__(logging.getLogger(LOGGER), {})
        self._job = job
        self._reports = reports

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # as logging calls it
        """Return whether a line of that level is kept or logged."""
        return self._is_kept(level) or self.logger.isEnabledFor(level)

    def _is_kept(self, level: int) -> bool:
        lowest = None if self._reports is None else self._reports.lowest
        return lowest is not None and level >= lowest

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Same as `logging.Logger.log`."""
        if not self.isEnabledFor(level):
            return
        error = options.pop("exc_info", None)
        if isinstance(error, BaseException):
            error = (type(error), error, error.__traceback__)
        elif error and not isinstance(error, tuple):
            error = sys.exc_info()
        extra: Mapping[str, object] = options.pop("extra", None) or {}
        job = self._job
        record = logging.LogRecord(LOGGER, level, "", 0, msg, args, error or None)
        text, is_sound = format_record(record)
        if self._is_kept(level) and self._reports is not None:
            self._reports.log(job, level, LOGGER, text)
        self.logger.log(
            level,
            msg if is_sound else "%s",
            *(args if is_sound else (text,)),
            exc_info=error if is_sound else None,
            extra={**extra, "job_id": job.id, "task": job.task, "attempt": job.attempt},
            stacklevel=options.pop("stacklevel", 1) + 1,
            **options,
        )


def format_record(record: logging.LogRecord) -> tuple[str, bool]:
    """Return the text of a record with its traceback, and whether it could be formatted; never raises."""
    try:
        # A record of a custom class may hold anything.
        text, is_sound = str(record.getMessage()), True
    except Exception as error:
        text, is_sound = (
            f"{_shown(record.msg)} {_shown(record.args)} ({type(error).__name__} while formatting it)",
            False,
        )
    if record.exc_info is not None:
        try:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        except Exception as error:
            text += f"\n<no traceback: {type(error).__name__} while formatting it>"
    return text, is_sound


def _shown(value: object) -> str:
    try:
        return value if isinstance(value, str) else repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
