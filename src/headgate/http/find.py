"""Find anything by its name."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec.structs import replace

from headgate.admin import Found
from headgate.admin.find import FoundKind
from headgate.http.caller import Caller
from headgate.http.endpoint import Query
from headgate.http.page import Page
from headgate.jobs.query import LONGEST_TEXT

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
    queues = {queue.queue: queue.paused_at is not None for queue in (await caller.overview()).queues}
    found = await caller.admin.find(query.q, kind=query.kind, queues=queues, count=EACH)
    keys = [(each.limit, each.name) for each in found if each.kind == "key" and each.limit is not None]
    paused = await caller.admin.limits.paused(keys) if keys else frozenset()

    def is_paused(each: Found) -> bool | None:
        if each.kind == "queue":
            return queues.get(each.name, False)
        return (each.limit, each.name) in paused if each.kind == "key" else None

    return Page([replace(each, is_paused=is_paused(each)) for each in found])
