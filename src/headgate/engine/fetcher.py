"""The fetcher: gets starts for remote limits, from each store independently, and returns unused ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence, Set

from msgspec.structs import replace

from headgate.clock import FARTHEST, SECOND, sleep, wait_for_event
from headgate.engine.remote_limits import GuardedStore, RemoteLimit
from headgate.engine.services import Services, WithServices
from headgate.errors import CostExceedsLimit, DeclarationError, HeadgateError, StorageUnavailable
from headgate.jobs.event import LimitStoreFailed, LimitStoreMisconfigured, LimitStoreRecovered
from headgate.jobs.job import BucketRef, ClaimedJob
from headgate.limits.bucket_store import Bucket
from headgate.limits.limit import Limit
from headgate.limits.rule import NEVER
from headgate.storage.admission import BucketVisit
from headgate.storage.fetched import ASK_AGAIN, FetchedBalance, FetchedStarts
from headgate.storage.records import Amendment, Deposit, NeededFetch
from headgate.storage.stored_buckets import StoredBuckets

FIRST_PAUSE = SECOND // 2
MAX_PAUSE = 30 * SECOND

WITHDRAW_AFTER = 0.1
"""Seconds until unused starts are given back: with free slots a claim follows the deposit at once."""

FETCHES_KEPT = 4
"""Or as many times as long as the fetch took: a job with several such limits starts when the last one is fetched."""

KEPT_FOR_OTHERS = 0.5
"""But at most this long for a store that is slower. No slot is kept longer for its starts, either."""

Fetched = Callable[[Collection[str]], None]
"""Is called with the limits of a store after each fetch from it."""


class Fetcher:
    """Passes each call to the fetcher of the limit's store. A slow store does not delay the others."""

    def __init__(self, services: Services, limits: Mapping[str, RemoteLimit], fetched: Fetched) -> None:
        of_store: dict[GuardedStore, dict[str, Limit]] = {}
        for name, remote in limits.items():
            of_store.setdefault(remote.store, {})[name] = remote.limit
        took: dict[GuardedStore, float] = {}
        self._fetchers = [StoreFetcher(services, store, kept, fetched, took) for store, kept in of_store.items()]
        self.by_limit = {
            name: fetcher for fetcher, kept in zip(self._fetchers, of_store.values(), strict=True) for name in kept
        }
        """The fetcher of the store of each limit."""
        self.has_limits = bool(limits)
        """Whether any limit is remote."""
        self.requests = 0
        """How many times starts were requested for a bucket."""

    @property
    def is_fetching(self) -> bool:
        """Whether starts were requested and are not deposited yet."""
        return any(fetcher.is_fetching for fetcher in self._fetchers)

    @property
    def ready_limits(self) -> Set[str]:
        """The limits whose stores serve no request, and have answered the last one or have not failed lately."""
        by_limit = self.by_limit.items()
        return {limit for limit, fetcher in by_limit if not (fetcher.is_fetching or fetcher.limits_away)}

    @property
    def limits_away(self) -> set[str]:
        """The limits whose stores did not answer the last call, if that was lately."""
        return set().union(*(fetcher.limits_away for fetcher in self._fetchers))

    def request(self, needed: Sequence[NeededFetch], room: int) -> None:
        """Fetch starts for buckets that a claim found empty; `room` jobs could start now."""
        for each in needed:
            if (fetcher := self.by_limit.get(each.ref.limit)) is not None:
                fetcher.request(each, room)
                self.requests += 1

    def note_taken(self, jobs: Sequence[ClaimedJob]) -> None:
        """Note that these jobs were claimed here: the starts they took need not be withdrawn."""
        for job in jobs:
            if job.remote_charges is not None:
                for index, ref in enumerate(job.buckets):
                    if job.remote_charges[index] is not None and (fetcher := self.by_limit.get(ref.limit)) is not None:
                        fetcher.note_taken(ref, 1 if job.costs is None else job.costs[index])

    async def flush(self, seconds: float) -> None:
        """Wait at most `seconds` until all amendments are sent and unused starts are given back; request no more."""
        await asyncio.gather(*(fetcher.flush(seconds) for fetcher in self._fetchers))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as fetchers:
            for fetcher in self._fetchers:
                fetchers.create_task(fetcher.run(), name="headgate-fetcher")


