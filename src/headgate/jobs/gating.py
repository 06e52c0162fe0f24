"""What a release asks of its jobs' limits, by a short name, and a waiting job that was enqueued under another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from headgate.jobs.job import Draw
from headgate.jobs.terms import GateTerms


class KnownGates(frozenset[str]):
    """What jobs have to be known by to be started by a node. A claim tells a store of it, so its texts are kept."""

    @cached_property
    def as_lines(self) -> str:
        return "\n".join(self)

    @cached_property
    def as_json(self) -> str:
        return msgspec.json.encode(list(self)).decode()


NO_GATES = KnownGates()


class OverflowTarget(NamedTuple):
    """The gate of jobs that go to `queue` because theirs is full, and the subjects that it depends on."""

    gate: str
    queue: str
    needed: tuple[str, ...]


class Gates:
    """The gates that one release declares: for each task in each queue, the name that its jobs carry."""

    def __init__(self, gates: Mapping[tuple[str, str], str], overflows: Sequence[OverflowTarget] = ()) -> None:
        self.subjects: Mapping[str, str] = {subject_of(task, queue): gate for (task, queue), gate in gates.items()}
        """The name of each gate by what it is of."""
        self._gates = gates
        self._overflows = overflows
        self._newest: Mapping[str, str] | None = None
        self._superseded: frozenset[str] = frozenset()
        self._startable: dict[tuple[str, ...], KnownGates] = {}

    @cached_property
    def names(self) -> KnownGates:
        """The names of all of them."""
        return KnownGates([*self._gates.values(), *(each.gate for each in self._overflows)])

    def startable(self, queues: Iterable[str], newest: Mapping[str, str]) -> KnownGates:
        """The gates whose jobs in these queues this release may start, where these are the newest ones by subject."""
        self._compare(newest)
        wanted = tuple(queues)
        startable = self._startable.get(wanted)
        if startable is None:
            superseded = self._superseded
            if len(self._startable) >= 1000:
                self._startable = {}
            own = [
                gate
                for (task, queue), gate in self._gates.items()
                if queue in wanted and subject_of(task, queue) not in superseded
            ]
            others = [
                each.gate for each in self._overflows if each.queue in wanted and superseded.isdisjoint(each.needed)
            ]
            startable = self._startable[wanted] = KnownGates([*own, *others])
        return startable

    def is_newest(self, task: str, queue: str, newest: Mapping[str, str]) -> bool:
        """Whether this release has the gate of a task in a queue, and no live release has a newer one."""
        self._compare(newest)
        return (task, queue) in self._gates and subject_of(task, queue) not in self._superseded

    def _compare(self, newest: Mapping[str, str]) -> None:
        # A store keeps the same mapping until a gate changes, and this is asked by every claim.
        if newest is not self._newest:
            self._superseded = frozenset(
                subject for subject, gate in self.subjects.items() if newest.get(subject, gate) != gate
            )
            self._startable = {}
            self._newest = newest


def subject_of(task: str, queue: str) -> str:
    """What a gate is of, as stores keep it: a task, by the name that its jobs are stored under, in a queue."""
    return f"{task}@{queue}"


class GatedJob(msgspec.Struct, frozen=True, array_like=True):
    """What a waiting job asks of its limits, what that is computed from, and the gate that it was computed by."""

    id: str
    task: str
    queue: str
    payload: str
    headers: dict[str, str] | None
    draws: tuple[Draw, ...]
    costs: tuple[int, ...] | None
    terms: GateTerms | None
    gate: str


class GateChange(msgspec.Struct, frozen=True, array_like=True):
    """What the job asks from now on, if it still waits and asks what it did `before`, and the `gate` that says so.

    An empty `gate` leaves it the one that it has. A job that `stays` asks for the same, in the same lane.
    """

    id: str
    before: tuple[Draw, ...]
    draws: tuple[Draw, ...]
    costs: tuple[int, ...] | None
    terms: GateTerms | None
    gate: str = ""
    stays: bool = False
