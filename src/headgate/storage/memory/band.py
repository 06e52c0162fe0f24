"""The waiting jobs of one lane that have the same priority, in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic

from headgate.storage.memory.job import WAITING, Job, L


class Band(Generic[L]):
    """The jobs of one priority in one lane, in order of `run_at` and arrival.

    Those that arrive in order stand in a fifo. What comes out of order (a retry, a wall clock that stepped back) and
    what is delayed is kept in heaps of its own.
    """

    __slots__ = ("delayed", "fifo", "last_run_at", "late", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.fifo: deque[Job[L]] = deque()
        self.last_run_at = 0
        self.late: list[_Place[L]] = []
        self.delayed: list[_Place[L]] = []

    def pop(self, wall: int) -> Job[L] | None:
        """Remove and return the first job that is ready."""
        fifo = self._fresh_fifo()
        late = _fresh_head(self.late)
        delayed = _fresh_head(self.delayed)
        if delayed is not None and delayed[0] > wall:
            delayed = None
        first = late if delayed is None or (late is not None and late < delayed) else delayed
        if fifo and (first is None or (fifo[0].run_at, fifo[0].seq) < first[:2]):
            return fifo.popleft()
        if first is None:
            return None
        heappop(self.late if first is late else self.delayed)
        return first[3]

    def oldest(self, wall: int) -> int | None:
        """The first `run_at` of its jobs that are ready."""
        fifo = self._fresh_fifo()
        heads = [fifo[0].run_at] if fifo else []
        late, delayed = _fresh_head(self.late), _fresh_head(self.delayed)
        if late is not None:
            heads.append(late[0])
        if delayed is not None and delayed[0] <= wall:
            heads.append(delayed[0])
        return min(heads, default=None)

    def earliest(self) -> int | None:
        """The first `run_at` of its delayed jobs."""
        first = _fresh_head(self.delayed)
        return None if first is None else first[0]

    def place(self, job: Job[L]) -> None:
        if not job.version and not job.delayed and (not self.fifo or job.run_at > self.last_run_at):
            self.fifo.append(job)
            self.last_run_at = job.run_at
            return
        job.version += 1
        heappush(self.delayed if job.delayed else self.late, (job.run_at, job.seq, job.version, job))

    def put_back(self, job: Job[L]) -> None:
        """Undo the removal of the last job that was removed."""
        if job.version:
            heappush(self.delayed if job.delayed else self.late, (job.run_at, job.seq, job.version, job))
        else:
            self.fifo.appendleft(job)

    def _fresh_fifo(self) -> deque[Job[L]]:
        fifo = self.fifo
        while fifo and (fifo[0].version or fifo[0].state is not WAITING):
            fifo.popleft()
        return fifo

    def fresh(self) -> Iterator[Job[L]]:
        for job in self.fifo:
            if not job.version and job.state is WAITING:
                yield job
        for place in (*self.late, *self.delayed):
            if _is_fresh(place):
                yield place[3]

    def drop_stale(self) -> None:
        self.fifo = deque(job for job in self.fifo if not job.version and job.state is WAITING)
        for heap in (self.late, self.delayed):
            heap[:] = [place for place in heap if _is_fresh(place)]
            heapify(heap)


_Place = tuple[int, int, int, Job[L]]
"""Where a job stands: run_at, arrival, its version when it was placed there, the job."""


def _is_fresh(place: _Place[L]) -> bool:
    job = place[3]
    return job.version == place[2] and job.state is WAITING


def _fresh_head(heap: list[_Place[L]]) -> _Place[L] | None:
    while heap:
        if _is_fresh(heap[0]):
            return heap[0]
        heappop(heap)
    return None
