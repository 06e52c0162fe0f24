"""What one app declares: its tasks, shared limits and queues. Everything is checked as it is declared."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from headgate.errors import DeclarationError, UnknownQueue
from headgate.limits.limit import AnyRule, Limit
from headgate.tasks.gate import BoundLimit
from headgate.tasks.task import Task

DEFAULT_QUEUE = "default"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")


@dataclass(frozen=True, slots=True)
class Queue:
    """A named set of jobs with its own concurrency per node; None chooses it by the kind of its tasks."""

    name: str
    concurrency: int | None = None


class Registry:
    """Tasks, limits and queues by name."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.queues: dict[str, Queue] = {DEFAULT_QUEUE: Queue(DEFAULT_QUEUE)}
        self.shared: dict[str, Limit] = {}
        self.limits: dict[str, Limit] = {}
        self.rules: dict[str, AnyRule] = {}
        """The rule of every limit, by its full name."""

    def add_task(self, task: Task[Any, Any]) -> None:
        require_name(task.name, "task")
        if task.name in self.tasks:
            raise DeclarationError(f"task {task.name!r} is declared twice; give one of them another name=")
        self.require_queue(task.queue, f"task {task.name!r}")
        for bound in task.gate.limits:
            self._add_limit(bound, task.name)
        self.tasks[task.name] = task

    def add_queue(self, queue: Queue) -> None:
        require_name(queue.name, "queue")
        if queue.concurrency is not None and queue.concurrency < 1:
            raise DeclarationError(f"queue {queue.name!r}: concurrency={queue.concurrency} must be at least 1")
        self.queues[queue.name] = queue

    def add_shared(self, name: str, limit: Limit) -> None:
        if name in self.shared:
            raise DeclarationError(f"limit {name!r} is declared twice")
        if limit.name is not None and limit.name != name:
            raise DeclarationError(f"limit {name!r} is declared with another name, {limit.name!r}; leave name= out")
        self.shared[name] = limit
        self._require_same(name, limit, "app.limit")
        self.limits[name] = limit
        self.rules[name] = limit.rule

    def require_queue(self, queue: str, where: str) -> None:
        if queue not in self.queues:
            raise UnknownQueue(
                f"{where} uses queue {queue!r}, which is not declared; declare it first with app.queue({queue!r}). "
                f"Declared: {', '.join(self.queues)}"
            )

    def concurrency(self, queue: str, default: int | None) -> int:
        """Slots per node: as declared, else 100, or max(4, 2 × cores) if all tasks of the queue are plain functions."""
        declared = self.queues[queue].concurrency or default
        if declared is not None:
            return declared
        kinds = {task.is_async for task in self.tasks.values() if task.queue == queue}
        return max(4, 2 * (os.cpu_count() or 1)) if kinds == {False} else 100

    def _add_limit(self, bound: BoundLimit, task: str) -> None:
        self._require_same(bound.name, bound.limit, f"task {task!r}")
        self.limits[bound.name] = bound.limit
        self.rules[bound.name] = bound.limit.rule

    def _require_same(self, name: str, limit: Limit, where: str) -> None:
        known = self.limits.get(name)
        if known is not None and (type(known.rule), known.rule.describe()) != (type(limit.rule), limit.rule.describe()):
            raise DeclarationError(
                f"{where} declares limit {name!r} as {limit.rule.describe()}, but elsewhere it is "
                f"{known.rule.describe()}; one name is one budget"
            )


def require_name(name: str, kind: str) -> None:
    """Raise DeclarationError unless it can name a task or a queue."""
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{kind} name {name!r:.80} must be 1 to 200 letters, digits and _ . : / -, the first a letter, digit or _"
        )
