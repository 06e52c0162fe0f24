"""CeleryGate: a limit per key for Celery, whose waiting tasks are neither in the broker nor in a worker.

    app = Celery(broker="redis://…")
    gate = CeleryGate(app, store="redis://…")

    @app.task(limit=StrictRate("15/m", key="{tenant_id}"))
    def sync_tenant(tenant_id): ...

A task over its limit waits in Redis, in the line of its key. It is put there where it is published, or by the consumer
of a worker before a process of the pool is used. Each worker publishes again what a key lets go, and the process that
is about to run it charges the key.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from typing import Any

from headgate.errors import DeclarationError, StorageUnavailable
from headgate.limits.limit import Limit
from headgate.limits.redis.blocking_lines import BlockingLines
from headgate.limits.redis.gated_task import GatedTask, declare, single_limit
from headgate.limits.redis.message_lines import BucketLine

try:
    from celery import Celery, Task, bootsteps, signals
    from celery.exceptions import Ignore
    from kombu.serialization import dumps
    from kombu.utils import json
    from kombu.utils.imports import symbol_by_name
except ImportError as error:  # pragma: no cover
    raise ImportError("headgate.contrib.celery needs Celery: pip install 'celery[redis]'") from error

logger = logging.getLogger("headgate.gates")

AGAIN_IN = 5
"""Seconds until a task with on_store_error="wait" comes again when Redis could not be asked."""

_CARRIED = ("priority", "correlation_id", "reply_to", "delivery_mode", "message_id", "timestamp", "user_id", "app_id")


class CeleryGate:
    """Keeps the limits of an app's tasks: those of `limit=` in a task's options, and those declared by `limit()`.

    Make one wherever the app is made, for workers and for whoever publishes. `store` is a Redis (not a Redis Cluster),
    which may be the broker's; `name` tells the lines of programs apart that share it.
    """

    def __init__(self, app: Celery, *, store: str, name: str = "celery") -> None:
        if isinstance(getattr(app.amqp.send_task_message, "__self__", None), CeleryGate):
            raise DeclarationError(f"{app} has a gate already; give that one all its limits")
        self._app = app
        self._declared: dict[str, Limit] = {}
        self._gated: dict[str, GatedTask] = {}
        self._guarded: set[Any] = set()
        self._lines = BlockingLines(store, name, publish=self._publish, find=self._find)
        self._send = _once(app.amqp._create_task_sender)
        app.amqp.send_task_message = self._send_task_message
        app.steps["worker"].add(self._step())
        signals.task_revoked.connect(self._forget, weak=False)

    def limit(self, task: str | Task, limit: Limit) -> None:
        """Limit a task, by its name or itself, that was not declared with `limit=`."""
        declare(self._declared, task if isinstance(task, str) else task.name, limit)

    # ------------------------------------------------------------------------------------------- where it is published

    def _send_task_message(self, producer: Any, name: str, message: Any, **options: Any) -> Any:
        gated = self._of(name)
        # One with an ETA waits for its time first, and one of the old protocol has no headers to tell it by.
        if gated is None or not message.headers.get("id") or message.headers.get("eta"):
            return self._send()(producer, name, message, **options)
        args, kwargs, _ = message.body
        place = gated.line(args, kwargs)
        if place is None:
            return self._send()(producer, name, message, **options)

        def arrives(record: bytes) -> bool:
            return self._arrive(place, message.headers["id"], record)

        return self._send()(_Stopping(producer, message.body, arrives), name, message, **options)

    def _arrive(self, place: BucketLine, id: str, record: bytes) -> bool:
        try:
            return self._lines.ask(self._lines.lines.arrive(place, id, record))
        except StorageUnavailable as error:
            # The broker keeps it as well, and it is judged again where it starts.
            logger.warning("task %s goes to the broker unjudged: %s", id, error)
            return True

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
        """Return what a worker starts and stops with itself."""
        gate = self

        class Gate(bootsteps.StartStopStep):  # type: ignore[misc]
            requires = ("celery.worker.components:Pool",)

            def __init__(self, worker: Any, **options: Any) -> None:
                # Every module with tasks is imported by now, and no process of the pool is forked.
                for task in gate._app.tasks.values():
                    if gate._of(task.name) is not None:
                        gate._guard(task)
                for name in gate._declared.keys() - gate._app.tasks.keys():
                    logger.warning("a limit is declared for task %r, which this worker does not have", name)

            def start(self, worker: Any) -> None:
                gate._lines.start()

            def stop(self, worker: Any) -> None:
                gate._lines.stop()

        return Gate

    def _guard(self, task: Task) -> None:
        """Once each: a process may start several workers, and a class may serve several tasks."""
        if task.name in self._guarded:
            return
        declared: Any = type(task)
        strategy, before_start = task.Strategy, declared.before_start

        def guarded(task: Task, task_id: str, args: Any, kwargs: Any) -> None:
            self._start(task, args, kwargs)
            before_start(task, task_id, args, kwargs)

        if declared not in self._guarded:
            declared.before_start = guarded
        task.Strategy = lambda *collaborators, **options: self._consume(strategy, *collaborators, **options)
        self._guarded |= {task.name, declared}

    def _consume(self, strategy: Any, task: Task, app: Celery, consumer: Any, **options: Any) -> Callable[..., Any]:
        """What the consumer does with a message of the task: it comes before the pool, and before a place there."""
        handle: Callable[..., Any] = symbol_by_name(strategy)(task, app, consumer, **options)
        revoked = consumer.controller.state.revoked

        def look_first(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> Any:
            id = message.headers.get("id")
            if id and not message.headers.get("eta") and id not in revoked and not self._may_pass(task, id, message):
                return ack(logger, consumer.connection_errors)
            return handle(message, body, ack, reject, callbacks, **options)

        return look_first

    def _may_pass(self, task: Task, id: str, message: Any) -> bool:
        gated = self._of(task.name)
        try:
            args, kwargs, _ = message.payload
            place = gated and gated.line(args, kwargs)
        except Exception:
            # What cannot be read, or may not run, fails where Celery sees it.
            return True
        if not place:
            return True
        headers = {name: value for name, value in message.headers.items() if name != "compression"}
        properties = {name: message.properties[name] for name in _CARRIED if message.properties.get(name) is not None}
        route = {name: message.delivery_info.get(name) for name in ("exchange", "routing_key")}
        coded = {"content_type": message.content_type, "content_encoding": message.content_encoding}
        return self._arrive(place, id, _record(message.body, coded | route | properties | {"headers": headers}))

    def _start(self, task: Task, args: Any, kwargs: Any) -> None:
        gated = self._of(task.name)
        if gated is None or task.request.is_eager:
            return
        place = gated.line(args, kwargs)
        if place is None:
            return
        try:
            if self._lines.ask(self._lines.lines.start(place, task.request.id)):
                return
            later = {}
        except StorageUnavailable as error:
            logger.warning("task %s %ss: %s", task.request.id, gated.limit.on_store_error, error)
            if gated.limit.on_store_error == "run":
                return
            later = {"countdown": AGAIN_IN}
        # The same message once more: no attempt is spent, and it goes to the line on its way.
        task.signature_from_request(task.request, args, kwargs, **later).apply_async()
        raise Ignore(f"over its limit {gated.name!r}; it waits in line")

    def _forget(self, sender: Any, request: Any, **told: Any) -> None:
        gated = self._of(sender.name)
        place = gated and gated.line(request.args, request.kwargs)
        if place:
            try:
                self._lines.ask(self._lines.lines.forget(place, request.id))
            except StorageUnavailable as error:
                logger.warning("revoked task %s keeps its place for a while: %s", request.id, error)

    # -------------------------------------------------------------------------------------------------------- limits

    def _of(self, name: str) -> GatedTask | None:
        if (gated := self._gated.get(name)) is not None:
            return gated
        task = self._app.tasks.get(name)
        limit = single_limit(f"task {name!r}", self._declared.get(name), getattr(task, "limit", None))
        if task is None or limit is None:
            return None
        gated = self._gated[name] = GatedTask(name, limit, task.run)
        return gated

    def _find(self, limit: str, key: str) -> BucketLine | None:
        for name in self._app.tasks:
            if (gated := self._of(name)) is not None and gated.name == limit:
                return gated.line_of_key(key)
        return None


class _Stopping:
    """A producer that publishes a message only if it may be."""

    def __init__(self, producer: Any, body: Any, arrives: Callable[[bytes], bool]) -> None:
        self._producer = producer
        self._body = body
        self._arrives = arrives

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        # The event that a task was sent comes this way, too.
        if body is self._body and not self._arrives(self._recorded(**options)):
            return None
        return self._producer.publish(body, **options)

    def _recorded(
        self, *, serializer: str, exchange: Any, declare: Any = None, retry: Any, retry_policy: Any, **options: Any
    ) -> bytes:
        content_type, content_encoding, body = dumps(self._body, serializer)
        options |= {"content_type": content_type, "content_encoding": content_encoding}
        options["exchange"] = getattr(exchange, "name", exchange)
        return _record(body, options, [queue.name for queue in declare or ()])


def _record(body: Any, options: Mapping[str, Any], declare: list[str] | None = None) -> bytes:
    """Return a message as it stands in line: what to call `publish` with."""
    raw = body if isinstance(body, bytes) else body.encode()
    told = {name: value for name, value in options.items() if value is not None}
    record: str = json.dumps({"body": base64.b64encode(raw).decode(), "options": told, "declare": declare or []})
    return record.encode()


def _once(make: Callable[[], Any]) -> Callable[[], Any]:
    """Made when it is first wanted: an app may be configured after its gate is made."""
    made: list[Any] = []

    def get() -> Any:
        if not made:
            made.append(make())
        return made[0]

    return get
