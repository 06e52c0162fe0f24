"""What one app declares: its tasks, shared limits and queues. Everything is checked as it is declared."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from headgate.errors import DeclarationError, UnknownQueue
from headgate.limits.concurrency import Concurrency
from headgate.limits.limit import AnyRule, Limit
from headgate.tasks.gate import BoundLimit, Gate
from headgate.tasks.task import Task

DEFAULT_QUEUE = "default"

RESERVED = "queue:"
"""What the names of the limits begin with that the global concurrency of queues makes: `queue:emails`."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")


@dataclass(frozen=True, slots=True)
class Queue:
    """A named set of jobs with its own concurrency per node; None chooses it by the kind of its tasks.

    `global_concurrency` is how many of its jobs run at once over all nodes; None: as many as the nodes have slots.
    """

    name: str
    concurrency: int | None = None
    global_concurrency: int | None = None


class Registry:
    """Tasks, limits and queues by name."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.queues: dict[str, Queue] = {DEFAULT_QUEUE: Queue(DEFAULT_QUEUE)}
        self.shared: dict[str, Limit] = {}
        self.limits: dict[str, Limit] = {}
        self.rules: dict[str, AnyRule] = {}
        """The rule of every limit, by its full name."""
        self._queue_limits: dict[str, BoundLimit] = {}
        self._gates: dict[tuple[str, str], Gate] = {}

    def add_task(self, task: Task[Any, Any]) -> None:
        require_name(task.name, "task")
        if task.name in self.tasks:
            raise DeclarationError(f"task {task.name!r} is declared twice; give one of them another name=")
        self.require_queue(task.queue, f"task {task.name!r}")
        for bound in task.gate.limits:
            _require_unreserved(bound.limit.name, f"task {task.name!r}")
            self._add_limit(bound, task.name)
        self.tasks[task.name] = task

    def add_queue(self, queue: Queue) -> None:
        require_name(queue.name, "queue")
        if queue.concurrency is not None and queue.concurrency < 1:
            raise DeclarationError(f"queue {queue.name!r}: concurrency={queue.concurrency} must be at least 1")
        if queue.global_concurrency is not None and queue.global_concurrency < 1:
            raise DeclarationError(
                f"queue {queue.name!r}: global_concurrency={queue.global_concurrency} must be at least 1; "
                f"to let nothing start, pause it: `headgate queues pause {queue.name}`"
            )
        self._bind_queue(queue)
        self.queues[queue.name] = queue

    def _bind_queue(self, queue: Queue) -> None:
        """Let its jobs draw on the limit that its global concurrency is; on none if it has none any more."""
        name = RESERVED + queue.name
        if self._queue_limits.pop(queue.name, None) is not None:
            del self.limits[name], self.rules[name]
        self._gates.clear()
        if queue.global_concurrency is not None:
            where = f"queue {queue.name!r}"
            bound = BoundLimit(Concurrency(queue.global_concurrency), name, (), where)
            if name in self.limits:
                raise DeclarationError(f"{where} needs the limit name {name!r}, which a task has; rename that task")
            self._queue_limits[queue.name] = bound
            self.limits[name], self.rules[name] = bound.limit, bound.limit.rule

    def gate(self, task: Task[Any, Any], queue: str) -> Gate:
        """What limits the jobs of a task in a queue: the task's own limits, then the queue's."""
        limit = self._queue_limits.get(queue)
        if limit is None:
            return task.gate
        gate = self._gates.get((task.name, queue))
        if gate is None:
            gate = self._gates[task.name, queue] = task.gate.joined_by(limit)
        return gate

    def signature(self, task: Task[Any, Any]) -> str:
        """A text that changes when the draws, costs or terms of its jobs may come out otherwise, in whatever queue."""
        return "+".join((task.gate.signature, *sorted(limit.name for limit in self._queue_limits.values())))

    def add_shared(self, name: str, limit: Limit) -> None:
        _require_unreserved(name, "app.limit")
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
        if any(bound.name == limit.name for limit in self._queue_limits.values()):
            raise DeclarationError(f"task {task!r} would name a limit {bound.name!r}, as a queue does; rename the task")
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


def _require_unreserved(name: str | None, where: str) -> None:
    if name is not None and name.startswith(RESERVED):
        raise DeclarationError(
            f"{where} names a limit {name!r}; names that begin with {RESERVED!r} are those of queues with a "
            "global_concurrency"
        )


def require_name(name: str, kind: str) -> None:
    """Raise DeclarationError unless it can name a task or a queue."""
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{kind} name {name!r:.80} must be 1 to 200 letters, digits and _ . : / -, the first a letter, digit or _"
        )
