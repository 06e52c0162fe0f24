"""A simulation of several databases: keys move between them while their jobs run, with all kinds of faults.

Each shard has its own real nodes. Movers move keys from shard to shard in durable steps, crash between any two steps,
stall, and repeat the steps of others. Enqueuers know the last places of keys. One limit is shared by all: it is stored
in the first shard, and the others fetch from it. `simulate(seed)` runs one simulation and checks its invariants.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, TypeVar, cast

from headgate import Concurrency, FixedWindow, Headgate, RateLimit, RetryPolicy, SlidingWindow, StrictRate, current_job
from headgate.client.task import Task
from headgate.clock import SECOND
from headgate.engine.node import Node
from headgate.errors import StorageUnavailable
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import BucketRef, ClaimedJob, JobState, NewJob
from headgate.jobs.lifecycle import Ending, Finished
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.limit import AnyRule, Limit
from headgate.storage.records import Amendment, StartMove
from headgate.storage.stored_buckets import StoredBuckets
from headgate.testing.virtual_time import START, VirtualClock, VirtualTimeLoop, run_virtual
from tests.engine.faulty_storage import FAULTY, Faults, FaultyStorage, History
from tests.engine.shard import KeyInTransit, KeyMoved, Place, Shard, hash_home, key_of
from tests.internals import app_on, bus_of, new_node

T = TypeVar("T")

NAMES = ("north", "south", "west")
KEYS = "abcdef"
GLOBAL = StrictRate("30/10s")
KINDS: tuple[Callable[[str], Limit], ...] = (
    lambda name: StrictRate("6/10s", key="{key}", name=name),
    lambda name: StrictRate("5/10s", key="{key}", name=name, margin=0),
    lambda name: RateLimit("5/10s", key="{key}", name=name, burst=3),
    lambda name: FixedWindow("6/10s", key="{key}", name=name),
    lambda name: SlidingWindow("8/10s", key="{key}", name=name, slices=10),
)
SLOTS = 8
PERMITS = 2
RETENTION = 10
"""Seconds that final jobs are kept: longer than an enqueuer repeats itself, shorter than movers stall."""

PATIENCE = 3600
"""Virtual seconds within which everything has come to its end."""

MOVES = frozenset({"leave_key", "pack", "read_time", "take_in", "let_go", "depart", "arrive", "departed"})


class ShardConnection(FaultyStorage):
    """The connection of a node, an enqueuer or a mover to a shard. Movers stall on it for a long time."""

    verbs = FAULTY | MOVES

    def __init__(self, *arguments: Any, stalls: float = 0.0) -> None:
        super().__init__(*arguments)
        self._stalls = stalls

    async def _wait(self) -> None:
        await super()._wait()
        if self._stalls and self._random.random() < self._stalls:
            await asyncio.sleep(self._random.uniform(1, 3 * RETENTION))


class NodeConnection(ShardConnection):
    """The connection of a node to its shard: charges are amended in the shard that has the key now."""

    def __init__(self, *arguments: Any, directory: Directory) -> None:
        super().__init__(*arguments)
        self._directory = directory
        self.amending: set[asyncio.Task[None]] = set()

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        for amendment in amendments:
            # In the background: the endings of other jobs must not wait until a key has arrived.
            task = asyncio.ensure_future(self._amend(amendment, rules))
            self.amending.add(task)
            task.add_done_callback(self.amending.discard)

    async def _amend(self, amendment: Amendment, rules: Mapping[str, AnyRule]) -> None:
        key = amendment.ref.key
        while True:
            shard = self._directory.shard(key) if key else self._shared
            line = ShardConnection(self._name, shard, self._faults, self._random, self._history)
            try:
                await line.amend([amendment], rules)
                break
            except StorageUnavailable as error:
                if amendment.actual < amendment.cost and not isinstance(error, (KeyMoved, KeyInTransit)):
                    # It may have been returned, and must not be returned twice.
                    break
                await self._directory.learn(error)


class Directory:
    """The places of keys as one program knows them: a hint that refusals correct."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._shards = shards
        self._places: dict[str, Place] = {}

    def shard(self, key: str) -> Shard:
        place = self._places.get(key)
        return self._shards[hash_home(key, NAMES) if place is None else place.owner]

    async def learn(self, error: StorageUnavailable) -> None:
        """What a refusal says about where the key is; then it is time to ask again."""
        known = self._places.get(error.key) if isinstance(error, KeyMoved) else None
        if isinstance(error, KeyMoved) and (known is None or error.place.epoch > known.epoch):
            self._places[error.key] = error.place
        else:
            await asyncio.sleep(0.05)


