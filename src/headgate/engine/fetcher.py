"""The fetcher: gets starts for remote limits, from each store independently."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from headgate.engine.guarded_store import GuardedStore
from headgate.engine.remote_limits import RemoteLimit
from headgate.engine.services import Services
from headgate.engine.store_fetcher import StoreFetcher
from headgate.jobs.job import ClaimedJob, Draw
from headgate.limits.limit import Limit
from headgate.storage.records import Amendment, Starved


class Fetcher:
    """Passes each call to the fetcher of the limit's store. A slow store does not delay the others."""

    def __init__(self, services: Services, limits: Mapping[str, RemoteLimit]) -> None:
        of_store: dict[GuardedStore, dict[str, Limit]] = {}
        for name, remote in limits.items():
            of_store.setdefault(remote.store, {})[name] = remote.limit
        self._fetchers = [StoreFetcher(services, store, kept) for store, kept in of_store.items()]
        self._by_limit = {
            name: fetcher for fetcher, kept in zip(self._fetchers, of_store.values(), strict=True) for name in kept
        }

    @property
    def has_limits(self) -> bool:
        """Whether any limit is remote."""
        return bool(self._by_limit)

    @property
    def limits_away(self) -> set[str]:
        """The limits whose stores did not answer the last call, if that was lately."""
        return set().union(*(fetcher.limits_away for fetcher in self._fetchers))

    def request(self, starved: Sequence[Starved], room: int) -> None:
        """Fetch starts for buckets that a claim found empty; `room` jobs could start now."""
        for each in starved:
            if (fetcher := self._by_limit.get(each.draw.limit)) is not None:
                fetcher.request(each, room)

    def note_taken(self, jobs: Sequence[ClaimedJob]) -> None:
        """Note that these jobs were claimed here: the starts they took need not be withdrawn."""
        for job in jobs:
            if job.remote_charges is not None:
                for index, draw in enumerate(job.draws):
                    if (
                        job.remote_charges[index] is not None
                        and (fetcher := self._by_limit.get(draw.limit)) is not None
                    ):
                        fetcher.note_taken(draw, 1 if job.costs is None else job.costs[index])

    def amend(self, amendment: Amendment) -> None:
        """Send an amended charge to its store."""
        self._by_limit[amendment.draw.limit].amend(amendment)

    def penalize(self, draw: Draw, closed_for: int) -> None:
        """Close the bucket for every program that draws on it, for `closed_for` microseconds."""
        self._by_limit[draw.limit].penalize(draw, closed_for)

    async def flush(self, seconds: float) -> None:
        """Wait at most `seconds` until all amendments are sent; drop the pending requests for starts."""
        await asyncio.gather(*(fetcher.flush(seconds) for fetcher in self._fetchers))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as fetchers:
            for fetcher in self._fetchers:
                fetchers.create_task(fetcher.run(), name="headgate-fetcher")
