"""Changing many jobs at once: count them, ask, and show the progress."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import click

from headgate.admin import Admin, BulkResult
from headgate.cli.exit_codes import INTERRUPTED
from headgate.cli.locate import ask, takes_app_and_maybe_ids
from headgate.cli.output import print_json, progress_bar
from headgate.cli.query import note_unknown, query_at, takes_query
from headgate.cli.question import confirm, require_answer
from headgate.errors import HeadgateError
from headgate.escaping import printable
from headgate.plural import counted

BulkWord = Literal["retry", "run", "reschedule", "cancel", "delete"]
BulkChange = Callable[..., Awaitable[BulkResult]]
"""Changes many jobs, or counts them: takes `most`, `dry_run` and `on_progress`, as `Admin.cancel_many` does."""


class _BulkWords(NamedTuple):
    question: str
    done: str
    would: str
    again: str = "repeat the command"
    """How to change those that are beyond the maximum."""


_WORDS = {
    "cancel": _BulkWords("Cancel {}?", "cancelled or asked to end", "would be cancelled or asked to end"),
    "retry": _BulkWords("Retry {}?", "waiting again", "would wait again"),
    "run": _BulkWords("Run {}?", "made ready", "would be made ready"),
    "reschedule": _BulkWords(
        "Reschedule {}?", "rescheduled", "would be rescheduled", "repeat the command, with --at in place of --delay"
    ),
    "delete": _BulkWords("Delete {} for good?", "deleted", "would be deleted"),
}


def takes_many(function: Callable[..., None]) -> Callable[..., None]:
    """Add arguments for jobs by their ids, and options that select many."""
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Change nothing; print what would be changed."),
        click.option("--most", type=click.IntRange(1), default=10_000, show_default=True, help="The most to change."),
        click.option("--all", "is_all", is_flag=True, help="All jobs that the other options select."),
        takes_query,
        takes_app_and_maybe_ids,
    ):
        function = option(function)
    return function


def change_many(
    target: str,
    word: BulkWord,
    by: Callable[[Admin], BulkChange],
    *,
    criteria: dict[str, Any],
    is_all: bool,
    **given: Any,
) -> None:
    """Change all jobs that the options select, with the verb `by`, which the word names; exit code 1 if none was.

    The other options are those of `count_and_change`.
    """
    if not criteria and not is_all:
        raise click.UsageError(
            "name at least one job by its id, select jobs by options such as --state failed, or add --all"
        )

    async def change(admin: Admin, **options: Any) -> BulkResult:
        result = await by(admin)(query_at(criteria, admin.now()), **options)
        if not result.changed:
            note_unknown(admin, criteria)
        return result

    count_and_change(target, word, change, **given)


def count_and_change(
    target: str, word: BulkWord, verb: BulkChange, *, most: int, as_json: bool, dry_run: bool, yes: bool
) -> None:
    """Count the jobs that the verb would change, ask, and change so many. Exit code 1 if none was changed."""
    require_answer(as_json=as_json, yes=yes, dry_run=dry_run)

    latest = BulkResult()

    async def change(admin: Admin, *, dry_run: bool, expected: int | None = None) -> BulkResult:
        def note(result: BulkResult) -> None:
            nonlocal latest
            latest = result
            advance(result.changed)

        with progress_bar(word.capitalize(), expected, shown=not dry_run and not as_json) as advance:
            return await verb(admin, most=most, dry_run=dry_run, on_progress=note)

    result = BulkResult()
    if dry_run or not yes:
        result = ask(target, partial(change, dry_run=True))
        if not dry_run and result.changed:
            more = " (more match)" if result.is_cut else ""
            confirm(_WORDS[word].question.format(f"{counted(result.changed, 'job')}{more}"), has_dry_run=True)
            # Others may match by now, and nobody has agreed to change them.
            most = result.changed
    if not dry_run and (yes or result.changed):
        expected, latest = result.changed or None, BulkResult()
        try:
            result = ask(target, partial(change, dry_run=False, expected=expected))
        except (KeyboardInterrupt, HeadgateError) as stopped:
            is_interrupted = isinstance(stopped, KeyboardInterrupt)
            if is_interrupted or latest.changed:
                # The last commit may have succeeded without an answer.
                done = f"at least {counted(latest.changed, 'job')} {_WORDS[word].done}"
                click.echo(f"stopped: {done}; {_WORDS[word].again} for the rest", err=True)
            if not is_interrupted:
                raise
            raise SystemExit(INTERRUPTED) from None
    if as_json:
        print_json(result)
    else:
        words = _WORDS[word]
        click.echo(f"{counted(result.changed, 'job')} {words.would if result.is_dry_run else words.done}")
        for reason, times in result.refused.items():
            click.echo(printable(f"{counted(times, 'job')} not changed: {reason}"))
        if result.is_cut:
            click.echo(f"more jobs match; {words.again}, or raise --most")
    if not result.changed:
        raise SystemExit(1)
