"""Real workers of other frameworks for the tests of their gates, and where their messages are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from headgate.limits.redis.message_lines import BucketLine, MessageLines, RunScript
from tests.until import until_now


class Worker:
    """A worker process with its children; `kill` leaves it no time for anything."""

    def __init__(self, folder: Path, url: str, *command: str) -> None:
        self._errors = folder / "worker.log"
        self._url = url
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._command],
                env={**os.environ, "GATE_REDIS_URL": self._url},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )

    def kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def log(self) -> str:
        return self._errors.read_text()[-4000:]


class Log:
    """The lines that tasks wrote when they started, and the waiting messages."""

    def __init__(self, url: str, own: str) -> None:
        self.client: Any = redis.Redis.from_url(url)
        self._own = own

    def starts(self, name: str) -> list[tuple[float, str]]:
        """Return the instants of the starts of a key with their values, in order of time."""
        lines = (line.decode().partition(":")[::2] for line in self.client.lrange(f"starts:{name}", 0, -1))
        return sorted((float(at), told) for at, told in lines)

    def wait(self, name: str, count: int, seconds: float, worker: Worker) -> list[tuple[float, str]]:
        """At least so many starts of a key; fails if they take longer."""
        until_now(lambda: len(self.starts(name)) >= count, seconds, lambda: f"{self.starts(name)}\n{worker.log()}")
        return self.starts(name)

    def ids(self, key: str, part: str) -> list[str]:
        """Those in a part of the line of the only limit that has this key."""
        (name,) = self.client.keys(f"{{headgate:*:{key}}}:{self._own}:{part}") or [b"none"]
        return [id.decode() for id in self.client.zrange(name, 0, -1)]

    def a_record(self, key: str) -> tuple[str, bytes]:
        """One that waits, with its message as it waits."""
        (name,) = self.client.keys(f"{{headgate:*:{key}}}:{self._own}:messages")
        id, record = next(iter(self.client.hgetall(name).items()))
        return id.decode(), record.partition(b":")[2]

    def park(self, lines: MessageLines, place: BucketLine, key: str, count: int) -> list[str]:
        """As if so many more like one that waits were sent, in one go; their ids."""
        like, record = self.a_record(key)
        ids = [str(uuid.uuid4()) for _ in range(count)]
        if len(like) != len(ids[0]):
            ids = [id.replace("-", "") for id in ids]
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                ask = next(lines.arrive(place, id, record.replace(like.encode(), id.encode())))
                assert isinstance(ask, RunScript)
                pipe.execute_command("EVALSHA", ask.script.sha, len(ask.keys), *ask.keys, *ask.arguments)
            assert all(reply == [0] for reply in pipe.execute())
        return ids


def assert_none_is_lost(
    log: Log, key: str, sent: set[str], in_broker: Callable[[Log], set[str]], popped: int = 0
) -> None:
    """Each that was sent has started, is in line, is being published or is in the broker, and none is in two of them.

    It takes a moment: Redis may still be doing what a worker asked for that has been killed. `popped` are those that
    the framework itself may lose, having taken them from the broker without having noted it yet.
    """

    def none_is_lost() -> bool:
        started = {told for _, told in log.starts(key)}
        in_line, sending = set(log.ids(key, "line")), set(log.ids(key, "sending"))
        published = in_broker(log)
        lost = sent - (in_line | sending | published | started)
        return len(lost) <= popped and not in_line & (published | sending | started)

    until_now(none_is_lost)


def assert_never_more(starts: list[tuple[float, str]], count: int, seconds: float) -> None:
    """In every window that begins with a start."""
    instants = [at for at, _ in starts]
    for first, beyond in zip(instants, instants[count:], strict=False):
        assert beyond - first >= seconds, (first, beyond, instants)


@contextmanager
def working(folder: Path, url: str, *command: str) -> Iterator[Worker]:
    worker = Worker(folder, url, *command)
    try:
        yield worker
    finally:
        worker.kill()
