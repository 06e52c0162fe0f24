"""Metrics: they count exactly, under names that are few, and a scrape answers whatever the store does."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from prometheus_client import CollectorRegistry, generate_latest
from starlette.routing import Route

from headgate import Headgate, RateLimited, RetryPolicy, StrictRate
from headgate.clock import SECOND
from headgate.errors import DeclarationError, HeadgateError
from headgate.jobs.event import (
    Event,
    JobEnqueued,
    JobFinished,
    JobStarted,
    NodeCrashed,
    NodeLost,
    NodeMeasured,
    StorageFailed,
)
from headgate.jobs.job import JobError, JobState
from headgate.observe import tally
from headgate.observe.metrics import PrometheusMetrics
from headgate.storage.records import NodeControls
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, bus_of, store_of
from tests.until import patient, result_within, until


def measured(app: Headgate, **options: Any) -> PrometheusMetrics:
    metrics = PrometheusMetrics(registry=CollectorRegistry(), **options)
    app.instrument(metrics)
    return metrics


def value(metrics: PrometheusMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def names(metrics: PrometheusMetrics) -> set[str]:
    return {sample.name for family in metrics.registry.collect() for sample in family.samples}


def test_a_job_is_counted_from_when_it_is_enqueued_until_it_is_final_with_its_seconds() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app)

        @app.task(retry=RetryPolicy(retries=1, delay=10))
        async def work(seconds: float, fails: bool = False) -> None:
            await asyncio.sleep(seconds)
            if fails:
                raise ValueError

        async with app:
            good = await work.enqueue(2)
            bad = await work.enqueue(7, fails=True)
            await good.result()
            await asyncio.sleep(60)
            assert (await bad.status()).state is JobState.FAILED
            of = {"queue": "default", "task": "work"}
            assert value(metrics, "headgate_jobs_enqueued_total", **of) == 2
            assert value(metrics, "headgate_jobs_retried_total", **of) == 1
            assert value(metrics, "headgate_jobs_finished_total", outcome="succeeded", **of) == 1
            assert value(metrics, "headgate_jobs_finished_total", outcome="failed", **of) == 1
            assert value(metrics, "headgate_job_run_seconds_sum", **of) == pytest.approx(2 + 7 + 7, abs=0.01)
            assert value(metrics, "headgate_job_run_seconds_bucket", le="2.5", **of) == 1
            assert value(metrics, "headgate_job_run_seconds_count", **of) == 3
            assert value(metrics, "headgate_job_wait_seconds_count", **of) == 3
            assert value(metrics, "headgate_worker_slots", queue="default", state="busy") == 0

    run_virtual(main)


def test_limit_metrics_have_grants_denials_and_waits_but_no_key() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app, store=True)
        app.limit("mail", StrictRate("1/m", key="{to}", margin=0))
        app.limit("now", StrictRate("1/m", on_limit="discard"))

        @app.task(limits=["mail"])
        async def send(to: str) -> None: ...

        @app.task(limits=["now"])
        async def ping() -> None: ...

        async with app:
            await send.enqueue_many([("ada@example.com",)] * 3)
            await asyncio.sleep(90)
            for _ in range(2):
                await ping.enqueue()
                await asyncio.sleep(1)
            await metrics.refresh()
            assert value(metrics, "headgate_limit_decisions_total", limit="mail", decision="granted") == 2
            assert (value(metrics, "headgate_limit_decisions_total", limit="mail", decision="throttled") or 0) >= 2
            assert value(metrics, "headgate_limit_decisions_total", limit="now", decision="rejected") == 1
            assert value(metrics, "headgate_job_throttled_seconds_sum", limit="mail") == pytest.approx(60, abs=0.1)
            # Of three, one started at once, one waited, and one still waits.
            assert value(metrics, "headgate_jobs_deferred_total", queue="default", task="send") == 1
            assert value(metrics, "headgate_jobs_deferred_total", queue="default", task="ping") == 0
            assert value(metrics, "headgate_limit_keys", limit="mail") == 1
            assert value(metrics, "headgate_jobs_throttled", limit="mail") == 1
            assert value(metrics, "headgate_limit_keys_throttled", limit="mail") == 1
            assert value(metrics, "headgate_jobs_waiting", queue="default", task="send", view="throttled") == 1
            assert b"ada@example.com" not in generate_latest(metrics.registry)

    run_virtual(main)


def test_refused_attempts_are_counted_as_returned() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app)
        refusals = iter([True, False])

        @app.task(limits=[StrictRate("10/s")])
        async def call() -> None:
            if next(refusals):
                raise RateLimited(retry_after=5)

        async with app:
            await (await call.enqueue()).result()
            await asyncio.sleep(1)
            of = {"queue": "default", "task": "call"}
            assert value(metrics, "headgate_jobs_returned_total", reason="refused", **of) == 1
            assert value(metrics, "headgate_jobs_finished_total", outcome="succeeded", **of) == 1

    run_virtual(main)


def test_no_job_is_lost_from_the_count_however_many_come_at_once() -> None:
    """A subscriber has room for 10,000 events; what counts must not lose the rest."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app)
        app.subscribe(lambda event: None, JobEnqueued)

        @app.task
        async def work() -> None: ...

        async with app.open():
            await work.enqueue_many([()] * 12_000)
            assert value(metrics, "headgate_jobs_enqueued_total", queue="default", task="work") == 12_000
            assert value(metrics, "headgate_events_lost_total") == 2_000

    run_virtual(main)


