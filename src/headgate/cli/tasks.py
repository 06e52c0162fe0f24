"""`headgate tasks`: list the tasks of an app."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import click

from headgate.admin import Admin
from headgate.cli.locate import ask, takes_app
from headgate.cli.output import json_option, print_json, print_table


@dataclass(frozen=True, slots=True)
class ListedTask:
    """A task under its name or an alias: its queue, its limits, and the number of waiting jobs."""

    task: str
    queue: str
    limits: Sequence[str]
    waiting: int


@click.command()
@takes_app
@json_option
def tasks(target: str, as_json: bool) -> None:
    """List the tasks that an app declares, and how many jobs wait for each.

    The first 100,000 waiting jobs are counted.
    """

    async def listed(admin: Admin) -> list[ListedTask]:
        waiting = Counter[str]()
        for each in await admin.waiting():
            waiting[each.task] += each.jobs
        return [ListedTask(task.task, task.queue, task.limits, waiting[task.task]) for task in admin.declared_tasks]

    found = ask(target, listed)
    if as_json:
        print_json(found)
        return
    print_table(
        "Tasks",
        ("task", "queue", "limits", "waiting"),
        [(each.task, each.queue, ", ".join(each.limits) or None, each.waiting) for each in found],
        empty="no tasks are declared",
    )
