"""A limit becomes another kind of rule, by a deploy or at run time: what was used before is not given out again."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import pytest

from headgate import (
    Concurrency,
    DynamicWindow,
    FixedWindow,
    Headgate,
    LimitRejected,
    RateLimit,
    SlidingWindow,
    StrictRate,
)
from headgate.limits.limit import Limit, changed
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on
from tests.until import result_within

KINDS = [StrictRate, RateLimit, FixedWindow, SlidingWindow]


class Releases:
    """Releases on one store, and when their jobs started."""

    def __init__(self, clock: VirtualClock, takes: float = 0) -> None:
        self.clock = clock
        self.takes = takes
        self.store = MemoryStorage(clock)
        self.started: list[float] = []

    def release(self, limit: Any, *, of_queue: bool = False) -> Headgate:
        app = app_on(self.store, clock=self.clock)
        if of_queue:
            app.queue("default", limits=[limit])

        @app.task(name="call", limits=[] if of_queue else [limit])
        async def call(tenant: str) -> None:
            self.started.append(asyncio.get_running_loop().time())
            await asyncio.sleep(self.takes)

        return app

    def limit(self, app: Headgate) -> str:
        (name,) = app.tasks["call"].limit_set.names
        return name

    async def use_up(self, app: Headgate) -> None:
        """Ten seconds into a minute of the wall clock, five of them have started."""
        await asyncio.sleep(70 - self.clock.now() / 1_000_000 % 60)
        await app.tasks["call"].enqueue_many([("acme",)] * 12)
        await asyncio.sleep(2)
        assert len(self.started) == 5

    async def all_of_it_comes_later(self, *, evenly: bool = False) -> None:
        """The budget of this minute was used up under the kind before; an average refills one by one from nothing."""
        await asyncio.sleep(11)
        assert len(self.started) == 5
        await asyncio.sleep(29)
        assert len(self.started) == (8 if evenly else 5)
        await asyncio.sleep(240)
        assert len(self.started) == 12


@pytest.mark.parametrize("name", [None, "api"], ids=["unnamed", "named"])
@pytest.mark.parametrize(("before", "after"), list(permutations(KINDS, 2)))
def test_a_deploy_that_changes_the_kind_of_a_limit_gives_no_fresh_budget(
    before: Any, after: Any, name: str | None
) -> None:
    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock)
        options = {"key": "{tenant}", "name": name}
        async with (old := releases.release(before("5/m", **options))):
            await releases.use_up(old)
        async with releases.release(after("5/m", **options)):
            await releases.all_of_it_comes_later(evenly=after is RateLimit)

    run_virtual(main)


@pytest.mark.parametrize(("before", "after"), [(StrictRate, RateLimit), (RateLimit, StrictRate)])
def test_the_limits_of_a_queue_are_kept_over_a_change_of_kind_too(before: Any, after: Any) -> None:
    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock)
        async with (old := releases.release(before("5/m", key="{tenant}"), of_queue=True)):
            await releases.use_up(old)
        async with releases.release(after("5/m", key="{tenant}"), of_queue=True):
            await releases.all_of_it_comes_later(evenly=after is RateLimit)

    run_virtual(main)


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "api"], ids=["unnamed", "named"])
@pytest.mark.parametrize(("before", "after"), list(permutations(KINDS, 2)))
def test_another_kind_that_is_set_at_run_time_gives_no_fresh_budget(before: Any, after: Any, name: str | None) -> None:
    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock)
        async with (app := releases.release(before("5/m", key="{tenant}", name=name))):
            await releases.use_up(app)
            await app.admin.limits.set(releases.limit(app), after("5/m"))
            await releases.all_of_it_comes_later(evenly=after is RateLimit)

    run_virtual(main)


@pytest.mark.parametrize(
    ("before", "after", "most"),
    [
        (StrictRate("5/m", margin=0), Concurrency(2), 20),
        (Concurrency(2), StrictRate("5/m", margin=0), 50),
        (StrictRate("5/m", margin=0), DynamicWindow(per=60, capacity=5), 50),
        (DynamicWindow(per=60, capacity=5), StrictRate("5/m", margin=0), 50),
    ],
    ids=lambda each: each.rule.describe() if isinstance(each, Limit) else None,
)
def test_another_sort_of_limit_is_used_fully_while_older_workers_run(before: Limit, after: Limit, most: int) -> None:
    """The fault: each claim of an older worker closed it for a period, so that hardly any job started."""

    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock, takes=60)
        options = {"key": "{tenant}", "name": "api"}
        async with (old := releases.release(changed(before, **options))):
            await old.tasks["call"].enqueue_many([("acme",)] * 200)
            await asyncio.sleep(70)
            async with releases.release(changed(after, **options)):
                await asyncio.sleep(120)
                since = len(releases.started)
                await asyncio.sleep(600)
                assert len(releases.started) - since == most

    run_virtual(main)


@pytest.mark.parametrize("after", [Concurrency(2), DynamicWindow(per=60, capacity=5)], ids=["permits", "dynamic"])
def test_plain_code_of_an_older_release_waits_for_a_limit_of_another_sort(after: Limit) -> None:
    """The fault: it stored a state of its own there, so permits that jobs held were forgotten."""

    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock, takes=60)
        options = {"key": "{tenant}", "name": "api"}
        async with (web := releases.release(changed(StrictRate("5/m"), **options))).open():
            limiter = web.limiter("api")
            assert (await limiter.try_acquire("acme")).allowed
            async with (app := releases.release(changed(after, **options))):
                await app.tasks["call"].enqueue_many([("acme",)] * 20)
                await asyncio.sleep(90)
                before = await app.admin.limits.bucket("api", "acme")
                assert not (await limiter.try_acquire("acme")).allowed
                assert (await limiter.snapshot("acme")).available == 0
                with pytest.raises(LimitRejected, match="another sort of limit"):
                    await limiter.reserve("acme")
                assert await app.admin.limits.bucket("api", "acme") == before
                assert await releases.store.check() == []

    run_virtual(main)


def test_a_rate_and_a_dynamic_window_of_one_name_are_not_one_limit_set() -> None:
    """The fault: workers of both releases started the jobs, each kind under a budget of its own."""
    signatures: set[str] = set()
    for limit in (RateLimit("5/m"), StrictRate("5/m"), DynamicWindow(per=60, capacity=5)):
        app = Headgate("memory://")

        @app.task(limits=[changed(limit, key="{tenant}", name="api")])
        async def call(tenant: str) -> None: ...

        signatures.add(call.limit_set.signature)
    assert len(signatures) == 2


def test_unnamed_rates_of_one_task_keep_their_names_by_their_order() -> None:
    app = Headgate("memory://")

    @app.task(limits=[StrictRate("15/m"), FixedWindow("1000/d"), StrictRate("1/s", name="mine")])
    async def call() -> None: ...

    assert call.limit_set.names == ("call:rate", "call:rate2", "mine")


@pytest.mark.parametrize("pause", [0.0, 0.1, 0.5, 0.9, 1.5])
def test_jobs_of_a_limit_that_a_deploy_removed_start_soon_whenever_they_are_enqueued(pause: float) -> None:
    """The fault: a claim that met them just after a sweep started none, and the next one came 30 s later."""

    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock)
        older = releases.release(StrictRate("2/h", key="{tenant}", name="old"))
        newer = app_on(releases.store, clock=clock)

        @newer.task(name="call")
        async def call(tenant: str) -> None: ...

        async with newer:
            await asyncio.sleep(5)
            for _ in range(5):
                async with older.open():
                    job = await older.tasks["call"].enqueue("acme")
                await result_within(newer.job(job.id), 3)
                await asyncio.sleep(pause)

    run_virtual(main)
