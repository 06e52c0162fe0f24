"""A store in memory that may be used from any thread and any event loop: a test has more of them than a program."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import NewJob
from headgate.storage.memory import MemoryStorage


class SharedMemory(MemoryStorage):
    """Every verb is whole before the next one begins. With `gated=False` no limit holds back what is added."""

    def __init__(self, clock: Clock, *, gated: bool = True) -> None:
        super().__init__(clock)
        self._gated = gated
        # Some verbs are made of others.
        self._one_at_a_time = threading.RLock()

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Any:
        return await super().add(jobs if self._gated else [_ungated(job) for job in jobs], batches)

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return super().watch(wake)

        def wake_there() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(wake)

        return super().watch(wake_there)


def _ungated(job: NewJob) -> NewJob:
    return replace(job, draws=(), costs=None, terms=None, variant="", give_up_at=None, rejection=None)


def _whole(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    async def whole(self: SharedMemory, *args: Any, **kwargs: Any) -> Any:
        # The verbs of the memory storage never suspend, so nobody else's turn comes while it is held.
        with self._one_at_a_time:
            return await verb(self, *args, **kwargs)

    return whole


for _name in dir(SharedMemory):
    _verb = getattr(SharedMemory, _name)
    if not _name.startswith("_") and inspect.iscoroutinefunction(_verb):
        setattr(SharedMemory, _name, _whole(_verb))
