"""Nodes as operators see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from headgate.clock import to_datetime
from headgate.storage.records import NodeRecord

SILENT_AFTER = 30.0
"""Seconds without a heartbeat; the default lease."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node, its state, and the age of its last heartbeat in seconds.

    It is alive, silent (no heartbeat for 30 s) or gone (its process has ended; another node will take its jobs).
    `queues` has its slots by queue, and it has `running` jobs. The attempts of `lingering` jobs were asked to end, by a
    timeout or a cancellation, and occupy a slot each until they do: mostly threads, which cannot be stopped.
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
        """The number of slots of all its queues."""
        return sum(self.queues.values())


def node_status(record: NodeRecord, now: datetime) -> NodeStatus:
    """Return a node as it is at that instant."""
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


class Unserved(NamedTuple):
    """A queue that no node serves; `seconds` since the last heartbeat of one that did, None if none is known."""

    queue: str
    seconds: float | None


def unserved(queue: str, nodes: Sequence[NodeRecord], now: datetime) -> Unserved | None:
    """Return how long no node has served a queue; None if one is alive that does."""
    serving = [node_status(node, now) for node in nodes if queue in node.queues]
    if any(node.state == "alive" for node in serving):
        return None
    return Unserved(queue, min((node.heartbeat_age for node in serving), default=None))


def by_process(node: NodeStatus) -> tuple[str, int, str]:
    """Return the sort key of a list: by machine first, as a name is host:pid."""
    host, _, pid = node.name.rpartition(":")
    return host, int(pid) if pid.isdecimal() else node.pid, node.id
