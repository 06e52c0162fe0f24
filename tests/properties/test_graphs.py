"""Whatever the graph, and however its jobs end, are retried and cancelled: the stores do what the model says."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from random import Random
from typing import Any, get_args

import pytest
import pytest_asyncio
from msgspec.structs import replace

from headgate import Headgate
from headgate.admin.bulk import cancel_batch
from headgate.client.flow import BatchPlan, batch, chain
from headgate.client.flow_builder import NOTHING, FlowBuilder, PlacedStep
from headgate.client.plan import Step
from headgate.client.task import Task
from headgate.errors import BatchClosed, DeclarationError, IllegalTransition, LeaderNotRetried
from headgate.jobs.audit import AuditRecord
from headgate.jobs.batch import NewBatch
from headgate.jobs.identity import IdSource
from headgate.jobs.job import ClaimedJob, On
from headgate.storage.endings import LEADER_NOT_SUCCEEDED
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.store import Store
from headgate.tasks.call import Call
from headgate.tasks.leading import Leader, ResultOf
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import StoreUser
from tests.properties.graph_model import Node, cancelled_with, is_cyclic, retry, settle
from tests.seeds import seeds

pytestmark = [pytest.mark.asyncio]


MANY = int(os.environ.get("GRAPHS_PER_SEED", "0"))
"""How many graphs are made of each seed; set it to 1000 after a change of followers."""

ENDS: Sequence[On] = get_args(On)


class StoredLeader:
    """A stored job or batch that new calls may be after."""

    def __init__(self, leader_id: str) -> None:
        self.leader_id: str | None = leader_id


class GraphWriter:
    """Writes a random plan of about `size` jobs, and beside it what it means."""

    def __init__(self, random: Random, task: Task[Any, Any], size: int, stored: Sequence[Node] = ()) -> None:
        self._random = random
        self._task = task
        self._left = size
        self._known: list[tuple[Leader, list[Node]]] = [(StoredLeader(node.id), [node]) for node in stored]
        # Others may be after these before they have their place, which is how cycles come about.
        self._loose = [(task.call(), Node()) for _ in range(random.choice((0, 0, 0, 1, 2)))]
        self._known += [(call, [node]) for call, node in self._loose]
        self._asked: list[tuple[Node, list[Node], Node]] = []
        self.jobs: list[tuple[Call[Any], Node]] = []
        self.batches: list[tuple[BatchPlan, Node]] = []
        top = Node(members=[])
        steps = []
        while self._left > 0:
            steps.append(self._step([], "success", top, 2)[0])
        while self._loose:
            steps.append(self._placed(*self._loose.pop(), [], "success", top))
        self.plan: BatchPlan = self._then(batch(steps), top, None)[0]
        self.batches.append((self.plan, top))
        for node, own, around in self._asked:
            # What is in the same batch has waited for what the batch follows.
            is_beside = any(leader in (around.members or ()) for leader in own)
            node.leaders = own if is_beside else [*own, *node.leaders]

    def _step(self, place: list[Node], on: On, around: Node, depth: int) -> tuple[Step, list[Node]]:
        """A step after others; and what the next step follows."""
        kind = self._random.random()
        if depth and kind < 0.25:
            inner = Node(members=[])
            around.grow(inner)
            steps = [self._step(place, on, inner, depth - 1)[0] for _ in range(self._random.randint(1, 3))]
            plan, after = self._then(batch(steps), inner, around)
            self.batches.append((plan, inner))
            self._known.append((plan, [inner]))
            return plan, after
        if depth and kind < 0.5:
            steps = []
            for _ in range(self._random.randint(1, 3)):
                step, place = self._step(place, on, around, depth - 1) if not steps else self._next(place, around)
                steps.append(step)
                on = "success"
            made = chain(*steps)
            self._known.append((made, place))
            return made, place
        self._left -= 1
        if self._loose and self._random.random() < 0.3:
            call, node = self._loose.pop()
            return self._placed(call, node, place, on, around), [node]
        read = [] if place else self._results()
        call, node = self._task.call([ResultOf(leader) for leader, _ in read] if read else None), Node()
        leaders = [each for _, nodes in read for each in nodes]
        if self._known and self._random.random() < 0.6:
            picked = self._random.sample(self._known, min(len(self._known), self._random.randint(1, 3)))
            on = on if place else self._random.choice(ENDS)
            call = call.after(*(leader for leader, _ in picked), on=on)
            leaders += [each for _, nodes in picked for each in nodes]
        if leaders:
            self._asked.append((node, leaders, around))
        self._known.append((call, [node]))
        return self._placed(call, node, place, on, around), [node]

    def _results(self) -> list[tuple[Leader, list[Node]]]:
        """Some of what has one result."""
        known = [(leader, nodes) for leader, nodes in self._known if len(nodes) == 1]
        return self._random.sample(known, min(len(known), self._random.choice((0, 0, 0, 1, 2))))

    def _next(self, place: list[Node], around: Node) -> tuple[Step, list[Node]]:
        """A later step of a chain, or one after a batch: a call, or a batch."""
        if self._random.random() < 0.2:
            inner = Node(members=[])
            around.grow(inner)
            plan = batch([self._step(place, "success", inner, 0)[0] for _ in range(2)])
            self.batches.append((plan, inner))
            self._known.append((plan, [inner]))
            return plan, [inner]
        call, node = self._loose.pop() if self._loose else (self._task.call(), Node())
        self._left -= 1
        self._known.append((call, [node]))
        return self._placed(call, node, place, "success", around), [node]

    def _then(self, plan: BatchPlan, node: Node, around: Node | None) -> tuple[BatchPlan, list[Node]]:
        after: list[Node] = []
        for _ in range(self._random.choice((0, 0, 1, 2))):
            call, next = self._loose.pop() if self._loose else (self._task.call(), Node())
            self._left -= 1
            on = self._random.choice(ENDS)
            self._known.append((call, [next]))
            plan = plan.then(self._placed(call, next, [node], on, around), on)
            after.append(next)
        return plan, after or [node]

    def _placed(self, call: Call[Any], node: Node, place: list[Node], on: On, around: Node | None) -> Call[Any]:
        node.leaders, node.on = list(place), on
        self.jobs.append((call, node))
        if around is not None:
            around.grow(node)
        return call

    @property
    def nodes(self) -> list[Node]:
        return [node for _, node in (*self.jobs, *self.batches)]


@pytest_asyncio.fixture
async def memory(clock: ManualClock) -> AsyncIterator[Store]:
    storage = MemoryStorage(clock)
    await storage.open()
    yield storage
    await storage.close()


@pytest_asyncio.fixture
async def postgres_store(clock: ManualClock, postgres_url: str, postgres_schema: str) -> AsyncIterator[Store]:
    storage = PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True)
    await storage.open()
    yield storage
    await storage.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class GraphUser:
    """Stores graphs, and does at random what can be done to their jobs."""

    def __init__(self, random: Random, store_user: StoreUser) -> None:
        self.nodes: list[Node] = []
        self.acts: list[str] = []
        self._random = random
        self._store_user = store_user
        self._ids = IdSource(producer=1)
        self._running: dict[str, ClaimedJob] = {}

        app = Headgate("memory://")

        @app.task
        async def work(results: Any = None) -> None: ...

        self._task = work

    async def enqueue(self, size: int) -> None:
        writer = GraphWriter(self._random, self._task, size, [node for node in self.nodes if node.id])
        builder = FlowBuilder(partial(self._ids.next, self._store_user.clock.now()))
        builder.add_batch(writer.plan, NOTHING)
        if is_cyclic(writer.nodes):
            with pytest.raises(DeclarationError, match="wait for each other"):
                builder.flow()
            return
        calls, batches = builder.flow()
        new = [replace(self._store_user.new(), id=call.id, origin=call.origin) for call in calls]
        now = self._store_user.clock.now()
        await self._store_user.storage.add(
            new, [NewBatch(each.id, each.total, now, each.batch, each.leaders) for each in batches]
        )
        for call, node in writer.jobs:
            (placed,) = builder.placed(call)
            assert isinstance(placed, PlacedStep)
            assert placed.jobs is None
            node.id = placed.id
        for plan, node in writer.batches:
            (placed,) = builder.placed(plan)
            assert isinstance(placed, PlacedStep)
            assert placed.jobs is not None
            node.id = placed.id
        self.nodes += writer.nodes

    async def _grow(self, batch: Node) -> None:
        """Add a call and a chain to a batch, as a running job of it does; one that is final takes none."""
        assert batch.members is not None
        builder = FlowBuilder(partial(self._ids.next, self._store_user.clock.now()))
        builder.grow(batch.id, [self._task.call(), chain(self._task.call(), self._task.call())])
        calls, (grown,) = builder.flow()
        new = [replace(self._store_user.new(), id=call.id, origin=call.origin) for call in calls]
        record = NewBatch(grown.id, grown.total, self._store_user.clock.now(), grows=grown.grows)
        if batch.end is not None:
            with pytest.raises(BatchClosed):
                await self._store_user.storage.add(new, [record])
            return
        await self._store_user.storage.add(new, [record])
        alone, first = Node(), Node()
        for node, call in zip((alone, first, Node([first])), calls, strict=True):
            node.id = call.id
            batch.grow(node)
            self.nodes.append(node)
        self.acts.append(f"{self.nodes.index(batch)}: 3 jobs are added")

    async def act(self) -> None:
        """End, retry or cancel one job; or cancel a batch, or add to one."""
        batches = [node for node in self.nodes if node.members is not None]
        running = [node for node in batches if any(each.id in self._running for each in node.members or ())]
        if self._random.random() < 0.05 and len(self.nodes) < 20:
            await self._grow(self._random.choice(running or batches))
            return
        jobs = [node for node in self.nodes if node.members is None]
        if self._random.random() < 0.04:
            await self._cancel_batch(self._random.choice(batches))
            return
        node = self._random.choice(jobs)
        before = node.state
        await self._act_on(node)
        self.acts.append(f"{self.nodes.index(node)}: {before} → {node.state}")

    async def _cancel_batch(self, node: Node) -> None:
        """Cancel a batch: what the model says is cancelled, whatever end it needs, or asked to end."""
        storage = self._store_user.storage
        wanted = {each.id: each for each in cancelled_with(node, self.nodes)}
        assert await self._downstream_of(node) == wanted.keys()
        counted = await cancel_batch(storage, node.id, storage.cancel, _cancellation, dry_run=True)
        assert counted.changed == len(wanted)
        if self._random.random() < 0.5:
            done = await cancel_batch(storage, node.id, storage.cancel, _cancellation)
            assert done.changed == len(wanted)
        else:
            # In portions, none of which releases a job of a later one: that would be waiting in between.
            most = self._random.randint(1, 3)
            while (await cancel_batch(storage, node.id, storage.cancel, _cancellation, most=most)).is_cut:
                for id in await self._downstream_of(node):
                    is_blocked = (await self._store_user.record(id)).is_blocked
                    assert is_blocked or wanted[id].state == "waiting"
        for id, each in wanted.items():
            if id in self._running:
                await self._store_user.give_back(self._running.pop(id))
            error = (await self._store_user.record(id)).error
            # One that its leader's end has cancelled comes back with it.
            each.state = "unrun" if error is not None and error.type == LEADER_NOT_SUCCEEDED else "cancelled"
        self.acts.append(f"{self.nodes.index(node)}: its batch is cancelled, {len(wanted)} jobs")

    async def _downstream_of(self, node: Node) -> set[str]:
        found = await self._store_user.storage.downstream_of(node.id)
        return {*found.released, *found.others, *found.requested}

    async def _act_on(self, node: Node) -> None:
        claimed = self._running.pop(node.id, None)
        storage = self._store_user.storage
        if claimed is not None:
            await self._end(claimed, node)
        elif node.end is None and self._random.random() < 0.2:
            await storage.cancel(node.id)
            node.state = "cancelled"
        elif node.state not in ("blocked", "waiting", "succeeded") and self._random.random() < 0.5:
            if retry(node, self.nodes):
                await storage.retry(node.id)
            else:
                with pytest.raises((LeaderNotRetried, IllegalTransition)):
                    await storage.retry(node.id)

    async def _end(self, claimed: ClaimedJob, node: Node) -> None:
        kind = self._random.random()
        if kind < 0.6:
            await self._store_user.succeed(claimed)
            node.state = "succeeded"
        elif kind < 0.8:
            await self._store_user.fail(claimed)
            node.state = "failed"
        elif kind < 0.9:
            await self._store_user.storage.cancel(claimed.id)
            await self._store_user.give_back(claimed)
            node.state = "cancelled"
        else:
            await self._store_user.give_back(claimed)

    @property
    def described(self) -> str:
        places = {id(node): place for place, node in enumerate(self.nodes)}
        lines = [
            f"{place}: {node.id[-6:]} {node.state if node.members is None else node.end} {node.on} of "
            f"{[places[id(each)] for each in node.leaders]}"
            + ("" if node.members is None else f", members {[places[id(each)] for each in node.members]}")
            for place, node in enumerate(self.nodes)
        ]
        return "\n".join(["", *lines, *self.acts])

    async def end_all(self) -> None:
        """Let all that is left succeed: nothing may stay blocked."""
        while self._running:
            for id in list(self._running):
                await self._store_user.succeed(self._running.pop(id))
                next(node for node in self.nodes if node.id == id).state = "succeeded"
            await self.look()
        assert all(node.end is not None for node in self.nodes)

    async def look(self) -> None:
        """Compare all jobs and batches with the model, and start what may run."""
        settle(self.nodes)
        for node in self.nodes:
            if node.members is None:
                record = await self._store_user.record(node.id)
                state = "blocked" if record.is_blocked else str(record.state)
                known = {"running": "waiting"}.get(state, state)
                assert known == {"unrun": "cancelled"}.get(node.state, node.state)
                if node.state == "unrun":
                    assert record.error is not None
                    assert record.error.type == LEADER_NOT_SUCCEEDED
                elif node.state == "skipped":
                    assert record.error is None
            else:
                batch = await self._store_user.storage.batch(node.id)
                assert batch is not None
                assert batch.pending == sum(member.end is None for member in node.members)
                assert batch.total == len(node.members)
                assert (None if batch.ended_as is None else str(batch.ended_as)) == node.end
        assert list(await self._store_user.storage.check()) == []
        ended = {node.id for node in self.nodes if node.end is not None}
        for job in await self._store_user.take():
            self._running[job.id] = job
            results = [] if job.origin is None or job.origin.results is None else [*job.origin.results.values()]
            assert ended.issuperset(id for value in results for id in value), "what it reads is there"
        expected_ids = {node.id for node in self.nodes if node.state == "waiting"}
        assert self._running.keys() == expected_ids


def _cancellation(job_id: str) -> AuditRecord:
    return AuditRecord("test", "cancel", "job", job_id)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0, 8))
async def test_every_graph_ends_as_the_model_says_on_sqlite(seed: int, memory: Store, clock: ManualClock) -> None:
    await check_graphs(seed, MANY or 8, memory, clock)


@pytest.mark.parametrize("seed", seeds(100, 4))
async def test_every_graph_ends_as_the_model_says_on_postgres(
    seed: int, postgres_store: Store, clock: ManualClock
) -> None:
    await check_graphs(seed, MANY or 2, postgres_store, clock)


async def check_graphs(seed: int, count: int, store: Store, clock: ManualClock) -> None:
    store_user = StoreUser(store, clock)
    await store.join(store_user.node, "a")
    for number in range(count):
        name = f"{seed} {number}"
        random = Random(name)
        user = GraphUser(random, store_user)
        try:
            await user.enqueue(random.randint(1, 8))
            for _ in range(25):
                if not user.nodes:
                    break
                await user.look()
                if random.random() < 0.05 and len(user.nodes) < 20:
                    await user.enqueue(random.randint(1, 3))
                else:
                    await user.act()
                clock.advance(0.001)
            await user.look()
            await user.end_all()
        except AssertionError as error:
            error.add_note(f"graph {name!r}: {user.described}")
            raise
