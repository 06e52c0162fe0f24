"""`headgate tasks`: list the tasks of an app."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from headgate.admin import Admin, DeclaredTask
from headgate.admin.readings import TASK_COLUMNS
from headgate.cli.locate import ask, locate, takes_app
from headgate.cli.output import json_option, print_list
from headgate.clock import SECOND
from headgate.tasks.limit_set import LimitSet


@dataclass(frozen=True, slots=True)
class LimitWait:
    """How jobs wait when a limit is closed: the mode, the most seconds, and what sets them."""

    limit: str
    on_limit: str
    max_wait: float | None
    set_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTask(DeclaredTask):
    """A task with the number of its waiting jobs. `waits` is how they wait for each of its limits, and its queue's."""

    waiting: int
    waits: Sequence[LimitWait]


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
        if waiting.total() >= 100_000:
            click.echo("More jobs may wait: these numbers are those of the first 100,000.", err=True)
        waits = {name: _waits(limit_set) for name, limit_set in limit_sets.items()}
        return [
            ListedTask(**asdict(task), waiting=waiting[task.task], waits=waits.get(task.task, []))
            for task in admin.declared_tasks
        ]

    found = ask(target, listed)
    print_list(
        "Tasks",
        TASK_COLUMNS,
        found,
        empty="no tasks are declared",
        as_json=as_json,
        limits=lambda task: _limits(task, limit_sets.get(task.task)),
    )


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
