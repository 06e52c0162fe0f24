"""Plans: calls that are to be enqueued together, one after the other or in parallel, as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from headgate.errors import DeclarationError
from headgate.foreign_words import RefusesCall
from headgate.jobs.job import On
from headgate.tasks.call import BatchLimit, Call
from headgate.tasks.leading import Leader


class ChainSteps(RefusesCall):
    """Steps that run one after the other."""

    leader_id: None = None

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps: tuple[Step, ...] = tuple(steps)


class BatchSteps(RefusesCall):
    """Steps that run in parallel, and those after all of them are final."""

    leader_id: None = None

    def __init__(
        self,
        steps: Iterable[Step],
        limits: Sequence[BatchLimit] = (),
        next: Sequence[tuple[Step, On]] = (),
        name: str | None = None,
        before: BatchSteps | None = None,
    ) -> None:
        self.steps: tuple[Step, ...] = tuple(steps)
        self.limits: tuple[BatchLimit, ...] = tuple(limits)
        self.next: tuple[tuple[Step, On], ...] = tuple(next)
        self.name = name
        self.before = before
        """The plan without the last of its `next` steps, whose `result_of(…)` an argument of that step can be."""


Step: TypeAlias = Call[Any] | ChainSteps | BatchSteps


def shown(leader: Leader) -> str:
    """Return a call, chain or batch as it is named in errors."""
    if isinstance(leader, Call):
        return "a call" if leader.task is None else f"{leader.task.name}.call(…)"
    return (
        "a chain" if isinstance(leader, ChainSteps) else "a batch" if isinstance(leader, BatchSteps) else repr(leader)
    )


def steps_in(step: Step) -> Iterator[Step]:
    """Return a step and all steps in it, those after its batches included; a loop may have nested thousands."""
    left = [step]
    while left:
        yield (each := left.pop())
        if not isinstance(each, Call):
            left += each.steps
            left += [after for after, _ in each.next] if isinstance(each, BatchSteps) else ()


def calls_of(step: Step) -> Iterator[Call[Any]]:
    """Return the calls of a step, those of the steps after its batches included."""
    return (each for each in steps_in(step) if isinstance(each, Call))


def require_no_leaders(step: Step, where: str) -> None:
    """Raise DeclarationError for a step that has a place after others and whose first call is `after` some itself."""
    while isinstance(step, ChainSteps):
        step = step.steps[0]
    if isinstance(step, Call) and step.leaders:
        raise DeclarationError(
            f"{where}: {shown(step)} has a place after other steps there, and after() names others; write "
            "batch([…, call.after(…)]), with everything that it is after"
        )


def checked_step(step: Step, where: str) -> Step:
    """Return a step. Raises DeclarationError for one that cannot be enqueued with others."""
    if isinstance(step, (ChainSteps, BatchSteps)):
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


def steps_to_add(steps: Iterable[Step]) -> list[Step]:
    """Return calls and chains as they are added to a stored batch. Raises DeclarationError."""
    checked = [checked_step(step, "batch.add()") for step in steps]
    if any(isinstance(each, BatchSteps) for step in checked for each in steps_in(step)):
        raise DeclarationError("batch.add() takes calls and chains of calls; a batch in a batch is enqueued with it")
    return checked
