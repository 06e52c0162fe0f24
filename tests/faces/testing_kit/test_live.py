"""Live mode: a real engine in a test of a user's, in real and in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import time_machine
from fastapi import FastAPI
from freezegun import freeze_time
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from headgate import Every, Headgate, HeadgateError, JobContext, StrictRate, batch
from headgate.clock import SECOND
from headgate.contrib.fastapi import health, lifespan
from headgate.engine.running_attempts import RunningAttempts
from headgate.jobs.event import Event, JobStarted
from headgate.observe.metrics import PrometheusMetrics
from headgate.observe.tracing import OpenTelemetry
from headgate.testing import live, manual
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.faces.testing_kit import shop
from tests.internals import client_of
from tests.until import patient, until

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    shop.seen.clear()
    yield
    shop.seen.clear()


async def test_a_real_engine_runs_the_jobs_and_is_waited_for() -> None:
    async with live(shop.app) as running:
        job = await shop.compute.enqueue(0)
        await shop.fan_out.enqueue(["a", "b"])
        assert await job.result(timeout=patient(5)) == 0
        await running.wait_until_idle()
        assert sorted(shop.seen, key=str) == [("a", False), ("b", False)]
        await shop.greet.using(delay=3600).enqueue("later")
        with pytest.raises(TimeoutError, match="1 jobs wait and 0 run"):
            await running.wait_until_idle(timeout=0.05)
    assert type(shop.app) is Headgate


def test_no_alert_is_sent_in_a_test() -> None:
    app = Headgate("memory://")
    told: list[object] = []
    app.alert(told.append, on="waiting > 0", name="ops")

    @app.task
    async def work() -> None: ...

    async def main(clock: VirtualClock) -> None:
        async with live(app):
            await app.admin.queues.pause("default")
            await work.enqueue()
            await asyncio.sleep(60)
            assert await app.admin.alerts() == []

    run_virtual(main)
    assert told == []


async def test_a_file_may_be_the_store(tmp_path: Path) -> None:
    async with live(shop.app, file=tmp_path / "jobs.db"):
        assert await (await shop.greet.enqueue("ada")).result(timeout=patient(5)) == "ada"
    assert (tmp_path / "jobs.db").exists()


def test_a_file_gets_its_tables_whatever_the_app_says_about_its_own_store(tmp_path: Path) -> None:
    """The fault: the test of an app with migrate=False ended because its new file had no tables."""
    app = Headgate("postgresql://127.0.0.1:1/none", migrate=False)

    @app.task
    async def work() -> int:
        return 7

    with live(app, file=tmp_path / "jobs.db"):
        assert work.sync.enqueue().result(timeout=patient(5)) == 7


def test_sync_code_has_a_real_engine_in_another_thread(tmp_path: Path) -> None:
    with live(shop.app, file=tmp_path / "jobs.db") as running:
        assert shop.greet.sync.enqueue("ada").result(timeout=patient(5)) == "ada"
        shop.fan_out.sync.enqueue(["a", "b"])
        running.sync.wait_until_idle()
        assert ("b", False) in shop.seen
        shop.greet.using(delay=3600).sync.enqueue("later")
        with pytest.raises(TimeoutError, match="1 jobs wait and 0 run"):
            running.sync.wait_until_idle(timeout=0.05)
        with pytest.raises(HeadgateError, match="do not go into one another"), manual(shop.app):
            raise AssertionError("nobody may get here")
    assert type(shop.app) is Headgate
    with live(shop.app):
        assert shop.greet.sync.enqueue("once more").result(timeout=patient(5)) == "once more"


async def test_an_engine_in_a_thread_is_reached_from_the_loop_of_an_async_test() -> None:
    with live(shop.app) as running:
        job = await shop.greet.enqueue("ada")
        assert await job.result(timeout=patient(5)) == "ada"
        both = await batch([shop.greet.call("b"), shop.greet.call("c")]).enqueue()
        assert (await both.wait(timeout=5)).succeeded == 2
        assert await shop.app.batch(both.id).result() == ["b", "c"]
        daily = await shop.greet.schedule("daily", Every(days=1)).enqueue("d")
        assert await (await daily.trigger()).result(timeout=patient(5)) == "d"
        async with shop.app.limiter("outside").hold("acme", timeout=patient(5)):
            endless = await shop.hang.enqueue()

        async def runs() -> bool:
            return (await endless.status()).state == "running"

        await until(runs)
        assert await endless.cancel()
        await running.wait_until_idle()
        assert "ended" in shop.seen
        with pytest.raises(HeadgateError, match="would add a second worker"):
            await shop.app.run()


async def test_a_batch_is_cancelled_on_the_loop_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a task of that loop was cancelled from another thread, which asyncio does not allow."""
    cancel, loops = RunningAttempts.cancel, set[object]()

    def cancel_here(attempts: RunningAttempts, job_id: str) -> None:
        loops.add(asyncio.get_running_loop())
        cancel(attempts, job_id)

    monkeypatch.setattr(RunningAttempts, "cancel", cancel_here)
    with live(shop.app) as running:
        endless = await batch([shop.hang.call()]).enqueue()

        async def runs() -> bool:
            return (await endless.jobs[0].status()).state == "running"

        await until(runs)
        assert await endless.cancel() == 1
        await running.wait_until_idle()
        assert loops == {client_of(shop.app).lifecycle.loop}
    assert shop.seen == ["ended"]


