"""The promises, each attacked by a test of its name. Hours of virtual time on the memory store."""

from __future__ import annotations

import asyncio

import pytest

from headgate import Headgate, JobState, RateLimit, RetryPolicy, StrictRate
from headgate.clock import SECOND
from headgate.limits.limit import Limit
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, busy_slots_of, new_node, node_of, store_of

HOUR = 3600


def counted(starts: list[int], window: int) -> int:
    """The most starts in any half-open window of that length, counted the slow way."""
    return max((sum(1 for t in starts if at - window < t <= at) for at in starts), default=0)


async def saturate(clock: VirtualClock, limit: Limit, jobs: int, seconds: float) -> list[int]:
    """Enqueue many jobs of one key at once, and return when each started within that time."""
    app = Headgate("memory://", clock=clock)
    starts: list[int] = []

    @app.task(limits=[limit])
    async def call(tenant: str) -> None:
        starts.append(clock.monotonic())

    async with app:
        await call.enqueue_many([("acme",)] * jobs)
        await asyncio.sleep(seconds)
        assert await store_of(app).check() == []
    return starts


@pytest.mark.parametrize(
    "limit",
    [
        StrictRate("15/m", key="{tenant}"),
        StrictRate("15/m", key="{tenant}", margin=0),
        RateLimit("15/m", key="{tenant}"),
        RateLimit("15/m", key="{tenant}", burst=1),
        pytest.param(RateLimit("7/s", key="{tenant}", burst=3), marks=pytest.mark.nightly),
    ],
    ids=lambda limit: f"{limit.rule.kind} {limit.rule.describe()}",
)
def test_promise_1_and_5_a_saturated_key_uses_its_whole_budget_for_an_hour_and_never_exceeds_it(limit: Limit) -> None:
    async def main(clock: VirtualClock) -> None:
        period, count = limit.rule.period, limit.rule.count or 0
        allowed = HOUR * SECOND * count / period
        starts = await saturate(clock, limit, round(allowed * 1.2) + 100, HOUR)
        for window in (period, period // 2, 3 * period):
            assert counted(starts[:2000], window) <= limit.rule.bound(window)
        assert len(starts) >= 0.999 * allowed
        assert len(starts) <= limit.rule.bound(HOUR * SECOND)

    run_virtual(main)


def test_promise_1_budgets_survive_a_restart_and_are_shared_by_all_nodes() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        starts: list[int] = []
        stamp: list[str] = []

        def app(name: str) -> Headgate:
            made = app_on(store, clock=clock, concurrency=4)

            @made.task(name="call", limits=[StrictRate("10/m", key="{tenant}", margin=0)])
            async def call(tenant: str) -> None:
                starts.append(clock.monotonic())
                stamp.append(name)
                await asyncio.sleep(0.5)

            return made

        first = app("first")
        async with first:
            await first.tasks["call"].enqueue_many([("acme",)] * 45)
            await asyncio.sleep(30)
        assert len(starts) == 10
        # A restart in the middle of the minute, and then two nodes at once.
        async with app("second"), app("third"):
            await asyncio.sleep(10)
            assert len(starts) == 10, "the restart handed out a second burst"
            await asyncio.sleep(240)
        assert len(starts) == 45
        assert counted(starts, 60 * SECOND) == 10
        assert {"second", "third"} <= set(stamp), "both nodes should have used the one budget"

    run_virtual(main)


def test_promise_2_an_exhausted_key_with_a_long_backlog_delays_no_other_key_and_no_ungated_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=4)
        waits: list[int] = []

        @app.task(limits=[StrictRate("2/m", key="{tenant}")])
        async def call(tenant: str, asked_at: int) -> None:
            if tenant != "noisy":
                waits.append(clock.monotonic() - asked_at)

        @app.task
        async def free(asked_at: int) -> None:
            waits.append(clock.monotonic() - asked_at)

        async with app:
            await call.enqueue_many([("noisy", 0)] * 20_000)
            await asyncio.sleep(1)
            for number in range(100):
                await call.enqueue(f"quiet-{number}", clock.monotonic())
                await free.enqueue(clock.monotonic())
                await asyncio.sleep(1)
        assert len(waits) == 200
        assert max(waits) == 0, "in virtual time a free slot and an open budget mean: at once"

    run_virtual(main)


