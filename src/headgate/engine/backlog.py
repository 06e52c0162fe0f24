"""Room in queues that bound how many jobs wait in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headgate.clock import SECOND, Clock, wait_for_event
from headgate.errors import NotOpen, QueueFull
from headgate.storage.protocol import Storage
from headgate.tasks.queue import DEFAULT_QUEUE, Queue

FRESH = SECOND // 10
"""How long a count is believed (microseconds), while a tenth of the room is left."""

LOOK_EVERY = 0.25
"""Seconds between two looks of who waits for room: jobs that are claimed elsewhere wake nobody."""


@dataclass(slots=True)
class _Count:
    """How many jobs waited, and have been added by this process since."""

    waiting: int = 0
    read_at: int | None = None
    line: asyncio.Lock = field(default_factory=asyncio.Lock)


class Backlogs:
    """Lets jobs into queues that have room for them.

    The count is the store's own and 100 ms old at most, a fresh one when it gets tight. Several processes that add at
    the same moment may each take the last room: the bound is exceeded by what the others add in between.
    """

    def __init__(self, storage: Storage, clock: Clock, find: Callable[[str], Queue]) -> None:
        self._storage = storage
        self._clock = clock
        self._find = find
        self._counts: dict[str, _Count] = {}
        self._waiting: set[asyncio.Event] = set()
        self._closings = 0

    def close(self) -> None:
        """The app is not open any more: whoever waits for room is told so, and has stored nothing."""
        self._closings += 1
        for changed in self._waiting:
            changed.set()

    async def admit(self, name: str, jobs: int, *, may_wait: bool = True) -> str:
        """The queue that has room for so many jobs: this one, or the one that its jobs go to instead.

        Waits for room if the queue says so; what can never fit is refused. Raises QueueFull; NotOpen to whoever waits
        when the app is closed.
        """
        queue = self._find(name)
        if queue.max_backlog is None:
            return name
        if queue.when_full == "fallback":
            return name if await self._fits(queue, jobs) else await self.admit(DEFAULT_QUEUE, jobs, may_wait=may_wait)
        if queue.when_full == "raise" or not may_wait or jobs > queue.max_backlog:
            if not await self._fits(queue, jobs):
                raise QueueFull(name, self._count(name).waiting, queue.max_backlog)
            return name
        opening = self._closings
        # One after the other, in the order in which they came.
        async with self._count(name).line:
            await self._wait_for_room(queue, jobs, opening)
        return name

    async def _wait_for_room(self, queue: Queue, jobs: int, opening: int) -> None:
        self._require_open(opening)
        changed = asyncio.Event()
        unwatch = self._storage.watch(changed.set)
        self._waiting.add(changed)
        try:
            while not await self._fits(queue, jobs):
                changed.clear()
                self._require_open(opening)
                await wait_for_event(self._clock, changed, LOOK_EVERY)
                self._require_open(opening)
        finally:
            self._waiting.discard(changed)
            unwatch()

    def _require_open(self, opening: int) -> None:
        if self._closings != opening:
            raise NotOpen

    async def _fits(self, queue: Queue, jobs: int) -> bool:
        """Whether there is room, which is taken then."""
        assert queue.max_backlog is not None
        count = self._count(queue.name)
        now = self._clock.monotonic()
        is_old = count.read_at is None or now - count.read_at >= FRESH
        if is_old or count.waiting + jobs > queue.max_backlog * 9 // 10:
            waiting = await self._storage.backlog(queue.name)
            count.waiting, count.read_at = waiting, now
        if count.waiting + jobs > queue.max_backlog:
            return False
        count.waiting += jobs
        return True

    def _count(self, name: str) -> _Count:
        return self._counts.setdefault(name, _Count())
