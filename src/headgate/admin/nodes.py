"""Nodes as operators see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headgate.clock import to_datetime
from headgate.storage.records import NodeRecord

SILENT_AFTER = 30.0
"""Seconds without a heartbeat; the default lease."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node, whether it lives, and how many seconds ago it was heard.

    It is alive, silent (no heartbeat for 30 s) or gone (its process has ended; another node will take its jobs). It
    serves `queues`, with so many slots each, and has `running` jobs. The attempts of `lingering` jobs were told to end,
    by a timeout or a cancellation, and take a slot each until they do: threads, mostly, which nobody can stop.
    """

    id: str
    name: str
    pid: int
    state: Literal["alive", "silent", "gone"]
    heartbeat_age: float
    running: int
    queues: Mapping[str, int]
    version: str
    lingering: Sequence[str]
    started_at: datetime

    @property
    def slots(self) -> int:
        """Over all its queues."""
        return sum(self.queues.values())


def node_status(record: NodeRecord, now: datetime) -> NodeStatus:
    """A node as it is at that instant."""
    age = max(0.0, (now - to_datetime(record.beat_at)).total_seconds())
    return NodeStatus(
        id=record.id,
        name=record.name,
        pid=record.pid,
        state="gone" if record.is_gone else "silent" if age > SILENT_AFTER else "alive",
        heartbeat_age=round(age, 3),
        running=record.running,
        queues=record.queues,
        version=record.version,
        lingering=record.lingering,
        started_at=to_datetime(record.started_at),
    )


def by_process(node: NodeStatus) -> tuple[str, int, str]:
    """The order of a list: by machine first, as a name is host:pid."""
    host, _, pid = node.name.rpartition(":")
    return host, int(pid) if pid.isdecimal() else node.pid, node.id
