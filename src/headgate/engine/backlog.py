"""Room in queues with a `max_backlog`: it is reserved before jobs are stored there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headgate.clock import SECOND, Clock, wait_for_event
from headgate.errors import NotOpen, QueueFull
from headgate.shielding import OutageLock
from headgate.storage.store import Store
from headgate.tasks.queue import DEFAULT_QUEUE, Queue

COUNT_MAX_AGE = SECOND // 10
"""How long a count is used before it is read again (microseconds), while a tenth of the room is left."""

POLL_INTERVAL = 0.25
"""Seconds between two checks for room: a claim in another process wakes no waiting caller."""


@dataclass(slots=True)
class _Count:
    """An upper bound of the jobs that wait in a queue: the last count of the store plus all reservations since.

    `reserved` jobs have room and are not sent to the store yet; `storing` jobs are being stored, so the store may count
    them. `sent` is the number of jobs ever sent to the store.
    """

    waiting: int = 0
    read_at: int | None = None
    reserved: int = 0
    storing: int = 0
    sent: int = 0
    wait_lock: OutageLock = field(default_factory=OutageLock)
    read_lock: OutageLock = field(default_factory=OutageLock)
    stored: asyncio.Event = field(default_factory=asyncio.Event)


class ReservedRoom:
    """Room in queues for jobs that are to be stored: call `note_storing()` before storing, leave the block after.

    `queues` maps each requested queue to the queue that the jobs go to.
    """

    def __init__(self) -> None:
        self.queues: dict[str, str] = {}
        self._reserved: list[tuple[_Count, int]] = []
        self._is_storing = False

    def add(self, count: _Count, jobs: int) -> None:
        """Reserve room for `jobs` more."""
        count.waiting += jobs
        count.reserved += jobs
        self._reserved.append((count, jobs))

    def note_storing(self) -> None:
        """Note that the jobs are being stored, so that the store may count them."""
        self._is_storing = True
        for count, jobs in self._reserved:
            count.reserved -= jobs
            count.storing += jobs
            count.sent += jobs

    def __enter__(self) -> ReservedRoom:
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
    """Reserves room for jobs in queues that have it.

    Within one process the bound is exact: jobs count from the moment their room is reserved. The store's count, which
    includes the jobs of other processes, is at most 100 ms old, and is read again when little room is left. So each
    process may exceed the bound by what the others add while it reads and stores.
    """

    def __init__(self, storage: Store, clock: Clock, find: Callable[[str], Queue]) -> None:
        self._storage = storage
        self._clock = clock
        self._find = find
        self._counts: dict[str, _Count] = {}
        self._waiting: set[asyncio.Event] = set()
        self._close_count = 0

    def close(self) -> None:
        """End all waits for room with NotOpen, because the app is closed; those callers have stored nothing."""
        self._close_count += 1
        # The app may be opened next on another event loop.
        self._counts.clear()
        for changed in self._waiting:
            changed.set()

    async def reserve(self, counts: Mapping[str, int], *, may_wait: bool = True) -> ReservedRoom:
        """Reserve room for all the jobs in these queues or their fallbacks, or for none; `counts` are by queue.

        Waits for room if a queue is declared so and the jobs can fit at all. Raises QueueFull; raises NotOpen if the
        app is closed during the wait.
        """
        room, left = ReservedRoom(), Counter[str]()
        try:
            for name, jobs in counts.items():
                queue = self._find(name)
                if queue.when_full != "fallback":
                    room.queues[name] = name
                    left[name] += jobs
                elif await self._try_reserve(room, queue, jobs):
                    room.queues[name] = name
                else:
                    room.queues[name] = DEFAULT_QUEUE
                    left[DEFAULT_QUEUE] += jobs
            # In the same order for all callers: no two of them wait for room that the other one has reserved.
            for name in sorted(left):
                await self._reserve(room, self._find(name), left[name], may_wait=may_wait)
        except BaseException:
            with room:  # which gives back what it has
                raise
        return room

    async def _reserve(self, room: ReservedRoom, queue: Queue, jobs: int, *, may_wait: bool) -> None:
        if queue.max_backlog is None:
            return
        if queue.when_full == "raise" or not may_wait or jobs > queue.max_backlog:
            if not await self._try_reserve(room, queue, jobs):
                raise QueueFull(queue.name, self._count(queue.name).waiting, queue.max_backlog, jobs)
            return
        close_count = self._close_count
        # One caller at a time, in the order of arrival.
        async with self._count(queue.name).wait_lock:
            await self._wait_for_room(room, queue, jobs, close_count)

    async def _wait_for_room(self, room: ReservedRoom, queue: Queue, jobs: int, close_count: int) -> None:
        self._require_open(close_count)
        changed = asyncio.Event()
        unwatch = self._storage.watch(changed.set)
        self._waiting.add(changed)
        try:
            while not await self._try_reserve(room, queue, jobs):
                changed.clear()
                self._require_open(close_count)
                await wait_for_event(self._clock, changed, POLL_INTERVAL)
                self._require_open(close_count)
        finally:
            self._waiting.discard(changed)
            unwatch()

    def _require_open(self, close_count: int) -> None:
        if self._close_count != close_count:
            raise NotOpen

    async def _try_reserve(self, room: ReservedRoom, queue: Queue, jobs: int) -> bool:
        """Reserve room for the jobs; return False, and reserve nothing, if there is too little."""
        max_backlog = queue.max_backlog
        assert max_backlog is not None
        count = self._count(queue.name)
        # No room is reserved while the store is read: what the store does not count yet is counted here.
        async with count.read_lock:
            is_old = count.read_at is None or self._clock.monotonic() - count.read_at >= COUNT_MAX_AGE
            if is_old or count.waiting + jobs > max_backlog * 9 // 10:
                while not await self._read(queue.name, count) and count.waiting + jobs > max_backlog:
                    while count.storing:
                        count.stored.clear()
                        await count.stored.wait()
            if count.waiting + jobs > max_backlog:
                return False
            room.add(count, jobs)
            return True

    async def _read(self, queue: str, count: _Count) -> bool:
        """Read the store's count; return False if jobs that were being stored meanwhile may count twice."""
        read_at, not_stored, sent = self._clock.monotonic(), count.reserved + count.storing, count.sent
        is_exact = not count.storing
        count.waiting = await self._storage.backlog(queue) + not_stored
        count.read_at = read_at
        return is_exact and count.sent == sent

    def _count(self, name: str) -> _Count:
        return self._counts.setdefault(name, _Count())
