"""`headgate queues`: how each queue is served, and pausing one."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headgate.admin import QueueStatus
from headgate.cli.locate import ask, takes_app, takes_app_and
from headgate.cli.output import json_option, lasting, print_json, print_table, say_change


@click.group()
def queues() -> None:
    """List, pause and resume queues."""


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


@queues.command()
@takes_app_and("QUEUE")
def pause(target: str, words: tuple[str]) -> None:
    """Give out no job of a queue to any worker; what runs goes on, what is enqueued waits."""
    (queue,) = words
    was_running = ask(target, lambda admin: admin.queues.pause(queue))
    say_change(was_running, f"{queue} is paused", f"{queue} was paused already")


@queues.command()
@takes_app_and("QUEUE")
def resume(target: str, words: tuple[str]) -> None:
    """End a pause."""
    (queue,) = words
    was_paused = ask(target, lambda admin: admin.queues.resume(queue))
    say_change(was_paused, f"{queue} goes on", f"{queue} was not paused")


def print_queues(found: Sequence[QueueStatus]) -> None:
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
