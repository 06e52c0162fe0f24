"""A deploy changes only the numbers of a limit: the newest declaration is in force on all nodes, and at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from headgate import Concurrency, DeclarationError, DynamicWindow, Headgate, RateLimit, StrictRate
from headgate.limits.limit import Limit
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on
from tests.until import result_within


class Releases:
    """Releases of one program on one store, and when their jobs started (seconds)."""

    def __init__(self, clock: VirtualClock, takes: float = 0) -> None:
        self.clock = clock
        self.takes = takes
        self.store = MemoryStorage(clock)
        self.started: list[float] = []

    def release(self, limit: Any) -> Headgate:
        app = app_on(self.store, clock=self.clock)
        app.limit("api", limit)

        @app.task(name="call", limits=["api"])
        async def call(tenant: str) -> None:
            self.started.append(asyncio.get_running_loop().time())
            await asyncio.sleep(self.takes)

        return app

    async def enqueue(self, app: Headgate, count: int) -> None:
        async with app.open():
            await app.tasks["call"].enqueue_many([("acme",)] * count)

    def most_in(self, seconds: float, *, since: float) -> int:
        """The most starts in a window of this length that began at `since` or later."""
        starts = [each for each in self.started if each >= since]
        return max(sum(begin <= each < begin + seconds for each in starts) for begin in starts)


def test_a_deploy_that_raises_a_limit_starts_what_waits_at_once() -> None:
    """The fault: the keys stayed closed until the instant at which the old rule would have opened them."""

    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock)
        async with (old := releases.release(StrictRate("20/h", key="{tenant}"))):
            await releases.enqueue(old, 30)
            await asyncio.sleep(5)
            assert len(releases.started) == 20
        async with releases.release(StrictRate("120/h", key="{tenant}")):
            await asyncio.sleep(2)
            assert len(releases.started) == 30

    run_virtual(main)


def test_a_lowered_limit_holds_for_workers_of_the_older_release_too() -> None:
    """The fault: they went on under the numbers of their own code as long as they lived."""

    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock)
        async with (old := releases.release(StrictRate(4, per=3, key="{tenant}"))):
            await releases.enqueue(old, 100)
            await asyncio.sleep(7)
            assert releases.most_in(3, since=0) == 4
            async with releases.release(StrictRate(2, per=3, key="{tenant}")):
                deployed_at = asyncio.get_running_loop().time()
                await asyncio.sleep(30)
                assert releases.most_in(3, since=deployed_at) == 2
                # A worker of the older release that starts again is not newer.
                async with releases.release(StrictRate(4, per=3, key="{tenant}")):
                    await asyncio.sleep(30)
                assert releases.most_in(3, since=deployed_at) == 2

    run_virtual(main)


def test_after_a_rollback_the_older_numbers_hold_again() -> None:
    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock)
        async with (old := releases.release(StrictRate("1/h", key="{tenant}"))):
            await releases.enqueue(old, 10)
            await asyncio.sleep(1)
            async with releases.release(StrictRate("3/h", key="{tenant}")):
                await asyncio.sleep(1)
                assert len(releases.started) == 3
            # No worker of the newer release has run for a minute, and the older ones note that every 20 s.
            await asyncio.sleep(90)
            await asyncio.sleep(3600)
            assert len(releases.started) == 4

    run_virtual(main)


def test_plain_code_uses_the_budget_that_the_newest_worker_declares() -> None:
    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock)
        web = releases.release(RateLimit("1/h", key="{tenant}"))
        async with web.open():
            limiter = web.limiter("api")
            assert await limiter.try_acquire("acme")
            assert not await limiter.try_acquire("acme")
            async with releases.release(RateLimit("3/h", key="{tenant}")):
                await asyncio.sleep(1)
                assert await limiter.try_acquire("acme")
                assert await limiter.try_acquire("acme")
                assert not await limiter.try_acquire("acme")

    run_virtual(main)


def test_what_the_code_declares_is_no_setting_and_a_setting_precedes_it() -> None:
    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock)
        app = releases.release(StrictRate("1/h", key="{tenant}"))
        async with app:
            await asyncio.sleep(1)
            assert await app.admin.limits.settings() == []
            await releases.enqueue(app, 3)
            await asyncio.sleep(1)
            assert len(releases.started) == 1
            await app.admin.limits.set("api", StrictRate("2/h"))
            await asyncio.sleep(1)
            assert len(releases.started) == 2
            job = await app.tasks["call"].enqueue("globex")
            await result_within(job, 3)

    run_virtual(main)


@pytest.mark.parametrize(
    ("declared", "set_rule", "then", "most"),
    [
        (Concurrency(10, key="{tenant}"), Concurrency(5), StrictRate("2/h", key="{tenant}"), 2),
        (StrictRate("500/m", key="{tenant}"), StrictRate("400/m"), Concurrency(3, key="{tenant}"), 3),
        (
            RateLimit("500/m", key="{tenant}"),
            RateLimit("400/m"),
            DynamicWindow(per=100_000, count=4, key="{tenant}"),
            4,
        ),
    ],
)
@pytest.mark.parametrize("target", [{}, {"key": "acme"}, {"pattern": "ac*"}])
def test_a_set_rule_does_not_outlive_a_change_of_the_sort_of_limit_in_the_code(
    declared: Limit, set_rule: Limit, then: Limit, most: int, target: Any
) -> None:
    """The fault: the limit was off, as a start took what another rule counts and never gives."""

    async def main(clock: VirtualClock) -> None:
        releases = Releases(clock, takes=10.0)
        async with (old := releases.release(declared)):
            await old.admin.limits.set("api", set_rule, **target)
        async with (new := releases.release(then)):
            await releases.enqueue(new, 9)
            await asyncio.sleep(5)
            assert len(releases.started) == most
            (bucket,) = [each for each in await new.admin.limits.list("api") if each.key == "acme"]
            assert bucket.rule is not None
            assert bucket.rule.startswith(then.rule.describe())
            assert (bucket.is_set, bucket.setting) == (False, None)
            # A pause is kept: it fits any rule.
            await new.admin.limits.pause("api", **target)
            await asyncio.sleep(15)
            assert len(releases.started) == most

    run_virtual(main)


def test_limits_of_a_cell_that_is_run_again_hold_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: jobs waited up to 20 s, until the worker noted its limits again, and nothing said so."""
    monkeypatch.setattr("builtins.__IPYTHON__", True, raising=False)

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        started: list[float] = []

        def run_cell(limit: str) -> None:
            cell = f"@app.task(limits=[{limit}])\nasync def call(): started.append(time())\n"
            names = {"app": app, "started": started, "time": asyncio.get_running_loop().time, "__name__": "__main__"}
            exec(cell, names | {"StrictRate": StrictRate, "RateLimit": RateLimit})

        async with app:
            run_cell('StrictRate("3/h", name="api")')
            await app.tasks["call"].enqueue_many([()] * 10)
            await asyncio.sleep(1)
            assert len(started) == 3
            run_cell('StrictRate("5/h", name="api")')
            await asyncio.sleep(2)
            assert len(started) == 5
            run_cell('RateLimit("4/h", name="other")')
            await asyncio.sleep(2)
            assert len(started) == 9

    run_virtual(main)


