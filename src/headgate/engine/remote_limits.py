"""Remote limits: the limits of an app that are kept in another store than its jobs.

A guard around each of these stores lets no error or delay of it stop a node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from headgate.clock import Clock, wait_until_done
from headgate.errors import HeadgateError, StorageUnavailable
from headgate.jobs.job import summarize_error
from headgate.limits.bucket_store import Bucket, BucketStore, NotesRefusals, Taken, check_rule
from headgate.limits.limit import AnyRule, Limit
from headgate.limits.rule import NEVER, Snapshot
from headgate.limits.standalone.limiter import open_store
from headgate.shielding import read_error
from headgate.storage.store import Store

T = TypeVar("T")

ANSWER_TIMEOUT = 10
"""Seconds that a store has for an answer; then the call is cancelled and fails with StorageUnavailable."""


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


class GuardedStore:
    """What nodes and operators ask of a bucket store; it opens that store first.

    Any error of that store that is not a HeadgateError becomes StorageUnavailable, as do an invalid answer and no
    answer within 10 s. A call that does not end when it is cancelled is abandoned.
    """

    def __init__(self, store: BucketStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._calls: set[asyncio.Future[Any]] = set()

    @property
    def advice(self) -> str | None:
        """The advice of the store about its own settings, if any."""
        try:
            advice = getattr(self._store, "advice", None)
        except Exception:
            return None
        return advice if isinstance(advice, str) else None

    def check_rule(self, rule: AnyRule, limit: str) -> None:
        """Raise DeclarationError for a rule that the store cannot hold."""
        check_rule(self._store, rule, limit)

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        taken = await self._call("take", lambda: self._store.take(bucket, cost, count=count, id=id))
        if isinstance(taken, Taken):
            fields = (taken.granted, taken.opens_at, taken.now, taken.available, taken.full_at)
            if all(type(field) is int and 0 <= field <= NEVER for field in fields) and taken.granted <= count:
                return taken
        raise StorageUnavailable(
            f"{self._named('take')} returned {_shown(taken)} instead of a Taken with at most {count} starts"
        )

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        await self._call("amend", lambda: self._store.amend(bucket, charged_at, cost, started_at, actual))

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        await self._call("penalize", lambda: self._store.penalize(bucket, closed_for))

    async def refuse(self, bucket: Bucket, charged_at: int | None = None) -> None:
        store = self._store
        if isinstance(store, NotesRefusals):
            await self._call("refuse", lambda: store.refuse(bucket, charged_at))

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        snapshot = await self._call("snapshot", lambda: self._store.snapshot(bucket))
        if isinstance(snapshot, Snapshot):
            return snapshot
        raise StorageUnavailable(f"{self._named('snapshot')} returned {_shown(snapshot)} instead of a Snapshot")

    async def reset(self, bucket: Bucket) -> None:
        await self._call("reset", lambda: self._store.reset(bucket))

    # --------------------------------------------------------------------------------------------------- calls

    async def _call(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        # In its own task: so a cancellation of the store differs from one of the caller, and the call can be abandoned.
        calling = asyncio.create_task(self._open_and(verb, call))
        self._calls.add(calling)
        calling.add_done_callback(self._calls.discard)
        try:
            if not await wait_until_done(self._clock, calling, ANSWER_TIMEOUT):
                raise StorageUnavailable(f"{calling.get_name()} did not answer within {ANSWER_TIMEOUT} s")
            if calling.cancelled():
                raise StorageUnavailable(f"{calling.get_name()} cancelled itself")
            return calling.result()
        finally:
            if not calling.done():
                calling.add_done_callback(read_error)
                calling.cancel()

    async def _open_and(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        calling = asyncio.current_task()
        assert calling is not None
        try:
            calling.set_name(self._named("open"))
            await self._store.open()
            calling.set_name(self._named(verb))
            return await call()
        except (HeadgateError, asyncio.CancelledError):
            raise
        except BaseException as error:
            # SystemExit as well: raised out of a task it would end the program.
            raise StorageUnavailable(f"{calling.get_name()} raised {summarize_error(error)}") from error

    def _named(self, verb: str) -> str:
        return f"{type(self._store).__name__}.{verb}"


def _shown(answer: object) -> str:
    try:
        return repr(answer)[:200]
    except Exception:
        return f"a {type(answer).__name__}"
