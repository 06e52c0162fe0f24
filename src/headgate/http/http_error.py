"""HTTP errors: a status, a code for programs and a message for users."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from headgate.errors import (
    CostExceedsLimit,
    DeclarationError,
    HeadgateError,
    JobNotFound,
    NodeNotFound,
    NotOpen,
    PayloadError,
    ScheduleNotFound,
    SearchTooLong,
    StorageUnavailable,
    StorageUnusable,
    TooManySearches,
    UnknownLimit,
    UnknownQueue,
    UnknownTask,
)

RETRY_AFTER = 5
"""Seconds after which to retry if the store did not answer."""


class ErrorBody(msgspec.Struct, frozen=True):
    """An error: a code for programs, and a message for users that says what to do."""

    code: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of an error response."""

    error: ErrorBody


class HttpError(Exception):
    """A request is answered with this error status."""

    def __init__(self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    def response(self) -> Response:
        body = msgspec.json.encode(ErrorAnswer(ErrorBody(self.code, self.message)))
        return Response(body, self.status, {"Cache-Control": "no-store", **self.headers}, media_type="application/json")


def try_later(seconds: float) -> dict[str, str]:
    """Return the header that says when to retry."""
    return {"Retry-After": str(max(1, math.ceil(min(seconds, 86_400.0))))}


def http_error_of(error: HeadgateError) -> HttpError:
    """Return the HTTP error for an error of Headgate."""
    code = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    match error:
        case JobNotFound() | ScheduleNotFound() | NodeNotFound() | UnknownLimit() | UnknownQueue() | UnknownTask():
            return HttpError(404, code, str(error))
        case DeclarationError() | PayloadError() | CostExceedsLimit():
            return HttpError(422, code, str(error))
        case SearchTooLong() | TooManySearches() | StorageUnavailable() | StorageUnusable() | NotOpen():
            return HttpError(503, code, str(error), headers=try_later(RETRY_AFTER))
        case _:
            return HttpError(409, code, str(error))
