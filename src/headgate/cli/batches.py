"""`headgate batches`: list, show and cancel batches of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from headgate.admin import Admin, BatchDetails
from headgate.admin.listed import BATCH_COLUMNS
from headgate.cli.bulk import count_and_change
from headgate.cli.locate import ask, takes_app, takes_app_and
from headgate.cli.output import json_option, print_json, print_list


@click.group()
def batches() -> None:
    """List batches, show the progress of one, cancel one with everything in it."""


@batches.command(name="list")
@takes_app
@click.option("--pending", is_flag=True, help="Only batches with jobs that are not final.")
@click.option("--count", type=click.IntRange(1, 100_000), default=50, show_default=True, help="The most to list.")
@click.option("--before", metavar="ID", help="Only batches older than this one.")
@json_option
def list_(target: str, pending: bool, count: int, before: str | None, as_json: bool) -> None:
    """List batches, newest first."""
    print_batches(ask(target, lambda admin: _pages(admin, count, before, pending_only=pending)), as_json=as_json)


@batches.command()
@takes_app_and("ID")
@json_option
def show(target: str, id: str, as_json: bool) -> None:
    """Show the progress of a batch by state; `headgate jobs list --batch ID` lists them."""
    found = ask(target, lambda admin: admin.batch(id))
    if as_json:
        print_json(found)
    else:
        print_batches([found])


@batches.command()
@takes_app_and("ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print how many would be cancelled.")
@click.option("--most", type=click.IntRange(1), default=1_000_000, show_default=True, help="The most jobs to cancel.")
@json_option
def cancel(target: str, id: str, **given: Any) -> None:
    """Cancel the waiting jobs in a batch and in its inner batches, and ask the running ones to end.

    The steps after it are cancelled whatever end they need, unless they also wait for other jobs; `headgate jobs cancel
    --batch ID` leaves them, and the batches in it. Exit code 1 if no job was left.
    """
    count_and_change(target, "cancel", lambda admin, **options: admin.cancel_batch(id, **options), **given)


async def _pages(admin: Admin, count: int, before: str | None, *, pending_only: bool) -> list[BatchDetails]:
    found: list[BatchDetails] = []
    while len(found) < count:
        page = await admin.batches(pending_only=pending_only, before=before, count=count - len(found))
        if not page:
            break
        found += page
        before = found[-1].id
    return found


def print_batches(found: Sequence[BatchDetails], *, as_json: bool = False) -> None:
    """Print batches as a table, or as JSON."""
    print_list("Batches", BATCH_COLUMNS, found, as_json=as_json, state=lambda batch: batch.state or "pending")
