"""Errors as text that a row can hold, whatever the error is."""

from __future__ import annotations

import asyncio
import traceback

from headgate.jobs.job import JobError, truncated_error

OWN_ERRORS = (Exception, SystemExit, asyncio.CancelledError, GeneratorExit)
"""What a plain function of a user's own (a trigger, a backoff, a key) may raise. Out of it the last three would end the
node or the program; nothing is awaited in it, so that none of them can mean the caller."""


def said(error: BaseException) -> str:
    """The error in one line; never raises."""
    text = truncated_error(error)
    return f"{text.type}: {text.message}"


def described(error: BaseException) -> JobError:
    """The error with the last of its traceback; never raises."""
    try:
        trace = "".join(traceback.format_exception(error, limit=-20))
    except BaseException as unprintable:
        # An exception may raise anything from its own __str__; the job still fails with what can be told.
        trace = f"<no traceback: {type(unprintable).__name__} while formatting it>"
    return truncated_error(error, trace)
