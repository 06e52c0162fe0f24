"""The gate of Dramatiq, with real workers on a real Redis."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from headgate.contrib.dramatiq import DramatiqGate
from headgate.errors import DeclarationError, PayloadError
from headgate.limits.concurrency import Concurrency
from headgate.limits.strict_rate import StrictRate
from tests.faces.contrib.workers import Log, Worker, assert_never_more, assert_none_is_lost, until, working
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

APP = "tests.faces.contrib.dramatiq_app"
WORKER = ("dramatiq", APP, "--processes", "1", "--threads", "4")
AWAY = "redis://127.0.0.1:1/0"


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


@pytest.fixture
def log(server: RedisServer) -> Log:
    return Log(server.url, "dramatiq")


def in_broker(log: Log) -> set[str]:
    stored = b"".join(log.client.hvals("dramatiq:default.msgs")).decode()
    return set(re.findall(r'"message_id":"([0-9a-f-]+)"', stored))


def test_twenty_thousand_over_their_limit_hold_up_nobody_and_survive_a_kill(
    m: Any, worker: Worker, log: Log, key: str
) -> None:
    worker.kill()
    sent = {m.sync_tenant.send(key).message_id for _ in range(20_000)}
    # Only what may start at once is in the broker.
    assert len(in_broker(log) & set(sent)) == 20

    worker.start()
    log.wait(key, 1, 15, worker)
    for _ in range(90):
        m.unlimited.send(key)
    others = [f"{key}{number}" for number in range(10)]
    for other in others:
        m.sync_tenant.send(other)
    until(lambda: len(log.starts(f"unlimited-{key}")) == 90, 5, worker.log)
    until(lambda: all(log.starts(other) for other in others), 5, worker.log)
    log.wait(key, 45, 10, worker)
    # In the midst of it.
    worker.kill()

    assert_none_is_lost(log, key, set(sent), in_broker)
    started = {told for _, told in log.starts(key)}

    worker.start()
    log.wait(key, len(started) + 21, 15, worker)
    assert_never_more(log.starts(key), 20, 0.5)
    log.client.delete(*log.client.keys(f"*{key}*"))


def test_messages_sent_without_the_gate_wait_before_a_thread_takes_them(
    m: Any, worker: Worker, log: Log, key: str
) -> None:
    for message in [m.sync_tenant.message(key) for _ in range(300)] + [m.unlimited.message(key)]:
        m.gate._enqueue(message)
    log.wait(f"unlimited-{key}", 1, 5, worker)
    until(lambda: log.client.llen("dramatiq:default") == 0, 5)
    assert len(log.ids(key, "line")) > 200
    assert_never_more(log.wait(key, 25, 5, worker), 20, 0.5)


def test_a_result_comes_though_the_message_waited(m: Any, worker: Worker, log: Log, key: str) -> None:
    messages = [m.doubled.send(key, number) for number in range(4)]
    assert [message.get_result(block=True, timeout=10_000) for message in messages] == [0, 2, 4, 6]
    assert_never_more(log.starts(key), 2, 0.4)


def test_a_pipeline_goes_through_the_gate_at_each_step(m: Any, worker: Worker, log: Log, key: str) -> None:
    steps = [m.doubled.message_with_options(args=(key, n), pipe_ignore=True) for n in (1, 2, 3)]
    pipe = dramatiq.pipeline(steps).run()
    assert pipe.get_result(block=True, timeout=10_000) == 6
    assert [told for _, told in log.starts(key)] == ["1", "2", "3"]
    assert_never_more(log.starts(key), 2, 0.4)


def test_a_retry_is_charged_and_waiting_spends_no_attempt(m: Any, worker: Worker, log: Log, key: str) -> None:
    for _ in range(3):
        m.fails_once.send(key)
    log.wait(key, 6, 15, worker)
    assert_never_more(log.starts(key), 2, 0.4)
    assert sorted(told for _, told in log.starts(key)) == list("000111")


def test_a_delay_is_kept_and_then_the_limit(m: Any, worker: Worker, log: Log, key: str) -> None:
    sent_at = time.time()
    for number in range(4):
        m.doubled.send_with_options(args=(key, number), delay=500)
    starts = log.wait(key, 4, 15, worker)
    assert starts[0][0] >= sent_at + 0.5
    assert_never_more(starts, 2, 0.4)


def test_a_message_without_the_key_it_needs_is_refused_where_it_is_sent_and_fails_where_it_comes(
    m: Any, worker: Worker, log: Log
) -> None:
    with pytest.raises(PayloadError, match="its key came out empty; nothing was published"):
        m.needs_a_key.send(None)
    m.gate._enqueue(m.needs_a_key.message(None))
    until(lambda: log.client.zcard("dramatiq:default.XQ") == 1, 5, worker.log)
    assert not log.starts("needs_a_key")


def test_a_limit_that_no_gate_can_keep_is_refused(m: Any) -> None:
    m.gate.limit(m.unlimited, Concurrency(3))
    try:
        with pytest.raises(DeclarationError, match="a gate keeps rates and windows"):
            m.unlimited.send("never")
    finally:
        m.gate._declared.clear()


def test_a_second_limit_of_an_actor_and_a_second_gate_of_a_broker_are_refused() -> None:
    broker = StubBroker()
    gate = DramatiqGate(broker, store=AWAY)
    actor: Any = dramatiq.actor(broker=broker, actor_name="work", limit=StrictRate("1/s"))(print)
    gate.limit("work", StrictRate("9/m"))
    with pytest.raises(DeclarationError, match="actor 'work' has several limits: a gate keeps one"):
        actor.send()
    with pytest.raises(DeclarationError, match="has a gate already"):
        DramatiqGate(broker, store=AWAY)


@pytest.mark.parametrize("wish", ["run", "wait"])
def test_while_the_store_is_away_messages_run_or_come_again_later(wish: Any) -> None:
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
