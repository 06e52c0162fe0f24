"""The live stream: what is sent when, to how many, and for how long. Time is virtual."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from starlette.requests import Request

from headgate import Headgate
from headgate.admin import Overview
from headgate.errors import StorageUnavailable
from headgate.http.refusal import Refusal
from headgate.http.stream import Stream
from headgate.http.watch import Watch
from headgate.testing.virtual_time import VirtualClock, run_virtual


class Source:
    """Reads the overview of an app, counts how often, and fails when it is told to."""

    def __init__(self, app: Headgate) -> None:
        self._app = app
        self.reads = 0
        self.error: Exception | None = None

    async def read(self) -> Overview:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return await self._app.admin.overview()


def make(clock: VirtualClock, **options: Any) -> tuple[Headgate, Source, Stream]:
    app = Headgate("memory://", clock=clock)

    @app.task
    async def work(name: str) -> None: ...

    source = Source(app)
    return app, source, Stream(Watch(source.read, clock), clock, **options)


async def listen(stream: Stream, *, known: str | None = None) -> AsyncGenerator[str, None]:
    headers = [] if known is None else [(b"last-event-id", known.encode())]
    response = await stream.response(Request({"type": "http", "headers": headers}), lambda overview: overview)
    assert response.media_type == "text/event-stream"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["cache-control"] == "no-store"
    events = response.body_iterator
    assert isinstance(events, AsyncGenerator)
    async with aclosing(events):
        async for chunk in events:
            assert isinstance(chunk, bytes)
            yield chunk.decode()


def parsed(event: str) -> tuple[str, str, Any]:
    name, id, data = (line.partition(": ")[2] for line in event.strip().split("\n"))
    return name, id, json.loads(data)


def test_what_is_going_on_is_sent_at_once_and_whenever_it_has_changed() -> None:
    async def main(clock: VirtualClock) -> None:
        app, _, stream = make(clock)
        async with app.open():
            events = listen(stream)
            assert await anext(events) == "retry: 2000\n\n"
            name, first, data = parsed(await anext(events))
            assert (name, data["totals"]["scheduled"]) == ("overview", 0)
            await app.tasks["work"].using(delay=3600).enqueue("a")
            before = clock.monotonic()
            name, second, data = parsed(await anext(events))
            assert (name, data["totals"]["scheduled"]) == ("overview", 1)
            assert second != first
            assert clock.monotonic() - before <= 1_000_000
            await events.aclose()

    run_virtual(main)


def test_while_nothing_changes_only_a_heartbeat_is_sent_after_15_seconds() -> None:
    async def main(clock: VirtualClock) -> None:
        app, _, stream = make(clock)
        async with app.open():
            events = listen(stream)
            await anext(events)
            await anext(events)
            before = clock.monotonic()
            assert await anext(events) == ": alive\n\n"
            assert 15_000_000 <= clock.monotonic() - before <= 16_000_000
            await events.aclose()

    run_virtual(main)


def test_however_many_listen_the_store_is_read_once_a_second_and_not_at_all_when_nobody_does() -> None:
    async def main(clock: VirtualClock) -> None:
        app, source, stream = make(clock)

        async def browser() -> None:
            async for _ in listen(stream):
                pass

        async with app.open():
            listening = [asyncio.create_task(browser()) for _ in range(200)]
            await asyncio.sleep(10.5)
            assert stream.clients == 200
            assert 10 <= source.reads <= 12
            for each in listening:
                each.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
            assert stream.clients == 0
            reads = source.reads
            await asyncio.sleep(60)
            assert source.reads == reads

    run_virtual(main)


def test_a_browser_that_reads_slowly_is_told_that_it_missed_something_and_nothing_is_kept_for_it() -> None:
    async def main(clock: VirtualClock) -> None:
        app, _, stream = make(clock)
        async with app.open():
            slow, quick = listen(stream), listen(stream)
            for events in (slow, quick):
                await anext(events)
                await anext(events)
            for number in range(5):
                await app.tasks["work"].using(delay=3600).enqueue(str(number))
                assert parsed(await anext(quick))[2]["totals"]["scheduled"] == number + 1
            assert parsed(await anext(slow))[0] == "resync"
            assert parsed(await anext(slow))[2]["totals"]["scheduled"] == 5
            await slow.aclose()
            await quick.aclose()

    run_virtual(main)


def test_a_browser_that_comes_back_is_not_told_what_it_knows() -> None:
    async def main(clock: VirtualClock) -> None:
        app, _, stream = make(clock)
        async with app.open():
            first = listen(stream)
            await anext(first)
            _, id, _ = parsed(await anext(first))
            await first.aclose()
            again = listen(stream, known=id)
            await anext(again)
            assert await anext(again) == ": alive\n\n"
            await again.aclose()

    run_virtual(main)


def test_a_stream_lives_for_half_a_minute_and_lets_the_browser_come_back_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        app, _, stream = make(clock)
        async with app.open():
            began = clock.monotonic()
            events = [event async for event in listen(stream)]
            assert 30_000_000 <= clock.monotonic() - began <= 31_000_000
            assert [event for event in events if event.startswith("retry")] == ["retry: 2000\n\n", "retry: 100\n\n"]
            assert events[-1].startswith("retry")

    run_virtual(main)


def test_streams_end_when_the_site_ends_and_no_other_begins_until_it_begins_anew() -> None:
    async def main(clock: VirtualClock) -> None:
        app, _, stream = make(clock)
        async with app.open():
            events = listen(stream)
            await anext(events)
            await anext(events)
            before = clock.monotonic()
            stream.end()
            with pytest.raises(StopAsyncIteration):
                await anext(events)
            assert clock.monotonic() == before
            with pytest.raises(Refusal, match="this server ends"):
                await anext(listen(stream))
            stream.begin()
            assert await anext(listen(stream)) == "retry: 2000\n\n"

    run_virtual(main)


def test_streams_end_within_a_second_when_the_server_is_told_to_end() -> None:
    async def main(clock: VirtualClock) -> None:
        told = [False]
        app, _, stream = make(clock, is_leaving=lambda: told[0])
        async with app.open():
            events = listen(stream)
            await anext(events)
            await anext(events)
            told[0] = True
            before = clock.monotonic()
            with pytest.raises(StopAsyncIteration):
                await anext(events)
            assert clock.monotonic() - before <= 1_000_000
            with pytest.raises(Refusal, match="this server ends") as refused:
                await anext(listen(stream))
            assert refused.value.headers["Retry-After"]

    run_virtual(main)


def test_one_browser_too_many_is_refused_and_told_what_to_do_instead() -> None:
    async def main(clock: VirtualClock) -> None:
        app, _, stream = make(clock, most_clients=2)
        async with app.open():
            kept = [listen(stream) for _ in range(2)]
            for each in kept:
                await anext(each)
            with pytest.raises(Refusal, match="2 browsers listen here already") as refused:
                await anext(listen(stream))
            assert refused.value.status == 503
            await kept[0].aclose()
            assert await anext(listen(stream)) == "retry: 2000\n\n"

    run_virtual(main)


def test_browsers_that_come_all_at_once_are_no_more_than_may_listen() -> None:
    async def main(clock: VirtualClock) -> None:
        app, _, stream = make(clock, most_clients=2)
        async with app.open():
            arriving = [listen(stream) for _ in range(5)]
            first = await asyncio.gather(*(anext(each) for each in arriving))
            assert first == ["retry: 2000\n\n"] * 2 + ["retry: 5000\n\n"] * 3
            assert stream.clients == 2

    run_virtual(main)


def test_a_stream_ends_when_the_store_is_away_and_none_begins_until_it_is_back() -> None:
    async def main(clock: VirtualClock) -> None:
        app, source, stream = make(clock)
        async with app.open():
            events = listen(stream)
            await anext(events)
            await anext(events)
            source.error = StorageUnavailable("away")
            with pytest.raises(StopAsyncIteration):
                await anext(events)
            with pytest.raises(Refusal) as refused:
                await anext(listen(stream))
            assert refused.value.status == 503
            source.error = None
            assert await anext(listen(stream)) == "retry: 2000\n\n"

    run_virtual(main)


def test_a_read_that_began_before_a_change_is_not_shown_after_it() -> None:
    async def main(clock: VirtualClock) -> None:
        app, source, _ = make(clock)

        async def read_slowly() -> Overview:
            overview = await source.read()
            await asyncio.sleep(0.5)
            return overview

        watch = Watch(read_slowly, clock)
        async with app.open():
            early = asyncio.create_task(watch.look())
            await asyncio.sleep(0.1)
            await app.admin.queues.pause("default")
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
            assert source.reads == 3

    run_virtual(main)
