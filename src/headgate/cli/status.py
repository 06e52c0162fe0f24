"""`headgate status`: what is going on, in one look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from headgate.admin import Admin, BucketStatus
from headgate.cli.locate import ask, takes_app
from headgate.cli.output import json_option, now, print_json, print_table, until
from headgate.clock import to_datetime
from headgate.storage.protocol import NodeRecord, QueueCounts

MOST_THROTTLED = 10

SILENT_AFTER = 30.0
"""Seconds without a heartbeat; the default lease."""


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
class Status:
    """The whole answer."""

    queues: Sequence[QueueCounts]
    nodes: Sequence[NodeStatus]
    throttled: Sequence[BucketStatus]


@click.command()
@takes_app
@json_option
def status(target: str, as_json: bool) -> None:
    """Show queues, nodes and the most crowded limits.

    A node is alive, silent (no heartbeat for 30 s) or gone (its process has ended; another node will take its jobs).
    """
    answer = ask(target, _fetch)
    if as_json:
        print_json({"queues": [_named(queue) for queue in answer.queues], **_rest(answer)})
        return
    print_table(
        "Queues",
        ("queue", "waiting", "running", "succeeded", "failed", "cancelled"),
        [(q.queue, q.waiting, q.running, q.succeeded, q.failed, q.cancelled) for q in answer.queues],
        empty="no jobs",
    )
    print_table(
        "Nodes",
        ("node", "process", "state", "heartbeat", "running"),
        [(n.id, n.name, n.state, f"{n.heartbeat_age:.1f} s ago", n.running) for n in answer.nodes],
        empty="none; start one with `headgate worker`",
    )
    print_table(
        "Throttled",
        ("limit", "key", "rule", "waiting", "next slot"),
        [(b.limit, b.key, b.rule, b.waiting, until(b.next_slot_at)) for b in answer.throttled],
        empty="nothing waits for a limit",
    )


async def _fetch(admin: Admin) -> Status:
    buckets = await admin.limits.list(count=MOST_THROTTLED)
    return Status(
        queues=await admin.counts(),
        nodes=[_node(record) for record in await admin.nodes()],
        throttled=[bucket for bucket in buckets if bucket.waiting],
    )


def _node(record: NodeRecord) -> NodeStatus:
    age = max(0.0, (now() - to_datetime(record.beat_at)).total_seconds())
    state = "gone" if record.is_gone else "silent" if age > SILENT_AFTER else "alive"
    return NodeStatus(record.id, record.name, record.pid, state, round(age, 3), record.running)


def _named(counts: QueueCounts) -> dict[str, object]:
    # As stored it is an array; people who parse JSON want names.
    return {name: getattr(counts, name) for name in counts.__struct_fields__}


def _rest(answer: Status) -> dict[str, object]:
    return {"nodes": answer.nodes, "throttled": answer.throttled}
