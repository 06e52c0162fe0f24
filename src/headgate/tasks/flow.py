"""Chains, batches and graphs: calls that are enqueued together, and run after each other or in parallel."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, Unpack, overload

import msgspec

from headgate.errors import DeclarationError
from headgate.jobs.identity import with_new_ids
from headgate.jobs.job import On, Origin
from headgate.limits.limit import Limit, require_list
from headgate.schedules.trigger import Trigger
from headgate.tasks.call import BatchLimit, Call, FlowBatch, FlowCall
from headgate.tasks.handle import Job
from headgate.tasks.leading import Leader, ResultOf, require_on, results_in
from headgate.tasks.schedule import Schedule, ScheduleOptions, ScheduleSpec, schedule_spec
from headgate.tasks.sync_job import SyncJob
from headgate.tasks.sync_schedule import SyncSchedule
from headgate.tasks.task import Task
from headgate.tasks.ties import Batch, Chain, SyncBatch, SyncChain

if TYPE_CHECKING:
    from headgate.client import Client

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class ChainPlan(Generic[R_co]):
    """Steps that run one after the other; `chain(…)` makes it."""

    leader_id: ClassVar[None] = None

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps: tuple[Step, ...] = tuple(steps)

    async def enqueue(self) -> Chain[R_co]:
        """Store all jobs in one commit; each is blocked until the step before it has succeeded.

        When a step fails or is cancelled, those after it are cancelled. When a step is skipped, those after it are
        skipped. Raises what `Task.enqueue` raises, and DeclarationError for calls of several apps.
        """
        client = client_of(self)

        async def store() -> tuple[list[str], PlacedJob | PlacedBatch]:
            builder = FlowBuilder(client.new_id)
            last = builder.add(self, NOTHING)
            await client.enqueue_flow(*builder.flow())
            return builder.jobs, last

        ids, last = await with_new_ids(store)
        jobs = [Job[Any](id, client) for id in ids]
        while isinstance(last, PlacedBatch) and len(last.then) == 1:
            (last,) = last.then
        return Chain(jobs, _handle(last, client))

    def schedule(self, name: str, trigger: Trigger, **options: Unpack[ScheduleOptions]) -> PlannedSchedule:
        """Return a schedule of the chain made at run time: `await chain(…).schedule("nightly", Every(…)).enqueue()`.

        Each occurrence enqueues all of it. Options and errors are those of `Task.schedule`.
        """
        return PlannedSchedule(self, schedule_spec(name, trigger, options))

    @property
    def sync(self) -> SyncChainPlan[R_co]:
        """The same for code that cannot await."""
        return SyncChainPlan(self)


class BatchPlan:
    """Calls that run in parallel, and the steps after all of them are final; `batch(…)` makes it."""

    leader_id: ClassVar[None] = None

    def __init__(
        self, steps: Sequence[Step], limits: Sequence[BatchLimit], next: Sequence[tuple[Step, On]] = ()
    ) -> None:
        self.steps: tuple[Step, ...] = tuple(steps)
        self.limits: tuple[BatchLimit, ...] = tuple(limits)
        self.next: tuple[tuple[Step, On], ...] = tuple(next)

    def then(self, step: Step, on: On = "success") -> BatchPlan:
        """Return the plan with one more step that runs once all jobs are final, if they ended so.

        On "success" of all jobs, on "failure" if not all have succeeded, or "final" in any case. Several `then` run in
        parallel; for several steps in a row, use `chain()`.
        """
        require_on(on, "a batch's then()")
        _require_no_leaders(step, "then()")
        return BatchPlan(self.steps, self.limits, [*self.next, (_step(step, "then()"), on)])

    async def enqueue(self) -> Batch:
        """Store all jobs in one commit, with the steps after them. Raises as `Task.enqueue`, and DeclarationError."""
        client = client_of(self)

        async def store() -> PlacedBatch:
            builder = FlowBuilder(client.new_id)
            batch = builder.add_batch(self, NOTHING)
            await client.enqueue_flow(*builder.flow())
            return batch

        handle = _handle(await with_new_ids(store), client)
        assert isinstance(handle, Batch)
        return handle

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
def chain(*steps: Step) -> ChainPlan[Any]:
    """Return a plan of steps that run one after the other, each when the one before it has succeeded.

    `chain(fetch.call(1), batch([parse.call(1), parse.call(2)]), report.call())`. A step is a call, a batch, or another
    chain. Nothing is stored until `enqueue()`. The result of the chain is that of its last step; type checkers know its
    type for up to five steps that end with a call.
    """
    if not steps:
        raise DeclarationError("a chain needs at least one step: chain(task.call(…), …)")
    for step in steps[1:]:
        _require_no_leaders(step, "chain()")
    return ChainPlan([_step(step, "chain()") for step in steps])


def batch(steps: Iterable[Step], *, limits: Sequence[BatchLimit] = ()) -> BatchPlan:
    """Return a plan of calls that run in parallel and are awaited together.

    `batch([send.call(id) for id in ids]).then(report.call())`. A chain in it counts with all its jobs, a batch as one.
    Calls that are `after` others of them make it a graph: `batch([a, b, c.call().after(a, b)])`.

    With `limits`, mutexes or names of concurrency limits, all its jobs run under one permit of each, which the batch
    holds from its first start until it is final. Nothing is stored until `enqueue()`.
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
    if limits and any(_has_batch(step) for step in checked):
        raise DeclarationError(
            "limits= of a batch with a batch in it: a job holds the permits of one batch; give limits= to the inner"
        )
    return BatchPlan(checked, limits)


