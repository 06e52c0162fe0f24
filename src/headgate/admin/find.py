"""Find by name: jobs, batches, tasks, queues, limits, keys, schedules and nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from headgate.admin.readings import Readings
from headgate.limits.key import bucket_key
from headgate.storage.store import Store

FoundKind = Literal["job", "batch", "task", "queue", "limit", "key", "schedule", "node"]

MOST_SCHEDULES = 1000
"""How many schedules are searched, in the order of their names."""

MOST_LIMITS = 100
"""The most limits in which a key is searched; each costs a lookup."""

_BEGINS_AN_ID = re.compile(r"[0-9a-v]{4}[0-9a-v-]{0,32}", re.IGNORECASE)
"""Fewer characters of an id match too many jobs to be of use."""


class Found(msgspec.Struct, frozen=True):
    """Something with its name: the id of a job or a batch, the name of anything else.

    `limit` is that of a key, `detail` the task of a job, the queue of a task, or the id of a node. `is_paused` is set
    by the dashboard, for queues and keys.
    """

    kind: FoundKind
    name: str
    limit: str | None
    detail: str | None
    is_paused: bool | None = None


async def find(
    seen: Readings, storage: Store, text: str, kind: FoundKind | None, queues: Iterable[str], count: int
) -> Sequence[Found]:
    """As `Admin.find`."""

    def is_wanted(*kinds: FoundKind) -> bool:
        return kind is None or kind in kinds

    found: list[Found] = []
    if is_wanted("job", "batch") and _BEGINS_AN_ID.fullmatch(text):
        if is_wanted("job"):
            jobs = await storage.jobs_beginning(text.lower(), count)
            found += [Found("job", job.id, None, job.task) for job in jobs]
        if is_wanted("batch"):
            found += [Found("batch", id, None, None) for id in await storage.batch_ids(text.lower(), count)]
    if is_wanted("task"):
        found += _best(text, (Found("task", each.task, None, each.queue) for each in seen.declared_tasks), count)
    if is_wanted("queue"):
        found += _best(text, (Found("queue", queue, None, None) for queue in queues), count)
    limits = [each.limit for each in seen.limits.all_declared()]
    if is_wanted("limit"):
        found += _best(text, (Found("limit", limit, None, None) for limit in limits), count)
    if is_wanted("key") and text:
        keys = await storage.keys(limits[:MOST_LIMITS], bucket_key(text), count)
        found += [Found("key", ref.key, ref.limit, None) for ref in keys]
    if is_wanted("schedule"):
        schedules = await storage.schedules(count=MOST_SCHEDULES)
        found += _best(text, (Found("schedule", each.name, None, None) for each in schedules), count)
    if is_wanted("node"):
        nodes = await seen.nodes()
        found += _best(text, (Found("node", each.name, None, each.id) for each in nodes), count)
    return sorted(found, key=lambda each: _distance(text, each))


def _best(text: str, named: Iterable[Found], count: int) -> list[Found]:
    """Return those with the text in their name, best matches first."""
    matching = [each for each in named if text.casefold() in each.name.casefold()]
    return sorted(matching, key=lambda each: (_distance(text, each), each.name))[:count]


def _distance(text: str, found: Found) -> int:
    """Return how well a name matches: 0 exactly, 1 at its begin, 2 at the begin of a word, 3 anywhere."""
    name, part = found.name.casefold(), text.casefold()
    if name == part:
        return 0
    if name.startswith(part):
        return 1
    return 2 if re.search(rf"(?<![^\W_]){re.escape(part)}", name) else 3
