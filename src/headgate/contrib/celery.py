"""CeleryGate: a limit per key for Celery, whose waiting tasks are neither in the broker nor in a worker.

    app = Celery(broker="redis://…")
    gate = CeleryGate(app, store="redis://…")

    @app.task(limit=StrictRate("15/m", key="{tenant_id}"))
    def sync_tenant(tenant_id): ...

A task over its limit waits in Redis, in the line of its key. The publisher puts it there, or the consumer of a worker
before a process of the pool is used. Each worker publishes tasks again when their key opens, and the process that is
about to run one charges the key.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from headgate.errors import DeclarationError, StorageUnavailable, needing
from headgate.limits.limit import Limit
from headgate.limits.redis.gated_task import GatedTask, GatedTasks, declare, single_limit
from headgate.limits.redis.message_lines import BlockingLines

with needing("headgate.contrib.celery needs", "celery", "kombu", install="'celery[redis]'"):
    from celery import Celery, Task, bootsteps, signals
    from celery.exceptions import Ignore, OperationalError, Reject
    from kombu.serialization import dumps, loads
    from kombu.utils import json
    from kombu.utils.imports import symbol_by_name

logger = logging.getLogger("headgate.gates")

RETRY_IN = 5
"""Seconds until a task with on_store_error="wait" is retried when Redis did not answer."""

_PROPERTIES = (
    "priority",
    "correlation_id",
    "reply_to",
    "delivery_mode",
    "message_id",
    "timestamp",
    "user_id",
    "app_id",
)


class CeleryGate:
    """Enforces the limits of an app's tasks: those of `limit=` in a task's options, and those declared by `limit()`.

    Make one wherever the app is made, in workers and publishers. `store` is a Redis (not a Redis Cluster), which may be
    the broker's; `name` separates the lines of programs that share it.
    """

    def __init__(self, app: Celery, *, store: str, name: str = "celery") -> None:
        if isinstance(getattr(app.amqp.send_task_message, "__self__", None), CeleryGate):
            raise DeclarationError(f"{app} has a gate already; give that one all its limits")
        self._app = app
        self._declared: dict[str, Limit] = {}
        self._gated = GatedTasks(self._declaration, lambda: app.tasks)
        self._wrapped: set[Any] = set()
        self._lines = BlockingLines(store, name, publish=self._publish, limits=self._gated.limits)
        # Made on first use: an app may be configured after its gate is made.
        self._send = cache(app.amqp._create_task_sender)
        app.amqp.send_task_message = self._send_task_message
        app.steps["worker"].add(self._step())
        signals.task_revoked.connect(self._forget, weak=False)

    def limit(self, task: str | Task, limit: Limit) -> None:
        """Limit a task, given by name or itself, that was not declared with `limit=`."""
        declare(self._declared, task if isinstance(task, str) else task.name, limit)

    # ------------------------------------------------------------------------------------------------ when publishing

    def _send_task_message(self, producer: Any, name: str, message: Any, **options: Any) -> Any:
        gated = self._gated.of(name)
        # A message with an ETA waits for its time first; one of the old protocol has no id in its headers.
        if gated is not None and message.headers.get("id") and not message.headers.get("eta"):
            producer = _GatedProducer(producer, message.body, partial(self._passes, gated, message.headers["id"]))
        return self._send()(producer, name, message, **options)

    def _passes(self, gated: GatedTask, id: str, call: Any, record: bytes) -> bool:
        args, kwargs, _ = call
        line = gated.line(args, kwargs)
        return line is None or self._lines.passes(line, "task", id, record)

    def _publish(self, record: bytes) -> None:
        message = json.loads(record)
        with self._app.producer_pool.acquire(block=True) as producer:
            producer.publish(
                base64.b64decode(message["body"]),
                retry=True,
                retry_policy=self._app.conf.task_publish_retry_policy,
                declare=[self._app.amqp.queues[queue] for queue in message["declare"]],
                **message["options"],
            )

    # ---------------------------------------------------------------------------------------------------- in a worker

    def _step(self) -> type:
        """Return the worker step that starts and stops the gate."""
        gate = self

        class Gate(bootsteps.StartStopStep):  # type: ignore[misc]
            requires = ("celery.worker.components:Pool",)

            def __init__(self, worker: Any, **options: Any) -> None:
                # Every module with tasks is imported by now, and no process of the pool is forked.
                for task in gate._app.tasks.values():
                    if gate._gated.of(task.name) is not None:
                        gate._wrap_task(task)
                for name in gate._declared.keys() - gate._app.tasks.keys():
                    logger.warning("a limit is declared for task %r, which this worker does not have", name)

            def start(self, worker: Any) -> None:
                gate._lines.start()

            def stop(self, worker: Any) -> None:
                gate._lines.stop()

        return Gate

    def _wrap_task(self, task: Task) -> None:
        """Guard a task once: a process may start several workers, and a class may serve several tasks."""
        if task.name in self._wrapped:
            return
        declared: Any = type(task)
        strategy, before_start = task.Strategy, declared.before_start

        def checked(task: Task, task_id: str, args: Any, kwargs: Any) -> None:
            self._start(task, args, kwargs)
            before_start(task, task_id, args, kwargs)

        if declared not in self._wrapped:
            declared.before_start = checked
        task.Strategy = lambda *collaborators, **options: self._consume(strategy, *collaborators, **options)
        self._wrapped |= {task.name, declared}

    def _consume(self, strategy: Any, task: Task, app: Celery, consumer: Any, **options: Any) -> Callable[..., Any]:
        """Return the consumer's handler of the task's messages; it runs before a place in the pool is taken."""
        handle: Callable[..., Any] = symbol_by_name(strategy)(task, app, consumer, **options)
        revoked = consumer.controller.state.revoked

        def check_first(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> Any:
            id = message.headers.get("id")
            if id and not message.headers.get("eta") and id not in revoked and not self._may_pass(task, id, message):
                return ack(logger, consumer.connection_errors)
            return handle(message, body, ack, reject, callbacks, **options)

        return check_first

    def _may_pass(self, task: Task, id: str, message: Any) -> bool:
        gated = self._gated.of(task.name)
        try:
            args, kwargs, _ = message.payload
            line = gated and gated.line(args, kwargs)
        except Exception:
            # A message that cannot be read, or may not run, fails in Celery's own code.
            return True
        if not line:
            return True
        headers = {name: value for name, value in message.headers.items() if name != "compression"}
        properties = {
            name: message.properties[name] for name in _PROPERTIES if message.properties.get(name) is not None
        }
        route = {name: message.delivery_info.get(name) for name in ("exchange", "routing_key")}
        coded = {"content_type": message.content_type, "content_encoding": message.content_encoding}
        record = _record(message.body, coded | route | properties | {"headers": headers})
        return self._lines.passes(line, "task", id, record)

    def _start(self, task: Task, args: Any, kwargs: Any) -> None:
        gated = self._gated.of(task.name)
        # A task whose class inherits from that of another has the check of both.
        if gated is None or task.request.is_eager or task.request.get("charged_by") is self:
            return
        line = gated.line(args, kwargs)
        if line is None:
            return
        try:
            if self._lines.ask(self._lines.lines.start(line, task.request.id)):
                task.request.charged_by = self
                return
            later = {}
        except StorageUnavailable as error:
            self._lines.warn("task %s %ss: %s", task.request.id, gated.limit.on_store_error, error)
            if gated.limit.on_store_error == "run":
                return
            later = {"countdown": RETRY_IN}
        try:
            # The same message once more: no attempt is spent, and it goes to the line on its way.
            task.signature_from_request(task.request, args, kwargs, **later).apply_async()
        except OperationalError as error:
            if not task.acks_late:
                raise
            # The broker has it still.
            raise Reject(str(error), requeue=True) from error
        raise Ignore(f"over its limit {gated.name!r}; it waits in line")

    def _forget(self, sender: Any, request: Any, **present: Any) -> None:
        if line := self._gated.line(sender.name, request.args, request.kwargs):
            self._lines.forget(line, "revoked task", request.id)

    # -------------------------------------------------------------------------------------------------------- limits

    def _declaration(self, name: str) -> tuple[Limit, Callable[..., object]] | None:
        task = self._app.tasks.get(name)
        limit = single_limit(f"task {name!r}", self._declared.get(name), getattr(task, "limit", None))
        return None if task is None or limit is None else (limit, task.run)


class _GatedProducer:
    """A producer that publishes a message only if its limit allows it."""

    def __init__(self, producer: Any, body: Any, passes: Callable[[Any, bytes], bool]) -> None:
        self._producer = producer
        self._body = body
        self._passes = passes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        # The task-sent event is also published here.
        if body is self._body and not self._passes(*self._recorded(**options)):
            return None
        return self._producer.publish(body, **options)

    def _recorded(
        self, *, serializer: str, exchange: Any, declare: Any = None, retry: Any, retry_policy: Any, **options: Any
    ) -> tuple[Any, bytes]:
        """Return the call as a worker reads it, where a member of an Enum is only its value, and its message."""
        content_type, content_encoding, body = dumps(self._body, serializer)
        call = loads(body, content_type, content_encoding, force=True)
        options |= {"content_type": content_type, "content_encoding": content_encoding}
        options["exchange"] = getattr(exchange, "name", exchange)
        return call, _record(body, options, [queue.name for queue in declare or ()])


def _record(body: Any, options: Mapping[str, Any], declare: list[str] | None = None) -> bytes:
    """Return a message for the line: the arguments of `publish`."""
    raw = body if isinstance(body, bytes) else body.encode()
    present = {name: value for name, value in options.items() if value is not None}
    record: str = json.dumps({"body": base64.b64encode(raw).decode(), "options": present, "declare": declare or []})
    return record.encode()