def test_a_task_can_be_declared_when_the_loop_of_a_node_was_closed_under_it() -> None:
    program = """
import asyncio
from headgate import Headgate

app = Headgate("memory://")

@app.task
async def call() -> None: ...

loop = asyncio.new_event_loop()
loop.run_until_complete(app.start())
loop.run_until_complete(asyncio.sleep(0.1))
loop.close()

@app.task
async def later() -> None: ...

print(sorted(app.tasks))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout == "['call', 'later']\n", run.stderr


async def test_a_limit_that_no_job_of_a_declared_cost_could_pass_is_not_set() -> None:
    """The fault: a rate of 2 for jobs that cost 3 failed each waiting job for good, one claim after another."""
    app = Headgate("memory://")
    api = StrictRate("10/m", key="{tenant}", name="api", cost=3)

    @app.task(limits=[api])
    async def call(tenant: str) -> None: ...

    @app.task(limits=[StrictRate("10/m", key="{tenant}", name="sized", cost="{size}")])
    async def upload(tenant: str, size: int) -> None: ...

    async with app.open():
        with pytest.raises(DeclarationError, match=r"limit 'api': cost=3 is more than .* 2/m .*, pause it"):
            await app.admin.limits.set_rule("api", "2/m", key="acme")
        await app.admin.limits.set_rule("api", "3/m", key="acme")
        await app.admin.limits.set_rule("sized", "1/m")
