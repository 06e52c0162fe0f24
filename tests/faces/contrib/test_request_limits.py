"""Limits on the requests of web applications: ASGI and WSGI middleware, and the header fields of their answers."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import StartResponse, WSGIEnvironment
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import httpx
import pytest
import uvicorn
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from headgate import (
    Concurrency,
    DeclarationError,
    DynamicWindow,
    FixedWindow,
    HeadgateError,
    Limiter,
    RateLimit,
    StorageUnavailable,
    StorageUnusable,
    StrictRate,
)
from headgate.contrib.asgi import AsgiLimitMiddleware, Message, Receive, Scope, Send, client_address
from headgate.contrib.httpx import closed_for
from headgate.contrib.wsgi import WsgiLimitMiddleware, remote_address
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.limit import Limit
from headgate.limits.standalone.app_limiter import CurrentBuckets
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.testing.manual_clock import ManualClock
from tests.until import until

Visit = Callable[..., httpx.Response]
Limited = Callable[..., Visit]


async def asgi_hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello"})


def wsgi_hello(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


def limited_asgi(runner: asyncio.Runner, limiter: Limiter, **options: Any) -> Visit:
    application = AsgiLimitMiddleware(asgi_hello, limiter, **options)

    def visit(address: str = "10.0.0.1", headers: dict[str, str] | None = None) -> httpx.Response:
        async def main() -> httpx.Response:
            transport = httpx.ASGITransport(application, client=(address, 5))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return await client.get("/", headers=headers)

        return runner.run(main())

    return visit


def limited_wsgi(limiter: Limiter, **options: Any) -> Visit:
    # The validators raise for everything that WSGI forbids.
    application = validator(WsgiLimitMiddleware(validator(wsgi_hello), limiter, **options))

    def visit(address: str = "10.0.0.1", headers: dict[str, str] | None = None) -> httpx.Response:
        transport = httpx.WSGITransport(application, remote_addr=address)
        with httpx.Client(transport=transport, base_url="http://shop") as client:
            return client.get("/", headers=headers)

    return visit


@pytest.fixture(params=["asgi", "wsgi"])
def limited(request: pytest.FixtureRequest) -> Iterator[Limited]:
    """Serve an application under a limiter, and return what visits it."""
    is_asgi = request.param == "asgi"
    limiters: list[Limiter] = []
    with asyncio.Runner() as runner:

        def serve(limiter: Limiter, **options: Any) -> Visit:
            visit = limited_asgi(runner, limiter, **options) if is_asgi else limited_wsgi(limiter, **options)
            limiters.append(limiter)
            return visit

        yield serve
        for limiter in limiters:
            if is_asgi:
                runner.run(limiter.close())
            else:
                limiter.sync.close()


# ------------------------------------------------------------------------------------------------------------ answers


def test_a_request_beyond_the_limit_is_answered_429_until_the_named_time(limited: Limited) -> None:
    clock = ManualClock()
    visit = limited(Limiter(RateLimit(3, per=10, name="api"), clock=clock), clock=clock)
    answers = [visit() for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.text for answer in answers[:3]] == ["hello"] * 3
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"api";q=3;w=10'}
    # While something is left: the time until all of it is; then the time until the next request.
    assert [answer.headers["ratelimit"] for answer in answers] == [
        '"api";r=2;t=4',
        '"api";r=1;t=7',
        '"api";r=0;t=4',
        '"api";r=0;t=4',
    ]
    assert [answer.headers.get("retry-after") for answer in answers] == [None, None, None, "4"]
    refused = answers[3]
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["content-length"] == str(len(refused.content))
    assert json.loads(refused.text) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too many requests",
        "status": 429,
        "detail": "limit 'api' lets no request pass now; try again in 4 s",
        "violated-policies": ["api"],
    }
    clock.advance(3)
    assert visit().status_code == 429
    clock.advance(1)
    assert visit().status_code == 200


def test_a_client_of_headgate_obeys_the_answers(limited: Limited) -> None:
    clock = ManualClock()
    visit = limited(Limiter(StrictRate("2/m", margin=0), clock=clock), clock=clock)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    waits = [closed_for(answer.status_code, answer.headers, now) for answer in (visit(), visit(), visit())]
    assert waits == [0, 60, 60]


@pytest.mark.parametrize(
    ("limit", "policy", "left"),
    [
        (RateLimit("60/m", burst=5), '"default";q=60;w=60', '"default";r=4;t=1'),
        (StrictRate("15/m", name="strict"), '"strict";q=15;w=60', '"strict";r=14;t=61'),
        (RateLimit(10, per=0.5), '"default";q=10;w=1', '"default";r=9;t=1'),
        (FixedWindow("10/m"), '"default";q=10;w=60', '"default";r=9;t=60'),
        (FixedWindow("10/m", margin=5), '"default";q=10;w=60', '"default";r=9;t=55'),
        (DynamicWindow(per=60, count=4, capacity=20), None, '"default";r=3;t=61'),
        (Concurrency(3, name="exports"), '"exports";q=3;qu="concurrent-requests"', '"exports";r=2'),
        (RateLimit("1/d", name='a "b" \\c'), '"a \\"b\\" \\\\c";q=1;w=86400', '"a \\"b\\" \\\\c";r=0;t=86400'),
    ],
)
def test_the_fields_say_what_each_kind_of_limit_allows(
    limited: Limited, limit: Limit, policy: str | None, left: str
) -> None:
    clock = ManualClock()
    answer = limited(Limiter(limit, clock=clock), clock=clock)()
    assert answer.status_code == 200
    assert answer.headers.get("ratelimit-policy") == policy
    assert answer.headers["ratelimit"] == left


def test_clients_see_the_name_that_they_are_given(limited: Limited) -> None:
    visit = limited(Limiter(RateLimit("10/s", name="größe")), policy="uploads")
    assert visit().headers["ratelimit-policy"] == '"uploads";q=10;w=1'


def test_a_penalty_is_the_time_to_retry_after(limited: Limited) -> None:
    clock = ManualClock()
    limiter = Limiter(RateLimit("100/m"), clock=clock)
    visit = limited(limiter, clock=clock)
    limiter.sync.penalize("10.0.0.1", 90.5)
    answer = visit()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "91")
    assert answer.headers["ratelimit"] == '"default";r=0;t=91'
    assert visit(address="10.0.0.2").status_code == 200


async def test_each_of_several_limits_has_its_fields() -> None:
    inner = AsgiLimitMiddleware(asgi_hello, Limiter(RateLimit("10/s", name="second")))
    transport = httpx.ASGITransport(AsgiLimitMiddleware(inner, Limiter(RateLimit("99/m", name="minute"))))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        answer = await client.get("/")
    assert [field.partition(";")[0] for field in answer.headers.get_list("ratelimit")] == ['"second"', '"minute"']
    assert len(answer.headers.get_list("ratelimit-policy")) == 2


# --------------------------------------------------------------------------------------------------------------- keys


def test_each_client_address_has_its_budget_and_an_ipv6_network_has_one(limited: Limited) -> None:
    visit = limited(Limiter(RateLimit("1/h")))
    same = ["10.0.0.1", "::ffff:10.0.0.1"]
    network = ["2001:db8:1:2::1", "2001:db8:1:2:ffff::9%eth0"]
    others = ["10.0.0.2", "2001:db8:1:3::1", "testclient"]
    addresses = [*same, *network, *others]
    assert [visit(address=address).status_code for address in addresses] == [200, 429, 200, 429, 200, 200, 200]


def test_a_function_chooses_the_key_and_none_is_not_limited() -> None:
    def scope_key(scope: Scope) -> str | None:
        key: bytes = dict(scope["headers"]).get(b"x-api-key", b"")
        return key.decode() or None

    def environ_key(environ: WSGIEnvironment) -> str | None:
        key: str | None = environ.get("HTTP_X_API_KEY")
        return key

    with asyncio.Runner() as runner:
        for visit in (
            limited_asgi(runner, Limiter(RateLimit("1/h")), key=scope_key),
            limited_wsgi(Limiter(RateLimit("1/h")), key=environ_key),
        ):
            keys = ["one", "one", "two", "x" * 5000, "x" * 5000]
            assert [visit(headers={"X-Api-Key": key}).status_code for key in keys] == [200, 429, 200, 200, 429]
            free = [visit() for _ in range(3)]
            assert [answer.status_code for answer in free] == [200] * 3
            assert "ratelimit" not in free[0].headers


def test_a_text_as_key_is_one_budget_for_all_clients(limited: Limited) -> None:
    visit = limited(Limiter(RateLimit("1/h")), key="all")
    assert [visit(address=f"10.0.0.{number}").status_code for number in range(2)] == [200, 429]


def test_a_request_without_a_client_address_says_what_to_pass() -> None:
    with pytest.raises(DeclarationError, match=r"AsgiLimitMiddleware: this request has no client address.*pass key="):
        client_address({"type": "http", "client": None})
    with pytest.raises(DeclarationError, match=r"WsgiLimitMiddleware: this request has no client address.*pass key="):
        remote_address({"REMOTE_ADDR": ""})


async def _async_key(request: Any) -> str:
    return "key"


@pytest.mark.parametrize(
    ("limiter", "options", "message"),
    [
        (RateLimit("1/s"), {}, "is not a limiter; write Limiter"),
        (Limiter(RateLimit("1/s")), {"key": 17}, "key=17 is neither a text nor a function of the request"),
        (Limiter(RateLimit("1/s")), {"key": _async_key}, "key= is an async function; pass a plain one"),
        (Limiter(RateLimit("1/s", name="größe")), {}, "'größe' cannot be sent to clients.*pass policy="),
        (Limiter(RateLimit("1/s")), {"policy": ""}, "'' cannot be sent to clients"),
    ],
)
def test_a_mistake_is_refused_when_the_middleware_is_made(
    limited: Limited, limiter: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DeclarationError, match=message):
        limited(limiter, **options)


def test_a_key_that_is_no_text_is_an_error(limited: Limited) -> None:
    visit = limited(Limiter(RateLimit("1/s")), key=lambda request: 17)
    with pytest.raises(DeclarationError, match="key= returned 17, which is no text; return the key"):
        visit()


# -------------------------------------------------------------------------------------------------------------- stores


class Failing(MemoryBuckets):
    def __init__(self, error: HeadgateError) -> None:
        super().__init__()
        self.error = error

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        raise self.error


def without_store(limit: Limit, error: HeadgateError) -> Limiter:
    store = Failing(error)
    return Limiter(limit, CurrentBuckets(lambda: store))


def test_requests_pass_while_the_store_of_a_limit_does_not_answer(
    limited: Limited, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    limiter = without_store(RateLimit("1/h", name="api"), StorageUnavailable("no route to the store"))
    visit = limited(limiter, clock=clock)
    answers = [visit() for _ in range(3)]
    assert [(answer.status_code, answer.text) for answer in answers] == [(200, "hello")] * 3
    assert "ratelimit" not in answers[0].headers
    clock.advance(31)
    visit()
    lines = [record.getMessage() for record in caplog.records if record.name == "headgate.limiter"]
    said = "limit api: its store cannot be used, requests pass without it"
    assert lines == [
        f"{said}: no route to the store",
        f"{said}; 2 more such lines were left out in the last 30 s",
        f"{said}: no route to the store",
    ]


def test_requests_get_503_if_the_limit_must_not_be_passed(limited: Limited, caplog: pytest.LogCaptureFixture) -> None:
    error = StorageUnusable("the server refuses this user")
    limiter = without_store(RateLimit("1/h", name="api", on_store_error="wait"), error)
    answer = limited(limiter)()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "limit api: its store cannot be used, requests get 503: the server refuses this user" in caplog.text


def test_requests_use_a_share_of_the_limit_while_its_store_does_not_answer(
    limited: Limited, caplog: pytest.LogCaptureFixture
) -> None:
    limit = FixedWindow("8/d", name="api", on_store_error="share", sharers=4)
    visit = limited(without_store(limit, StorageUnavailable("no route to the store")), key="acme")
    assert [visit().status_code for _ in range(4)] == [200, 200, 429, 429]
    assert "limit api: its store cannot be used, this process uses one of 4 shares: no route" in caplog.text


class Hanging(Failing):
    """A store whose calls take six seconds of the clock and then fail."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(StorageUnavailable("no answer within 2 s"))
        self.time = clock
        self.calls = 0

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        self.calls += 1
        self.time.advance(6)
        return await super().take(bucket, cost, count=count, id=id)


