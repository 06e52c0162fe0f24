"""HTTP clients that keep to a budget, and do as servers say that refuse them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from time import monotonic

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Concurrency, Headgate, Limiter, RateLimit, RateLimited, StorageUnavailable
from headgate.contrib.httpx import (
    HORIZON,
    UNSAID,
    LimitedTransport,
    SyncLimitedTransport,
    closed_for,
    raise_rate_limited,
    raise_rate_limited_sync,
    refused_for,
)
from headgate.limits.bucket_store import Bucket
from headgate.limits.standalone.app_limiter import CurrentBuckets
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.testing.virtual_time import VirtualClock, run_virtual

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
EPOCH = int(NOW.timestamp())


# ------------------------------------------------------------------------------------------------ what an answer says


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"Retry-After": "30"}, 30),
        (429, {"Retry-After": "1.5"}, 1.5),
        (429, {"retry-after": "Wed, 04 Mar 2026 05:07:07 GMT"}, 60),
        (429, {"Retry-After": "Wed, 04 Mar 2026 05:07:07 GMT", "Date": "Wed, 04 Mar 2026 05:07:00 GMT"}, 7),
        (429, {"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
        (503, {"Retry-After": "120"}, 120),
        (403, {"Retry-After": "60"}, 60),
        (429, {"RateLimit": '"burst";r=0;t=30'}, 30),
        (429, {"RateLimit": '"burst";r=3;t=30, "day";r=0;t=600'}, 600),
        (429, {"RateLimit": '"burst";r=0', "RateLimit-Policy": '"burst";q=100;w=60'}, 60),
        (429, {"RateLimit": "limit=100, remaining=0, reset=50"}, 50),
        (429, {"RateLimit-Remaining": "0", "RateLimit-Reset": "12"}, 12),
        (429, {"RateLimit-Reset": "12"}, 12),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(EPOCH + 90)}, 90),
        (429, {"X-Rate-Limit-Remaining": "0", "X-Rate-Limit-Reset": str((EPOCH + 90) * 1000)}, 90),
        (429, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20ms"}, 0.02),
        (429, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s", "Retry-After": "20"}, 360),
        (
            429,
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2026-03-04T05:06:47Z",
                "anthropic-ratelimit-requests-remaining": "9",
                "anthropic-ratelimit-requests-reset": "2026-03-04T06:06:47Z",
            },
            40,
        ),
        (429, {}, UNSAID),
        (429, {"Retry-After": "soon"}, UNSAID),
        (429, {"Retry-After": "-3"}, UNSAID),
        (429, {"Retry-After": "0"}, UNSAID),
        (429, {"Retry-After": "99999999"}, HORIZON),
        (429, {"X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "3000"}, UNSAID),
        (503, {}, None),
        (403, {}, None),
        (403, {"X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "3000"}, None),
        (500, {"Retry-After": "30"}, None),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}, None),
    ],
)
def test_how_long_a_server_refuses(status: int, headers: Mapping[str, str], seconds: float | None) -> None:
    assert refused_for(status, headers, NOW) == (None if seconds is None else pytest.approx(seconds))
    if seconds is not None:
        assert closed_for(status, httpx.Headers(headers), NOW) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}, 30),
        ({"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "30"}, 0),
        ({"X-RateLimit-Remaining": "0"}, 0),
        ({"X-RateLimit-Reset": "30"}, 0),
        ({}, 0),
    ],
)
def test_the_last_answer_of_a_window_closes_it_until_the_next(headers: Mapping[str, str], seconds: float) -> None:
    assert closed_for(200, headers, NOW) == seconds


NAMES = st.sampled_from(
    [
        "Retry-After",
        "retry-after-ms",
        "Date",
        "RateLimit",
        "RateLimit-Policy",
        "RateLimit-Remaining",
        "RateLimit-Reset",
        "X-RateLimit-Remaining",
        "X-RateLimit-Reset",
        "x-ratelimit-reset-tokens",
        "x-ratelimit-remaining-tokens",
        "anthropic-ratelimit-tokens-reset",
        "anthropic-ratelimit-tokens-remaining",
    ]
)
PIECES = [
    *(
        "0",
        "7",
        "30",
        "999999999",
        "1700000000",
        "99999999999999999999",
        ".",
        "-",
        "+",
        " ",
        ",",
        ";",
        "=",
        '"',
        ":",
        "T",
    ),
    *(
        "Z",
        "s",
        "ms",
        "m",
        "h",
        "d",
        "µs",
        "nan",
        "inf",
        "1e9",
        "٣",
        '"day";r=0;t=',
        '"day";q=9;w=',
        "remaining=0, reset=",
    ),
    *(
        "Mon, ",
        "04 Mar ",
        "2026",
        "0001",
        "9999",
        " 05:06:07",
        " GMT",
        " +9999",
        "2026-03-04",
        "05:06:07",
        "+00:00",
        "\x00",
    ),
]
VALUES = (
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
    | st.text(max_size=70)
    | st.floats().map(str)
    | st.datetimes().map(datetime.isoformat)
)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([200, 403, 429, 503]), st.dictionaries(NAMES, VALUES, max_size=6), st.datetimes())
def test_any_retry_after_header_gives_a_valid_wait(status: int, headers: Mapping[str, str], now: datetime) -> None:
    refused = refused_for(status, headers, now.replace(tzinfo=UTC))
    closed = closed_for(status, headers, now.replace(tzinfo=UTC))
    assert refused is None or 0 < refused <= HORIZON
    assert 0 <= closed <= HORIZON
    assert refused is None or closed == refused
    assert (refused is not None) if status == 429 else True


@settings(deadline=None)
@given(st.integers(1, int(HORIZON)), st.integers(10**9, 4 * 10**9))
def test_a_wait_is_the_same_as_seconds_and_as_an_instant(seconds: int, epoch: int) -> None:
    now = datetime.fromtimestamp(epoch, UTC)
    then = now + timedelta(seconds=seconds)
    for said in (str(seconds), f"{seconds}s", format_datetime(then, usegmt=True), then.isoformat()):
        assert refused_for(429, {"Retry-After": said}, now) == seconds
    assert refused_for(429, {"X-RateLimit-Reset": str(int(then.timestamp()))}, now) == seconds


# --------------------------------------------------------------------------------------------------------- transports


def answering(clock: VirtualClock, *answers: httpx.Response) -> tuple[httpx.MockTransport, list[tuple[float, str]]]:
    """A server that gives these answers, then 200; and what it saw: when, and of which host."""
    seen: list[tuple[float, str]] = []
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((clock.monotonic() / 1e6, request.url.host))
        return left.pop(0) if left else httpx.Response(200)

    return httpx.MockTransport(answer), seen


def test_requests_wait_by_host() -> None:
    async def main(clock: VirtualClock) -> None:
        server, seen = answering(clock)
        limiter = Limiter(RateLimit("1/s", burst=1), clock=clock)
        start = clock.monotonic() / 1e6
        async with httpx.AsyncClient(transport=LimitedTransport(limiter, transport=server, clock=clock)) as client:
            hosts = ["a", "a", "b", "a"]
            await asyncio.gather(*(client.get(f"http://{host}/") for host in hosts))
        assert sorted((round(at - start, 3), host) for at, host in seen) == [(0, "a"), (0, "b"), (1, "a"), (2, "a")]

    run_virtual(main)


def test_a_refusal_closes_its_key_for_the_time_the_server_requests() -> None:
    async def main(clock: VirtualClock) -> None:
        server, seen = answering(clock, httpx.Response(429, headers={"Retry-After": "30"}))
        limiter = Limiter(RateLimit("10/s", burst=10), clock=clock)
        start = clock.monotonic() / 1e6
        async with httpx.AsyncClient(transport=LimitedTransport(limiter, transport=server, clock=clock)) as client:
            assert (await client.get("http://a/")).status_code == 429
            assert (await client.get("http://b/")).status_code == 200
            await asyncio.gather(*(client.get("http://a/") for _ in range(20)))
        times = [round(at - start, 3) for at, host in seen if host == "a"]
        assert times[0] == 0
        # The limiter releases the waiting requests one by one.
        assert times[1] == pytest.approx(30, abs=0.001)
        assert times[-1] == pytest.approx(31, abs=0.01)

    run_virtual(main)


def test_a_refusal_that_one_client_gets_delays_all_clients() -> None:
    async def main(clock: VirtualClock) -> None:
        server, seen = answering(clock, httpx.Response(429, headers={"Retry-After": "30"}))
        limit, store = RateLimit("10/s", name="partner"), MemoryBuckets(clock)
        transports = [
            LimitedTransport(Limiter(limit, store, clock=clock), key="partner", transport=server, clock=clock)
            for _ in range(2)
        ]
        start = clock.monotonic() / 1e6
        async with httpx.AsyncClient(transport=transports[0]) as refused:
            assert (await refused.get("http://a/")).status_code == 429
        async with httpx.AsyncClient(transport=transports[1]) as other:
            assert (await other.get("http://b/")).status_code == 200
        assert seen[1][0] - start >= 30

    run_virtual(main)


def test_a_response_is_returned_although_the_refusal_cannot_be_stored(caplog: pytest.LogCaptureFixture) -> None:
    class Leaving(MemoryBuckets):
        async def penalize(self, bucket: Bucket, closed_for: int) -> None:
            raise StorageUnavailable("it has just gone")

    async def main(clock: VirtualClock) -> None:
        server, _ = answering(clock, httpx.Response(429, headers={"Retry-After": "30"}))
        store = Leaving(clock)
        limiter = Limiter(RateLimit("10/s"), CurrentBuckets(lambda: store), clock=clock)
        async with httpx.AsyncClient(transport=LimitedTransport(limiter, transport=server, clock=clock)) as client:
            assert (await client.get("http://a/")).status_code == 429

    run_virtual(main)
    assert "refuses 'a' for 30 s, but the limiter could not store that: it has just gone" in caplog.text


class UnreadBody(httpx.AsyncByteStream, httpx.SyncByteStream):
    """A body that takes its connection until it is closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True

    async def aclose(self) -> None:
        self.is_closed = True


