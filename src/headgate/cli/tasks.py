"""`headgate tasks`: list the tasks of an app."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import click

from headgate.admin import Admin
from headgate.cli.locate import ask, locate, takes_app
from headgate.cli.output import json_option, print_json, print_table
from headgate.clock import SECOND
from headgate.tasks.limit_set import LimitSet


@dataclass(frozen=True, slots=True)
class LimitWait:
    """What jobs do when a limit is closed, how many seconds they wait at most, and what sets it."""

    limit: str
    on_limit: str
    max_wait: float | None
    set_by: str


@dataclass(frozen=True, slots=True)
class ListedTask:
    """A task under its name or an alias: its queue, its limits, and the number of waiting jobs.

    `waits` is how its jobs wait for each of these limits, and those of its queue. The rest is as in `DeclaredTask`.
    """

    task: str
    queue: str
    limits: Sequence[str]
    waiting: int
    waits: Sequence[LimitWait]
    requires: Sequence[str]
    tags: Sequence[str]
    unique_key: str | None


@click.command()
@takes_app
@json_option
def tasks(target: str, as_json: bool) -> None:
    """List the tasks that an app declares, and how many jobs wait for each.

    The first 100,000 waiting jobs are counted. With a limit it says what a job does that finds it closed, unless it
    waits without a maximum, and what sets that: the limit itself, the queue or the app. The labels that a node needs to
    run a task, the tags of its jobs and their unique key are shown if a task has any.
    """
    limit_sets = {name: task.whole_limit_set for name, task in locate(target).tasks.items()}

    async def listed(admin: Admin) -> list[ListedTask]:
        waiting = Counter[str]()
        for each in await admin.waiting():
            waiting[each.task] += each.jobs
        waits = {name: _waits(limit_set) for name, limit_set in limit_sets.items()}
        return [
            ListedTask(
                task.task,
                task.queue,
                task.limits,
                waiting[task.task],
                waits.get(task.task, []),
                task.requires,
                task.tags,
                task.unique_key,
            )
            for task in admin.declared_tasks
        ]

    found = ask(target, listed)
    if as_json:
        print_json(found)
        return
    columns = ["task", "queue", "limits", "waiting"]
    rows = [[each.task, each.queue, _limits(each, limit_sets.get(each.task)), each.waiting] for each in found]
    for name, cells in (
        ("requires", [", ".join(each.requires) for each in found]),
        ("tags", [", ".join(each.tags) for each in found]),
        ("unique key", [each.unique_key for each in found]),
    ):
        if any(cells):
            columns.append(name)
            for row, cell in zip(rows, cells, strict=True):
                row.append(cell or None)
    print_table("Tasks", columns, rows, empty="no tasks are declared")


def _waits(limit_set: LimitSet) -> list[LimitWait]:
    return [
        LimitWait(bound.name, terms.on_limit, None if terms.max_wait is None else terms.max_wait / SECOND, terms.set_by)
        for bound in limit_set.limits
        if not bound.limit.rule.orders_turns
        for terms in (bound.wait_terms,)
    ]


def _limits(task: ListedTask, limit_set: LimitSet | None) -> str | None:
    described = {} if limit_set is None else {bound.name: bound.wait_terms.describe() for bound in limit_set.limits}
    return ", ".join(f"{name} ({how})" if (how := described.get(name)) else name for name in task.limits) or None
