"""`headgate queues`: how each queue is served, and pausing or emptying one."""

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

    The lag is for how long a job has lacked nothing but a free slot.
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
    pause="Give out no job of a queue to any worker; what runs goes on, what is enqueued waits.",
    resume="End a pause.",
)


@queues.command()
@takes_app_and("QUEUE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say how many would be cancelled.")
@click.option("--most", type=click.IntRange(1), default=1_000_000, show_default=True, help="Cancel up to so many.")
@json_option
def purge(target: str, words: tuple[str], yes: bool, dry_run: bool, most: int, as_json: bool) -> None:
    """Cancel everything that waits in a queue; what runs goes on.

    Paused first, a queue stays empty of what is claimed meanwhile. `headgate purge --queue` deletes what is final.
    Exit code 1 if nothing waited.
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
