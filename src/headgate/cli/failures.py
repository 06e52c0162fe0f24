"""`headgate failures`: failed jobs by root cause."""

from __future__ import annotations

import click

from headgate.admin.failures import FAILURE_COLUMNS
from headgate.cli.locate import ask, takes_app
from headgate.cli.output import json_option, print_json, print_list
from headgate.cli.times import seconds_within


@click.command()
@takes_app
@click.option(
    "--since",
    "span",
    type=seconds_within(1),
    default="1h",
    show_default=True,
    metavar="TIME",
    help="Only failures of the last 90s, 15m, 2h, 7d.",
)
@click.option("--all", "is_all", is_flag=True, help="All failures that are kept; --since does not apply.")
@click.option("--task", metavar="TASK", help="Only failures of this task.")
@click.option("--queue", metavar="QUEUE", help="Only failures in this queue.")
@json_option
def failures(target: str, span: float, is_all: bool, task: str | None, queue: str | None, as_json: bool) -> None:
    """Show the failures of the last hour, grouped by task and root cause.

    The root cause is the innermost exception and the last line of your own code in the traceback; numbers, ids and
    quoted values of messages do not count. Jobs that wait for a retry after a failure count as retrying. The id is that
    of the job that failed last: `headgate jobs show ID` shows its whole traceback. The newest 10,000 failures are read.
    """
    found = ask(target, lambda admin: admin.failures(span=None if is_all else span, task=task, queue=queue))
    if found.is_cut:
        click.echo(f"There may be more failures; this list covers the newest {found.read:,}.", err=True)
    if as_json:
        print_json(found)
        return
    print_list(
        f"Failures since {found.since:%Y-%m-%d %H:%M} UTC",
        FAILURE_COLUMNS,
        found.groups,
        place=lambda group: group.cause.place,
        id=lambda group: group.newest.status.id,
    )
    if found.total > len(found.groups):
        click.echo(f"{found.total - len(found.groups):,} more root causes are not listed.", err=True)
