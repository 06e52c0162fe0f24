"""HTTP errors as problem details (RFC 9457): a status, a type for programs and a detail for users."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

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


PROBLEM = "application/problem+json"

TYPES = "https://github.com/headgate/headgate/blob/main/docs/dashboard.md#"
"""The page that documents the types of problems; the code of an error is the anchor of its type."""


class WrongInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The wrong part of a request: a `parameter` of the URL or a header, or a `pointer` (RFC 6901) into the body."""

    detail: str
    parameter: str | None = None
    pointer: str | None = None


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error, as RFC 9457 describes it: programs read its `type`, users its `detail`, which says what to do.

    `errors` name the wrong values of the request, as far as they are known.
    """

    type: str
    title: str
    status: int
    detail: str
    errors: Sequence[WrongInput] = ()


class HttpError(Exception):
    """A request is answered with this error status; the code is the last part of the type of the problem."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[WrongInput] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})
        self.errors = errors

    def response(self) -> Response:
        title = self.code.replace("_", " ").capitalize()
        body = msgspec.json.encode(Problem(TYPES + self.code, title, self.status, self.message, self.errors))
        return Response(body, self.status, {"Cache-Control": "no-store", **self.headers}, media_type=PROBLEM)


def try_later(seconds: float) -> dict[str, str]:
    """Return the header that says when to retry."""
    return {"Retry-After": str(max(1, math.ceil(min(seconds, 86_400.0))))}


def code_of(error: BaseException) -> str:
    """Return the code of an error: the words of its name."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def http_error_of(error: HeadgateError) -> HttpError:
    """Return the HTTP error for an error of Headgate."""
    code = code_of(error)
    match error:
        case JobNotFound() | ScheduleNotFound() | NodeNotFound() | UnknownLimit() | UnknownQueue() | UnknownTask():
            return HttpError(404, code, str(error))
        case PayloadError(argument=str() as name):
            pointer = f"/payload/{name.replace('~', '~0').replace('/', '~1')}"
            return HttpError(422, code, str(error), errors=[WrongInput(str(error), pointer=pointer)])
        case DeclarationError() | PayloadError() | CostExceedsLimit():
            return HttpError(422, code, str(error))
        case SearchTooLong() | TooManySearches() | StorageUnavailable() | StorageUnusable() | NotOpen():
            return HttpError(503, code, str(error), headers=try_later(RETRY_AFTER))
        case _:
            return HttpError(409, code, str(error))
