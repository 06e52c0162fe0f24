"""Lines for asyncio programs: a Redis client, and the task that releases waiting messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from headgate.clock import Clock, SystemClock, microseconds, sleep
from headgate.errors import StorageUnavailable
from headgate.limits.redis.blocking_lines import PAUSE_AFTER_FAILURE, PollSchedule
from headgate.limits.redis.message_lines import BucketLine, MessageLines, RunScript, Steps
from headgate.limits.redis.pipeline import unavailable
from headgate.limits.redis.redis_buckets import read_url

T = TypeVar("T")


class AsyncLines:
    """Lines at `redis://…`, for one event loop; the URL has the options of `RedisBuckets.from_url`.

    `publish` sends a message to the broker. `find` returns the line of a limit and a key.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        publish: Callable[[bytes], Awaitable[object]],
        find: Callable[[str, str], BucketLine | None],
        clock: Clock | None = None,
    ) -> None:
        address = read_url(url)
        self.lines = MessageLines(name, address.prefix)
        self._client: Any = Redis.from_url(
            address.url,
            socket_timeout=address.timeout,
            socket_connect_timeout=address.timeout,
            retry=Retry(NoBackoff(), 1),  # a connection that was cut while it was idle
            protocol=2,
        )
        self._paused_until = 0
        self._publish = publish
        self._find = find
        self._clock = clock or SystemClock()
        self._releasing: asyncio.Task[None] | None = None

    async def ask(self, steps: Steps[T]) -> T:
        """Run `steps` and return their result. Raises StorageUnavailable when Redis did not answer."""
        reply = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as done:
                answer: T = done.value
                return answer
            reply = await (self._run(step) if isinstance(step, RunScript) else self._publish(step.message))

    def start(self) -> None:
        """Release waiting messages in a task, until `close`."""
        self._releasing = asyncio.create_task(self._release(), name="headgate-gate")

    async def close(self) -> None:
        if self._releasing is not None:
            self._releasing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._releasing
            self._releasing = None
        await self._client.aclose()

    async def _run(self, ask: RunScript) -> object:
        if self._clock.monotonic() < self._paused_until:
            raise StorageUnavailable("Redis did not answer a moment ago")
        arguments = (len(ask.keys), *ask.keys, *ask.arguments)
        try:
            try:
                return await self._client.execute_command("EVALSHA", ask.script.sha, *arguments)
            except NoScriptError:
                return await self._client.execute_command("EVAL", ask.script.source, *arguments)
        except (RedisError, OSError) as error:
            # Other callers do not wait for a timeout each.
            self._paused_until = self._clock.monotonic() + microseconds(PAUSE_AFTER_FAILURE)
            raise unavailable(error) from error

    async def _release(self) -> None:
        schedule = PollSchedule()
        while True:
            try:
                wait = schedule.after(await self.ask(self.lines.release(self._find)))
            except Exception as error:
                # The broker's client can raise any exception.
                wait = schedule.after_failure(error)
            await sleep(self._clock, wait)