def test_a_request_cancelled_while_a_refusal_is_stored_leaks_no_connection() -> None:
    class Slow(MemoryBuckets):
        async def penalize(self, bucket: Bucket, closed_for: int) -> None:
            await asyncio.sleep(60)

    async def main(clock: VirtualClock) -> None:
        body = UnreadBody()
        server, _ = answering(clock, httpx.Response(429, stream=body))
        store = Slow(clock)
        limiter = Limiter(RateLimit("10/s"), CurrentBuckets(lambda: store), clock=clock)
        async with httpx.AsyncClient(transport=LimitedTransport(limiter, transport=server, clock=clock)) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await client.get("http://a/")
            assert body.is_closed

    run_virtual(main)


def test_an_error_of_the_limiter_is_raised_and_leaks_no_connection() -> None:
    class Broken(MemoryBuckets):
        async def penalize(self, bucket: Bucket, closed_for: int) -> None:
            raise RuntimeError("this should not be")

    bodies = [UnreadBody(), UnreadBody()]
    unread = iter(bodies)
    server = httpx.MockTransport(lambda _: httpx.Response(429, stream=next(unread)))
    store = Broken()

    async def main() -> None:
        limiter = Limiter(RateLimit("10/s"), CurrentBuckets(lambda: store))
        async with limiter, httpx.AsyncClient(transport=LimitedTransport(limiter, transport=server)) as client:
            with pytest.raises(RuntimeError, match="should not be"):
                await client.get("http://a/")

    asyncio.run(main())
    limiter = Limiter(RateLimit("10/s"), CurrentBuckets(lambda: store))
    transport = SyncLimitedTransport(limiter, transport=server)
    with httpx.Client(transport=transport) as client, pytest.raises(RuntimeError, match="should not be"):
        client.get("http://a/")
    limiter.sync.close()
    assert [body.is_closed for body in bodies] == [True, True]