def test_promise_3_a_waiting_job_uses_no_slot_and_no_memory_of_the_node() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)

        @app.task(limits=[StrictRate("1/h", key="{tenant}")])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue_many([("acme",)] * 10_000)
            await asyncio.sleep(60)
            node = node_of(app)
            assert node is not None
            assert busy_slots_of(node) == {"default": 0}
            assert len(node.attempts) == 0
            (bucket,) = await app.admin.limits.list()
            assert bucket.waiting == 9_999

    run_virtual(main)


def test_promise_4_a_dead_nodes_jobs_are_run_by_another_within_the_lease_and_nothing_is_restarted() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        ran: list[tuple[str, float]] = []

        def app(name: str) -> Headgate:
            made = app_on(store, clock=clock)

            @made.task(name="work")
            async def work() -> None:
                ran.append((name, clock.monotonic() / SECOND))
                await asyncio.sleep(1000 if name == "doomed" else 0)

            return made

        doomed, other = app("doomed"), app("other")
        async with doomed.open():
            node = new_node(doomed)
            running = asyncio.ensure_future(node.run())
            job = await doomed.tasks["work"].enqueue()
            await asyncio.sleep(1)
            async with other:
                died = clock.monotonic() / SECOND
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                await job.result()
                assert ran[-1][0] == "other"
                assert ran[-1][1] - died < 30 + 5 + 1
                assert (await job.status()).state is JobState.SUCCEEDED
                assert [a.outcome for a in (await other.admin.job(job.id)).attempts] == ["lost"]

    run_virtual(main)


def test_promise_4_enqueue_returns_only_after_the_store_has_the_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None: ...

        async with app.open():
            job = await work.enqueue()
            record = await store_of(app).job(job.id)
            assert record is not None
            assert record.state is JobState.WAITING

    run_virtual(main)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (RateLimit("15/m", key="{tenant}"), [0.0] * 15 + [4.0, 8.0, 12.0, 16.0, 20.0]),
        (RateLimit("15/m", key="{tenant}", burst=1), [4.0 * n for n in range(20)]),
        (RateLimit("15/m", key="{tenant}", burst=5), [0.0] * 5 + [4.0 * n for n in range(1, 16)]),
        (RateLimit("15/m", key="{tenant}", start_empty=True), [4.0 * n for n in range(20)]),
        (StrictRate("15/m", key="{tenant}", margin=0), [0.0] * 15 + [60.0] * 5),
    ],
    ids=["burst 15", "burst 1", "burst 5", "start empty", "strict"],
)
def test_twenty_jobs_at_once_at_fifteen_a_minute_start_on_the_promised_timeline(
    limit: Limit, expected: list[float]
) -> None:
    async def main(clock: VirtualClock) -> None:
        began = clock.monotonic()
        starts = await saturate(clock, limit, 20, 120)
        assert [(at - began) / SECOND for at in starts] == expected

    run_virtual(main)


def test_start_empty_paces_from_the_first_job_across_a_restart() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        starts: list[float] = []
        began = clock.monotonic()

        def app() -> Headgate:
            made = app_on(store, clock=clock)

            @made.task(name="call", limits=[RateLimit("15/m", key="{tenant}", start_empty=True)])
            async def call(tenant: str) -> None:
                starts.append((clock.monotonic() - began) / SECOND)

            return made

        first = app()
        async with first:
            await first.tasks["call"].enqueue_many([("acme",)] * 10)
            await asyncio.sleep(10)
        async with app():
            await asyncio.sleep(60)
        assert starts == [0.0, 4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0, 32.0, 36.0]

    run_virtual(main)


def test_a_job_uses_several_limits_together_or_on_none() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.limit("everyone", StrictRate("4/m", margin=0))
        starts: list[tuple[str, float]] = []
        began = clock.monotonic()

        @app.task(limits=[StrictRate("3/10s", key="{tenant}", margin=0), "everyone"], retry=RetryPolicy(retries=0))
        async def call(tenant: str) -> None:
            starts.append((tenant, (clock.monotonic() - began) / SECOND))

        async with app:
            await call.enqueue_many([("a",)] * 5)
            await call.enqueue_many([("b",)] * 2)
            await asyncio.sleep(200)
        assert [at for tenant, at in starts if tenant == "a"][:3] == [0.0, 0.0, 0.0]
        for tenant in "ab":
            own = [round(at * SECOND) for name, at in starts if name == tenant]
            assert counted(own, 10 * SECOND) <= 3
        assert counted([round(at * SECOND) for _, at in starts], 60 * SECOND) == 4
        assert len(starts) == 7

    run_virtual(main)
