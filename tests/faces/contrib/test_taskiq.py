"""The gate of Taskiq, with real workers on a real Redis."""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from taskiq import InMemoryBroker

from headgate.contrib.taskiq import TaskiqGate
from headgate.errors import DeclarationError
from headgate.limits.strict_rate import StrictRate
from tests.faces.contrib.workers import Log, Worker, assert_never_more, assert_none_is_lost, until, working
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

APP = "tests.faces.contrib.taskiq_app"
WORKER = ("taskiq", "worker", f"{APP}:broker", "--workers", "1", "--max-async-tasks", "4", "--max-prefetch", "4")
AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture(scope="module")
def app(server: RedisServer) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATE_REDIS_URL", server.url)
        yield importlib.import_module(APP)


@pytest.fixture
async def m(app: Any) -> AsyncIterator[Any]:
    """Its connections belong to the loop of one test."""
    await app.broker.startup()
    yield app
    await app.gate.shutdown()
    await app.broker.connection_pool.disconnect()
    await app.broker.result_backend.redis_pool.disconnect()


@pytest.fixture(scope="module")
def worker(server: RedisServer, app: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with working(tmp_path_factory.mktemp("worker"), server.url, *WORKER) as worker:
        yield worker


@pytest.fixture
def log(server: RedisServer) -> Log:
    return Log(server.url, "taskiq")


def in_broker(log: Log) -> set[str]:
    """A stream keeps what was acknowledged."""
    stored = b"".join(fields[b"data"] for _, fields in log.client.xrange("taskiq")).decode()
    return set(re.findall(r'"task_id":\s*"([0-9a-f]+)"', stored))


async def test_twenty_thousand_over_their_limit_hold_up_nobody_and_survive_a_kill(
    m: Any, worker: Worker, log: Log, key: str
) -> None:
    worker.kill()
    sent = {(await m.sync_tenant.kiq(key)).task_id for _ in range(50)}
    place = m.gate._of(m.sync_tenant.task_name).place_of(key)
    sent |= set(log.park(m.gate._lines().lines, place, key, 19_950))
    # Only what may start at once is in the broker.
    assert len(in_broker(log) & set(sent)) == 20

    worker.start()
    log.wait(key, 1, 15, worker)
    for _ in range(90):
        await m.unlimited.kiq(key)
    others = [f"{key}{number}" for number in range(10)]
    for other in others:
        await m.sync_tenant.kiq(other)
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


async def test_tasks_sent_without_the_gate_wait_before_they_take_a_place_of_the_worker(
    m: Any, worker: Worker, log: Log, key: str
) -> None:
    gated, m.broker.kick = m.broker.kick, m.gate._kick
    try:
        for _ in range(300):
            await m.sync_tenant.kiq(key)
        await m.unlimited.kiq(key)
    finally:
        m.broker.kick = gated
    log.wait(f"unlimited-{key}", 1, 5, worker)
    assert len(log.ids(key, "line")) > 200
    assert_never_more(log.wait(key, 25, 5, worker), 20, 0.5)


async def test_a_result_comes_though_the_task_waited(m: Any, worker: Worker, log: Log, key: str) -> None:
    tasks = [await m.doubled.kiq(key, number) for number in range(4)]
    results = [await task.wait_result(timeout=10) for task in tasks]
    assert [result.return_value for result in results] == [0, 2, 4, 6]
    assert_never_more(log.starts(key), 2, 0.4)


async def test_a_retry_is_charged_and_labels_stay(m: Any, worker: Worker, log: Log, key: str) -> None:
    tasks = [await m.fails_once.kiq(key) for _ in range(3)]
    log.wait(key, 6, 15, worker)
    results = [await task.wait_result(timeout=10) for task in tasks]
    assert {result.return_value for result in results} <= {"something", None}
    assert_never_more(log.starts(key), 2, 0.4)
    assert sorted(told for _, told in log.starts(key)) == list("000111")


async def test_while_the_store_is_away_tasks_run() -> None:
    broker = InMemoryBroker()
    gate = TaskiqGate(broker, store=AWAY)

    @broker.task
    @gate.limit(StrictRate("1/h"))
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return number

    await broker.startup()
    tasks = [await work.kiq(number) for number in range(3)]
    assert [(await task.wait_result(timeout=5)).return_value for task in tasks] == [0, 1, 2]
    await broker.shutdown()


def test_what_a_gate_cannot_keep_is_refused_where_it_is_declared() -> None:
    broker = InMemoryBroker()
    gate = TaskiqGate(broker, store=AWAY)
    with pytest.raises(DeclarationError, match="is not a limit"):
        gate.limit("1/s")  # type: ignore[arg-type]

    async def work() -> None: ...

    with pytest.raises(DeclarationError, match=r"work' has several limits: a gate keeps one"):
        gate.limit(StrictRate("1/s"))(gate.limit(StrictRate("9/m"))(work))
    with pytest.raises(DeclarationError, match="has to stand below the broker's decorator"):
        gate.limit(StrictRate("1/s"))(broker.task(work))
    with pytest.raises(DeclarationError, match="has a gate already"):
        TaskiqGate(broker, store=AWAY)
