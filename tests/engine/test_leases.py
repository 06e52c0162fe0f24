"""A node that cannot renew its lease gives up what others may take over, before they can."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from headgate import Concurrency, Headgate, JobState, Mutex, RetryPolicy, current_job
from headgate.clock import SECOND
from headgate.errors import StorageUnavailable
from headgate.jobs.event import Event, JobFailure, JobReturned, LeaseNotRenewed, NodeDeclaredDead, StorageRecovered
from headgate.storage.records import Claim, Claimed
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.manual_clock import ManualClock
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.faulty_storage import Faults, FaultyStorage, History
from tests.internals import app_on, block_loop, node_of
from tests.until import result_within, until

Span = tuple[float, float, str]
"""When a handler was inside (seconds), until when, and on which node."""


class Callee:
    """What the handlers of all nodes call: it writes down who was inside, and when."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.spans: list[Span] = []
        self.inside: set[str] = set()

    async def call(self, node: str, length: float) -> None:
        entered = self._clock.monotonic()
        self.inside.add(node)
        try:
            await asyncio.sleep(length)
        finally:
            self.inside.discard(node)
            self.spans.append((entered / SECOND, self._clock.monotonic() / SECOND, node))


def overlaps(spans: Sequence[Span]) -> list[tuple[Span, Span]]:
    ordered = sorted(spans)
    return [(one, two) for one, two in pairwise(ordered) if two[0] < one[1]]


