"""Which Django tasks there are, and which of them are tasks of an app already.

Django makes a backend for each thread and asyncio task, so what they know of each other is here.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from headgate import Headgate, Task
from headgate.contrib.django.arguments import Parameters
from headgate.contrib.django.body import DjangoTaskBody
from headgate.contrib.django.options import options_of


class Declared(NamedTuple):
    """A Django task as a task of an app."""

    task: Task[..., Any]
    body: DjangoTaskBody

    @property
    def parameters(self) -> Parameters:
        return self.body.parameters


class Imported:
    """The Django tasks that have been made, by the path of their function and those that it had before."""

    def __init__(self) -> None:
        self._tasks: dict[str, Any] = {}

    def add(self, task: Any) -> None:
        """Note a task; what `task.using(…)` makes of it later is the same one."""
        known = self._tasks.get(task.module_path)
        if known is None or known.func is not task.func:
            for path in (*options_of(task.func).get("aliases", ()), task.module_path):
                self._tasks[path] = task

    def find(self, path: str) -> Any:
        """That of this path, None if none was made."""
        return self._tasks.get(path)

    def paths(self) -> list[str]:
        """Of all of them."""
        return sorted(self._tasks)


IMPORTED = Imported()

_lock = threading.Lock()
_declared: WeakKeyDictionary[Headgate, dict[str, Declared]] = WeakKeyDictionary()


def declared_on(app: Headgate, task: Any, alias: str, sender: type[Any], queue: str) -> Declared:
    """The task of an app that runs this Django task; declared now, unless it is already. Raises DeclarationError."""
    with _lock:
        of_app = _declared.setdefault(app, {})
        found = of_app.get(task.module_path)
        if found is None:
            body = DjangoTaskBody(app, task, alias, sender)
            found = of_app[task.module_path] = Declared(body.declare(queue), body)
        return found
