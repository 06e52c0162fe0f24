"""Chains, batches and graphs: calls that are enqueued together, and run after each other or in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, Never, TypeVar, Unpack, overload

from headgate.client.client import Client
from headgate.client.flow_builder import NOTHING, Placed, PlacedChain, PlacedStep
from headgate.client.handles import Batch, Chain, Job, Schedule, SyncBatch, SyncChain, SyncJob
from headgate.client.plan import BatchSteps, ChainSteps, Step, calls_of, checked_step, require_no_leaders, steps_in
from headgate.client.task import SyncTaskSchedule, Task, TaskSchedule
from headgate.errors import DeclarationError
from headgate.jobs.job import On, storable
from headgate.keywords import names_keywords
from headgate.limits.limit import Limit, require_list
from headgate.schedules.trigger import Trigger
from headgate.tasks.call import BatchLimit, Call
from headgate.tasks.leading import Leader, ResultOf, require_on
from headgate.tasks.schedule import ScheduleOptions, ScheduleSpec, schedule_spec

LONGEST_NAME = 200
"""The most characters of a batch's name."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class ChainPlan(ChainSteps, Generic[R_co]):
    """Steps that run one after the other; `chain(…)` makes it."""

    async def enqueue(self) -> Chain[R_co]:
        """Store all jobs in one commit; each is blocked until the step before it has succeeded.

        When a step fails or is cancelled, those after it are cancelled. When a step is skipped, those after it are
        skipped. Raises what `Task.enqueue` raises, and DeclarationError for calls of several apps.
        """
        client = client_of(self)
        return _chain_handle(await client.store_flow(lambda builder: builder.add_chain(self, NOTHING)), client)

    def schedule(self, name: str, trigger: Trigger, **options: Unpack[ScheduleOptions]) -> PlannedSchedule:
        """Return a schedule of the chain made at run time: `await chain(…).schedule("nightly", Every(…)).enqueue()`.

        Each occurrence enqueues all of it. Options and errors are those of `Task.schedule`.
        """
        return PlannedSchedule(self, schedule_spec(name, trigger, options))

    @property
    def sync(self) -> SyncChainPlan[R_co]:
        """The same for code that cannot await."""
        return SyncChainPlan(self)


class BatchPlan(BatchSteps):
    """Calls that run in parallel, and the steps after all of them are final; `batch(…)` makes it."""

    def then(self, step: Step, on: On = "success") -> BatchPlan:
        """Return the plan with one more step that runs once all jobs are final, if they ended so.

        On "success" of all jobs, on "failure" if not all have succeeded, or "final" in any case. Several `then` run in
        parallel; for several steps in a row, use `chain()`. The step can have the results as an argument:
        `pages.then(report.call(result_of(pages)))`.
        """
        require_on(on, "a batch's then()")
        require_no_leaders(step, "then()")
        return BatchPlan(self.steps, self.limits, [*self.next, (checked_step(step, "then()"), on)], self.name, self)

    async def enqueue(self) -> Batch:
        """Store all jobs in one commit, with the steps after them. Raises as `Task.enqueue`, and DeclarationError."""
        client = client_of(self)
        return _batch_handle(await client.store_flow(lambda builder: builder.add_batch(self, NOTHING)), client)

    def schedule(self, name: str, trigger: Trigger, **options: Unpack[ScheduleOptions]) -> PlannedSchedule:
        """Same as `ChainPlan.schedule`, for a batch with the steps after it."""
        return PlannedSchedule(self, schedule_spec(name, trigger, options))

    @property
    def sync(self) -> SyncBatchPlan:
        """The same for code that cannot await."""
        return SyncBatchPlan(self)


class SyncChainPlan(Generic[R_co]):
    """A chain, enqueued from code that cannot await."""

    def __init__(self, plan: ChainPlan[R_co]) -> None:
        self._plan = plan

    def enqueue(self) -> SyncChain[R_co]:
        """Same as `ChainPlan.enqueue`."""
        portal = client_of(self._plan).portal
        return SyncChain(portal.run(self._plan.enqueue()), portal)

    def schedule(self, name: str, trigger: Trigger, **options: Unpack[ScheduleOptions]) -> SyncTaskSchedule[[], Any]:
        """Same as `ChainPlan.schedule`."""
        return SyncTaskSchedule(self._plan.schedule(name, trigger, **options), client_of(self._plan).portal)


