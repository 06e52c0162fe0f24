"""A simulated cluster in virtual time: nodes that crash and stop, connections that fail, clocks that step or are wrong,
paused queues; limits, unique keys, chains, batches and schedules.

`simulate(seed)` runs one and checks its invariants at the end. The same seed gives the same simulation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Literal, cast

from headgate import (
    Concurrency,
    DynamicWindow,
    FixedWindow,
    Headgate,
    JobState,
    Mutex,
    RateLimit,
    RateLimited,
    RetryPolicy,
    SlidingWindow,
    Snooze,
    StrictRate,
    current_job,
)
from headgate.client.task import Task
from headgate.clock import SECOND, Clock
from headgate.engine.node import Node
from headgate.errors import IllegalTransition, StorageUnavailable
from headgate.jobs.event import Event, JobFinished, JobStarted
from headgate.jobs.job import BucketRef
from headgate.limits.limit import Limit
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.store import Store
from headgate.testing.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual
from tests.engine.faulty_storage import Faults, History
from tests.engine.simulation.charts import Charts
from tests.engine.simulation.dependencies import Dependencies
from tests.engine.simulation.job_checker import WATCHED, CheckedConnection, JobChecker
from tests.engine.simulation.recurring import Recurring
from tests.engine.simulation.unique_keys import UniqueKeys
from tests.internals import app_on, bus_of, new_node, swept_by

LIMITS: tuple[Limit, ...] = (
    StrictRate("3/10s", key="{key}"),
    StrictRate("5/m", key="{key}", margin=0),
    RateLimit("10/m", key="{key}", burst=2),
    RateLimit("1/s", key="{key}", burst=1),
    RateLimit("7/10s", key="{key}", start_empty=True),
    FixedWindow("6/10s", key="{key}"),
    SlidingWindow("8/20s", key="{key}", slices=10),
)
CALLS = StrictRate("3/10s", key="{keys}", per_call=True)
SHARED = StrictRate("20/10s", margin=0)
CEILING = DynamicWindow(per=10, capacity=8, min_count=2, key="{key}")
POOL = Concurrency(2, key="{key}")
SLOTS = 4
MAIL = 3
QUEUES = ("default", "mail")

MakeStore = Callable[[Clock], Store]


class ClusterSimulation:
    """One simulated cluster on one memory store."""

    def __init__(self, clock: VirtualClock, random: Random, make_store: MakeStore) -> None:
        self.clock = clock
        self.random = random
        self.store = make_store(clock)
        self.history = History()
        self.faults = Faults(
            before=random.choice((0, 0, 0.05)), after=random.choice((0, 0, 0.05)), delay=random.choice((0, 0.01, 0.5))
        )
        self.limits = random.sample(LIMITS, random.randint(1, 2))
        self.hold: Literal["running", "until_final"] = random.choice(("running", "until_final"))
        self.free_retries = RateLimit("30/10s", name="free-retries", charge_retries=False)
        self.holders: dict[str, set[tuple[str, str]]] = {}
        self.crowds: list[str] = []
        # When the chunked task was called for each key (monotonic).
        self.calls: dict[str, list[int]] = {}
        self.handled: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.running_now: Counter[tuple[str, str]] = Counter()
        self.most_running = 0
        self.acknowledged: set[str] = set()
        self.cancelled: set[str] = set()
        self.retried: Counter[str] = Counter()
        # When a clock was last stepped, or no node was running (monotonic).
        self.faulty_at = clock.monotonic()
        self.job_checker = JobChecker(self.store, is_exact=self.store.is_in_process)
        self.charts = Charts(self)
        self.keys = UniqueKeys(self, self.job_checker)
        self.dependencies = Dependencies(self, self.job_checker)
        self.recurring = Recurring(self, self.job_checker)
        self.acts = (self.enqueue_some, self.keys.act, self.dependencies.act, self.recurring.act)
        # Crowds that wait for limits, or jobs that mind each other: a simulation of everything has little of each.
        self.shares = random.choice(((9, 1, 1, 1), (2, 3, 3, 2), (1, 4, 4, 3)))
        self.job_checker.watchers += [self.keys.look, self.dependencies.look, self.recurring.look]
        self.producer, self.tasks = self.app("producer")
        self.nodes: dict[str, tuple[Headgate, Node, asyncio.Task[None]]] = {}
        self.born = 0
        self.opened = contextlib.AsyncExitStack()

    def app(self, name: str) -> tuple[Headgate, dict[str, Task[..., None]]]:
        random = Random(self.random.random())
        storage = CheckedConnection(
            name, self.store, self.faults, random, self.history, job_checker=self.job_checker, charts=self.charts
        )
        app = app_on(
            cast(Store, storage),
            clock=self.own_clock(),
            random=random,
            retry=RetryPolicy(retries=2, base=1),
            concurrency=SLOTS,
        )
        app.queue("mail", global_concurrency=MAIL)
        app.limit("shared", SHARED)
        app.limit("ceiling", CEILING)
        app.limit("pool", POOL)

        async def work(key: str, length: float, fails: bool) -> None:
            await self.work(name, length, fails)

        async def alone(key: str, length: float, fails: bool) -> None:
            with self.alone(name, key):
                await self.work(name, length, fails)

        async def mail(key: str, length: float, fails: bool) -> None:
            with self.one_of(MAIL, name, "places in the queue"):
                await self.work(name, length, fails)

        async def call(keys: list[str]) -> list[Exception | None]:
            (key,) = {*keys}
            self.calls.setdefault(key, []).append(self.clock.monotonic())
            await asyncio.sleep(self.random.choice((0.0, 0.5, 5.0)))
            if self.random.random() < 0.05:
                raise RateLimited(retry_after=self.random.uniform(0, 5))
            outcomes = (ValueError("as planned"), RateLimited(retry_after=self.random.uniform(0, 5)))
            return [self.random.choice(outcomes) if self.random.random() < 0.1 else None for _ in keys]

        mutex = Mutex("{key}", hold=self.hold)
        tasks = {
            "alone": app.task(name="alone", limits=[mutex])(alone),
            "mixed": app.task(name="mixed", limits=[mutex, self.limits[0]])(alone),
            "pooled": app.task(name="pooled", limits=["pool", "shared"])(work),
            "fair": app.task(name="fair", limits=["ceiling"])(work),
            "now": app.task(
                name="now", limits=[StrictRate("4/10s", key="{key}", on_limit="discard"), self.free_retries]
            )(work),
            "free": app.task(name="free")(work),
            "called": cast(Task[..., None], app.chunked(3, wait=0.2, name="called", limits=[CALLS, "shared"])(call)),
            "mailed": app.task(name="mailed", queue="mail", limits=[mutex])(mail),
            "posted": app.task(name="posted", queue="mail")(mail),
            "gated": app.task(name="gated", limits=self.limits)(work),
            "both": app.task(name="both", limits=[self.limits[0], "shared"], timeout=20)(work),
        }
        for subject in (self.keys, self.dependencies, self.recurring):
            subject.declare(app, name)
        self.charts.declare(app)
        app.subscribe(self.note, JobFinished, JobStarted)
        return app, tasks

    def own_clock(self) -> VirtualClock:
        """The clock of one process: right, or as wrong as those of careless machines are."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        skew = self.random.choice((0.0, 0.0, -4000.0, 3.0, 86400.0))
        return VirtualClock(loop, start=self.clock.now() + round(skew * SECOND))

    def alone(self, node: str, key: str) -> contextlib.AbstractContextManager[None]:
        """Check that no other handler works on the key."""
        return self.one_of(1, node, f"mutex {key!r}")

    @contextlib.contextmanager
    def one_of(self, count: int, node: str, what: str) -> Iterator[None]:
        """At most so many do this at once, also while a node cannot reach the store for longer than its lease."""
        holders = self.holders.setdefault(what, set())
        if len(holders) >= count:
            # Not raised here, where it would be the job's failure and no more.
            self.crowds.append(f"{holders} and {node} hold {what} at once")
        me = (node, current_job().id)
        holders.add(me)
        try:
            yield
        finally:
            holders.discard(me)

    async def work(self, node: str, length: float, fails: bool) -> None:
        place = (node, current_job().queue)
        self.running_now[place] += 1
        self.most_running = max(self.most_running, self.running_now[place])
        try:
            await asyncio.sleep(length)
            if self.random.random() < 0.03:
                raise Snooze(self.random.uniform(0, 5))
            if self.random.random() < 0.02:
                raise RateLimited(retry_after=self.random.uniform(0, 5))
            if fails and self.random.random() < 0.6:
                raise ValueError("as planned")
        finally:
            self.running_now[place] -= 1

    def note(self, event: Event) -> None:
        match event:
            case JobStarted():
                self.handled[event.job_id] += 1
            case JobFinished():
                self.finished[event.job_id] += 1

    # ----------------------------------------------------------------------------------------- what happens

    async def start_node(self) -> None:
        self.born += 1
        name = f"n{self.born}"
        app, _ = self.app(name)
        # Until the simulation ends: a process that is killed closes nothing.
        await self.opened.enter_async_context(app.open())
        node = new_node(app)
        self.nodes[name] = (app, node, asyncio.ensure_future(node.run()))

    async def stop_node(self) -> None:
        """As a deploy that does not wait: what runs is handed back."""
        awake = [name for name in self.nodes if name not in self.faults.frozen]
        if not awake:
            return
        self.faulty_at = self.clock.monotonic()
        _, node, running = self.nodes.pop(self.random.choice(awake))
        node.stop()
        node.abort()
        with contextlib.suppress(StorageUnavailable, ExceptionGroup):
            await running

    async def crash_node(self) -> None:
        """Stop as by kill -9: in the middle of any step, without cleanup."""
        self.faulty_at = self.clock.monotonic()
        name = self.random.choice(list(self.nodes))
        app, node, running = self.nodes.pop(name)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, StorageUnavailable, ExceptionGroup):
            await running
        for attempt in list(node.attempts):
            assert attempt._asyncio_task is not None
            attempt._asyncio_task.cancel()
        await asyncio.sleep(0)
        self.charts.crash(app, node.id)

    async def enqueue_some(self) -> None:
        task = self.tasks[self.random.choice(list(self.tasks))]
        many = self.random.choice((1, 1, 5, 30))
        calls: list[tuple[object, ...]] = [
            (
                self.random.choice("abcdefgh" if self.random.random() < 0.4 else "a"),
                self.random.choice((0.0, 0.01, 0.5, 5.0)),
                self.random.random() < 0.1,
            )
            for _ in range(many)
        ]
        if task.name == "called":
            calls = [call[:1] for call in calls]
        if self.random.random() < 0.3:
            task = task.using(delay=self.random.uniform(0, 60))
        if self.random.random() < 0.3:
            task = task.using(priority=self.random.randint(0, 9))
        try:
            jobs = await task.enqueue_many(calls)
        except StorageUnavailable:
            return
        self.acknowledged |= {job.id for job in jobs}
        if self.random.random() < 0.1:
            job = self.random.choice(jobs)
            self.cancelled.add(job.id)
            with contextlib.suppress(StorageUnavailable):
                await job.cancel()

    async def live(self, steps: int) -> None:
        async with self.producer.open(), self.opened:
            await self.start_node()
            for _ in range(steps):
                await asyncio.sleep(self.random.expovariate(1 / 5))
                assert not self.job_checker.wrong, self.job_checker.wrong[0]
                if self.nodes.keys() <= self.faults.frozen.keys():
                    self.faulty_at = self.clock.monotonic()
                what = self.random.random()
                if what < 0.5:
                    (act,) = self.random.choices(self.acts, self.shares)
                    await act()
                elif what < 0.6 and len(self.nodes) < 3:
                    await self.start_node()
                elif what < 0.7 and self.nodes:
                    await (self.crash_node() if what < 0.67 else self.stop_node())
                elif what < 0.75:
                    self.faulty_at = self.clock.monotonic()
                    self.clock.step_wall(self.random.choice((-3600.0, -5.0, 5.0, 900.0)))
                elif what < 0.8:
                    await self.store.evict()
                elif what < 0.86 and what >= 0.83:
                    await self.steer()
                elif 0.9 >= what >= 0.86:
                    await self.reschedule_some()
                elif what > 0.95:
                    await self.retry_some()
                elif what > 0.9:
                    await self.cancel_some()
                elif what < 0.83 and self.nodes:
                    # A handler holds a mutex for longer than a node may be without the store.
                    with contextlib.suppress(StorageUnavailable):
                        self.acknowledged.add((await self.tasks["alone"].enqueue("a", 60.0, False)).id)
                    await asyncio.sleep(self.random.uniform(0, 10))
                    # Long enough for the others to take it for dead.
                    name = self.random.choice(list(self.nodes))
                    self.faults.freeze(name)
                    asyncio.get_running_loop().call_later(self.random.uniform(20, 60), self.faults.thaw, name)
            # From here on nothing goes wrong any more, and everything has to come to its end.
            self.faults.before = self.faults.after = self.faults.delay = 0
            await self.producer.admin.limits.resume("pool")
            await self.producer.admin.limits.resume("queue:mail")
            for queue in QUEUES:
                await self.producer.admin.queues.resume(queue)
            for name in list(self.faults.frozen):
                self.faults.thaw(name)
            self.faulty_at = self.clock.monotonic()
            await self.start_node()
            await self.recurring.settle()
            await self.check_neighbours_flow()
            await self.until_quiet()
            for app, node, running in self.nodes.values():
                node.stop()
                await running
                await bus_of(app).drain()
                assert swept_by(node) == 0, "a wake-up was lost"
            await self.charts.settle()

    async def retry_some(self) -> None:
        """As an operator does with what has failed."""
        task = self.random.choice((None, "step", "step", "keyed"))
        failed = await self.producer.admin.jobs(state=JobState.FAILED, task=task, count=20)
        if not failed or not self.job_checker.is_exact:
            return
        job = self.random.choice(failed)
        self.retried[job.id] += 1
        with contextlib.suppress(StorageUnavailable, IllegalTransition):
            await self.producer.admin.retry(job.id)

    async def reschedule_some(self) -> None:
        """To a time ahead or one that has passed, to another priority, or to both."""
        for job in (await self.producer.admin.jobs(state=JobState.WAITING, count=20))[:: self.random.randint(2, 9)]:
            delay = self.random.choice((None, 0, 0.5, 5, 40))
            priority = self.random.choice((None, 0, 9)) if delay is not None else self.random.choice((0, 9))
            with contextlib.suppress(StorageUnavailable, IllegalTransition):
                await self.producer.admin.reschedule(job.id, delay=delay, priority=priority)

    async def cancel_some(self) -> None:
        state = self.random.choice((JobState.WAITING, JobState.RUNNING))
        for job in (await self.producer.admin.jobs(state=state, count=20))[:: self.random.randint(5, 20)]:
            self.cancelled.add(job.id)
            with contextlib.suppress(StorageUnavailable):
                await self.producer.admin.cancel(job.id)

    async def steer(self) -> None:
        limits, queues = self.producer.admin.limits, self.producer.admin.queues
        match self.random.randint(0, 6):
            case 0:
                await limits.pause("pool")
            case 1:
                await limits.resume("pool")
            case 2:
                await limits.set("pool", Concurrency(self.random.randint(1, 2)), key=self.random.choice("ab"))
            case 3:
                await queues.pause(self.random.choice(QUEUES))
            case 4:
                await queues.resume(self.random.choice(QUEUES))
            case 5:
                await self.random.choice((limits.pause, limits.resume))("queue:mail")
            case _:
                await limits.penalize("shared", "", self.random.uniform(0, 20))

    async def check_neighbours_flow(self) -> None:
        """A job that uses nothing starts at once, whatever waits."""
        await asyncio.sleep(40)
        started = self.clock.monotonic()
        job = await self.tasks["free"].using(priority=9).enqueue("probe", 0.0, False)
        self.acknowledged.add(job.id)
        await job.result()
        waited = (self.clock.monotonic() - started) / SECOND
        # All slots may hold a running job of up to 5 s; what waits holds none.
        assert waited < 11, f"an ungated job waited {waited:.1f} s beside {await self.store.counts()}"

    async def until_quiet(self) -> None:
        for _ in range(100):
            counts = await self.store.counts()
            if sum(count.waiting + count.running for count in counts) == 0:
                return
            # The wall clock may have been put back several hours, and delayed jobs run by it.
            await asyncio.sleep(600)
        raise AssertionError(f"jobs are left after hours: {counts}")

    # -------------------------------------------------------------------------------------- what must hold

    async def check(self) -> None:
        assert await self.store.check() == []
        await self.job_checker.read_all()
        assert not self.job_checker.wrong, self.job_checker.wrong[0]
        await self.check_nothing_lost()
        for subject in (self.keys, self.dependencies, self.recurring, self.charts):
            await subject.check()
        assert not self.crowds, self.crowds[0]
        self.check_limits()
        self.check_calls()
        self.check_fences()
        # Crashed nodes run nothing; a live one never more than its slots.
        assert self.most_running <= SLOTS, f"{self.most_running} jobs ran at once in {SLOTS} slots"

    async def check_nothing_lost(self) -> None:
        missing = self.acknowledged - self.history.stored.keys()
        assert not missing, f"acknowledged and never stored: {missing}"
        for job_id in self.history.stored:
            record = await self.store.job(job_id)
            assert record is not None, f"job {job_id} is gone"
            assert record.state.is_final, f"job {job_id} is {record.state}"
            assert self.finished[job_id] <= 1 + self.retried[job_id], (
                f"job {job_id} finished {self.finished[job_id]} times"
            )
            if record.state is JobState.CANCELLED and record.task not in WATCHED:
                assert job_id in self.cancelled, f"nobody cancelled job {job_id}"
            if record.state is JobState.SUCCEEDED:
                assert self.handled[job_id] >= 1, f"job {job_id} succeeded and never ran"

    def check_calls(self) -> None:
        """The outside API counts the calls of a chunked task, whatever became of its jobs."""
        for key, times in self.calls.items():
            for first, after in zip(times, times[3:], strict=False):
                assert after - first >= 10 * SECOND, f"4 calls for {key!r} in {(after - first) / SECOND} s"

    def check_limits(self) -> None:
        kinds = [limit.rule.family for limit in self.limits]
        by_kind = {f"gated:{kind}": limit for kind, limit in zip(reversed(kinds), reversed(self.limits), strict=True)}
        if len(kinds) == 2 and kinds[0] == kinds[1]:
            by_kind[f"gated:{kinds[0]}2"] = self.limits[1]
        by_kind[f"both:{kinds[0]}"] = self.limits[0]
        by_kind["shared"] = SHARED
        by_kind["ceiling"] = CEILING
        by_kind[f"mixed:{kinds[0]}"] = self.limits[0]
        by_kind["called:rate"] = CALLS
        by_kind["now:rate"] = StrictRate("4/10s")
        by_kind["choosy:rate"] = self.dependencies.choosy
        by_kind["free-retries"] = self.free_retries
        for ref, charges in self.history.charges.items():
            if ref.limit in ("mutex", "pool", "queue:mail"):
                continue
            limit = by_kind[ref.limit]
            window = round(limit.rule.period)
            for length in (window, 3 * window, window // 2):
                check_bound(ref, charges, length, limit.rule.bound(length))

        ceiling = sorted(
            charge for ref, charges in self.history.charges.items() if ref.limit == "ceiling" for charge in charges
        )
        window = round(CEILING.rule.period)
        in_windows = Counter[int]()
        for at, cost in ceiling:
            in_windows[at // window] += cost
        assert max(in_windows.values(), default=0) <= 8, f"{in_windows} under a ceiling of 8"

    def check_fences(self) -> None:
        last: dict[str, int] = {}
        for _, job_id, node, fence in self.history.starts:
            assert fence > last.get(job_id, 0), f"job {job_id} was claimed by {node} with fence {fence} again"
            last[job_id] = fence


def check_bound(ref: BucketRef, charges: Sequence[tuple[int, int]], window: int, bound: int) -> None:
    """No half-open window holds more than the bound, counted the slow way."""
    first = 0
    inside = 0
    for at, cost in charges:
        inside += cost
        while charges[first][0] <= at - window:
            inside -= charges[first][1]
            first += 1
        assert inside <= bound, f"{ref}: {inside} starts within {window / SECOND} s, allowed are {bound}"


def simulate(seed: int, steps: int = 50, make_store: MakeStore = MemoryStorage) -> ClusterSimulation:
    """Run the simulation of this seed, and check it."""
    simulations: list[ClusterSimulation] = []

    async def main(clock: VirtualClock) -> None:
        simulation = ClusterSimulation(clock, Random(seed), make_store)
        simulations.append(simulation)
        await simulation.store.open()
        try:
            await simulation.live(steps)
            await simulation.check()
        finally:
            await simulation.store.close()

    run_virtual(main, seed=seed)
    return simulations[0]
