"""Room in queues that bound how many jobs wait in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headgate.clock import SECOND, Clock, wait_for_event
from headgate.errors import NotOpen, QueueFull
from headgate.storage.store import Store
from headgate.tasks.queue import DEFAULT_QUEUE, Queue

FRESH = SECOND // 10
"""How long a count is believed (microseconds), while a tenth of the room is left."""

LOOK_EVERY = 0.25
"""Seconds between two looks of who waits for room: jobs that are claimed elsewhere wake nobody."""


@dataclass(slots=True)
class _Count:
    """How many jobs wait in a queue at most: those that the store had when it was read, and all that came in since.

    `reserved` jobs have been let in and are not in the store yet; `storing` are on their way, and may be counted there.
    `begun` are all that ever were on their way.
    """

    waiting: int = 0
    read_at: int | None = None
    reserved: int = 0
    storing: int = 0
    begun: int = 0
    line: asyncio.Lock = field(default_factory=asyncio.Lock)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    stored: asyncio.Event = field(default_factory=asyncio.Event)


class Admitted:
    """Jobs that were let into queues and are to be stored: `store()` before that, and the block ends after it.

    `queues` are the queues that they go to, by the ones that were asked for.
    """

    def __init__(self) -> None:
        self.queues: dict[str, str] = {}
        self._reserved: list[tuple[_Count, int]] = []
        self._is_storing = False

    def reserve(self, count: _Count, jobs: int) -> None:
        """So many more are let in."""
        count.waiting += jobs
        count.reserved += jobs
        self._reserved.append((count, jobs))

    def store(self) -> None:
        """From now on the store may count them."""
        self._is_storing = True
        for count, jobs in self._reserved:
            count.reserved -= jobs
            count.storing += jobs
            count.begun += jobs

    def __enter__(self) -> Admitted:
        return self

    def __exit__(self, *_: object) -> None:
        for count, jobs in self._reserved:
            if self._is_storing:
                count.storing -= jobs
                count.stored.set()
            else:
                count.reserved -= jobs
                count.waiting -= jobs


class Backlogs:
    """Lets jobs into queues that have room for them.

    For all callers of one process the bound is exact: what they add is counted from the moment that it is let in. The
    store's own count, in which the jobs of other processes are, is 100 ms old at most, and fresh when it gets tight. So
    each process may exceed the bound by what the others add while it reads and stores.
    """

    def __init__(self, storage: Store, clock: Clock, find: Callable[[str], Queue]) -> None:
        self._storage = storage
        self._clock = clock
        self._find = find
        self._counts: dict[str, _Count] = {}
        self._waiting: set[asyncio.Event] = set()
        self._closings = 0

    def close(self) -> None:
        """The app is not open any more: whoever waits for room is told so, and has stored nothing."""
        self._closings += 1
        # The next opening may be on another event loop.
        self._counts.clear()
        for changed in self._waiting:
            changed.set()

    def are_bounded(self, wanted: Iterable[str]) -> bool:
        """Return whether one of these queues bounds how many jobs wait in it; the others have room for all."""
        return any(self._find(name).max_backlog is not None for name in wanted)

    async def admit(self, wanted: Mapping[str, int], *, may_wait: bool = True) -> Admitted:
        """Let so many jobs into these queues, or into those that they go to instead; all of them, or none.

        Waits for room if a queue says so; what can never fit is refused. Raises QueueFull; NotOpen to whoever waits
        when the app is closed.
        """
        admitted = Admitted()
        try:
            for name, jobs in wanted.items():
                admitted.queues[name] = await self._admit(admitted, name, jobs, may_wait=may_wait)
        except BaseException:
            with admitted:
                raise
        return admitted

    async def _admit(self, admitted: Admitted, name: str, jobs: int, *, may_wait: bool) -> str:
        queue = self._find(name)
        if queue.max_backlog is None:
            return name
        if queue.when_full == "fallback":
            if await self._fits(admitted, queue, jobs):
                return name
            return await self._admit(admitted, DEFAULT_QUEUE, jobs, may_wait=may_wait)
        if queue.when_full == "raise" or not may_wait or jobs > queue.max_backlog:
            if not await self._fits(admitted, queue, jobs):
                raise QueueFull(name, self._count(name).waiting, queue.max_backlog)
            return name
        opening = self._closings
        # One after the other, in the order in which they came.
        async with self._count(name).line:
            await self._wait_for_room(admitted, queue, jobs, opening)
        return name

    async def _wait_for_room(self, admitted: Admitted, queue: Queue, jobs: int, opening: int) -> None:
        self._require_open(opening)
        changed = asyncio.Event()
        unwatch = self._storage.watch(changed.set)
        self._waiting.add(changed)
        try:
            while not await self._fits(admitted, queue, jobs):
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

    async def _fits(self, admitted: Admitted, queue: Queue, jobs: int) -> bool:
        """Whether there is room, which is taken then."""
        most = queue.max_backlog
        assert most is not None
        count = self._count(queue.name)
        # Nobody is let in while the store is read: what it does not know of yet is what is counted here.
        async with count.reading:
            is_old = count.read_at is None or self._clock.monotonic() - count.read_at >= FRESH
            if is_old or count.waiting + jobs > most * 9 // 10:
                while not await self._read(queue.name, count) and count.waiting + jobs > most:
                    await self._wait_until_stored(count)
            if count.waiting + jobs > most:
                return False
            admitted.reserve(count, jobs)
            return True

    async def _read(self, queue: str, count: _Count) -> bool:
        """Read the store; False if jobs that were on their way meanwhile may have been counted twice."""
        read_at, not_known, begun = self._clock.monotonic(), count.reserved + count.storing, count.begun
        is_exact = not count.storing
        count.waiting = await self._storage.backlog(queue) + not_known
        count.read_at = read_at
        return is_exact and count.begun == begun

    async def _wait_until_stored(self, count: _Count) -> None:
        while count.storing:
            count.stored.clear()
            await count.stored.wait()

    def _count(self, name: str) -> _Count:
        return self._counts.setdefault(name, _Count())
