"""Where callers ask about one bucket: each question as its script is told it, and what becomes of the answer."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from headgate.clock import Clock
from headgate.errors import StorageUnavailable
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.key import bucket_key
from headgate.limits.redis.pipeline import RequestPipeline, ScriptCall
from headgate.limits.redis.script import Script, from_script, numbers, script

AT_ONCE = 10_000
"""Most starts granted in one call."""

MOST_TRIES = 20
"""How often a bucket's text is carried over to another rule in one call before somebody has to be told."""

CLOSED = b":closed"
"""What the key's name ends in that says until when a bucket is closed."""

_PADDING = (b"",) * 4


class BucketClient:
    """A bucket, ready to be asked about. Takers who come before the next request leaves share one question."""

    __slots__ = (
        "_gathering",
        "_pipe",
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
        self, bucket: Bucket, key: str, pipe: RequestPipeline, clock: Clock, limit_time: Callable[[], int] | None
    ) -> None:
        self.bucket = bucket
        self.clock = clock
        self.limit_time = limit_time
        self._pipe = pipe
        self.numbers = numbers(bucket.rule)
        self.script: Script = script(bucket.rule.lua)
        self.key = key.encode()
        self.closed = self.key + CLOSED
        self.answers = self.key + b":answers"
        if bucket.rule.shares_state:
            # One state for all keys: the script is told which one; each is closed for itself and has ids of its own.
            own = bucket_key(bucket.key).encode()
            self.numbers += (own,)
            self.closed += b":" + own
            self.answers += b":" + own
        self._gathering: _Takes | None = None

    @property
    def keys(self) -> tuple[bytes, ...]:
        """What every question is about."""
        return self.key, self.closed

    async def take(self, cost: int, count: int) -> Taken:
        """Take without an id."""
        takes = self._gathering
        if takes is None or takes.cost != cost or takes.total + count > AT_ONCE:
            takes = self._gathering = _Takes(self, cost)
            self._pipe.send(takes)
        return await takes.join(count)

    async def ask(self, verb: bytes, *told: int, id: str | None = None, may_repeat: bool = True) -> Any:
        """What the script answers to anything else."""
        question = _CallerRequest(self, verb, told, id, may_repeat)
        self._pipe.send(question)
        return await question.answer

    def leaves(self, takes: _Takes) -> None:
        """Who comes from now on gathers anew."""
        if self._gathering is takes:
            self._gathering = None


class _Asked(ScriptCall):
    """An ask about one bucket. Where its text is not of its rule, it is read here, and asked again with it."""

    __slots__ = ("becomes", "desk", "tries", "was")

    def __init__(self, desk: BucketClient, keys: tuple[bytes, ...], may_repeat: bool) -> None:
        super().__init__(desk.script, keys, may_repeat, desk.clock.monotonic())
        self.desk = desk
        self.was = self.becomes = b""
        self.tries = 0

    def arguments(self, verb: bytes, id: bytes, *told: int) -> tuple[bytes, ...]:
        limit_time = self.desk.limit_time
        now = b"" if limit_time is None else b"%d" % limit_time()
        digits = [b"%d" % number for number in told]
        return (verb, id, now, self.was, self.becomes, *digits, *_PADDING[len(told) :], *self.desk.numbers)

    def settle(self, reply: Any) -> ScriptCall | None:
        try:
            if self.carried_over(reply):
                return self
        except Exception as error:
            self.fail(error)
            return None
        self.answered(reply)
        return None

    @abstractmethod
    def answered(self, reply: list[Any]) -> None:
        """Give the callers their answer."""

    def carried_over(self, reply: list[Any]) -> bool:
        """Whether the script found a text that is not of its rule, and has to be asked again with one that is."""
        if reply[0] != -1:
            return False
        _, now, offset, text = reply
        rule = self.desk.bucket.rule
        state = rule.lua_dump(rule.load(from_script(text), now), now)
        self.was = text
        self.becomes = f"1:{rule.kind}:{now}:{offset}:".encode() + state
        self.tries += 1
        if self.tries > MOST_TRIES:
            raise StorageUnavailable(
                f"{self.desk.key.decode()} is rewritten all the time: programs use limit {self.desk.bucket.limit!r} "
                "with different rules; give them the same, or names of their own"
            )
        return True


class _CallerRequest(_Asked):
    """What one caller asks."""

    __slots__ = ("answer", "id", "told", "verb")

    def __init__(
        self, desk: BucketClient, verb: bytes, told: tuple[int, ...], id: str | None, may_repeat: bool
    ) -> None:
        with_answers = id is not None or verb == b"reset"
        super().__init__(desk, (*desk.keys, desk.answers) if with_answers else desk.keys, may_repeat)
        self.verb = verb
        self.id = b"" if id is None else b"=" + bucket_key(id).encode()
        self.told = told
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def tell(self) -> tuple[bytes, ...] | None:
        return None if self.answer.done() else self.arguments(self.verb, self.id, *self.told)

    def answered(self, reply: list[Any]) -> None:
        if not self.answer.done():
            self.answer.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Takes(_Asked):
    """What all ask who want starts of one cost from one bucket in one turn of the loop; first come, first served."""

    __slots__ = ("cost", "total", "waiting")

    def __init__(self, desk: BucketClient, cost: int) -> None:
        super().__init__(desk, desk.keys, may_repeat=False)
        self.cost = cost
        self.total = 0
        self.waiting: list[tuple[int, asyncio.Future[Taken]]] = []

    def join(self, count: int) -> asyncio.Future[Taken]:
        answer: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        self.waiting.append((count, answer))
        self.total += count
        return answer

    def tell(self) -> tuple[bytes, ...] | None:
        self.desk.leaves(self)
        self.waiting = [(count, answer) for count, answer in self.waiting if not answer.done()]
        self.total = sum(count for count, _ in self.waiting)
        return self.arguments(b"take", b"", self.cost, self.total) if self.waiting else None

    def answered(self, reply: list[Any]) -> None:
        left, opens_at, now, available, full_at = reply
        for count, answer in self.waiting:
            granted = min(count, left)
            left -= granted
            if not answer.done():
                answer.set_result(Taken(granted, opens_at, now, available, full_at))

    def fail(self, error: Exception) -> None:
        self.desk.leaves(self)
        for _, answer in self.waiting:
            if not answer.done():
                answer.set_exception(error)
