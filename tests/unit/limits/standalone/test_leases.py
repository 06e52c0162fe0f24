"""Permits on a shared store: leases that are renewed, lost, given back and waited for.

The invariant: of one key, no more holders rely on a lease at an instant than there are permits, and each later one has
a higher fencing token.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headgate import (
    Concurrency,
    DeclarationError,
    GateClosed,
    HeadgateError,
    LeaseLost,
    Limiter,
    Mutex,
    RateLimit,
    StorageUnavailable,
    StrictRate,
)
from headgate.clock import SECOND, Clock, sleep_until
from headgate.contrib.aiohttp import LimitedRequests
from headgate.contrib.asgi import AsgiLimitMiddleware
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.testing.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual
from tests.until import becomes, patient, until_now


class LeaseStore:
    """A store behind a network: a millisecond there and one back. It can be away, or lose its answers."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.buckets = MemoryBuckets(clock)
        self.is_away = False
        self.loses_answers = 0
        self.says_when = True
        self.taken = 0
        self.last: Bucket | None = None
        self.on_answer: Callable[[], object] = bool
        """Is called when an answer arrives."""

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        self.last = bucket
        await self._there()
        taken = await self.buckets.take(bucket, cost, count=count, id=id)
        self.taken += taken.granted
        await asyncio.sleep(0.001)
        self.on_answer()
        return taken

    async def reserve(self, bucket: Bucket, cost: int = 1, *, id: str) -> Taken:
        raise NotImplementedError

    async def cancel(self, bucket: Bucket, *, id: str) -> bool:
        raise NotImplementedError

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> int | None:
        await self._there()
        changed_at = await self.buckets.amend(bucket, charged_at, cost, started_at, actual)
        if self.loses_answers:
            self.loses_answers -= 1
            raise StorageUnavailable("the answer was lost")
        await asyncio.sleep(0.001)
        return changed_at if self.says_when else None

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        await self.buckets.penalize(bucket, closed_for)

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        return await self.buckets.snapshot(bucket)

    async def reset(self, bucket: Bucket) -> None:
        raise NotImplementedError

    async def used(self) -> int:
        """Return what is taken of the bucket that was asked for last."""
        return 0 if self.last is None else (await self.buckets.snapshot(self.last)).used

    async def _there(self) -> None:
        await asyncio.sleep(0.001)
        if self.is_away:
            raise StorageUnavailable("the store is away")


class ServerClock(VirtualClock):
    """The clock of a server: it may be ahead of the machines, which are paused or run too slowly."""

    ahead = 0

    def monotonic(self) -> int:
        return super().monotonic() + self.ahead


def virtual_loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


