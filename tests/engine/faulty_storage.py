"""A storage whose verbs come late, fail before they happen, or fail after they happened."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import insort
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from headgate.errors import StorageUnavailable
from headgate.jobs.job import BucketRef, NewJob
from headgate.storage.driver import Wake
from headgate.storage.records import Amendment, Claim, Claimed
from headgate.storage.store import Store

FAULTY = frozenset(
    {
        *("add", "claim", "finish", "beat", "cancel", "recover", "node_update", "cancels", "expire", "leave", "amend"),
        "move_starts",
    }
)


class Faults:
    """How bad the world is: chances per call, and how long a call takes at most (seconds)."""

    def __init__(self, *, before: float = 0.0, after: float = 0.0, delay: float = 0.0) -> None:
        self.before = before
        self.after = after
        self.delay = delay
        self.frozen: dict[str, asyncio.Event] = {}

    def freeze(self, name: str) -> None:
        """Let no call of this node through until it is thawed."""
        self.frozen.setdefault(name, asyncio.Event())

    def thaw(self, name: str) -> None:
        event = self.frozen.pop(name, None)
        if event is not None:
            event.set()


class FaultyStorage:
    """The same store seen by one node, through a bad line."""

    verbs = FAULTY

    def __init__(self, name: str, shared: Store, faults: Faults, random: Random, history: History) -> None:
        self._name = name
        self._shared = shared
        self._faults = faults
        self._random = random
        self._history = history
        self._claimed_queues: list[str] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._shared, name)
        if name not in self.verbs:
            return attribute

        async def call(*arguments: Any, **named: Any) -> Any:
            if name == "claim":
                with self._no_other_claim(arguments[0]):
                    return await call_alone(*arguments)
            return await call_alone(*arguments, **named)

        async def call_alone(*arguments: Any, **named: Any) -> Any:
            await self._wait()
            if self._random.random() < self._faults.before:
                raise StorageUnavailable(f"{name} did not happen")
            result: Any = None
            try:
                result = await self._happen(name, attribute, arguments, named)
                await self._wait()
                if self._random.random() < self._faults.after:
                    raise StorageUnavailable(f"{name} happened, but the reply was lost")
            except (StorageUnavailable, asyncio.CancelledError):
                self._on_lost_reply(name, arguments, result)
                raise
            return result

        return call

    @contextlib.contextmanager
    def _no_other_claim(self, claim: Claim) -> Iterator[None]:
        """A node has one claim for each queue at a time, or it would start more jobs than it has slots."""
        assert claim.free_slots.keys().isdisjoint(self._claimed_queues), "two claims for the slots of a queue"
        self._claimed_queues += claim.free_slots
        try:
            yield
        finally:
            self._claimed_queues = [queue for queue in self._claimed_queues if queue not in claim.free_slots]

    async def _happen(
        self, name: str, verb: Callable[..., Awaitable[Any]], arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        result = await verb(*arguments, **named)
        self._history.note(name, arguments, result, self._shared.limit_now())
        return result

    def _on_lost_reply(self, name: str, arguments: Sequence[Any], result: Any) -> None:
        """A call has happened, or may have, and its caller does not know."""

    async def _wait(self) -> None:
        frozen = self._faults.frozen.get(self._name)
        if frozen is not None:
            await frozen.wait()
        if self._faults.delay:
            await asyncio.sleep(self._random.uniform(0, self._faults.delay))

    async def open(self, *, migrate: bool = True) -> None:
        """The shared store is open already."""

    async def close(self) -> None:
        """It outlives the node."""

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._shared.watch(wake)

    def watch_queues(self, wake: Wake) -> Callable[[], None]:
        return self._shared.watch_queues(wake)


class History:
    """What truly happened in the store, with the limit time of each start."""

    def __init__(self) -> None:
        self.stored: dict[str, NewJob] = {}
        self.starts: list[tuple[int, str, str, int]] = []
        self.charges: dict[BucketRef, list[tuple[int, int]]] = {}
        self.moved: dict[tuple[BucketRef, int], int] = {}
        self._charged_at: dict[tuple[str, int], int] = {}

    def note(self, verb: str, arguments: Sequence[Any], result: Any, limit_now: int) -> None:
        if verb == "add":
            for job in arguments[0]:
                if job.id not in result:
                    self.stored.setdefault(job.id, job)
        elif verb == "fire":
            for fired, is_written in zip(arguments[0], result, strict=True):
                if is_written:
                    self.stored.update((job.id, job) for job in fired.jobs)
        elif verb == "claim":
            claim: Claim = arguments[0]
            claimed: Claimed = result
            for job in claimed.jobs:
                self.starts.append((limit_now, job.id, claim.node, job.fence))
                self._charged_at[job.id, job.fence] = job.charged_at
                for index, ref in enumerate(job.buckets):
                    cost = 1 if job.costs is None else job.costs[index]
                    self.charges.setdefault(ref, []).append((job.charged_at, cost))
        elif verb == "finish":
            for ending, was_written in zip(arguments[1], result, strict=True):
                if was_written and (charged_at := self._charged_at.pop((ending.id, ending.fence), None)) is not None:
                    for each in ending.corrections:
                        self._correct(each.ref, charged_at, each.cost, each.actual)
        elif verb == "amend":
            for amendment in arguments[0]:
                self.amend(amendment)
        elif verb == "move_starts":
            for start in arguments[1]:
                if (at := result.get((start.id, start.fence))) is not None:
                    self.moved.update(((ref, at), self._charged_at[start.id, start.fence]) for ref in start.buckets)

    def amend(self, amendment: Amendment) -> None:
        """Starts stay where they were charged: a move may come too late for windows as short as the line is slow."""
        at = self.moved.get((amendment.ref, amendment.charged_at), amendment.charged_at)
        if amendment.started_at != amendment.charged_at:
            self.moved[amendment.ref, amendment.started_at] = at
        self._correct(amendment.ref, at, amendment.cost, amendment.actual)

    def _correct(self, ref: BucketRef, at: int, cost: int, actual: int) -> None:
        charges = self.charges[ref]
        if actual != cost and (at, cost) in charges:
            charges.remove((at, cost))
            if actual:
                insort(charges, (at, actual))
