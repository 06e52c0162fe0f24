"""`headgate queues`: list, pause and empty queues."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headgate.admin import QueueOverview, QueueStatus
from headgate.cli.bulk import change_many
from headgate.cli.locate import ask, takes_app, takes_app_and
from headgate.cli.output import json_option, lasting, print_json, print_table
from headgate.cli.pausing import add_pausing


@click.group()
def queues() -> None:
    """List, pause, resume and empty queues."""


@queues.command(name="list")
@takes_app
@json_option
def list_(target: str, as_json: bool) -> None:
    """List queues: their jobs by state, the age of the oldest job that is ready, and the lag.

    Lag: how long the oldest ready job has waited for a free slot.
    """
    found = ask(target, lambda admin: admin.queues.list())
    if as_json:
        print_json(found)
        return
    print_queues(found)


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
def purge(target: str, words: tuple[str], yes: bool, dry_run: bool, most: int, as_json: bool) -> None:
    """Cancel all waiting jobs of a queue. Running jobs continue.

    Pause the queue first, so that workers claim none meanwhile. `headgate purge --queue` deletes final jobs. Exit code
    1 if no job waited.
    """
    (queue,) = words
    wanted = {"queue": queue, "state": "waiting"}
    change_many(target, "cancel", as_json=as_json, wanted=wanted, is_all=False, dry_run=dry_run, yes=yes, most=most)


def print_queues(found: Sequence[QueueStatus | QueueOverview]) -> None:
    """Print queues as a table."""
    print_table(
        "Queues",
        ("queue", "waiting", "running", "succeeded", "failed", "cancelled", "oldest", "lag", "note"),
        [
            (
                q.queue,
                q.waiting,
                q.running,
                q.succeeded,
                q.failed,
                q.cancelled,
                lasting(q.oldest),
                lasting(q.lag),
                "paused" if q.is_paused else None,
            )
            for q in found
        ],
        empty="no jobs",
    )
