"""A chain, a batch or a graph under a schedule: each occurrence enqueues all of it."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from headgate.errors import DeclarationError
from headgate.tasks.call import FlowCall, NumberedGraph
from headgate.tasks.flow import NOTHING, BatchPlan, ChainPlan, FlowBuilder, client_of, shown

if TYPE_CHECKING:
    from headgate.client import Client


def numbered_graph(plan: ChainPlan[Any] | BatchPlan, where: str) -> NumberedGraph:
    """Return the graph of a plan inside of one batch. Raises DeclarationError for what no occurrence can have."""
    numbers = count()
    builder = FlowBuilder(lambda *, is_batch: str(next(numbers)))
    is_batch = isinstance(plan, BatchPlan) and not plan.next and not plan.limits
    run = plan if isinstance(plan, BatchPlan) and is_batch else BatchPlan([plan], ())
    placed = builder.add_batch(run, NOTHING)
    calls, batches = builder.flow()
    known = {*builder.jobs, *(batch.id for batch in batches)}
    for each in calls:
        if each.limits:
            raise DeclarationError(
                f"{where}: limits= of a batch belong to one batch, and each occurrence is another; give limits= to the "
                "tasks"
            )
        results = (each.origin.results or {}).values()
        read = [id for value in results for id in ([value] if isinstance(value, str) else value)]
        if not known.issuperset([*read, *([each.origin.follows] if each.origin.follows else [])]):
            raise _follows_stored(where, each)
    for batch in batches:
        if not known.issuperset(batch.leaders):
            raise _follows_stored(where, next(each for each in calls if each.origin.follows == batch.id))
    return NumberedGraph(calls, batches, placed.id, builder.jobs[-1])


def _follows_stored(where: str, call: FlowCall) -> DeclarationError:
    return DeclarationError(
        f"{where}: {shown(call.call)} is after a stored job, chain or batch, which occurs once; under a schedule, a "
        "call is after calls of the same plan"
    )


def require_plan(plan: object, client: Client, where: str) -> None:
    """Raise DeclarationError unless it is a chain or a batch of calls of this app."""
    if not isinstance(plan, ChainPlan | BatchPlan):
        raise DeclarationError(f"{where}: {plan!r:.80} is no chain and no batch; write chain(…) or batch([…])")
    if client_of(plan) is not client:
        raise DeclarationError(f"{where}: the calls belong to another app")
