"""Tasks: what this app declares."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.admin import DeclaredLimit, DeclaredTask
from headgate.http.caller import Caller
from headgate.http.endpoint import Endpoint, reads
from headgate.http.page import Page


class TaskDetails(msgspec.Struct, frozen=True):
    """A task: its queue, null if this app does not declare it, and the limits that its jobs draw on."""

    task: str
    queue: str | None
    limits: Sequence[DeclaredLimit]


async def tasks(caller: Caller) -> Page[DeclaredTask]:
    """Return the tasks that this app declares, by name."""
    return Page(caller.admin.declared_tasks)


async def task(caller: Caller, name: str) -> TaskDetails:
    """Return a task with the limits of its jobs; another app may declare it, so any name has an answer."""
    found = next((each for each in caller.admin.declared_tasks if each.task == name), None)
    if found is None:
        return TaskDetails(name, None, ())
    return TaskDetails(name, found.queue, limits_named(caller, found.limits))


def limits_named(caller: Caller, names: Sequence[str]) -> Sequence[DeclaredLimit]:
    """Return the declared limits of these names, each once, in their order."""
    declared = {each.limit: each for each in caller.admin.limits.all_declared()}
    return [declared[name] for name in dict.fromkeys(names) if name in declared]


ENDPOINTS: Sequence[Endpoint] = (reads("/tasks", tasks), reads("/tasks/{name}", task))