class Enqueuers:
    """The storage of a program that only enqueues."""

    def __init__(self, simulation: ShardSimulation) -> None:
        self._simulation = simulation
        self._directory = Directory(simulation.shards)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulation.shards[NAMES[0]], name)

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        assert not batches
        key = key_of(jobs[0])
        while True:
            shard = self._directory.shard(key) if key else self._simulation.random.choice(self._simulation.all)
            line = self._simulation.line("enqueuer", shard)
            while True:
                try:
                    return cast(Mapping[str, str], await line.add(jobs))
                except (KeyMoved, KeyInTransit) as error:
                    await self._directory.learn(error)
                    break
                except StorageUnavailable:
                    # It is unknown whether it has them: no other shard may be asked before it has answered.
                    continue


class Remote(StoredBuckets):
    """The buckets of the first shard, as the others fetch from them."""

    def __init__(self, simulation: ShardSimulation) -> None:
        super().__init__(simulation.shards[NAMES[0]])
        self._simulation = simulation

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        return await self._over_the_line(lambda: super(Remote, self).take(bucket, cost, count=count, id=id))

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        await self._over_the_line(lambda: super(Remote, self).amend(bucket, charged_at, cost, started_at, actual))

    async def _over_the_line(self, call: Callable[[], Awaitable[T]]) -> T:
        faults, random = self._simulation.faults, self._simulation.random
        await asyncio.sleep(random.uniform(0, faults.delay))
        if random.random() < faults.before:
            raise StorageUnavailable("the first shard was not asked")
        answer = await call()
        await asyncio.sleep(random.uniform(0, faults.delay))
        if random.random() < faults.after:
            raise StorageUnavailable("the first shard was asked, but the reply was lost")
        return answer


class KeyMover:
    """Moves keys. All its state is in the shards, so another mover can continue where it ends."""

    def __init__(self, simulation: ShardSimulation, stalls: float = 0.0) -> None:
        self._simulation = simulation
        self._stalls = stalls
        self._directory = Directory(simulation.shards)

    async def move(self, key: str, to: str) -> None:
        """Ask for it; who owns the key now is found out on the way."""
        while True:
            try:
                await self._line(self._directory.shard(key)).leave_key(key, to)
                break
            except KeyMoved as error:
                await self._directory.learn(error)
            except KeyInTransit:
                break
        await self.resume_move(key)

    async def resume_move(self, key: str) -> None:
        """Complete the move that was begun, from any step."""
        for shard in self._simulation.all:
            await self._return_key(key, shard)
        for shard in self._simulation.all:
            await self._send_after(key, shard)

    async def _return_key(self, key: str, shard: Shard) -> None:
        place = shard.executor_of(key)
        if place.owner != shard.name or place.to is None:
            return
        target = self._line(self._simulation.shards[place.to])
        rules = self._simulation.rules
        parcel = await self._line(shard).pack(key, [limit for limit in rules if limit.endswith(f":{key}")])
        if parcel is None:
            return
        # In this order: whatever time passes between the two looks, the key's time falls behind by it, never ahead.
        ahead = parcel.now - await target.read_time()
        await target.take_in(key, place.epoch + 1, parcel, ahead, rules)
        await self._line(shard).let_go(key, place.epoch + 1)

    async def _send_after(self, key: str, shard: Shard) -> None:
        line = self._line(shard)
        while (batch := await line.depart(key)) is not None:
            try:
                await self._line(self._directory.shard(key)).arrive(key, batch)
            except KeyMoved as error:
                await self._directory.learn(error)
            else:
                await line.departed(key, batch.number)

    def _line(self, shard: Shard) -> Any:
        return self._simulation.line("mover", shard, stalls=self._stalls)


