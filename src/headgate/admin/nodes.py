"""Nodes as operators see and steer them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from msgspec.structs import replace

from headgate.admin.columns import Column
from headgate.clock import to_datetime
from headgate.errors import AmbiguousNode, DeclarationError, NodeNotFound, UnknownQueue
from headgate.storage.records import LostNode, NodeControls, NodeRecord
from headgate.suggestion import did_you_mean
from headgate.views import view_of

LOST_SHOWN = 20
"""How many nodes that were declared dead a list shows at most."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node, its state, and the age of its last heartbeat in seconds.

    It is alive, silent (no heartbeat for the `lease` of the settings) or gone: its process has ended, and another node
    will take its jobs. One that was declared dead at `lost_at` is gone, too; so many of its jobs have `returned` to
    wait again. It runs at most `slots` jobs at once, of each of its `queues` at most as many as that has slots, and it
    has `running` jobs. While it is quiet it claims nothing. Once it is stopping it ends when its jobs have ended. The
    attempts of `lingering` jobs were asked to end, by a timeout or a cancellation, and occupy a slot each until they
    do: mostly threads, which cannot be stopped. `version` is that of Headgate, `release` that of the user's program, if
    it is set.
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
    slots: int = 0
    is_quiet: bool = False
    is_stopping: bool = False
    labels: Sequence[str] = ()
    release: str | None = None
    lost_at: datetime | None = None
    returned: int | None = None

    @property
    def shown_state(self) -> str:
        """Its state in a word: of a node that is alive, also whether it is stopping or quiet."""
        if self.state != "alive":
            return self.state
        return "stopping" if self.is_stopping else "quiet" if self.is_quiet else self.state


NODE_COLUMNS = (
    Column("name", "Node"),
    Column("id", "Id", "id", only="cli"),
    Column("state", "State", "state"),
    Column("heartbeat_age", "Heartbeat", "age"),
    Column("lost_at", "Declared dead", "time", is_rare=True, only="cli"),
    Column("returned", "Jobs returned", "count", is_rare=True, only="cli"),
    Column("running", "Running", "count"),
    Column("lingering", "Lingering", "count", only="cli"),
    Column("slots", "Slots"),
    Column("queues", "Queues", only="dashboard"),
    Column("labels", "Labels", "names", is_rare=True, only="cli"),
    Column("release", "Release", is_rare=True),
    Column("version", "Version"),
    Column("started_at", "Started", "time"),
)


def find_node(nodes: Sequence[NodeRecord], node: str) -> NodeRecord:
    """Return the node with that id, or the only running one with that name. Raises NodeNotFound, AmbiguousNode."""
    by_id = next((record for record in nodes if record.id == node), None)
    if by_id is not None:
        if by_id.is_gone:
            raise node_ended(by_id)
        return by_id
    running = [record for record in nodes if not record.is_gone]
    named = [record for record in running if record.name == node]
    if len(named) > 1:
        ids = ", ".join(record.id for record in named)
        raise AmbiguousNode(f"{len(named)} nodes have the name {node!r}; name one by its id: {ids}")
    if not named:
        known = [word for record in running for word in (record.name, record.id)]
        there_are = ", ".join(f"{record.name} ({record.id})" for record in running) or "none"
        hint = did_you_mean(node, known)
        raise NodeNotFound(f"no running node has the id or name {node!r:.200}{hint} Running: {there_are}")
    return named[0]


def node_ended(record: NodeRecord) -> NodeNotFound:
    """Return the error for a node that is still stored and has ended."""
    return NodeNotFound(f"node {record.name} ({record.id}) has ended; other nodes take over its jobs")


def with_slots(node: str, controls: NodeControls, slots: int, queue: str | None) -> NodeControls:
    """Return the controls with other slots, as `Admin.set_node_slots`. Raises UnknownQueue, DeclarationError."""
    queues = controls.queues
    if queue is not None and queue not in queues:
        raise UnknownQueue(
            f"node {node} does not serve queue {queue!r}{did_you_mean(queue, queues)} It serves: {', '.join(queues)}"
        )
    is_quiet = controls.is_quiet and slots == 0
    if queue is not None:
        return replace(controls, queues={**queues, queue: slots}, is_quiet=is_quiet)
    if slots == 0:
        return replace(controls, is_quiet=True)
    if len(queues) == 1:
        return replace(controls, queues=dict.fromkeys(queues, slots), slots=None, is_quiet=False)
    if slots > sum(queues.values()):
        served = ", ".join(f"{name} {count}" for name, count in queues.items())
        raise DeclarationError(
            f"node {node} cannot use {slots} slots: its queues have {sum(queues.values())} together ({served}); give "
            f"one of them more slots first, such as {next(iter(queues), 'default')}:{slots}"
        )
    return replace(controls, slots=slots, is_quiet=False)


def node_status(record: NodeRecord, now: datetime, lease: float) -> NodeStatus:
    """Return a node as it is at that instant; after `lease` seconds without a heartbeat it is silent."""
    age = _age(record.beat_at, now)
    controls = record.controls
    return view_of(
        NodeStatus,
        record,
        state="gone" if record.is_gone else "silent" if age > lease else "alive",
        heartbeat_age=age,
        queues=controls.queues,
        slots=controls.most,
        is_quiet=controls.is_quiet,
        is_stopping=controls.is_stopping,
        lost_at=None,
        returned=None,
    )


def lost_status(lost: LostNode, now: datetime) -> NodeStatus:
    """Return a node that was declared dead as it is shown at that instant."""
    return view_of(
        NodeStatus,
        lost,
        state="gone",
        heartbeat_age=_age(lost.beat_at, now),
        running=0,
        queues={},
        slots=0,
        is_quiet=False,
        is_stopping=False,
        lingering=(),
        labels=(),
    )


def _age(beat_at: int, now: datetime) -> float:
    return round(max(0.0, (now - to_datetime(beat_at)).total_seconds()), 3)


class Unserved(NamedTuple):
    """A queue that no node serves; `seconds` since the last heartbeat of one that did, None if none is known."""

    queue: str
    seconds: float | None


def unserved(queue: str, nodes: Sequence[NodeRecord], now: datetime, lease: float) -> Unserved | None:
    """Return how long no node has served a queue; None if one is alive that does, even if it is quiet now."""
    serving = [node_status(node, now, lease) for node in nodes if node.controls.queues.get(queue)]
    if any(node.state == "alive" for node in serving):
        return None
    return Unserved(queue, min((node.heartbeat_age for node in serving), default=None))


def by_process(node: NodeStatus) -> tuple[str, int, str]:
    """Return the sort key of a list: by machine first, as a name is host:pid unless it was chosen."""
    host, colon, pid = node.name.rpartition(":")
    return (host, int(pid), node.id) if colon and pid.isdecimal() else (node.name, node.pid, node.id)