class SyncBatchPlan:
    """A batch, enqueued from code that cannot await."""

    def __init__(self, plan: BatchPlan) -> None:
        self._plan = plan

    def enqueue(self) -> SyncBatch:
        """Same as `BatchPlan.enqueue`."""
        portal = client_of(self._plan).portal
        return SyncBatch(portal.run(self._plan.enqueue()), portal)

    def schedule(self, name: str, trigger: Trigger, **options: Unpack[ScheduleOptions]) -> SyncTaskSchedule[[], Any]:
        """Same as `BatchPlan.schedule`."""
        return SyncTaskSchedule(self._plan.schedule(name, trigger, **options), client_of(self._plan).portal)


class PlannedSchedule(TaskSchedule[[], Any]):
    """A schedule of a chain or a batch, made at run time; `plan.schedule(…)` makes it."""

    __slots__ = ("plan",)

    def __init__(self, plan: ChainPlan[Any] | BatchPlan, spec: ScheduleSpec) -> None:
        self.plan: ChainPlan[Any] | BatchPlan = plan
        self._spec = spec

    async def enqueue(self) -> Schedule[Any]:
        """Store the schedule, and return when it is durable. It updates an existing one as `task.schedule(…)` does.

        Raises DeclarationError, and what `Task.enqueue` raises for each call.
        """
        client = client_of(self.plan)
        await client.put_schedule(self._spec, client.scheduled_plan(self._spec, self.plan))
        return Schedule(self._spec.name, client)


Last = Call[R] | ChainPlan[R]
"""A step whose result is that of the chain which it ends."""


@overload
def chain(last: Last[R], /) -> ChainPlan[R]: ...
@overload
def chain(first: Step, last: Last[R], /) -> ChainPlan[R]: ...
@overload
def chain(first: Step, second: Step, last: Last[R], /) -> ChainPlan[R]: ...
@overload
def chain(first: Step, second: Step, third: Step, last: Last[R], /) -> ChainPlan[R]: ...
@overload
def chain(first: Step, second: Step, third: Step, fourth: Step, last: Last[R], /) -> ChainPlan[R]: ...
@overload
def chain(*steps: Step) -> ChainPlan[Any]: ...
@names_keywords
def chain(*steps: Step) -> ChainPlan[Any]:
    """Return a plan of steps that run one after the other, each when the one before it has succeeded.

    `chain(fetch.call(1), batch([parse.call(1), parse.call(2)]), report.call())`. A step is a call, a batch, or another
    chain. Nothing is stored until `enqueue()`. The chain's result is that of its last step; type checkers know its type
    for up to five steps that end with a call.
    """
    if not steps:
        raise DeclarationError("a chain needs at least one step: chain(task.call(…), …)")
    for step in steps[1:]:
        require_no_leaders(step, "chain()")
    return ChainPlan([checked_step(step, "chain()") for step in steps])


