"""Tasks and handles for code that cannot await: the same verbs, run through the app's portal."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from headgate.tasks.handle import Job, JobStatus

if TYPE_CHECKING:
    from headgate.tasks.task import Call, Task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Portal(Protocol):
    """Runs a coroutine on the app's event loop and blocks this thread until it is done."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...


class SyncJob(Generic[R]):
    """A stored job, followed from code that cannot await."""

    __slots__ = ("_job", "_portal", "id")

    def __init__(self, job: Job[R], portal: Portal) -> None:
        self.id = job.id
        self._job = job
        self._portal = portal

    def status(self) -> JobStatus:
        """As `Job.status`."""
        return self._portal.run(self._job.status())

    def result(self, timeout: float | None = None) -> R:
        """As `Job.result`; blocks this thread."""
        return self._portal.run(self._job.result(timeout))

    def cancel(self) -> bool:
        """As `Job.cancel`."""
        return self._portal.run(self._job.cancel())

    def __repr__(self) -> str:
        return f"SyncJob({self.id!r})"


class SyncTask(Generic[P, R]):
    """A task, enqueued from code that cannot await."""

    __slots__ = ("_portal", "_task")

    def __init__(self, task: Task[P, R], portal: Portal) -> None:
        self._task = task
        self._portal = portal

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """As `Task.enqueue`."""
        return SyncJob(self._portal.run(self._task.enqueue(*args, **kwargs)), self._portal)

    def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Call[R]]) -> list[SyncJob[R]]:
        """As `Task.enqueue_many`."""
        jobs = self._portal.run(self._task.enqueue_many(calls))
        return [SyncJob(job, self._portal) for job in jobs]
