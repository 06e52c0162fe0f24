"""Tasks: what this app declares."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.admin import DeclaredTask
from headgate.http.caller import Caller
from headgate.http.endpoint import Endpoint, reads
from headgate.http.page import Page


async def tasks(caller: Caller) -> Page[DeclaredTask]:
    """Return the tasks that this app declares, by name."""
    return Page(caller.admin.declared_tasks)


ENDPOINTS: Sequence[Endpoint] = (reads("/tasks", tasks),)
