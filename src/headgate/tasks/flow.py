"""Chains and batches: calls that are enqueued together, and run one after the other or in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, overload

from headgate.errors import DeclarationError
from headgate.jobs.job import Origin
from headgate.limits.concurrency import Concurrency
from headgate.limits.limit import Limit, require_list
from headgate.tasks.handle import Job
from headgate.tasks.task import Call, Task
from headgate.tasks.ties import Batch, Chain, SyncBatch, SyncChain

if TYPE_CHECKING:
    from headgate.client import Client

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

On = Literal["success", "any"]

BatchLimit = str | Concurrency
"""A mutex, or the name of a concurrency limit, that the jobs of a batch hold together."""


class ChainPlan(Generic[R_co]):
    """Steps that run one after the other; `chain(…)` makes it."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps: tuple[Step, ...] = tuple(steps)

    async def enqueue(self) -> Chain[R_co]:
        """Store all jobs in one commit; each is blocked until the step before it has succeeded.

        When one fails or is cancelled, those after it are cancelled. Raises what `Task.enqueue` raises, and
        DeclarationError for calls of several apps.
        """
        client, builder = _new_builder(self)
        last = builder.add(self, Leader())
        await client.enqueue_flow(builder.calls, builder.batches)
        jobs = [Job[Any](call.id, client) for call in builder.calls]
        return Chain(jobs, _handle(last, client))

    @property
    def sync(self) -> SyncChainPlan[R_co]:
        """The same for code that cannot await."""
        return SyncChainPlan(self)


class BatchPlan:
    """Calls that run in parallel, and the step after all of them are final; `batch(…)` makes it."""

    def __init__(self, steps: Sequence[Step], limits: Sequence[BatchLimit]) -> None:
        self.steps: tuple[Step, ...] = tuple(steps)
        self.limits: tuple[BatchLimit, ...] = tuple(limits)
        self.next: Step | None = None
        self.on: On = "success"

    def then(self, step: Step, on: On = "success") -> BatchPlan:
        """Return the plan with a step that runs once all jobs are final: if all succeeded, or after "any" outcome."""
        if self.next is not None:
            raise DeclarationError("this batch has a then() already; for several steps in a row, use chain()")
        if on not in ("success", "any"):
            raise DeclarationError(f"on={on!r} of a batch's then() must be 'success' or 'any'")
        plan = BatchPlan(self.steps, self.limits)
        plan.next, plan.on = _step(step, "then()"), on
        return plan

    async def enqueue(self) -> Batch:
        """Store all jobs in one commit, with the step after them. Raises as `Task.enqueue`, and DeclarationError."""
        client, builder = _new_builder(self)
        batch = builder.add_batch(self, Leader())
        await client.enqueue_flow(builder.calls, builder.batches)
        then = None if batch.then is None else _handle(batch.then, client)
        return Batch(batch.id, [Job(id, client) for id in batch.jobs], client, then)

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
        portal = _client_of(self._plan).portal
        return SyncChain(portal.run(self._plan.enqueue()), portal)


class SyncBatchPlan:
    """A batch, enqueued from code that cannot await."""

    def __init__(self, plan: BatchPlan) -> None:
        self._plan = plan

    def enqueue(self) -> SyncBatch:
        """Same as `BatchPlan.enqueue`."""
        portal = _client_of(self._plan).portal
        return SyncBatch(portal.run(self._plan.enqueue()), portal)


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
def chain(*steps: Step) -> ChainPlan[Any]:
    """Return a plan of steps that run one after the other, each when the one before it has succeeded.

    `chain(fetch.call(1), batch([parse.call(1), parse.call(2)]), report.call())`. A step is a call, a batch, or another
    chain. Nothing is stored until `enqueue()`. The result of the chain is that of its last step; type checkers know its
    type for up to five steps that end with a call.
    """
    if not steps:
        raise DeclarationError("a chain needs at least one step: chain(task.call(…), …)")
    return ChainPlan([_step(step, "chain()") for step in steps])