class Starts(History):
    """What truly happened, in true time, whatever the shards' clocks say."""

    def __init__(self, simulation: ShardSimulation) -> None:
        super().__init__()
        self._simulation = simulation
        self.endings: Counter[str] = Counter()
        self.finished: set[tuple[str, int]] = set()
        self.fetched: dict[str, tuple[int, int]] = {}
        self._charged: dict[tuple[BucketRef, int], list[int]] = {}
        self._moves: dict[tuple[str, int], dict[BucketRef, tuple[int, int]]] = {}

    def note(self, verb: str, arguments: Sequence[Any], result: Any, limit_now: int) -> None:
        match verb:
            case "add":
                self.stored.update((job.id, job) for job in arguments[0])
            case "claim":
                for job in result.jobs:
                    self.note_claimed(job, arguments[0].node)
            case "amend":
                for amendment in arguments[0]:
                    self.amend(amendment)
            case "move_starts":
                for start in arguments[1]:
                    if (at := result.get((start.id, start.fence))) is not None:
                        self.move(start, at)
            case "finish":
                for ending, was_written in zip(arguments[1], result, strict=True):
                    # A repeat after a lost reply is returned as written, too.
                    is_new = (ending.id, ending.fence) not in self.finished
                    if was_written and is_new:
                        self.finished.add((ending.id, ending.fence))
                        self.endings[ending.id] += isinstance(ending, Finished)
                        self.correct(ending)

    def note_claimed(self, job: ClaimedJob, node: str) -> None:
        now = self._simulation.clock.monotonic()
        assert job.id not in self._simulation.cancelled, f"job {job.id} was cancelled, and starts"
        self.starts.append((now, job.id, node, job.fence))
        for index, ref in enumerate(job.buckets):
            elsewhere = None if job.remote_charges is None else job.remote_charges[index]
            charged_at = job.charged_at if elsewhere is None else elsewhere.at
            if ref.key:
                self.charges.setdefault(ref, []).append((now, 1))
                self._charged.setdefault((ref, charged_at), []).append(now)
                ahead = 0 if elsewhere is None else elsewhere.ahead
                self._moves.setdefault((job.id, job.fence), {})[ref] = charged_at, ahead
            else:
                # When, and how long after it was fetched.
                self.fetched[job.id] = now, 0 if elsewhere is None else job.charged_at + elsewhere.ahead - elsewhere.at

    def move(self, start: StartMove, at: int) -> None:
        """A start stays where it was charged; what amends it later names the instant to which it was moved."""
        moves = self._moves.get((start.id, start.fence), {})
        for ref in start.buckets:
            if ref in moves:
                charged_at, ahead = moves[ref]
                self.amend(Amendment(ref, charged_at, 1, at + ahead, 1))
                moves[ref] = at + ahead, ahead

    def correct(self, ending: Ending) -> None:
        moves = self._moves.get((ending.id, ending.fence), {})
        for each in ending.corrections:
            if each.ref in moves:
                at, _ = moves[each.ref]
                self.amend(Amendment(each.ref, at, each.cost, at, each.actual))

    def amend(self, amendment: Amendment) -> None:
        """A start stays where it was charged, unless it came to count as nothing."""
        ref = amendment.ref
        charged = self._charged.get((ref, amendment.charged_at))
        if not charged:
            return
        at = charged.pop()
        if amendment.actual:
            self._charged.setdefault((ref, amendment.started_at), []).append(at)
        else:
            self.charges[ref].remove((at, 1))


