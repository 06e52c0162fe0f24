"""Chains, batches and graphs: calls that are enqueued together, and run after each other or in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, TypeVar, Unpack, overload

from headgate.client.handles import Batch, Chain, Job, Schedule, SyncBatch, SyncChain, SyncJob, SyncSchedule
from headgate.client.task import Task
from headgate.errors import DeclarationError
from headgate.foreign_words import RefusesCall
from headgate.jobs.job import On, storable
from headgate.keywords import names_keywords
from headgate.limits.limit import Limit, require_list
from headgate.schedules.trigger import Trigger
from headgate.tasks.call import BatchLimit, Call
from headgate.tasks.leading import Leader, ResultOf, require_on
from headgate.tasks.schedule import ScheduleOptions, ScheduleSpec, schedule_spec

if TYPE_CHECKING:
    from headgate.client.client import Client

LONGEST_NAME = 200
"""The most characters of a batch's name."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class ChainPlan(RefusesCall, Generic[R_co]):
    """Steps that run one after the other; `chain(…)` makes it."""

    leader_id: ClassVar[None] = None

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps: tuple[Step, ...] = tuple(steps)

    async def enqueue(self) -> Chain[R_co]:
        """Store all jobs in one commit; each is blocked until the step before it has succeeded.

        When a step fails or is cancelled, those after it are cancelled. When a step is skipped, those after it are
        skipped. Raises what `Task.enqueue` raises, and DeclarationError for calls of several apps.
        """
        return await client_of(self).enqueue_chain(self)

    def schedule(self, name: str, trigger: Trigger, **options: Unpack[ScheduleOptions]) -> PlannedSchedule:
        """Return a schedule of the chain made at run time: `await chain(…).schedule("nightly", Every(…)).enqueue()`.

        Each occurrence enqueues all of it. Options and errors are those of `Task.schedule`.
        """
        return PlannedSchedule(self, schedule_spec(name, trigger, options))

    @property
    def sync(self) -> SyncChainPlan[R_co]:
        """The same for code that cannot await."""
        return SyncChainPlan(self)


class BatchPlan(RefusesCall):
    """Calls that run in parallel, and the steps after all of them are final; `batch(…)` makes it."""

    leader_id: ClassVar[None] = None

    def __init__(
        self,
        steps: Sequence[Step],
        limits: Sequence[BatchLimit],
        next: Sequence[tuple[Step, On]] = (),
        name: str | None = None,
        before: BatchPlan | None = None,
    ) -> None:
        self.steps: tuple[Step, ...] = tuple(steps)
        self.limits: tuple[BatchLimit, ...] = tuple(limits)
        self.next: tuple[tuple[Step, On], ...] = tuple(next)
        self.name = name
        self.before = before
        """The plan without the last of its `next` steps, whose `result_of(…)` an argument of that step can be."""

    def then(self, step: Step, on: On = "success") -> BatchPlan:
        """Return the plan with one more step that runs once all jobs are final, if they ended so.

        On "success" of all jobs, on "failure" if not all have succeeded, or "final" in any case. Several `then` run in
        parallel; for several steps in a row, use `chain()`. The step can have the results as an argument:
        `pages.then(report.call(result_of(pages)))`.
        """
        require_on(on, "a batch's then()")
        _require_no_leaders(step, "then()")
        return BatchPlan(self.steps, self.limits, [*self.next, (_step(step, "then()"), on)], self.name, self)

    async def enqueue(self) -> Batch:
        """Store all jobs in one commit, with the steps after them. Raises as `Task.enqueue`, and DeclarationError."""
        return await client_of(self).enqueue_batch(self)

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

    def schedule(self, name: str, trigger: Trigger, **options: Unpack[ScheduleOptions]) -> SyncPlannedSchedule:
        """Same as `ChainPlan.schedule`."""
        return SyncPlannedSchedule(self._plan.schedule(name, trigger, **options))


class SyncBatchPlan:
    """A batch, enqueued from code that cannot await."""

    def __init__(self, plan: BatchPlan) -> None:
        self._plan = plan

    def enqueue(self) -> SyncBatch:
        """Same as `BatchPlan.enqueue`."""
        portal = client_of(self._plan).portal
        return SyncBatch(portal.run(self._plan.enqueue()), portal)

    def schedule(self, name: str, trigger: Trigger, **options: Unpack[ScheduleOptions]) -> SyncPlannedSchedule:
        """Same as `BatchPlan.schedule`."""
        return SyncPlannedSchedule(self._plan.schedule(name, trigger, **options))


class PlannedSchedule:
    """A schedule of a chain or a batch, made at run time; `plan.schedule(…)` makes it."""

    __slots__ = ("_spec", "plan")

    def __init__(self, plan: ChainPlan[Any] | BatchPlan, spec: ScheduleSpec) -> None:
        self.plan: ChainPlan[Any] | BatchPlan = plan
        self._spec = spec

    async def enqueue(self) -> Schedule[Any]:
        """Store the schedule, and return when it is durable. It updates an existing one as `task.schedule(…)` does.

        Raises DeclarationError, and what `Task.enqueue` raises for each call.
        """
        return await client_of(self.plan).put_planned_schedule(self._spec, self.plan)


