"""What is refused before anything is asked: what makes no sense, is too long, or was not meant so."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

import headgate.errors
import headgate.http
from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable
from headgate.http import dashboard
from headgate.http.endpoint import read_body
from headgate.http.http_error import HttpError
from headgate.http.routes import ENDPOINTS
from headgate.storage.sqlite.memory import MemoryStorage
from tests.faces.http.stage import EVERYBODY, browser, make_app, problem
from tests.faces.http.stage import client as client_of


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = make_app()
    async with app.open(), browser(app) as client:
        yield client


@pytest.mark.parametrize(
    "query",
    [
        "count=0",
        "count=501",
        "count=many",
        "state=lost",
        "view=seen",
        "order=random",
        "unknown=1",
        "state=failed&state=failed",
        "enqueued_after=yesterday",
        "enqueued_after=2026-01-01T00:00:00",
        "text=",
        "text=" + "x" * 201,
        "queue=" + "x" * 301,
        "key=%00",
        "key=%ff",
        "&".join(f"a{number}=1" for number in range(60)),
    ],
)
async def test_an_invalid_query_is_refused_with_a_message(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/api/v1/jobs?{query}")
    assert answer.status_code == 400
    assert problem(answer) == "bad_request"
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "wrong"),
    [
        ("GET", "/jobs?count=0", None, {"parameter": "count"}),
        ("GET", "/jobs?unknown=1", None, {"parameter": "unknown"}),
        ("GET", "/jobs?key=%00", None, {"parameter": "key"}),
        ("GET", "/jobs?limit=10", None, {"parameter": "limit"}),
        ("GET", "/events?after=yesterday", None, {"parameter": "after"}),
        ("GET", "/jobs?enqueued_after=null", None, {"parameter": "enqueued_after"}),
        ("POST", "/tasks/answer/enqueue", {"priority": 10}, {"pointer": "/priority"}),
        ("POST", "/tasks/answer/enqueue", {"a/b~c": 1}, {"pointer": "/a~1b~0c"}),
        ("POST", "/tasks/answer/enqueue", {"tags": ["vip", 1]}, {"pointer": "/tags/1"}),
        ("POST", "/tasks/answer/enqueue", {"tags": ["vip", "\0"]}, {"pointer": "/tags/1"}),
        ("POST", "/tasks/answer/enqueue", {"headers": {"tenant": 1}}, {"pointer": "/headers"}),
        ("POST", "/jobs/bulk", {"query": {}}, {"pointer": "/action"}),
        ("POST", "/limits/permits/penalize", {"until": "2020-01-01T00:00:00Z"}, {"pointer": "/until"}),
    ],
)
async def test_a_problem_names_the_wrong_input(
    client: httpx.AsyncClient, method: str, path: str, body: Any, wrong: dict[str, str]
) -> None:
    answer = await client.request(method, f"/api/v1{path}", json=body)
    assert problem(answer) == "bad_request"
    (named,) = answer.json()["errors"]
    assert named == {"detail": answer.json()["detail"], **wrong}


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("GET", "/jobs?state=done", None, "write one of: waiting, running, succeeded, failed, cancelled, skipped"),
        ("GET", "/jobs?order=random", None, "write one of: newest, oldest"),
        ("GET", "/jobs?sate=failed", None, "there is no parameter `sate`; did you mean 'state'? There are: state, "),
        ("GET", "/jobs?limit=10", None, "to get at most 10, write count=10"),
        ("GET", "/limits?limit=10", None, "to get at most 10, write count=10"),
        ("GET", "/events?limit=10", None, "to get at most 10, write count=10"),
        ("POST", "/tasks/answer/enqueue", {"question": "why"}, "there is no field `question`. There are: payload, "),
        ("POST", "/jobs/bulk", {"action": "stop"}, "write one of: retry, cancel, run_now, reschedule"),
    ],
)
async def test_a_problem_says_what_there_is_instead(
    client: httpx.AsyncClient, method: str, path: str, body: Any, says: str
) -> None:
    answer = await client.request(method, f"/api/v1{path}", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["detail"]


def test_each_type_of_problem_is_documented() -> None:
    calls = [
        node.args
        for path in Path(headgate.http.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "HttpError"
    ]
    codes = {args[1].value for args in calls if isinstance(args[1], ast.Constant)} | {"text_is_redacted", "not_found"}
    page = (Path(__file__).parents[3] / "docs" / "dashboard.md").read_text()
    documented = set(re.findall(r'<a id="(\w+)"></a>', page))
    assert codes <= documented
    errors = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in dir(headgate.errors)}
    assert documented - codes <= errors | {"header_is_redacted", "annotation_is_redacted", "method_not_allowed"}


@pytest.mark.parametrize(
    "cursor", ["x", "bm9wZQ", "W10", "WzEsMiwzLDRd", "W3RydWUsMTAwMDAwMDAwMDAwMDAwMDAwMDAwLCIiLCIiXQ"]
)
async def test_a_cursor_that_was_not_given_out_is_refused(client: httpx.AsyncClient, cursor: str) -> None:
    assert (await client.get(f"/api/v1/limits?before={cursor}")).status_code == 400


async def test_endpoints_without_parameters_take_none(client: httpx.AsyncClient) -> None:
    assert (await client.get("/api/v1/session?verbose=1")).status_code == 400
    assert (await client.get("/api/v1/jobs/%00")).status_code == 400


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[" * 10_000, "application/json", 400),
        (b'{"rule": "1/m", "rool": 1}', "application/json", 400),
        (b'{"rule": 7}', "application/json", 400),
        (b'{"rule": "1/m\\u0000"}', "application/json", 400),
        (b'{"rule": "1/m", "burst": 99999999999999999999999}', "application/json", 400),
        (b'{"rule": "1/m"}', "text/plain", 415),
        (b'{"rule": "1/m"}', "application/x-www-form-urlencoded", 415),
        (b'{"rule": "' + b"x" * 70_000 + b'"}', "application/json", 413),
        (b'{"rule": "1/m"}', "application/json; charset=utf-8", 404),
    ],
)
async def test_an_invalid_body_is_refused(client: httpx.AsyncClient, body: bytes, kind: str, status: int) -> None:
    answer = await client.post("/api/v1/limits/nothing/set", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    "until",
    ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59.999999Z", "2001-01-01T00:00:00Z"],
)
async def test_a_penalty_ends_at_an_instant_in_range(client: httpx.AsyncClient, until: str) -> None:
    answer = await client.post("/api/v1/limits/permits/penalize", json={"until": until})
    assert answer.status_code == 400, answer.text
    assert (await client.get("/api/v1/limits")).status_code == 200


@pytest.mark.parametrize("query", ["failures?span=null", "failures?span=NULL", "jobs?state=null", "history?step=null"])
async def test_null_is_no_value_of_a_parameter(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/api/v1/{query}")
    assert (answer.status_code, problem(answer)) == (400, "bad_request"), answer.text


async def test_a_name_may_be_null(client: httpx.AsyncClient) -> None:
    for query in ("failures?task=null", "limits?key=null"):
        assert (await client.get(f"/api/v1/{query}")).json()["items"] == []


async def test_an_action_is_not_read_with_get(client: httpx.AsyncClient) -> None:
    readable = {each.path for each in ENDPOINTS if each.method == "GET"}
    actions = [each for each in ENDPOINTS if each.method == "POST" and each.path not in readable]
    assert len(actions) > 20
    for action in actions:
        path = re.sub(r"{\w+}", "x", action.path)
        for method in ("GET", "HEAD"):
            answer = await client.request(method, f"/api/v1{path}")
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST"), path
    # A name with such an end can be read.
    assert (await client.get("/api/v1/queues/x%2Fpause")).status_code == 200


async def test_a_query_that_is_not_utf8_is_refused() -> None:
    """A client that is no browser sends what it likes; a library would escape it."""
    app = make_app()
    received: list[Any] = []

    async def send(message: Any) -> None:
        received.append(message)

    scope = {"type": "http", "method": "GET", "path": "/api/v1/jobs", "query_string": b"key=\xff"}
    scope |= {"headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 4711)}
    async with app.open():
        await dashboard(app, auth=EVERYBODY)(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]  # no body
    assert received[0]["status"] == 400
    assert b"the query cannot be read" in received[1]["body"]


async def test_a_path_cannot_inject_lines_into_the_log(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(storage: MemoryStorage, id: str) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(MemoryStorage, "job", broken)
    assert (await client.get("/api/v1/jobs/a%0AERROR forged")).status_code == 500
    received = [record.getMessage() for record in caplog.records if record.name.startswith("headgate")]
    assert [line.count("\n") for line in received] == [0]


async def test_a_body_without_a_length_is_not_read_beyond_its_bound(client: httpx.AsyncClient) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b" " * 16_384

    answer = await client.post("/api/v1/jobs/bulk", content=endless(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert read < 10


async def test_an_unavailable_store_is_a_503_with_retry_after() -> None:
    class Away(MemoryStorage):
        async def open(self, *, migrate: bool = True) -> None:
            raise StorageUnavailable("the database does not answer")

    app = make_app(storage=Away(SystemClock()))
    async with client_of(dashboard(app, auth=EVERYBODY)) as client:
        for path in ("/api/v1/overview", "/api/v1/jobs", "/api/v1/session", "/api/v1/stream"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 0
            assert problem(answer) == "storage_unavailable"
        # The page itself is there, to say so.
        assert (await client.get("/")).status_code == 200


async def test_a_missing_body_times_out_and_an_interrupted_one_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headgate.http.endpoint.SLOWEST_BODY", 0.01)
    never = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    app = make_app()
    async with app.open(), browser(app) as client:
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/api/v1/limits/permits/pause", content=slow(), headers=headers)
        assert (answer.status_code, problem(answer)) == (408, "too_slow")

        async def breaks_off() -> Any:
            return {"type": "http.disconnect"}

        request = Request({"type": "http", "method": "POST", "headers": []}, breaks_off)
        with pytest.raises(HttpError, match="connection was lost"):
            await read_body(request)
    assert not caplog.records
