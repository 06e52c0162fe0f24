"""Results as people read them: a table in the terminal, and the page of the docs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.question import Metric, Question
from benchmarks.runner import Pairs, Result

INTRODUCTION = """\
# Benchmarks

How fast Headgate is, what waiting jobs cost, and how exactly a budget is kept: each number next to a peer or a baseline
that was measured in the same run, on the same machine, in turns. Only such ratios carry over to another machine.

This page is made by `python -m benchmarks --page` from the files in `benchmarks/results`, which `make bench` writes.
Every scenario runs in a process of its own; the table shows medians. `make bench ARGS="throughput --quick"` asks one
question only, quickly.

What holds everywhere, unless a row says otherwise:

- Headgate on SQLite runs with `synchronous=FULL`, its default: what was acknowledged has reached the disk. So do huey
  (`fsync=True`) and the plain `sqlite3` code that is called *raw*. All files lie on the same disk, in WAL mode.
- A worker that has a process of its own is `headgate worker`. Benchmarks that embed the worker set the
  interpreter's switch interval and garbage collection as that command does, where the row does not say "Python's
  defaults". The same is done for huey.
- PostgreSQL is a server on the same machine over TCP, as it comes: `fsync` and `synchronous_commit` are on. Each
  scenario has its own, new and empty. Workers beside it run on uvloop, as `headgate worker` does where it is installed.
- Jobs carry one integer or one short string. Handlers are `async def`; huey's are functions in its worker threads.
- huey takes a job off its queue before running it and loses it when the process dies; Headgate and *raw* record that
  it runs, and that it ended.
"""


def print_result(console: Console, question: Question, result: Result) -> None:
    """The table of a question in the terminal."""
    table = Table(title=f"{question.name}: {question.asks}", title_justify="left", title_style="bold")
    header, *rows = _cells(question, result)
    for number, title in enumerate(header):
        table.add_column(title, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for row in result["rows"]:
        console.print(f"  [dim]{row['scenario']}: {row['conditions']}[/dim]", highlight=False, soft_wrap=True)
    for goal in result["goals"]:
        mark = "[green]met[/green]" if goal["is_met"] else "[red]missed[/red]"
        console.print(f"  goal {goal['text']}: {_number(goal['measured'], 2)}, {mark}", highlight=False)
    console.print()


def print_pairs(console: Console, question: Question, other: Path, pairs: Sequence[Pairs]) -> None:
    """The medians there and here of each metric, and the median of the ratios of the pairs."""
    table = Table(title=f"{question.name}: {other} → here, pairs: {len(pairs[0].here) if pairs else 0}")
    table.add_column("scenario")
    metrics = [metric for metric in question.metrics if any(metric.key in each.here[0] for each in pairs)]
    for metric in metrics:
        table.add_column(metric.label, justify="right", overflow="fold")
    for each in pairs:
        cells = []
        for metric in metrics:
            if metric.key not in each.here[0] or metric.key not in each.there[0]:
                cells.append("")
                continue
            there, here, ratio = each.medians(metric.key)
            cells.append(f"{_number(there, metric.digits)} → {_number(here, metric.digits)} (× {ratio:.2f})")
        table.add_row(each.scenario, *cells)
    console.print(table)


def page(questions: Mapping[str, Question], results: Mapping[str, Result]) -> str:
    """The page of the docs; questions without a result are left out."""
    parts = [INTRODUCTION]
    for name, question in questions.items():
        if name in results:
            parts.append(_section(question, results[name]))
    return "\n".join(parts)


def _section(question: Question, result: Result) -> str:
    header, *rows = _cells(question, result)
    lines = [f"## {question.heading or question.name.capitalize()}", "", question.asks, ""]
    lines.append(_line(header))
    lines.append(_line("---" if number == 0 else "---:" for number in range(len(header))))
    lines += [_line(row) for row in rows]
    lines.append("")
    lines += [f"- *{row['scenario']}*: {row['conditions']}" for row in result["rows"]]
    lines += [f"- {note}" for note in question.notes]
    lines.append("")
    if result["goals"]:
        lines += ["| goal | measured | |", "| --- | ---: | --- |"]
        lines += [
            _line((goal["text"], _number(goal["measured"], 2), "met" if goal["is_met"] else "**missed**"))
            for goal in result["goals"]
        ]
        lines.append("")
    lines += [_measured_on(result), ""]
    return "\n".join(lines)


def _measured_on(result: Result) -> str:
    on: dict[str, Any] = result["machine"]
    # Results from before they were compared do not name them.
    others = "".join(
        f", {name} {version}" for kind in ("limiters", "on_postgres") for name, version in on.get(kind, {}).items()
    )
    rounds = "a quick run, one round" if result["quick"] else f"medians of {result['rounds']} rounds"
    return (
        f"Measured {on['measured_at']}: {rounds}; {on['cores']} cores of {on['processor']}, {on['system']}, "
        f"{on['filesystem']}, {on['python']}, SQLite {on['sqlite']}, huey {on['huey']}{others}, "
        f"Headgate {on['headgate']}; load {on['load']} at the start."
    )


def _cells(question: Question, result: Result) -> list[list[str]]:
    """The table as text, its header first."""
    titles: list[str] = []
    for row in result["rows"]:
        titles += [title for title in row["ratios"] if title not in titles]
    lead = next(metric.label for metric in question.metrics if metric.key == question.lead)
    header = ["scenario", *(metric.label for metric in question.metrics), *(f"{lead} ÷ {title}" for title in titles)]
    rows = [
        [
            row["scenario"],
            *(_metric(row["medians"], metric) for metric in question.metrics),
            *(_number(row["ratios"].get(title), 2) for title in titles),
        ]
        for row in result["rows"]
    ]
    return [header, *rows]


def _metric(medians: Mapping[str, float], metric: Metric) -> str:
    return _number(medians.get(metric.key), metric.digits)


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    # Three digits that mean something, also of a small ratio.
    while value and abs(value) < 10**-digits and digits < 4:
        digits += 1
    return f"{value:,.{digits}f}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
