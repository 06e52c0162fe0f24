"""`headgate jobs enqueue`: enqueue jobs, checked as in a program."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, cast, get_args

import click

from headgate.admin import EnqueuedJob
from headgate.admin.enqueueing import call_of, declared_task
from headgate.app import Headgate
from headgate.cli.exit_codes import INTERRUPTED
from headgate.cli.locate import locate, require_shared, takes_app_and
from headgate.cli.output import json_option, print_json, progress_bar, say_enqueued
from headgate.cli.times import instant, seconds
from headgate.engine.enqueuer import StoredCall
from headgate.errors import CostExceedsLimit, HeadgateError, JobNotFound, PayloadError, StorageUnavailable
from headgate.jobs.audit import AuditRecord, AuditWord
from headgate.jobs.job import MAX_PRIORITY, OnConflict
from headgate.jobs.retention import OwnRetention
from headgate.jobs.retry import RetryPolicy
from headgate.plural import counted
from headgate.tasks.call import Call
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.options import EnqueueOptions

CHUNK = 500
"""The jobs of one commit, with --payloads."""


def _headers(_context: click.Context, _parameter: click.Parameter, given: Sequence[str]) -> dict[str, str] | None:
    for text in given:
        if "=" not in text:
            raise click.BadParameter(f"{text!r} is not NAME=TEXT, such as source=import")
    return dict(text.split("=", 1) for text in given) or None


def _retention(given: str) -> OwnRetention:
    if "=" not in given:
        return given
    parts = [part.partition("=") for part in given.split(",")]
    return {state.strip(): kept.strip() for state, _, kept in parts}


@click.command()
@takes_app_and("TASK")
@click.option("--payload", metavar="JSON", help="The arguments as a JSON object; - reads it from stdin.")
@click.option(
    "--payloads",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="Enqueue one job for each line in this file, or on stdin (-): a JSON object.",
)
@click.option("--queue", metavar="NAME", help="The queue, instead of the task's.")
@click.option("--delay", type=seconds, metavar="TIME", help="Start not before this time from now: 90s, 15m, 2h.")
@click.option("--at", type=instant, metavar="INSTANT", help="Start not before this instant: 2026-05-01T08:00, in UTC.")
@click.option("--priority", type=click.IntRange(0, MAX_PRIORITY), help="Higher priorities start first in their lane.")
@click.option("--expires-at", type=instant, metavar="INSTANT", help="Fail the job if it has not started by then.")
@click.option("--expires-in", type=seconds, metavar="TIME", help="The same, from when it may start: 90s, 15m, 2h.")
@click.option("--timeout", type=seconds, metavar="TIME", help="The timeout of each attempt.")
@click.option("--unique-key", metavar="KEY", help="At most one job of the task waits with this key.")
@click.option(
    "--on-conflict", type=click.Choice(get_args(OnConflict)), help="Set how to handle a second job with the key."
)
@click.option("--unique-for", type=seconds, metavar="TIME", help="How long the key stays taken, however the job ends.")
@click.option("--debounce", type=seconds, metavar="TIME", help="Start this time after the last enqueue with the key.")
@click.option("--debounce-max", type=seconds, metavar="TIME", help="Debounce for at most this time.")
@click.option("--id", metavar="UUID", help="The id of the job: if the task has a job with it, nothing is stored.")
@click.option("--header", "headers", multiple=True, metavar="NAME=TEXT", callback=_headers, help="Repeatable.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Repeatable; added to the task's.")
@click.option("--retries", type=click.IntRange(0), help="How often a failed attempt is repeated.")
@click.option(
    "--retention",
    metavar="TIME",
    type=_retention,
    help="How long it is kept after its end: 1h, 0, forever, or succeeded=0,failed=30d.",
)
@click.option("--keep-result/--no-keep-result", default=None, help="Whether what the task returns is stored.")
@click.option("--audit", type=click.Choice(get_args(AuditWord)), help="How much of its life is kept.")
@click.option(
    "--unique-while",
    type=click.Choice(["waiting", "waiting,running"]),
    callback=lambda _context, _parameter, given: None if given is None else given.split(","),
    help="In which states a job holds the key.",
)
@click.option("--dry-run", is_flag=True, help="Enqueue nothing; check arguments, keys and costs.")
@json_option
def enqueue(
    target: str,
    task: str,
    payload: str | None,
    payloads: Path | None,
    dry_run: bool,
    as_json: bool,
    retries: int | None,
    **options: Any,
) -> None:
    """Enqueue a job of TASK, or many, and print the id of each.

    The arguments are checked against the signature of the task, as in `enqueue`; write dates, models and so on as
    `headgate jobs show` prints them. With --json: the job as in `jobs list`; with --payloads the count and the ids.

    --payloads stores 500 jobs in a commit. An invalid line ends the command: it reports the jobs enqueued before, which
    stay. Ctrl-C ends it after the current commit, whose jobs are reported. --dry-run only checks the lines.

    \b
      headgate jobs enqueue shop:app sync --payload '{"tenant": "acme"}' --delay 5m
      psql db -At -c "SELECT json_build_object('tenant', id) FROM tenants" |
          headgate jobs enqueue shop:app sync --payloads -
    """
    if payload is not None and payloads is not None:
        raise click.UsageError("--payload and --payloads exclude each other")
    for name in ("unique_key", "id"):
        if payloads is not None and options[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} does not go with --payloads: all lines would be one job")
    app = require_shared(locate(target))
    if retries is not None:
        options["retry"] = RetryPolicy(retries=retries)
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    chosen = app._registry.with_options(declared_task(app._registry, task), cast(EnqueueOptions, given))
    if payloads is not None:
        _enqueue_many(app, chosen, payloads, dry_run=dry_run, as_json=as_json)
    else:
        # As it was given, also if the locale lacks its characters.
        text = sys.stdin.buffer.read() if payload == "-" else os.fsencode("{}" if payload is None else payload)
        _enqueue_one(app, chosen, _call(app, chosen, text), dry_run=dry_run, as_json=as_json)


def _call(app: Headgate, task: TaskDefinition, text: str | bytes) -> Call[Any]:
    """Return the checked call of a payload. Raises PayloadError, CostExceedsLimit."""
    call = call_of(task, text)
    app._client.check(task, call)
    return call


# ------------------------------------------------------------------------------------------------- one


def _enqueue_one(app: Headgate, task: TaskDefinition, call: Call[Any], *, dry_run: bool, as_json: bool) -> None:
    async def stored() -> tuple[EnqueuedJob, Mapping[str, object] | None]:
        async with app.open(migrate=False):
            job = await app.admin._enqueue_call(task, call)
            try:
                return job, asdict(await app.admin.status(job.id)) if as_json else None
            except JobNotFound:
                # Its unique key stays taken, or it has ended and is not kept.
                return job, {"id": job.id}

    if dry_run:
        _print_dry_run(1, as_json=as_json)
        return
    say_enqueued(*asyncio.run(stored()))


def _print_dry_run(count: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"would_enqueue": count})
    else:
        click.echo(f"{counted(count, 'job')} would be enqueued")


# ------------------------------------------------------------------------------------------------ many


def _enqueue_many(app: Headgate, task: TaskDefinition, source: Path, *, dry_run: bool, as_json: bool) -> None:
    total = None
    # What is read from a pipe cannot be read again.
    if source.is_file():
        with source.open("rb") as lines:
            total = sum(1 for line in lines if line.strip())
    jobs: list[StoredCall] = []
    read = 0
    try:
        with (
            click.open_file(str(source), "rb") as lines,
            progress_bar("Enqueue", total, shown=not as_json) as advance,
        ):
            calls = _calls(app, task, lines)
            if dry_run:
                for _ in calls:
                    advance(read := read + 1)
            else:
                _store(app, task, calls, jobs, advance, print_ids=not as_json)
        old = sum(not job.is_new for job in jobs)
        if as_json and not dry_run:
            print_json({"enqueued": len(jobs) - old, "ids": [job.id for job in jobs]})
        if old:
            click.echo(f"{counted(old, 'line')} enqueued no new job: one with the same unique key was there", err=True)
    except (HeadgateError, OSError, KeyboardInterrupt) as stopped:
        # OSError: the output of the ids is closed or full.
        if not dry_run:
            is_unknown = isinstance(stopped, (_Interrupted, StorageUnavailable))
            unknown = "; the jobs of the following lines may be, too" if is_unknown else ""
            click.echo(f"stopped: {counted(len(jobs), 'job')} of the first lines enqueued{unknown}", err=True)
        if not isinstance(stopped, KeyboardInterrupt):
            raise
        raise SystemExit(INTERRUPTED) from None
    if dry_run:
        _print_dry_run(read, as_json=as_json)


def _store(
    app: Headgate,
    task: TaskDefinition,
    calls: Iterator[Call[Any]],
    stored: list[StoredCall],
    advance: Callable[[int], None],
    *,
    print_ids: bool,
) -> None:
    queue = task.options.get("queue") or task.queue
    with asyncio.Runner() as runner:
        opened = app.open(migrate=False)
        runner.run(opened.__aenter__())
        try:
            # Lines are read outside of the loop, where Ctrl-C would wait for the next line.
            while chunk := list(islice(calls, CHUNK)):
                with _interrupts_later():
                    jobs = runner.run(app._client.enqueue(task, chunk))
                    stored += jobs
                    advance(len(stored))
                    if print_ids:
                        click.echo("\n".join(job.id for job in jobs))
                    if new := sum(job.is_new for job in jobs):
                        detail = f"{counted(new, 'job')} of task {task.name}"
                        record = AuditRecord(app.admin.actor, "enqueue", "queue", queue, detail)
                        runner.run(app._storage.add_audit_record(record))
        finally:
            runner.run(opened.__aexit__(None, None, None))


class _Interrupted(KeyboardInterrupt):
    """The second Ctrl-C: the current commit may succeed or not."""


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Delay Ctrl-C until the current commit is reported; a second one does not wait."""
    is_asked = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            raise _Interrupted
        is_asked = True

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        # In the background of a script it is ignored, and stays so.
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_asked:
        raise KeyboardInterrupt


def _calls(app: Headgate, task: TaskDefinition, lines: Iterable[bytes]) -> Iterator[Call[Any]]:
    """Yield a call for each line that is not empty. PayloadError and CostExceedsLimit name the invalid line."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _call(app, task, line)
            except (PayloadError, CostExceedsLimit) as error:
                raise type(error)(f"line {number}: {error}") from None
