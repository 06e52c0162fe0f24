"""The call, or the graph of calls, that a schedule enqueues each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from headgate.jobs.audit import AuditLevel
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import JobOptions, Origin


class ScheduledCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that a schedule enqueues: a task, its payload and its options; `expires_in` is in microseconds.

    With a `graph`, each occurrence enqueues its steps instead; `task` and `queue` are those of the first, and the rest
    is blank.
    """

    task: str
    queue: str
    payload: str
    priority: int = 0
    headers: dict[str, str] | None = None
    options: JobOptions | None = None
    audit: AuditLevel = AuditLevel.FULL
    expires_in: int | None = None
    graph: ScheduledGraph | None = None

    @property
    def calls(self) -> Sequence[ScheduledCall]:
        """The calls that an occurrence enqueues: this one, or those of its graph."""
        return (self,) if self.graph is None else [step.call for step in self.graph.steps]

    @property
    def tasks(self) -> Sequence[str]:
        """The tasks of the calls, each once."""
        return list(dict.fromkeys(call.task for call in self.calls))

    def with_payloads(self, change: Callable[[str], str]) -> ScheduledCall:
        """Return it with each payload changed."""
        if self.graph is None:
            return replace(self, payload=change(self.payload))
        steps = [replace(step, call=replace(step.call, payload=change(step.call.payload))) for step in self.graph.steps]
        return replace(self, graph=replace(self.graph, steps=tuple(steps)))


class ScheduledStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a graph: its number, and the numbers of what it follows, its batch and its results."""

    id: str
    call: ScheduledCall
    origin: Origin


class ScheduledGraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """The calls of a chain or a batch, each after those that it follows, and its batches and joins.

    Numbers stand for their ids, which each occurrence gives them. The `run` is the batch around all of them. `last` is
    the last call.
    """

    steps: tuple[ScheduledStep, ...]
    batches: tuple[NewBatch, ...]
    run: str
    last: str
