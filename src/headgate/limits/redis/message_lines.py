"""The line before a bucket: messages of another program's broker that wait in Redis until their bucket opens.

A message that may not start yet is stored only in the line of its bucket. When the bucket opens, a program takes the
first messages of the line and publishes them again. A published message is in flight: its budget is reserved, and
charged at the instant that it starts. Each step is one script call that may be repeated.

The functions here are generators that yield what to do; `blocking_lines` and `async_lines` do it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec

from headgate.clock import SECOND
from headgate.errors import StorageUnavailable
from headgate.limits.bucket_store import Bucket
from headgate.limits.key import bucket_key
from headgate.limits.redis.bucket_client import CLOSED
from headgate.limits.redis.redis_buckets import key_name
from headgate.limits.redis.script import Script, load_state, numbers

T = TypeVar("T")

SEND_TIMEOUT = 10 * SECOND
"""How long the sending of a released message may take; an unconfirmed one then returns to its line."""

RESERVED_FOR = 60 * SECOND
"""How long the budget of a published message stays reserved; a later start needs budget anew."""

DUE_LINE_LEASE = 5 * SECOND
"""How long a due line stays with the program that received it, before another program receives it."""

START_ANSWER_KEPT_FOR = 30 * SECOND
"""How long the answer to a start is kept: longer than a client repeats a request."""

MAX_BATCH = 100
"""The maximum of messages released, and of due lines returned, in one call."""

_MAX_TRIES = 20


@dataclass(frozen=True, slots=True)
class RunScript:
    """Run this script; the reply is sent back to the generator."""

    script: Script
    keys: tuple[bytes, ...]
    arguments: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PublishMessage:
    """Publish this message."""

    message: bytes


Steps = Generator[RunScript | PublishMessage, Any, T]
"""The steps to do, in order; the generator returns the result."""


class BucketLine(msgspec.Struct, frozen=True):
    """A bucket with its line; each message costs `cost`."""

    bucket: Bucket
    cost: int = 1

    @property
    def name(self) -> bytes:
        return msgspec.json.encode((self.bucket.limit, bucket_key(self.bucket.key)))


class MessageLines:
    """The lines of one program, called `name`: the program has its own lines, the buckets are shared.

    `limit_time` replaces the server's time in tests.
    """

    def __init__(self, name: str, prefix: str, *, limit_time: Callable[[], int] | None = None) -> None:
        self._own = f":{name}:".encode()
        self._all = f"{prefix}:{name}:lines".encode()
        self._prefix = prefix
        self._limit_time = limit_time

    def arrive(self, line: BucketLine, id: str, message: bytes) -> Steps[bool]:
        """Return whether a message may be published now. Otherwise it waits in the line, and must not be published."""
        reply = yield from self._run(line, b"arrive", id, lease=RESERVED_FOR, payload=message)
        return bool(reply[0])

    def start(self, line: BucketLine, id: str) -> Steps[bool]:
        """Return whether a message may start now; then it is charged. Otherwise it has to arrive again.

        The request has an id of its own: a client that repeats it after a lost reply receives the same answer for 30 s.
        The message's id cannot serve, as a message may start again: redelivered, or as a retry.
        """
        reply = yield from self._run(
            line, b"start", id, lease=START_ANSWER_KEPT_FOR, payload=os.urandom(12).hex().encode()
        )
        return bool(reply[0])

    def forget(self, line: BucketLine, id: str) -> Steps[None]:
        """Remove a message from the line and from those in flight: it will never start."""
        yield from self._run(line, b"forget", id)

    def release(self, find: Callable[[str, str], BucketLine | None]) -> Steps[float | None]:
        """Publish the messages that their buckets grant. Return the seconds until the next call, None if nothing waits.

        `find` returns the line of a limit and a key, None for a limit that this program does not have.
        """
        due_lines = RunScript(_due(), (self._all,), (b"%d" % DUE_LINE_LEASE, b"%d" % MAX_BATCH))
        next_in, *names = yield due_lines
        for name in names:
            limit, key = msgspec.json.decode(name, type=tuple[str, str])
            if (line := find(limit, key)) is not None:
                yield from self.release_from(line)
        if names:
            # Each release has updated the due time of its line.
            next_in, *_ = yield RunScript(due_lines.script, due_lines.keys, (b"0", b"0"))
        return None if next_in < 0 else next_in / SECOND

    def release_from(self, line: BucketLine) -> Steps[None]:
        """Publish the messages that one bucket grants."""
        _, *lent = yield from self._run(line, b"release", lease=SEND_TIMEOUT)
        for message in lent[1::2]:
            yield PublishMessage(message)
        if lent:
            yield from self._run(line, b"sent", lease=RESERVED_FOR, payload=_packed(lent[::2]))

    def _run(
        self, line: BucketLine, verb: bytes, id: str = "", *, lease: int = 0, payload: bytes = b""
    ) -> Steps[list[Any]]:
        rule = line.bucket.rule
        at_one_instant = rule.bound(1)
        key = key_name(self._prefix, line.bucket).encode()
        own = key + self._own
        keys = (
            key,
            key + CLOSED,
            own + b"line",
            own + b"messages",
            own + b"sending",
            own + b"sent",
            self._all,
            own + b"starts",
        )
        fixed = (b"%d" % line.cost, b"%d" % lease, b"%d" % MAX_BATCH, b"%d" % (at_one_instant // line.cost))
        now = b"" if self._limit_time is None else b"%d" % self._limit_time()
        stored_text = new_text = b""
        for _ in range(_MAX_TRIES):
            arguments = (verb, id.encode(), now, stored_text, new_text, *fixed, *numbers(rule), line.name, payload)
            reply: list[Any] = yield RunScript(_line(rule.lua), keys, arguments)
            if reply[0] != -1:
                return reply
            # Another rule wrote the bucket: convert its state, as `BucketClient` does.
            _, at, offset, stored_text = reply
            state = rule.lua_dump(load_state(rule, stored_text, at), at)
            new_text = f"1:{rule.kind}:{at}:{offset}:".encode() + state
        raise StorageUnavailable(
            f"{key.decode()} is rewritten all the time: programs use limit {line.bucket.limit!r} with different "
            "rules; give them the same rule, or different names"
        )


@cache
def _line(lua: str | None) -> Script:
    return Script("bucket", "line", rule=lua)


@cache
def _due() -> Script:
    return Script("due")


def _packed(ids: Sequence[bytes]) -> bytes:
    return msgspec.msgpack.encode([id.decode() for id in ids])
