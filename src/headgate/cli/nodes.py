"""`headgate nodes`: the engine processes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headgate.admin import NodeStatus
from headgate.cli.locate import ask, takes_app
from headgate.cli.output import json_option, lasting, print_json, print_table


@click.group()
def nodes() -> None:
    """List the worker processes."""


@nodes.command(name="list")
@takes_app
@json_option
def list_(target: str, as_json: bool) -> None:
    """List the worker processes: their state, queues and running jobs.

    A node is alive, silent (no heartbeat for 30 s) or gone (its process has ended; another node will take its jobs).
    `headgate jobs list --state running --node ID` lists the jobs of one. A slot lingers if its job was asked to end, by
    a timeout or a cancellation, and still runs: usually a thread, which cannot be stopped. --json names these jobs.
    """
    found = ask(target, lambda admin: admin.nodes())
    if as_json:
        print_json(found)
        return
    print_nodes(found)


def print_nodes(found: Sequence[NodeStatus]) -> None:
    """Print nodes as a table."""
    print_table(
        "Nodes",
        ("process", "id", "state", "heartbeat", "running", "lingering", "slots", "version", "started"),
        [
            (
                node.name,
                node.id,
                node.state,
                f"{lasting(node.heartbeat_age)} ago",
                node.running,
                len(node.lingering) or None,
                ", ".join(f"{queue} {slots}" for queue, slots in node.queues.items()) or None,
                node.version or None,
                node.started_at,
            )
            for node in found
        ],
        empty="none; start one with `headgate worker`",
    )