@names_keywords
def batch(steps: Iterable[Step], *more: Never, limits: Sequence[BatchLimit] = (), name: str | None = None) -> BatchPlan:
    """Return a plan of calls that run in parallel and are awaited together.

    `batch([send.call(id) for id in ids]).then(report.call())`. A chain in it counts with all its jobs, a batch as one.
    Calls that are `after` other calls make it a graph: `batch([a, b, c.call().after(a, b)])`.

    With `limits`, mutexes or names of concurrency limits, all its jobs run under one permit from each, which the batch
    holds from its first start until it is final. The `name`, of up to 200 characters, is shown with it; several batches
    may have the same. Nothing is stored until `enqueue()`.
    """
    if more or isinstance(steps, Call | ChainPlan | BatchPlan) or not isinstance(steps, Iterable):
        raise DeclarationError("batch() takes one list of calls; write batch([a.call(…), b.call(…)])")
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and storable(name) == name):
        raise DeclarationError(
            f"batch: name={name!r:.80} must be text, 1 to {LONGEST_NAME} characters without NUL; shorten it"
        )
    require_list(limits, "batch()")
    for limit in limits:
        if isinstance(limit, Limit) and limit.permit is None:
            raise DeclarationError(
                f"a batch cannot hold {limit!r}: rates count starts; give it a Mutex(…), or a concurrency's name"
            )
        if not isinstance(limit, (str, Limit)):
            raise DeclarationError(f"{limit!r:.80} in limits= of a batch is neither a mutex nor a name; write Mutex(…)")
        if isinstance(limit, Limit) and limit.name is None:
            raise DeclarationError(
                f"{limit!r} of a batch has no name; declare it with app.limit(name, …) and give limits=[name]"
            )
    checked = [checked_step(step, "batch()") for step in steps]
    if limits and any(isinstance(each, BatchSteps) for step in checked for each in steps_in(step)):
        raise DeclarationError(
            "limits= of a batch with a batch in it: a job holds the permits of one batch; give limits= to the inner"
        )
    return BatchPlan(checked, limits, name=name)


@overload
def result_of(leader: Call[R] | ChainPlan[R] | Job[R] | SyncJob[R] | Chain[R] | SyncChain[R], /) -> R: ...
@overload
def result_of(leader: BatchPlan | Batch | SyncBatch, /) -> list[Any]: ...
def result_of(leader: Leader, /) -> Any:
    """Return an argument for a later call: the result of a call, a chain or a batch, planned or stored.

    `chain(a, report.call(result_of(a)))`. It is read when the job starts, and not copied before that; a batch gives a
    list with its jobs' results. The call is `after` it. An argument is the result itself, or a list of results.
    """
    if not isinstance(leader, Leader):
        raise DeclarationError(
            f"result_of() takes a call, a chain, a batch, or the handle of a stored one, not {leader!r:.80}"
        )
    if isinstance(leader, Call) and leader.task is not None:
        task = leader.task
        if not task.options.get("keep_result", task.keep_result):
            raise DeclarationError(f"result_of(): task {task.name!r} has keep_result=False, so its jobs have no result")
    return ResultOf(leader)


def require_plan(plan: object, client: Client, where: str) -> None:
    """Raise DeclarationError unless it is a chain or a batch of calls of this app."""
    if not isinstance(plan, ChainPlan | BatchPlan):
        raise DeclarationError(f"{where}: {plan!r:.80} is no chain and no batch; write chain(…) or batch([…])")
    if client_of(plan) is not client:
        raise DeclarationError(f"{where}: the calls belong to another app")


def client_of(step: Step) -> Client:
    """Return the client of all calls. Raises DeclarationError if they belong to several apps, or there are none."""
    tasks = [call.task for call in calls_of(step) if isinstance(call.task, Task)]
    clients = {id(task._client): task._client for task in tasks}
    if not clients:
        raise DeclarationError("this batch has no calls, so it belongs to no app")
    if len(clients) > 1:
        raise DeclarationError("the calls of a chain or a batch belong to several apps; one commit is in one store")
    (client,) = clients.values()
    return client


def _handle(placed: Placed, client: Client) -> Job[Any] | Batch | Chain[Any]:
    """Return the handle of a step that is stored."""
    if isinstance(placed, PlacedChain):
        return _chain_handle(placed, client)
    return Job(placed.id, client) if placed.jobs is None else _batch_handle(placed, client)


def _batch_handle(placed: PlacedStep, client: Client) -> Batch:
    then = [_handle(each, client) for each in placed.then]
    return Batch(placed.id, [Job(id, client) for id in placed.jobs or ()], client, then)


def _chain_handle(placed: PlacedChain, client: Client) -> Chain[Any]:
    last: Placed = placed
    while isinstance(last, PlacedChain) or len(last.then) == 1:
        last = last.last if isinstance(last, PlacedChain) else last.then[0]
    end = Job[Any](last.id, client) if last.jobs is None else _batch_handle(last, client)
    return Chain([Job(id, client) for id in placed.jobs], end, placed.batches)
