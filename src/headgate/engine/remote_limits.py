"""Remote limits: the limits of an app that are kept in another store than its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from headgate.clock import Clock
from headgate.engine.guarded_store import GuardedStore
from headgate.limits.bucket_store import BucketStore, check_rule
from headgate.limits.limit import Limit
from headgate.limits.standalone.limiter import open_store
from headgate.storage.store import Store


class RemoteLimit(NamedTuple):
    """A limit that is kept in another store."""

    limit: Limit
    store: GuardedStore


class RemoteLimits:
    """Finds the stores of limits: their own `store`, else the one at `url`, else the store of the jobs."""

    def __init__(self, limits: Mapping[str, Limit], storage: Store, clock: Clock, url: str | None) -> None:
        self._limits = limits
        self._storage = storage
        self._clock = clock
        self._url = url
        self._stores: dict[str, BucketStore] = {}
        # By identity, as a custom store may have no hash. The store is kept alive here, so its identity stays unique.
        self._guarded: dict[int, tuple[BucketStore, GuardedStore]] = {}

    def store_of(self, limit: Limit) -> BucketStore | None:
        """Return the store of a limit; None: the store of the jobs. Raises DeclarationError for an invalid URL."""
        place = limit.store
        if place is None and not (limit.rule.holds_permits or limit.rule.orders_turns):
            place = self._url
        if place is None or not isinstance(place, str):
            return cast(BucketStore | None, place)
        if place not in self._stores:
            self._stores[place] = open_store(place, self._clock)
        store = self._stores[place]
        # The store of the jobs is not remote: there the bucket is charged in the commit that claims the jobs.
        where = getattr(store, "place", None)
        return None if where is not None and where == self._storage.place else store

    @property
    def urls(self) -> set[str]:
        """The URLs of the stores of limits, used or not."""
        places = {self._url, *(limit.store for limit in self._limits.values())}
        return {place for place in places if isinstance(place, str)}

    def check(self, name: str, limit: Limit) -> None:
        """Raise DeclarationError for a limit whose store has an invalid URL or cannot hold its rule."""
        store = self.store_of(limit)
        if store is not None:
            check_rule(store, limit.rule, name)

    @property
    def limits(self) -> dict[str, RemoteLimit]:
        """The remote limits, by name."""
        stores = {name: self.store_of(limit) for name, limit in self._limits.items()}
        return {
            name: RemoteLimit(self._limits[name], self._guard(store))
            for name, store in stores.items()
            if store is not None
        }

    def _guard(self, store: BucketStore) -> GuardedStore:
        return self._guarded.setdefault(id(store), (store, GuardedStore(store, self._clock)))[1]

    async def close(self) -> None:
        """Close the stores that were opened for URLs."""
        for store in self._stores.values():
            await store.close()
