"""Find anything by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from headgate.admin import Found
from headgate.admin.find import FoundKind
from headgate.admin.query import LONGEST_TEXT
from headgate.http.caller import Caller
from headgate.http.endpoint import Endpoint, Query, reads
from headgate.http.page import Page

EACH = 6
"""How many of each kind are returned."""


class FindQuery(Query, frozen=True, kw_only=True):
    q: Annotated[
        str,
        msgspec.Meta(max_length=LONGEST_TEXT, description="How an id or a key begins, or a part of any other name."),
    ] = ""
    kind: FoundKind | None = None


async def find(caller: Caller, query: FindQuery) -> Page[Found]:
    """Return jobs, batches, tasks, queues, limits, keys, schedules and nodes of that name, up to six of each.

    Best matches come first. It searches the tasks and limits that this app declares, and the first 1,000 schedules.
    """
    queues = [queue.queue for queue in (await caller.overview()).queues]
    return Page(await caller.admin.find(query.q, kind=query.kind, queues=queues, count=EACH))


ENDPOINTS: Sequence[Endpoint] = (reads("/find", find),)
