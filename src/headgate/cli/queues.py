"""`headgate queues`: list, show, pause and empty queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from headgate.admin import Admin, BulkResult, DeclaredQueue, QueueKeys, QueueOverview, QueueStatus
from headgate.admin.queues import QUEUE_COLUMNS
from headgate.cli.bulk import count_and_change
from headgate.cli.locate import ask, takes_app, takes_app_and
from headgate.cli.output import json_option, lasting, print_json, print_list, print_table
from headgate.cli.pausing import add_pausing
from headgate.errors import UnknownQueue
from headgate.suggestion import did_you_mean


@click.group()
def queues() -> None:
    """List, show, pause, resume and empty queues."""


@queues.command(name="list")
@takes_app
@json_option
def list_(target: str, as_json: bool) -> None:
    """List queues: their jobs by state, the age of the oldest job that is ready, and the lag.

    Lag: how long the oldest ready job has waited for a free slot. The note says how the app orders the jobs of a queue,
    unless they start in the order in which they came.
    """
    print_queues(ask(target, lambda admin: admin.queues.list()), as_json=as_json)


@queues.command()
@takes_app_and("QUEUE")
@click.option("--keys", type=click.IntRange(1, 500), default=20, show_default=True, help="The most keys to list.")
@json_option
def show(target: str, queue: str, keys: int, as_json: bool) -> None:
    """Show a queue: its jobs, its declared options, and in a fair queue the keys with most waiting jobs.

    If more than 2,000 keys have waiting jobs, the first ones in line are ranked. Keys that only have jobs for later are
    left out.
    """

    async def read(admin: Admin) -> tuple[QueueStatus, QueueKeys]:
        return await _known(admin, queue), await admin.queues.keys(queue, count=keys)

    status, found = ask(target, read)
    if as_json:
        print_json({"queue": status, "keys": found})
        return
    print_queues([status])
    if status.declared is None:
        click.echo("This app does not declare the queue.")
        return
    print_table("Declared", ("", ""), _declared(status.declared), empty="nothing")
    if status.declared.fair_by:
        title = "Keys" if found.is_exact else "Keys, of the first in line"
        rows = [(shown.key, shown.waiting, shown.weight) for shown in found.keys]
        print_table(title, ("key", "waiting", "weight"), rows, empty="no jobs")
        if found.count > len(found.keys):
            click.echo(f"{len(found.keys)} of {found.count}{'' if found.is_exact else ' or more'} keys")


add_pausing(
    queues,
    "queue",
    lambda admin: admin.queues,
    pause="Start no jobs of a queue. Running jobs continue. New jobs wait until the queue is resumed.",
    resume="End a pause.",
)


@queues.command()
@takes_app_and("QUEUE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print how many would be cancelled.")
@click.option("--most", type=click.IntRange(1), default=1_000_000, show_default=True, help="The most jobs to cancel.")
@json_option
def purge(target: str, queue: str, **given: Any) -> None:
    """Cancel all waiting jobs of a queue, scheduled ones included. Running jobs continue.

    Pause the queue first, so that workers claim none meanwhile. Cancelled jobs are kept for their retention:
    `headgate jobs retry --queue QUEUE --state cancelled` retries them. `headgate purge --queue` deletes final jobs.
    Exit code 1 if no job waited.
    """

    async def change(admin: Admin, **options: Any) -> BulkResult:
        result = await admin.queues.purge(queue, **options)
        if not result.matched:
            await _known(admin, queue)
        return result

    count_and_change(target, "cancel", change, **given)


async def _known(admin: Admin, name: str) -> QueueStatus:
    """Return the queue of that name. Raises UnknownQueue."""
    found = {each.queue: each for each in await admin.queues.list()}
    if name not in found:
        raise UnknownQueue(
            f"queue {name!r} is not declared by this app, has no jobs and is not paused{did_you_mean(name, found)} "
            f"There are: {', '.join(found)}"
        )
    return found[name]


def _declared(queue: DeclaredQueue) -> list[tuple[str, object]]:
    """Return what the app declares of a queue, as rows; what it leaves out has no row."""
    weights = ", ".join(f"{key}: {weight}" for key, weight in sorted(queue.weights.items()))
    slots = "by the kind of its tasks" if queue.concurrency is None else queue.concurrency
    wait = queue.on_limit if queue.max_wait is None else f"wait at most {lasting(queue.max_wait)}"
    rows = [
        ("slots per node", slots),
        ("slots of all nodes", queue.global_concurrency),
        ("weight in shared slots", queue.weight if queue.weight != 1 else None),
        ("fair by", ", then ".join(queue.fair_by) or None),
        ("weights", weights or None),
        ("aging", lasting(queue.aging)),
        ("most waiting jobs", queue.max_backlog),
        ("when full", None if queue.max_backlog is None else queue.when_full),
        ("when a limit is closed", wait),
    ]
    return [(name, value) for name, value in rows if value is not None]


def print_queues(found: Sequence[QueueStatus | QueueOverview], *, as_json: bool = False) -> None:
    """Print queues as a table, or as JSON."""
    print_list("Queues", QUEUE_COLUMNS, found, empty="no jobs", as_json=as_json, note=_note)


def _note(queue: QueueStatus | QueueOverview) -> str | None:
    notes = ["paused"] if queue.is_paused else []
    if isinstance(queue, QueueStatus) and queue.declared is not None:
        if queue.declared.fair_by:
            notes.append(f"fair by {', then '.join(queue.declared.fair_by)}")
        if queue.declared.aging is not None:
            notes.append(f"aging {lasting(queue.declared.aging)}")
    return "; ".join(notes) or None
