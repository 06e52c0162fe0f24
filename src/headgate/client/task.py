"""Tasks: functions whose calls can be enqueued, and their schedules, each also for code that cannot await."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack

from headgate.client.client import Client
from headgate.client.handles import Job, Schedule, SyncJob, SyncSchedule
from headgate.client.portal import Portal
from headgate.engine.enqueuer import StoredCall
from headgate.foreign_words import raise_no_attribute, raise_not_callable
from headgate.jobs.retry import RetryPolicy
from headgate.schedules.trigger import Trigger
from headgate.tasks.call import Call
from headgate.tasks.callbacks import CallbackKind
from headgate.tasks.context import JobContext
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.limit_set import LimitSet
from headgate.tasks.options import EnqueueOptions
from headgate.tasks.schedule import ScheduleOptions, ScheduleSpec, schedule_spec

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


@dataclass(eq=False, repr=False)
class Task(TaskDefinition, Generic[P, R]):
    """A function whose calls can be enqueued; `@app.task` makes it."""

    _client: Client

    @property
    def retry(self) -> RetryPolicy:
        """How failed attempts are retried: its own policy, else that of its queue, else the app's."""
        return self._client.registry.retry(self)

    @property
    def timeout(self) -> float | None:
        """Seconds that an attempt may take: its own, else those of its queue, else the app's."""
        return self._client.registry.timeout(self)

    @property
    def whole_limit_set(self) -> LimitSet:
        """Its own limits and those of its queue, with the defaults for how jobs wait."""
        return self._client.registry.limit_set(self, self.queue)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store one job with these arguments and return when it is durable.

        Raises TypeError or PayloadError for arguments that cannot be stored, CostExceedsLimit for a job that could
        never start, DuplicateJob, IdInUse, QueueFull, NotOpen, StorageUnavailable.
        """
        stored = await self._client.enqueue(self, (Call(args, kwargs),))
        return self._handle(stored[0])

    async def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Call[R]]) -> list[Job[R]]:
        """Store many jobs in one commit, all or none: tuples of positional arguments, or `task.call(…)`.

        A call made by `task.using(…).call(…)` has its own options; those it leaves out are the options of this task.
        Raises what `enqueue` raises; TypeError for a call of another task.
        """
        return [self._handle(each) for each in await self._client.enqueue(self, self._calls(calls))]

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call, for `enqueue_many`, `chain` and `batch`; with `using(…)` before it, under other options."""
        return Call(args, kwargs, self)

    def using(self, **options: Unpack[EnqueueOptions]) -> Task[P, R]:
        """Return this task with other options of enqueueing: `task.using(delay=60, priority=5).enqueue(…)`.

        `headgate.tasks.options.EnqueueOptions` describes each option. Raises DeclarationError for contradictory
        options, UnknownQueue for a queue that is not declared.
        """
        return self._client.registry.with_options(self, options)

    def on_started(self, callback: Callable[[JobContext], C]) -> Callable[[JobContext], C]:
        """Call `callback(job)`, plain or async, when an attempt begins; it runs beside the handler.

        Plain functions run in a thread, here and below. An exception in a callback is logged and changes nothing.
        """
        self.callbacks.add(CallbackKind.STARTED, callback, f"task {self.name!r}")
        return callback

    def on_completed(self, callback: Callable[[JobContext, R], C]) -> Callable[[JobContext, R], C]:
        """Call `callback(job, result)` when the job has succeeded and that is stored."""
        self.callbacks.add(CallbackKind.COMPLETED, callback, f"task {self.name!r}")
        return callback

    def on_error(self, callback: Callable[[JobContext, BaseException], C]) -> Callable[[JobContext, BaseException], C]:
        """Call `callback(job, error)` once, when the job has failed for good and that is stored."""
        self.callbacks.add(CallbackKind.ERROR, callback, f"task {self.name!r}")
        return callback

    def on_retry(
        self, callback: Callable[[JobContext, BaseException, int, float], C]
    ) -> Callable[[JobContext, BaseException, int, float], C]:
        """Call `callback(job, error, attempt, delay)` when that attempt failed and the next is stored.

        It comes after `delay` seconds, or when its limits let it.
        """
        self.callbacks.add(CallbackKind.RETRY, callback, f"task {self.name!r}")
        return callback

    def schedule(self, name: str, trigger: Trigger, **options: Unpack[ScheduleOptions]) -> TaskSchedule[P, R]:
        """Return a schedule made at run time: `await task.schedule("acme", Every(minutes=5)).enqueue("acme")`.

        `headgate.tasks.schedule.ScheduleOptions` describes the options. Raises DeclarationError for what can never
        work.
        """
        return TaskSchedule(self, schedule_spec(name, trigger, options))

    @property
    def sync(self) -> SyncTask[P, R]:
        """The same verbs for code that cannot await; opens the app on first use, and is safe from many threads."""
        return SyncTask(self, self._client)

    if not TYPE_CHECKING:  # To a type checker these stay unknown attributes and calls.

        def __getattr__(self, name: str) -> NoReturn:
            raise_no_attribute(self, self._name_in_code, name)

        def __call__(self, *args: object, **kwargs: object) -> NoReturn:
            raise_not_callable(self._name_in_code, self.name)

    @property
    def _name_in_code(self) -> str:
        """The name of the task in the code that declares it, as far as it is known."""
        declared = self.__dict__.get("handler") or self.__dict__.get("function")
        return str(getattr(declared, "__name__", "task"))

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    def _handle(self, stored: StoredCall) -> Job[R]:
        return Job(stored.id, self._client, stored.prediction, is_new=stored.is_new)

    def _calls(self, calls: Iterable[tuple[Any, ...] | Call[Any]]) -> list[Call[Any]]:
        """Return tuples and calls of this task, all as calls. Raises TypeError for anything else."""
        made: list[Call[Any]] = []
        for call in calls:
            if isinstance(call, Call):
                self._require_own(call)
                if call.leaders:
                    raise TypeError(
                        f"a call of task {self.name!r} is after others: enqueue it with them in a batch, or alone with "
                        "chain(call).enqueue()"
                    )
                made.append(call)
            elif isinstance(call, tuple):
                made.append(Call(call, {}))
            else:
                # A list may be the only argument of a task; of a task with more it has all of them.
                instead = tuple(call) if isinstance(call, list) and len(self.payload.parameters) > 1 else (call,)
                raise TypeError(
                    f"enqueue_many takes tuples of arguments or task.call(…), not {call!r:.80}; write {instead!r:.80}"
                )
        return made

    def _require_own(self, call: Call[Any]) -> None:
        called = call.task
        if called is None or called is self:
            return
        if called.name != self.name or not isinstance(called, Task) or called._client is not self._client:
            of_another_app = " of another app" if called.name == self.name else ""
            raise TypeError(
                f"task {self.name!r} cannot enqueue a call of task {called.name!r}{of_another_app}; enqueue each with "
                "its own task, or both together with chain(…) or batch(…)"
            )
        own = called.options.get("connection")
        if own is not None and own is not self.options.get("connection"):
            raise TypeError(
                f"task {self.name!r}: connection= is set for one call, but all calls are stored in one commit; write "
                "task.using(connection=…).enqueue_many([…])"
            )


