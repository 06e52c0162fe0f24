"""Pages: lists are returned one page at a time, each with the cursor of the next."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec

from headgate.http.endpoint import LARGEST_NUMBER, bad_request, require_storable
from headgate.jobs.query import Key as Key
from headgate.jobs.query import Name as Name
from headgate.storage.records import Page as Page

T = TypeVar("T")

MOST = 500
"""The longest page."""

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST, description="How many at most.")]
Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]
Cursor = Annotated[str, msgspec.Meta(min_length=1, max_length=2000, description="The `next` of the page before it.")]


def page_of(found: Sequence[T], count: int, cursor: Callable[[T], str]) -> Page[T]:
    """Return a page of the first `count` of what was found; one more was requested, and is there if a page follows."""
    items = found[:count]
    return Page(items, cursor(items[-1]) if len(found) > count else None)


def to_cursor(place: msgspec.Struct) -> str:
    """Return the cursor for a position in a list that has several columns, as text that needs no escaping in a URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def from_cursor(cursor: str, kind: type[T]) -> T:
    """Return the position of a cursor. Raises HttpError for one that no page has returned."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        place = msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise bad_request(f"{cursor[:80]!r} is not the `next` of any page") from None
    require_storable(msgspec.to_builtins(place))
    return place
