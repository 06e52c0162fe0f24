"""TaskiqGate: a limit per key for Taskiq, whose waiting tasks are neither in the broker nor in a worker.

    broker = RedisStreamBroker("redis://…")
    gate = TaskiqGate(broker, store="redis://…")

    @broker.task
    @gate.limit(StrictRate("15/m", key="{tenant_id}"))
    async def sync_tenant(tenant_id: str) -> None: ...

A task over its limit waits in Redis, in the line of its key. The sender puts it there, or a listening worker before one
of its places is taken. Each worker sends tasks again when their key opens, and charges the key when it is about to run
one.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from headgate.clock import Clock, SystemClock, sleep
from headgate.errors import DeclarationError, PayloadError, StorageUnavailable, needing
from headgate.limits.limit import Limit
from headgate.limits.redis.gated_task import GatedTasks, single_limit
from headgate.limits.redis.message_lines import AsyncLines

with needing("headgate.contrib.taskiq needs", "taskiq", install="taskiq taskiq-redis"):
    from taskiq import (
        AckableMessage,
        AsyncBroker,
        AsyncTaskiqDecoratedTask,
        BrokerMessage,
        TaskiqMessage,
        TaskiqMiddleware,
    )
    from taskiq.exceptions import NoResultError
    from taskiq.utils import maybe_awaitable

logger = logging.getLogger("headgate.gates")

Call = TypeVar("Call", bound=Callable[..., Any])

RETRY_IN = 5.0
"""Seconds until a task with on_store_error="wait" is sent again when Redis did not answer."""

_refusal: ContextVar[Exception | None] = ContextVar("headgate_refusal", default=None)


class TaskiqGate(TaskiqMiddleware):
    """Enforces the limits of a broker's tasks that are declared with `limit()`.

    Make one wherever the broker is made, in workers and senders; it adds itself to the broker. `store` is a Redis (not
    a Redis Cluster), which may be the broker's; `name` separates the lines of programs that share it.
    """

    def __init__(self, broker: AsyncBroker, *, store: str, name: str = "taskiq", clock: Clock | None = None) -> None:
        super().__init__()
        if any(isinstance(each, TaskiqGate) for each in broker.middlewares):
            raise DeclarationError(f"{broker} has a gate already; give that one all its limits")
        self._store = store
        self._name = name
        self._clock = clock or SystemClock()
        self._gated = GatedTasks(self._declaration, broker.get_all_tasks)
        self._of_loop: tuple[asyncio.AbstractEventLoop, AsyncLines] | None = None
        self._kick, self._listen = broker.kick, broker.listen
        gated: Any = broker
        gated.kick, gated.listen = self._kick_gated, self._listen_gated
        broker.add_middlewares(self)

    def limit(self, limit: Limit) -> Callable[[Call], Call]:
        """Limit the task that is made of this function; put it below `@broker.task`."""
        single_limit("a task", limit)

        def limited(call: Call) -> Call:
            if isinstance(call, AsyncTaskiqDecoratedTask):
                raise DeclarationError(f"@gate.limit of task {call.task_name!r} must be below the broker's decorator")
            single_limit(f"task {call.__qualname__!r}", getattr(call, "__headgate_limit__", None), limit)
            guarded: Any = _guarded(call)
            guarded.__headgate_limit__ = limit
            return cast(Call, guarded)

        return limited

    # ---------------------------------------------------------------------------------------------------- when sending

    async def _kick_gated(self, message: BrokerMessage) -> None:
        # A message with a delay waits for its time first.
        if message.labels.get("delay") or await self._arrive(message.message):
            await self._kick(message)

    async def _arrive(self, record: bytes) -> bool:
        message = self.broker.formatter.loads(record)
        line = self._gated.line(message.task_name, message.args, message.kwargs)
        if line is None:
            return True
        lines = self._lines()
        try:
            return await lines.ask(lines.lines.arrive(line, message.task_id, record))
        except StorageUnavailable as error:
            # The broker keeps it as well, and the limit is checked again at its start.
            lines.warn("task %s goes to the broker without a limit check: %s", message.task_id, error)
            return True

    async def _publish(self, record: bytes) -> None:
        message = self.broker.formatter.loads(record)
        message.parse_labels()
        # A delay is over before a message waits in line.
        labels = {name: value for name, value in message.labels.items() if name != "delay"}
        sent = BrokerMessage(task_id=message.task_id, task_name=message.task_name, message=record, labels=labels)
        await self._kick(sent)

    # ---------------------------------------------------------------------------------------------------- in a worker

    async def startup(self) -> None:
        if self.broker.is_worker_process:
            self._lines().start()

    async def shutdown(self) -> None:
        if self._of_loop is not None:
            await self._of_loop[1].close()
            self._of_loop = None

    async def _listen_gated(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        async for received in self._listen():
            data = received.data if isinstance(received, AckableMessage) else received
            if await self._may_pass(data):
                yield received
            elif isinstance(received, AckableMessage):
                await maybe_awaitable(received.ack())

    async def _may_pass(self, data: bytes) -> bool:
        try:
            return await self._arrive(data)
        except (Exception, asyncio.CancelledError):
            # A message that cannot be read, or may not run, fails in Taskiq's own code. A worker that stops cancels the
            # wait for a message and still runs one that it has got by then: the broker may have no other copy.
            return True

    async def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        _refusal.set(await self._refused(message))
        return message

    async def _refused(self, message: TaskiqMessage) -> Exception | None:
        gated = self._gated.of(message.task_name)
        if gated is None:
            return None
        try:
            line = gated.line(message.args, message.kwargs)
        except PayloadError as error:
            return error
        if line is None:
            return None
        lines, record = self._lines(), self.broker.formatter.dumps(message).message
        try:
            if await lines.ask(lines.lines.start(line, message.task_id)):
                return None
            if await self._arrive(record):
                await self._publish(record)
        except StorageUnavailable as error:
            lines.warn("task %s %ss: %s", message.task_id, gated.limit.on_store_error, error)
            if gated.limit.on_store_error == "run":
                return None
            await sleep(self._clock, RETRY_IN)
            await self._publish(record)
        return NoResultError()

    # -------------------------------------------------------------------------------------------------------- limits

    def _declaration(self, name: str) -> tuple[Limit, Callable[..., object]] | None:
        call = getattr(self.broker.find_task(name), "original_func", None)
        limit = getattr(call, "__headgate_limit__", None)
        return None if call is None or limit is None else (limit, call)

    def _lines(self) -> AsyncLines:
        """Return the lines of the running loop: a Redis client belongs to one loop."""
        loop = asyncio.get_running_loop()
        if self._of_loop is None or self._of_loop[0] is not loop:
            lines = AsyncLines(
                self._store, self._name, publish=self._publish, limits=self._gated.limits, clock=self._clock
            )
            self._of_loop = loop, lines
        return self._of_loop[1]


def _guarded(call: Call) -> Call:
    """Return the function, wrapped so that it does not run if its start was refused."""

    @functools.wraps(call)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _raise_refusal()
        return call(*args, **kwargs)

    @functools.wraps(call)
    async def guarded_async(*args: Any, **kwargs: Any) -> Any:
        _raise_refusal()
        return await call(*args, **kwargs)

    return cast(Call, guarded_async if inspect.iscoroutinefunction(call) else guarded)


def _raise_refusal() -> None:
    # It applies to one start; a task that sends and awaits another one in this process must not see it again.
    if (refusal := _refusal.get()) is not None:
        _refusal.set(None)
        raise refusal
