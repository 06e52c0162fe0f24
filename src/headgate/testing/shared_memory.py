"""A store in memory for tests, which use more threads and event loops than a program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import NewJob
from headgate.storage.driver import Wake
from headgate.storage.procedures.finish import complete
from headgate.storage.sqlite.memory import MemoryStorage

P = ParamSpec("P")


class SharedMemory(MemoryStorage):
    """Calls each watcher on the event loop that it came from. With `gated=False` limits do not delay added jobs."""

    def __init__(self, clock: Clock, *, gated: bool = True) -> None:
        super().__init__(clock)
        self._gated = gated

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        return await super().add(jobs if self._gated else [_ungated(job) for job in jobs], batches)

    async def complete_in(self, connection: Any, job_id: str, fence: int) -> bool:
        """Complete the job at once: a test does not use the connections of the code that it tests."""
        return await self.write(lambda tx: complete(tx, job_id, fence))

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        return super().watch(_in_this_loop(wake))

    def watch_queues(self, wake: Wake) -> Callable[[], None]:
        return super().watch_queues(_in_this_loop(wake))


def _in_this_loop(wake: Callable[P, None]) -> Callable[P, None]:
    """Return a function that calls `wake` on the running event loop, from any thread; `wake` itself if none runs."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return wake

    def wake_there(*arguments: P.args, **named: P.kwargs) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(partial(wake, *arguments, **named))

    return wake_there


def _ungated(job: NewJob) -> NewJob:
    return replace(job, buckets=(), costs=None, terms=None, wait_mode="", give_up_at=None, rejection=None)
