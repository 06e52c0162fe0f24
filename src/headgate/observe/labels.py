"""Labels: the names of tasks, queues and limits in metrics, limited so that there are never many."""

from __future__ import annotations

from collections.abc import Collection

from headgate.tasks.registry import Registry

OTHER = "(other)"
"""Replaces every name in the store that this program does not declare."""


class Labels:
    """The names that this program declares; any other is `(other)`. Keys of limits are never labels."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @property
    def queues(self) -> Collection[str]:
        """The declared queues."""
        return self._registry.queues.keys()

    @property
    def limits(self) -> Collection[str]:
        """The declared limits."""
        return self._registry.limits.keys()

    def task(self, name: str) -> str:
        """Return the task that runs jobs stored under this name; an alias counts as its current task."""
        task = self._registry.find(name)
        return OTHER if task is None else task.name

    def queue(self, name: str) -> str:
        return name if name in self._registry.queues else OTHER

    def limit(self, name: str) -> str:
        return name if name in self._registry.limits else OTHER
