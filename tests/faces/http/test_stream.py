"""The live stream: what is sent when, to how many, and for how long. Time is virtual."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.requests import Request

from headgate import Headgate
from headgate.admin import Overview
from headgate.clock import to_datetime
from headgate.errors import StorageUnavailable
from headgate.http.http_error import HttpError
from headgate.http.overview_poller import OverviewPoller
from headgate.http.stream import Stream, StreamListener
from headgate.testing.virtual_time import VirtualClock, run_virtual

HELLO = "retry: 2000\n\n"


class Source:
    """Reads the overview of an app, counts the reads, and fails or hangs on request."""

    def __init__(self, app: Headgate) -> None:
        self._app = app
        self.reads = 0
        self.error: Exception | None = None
        self.takes = 0.0

    async def read(self) -> Overview:
        self.reads += 1
        await asyncio.sleep(self.takes)
        if self.error is not None:
            raise self.error
        return await self._app.admin.overview()


@dataclass(frozen=True, slots=True)
class Live:
    """An open app, and its live stream."""

    clock: VirtualClock
    app: Headgate
    source: Source
    stream: Stream

    async def listen(self, *, known: str | None = None, user: str = "ada") -> AsyncGenerator[str, None]:
        """What one browser is sent."""
        headers = [] if known is None else [(b"last-event-id", known.encode())]
        request = Request({"type": "http", "headers": headers})
        response = await self.stream.response(request, lambda overview: overview, StreamListener(user))
        assert response.media_type == "text/event-stream"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["cache-control"] == "no-store"
        events = response.body_iterator
        assert isinstance(events, AsyncGenerator)
        async with aclosing(events):
            async for chunk in events:
                assert isinstance(chunk, bytes)
                yield chunk.decode()

    async def begun(self) -> tuple[AsyncGenerator[str, None], str]:
        """Return a stream that has sent an overview, and the id of that message."""
        events = self.listen()
        assert await anext(events) == HELLO
        name, id, _ = parsed(await anext(events))
        assert name == "overview"
        return events, id

    async def refusal(self) -> HttpError:
        """Why no stream begins."""
        with pytest.raises(HttpError) as refused:
            await anext(self.listen())
        assert refused.value.status == 503
        assert refused.value.headers["Retry-After"]
        return refused.value

    async def enqueue(self, name: str) -> None:
        await self.app.tasks["work"].using(delay=3600).enqueue(name)


def live(test: Callable[[Live], Awaitable[None]], **options: Any) -> Callable[[], None]:
    """The test in virtual time."""

    def run() -> None:
        async def main(clock: VirtualClock) -> None:
            app = Headgate("memory://", clock=clock)

            @app.task
            async def work(name: str) -> None: ...

            source = Source(app)
            async with app.open():
                await test(Live(clock, app, source, Stream(OverviewPoller(source.read, clock).look, clock, **options)))

        run_virtual(main)

    run.__name__ = test.__name__
    return run


def for_two(test: Callable[[Live], Awaitable[None]]) -> Callable[[], None]:
    """The test of a stream that two may listen to."""
    return live(test, most_clients=2)


def parsed(event: str) -> tuple[str, str, Any]:
    name, id, data = (line.partition(": ")[2] for line in event.strip().split("\n"))
    return name, id, json.loads(data)


@live
async def test_the_overview_is_sent_immediately_and_after_each_change(it: Live) -> None:
    events, first = await it.begun()
    await it.enqueue("a")
    before = it.clock.monotonic()
    name, second, data = parsed(await anext(events))
    assert (name, data["totals"]["scheduled"]) == ("overview", 1)
    assert second != first
    assert it.clock.monotonic() - before <= 1_000_000
    await events.aclose()


@live
async def test_while_nothing_changes_only_a_heartbeat_is_sent_after_15_seconds(it: Live) -> None:
    events, _ = await it.begun()
    before = it.clock.monotonic()
    assert await anext(events) == ": alive\n\n"
    assert 15_000_000 <= it.clock.monotonic() - before <= 16_000_000
    await events.aclose()


@live
async def test_the_store_is_read_once_a_second_for_all_listeners_and_not_without_any(it: Live) -> None:
    async def browser(user: str) -> None:
        async for _ in it.listen(user=user):
            pass

    listening = [asyncio.create_task(browser(f"user {number % 2}")) for number in range(200)]
    await asyncio.sleep(10.5)
    assert it.stream.clients == 200
    assert 10 <= it.source.reads <= 12
    for each in listening:
        each.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    assert it.stream.clients == 0
    reads = it.source.reads
    await asyncio.sleep(60)
    assert it.source.reads == reads


@live
async def test_a_slow_browser_is_notified_of_missed_updates_and_nothing_is_buffered_for_it(
    it: Live,
) -> None:
    (slow, _), (quick, _) = await it.begun(), await it.begun()
    for number in range(5):
        await it.enqueue(str(number))
        assert parsed(await anext(quick))[2]["totals"]["scheduled"] == number + 1
    assert parsed(await anext(slow))[0] == "resync"
    assert parsed(await anext(slow))[2]["totals"]["scheduled"] == 5
    await slow.aclose()
    await quick.aclose()


@live
async def test_a_browser_that_reconnects_gets_no_repeated_updates(it: Live) -> None:
    first, id = await it.begun()
    await first.aclose()
    again = it.listen(known=id)
    assert [await anext(again), await anext(again)] == [HELLO, ": alive\n\n"]
    await again.aclose()


@live
async def test_a_stream_lives_for_half_a_minute_and_lets_the_browser_come_back_at_once(it: Live) -> None:
    began = it.clock.monotonic()
    events = [event async for event in it.listen()]
    assert 30_000_000 <= it.clock.monotonic() - began <= 31_000_000
    assert [event for event in events if event.startswith("retry")] == [HELLO, "retry: 100\n\n"]
    assert events[-1].startswith("retry")


@live
async def test_streams_end_with_the_site_and_begin_again_with_it(it: Live) -> None:
    events, _ = await it.begun()
    before = it.clock.monotonic()
    it.stream.end()
    assert [event async for event in events] == []
    assert it.clock.monotonic() == before
    assert (await it.refusal()).code == "ending"
    it.stream.begin()
    assert await anext(it.listen()) == HELLO


def test_streams_end_within_a_second_when_the_server_is_asked_to_stop() -> None:
    received = [False]

    async def test(it: Live) -> None:
        events, _ = await it.begun()
        received[0] = True
        before = it.clock.monotonic()
        assert [event async for event in events] == []
        assert it.clock.monotonic() - before <= 1_000_000
        assert (await it.refusal()).code == "ending"

    live(test, is_leaving=lambda: received[0])()


@for_two
async def test_a_browser_above_the_limit_is_refused_with_advice(it: Live) -> None:
    (first, _), (_second, _) = await it.begun(), await it.begun()
    assert (await it.refusal()).code == "too_many_streams"
    await first.aclose()
    assert await anext(it.listen()) == HELLO


def test_no_user_takes_all_streams() -> None:
    async def test(it: Live) -> None:
        arriving = [it.listen() for _ in range(5)]
        first = await asyncio.gather(*(anext(each) for each in arriving))
        # Those that came at once are told to come again.
        assert first.count(HELLO) == 2
        assert (await it.refusal()).code == "too_many_streams"
        assert await anext(it.listen(user="vera")) == HELLO
        assert it.stream.clients == 3

    live(test, most_clients=4, most_of_user=2)()


@for_two
async def test_concurrent_browsers_do_not_exceed_the_limit(it: Live) -> None:
    arriving = [it.listen() for _ in range(5)]
    first = await asyncio.gather(*(anext(each) for each in arriving))
    assert first == [HELLO] * 2 + ["retry: 5000\n\n"] * 3
    assert it.stream.clients == 2


@live
async def test_a_stream_ends_when_the_store_is_unavailable(it: Live) -> None:
    events, _ = await it.begun()
    it.source.error = StorageUnavailable("away")
    assert [parsed(event)[0] for event in [each async for each in events]] == ["lost"]
    with pytest.raises(StorageUnavailable, match="away"):
        await anext(it.listen())
    it.source.error = None
    assert await anext(it.listen()) == HELLO


@live
async def test_a_store_that_does_not_answer_for_three_seconds_is_lost_until_it_answers(it: Live) -> None:
    events, _ = await it.begun()
    before = it.clock.monotonic()
    it.source.takes = 10
    assert parsed(await anext(events))[0] == "lost"
    # A second until the next reading, and three for which it may last.
    assert 3_000_000 <= it.clock.monotonic() - before <= 4_100_000
    it.source.takes = 0
    name, _, data = parsed(await anext(events))
    assert (name, data["totals"]["waiting"]) == ("overview", 0)
    assert it.clock.monotonic() - before <= 11_100_000
    await events.aclose()


@live
async def test_a_read_that_began_before_a_change_is_not_shown_after_it(it: Live) -> None:
    async def read_slowly() -> Overview:
        overview = await it.source.read()
        await asyncio.sleep(0.5)
        return overview

    watch = OverviewPoller(read_slowly, it.clock)
    early = asyncio.create_task(watch.look())
    await asyncio.sleep(0.1)
    await it.app.admin.queues.pause("default")
    watch.changed()
    late = await watch.look()
    assert not (await early).overview.queues[0].is_paused
    assert late.overview.queues[0].is_paused
    assert (await watch.look()) is late
    # Reading took half a second, so it is shown for five.
    await asyncio.sleep(4)
    assert (await watch.look()) is late
    await asyncio.sleep(1)
    assert (await watch.look()) is not late
    assert it.source.reads == 3


@live
async def test_a_page_shows_the_last_known_state_and_since_when_the_store_does_not_answer(it: Live) -> None:
    watch = OverviewPoller(it.source.read, it.clock)
    it.source.error = StorageUnavailable("gone")
    with pytest.raises(StorageUnavailable, match="gone"):
        await watch.latest()
    it.source.error = None
    known = await watch.latest()
    assert known.silent_since is None
    # It hangs, and then refuses.
    await asyncio.sleep(60)
    it.source.takes = 10
    before = it.clock.now()
    hung = await watch.latest()
    assert 1_400_000 <= it.clock.now() - before <= 2_000_000
    assert hung.silent_since == to_datetime(before)
    assert (hung.verdict[0].kind, hung.verdict[0].at) == ("store_silent", hung.silent_since)
    assert (hung.counted_at, hung.now) == (known.counted_at, to_datetime(it.clock.now()))
    await asyncio.sleep(20)
    it.source.takes, it.source.error = 0, StorageUnavailable("gone")
    # What took 10 s is reused for 100 s.
    await asyncio.sleep(100)
    refused = await watch.latest()
    assert refused.silent_since is not None
    assert refused.now >= refused.silent_since > hung.silent_since, "it had answered the read that took 10 s"
    assert (await watch.latest()).silent_since == refused.silent_since
    it.source.error = None
    assert (await watch.latest()).silent_since is None
