"""The steps of charts in the memory storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from headgate.jobs.history import ALL, JobsStep, LimitStep

L = TypeVar("L", bound=tuple[int, str, str | None])
S = TypeVar("S", JobsStep, LimitStep)


class History:
    """The steps of each line of a chart, by when they begin."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, str, str], dict[int, JobsStep]] = {}
        self._limits: dict[tuple[int, str, str | None], dict[int, LimitStep]] = {}

    def add(self, jobs: Sequence[JobsStep], limits: Sequence[LimitStep]) -> None:
        for counted in jobs:
            line = self._jobs.setdefault((counted.step, counted.queue, counted.task), {})
            known = line.get(counted.at)
            line[counted.at] = counted if known is None else known.plus(counted)
        for used in limits:
            uses = self._limits.setdefault((used.step, used.limit, used.key), {})
            before = uses.get(used.at)
            uses[used.at] = used if before is None else replace(before, used=before.used + used.used)

    def jobs(self, step: int, queue: str, task: str, since: int) -> list[JobsStep]:
        lines = [self._jobs.get((step, queue, task), {})]
        if queue == ALL != task:
            lines = [line for name, line in self._jobs.items() if (name[0], name[2]) == (step, task)]
        found = [counted for line in lines for at, counted in line.items() if at >= since]
        return sorted(found, key=lambda counted: (counted.at, counted.queue))

    def limit(self, step: int, limit: str, key: str | None, since: int) -> list[LimitStep]:
        line = self._limits.get((step, limit, key), {})
        return [line[at] for at in sorted(line) if at >= since]

    def prune(self, step: int, before: int, count: int) -> int:
        """Forget up to `count` steps of either kind that began before then; how many."""
        return _prune(self._jobs, step, before, count) + _prune(self._limits, step, before, count)


def _prune(lines: dict[L, dict[int, S]], step: int, before: int, count: int) -> int:
    old = [(name, at) for name, line in lines.items() if name[0] == step for at in line if at < before][:count]
    for name, at in old:
        del lines[name][at]
        if not lines[name]:
            del lines[name]
    return len(old)
