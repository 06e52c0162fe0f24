"""Alerts to a webhook, on each database: a real HTTP server that refuses the first requests, and nodes that die."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from headgate import AlertMessage, Headgate
from headgate.engine.alert_sender import AlertSender
from headgate.engine.alerter import SENDING_FOR, Alerter
from headgate.jobs.history import ALL, SHORTEST, JobsStep, step_at
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import StoreUser
from tests.internals import app_on, client_of, registry_of


class Received(NamedTuple):
    headers: dict[str, str]
    body: bytes


class Receiver:
    """A server that answers with these statuses, then with 204, and keeps the requests."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.requests: list[Received] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append(Received(headers, body))
                status = receiver.answers.pop(0) if receiver.answers else 204
                self.send_response(status)
                said = b"" if status == 204 else b"\x1f\x8b\x08\x00 out of order: /T0/secret"
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/T0/secret"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "postgres"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Store:
    if request.param == "sqlite":
        return SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
    return PostgresStorage(url, clock, schema=schema, own_time=True)


@pytest_asyncio.fixture
async def storage(new_store: Store) -> AsyncIterator[Store]:
    await new_store.open()
    yield new_store
    await new_store.close()


def alerter_of(app: Headgate, clock: ManualClock) -> Alerter:
    services = client_of(app).services
    return Alerter(services, registry_of(app).alerts, AlertSender(None, clock), set)


async def lose_a_node(storage: Store) -> None:
    await storage.join("node-b", "blue")
    (beat,) = [peer.beat for peer in (await storage.node_update()).peers if peer.id == "node-b"]
    assert await storage.recover("node-b", beat) is not None


async def test_a_webhook_that_refuses_gets_the_same_signed_message_again(
    storage: Store, clock: ManualClock, receiver: Receiver
) -> None:
    secret = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()
    app = app_on(storage, clock=clock)
    app.alert(receiver.url, on="node_lost", name="ops", secret=secret)
    alerter = alerter_of(app, clock)
    await lose_a_node(storage)
    receiver.answers = [502, 302]
    errors = []
    for _ in range(3):
        await alerter.look()
        await alerter.send("ops")
        # Not before its time.
        await alerter.send("ops")
        errors += [each.error for each in await storage.alerts()]
        clock.advance(20)
    # The path of the URL is a password, and what an answer says may be no text.
    assert errors == ["502 Bad Gateway", "302 Found", None]
    assert len(receiver.requests) == 3
    bodies = [json.loads(request.body) for request in receiver.requests]
    assert bodies[0] == bodies[1] == bodies[2]
    assert (bodies[0]["state"], bodies[0]["subject"], bodies[0]["number"]) == ("firing", "blue", 1)
    assert bodies[0]["store"] == str(storage)
    for request, body in zip(receiver.requests, bodies, strict=True):
        assert request.headers["content-type"] == "application/json"
        assert request.headers["webhook-id"] == body["id"]
        signed = f"{body['id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
        key = b"0123456789abcdef"
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert request.headers["webhook-signature"] == f"v1,{expected}"
    instants = [int(request.headers["webhook-timestamp"]) for request in receiver.requests]
    assert [later - instants[0] for later in instants] == [0, 20, 40]


async def test_every_kind_of_condition_is_read_from_each_database(storage: Store, clock: ManualClock) -> None:
    app = app_on(storage, clock=clock)
    app.task(name="work")(lambda: None)
    conditions = ("queue_lag > 4.5", "waiting > 1", "failures > 2/m", "failures(work) > 1/h", "node_lost")
    app.alert(print, on=(*conditions, "schedule_overdue", "queue_lag > 5", "waiting > 2", "failures > 3/m"))
    alerter = alerter_of(app, clock)
    await lose_a_node(storage)
    await StoreUser(storage, clock).add(2)
    now = storage.now()
    by_queue = JobsStep(60, "default", "work", step_at(now, 60), failed=2)
    await storage.add_history([JobsStep(SHORTEST, ALL, ALL, step_at(now, SHORTEST), failed=3), by_queue], [])
    clock.advance(5)
    assert await alerter.look() == {"print"}
    found = {each.condition: (each.subject, each.value) for each in await storage.alerts()}
    assert found == dict(
        zip(conditions, (("default", 5), ("default", 2), ("", 3), ("work", 2), ("blue", None)), strict=True)
    )


async def test_a_webhook_that_nobody_serves_is_an_error_of_the_alert_alone(
    storage: Store, clock: ManualClock, receiver: Receiver
) -> None:
    receiver.close()
    app = app_on(storage, clock=clock)
    app.alert(receiver.url, on="node_lost", name="ops")
    alerter = alerter_of(app, clock)
    await lose_a_node(storage)
    await alerter.look()
    await alerter.send("ops")
    (alert,) = await storage.alerts()
    assert alert.error is not None
    assert alert.error.startswith("ConnectionRefusedError: ")


async def test_nodes_send_each_message_once_and_that_of_a_dead_node_again(storage: Store, clock: ManualClock) -> None:
    dying, sent = asyncio.Event(), []

    async def page(message: AlertMessage) -> None:
        sent.append(message.id)
        if len(sent) == 1:
            dying.set()
            await asyncio.Event().wait()

    app = app_on(storage, clock=clock)
    app.alert(page, on="node_lost")
    first, second = alerter_of(app, clock), alerter_of(app, clock)
    await lose_a_node(storage)
    turns = [await each.look() for each in (first, second)]
    assert turns == [{"page"}, set()]
    sending = asyncio.create_task(first.send("page"))
    await dying.wait()
    # It is alive, for all that the others know.
    await second.send("page")
    assert len(sent) == 1
    sending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sending
    clock.advance(SENDING_FOR / 1e6)
    await asyncio.gather(second.send("page"), alerter_of(app, clock).send("page"))
    assert sent == sent[:1] * 2
    (alert,) = await storage.alerts()
    assert (alert.sent, alert.tries) == (1, 0)