def test_requests_that_wait_for_the_limiter_are_delayed_by_a_refusal() -> None:
    async def main(clock: VirtualClock) -> None:
        server, seen = answering(clock, httpx.Response(503, headers={"Retry-After": "30"}))
        limiter = Limiter(RateLimit("1/s", burst=1), clock=clock)
        start = clock.monotonic() / 1e6
        async with httpx.AsyncClient(transport=LimitedTransport(limiter, transport=server, clock=clock)) as client:
            await asyncio.gather(*(client.get("http://a/") for _ in range(3)))
        times = [round(at - start, 3) for at, _ in seen]
        assert times[0] == 0
        assert times[1] >= 30
        assert times[2] - times[1] >= 1

    run_virtual(main)


def test_a_request_that_would_wait_too_long_is_not_sent() -> None:
    async def main(clock: VirtualClock) -> None:
        server, seen = answering(clock, httpx.Response(200), httpx.Response(429, headers={"Retry-After": "30"}))
        limiter = Limiter(RateLimit("1/m", burst=2), clock=clock)
        transport = LimitedTransport(limiter, key="all", transport=server, timeout=10, clock=clock)
        start = clock.monotonic()
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get("http://a/")
            await client.get("http://b/")
            with pytest.raises(httpx.PoolTimeout, match="'all' within 10 s"):
                await client.get("http://c/")
            await asyncio.sleep(31)
            with pytest.raises(httpx.PoolTimeout, match="nothing was sent"):
                await client.get("http://c/")
        assert len(seen) == 2
        assert clock.monotonic() - start < 42_000_000

    run_virtual(main)


