"""Stores in memory that fail in one way on request, and bucket stores that break the protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.clock import Clock
from headgate.errors import StorageUnavailable
from headgate.jobs.lifecycle import Ending
from headgate.limits.bucket_store import Taken
from headgate.limits.limit import AnyRule
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.storage.driver import NO_RULES
from headgate.storage.records import Recovered
from headgate.storage.sqlite.memory import MemoryStorage


class UnwritableStorage(MemoryStorage):
    """Cannot write the endings of jobs."""

    is_full = False

    async def finish(
        self, node: str, endings: Sequence[Ending], rules: Mapping[str, AnyRule] = NO_RULES
    ) -> Sequence[bool | None]:
        if self.is_full:
            raise StorageUnavailable("the disk is full")
        return await super().finish(node, endings, rules)


class FailingLeaveStorage(MemoryStorage):
    """Fails when a node leaves."""

    fails_to_leave = False

    async def leave(self, node: str) -> Recovered:
        return Recovered() if self.fails_to_leave else await super().leave(node)


class BadBuckets:
    """A bucket store of a user's own: one of its verbs does something else, as long as it `is_bad`."""

    # Equal by value, and so without a hash.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, clock: Clock, verb: str, instead: Callable[[], Any]) -> None:
        self.is_bad = True
        self.asked = 0
        self._inner = MemoryBuckets(clock)
        self._verb = verb
        self._instead = instead

    def __eq__(self, other: object) -> bool:
        return self is other

    def __getattr__(self, verb: str) -> Any:
        if verb == "place":
            raise AttributeError(verb)
        self.asked += verb == "take"
        if verb != self._verb or not self.is_bad:
            return getattr(self._inner, verb)
        if verb == "advice":
            return self._instead()
        return lambda *_, **__: self._instead()


def raising(error: BaseException) -> Callable[[], Any]:
    async def call() -> None:
        raise error

    return call


def returning(value: Any) -> Callable[[], Any]:
    async def call() -> Any:
        return value

    return call


async def hanging() -> None:
    await asyncio.Event().wait()


async def hanging_without_cancellation() -> None:
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + 1000
    while loop.time() < ends_at:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(50)


MISDEEDS: dict[str, Callable[[], Any]] = {
    "raises": raising(ValueError("boom")),
    "raises what cannot be printed": raising(type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})()),
    "cancels itself": raising(asyncio.CancelledError()),
    "exits": raising(SystemExit(3)),
    "interrupts": raising(KeyboardInterrupt()),
    "is not async": lambda: 5,
    "raises before it is awaited": lambda: 1 / 0,
    "hangs": hanging,
    "hangs and ignores its cancellation": hanging_without_cancellation,
}

BAD_ANSWERS: dict[str, Any] = {
    "nothing": None,
    "a text": "granted",
    "a tuple": (1, 0, 0, 0, 0),
    "texts": Taken("1", "0", "0", "0", "0"),  # type: ignore[arg-type]
    "floats": Taken(1.0, 0.0, 0.0, 0.0, 0.0),  # type: ignore[arg-type]
    "no instants": Taken(0, None, None, None, None),  # type: ignore[arg-type]
    "fewer than none": Taken(-1, 5, 0, 0, 0),
    "more than were asked for": Taken(10**6, 0, 0, 0, 0),
    "instants beyond all numbers": Taken(0, 10**40, 0, 0, 10**40),
}
