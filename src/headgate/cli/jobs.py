"""`headgate jobs`: find jobs, look into them, let them run again, cancel them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import click
import msgspec

from headgate.admin import Admin, Explanation, JobDetails
from headgate.cli.locate import ask, ask_with_time, takes_app, takes_app_and_ids
from headgate.cli.output import json_option, make_console, print_json, print_table, printable, until
from headgate.clock import to_datetime
from headgate.errors import HeadgateError
from headgate.jobs.job import Attempt, JobState
from headgate.tasks.handle import JobStatus


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one job that a command was asked to change."""

    id: str
    ok: bool
    happened: str


@click.group()
def jobs() -> None:
    """List, show, retry and cancel jobs."""


@jobs.command(name="list")
@takes_app
@click.option("--state", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state.")
@click.option("--queue", metavar="NAME", help="Only jobs of this queue.")
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@click.option("--limit", metavar="NAME", help="Only jobs that draw on this limit.")
@click.option("--key", help="Only jobs that draw on a limit for this key.")
@click.option("--count", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--before", metavar="ID", help="Only jobs enqueued before this one: the last id of the page before.")
@json_option
def list_(target: str, as_json: bool, state: str | None, **wanted: Any) -> None:
    """List jobs, newest first."""
    only = None if state is None else JobState(state)
    found, now = ask_with_time(target, lambda admin: admin.jobs(state=only, **wanted))
    if as_json:
        print_json(found)
        return
    print_table(
        "Jobs",
        ("id", "task", "queue", "state", "attempt", "enqueued", "note"),
        [(job.id, job.task, job.queue, _state(job), job.attempt, job.enqueued_at, _note(job, now)) for job in found],
        empty="none",
    )


@jobs.command()
@takes_app_and_ids
@json_option
def show(target: str, ids: Sequence[str], as_json: bool) -> None:
    """Show everything that is known of jobs: payload, result, limits, and the attempts that did not succeed.

    With --json: an array, one object for each id.
    """
    found, now = ask_with_time(target, partial(_details, ids=ids))
    if as_json:
        print_json([_as_data(details) for details in found])
        return
    for details in found:
        _print_details(details, now)


@jobs.command()
@takes_app_and_ids
@json_option
def explain(target: str, ids: Sequence[str], as_json: bool) -> None:
    """Say why jobs have not started: the limit they wait for, their place, and when they will start."""
    found, now = ask_with_time(target, partial(_explanations, ids=ids))
    if as_json:
        print_json(found)
        return
    for explanation in found:
        click.echo(f"{explanation.status.id} ({explanation.status.task}): {printable(explanation.reason)}")
        if explanation.limits:
            print_table(
                "",
                ("limit", "key", "rule", "used", "available", "opens"),
                [(e.limit, e.key, e.rule, e.used, e.available, until(e.opens_at, now)) for e in explanation.limits],
                empty="",
            )


@jobs.command()
@takes_app_and_ids
@json_option
def retry(target: str, ids: Sequence[str], as_json: bool) -> None:
    """Let failed or cancelled jobs wait again, with all their tries.

    Says for each id what happened. Exit code 1 if any of them could not be retried.
    """
    _change(target, ids, _retry, as_json=as_json)


@jobs.command()
@takes_app_and_ids
@json_option
def cancel(target: str, ids: Sequence[str], as_json: bool) -> None:
    """Cancel waiting jobs, and ask running ones to end.

    Says for each id what happened. Exit code 1 if any of them was final already, or is not known.
    """
    _change(target, ids, _cancel, as_json=as_json)


# ------------------------------------------------------------------------------------------------- asking


async def _details(admin: Admin, *, ids: Sequence[str]) -> list[JobDetails]:
    return [await admin.job(id) for id in ids]


async def _explanations(admin: Admin, *, ids: Sequence[str]) -> list[Explanation]:
    return [await admin.explain(id) for id in ids]


async def _retry(admin: Admin, id: str) -> Report:
    await admin.retry(id)
    return Report(id, True, "waits again")


async def _cancel(admin: Admin, id: str) -> Report:
    if not await admin.cancel(id):
        return Report(id, False, f"nothing changed: it was final already, {(await admin.job(id)).status.state}")
    if (await admin.job(id)).status.state is JobState.RUNNING:
        return Report(id, True, "is running, and was asked to end")
    return Report(id, True, "cancelled")


def _change(
    target: str, ids: Sequence[str], change: Callable[[Admin, str], Awaitable[Report]], *, as_json: bool
) -> None:
    async def all_of_them(admin: Admin) -> list[Report]:
        reports: list[Report] = []
        for id in ids:
            try:
                reports.append(await change(admin, id))
            except HeadgateError as error:
                # One id that cannot be changed must not keep the others from it.
                reports.append(Report(id, False, str(error)))
        return reports

    reports = ask(target, all_of_them)
    if as_json:
        print_json(reports)
    else:
        for report in reports:
            click.echo(printable(f"{report.id}: {report.happened}"))
    if not all(report.ok for report in reports):
        raise SystemExit(1)


# ----------------------------------------------------------------------------------------------- printing


def _state(job: JobStatus) -> str:
    if job.state is JobState.WAITING:
        if job.throttled_until is not None:
            return "waiting (throttled)"
        if job.is_scheduled:
            return "waiting (scheduled)"
    return job.state


def _note(job: JobStatus, now: datetime) -> str | None:
    if job.waits_for is not None:
        limit, key = job.waits_for
        return f"{limit} key {key!r} opens {until(job.throttled_until, now)}, {job.lane_waiting} wait"
    if job.is_scheduled:
        return f"due {until(job.run_at, now)}"
    if job.error is not None and not job.state.is_final:
        return f"last error: {job.error.type}: {job.error.message}"
    return None if job.error is None else f"{job.error.type}: {job.error.message}"


def _as_data(details: JobDetails) -> dict[str, object]:
    record, status = details.record, details.status
    return {
        **{name: getattr(status, name) for name in JobStatus.__dataclass_fields__},
        "node": record.node,
        "expires_at": None if record.expires_at is None else to_datetime(record.expires_at),
        "cancel_requested": record.cancel_requested,
        "lost_attempts": record.lost,
        "payload": msgspec.Raw(record.payload.encode()),
        "result": None if record.result is None else msgspec.Raw(record.result.encode()),
        "headers": record.headers or {},
        "limits": [{"limit": draw.limit, "key": draw.key} for draw in record.draws],
        "attempts": [_attempt(attempt) for attempt in details.attempts],
    }


def _attempt(attempt: Attempt) -> dict[str, object]:
    return {
        "number": attempt.number,
        "node": attempt.node,
        "started_at": to_datetime(attempt.started_at),
        "ended_at": to_datetime(attempt.ended_at),
        "outcome": attempt.outcome,
        "error": attempt.error,
    }


def _print_details(details: JobDetails, now: datetime) -> None:
    record, status = details.record, details.status
    print_table(
        f"Job {status.id}",
        ("", ""),
        [
            ("task", status.task),
            ("queue", status.queue),
            ("state", _state(status)),
            ("note", _note(status, now)),
            ("attempt", status.attempt),
            ("attempts lost with a node", record.lost),
            ("priority", status.priority),
            ("enqueued", status.enqueued_at),
            ("run at", status.run_at),
            ("started", status.started_at),
            ("finished", status.finished_at),
            ("node", record.node),
            ("limits", ", ".join(f"{draw.limit} key {draw.key!r}" for draw in record.draws) or None),
            ("headers", record.headers),
            ("payload", record.payload),
            ("result", record.result),
        ],
        empty="",
    )
    print_table(
        "Attempts that did not succeed",
        ("number", "node", "started", "ended", "outcome", "error"),
        [
            (
                attempt.number,
                attempt.node,
                to_datetime(attempt.started_at),
                to_datetime(attempt.ended_at),
                attempt.outcome,
                None if attempt.error is None else f"{attempt.error.type}: {attempt.error.message}",
            )
            for attempt in details.attempts
        ],
        empty="none",
    )
    last = details.attempts[-1].error if details.attempts else status.error
    if last is not None and last.traceback is not None:
        make_console().print(printable(last.traceback), markup=False)
