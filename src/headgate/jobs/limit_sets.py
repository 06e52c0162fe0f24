"""Limit sets: short names for how a release computes the limits of its jobs, and moves of waiting jobs to new ones."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from headgate.jobs.bucket_mask import chosen
from headgate.jobs.identity import JobId
from headgate.jobs.job import BucketRef, Origin
from headgate.jobs.terms import LimitTerms


class KnownLimitSets(frozenset[str]):
    """The limit sets whose jobs a node may start. Each claim sends them to the store, so their texts are cached."""

    @cached_property
    def as_lines(self) -> str:
        return "\n".join(self)

    @cached_property
    def as_json(self) -> str:
        return msgspec.json.encode(list(self)).decode()


NO_LIMIT_SETS = KnownLimitSets()

LIMIT_SUBJECT = "limit "
"""The prefix that marks a limit among the subjects of limit sets; no task has a space in its name."""


class OverflowTarget(NamedTuple):
    """The limit set of jobs that go to `queue` because their own is full, and the subjects that it depends on."""

    limit_set: str
    queue: str
    needed: tuple[str, ...]


class DeclaredLimitSets:
    """The limit sets that one release declares: for each task in each queue, the name that its jobs carry."""

    def __init__(self, limit_sets: Mapping[tuple[str, str], str], overflows: Sequence[OverflowTarget] = ()) -> None:
        self.subjects: Mapping[str, str] = {
            subject_of(task, queue): limit_set for (task, queue), limit_set in limit_sets.items()
        }
        """The name of each limit set by its subject."""
        self._limit_sets = limit_sets
        self._overflows = overflows
        self._newest: Mapping[str, str] | None = None
        self._superseded: frozenset[str] = frozenset()
        self._startable: dict[frozenset[str], KnownLimitSets] = {}

    @cached_property
    def names(self) -> KnownLimitSets:
        """The names of all limit sets."""
        return KnownLimitSets([*self._limit_sets.values(), *(each.limit_set for each in self._overflows)])

    @cached_property
    def tasks(self) -> Mapping[str, Sequence[str]]:
        """The names of the tasks by queue, both sorted, so that they are the same text on all nodes of a release."""
        tasks: dict[str, list[str]] = {}
        for task, queue in sorted(self._limit_sets, key=lambda each: (each[1], each[0])):
            tasks.setdefault(queue, []).append(task)
        return tasks

    def only(self, tasks: frozenset[str]) -> DeclaredLimitSets:
        """Return the limit sets of these tasks."""
        limit_sets = {
            (task, queue): limit_set for (task, queue), limit_set in self._limit_sets.items() if task in tasks
        }
        subjects = {subject_of(task, queue) for task, queue in limit_sets}
        return DeclaredLimitSets(limit_sets, [each for each in self._overflows if subjects.issuperset(each.needed)])

    def startable(self, queues: Iterable[str], newest: Mapping[str, str]) -> KnownLimitSets:
        """Return the limit sets whose jobs in these queues this release may start; `newest`: the newest by subject."""
        self._compare(newest)
        key = frozenset(queues)
        startable = self._startable.get(key)
        if startable is None:
            superseded = self._superseded
            if len(self._startable) >= 1000:
                self._startable = {}
            own = [
                limit_set
                for (task, queue), limit_set in self._limit_sets.items()
                if queue in key and subject_of(task, queue) not in superseded
            ]
            overflow_limit_sets = [
                each.limit_set for each in self._overflows if each.queue in key and superseded.isdisjoint(each.needed)
            ]
            startable = self._startable[key] = KnownLimitSets([*own, *overflow_limit_sets])
        return startable

    def is_newest(self, task: str, queue: str, newest: Mapping[str, str]) -> bool:
        """Return whether this release has the limit set of a task in a queue and no live release has a newer one."""
        self._compare(newest)
        return (task, queue) in self._limit_sets and subject_of(task, queue) not in self._superseded

    def _compare(self, newest: Mapping[str, str]) -> None:
        # A store keeps the same mapping until a limit set changes, and every claim calls this.
        if newest is not self._newest:
            self._superseded = frozenset(
                subject for subject, limit_set in self.subjects.items() if newest.get(subject, limit_set) != limit_set
            )
            self._startable = {}
            self._newest = newest


def subject_of(task: str, queue: str) -> str:
    """Return the subject of a limit set as it is stored: the task name of its jobs, and the queue."""
    return f"{task}@{queue}"


class GatedJob(msgspec.Struct, frozen=True, array_like=True):
    """A waiting job: its buckets, costs and terms, the data they are computed from, and the limit set that did it."""

    id: JobId
    task: str
    queue: str
    payload: str
    headers: dict[str, str] | None
    buckets: tuple[BucketRef, ...]
    costs: tuple[int, ...] | None
    terms: LimitTerms | None
    limit_set: str
    origin: Origin | None = None

    def held_by_batch(self, limits: Container[str]) -> Sequence[str]:
        """Return the limits that its batch holds for it and that are not among these."""
        held = () if self.terms is None else chosen(self.buckets, self.terms.of_batch)
        return [ref.limit for ref in held if ref.limit not in limits]


class LimitSetChange(msgspec.Struct, frozen=True, array_like=True):
    """New buckets, costs, terms and limit set for a job, applied if it still waits with the buckets in `before`.

    An empty `limit_set` keeps the current one. With `stays` the buckets are the same, and the job stays in its lane.
    """

    id: str
    before: tuple[BucketRef, ...]
    buckets: tuple[BucketRef, ...]
    costs: tuple[int, ...] | None
    terms: LimitTerms | None
    limit_set: str = ""
    stays: bool = False