def test_names_that_this_program_does_not_declare_share_one_label() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = MemoryStorage(clock)
        theirs = app_on(storage, clock=clock)
        for number in range(5):
            theirs.queue(f"tenant-{number}")

            @theirs.task(name=f"job-{number}", queue=f"tenant-{number}", aliases=[f"old-{number}"])
            async def work() -> None: ...

        ours = app_on(storage, clock=clock)
        metrics = measured(ours, store=True)

        @ours.task(name="job-0", aliases=["old-0"])
        async def known() -> None: ...

        async with theirs.open(), ours.open():
            for task in theirs.tasks.values():
                await task.using(expires_at=None).enqueue()
            for name in ("job-0", "old-0", "job-1", "anything", "else"):
                bus_of(ours).publish(JobEnqueued(at=0, job_id="1", task=name, queue="default", run_at=0))
            await metrics.refresh()
            assert value(metrics, "headgate_jobs_enqueued_total", queue="default", task="job-0") == 2
            assert value(metrics, "headgate_jobs_enqueued_total", queue="default", task="(other)") == 3
            assert value(metrics, "headgate_queue_depth", queue="(other)", state="waiting") == 5
            assert value(metrics, "headgate_queue_depth", queue="default", state="waiting") == 0
            assert value(metrics, "headgate_jobs_waiting", queue="(other)", task="job-0", view="ready") == 1
            assert value(metrics, "headgate_jobs_waiting", queue="(other)", task="(other)", view="ready") == 4
            text = generate_latest(metrics.registry).decode()
            assert "tenant-" not in text
            assert "anything" not in text

    run_virtual(main)


def test_declared_names_have_a_zero_before_anything_happens() -> None:
    """The fault: `increase` sees nothing of a counter that begins at 1, so the first poisonous job alerted nobody.

    The fault: nor did it see the first call of a task that the callee refused.
    """

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app)

        @app.task(limits=[StrictRate("15/m", name="calls")])
        async def work() -> None: ...

        async with app:
            await asyncio.sleep(2)
            assert value(metrics, "headgate_jobs_finished_total", queue="default", task="work", outcome="failed") == 0
            assert value(metrics, "headgate_jobs_returned_total", queue="default", task="work", reason="refused") == 0
            assert value(metrics, "headgate_jobs_recovered_total", outcome="poisonous") == 0
            assert value(metrics, "headgate_limit_decisions_total", limit="calls", decision="rejected") == 0
            assert value(metrics, "headgate_limit_store_errors_total", limit="calls") == 0
            assert value(metrics, "headgate_fenced_writes_total", task="work") == 0
            assert value(metrics, "headgate_callbacks_failed_total", task="work") == 0
            assert value(metrics, "headgate_occurrences_skipped_total", reason="misfire") == 0
            assert value(metrics, "headgate_store_errors_total", op="claim") == 0

    run_virtual(main)


