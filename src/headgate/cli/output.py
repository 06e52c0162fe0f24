"""How answers are printed: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 400
"""Columns where there is no terminal: nothing is cut for whoever reads the output of a pipe."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def print_json(answer: object) -> None:
    """Print an answer as indented JSON; instants are ISO 8601 in UTC."""
    click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Print rows under their columns, or one line that says there are none; NO_COLOR is respected."""
    console = make_console()
    if not rows:
        console.print(Text(f"{title}: {empty}"))
        return
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if any(columns) else None,
        show_header=any(columns),
        pad_edge=False,
    )
    for column in columns:
        # Ids are there to be copied; other columns give way first.
        table.add_column(column, no_wrap=column == "id", overflow="fold")
    for row in rows:
        table.add_row(*(as_text(cell) for cell in row))
    console.print(table)


def make_console() -> Console:
    """A console on the standard output as it is now."""
    is_terminal = sys.stdout.isatty()
    return Console(width=None if is_terminal else WIDE, highlight=False)


def as_text(cell: object) -> Text:
    """A cell as plain text: names and keys are data, so neither markup nor control characters in them work."""
    match cell:
        case None:
            return Text("-", style="dim")
        case datetime():
            return Text(cell.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z"))
        case _:
            return Text(printable(str(cell)))


def printable(text: str) -> str:
    """The text with its control characters escaped, except line ends."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def lasting(seconds: float | None) -> str | None:
    """How long something has lasted, in a few characters."""
    if seconds is None:
        return None
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def until(instant: datetime | None, now: datetime) -> str | None:
    """How far an instant is ahead, in a few characters."""
    return None if instant is None else f"in {max(0.0, (instant - now).total_seconds()):.1f} s"
