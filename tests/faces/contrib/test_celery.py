"""The gate of Celery, with real workers on a real Redis."""

from __future__ import annotations

import gc
import importlib
import re
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from celery import Celery, chain, chord, signals
from celery.contrib.testing.worker import start_worker
from celery.exceptions import OperationalError

from headgate.contrib.celery import CeleryGate
from headgate.errors import DeclarationError, PayloadError
from headgate.limits.adaptive_rate import AdaptiveRate
from headgate.limits.concurrency import Concurrency
from headgate.limits.key import header
from headgate.limits.limit import Limit
from headgate.limits.redis.message_lines import BlockingLines, BucketLine, MessageLines
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.strict_rate import StrictRate
from tests.faces.contrib.gate_suite import GateSuite, Side
from tests.faces.contrib.workers import Log, Worker, assert_never_more, working
from tests.redis_server import RedisServer, server_in
from tests.until import patient, until_now

pytestmark = pytest.mark.slow

APP = "tests.faces.contrib.celery_app"
WORKER = ("celery", "-A", APP, "worker", "-c", "2", "-l", "warning", "--without-gossip", "--without-mingle")


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
        yield m
        # Results of tests that have ended would look for their server.
        m.app.backend.result_consumer.stop()
        gc.collect()


@pytest.fixture(scope="module")
def worker(server: RedisServer, m: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with working(tmp_path_factory.mktemp("worker"), server.url, *WORKER) as worker:
        yield worker


class CelerySide(Side):
    own = "celery"
    # It takes a message from a list before it notes that it holds it.
    popped = 1

    def __init__(self, m: Any) -> None:
        self._m = m

    def send(self, task: str, *args: object) -> str:
        return str(getattr(self._m, task).delay(*args).id)

    def send_past_the_gate(self, key: str, count: int) -> None:
        amqp, gate = self._m.app.amqp, self._m.gate
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(amqp, "send_task_message", gate._send())
            for _ in range(count):
                self.send("hourly", key)
            self.send("unlimited", key)

    def results(self, task: str, calls: Sequence[tuple[object, ...]]) -> list[object]:
        waiting = [getattr(self._m, task).delay(*args) for args in calls]
        return [each.get(timeout=patient(10)) for each in waiting]

    def in_broker(self, log: Log) -> set[str]:
        stored = b"".join(log.client.lrange("celery", 0, -1) + log.client.hvals("unacked")).decode()
        return set(re.findall(r"[0-9a-f-]{36}", stored))

    def line(self, key: str) -> tuple[MessageLines, BucketLine]:
        return self._m.gate._lines.lines, self._m.gate._gated.of(self._m.sync_tenant.name).line_of_key(key)


@pytest.fixture(scope="module")
def side(m: Any) -> Side:
    return CelerySide(m)


class TestCelery(GateSuite):
    def test_a_retried_call_returns_its_result(self, side: Side, worker: Worker, key: str) -> None:
        assert side.results("fails_once", [(key,)]) == [1]


def test_a_chain_goes_through_the_gate_at_each_step(m: Any, worker: Worker, log: Log, key: str) -> None:
    steps = chain(m.doubled.si(key, 1), m.doubled.si(key, 2), m.doubled.si(key, 3))
    assert steps.apply_async().get(timeout=patient(10)) == 6
    assert [told for _, told in log.starts(key)] == ["1", "2", "3"]
    assert_never_more(log.starts(key), 2, 0.4)


def test_a_chord_has_all_its_results(m: Any, worker: Worker, log: Log, key: str) -> None:
    together = chord([m.doubled.s(key, number) for number in range(3)])(m.summed.s())
    assert together.get(timeout=patient(10)) == 6
    assert_never_more(log.starts(key), 2, 0.4)


def test_a_call_that_expires_while_it_waits_never_starts(m: Any, worker: Worker, log: Log, key: str) -> None:
    for number in range(2):
        m.slowly.delay(key, number)
    m.slowly.apply_async((key, 2), expires=0.1)
    last = m.slowly.delay(key, 3)
    assert last.get(timeout=patient(10)) == 6
    assert sorted(told for _, told in log.starts(key)) == ["0", "1", "3"]


def test_an_eta_is_kept_and_then_the_limit(m: Any, worker: Worker, log: Log, key: str) -> None:
    sent_at = time.time()
    results = [m.doubled.apply_async((key, number), countdown=0.5) for number in range(4)]
    assert [result.get(timeout=patient(15)) for result in results] == [0, 2, 4, 6]
    starts = log.starts(key)
    assert starts[0][0] >= sent_at + 0.5
    assert_never_more(starts, 2, 0.4)


def test_priority_and_headers_are_those_of_the_call(m: Any, worker: Worker, key: str) -> None:
    calls = [m.told.apply_async((key,), priority=3, headers={"trace": "t1"}) for _ in range(2)]
    assert [call.get(timeout=patient(10)) for call in calls] == [{"priority": 3, "trace": "t1"}] * 2


def test_a_call_that_is_revoked_while_it_waits_never_starts(m: Any, worker: Worker, log: Log, key: str) -> None:
    # A worker that does not listen yet never gets a revocation.
    until_now(lambda: bool(m.app.control.ping(timeout=0.2)), 15, worker.log)
    while True:
        sent_at = time.monotonic()
        first, second, revoked, last = (m.slowly.delay(key, number) for number in range(4))
        m.app.control.revoke(revoked.id, reply=True, limit=1, timeout=patient(5))
        if time.monotonic() < sent_at + 0.9:
            break
        # This machine was so slow that its turn may have come before the worker knew: again, with another key.
        key = uuid.uuid4().hex
    assert last.get(timeout=patient(10)) == 6
    assert sorted(told for _, told in log.starts(key)) == ["0", "1", "3"]
    until_now(lambda: not log.client.keys(f"*{key}*:celery:sent"), 5)
    assert first.get(timeout=patient(10)) == 0
    assert second.get(timeout=patient(10)) == 2


def test_a_call_without_the_key_it_needs_is_refused_where_it_is_sent(m: Any) -> None:
    with pytest.raises(PayloadError, match="its key is empty; nothing was published"):
        m.needs_a_key.delay(None)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (Concurrency(3), "a gate keeps rates and windows"),
        (AdaptiveRate("9/s"), r"a gate keeps rates and windows \(RateLimit, .*\), not adaptive, 0.09/s to 9/s"),
        (StrictRate("1/s", key="{tag}", max_wait=5), "max_wait= is for jobs of Headgate"),
        (StrictRate("1/s", key="{tag}", per_call=True), "per_call= is for jobs of Headgate"),
        (StrictRate("9/s", on_store_error="share", sharers=3), "sharers= is for jobs of Headgate"),
        (StrictRate("1/s", key="{team}"), "names 'team', which is not among its arguments"),
        (StrictRate("1/s", key=header("tenant")), r"key=Header\(name='tenant'\) is only for jobs of Headgate; write"),
        (StrictRate("1/s", key=cast(Any, ("{tag}",))), r"key=\('{tag}',\) is only for jobs of Headgate; write a templ"),
        ("1/s", "is not a limit"),
    ],
)
def test_a_limit_that_a_gate_does_not_support_is_refused(m: Any, limit: Any, reason: str) -> None:
    m.gate.limit(m.unlimited, limit)
    try:
        with pytest.raises(DeclarationError, match=reason):
            m.unlimited.delay("never")
    finally:
        m.gate._declared.clear()