def test_a_store_that_hangs_delays_one_request_at_a_time(limited: Limited) -> None:
    """The fault: each request waited for the timeout of the store, so all threads of a server did."""
    clock = ManualClock()
    hanging = Hanging(clock)
    store: MemoryBuckets = hanging
    limit = RateLimit("1/h", name="api", burst=2)
    visit = limited(Limiter(limit, CurrentBuckets(lambda: store)), clock=clock)
    # The second request tries it once more: a single failure means little.
    assert [(visit().status_code, hanging.calls) for _ in range(4)] == [(200, 1), (200, 2), (200, 2), (200, 2)]
    clock.advance(6)
    assert [(visit().status_code, hanging.calls) for _ in range(2)] == [(200, 3), (200, 3)]
    clock.advance(6)
    store = MemoryBuckets(clock)
    assert [visit().status_code for _ in range(3)] == [200, 200, 429]


async def test_requests_pass_at_once_while_another_one_tries_a_failing_store() -> None:
    error = StorageUnavailable("no answer within 2 s")
    answered = asyncio.Event()

    class Silent(Failing):
        calls = 0

        async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
            self.calls += 1
            if self.calls > 1:
                await answered.wait()
            return await super().take(bucket, cost, count=count, id=id)

    store = Silent(error)
    limiter = Limiter(RateLimit("1/h", name="api"), CurrentBuckets(lambda: store))
    application = AsgiLimitMiddleware(asgi_hello, limiter)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://shop") as client:
        await client.get("/")
        trying = asyncio.create_task(client.get("/"))
        await until(lambda: store.calls == 2)
        assert [(await client.get("/")).status_code for _ in range(3)] == [200] * 3
        assert store.calls == 2
        answered.set()
        assert (await trying).status_code == 200
    assert application.passed_without_limit == 5
    await limiter.close()


