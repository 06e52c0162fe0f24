"""Labels: names of tasks, queues and limits as metrics may carry them, so that there are never many of them."""

from __future__ import annotations

from collections.abc import Collection

from headgate.tasks.registry import Registry

OTHER = "(other)"
"""Stands for every name that is found in the store and that this program does not declare."""


class Labels:
    """The names that this program declares; any other is `(other)`. Keys of limits are no labels at all."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @property
    def queues(self) -> Collection[str]:
        """Those that are declared."""
        return self._registry.queues.keys()

    @property
    def limits(self) -> Collection[str]:
        """Those that are declared."""
        return self._registry.limits.keys()

    def task(self, name: str) -> str:
        """The task that runs jobs stored under this name: an alias counts as the task that it has become."""
        task = self._registry.find(name)
        return OTHER if task is None else task.name

    def queue(self, name: str) -> str:
        return name if name in self._registry.queues else OTHER

    def limit(self, name: str) -> str:
        return name if name in self._registry.limits else OTHER
