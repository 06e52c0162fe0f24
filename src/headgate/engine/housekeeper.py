"""The housekeeper: fails expired jobs, releases followers, and deletes old rows."""

from __future__ import annotations

import asyncio
from itertools import count

from headgate.clock import SECOND, sleep
from headgate.engine.services import Services, WithServices
from headgate.errors import StorageUnavailable
from headgate.jobs.history import KEPT_FOR
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
"""How many steps of expiring, and of releasing followers, may run in a row before other work."""

KEPT_WITHOUT_TERMS = 3600.0
"""Seconds that a job is kept, by a retention of 0, which it does not carry: others may still follow it."""

PRUNED_AT_ONCE = 500

PRUNE_OVERLAP = 86400 * SECOND
"""Microseconds by which a round of pruning reads again what the last round has read: jobs may have been locked then."""

GATHERED_AT_ONCE = 1000


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
            update = self._update
            for doing, is_due, work in (
                ("expiring jobs", update.has_expired, self._expire),
                ("releasing followers", update.has_followers, self._release_followers),
                ("housekeeping", turns % GATHER_EVERY == 0, self._gather),
                ("housekeeping", turns % PRUNE_EVERY == 0, self._storage.add_missing_nodes),
            ):
                # Each for itself: an error in expiring jobs must not keep old rows.
                try:
                    if is_due:
                        await work()
                except StorageUnavailable as error:
                    self._publish_failure(doing, error)

    async def run_pruning(self) -> None:
        """Delete old rows, beside `run`: after a retention was shortened, it takes minutes or hours."""
        while True:
            await sleep(self._clock, PRUNE_EVERY)
            try:
                await self._prune()
            except StorageUnavailable as error:
                self._publish_failure("housekeeping", error)

    async def _expire(self) -> None:
        """Fail expired jobs in several steps: with one step a second a large backlog would take hours."""
        for _ in range(STEPS_IN_A_ROW):
            dropped = await self._storage.expire(EXPIRED_AT_ONCE)
            self._publish_dropped(dropped)
            if len(dropped) < EXPIRED_AT_ONCE:
                return
            await sleep(self._clock, PAUSE)

    async def _release_followers(self) -> None:
        """Release the remaining followers of jobs that ended with more followers than their commit released."""
        for _ in range(STEPS_IN_A_ROW):
            if not await self._storage.release_followers():
                return
            await sleep(self._clock, PAUSE)

    async def _gather(self) -> None:
        while await self._storage.gather_history(GATHERED_AT_ONCE) >= GATHERED_AT_ONCE:
            await sleep(self._clock, PAUSE)

    async def _prune(self) -> None:
        while await self._storage.evict(1000) >= 1000:
            await sleep(self._clock, PAUSE)
        for kept_for, states in self._kept_for.items():
            before = self._storage.now() - kept_for
            last = self._pruned_before.get(kept_for, 0)
            # Jobs that are kept forever, by their own retention, are read once a day, not in each round.
            since = last - PRUNE_OVERLAP if last // PRUNE_OVERLAP == before // PRUNE_OVERLAP else 0
            while await self._storage.prune(before, PRUNED_AT_ONCE, frozenset(states), since=since):
                await sleep(self._clock, PAUSE)
            self._pruned_before[kept_for] = before
        # Those whose retention ends meanwhile are left to the next round: where jobs end all the time, this had no end.
        now = self._storage.now()
        while await self._storage.prune_by_own_retention(PRUNED_AT_ONCE, until=now):
            await sleep(self._clock, PAUSE)
        while await self._storage.prune_audit(self._storage.now() - round(self._retention.audit * SECOND), 1000):
            await sleep(self._clock, PAUSE)
        for step, kept in KEPT_FOR.items():
            while await self._storage.prune_history(step, self._storage.now() - kept * SECOND, 1000):
                await sleep(self._clock, PAUSE)
