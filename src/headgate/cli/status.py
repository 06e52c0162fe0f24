"""`headgate status`: the state of the store on one screen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import click

from headgate.admin import (
    Admin,
    AlertStatus,
    BlockerStatus,
    BucketStatus,
    NodeStatus,
    Overview,
    QueueOverview,
    SlowCounts,
    UnknownTaskCount,
)
from headgate.admin.sentence import Sentence
from headgate.cli.alerts import print_alerts
from headgate.cli.locate import ask_with_time, takes_app
from headgate.cli.nodes import print_nodes
from headgate.cli.output import json_option, lasting, print_json, print_table, quiet, until
from headgate.cli.queues import print_queues
from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable
from headgate.escaping import printable
from headgate.jobs.state import JobState
from headgate.storage.records import Blocker
from headgate.tasks.status import ScheduleStatus
from headgate.views import view_of

COUNTS_FOR = 0.25
"""The most seconds for counting final jobs; millions take longer."""

STUCK_AFTER = 2.0
"""Seconds without an answer after which the command searches for what blocks the database."""


@dataclass(frozen=True, slots=True)
class WaitingStatus:
    """Counts of a queue's waiting jobs by what they wait for (time, limit, slot, another job), and recent failures.

    `undeclared` wait for a worker that declares their task. `failed_last_hour` is at most 10,000.
    """

    queue: str
    scheduled: int
    throttled: int
    ready: int
    blocked: int
    undeclared: int
    failed_last_hour: int


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a store, with its `verdict` in one to three sentences; `store` is its path, or URL without password.

    The final jobs of queues and `finals_at` are None if there are too many to count quickly.
    """

    store: str
    finals_at: datetime | None
    queues: Sequence[QueueOverview]
    nodes: Sequence[NodeStatus]
    throttled: Sequence[BucketStatus]
    blockers: Sequence[BlockerStatus]
    waiting: Sequence[WaitingStatus]
    unknown_tasks: Sequence[UnknownTaskCount]
    overdue_schedules: Sequence[ScheduleStatus]
    alerts: Sequence[AlertStatus]
    verdict: Sequence[Sentence]


@click.command()
@takes_app
@json_option
def status(target: str, as_json: bool) -> None:
    """Show the state: queues, nodes, limits, and what blocks the database.

    A node is alive, silent (no heartbeat for the lease) or gone (its process has ended; another node will take its
    jobs, or has done so when it was declared dead). Lag: how long the oldest ready job has waited for a free slot. What
    blocks the database, such as a long open transaction, is shown as well; pg_terminate_backend(pid) ends it.

    Final jobs are shown if they can be counted quickly; `headgate queues list` always counts them.
    """
    answer, now = ask_with_time(target, _fetch)
    if as_json:
        print_json(answer)
        return
    click.echo(printable(f"Store: {answer.store}"))
    for sentence in answer.verdict:
        click.echo(printable(str(sentence)))
    print_queues(answer.queues)
    if answer.finals_at is None:
        click.echo("There are too many final jobs to count quickly; `headgate queues list` counts them.")
    print_table(
        "Waiting for",
        (
            "queue",
            "a slot",
            "a limit",
            "their time",
            "another job",
            "a worker with their task",
            "failed in the last hour",
        ),
        [
            (w.queue, w.ready, w.throttled, w.scheduled, w.blocked, w.undeclared, w.failed_last_hour)
            for w in answer.waiting
        ],
        empty="nothing waits",
    )
    print_nodes(answer.nodes)
    if answer.alerts:
        print_alerts(answer.alerts)
    if answer.unknown_tasks:
        print_table(
            "Tasks that this app does not declare",
            ("task", "queue", "waiting"),
            [(each.task, each.queue, each.jobs) for each in answer.unknown_tasks],
        )
    if answer.overdue_schedules:
        print_table(
            "Overdue schedules",
            ("schedule", "task", "due at", "why"),
            [(each.name, each.task, each.next_run, each.problem) for each in answer.overdue_schedules],
        )
    print_table(
        "Throttled",
        ("limit", "key", "rule", "waiting", "next slot"),
        [(b.limit, b.key, b.rule, b.waiting, until(b.next_slot_at, now)) for b in answer.throttled],
        empty="no job waits for a limit",
    )
    if answer.blockers:
        print_table(
            "In the way",
            ("what", "pid", "for", "details"),
            [(o.kind, o.pid or None, lasting(o.age), str(o)) for o in answer.blockers],
        )


async def _fetch(admin: Admin) -> Status:
    """Return the status; if a lock blocks the database, the error names its holder."""
    counts = SlowCounts(SystemClock(), patience=COUNTS_FOR, queue_patience=None)
    # The output names counts that failed, so the log need not.
    with quiet():
        try:
            answering = asyncio.ensure_future(_answer(admin, counts))
            done, _ = await asyncio.wait([answering], timeout=STUCK_AFTER)
            blocking: list[Blocker] = []
            if not done:
                # Before the counts are cancelled: they may be what waits. Else they only take long, with 200,000 keys.
                blocking = [each for each in await admin.blockers() if each.kind == "blocks"]
                if blocking:
                    await counts.close()
            try:
                return await answering
            except StorageUnavailable as error:
                if not blocking:
                    raise
                ends = " (pid {}; pg_terminate_backend ends it)"
                who = "; ".join(f"{each}{ends.format(each.pid) if each.pid else ''}" for each in blocking)
                raise StorageUnavailable(f"{error}; {who}") from error
        finally:
            await counts.close()


async def _answer(admin: Admin, counts: SlowCounts) -> Status:
    seen = await admin.overview(counts)
    if seen.counted_at is None:
        # The count has failed or was cancelled. A table without its numbers would say that nothing waits.
        raise StorageUnavailable(f"the jobs that wait could not be counted in {seen.store}")
    return view_of(
        Status,
        seen,
        queues=[queue for queue in seen.queues if _has_jobs(queue) or queue.is_paused],
        nodes=await admin.nodes(lost=True),
        waiting=await _waiting(admin, seen),
    )


async def _waiting(admin: Admin, seen: Overview) -> list[WaitingStatus]:
    found: list[WaitingStatus] = []
    since = seen.now - timedelta(hours=1)
    for queue in seen.queues:
        failed = 0
        if queue.failed != 0:
            failed = await admin.count(state=JobState.FAILED, queue=queue.queue, finished_after=since)
        views = queue.scheduled, queue.throttled, queue.ready, queue.blocked, queue.undeclared
        if failed or any(views):
            found.append(WaitingStatus(queue.queue, *views, failed))
    return found


def _has_jobs(queue: QueueOverview) -> bool:
    """Return whether the queue has jobs, as far as they are counted."""
    finals = (queue.succeeded, queue.failed, queue.cancelled, queue.skipped)
    return any((queue.waiting, queue.running)) or any(count != 0 for count in finals)