class Record:
    """Who relied on the lease of a key, from when to when, and with which token."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.held: list[tuple[float, float, int]] = []

    async def hold(self, limiter: Limiter, seconds: float, key: str = "42", **options: Any) -> None:
        async with limiter.hold(key, **options) as held:
            began = self.clock.monotonic() / SECOND
            try:
                await asyncio.sleep(seconds)
            finally:
                self.held.append((began, self.clock.monotonic() / SECOND, held.fencing_token))

    def check(self, most: int = 1) -> None:
        """The invariant."""
        for began, _, _ in self.held:
            assert sum(start <= began < end for start, end, _ in self.held) <= most
        tokens = [token for _, _, token in sorted(self.held)]
        assert tokens == sorted(set(tokens))


def play(scene: Callable[[VirtualClock, LeaseStore, Record], Any]) -> None:
    async def main(clock: VirtualClock) -> None:
        record = Record(clock)
        await scene(clock, LeaseStore(clock), record)

    run_virtual(main)


def new(store: LeaseStore, clock: Clock | None, limit: Any = None, lease: float = 10) -> Limiter:
    return Limiter(limit or Mutex("orders"), store, lease=lease, clock=clock)


def test_programs_take_turns_and_each_turn_has_a_higher_token() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        programs = [new(store, clock) for _ in range(3)]
        await asyncio.gather(*(record.hold(program, 0.3) for program in programs for _ in range(5)))
        assert len(record.held) == 15
        record.check()
        # One does not wait for another key.
        began = clock.monotonic()
        await record.hold(programs[0], 0, key="43")
        assert clock.monotonic() - began < SECOND // 10
        for program in programs:
            await program.close()

    play(scene)


def test_a_lease_is_renewed_for_as_long_as_its_block_runs_and_then_given_back() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        one, other = new(store, clock), new(store, clock)
        holding = asyncio.create_task(record.hold(one, 100))
        await asyncio.sleep(1)
        await record.hold(other, 1)
        await holding
        record.check()
        (_, ended, _), (began, _, _) = record.held
        # It asks for it a few times a second.
        assert 0 <= began - ended < 0.3
        await one.close()
        await other.close()

    play(scene)


def test_several_permits_are_held_at_once_and_no_more() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        programs = [new(store, clock, Concurrency(3, name="exports")) for _ in range(2)]
        await asyncio.gather(*(record.hold(program, 1) for program in programs for _ in range(6)))
        assert len(record.held) == 12
        record.check(most=3)
        assert max(sum(start <= began < end for start, end, _ in record.held) for began, _, _ in record.held) == 3
        for program in programs:
            await program.close()

    play(scene)


def test_a_lease_that_cannot_be_renewed_cancels_its_block_before_another_holder_gets_it() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        one, other = new(store, clock), new(store, clock)
        holding = asyncio.create_task(record.hold(one, 1000))
        await asyncio.sleep(5)
        cut_off = clock.monotonic() / SECOND
        store.is_away = True
        with pytest.raises(LeaseLost, match="the lease of '42' was not renewed for 10 s") as lost:
            await holding
        assert 5 < clock.monotonic() / SECOND - cut_off < 10
        assert lost.value.token == record.held[0][2]
        store.is_away = False
        await record.hold(other, 1)
        record.check()
        await one.close()
        await other.close()

    play(scene)


def test_a_holder_whose_machine_was_paused_for_longer_than_its_lease_loses_it_when_another_has_it() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        server = ServerClock(virtual_loop())
        store = LeaseStore(server)
        one, other = new(store, clock), new(store, clock)
        holding = asyncio.create_task(record.hold(one, 1000))
        await asyncio.sleep(1)
        server.ahead = 60 * SECOND
        async with other.hold("42", timeout=1) as held:
            with pytest.raises(LeaseLost):
                await asyncio.wait_for(holding, 10 / 3)
            assert held.fencing_token > record.held[0][2]
            await asyncio.sleep(60)
            assert not held.is_lost
        await one.close()
        await other.close()

    play(scene)


@pytest.mark.parametrize(("pause", "slow_for"), [(6, 0), (0, 1500)])
def test_a_holder_whose_clock_falls_behind_keeps_its_lease_for_as_long_as_it_says(pause: int, slow_for: int) -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        server = ServerClock(virtual_loop())
        store = LeaseStore(server)
        one, other = new(store, clock), new(store, clock)
        holding = asyncio.create_task(record.hold(one, 60 + slow_for))
        await asyncio.sleep(1)
        server.ahead = pause * SECOND
        for _ in range(slow_for):
            server.ahead += SECOND // 100
            await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            await record.hold(other, 1, timeout=20)
        await holding
        await record.hold(other, 1, timeout=1)
        record.check()
        await one.close()
        await other.close()

    play(scene)


def test_a_lease_is_renewed_on_a_store_that_does_not_say_when_it_changed_a_start() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        store.says_when = False
        one, other = new(store, clock), new(store, clock)
        holding = asyncio.create_task(record.hold(one, 30))
        await asyncio.sleep(1)
        await record.hold(other, 1)
        await holding
        record.check()
        await one.close()
        await other.close()

    play(scene)


def test_a_block_that_ignores_its_cancellation_still_raises() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        limiter = new(store, clock)

        async def hold() -> None:
            async with limiter.hold("42") as held:
                store.is_away = True
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    assert held.is_lost

        with pytest.raises(LeaseLost):
            await asyncio.create_task(hold())
        await limiter.close()

    play(scene)


def test_a_block_that_is_cancelled_for_another_reason_is_cancelled() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        limiter = new(store, clock)
        holding = asyncio.create_task(record.hold(limiter, 1000))
        await asyncio.sleep(1)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        await record.hold(limiter, 1, timeout=1)
        record.check()
        await limiter.close()

    play(scene)


def test_lost_answers_lose_no_lease_and_leave_none_behind() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        one, other = new(store, clock), new(store, clock)
        holding = asyncio.create_task(record.hold(one, 60))
        for _ in range(6):
            await asyncio.sleep(8)
            store.loses_answers = 2
        with pytest.raises(TimeoutError, match="nothing was free for '42' within 1 s"):
            await record.hold(other, 1, timeout=1)
        store.loses_answers = 0
        await holding
        await record.hold(other, 1, timeout=1)
        assert len(record.held) == 2
        record.check()
        await one.close()
        await other.close()

    play(scene)


def test_a_waiter_that_is_cancelled_keeps_no_lease() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        limiter = new(store, clock)
        for microseconds in (500, 1000, 1500, 2000):
            waiting = asyncio.create_task(record.hold(limiter, 1000))
            await asyncio.sleep(microseconds / 1e6)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await record.hold(limiter, 1, timeout=1)
        assert store.taken >= 2, "one was granted while its caller was cancelled"
        await limiter.close()

    play(scene)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_whichever_await_a_cancellation_and_a_timeout_meet_in_every_lease_is_given_back(seed: int | None) -> None:
    async def hold(record: Record, limiter: Limiter, seconds: float, **options: Any) -> None:
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await record.hold(limiter, seconds, **options)

    async def main(clock: VirtualClock) -> None:
        for instant, turns, times_out in itertools.product(range(9), range(6), (False, True)):
            store, record = LeaseStore(clock), Record(clock)
            limiter = new(store, clock)
            began = clock.monotonic()
            first = asyncio.create_task(hold(record, limiter, 0.002))
            second = asyncio.create_task(hold(record, limiter, 0.001))
            timeout = instant / 1000 if times_out else None
            cancelled = asyncio.create_task(hold(record, limiter, 0.001, timeout=timeout))
            last = asyncio.create_task(hold(record, limiter, 0.001))
            await sleep_until(clock, began + instant * 1000)
            for _ in range(turns):
                await asyncio.sleep(0)
            for each in (cancelled, first) if turns % 2 else (cancelled,):
                each.cancel()
            await asyncio.gather(first, second, cancelled, last)
            # Shorter than a lease, and long enough for what is given back in the background.
            await asyncio.sleep(1)
            assert await store.used() == 0, f"{instant} ms, {turns} turns, {times_out=}"
            record.check()
            await limiter.close()

    run_virtual(main, seed=seed)


def test_a_lease_that_is_granted_while_its_limiter_closes_is_given_back() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        limiter = new(store, clock)
        waiting = asyncio.create_task(record.hold(limiter, 1000))
        # The store has granted it, and its answer is on the way.
        await sleep_until(clock, clock.monotonic() + 1500)
        assert store.taken == 1
        await limiter.close()
        with pytest.raises(GateClosed):
            await waiting
        await asyncio.sleep(1)
        assert await store.used() == 0

    play(scene)


@pytest.mark.parametrize("limit", [Mutex("orders"), StrictRate("1/h")], ids=["lease", "start"])
@pytest.mark.parametrize("turns", range(16))
def test_what_is_granted_to_a_task_of_another_loop_that_leaves_is_given_back(limit: Any, turns: int) -> None:
    store = LeaseStore()
    limiter = new(store, None, limit, lease=60) if isinstance(limit, Mutex) else Limiter(limit, store)
    home = asyncio.new_event_loop()
    thread = threading.Thread(target=home.run_forever)
    thread.start()
    is_stopped, may_go_on = threading.Event(), threading.Event()

    def stop_after(left: int) -> None:
        if left:
            home.call_soon(stop_after, left - 1)
        else:
            is_stopped.set()
            may_go_on.wait(patient(10))

    async def hold() -> None:
        async with limiter.hold("42"):
            raise AssertionError("it was cancelled")

    async def main() -> None:
        # The limiter belongs to the loop of its first call.
        asyncio.run_coroutine_threadsafe(limiter.snapshot("42"), home).result(patient(10))
        store.on_answer = lambda: stop_after(turns)
        holding = asyncio.create_task(hold())
        await asyncio.sleep(0)

        # The other loop stops at one of its turns between the answer of the store and the end of the call. This loop,
        # which does not turn meanwhile, then cancels the caller.
        assert is_stopped.wait(patient(10))
        holding.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await holding
        await becomes(store.used, 0)
        await limiter.close()

    try:
        asyncio.run(main())
    finally:
        may_go_on.set()
        home.call_soon_threadsafe(home.stop)
        thread.join()
        home.close()


def test_waiters_of_a_process_are_served_in_the_order_of_their_arrival() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        limiter = new(store, clock)
        order: list[int] = []

        async def hold(number: int) -> None:
            async with limiter.hold("42"):
                order.append(number)
                await asyncio.sleep(0.05)

        await asyncio.gather(*(hold(number) for number in range(20)))
        assert order == list(range(20))
        # Each was woken by the one before it.
        assert clock.monotonic() < 30 * SECOND
        await limiter.close()

    play(scene)


def test_all_waiters_of_a_key_learn_together_that_the_store_is_away() -> None:
    """The fault: each asked once the one before had given up, so that the last of 20 waited for 40 s."""

    class SilentStore(LeaseStore):
        async def _there(self) -> None:
            await asyncio.sleep(2 if self.is_away else 0)
            await super()._there()

    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        limiter = new(store := SilentStore(clock), clock)
        store.is_away = True
        for _ in range(2):
            began = clock.monotonic()
            errors = await asyncio.gather(*(record.hold(limiter, 1) for _ in range(20)), return_exceptions=True)
            assert {str(error) for error in errors} == {"the store is away"}
            assert len({id(error) for error in errors}) == 20
            assert clock.monotonic() - began < 3 * SECOND
        store.is_away = False
        await asyncio.gather(*(record.hold(limiter, 1) for _ in range(5)))
        assert len(record.held) == 5
        record.check()
        await limiter.close()

    play(scene)


def test_a_closed_limiter_ends_its_blocks_and_its_waiters() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        limiter = new(store, clock)
        tasks = [asyncio.create_task(record.hold(limiter, 1000)) for _ in range(3)]
        await asyncio.sleep(1)
        await limiter.close()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error).__name__ for error in ended] == ["LeaseLost", "GateClosed", "GateClosed"]

    play(scene)


def test_a_thread_learns_of_a_lost_lease_at_the_end_of_its_block() -> None:
    store = LeaseStore()
    limiter, losing = new(store, None, lease=60), new(store, None, lease=1)
    with limiter.sync.hold("42") as held:
        assert held.fencing_token > 0

    def lose_it() -> None:
        with losing.sync.hold("42") as later:
            assert later.fencing_token > held.fencing_token
            store.is_away = True
            until_now(lambda: later.is_lost)

    with pytest.raises(LeaseLost):
        lose_it()
    store.is_away = False
    with pytest.raises(TimeoutError), limiter.sync.hold("42"), limiter.sync.hold("42", timeout=0.1):
        raise AssertionError
    losing.sync.close()
    limiter.sync.close()


def test_a_lease_has_no_other_verbs() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        limiter = new(store, clock)
        for verb in (limiter.try_acquire, limiter.acquire, limiter.reserve, limiter.reset):
            with pytest.raises(HeadgateError, match=r"use `hold\(\)`"):
                await verb("42")
        with pytest.raises(HeadgateError, match=r"use `hold\(\)`"):
            limiter.release("42")
        async with limiter.hold("42") as held:
            assert (await limiter.snapshot("42")).used == 1
            with pytest.raises(HeadgateError, match="given back whole"):
                await held.settle(0)
        await limiter.close()
        assert limiter.has_leases

    play(scene)


def test_a_penalized_key_grants_no_lease_until_then_and_its_holder_keeps_his() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        limiter = new(store, clock, Concurrency(2), lease=3)
        began = clock.monotonic()
        async with limiter.hold("42"):
            await limiter.penalize("42", 20)
            async with limiter.hold("42"):
                assert 20 * SECOND <= clock.monotonic() - began < 21 * SECOND
        await limiter.close()

    play(scene)


def test_mutexes_of_other_resources_and_concurrencies_of_other_names_do_not_meet() -> None:
    async def scene(clock: VirtualClock, store: LeaseStore, record: Record) -> None:
        limits = [
            Mutex("orders"),
            Mutex("invoices"),
            Mutex("orders", name="mine"),
            Mutex("invoices", name="mine"),
            Concurrency(1),
            Concurrency(1, name="x"),
        ]
        limiters = [new(store, clock, limit) for limit in limits]
        began = clock.monotonic()
        await asyncio.gather(*(record.hold(limiter, 1, timeout=2) for limiter in limiters))
        assert clock.monotonic() - began < 2 * SECOND
        for limiter in limiters:
            await limiter.close()

    play(scene)


async def _application(scope: Any, receive: Any, send: Any) -> None: ...


def test_mistakes_with_leases_are_refused() -> None:
    store = LeaseStore()
    with pytest.raises(DeclarationError, match=r"lease=0\.5 of a limiter must be at least 1 s"):
        Limiter(Mutex("orders"), store, lease=0.5)
    with pytest.raises(DeclarationError, match="lease=5 is of permits on a shared store"):
        Limiter(Mutex("orders"), lease=5)
    with pytest.raises(DeclarationError, match="lease='5s' is of permits on a shared store"):
        Limiter(RateLimit("5/s"), store, lease="5s")
    with pytest.raises(DeclarationError, match="leave store= out"):
        AsgiLimitMiddleware(_application, Limiter(Concurrency(5), store))
    with pytest.raises(DeclarationError, match=r"async with limiter\.hold\(key\)"):
        LimitedRequests(Limiter(Concurrency(5), store))
    with Limiter(Mutex("orders")).sync.hold("42") as held, pytest.raises(HeadgateError, match="on a shared store"):
        _ = held.fencing_token
