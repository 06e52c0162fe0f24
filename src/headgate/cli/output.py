"""Printing: tables for people, JSON for programs; and silence of the log.

Functions that lay out tables import Rich; a script that reads JSON does not load it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from headgate.escaping import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from headgate.admin import EnqueuedJob
    from headgate.admin.columns import Column

T = TypeVar("T")

WIDE = 400
"""The width without a terminal; a table that needs more has plain lines there."""

MANY = 500
"""The most rows of a table; more are printed as plain lines."""

LEAST_COLUMN = 8
"""The narrowest readable column."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def print_json(answer: object, *, as_line: bool = False) -> None:
    """Print an answer as indented JSON, or as one line; instants are ISO 8601 in UTC.

    Characters that the output has no encoding for, and those that could control a terminal, are escaped as in JSON.
    """
    try:
        text = msgspec.json.encode(answer).decode()
    except UnicodeEncodeError:
        # An argument that is not UTF-8 has halves of surrogate pairs, which msgspec neither encodes nor formats.
        click.echo(json.dumps(msgspec.to_builtins(answer), indent=None if as_line else 2))
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = _NOT_ASCII.sub(partial(_escaped_in_json, encoding=encoding), text)
    with suppress(RecursionError):
        # What is nested too deeply for it is printed as one line.
        text = text if as_line else msgspec.json.format(text, indent=2)
    click.echo(text)


_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
"""Only in the strings of a JSON text."""


def _escaped_in_json(found: re.Match[str], encoding: str) -> str:
    with suppress(UnicodeEncodeError):
        if found[0].isprintable() and found[0].encode(encoding):
            return found[0]
    return json.dumps(found[0])[1:-1]


def print_list(
    title: str,
    columns: Sequence[Column],
    records: Sequence[T],
    *,
    empty: str = "none",
    as_json: bool = False,
    now: datetime | None = None,
    **cells: Callable[[T], object],
) -> None:
    """Print records as JSON, or under their columns as a table.

    `cells` return the values that are not a field, as the table shows them. `now` is needed for a column of the kind
    `until`.
    """
    if as_json:
        print_json(records)
        return
    shown: list[str] = []
    values: list[list[object]] = []
    for column in columns:
        if column.only != "dashboard":
            cell = cells.get(column.name) or partial(_cell, column, now)
            found = [cell(record) for record in records]
            if not column.is_rare or any(found):
                shown.append(column.label.lower())
                values.append(found)
    ids = [column.label.lower() for column in columns if column.kind == "id"]
    print_table(title, shown, list(zip(*values, strict=True)), empty=empty, firm=ids)


