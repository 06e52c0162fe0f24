"""The builder of a flow: gives each call in a chain, a batch or a graph its id, and what it follows."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import count, islice
from typing import Any, NamedTuple, TypeAlias

import msgspec

from headgate.client.plan import BatchSteps, ChainSteps, Step, shown
from headgate.errors import DeclarationError
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import On, Origin
from headgate.jobs.scheduled import ScheduledCall, ScheduledGraph, ScheduledStep
from headgate.tasks.call import Call, FlowCall
from headgate.tasks.leading import Leader, results_in


@dataclass(frozen=True, slots=True)
class Following:
    """The jobs and batches that a step follows, by id, and which end it needs."""

    ids: tuple[str, ...] = ()
    on: On = "success"


NOTHING = Following()


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A call or a batch that was added to a flow, and the steps after the batch.

    `jobs` are those of the batch, None for a call. What follows an empty batch follows what that does.
    """

    id: str
    itself: Following
    jobs: Sequence[str] | None = None
    then: tuple[Placed, ...] = ()

    @property
    def follow(self) -> Following:
        """Return what the next step follows."""
        if not self.then:
            return self.itself
        return Following(tuple(id for each in self.then for id in each.follow.ids))


@dataclass(frozen=True, slots=True)
class PlacedChain:
    """A chain that was added to a flow: all its jobs, those of batches in it included, these batches, and its end."""

    jobs: Sequence[str]
    batches: Sequence[str]
    last: Placed

    @property
    def follow(self) -> Following:
        """Return what the next step follows."""
        return self.last.follow


Placed: TypeAlias = "PlacedStep | PlacedChain"


class _NewCall(NamedTuple):
    """A call that was added: its id, what it follows by its place, and its batch."""

    id: str
    call: Call[Any]
    place: Following
    plan: BatchSteps | None
    batch: str | None
    results: Mapping[str, Any]
    """The arguments that are results."""


class FlowBuilder:
    """Gives each call an id and what it follows."""

    def __init__(self, new_id: Callable[..., str]) -> None:
        self._new_id = new_id
        self._calls: dict[str, _NewCall] = {}
        self._batches: dict[str, NewBatch] = {}
        self._placed: dict[int, list[Placed]] = {}
        self._joins: dict[tuple[str, ...], str] = {}
        self._places: dict[str, Following] = {}

    def add(self, step: Step, place: Following, plan: BatchSteps | None = None, batch: str | None = None) -> Placed:
        """Add a step after others, inside the batch with that id. Return its place: the next step follows it."""
        placed: Placed
        if isinstance(step, BatchSteps):
            try:
                return self.add_batch(step, place, plan, batch)
            except RecursionError:
                raise DeclarationError("batches are nested too deep; for many in a row, use chain(…)") from None
        if isinstance(step, ChainSteps):
            placed = self.add_chain(step, place, plan, batch)
        else:
            id = self._new_id(is_batch=False)
            self._places[id] = place
            self._calls[id] = _NewCall(id, step, place, plan, batch, _results(step))
            self._grow(batch)
            placed = PlacedStep(id, Following((id,)))
        self._placed.setdefault(builtins.id(step), []).append(placed)
        return placed

    def add_chain(
        self, chain: ChainSteps, place: Following, plan: BatchSteps | None = None, batch: str | None = None
    ) -> PlacedChain:
        """Add the steps of a chain, the first after others, inside the batch with that id."""
        first, outer = len(self._calls), len(self._batches)
        # Without recursion: a loop may have nested chains thousands deep, at their beginnings or at their ends.
        begun = [(chain, iter(chain.steps))]
        last: Placed
        while begun:
            each, steps = begun[-1]
            if isinstance(step := next(steps, None), ChainSteps):
                begun.append((step, iter(step.steps)))
            elif step is not None:
                last = self.add(step, place, plan, batch)
                place = last.follow
            elif begun.pop()[0] is not chain:
                self._placed.setdefault(builtins.id(each), []).append(PlacedChain((), (), last))
        return PlacedChain(_since(self._calls, first), _since(self._batches, outer), last)

    def add_batch(
        self, plan: BatchSteps, place: Following, outer_plan: BatchSteps | None = None, outer: str | None = None
    ) -> PlacedStep:
        """Add a batch after others, and the steps after it, which are beside it in the outer batch."""
        id = self._new_id(is_batch=True)
        self._batches[id] = NewBatch(id, 0, 0, outer, name=plan.name)
        self._places[id] = place
        self._grow(outer)
        first = len(self._calls)
        for step in plan.steps:
            self.add(step, place, plan, id)
        jobs = _since(self._calls, first)
        # Without a job in it, it has ended from the start.
        itself = Following((id,)) if jobs or not place.ids else place
        placed = PlacedStep(id, itself, jobs)
        named: BatchSteps | None = plan
        while named is not None:
            self._placed.setdefault(builtins.id(named), []).append(placed)
            named = named.before
        then = tuple(self.add(step, _after(placed, on), outer_plan, outer) for step, on in plan.next)
        return replace(placed, then=then)

    def grow(self, batch: str, steps: Iterable[Step]) -> list[str]:
        """Add calls and chains to a stored batch, and return the ids of the jobs."""
        self._batches[batch] = NewBatch(batch, 0, 0, grows=True)
        for step in steps:
            self.add(step, NOTHING, None, batch)
        return list(self._calls)

    def placed(self, step: Step) -> Sequence[Placed]:
        """Return the parts that were added for a call, a chain or a batch: one for each place that it has."""
        return self._placed.get(builtins.id(step), ())

    def flow(self) -> tuple[list[FlowCall], list[NewBatch]]:
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
        ids = list(self._calls) if is_in_order else self._in_order(calls)
        return [calls[id] for id in ids], list(self._batches.values())

    def _grow(self, batch: str | None) -> None:
        if batch is not None:
            known = self._batches[batch]
            self._batches[batch] = msgspec.structs.replace(known, total=known.total + 1)

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
            self._batches[join] = NewBatch(join, len(ids), 0, leaders=ids)
        return Following((join,), follow.on)

    def _ids_of(self, leader: Leader, call: Call[Any], *, is_read: bool = False) -> tuple[str, ...]:
        if leader.leader_id is not None:
            return (leader.leader_id,)
        placed = self.placed(leader)  # type: ignore[arg-type]  # what is no step is not there
        if len(placed) != 1:
            found = "is not enqueued with it" if not placed else f"is {len(placed)} times in what is enqueued"
            raise DeclarationError(
                f"{shown(call)} is after {shown(leader)}, which {found}; put that object itself into the batch, once"
            )
        (found_one,) = placed
        if isinstance(leader, BatchSteps) and isinstance(found_one, PlacedStep):
            # Not the steps after it, which a chain that ends with the batch waits for.
            return (found_one.id,) if is_read else found_one.itself.ids
        while is_read and isinstance(found_one, PlacedChain):
            found_one = found_one.last
        if is_read and isinstance(found_one, PlacedStep) and found_one.jobs is not None and not found_one.then:
            # The chain ends with a batch, which may be empty.
            return (found_one.id,)
        return found_one.follow.ids

    def _is_before(self, leader: str, ids: Sequence[str]) -> bool:
        """Whether one of these is that job or batch, or is final only after it, by the places of new calls."""
        left, seen = list(ids), set(ids)
        while left:
            id = left.pop()
            if id == leader or (id in self._batches and self._batch_of(leader) == id):
                return True
            before = self._places.get(id, NOTHING).ids
            left += [each for each in before if each not in seen]
            seen.update(before)
        return False

    def _ids_of_results(self, new: _NewCall, value: Any) -> str | list[str]:
        ids: list[str] = []
        for each in results_in(value):
            found = self._ids_of(each.leader, new.call, is_read=True)
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
        waits_for: dict[str, list[str]] = {id: list(batch.leaders) for id, batch in self._batches.items()}
        for id, call in calls.items():
            waits_for[id] = [] if call.origin.follows is None else [call.origin.follows]
            if call.origin.batch is not None:
                waits_for[call.origin.batch].append(id)
        for id, batch in self._batches.items():
            if batch.batch is not None:
                waits_for[batch.batch].append(id)
        try:
            return [id for id in TopologicalSorter(waits_for).static_order() if id in calls]
        except CycleError as error:
            raise DeclarationError(self._cycle(error.args[1][::-1])) from None

    def _cycle(self, around: Sequence[str]) -> str:
        names = [shown(self._calls[id].call) for id in around if id in self._calls]
        if around[0] not in self._calls:
            names.append(names[0])
        return f"these calls wait for each other, each for the next: {', '.join(names)}; remove one from after()"