@overload
def result_of(leader: Call[R] | ChainPlan[R] | Job[R] | SyncJob[R] | Chain[R] | SyncChain[R], /) -> R: ...
@overload
def result_of(leader: BatchPlan | Batch | SyncBatch, /) -> list[Any]: ...
def result_of(leader: Leader, /) -> Any:
    """Return an argument of a later call that is the result of a call, a chain or a batch, or of a stored one.

    `chain(a, report.call(result_of(a)))`. It is read when the job starts, and not copied before that; a batch has a
    list of the results of its jobs. The call is `after` it. An argument is the result itself, or a list of results.
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


@dataclass(frozen=True, slots=True)
class Following:
    """What a step follows: jobs and batches, by id, and which end of them."""

    ids: tuple[str, ...] = ()
    on: On = "success"


NOTHING = Following()


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A call that was added to a flow."""

    id: str

    @property
    def follow(self) -> Following:
        """What the next step follows."""
        return Following((self.id,))


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """A batch that was added to a flow, with the steps after it. What follows an empty batch follows what that does."""

    id: str
    jobs: Sequence[str]
    itself: Following
    then: tuple[PlacedJob | PlacedBatch, ...] = ()

    @property
    def follow(self) -> Following:
        """What the next step follows."""
        if not self.then:
            return self.itself
        return Following(tuple(id for each in self.then for id in each.follow.ids))


Placed = PlacedJob | PlacedBatch


class _NewCall(NamedTuple):
    """A call that was added: its id, what it follows by its place, and its batch."""

    id: str
    call: Call[Any]
    place: Following
    plan: BatchPlan | None
    batch: str | None
    results: Mapping[str, Any]
    """The arguments that are results."""