# ------------------------------------------------------------------------------------------------------------- permits


async def test_a_permit_is_held_until_the_application_has_answered() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await leave.wait()
        if scope["path"] == "/broken":
            raise LookupError("of the application")
        await asgi_hello(scope, receive, send)

    transport = httpx.ASGITransport(AsgiLimitMiddleware(slow, Limiter(Concurrency(1, name="exports"))))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        first = asyncio.create_task(client.get("/"))
        await entered.wait()
        refused = await client.get("/")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert refused.headers["ratelimit"] == '"exports";r=0'
        leave.set()
        assert (await first).status_code == 200
        with pytest.raises(LookupError, match="of the application"):
            await client.get("/broken")
        assert (await client.get("/")).status_code == 200


def test_a_permit_is_held_until_the_server_closes_the_answer() -> None:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/broken":
            raise LookupError("of the application")
        return wsgi_hello(environ, start_response)

    limited = WsgiLimitMiddleware(application, Limiter(Concurrency(1)), key="all")
    statuses: list[str] = []

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Callable[[bytes], object]:
        statuses.append(status)
        return lambda data: None

    def visit(path: str = "/", method: str = "GET") -> Any:
        environ: WSGIEnvironment = {"PATH_INFO": path, "REQUEST_METHOD": method}
        setup_testing_defaults(environ)
        return limited(environ, start)

    body = visit()
    assert b"".join(body) == b"hello"
    assert b"Too many requests" in visit()[0]
    assert visit(method="HEAD") == []
    body.close()
    body.close()
    with pytest.raises(LookupError, match="of the application"):
        visit("/broken")
    visit().close()
    assert statuses == ["200 OK", "429 Too Many Requests", "429 Too Many Requests", "200 OK"]