def test_without_the_store_a_sender_leaves_the_check_to_the_worker(
    m: Any, worker: Worker, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = BlockingLines("redis://127.0.0.1:1/0", "celery", publish=m.gate._publish, limits=m.gate._gated.limits)
    monkeypatch.setattr(m.gate, "_lines", away)
    assert m.doubled.delay(key, 4).get(timeout=patient(10)) == 8


def test_while_the_store_is_unavailable_calls_run_or_are_retried_later() -> None:
    # Others that this process makes stay the current app. The broker in memory is one for the whole process, so what
    # comes again later must find no other test's worker.
    app = Celery("away", broker="memory://", set_as_current=False)
    app.conf.update(task_default_queue="away", broker_transport_options={"polling_interval": 0.01})
    app.conf.task_ignore_result = True
    CeleryGate(app, store="redis://127.0.0.1:1/0")
    ran: list[str] = []
    later: list[str] = []
    last = threading.Event()

    @app.task(name="runs", shared=False, limit=StrictRate("1/h", on_store_error="run"))
    def runs() -> None:
        ran.append("runs")

    @app.task(name="waits", shared=False, limit=StrictRate("1/h", on_store_error="wait"))
    def waits() -> None:
        ran.append("waits")

    @app.task(name="end", shared=False)
    def end() -> None:
        last.set()

    def sent(sender: str, headers: Any, **told: Any) -> None:
        if headers["eta"]:
            later.append(sender)

    signals.before_task_publish.connect(sent)
    try:
        with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=patient(10)):
            for task in (runs, runs, waits, waits, end):
                task.delay()
            assert last.wait(patient(10))
    finally:
        signals.before_task_publish.disconnect(sent)
    assert ran == ["runs", "runs"]
    assert later == ["waits", "waits"]


