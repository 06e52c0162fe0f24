"""The gate of Dramatiq, with real workers on a real Redis."""

from __future__ import annotations

import importlib
import importlib.util
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.errors import ConnectionClosed
from redis.exceptions import RedisError

from headgate.contrib.dramatiq import DramatiqGate
from headgate.errors import DeclarationError, PayloadError
from headgate.limits.concurrency import Concurrency
from headgate.limits.redis.message_lines import BucketLine, MessageLines
from headgate.limits.strict_rate import StrictRate
from tests.faces.contrib.gate_suite import GateSuite, Side
from tests.faces.contrib.workers import Log, Worker, assert_never_more, working
from tests.redis_server import RedisServer, server_in
from tests.until import patient, until_now

pytestmark = pytest.mark.slow

APP = "tests.faces.contrib.dramatiq_app"
WORKER = ("dramatiq", APP, "--processes", "1", "--threads", "4")
AWAY = "redis://127.0.0.1:1/0"
MILLISECONDS = int(1000 * patient(10))
"""How long the tests wait for a result."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Of the whole process: the imported app keeps its URL, and the tests of a module may not run one after another."""
    with server_in(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def m(server: RedisServer) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATE_REDIS_URL", server.url)
        m = importlib.import_module(APP)
        # Results and pipelines look for the broker of the process, which others may have set since.
        dramatiq.set_broker(m.broker)
        yield m


@pytest.fixture(scope="module")
def worker(server: RedisServer, m: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with working(tmp_path_factory.mktemp("worker"), server.url, *WORKER) as worker:
        yield worker


class DramatiqSide(Side):
    own = "dramatiq"

    def __init__(self, m: Any) -> None:
        self._m = m

    def send(self, task: str, *args: object) -> str:
        return str(getattr(self._m, task).send(*args).message_id)

    def send_past_the_gate(self, key: str, count: int) -> None:
        for message in [self._m.hourly.message(key) for _ in range(count)] + [self._m.unlimited.message(key)]:
            self._m.gate._enqueue(message)

    def results(self, task: str, calls: Sequence[tuple[object, ...]]) -> list[object]:
        messages = [getattr(self._m, task).send(*args) for args in calls]
        return [message.get_result(block=True, timeout=MILLISECONDS) for message in messages]

    def in_broker(self, log: Log) -> set[str]:
        stored = b"".join(log.client.hvals("dramatiq:default.msgs")).decode()
        return set(re.findall(r'"message_id":"([0-9a-f-]+)"', stored))

    def line(self, key: str) -> tuple[MessageLines, BucketLine]:
        return self._m.gate._lines.lines, self._m.gate._gated.of("sync_tenant").line_of_key(key)


@pytest.fixture(scope="module")
def side(m: Any) -> Side:
    return DramatiqSide(m)


class TestDramatiq(GateSuite):
    """As every gate."""


def test_a_pipeline_goes_through_the_gate_at_each_step(m: Any, worker: Worker, log: Log, key: str) -> None:
    steps = [m.doubled.message_with_options(args=(key, n), pipe_ignore=True) for n in (1, 2, 3)]
    pipe = dramatiq.pipeline(steps).run()
    assert pipe.get_result(block=True, timeout=MILLISECONDS) == 6
    assert [told for _, told in log.starts(key)] == ["1", "2", "3"]
    assert_never_more(log.starts(key), 2, 0.4)


def test_a_delay_is_kept_and_then_the_limit(m: Any, worker: Worker, log: Log, key: str) -> None:
    sent_at = time.time()
    for number in range(4):
        m.doubled.send_with_options(args=(key, number), delay=500)
    starts = log.wait(key, 4, 15, worker)
    assert starts[0][0] >= sent_at + 0.5
    assert_never_more(starts, 2, 0.4)


def test_a_message_without_its_key_is_refused_by_the_sender_and_fails_in_the_worker(
    m: Any, worker: Worker, log: Log
) -> None:
    with pytest.raises(PayloadError, match="its key is empty; nothing was published"):
        m.needs_a_key.send(None)
    m.gate._enqueue(m.needs_a_key.message(None))
    until_now(lambda: log.client.zcard("dramatiq:default.XQ") == 1, 5, worker.log)
    assert not log.starts("needs_a_key")


def test_a_limit_that_a_gate_does_not_support_is_refused(m: Any) -> None:
    m.gate.limit(m.unlimited, Concurrency(3))
    try:
        with pytest.raises(DeclarationError, match="a gate keeps rates and windows"):
            m.unlimited.send("never")
    finally:
        m.gate._declared.clear()


def test_an_actor_whose_limit_is_refused_keeps_no_line_of_others_waiting() -> None:
    """The fault: nothing was released for any actor, in each process that declares such a limit."""
    broker = StubBroker()
    gate: Any = DramatiqGate(broker, store=AWAY)
    for name, limit in {"refused": Concurrency(3), "work": StrictRate("1/s", name="calls")}.items():
        dramatiq.actor(broker=broker, actor_name=name, limit=limit)(print)
    assert list(gate._gated.limits()) == ["calls"]


def test_a_second_limit_of_an_actor_and_a_second_gate_of_a_broker_are_refused() -> None:
    broker = StubBroker()
    gate = DramatiqGate(broker, store=AWAY)
    actor: Any = dramatiq.actor(broker=broker, actor_name="work", limit=StrictRate("1/s"))(print)
    gate.limit("work", StrictRate("9/m"))
    with pytest.raises(DeclarationError, match="actor 'work' has several limits: a gate keeps one"):
        actor.send()
    with pytest.raises(DeclarationError, match="has a gate already"):
        DramatiqGate(broker, store=AWAY)


def test_a_message_that_is_too_old_reserves_no_budget(server: RedisServer) -> None:
    broker, own = StubBroker(), uuid.uuid4().hex
    broker.emit_after("process_boot")
    DramatiqGate(broker, store=server.url, name=own)
    ran: list[str] = []
    actor: Any = dramatiq.actor(broker=broker, actor_name="work", limit=StrictRate("1/h", name=own))(ran.append)
    actor.send_with_options(args=("old",), max_age=1)
    actor.send("next")
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=1)
    worker.start()
    try:
        until_now(lambda: ran == ["next"], 10)
    finally:
        worker.stop()
        broker.close()


@pytest.mark.parametrize("wish", ["run", "wait"])
def test_while_the_store_is_unavailable_messages_run_or_are_retried_later(wish: Any) -> None:
    broker = StubBroker()
    broker.emit_after("process_boot")
    gate = DramatiqGate(broker, store=AWAY)
    ran: list[int] = []
    actor: Any = dramatiq.actor(broker=broker, actor_name="work")(ran.append)
    gate.limit("work", StrictRate("1/h", on_store_error=wish))
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=1)
    worker.start()
    try:
        for number in range(3):
            actor.send(number)
        broker.queues["default"].join()
        worker.work_queue.join()
        assert ran == ([0, 1, 2] if wish == "run" else [])
        assert broker.queues["default.DQ"].unfinished_tasks == (0 if wish == "run" else 3)
    finally:
        worker.stop()
        broker.close()