class Cluster:
    """Two nodes on one store, each with a line of its own to it."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.store = MemoryStorage(clock)
        self.faults = Faults()
        self.callee = Callee(clock)
        self.events: list[Event] = []
        self.history = History()

    def app(self, name: str, **limits: Any) -> Headgate:
        line: Any = FaultyStorage(name, self.store, self.faults, Random(1), self.history)
        app = app_on(line, clock=self.clock, retry=RetryPolicy(retries=0))
        callee = self.callee

        @app.task(limits=[Mutex("door")])
        async def enter(length: float) -> str:
            await callee.call(name, length)
            return name

        @app.task
        async def free(length: float) -> str:
            await callee.call(name, length)
            return name

        @app.task(limits=[Mutex("kept", hold="until_final")], retry=RetryPolicy(retries=1, delay=1))
        async def keeping(length: float) -> str:
            if current_job().attempt == 1:
                raise ValueError("so that the permit is kept, and not used again")
            await callee.call(name, length)
            return name

        app.subscribe(self.events.append, LeaseNotRenewed, NodeDeclaredDead, JobReturned, JobFailure)
        return app

    def seen(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


@pytest.mark.parametrize("task", ["enter", "keeping"])
@pytest.mark.parametrize("cut_for", [31, 45, 90])
def test_a_node_that_cannot_reach_the_store_leaves_a_mutex_before_another_enters(task: str, cut_for: float) -> None:
    """The fault: it went on inside of the mutex, and another node let the next one in beside it."""

    async def main(clock: VirtualClock) -> None:
        cluster = Cluster(clock)
        one, two = cluster.app("one"), cluster.app("two")
        async with one, two.open():
            work = two.tasks.get(task)
            assert work is not None
            first = await work.enqueue(100.0)
            await asyncio.sleep(3.3)
            assert cluster.callee.inside == {"one"}
            async with two:
                await asyncio.sleep(7)
                cluster.faults.freeze("one")
                await asyncio.sleep(cut_for)
                assert "one" not in cluster.callee.inside
                cluster.faults.thaw("one")
                await first.result()
                second = await work.enqueue(0.0)
                await second.result()
        assert not overlaps(cluster.callee.spans)
        (lapsed,) = cluster.seen(LeaseNotRenewed)
        assert lapsed.cancelled == 1
        assert 24 <= lapsed.seconds < 30
        assert not cluster.seen(JobFailure), "a lease that was lost is no failure of the attempt"
        assert await cluster.store.check() == []

    run_virtual(main)


def test_jobs_cancelled_by_a_lost_lease_are_returned_if_no_other_node_has_them() -> None:
    async def main(clock: VirtualClock) -> None:
        cluster = Cluster(clock)
        app = cluster.app("one")
        async with app:
            enter = app.tasks.get("enter")
            assert enter is not None
            job = await enter.enqueue(40.0)
            await asyncio.sleep(1)
            cluster.faults.freeze("one")
            await asyncio.sleep(60)
            assert cluster.callee.inside == set()
            cluster.faults.thaw("one")
            assert await job.result() == "one"
            record = await cluster.store.job(job.id)
            assert record is not None
            assert (record.attempt, record.lost) == (1, 0)
        assert [event.reason for event in cluster.seen(JobReturned)] == ["interrupted"]
        assert len(cluster.seen(LeaseNotRenewed)) == 1
        assert not cluster.seen(NodeDeclaredDead)

    run_virtual(main)


def test_jobs_without_permits_continue_while_the_store_is_unavailable() -> None:
    async def main(clock: VirtualClock) -> None:
        cluster = Cluster(clock)
        app = cluster.app("one")
        async with app:
            free = app.tasks.get("free")
            assert free is not None
            job = await free.enqueue(100.0)
            await asyncio.sleep(1)
            cluster.faults.freeze("one")
            await asyncio.sleep(60)
            cluster.faults.thaw("one")
            assert await job.result() == "one"
        ((entered, left, _),) = cluster.callee.spans
        assert left - entered == pytest.approx(100)

    run_virtual(main)


def test_the_end_of_an_outage_is_logged_once() -> None:
    """The fault: 44 lines about a store that was away, and none that said that it was back."""

    async def main(clock: VirtualClock) -> None:
        cluster = Cluster(clock)
        app = cluster.app("one")
        app.subscribe(cluster.events.append, StorageRecovered)
        async with app:
            await asyncio.sleep(7)
            assert not cluster.seen(StorageRecovered)
            cluster.faults.before = 1.0
            await asyncio.sleep(20)
            cluster.faults.before = 0.0
            await asyncio.sleep(30)
        (recovered,) = cluster.seen(StorageRecovered)
        assert 10 <= recovered.seconds <= 25
        assert recovered.line() == f"the store answers again, {recovered.seconds:.1f} s after a heartbeat failed"

    run_virtual(main)


def test_a_node_whose_heartbeats_come_late_again_and_again_keeps_its_jobs() -> None:
    """Each answer takes longer than a heartbeat, and none as long as a lease."""

    async def main(clock: VirtualClock) -> None:
        cluster = Cluster(clock)
        app = cluster.app("one")
        async with app:
            enter = app.tasks.get("enter")
            assert enter is not None
            job = await enter.enqueue(300.0)
            await asyncio.sleep(1)
            cluster.faults.delay = 5.0
            assert await job.result() == "one"
        assert not cluster.seen(LeaseNotRenewed)

    run_virtual(main)


class LateReplies(MemoryStorage):
    """Claims immediately, and delays the reply until it is released."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.release = asyncio.Event()
        self.claimed = asyncio.Event()
        self.is_first = True

    async def claim(self, claim: Claim) -> Claimed:
        claimed = await super().claim(claim)
        if claimed.jobs and self.is_first:
            self.is_first = False
            self.claimed.set()
            await self.release.wait()
        return claimed

    async def beat(self, node: str, **values: Any) -> Any:  # type: ignore[misc]
        if self.claimed.is_set() and not self.release.is_set():
            raise StorageUnavailable("the network is cut")
        return await super().beat(node, **values)


