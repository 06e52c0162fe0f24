"""`headgate purge`: delete final jobs before their retention ends."""

from __future__ import annotations

from typing import Any

import click

from headgate.admin import Admin, BulkResult, JobQuery
from headgate.cli.bulk import count_and_change
from headgate.cli.locate import takes_app
from headgate.cli.output import json_option
from headgate.cli.query import refuse_empty
from headgate.cli.times import seconds
from headgate.jobs.job import JobState
from headgate.storage.records import FINAL_STATES


@click.command()
@takes_app
@click.option(
    "--state", type=click.Choice(sorted(state.value for state in FINAL_STATES)), help="Only jobs in this final state."
)
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--task", help="Only jobs of this task.")
@click.option("--error", metavar="TYPE", help="Only jobs whose error type has this prefix.")
@click.option("--older-than", type=seconds, metavar="AGE", help="Only jobs that ended longer ago than this: 7d, 12h.")
@click.option("--most", type=click.IntRange(1), default=1_000_000, show_default=True, help="The most jobs to delete.")
@click.option("--all", "is_all", is_flag=True, help="All final jobs that the other options select.")
@click.option("--dry-run", is_flag=True, help="Delete nothing; print how many would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def purge(target: str, older_than: float | None, is_all: bool, **given: Any) -> None:
    """Delete final jobs for good, with their results, attempts and log lines.

    Workers delete jobs when their retention ends; this command does it earlier. It deletes 200 jobs in a commit, oldest
    first, so that others do not wait for it. Ctrl-C stops it; the next run continues. `headgate audit` shows the purge,
    and how many jobs it has deleted so far. Waiting and running jobs are never deleted.

    Exit code 1 if there was no job to delete, 130 if it was stopped.
    """
    criteria = {name: given.pop(name) for name in ("state", "queue", "task", "error")}
    refuse_empty(criteria)
    if not is_all and older_than is None and not any(criteria.values()):
        raise click.UsageError("select final jobs, such as --state succeeded or --older-than 7d, or add --all")
    query = JobQuery(**{**criteria, "state": None if criteria["state"] is None else JobState(criteria["state"])})

    async def delete(admin: Admin, **options: Any) -> BulkResult:
        return await admin.purge(query, older_than=older_than or 0, **options)

    count_and_change(target, "delete", delete, **given)
