"""The clients of requests and aiohttp keep to a budget, and do as servers say that refuse them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any

import aiohttp
import pytest
import requests

from headgate import Concurrency, DeclarationError, Limiter, RateLimit, StorageUnavailable
from headgate.contrib.aiohttp import LimitedRequests
from headgate.contrib.requests import LimitedAdapter
from headgate.limits.bucket_store import Bucket
from headgate.limits.standalone.app_limiter import CurrentBuckets
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from tests.until import patient


class Site:
    """A real server: `/busy` refuses its first request for 0.3 s, and `/last` those after its first one.

    `/moved` redirects, `/slow` ends when it may.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.may_end = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.seen.append(self.path)
                match self.path:
                    case "/busy" if site.seen.count("/busy") == 1:
                        self.answer(429, {"Retry-After-Ms": "300"}, b"")
                    case "/last" if site.seen.count("/last") == 1:
                        self.answer(200, {"RateLimit": '"minute";r=0;t=0.3', "ratelimit": '"day";r=9;t=90'}, b"")
                    case "/moved":
                        self.answer(302, {"Location": "/"}, b"")
                    case "/slow":
                        self.answer(200, {}, b"begin", b"-end")
                    case _:
                        self.answer(200, {}, b"hello")

            def answer(self, status: int, headers: dict[str, str], body: bytes, rest: bytes = b"") -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body) + len(rest))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                if rest:
                    self.wfile.flush()
                    site.may_end.wait(patient(10))
                    self.wfile.write(rest)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.may_end.set()
        site.server.shutdown()
        thread.join()
        site.server.server_close()


Get = Callable[..., tuple[int, bytes]]


def get_by_requests(limiter: Limiter, **options: Any) -> Get:
    def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        with requests.Session() as session:
            session.mount("http://", LimitedAdapter(limiter, **options))
            response = session.get(url, headers=headers, timeout=patient(5))
            return response.status_code, response.content

    return get


def get_by_aiohttp(limiter: Limiter, **options: Any) -> Get:
    def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        async def main() -> tuple[int, bytes]:
            async with (
                aiohttp.ClientSession(middlewares=[LimitedRequests(limiter, **options)]) as session,
                session.get(url, headers=headers) as response,
            ):
                return response.status, await response.read()

        return asyncio.run(main())

    return get


@pytest.fixture(params=[get_by_requests, get_by_aiohttp], ids=["requests", "aiohttp"])
def limited(request: pytest.FixtureRequest) -> Callable[..., Get]:
    """Return what sends a request under a limiter."""
    made: Callable[..., Get] = request.param
    return made


TOO_LATE = (requests.ConnectTimeout, aiohttp.ConnectionTimeoutError)


def test_a_refusal_closes_its_key_for_the_time_the_server_requests(limited: Callable[..., Get], site: Site) -> None:
    get = limited(Limiter(RateLimit("100/s")))
    assert get(f"{site.url}/busy") == (429, b"")
    refused_at = monotonic()
    assert get(f"{site.url}/busy") == (200, b"hello")
    assert monotonic() - refused_at >= 0.29


def test_each_of_several_fields_of_one_name_is_read(limited: Callable[..., Get], site: Site) -> None:
    """The fault: with aiohttp, only the last field of a name was read, so the next request was sent too early."""
    get = limited(Limiter(RateLimit("100/s")))
    assert get(f"{site.url}/last") == (200, b"")
    answered_at = monotonic()
    assert get(f"{site.url}/last") == (200, b"hello")
    assert monotonic() - answered_at >= 0.29


def test_a_request_that_would_wait_too_long_is_not_sent(limited: Callable[..., Get], site: Site) -> None:
    get = limited(Limiter(RateLimit("1/h")), timeout="100ms")
    assert get(site.url) == (200, b"hello")
    with pytest.raises(TOO_LATE, match=r"no start was free for '127\.0\.0\.1' within 0\.1 s; nothing was sent"):
        get(site.url)
    assert site.seen == ["/"]


def test_the_key_is_the_host_a_text_or_the_result_of_a_function(limited: Callable[..., Get], site: Site) -> None:
    limiter = Limiter(RateLimit("9/h"))
    limited(limiter)(site.url)
    limited(limiter, key="partner")(site.url)
    limited(limiter, key=lambda request: request.headers["tenant"])(site.url, {"tenant": "acme"})
    assert [limiter.sync.snapshot(key).used for key in ("127.0.0.1", "partner", "acme")] == [1, 1, 1]


def test_a_redirect_uses_the_budget_again(limited: Callable[..., Get], site: Site) -> None:
    limiter = Limiter(RateLimit("9/h"))
    assert limited(limiter)(f"{site.url}/moved") == (200, b"hello")
    assert limiter.sync.snapshot("127.0.0.1").used == 2


class Forgetful(MemoryBuckets):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        raise self.error