def test_a_key_can_be_computed_from_the_request() -> None:
    async def main(clock: VirtualClock) -> None:
        server, seen = answering(clock)
        limiter = Limiter(RateLimit("1/s", burst=1), clock=clock)
        transport = LimitedTransport(limiter, key=lambda request: request.headers["tenant"], transport=server)
        start = clock.monotonic()
        async with httpx.AsyncClient(transport=transport) as client:
            for tenant in ("acme", "globex"):
                await client.get("http://a/", headers={"tenant": tenant})
        assert clock.monotonic() == start
        assert len(seen) == 2

    run_virtual(main)


def test_a_permit_is_held_until_the_answer_has_been_read() -> None:
    async def main(clock: VirtualClock) -> None:
        running: list[str] = []
        most: list[int] = []

        class Body(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                running.append("a request")
                most.append(len(running))
                await asyncio.sleep(1)
                yield b"ok"
                running.pop()

        server = httpx.MockTransport(lambda _: httpx.Response(200, stream=Body()))
        limiter = Limiter(Concurrency(2), clock=clock)
        async with httpx.AsyncClient(transport=LimitedTransport(limiter, transport=server, clock=clock)) as client:
            answers = await asyncio.gather(*(client.get("http://a/") for _ in range(6)))
            async with client.stream("GET", "http://a/") as unread:
                assert unread.status_code == 200
            await asyncio.gather(client.get("http://a/"), client.get("http://a/"))
        assert [answer.text for answer in answers] == ["ok"] * 6
        assert max(most) == 2

    run_virtual(main)


@pytest.mark.parametrize("content", [b"", b"ok"])
def test_a_response_without_a_stream_holds_no_permit(content: bytes) -> None:
    """As those of caches are, and of tests."""
    server = httpx.MockTransport(lambda _: httpx.Response(200, content=content))

    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(Concurrency(1), clock=clock)
        async with httpx.AsyncClient(transport=LimitedTransport(limiter, transport=server, timeout=1)) as client:
            for _ in range(3):
                assert (await client.get("http://a/")).content == content

    run_virtual(main)
    transport = SyncLimitedTransport(Limiter(Concurrency(1)), transport=server, timeout=0.1)
    with httpx.Client(transport=transport) as blocking:
        for _ in range(3):
            assert blocking.get("http://a/").content == content


def test_a_refusal_closes_a_key_whose_permits_are_leases() -> None:
    """The fault: a 429 was raised as an error that said to use `hold()`."""

    async def main(clock: VirtualClock) -> None:
        server, seen = answering(clock, httpx.Response(429, headers={"Retry-After": "30"}))
        store = MemoryBuckets(clock)
        limiter = Limiter(Concurrency(2), CurrentBuckets(lambda: store), clock=clock)
        async with httpx.AsyncClient(transport=LimitedTransport(limiter, transport=server, clock=clock)) as client:
            assert limiter.has_leases
            assert (await client.get("http://a/")).status_code == 429
            assert (await client.get("http://a/")).status_code == 200
        assert 30 <= seen[1][0] - seen[0][0] < 31
        await limiter.close()

    run_virtual(main)


def test_a_request_that_fails_returns_its_permit() -> None:
    async def main(clock: VirtualClock) -> None:
        def fail(_: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("no route")

        limiter = Limiter(Concurrency(1), clock=clock)
        transport = LimitedTransport(limiter, transport=httpx.MockTransport(fail), timeout=1, clock=clock)
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(3):
                with pytest.raises(httpx.ConnectError):
                    await client.get("http://a/")

    run_virtual(main)


@pytest.fixture
def server() -> Iterator[str]:
    """A real one, which refuses its first request for 0.3 s."""
    answers: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.append(self.path)
            self.send_response(429 if len(answers) == 1 else 200)
            self.send_header("Retry-After-Ms", "300")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_blocking_client_does_the_same(server: str) -> None:
    limiter = Limiter(RateLimit("100/s", burst=100))
    with httpx.Client(transport=SyncLimitedTransport(limiter)) as client:
        assert client.get(server).status_code == 429
        refused_at = monotonic()
        assert client.get(server).status_code == 200
        assert monotonic() - refused_at >= 0.29
    with httpx.Client(transport=SyncLimitedTransport(Limiter(RateLimit("1/h", burst=1)), timeout=0.1)) as client:
        client.get(server)
        with pytest.raises(httpx.PoolTimeout):
            client.get(server)
    with httpx.Client(transport=SyncLimitedTransport(Limiter(Concurrency(1)), timeout=1)) as client:
        for _ in range(3):
            assert client.get(server).status_code == 200


# --------------------------------------------------------------------------------------------------------- in a handler


def test_in_a_job_a_refusal_returns_it_without_spending_an_attempt() -> None:
    async def main(clock: VirtualClock) -> None:
        server, seen = answering(clock, httpx.Response(429, headers={"Retry-After": "60"}))
        jobs = Headgate("memory://", clock=clock, random=Random(1))

        @jobs.task(limits=[RateLimit("10/s", key="{tenant}")])
        async def sync_tenant(tenant: str) -> int:
            hooks = {"response": [raise_rate_limited]}
            async with httpx.AsyncClient(transport=server, event_hooks=hooks) as client:
                return (await client.get(f"http://{tenant}/")).status_code

        start = clock.monotonic() / 1e6
        async with jobs:
            first = await sync_tenant.enqueue("acme")
            assert await first.result() == 200
            status = await first.status()
        assert (status.attempt, len(seen)) == (1, 2)
        assert seen[1][0] - start >= 60

    run_virtual(main)


def test_the_hook_of_a_blocking_client_raises_the_same(server: str) -> None:
    with httpx.Client(event_hooks={"response": [raise_rate_limited_sync]}) as client:
        with pytest.raises(RateLimited) as refused:
            client.get(server)
        assert refused.value.retry_after == 300_000
        assert client.get(server).status_code == 200
