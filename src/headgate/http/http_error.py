"""Refusals: why a request is not answered, as a status, a code for programs and a sentence for people."""

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
    NotOpen,
    PayloadError,
    ScheduleNotFound,
    SearchTooLong,
    StorageUnavailable,
    StorageUnusable,
    TooManySearches,
    UnknownLimit,
    UnknownQueue,
)

RETRY_AFTER = 5
"""Seconds after which to ask again, where the store did not answer."""


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong: a code for programs, and a sentence for people that says what to do."""

    code: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The answer to what was refused."""

    error: ErrorBody


class HttpError(Exception):
    """A request is not answered, with this status."""

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
    """The header that says when to ask again."""
    return {"Retry-After": str(max(1, math.ceil(min(seconds, 86_400.0))))}


def http_error_of(error: HeadgateError) -> HttpError:
    """What an error of Headgate is over HTTP."""
    code = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    match error:
        case JobNotFound() | ScheduleNotFound() | UnknownLimit() | UnknownQueue():
            return HttpError(404, code, str(error))
        case DeclarationError() | PayloadError() | CostExceedsLimit():
            return HttpError(422, code, str(error))
        case SearchTooLong() | TooManySearches() | StorageUnavailable() | StorageUnusable() | NotOpen():
            return HttpError(503, code, str(error), headers=try_later(RETRY_AFTER))
        case _:
            return HttpError(409, code, str(error))