class StoreFetcher(WithServices):
    """Requests as many starts as can be used now, and deposits them in the job store for the next claim."""

    def __init__(
        self,
        services: Services,
        store: GuardedStore,
        limits: Mapping[str, Limit],
        fetched: Fetched,
        took: dict[GuardedStore, float],
    ) -> None:
        super().__init__(services)
        # How many seconds the last fetch from each store took: a job may need starts of several.
        self._took = took
        self._store = store
        self._limits = limits
        self._fetched = fetched
        self._needed: dict[BucketRef, tuple[NeededFetch, int]] = {}
        self.is_fetching = False
        self._shares = StoredBuckets(services.storage)
        # The failed calls since the last one that succeeded, the error of the last, and when to call again (monotonic).
        self._failures = 0
        self._error = ""
        self._again_at = 0
        self._failed_at: dict[str, int] = {}
        self._advised: set[str] = set()
        self._published: set[tuple[str, str]] = set()
        self._taken: dict[BucketRef, int] = {}
        """What jobs took here of the starts that may have to be given back."""
        self._amendments: deque[Amendment] = deque()
        self._penalties: dict[BucketRef, int] = {}
        self._ending = asyncio.Event()
        # Of how many fetches unused starts may still have to be given back.
        self._returning = 0
        self._wakeup = asyncio.Event()
        self._is_empty = asyncio.Event()

    @property
    def limits_away(self) -> set[str]:
        """The limits for which the store did not answer the last call, if that was within half a minute."""
        since = self._clock.monotonic() - MAX_PAUSE
        return {limit for limit, failed_at in self._failed_at.items() if failed_at >= since}

    def request(self, needed: NeededFetch, room: int) -> None:
        """Fetch starts for a bucket that a claim found empty; `room` jobs could start now."""
        known = self._needed.get(needed.ref)
        if known is not None and known[0].discards:
            # Of jobs in another lane, which still wait for the answer.
            needed = replace(needed, discards=True)
        self._needed[needed.ref] = (needed, max(1, min(needed.waiting, room)))
        self.is_fetching = True
        self._wakeup.set()

    def note_taken(self, ref: BucketRef, cost: int) -> None:
        """Note that a job claimed here took `cost`, which need not be withdrawn."""
        if ref in self._taken:
            self._taken[ref] += cost

    def amend(self, amendment: Amendment) -> None:
        """Send an amended charge to the store."""
        self._amendments.append(amendment)
        self._wakeup.set()

    def penalize(self, ref: BucketRef, closed_for: int) -> None:
        """Close the bucket for every program that uses it, for `closed_for` microseconds."""
        until = self._clock.monotonic() + closed_for
        self._penalties[ref] = max(until, self._penalties.get(ref, 0))
        self._wakeup.set()

    async def flush(self, seconds: float) -> None:
        """Wait at most `seconds` until all amendments are sent and unused starts are given back; request no more."""
        self._ending.set()
        self._needed.clear()
        self._is_empty.clear()
        self._wakeup.set()
        await wait_for_event(self._clock, self._is_empty, seconds)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as withdrawals:
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                needed, self._needed = self._needed, {}
                while self._penalties and not self._holds_back:
                    # Before the refund of the refused start, which would let another job start.
                    await self._penalize(*self._penalties.popitem())
                for _ in range(len(self._amendments)):
                    if not self._holds_back:
                        # One after another: a charge may be moved first and settled then.
                        await self._amend(self._amendments.popleft())
                if self._holds_back:
                    self._clock.call_at(self._again_at, self._wakeup.set)
                if needed:
                    began = self._clock.monotonic()
                    self._taken |= dict.fromkeys(needed, 0)
                    balances = await asyncio.gather(*(self._fetch(each, room) for each, room in needed.values()))
                    deposits = [
                        Deposit(ref, balance, each.rule.period, each.discards)
                        for (ref, (each, _)), balance in zip(needed.items(), balances, strict=True)
                    ]
                    replaced = await self._deposit(deposits)
                    own = self._took[self._store] = (self._clock.monotonic() - began) / SECOND
                    others = min(KEPT_FOR_OTHERS, FETCHES_KEPT * max(self._took.values()))
                    self._returning += 1
                    seconds = max(WITHDRAW_AFTER, FETCHES_KEPT * own, others)
                    withdrawals.create_task(self._return_unused(deposits, replaced, seconds))
                self.is_fetching = bool(self._needed)
                if needed:
                    self._fetched(self._limits)
                if not self._wakeup.is_set() and not self._returning:
                    self._is_empty.set()

    # ---------------------------------------------------------------------------------------------- fetching

    async def _fetch(self, needed: NeededFetch, room: int) -> FetchedBalance:
        ref, rule, limit = needed.ref, needed.rule.real, needed.ref.limit
        now = self._storage.limit_now()
        try:
            if self._is_paused:
                raise StorageUnavailable("skipped because the previous call failed")
            id = self._ids.unique(self._clock.now())
            taken = await self._store.take(Bucket(limit, ref.key, rule), needed.cost, count=room, id=id)
        except (CostExceedsLimit, DeclarationError) as error:
            # The claim fails a job by the same rule. If the store cannot hold the rule, it is not away: the jobs wait.
            if isinstance(error, DeclarationError):
                self._publish_once(limit, str(error))
            return FetchedBalance(0, now, 0, now + ASK_AGAIN, rule.describe())
        except HeadgateError as error:
            return await self._without_store(needed, room, now, error)
        if self._store.advice is not None:
            self._advise(limit, self._store.advice)
        if self._failures:
            # Whichever limit is asked first finds out for all of them.
            for each in sorted(self._failed_at) or [limit]:
                self._bus.publish(LimitStoreRecovered(at=self._clock.now(), limit=each))
            self._failed_at.clear()
        self._failures = self._again_at = 0
        left = taken.granted * needed.cost
        # Counted from before the call: a little early costs another call, a little late would lose budget.
        # Nobody tells these jobs when a limit that is paused in the other store is resumed there.
        opens_in = min(taken.opens_at - taken.now, FARTHEST) if taken.opens_at < NEVER else MAX_PAUSE
        if not taken.granted and opens_in <= 0:
            opens_in = ASK_AGAIN
            self._advise(
                limit, "it refuses a start although it reports the bucket as open; it is asked again after 1 s"
            )
        return FetchedBalance(left, now, taken.now if left else 0, now + opens_in, rule.describe(), needed.cost)

    @property
    def _is_paused(self) -> bool:
        """Whether the store is not called, because the last call has failed."""
        return self._clock.monotonic() < self._again_at

    @property
    def _holds_back(self) -> bool:
        """Whether penalties and amendments wait until the store is called again. At the end of the node, none does."""
        return self._is_paused and not self._ending.is_set()

    def _pause(self, error: HeadgateError) -> None:
        """Call the store no more for 0.5 s to 30 s, longer after each failure."""
        self._again_at = self._clock.monotonic() + min(MAX_PAUSE, FIRST_PAUSE << min(self._failures, 10))
        self._failures += 1
        self._error = str(error)

    def _publish_once(self, limit: str, error: str) -> None:
        if (limit, error) not in self._published:
            self._published.add((limit, error))
            self._bus.publish(LimitStoreFailed(at=self._clock.now(), limit=limit, error=error, jobs_run=False))

    def _advise(self, limit: str, advice: str) -> None:
        """Publish an advice about the store, once."""
        if advice not in self._advised:
            self._advised.add(advice)
            self._bus.publish(LimitStoreMisconfigured(at=self._clock.now(), limit=limit, advice=advice))

    async def _without_store(self, needed: NeededFetch, room: int, now: int, error: HeadgateError) -> FetchedBalance:
        """Return the balance to use while the store is unavailable, by the limit's `on_store_error`."""
        limit = self._limits[needed.ref.limit]
        is_asked = not self._is_paused
        if is_asked:
            self._pause(error)
        if is_asked or needed.ref.limit not in self._failed_at:
            self._bus.publish(
                LimitStoreFailed(
                    at=self._clock.now(),
                    limit=needed.ref.limit,
                    error=self._error,
                    jobs_run=limit.on_store_error == "run",
                    sharers=limit.sharers,
                )
            )
        self._failed_at[needed.ref.limit] = self._clock.monotonic()
        granted, opens_at = 0, now + ASK_AGAIN
        if limit.on_store_error == "run":
            granted, opens_at = room, now
        elif limit.sharers is not None:
            granted, opens_at = await self._take_share(needed, room, limit.sharers, opens_at)
        # What is not taken within a second is lost: it cannot be given back, and later the store may be back.
        fetched_at = now - max(0, needed.rule.real.period // 2 - ASK_AGAIN) if granted else now
        return FetchedBalance(granted * needed.cost, fetched_at, 0, opens_at, needed.rule.real.describe())

    async def _take_share(self, needed: NeededFetch, room: int, sharers: int, ask_again_at: int) -> tuple[int, int]:
        """Take starts from the share of the limit, a bucket beside the jobs, which all nodes use.

        Return how many there are, and when there may be more.
        """
        ref = needed.ref
        try:
            share = Bucket(f"{ref.limit} (share)", ref.key, needed.rule.real.divided(sharers))
            taken = await self._shares.take(share, needed.cost, count=room)
        except (CostExceedsLimit, DeclarationError) as error:
            # Of a rule that was set at run time, or of a computed cost. They wait for the store.
            self._publish_once(ref.limit, str(error))
            return 0, ask_again_at
        except StorageUnavailable as error:
            # What it took, if it did, is lost: too little may be granted, never too much.
            self._publish_failure("taking from the share of a limit", error)
            return 0, ask_again_at
        # The store is asked again each second, too.
        return taken.granted, min(taken.opens_at, ask_again_at) if not taken.granted else taken.now

    async def _deposit(self, deposits: Sequence[Deposit]) -> Sequence[FetchedBalance]:
        """Store the starts for the next claim; return the balances that they replace."""
        try:
            return await self._storage.deposit(deposits)
        except StorageUnavailable as error:
            # It may be stored or not. If not, the charge stays: too little may be granted, never too much.
            self._publish_failure("depositing starts", error)
            await sleep(self._clock, ASK_AGAIN / SECOND)
            return ()

    # ----------------------------------------------------------------------------------------- giving back

    async def _return_unused(
        self, deposits: Sequence[Deposit], replaced: Sequence[FetchedBalance], seconds: float
    ) -> None:
        """Give back the starts that were replaced, and after so many seconds those that no job has taken."""
        pairs = zip(deposits, replaced, strict=False)
        await self._give_back((each.ref, balance.charged_at, balance.left) for each, balance in pairs)
        await wait_for_event(self._clock, self._ending, seconds)
        # Of a key that was fetched again meanwhile, less is known to be taken: withdrawing finds what is left.
        unused = [
            each for each in deposits if self._taken.pop(each.ref, 0) < each.balance.left and each.balance.charged_at
        ]
        try:
            left = await self._storage.withdraw(unused) if unused else ()
        except StorageUnavailable as error:
            self._publish_failure("withdrawing starts", error)
            left = ()
        costs = zip(unused, left, strict=False)
        await self._give_back((each.ref, each.balance.charged_at, cost) for each, cost in costs)
        self._returning -= 1
        self._wakeup.set()

    async def _give_back(self, starts: Iterable[tuple[BucketRef, int, int]]) -> None:
        """Give back starts: of which bucket, when they were charged, and how much is left."""
        # Nothing was charged without the store.
        back = [Amendment(ref, at, left, at, 0) for ref, at, left in starts if left and at]
        # Together: a node that stops has little time, and a limit store sends what comes together in one request. But
        # one goes first: a store that is found away loses what is sent to it, and gets the others after its pause.
        for some in (back[:1], back[1:]):
            # Beside the fetches, which would wait for those of many keys. In a pause of the store nothing waits for it.
            if self._holds_back:
                for each in some:
                    self.amend(each)
            else:
                await asyncio.gather(*map(self._amend, some))

    async def _amend(self, amendment: Amendment) -> None:
        bucket = self._bucket(amendment.ref)
        amend = self._store.amend(bucket, amendment.charged_at, amendment.cost, amendment.started_at, amendment.actual)
        # A failed refund loses budget; every failure is published.
        is_sent = await self._send(amend, "amending a start in a limit store")
        if amendment.is_refused and bucket.rule.adapts:
            await self._send(self._store.refuse(bucket, amendment.charged_at), "noting a refusal in a limit store")
        if is_sent and amendment.actual < amendment.cost:
            await self._ask_sooner(amendment.ref)

    async def _penalize(self, ref: BucketRef, until: int) -> None:
        closed_for = until - self._clock.monotonic()
        if closed_for > 0:
            await self._send(self._store.penalize(self._bucket(ref), closed_for), "closing a bucket in a limit store")

    def _bucket(self, ref: BucketRef) -> Bucket:
        """Return it with the rule in force: under another one, the store would rescale what claims have charged."""
        return Bucket(ref.limit, ref.key, self._storage.live.rules.rule(ref, self._limits[ref.limit].rule))

    async def _send(self, call: Coroutine[None, None, None], doing: str) -> bool:
        """Await a call to the store; return whether it succeeded."""
        try:
            # Without the pause each call would wait for its own timeout, and the jobs of all other keys with it.
            if self._is_paused:
                call.close()
                raise StorageUnavailable("skipped because the previous call failed")
            await call
        except HeadgateError as error:
            is_away = isinstance(error, StorageUnavailable) and not error.has_answered
            if is_away and not self._is_paused:
                self._pause(error)
            self._publish_failure(doing, error)
            return False
        return True

    async def _ask_sooner(self, ref: BucketRef) -> None:
        """Open the balance at once: after a refund the last answer of the remote store is out of date."""

        def reopen(visit: BucketVisit) -> None:
            balance = visit.view.state
            if balance is not None and balance.opens_at > visit.now:
                visit.view.set_state(replace(balance, opens_at=visit.now))
                visit.reopens = True

        try:
            await self._storage.visit(ref, {ref.limit: FetchedStarts(self._limits[ref.limit].rule)}, reopen)
        except StorageUnavailable as error:
            self._publish_failure("reopening a bucket after a refund", error)
