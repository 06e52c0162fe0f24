"""The housekeeper: fails expired jobs, releases followers, and deletes old rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import count, pairwise

from headgate.clock import SECOND, sleep
from headgate.engine.services import Services, WithServices
from headgate.errors import StorageUnavailable
from headgate.jobs.history import KEPT_FOR
from headgate.jobs.identity import EPOCH
from headgate.jobs.job import JobState
from headgate.jobs.retention import Retention
from headgate.storage.records import FINAL_STATES, NodeUpdate

PRUNE_EVERY = 30
"""Seconds between two rounds of pruning, and turns between two looks for missing nodes; there is a turn a second."""

PAUSE = 0.05
"""Seconds between two steps, so that other writers get their turn."""

GATHER_EVERY = 10
"""Turns between two rounds of gathering the counts that the store has made for charts itself."""

EXPIRED_AT_ONCE = 100

STEPS_IN_A_ROW = 100
"""How many steps of one kind, such as expiring, may run in a row before other work."""

KEPT_WITHOUT_TERMS = 3600.0
"""Seconds that a job is kept, by a retention of 0, which it does not carry: others may still follow it."""

PRUNED_AT_ONCE = 500

PRUNE_OVERLAP = 86400 * SECOND
"""Microseconds by which a round of pruning reads again what the last round has read: jobs may have been locked then."""

PARTS = 50
"""In how many parts a round of each day searches the jobs since 2025."""

ROWS_AT_ONCE = 1000


class Housekeeper(WithServices):
    """Works in small steps, so that no other writer waits for it. Every node runs one; they do not conflict."""

    def __init__(self, services: Services, *, retention: Retention) -> None:
        super().__init__(services)
        self._retention = retention
        self._pruned_before: dict[int, int] = {}
        self._kept_for: dict[int, set[JobState]] = {}
        for state in FINAL_STATES:
            # With 0, jobs carry it themselves. These were enqueued by a program without this setting.
            self._kept_for.setdefault(round((retention.of(state) or KEPT_WITHOUT_TERMS) * SECOND), set()).add(state)

        self._update = NodeUpdate()
        self._noted = asyncio.Event()

    def note(self, update: NodeUpdate) -> None:
        """Start a turn of housekeeping; called every second with the store's list of due work."""
        self._update = update
        self._noted.set()

    async def run(self) -> None:
        for turns in count(1):
            await self._noted.wait()
            self._noted.clear()
            for doing, is_due, step in (
                ("expiring jobs", self._update.has_expired, self._expire),
                ("releasing followers", self._update.has_followers, self._storage.release_followers),
                ("housekeeping", turns % GATHER_EVERY == 0, partial(self._many, self._storage.gather_history)),
                ("housekeeping", turns % PRUNE_EVERY == 0, self._storage.add_missing_nodes),
            ):
                if is_due:
                    await self._repeat(doing, step, range(STEPS_IN_A_ROW))

    async def run_pruning(self) -> None:
        """Delete old rows, beside `run`: after a retention was shortened, it takes minutes or hours."""
        while True:
            await sleep(self._clock, PRUNE_EVERY)
            for step in self._deletions(self._storage.now()):
                await self._repeat("housekeeping", step, count())

    async def _repeat(self, doing: str, step: Callable[[], Awaitable[object]], times: Iterable[int]) -> None:
        """Repeat a step until nothing is left. An error is published: one in expiring jobs must not keep old rows."""
        try:
            for _ in times:
                if not await step():
                    return
                await sleep(self._clock, PAUSE)
        except StorageUnavailable as error:
            self._publish_failure(doing, error)

    async def _expire(self) -> bool:
        dropped = await self._storage.expire(EXPIRED_AT_ONCE)
        self._publish_dropped(dropped)
        return len(dropped) >= EXPIRED_AT_ONCE

    async def _many(self, handle: Callable[[int], Awaitable[int]]) -> bool:
        """Handle some rows; return whether there may be more."""
        return await handle(ROWS_AT_ONCE) >= ROWS_AT_ONCE

    def _deletions(self, now: int) -> Iterator[Callable[[], Awaitable[object]]]:
        """Yield, for each kind of rows, the step that deletes some of those that are old `now`."""
        yield partial(self._many, self._storage.evict)
        for kept_for, states in self._kept_for.items():
            before, last = now - kept_for, self._pruned_before.get(kept_for, 0)
            begins = [last - PRUNE_OVERLAP]
            if last // PRUNE_OVERLAP != before // PRUNE_OVERLAP:
                # Once a day also those among jobs that are kept for longer, in parts: one search takes too long.
                begins = [0, *(EPOCH + (before - EPOCH) * part // PARTS for part in range(1, PARTS))]
            self._pruned_before[kept_for] = before
            for since, until in pairwise([*begins, before]):
                yield partial(self._storage.prune, before, PRUNED_AT_ONCE, frozenset(states), since=since, until=until)
        # Those that become old meanwhile are left to the next round: where jobs end all the time, it would have no end.
        yield partial(self._storage.prune_by_own_retention, PRUNED_AT_ONCE, until=now)
        yield partial(self._storage.prune_audit, now - round(self._retention.audit * SECOND), ROWS_AT_ONCE)
        for step, kept in KEPT_FOR.items():
            yield partial(self._storage.prune_history, step, now - kept * SECOND, ROWS_AT_ONCE)
