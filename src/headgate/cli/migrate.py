"""`headgate migrate`: create or update the tables without starting a worker."""

from __future__ import annotations

import asyncio
import sys

import click

from headgate.cli.locate import locate, takes_app
from headgate.cli.output import json_option, print_json

PENDING = 3
"""Exit code of a dry run that found missing migrations: neither success nor an error."""


@click.command()
@takes_app
@click.option("--dry-run", is_flag=True, help="Change nothing; list what is missing, and exit with 3 if anything is.")
@json_option
def migrate(target: str, dry_run: bool, as_json: bool) -> None:
    """Create the tables, or update them.

    On PostgreSQL run it before the first start and before each deploy, as the owner of the tables. On a SQLite file the
    first worker does it by itself. Repeating it is harmless.
    """
    names = asyncio.run(locate(target).migrate(dry_run=dry_run))
    word = "missing" if dry_run else "applied"
    if as_json:
        print_json({word: names})
    elif not names:
        click.echo("up to date")
    else:
        click.echo("\n".join(f"{word}: {name}" for name in names))
    if names and dry_run:
        sys.exit(PENDING)
