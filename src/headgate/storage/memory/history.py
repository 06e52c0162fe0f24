"""The steps of charts in the memory storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeVar

from msgspec.structs import replace

from headgate.jobs.history import ALL, KEPT_FOR, SHORTEST, Flush, JobsStep, LimitStep, step_at
from headgate.jobs.job import JobState, NewJob

C = TypeVar("C", bound=tuple[int, str, str | None])
S = TypeVar("S", JobsStep, LimitStep)


class History:
    """The steps of each curve of a chart, by when they begin."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, str, str], dict[int, JobsStep]] = {}
        self._limits: dict[tuple[int, str, str | None], dict[int, LimitStep]] = {}
        # The last write of each process, and of which step it was.
        self._flushes: dict[str, tuple[int, int]] = {}
        # What nobody else counts, as it came: it is added up when somebody looks.
        self._notes: Counter[tuple[int, str, str, Literal["enqueued", "failed", "cancelled"]]] = Counter()

    def note_enqueued(self, job: NewJob, wall: int) -> None:
        """A job was added, at that wall time, and nobody else counts it."""
        self._notes[step_at(wall, SHORTEST), job.queue, job.task, "enqueued"] += 1

    def note_unrun(self, job: NewJob, state: JobState, wall: int) -> None:
        """A job has become final, and no attempt tells of it."""
        became: Literal["failed", "cancelled"] = "failed" if state is JobState.FAILED else "cancelled"
        self._notes[step_at(wall, SHORTEST), job.queue, job.task, became] += 1

    def add(self, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None) -> None:
        if flush is not None:
            last, _ = self._flushes.get(flush.writer, (0, 0))
            if flush.number <= last:
                return
            at = max([*(each.at for each in jobs), *(each.at for each in limits)], default=0)
            self._flushes[flush.writer] = flush.number, at
        for counted in jobs:
            self._add(counted)
        for used in limits:
            uses = self._limits.setdefault((used.step, used.limit, used.key), {})
            before = uses.get(used.at)
            uses[used.at] = used if before is None else replace(before, used=before.used + used.used)

    def _add(self, counted: JobsStep) -> None:
        curve = self._jobs.setdefault((counted.step, counted.queue, counted.task), {})
        known = curve.get(counted.at)
        curve[counted.at] = counted if known is None else known.plus(counted)

    def _gather(self) -> None:
        notes, self._notes = self._notes, Counter()
        for (wall, queue, task, what), jobs in notes.items():
            for step in KEPT_FOR:
                for place in ((queue, task), (queue, ALL), (ALL, ALL)):
                    self._add(replace(JobsStep(step, *place, step_at(wall, step)), **{what: jobs}))

    def jobs(self, step: int, queue: str, task: str, since: int) -> list[JobsStep]:
        self._gather()
        curves = [self._jobs.get((step, queue, task), {})]
        if queue == ALL != task:
            curves = [curve for name, curve in self._jobs.items() if (name[0], name[2]) == (step, task)]
        found = [counted for curve in curves for at, counted in curve.items() if at >= since]
        return sorted(found, key=lambda counted: (counted.at, counted.queue))

    def limit(self, step: int, limit: str, key: str | None, since: int) -> list[LimitStep]:
        curve = self._limits.get((step, limit, key), {})
        return [curve[at] for at in sorted(curve) if at >= since]

    def prune(self, step: int, before: int, count: int) -> int:
        """Forget up to `count` steps of either kind that began before then; how many."""
        self._gather()
        if step == SHORTEST:
            self._flushes = {writer: last for writer, last in self._flushes.items() if last[1] >= before}
        return _prune(self._jobs, step, before, count) + _prune(self._limits, step, before, count)


def _prune(curves: dict[C, dict[int, S]], step: int, before: int, count: int) -> int:
    old = [(name, at) for name, curve in curves.items() if name[0] == step for at in curve if at < before][:count]
    for name, at in old:
        del curves[name][at]
        if not curves[name]:
            del curves[name]
    return len(old)
