"""The feed of ended jobs over HTTP: pages and a stream, for whom, and without what a handler was given or returned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from random import Random
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from headgate import Headgate
from headgate.admin.ended import EndFollower, EndQuery, Place, place_of
from headgate.clock import sleep
from headgate.http import dashboard
from headgate.http.overview_poller import OverviewPoller
from headgate.http.stream import MOST_OF_USER, EndReader, Stream
from headgate.storage.records import EndsRead
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.faces.http.stage import EVERYBODY, HOSTILE, LIMIT, PASSWORD, browser, make_app, problem, seed
from tests.internals import store_of
from tests.until import result_within


async def page(caller: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await caller.get("/api/v1/events", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_program_gets_each_end_by_polling(app: Headgate) -> None:
    async with app.open(), browser(app) as caller:
        seeds = await seed(app)
        found = await page(caller)
        events = {each["job"]: each for each in found["items"]}
        assert events[seeds.failed]["kind"] == "failed"
        assert events[seeds.failed]["error"] == "ValueError"
        assert events[seeds.failed]["attempt"] == 2
        assert events[seeds.succeeded]["kind"] == "succeeded"
        assert events[seeds.cancelled]["kind"] == "cancelled"
        assert [each["limits"] for each in found["items"] if each["task"] == "sync"] == [[[LIMIT, HOSTILE]]]
        ends = [each["finished_at"] for each in found["items"]]
        assert ends == sorted(ends)
        assert found["has_more"] is False
        # Neither arguments nor results nor texts of errors.
        assert PASSWORD not in json.dumps(found)
        assert "why?" not in json.dumps(found)

        # One page after another has the same ends, however short they are.
        after: dict[str, str] = {}
        paged, more = [], True
        while more:
            short = await page(caller, count=1, **after)
            paged += short["items"]
            after, more = {"after": short["next"]}, short["has_more"]
        assert [each["id"] for each in paged] == [each["id"] for each in found["items"]]
        # What has ended within the last seconds comes again, with the same ids.
        again = await page(caller, **after)
        assert {each["id"] for each in again["items"]} <= {each["id"] for each in found["items"]}


async def test_events_are_filtered(app: Headgate) -> None:
    async with app.open(), browser(app) as caller:
        seeds = await seed(app)
        assert [each["job"] for each in (await page(caller, task="login"))["items"]] == [seeds.failed]
        assert [each["job"] for each in (await page(caller, state="cancelled"))["items"]] == [seeds.cancelled]
        assert len((await page(caller, limit=LIMIT, key=HOSTILE))["items"]) == 1
        assert (await page(caller, limit=LIMIT, key="x"))["items"] == []
        assert (await page(caller, queue="absent"))["items"] == []
        assert (await page(caller, tag="absent"))["items"] == []
        assert (await page(caller, after="2999-01-01T00:00:00Z"))["items"] == []


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"state": "running"}, "state"),
        ({"after": "yesterday"}, "or an instant such as 2026-03-01T12:00:00Z (after)"),
        ({"after": "2026-03-01T12:00:00"}, "write 2026-03-01T12:00:00Z"),
        ({"count": 501}, "count"),
        ({"since": "1h"}, "since"),
        ({"limit": "10"}, "to get at most 10, write count=10"),
    ],
)
async def test_a_wrong_query_is_refused_as_a_page_and_as_a_stream(
    app: Headgate, query: dict[str, Any], says: str
) -> None:
    async with app.open(), browser(app) as caller:
        for accept in ("*/*", "text/event-stream"):
            answer = await caller.get("/api/v1/events", params=query, headers={"Accept": accept})
            assert answer.status_code in (400, 422)
            problem(answer)
            assert says in answer.json()["detail"]


async def stream(site: Any, *, query: str = "", known: str | None = None) -> AsyncGenerator[str, None]:
    """Return what a client of the stream is sent."""
    headers = [(b"accept", b"text/event-stream"), (b"host", b"localhost")]
    headers += [] if known is None else [(b"last-event-id", known.encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/events",
        "query_string": query.encode(),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "scheme": "http",
    }
    visitor = await site._guard.visitor(Request(scope))
    response = await site._stream_of_ends(Request(scope), visitor)
    assert response.media_type == "text/event-stream"
    async for chunk in response.body_iterator:
        for message in bytes(chunk).decode().split("\n\n"):
            if "data: " in message:
                yield message


def parsed(message: str) -> tuple[str, dict[str, Any]]:
    lines = dict(line.split(": ", 1) for line in message.split("\n"))
    assert lines["event"] == "end"
    return lines["id"], json.loads(lines["data"])


async def test_a_stream_sends_ends_as_they_come_and_continues_after_the_last_one(app: Headgate) -> None:
    site = dashboard(app, auth=EVERYBODY)
    async with app:
        events = stream(site, query="task=answer")
        first = await app.tasks["answer"].enqueue("one?")
        await app.tasks["sync"].enqueue("acme")
        await result_within(first)
        cursor, event = parsed(await anext(events))
        assert (event["job"], event["kind"], event["cursor"]) == (first.id, "succeeded", cursor)
        second = await app.tasks["answer"].enqueue("two?")
        assert parsed(await anext(events))[1]["job"] == second.id
        assert site.stream.clients == 1
        await events.aclose()
        # At least once: the first one is so young that it comes again.
        resumed = stream(site, query="task=answer&after=2999-01-01T00:00:00Z", known=cursor)
        assert [parsed(await anext(resumed))[1]["job"] for _ in range(2)] == [first.id, second.id]
        await resumed.aclose()
    await site.close()


async def test_no_user_takes_all_streams(app: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    async with app.open(), browser(app) as caller:
        monkeypatch.setattr("headgate.http.stream.Stream._is_full", lambda stream, user: True)
        answer = await caller.get("/api/v1/events", headers={"Accept": "text/event-stream"})
        assert answer.status_code == 503
        assert problem(answer) == "too_many_streams"
        assert f"{MOST_OF_USER} of local; poll /api/v1/events without" in answer.json()["detail"]


@pytest.fixture
def app() -> Headgate:
    return make_app()


@pytest.mark.parametrize("seed", range(10))
def test_a_client_whose_connections_break_anywhere_gets_each_end(seed: int) -> None:
    """Also where a stream begins and where it reaches its age: the id there must not be behind an unsent end."""
    random = Random(seed)

    async def main(clock: VirtualClock) -> None:
        app = make_app(clock=clock)
        async with app.open():
            stream = Stream(OverviewPoller(app.admin.overview, clock).look, clock)
            # A pass of several pages, or of one that is longer than what is looked back.
            count = random.choice((2, 500))
            ended: set[str] = set()
            got: set[str] = set()
            known: str | None = str(Place(clock.now()))

            async def end_jobs() -> None:
                for _ in range(400):
                    for _ in range(random.choice((0, 1, 3))):
                        job = await app.tasks["answer"].using(delay=9999).enqueue("?")
                        await app.admin.cancel(job.id)
                        ended.add(job.id)
                    await sleep(clock, random.choice((0.3, 1)))

            async def read(place: Place) -> EndsRead:
                return await store_of(app).ended(place.at, place.number, count)

            async def connect(chunks: int) -> None:
                nonlocal known
                reader = EndReader(read, clock)
                follower = EndFollower(reader, place_of(known, clock.now()))
                response = await stream.ends_response(follower, EndQuery())
                events = response.body_iterator
                assert isinstance(events, AsyncGenerator)
                async with aclosing(events):
                    async for chunk in events:
                        for line in bytes(chunk).decode().split("\n"):
                            name, _, value = line.partition(": ")
                            if name == "id":
                                known = value
                            elif name == "data":
                                got.add(json.loads(value)["job"])
                        chunks -= 1
                        if chunks == 0:
                            return

            ending = asyncio.ensure_future(end_jobs())
            while not ending.done():
                await connect(random.choice((1, 1, 2, 5, 1000)))
                # Longer than what is looked back.
                await sleep(clock, random.choice((0.1, 30)))
            await ending
            await connect(1000)
            assert ended
            assert ended - got == set()

    run_virtual(main)
