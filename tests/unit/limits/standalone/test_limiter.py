"""Limiter: a limit for plain code, in memory and on a store that has to be awaited."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from headgate.clock import SECOND, SystemClock, Timer, to_datetime
from headgate.errors import CostExceedsLimit, DeclarationError, GateClosed, HeadgateError, StorageUnavailable
from headgate.limits.bucket_store import Bucket, BucketStore, Taken, TakenOrBooked
from headgate.limits.concurrency import Concurrency, Mutex
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.limit import Limit
from headgate.limits.rate_limit import RateLimit
from headgate.limits.rule import Snapshot
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.standalone.limiter import Limiter
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.limits.standalone.shared_session import SharedLine
from headgate.limits.strict_rate import StrictRate
from headgate.testing.manual_clock import ManualClock
from headgate.testing.virtual_time import VirtualClock, run_virtual

T = TypeVar("T")


class RemoteStore:
    """A store behind a network: every call takes a millisecond there and one back."""

    def __init__(self, clock: VirtualClock) -> None:
        self.buckets = MemoryBuckets(clock)
        self.asked: list[int] = []
        self.opened = 0
        self.closed = 0
        self.is_away = False

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        self.asked.append(count)
        return await self._far(self.buckets.take(bucket, cost, count=count, id=id))

    async def reserve(self, bucket: Bucket, cost: int = 1, *, id: str) -> Taken:
        return await self._far(self.buckets.reserve(bucket, cost, id=id))

    async def cancel(self, bucket: Bucket, *, id: str) -> bool:
        return await self._far(self.buckets.cancel(bucket, id=id))

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        await self._far(self.buckets.amend(bucket, charged_at, cost, started_at, actual))

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        await self._far(self.buckets.penalize(bucket, closed_for))

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        return await self._far(self.buckets.snapshot(bucket))

    async def reset(self, bucket: Bucket) -> None:
        await self._far(self.buckets.reset(bucket))

    async def _far(self, call: Coroutine[Any, Any, T]) -> T:
        await asyncio.sleep(0.001)
        if self.is_away:
            call.close()
            raise StorageUnavailable("the store is away")
        answer = await call
        await asyncio.sleep(0.001)
        return answer


Scene = Callable[[Callable[[Limit], Limiter], VirtualClock], Coroutine[Any, Any, None]]


@pytest.fixture(params=["memory", "shared"])
def play(request: pytest.FixtureRequest) -> Callable[[Scene], None]:
    """Play a scene on virtual time, with limiters on the one kind of store or the other."""

    def played(scene: Scene) -> None:
        async def main(clock: VirtualClock) -> None:
            store: BucketStore = MemoryBuckets(clock) if request.param == "memory" else RemoteStore(clock)
            await scene(lambda limit: Limiter(limit, store, clock=clock), clock)

        run_virtual(main)

    return played


def near(seconds: float) -> Any:
    """Give or take the way to a distant store and back, for the few that are in the way."""
    return pytest.approx(seconds, abs=0.02)


# ------------------------------------------------------------------------------------------------------- deciding


def test_a_limiter_allows_its_count_and_says_when_to_retry(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(StrictRate("2/m", margin=0))
        first, second, third = [await limiter.try_acquire("acme") for _ in range(3)]
        assert (first.allowed, first.remaining, first.retry_after) == (True, 1, 0)
        assert (second.allowed, second.remaining) == (True, 0)
        assert (third.allowed, third.remaining) == (False, 0)
        assert third.retry_after == near(60)
        assert (first.next_after, second.next_after, third.next_after) == (0, near(60), near(60))
        assert second.reset_after == near(60)

    play(scene)


def test_a_decision_is_true_when_it_allows(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/m"))
        assert await limiter.try_acquire()
        assert not await limiter.try_acquire()

    play(scene)


def test_waiting_as_long_as_it_says_is_long_enough(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        # A period that three starts do not divide evenly.
        limiter = new(RateLimit(3, per=0.1, burst=1))
        for _ in range(50):
            assert await limiter.try_acquire()
            refused = await limiter.try_acquire()
            if not refused:
                await asyncio.sleep(refused.retry_after)

    play(scene)


def test_each_key_has_a_budget_of_its_own(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/m"))
        assert await limiter.try_acquire("a")
        assert await limiter.try_acquire("b")
        assert not await limiter.try_acquire("a")

    play(scene)


def test_a_cost_above_the_capacity_is_an_error_immediately(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("5/m"))
        for verb in (limiter.try_acquire, limiter.acquire, limiter.reserve):
            with pytest.raises(CostExceedsLimit):
                await verb("a", 6)
        assert (await limiter.snapshot("a")).used == 0

    play(scene)


@pytest.mark.parametrize("cost", [0, -1])
def test_a_cost_below_one_is_an_error(play: Callable[[Scene], None], cost: int) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("5/m"))
        for verb in (limiter.try_acquire, limiter.acquire, limiter.reserve):
            with pytest.raises(ValueError, match="at least 1"):
                await verb("a", cost)

    play(scene)


def test_a_reset_key_has_its_full_budget(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("5/m"))
        await limiter.try_acquire("a", 5)
        assert (await limiter.snapshot("a")).available == 0
        await limiter.reset("a")
        assert (await limiter.snapshot("a")).available == 5

    play(scene)


def test_a_limit_that_has_a_store_is_kept_there_unless_the_limiter_has_another() -> None:
    """The fault: it was counted in memory, so programs that declared it with one Redis each had all of it."""
    limit = StrictRate("1/h", name="api", store=MemoryBuckets(ManualClock()))
    assert [bool(Limiter(limit).sync.try_acquire()) for _ in range(2)] == [True, False]
    assert Limiter(limit, store="memory://").sync.try_acquire()
    elsewhere = Limiter(StrictRate("1/h", name="api", store="redis://127.0.0.1:1?timeout=0.1"))
    with pytest.raises(StorageUnavailable):
        elsewhere.sync.try_acquire()
    elsewhere.sync.close()


def test_a_decision_has_a_readable_repr() -> None:
    limiter = Limiter(RateLimit("2/m"), clock=ManualClock())
    assert repr(limiter.sync.try_acquire()) == (
        "Decision(allowed=True, retry_after=0.0, remaining=1, reset_after=30.0)"
    )


def test_retry_after_never_says_zero_to_one_who_is_refused() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(RateLimit("1/s", burst=1), clock=clock)
        await limiter.try_acquire()
        waiting = asyncio.ensure_future(limiter.acquire())
        await asyncio.sleep(1)
        # The bucket is open by now, for the one who waits.
        newcomer = await limiter.try_acquire()
        assert not newcomer
        assert newcomer.retry_after > 0
        assert await waiting

    run_virtual(main)


# -------------------------------------------------------------------------------------------------------- waiting


def test_waiters_are_served_in_order_and_on_time(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("10/s", burst=1))
        served: list[tuple[int, float]] = []

        async def one(number: int) -> None:
            assert await limiter.acquire("a")
            served.append((number, clock.monotonic() / SECOND))

        await asyncio.gather(*(one(number) for number in range(30)))
        assert [number for number, _ in served] == list(range(30))
        assert [at for _, at in served] == [near(number / 10) for number in range(30)]

    play(scene)


def test_a_strict_rate_serves_window_by_window(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(StrictRate("5/s", margin=0))
        served: list[float] = []

        async def one() -> None:
            assert await limiter.acquire("a")
            served.append(clock.monotonic() / SECOND)

        await asyncio.gather(*(one() for _ in range(20)))
        assert served == [near(number // 5) for number in range(20)]

    play(scene)


def test_ten_thousand_waiters_of_one_key_are_served_in_order() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(RateLimit("2500/s", burst=1), clock=clock)
        served: list[int] = []

        async def one(number: int) -> None:
            await limiter.acquire("a")
            served.append(number)

        await asyncio.gather(*(one(number) for number in range(10_000)))
        assert served == list(range(10_000))
        assert clock.monotonic() == 9999 * 400

    run_virtual(main)


def test_any_number_of_waiters_of_a_key_sets_one_timer() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(RateLimit("1/m", burst=1), clock=clock)
        waiting = [asyncio.ensure_future(limiter.acquire("a")) for _ in range(1000)]
        await asyncio.sleep(1)
        timers = [
            timer
            for timer in asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
            if not timer.cancelled()
        ]
        assert len(timers) == 1
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)

    run_virtual(main)


def test_a_shared_store_gets_one_request_for_all_waiters() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RemoteStore(clock)
        limiter = Limiter(StrictRate("100/s", margin=0), store, clock=clock)
        assert all(await asyncio.gather(*(limiter.acquire("a") for _ in range(250))))
        assert clock.monotonic() / SECOND == near(2)
        # All waiters, then the remaining ones at each opening, plus a little for the round trip.
        assert len(store.asked) <= 6
        assert store.asked[0] == 250

    run_virtual(main)


def test_two_limiters_of_one_shared_store_use_all_of_the_budget_and_no_more() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RemoteStore(clock)
        here, there = (Limiter(StrictRate("50/s", margin=0), store, clock=clock) for _ in range(2))
        starts: list[int] = []

        async def work(limiter: Limiter) -> None:
            while clock.monotonic() < 20 * SECOND:
                decision = await limiter.acquire("a")
                starts.append(decision.decided_at)

        await asyncio.gather(*(work(limiter) for limiter in (here, there) for _ in range(40)))
        starts.sort()
        assert all(later - earlier >= SECOND for earlier, later in zip(starts, starts[50:], strict=False))
        assert len([start for start in starts if start < starts[0] + 20 * SECOND]) >= 0.99 * 20 * 50

    run_virtual(main)


def test_a_waiter_for_one_key_never_waits_for_another(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/h"))
        await limiter.acquire("a")
        stuck = asyncio.ensure_future(limiter.acquire("a"))
        await asyncio.sleep(1)
        before = clock.monotonic()
        assert await limiter.acquire("b")
        assert clock.monotonic() - before <= 0.01 * SECOND
        stuck.cancel()
        await asyncio.wait([stuck])

    play(scene)


def test_a_cancelled_waiter_consumes_nothing_and_frees_its_place(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/m", burst=1))
        await limiter.acquire("a")
        first, second, third = (asyncio.ensure_future(limiter.acquire("a")) for _ in range(3))
        await asyncio.sleep(30)
        first.cancel()
        await second
        assert clock.monotonic() / SECOND == near(60)
        assert first.cancelled()
        await third
        assert clock.monotonic() / SECOND == near(120)

    play(scene)


@pytest.mark.parametrize("seed", range(20))
def test_cancelling_at_the_very_slot_loses_no_start(seed: int) -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(StrictRate("1/m", margin=0), clock=clock)
        await limiter.acquire("a")
        waiting = [asyncio.ensure_future(limiter.acquire("a")) for _ in range(2)]

        async def cancel() -> None:
            await asyncio.sleep(60)
            waiting[0].cancel()

        await asyncio.gather(cancel(), *waiting, return_exceptions=True)
        granted = [task for task in waiting if not task.cancelled()]
        assert clock.monotonic() == 60 * len(granted) * SECOND

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_a_start_granted_to_one_who_is_being_cancelled_goes_back_to_the_shared_store(seed: int) -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(RateLimit("4/h"), RemoteStore(clock), clock=clock)
        task = asyncio.ensure_future(limiter.acquire("a"))

        async def cancel() -> None:
            # About when the answer is on its way back.
            await asyncio.sleep(0.001 + seed % 2 * 0.001)
            task.cancel()

        await asyncio.gather(cancel(), task, return_exceptions=True)
        await asyncio.sleep(0.1)
        assert (await limiter.snapshot("a")).used == (0 if task.cancelled() else 1)

    run_virtual(main, seed=seed)


def test_a_timeout_that_passes_consumes_nothing(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/m", burst=1))
        await limiter.acquire("a")
        first = asyncio.ensure_future(limiter.acquire("a"))
        await asyncio.sleep(0.1)
        # Its slot would be in two minutes; the first one might leave, though, so it waits.
        late = await limiter.acquire("a", timeout=90)
        assert not late
        assert late.retry_after > 0
        assert 60 <= clock.monotonic() / SECOND <= 90.1
        assert await first
        assert (await limiter.acquire("a")).decided_at - clock.now() <= 0
        assert clock.monotonic() / SECOND == near(120)

    play(scene)


def test_a_timeout_that_cannot_be_met_raises_immediately(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/m", burst=1))
        await limiter.acquire("a")
        refused = await limiter.acquire("a", timeout=59)
        assert not refused
        assert refused.retry_after == near(60)
        assert clock.monotonic() / SECOND == near(0)
        assert await limiter.acquire("a", timeout=60.1)

    play(scene)


def test_a_timeout_of_exactly_the_wait_is_met() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(RateLimit("1/m", burst=1), clock=clock)
        await limiter.acquire("a")
        assert await limiter.acquire("a", timeout=60)

    run_virtual(main)


def test_a_timeout_of_zero_only_tries(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/m", burst=1))
        assert await limiter.acquire("a", timeout=0)
        assert not await limiter.acquire("a", timeout=0)
        assert clock.monotonic() / SECOND == near(0)

    play(scene)


def test_a_costly_waiter_is_not_overtaken_by_cheap_ones(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("10/s", burst=10))
        await limiter.acquire("a", 10)
        served: list[str] = []

        async def one(name: str, cost: int) -> None:
            await limiter.acquire("a", cost)
            served.append(name)

        await asyncio.gather(one("costly", 8), one("cheap", 1), one("other", 1))
        assert served == ["costly", "cheap", "other"]
        assert clock.monotonic() / SECOND == near(1)

    play(scene)


def test_a_try_does_not_overtake_waiters(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("10/s", burst=10))
        await limiter.acquire("a", 10)
        waiting = asyncio.ensure_future(limiter.acquire("a", 10))
        await asyncio.sleep(0.5)
        assert not await limiter.try_acquire("a", 1)
        assert await waiting

    play(scene)


def test_when_the_first_waiter_leaves_a_cheaper_one_starts(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("10/s", burst=10))
        await limiter.acquire("a", 10)
        costly = asyncio.ensure_future(limiter.acquire("a", 10))
        cheap = asyncio.ensure_future(limiter.acquire("a", 1))
        await asyncio.sleep(0.5)
        costly.cancel()
        assert await cheap
        assert clock.monotonic() / SECOND == near(0.5)

    play(scene)


class LateClock:
    """Its timers come late."""

    def __init__(self, clock: VirtualClock, late: int) -> None:
        self._clock = clock
        self._late = late
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.boot_id = clock.boot_id

    def call_at(self, when: int, callback: Callable[[], object]) -> Timer:
        return self._clock.call_at(when + self._late, callback)


def test_late_timers_cost_a_rate_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(RateLimit("1000/s", burst=1), clock=LateClock(clock, 1_500))
        starts = [decision.decided_at for decision in await asyncio.gather(*(limiter.acquire() for _ in range(5000)))]
        # Every start has the slot that it would have had on time.
        assert [start - starts[0] for start in starts] == [number * 1000 for number in range(5000)]
        assert clock.monotonic() <= 5 * SECOND + 1_500

    run_virtual(main)


def test_a_stalled_program_does_not_catch_up_on_missed_starts() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(RateLimit("1000/s", burst=1), clock=LateClock(clock, SECOND))
        await limiter.acquire()
        passed: list[int] = []

        async def one() -> None:
            await limiter.acquire()
            passed.append(clock.monotonic())

        await asyncio.gather(*(one() for _ in range(100)))
        # After a second, those who had a slot in the last 10 ms, and the one that is due.
        assert passed.count(passed[0]) == 11

    run_virtual(main)


def test_late_timers_never_let_a_strict_rate_be_exceeded() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(StrictRate("10/s", margin=0), clock=LateClock(clock, 5_000))
        passed: list[int] = []

        async def one() -> None:
            await limiter.acquire()
            passed.append(clock.monotonic())

        await asyncio.gather(*(one() for _ in range(100)))
        assert all(later - first >= SECOND for first, later in zip(passed, passed[10:], strict=False))

    run_virtual(main)


def test_no_memory_is_kept_for_keys_without_waiters() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryBuckets(clock)
        limit = RateLimit("1/s", burst=1)
        limiter = Limiter(limit, store)
        for key in range(100):
            await limiter.acquire(str(key))
        await asyncio.gather(*(limiter.acquire(str(key)) for key in range(100)))
        assert not store.table("rate 1/s burst 1", limit.rule).lines.by_key

    run_virtual(main)


# --------------------------------------------------------------------------------------------- reserving, holding


def test_reservations_are_given_one_slot_after_another(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/m", burst=1))
        delays = [(await limiter.reserve("a")).delay for _ in range(3)]
        assert delays == [0, near(60), near(120)]

    play(scene)


def test_the_same_id_is_given_the_same_slot(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/m", burst=1))
        await limiter.acquire("a")
        first = await limiter.reserve("a", id="order-1")
        assert first.id == "order-1"
        assert first.delay == near(60)
        await asyncio.sleep(20)
        assert (await limiter.reserve("a", id="order-1")).delay == near(40)

    play(scene)


def test_reservations_are_cancelled_newest_first(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/m", burst=1))
        await limiter.acquire("a")
        first, second = await limiter.reserve("a"), await limiter.reserve("a")
        assert not await first.cancel()
        assert await second.cancel()
        assert await first.cancel()
        assert not await first.cancel()
        assert await limiter.acquire("a", timeout=61)

    play(scene)


def test_a_cancelled_reservation_releases_waiters_sooner(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/m", burst=1))
        await limiter.acquire("a")
        booked = await limiter.reserve("a")
        waiting = asyncio.ensure_future(limiter.acquire("a"))
        await asyncio.sleep(1)
        assert await booked.cancel()
        assert await waiting
        assert clock.monotonic() / SECOND == near(60)

    play(scene)


def test_a_waiter_with_a_timeout_waits_while_a_reservation_can_be_cancelled() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(RateLimit("1/m", burst=1), clock=clock)
        await limiter.acquire("a")
        booked = await limiter.reserve("a")
        waiting = asyncio.ensure_future(limiter.acquire("a", timeout=70))
        await asyncio.sleep(1)
        assert not waiting.done()
        await booked.cancel()
        assert await waiting

    run_virtual(main)


def test_a_held_start_is_settled_up_and_down(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit(1000, per=3600))
        async with limiter.hold("a", cost=100) as held:
            await held.settle(40)
            assert (await limiter.snapshot("a")).used == 40
            await held.settle(250)
        assert (await limiter.snapshot("a")).used == 250

    play(scene)


def test_a_cost_that_could_not_be_settled_is_charged_when_it_is_settled_again() -> None:
    """The fault: a repeat after an error changed nothing, so a start counted as less than it cost."""

    class Losing(RemoteStore):
        loses_answers = False

        async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> None:
            await super().amend(bucket, charged_at, cost, started_at, actual)
            if self.loses_answers:
                raise StorageUnavailable("the answer was lost")

    async def main(clock: VirtualClock) -> None:
        store = Losing(clock)
        limiter = Limiter(SlidingWindow(1000, per=3600), store, clock=clock)

        async def settle_twice(actual: int, *, is_away: bool = False) -> int:
            store.is_away, store.loses_answers = is_away, not is_away
            with pytest.raises(StorageUnavailable):
                await held.settle(actual)
            store.is_away = store.loses_answers = False
            await held.settle(actual)
            return (await limiter.snapshot("a")).used

        async with limiter.hold("a", cost=100) as held:
            assert await settle_twice(250, is_away=True) == 250
            # Whether the first one was counted is not known: it may count as more, but never as less.
            assert await settle_twice(300) == 350
            assert await settle_twice(40, is_away=True) == 350
        async with limiter.hold("b", cost=100), limiter.hold("a", cost=100) as held:
            assert await settle_twice(40) == 390
        await limiter.close()

    run_virtual(main)


def test_a_settled_refund_releases_waiters_immediately(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit(10, per=3600))
        async with limiter.hold("a", cost=10) as held:
            waiting = asyncio.ensure_future(limiter.acquire("a", 5))
            await asyncio.sleep(7)
            await held.settle(2)
            assert await waiting
            assert clock.monotonic() / SECOND == near(7)

    play(scene)


def test_an_actual_cost_below_zero_is_an_error(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit(10, per=3600))
        async with limiter.hold("a", cost=10) as held:
            with pytest.raises(ValueError, match="at least 0"):
                await held.settle(-1)

    play(scene)


def test_a_held_start_stays_charged_when_the_block_fails(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit(10, per=3600))
        with pytest.raises(ZeroDivisionError):
            async with limiter.hold("a", cost=3):
                raise ZeroDivisionError
        assert (await limiter.snapshot("a")).used == 3

    play(scene)


def test_holding_with_a_timeout_that_cannot_be_met_raises(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit(1, per=3600))
        await limiter.acquire("a")
        with pytest.raises(TimeoutError, match="'a'"):
            async with limiter.hold("a", timeout=1):
                raise AssertionError("nobody may get here")

    play(scene)


# ------------------------------------------------------------------------------------------------------ penalties


def test_a_penalized_key_grants_nothing_until_then_and_delays_no_other_key(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("10/s"))
        await limiter.penalize("a", 30)
        refused = await limiter.try_acquire("a")
        assert (refused.allowed, refused.remaining) == (False, 0)
        assert refused.retry_after == near(30)
        assert refused.reset_after == near(30)
        assert await limiter.try_acquire("b")
        began = clock.monotonic()
        assert await limiter.acquire("a")
        assert (clock.monotonic() - began) / SECOND == near(30)

    play(scene)


def test_waiters_are_delayed_by_a_penalty(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/s", burst=1))
        assert await limiter.acquire("a")
        waiting = [asyncio.ensure_future(limiter.acquire("a")) for _ in range(2)]
        await asyncio.sleep(0.5)
        await limiter.penalize("a", 10)
        assert await waiting[0]
        assert clock.monotonic() / SECOND == near(10.5)
        assert await waiting[1]
        assert clock.monotonic() / SECOND == near(11.5)

    play(scene)


def test_a_key_is_penalized_until_an_instant_and_a_reset_lifts_it(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("10/s"))
        await limiter.penalize("a", to_datetime(clock.now() + 60 * SECOND))
        await limiter.penalize("a", 5)
        await limiter.penalize("a", -5)
        assert (await limiter.try_acquire("a")).retry_after == near(60)
        waiting = asyncio.ensure_future(limiter.acquire("a"))
        await asyncio.sleep(1)
        await limiter.reset("a")
        assert await waiting
        assert clock.monotonic() / SECOND == near(1)
        with pytest.raises(ValueError, match="no time zone"):
            await limiter.penalize("a", to_datetime(clock.now()).replace(tzinfo=None))

    play(scene)


def test_a_waiter_whose_timeout_is_shorter_than_a_penalty_raises_immediately() -> None:
    async def main(clock: VirtualClock) -> None:
        for limit in (RateLimit("10/s"), Concurrency(3)):
            limiter = Limiter(limit, clock=clock)
            async with limiter.hold("a"):
                await limiter.penalize("a", 60)
                assert not await limiter.acquire("a", timeout=59)
                assert clock.monotonic() == 0

    run_virtual(main)


def test_permits_are_not_handed_out_under_a_penalized_key_and_stay_with_their_holders() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(Concurrency(1), clock=clock)
        async with limiter.hold("a"):
            waiting = asyncio.ensure_future(limiter.acquire("a"))
            await asyncio.sleep(1)
            await limiter.penalize("a", 60)
        assert await waiting
        assert clock.monotonic() == 61 * SECOND
        await limiter.penalize("a", 60)
        await limiter.reset("a")
        assert not await limiter.try_acquire("a"), "somebody holds it"
        limiter.release("a")
        assert await limiter.try_acquire("a")

    run_virtual(main)


def test_threads_penalize_as_well_and_keys_that_have_opened_are_forgotten() -> None:
    clock = ManualClock()
    store = MemoryBuckets(clock)
    limiter = Limiter(RateLimit("10/s", name="api"), store, clock=clock).sync
    for number in range(1000):
        limiter.penalize(f"tenant-{number}", 0.5)
        clock.advance(0.01)
    table = store.table("api", RateLimit("10/s").rule)
    assert len(table.closed.until_by_key) < 200
    assert not limiter.try_acquire("tenant-999")
    # Declared again, its keys are as closed as before.
    assert not Limiter(RateLimit("5/s", name="api"), store, clock=clock).sync.try_acquire("tenant-999")
    clock.advance(0.5)
    assert limiter.try_acquire("tenant-999")
    limiter.close()
    with pytest.raises(GateClosed):
        limiter.penalize("tenant-1", 1)


# -------------------------------------------------------------------------------------------------------- permits


def test_no_more_than_the_count_hold_a_permit() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(Concurrency(3), clock=clock)
        inside: list[int] = []
        most = 0

        async def work(number: int) -> None:
            nonlocal most
            async with limiter.hold("a"):
                inside.append(number)
                most = max(most, len(inside))
                await asyncio.sleep(1)
                inside.remove(number)

        await asyncio.gather(*(work(number) for number in range(10)))
        assert most == 3
        assert clock.monotonic() == 4 * SECOND
        assert (await limiter.snapshot("a")).used == 0

    run_virtual(main)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, GeneratorExit])
def test_a_permit_is_returned_after_every_end_of_the_block(error: type[BaseException]) -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(Mutex("orders"), clock=clock)
        with pytest.raises(error):
            async with limiter.hold("a"):
                raise error
        assert await limiter.acquire("a", timeout=0)

    run_virtual(main)


def test_a_permit_is_returned_when_the_holder_is_cancelled() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(Mutex("orders"), clock=clock)

        async def work() -> None:
            async with limiter.hold("a"):
                await asyncio.sleep(3600)

        holder, waiter = asyncio.ensure_future(work()), asyncio.ensure_future(work())
        await asyncio.sleep(1)
        holder.cancel()
        await asyncio.sleep(1)
        assert (await limiter.snapshot("a")).used == 1
        waiter.cancel()
        await asyncio.wait([holder, waiter])
        assert (await limiter.snapshot("a")).used == 0

    run_virtual(main)


def test_time_opens_no_mutex() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(Mutex("orders"), clock=clock)
        assert await limiter.acquire("a")
        refused = await limiter.try_acquire("a")
        assert not refused
        assert refused.retry_after == math.inf
        assert not await limiter.acquire("a", timeout=100 * 86400)
        limiter.release("a")
        assert await limiter.try_acquire("a")

    run_virtual(main)


def test_a_waiter_with_a_timeout_gets_a_permit_returned_in_time() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(Concurrency(1), clock=clock)

        async def work() -> None:
            async with limiter.hold("a"):
                await asyncio.sleep(5)

        working = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        assert await limiter.acquire("a", timeout=6)
        assert clock.monotonic() == 5 * SECOND
        await working

    run_virtual(main)


def test_a_waiter_with_a_timeout_waits_for_a_permit_acquired_without_a_block() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(Concurrency(1), clock=clock)
        assert await limiter.acquire("a")
        waiting = asyncio.ensure_future(limiter.acquire("a", timeout=6))
        await asyncio.sleep(5)
        limiter.release("a")
        assert await waiting
        assert clock.monotonic() == 5 * SECOND

    run_virtual(main)


def test_a_reset_leaves_permits_with_those_who_hold_them() -> None:
    limiter = Limiter(Concurrency(1), clock=ManualClock())
    with limiter.sync.hold("a"):
        limiter.sync.reset("a")
        assert not limiter.sync.try_acquire("a")
    assert limiter.sync.try_acquire("a")


@pytest.mark.parametrize("cost", [float("nan"), 1.5, True, "2"])
def test_a_cost_that_is_no_whole_number_is_refused_and_changes_nothing(cost: Any) -> None:
    limiter = Limiter(FixedWindow("2/d"), clock=ManualClock())
    with pytest.raises(ValueError, match="whole number"):
        limiter.sync.try_acquire("a", cost)
    assert [bool(limiter.sync.try_acquire("a")) for _ in range(3)] == [True, True, False]


def test_a_costly_permit_takes_its_cost() -> None:
    limiter = Limiter(Concurrency(10), clock=ManualClock())
    assert limiter.sync.try_acquire("a", 8)
    assert not limiter.sync.try_acquire("a", 3)
    limiter.release("a", 8)
    assert limiter.sync.try_acquire("a", 3)
    with pytest.raises(CostExceedsLimit):
        limiter.sync.try_acquire("a", 11)


def test_more_permits_than_are_held_cannot_be_returned() -> None:
    limiter = Limiter(Concurrency(2), clock=ManualClock())
    limiter.sync.try_acquire("a")
    limiter.sync.release("a")
    with pytest.raises(ValueError, match="1 given back of 0"):
        limiter.sync.release("a")


@pytest.mark.parametrize("cost", [-5, 0, True, 1.0, "1"])
def test_an_invalid_number_of_permits_cannot_be_returned(cost: Any) -> None:
    """The fault: giving back less than nothing took more permits out of the bucket."""
    limiter = Limiter(Concurrency(2), clock=ManualClock())
    limiter.sync.try_acquire("a")
    for release in (limiter.release, limiter.sync.release):
        with pytest.raises(ValueError, match="whole number, at least 1"):
            release("a", cost)
    assert [bool(limiter.sync.try_acquire("a")) for _ in range(2)] == [True, False]


def test_starts_are_not_returned_and_permits_not_settled_or_booked() -> None:
    rate, permits = (Limiter(limit, clock=ManualClock()) for limit in (RateLimit("1/m"), Concurrency(1)))
    with pytest.raises(HeadgateError, match="counts starts"):
        rate.release()
    with pytest.raises(HeadgateError, match="its slot cannot be predicted"):
        permits.sync.reserve()
    with permits.sync.hold() as held, pytest.raises(HeadgateError, match="given back whole"):
        held.settle(1)


# -------------------------------------------------------------------------------------------------------- closing


def test_closing_wakes_all_waiters(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("1/h"))
        await limiter.acquire("a")
        waiting = [asyncio.ensure_future(limiter.acquire("a")) for _ in range(5)]
        await asyncio.sleep(1)
        await limiter.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, GateClosed) for outcome in outcomes)
        assert clock.monotonic() / SECOND == near(1)

    play(scene)


def test_a_closed_limiter_says_so_and_may_be_closed_again(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        limiter = new(RateLimit("9/m"))
        async with limiter:
            await limiter.acquire("a")
        await limiter.close()
        for verb in (limiter.try_acquire, limiter.acquire, limiter.reserve, limiter.snapshot, limiter.reset):
            with pytest.raises(GateClosed):
                await verb("a")

    play(scene)


def test_closing_one_limiter_leaves_another_on_the_same_store_open(play: Callable[[Scene], None]) -> None:
    async def scene(new: Callable[[Limit], Limiter], clock: VirtualClock) -> None:
        one, other = (new(RateLimit("1/m", burst=1)) for _ in range(2))
        await one.acquire("a")
        waiting = asyncio.ensure_future(other.acquire("a"))
        await asyncio.sleep(1)
        await one.close()
        assert await waiting
        assert clock.monotonic() / SECOND == near(60)

    play(scene)


def test_a_permit_may_come_back_after_the_limiter_was_closed() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryBuckets(clock)
        one, other = (Limiter(Concurrency(1), store) for _ in range(2))
        async with one.hold("a"):
            await one.close()
        assert await other.try_acquire("a")

    run_virtual(main)


def test_a_store_that_was_handed_in_stays_open() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RemoteStore(clock)
        limiter = Limiter(RateLimit("9/m"), store, clock=clock)
        await asyncio.gather(*(limiter.acquire(str(key)) for key in range(10)))
        await limiter.close()
        assert (store.opened, store.closed) == (1, 0)

    run_virtual(main)


# -------------------------------------------------------------------------------------------------- shared stores


def test_all_waiters_raise_when_the_store_is_unavailable_and_can_try_again() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RemoteStore(clock)
        limiter = Limiter(RateLimit("9/m"), store, clock=clock)
        store.is_away = True
        outcomes = await asyncio.gather(*(limiter.acquire("a") for _ in range(3)), return_exceptions=True)
        assert all(isinstance(outcome, StorageUnavailable) for outcome in outcomes)
        store.is_away = False
        assert await limiter.acquire("a")

    run_virtual(main)


def test_permits_returned_by_another_process_are_noticed_later() -> None:
    async def main(clock: VirtualClock) -> None:
        store = RemoteStore(clock)
        limit = RateLimit("1/h")
        limiter, elsewhere = (Limiter(limit, store, clock=clock) for _ in range(2))
        await limiter.acquire("a")
        waiting = asyncio.ensure_future(limiter.acquire("a"))
        await asyncio.sleep(5)
        await elsewhere.reset("a")
        assert await waiting
        assert clock.monotonic() <= 11 * SECOND

    run_virtual(main)


def test_two_limits_that_differ_do_not_share_a_budget() -> None:
    store = MemoryBuckets(ManualClock())
    assert Limiter(RateLimit("1/m"), store).sync.try_acquire()
    assert Limiter(RateLimit("1/h"), store).sync.try_acquire()
    assert Limiter(RateLimit("1/h", name="openai"), store).sync.try_acquire()
    assert not Limiter(RateLimit("1/h"), store).sync.try_acquire()
    assert not Limiter(RateLimit("1/h", name="openai"), store).sync.try_acquire()


def test_a_limit_declared_again_under_its_name_keeps_its_debt() -> None:
    store = MemoryBuckets(ManualClock())
    assert Limiter(RateLimit("10/m", name="openai"), store).sync.try_acquire("a", 6)
    assert Limiter(RateLimit("20/m", name="openai"), store).sync.snapshot("a").available == 14
    # And back again, however often.
    assert Limiter(RateLimit("10/m", name="openai"), store).sync.snapshot("a").available == 4


def test_mutexes_of_unlike_resources_do_not_exclude_each_other() -> None:
    store = MemoryBuckets(ManualClock())
    orders, invoices, again = (Limiter(Mutex(resource), store).sync for resource in ("orders", "invoices", "orders"))
    with orders.hold("42"), invoices.hold("42", timeout=0):
        assert not again.try_acquire("42")


def test_a_rate_and_permits_of_one_name_have_budgets_and_lines_of_their_own() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryBuckets(clock)
        slots, starts = Limiter(Concurrency(1, name="openai"), store), Limiter(StrictRate("1/m", name="openai"), store)

        async def call() -> None:
            async with slots.hold("a"):
                await starts.acquire("a")

        await asyncio.gather(*(call() for _ in range(3)))
        assert clock.monotonic() < 130 * SECOND

    run_virtual(main)


def test_a_waiter_goes_when_a_holder_of_another_count_returns_its_permit() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryBuckets(clock)
        former, latter = (Limiter(Concurrency(count, name="exports"), store) for count in (2, 1))
        async with former.hold("a"):
            waiting = asyncio.ensure_future(latter.acquire("a"))
            refused = asyncio.ensure_future(latter.acquire("a", timeout=5))
            await asyncio.sleep(10)
            assert not waiting.done()
            assert not await refused
        await asyncio.sleep(1)
        assert waiting.done()
        assert await waiting

    run_virtual(main)


def test_a_cost_that_is_settled_under_another_rule_of_the_limit_is_waited_for() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryBuckets(clock)
        former, latter = (Limiter(StrictRate(count, name="openai"), store) for count in ("4/h", "3/h"))
        async with former.hold("a", cost=3) as held:
            waiting = asyncio.ensure_future(latter.acquire("a", timeout=60))
            await asyncio.sleep(10)
            await held.settle(1)
            assert await waiting

    run_virtual(main)


def test_unknown_stores_and_limits_are_refused_at_declaration() -> None:
    with pytest.raises(DeclarationError, match="mongodb"):
        Limiter(RateLimit("1/m"), "mongodb://here")
    with pytest.raises(DeclarationError, match="RateLimit"):
        Limiter("15/m")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("redis://localhost", "redis", "redis"),
        ("redis://localhost", "hiredis", "redis"),
        ("postgresql://localhost/db", "asyncpg", "postgres"),
    ],
)
def test_a_missing_package_is_named(url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if f"{name}.".startswith((f"{package}.", f"headgate.limits.{extra}.", f"headgate.storage.{extra}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DeclarationError, match=f"{package} package.*headgate\\[{extra}\\]"):
        Limiter(RateLimit("1/m"), url)


async def test_each_waiter_of_a_shared_request_that_fails_gets_an_error_of_its_own() -> None:
    may_fail = asyncio.Event()

    async def ask(cost: int, *, count: int, patience: int) -> TakenOrBooked:
        await may_fail.wait()
        raise StorageUnavailable("the store is away")

    async def first() -> object:
        lines.append(SharedLine(SystemClock(), ask, lambda taken, cost: None, lambda: None))
        return await lines[0].wait(1, None)

    lines: list[SharedLine] = []
    waiting = [asyncio.ensure_future(first())]
    await asyncio.sleep(0)
    waiting += [asyncio.ensure_future(lines[0].wait(1, None)) for _ in range(2)]
    await asyncio.sleep(0)
    may_fail.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert {str(error) for error in found} == {"the store is away"}
    assert len({id(error) for error in found}) == 3


def test_a_cost_above_the_rule_in_force_is_an_error_of_its_callers_alone() -> None:
    """The fault: all who waited for the key got the error of the one whose cost was too high."""

    class Lowered(RemoteStore):
        async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
            in_force = Bucket(bucket.limit, bucket.key, RateLimit("5/m").rule)
            return await super().take(in_force, cost, count=count, id=id)

    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(RateLimit("10/m"), Lowered(clock), clock=clock)
        waiting = (limiter.acquire("a", cost) for cost in (7, 1, 7, 2, 8))
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [getattr(each, "allowed", None) for each in found] == [None, True, None, True, None]
        refused = [str(each).partition(" ")[0] for each in found if isinstance(each, CostExceedsLimit)]
        assert refused == ["cost=7", "cost=7", "cost=8"]
        assert await limiter.acquire("a", 2)
        await limiter.close()

    run_virtual(main)


def test_all_callers_learn_together_that_the_store_cannot_be_opened() -> None:
    """The fault: each tried to connect once the one before had given up, so that the last of 20 waited for 40 s."""

    class SlowStore(RemoteStore):
        async def open(self) -> None:
            await asyncio.sleep(2)
            if self.is_away:
                raise StorageUnavailable("the store is away")
            await super().open()

    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        limiter = Limiter(RateLimit("20/s", burst=20), store, clock=clock)
        store.is_away = True
        for _ in range(2):
            began = clock.monotonic()
            errors = await asyncio.gather(*(limiter.acquire("42") for _ in range(20)), return_exceptions=True)
            assert {str(error) for error in errors} == {"the store is away"}
            assert len({id(error) for error in errors}) == 20
            assert clock.monotonic() - began < 3 * SECOND
        store.is_away = False
        assert all(await asyncio.gather(*(limiter.acquire("42") for _ in range(20))))
        assert store.opened == 1
        await limiter.close()

    run_virtual(main)
