"""The line before a bucket: messages of another program's broker that wait in Redis until their bucket opens.

A message that may not go yet is put into the line of its bucket, and is nowhere else. When the bucket opens its head is
lent to a program that publishes it again. What is published is under way: its budget is set aside, and it is charged at
the instant that it starts. Each step is one script, and each may be repeated.

Everything here is plain Python that yields what it wants done: `blocking_lines` and `async_lines` do it.
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
from headgate.limits.redis.script import Script, from_script, numbers

T = TypeVar("T")

SENDING_FOR = 10 * SECOND
"""A message that was lent out and whose sending is not confirmed by then goes back to its place."""

UNDER_WAY_FOR = 60 * SECOND
"""How long a published message keeps its budget set aside; one that starts later has to find some."""

TOLD_FOR = 5 * SECOND
"""How long the other programs leave a line alone that one was told to look at."""

REPEATED_FOR = 30 * SECOND
"""How long the answer to a start is remembered: for longer than a client repeats a request."""

AT_ONCE = 100
"""Most messages lent out, and most lines told of, in one call."""

_MOST_TRIES = 20


@dataclass(frozen=True, slots=True)
class RunScript:
    """Run this script; what it replies is the answer."""

    script: Script
    keys: tuple[bytes, ...]
    arguments: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PublishMessage:
    """Publish this message."""

    message: bytes


Steps = Generator[RunScript | PublishMessage, Any, T]
"""What has to be done, one step after the other, until the answer is known."""


class BucketLine(msgspec.Struct, frozen=True):
    """A bucket with its line; each message of it weighs `cost`."""

    bucket: Bucket
    cost: int = 1

    @property
    def name(self) -> bytes:
        return msgspec.json.encode((self.bucket.limit, bucket_key(self.bucket.key)))


class MessageLines:
    """The lines of one program, called `name`: they are its own, the buckets are shared with everyone.

    `limit_time` tells another time than the server's, for tests.
    """

    def __init__(self, name: str, prefix: str, *, limit_time: Callable[[], int] | None = None) -> None:
        self._own = f":{name}:".encode()
        self._all = f"{prefix}:{name}:lines".encode()
        self._prefix = prefix
        self._limit_time = limit_time

    def arrive(self, place: BucketLine, id: str, message: bytes) -> Steps[bool]:
        """Whether a message may be published now. Otherwise it stands in the line, and must not be."""
        reply = yield from self._ask(place, b"arrive", id, lease=UNDER_WAY_FOR, told=message)
        return bool(reply[0])

    def start(self, place: BucketLine, id: str) -> Steps[bool]:
        """Whether a message may start now; it is charged. Otherwise it has to arrive anew.

        The request has an id of its own: a client that repeats it, because the reply was lost, is given the same answer
        for 30 s. The message's id would not do, as a message may start again: redelivered, or as a retry.
        """
        reply = yield from self._ask(place, b"start", id, lease=REPEATED_FOR, told=os.urandom(12).hex().encode())
        return bool(reply[0])

    def forget(self, place: BucketLine, id: str) -> Steps[None]:
        """Take a message out, wherever it is: it will never start."""
        yield from self._ask(place, b"forget", id)

    def release(self, find: Callable[[str, str], BucketLine | None]) -> Steps[float | None]:
        """Publish what its bucket lets go. The seconds until the next look, None if nothing waits.

        `find` tells the place of a limit and a key, None for a limit that this program does not know.
        """
        tell = RunScript(_due(), (self._all,), (b"%d" % TOLD_FOR, b"%d" % AT_ONCE))
        next_in, *names = yield tell
        for name in names:
            limit, key = msgspec.json.decode(name, type=tuple[str, str])
            if (place := find(limit, key)) is not None:
                yield from self.release_from(place)
        if names:
            # Each look has said when the next is.
            next_in, *_ = yield RunScript(tell.script, tell.keys, (b"0", b"0"))
        return None if next_in < 0 else next_in / SECOND

    def release_from(self, place: BucketLine) -> Steps[None]:
        """Publish what one bucket lets go."""
        _, *lent = yield from self._ask(place, b"release", lease=SENDING_FOR)
        for message in lent[1::2]:
            yield PublishMessage(message)
        if lent:
            yield from self._ask(place, b"sent", lease=UNDER_WAY_FOR, told=_packed(lent[::2]))

    def _ask(
        self, place: BucketLine, verb: bytes, id: str = "", *, lease: int = 0, told: bytes = b""
    ) -> Steps[list[Any]]:
        rule = place.bucket.rule
        at_one_instant = rule.bound(1)
        key = key_name(self._prefix, place.bucket).encode()
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
        fixed = (b"%d" % place.cost, b"%d" % lease, b"%d" % AT_ONCE, b"%d" % (at_one_instant // place.cost))
        now = b"" if self._limit_time is None else b"%d" % self._limit_time()
        was = becomes = b""
        for _ in range(_MOST_TRIES):
            arguments = (verb, id.encode(), now, was, becomes, *fixed, *numbers(rule), place.name, told)
            reply: list[Any] = yield RunScript(_line(rule.lua), keys, arguments)
            if reply[0] != -1:
                return reply
            # The bucket was written under another rule: it is carried over, as `Desk` does.
            _, at, offset, was = reply
            state = rule.lua_dump(rule.load(from_script(was), at), at)
            becomes = f"1:{rule.kind}:{at}:{offset}:".encode() + state
        raise StorageUnavailable(
            f"{key.decode()} is rewritten all the time: programs use limit {place.bucket.limit!r} with different "
            "rules; give them the same, or names of their own"
        )


@cache
def _line(lua: str | None) -> Script:
    return Script("bucket", "line", rule=lua)


@cache
def _due() -> Script:
    return Script("due")


def _packed(ids: Sequence[bytes]) -> bytes:
    return msgspec.msgpack.encode([id.decode() for id in ids])