class ShardSimulation:
    """One simulated program on several databases."""

    def __init__(
        self, loop: VirtualTimeLoop, random: Random, faults: Faults, limits: Mapping[str, list[Limit]]
    ) -> None:
        self.random = random
        self.clock = VirtualClock(loop)
        self.faults = faults
        self.limits = limits
        self.walls = {name: VirtualClock(loop, start=START + random.randint(-2 * SECOND, 2 * SECOND)) for name in NAMES}
        self.shards = {name: Shard(name, NAMES, clock) for name, clock in self.walls.items()}
        self.all = list(self.shards.values())
        for shard in self.all:
            shard.step(random.uniform(-86400, 86400))
        self.rules: dict[str, AnyRule] = {
            str(each.name): each.rule for limits in self.limits.values() for each in limits
        }
        self.history = Starts(self)
        self.nodes: dict[str, tuple[Headgate, Node, NodeConnection, asyncio.Task[None]]] = {}
        self.movers: list[asyncio.Task[None]] = []
        self.enqueueing: list[asyncio.Task[None]] = []
        self.begun: dict[BucketRef, list[tuple[int, str]]] = {}
        self.cut_off: dict[str, list[int]] = {}
        self.furthest_behind = 0
        self.at_work: dict[str, set[str]] = {}
        self.holders: dict[BucketRef, set[tuple[str, str]]] = {}
        self.suspect: set[str] = set()
        self.acknowledged: set[str] = set()
        self.cancelled: set[str] = set()
        self.asked_to_end: set[str] = set()
        self.steps: list[int] = []
        self.born = 0
        self.producer, self.tasks = self.app("enqueuer", NAMES[0], Enqueuers(self))

    def line(self, name: str, shard: Shard, stalls: float = 0.0) -> Any:
        return ShardConnection(name, shard, self.faults, self.random, self.history, stalls=stalls)

    def app(self, name: str, shard: str, storage: Any) -> tuple[Headgate, dict[str, Task[..., None]]]:
        app = app_on(
            storage,
            clock=self.shards[shard].clock,
            random=Random(self.random.random()),
            retry=RetryPolicy(retries=2, base=1),
            concurrency=SLOTS,
            retention=7 * 86400,
        )
        elsewhere: Any = None if shard == NAMES[0] else Remote(self)
        app.limit("global", StrictRate("30/10s", store=elsewhere, on_store_error="wait"))

        async def work(key: str, length: float, fails: bool) -> None:
            await self.work(name, length, fails)

        tasks = {"": app.task(name="ungated")(work)}
        for key, limits in self.limits.items():
            tasks[key] = app.task(name=f"own-{key}", limits=limits)(work)
            tasks[f"{key} and global"] = app.task(name=f"both-{key}", limits=[*limits, "global"])(work)
        return app, tasks

    async def work(self, node: str, length: float, fails: bool) -> None:
        me = current_job()
        with self.alone(node, me.id):
            now = self.clock.monotonic()
            for ref in self.history.stored[me.id].buckets:
                self.begun.setdefault(ref, []).append((now, node))
                if not ref.key:
                    claimed_at, fetched_for = self.history.fetched[me.id]
                    self.furthest_behind = max(self.furthest_behind, now - claimed_at + fetched_for)
            await asyncio.sleep(length)
            if fails and self.random.random() < 0.6:
                raise ValueError("as planned")

    @contextlib.contextmanager
    def alone(self, node: str, job_id: str) -> Iterator[None]:
        """Check that no other node runs the job, except nodes that were declared dead while they were stopped."""
        others = self.at_work.setdefault(job_id, set())
        known = {name for name in others if name not in self.suspect}
        assert node in self.suspect or not known, f"{known} and {node} run job {job_id} at once"
        others.add(node)
        permits = [ref for ref in self.history.stored[job_id].buckets if ref.limit.startswith("permits")]
        for ref in permits:
            holders = self.holders.setdefault(ref, set())
            holders.add((node, job_id))
            honest = {holder for holder in holders if holder[0] not in self.suspect}
            assert len(honest) <= PERMITS, f"{honest} hold {ref} at once"
        try:
            yield
        finally:
            others.discard(node)
            for ref in permits:
                self.holders[ref].discard((node, job_id))

    # ----------------------------------------------------------------------------------------- what happens

    async def live(self, steps: int) -> None:
        async with self.producer.open():
            for shard in NAMES:
                await self.start_node(shard)
            for _ in range(steps):
                await asyncio.sleep(self.random.expovariate(1 / 2))
                await self.random_event()
                self.check_owners(least=0)
            await self.end_faults()
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*self.enqueueing)
                await self.until_quiet()
            for app, node, _, running in self.nodes.values():
                node.stop()
                await running
                await bus_of(app).drain()

    async def random_event(self) -> None:
        random = self.random
        what = random.random()
        if what < 0.4:
            # It may have to wait for a key that is on its way, and the mover may be dead.
            self.enqueueing.append(asyncio.ensure_future(self.enqueue_some()))
        elif what < 0.73:
            # Several at once, some of them about the same key.
            mover = KeyMover(self, stalls=random.choice((0, 0.2, 0.2)))
            key = random.choice(KEYS[:2])
            doing = mover.move(key, random.choice(NAMES)) if random.random() < 0.7 else mover.resume_move(key)
            self.movers.append(asyncio.ensure_future(_ignore_outage(doing)))
        elif what < 0.79 and self.movers:
            self.movers.pop(random.randrange(len(self.movers))).cancel()
        elif what < 0.83 and self.nodes:
            await self.crash_node()
        elif what < 0.88 and len(self.nodes) < 5:
            await self.start_node(random.choice(NAMES))
        elif what < 0.91 and self.nodes:
            name = random.choice(list(self.nodes))
            self.faults.freeze(name)
            self.suspect.add(name)
            self.cut_off.setdefault(name, []).append(self.clock.monotonic())
            asyncio.get_running_loop().call_later(random.uniform(20, 60), self.faults.thaw, name)
        elif what < 0.94:
            self.walls[random.choice(NAMES)].step_wall(random.choice((-5.0, 5.0)))
        elif what < 0.97:
            self.step_limit_time()
        else:
            for shard in self.all:
                await shard.prune(shard.clock.now() - RETENTION * SECOND)
                await shard.evict()

    def step_limit_time(self) -> None:
        seconds = self.random.choice((-5.0, -0.5, 3.0))
        self.random.choice(self.all).step(seconds)
        if seconds > 0:
            self.steps.append(self.clock.monotonic())

    async def enqueue_some(self) -> None:
        name = self.random.choice((*self.tasks, *KEYS[:2], "a"))
        task = self.tasks[name].using(priority=self.random.choice((0, 0, 5)))
        calls = [
            (name[:1], self.random.choice((0.0, 0.01, 0.5, 3.0)), self.random.random() < 0.1)
            for _ in range(self.random.choice((1, 5, 25)))
        ]
        jobs = await task.enqueue_many(calls)
        self.acknowledged |= {job.id for job in jobs}
        if self.random.random() < 0.2:
            await self.cancel(self.random.choice(jobs).id)

    async def cancel(self, job_id: str) -> None:
        """An operator who has only the id asks shard after shard."""
        for shard in [*self.all, *self.all]:
            try:
                found = await shard.cancel(job_id)
            except KeyInTransit:
                continue
            if found is JobState.WAITING:
                self.cancelled.add(job_id)
            elif found is JobState.RUNNING:
                self.asked_to_end.add(job_id)
            if found is not None:
                return

    async def start_node(self, shard: str) -> None:
        self.born += 1
        name = f"{shard}-{self.born}"
        seat = NodeConnection(
            name, self.shards[shard], self.faults, self.random, self.history, directory=Directory(self.shards)
        )
        app, _ = self.app(name, shard, seat)
        await app.open().__aenter__()
        node = new_node(app)
        self.nodes[name] = (app, node, seat, asyncio.ensure_future(node.run()))

    async def crash_node(self) -> None:
        """Stop as by kill -9: in the middle of any step, without cleanup."""
        name = self.random.choice(list(self.nodes))
        _, node, seat, running = self.nodes.pop(name)
        self.cut_off.setdefault(name, []).append(self.clock.monotonic())
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, StorageUnavailable, ExceptionGroup):
            await running
        for amending in seat.amending:
            amending.cancel()
        for attempt in list(node.attempts):
            assert attempt._asyncio_task is not None
            attempt._asyncio_task.cancel()
        await asyncio.sleep(0)

    async def end_faults(self) -> None:
        """From here on nothing goes wrong any more, and everything has to come to its end."""
        self.faults.before = self.faults.after = 0
        self.faults.delay = min(self.faults.delay, 0.1)
        for name in list(self.faults.frozen):
            self.faults.thaw(name)
        for shard in NAMES:
            await self.start_node(shard)
        self.movers.append(asyncio.ensure_future(self.move_repeatedly()))

    async def move_repeatedly(self, pause: float = 0.5) -> None:
        while True:
            for key in self.limits:
                await _ignore_outage(KeyMover(self).resume_move(key))
            await asyncio.sleep(pause)

    async def until_quiet(self) -> None:
        while True:
            counts = [count for shard in self.all for count in await shard.counts()]
            if sum(count.waiting + count.running for count in counts) == 0 and not self.is_anything_on_its_way():
                for mover in self.movers:
                    mover.cancel()
                return
            await asyncio.sleep(5)

    def is_anything_on_its_way(self) -> bool:
        places = [(shard.name, shard.executor_of(key)) for shard in self.all for key in KEYS]
        return any(place.owner == name and place.to is not None for name, place in places)

    # -------------------------------------------------------------------------------------- what must hold

    async def check(self) -> None:
        for shard in self.all:
            assert await shard.check() == [], f"{shard.name} contradicts itself"
        self.check_owners()
        self.check_nothing_lost()
        self.check_limits()
        self.check_fences()

    def check_owners(self, least: int = 1) -> None:
        for key in KEYS:
            owners = [shard.name for shard in self.all if shard.executor_of(key).owner == shard.name]
            starting = [name for name in owners if self.shards[name].executor_of(key).to is None]
            assert least <= len(starting) <= 1, f"{starting} start jobs of {key!r}"
            assert owners, f"nobody owns {key!r}"

    def check_nothing_lost(self) -> None:
        missing = self.acknowledged - self.history.stored.keys()
        assert not missing, f"acknowledged and never stored: {missing}"
        for job_id in self.history.stored:
            ended = self.history.endings[job_id] + (job_id in self.cancelled)
            # Asked to end while it ran, a job is cancelled where it would have waited again.
            least = 0 if job_id in self.asked_to_end else 1
            assert least <= ended <= 1, f"job {job_id} came to its end {ended} times"

    def check_limits(self) -> None:
        for ref, charges in self.history.charges.items():
            if not ref.limit.startswith("permits"):
                rule = self.rules[ref.limit]
                for window in (rule.period, 3 * rule.period, rule.period // 2):
                    check_bound(ref, charges, window, rule.bound(window), self.steps, rule.bound(1))
        for ref, begun in self.begun.items():
            rule = self.rules[ref.limit] if ref.key else GLOBAL.rule
            if rule.margin:
                # A start on the global limit may come as much later than its charge as was seen.
                window = max(1, rule.period - rule.margin - (0 if ref.key else self.furthest_behind))
                starts = [(at, 1) for at, node in begun if not self.was_cut_off(node, at)]
                check_bound(ref, starts, window, rule.bound(rule.period), self.steps, rule.bound(1))

    def was_cut_off(self, node: str, at: int) -> bool:
        """Whether a node died or froze before it could say that a start was late, which stays where it was charged."""
        return any(-3 * SECOND < at - cut < 60 * SECOND for cut in self.cut_off.get(node, ()))

    def check_fences(self) -> None:
        last: dict[str, int] = {}
        for _, job_id, node, fence in self.history.starts:
            assert fence > last.get(job_id, 0), f"job {job_id} was claimed by {node} with fence {fence} again"
            last[job_id] = fence


def check_bound(
    ref: BucketRef, charges: Sequence[tuple[int, int]], window: int, bound: int, steps: Sequence[int], burst: int
) -> None:
    """Check that no half-open window holds more than the bound, plus a burst for each unnoticed forward step."""
    first = 0
    inside = 0
    for at, cost in charges:
        inside += cost
        while charges[first][0] <= at - window:
            inside -= charges[first][1]
            first += 1
        stepped = sum(burst for step in steps if at - window < step <= at)
        assert inside <= bound + stepped, f"{ref}: {inside} starts within {window / SECOND} s, allowed are {bound}"


async def _ignore_outage(doing: Awaitable[None]) -> None:
    """A mover gives up when a shard does not answer; another one comes."""
    with contextlib.suppress(StorageUnavailable):
        await doing


def simulate(seed: int, steps: int = 40) -> ShardSimulation:
    """Run the simulation of this seed, and check it."""
    simulations: list[ShardSimulation] = []
    random = Random(seed)
    chances = (0, 0, 0.05)
    faults = Faults(before=random.choice(chances), after=random.choice(chances), delay=random.choice((0.01, 0.1, 0.5)))
    limits = {key: [random.choice(KINDS)(f"rate:{key}")] for key in KEYS}
    for key in KEYS:
        if random.random() < 0.4:
            limits[key].append(permits(key))

    async def main(clock: VirtualClock) -> None:
        simulation = ShardSimulation(clock._loop, random, faults, limits)
        simulations.append(simulation)
        await simulation.live(steps)
        await simulation.check()

    run_virtual(main, seed=seed)
    return simulations[0]


def starts_of_a_saturated_key(limits: list[Limit], *, moves: int, seconds: int = 60, length: float = 0.0) -> int:
    """How many jobs of one key start in that time, while it moves so often and nothing else goes wrong.

    A call takes up to 20 ms there and back; a job works for `length`.
    """
    counted: list[int] = []

    async def main(clock: VirtualClock) -> None:
        simulation = ShardSimulation(clock._loop, Random(1), Faults(delay=0.01), {"a": limits})
        async with simulation.producer.open():
            for shard in NAMES:
                await simulation.start_node(shard)
            # Enough of them that they are still on their way when the key moves on.
            await simulation.tasks["a"].enqueue_many([("a", length, False)] * (20 * seconds))
            await asyncio.sleep(20)
            begin = clock.monotonic()
            for number in range(moves):
                simulation.movers.append(
                    asyncio.ensure_future(KeyMover(simulation).move("a", NAMES[number % len(NAMES)]))
                )
                await asyncio.sleep(0.001)
                simulation.movers.append(asyncio.ensure_future(simulation.move_repeatedly(pause=0.01)))
                await asyncio.sleep(begin / SECOND + (number + 1) * seconds / moves - clock.monotonic() / SECOND)
                for mover in simulation.movers:
                    mover.cancel()
            await asyncio.sleep(begin / SECOND + seconds - clock.monotonic() / SECOND)
            counted.append(sum(at >= begin for at, *_ in simulation.history.starts))

    run_virtual(main, seed=1)
    return counted[0]


def permits(key: str) -> Limit:
    return Concurrency(PERMITS, key="{key}", name=f"permits:{key}")
