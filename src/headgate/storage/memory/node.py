"""A node and the jobs that it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headgate.storage.memory.job import Job
from headgate.storage.memory.lane import Lane
from headgate.storage.protocol import NodeRecord


class Node:
    """A running engine, as it was last heard of; it owns the jobs in `running`."""

    __slots__ = ("beat", "beat_at", "id", "lingering", "name", "queues", "running", "started_at", "version")

    def __init__(self, id: str, name: str, now: int, queues: Mapping[str, int], version: str) -> None:
        self.id = id
        self.name = name
        self.queues = queues
        self.version = version
        self.started_at = now
        self.beat_at = now
        self.beat = 0
        self.lingering: tuple[str, ...] = ()
        self.running: dict[str, Job[Lane]] = {}

    def record(self) -> NodeRecord:
        return NodeRecord(
            self.id,
            self.name,
            os.getpid(),
            self.started_at,
            self.beat_at,
            self.beat,
            len(self.running),
            False,
            self.queues,
            self.version,
            self.lingering,
        )