def test_a_block_that_fails_leaves_the_app_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError), live(shop.app):
        raise ZeroDivisionError
    assert type(shop.app) is Headgate


# ------------------------------------------------------------------------------------------- the program under test


@asynccontextmanager
async def opens(_api: Any) -> AsyncIterator[None]:
    async with shop.app.open():
        yield


@asynccontextmanager
async def runs_jobs(_api: Any) -> AsyncIterator[None]:
    async with shop.app:
        yield


LIFESPANS = [None, lifespan(shop.app), lifespan(shop.app, worker=True), opens, runs_jobs]


def api_with(its_lifespan: Any) -> FastAPI:
    api = FastAPI(lifespan=its_lifespan)
    api.add_route("/healthz", health(shop.app, worker=True))

    @api.get("/awaits/{name}")
    async def awaits(name: str) -> str:
        return await (await shop.greet.enqueue(name)).result(timeout=patient(5))

    @api.get("/blocks/{name}")
    def blocks(name: str) -> str:
        return shop.greet.sync.enqueue(name).result(timeout=patient(5))

    return api


@pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
@pytest.mark.parametrize("its_lifespan", LIFESPANS, ids=["none", "documented", "with worker", "opens", "runs jobs"])
def test_an_application_behind_a_test_client_uses_the_engine_of_the_test(its_lifespan: Any) -> None:
    from starlette.testclient import TestClient

    with live(shop.app) as running:
        with TestClient(api_with(its_lifespan)) as client:
            assert client.get("/awaits/ada").json() == "ada"
            assert client.get("/blocks/bob").json() == "bob"
            assert client.get("/healthz").json() == {"status": "ok"}
        # The application has ended, and the test continues.
        assert shop.greet.sync.enqueue("once more").result(timeout=patient(5)) == "once more"
        running.sync.wait_until_idle()
    assert type(shop.app) is Headgate
    assert vars(shop.app).keys() == vars(Headgate("memory://")).keys()


@pytest.mark.parametrize("its_lifespan", LIFESPANS, ids=["none", "documented", "with worker", "opens", "runs jobs"])
async def test_an_async_test_has_the_lifespan_of_the_application_on_its_own_loop(its_lifespan: Any) -> None:
    async with live(shop.app) as running:
        api = api_with(its_lifespan)
        async with api.router.lifespan_context(api):
            assert await (await shop.greet.enqueue("ada")).result(timeout=patient(5)) == "ada"
        assert await (await shop.greet.enqueue("once more")).result(timeout=patient(5)) == "once more"
        await running.wait_until_idle()


def test_the_program_under_test_does_not_end_the_engine() -> None:
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with live(shop.app):
        engine = shop.app.sync.run(loop())
        shop.app.sync.close()
        with shop.app.sync:
            assert shop.greet.sync.enqueue("ada").result(timeout=patient(5)) == "ada"
        with shop.app, shop.app.open():
            assert shop.greet.sync.enqueue("ada").result(timeout=patient(5)) == "ada"
        assert shop.app.sync.run(loop()) is engine


# ------------------------------------------------------------------------------------------------ a time that stands


def frozen_by_freezegun() -> AbstractContextManager[object]:
    return freeze_time(NOON, real_asyncio=True)


def frozen_by_time_machine() -> AbstractContextManager[object]:
    return time_machine.travel(NOON, tick=False)


@pytest.mark.parametrize("frozen", [frozen_by_freezegun, frozen_by_time_machine])
def test_manual_mode_begins_at_a_frozen_time_and_has_its_own_clock(
    frozen: Callable[[], AbstractContextManager[object]],
) -> None:
    with frozen(), manual(shop.app) as jobs:
        shop.greet.using(delay=60).sync.enqueue("ada")
        jobs.assert_enqueued(shop.greet, at=NOON + timedelta(minutes=1))
        jobs.sync.travel(minutes=1)
        assert shop.seen == [("ada", False)]


