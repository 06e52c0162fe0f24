"""StoreUser: short forms of what the tests of the storage protocol do with a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence, Set
from itertools import count
from typing import Any

import pytest
import pytest_asyncio

from headgate.clock import SECOND, SystemClock, microseconds, sleep
from headgate.jobs.bucket_mask import BucketMask
from headgate.jobs.history import ALL
from headgate.jobs.identity import IdSource
from headgate.jobs.job import BucketRef, ClaimedJob, JobError, JobOptions, JobRecord, JobState, NewJob
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.jobs.limit_sets import DeclaredLimitSets
from headgate.jobs.terms import LimitTerms, PermitTerms
from headgate.limits.concurrency import Concurrency, load_permits
from headgate.limits.dynamic_window import DynamicWindow
from headgate.limits.kinds import dump_rule
from headgate.limits.limit import AnyRule, HoldUntil
from headgate.limits.rate_limit import RateLimit
from headgate.limits.strict_rate import StrictRate
from headgate.storage.live_rules import LimitSetting, Scope
from headgate.storage.records import BucketRecord, Claim, Claimed, FreeSlots, QueueCounts, Recovered
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.limit_settings import change

MINUTE = 60 * SECOND
BOOM = JobError(type="ValueError", message="boom", traceback="Traceback …")


def release(limit_sets: Mapping[str, str]) -> DeclaredLimitSets:
    """The limit sets of a release: of these tasks, in the queue `default`."""
    return DeclaredLimitSets({(task, "default"): limit_set for task, limit_set in limit_sets.items()})


def strict(count: int, per: float = 60) -> AnyRule:
    return StrictRate(count, per=per, margin=0).rule


def rate(count: int, per: float = 60, burst: int | None = None) -> AnyRule:
    return RateLimit(count, per=per, burst=burst).rule


def shared(capacity: int, min_count: int = 1) -> Any:
    return DynamicWindow(per=60, capacity=capacity, min_count=min_count).rule


def at_once(count: int = 1) -> Any:
    return Concurrency(count).rule


# Locks of other clients are released in real time; the time of the tests is manual.
_clock = SystemClock()


_PRODUCERS = count(1)


class StoreUser:
    """Adds, claims and ends jobs of a store. `node` is the default node that it claims for."""

    def __init__(self, storage: Store, clock: ManualClock) -> None:
        self.storage = storage
        self.clock = clock
        self.rules: dict[str, AnyRule] = {}
        self.tasks = {"work"}
        self.node = "node-a"
        # Two users of one clock are two producers.
        self._ids = IdSource(producer=next(_PRODUCERS))

    def new(
        self,
        *,
        buckets: Iterable[tuple[str, str]] = (),
        costs: tuple[int, ...] | None = None,
        delay: float | None = None,
        expires_in: float | None = None,
        task: str = "work",
        queue: str = "default",
        priority: int = 0,
        aging: float | None = None,
        payload: str = "{}",
        headers: dict[str, str] | None = None,
        options: JobOptions | None = None,
        hold: HoldUntil = "running",
        owner: str | None = None,
        free_retries: int = 0,
        patience: float | None = None,
        cancels: bool = False,
        skips: bool = False,
        rejection: JobError | None = None,
        limit_set: str = "",
    ) -> NewJob:
        """Return a new job. `hold` and `owner` apply to its buckets that are on permits by the rules of this user."""
        now = self.clock.now()
        used = tuple(BucketRef(limit, key) for limit, key in buckets)
        known = [self.rules.get(ref.limit) for ref in used]
        on_permits = [rule is not None and rule.holds_permits for rule in known]
        terms = LimitTerms(
            holds=tuple(PermitTerms(hold, owner) if held else None for held in on_permits) if any(on_permits) else (),
            free_retries=BucketMask(free_retries),
            patience=None if patience is None else microseconds(patience),
            cancels=cancels,
            skips=skips,
        )
        run_at = now + microseconds(delay or 0)
        return NewJob(
            id=self._ids.next(now),
            task=task,
            queue=queue,
            payload=payload,
            priority=priority,
            delayed=delay is not None,
            run_at=run_at,
            enqueued_at=now,
            aging=None if aging is None else microseconds(aging),
            expires_at=None if expires_in is None else now + microseconds(expires_in),
            buckets=used,
            costs=costs,
            headers=headers,
            options=options,
            terms=None if terms == LimitTerms() else terms,
            wait_mode=terms.wait_mode(),
            give_up_at=run_at + terms.patience if terms.patience else None,
            rejection=rejection,
            limit_set=limit_set,
        )

    async def add(self, count: int = 1, **options: Any) -> list[str]:
        jobs = [self.new(**options) for _ in range(count)]
        await self.storage.add(jobs)
        return [job.id for job in jobs]

    async def add_one(self, **options: Any) -> str:
        return (await self.add(**options))[0]

    async def claim(
        self,
        slots: int = 100,
        *,
        gated_first: bool = True,
        queues: Sequence[str] = ("default",),
        node: str | None = None,
        rules: Mapping[str, AnyRule] | None = None,
        tasks: Iterable[str] | None = None,
        limit_sets: Mapping[str, str] | None = None,
        keeps_for: Set[str] = frozenset(),
    ) -> Claimed:
        """One claim, with the same room for each queue; `limit_sets` are those of its tasks in the queue `default`."""
        free = FreeSlots(slots, gated_first)
        return await self.storage.claim(
            Claim(
                node or self.node,
                dict.fromkeys(queues, free),
                self.rules if rules is None else rules,
                frozenset(self.tasks if tasks is None else tasks),
                None if limit_sets is None else release(limit_sets),
                has_backlog=True,
                keeps_for=keeps_for,
            )
        )

    async def take(self, slots: int = 100, **options: Any) -> list[ClaimedJob]:
        """Claim as an engine does: again, with the room that is left, as long as there may be more."""
        taken: list[ClaimedJob] = []
        for _ in range(1000):
            claimed = await self.claim(slots - len(taken), **options)
            taken += claimed.jobs
            if not claimed.more or len(taken) >= slots:
                return taken
        raise AssertionError("a claim said `more` 1000 times over and nothing came of it")

    async def take_ids(self, slots: int = 100, **options: Any) -> list[str]:
        return [job.id for job in await self.take(slots, **options)]

    async def take_one(self, **options: Any) -> ClaimedJob:
        (job,) = await self.take(1, **options)
        return job

    async def finish(self, *endings: Ending) -> list[bool]:
        """Write endings of this node, each again while its job is locked; return the results."""
        received: dict[Ending, bool | None] = dict.fromkeys(endings)
        for _ in range(1000):
            held = [ending for ending, written in received.items() if written is None]
            received.update(zip(held, await self.storage.finish(self.node, held, self.rules), strict=True))
            if None not in received.values():
                return [bool(received[ending]) for ending in endings]
            await sleep(_clock, 0.005)
        raise AssertionError("somebody holds the jobs for good")

    async def succeed(self, *jobs: ClaimedJob) -> None:
        endings = [Finished(job.id, job.fence, JobState.SUCCEEDED, result="null") for job in jobs]
        assert await self.finish(*endings) == [True] * len(jobs)

    async def fail(self, *jobs: ClaimedJob) -> None:
        endings = [Finished(job.id, job.fence, JobState.FAILED, error=BOOM) for job in jobs]
        assert await self.finish(*endings) == [True] * len(jobs)

    async def retry_later(self, job: ClaimedJob, seconds: float = 10) -> None:
        """The attempt has failed, and the job is tried again after so long."""
        run_at = self.clock.now() + microseconds(seconds)
        await self.give_back(job, "failed", spent=True, run_at=run_at, error=BOOM)

    async def give_back(self, job: ClaimedJob, outcome: str = "interrupted", **options: Any) -> None:
        options = {"spent": False, **options}
        assert await self.finish(Returned(job.id, job.fence, outcome, **options)) == [True]

    async def set(
        self,
        limit: str,
        rule: AnyRule | None = None,
        *,
        scope: Scope = "all",
        target: str = "",
        is_paused: bool = False,
        tier: str | None = None,
    ) -> LimitSetting:
        text = None if rule is None else dump_rule(rule)
        setting = LimitSetting(limit, scope, target, text, is_paused, tier)
        await change(self.storage, setting)
        return setting

    async def pause(self, limit: str, scope: Scope = "all", target: str = "") -> LimitSetting:
        return await self.set(limit, scope=scope, target=target, is_paused=True)

    async def unset(self, setting: LimitSetting) -> None:
        await change(self.storage, setting, remove=True)

    async def bucket(self, limit: str, key: str = "") -> BucketRecord:
        (bucket,) = await self.storage.buckets(limit=limit, key=key)
        return bucket

    async def permits(self, limit: str, key: str = "") -> Mapping[str, int]:
        """Who holds a bucket, and by how many starts."""
        buckets = await self.storage.buckets(limit=limit, key=key)
        return {holder: hold.uses for bucket in buckets for holder, hold in load_permits(bucket.state).holders.items()}

    async def record(self, job_id: str) -> JobRecord:
        record = await self.storage.job(job_id)
        assert record is not None
        return record

    async def states(self, job_ids: Iterable[str]) -> list[JobState]:
        return [(await self.record(id)).state for id in job_ids]

    async def unrun(self) -> tuple[int, int]:
        """How many jobs the store has counted for charts itself: as failed, and as cancelled."""
        await self.storage.gather_history()
        rows = await self.storage.jobs_history(3600, ALL, ALL, 0)
        return sum(row.failed for row in rows), sum(row.cancelled for row in rows)

    async def counts(self, queue: str = "default") -> QueueCounts:
        for counts in await self.storage.counts():
            if counts.queue == queue:
                return counts
        return QueueCounts(queue, 0, 0, 0, 0, 0)

    async def starts(self, seconds: int, step: float = 1, slots: int = 100) -> list[int]:
        """Claim for that long, finishing all at once; the limit times of all starts."""
        starts: list[int] = []
        for _ in range(round(seconds / step)):
            jobs = await self.take(slots)
            starts += [self.storage.limit_now()] * len(jobs)
            await self.succeed(*jobs)
            self.clock.advance(step)
        return starts


class Conformance:
    """The fixtures of the tests that every store has to pass. A class has one event loop, to share sessions."""

    pytestmark = pytest.mark.asyncio(loop_scope="class")

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest_asyncio.fixture(loop_scope="class")
    async def storage(self, clock: ManualClock) -> AsyncIterator[Store]:
        raise NotImplementedError("give the class a fixture `storage`")
        yield

    @pytest_asyncio.fixture(loop_scope="class")
    async def store_user(self, storage: Store, clock: ManualClock) -> StoreUser:
        store_user = StoreUser(storage, clock)
        await storage.join(store_user.node, "a")
        return store_user

    @pytest_asyncio.fixture(autouse=True, loop_scope="class")
    async def nothing_contradicts(self, storage: Store) -> AsyncIterator[None]:
        yield
        assert list(await storage.check()) == []

    def writes(self, storage: Store) -> int | None:
        """How many rows the store has written so far; None for a store that does not count them."""
        return None


def most_in_a_window(starts: Sequence[int], window: int) -> int:
    """The highest number of starts in any half-open window of that length."""
    return max((sum(1 for other in starts if start <= other < start + window) for start in starts), default=0)


async def recover(store_user: StoreUser) -> Recovered:
    """Another node finds that the node of this user has died."""
    if "node-b" not in {node.id for node in await store_user.storage.nodes()}:
        await store_user.storage.join("node-b", "b")
    await store_user.storage.beat("node-b")
    seen = await beat_of(store_user, store_user.node)
    recovered = await store_user.storage.recover(store_user.node, seen)
    assert recovered is not None
    return recovered


async def beat_of(store_user: StoreUser, node: str) -> int:
    """The beat of a node as others see it."""
    (found,) = (peer.beat for peer in (await store_user.storage.node_update()).peers if peer.id == node)
    return found


def with_id(job: NewJob, id: str) -> NewJob:
    return NewJob(
        id=id,
        task=job.task,
        queue=job.queue,
        payload=job.payload,
        priority=job.priority,
        delayed=job.delayed,
        run_at=job.run_at,
        enqueued_at=job.enqueued_at,
    )