def _cell(column: Column, now: datetime | None, record: object) -> object:
    value: Any = getattr(record, column.name)
    if value is None or value == "":
        return None
    match column.kind:
        case "names":
            return ", ".join(value) or None
        case "duration":
            return lasting(value)
        case "age":
            return f"{lasting(value)} ago"
        case "until" if now is not None:
            return until(value, now)
        case _:
            return value


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    empty: str = "none",
    firm: Collection[str] = (),
) -> None:
    """Print rows under their columns, or `empty` if there are none; NO_COLOR is respected.

    If instants and the columns that are `firm` leave too little room for the others, each row is a block of lines
    instead.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console, title = make_console(), one_line(title)
    if not rows:
        console.print(Text(f"{title}: {empty}"))
        return
    # Nothing is folded in a pipe: other programs read it by lines.
    if len(rows) > MANY or (not sys.stdout.isatty() and _width(columns, rows) > WIDE):
        _print_plainly(title, columns, rows)
        return
    # Ids and instants are copied and compared, so other columns are folded first. Without headings, a column has facts
    # of all kinds, and the longest of them would be cut.
    is_firm = [
        column in firm or (column != "" and any(isinstance(row[at], datetime) for row in rows))
        for at, column in enumerate(columns)
    ]
    if any(columns) and _least_width(is_firm, rows) > console.width:
        _print_blocks(console, title, columns, rows)
        return
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if any(columns) else None,
        show_header=any(columns),
        pad_edge=False,
    )
    for column, is_whole in zip(columns, is_firm, strict=True):
        table.add_column(column, no_wrap=is_whole, overflow="fold")
    for row in rows:
        table.add_row(*(as_text(cell) for cell in row))
    console.print(table)


def _width(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    """Return the width of a table of which no cell is folded."""
    return sum(max(as_text(cell).cell_len for cell in cells) + 3 for cells in zip(columns, *rows, strict=True))


def _least_width(is_firm: Sequence[bool], rows: Sequence[Sequence[object]]) -> int:
    """Return the width that a readable table needs."""
    widths = [
        max(len(as_text(row[at])) for row in rows) if is_whole else LEAST_COLUMN for at, is_whole in enumerate(is_firm)
    ]
    return sum(widths) + 2 * len(widths)


def _print_blocks(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.text import Text

    console.print(Text(title, style="bold"))
    width = max(map(len, columns))
    for row in rows:
        console.print()
        for column, cell in zip(columns, row, strict=True):
            if cell is not None:
                console.print(Text.assemble((f"{column:<{width}}  ", "dim"), as_text(cell)))
    console.print()


def _print_plainly(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned lines: laying out thousands of rows as a table takes seconds."""
    lines = [*([list(columns)] if any(columns) else []), *([as_text(cell).plain for cell in row] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    text = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    click.echo("\n".join([title, *text]))


def say_done(done: str, *, as_json: bool, **facts: object) -> None:
    """Print what was done, in words or as JSON."""
    if as_json:
        print_json(facts)
    else:
        click.echo(printable(done))


@contextmanager
def printing_of(job_id: str) -> Iterator[None]:
    """Print the id on stderr if the output fails: the job is stored, and a repeated command would store another."""
    try:
        yield
    except OSError:
        click.echo(f"job {job_id} is enqueued", err=True)
        raise


def say_enqueued(job: EnqueuedJob, facts: Mapping[str, object] | None) -> None:
    """Print the id of a job that a command has enqueued; with facts, print these as JSON."""
    with printing_of(job.id):
        if facts is not None:
            print_json({**facts, "is_new": job.is_new})
            return
        click.echo(job.id)
    if not job.is_new:
        click.echo("no new job was enqueued: this one was there, with its unique key or its id", err=True)


def say_change(changed: bool, done: str, not_done: str, *, as_json: bool, **facts: object) -> None:
    """Print `done`, or print `not_done` and end with exit code 1."""
    say_done(done if changed else not_done, as_json=as_json, **facts, changed=changed)
    if not changed:
        raise SystemExit(1)


@contextmanager
def progress_bar(title: str, total: int | None, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if that is a terminal. Yields a function that takes the number done."""
    if not shown or not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log: an engine for a measurement or a simulation has no news for the user."""
    logger = logging.getLogger("headgate")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def make_console() -> Console:
    """Return a console on the current standard output; text is printed as it is, without markup."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False, markup=False, emoji=False)


def as_text(cell: object) -> Text:
    """Return a cell as plain text; markup and control characters in names and keys have no effect."""
    from rich.text import Text

    match cell:
        case None:
            return Text("-", style="dim")
        case Text():
            return cell
        case datetime():
            return Text(cell.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z"))
        case _:
            return Text(one_line(str(cell)))


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that so many percent of all do not exceed; 0 without values."""
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def lasting(seconds: float | None) -> str | None:
    """Return a duration in a few characters."""
    if seconds is None:
        return None
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def counted_ago(counted_at: datetime | None, now: datetime) -> str | None:
    """Return the age of a count in words; None for one of the last second, and for none."""
    age = 0.0 if counted_at is None else (now - counted_at).total_seconds()
    return None if age <= 1 else f"counted {lasting(age)} ago"


def until(instant: datetime | None, now: datetime) -> str | None:
    """Return the time until an instant in a few characters."""
    return None if instant is None else f"in {lasting(max(0.0, (instant - now).total_seconds()))}"
