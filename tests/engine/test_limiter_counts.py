"""What an app's limiters grant and refuse is published in few events and counted, and none of it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headgate import Headgate, Limiter, RateLimit
from headgate.contrib.asgi import AsgiLimitMiddleware, Receive, Scope, Send
from headgate.contrib.wsgi import WsgiLimitMiddleware
from headgate.jobs.event import Event, LimiterBypassed, LimiterGranted, LimiterRefused
from headgate.observe.metrics import PrometheusMetrics
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.until import patient, until


def refusals_of(app: Headgate) -> list[LimiterRefused]:
    """The refusals that the app publishes."""
    events: list[LimiterRefused] = []

    def note(event: Event) -> None:
        assert isinstance(event, LimiterRefused)
        events.append(event)

    app.subscribe(note, LimiterRefused)
    return events


def test_refusals_are_published_at_once_then_in_summaries_and_the_last_one_when_the_app_is_closed() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.limit("openai", RateLimit("1/h"))
        events = refusals_of(app)

        async def counts(after: float = 0.1) -> list[int]:
            await asyncio.sleep(after)
            return [event.count for event in events]

        async with app.open():
            limiter = app.limiter("openai")
            assert await limiter.try_acquire("acme")
            assert await counts() == []
            for _ in range(5):
                assert not await limiter.try_acquire("acme")
            assert await counts() == [1]
            assert not await limiter.acquire("acme", timeout=1)
            with pytest.raises(TimeoutError):
                async with limiter.hold("acme", timeout=1):
                    pass
            assert await limiter.try_acquire("globex")
            assert not await limiter.try_acquire("globex")
            assert await counts() == [1]
            assert await counts(after=31) == [1, 7]
            assert (events[1].limit, events[1].key) == ("openai", "globex")
            assert await counts(after=100) == [1, 7]
            for _ in range(3):
                await limiter.try_acquire("acme")
            assert await counts() == [1, 7, 1]
            await limiter.close()
        assert await counts() == [1, 7, 1, 2]
        # Open again, it counts anew.
        async with app.open():
            limiter = app.limiter("openai")
            for _ in range(2):
                await limiter.try_acquire("initech")
            assert await counts() == [1, 7, 1, 2, 1]
            await limiter.close()
        assert await counts(after=60) == [1, 7, 1, 2, 1]

    run_virtual(main)


async def test_refusals_in_threads_are_published_on_the_loop_of_the_app() -> None:
    app = Headgate("memory://")
    app.limit("openai", RateLimit("1/h"))
    loops: list[asyncio.AbstractEventLoop] = []
    app.subscribe(lambda event: loops.append(asyncio.get_running_loop()), LimiterRefused)
    async with app.open():
        limiter = app.limiter("openai")
        assert await limiter.try_acquire()
        for _ in range(3):
            assert not await asyncio.to_thread(limiter.sync.try_acquire)
            assert not await asyncio.to_thread(limiter.sync.acquire, timeout=0.01)
        await until(lambda: len(loops) == 1)
        await limiter.close()
    assert loops == [asyncio.get_running_loop()] * 2


def test_refusals_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.limit("openai", RateLimit("1/h"))
        metrics = PrometheusMetrics(registry=CollectorRegistry())
        app.instrument(metrics)

        def refused() -> float | None:
            labels = {"limit": "openai", "decision": "refused"}
            return metrics.registry.get_sample_value("headgate_limit_decisions_total", labels)

        async with app:
            await asyncio.sleep(1)
            assert refused() == 0
            limiter = app.limiter("openai")
            for _ in range(5):
                await limiter.try_acquire("acme")
            assert refused() == 1
            await asyncio.sleep(31)
            assert refused() == 4
            await limiter.close()

    with caplog.at_level(logging.INFO, logger="headgate"):
        run_virtual(main)
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert lines == [
        "limit openai refused plain code 1 start, the latest for key 'acme' [refused limit=openai key=acme count=1]",
        "limit openai refused plain code 3 starts, the latest for key 'acme' [refused limit=openai key=acme count=3]",
    ]


def test_grants_are_published_in_summaries_and_counted_but_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.limit("openai", RateLimit("100/m"))
        metrics = PrometheusMetrics(registry=CollectorRegistry())
        app.instrument(metrics)
        events: list[Event] = []
        app.subscribe(events.append, LimiterGranted, LimiterRefused)

        @app.task(limits=["openai"])
        async def ask() -> None: ...

        def granted() -> float | None:
            labels = {"limit": "openai", "decision": "granted"}
            return metrics.registry.get_sample_value("headgate_limit_decisions_total", labels)

        async with app:
            await (await ask.enqueue()).result()
            await asyncio.sleep(1)
            assert granted() == 1
            limiter = app.limiter("openai")
            for _ in range(3):
                assert await limiter.try_acquire("acme")
            assert await limiter.acquire("acme")
            async with limiter.hold("globex"):
                pass
            # Its job, and the first of them.
            assert granted() == 2
            await asyncio.sleep(31)
            assert granted() == 6
            assert await limiter.try_acquire("initech")
            assert await limiter.try_acquire("initech")
            await limiter.close()
        assert granted() == 8
        counts = [(event.limit, event.key, event.count) for event in events if isinstance(event, LimiterGranted)]
        assert counts == [("openai", "acme", 1), ("openai", "globex", 4), ("openai", "initech", 2)]
        assert len(events) == len(counts)

    with caplog.at_level(logging.INFO, logger="headgate"):
        run_virtual(main)
    assert "plain code" not in caplog.text


async def test_grants_in_threads_are_counted_with_the_others() -> None:
    app = Headgate("memory://")
    app.limit("openai", RateLimit("100/m"))
    events: list[Event] = []
    app.subscribe(events.append, LimiterGranted)
    async with app.open():
        limiter = app.limiter("openai")
        for _ in range(3):
            assert await asyncio.to_thread(limiter.sync.try_acquire)
            assert await asyncio.to_thread(limiter.sync.acquire, timeout=patient(5))
        await until(lambda: len(events) == 1)
        await limiter.close()
    assert sum(event.count for event in events if isinstance(event, LimiterGranted)) == 6


@pytest.mark.parametrize("use", [lambda app: app.limiter("openai"), lambda app: Limiter(RateLimit("1/h"))])
def test_a_refusal_outside_of_an_open_app_is_an_answer_and_nothing_else(use: Callable[[Headgate], Limiter]) -> None:
    app = Headgate("memory://", limits_url="memory://")
    app.limit("openai", RateLimit("1/h"))
    events = refusals_of(app)
    limiter = use(app)
    assert limiter.sync.try_acquire()
    assert not limiter.sync.try_acquire()
    assert events == []


async def test_requests_that_pass_without_their_limit_are_published_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    app = Headgate("memory://")
    app.instrument(PrometheusMetrics(registry=registry))
    # Nothing listens there.
    app.limit("api", RateLimit("1/h", store="redis://127.0.0.1:1/0"))
    events: list[Event] = []
    app.subscribe(events.append, LimiterBypassed)
    passed = 0

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal passed
        passed += 1

    async def nothing(*_: Any) -> Any: ...

    async with app.open():
        middleware = AsgiLimitMiddleware(answer, app.limiter("api"), key="acme")
        for _ in range(3):
            await middleware({"type": "http"}, nothing, nothing)
        assert (passed, middleware.passed_without_limit) == (3, 3)
        await until(lambda: bool(events))
    found = [event for event in events if isinstance(event, LimiterBypassed)]
    assert [(event.limit, event.key, event.count) for event in found] == [("api", "acme", 1), ("api", "acme", 2)]
    labels = {"limit": "api", "decision": "unlimited"}
    assert registry.get_sample_value("headgate_limit_decisions_total", labels) == 3
    assert "limit api: 2 requests passed without it, as its store does not answer" in caplog.text


def test_a_middleware_counts_what_passes_a_limiter_of_its_own() -> None:
    limiter = Limiter(RateLimit("1/h"), "redis://127.0.0.1:1/0")

    def answer(environ: Any, start_response: Any) -> list[bytes]:
        return [b"hello"]

    middleware = WsgiLimitMiddleware(answer, limiter, key="acme")
    for _ in range(2):
        assert list(middleware({}, lambda *_: lambda _: None)) == [b"hello"]
    assert middleware.passed_without_limit == 2