@pytest.mark.parametrize("frozen", [frozen_by_freezegun, frozen_by_time_machine])
def test_the_frozen_time_is_an_argument_a_result_and_the_start_of_a_schedule(
    frozen: Callable[[], AbstractContextManager[object]],
) -> None:
    """The fault: a value of the type FakeDatetime has no JSON form."""
    app, seen = Headgate("memory://"), list[datetime]()

    @app.task
    def remind(since: datetime) -> datetime:
        seen.append(since)
        return datetime.now(UTC)

    with frozen(), manual(app) as jobs:
        remind.sync.schedule("hourly", Every(hours=1, start=datetime.now(UTC))).enqueue(datetime.now(UTC))
        first = remind.sync.enqueue(datetime.now(UTC))
        jobs.sync.travel(hours=2)
        assert (first.result(), seen) == (NOON, [NOON] * 3)


@pytest.mark.parametrize("frozen", [frozen_by_freezegun, frozen_by_time_machine])
def test_a_real_engine_runs_and_keeps_its_limits_in_a_frozen_time(
    frozen: Callable[[], AbstractContextManager[object]],
) -> None:
    with frozen(), live(shop.app) as running:
        assert shop.greet.sync.enqueue("ada").result(timeout=patient(5)) == "ada"
        shop.quickly.sync.enqueue_many([("acme",)] * 3)
        running.sync.wait_until_idle()
    _, first, _, third = shop.seen
    assert isinstance(first, float)
    assert isinstance(third, float)
    assert third - first >= 0.03


def test_hours_pass_at_once_on_virtual_time() -> None:
    async def main(clock: VirtualClock) -> None:
        async with live(shop.app) as running:
            await shop.sync_tenant.enqueue_many([("acme",)] * 31)
            await running.wait_until_idle(timeout=3600)
            assert 120 <= clock.monotonic() / 1_000_000 < 130

    run_virtual(main)


def test_events_are_the_same_as_in_production() -> None:
    async def main(clock: VirtualClock) -> None:
        async with live(shop.app) as running:
            told: list[Event] = []
            running.app.subscribe(told.append, JobStarted)
            await shop.sync_tenant.enqueue_many([("acme",)] * 16)
            await running.wait_until_idle(timeout=3600)
        last = told[-1]
        assert isinstance(last, JobStarted)
        assert last.limits == ("sync_tenant:rate",)
        assert last.waited >= 59

    run_virtual(main)


async def test_metrics_and_traces_are_those_of_the_test(tmp_path: Path) -> None:
    """The fault: they saw no job of a test, and read the store of production: headgate_up was 0."""
    app = Headgate(f"sqlite:///{tmp_path}/production.db")
    metrics = PrometheusMetrics(registry=CollectorRegistry(), store=True, max_age=0)
    app.instrument(metrics)
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    app.instrument(OpenTelemetry(tracer_provider=provider, metrics=False))

    @app.task
    async def greet(name: str) -> str:
        return name

    @greet.on_completed
    def note(job: JobContext, result: str) -> None: ...

    def finished() -> float | None:
        labels = {"queue": "default", "task": "greet", "outcome": "succeeded"}
        return metrics.registry.get_sample_value("headgate_jobs_finished_total", labels)

    async with live(app):
        await greet.enqueue("ada")
        await greet.using(delay=3600).enqueue("eve")
        await until(lambda: finished() == 1)
        await metrics.refresh()
        assert metrics.registry.get_sample_value("headgate_up") == 1
        waiting = metrics.registry.get_sample_value("headgate_queue_depth", {"queue": "default", "state": "waiting"})
        assert waiting == 1
    with manual(app) as jobs:
        await greet.enqueue("bob")
        await jobs.drain()
        assert finished() == 2
    made = Counter(span.name for span in spans.get_finished_spans())
    assert made == {"send default": 3, "process default": 2, "on_completed greet": 2}
    provider.shutdown()


def test_a_limiter_that_was_made_before_the_test_waits_in_the_time_of_the_test() -> None:
    app = Headgate("memory://")
    app.limit("calls", StrictRate("1/m"))
    calls, starts = app.limiter("calls"), list[int]()

    async def main(clock: VirtualClock) -> None:
        @app.task
        async def call() -> None:
            async with calls.hold(timeout=600):
                starts.append(clock.now())

        async with live(app) as running:
            await call.enqueue_many([()] * 3)
            await running.wait_until_idle(timeout=600)

    run_virtual(main)
    waits = [(later - first) / SECOND for first, later in pairwise(starts)]
    assert waits == pytest.approx([60, 60], abs=1)
