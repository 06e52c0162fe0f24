"""Requests about one bucket: the script arguments of each, and the handling of its reply."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from headgate.clock import Clock
from headgate.errors import StorageUnavailable, own_error
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.key import bucket_key
from headgate.limits.redis.pipeline import RequestPipeline, ScriptCall
from headgate.limits.redis.script import Script, load_state, numbers, script

MAX_BATCH = 10_000
"""The maximum of starts granted in one call."""

MAX_TRIES = 20
"""How often one call converts a bucket's state from another rule before it fails."""

CLOSED = b":closed"
"""The suffix of the key that stores until when a bucket is closed."""

_PADDING = (b"",) * 4


class BucketClient:
    """A client of one bucket. Callers of `take` that arrive before the next request is sent share one script call."""

    __slots__ = (
        "_open_batch",
        "_pipeline",
        "answers",
        "bucket",
        "clock",
        "closed",
        "key",
        "limit_time",
        "numbers",
        "script",
    )

    def __init__(
        self, bucket: Bucket, key: str, pipeline: RequestPipeline, clock: Clock, limit_time: Callable[[], int] | None
    ) -> None:
        self.bucket = bucket
        self.clock = clock
        self.limit_time = limit_time
        self._pipeline = pipeline
        self.numbers = numbers(bucket.rule)
        self.script: Script = script(bucket.rule.lua)
        self.key = key.encode()
        self.closed = self.key + CLOSED
        self.answers = self.key + b":answers"
        if bucket.rule.shares_state:
            # One state for all keys: the script receives the key; each key has its own closing time and ids.
            own = bucket_key(bucket.key).encode()
            self.numbers += (own,)
            self.closed += b":" + own
            self.answers += b":" + own
        self._open_batch: _TakeBatch | None = None

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The Redis keys of every call."""
        return self.key, self.closed

    async def take(self, cost: int, count: int) -> Taken:
        """Take without an id."""
        batch = self._open_batch
        if batch is None or batch.cost != cost or batch.total + count > MAX_BATCH:
            batch = self._open_batch = _TakeBatch(self, cost)
            self._pipeline.send(batch)
        return await batch.join(count)

    async def ask(self, verb: bytes, *arguments: int, id: str | None = None, may_repeat: bool = True) -> Any:
        """Return the script's reply to any other verb."""
        call = _CallerRequest(self, verb, arguments, id, may_repeat)
        self._pipeline.send(call)
        return await call.answer

    def detach(self, batch: _TakeBatch) -> None:
        """Let later callers of `take` start a new batch."""
        if self._open_batch is batch:
            self._open_batch = None


class _BucketCall(ScriptCall):
    """A call about one bucket. It converts a state that another rule wrote, and runs again with the converted one."""

    __slots__ = ("client", "new_text", "stored_text", "tries")

    def __init__(self, client: BucketClient, keys: tuple[bytes, ...], may_repeat: bool) -> None:
        super().__init__(client.script, keys, may_repeat, client.clock.monotonic())
        self.client = client
        self.stored_text = self.new_text = b""
        self.tries = 0

    def script_arguments(self, verb: bytes, id: bytes, *arguments: int) -> tuple[bytes, ...]:
        limit_time = self.client.limit_time
        now = b"" if limit_time is None else b"%d" % limit_time()
        digits = [b"%d" % number for number in arguments]
        return (
            verb,
            id,
            now,
            self.stored_text,
            self.new_text,
            *digits,
            *_PADDING[len(arguments) :],
            *self.client.numbers,
        )

    def settle(self, reply: Any) -> ScriptCall | None:
        try:
            if self.convert_state(reply):
                return self
        except Exception as error:
            self.fail(error)
            return None
        self.resolve(reply)
        return None

    @abstractmethod
    def resolve(self, reply: list[Any]) -> None:
        """Pass the reply to the callers."""

    def convert_state(self, reply: list[Any]) -> bool:
        """Return whether the stored state is of another rule; it is converted then, for the next try."""
        if reply[0] != -1:
            return False
        _, now, offset, text = reply
        rule = self.client.bucket.rule
        state = rule.lua_dump(load_state(rule, text, now), now)
        self.stored_text = text
        self.new_text = f"1:{rule.kind}:{now}:{offset}:".encode() + state
        self.tries += 1
        if self.tries > MAX_TRIES:
            raise StorageUnavailable(
                f"{self.client.key.decode()} is rewritten all the time: programs use limit "
                f"{self.client.bucket.limit!r} with different rules; give them the same rule, or different names"
            )
        return True


class _CallerRequest(_BucketCall):
    """The call of one caller."""

    __slots__ = ("answer", "arguments", "id", "verb")

    def __init__(
        self, client: BucketClient, verb: bytes, arguments: tuple[int, ...], id: str | None, may_repeat: bool
    ) -> None:
        with_answers = id is not None or verb == b"reset"
        super().__init__(client, (*client.keys, client.answers) if with_answers else client.keys, may_repeat)
        self.verb = verb
        self.id = b"" if id is None else b"=" + bucket_key(id).encode()
        self.arguments = arguments
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def build_arguments(self) -> tuple[bytes, ...] | None:
        return None if self.answer.done() else self.script_arguments(self.verb, self.id, *self.arguments)

    def resolve(self, reply: list[Any]) -> None:
        if not self.answer.done():
            self.answer.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(own_error(error))


class _TakeBatch(_BucketCall):
    """One call for all callers that take starts of one cost in one turn of the loop; first come, first served."""

    __slots__ = ("cost", "total", "waiting")

    def __init__(self, client: BucketClient, cost: int) -> None:
        super().__init__(client, client.keys, may_repeat=False)
        self.cost = cost
        self.total = 0
        self.waiting: list[tuple[int, asyncio.Future[Taken]]] = []

    def join(self, count: int) -> asyncio.Future[Taken]:
        answer: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        self.waiting.append((count, answer))
        self.total += count
        return answer

    def build_arguments(self) -> tuple[bytes, ...] | None:
        self.client.detach(self)
        self.waiting = [(count, answer) for count, answer in self.waiting if not answer.done()]
        self.total = sum(count for count, _ in self.waiting)
        return self.script_arguments(b"take", b"", self.cost, self.total) if self.waiting else None

    def resolve(self, reply: list[Any]) -> None:
        left, opens_at, now, available, full_at = reply
        for count, answer in self.waiting:
            granted = min(count, left)
            left -= granted
            if not answer.done():
                answer.set_result(Taken(granted, opens_at, now, available, full_at))

    def fail(self, error: Exception) -> None:
        self.client.detach(self)
        for _, answer in self.waiting:
            if not answer.done():
                answer.set_exception(own_error(error))
