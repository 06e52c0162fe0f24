"""What a store can hold of no job ends neither the node nor what the jobs beside it came to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headgate import Headgate, JobContext, JobFailed, RateLimit, RetryPolicy, StrictRate, current_job
from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable
from headgate.jobs.event import Event, StorageFailed
from headgate.jobs.lifecycle import Ending, Finished
from headgate.limits.limit import AnyRule
from headgate.storage.driver import NO_RULES
from headgate.storage.records import Amendment
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on
from tests.until import result_within


class BoundedStorage(MemoryStorage):
    """Its numbers and texts have an end, as those of databases have; now and then it is away."""

    away = 0

    async def amend(self, amendments: Sequence[Amendment], rules: Any) -> None:
        self._be_away()
        if any(each.actual > 1_000_000 for each in amendments):
            raise OverflowError("value out of int64 range")
        await super().amend(amendments, rules)

    async def finish(
        self, node: str, endings: Sequence[Ending], rules: Mapping[str, AnyRule] = NO_RULES
    ) -> Sequence[bool | None]:
        self._be_away()
        if any(isinstance(each, Finished) and each.result == '"bad"' for each in endings):
            raise ValueError("no such text")
        return await super().finish(node, endings, rules)

    def _be_away(self) -> None:
        if self.away:
            self.away -= 1
            raise StorageUnavailable("away")


def test_a_cost_that_the_store_cannot_hold_is_dropped_alone_and_reported() -> None:
    """It once ended every node that took the job."""

    async def main(clock: VirtualClock) -> None:
        app = app_on(BoundedStorage(clock), clock=clock)
        failures: list[Event] = []
        app.subscribe(failures.append, StorageFailed)

        @app.task(limits=[RateLimit("100/m", name="tokens", burst=100)])
        async def ask(tokens: int) -> int:
            current_job().settle("tokens", tokens)
            return tokens

        async with app:
            jobs = await ask.enqueue_many([(tokens,) for tokens in (5, 10**9, 7)])
            assert [await result_within(job, 60) for job in jobs] == [5, 10**9, 7]
            (bucket,) = await app.admin.limits.list()
            assert bucket.used == 5 + 1 + 7
        (failure,) = failures
        assert isinstance(failure, StorageFailed)
        assert "limit 'tokens': 1000000000 is not charged" in failure.doing
        assert "OverflowError" in failure.error

    run_virtual(main)


@pytest.mark.parametrize("away", [0, 3])
def test_a_job_whose_ending_the_store_cannot_hold_fails_alone(away: int) -> None:
    async def main(clock: VirtualClock) -> None:
        storage = BoundedStorage(clock)
        app = app_on(storage, clock=clock, concurrency=10)

        failed: list[tuple[str, str]] = []

        @app.task
        async def work(word: str) -> str:
            await asyncio.sleep(1)
            return word

        @work.on_error
        async def note_failure(job: JobContext, error: BaseException) -> None:
            failed.append((job.id, str(error)))

        async with app:
            jobs = await work.enqueue_many([(word,) for word in ("good", "bad", "better")])
            await asyncio.sleep(0.5)
            storage.away = away
            good, bad, better = jobs
            assert (await result_within(good, 60), await result_within(better, 60)) == ("good", "better")
            with pytest.raises(JobFailed, match="how this attempt ended could not be stored: no such text"):
                await result_within(bad, 60)
            assert await result_within(await work.enqueue("after"), 60) == "after"
        ((id, error),) = failed
        assert id == bad.id
        assert "how this attempt ended could not be stored: no such text" in error

    run_virtual(main)


@pytest.mark.parametrize("cost", [-1, 1_000_000_001, 10**21, True, 1.5])
def test_a_settled_cost_is_a_whole_number_up_to_a_billion(cost: Any) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))

        @app.task(limits=[RateLimit("10/s", name="mine")])
        async def ask() -> None:
            current_job().settle("mine", cost)

        async with app:
            with pytest.raises(JobFailed, match="must be a whole number from 0 to 1,000,000,000"):
                await (await ask.enqueue()).result()

    run_virtual(main)


def test_a_strict_rate_stores_only_the_part_of_a_settled_cost_that_closes_its_window() -> None:
    rule = StrictRate("100/m", margin=0).rule
    second = 1_000_000
    _, state = rule.take((), 0, 2)
    state = rule.amend(state, 0, 2, 0, 1_000_000_000)
    assert len(state) == 1000
    assert rule.take(state, second)[0] == 60 * second
    assert rule.amend(state, 0, 1_000_000_000, 0, 5) == (0,) * 5


def test_a_debt_beyond_the_range_of_a_database_is_cut_when_a_rate_is_lowered() -> None:
    """Once such a rate was declared, every claim and so every node that started failed."""
    fast, slow = RateLimit("100/m").rule, RateLimit("1/d").rule
    _, state = fast.take(None, 0)
    owing = fast.amend(state, 0, 1, 0, 1_000_000_000)
    for owed in (slow.load(fast.dump(owing), 0), slow.amend(slow.take(None, 0)[1], 0, 1, 0, 1_000_000_000)):
        opens_at, after = slow.take(owed, 0)
        assert 1 << 60 < opens_at < 1 << 63
        assert slow.idle_at(after) < 1 << 63


class SlowStorage(MemoryStorage):
    """A statement that stores more than so many characters of results reaches its timeout."""

    most = 50_000_000

    async def finish(
        self, node: str, endings: Sequence[Ending], rules: Mapping[str, AnyRule] = NO_RULES
    ) -> Sequence[bool | None]:
        if sum(len(each.result or "") for each in endings if isinstance(each, Finished)) > self.most:
            raise StorageUnavailable("canceling statement due to statement timeout")
        return await super().finish(node, endings, rules)


async def test_large_results_that_end_at_once_are_stored_in_several_commits() -> None:
    """They once took longer than a statement may, all together, and were written again without an end."""
    app = app_on(SlowStorage(SystemClock()), max_payload=20_000_000, slots=10)
    sizes = [10, *[12_000_000] * 6, 10]
    have_all = asyncio.Barrier(len(sizes))

    @app.task
    async def render(size: int) -> str:
        await have_all.wait()
        return "x" * size

    async with app:
        jobs = await render.enqueue_many([(size,) for size in sizes])
        assert [len(await result_within(job)) for job in jobs] == sizes