class FlowBuilder:
    """Gives each call an id and what it follows."""

    def __init__(self, new_id: Callable[..., str]) -> None:
        self._new_id = new_id
        self._calls: dict[str, _NewCall] = {}
        self._batches: dict[str, FlowBatch] = {}
        self._placed: dict[int, list[Placed]] = {}
        self._joins: dict[tuple[str, ...], str] = {}
        self._places: dict[str, Following] = {}

    @property
    def jobs(self) -> list[str]:
        """The ids of the jobs, in the order in which their calls were added."""
        return list(self._calls)

    def add(
        self, step: Step, place: Following, plan: BatchPlan | None = None, batch: str | None = None
    ) -> PlacedJob | PlacedBatch:
        """Add a step after others, inside the batch with that id. Return its last part: the next step follows it."""
        if isinstance(step, BatchPlan):
            return self.add_batch(step, place, plan, batch)
        if isinstance(step, ChainPlan):
            last: Placed
            for each in step.steps:
                last = self.add(each, place, plan, batch)
                place = last.follow
        else:
            id = self._new_id(is_batch=False)
            self._places[id] = place
            self._calls[id] = _NewCall(id, step, place, plan, batch, _results(step))
            self._grow(batch)
            last = PlacedJob(id)
        self._placed.setdefault(builtins.id(step), []).append(last)
        return last

    def add_batch(
        self, plan: BatchPlan, place: Following, outer_plan: BatchPlan | None = None, outer: str | None = None
    ) -> PlacedBatch:
        """Add a batch after others, and the steps after it, which are beside it in the outer batch."""
        id = self._new_id(is_batch=True)
        self._batches[id] = FlowBatch(id, 0, outer)
        self._places[id] = place
        self._grow(outer)
        first = len(self._calls)
        for step in plan.steps:
            self.add(step, place, plan, id)
        jobs = self.jobs[first:]
        itself = Following((id,)) if self._batches[id].total or not place.ids else place
        placed = PlacedBatch(id, jobs, itself)
        self._placed.setdefault(builtins.id(plan), []).append(placed)
        then = tuple(
            self.add(step, Following(itself.ids, on) if id in itself.ids else itself, outer_plan, outer)
            for step, on in plan.next
        )
        return replace(placed, then=then)

    def grow(self, batch: str, steps: Iterable[Step]) -> None:
        """Add calls and chains to a stored batch."""
        self._batches[batch] = FlowBatch(batch, 0, grows=True)
        self._places[batch] = NOTHING
        for step in steps:
            self.add(step, NOTHING, None, batch)

    def placed(self, step: Step) -> Sequence[Placed]:
        """Return the parts that were added for a call, a chain or a batch: one for each place that it has."""
        return self._placed.get(builtins.id(step), ())

    def flow(self) -> tuple[list[FlowCall], list[FlowBatch]]:
        """Return the calls, each after those that it follows, and the batches. Raises DeclarationError for a cycle."""
        follows = {new.id: self._follow(new) for new in self._calls.values()}
        calls = {
            new.id: FlowCall(
                new.id,
                new.call if not new.results else self._without_results(new),
                Origin(
                    follows=leader.ids[0] if leader.ids else None,
                    on=leader.on,
                    batch=new.batch,
                    results={name: self._ids_of_results(new, value) for name, value in new.results.items()} or None,
                ),
                () if new.plan is None else new.plan.limits,
            )
            for new in self._calls.values()
            if (leader := follows[new.id]) is not None
        }
        is_in_order = not any(new.call.leaders or new.results for new in self._calls.values())
        ids = self.jobs if is_in_order else self._in_order(calls)
        return [calls[id] for id in ids], list(self._batches.values())

    def _grow(self, batch: str | None) -> None:
        if batch is not None:
            known = self._batches[batch]
            self._batches[batch] = known._replace(total=known.total + 1)

    def _follow(self, new: _NewCall) -> Following:
        """Return the one job or batch that a call follows: by its place, and what it is after."""
        call, place = new.call, new.place
        read = [each.leader for value in new.results.values() for each in results_in(value)]
        results = [id for leader in read for id in self._ids_of(leader, call)]
        if not call.leaders:
            ids = place.ids + tuple(id for id in results if not self._is_before(id, place.ids))
            return self._one(Following(ids, place.on))
        own = [id for leader in call.leaders for id in self._ids_of(leader, call)]
        own += results
        # What a call of the same batch follows, it has waited for.
        if place.ids and not any(self._batch_of(id) == new.batch for id in own):
            if place.on != call.on:
                raise DeclarationError(
                    f"{shown(call)} is after() others on {call.on!r}, and its batch follows a step on {place.on!r}; a "
                    "job needs one end of all that it follows: name a call of the batch in after(), too"
                )
            own += place.ids
        return self._one(Following(tuple(own), call.on))

    def _one(self, follow: Following) -> Following:
        """Return it with one leader: where it has several, with a join of them."""
        ids = tuple(dict.fromkeys(follow.ids))
        if len(ids) < 2:
            return Following(ids, follow.on)
        join = self._joins.get(ids)
        if join is None:
            join = self._joins[ids] = self._new_id(is_batch=True)
            self._batches[join] = FlowBatch(join, len(ids), None, ids)
        return Following((join,), follow.on)

    def _ids_of(self, leader: Leader, call: Call[Any]) -> tuple[str, ...]:
        if leader.leader_id is not None:
            return (leader.leader_id,)
        placed = self.placed(leader)  # type: ignore[arg-type]  # what is no step is not there
        if len(placed) != 1:
            found = "is not enqueued with it" if not placed else f"is {len(placed)} times in what is enqueued"
            raise DeclarationError(
                f"{shown(call)} is after {shown(leader)}, which {found}; put that object itself into the batch, once"
            )
        (found_one,) = placed
        if isinstance(leader, BatchPlan) and isinstance(found_one, PlacedBatch):
            # Not the steps after it, which a chain that ends with the batch waits for.
            return found_one.itself.ids
        return found_one.follow.ids

    def _is_before(self, wanted: str, ids: Sequence[str]) -> bool:
        """Whether one of these is that job or batch, or is final only after it, by the places of new calls."""
        left, seen = list(ids), set(ids)
        while left:
            id = left.pop()
            if id == wanted or (id in self._batches and self._batch_of(wanted) == id):
                return True
            before = self._places.get(id, NOTHING).ids
            left += [each for each in before if each not in seen]
            seen.update(before)
        return False

    def _ids_of_results(self, new: _NewCall, value: Any) -> str | list[str]:
        ids: list[str] = []
        for each in results_in(value):
            found = self._ids_of(each.leader, new.call)
            if len(found) != 1:
                raise DeclarationError(f"{shown(new.call)}: {each!r} is no single result; name a call or a batch")
            ids += found
        return ids if isinstance(value, list) else ids[0]

    def _without_results(self, new: _NewCall) -> Call[Any]:
        assert new.call.task is not None
        given = new.call.task.payload.bind(new.call.args, new.call.kwargs)
        kept = {name: value for name, value in given.items() if name not in new.results}
        return msgspec.structs.replace(new.call, args=(), kwargs=kept, later=frozenset(new.results))

    def _batch_of(self, id: str) -> str | None:
        """Return the batch of a new job or batch; "" if it is not new."""
        if id in self._calls:
            return self._calls[id].batch
        return self._batches[id].batch if id in self._batches else ""

    def _in_order(self, calls: Mapping[str, FlowCall]) -> list[str]:
        """Return the ids of the calls, each after all that it waits for. Raises DeclarationError for a cycle."""
        members: dict[str, list[str]] = {id: list(batch.leaders) for id, batch in self._batches.items()}
        for id, call in calls.items():
            if call.origin.batch is not None:
                members[call.origin.batch].append(id)
        for id, batch in self._batches.items():
            if batch.batch is not None:
                members[batch.batch].append(id)
        ordered: dict[str, None] = {}
        for first in calls:
            # The path from it to what it waits for; without recursion, because chains may be long.
            path: dict[str, Iterator[str]] = {}
            next: str | None = first
            while next is not None or path:
                if next is not None and next not in ordered:
                    if next in path:
                        raise DeclarationError(self._cycle(list(path), next))
                    origin = calls[next].origin if next in calls else None
                    waits_for = members.get(next, []) if origin is None else [origin.follows] if origin.follows else []
                    path[next] = iter(waits_for)
                if not path:
                    break
                last = builtins.next(reversed(path))
                next = builtins.next(path[last], None)
                if next is None:
                    ordered[last] = None
                    del path[last]
        return [id for id in ordered if id in calls]

    def _cycle(self, path: Sequence[str], again: str) -> str:
        around = [*path[path.index(again) :], again]
        names = [shown(self._calls[id].call) for id in around if id in self._calls]
        if around[0] not in self._calls:
            names.append(names[0])
        return (
            f"these calls wait for each other, each for the next: {', '.join(names)}; take one of them out of after()"
        )


