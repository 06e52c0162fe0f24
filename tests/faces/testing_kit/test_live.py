"""Live mode: a real engine in a test of a user's, in real and in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import Headgate
from headgate.jobs.event import Event, JobStarted
from headgate.testing import live
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.faces.testing_kit import shop


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    shop.seen.clear()
    yield
    shop.seen.clear()


async def test_a_real_engine_runs_the_jobs_and_is_waited_for() -> None:
    async with live(shop.app) as running:
        job = await shop.compute.enqueue(0)
        await shop.fan_out.enqueue(["a", "b"])
        assert await job.result(timeout=5) == 0
        await running.wait_until_idle(timeout=5)
        assert sorted(shop.seen, key=str) == [("a", False), ("b", False)]
        await shop.greet.using(delay=3600).enqueue("later")
        with pytest.raises(TimeoutError, match="1 jobs wait and 0 run"):
            await running.wait_until_idle(timeout=0.05)
    assert type(shop.app) is Headgate


async def test_a_file_may_be_the_store(tmp_path: Path) -> None:
    async with live(shop.app, file=tmp_path / "jobs.db"):
        assert await (await shop.greet.enqueue("ada")).result(timeout=5) == "ada"
    assert (tmp_path / "jobs.db").exists()


def test_hours_pass_at_once_on_virtual_time() -> None:
    async def main(clock: VirtualClock) -> None:
        async with live(shop.app) as running:
            await shop.sync_tenant.enqueue_many([("acme",)] * 31)
            await running.wait_until_idle(timeout=3600)
            assert 120 <= clock.monotonic() / 1_000_000 < 130

    run_virtual(main)


def test_events_tell_what_they_tell_in_production() -> None:
    async def main(clock: VirtualClock) -> None:
        async with live(shop.app) as running:
            told: list[Event] = []
            running.app.subscribe(told.append, JobStarted)
            await shop.sync_tenant.enqueue_many([("acme",)] * 16)
            await running.wait_until_idle(timeout=3600)
        last = told[-1]
        assert isinstance(last, JobStarted)
        assert last.limits == ("sync_tenant:strict",)
        assert last.waited >= 59

    run_virtual(main)