def test_a_blocked_event_loop_is_in_the_scrapes_of_one_minute() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app)
        async with app:
            await asyncio.sleep(2)
            received = NodeMeasured(
                at=0, node="node-1", slots={}, busy={}, lingering=0, unrecorded=0, loop_lag=4.0, clock_skew=0.0
            )
            bus_of(app).publish(received)
            await asyncio.sleep(50)
            assert value(metrics, "headgate_event_loop_lag_seconds") == 4
            await asyncio.sleep(20)
            assert value(metrics, "headgate_event_loop_lag_seconds") == 0

    run_virtual(main)


def test_an_event_loop_that_is_blocked_now_shows_in_a_scrape() -> None:
    """The fault: 0.03 s, and no alert, while a handler had blocked the loop for 80 s: the loop measures itself."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app)
        # Without a node, whose loop turns, nothing measures after this.
        async with app.open():
            bus_of(app).publish(
                NodeMeasured(
                    at=0, node="node-1", slots={}, busy={}, lingering=0, unrecorded=0, loop_lag=0, clock_skew=0
                )
            )
            # The fault: 40 s, of a node that waited for the lock of its SQLite file to take the jobs of a dead one.
            await asyncio.sleep(62)
            assert value(metrics, "headgate_event_loop_lag_seconds") == 0
            await asyncio.sleep(18)
            assert value(metrics, "headgate_event_loop_lag_seconds") == 80

    run_virtual(main)


def test_a_node_that_had_left_or_was_known_to_be_dead_is_not_counted_as_a_death() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app)
        known: Literal["left", "dead"] | None
        async with app.open():
            for known in (None, "dead", "left"):
                bus_of(app).publish(NodeLost(at=0, node="node-1", returned=2, poisonous=0, known=known))
            assert value(metrics, "headgate_leases_expired_total") == 1
            assert value(metrics, "headgate_jobs_recovered_total", outcome="returned") == 6

    run_virtual(main)


@pytest.mark.parametrize("how", ["crashed", "could not leave"])
def test_a_node_that_has_ended_has_no_slots_and_no_event_loop(how: str) -> None:
    """The fault: of a program that went on without its node, the event loop was reported as blocked for hours."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app)
        async with app.open():
            received: Event = NodeMeasured(
                at=0, node="node-1", slots={"default": 4}, busy={}, lingering=0, unrecorded=0, loop_lag=0, clock_skew=0
            )
            bus_of(app).publish(received)
            assert value(metrics, "headgate_worker_slots", queue="default", state="free") == 4
            if how == "crashed":
                received = NodeCrashed(at=0, node="node-1", error=JobError("ValueError", "a mistake"))
            else:
                received = StorageFailed(at=0, doing="leaving", error="away")
            bus_of(app).publish(received)
            await asyncio.sleep(80)
            assert value(metrics, "headgate_worker_slots", queue="default", state="free") is None
            assert value(metrics, "headgate_event_loop_lag_seconds") is None

    run_virtual(main)


