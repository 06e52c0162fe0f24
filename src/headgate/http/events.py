"""Events: jobs that became final, in the order of their ends, one page after another."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from headgate.admin.ended import AT_ONCE, EndPage, EndQuery, place_of
from headgate.errors import DeclarationError
from headgate.http.caller import Caller
from headgate.http.endpoint import bad_request, require_limit

After = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=100,
        description="The last event's `cursor`, the last page's `next`, or an instant, as "
        "2026-03-01T12:00:00Z. Without it, you get the last ten seconds.",
    ),
]


class EventsQuery(EndQuery, frozen=True, kw_only=True):
    after: After | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=AT_ONCE, description="How many ends to read at most.")] = AT_ONCE


async def events(caller: Caller, query: EventsQuery) -> EndPage:
    """Return the next jobs that became final, the first ones first; with `Accept: text/event-stream`, as they come.

    You get each end at least once, and drop repeats by the `id` of the events. The stream continues after the header
    `Last-Event-ID`, or after `after`. Each `event: end` has one event as JSON; `event: lost` says that the store does
    not answer. A stream ends after half a minute, and an EventSource opens the next one by itself.
    """
    require_limit(caller, query.limit)
    criteria = {name: getattr(query, name) for name in EndQuery.__struct_fields__}
    return await caller.admin.ended_jobs(to_after(query.after), count=query.count, **criteria)


def to_after(text: str | None) -> str | datetime | None:
    """Return the instant or the cursor in a text. Raises HttpError for another text, or a time without a zone."""
    try:
        instant = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        try:
            place_of(text, now=0)
        except DeclarationError:
            raise bad_request(
                f"{text!r:.80} is no cursor and no instant; pass the `cursor` of your last event, the `next` of the "
                "last page, or an instant such as 2026-03-01T12:00:00Z (after)",
                parameter="after",
            ) from None
        return text
    if instant is not None and instant.tzinfo is None:
        raise bad_request(f"{text} has no time zone; write {text}Z, for UTC (after)", parameter="after")
    return instant
