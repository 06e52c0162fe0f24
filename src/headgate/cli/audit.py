"""`headgate audit`: the changes that people made."""

from __future__ import annotations

from typing import Any, get_args

import click

from headgate.admin.listed import AUDIT_COLUMNS
from headgate.cli.locate import ask, takes_app
from headgate.cli.output import json_option, print_list
from headgate.jobs.audit import SubjectKind


@click.command()
@takes_app
@click.option("--kind", type=click.Choice(get_args(SubjectKind)), help="Only changes to this kind of thing.")
@click.option(
    "--subject", metavar="NAME", help="Only changes to this job, limit, queue, schedule or node; a user's sign-ins."
)
@click.option("--actor", metavar="WHO", help="Only changes by this person or process.")
@click.option("--count", type=click.IntRange(1, 500), default=50, show_default=True, help="The most entries to list.")
@click.option("--before", type=int, metavar="NUMBER", help="Only entries before this one, the last of a page.")
@json_option
def audit(target: str, as_json: bool, **filters: Any) -> None:
    """Show changes by people to jobs, limits, queues, schedules and nodes, and their sign-ins, newest first."""
    found = ask(target, lambda admin: admin.audit_log(**filters))
    print_list("Changes by people", AUDIT_COLUMNS, found, empty="nothing", as_json=as_json)
