"""Tasks and handles for code that cannot await: the same verbs, run through the app's portal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack

from headgate.schedules.trigger import Trigger
from headgate.tasks.foreign_verbs import raise_no_attribute, raise_not_callable
from headgate.tasks.schedule import ScheduleOptions
from headgate.tasks.sync_job import SyncJob as SyncJob
from headgate.tasks.sync_schedule import SyncTaskSchedule

if TYPE_CHECKING:
    from headgate.client import Client
    from headgate.tasks.call import Call
    from headgate.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")


class SyncTask(Generic[P, R]):
    """A task, enqueued from code that cannot await."""

    __slots__ = ("_client", "_task")

    def __init__(self, task: Task[P, R], client: Client) -> None:
        self._task = task
        self._client = client

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Same as `Task.enqueue`."""
        (job,) = self._client.enqueue_blocking(self._task, [self._task.call(*args, **kwargs)])
        return SyncJob(job, self._client.portal)

    def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Call[R]]) -> list[SyncJob[R]]:
        """Same as `Task.enqueue_many`."""
        jobs = self._client.enqueue_blocking(self._task, self._task._calls(calls))
        return [SyncJob(job, self._client.portal) for job in jobs]

    def schedule(self, name: str, trigger: Trigger, **options: Unpack[ScheduleOptions]) -> SyncTaskSchedule[P, R]:
        """Same as `Task.schedule`."""
        return SyncTaskSchedule(self._task.schedule(name, trigger, **options), self._client.portal)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in self.__slots__:
                raise AttributeError(name)
            raise_no_attribute("SyncTask", self._task._name_in_code, name, is_sync=True)

        def __call__(self, *args: object, **kwargs: object) -> NoReturn:
            raise_not_callable(f"{self._task._name_in_code}.sync", self._task.name)
