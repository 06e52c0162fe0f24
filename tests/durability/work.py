"""An app for tests of what befalls its database: its handlers note their runs, and end when they may."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headgate import FixedWindow, Headgate, Mutex, current_job, current_jobs
from headgate.engine.node import Node
from headgate.jobs.event import ClockSkewed, EndingRefused, Event, NodeDeclaredDead, NodeLost, StorageFailed
from headgate.storage.records import Peer
from tests.internals import node_of
from tests.until import until


@dataclass
class Page:
    """What one job of a chunked task handles."""

    key: str


class Work:
    """Jobs that use a budget that is large enough, on a mutex too, or on none; and jobs that wait for a word.

    The jobs of a chunked task use a budget of calls.

    No lease ends by itself on a busy machine: a test that needs the end of one asks for a shorter lease.
    """

    def __init__(self, url: str, **settings: Any) -> None:
        self.app = Headgate(url, **{"heartbeat": 0.25, "lease": 30, **settings})
        self.runs: list[str] = []
        self.events: list[Event] = []
        self.proceed = asyncio.Event()
        self.calls: Counter[str] = Counter()
        self.together: Counter[str] = Counter()
        self.most_together = 0
        self.app.limit("monthly", FixedWindow(1_000_000, per=30 * 86400, key="{key}"))
        self.app.limit("calls", FixedWindow(1_000_000, per=30 * 86400, key="{key}", per_call=True))

        @self.app.task(limits=["monthly"])
        async def gated(key: str) -> None:
            self.runs.append(current_job().id)

        @self.app.task
        async def plain(key: str) -> None:
            self.runs.append(current_job().id)

        @self.app.task
        async def patient(key: str) -> str:
            self.runs.append(current_job().id)
            await self.proceed.wait()
            return key

        @self.app.task(limits=[Mutex("doc:{key}"), "monthly"])
        async def exclusive(key: str) -> None:
            self.runs.append(current_job().id)
            self.together[key] += 1
            self.most_together = max(self.most_together, self.together[key])
            await asyncio.sleep(0.005)
            self.together[key] -= 1

        @self.app.chunked(3, wait=0.05, limits=["calls"])
        async def called(pages: list[Page]) -> None:
            (key,) = {page.key for page in pages}
            self.calls[key] += 1
            self.runs += [job.id for job in current_jobs()]

        self.called = called
        self.gated = gated
        self.plain = plain
        self.patient = patient
        self.exclusive = exclusive
        self.app.subscribe(self.events.append, StorageFailed, NodeLost, NodeDeclaredDead, EndingRefused, ClockSkewed)

    @property
    def failures(self) -> list[str]:
        return [f"{event.doing}: {event.error}" for event in self.events if isinstance(event, StorageFailed)]

    def has_event(self, kind: type[Event]) -> bool:
        return any(isinstance(event, kind) for event in self.events)

    async def has_run(self, *jobs: Any, seconds: float = 10) -> None:
        """Wait until each of the jobs has run here; fails after `patient(seconds)`."""
        ids = {job.id for job in jobs}
        await until(lambda: ids <= set(self.runs), seconds, lambda: f"{len(ids - set(self.runs))} of {len(ids)} jobs")

    async def looks_at_others(self, times: int) -> None:
        """Wait until the node has looked so often from now on, once a second, whether another one is dead."""
        node = node_of(self.app)
        looks = 0

        async def recover_dead(nodes: Sequence[Peer]) -> None:
            nonlocal looks
            await Node.recover_dead(node, nodes)
            looks += 1

        node.recover_dead = recover_dead  # type: ignore[method-assign]
        try:
            await until(lambda: looks >= times, times + 10)
        finally:
            del node.recover_dead

    async def used(self, key: str, limit: str = "monthly") -> int:
        """How much of a key's budget is used, as the store has it."""
        (bucket,) = await self.app.admin.limits.list(limit, key=key)
        assert bucket.used is not None
        return bucket.used

    @property
    def again(self) -> list[str]:
        """Jobs that ran here more than once."""
        return [job for job, count in Counter(self.runs).items() if count > 1]
