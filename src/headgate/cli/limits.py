"""`headgate limits`: the budget of each key."""

from __future__ import annotations

from functools import partial

import click

from headgate.admin import Admin, BucketStatus
from headgate.cli.locate import ask, takes_app
from headgate.cli.output import json_option, print_json, print_table, until


@click.group()
def limits() -> None:
    """Show the budget of each key."""


@limits.command(name="list")
@takes_app
@click.option("--limit", metavar="NAME", help="Only this limit.")
@click.option("--key", help="Only this key.")
@click.option("--count", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@json_option
def list_(target: str, limit: str | None, key: str | None, count: int, as_json: bool) -> None:
    """List limits by key: waiting jobs, starts that count now, starts left, and when the next one may go.

    Those with most waiting jobs come first. `used` and `available` are empty for a limit that the app does not declare.
    """
    found = ask(target, partial(_fetch, limit=limit, key=key, count=count))
    if as_json:
        print_json(found)
        return
    print_table(
        "Limits",
        ("limit", "key", "rule", "waiting", "used", "available", "next slot"),
        [(b.limit, b.key, b.rule, b.waiting, b.used, b.available, until(b.next_slot_at)) for b in found],
        empty="no key has used any of its budget",
    )


async def _fetch(admin: Admin, *, limit: str | None, key: str | None, count: int) -> list[BucketStatus]:
    return list(await admin.buckets(limit=limit, key=key, count=count))
