"""Turns any exception into text that a row can hold."""

from __future__ import annotations

import traceback
from types import TracebackType

from headgate.jobs.job import JobError, truncated_error

FRAMES = 20
"""How many frames of a traceback are kept."""


def summarize_error(error: BaseException) -> str:
    """Return the error in one line; never raises."""
    text = truncated_error(error)
    return f"{text.type}: {text.message}"


def describe_error(error: BaseException) -> JobError:
    """Return the error with the last `FRAMES` frames of its traceback; never raises."""
    try:
        trace = "".join(
            traceback.format_exception(type(error), error, _last_frames(error.__traceback__), limit=-FRAMES)
        )
    except BaseException as unprintable:
        # An exception's own __str__ may raise anything; the job still fails with what is available.
        trace = f"<no traceback: {type(unprintable).__name__} while formatting it>"
    return truncated_error(error, trace)


def _last_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the end of a traceback. One object that is raised again and again has a long one, slow to format."""
    last = trace
    for _ in range(FRAMES):
        last = None if last is None else last.tb_next
    while trace is not None and last is not None:
        trace, last = trace.tb_next, last.tb_next
    return trace
