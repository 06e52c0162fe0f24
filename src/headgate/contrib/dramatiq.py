"""DramatiqGate: a limit per key for Dramatiq, whose waiting messages are neither in the broker nor in a worker.

    broker = RedisBroker(url="redis://…")
    gate = DramatiqGate(broker, store="redis://…")

    @dramatiq.actor(limit=StrictRate("15/m", key="{tenant_id}"))
    def sync_tenant(tenant_id): ...

A message over its limit waits in Redis, in the line of its key. The sender puts it there, or the consumer of a worker
before it takes one of the worker's places. Each worker enqueues messages again when their key opens, and the thread
that is about to run one charges the key.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from headgate.errors import DeclarationError, PayloadError, StorageUnavailable, needing
from headgate.limits.limit import Limit
from headgate.limits.redis.gated_task import GatedTasks, declare, single_limit
from headgate.limits.redis.message_lines import RETRY_INTERVAL, BlockingLines

with needing("headgate.contrib.dramatiq needs", "dramatiq", install="'dramatiq[redis]'"):
    from dramatiq import Actor, Broker, Message, Middleware, Worker
    from dramatiq.broker import Consumer, MessageProxy
    from dramatiq.errors import ActorNotFound, ConnectionClosed, ConnectionFailed
    from dramatiq.middleware import SkipMessage
    from redis.exceptions import RedisError

logger = logging.getLogger("headgate.gates")

RETRY_IN = 5_000
"""Milliseconds until a message with on_store_error="wait" is retried when Redis did not answer."""

POLL_INTERVAL = 50
"""Milliseconds between polls of an idle consumer of a queue with limited actors."""


class DramatiqGate(Middleware):
    """Enforces the limits of a broker's actors: those of their option `limit=`, and those declared by `limit()`.

    Make one wherever the broker is made, in workers and senders; it adds itself to the broker. `store` is a Redis (not
    a Redis Cluster), which may be the broker's; `name` separates the lines of programs that share it.
    """

    def __init__(self, broker: Broker, *, store: str, name: str = "dramatiq") -> None:
        if any(isinstance(each, DramatiqGate) for each in broker.middleware):
            raise DeclarationError(f"{broker} has a gate already; give that one all its limits")
        self._broker = broker
        self._declared: dict[str, Limit] = {}
        self._gated = GatedTasks(self._declaration, lambda: broker.actors)
        self._lines = BlockingLines(store, name, publish=self._publish, limits=self._gated.limits)
        self._enqueue, self._consume = broker.enqueue, broker.consume
        gated: Any = broker
        gated.enqueue, gated.consume = self._enqueue_gated, self._consume_gated
        broker.add_middleware(self)

    @property
    def actor_options(self) -> set[str]:
        return {"limit"}

    def limit(self, actor: str | Actor[Any, Any], limit: Limit) -> None:
        """Limit an actor, given by name or itself, that was not declared with `limit=`."""
        declare(self._declared, actor if isinstance(actor, str) else actor.actor_name, limit)

    # ------------------------------------------------------------------------------------------------- when enqueueing

    def _enqueue_gated(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        # A message with a delay waits for its time first; its consumer then enqueues it again.
        if delay is None and "eta" not in message.options and not self._arrive(message):
            return message
        return self._enqueue(message, delay=delay)

    def _arrive(self, message: Any) -> bool:
        if self._gated.of(message.actor_name) is None:
            return True
        record = message.encode()
        # The key is that of the arguments as a worker reads them: it gets no member of an Enum, only its value.
        read = Message.decode(record)
        line = self._gated.line(read.actor_name, read.args, read.kwargs)
        return line is None or self._lines.passes(line, "message", message.message_id, record)

    def _publish(self, message: bytes) -> None:
        self._enqueue(Message.decode(message))

    # ---------------------------------------------------------------------------------------------------- in a worker

    def after_worker_boot(self, broker: Broker, worker: Worker) -> None:
        for name in self._declared.keys() - broker.actors.keys():
            logger.warning("a limit is declared for actor %r, which this worker does not have", name)
        self._lines.start()

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        self._lines.stop()

    def _consume_gated(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Any:
        actors = self._broker.actors.values()
        if any(actor.queue_name == queue_name and self._gated.of(actor.actor_name) for actor in actors):
            # An idle consumer polls less and less often; this is the bound, because released messages have waited
            # enough.
            timeout = min(timeout, POLL_INTERVAL)
        return _GatedConsumer(self._consume(queue_name, prefetch, timeout), self)

    def may_pass(self, message: MessageProxy) -> bool:
        """Return whether a consumer may pass on a message; otherwise it waits in line, and must be acknowledged."""
        if "eta" in message.options:
            return True
        try:
            return self._arrive(message)
        except PayloadError:
            # It fails in Dramatiq's own code.
            return True

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        gated = self._gated.of(message.actor_name)
        if gated is None:
            return
        try:
            line = gated.line(message.args, message.kwargs)
        except PayloadError as error:
            # An error here would only be logged; a failed message is neither run nor retried.
            message.stuff_exception(error)
            message.fail()
            return
        if line is None:
            return
        try:
            if self._lines.ask(self._lines.lines.start(line, message.message_id)):
                return
            delay = None
        except StorageUnavailable as error:
            self._lines.warn("message %s %ss: %s", message.message_id, gated.limit.on_store_error, error)
            if gated.limit.on_store_error == "run":
                return
            delay = RETRY_IN
        while True:
            try:
                # The same message once more: no attempt is spent, and it goes to the line on its way.
                broker.enqueue(message.copy(), delay=delay)
                break
            except (ConnectionClosed, ConnectionFailed, RedisError) as error:
                # An error here would only be logged, and the message would run.
                logger.warning("message %s waits in its thread for the broker: %s", message.message_id, error)
                threading.Event().wait(RETRY_INTERVAL)
        # This copy of it has no result.
        message.options["store_results"] = False
        raise SkipMessage(f"over the limit of {message.actor_name}; it waits in line")

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        # Of those that failed, as too old ones do, no copy waits in line.
        if message.failed and (line := self._gated.line(message.actor_name, message.args, message.kwargs)):
            self._lines.forget(line, "skipped message", message.message_id)

    # -------------------------------------------------------------------------------------------------------- limits

    def _declaration(self, name: str) -> tuple[Limit, Callable[..., object]] | None:
        try:
            actor = self._broker.get_actor(name)
        except ActorNotFound:
            return None
        limit = single_limit(f"actor {name!r}", self._declared.get(name), actor.options.get("limit"))
        return None if limit is None else (limit, actor.fn)


class _GatedConsumer:
    """A consumer that passes on only messages that may start."""

    def __init__(self, consumer: Consumer, gate: DramatiqGate) -> None:
        self._consumer = consumer
        self._gate = gate

    def __iter__(self) -> Iterator[MessageProxy | None]:
        return self

    def __next__(self) -> MessageProxy | None:
        message = next(self._consumer)
        if message is None or self._gate.may_pass(message):
            return message
        self._consumer.ack(message)
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)
