"""The fetcher: gets starts for limits that are kept elsewhere, from each store by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from headgate.clock import Clock
from headgate.engine.bus import EventBus
from headgate.engine.guarded_store import GuardedStore
from headgate.engine.remote_limits import RemoteLimit
from headgate.engine.store_fetcher import StoreFetcher
from headgate.jobs.identity import IdSource
from headgate.jobs.job import ClaimedJob, Draw
from headgate.limits.limit import Limit
from headgate.storage.records import Amendment, Starved
from headgate.storage.store import Store


class Fetcher:
    """Passes on what concerns a limit to the fetcher of its store. A store that is slow holds no other one up."""

    def __init__(
        self, storage: Store, limits: Mapping[str, RemoteLimit], *, clock: Clock, bus: EventBus, ids: IdSource
    ) -> None:
        of_store: dict[GuardedStore, dict[str, Limit]] = {}
        for name, elsewhere in limits.items():
            of_store.setdefault(elsewhere.store, {})[name] = elsewhere.limit
        self._fetchers = [
            StoreFetcher(storage, store, kept, clock=clock, bus=bus, ids=ids) for store, kept in of_store.items()
        ]
        self._by_limit = {
            name: fetcher for fetcher, kept in zip(self._fetchers, of_store.values(), strict=True) for name in kept
        }

    @property
    def has_limits(self) -> bool:
        """Whether any limit is kept elsewhere."""
        return bool(self._by_limit)

    def want(self, starved: Sequence[Starved], room: int) -> None:
        """Claims met these buckets empty; `room` jobs could start now."""
        for each in starved:
            if (fetcher := self._by_limit.get(each.draw.limit)) is not None:
                fetcher.want(each, room)

    def note_taken(self, jobs: Sequence[ClaimedJob]) -> None:
        """These jobs were claimed here: what they took need not be withdrawn."""
        for job in jobs:
            if job.elsewhere is not None:
                for index, draw in enumerate(job.draws):
                    if job.elsewhere[index] is not None and (fetcher := self._by_limit.get(draw.limit)) is not None:
                        fetcher.note_taken(draw, 1 if job.costs is None else job.costs[index])

    def amend(self, amendment: Amendment) -> None:
        """A start was not what it was charged as."""
        self._by_limit[amendment.draw.limit].amend(amendment)

    def penalize(self, draw: Draw, closed_for: int) -> None:
        """Whoever draws on the bucket, in whatever program, is to hold back for so long (µs)."""
        self._by_limit[draw.limit].penalize(draw, closed_for)

    async def flush(self, seconds: float) -> None:
        """Wait until all amendments are made, at most so long; nothing more is fetched for those who asked before."""
        await asyncio.gather(*(fetcher.flush(seconds) for fetcher in self._fetchers))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as fetchers:
            for fetcher in self._fetchers:
                fetchers.create_task(fetcher.run(), name="headgate-fetcher")