def shown(leader: Leader) -> str:
    """Return a call, chain or batch as it is named in errors."""
    if isinstance(leader, Call):
        return "a call" if leader.task is None else f"{leader.task.name}.call(…)"
    return "a chain" if isinstance(leader, ChainPlan) else "a batch" if isinstance(leader, BatchPlan) else repr(leader)


def growth(client: Client, batch_id: str, steps: Iterable[Step]) -> FlowBuilder:
    """Return what to store to add calls and chains to a stored batch. Raises DeclarationError."""
    checked = [_step(step, "batch.add()") for step in steps]
    if any(_has_batch(step) for step in checked):
        raise DeclarationError("batch.add() takes calls and chains of calls; a batch in a batch is enqueued with it")
    if any(client_of(step) is not client for step in checked):
        raise DeclarationError("the calls for batch.add() belong to another app than the batch")
    builder = FlowBuilder(client.new_id)
    builder.grow(batch_id, checked)
    return builder


def _handle(added: PlacedJob | PlacedBatch, client: Client) -> Job[Any] | Batch:
    if isinstance(added, PlacedJob):
        return Job(added.id, client)
    then = [_handle(each, client) for each in added.then]
    return Batch(added.id, [Job(id, client) for id in added.jobs], client, then)


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


def _results(call: Call[Any]) -> Mapping[str, Any]:
    """Return the arguments of a call that are results, by name."""
    if call.task is None or not any(results_in(value) for value in (*call.args, *call.kwargs.values())):
        return {}
    given = call.task.payload.bind(call.args, call.kwargs)
    return {name: value for name, value in given.items() if results_in(value)}


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