class TaskSchedule(Generic[P, R]):
    """A schedule without the arguments of its job; `task.schedule(…)` makes it."""

    __slots__ = ("_spec", "_task")

    def __init__(self, task: Task[P, R], spec: ScheduleSpec) -> None:
        self._task = task
        self._spec = spec

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Schedule[R]:
        """Store the schedule, for jobs with these arguments, and return when it is durable.

        An existing one of the same name is updated and keeps its count, its phase and its pause; one that was removed
        or has ended begins anew. Raises what `task.enqueue` raises.
        """
        client = self._task._client
        call = client.enqueuer.scheduled_call(self._task, self._spec, self._task.call(*args, **kwargs))
        await client.put_schedule(self._spec, call)
        return Schedule(self._spec.name, client)


class SyncTask(Generic[P, R]):
    """A task, enqueued from code that cannot await."""

    __slots__ = ("_client", "_task")

    def __init__(self, task: Task[P, R], client: Client) -> None:
        self._task = task
        self._client = client

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Same as `Task.enqueue`."""
        (stored,) = self._client.enqueue_blocking(self._task, [self._task.call(*args, **kwargs)])
        return SyncJob(self._task._handle(stored), self._client.portal)

    def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Call[R]]) -> list[SyncJob[R]]:
        """Same as `Task.enqueue_many`."""
        stored = self._client.enqueue_blocking(self._task, self._task._calls(calls))
        return [SyncJob(self._task._handle(each), self._client.portal) for each in stored]

    def schedule(self, name: str, trigger: Trigger, **options: Unpack[ScheduleOptions]) -> SyncTaskSchedule[P, R]:
        """Same as `Task.schedule`."""
        return SyncTaskSchedule(self._task.schedule(name, trigger, **options), self._client.portal)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in self.__slots__:
                raise AttributeError(name)
            raise_no_attribute(self, self._task._name_in_code, name)

        def __call__(self, *args: object, **kwargs: object) -> NoReturn:
            raise_not_callable(f"{self._task._name_in_code}.sync", self._task.name)


class SyncTaskSchedule(Generic[P, R]):
    """`TaskSchedule` for code that cannot await."""

    __slots__ = ("_portal", "_schedule")

    def __init__(self, schedule: TaskSchedule[P, R], portal: Portal) -> None:
        self._schedule = schedule
        self._portal = portal

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncSchedule[R]:
        """Same as `TaskSchedule.enqueue`."""
        return SyncSchedule(self._portal.run(self._schedule.enqueue(*args, **kwargs)), self._portal)