# ----------------------------------------------------------------------------------------------------- WebSockets, ASGI


async def handshake(application: AsgiLimitMiddleware, **scope: Any) -> list[Message]:
    """What an application answers to the handshake of a WebSocket."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    request = {"type": "websocket", "path": "/", "headers": [], "client": ("10.0.0.1", 5), **scope}
    await application(request, receive, send)
    return sent


async def test_the_handshake_of_a_websocket_is_limited_like_a_request() -> None:
    async def accept(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})

    application = AsgiLimitMiddleware(accept, Limiter(RateLimit("1/h", name="sockets")))
    accepted, said = await handshake(application)
    assert accepted["type"] == "websocket.accept"
    assert dict(accepted["headers"])[b"ratelimit"] == b'"sockets";r=0;t=3600'
    assert said == {"type": "websocket.send", "text": "hello"}
    (closed,) = await handshake(application)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
    start, body = await handshake(application, extensions={"websocket.http.response": {}})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert dict(start["headers"])[b"retry-after"] == b"3600"
    assert (body["type"], json.loads(body["body"])["status"]) == ("websocket.http.response.body", 429)


async def test_the_lifespan_of_an_application_is_not_limited() -> None:
    seen: list[str] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    limited = AsgiLimitMiddleware(application, Limiter(RateLimit("1/h")))
    for _ in range(2):
        await limited({"type": "lifespan"}, nothing, nothing)
    assert seen == ["lifespan"] * 2


# --------------------------------------------------------------------------------------------------------- real servers


async def test_an_application_of_starlette_is_limited_under_uvicorn() -> None:
    async def hello(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    api = Starlette(routes=[Route("/", hello)])
    api.add_middleware(AsgiLimitMiddleware, limiter=Limiter(RateLimit("2/h", name="api")))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(api, log_level="warning"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
                answers = [await client.get("/") for _ in range(3)]
        finally:
            server.should_exit = True
            await serving
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["ratelimit"][:9] for answer in answers] == ['"api";r=1', '"api";r=0', '"api";r=0']
    assert answers[2].headers["retry-after"] == "1800"
    assert answers[2].json()["violated-policies"] == ["api"]


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_application_of_flask_is_limited_under_wsgiref() -> None:
    web = Flask(__name__)
    web.add_url_rule("/", "hello", lambda: "hello")
    limited = WsgiLimitMiddleware(web.wsgi_app, Limiter(RateLimit("2/h", name="web")))
    with make_server("127.0.0.1", 0, limited, handler_class=_QuietHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}") as client:
                answers = [client.get("/") for _ in range(3)]
                head = client.head("/")
        finally:
            server.shutdown()
            thread.join()
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["ratelimit"] == '"web";r=1;t=1800'
    assert answers[2].headers["retry-after"] == "1800"
    assert (head.status_code, head.content) == (429, b"")
