"""`headgate jobs`: list, show, retry, run, reschedule, cancel and delete jobs, one by one or many."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import click
import msgspec
from msgspec import structs

from headgate.admin import Admin, Dependency, Explanation, JobDetails, Stretch
from headgate.admin.listed import JOB_COLUMNS
from headgate.cli.bulk import BulkChange, BulkWord, change_many, takes_many
from headgate.cli.enqueue import enqueue
from headgate.cli.exit_codes import INTERRUPTED
from headgate.cli.locate import (
    ask,
    ask_with_time,
    takes_app,
    takes_app_and,
    takes_app_and_ids,
)
from headgate.cli.output import (
    json_option,
    lasting,
    make_console,
    print_json,
    print_list,
    print_table,
    say_enqueued,
    until,
)
from headgate.cli.query import note_unknown, query_at, takes_query
from headgate.cli.times import instant, seconds
from headgate.clock import SystemClock, optional_datetime, sleep, to_datetime
from headgate.errors import HeadgateError, IllegalTransition, JobHeld, JobNotFound, PayloadError, StorageUnavailable
from headgate.escaping import indented, one_line, printable
from headgate.jobs.encoded import is_encoded, shown_encoded
from headgate.jobs.identity import job_number
from headgate.jobs.job import MAX_PRIORITY, JobOptions, JobRecord, JobState, Origin
from headgate.jobs.report import LogLine
from headgate.limits.key import shown_key
from headgate.plural import counted
from headgate.tasks.status import BatchStatus, JobStatus

T = TypeVar("T")

MOST_PAGES = 200
"""The most pages that are read for one list: a million jobs."""


ChangeJob = Callable[[Admin, str], Awaitable[str]]
"""Changes a job by its id, and returns what happened, as the command prints it. Raises HeadgateError if it cannot."""


@click.group()
def jobs() -> None:
    """List, show, enqueue, retry, run, reschedule, cancel and delete jobs."""


jobs.add_command(enqueue)


@jobs.command(name="list")
@takes_app
@takes_query
@click.option("--count", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The most jobs to list.")
@click.option("--before", metavar="ID", help="Only jobs enqueued before this one: the last id of the previous page.")
@click.option("--oldest-first", is_flag=True, help="Oldest first; then --before means after.")
@json_option
def list_(
    target: str, as_json: bool, criteria: dict[str, Any], count: int, before: str | None, oldest_first: bool
) -> None:
    """List jobs, newest first."""
    (found, is_cut), now = ask_with_time(
        target, lambda admin: _pages(admin, criteria, count, before, oldest_first=oldest_first)
    )
    if is_cut is not None:
        click.echo(f"Only part of the jobs was read; continue with --before {is_cut}.", err=True)
    print_list("Jobs", JOB_COLUMNS, found, as_json=as_json, state=_state, note=lambda job: _note(job, now))


@jobs.command()
@takes_app
@takes_query
@click.option("--most", type=click.IntRange(1), default=10_000, show_default=True, help="Stop counting here.")
@json_option
def count(target: str, as_json: bool, criteria: dict[str, Any], most: int) -> None:
    """Count jobs."""
    found = ask(target, lambda admin: admin.count(query_at(criteria, admin.now()), most=most))
    if as_json:
        print_json({"count": found, "is_cut": found >= most})
    else:
        click.echo(f"{found} or more" if found >= most else str(found))


@jobs.command()
@takes_app_and_ids
@click.option("--decode", is_flag=True, help="Decode payload and result, by the codecs of the app.")
@json_option
def show(target: str, ids: Sequence[str], decode: bool, as_json: bool) -> None:
    """Show jobs in full: why they wait, payload, result, limits, attempts, last log lines.

    For an encoded payload or result you see its codecs' names, unless you pass --decode and the app has the codecs.
    Exit code 1 if it cannot decode one of the jobs.

    With --json: an array, one object for each id.
    """
    refused: list[str] = []
    read_details = partial(_details, refused=refused if decode else None)
    found, now = ask_with_time(target, lambda admin: _each(admin, ids, partial(read_details, admin)))
    if as_json:
        print_json([each if isinstance(each, BatchStatus) else _as_data(each[0], each[1].reason) for each in found])
    for each in () if as_json else found:
        if isinstance(each, BatchStatus):
            click.echo(_batch_line(each))
        else:
            _print_details(*each, now)
    if refused:
        raise click.ClickException("; ".join(refused))


@jobs.command()
@takes_app_and_ids
@json_option
def explain(target: str, ids: Sequence[str], as_json: bool) -> None:
    """Explain why jobs have not started: the limit they wait for, their position, and when they will start."""
    found, now = ask_with_time(target, lambda admin: _each(admin, ids, admin.explain))
    if as_json:
        print_json(found)
        return
    for explanation in found:
        if isinstance(explanation, BatchStatus):
            click.echo(_batch_line(explanation))
            continue
        click.echo(f"{explanation.status.id} ({explanation.status.task}): {indented(explanation.reason)}")
        if explanation.limits:
            print_table(
                "",
                ("limit", "key", "rule", "used", "available", "opens"),
                [(e.limit, e.key, e.rule, e.used, e.available, until(e.next_slot_at, now)) for e in explanation.limits],
            )


@jobs.command()
@takes_many
@json_option
def retry(**given: Any) -> None:
    """Retry failed or cancelled jobs, with all their attempts: by their ids, or all that match the options.

    Prints the result for each id. Exit code 1 if one of them could not be retried, or if no job matched.
    """
    _change("retry", _retry, lambda admin: admin.retry_many, **given)


@jobs.command()
@takes_many
@json_option
def run(**given: Any) -> None:
    """Make scheduled jobs ready now. Their limits still apply.

    Prints the result for each id. Exit code 1 if one of them is not scheduled, or if no job matched.
    """
    made_ready = _by(Admin.run_now, "is ready now; it starts when its limits allow")
    _change("run", made_ready, lambda admin: admin.run_many_now, **given)


@jobs.command()
@takes_many
@click.option("--delay", type=seconds, metavar="TIME", help="Start not before this time from now: 90s, 15m, 2h.")
@click.option("--at", type=instant, metavar="INSTANT", help="Start not before this instant: 2026-05-01T08:00, in UTC.")
@click.option("--priority", type=click.IntRange(0, MAX_PRIORITY), help="Higher priorities start first in their lane.")
@json_option
def reschedule(delay: float | None, at: datetime | None, priority: int | None, **given: Any) -> None:
    """Change the time or the priority of waiting jobs: by their ids, or all that match the options.

    Their limits still apply. Prints the result for each id. Exit code 1 if one of them does not wait, or if no job
    matched that has another time or priority.
    """
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at exclude each other")
    if delay is None and at is None and priority is None:
        raise click.UsageError("add --delay, --at or --priority")

    async def change(admin: Admin, id: str) -> str:
        await admin.reschedule(id, at=at, delay=delay, priority=priority)
        status = await admin.status(id)
        when = f"until {status.run_at:%Y-%m-%d %H:%M:%S} UTC" if status.is_scheduled else "to run as soon as it can"
        return f"waits {when}, with priority {status.priority}"

    def by(admin: Admin) -> BulkChange:
        return partial(admin.reschedule_many, at=at, delay=delay, priority=priority)

    _change("reschedule", change, by, **given)


@jobs.command()
@takes_many
@json_option
def delete(**given: Any) -> None:
    """Delete final jobs for good, with their results, attempts and log lines: by their ids, or all that match.

    Kept are jobs that an unfinished job follows, or whose batch it follows, as it may read their results. Waiting and
    running jobs are not deleted; cancel them first. `headgate purge` deletes final jobs by their age. `headgate audit`
    shows the deletion. Exit code 1 if one of the ids could not be deleted, or if no job matched.
    """
    _change("delete", _by(Admin.delete, "deleted"), lambda admin: admin.purge, **given)


@jobs.command(name="run-again")
@takes_app_and("ID")
@click.option("--payload", metavar="JSON", help="Other arguments, as a JSON object; - reads it from stdin.")
@json_option
def run_again(target: str, id: str, payload: str | None, as_json: bool) -> None:
    """Enqueue a new job like this one, with the same or with other arguments. Prints the id of the new job.

    It has the task, queue, priority, headers and options of the old job, which stays as it is. The arguments are
    checked as in `jobs enqueue`.

    \b
      headgate jobs run-again shop:app 06qg52v2jj4pb --payload '{"tenant": "acme", "since": "2026-01-01"}'
    """
    given = sys.stdin.buffer.read() if payload == "-" else payload and os.fsencode(payload)
    new = ask(target, lambda admin: admin.run_again(id, given))
    say_enqueued(new, {"job": new.id, "run_again": id} if as_json else None)


@jobs.command()
@takes_many
@json_option
def cancel(**given: Any) -> None:
    """Cancel waiting jobs, and ask running ones to end: by their ids, or all that match the options.

    Prints the result for each id. Exit code 1 if one of them was final already or is unknown, or if no job matched.
    """
    _change("cancel", _cancel, lambda admin: admin.cancel_many, **given)


@jobs.command()
@takes_app_and("ID")
@click.option("--count", type=click.IntRange(1, 100_000), help="Only this many lines, the last ones.")
@click.option("-f", "--follow", is_flag=True, help="Follow until the job is final.")
@json_option
def logs(target: str, id: str, count: int | None, follow: bool, as_json: bool) -> None:
    """Show the log lines of a job, from all its attempts.

    With --json: an array; with --follow as well, one object a line.
    """
    if as_json and not follow:
        print_json([_line(line) for line in ask(target, lambda admin: _lines(admin, id, count))])
        return
    ask(target, lambda admin: _show_lines(admin, id, count, follow=follow, as_json=as_json))


# ------------------------------------------------------------------------------------------------ reading


async def _each(admin: Admin, ids: Sequence[str], read: Callable[[str], Awaitable[T]]) -> list[T | BatchStatus]:
    """Read each of these jobs; an id of a batch returns that."""
    found: list[T | BatchStatus] = []
    for id in ids:
        try:
            found.append(await read(id))
        except JobNotFound as error:
            try:
                found.append(await admin.batch(id))
            except JobNotFound:
                raise error from None
    return found


async def _details(admin: Admin, id: str, *, refused: list[str] | None) -> tuple[JobDetails, Explanation]:
    """Read a job; with `refused`, decode it, or add why it cannot be decoded."""
    details = await admin.job(id)
    if refused is not None:
        try:
            details = replace(details, record=await _decoded(admin, details.record))
        except (PayloadError, StorageUnavailable) as error:  # such as FolderUnavailable
            refused.append(f"job {id}: {error}")
    return details, await admin.explain(id)


async def _pages(
    admin: Admin, criteria: dict[str, Any], count: int, before: str | None, *, oldest_first: bool
) -> tuple[list[JobStatus], str | None]:
    """Return up to `count` jobs, and where to continue if reading stopped before that."""
    query = query_at(criteria, admin.now())
    if before is not None:
        await _require_cursor(admin, before)
    found: list[JobStatus] = []
    for _ in range(MOST_PAGES):
        page = await admin.page(query, before=before, count=count - len(found), oldest_first=oldest_first)
        found += [job.status for job in page.items]
        before = page.next
        if before is None or len(found) == count:
            if not found:
                note_unknown(admin, criteria)
            return found, None
    return found, before


async def _require_cursor(admin: Admin, id: str) -> None:
    try:
        await admin.status(id)
    except JobNotFound as error:
        if job_number(id) < 0:
            raise click.UsageError(f"--before takes the id of a job: {error}") from None
        # A job that was deleted since the page before keeps its place in the order.
        click.echo(printable(f"Note: {error}"), err=True)


async def _lines(admin: Admin, id: str, count: int | None) -> list[LogLine]:
    if count is not None:
        return list(await admin.logs(id, count=count, newest=True))
    found: list[LogLine] = []
    while page := await admin.logs(id, after=found[-1].number if found else 0, count=1000):
        found += page
    return found


async def _show_lines(admin: Admin, id: str, count: int | None, *, follow: bool, as_json: bool) -> None:
    clock = SystemClock()
    lines: Sequence[LogLine] = await _lines(admin, id, count)
    after = 0
    while True:
        for line in lines:
            after = line.number
            if as_json:
                print_json(_line(line), as_line=True)
            else:
                click.echo(_worded(line))
        if not follow:
            return
        # Read first: lines from before the end are stored by the time the end is visible.
        is_final = (await admin.status(id)).state.is_final
        lines = await admin.logs(id, after=after, count=1000)
        if not lines:
            if is_final:
                return
            await sleep(clock, 0.5)


def _by(verb: Callable[[Admin, str], Awaitable[object]], happened: str) -> ChangeJob:
    """Return the change that a verb of the admin makes, and what has happened then."""

    async def change(admin: Admin, id: str) -> str:
        await verb(admin, id)
        return happened

    return change


async def _retry(admin: Admin, id: str) -> str:
    await admin.retry(id)
    with suppress(StorageUnavailable, JobNotFound):  # it has been changed, whether or not the new state can be read
        if (await admin.status(id)).state is JobState.SKIPPED:
            return "is skipped: it is not needed after the end of what it follows"
    return "waits again"


async def _cancel(admin: Admin, id: str) -> str:
    if not await admin.cancel(id):
        raise IllegalTransition(f"not changed, it was already {(await admin.job(id)).status.state}")
    state = (await admin.status(id)).state
    if state is JobState.RUNNING:
        return "is running and was asked to end"
    return "cancelled" if state is JobState.CANCELLED else f"was asked to end, and then {state}"


def _change(
    word: BulkWord,
    change: ChangeJob,
    by: Callable[[Admin], BulkChange],
    *,
    target: str,
    ids: Sequence[str],
    as_json: bool,
    **many: Any,
) -> None:
    """Change the jobs with these ids one by one; without ids, all that the options select, with the verb `by`."""
    if not ids:
        change_many(target, word, by, as_json=as_json, **many)
        return
    if many["dry_run"]:
        raise click.UsageError("--dry-run is for jobs that options select; `headgate jobs show ID` shows one by its id")
    if many["criteria"] or many["is_all"]:
        raise click.UsageError("name jobs by ids or by options, not both")
    reports: list[dict[str, Any]] = []
    stopped: KeyboardInterrupt | StorageUnavailable | None = None

    async def all_of_them(admin: Admin) -> None:
        for id in ids:
            try:
                reports.append({"id": id, "ok": True, "happened": await change(admin, id)})
            except HeadgateError as error:
                if isinstance(error, StorageUnavailable) and not isinstance(error, JobHeld):
                    raise
                # An id that cannot be changed does not stop the others.
                reports.append({"id": id, "ok": False, "happened": str(error)})
        if word == "retry" and any(report["ok"] for report in reports):
            for report in reports:
                with suppress(JobNotFound):
                    # The job that it follows may have been retried after it.
                    if not report["ok"] and (await admin.status(report["id"])).is_blocked:
                        report.update(ok=True, happened="waits again, for the job it follows")

    try:
        ask(target, all_of_them)
    except (KeyboardInterrupt, StorageUnavailable) as error:
        if not reports and isinstance(error, StorageUnavailable):
            raise
        stopped = error
        click.echo(f"stopped: {len(reports)} of {counted(len(ids), 'job')} reported; the next may be changed", err=True)
    if as_json:
        print_json(reports)
    else:
        for report in reports:
            click.echo(one_line(f"{report['id']}: {report['happened']}"))
    if isinstance(stopped, KeyboardInterrupt):
        raise SystemExit(INTERRUPTED)
    if stopped is not None:
        raise stopped
    if not all(report["ok"] for report in reports):
        raise SystemExit(1)


# ----------------------------------------------------------------------------------------------- printing


def _batch_line(batch: BatchStatus) -> str:
    state = batch.state or "pending"
    return (
        f"{batch.id} is a batch, {state}: {batch.total - batch.pending} of {counted(batch.total, 'job')} final "
        f"({batch.succeeded} succeeded, {batch.failed} failed, {batch.cancelled} cancelled, {batch.skipped} skipped); "
        f"headgate jobs list --batch {batch.id} lists them"
    )


def _worded(line: LogLine) -> str:
    at = to_datetime(line.at).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    level = logging.getLevelName(line.level)
    return indented(f"{at} {level:<7} attempt {line.attempt} {line.logger}: {line.message}")


def _line(line: LogLine) -> dict[str, object]:
    return {**structs.asdict(line), "at": to_datetime(line.at), "level": logging.getLevelName(line.level)}


def _progress(job: JobStatus) -> str | None:
    said = job.progress
    return None if said is None else f"{said.fraction:.0%}{'' if said.message is None else f', {said.message}'}"


def _state(job: JobStatus) -> str:
    return job.state if job.view in (None, "ready") else f"waiting ({job.view})"


def _note(job: JobStatus, now: datetime) -> str | None:
    if job.unreadable is not None:
        return f"cannot be read: {job.unreadable}"
    if job.waits_for is not None:
        limit, key = job.waits_for
        when = until(job.throttled_until, now)
        opens = "waits for a permit" if when is None else f"opens {when}"
        return f"{limit} key {key!r} {opens}, {job.lane_waiting} wait"
    if job.is_blocked:
        return f"follows {job.follows}"
    if job.is_scheduled:
        return f"due {until(job.run_at, now)}"
    error = None if job.error is None else f"{job.error.type}: {job.error.message}"
    if error is not None and not job.state.is_final:
        error = f"last error: {error}"
    if job.state is not JobState.RUNNING:
        return error
    runs = f"runs for {lasting(max(0.0, (now - (job.started_at or now)).total_seconds()))}"
    return ", ".join(filter(None, (runs, _progress(job) or error)))


def _dependencies(jobs: Sequence[Dependency]) -> str | None:
    """Return the jobs and batches before or after a job as a line."""
    shown = [f"{each.id} ({each.task or 'batch'}, {each.state or 'deleted'})" for each in jobs]
    return ", ".join(shown) or None


def _as_data(details: JobDetails, reason: str) -> dict[str, object]:
    record = details.record
    origin, options = record.origin or Origin(), record.options or JobOptions()
    return {
        **asdict(details.status),
        "node": record.node,
        "expires_at": optional_datetime(record.expires_at),
        "unique_key": record.unique_key,
        "batch": origin.batch,
        "results": origin.results,
        "leaders": details.dependencies.leaders,
        "followers": details.dependencies.followers,
        "timeout": options.timeout,
        "retry": options.retry,
        "retention": options.retention,
        "cancel_requested": record.cancel_requested,
        "lost_attempts": record.lost,
        "payload": _as_json(record.payload),
        "result": _as_json(record.result),
        "headers": record.headers or {},
        "schedule": origin.schedule,
        "occurs_at": optional_datetime(origin.occurs_at),
        "limits": [{"limit": ref.limit, "key": shown_key(ref.key)} for ref in record.buckets],
        "audit": record.audit.word,
        "reason": reason,
        "attempts": [
            {**structs.asdict(each), "started_at": to_datetime(each.started_at), "ended_at": to_datetime(each.ended_at)}
            for each in details.attempts
        ],
        "timeline": details.timeline,
        "stretches": details.stretches,
        "last_lines": [_line(line) for line in details.last_lines],
    }


async def _decoded(admin: Admin, record: JobRecord) -> JobRecord:
    """Return a job with its payload and result in clear. Raises PayloadError, FolderUnavailable."""
    result = None if record.result is None else await admin.loaded(record.result)
    return structs.replace(record, payload=await admin.loaded(record.payload), result=result)


_STRETCHES = {
    "blocked": "blocked by what it follows",
    "scheduled": "scheduled for later",
    "backoff": "backoff before the retry",
    "final": "final, until it was retried",
    "not stored": "waiting, or attempts that are not stored",
}


def _stretch(each: Stretch) -> str:
    if each.kind == "attempt":
        return f"attempt {each.attempt} on {each.node or 'a node'}: {each.outcome or 'running'}"
    if not each.is_limited:
        return _STRETCHES.get(each.kind, each.kind)
    limit = "a limit" if each.limit is None else f"{each.limit} key {each.key!r}"
    return f"waiting, {'now for' if each.ends_at is None else 'delayed by'} {limit}"


def _length(each: Stretch) -> str | None:
    return "so far" if each.ends_at is None else lasting((each.ends_at - each.begins_at).total_seconds())


def _as_json(stored: str | None) -> object:
    """Return a stored payload or result for --json: JSON as it is, or a text for what is encoded, or is not JSON."""
    if stored is None or is_encoded(stored):
        return _as_text(stored)
    try:
        return msgspec.json.decode(stored, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        # Changed by hand, or nested too deeply to be read.
        return stored


def _as_text(stored: str | None) -> str | None:
    return shown_encoded(stored) if stored is not None and is_encoded(stored) else stored


def _overrides(record: JobRecord) -> Sequence[tuple[str, object]]:
    """Return the options in which the job differs from its task, and its own retention."""
    options = record.options
    if options is None:
        return ()
    retry = None if options.retry is None else msgspec.json.encode(options.retry).decode()
    kept = None if options.retention is None else msgspec.structs.asdict(options.retention)
    return (
        ("timeout", None if options.timeout is None else f"{options.timeout:g} s"),
        ("retries as", retry),
        ("kept for", kept and ", ".join(f"{_kept_for(seconds)} if {state}" for state, seconds in kept.items())),
        ("keeps its result", options.keep_result),
        ("starts at the latest", optional_datetime(options.latest_start)),
    )


def _kept_for(seconds: int | None) -> str:
    return "forever" if seconds is None else f"{seconds} s"


def _occurrence(origin: Origin) -> Sequence[tuple[str, object]]:
    """Return the schedule and the occurrence of the job, if it has one."""
    if origin.schedule is None:
        return ()
    return (("schedule", origin.schedule), ("occurrence", optional_datetime(origin.occurs_at)))


def _print_details(details: JobDetails, explained: Explanation, now: datetime) -> None:
    record, status = details.record, details.status
    origin = record.origin or Origin()
    print_table(
        f"Job {status.id}",
        ("", ""),
        [
            ("task", status.task),
            ("queue", status.queue),
            ("state", _state(status)),
            ("why", explained.reason),
            ("note", _note(status, now)),
            ("progress", _progress(status)),
            ("attempt", status.attempt),
            ("attempts lost with a node", record.lost),
            ("starts that a limit delayed", status.deferrals),
            ("priority", status.priority),
            ("enqueued", status.enqueued_at),
            ("enqueued by", status.enqueued_by),
            ("run at", status.run_at),
            ("started", status.started_at),
            ("finished", status.finished_at),
            ("node", record.node),
            ("expires", optional_datetime(record.expires_at)),
            ("unique key", record.unique_key),
            ("batch", origin.batch),
            ("follows", _dependencies(details.dependencies.leaders)),
            ("followed by", _dependencies(details.dependencies.followers)),
            *_overrides(record),
            *_occurrence(origin),
            ("limits", ", ".join(f"{ref.limit} key {shown_key(ref.key)!r}" for ref in record.buckets) or None),
            ("tags", ", ".join(status.tags) or None),
            ("annotations", status.annotations or None),
            ("headers", record.headers),
            ("payload", _as_text(record.payload)),
            ("results as arguments", origin.results),
            ("result", _as_text(record.result)),
        ],
    )
    print_table(
        "Its life",
        ("at", "what", "attempt", "node", "by", "details"),
        [(each.at, each.what, each.attempt, each.node, each.actor, each.detail) for each in details.timeline],
        empty="nothing",
    )
    print_table(
        "Where the time went",
        ("from", "what", "for"),
        [(each.begins_at, _stretch(each), _length(each)) for each in details.stretches],
        empty="nothing",
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
    )
    last = details.attempts[-1].error if details.attempts else status.error
    if last is not None and last.traceback is not None:
        make_console().print(indented(last.traceback))
    if details.last_lines:
        click.echo(f"Last log lines (all: headgate jobs logs {status.id})")
        for line in details.last_lines:
            click.echo(_worded(line))