@pytest.mark.parametrize("error", [StorageUnavailable("it has just gone"), RuntimeError("this should not be")])
def test_an_answer_is_returned_although_its_refusal_cannot_be_stored(
    limited: Callable[..., Get], site: Site, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    store = Forgetful(error)
    limiter = Limiter(RateLimit("10/s"), CurrentBuckets(lambda: store))
    get = limited(limiter)
    if isinstance(error, StorageUnavailable):
        assert get(f"{site.url}/busy") == (429, b"")
        said = "refuses '127.0.0.1' for 0.3 s, but the limiter could not store that: it has just gone"
        assert said in caplog.text
    else:
        with pytest.raises(RuntimeError, match="this should not be"):
            get(f"{site.url}/busy")
    if get.__qualname__.startswith("get_by_requests"):
        limiter.sync.close()


# -------------------------------------------------------------------------------------------------------------- permits


def test_an_adapter_of_requests_takes_no_permits() -> None:
    with pytest.raises(DeclarationError, match=r"write `with limiter\.sync\.hold\(key\): session\.get"):
        LimitedAdapter(Limiter(Concurrency(3)))


def test_an_adapter_has_the_options_of_its_class() -> None:
    assert LimitedAdapter(Limiter(RateLimit("1/s")), max_retries=2).max_retries.total == 2


async def test_a_permit_is_held_until_the_answer_has_been_read(site: Site) -> None:
    limited = LimitedRequests(Limiter(Concurrency(1)), timeout=0.05)
    async with aiohttp.ClientSession(middlewares=[limited]) as session, session.get(f"{site.url}/slow") as slow:
        assert await slow.content.readexactly(5) == b"begin"
        with pytest.raises(aiohttp.ConnectionTimeoutError, match="nothing was sent"):
            await session.get(site.url)
        site.may_end.set()
        assert await slow.content.read() == b"-end"
        async with session.get(site.url) as next_one:
            assert await next_one.text() == "hello"
    assert site.seen == ["/slow", "/"]


async def test_a_permit_is_returned_when_the_answer_is_closed_or_there_is_none(site: Site) -> None:
    limited = LimitedRequests(Limiter(Concurrency(1)), key="all", timeout=patient(5))
    async with aiohttp.ClientSession(middlewares=[limited]) as session:
        async with session.get(f"{site.url}/slow"):
            pass
        for _ in range(2):
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get("http://127.0.0.1:1/")
        async with session.get(site.url) as last:
            assert last.status == 200


async def test_an_answer_that_is_dropped_unread_returns_its_permit(site: Site) -> None:
    limited = LimitedRequests(Limiter(Concurrency(1)), timeout=patient(5))
    async with aiohttp.ClientSession(middlewares=[limited]) as session:
        answer = await session.get(f"{site.url}/slow")
        assert (answer.status, await answer.content.readexactly(5)) == (200, b"begin")
        del answer
        gc.collect()
        async with session.get(site.url) as next_one:
            assert await next_one.text() == "hello"


async def test_an_answer_that_is_kept_unread_keeps_its_permit(site: Site) -> None:
    limited = LimitedRequests(Limiter(Concurrency(1)), timeout=0.05)
    async with aiohttp.ClientSession(middlewares=[limited]) as session:
        answer = await session.get(f"{site.url}/slow")
        gc.collect()
        with pytest.raises(aiohttp.ConnectionTimeoutError, match="nothing was sent"):
            await session.get(site.url)
        site.may_end.set()
        assert await answer.text() == "begin-end"
        assert await (await session.get(site.url)).text() == "hello"


class CancelledAt:
    """Awaits a coroutine, and cancels the task at its await of this number; `was_reached` is whether it had so many."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._left = number
        self._coroutine = coroutine
        self.was_reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        error: BaseException | None = None
        while True:
            try:
                future = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration as end:
                return end.value
            if self._left == 0:
                self.was_reached = True
                task.cancel()
            self._left -= 1
            try:
                yield future
                error = None
            except BaseException as thrown:
                error = thrown


@pytest.mark.parametrize("path", ["/", "/slow", "/moved"])
async def test_a_request_that_is_cancelled_at_any_await_returns_its_permit_once(site: Site, path: str) -> None:
    limiter = Limiter(Concurrency(1))
    number, was_reached = 0, True
    while was_reached:
        async with aiohttp.ClientSession(middlewares=[LimitedRequests(limiter, key="all")]) as session:
            request = CancelledAt(number, session.get(f"{site.url}{path}"))

            async def send(request: CancelledAt = request) -> None:
                await request

            await asyncio.wait([asyncio.ensure_future(send())])
            gc.collect()
            # To return a permit that is not held raises ValueError.
            assert (await limiter.snapshot("all")).used == 0, number
        number, was_reached = number + 1, request.was_reached
    assert number > 3
