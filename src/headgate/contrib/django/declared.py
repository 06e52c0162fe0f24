"""The imported Django tasks, and those of them that are declared on an app.

Django makes a backend for each thread and asyncio task, so their shared state is here.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from headgate import Headgate
from headgate.contrib.django.body import DjangoTaskBody
from headgate.contrib.django.options import options_of


class Imported(dict[str, Any]):
    """The Django tasks that have been made, by the path of their function and by earlier paths."""

    def add(self, task: Any) -> None:
        """Add a task; a later result of `task.using(…)` is the same task."""
        known = self.get(task.module_path)
        if known is None or known.func is not task.func:
            for path in (*options_of(task.func).get("aliases", ()), task.module_path):
                self[path] = task


IMPORTED = Imported()

_lock = threading.Lock()
_declared: WeakKeyDictionary[Headgate, dict[str, DjangoTaskBody]] = WeakKeyDictionary()


def declared_on(app: Headgate, task: Any, alias: str, sender: type[Any], queue: str) -> DjangoTaskBody:
    """Return the app's task that runs this Django task; declare it if it is not. Raises DeclarationError."""
    with _lock:
        app_tasks = _declared.setdefault(app, {})
        found = app_tasks.get(task.module_path)
        if found is None:
            found = app_tasks[task.module_path] = DjangoTaskBody(app, task, alias, sender, queue)
        return found