def test_slots_that_queues_share_are_free_only_while_a_job_could_take_them() -> None:
    """The fault: a worker at its bound of two jobs showed 98 and 100 free slots, and so did a quiet one."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, slots=2)
        app.queue("mail")
        metrics = measured(app)

        @app.task
        async def work(seconds: float) -> None:
            await asyncio.sleep(seconds)

        def slots(state: str) -> tuple[float | None, ...]:
            return tuple(value(metrics, "headgate_worker_slots", queue=q, state=state) for q in ("default", "mail"))

        async with app:
            await asyncio.sleep(2)
            assert (slots("busy"), slots("free")) == ((0, 0), (2, 2))
            await work.enqueue(9)
            await asyncio.sleep(2)
            assert (slots("busy"), slots("free")) == ((1, 0), (1, 1))
            await work.enqueue(9)
            await asyncio.sleep(2)
            assert (slots("busy"), slots("free")) == ((2, 0), (0, 0))
            await asyncio.sleep(20)
            (node,) = await app.admin.nodes()
            await app.admin.quiet_node(node.id)
            await asyncio.sleep(3)
            assert (slots("busy"), slots("free")) == ((0, 0), (0, 0))

    run_virtual(main)


def test_the_fullest_keys_are_exported_on_request() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app, store=True, top_keys=1, max_age=0)

        @app.task(limits=[StrictRate("1/h", key="{key}", name="hourly")])
        async def work(key: str) -> None: ...

        async with app:
            await work.enqueue_many([("a",)] * 3)
            await asyncio.sleep(1)
            await metrics.refresh()
            assert value(metrics, "headgate_top_key_waiting", limit="hourly", key="a") == 2
            await work.enqueue_many([("b",)] * 5)
            await asyncio.sleep(1)
            await metrics.refresh()
            assert value(metrics, "headgate_top_key_waiting", limit="hourly", key="b") == 4
            assert value(metrics, "headgate_top_key_waiting", limit="hourly", key="a") is None

    run_virtual(main)


def test_jobs_behind_a_limit_are_counted_whatever_waits_for_others() -> None:
    """The fault: 0 for `zulu` while its jobs waited, as the thousand keys that were read were all of `alpha`."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app, store=True)

        @app.task(limits=[StrictRate("1/h", key="{key}", name="alpha")])
        async def first(key: str) -> None: ...

        @app.task(limits=[StrictRate("1/h", key="{key}", name="zulu")])
        async def last(key: str) -> None: ...

        async with app:
            await first.enqueue_many([(str(number),) for number in range(1100)] * 3)
            await last.enqueue_many([("z",)] * 2)
            await asyncio.sleep(60)
            await metrics.refresh()
            assert value(metrics, "headgate_jobs_throttled", limit="alpha") == 2200
            assert value(metrics, "headgate_limit_keys_throttled", limit="alpha") == 1100
            assert value(metrics, "headgate_jobs_throttled", limit="zulu") == 1
            assert value(metrics, "headgate_limit_keys_throttled", limit="zulu") == 1

    run_virtual(main)