@pytest.mark.parametrize("is_recovered", [True, False])
def test_a_claim_answered_after_the_lease_starts_only_jobs_that_the_node_still_owns(is_recovered: bool) -> None:
    """The fault: the node started jobs that had been taken from it, and entered a mutex that another held."""

    async def main(clock: VirtualClock) -> None:
        store = LateReplies(clock)
        app = app_on(store, clock=clock, retry=RetryPolicy(retries=0))
        starts: list[tuple[str, int]] = []

        @app.task(limits=[Concurrency(5)])
        async def work(name: str) -> None:
            starts.append((name, current_job().attempt))

        @app.task
        async def free(name: str) -> None:
            starts.append((name, current_job().attempt))

        async with app:
            jobs = [await work.enqueue("gated"), await free.enqueue("free")]
            await store.claimed.wait()
            await asyncio.sleep(35)
            assert not starts
            if is_recovered:
                (node,) = await store.nodes()
                assert await store.recover(node.id, node.beat) is not None
            store.release.set()
            await asyncio.gather(*(job.result() for job in jobs))
            await asyncio.sleep(60)
            # An attempt that was lost with a node is spent.
            assert sorted(starts) == [("free", 1 + is_recovered), ("gated", 1 + is_recovered)]
        assert await store.check() == []

    run_virtual(main)


def test_a_node_whose_lease_has_run_out_claims_nothing_until_a_heartbeat_has_succeeded() -> None:
    """Its heartbeats alone do not come through."""

    async def main(clock: VirtualClock) -> None:
        store = LateReplies(clock)
        app = app_on(store, clock=clock)
        starts: list[int] = []

        @app.task
        async def work() -> None:
            starts.append(clock.monotonic() // SECOND)

        async with app:
            store.is_first = False
            store.claimed.set()
            await asyncio.sleep(40)
            job = await work.enqueue()
            await asyncio.sleep(20)
            assert not starts
            assert (await job.status()).state is JobState.WAITING
            store.release.set()
            await job.result()

    run_virtual(main)


def test_after_a_stall_beyond_the_lease_nothing_starts_until_a_heartbeat_has_succeeded() -> None:
    """The fault: what had been claimed and had not begun was started, beside the nodes that had taken it over."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[tuple[str, int, bool]] = []

        def note(name: str) -> None:
            ran.append((name, current_job().attempt, node_of(app).lease.holds))

        @app.task
        async def block() -> None:
            block_loop(60)

        @app.task
        async def plain() -> None:
            note("plain")

        @app.task
        def thread() -> None:
            note("thread")

        async with app.open():
            jobs = [await task.enqueue() for task in (block, plain, thread)]
            async with app:
                await asyncio.gather(*(job.result() for job in jobs))
        assert ran == [("plain", 1, True), ("thread", 1, True)]

    run_virtual(main)


async def test_a_thread_can_read_that_its_lease_is_lost_and_keeps_its_permit_until_it_ends() -> None:
    """It cannot be stopped; what it writes outside is to be fenced there."""
    # Virtual time does not advance while a thread works; this time passes only here.
    clock = ManualClock()
    store = MemoryStorage(clock)
    faults = Faults()
    line: Any = FaultyStorage("one", store, faults, Random(1), History())
    app = app_on(line, clock=clock, heartbeat=10, lease=60, retry=RetryPolicy(retries=0))
    received = asyncio.Event()
    noticed, began = threading.Event(), threading.Event()
    tokens: list[int] = []

    def on_lost(_event: Any) -> None:
        received.set()

    app.subscribe(on_lost, LeaseNotRenewed)

    @app.task(limits=[Mutex("door")])
    def inside() -> None:
        tokens.append(current_job().fencing_token)
        began.set()
        if len(tokens) > 1:
            return
        job = current_job()
        while not job.cancelled:
            threading.Event().wait(0.01)
        noticed.set()

    def passes(seconds: float, is_over: Callable[[], bool]) -> bool:
        if not is_over():
            clock.advance(seconds)
        return is_over()

    async with app:
        result = asyncio.ensure_future(result_within(await inside.enqueue(), 60))
        await until(lambda: passes(0.1, began.is_set))
        faults.freeze("one")
        await until(lambda: passes(5, received.is_set))
        await until(lambda: passes(5, noticed.is_set))
        faults.thaw("one")
        await until(lambda: passes(0.1, result.done))
        await result
    assert len(tokens) == 2
    assert tokens[0] < tokens[1], "who writes outside can tell the later holder from the earlier one"
