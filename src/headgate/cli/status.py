"""`headgate status`: what is going on, in one look."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import click

from headgate.admin import Admin, BucketStatus, QueueStatus
from headgate.cli.locate import ask_with_time, takes_app
from headgate.cli.output import json_option, lasting, print_json, print_table, until
from headgate.cli.queues import print_queues
from headgate.clock import to_datetime
from headgate.errors import StorageUnavailable
from headgate.storage.protocol import NodeRecord, Obstacle

MOST_THROTTLED = 10

SILENT_AFTER = 30.0
"""Seconds without a heartbeat; the default lease."""

STUCK_AFTER = 2.0
"""Seconds without an answer, after which it is looked for what keeps the database from answering."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node, whether it lives, and how many seconds ago it was heard."""

    id: str
    name: str
    pid: int
    state: str
    heartbeat_age: float
    running: int


@dataclass(frozen=True, slots=True)
class ObstacleStatus:
    """What stands in the way of the store, and for how many seconds."""

    kind: str
    pid: int
    since: datetime
    age: float
    what: str


@dataclass(frozen=True, slots=True)
class Status:
    """The whole answer."""

    queues: Sequence[QueueStatus]
    nodes: Sequence[NodeStatus]
    throttled: Sequence[BucketStatus]
    obstacles: Sequence[ObstacleStatus]


@click.command()
@takes_app
@json_option
def status(target: str, as_json: bool) -> None:
    """Show queues, nodes and the most crowded limits.

    A node is alive, silent (no heartbeat for 30 s) or gone (its process has ended; another node will take its jobs).
    The lag of a queue is for how long a job has lacked nothing but a free slot. What stands in the way of the database,
    such as a transaction that is long open, is shown as well; pg_terminate_backend(pid) ends it.
    """
    answer, now = ask_with_time(target, _fetch)
    if as_json:
        print_json(answer)
        return
    print_queues(answer.queues)
    print_table(
        "Nodes",
        ("process", "node", "state", "heartbeat", "running"),
        [(n.name, n.id, n.state, f"{lasting(n.heartbeat_age)} ago", n.running) for n in answer.nodes],
        empty="none; start one with `headgate worker`",
    )
    print_table(
        "Throttled",
        ("limit", "key", "rule", "waiting", "next slot"),
        [(b.limit, b.key, b.rule, b.waiting, until(b.next_slot_at, now)) for b in answer.throttled],
        empty="nothing waits for a limit",
    )
    if answer.obstacles:
        print_table(
            "In the way",
            ("what", "pid", "for", "details"),
            [(o.kind, o.pid, lasting(o.age), o.what) for o in answer.obstacles],
            empty="",
        )


async def _fetch(admin: Admin) -> Status:
    """The whole answer; if somebody's lock keeps the database from it, the error tells whose."""
    answering = asyncio.ensure_future(_answer(admin))
    done, _ = await asyncio.wait([answering], timeout=STUCK_AFTER)
    blocking = [] if done else [each for each in await admin.obstacles() if each.kind == "blocks"]
    try:
        return await answering
    except StorageUnavailable as error:
        if not blocking:
            raise
        who = "; ".join(f"{each.what} (pid {each.pid}; pg_terminate_backend ends it)" for each in blocking)
        raise StorageUnavailable(f"{error}; {who}") from error


async def _answer(admin: Admin) -> Status:
    buckets = await admin.limits.list(count=MOST_THROTTLED)
    queues = await admin.queues.list()
    nodes, obstacles = await admin.nodes(), await admin.obstacles()
    now = admin.now()
    return Status(
        queues=[queue for queue in queues if queue.has_jobs or queue.is_paused],
        nodes=[_node(record, now) for record in sorted(nodes, key=_by_process)],
        throttled=[bucket for bucket in buckets if bucket.waiting],
        obstacles=[_obstacle(obstacle, now) for obstacle in obstacles],
    )


def _node(record: NodeRecord, now: datetime) -> NodeStatus:
    age = max(0.0, (now - to_datetime(record.beat_at)).total_seconds())
    state = "gone" if record.is_gone else "silent" if age > SILENT_AFTER else "alive"
    return NodeStatus(record.id, record.name, record.pid, state, round(age, 3), record.running)


def _by_process(record: NodeRecord) -> tuple[str, int, str]:
    """By machine first: a name is host:pid."""
    host, _, pid = record.name.rpartition(":")
    return host, int(pid) if pid.isdecimal() else record.pid, record.id


def _obstacle(obstacle: Obstacle, now: datetime) -> ObstacleStatus:
    since = to_datetime(obstacle.since)
    age = max(0.0, (now - since).total_seconds())
    return ObstacleStatus(obstacle.kind, obstacle.pid, since, round(age, 3), obstacle.what)