class SyncPlannedSchedule:
    """`PlannedSchedule` for code that cannot await."""

    __slots__ = ("_schedule",)

    def __init__(self, schedule: PlannedSchedule) -> None:
        self._schedule = schedule

    def enqueue(self) -> SyncSchedule[Any]:
        """Same as `PlannedSchedule.enqueue`."""
        portal = client_of(self._schedule.plan).portal
        return SyncSchedule(portal.run(self._schedule.enqueue()), portal)


Step = Call[Any] | ChainPlan[Any] | BatchPlan

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
        _require_no_leaders(step, "chain()")
    return ChainPlan([_step(step, "chain()") for step in steps])


@names_keywords
def batch(steps: Iterable[Step], *more: Never, limits: Sequence[BatchLimit] = (), name: str | None = None) -> BatchPlan:
    """Return a plan of calls that run in parallel and are awaited together.

    `batch([send.call(id) for id in ids]).then(report.call())`. A chain in it counts with all its jobs, a batch as one.
    Calls that are `after` other calls make it a graph: `batch([a, b, c.call().after(a, b)])`.

    With `limits`, mutexes or names of concurrency limits, all its jobs run under one permit from each, which the batch
    holds from its first start until it is final. The `name`, of up to 200 characters, is shown with it; several batches
    may have the same. Nothing is stored until `enqueue()`.
    """
    if more or isinstance(steps, Call | ChainPlan | BatchPlan):
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
    checked = [_step(step, "batch()") for step in steps]
    if limits and any(_has_batch(step) for step in checked):
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


def shown(leader: Leader) -> str:
    """Return a call, chain or batch as it is named in errors."""
    if isinstance(leader, Call):
        return "a call" if leader.task is None else f"{leader.task.name}.call(…)"
    return "a chain" if isinstance(leader, ChainPlan) else "a batch" if isinstance(leader, BatchPlan) else repr(leader)


def steps_to_add(steps: Iterable[Step], client: Client) -> list[Step]:
    """Return calls and chains as they are added to a stored batch. Raises DeclarationError."""
    checked = [_step(step, "batch.add()") for step in steps]
    if any(_has_batch(step) for step in checked):
        raise DeclarationError("batch.add() takes calls and chains of calls; a batch in a batch is enqueued with it")
    if any(client_of(step) is not client for step in checked):
        raise DeclarationError("the calls for batch.add() belong to another app than the batch")
    return checked


def require_plan(plan: object, client: Client, where: str) -> None:
    """Raise DeclarationError unless it is a chain or a batch of calls of this app."""
    if not isinstance(plan, ChainPlan | BatchPlan):
        raise DeclarationError(f"{where}: {plan!r:.80} is no chain and no batch; write chain(…) or batch([…])")
    if client_of(plan) is not client:
        raise DeclarationError(f"{where}: the calls belong to another app")


def client_of(step: Step) -> Client:
    """Return the client of all calls. Raises DeclarationError if they belong to several apps, or there are none."""
    tasks = [call.task for call in _calls(step) if isinstance(call.task, Task)]
    clients = {id(task._client): task._client for task in tasks}
    if not clients:
        raise DeclarationError("this batch has no calls, so it belongs to no app")
    if len(clients) > 1:
        raise DeclarationError("the calls of a chain or a batch belong to several apps; one commit is in one store")
    (client,) = clients.values()
    return client


def _calls(step: Step) -> Iterable[Call[Any]]:
    if isinstance(step, Call):
        yield step
        return
    for each in step.steps:
        yield from _calls(each)
    if isinstance(step, BatchPlan):
        for each, _ in step.next:
            yield from _calls(each)


def _has_batch(step: Step) -> bool:
    return isinstance(step, BatchPlan) or (isinstance(step, ChainPlan) and any(map(_has_batch, step.steps)))


def _require_no_leaders(step: Step, where: str) -> None:
    """Raise DeclarationError for a step that has a place after others and whose first call is `after` some itself."""
    while isinstance(step, ChainPlan):
        step = step.steps[0]
    if isinstance(step, Call) and step.leaders:
        raise DeclarationError(
            f"{where}: {shown(step)} has a place after other steps there, and after() names others; write "
            "batch([…, call.after(…)]), with everything that it is after"
        )


def _step(step: Step, where: str) -> Step:
    if isinstance(step, (ChainPlan, BatchPlan)):
        return step
    if isinstance(step, Call) and step.task is not None:
        options = step.task.options
        if step.task.template.unique is not None:
            remedy = "leave the key out" if "unique_key" in options else "use a task that declares none"
            raise DeclarationError(
                f"{where}: a call of task {step.task.name!r} has a unique_key: another job may stand for it, and "
                f"nothing could follow that; {remedy}"
            )
        if options.get("id") is not None:
            raise DeclarationError(
                f"{where}: a call of task {step.task.name!r} has an id; only single tasks are enqueued under an id of "
                "yours"
            )
        if options.get("connection") is not None:
            raise DeclarationError(
                f"{where}: a call of task {step.task.name!r} has a connection; only single tasks are enqueued in a "
                "transaction of yours"
            )
        return step
    raise DeclarationError(f"{where} takes calls, chains and batches, not {step!r:.80}; write task.call(…)")