class FailingStorage(MemoryStorage):
    """A store that can be made to fail, or to hang, when it is read, and that counts how often it is."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.does: Callable[[], Awaitable[None]] | None = None
        self.reads = 0

    async def nodes(self) -> Any:
        self.reads += 1
        if self.does is not None:
            await self.does()
        return await super().nodes()

    async def counts(self, *, finals: bool = True) -> Any:  # type: ignore[misc]
        if self.does is not None:
            await self.does()
        return await super().counts(finals=finals)


@pytest.mark.parametrize("how", ["fails", "hangs", "breaks"])
def test_a_scrape_has_all_counters_while_the_store_is_unavailable(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise HeadgateError("away")

    async def hangs() -> None:
        await asyncio.Event().wait()

    async def breaks() -> None:
        raise ZeroDivisionError

    async def main(clock: VirtualClock) -> None:
        storage = FailingStorage(clock)
        app = app_on(storage, clock=clock)
        metrics = measured(app, store=True, deadline=2, max_age=0)

        @app.task
        async def work() -> None: ...

        async with app.open():
            await work.enqueue()
            await metrics.refresh()
            assert value(metrics, "headgate_up") == 1
            storage.does = {"fails": fails, "hangs": hangs, "breaks": breaks}[how]
            began = clock.monotonic()
            await metrics.refresh()
            assert clock.monotonic() - began <= 2.1 * SECOND
            assert value(metrics, "headgate_up") == 0
            assert value(metrics, "headgate_jobs_enqueued_total", queue="default", task="work") == 1
            assert "headgate_queue_depth" not in names(metrics), "what is not known is not told"
            storage.does = None
            await metrics.refresh()
            assert value(metrics, "headgate_up") == 1

    run_virtual(main)
    assert ("could not be read for metrics" in caplog.text) is (how == "breaks")


def test_the_store_is_read_once_for_scrapes_that_come_close_together() -> None:
    async def main(clock: VirtualClock) -> None:
        storage = FailingStorage(clock)
        app = app_on(storage, clock=clock)
        metrics = measured(app, store=True, max_age=5)
        async with app.open():
            await asyncio.gather(*(metrics.refresh() for _ in range(10)))
            await metrics.refresh()
            assert storage.reads == 1
            await asyncio.sleep(6)
            await metrics.refresh()
            assert storage.reads == 2

    run_virtual(main)


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    if request.param == "sqlite":
        return Headgate(f"sqlite:///{tmp_path}/jobs.db")
    return Headgate(request.getfixturevalue("postgres_url"), schema=request.getfixturevalue("postgres_schema"))


async def test_each_store_can_be_read(stored: Headgate) -> None:
    app = stored
    metrics = measured(app, store=True, top_keys=2)
    app.queue("still")

    @app.task(limits=[StrictRate("1/h", key="{key}", name="hourly")])
    async def work(key: str) -> None: ...

    @app.task(queue="still")
    async def rest() -> None: ...

    async with app:
        await app.admin.queues.pause("still")
        await rest.enqueue()
        jobs = await work.enqueue_many([("a",)] * 3)
        await result_within(jobs[0])
        await metrics.refresh()
        assert value(metrics, "headgate_up") == 1
        assert value(metrics, "headgate_queue_depth", queue="default", state="waiting") == 2
        assert value(metrics, "headgate_jobs_waiting", queue="default", task="work", view="throttled") == 2
        assert value(metrics, "headgate_top_key_waiting", limit="hourly", key="a") == 2
        assert value(metrics, "headgate_queue_paused", queue="still") == 1
        assert (value(metrics, "headgate_queue_oldest_age_seconds", queue="still") or 0) > 0
        assert value(metrics, "headgate_queue_lag_seconds", queue="still") == 0
        assert value(metrics, "headgate_nodes", state="alive") == 1


def test_a_node_is_silent_after_the_lease_and_not_between_two_heartbeats() -> None:
    """The fault: a node with a heartbeat of a minute was silent half of the time, and "no worker serves" its queue."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, heartbeat=60, lease=180)
        metrics = measured(app, store=True, max_age=0)

        @app.task
        async def work() -> None: ...

        async with app.open():
            await store_of(app).join("frozen", "a", controls=NodeControls({"default": 1}))
            job = await work.enqueue()
            for seconds, state in ((179, "alive"), (2, "silent")):
                await asyncio.sleep(seconds)
                (node,) = await app.admin.nodes()
                await metrics.refresh()
                assert node.state == state
                assert value(metrics, "headgate_nodes", state=state) == 1
                reason = (await app.admin.explain(job.id)).reason
                assert ("no worker" in reason) == (state == "silent"), reason

    run_virtual(main)


async def test_a_store_that_counts_slowly_is_reported_as_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: until the first count was done the store counted as away, which is an alert."""
    app = Headgate("memory://")
    metrics = measured(app, store=True, max_age=0)

    async def endless(**_options: Any) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError("never set")

    monkeypatch.setattr(store_of(app), "counts", endless)
    async with app:
        await metrics.refresh()
        assert value(metrics, "headgate_up") == 1
        assert value(metrics, "headgate_nodes", state="alive") == 1
        assert value(metrics, "headgate_queue_depth", queue="default", state="waiting") is None


def test_a_store_that_counts_for_seconds_is_up_in_each_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: with counts of 3 s each scrape but the first reported the store as away, without any number of it."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        metrics = measured(app, store=True)
        store = store_of(app)

        def slow(read: Callable[..., Awaitable[Any]], seconds: float) -> Callable[..., Awaitable[Any]]:
            async def slowly(**options: Any) -> Any:
                await asyncio.sleep(seconds)
                return await read(**options)

            return slowly

        monkeypatch.setattr(store, "nodes", slow(store.nodes, 0.01))
        monkeypatch.setattr(store, "counts", slow(store.counts, 3))
        depths: list[float | None] = []
        async with app.open():
            for _ in range(4):
                await metrics.refresh()
                assert value(metrics, "headgate_up") == 1
                depths.append(value(metrics, "headgate_queue_depth", queue="default", state="waiting"))
                await asyncio.sleep(15)
        assert depths == [None, 0, 0, 0]

    run_virtual(main)


def test_without_metrics_no_event_of_a_job_is_made() -> None:
    app = Headgate("memory://")
    assert not bus_of(app).has_listener(JobStarted)
    measured(app)
    assert bus_of(app).has_listener(JobStarted)
    assert bus_of(app).has_listener(JobFinished)


def test_invalid_options_are_refused_with_advice() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry=registry)
    Headgate("memory://").instrument(metrics)
    with pytest.raises(DeclarationError, match="make one PrometheusMetrics for each"):
        Headgate("memory://").instrument(metrics)
    with pytest.raises(DeclarationError, match="registry=CollectorRegistry"):
        Headgate("memory://").instrument(PrometheusMetrics(registry=registry))
    with pytest.raises(DeclarationError, match="store=True"):
        PrometheusMetrics(top_keys=3)


async def test_a_registry_read_on_the_event_loop_is_updated_in_the_background() -> None:
    """Other programs' own `/metrics` routes read the registry in one go."""
    app = Headgate("memory://")
    metrics = measured(app, store=True, max_age=0)
    async with app.open():
        assert value(metrics, "headgate_up") == 0
        # The first look has begun a reading, which this one shares.
        await metrics.refresh()
        assert value(metrics, "headgate_up") == 1


