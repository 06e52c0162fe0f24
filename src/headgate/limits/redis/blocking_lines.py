"""Lines for programs that block: a client of Redis, and the thread that releases what waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from headgate.clock import SystemClock, microseconds
from headgate.errors import StorageUnavailable
from headgate.limits.redis.message_lines import BucketLine, MessageLines, RunScript, Steps
from headgate.limits.redis.pipeline import unavailable
from headgate.limits.redis.poll_schedule import PollSchedule
from headgate.limits.redis.redis_buckets import read_url

T = TypeVar("T")

AWAY_FOR = 0.5
"""Seconds for which nobody asks a Redis that has not answered."""


class BlockingLines:
    """Lines at `redis://…`; the URL is read as `RedisBuckets.from_url` does. Safe for threads and across a fork.

    `publish` gives a message to the broker, `find` tells the place of a limit and a key.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        publish: Callable[[bytes], object],
        find: Callable[[str, str], BucketLine | None],
    ) -> None:
        address = read_url(url)
        self.lines = MessageLines(name, address.prefix)
        self._client: Any = redis.Redis.from_url(
            address.url,
            socket_timeout=address.timeout,
            socket_connect_timeout=address.timeout,
            retry=Retry(NoBackoff(), 1),  # a connection that was cut while it was idle
            protocol=2,
        )
        self._clock = SystemClock()
        self._away_until = 0
        self._publish = publish
        self._find = find
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self, steps: Steps[T]) -> T:
        """Do what `steps` want. Raises StorageUnavailable when Redis did not answer."""
        reply = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as done:
                answer: T = done.value
                return answer
            reply = self._run(step) if isinstance(step, RunScript) else self._publish(step.message)

    def start(self) -> None:
        """Release what waits, in a thread, until `stop`."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._release, name="headgate-gate", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, ask: RunScript) -> object:
        if self._clock.monotonic() < self._away_until:
            raise StorageUnavailable("Redis did not answer a moment ago")
        told = (len(ask.keys), *ask.keys, *ask.arguments)
        try:
            try:
                return self._client.execute_command("EVALSHA", ask.script.sha, *told)
            except NoScriptError:
                return self._client.execute_command("EVAL", ask.script.source, *told)
        except (RedisError, OSError) as error:
            # Others are not kept for the length of a deadline each.
            self._away_until = self._clock.monotonic() + microseconds(AWAY_FOR)
            raise unavailable(error) from error

    def _release(self) -> None:
        wait = 0.0
        rounds = PollSchedule()
        while not self._stopping.wait(wait):
            try:
                wait = rounds.after(self.ask(self.lines.release(self._find)))
            except Exception as error:
                # The broker's client raises what it likes.
                wait = rounds.after_failure(error)
