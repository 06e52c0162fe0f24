"""Custom parts: an object that implements the protocol can be passed in place of a URL."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headgate import (
    DeclarationError,
    Every,
    Headgate,
    JobFailed,
    Limiter,
    RateLimited,
    RetryPolicy,
    StrictRate,
    current_job,
)
from headgate.clock import SECOND
from headgate.errors import StorageUnavailable
from headgate.jobs.event import (
    Event,
    LimitStoreFailed,
    LimitStoreMisconfigured,
    NodeCrashed,
    RetryPolicyFailed,
    ScheduleFailed,
    StorageFailed,
)
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.bad_stores import BAD_ANSWERS, MISDEEDS, BadBuckets, hanging, raising, returning
from tests.until import result_within


class OwnBuckets:
    """A bucket store of one's own, which keeps all keys under a prefix."""

    def __init__(self, clock: VirtualClock) -> None:
        self._inner = MemoryBuckets(clock)
        self.asked: list[str] = []

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        self.asked.append(bucket.key)
        return await self._inner.take(bucket, cost, count=count, id=id)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)


def test_limits_are_kept_in_a_custom_store() -> None:
    async def main(clock: VirtualClock) -> None:
        buckets: Any = OwnBuckets(clock)
        app = Headgate("memory://", clock=clock)
        starts: list[int] = []

        @app.task(limits=[StrictRate("2/m", key="{tenant}", store=buckets, margin=0)])
        async def call(tenant: str) -> None:
            starts.append(clock.monotonic() // SECOND)

        async with app:
            await call.enqueue_many([("acme",)] * 5)
            await asyncio.sleep(150)
        assert starts == [0, 0, 60, 60, 120]
        assert set(buckets.asked) == {"acme"}

    run_virtual(main)


def work_beside(clock: VirtualClock, bad: Any, *, policy: Any = "run") -> tuple[Headgate, Counter[str], list[Event]]:
    """An app with a limit in a bad store, one in a good store, and one with the jobs."""
    app = Headgate("memory://", clock=clock)
    started: Counter[str] = Counter()
    events: list[Event] = []
    app.subscribe(events.append)
    good: Any = OwnBuckets(clock)

    @app.task(name="bad", limits=[StrictRate("1000/m", key="{key}", name="bad", store=bad, on_store_error=policy)])
    async def on_bad_store(key: str) -> None:
        started["bad"] += 1

    @app.task(name="good", limits=[StrictRate("1000/m", name="good", store=good)])
    async def on_good_store() -> None:
        started["good"] += 1

    @app.task(name="local", limits=[StrictRate("1000/m", name="local")])
    async def on_local_limit() -> None:
        started["local"] += 1

    return app, started, events


@pytest.mark.parametrize("verb", ["open", "take"])
@pytest.mark.parametrize("instead", MISDEEDS.values(), ids=MISDEEDS.keys())
def test_a_bucket_store_that_breaks_its_protocol_stops_no_node_and_delays_no_other_job(
    verb: str, instead: Callable[[], Any]
) -> None:
    async def main(clock: VirtualClock) -> None:
        bad: Any = BadBuckets(clock, verb, instead)
        app, started, events = work_beside(clock, bad)
        async with app:
            await app.tasks["bad"].enqueue_many([("acme",), ("globex",)])
            await asyncio.sleep(0.5)
            for _ in range(5):
                await app.tasks["good"].enqueue()
                await app.tasks["local"].enqueue()
            await asyncio.sleep(1)
            assert (started["good"], started["local"]) == (5, 5)
            await asyncio.sleep(15)
            # The limit says that its jobs run while its store cannot be asked.
            assert started["bad"] == 2
            bad.is_bad = False
            await asyncio.sleep(60)
            await result_within(await app.tasks["bad"].enqueue("acme"), 30)
        received = [event for event in events if isinstance(event, LimitStoreFailed)]
        assert {event.limit for event in received} == {"bad"}
        assert all("BadBuckets" in event.error and verb in event.error for event in received[:1]), received
        assert not [event for event in events if isinstance(event, NodeCrashed)]

    run_virtual(main)


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
def test_a_bucket_store_that_returns_none_counts_as_unavailable(answer: Any) -> None:
    async def main(clock: VirtualClock) -> None:
        bad: Any = BadBuckets(clock, "take", returning(answer))
        app, started, events = work_beside(clock, bad, policy="wait")
        async with app:
            await app.tasks["bad"].enqueue_many([("acme",)] * 2)
            await app.tasks["good"].enqueue()
            await asyncio.sleep(60)
            assert started == {"good": 1}
            # The breaker lets it be asked less and less often.
            assert 2 <= bad.asked <= 20
            bad.is_bad = False
            await asyncio.sleep(60)
            assert started == {"good": 1, "bad": 2}
        received = [event for event in events if isinstance(event, LimitStoreFailed)]
        assert "BadBuckets.take returned" in received[0].error

    run_virtual(main)


def test_jobs_of_a_rule_that_a_store_cannot_hold_wait_and_other_limits_work() -> None:
    async def main(clock: VirtualClock) -> None:
        bad: Any = BadBuckets(clock, "take", raising(DeclarationError("beyond my numbers")))
        app, started, events = work_beside(clock, bad)
        async with app:
            await app.tasks["bad"].enqueue_many([("acme",)] * 3)
            await asyncio.sleep(60)
            assert started == {}
            assert bad.asked <= 62
            bad.is_bad = False
            await asyncio.sleep(2)
            assert started == {"bad": 3}
        received = [(event.error, event.jobs_run) for event in events if isinstance(event, LimitStoreFailed)]
        assert received == [("beyond my numbers", False)]

    run_virtual(main)


def test_a_bucket_store_that_refuses_and_says_it_is_open_is_asked_once_a_second() -> None:
    async def main(clock: VirtualClock) -> None:
        now = clock.now()
        for opens_at in (now, now - 5 * SECOND, 0):
            refusal = Taken(granted=0, opens_at=opens_at, now=now, available=0, full_at=opens_at)
            bad: Any = BadBuckets(clock, "take", returning(refusal))
            app, started, events = work_beside(clock, bad)
            async with app:
                await app.tasks["bad"].enqueue_many([("acme",)] * 3)
                await asyncio.sleep(60)
                # It answers: that no start is granted is its word.
                assert started == {}
                assert 50 <= bad.asked <= 62
                advised = [event for event in events if isinstance(event, LimitStoreMisconfigured)]
                assert [event.limit for event in advised] == ["bad"]
                assert "refuses" in advised[0].advice

    run_virtual(main)


@pytest.mark.parametrize("instead", MISDEEDS.values(), ids=MISDEEDS.keys())
def test_writing_to_a_bucket_store_that_breaks_its_protocol_stops_no_node(instead: Callable[[], Any]) -> None:
    async def main(clock: VirtualClock) -> None:
        for verb in ("amend", "penalize", "snapshot"):
            bad: Any = BadBuckets(clock, verb, instead)
            app, started, events = work_beside(clock, bad)
            refused: list[str] = []

            @app.task(name="settles", limits=[StrictRate("1000/m", name="tokens", cost=2, store=bad)])
            async def settles() -> None:
                current_job().settle("tokens", 1)

            @app.task(name="refused", limits=[StrictRate("1000/m", name="partner", store=bad)])
            async def is_refused(refused: list[str] = refused) -> None:
                refused.append("called")
                if len(refused) == 1:
                    raise RateLimited(retry_after=1)

            async with app:
                await result_within(await settles.enqueue(), 30)
                await app.tasks["refused"].enqueue()
                await asyncio.sleep(30)
                await app.tasks["good"].enqueue()
                await result_within(await app.tasks["bad"].enqueue("acme"), 30)
                await result_within(await settles.enqueue(), 30)
                assert started == {"good": 1, "bad": 1}
                assert len(refused) == 2
                assert {bucket.limit for bucket in await app.admin.limits.list()} >= {"tokens", "good"}
            troubled = [event.doing for event in events if isinstance(event, StorageFailed)]
            assert bool(troubled) == (verb in ("amend", "penalize"))
            assert not [event for event in events if isinstance(event, NodeCrashed)]

    run_virtual(main)


def test_a_bucket_store_whose_advice_cannot_be_read_gives_none() -> None:
    async def main(clock: VirtualClock) -> None:
        for instead in (lambda: 1 / 0, lambda: 5):
            bad: Any = BadBuckets(clock, "advice", instead)
            app, started, events = work_beside(clock, bad)
            async with app:
                await result_within(await app.tasks["bad"].enqueue("acme"), 5)
            assert started == {"bad": 1}
            assert not [event for event in events if isinstance(event, LimitStoreMisconfigured | LimitStoreFailed)]

    run_virtual(main)


def test_operators_get_a_clear_error_of_a_bucket_store_that_breaks_its_protocol() -> None:
    async def main(clock: VirtualClock) -> None:
        for instead in (raising(ValueError("boom")), hanging):
            bad: Any = BadBuckets(clock, "reset", instead)
            app, _, _ = work_beside(clock, bad)
            async with app:
                with pytest.raises(StorageUnavailable, match=r"BadBuckets\.reset"):
                    await app.admin.limits.reset("bad", "acme")

    run_virtual(main)


def test_plain_code_that_waits_for_a_bad_bucket_store_gets_its_error_and_never_spins() -> None:
    async def main(clock: VirtualClock) -> None:
        limit = StrictRate("1/m", name="api")
        refusal = Taken(granted=0, opens_at=0, now=0, available=0, full_at=0)
        bad: Any = BadBuckets(clock, "take", returning(refusal))
        limiter = Limiter(limit, store=bad, clock=clock)
        waiting = asyncio.ensure_future(limiter.acquire("acme"))
        await asyncio.sleep(30)
        assert 20 <= bad.asked <= 31
        bad.is_bad = False
        assert await waiting
        for error in (asyncio.CancelledError(), ValueError("boom"), SystemExit(3)):
            bad = BadBuckets(clock, "take", raising(error))
            limiter = Limiter(limit, store=bad, clock=clock)
            waiters = [asyncio.ensure_future(limiter.acquire("acme")) for _ in range(2)]
            done, _ = await asyncio.wait(waiters, timeout=5)
            assert len(done) == 2
            for waiter in waiters:
                with pytest.raises(ValueError if isinstance(error, ValueError) else StorageUnavailable):
                    waiter.result()

    run_virtual(main)


class OwnTrigger:
    """Comes every minute, and after `fails_from` answers with something else."""

    def __init__(self, clock: VirtualClock, verb: str, instead: Callable[[int], Any], fails_in: float = 150) -> None:
        self._clock = clock
        self._verb = verb
        self._instead = instead
        self._fails_from = clock.now() + fails_in * SECOND

    def next_after(self, instant: int) -> Any:
        return self._answer("next_after", instant, instant - instant % (60 * SECOND) + 60 * SECOND)

    def latest_at_or_before(self, instant: int) -> Any:
        return self._answer("latest_at_or_before", instant, instant - instant % (60 * SECOND))

    def describe(self) -> str:
        return "minutes"

    def _answer(self, verb: str, instant: int, answer: int) -> Any:
        return self._instead(instant) if verb == self._verb and self._clock.now() >= self._fails_from else answer


def throwing(error: BaseException) -> Callable[[Any], Any]:
    def call(_: Any) -> Any:
        raise error

    return call


def beyond_databases(instant: int) -> int:
    return instant + (1 << 62)


def beyond_all_numbers(_: int) -> int:
    return 10**40


@pytest.mark.parametrize("verb", ["next_after", "latest_at_or_before"])
@pytest.mark.parametrize(
    "instead",
    [
        throwing(ValueError("boom")),
        throwing(SystemExit(3)),
        throwing(asyncio.CancelledError()),
        throwing(GeneratorExit()),
        lambda instant: float(instant) + 1.5e6,
        lambda instant: str(instant),
        beyond_databases,
        beyond_all_numbers,
        lambda instant: True,
    ],
)
def test_a_custom_trigger_that_returns_an_invalid_instant_stops_only_its_schedule(
    verb: str, instead: Callable[[int], Any]
) -> None:
    async def main(clock: VirtualClock) -> None:
        app, runs = Headgate("memory://", clock=clock), Counter[str]()
        events: list[Event] = []
        app.subscribe(events.append, ScheduleFailed, NodeCrashed)

        @app.schedule(OwnTrigger(clock, verb, instead))
        @app.task(name="own")
        async def own() -> None:
            runs["own"] += 1

        @app.schedule(Every(minutes=1))
        @app.task(name="other")
        async def other() -> None:
            runs["other"] += 1

        async with app:
            await asyncio.sleep(130)
            assert runs["own"] == 2
        # What was missed is made up for by the last one.
        await asyncio.sleep(300)
        async with app:
            await asyncio.sleep(310)
        assert runs["own"] <= 3
        assert runs["other"] >= 7
        # A next instant after the year 9999 is none: that schedule has come to its end.
        ends = verb == "next_after" and instead in (beyond_databases, beyond_all_numbers)
        assert [type(event) for event in events] == ([] if ends else [ScheduleFailed])

    run_virtual(main)


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3), asyncio.CancelledError()])
def test_a_custom_trigger_that_always_fails_stops_only_its_schedule(error: BaseException) -> None:
    async def main(clock: VirtualClock) -> None:
        app, runs = Headgate("memory://", clock=clock), Counter[str]()
        events: list[Event] = []
        app.subscribe(events.append, ScheduleFailed, NodeCrashed)

        @app.schedule(OwnTrigger(clock, "next_after", throwing(error), fails_in=0))
        @app.task(name="own")
        async def own() -> None: ...

        @app.schedule(Every(minutes=1))
        @app.task(name="other")
        async def other() -> None:
            runs["other"] += 1

        async with app:
            await asyncio.sleep(130)
        assert runs == {"other": 2}
        assert [type(event) for event in events] == [ScheduleFailed]

    run_virtual(main)


