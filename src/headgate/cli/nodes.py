"""`headgate nodes`: list and steer the engine processes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headgate.admin import NodeStatus
from headgate.admin.nodes import NODE_COLUMNS
from headgate.arguments import MOST_SLOTS
from headgate.cli.locate import ask, takes_app, takes_app_and
from headgate.cli.output import json_option, print_list, say_change
from headgate.cli.question import confirm, require_answer
from headgate.plural import counted


@click.group()
def nodes() -> None:
    """List, quiet, resume, rename and stop worker processes, and change their slots.

    NODE is the id of a node, or its name if no other running node has it. A node reads a change within a second. It
    stays until the process ends.
    """


@nodes.command(name="list")
@takes_app
@json_option
def list_(target: str, as_json: bool) -> None:
    """List the worker processes: their state, queues and running jobs.

    A node is alive, quiet (alive, and an operator lets it claim nothing), stopping, silent (no heartbeat for the lease)
    or gone (its process has ended; another node will take its jobs). The last 20 nodes that were declared dead in the
    last day follow, with the time and how many of their jobs were returned. `headgate jobs list --state running --node
    ID` lists the jobs of one. A slot lingers if its job was asked to end, by a timeout or a cancellation, and still
    runs: usually a thread, which cannot be stopped. --json names these jobs. Labels are shown if a node has any.
    """
    print_nodes(ask(target, lambda admin: admin.nodes(lost=True)), as_json=as_json)


@nodes.command()
@takes_app_and("NODE")
@json_option
def quiet(target: str, node: str, as_json: bool) -> None:
    """Let a node claim no more jobs until it is resumed. Running jobs continue."""
    changed = ask(target, lambda admin: admin.quiet_node(node))
    say_change(changed, f"{node} is quiet", f"{node} was quiet already", as_json=as_json, node=node, is_quiet=True)


@nodes.command()
@takes_app_and("NODE")
@json_option
def resume(target: str, node: str, as_json: bool) -> None:
    """Let a quiet node claim jobs again, in the slots that it had."""
    changed = ask(target, lambda admin: admin.resume_node(node))
    say_change(changed, f"{node} is resumed", f"{node} was not quiet", as_json=as_json, node=node, is_quiet=False)


@nodes.command()
@takes_app_and("NODE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def stop(target: str, node: str, yes: bool, as_json: bool) -> None:
    """Stop a node as SIGTERM does: it claims nothing, its jobs may continue for its grace, the others are returned.

    A worker process ends with 0; a service manager that restarts it then starts it again. `headgate worker --processes`
    does not.
    """
    require_answer(as_json=as_json, yes=yes)
    if not yes:
        confirm(f"Stop node {node!r}?")
    changed = ask(target, lambda admin: admin.stop_node(node))
    say_change(
        changed, f"{node} is stopping", f"{node} was stopping already", as_json=as_json, node=node, is_stopping=True
    )


@nodes.command()
@takes_app_and("NODE", "SLOTS")
@json_option
def slots(target: str, node: str, slots: str, as_json: bool) -> None:
    """Set how many jobs a node runs at once; a quiet node is resumed.

    SLOTS is a number for all queues together, or QUEUE:NUMBER. More slots are used at once. With fewer, running jobs
    continue, and the node claims again when fewer run. 0 lets the node be quiet; QUEUE:0 lets it claim nothing of that
    queue.
    """
    queue, number = _parse_slots(slots)
    changed = ask(target, lambda admin: admin.set_node_slots(node, number, queue=queue))
    what = counted(number, "slot") if queue is None else f"{counted(number, 'slot')} for queue {queue}"
    facts = {"node": node, "queue": queue, "slots": number}
    say_change(changed, f"{node} has {what}", f"{node} had {what} already", as_json=as_json, **facts)


@nodes.command()
@takes_app_and("NODE", "NAME")
@json_option
def rename(target: str, node: str, name: str, as_json: bool) -> None:
    """Give a node another name, until its process ends; `headgate worker --name` sets it at the start.

    NAME is 1 to 200 printable characters without spaces.
    """
    changed = ask(target, lambda admin: admin.rename_node(node, name))
    done, was = f"{node} is renamed to {name}", f"{node} had the name {name} already"
    say_change(changed, done, was, as_json=as_json, node=node, name=name)


def _parse_slots(given: str) -> tuple[str | None, int]:
    """Return the queue, if one is named, and the number."""
    queue, colon, number = given.rpartition(":")
    is_number = number.isascii() and number.isdigit() and len(number) <= len(str(MOST_SLOTS))
    if not is_number or (colon and not queue):
        raise click.UsageError(f"{given!r:.80}: SLOTS is a whole number, such as 20, or QUEUE:NUMBER, such as emails:4")
    return queue or None, int(number)


def print_nodes(found: Sequence[NodeStatus], *, as_json: bool = False) -> None:
    """Print nodes as a table, or as JSON."""
    print_list(
        "Nodes",
        NODE_COLUMNS,
        found,
        empty="none; start one with `headgate worker`",
        as_json=as_json,
        state=lambda node: node.shown_state,
        lingering=lambda node: len(node.lingering) or None,
        slots=_slots,
        # As text, as a column of zeros is no empty one.
        returned=lambda node: None if node.returned is None else str(node.returned),
    )


def _slots(node: NodeStatus) -> str | None:
    """Return the slots of each queue, and the bound of all, if there is one."""
    queues = ", ".join(f"{queue} {slots}" for queue, slots in node.queues.items()) or None
    return queues if node.slots == sum(node.queues.values()) else f"at most {node.slots}: {queues}"
