"""Lines for blocking programs: a Redis client, and the thread that releases waiting messages."""

from __future__ import annotations

import logging
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
from headgate.limits.redis.redis_buckets import read_url

T = TypeVar("T")

logger = logging.getLogger("headgate.gates")

POLL_INTERVAL = 0.1
"""Seconds between polls, which find lines that another program has started."""

RETRY_INTERVAL = 1.0
"""Seconds until the next poll when Redis or the broker could not be reached."""

PAUSE_AFTER_FAILURE = 0.5
"""Seconds without requests to a Redis that has not answered."""


class BlockingLines:
    """Lines at `redis://…`; the URL has the options of `RedisBuckets.from_url`. Safe for threads and across a fork.

    `publish` sends a message to the broker. `find` returns the line of a limit and a key.
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
        self._paused_until = 0
        self._publish = publish
        self._find = find
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self, steps: Steps[T]) -> T:
        """Run `steps` and return their result. Raises StorageUnavailable when Redis did not answer."""
        reply = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as done:
                answer: T = done.value
                return answer
            reply = self._run(step) if isinstance(step, RunScript) else self._publish(step.message)

    def start(self) -> None:
        """Release waiting messages in a thread, until `stop`."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._release, name="headgate-gate", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, ask: RunScript) -> object:
        if self._clock.monotonic() < self._paused_until:
            raise StorageUnavailable("Redis did not answer a moment ago")
        arguments = (len(ask.keys), *ask.keys, *ask.arguments)
        try:
            try:
                return self._client.execute_command("EVALSHA", ask.script.sha, *arguments)
            except NoScriptError:
                return self._client.execute_command("EVAL", ask.script.source, *arguments)
        except (RedisError, OSError) as error:
            # Other callers do not wait for a timeout each.
            self._paused_until = self._clock.monotonic() + microseconds(PAUSE_AFTER_FAILURE)
            raise unavailable(error) from error

    def _release(self) -> None:
        wait = 0.0
        schedule = PollSchedule()
        while not self._stopping.wait(wait):
            try:
                wait = schedule.after(self.ask(self.lines.release(self._find)))
            except Exception as error:
                # The broker's client can raise any exception.
                wait = schedule.after_failure(error)


class PollSchedule:
    """Returns the seconds until the next poll of the lines."""

    def __init__(self) -> None:
        self._is_failing = False

    def after(self, next_in: float | None) -> float:
        """Return the seconds to wait, when a waiting message can go in `next_in` seconds (None: none waits)."""
        self._is_failing = False
        return POLL_INTERVAL if next_in is None else min(next_in, POLL_INTERVAL)

    def after_failure(self, error: Exception) -> float:
        """Return the seconds to wait after a failure, and log the first one. Unsent messages return to their place."""
        if not self._is_failing:
            unreachable = isinstance(error, StorageUnavailable)
            logger.warning("the gate cannot release: %s", error, exc_info=None if unreachable else error)
        self._is_failing = True
        return RETRY_INTERVAL
