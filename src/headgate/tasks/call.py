"""Calls: what is stored as jobs, alone or as the chain, the batch or the graph that they form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar

import msgspec

from headgate.jobs.job import On, Origin
from headgate.limits.concurrency import Concurrency
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.leading import Leader, require_leaders

R = TypeVar("R")

BatchLimit = str | Concurrency
"""A mutex, or the name of a concurrency limit, that the jobs of a batch hold together."""


class Call(msgspec.Struct, Generic[R], frozen=True):
    """The arguments of one job to enqueue, checked by the type checker; `task.call(…)` makes it.

    `task` is the task that it calls, with the options of `task.using(…)`; None for arguments without a task. `headers`
    are those that a function of `@app.around_enqueue` has left it with; None: those of its options. `leaders` are what
    the job is `after`, and `on` which end of theirs it needs. The arguments `later` are results: they are added when
    the job starts, and its other arguments are all in `kwargs`.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    task: TaskDefinition | None = None
    headers: dict[str, str] | None = None
    leaders: tuple[Leader, ...] = ()
    on: On = "success"
    later: frozenset[str] = frozenset()
    leader_id = None

    def after(self, *leaders: Leader, on: On = "success") -> Call[R]:
        """Return the call as one that starts once all these are final: if all have succeeded, by default.

        They are calls, chains or batches that are enqueued together with it, or handles of stored ones. With
        on="failure" it runs if not all have succeeded, with on="final" in any case. A call that does not run is
        cancelled if one of them has failed or was cancelled, else skipped. Raises DeclarationError.
        """
        require_leaders(leaders, on)
        return msgspec.structs.replace(self, leaders=(*self.leaders, *leaders), on=on)

    if not TYPE_CHECKING:  # To a type checker calls have no `|`.

        def __or__(self, other: object) -> NoReturn:
            raise TypeError("calls have no |; write chain(a.call(…), b.call(…))")


class FlowCall(NamedTuple):
    """A call to store: its id, its chain and batch, and the limits of its batch."""

    id: str
    call: Call[Any]
    origin: Origin
    limits: tuple[BatchLimit, ...]

    @property
    def task(self) -> TaskDefinition:
        assert self.call.task is not None
        return self.call.task

    @property
    def queue(self) -> str:
        return self.task.options.get("queue") or self.task.queue