def test_a_gate_needs_no_name_that_the_oldest_supported_dramatiq_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: with Dramatiq 1.18 and 2.0, to import the gate raised ImportError."""
    monkeypatch.delattr("dramatiq.errors.BrokerConnectionError")
    spec = importlib.util.find_spec("headgate.contrib.dramatiq")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_message_that_waits_for_the_store_does_not_run_while_the_broker_is_unavailable_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: with both in one Redis that was away, messages ran although they should wait."""
    monkeypatch.setattr("headgate.contrib.dramatiq.RETRY_INTERVAL", 0.01)
    broker = StubBroker()
    broker.emit_after("process_boot")
    gate: Any = DramatiqGate(broker, store=AWAY)
    refusals = [ConnectionClosed("away"), RedisError("away")]
    enqueue = gate._enqueue

    def refuse_at_first(message: Any, *, delay: int | None = None) -> Any:
        if delay is not None and refusals:
            raise refusals.pop()
        return enqueue(message, delay=delay)

    gate._enqueue = refuse_at_first
    ran: list[int] = []
    actor: Any = dramatiq.actor(broker=broker, actor_name="work")(ran.append)
    gate.limit("work", StrictRate("1/h", on_store_error="wait"))
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=1)
    worker.start()
    try:
        actor.send(1)
        until_now(lambda: broker.queues["default.DQ"].unfinished_tasks == 1, 5)
        broker.queues["default"].join()
        assert (ran, refusals) == ([], [])
    finally:
        worker.stop()
        broker.close()