def _since(added: dict[str, Any], first: int) -> list[str]:
    """Return the ids that were added after the first ones; a batch may have many chains, each with a few."""
    return list(islice(reversed(added), len(added) - first))[::-1]


def _after(batch: PlacedStep, on: On) -> Following:
    """Return what a step follows that needs that end of a batch."""
    place = batch.itself
    if place.ids == (batch.id,):
        return Following(place.ids, on)
    # It is empty: it succeeds when what it follows has ended as it needs, and fails only if that fails before it.
    if on == "success":
        return place
    return Following(place.ids if on == "final" or place.on == "success" else (batch.id,), on)


def _results(call: Call[Any]) -> Mapping[str, Any]:
    """Return the arguments of a call that are results, by name."""
    if call.task is None or not any(results_in(value) for value in (*call.args, *call.kwargs.values())):
        return {}
    given = call.task.payload.bind(call.args, call.kwargs)
    return {name: value for name, value in given.items() if results_in(value)}


def scheduled_graph(
    plan: ChainSteps | BatchSteps, where: str, scheduled: Callable[[FlowCall], ScheduledCall]
) -> ScheduledGraph:
    """Return the graph of a plan inside of one batch; `scheduled` turns each call into that of an occurrence.

    Raises DeclarationError for what no occurrence can have.
    """
    numbers = count()
    builder = FlowBuilder(lambda *, is_batch: str(next(numbers)))
    is_batch = isinstance(plan, BatchSteps) and not plan.next and not plan.limits
    run = plan if isinstance(plan, BatchSteps) and is_batch else BatchSteps([plan])
    placed = builder.add_batch(run, NOTHING)
    calls, batches = builder.flow()
    known = {each.id for each in calls} | {batch.id for batch in batches}
    for each in calls:
        if each.limits:
            raise DeclarationError(
                f"{where}: limits= of a batch belong to one batch, and each occurrence is another; give limits= to the "
                "tasks"
            )
        if not known.issuperset([*each.origin.read_ids, *([each.origin.follows] if each.origin.follows else [])]):
            raise _follows_stored(where, each)
    for batch in batches:
        if not known.issuperset(batch.leaders):
            raise _follows_stored(where, next(each for each in calls if each.origin.follows == batch.id))
    steps = tuple(ScheduledStep(each.id, scheduled(each), each.origin) for each in calls)
    return ScheduledGraph(steps, tuple(batches), placed.id, max((each.id for each in calls), key=int))


def _follows_stored(where: str, call: FlowCall) -> DeclarationError:
    return DeclarationError(
        f"{where}: {shown(call.call)} is after a stored job, chain or batch, which occurs once; under a schedule, a "
        "call is after calls of the same plan"
    )