async def test_it_is_a_route_of_a_web_application() -> None:
    app = Headgate("memory://")
    metrics = measured(app, store=True)
    web = FastAPI(routes=[Route("/metrics", metrics.asgi)])
    async with app.open(), AsyncClient(transport=ASGITransport(web), base_url="http://test") as client:
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        assert "headgate_up 1.0" in answer.text
        other = await client.get("/metrics", headers={"accept": "application/openmetrics-text"})
        assert other.headers["content-type"].startswith("application/openmetrics-text")
        assert other.text.endswith("# EOF\n")
        assert (await client.head("/metrics")).text == ""


async def test_a_route_never_waits_on_its_event_loop_for_an_app_in_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: with `max_age=0` each scrape read the store twice, and the web application stood still meanwhile."""
    app = Headgate("memory://")
    metrics = measured(app, store=True, max_age=0)
    waiting: list[threading.Thread] = []
    refresh = metrics._refresh_from_thread

    def refresh_here() -> None:
        waiting.append(threading.current_thread())
        refresh()

    monkeypatch.setattr(metrics, "_refresh_from_thread", refresh_here)
    web = FastAPI(routes=[Route("/metrics", metrics.asgi)])
    # As the first `sync` verb of a plain function does.
    opened = ExitStack()
    await asyncio.to_thread(opened.enter_context, app.sync)
    try:
        async with AsyncClient(transport=ASGITransport(web), base_url="http://test") as client:
            assert "headgate_up 1.0" in (await client.get("/metrics")).text
    finally:
        await asyncio.to_thread(opened.close)
    assert len(waiting) == 1
    assert waiting[0] is not threading.current_thread()


async def test_the_server_answers_while_the_event_loop_is_blocked() -> None:
    app = Headgate("memory://")
    metrics = measured(app, store=True, deadline=0.05)
    server = metrics.serve(0)
    try:
        async with app.open():
            seen: list[bytes] = []

            def scrape() -> None:
                with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=patient(5)) as answer:
                    seen.append(answer.read())

            scraping = threading.Thread(target=scrape)
            scraping.start()
            # This is the event loop, which must not wait.
            scraping.join(patient(10))
            assert b"headgate_up 0.0" in seen[0]
            assert b"headgate_build_info" in seen[0]

            async def is_up() -> bool:
                await asyncio.to_thread(scrape)
                return b"headgate_up 1.0" in seen[-1]

            # A loop that is free may still take longer than 0.05 s on a busy machine.
            await until(is_up)
        with pytest.raises(HeadgateError, match="choose another port"):
            metrics.serve(server.port)
    finally:
        server.close()


def test_each_label_of_a_store_operation_is_one_that_the_engine_uses() -> None:
    engine = Path(tally.__file__).parents[1] / "engine"
    source = "".join(path.read_text() for path in engine.glob("*.py"))
    assert [doing for doing in tally.OPS if f'"{doing}"' not in source] == []