def batch(steps: Iterable[Step], *, limits: Sequence[BatchLimit] = ()) -> BatchPlan:
    """Return a plan of calls that run in parallel and are awaited together; a chain in it counts with all its jobs.

    `batch([send.call(id) for id in ids]).then(report.call())`. With `limits`, mutexes or names of concurrency limits,
    all its jobs run under one permit of each, which the batch holds from its first start until it is final. Nothing is
    stored until `enqueue()`.
    """
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
    if any(_has_batch(step) for step in checked):
        raise DeclarationError("a batch in a batch: a job belongs to one batch; put the calls into the outer one")
    return BatchPlan(checked, limits)


class FlowCall(NamedTuple):
    """A call to store: its id, its chain and batch, and the limits of its batch."""

    id: str
    call: Call[Any]
    origin: Origin
    limits: tuple[BatchLimit, ...]

    @property
    def task(self) -> Task[Any, Any]:
        assert self.call.task is not None
        return self.call.task

    @property
    def queue(self) -> str:
        return self.task.options.get("queue") or self.task.queue


@dataclass(frozen=True, slots=True)
class Leader:
    """What a step follows: nothing, a job or a batch, and which outcome of it."""

    id: str | None = None
    on: On = "success"


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A call that was added to a flow."""

    id: str

    @property
    def leader(self) -> Leader:
        """What the next step follows."""
        return Leader(self.id)


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """A batch that was added to a flow. A step after an empty batch follows what the batch follows."""

    id: str
    jobs: Sequence[str]
    leader: Leader
    then: PlacedJob | PlacedBatch | None = None


class FlowBuilder:
    """Gives each call an id and what it follows; a call comes after those that it follows."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self.calls: list[FlowCall] = []
        self.batches: list[tuple[str, int]] = []

    def add(
        self, step: Step, leader: Leader, batch: BatchPlan | None = None, id: str | None = None
    ) -> PlacedJob | PlacedBatch:
        """Add a step after a leader, inside the batch with that id. Return its last part: the next step follows it."""
        if isinstance(step, BatchPlan):
            added = self.add_batch(step, leader)
            return added if added.then is None else added.then
        if isinstance(step, ChainPlan):
            for each in step.steps:
                last = self.add(each, leader, batch, id)
                leader = last.leader
            return last
        job = self._new_id()
        origin = Origin(follows=leader.id, on=leader.on, batch=id)
        self.calls.append(FlowCall(job, step, origin, () if batch is None else batch.limits))
        return PlacedJob(job)

    def add_batch(self, plan: BatchPlan, leader: Leader) -> PlacedBatch:
        """Add a batch after a leader, and the batch's `then` step after it."""
        id = self._new_id()
        first = len(self.calls)
        for step in plan.steps:
            self.add(step, leader, plan, id)
        jobs = [call.id for call in self.calls[first:]]
        self.batches.append((id, len(jobs)))
        after = Leader(id) if jobs or leader.id is None else leader
        then = None
        if plan.next is not None:
            then = self.add(plan.next, Leader(after.id, plan.on) if after.id == id else after)
        return PlacedBatch(id, jobs, after, then)


def _handle(added: PlacedJob | PlacedBatch, client: Client) -> Job[Any] | Batch:
    if isinstance(added, PlacedJob):
        return Job(added.id, client)
    return Batch(added.id, [Job(id, client) for id in added.jobs], client)


def _new_builder(step: Step) -> tuple[Client, FlowBuilder]:
    client = _client_of(step)
    return client, FlowBuilder(client.new_id)


def _client_of(step: Step) -> Client:
    """Return the client of all calls. Raises DeclarationError if they belong to several apps, or there are none."""
    clients = {id(call.task._client): call.task._client for call in _calls(step) if call.task is not None}
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
    if isinstance(step, BatchPlan) and step.next is not None:
        yield from _calls(step.next)


def _has_batch(step: Step) -> bool:
    return isinstance(step, BatchPlan) or (isinstance(step, ChainPlan) and any(map(_has_batch, step.steps)))


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
