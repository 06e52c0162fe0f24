"""The gate of Taskiq, with real workers on a real Redis."""

from __future__ import annotations

import asyncio
import importlib
import re
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import pytest
from taskiq import AsyncBroker, BrokerMessage, InMemoryBroker, TaskiqMessage

from headgate.contrib.taskiq import TaskiqGate
from headgate.errors import DeclarationError
from headgate.limits.redis.message_lines import BucketLine, MessageLines
from headgate.limits.strict_rate import StrictRate
from tests.faces.contrib.gate_suite import GateSuite, Side
from tests.faces.contrib.workers import Log, Worker, working
from tests.redis_server import RedisServer, server_in
from tests.until import patient

pytestmark = pytest.mark.slow

APP = "tests.faces.contrib.taskiq_app"
WORKER = ("taskiq", "worker", f"{APP}:broker", "--workers", "1", "--max-async-tasks", "4", "--max-prefetch", "4")
AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Of the whole process: the imported app keeps its URL, and the tests of a module may not run one after another."""
    with server_in(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def app(server: RedisServer) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATE_REDIS_URL", server.url)
        yield importlib.import_module(APP)


@pytest.fixture(scope="module")
def worker(server: RedisServer, app: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with working(tmp_path_factory.mktemp("worker"), server.url, *WORKER) as worker:
        yield worker


class TaskiqSide(Side):
    """Its connections belong to one event loop."""

    own = "taskiq"

    def __init__(self, m: Any, loop: asyncio.Runner) -> None:
        self._m = m
        self._loop = loop

    def send(self, task: str, *args: object) -> str:
        return str(self._loop.run(getattr(self._m, task).kiq(*args)).task_id)

    def send_past_the_gate(self, key: str, count: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._m.broker, "kick", self._m.gate._kick)
            for _ in range(count):
                self.send("hourly", key)
            self.send("unlimited", key)

    def results(self, task: str, calls: Sequence[tuple[object, ...]]) -> list[object]:
        async def wait() -> list[object]:
            tasks = [await getattr(self._m, task).kiq(*args) for args in calls]
            return [(await each.wait_result(timeout=patient(10))).return_value for each in tasks]

        return self._loop.run(wait())

    def in_broker(self, log: Log) -> set[str]:
        """A stream keeps what was acknowledged."""
        stored = b"".join(fields[b"data"] for _, fields in log.client.xrange("taskiq")).decode()
        return set(re.findall(r'"task_id":\s*"([0-9a-f]+)"', stored))

    def line(self, key: str) -> tuple[MessageLines, BucketLine]:
        async def lines() -> MessageLines:
            found: MessageLines = self._m.gate._lines().lines
            return found

        return self._loop.run(lines()), self._m.gate._gated.of(self._m.sync_tenant.task_name).line_of_key(key)

    async def close(self) -> None:
        await self._m.gate.shutdown()
        await self._m.broker.connection_pool.disconnect()
        await self._m.broker.result_backend.redis_pool.disconnect()


@pytest.fixture(scope="module")
def side(app: Any) -> Iterator[Side]:
    with asyncio.Runner() as loop:
        loop.run(app.broker.startup())
        side = TaskiqSide(app, loop)
        yield side
        loop.run(side.close())


class TestTaskiq(GateSuite):
    """As every gate."""


class Queue(AsyncBroker):
    """A broker that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.kicked: list[BrokerMessage] = []

    async def kick(self, message: BrokerMessage) -> None:
        self.kicked.append(message)

    async def listen(self) -> AsyncGenerator[bytes, None]:
        for message in self.kicked:
            yield message.message


async def test_a_task_whose_delay_is_over_is_not_delayed_again(server: RedisServer) -> None:
    broker, own = Queue(), uuid.uuid4().hex
    gate = TaskiqGate(broker, store=server.url, name=own)

    @broker.task(delay=60)
    @gate.limit(StrictRate("1/h", name=own))
    async def work() -> None: ...

    tasks = [await work.kiq(), await work.kiq()]
    assert ["delay" in message.labels for message in broker.kicked] == [True, True]
    assert [await gate._may_pass(message.message) for message in broker.kicked] == [True, False]
    lines, line = gate._lines(), gate._gated.line(work.task_name, [], {})
    assert line is not None
    await lines.ask(lines.lines.forget(line, tasks[0].task_id))
    await lines.ask(lines.lines.release(gate._gated.limits()))
    *first, released = broker.kicked
    assert released.task_id == tasks[1].task_id
    assert "delay" not in released.labels
    # Nor is one that is refused at its start: it waits in line.
    refused = broker.formatter.loads(first[0].message)
    refused.parse_labels()
    await gate.pre_execute(refused)
    assert broker.kicked == [*first, released]
    await gate.shutdown()


async def test_a_worker_that_stops_runs_what_it_has_got() -> None:
    asked, broker = asyncio.Event(), Queue()

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (read := await reader.read(4096)) and b"EVALSHA" not in read:
            writer.write(b"+OK\r\n" * read.count(b"*"))
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(keep_silent, "127.0.0.1", 0) as silent:
        gate = TaskiqGate(broker, store=f"redis://127.0.0.1:{silent.sockets[0].getsockname()[1]}")

        @broker.task
        @gate.limit(StrictRate("1/h"))
        async def work() -> None: ...

        async def receive() -> object:
            return await anext(broker.listen())

        message = TaskiqMessage(task_id="1", task_name=work.task_name, labels={}, args=[], kwargs={})
        broker.kicked.append(broker.formatter.dumps(message))
        receiving = asyncio.create_task(receive())
        await asked.wait()
        receiving.cancel()
        assert await receiving == broker.kicked[0].message
        await gate.shutdown()


async def test_while_the_store_is_unavailable_tasks_run() -> None:
    broker = InMemoryBroker()
    gate = TaskiqGate(broker, store=AWAY)

    @broker.task
    @gate.limit(StrictRate("1/h"))
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return number

    await broker.startup()
    tasks = [await work.kiq(number) for number in range(3)]
    assert [(await task.wait_result(timeout=patient(5))).return_value for task in tasks] == [0, 1, 2]
    await broker.shutdown()


def test_limits_that_a_gate_does_not_support_are_refused_at_declaration() -> None:
    broker = InMemoryBroker()
    gate = TaskiqGate(broker, store=AWAY)
    with pytest.raises(DeclarationError, match="is not a limit"):
        gate.limit("1/s")  # type: ignore[arg-type]

    async def work() -> None: ...

    with pytest.raises(DeclarationError, match=r"work' has several limits: a gate keeps one"):
        gate.limit(StrictRate("1/s"))(gate.limit(StrictRate("9/m"))(work))
    with pytest.raises(DeclarationError, match="must be below the broker's decorator"):
        gate.limit(StrictRate("1/s"))(broker.task(work))
    with pytest.raises(DeclarationError, match="has a gate already"):
        TaskiqGate(broker, store=AWAY)
