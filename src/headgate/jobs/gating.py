"""Gates: short names for how a release computes the limits of its jobs, and changes of waiting jobs to new gates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from headgate.jobs.identity import JobId
from headgate.jobs.job import BucketRef, Origin
from headgate.jobs.terms import GateTerms


class KnownGates(frozenset[str]):
    """The gates whose jobs a node may start. Each claim sends them to the store, so their texts are cached."""

    @cached_property
    def as_lines(self) -> str:
        return "\n".join(self)

    @cached_property
    def as_json(self) -> str:
        return msgspec.json.encode(list(self)).decode()


NO_GATES = KnownGates()

LIMIT_SUBJECT = "limit "
"""What the subject of a limit begins with, among those of gates; no task has a space in its name."""


class OverflowTarget(NamedTuple):
    """The gate of jobs that go to `queue` because their own is full, and the subjects that it depends on."""

    gate: str
    queue: str
    needed: tuple[str, ...]


class Gates:
    """The gates that one release declares: for each task in each queue, the name that its jobs carry."""

    def __init__(self, gates: Mapping[tuple[str, str], str], overflows: Sequence[OverflowTarget] = ()) -> None:
        self.subjects: Mapping[str, str] = {subject_of(task, queue): gate for (task, queue), gate in gates.items()}
        """The name of each gate by its subject."""
        self._gates = gates
        self._overflows = overflows
        self._newest: Mapping[str, str] | None = None
        self._superseded: frozenset[str] = frozenset()
        self._startable: dict[tuple[str, ...], KnownGates] = {}

    @cached_property
    def names(self) -> KnownGates:
        """The names of all gates."""
        return KnownGates([*self._gates.values(), *(each.gate for each in self._overflows)])

    @cached_property
    def tasks(self) -> Mapping[str, Sequence[str]]:
        """The names of the tasks by queue, both sorted, so that they are the same text on all nodes of a release."""
        tasks: dict[str, list[str]] = {}
        for task, queue in sorted(self._gates, key=lambda each: (each[1], each[0])):
            tasks.setdefault(queue, []).append(task)
        return tasks

    def only(self, tasks: frozenset[str]) -> Gates:
        """Return the gates of these tasks."""
        gates = {(task, queue): gate for (task, queue), gate in self._gates.items() if task in tasks}
        subjects = {subject_of(task, queue) for task, queue in gates}
        return Gates(gates, [each for each in self._overflows if subjects.issuperset(each.needed)])

    def startable(self, queues: Iterable[str], newest: Mapping[str, str]) -> KnownGates:
        """Return the gates whose jobs in these queues this release may start; `newest`: newest gates by subject."""
        self._compare(newest)
        key = tuple(queues)
        startable = self._startable.get(key)
        if startable is None:
            superseded = self._superseded
            if len(self._startable) >= 1000:
                self._startable = {}
            own = [
                gate
                for (task, queue), gate in self._gates.items()
                if queue in key and subject_of(task, queue) not in superseded
            ]
            overflow_gates = [
                each.gate for each in self._overflows if each.queue in key and superseded.isdisjoint(each.needed)
            ]
            startable = self._startable[key] = KnownGates([*own, *overflow_gates])
        return startable

    def is_newest(self, task: str, queue: str, newest: Mapping[str, str]) -> bool:
        """Return whether this release has the gate of a task in a queue and no live release has a newer one."""
        self._compare(newest)
        return (task, queue) in self._gates and subject_of(task, queue) not in self._superseded

    def _compare(self, newest: Mapping[str, str]) -> None:
        # A store keeps the same mapping until a gate changes, and every claim calls this.
        if newest is not self._newest:
            self._superseded = frozenset(
                subject for subject, gate in self.subjects.items() if newest.get(subject, gate) != gate
            )
            self._startable = {}
            self._newest = newest


def subject_of(task: str, queue: str) -> str:
    """Return the subject of a gate as it is stored: the task name of its jobs, and the queue."""
    return f"{task}@{queue}"


class GatedJob(msgspec.Struct, frozen=True, array_like=True):
    """A waiting job: its buckets, costs and terms, the data they are computed from, and the gate that computed them."""

    id: JobId
    task: str
    queue: str
    payload: str
    headers: dict[str, str] | None
    buckets: tuple[BucketRef, ...]
    costs: tuple[int, ...] | None
    terms: GateTerms | None
    gate: str
    origin: Origin | None = None


class GateChange(msgspec.Struct, frozen=True, array_like=True):
    """New buckets, costs, terms and gate for a job, applied if it still waits with the buckets in `before`.

    An empty `gate` keeps the current one. With `stays` the buckets are the same, and the job stays in its lane.
    """

    id: str
    before: tuple[BucketRef, ...]
    buckets: tuple[BucketRef, ...]
    costs: tuple[int, ...] | None
    terms: GateTerms | None
    gate: str = ""
    stays: bool = False
