"""The things that a call may be after: calls, chains and batches in one graph, and handles of stored ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, get_args, runtime_checkable

from headgate.errors import DeclarationError
from headgate.jobs.job import On


class ResultOf:
    """An argument that is the result of a job or a batch; `result_of(…)` makes it."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader

    def __repr__(self) -> str:
        return f"result_of({self.leader!r:.60})"


def results_in(value: object) -> Sequence[ResultOf]:
    """Return the results that an argument is: one, or a list of nothing else; empty for any other value."""
    if isinstance(value, ResultOf):
        return [value]
    if isinstance(value, list) and value and all(isinstance(each, ResultOf) for each in value):
        return value
    return ()


@runtime_checkable
class Leader(Protocol):
    """A call, a chain or a batch; or the handle of a stored one, whose id a job can follow."""

    @property
    def leader_id(self) -> str | None:
        """The id of the stored job or batch that a job after this one follows; None if nothing is stored."""
        ...


def require_on(on: On, where: str) -> None:
    """Raise DeclarationError unless `on` names an end of a leader."""
    if on not in get_args(On):
        raise DeclarationError(f"on={on!r} of {where} must be 'success', 'failure' or 'final'")


def require_leaders(leaders: Sequence[Leader], on: On) -> None:
    """Raise DeclarationError unless `after(*leaders, on=on)` can be stored."""
    require_on(on, "after()")
    if not leaders:
        raise DeclarationError("after() needs at least one call, chain, batch, or handle of a stored one")
    for leader in leaders:
        if not isinstance(leader, Leader):
            raise DeclarationError(
                f"after() takes calls, chains, batches, and handles of stored ones, not {leader!r:.80}; for a stored "
                "id write app.job(id) or app.batch(id)"
            )