def test_a_call_acknowledged_late_that_cannot_be_sent_to_wait_stays_in_the_broker() -> None:
    """The fault: with store and broker in one Redis that was away, it failed without having run."""
    app = Celery("stays", broker="memory://", set_as_current=False)
    app.conf.update(task_default_queue="stays", broker_transport_options={"polling_interval": 0.01})
    gate: Any = CeleryGate(app, store="redis://127.0.0.1:1/0")
    send, later = gate._send(), []

    def refuse_at_first(producer: Any, name: str, message: Any, **options: Any) -> Any:
        if message.headers["eta"]:
            later.append(name)
            if len(later) == 1:
                raise OperationalError("away")
        return send(producer, name, message, **options)

    gate._send = lambda: refuse_at_first

    @app.task(
        name="waits", shared=False, ignore_result=True, acks_late=True, limit=StrictRate("1/h", on_store_error="wait")
    )
    def waits() -> None: ...

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=patient(10)):
        waits.delay()
        until_now(lambda: len(later) == 2, 5)


def test_a_task_whose_class_inherits_from_that_of_another_is_charged_once(server: RedisServer) -> None:
    app = Celery("inherits", broker="memory://", set_as_current=False)
    app.conf.update(task_default_queue="inherits", broker_transport_options={"polling_interval": 0.01})
    # Lines of its own: it knows none of the limits of the other worker.
    gate = CeleryGate(app, store=server.url, name="inherits")
    ran: list[str] = []
    last = threading.Event()

    class First(app.Task):  # type: ignore[misc,name-defined]
        name = "first"
        limit = StrictRate("2/h")
        ignore_result = True

        def run(self) -> None:
            ran.append(self.name)

    class Second(First):
        name = "second"

    @app.task(name="end", shared=False, ignore_result=True)
    def end() -> None:
        last.set()

    second = [app.register_task(task()) for task in (First, Second)][1]
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=patient(10)):
        for task in (second, second, end):
            task.delay()
        assert last.wait(patient(10))
    gate._lines.stop()
    assert ran == ["second", "second"]


def test_a_second_limit_of_a_task_and_a_second_gate_of_an_app_are_refused() -> None:
    app = Celery("twice", broker="memory://", set_as_current=False)
    gate = CeleryGate(app, store="redis://127.0.0.1:1/0")

    @app.task(name="listed", shared=False, limit=[StrictRate("1/s"), StrictRate("9/m")])
    def listed() -> None: ...

    @app.task(name="both", shared=False, limit=StrictRate("1/s"))
    def both() -> None: ...

    gate.limit(both, StrictRate("9/m"))
    for task in (listed, both):
        with pytest.raises(DeclarationError, match=f"task '{task.name}' has several limits: a gate keeps one"):
            task.delay()
    gate.limit("later", StrictRate("9/m"))
    with pytest.raises(DeclarationError, match="'later' has several limits"):
        gate.limit("later", StrictRate("8/m"))
    with pytest.raises(DeclarationError, match="has a gate already"):
        CeleryGate(app, store="redis://127.0.0.1:1/0")


@pytest.mark.parametrize(
    "second",
    [StrictRate("9/m", name="api", cost=2), StrictRate("8/m", name="api"), SlidingWindow("9/m", name="api")],
    ids=lambda limit: f"{limit.rule.describe()}, cost={limit.cost}",
)
def test_tasks_that_share_a_limits_name_have_one_rule_and_one_cost(second: Limit) -> None:
    app = Celery("alike", broker="memory://", set_as_current=False)
    gate = CeleryGate(app, store="redis://127.0.0.1:1/0")

    @app.task(name="light", shared=False, limit=StrictRate("9/m", name="api"))
    def light() -> None: ...

    @app.task(name="alike", shared=False, limit=StrictRate("9/m", name="api", key="{tenant}"))
    def alike(tenant: str) -> None: ...

    @app.task(name="heavy", shared=False)
    def heavy() -> None: ...

    alike.delay("acme")
    gate.limit("heavy", second)
    for task, other in ((heavy, "(light|alike)"), (light, "heavy")):
        told = f"limit 'api' of {task.name} and {other} is .* and .*: they share a line; declare one rule and cost"
        with pytest.raises(DeclarationError, match=told):
            task.delay()