@pytest.mark.parametrize(
    "backoff",
    [
        throwing(ValueError("boom")),
        throwing(SystemExit(3)),
        throwing(asyncio.CancelledError()),
        throwing(GeneratorExit()),
        lambda _: "soon",
        lambda _: float("nan"),
        lambda _: float("inf"),
        lambda _: object(),
    ],
)
def test_a_custom_backoff_that_returns_an_invalid_delay_loses_no_job(backoff: Any) -> None:
    async def main(clock: VirtualClock) -> None:
        app, tries = Headgate("memory://", clock=clock), list[str]()
        failed: list[Event] = []
        app.subscribe(failed.append, RetryPolicyFailed)

        @app.task(retry=RetryPolicy(retries=2, backoff=backoff))
        async def work() -> None:
            tries.append("tried")
            raise ValueError("no")

        @app.task
        async def other() -> None: ...

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(1)
            await result_within(await other.enqueue(), 5)
            with pytest.raises(JobFailed):
                await result_within(job, 3600)
        assert len(tries) == 3

    run_virtual(main)


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
def test_a_custom_key_that_fails_later_stops_no_schedule_of_another_task(error: BaseException) -> None:
    async def main(clock: VirtualClock) -> None:
        app, runs = Headgate("memory://", clock=clock), Counter[str]()
        crashed: list[Event] = []
        app.subscribe(crashed.append, NodeCrashed)
        begins_at = clock.now()

        def cost(tenant: str) -> int:
            if clock.now() > begins_at + 90 * SECOND:
                raise error
            return 1

        @app.task(name="own", limits=[StrictRate("1000/m", key="{tenant}", cost=cost)])
        async def own(tenant: str) -> None:
            runs["own"] += 1

        @app.schedule(Every(minutes=1))
        @app.task(name="other")
        async def other() -> None:
            runs["other"] += 1

        async with app:
            await own.schedule("acme-own", Every(minutes=1)).enqueue("acme")
            await own.using(delay=3000).enqueue("acme")
            await asyncio.sleep(310)
        assert runs == {"own": 1, "other": 5}
        assert crashed == []

    run_virtual(main)
