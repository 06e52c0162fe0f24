"""`python -m benchmarks [QUESTION …]`: ask the questions, show the answers and keep them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from benchmarks import report, runner
from benchmarks.questions import QUESTIONS

RESULTS = runner.ROOT / "benchmarks" / "results"
PAGE = runner.ROOT / "docs" / "benchmarks.md"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(QUESTIONS)), metavar="[QUESTION]…")
@click.option("--quick", is_flag=True, help="One round of a smaller load; nothing is kept.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write all results here.")
@click.option("--page", is_flag=True, help="Measure nothing: write docs/benchmarks.md from the kept results.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="A checkout of another commit: measure both, in turns; nothing is kept.",
)
@click.option("--pairs", default=5, show_default=True, help="How often, with --against.")
@click.option("--only", default="", help="With --against: the scenarios with this in their names.")
def main(
    names: Sequence[str], quick: bool, file: Path | None, page: bool, against: Path | None, pairs: int, only: str
) -> None:
    """Ask the named questions, or all; results are kept in benchmarks/results."""
    if page:
        _write_page()
        return
    if not sys.platform.startswith("linux"):
        raise click.ClickException("the benchmarks read /proc and run on Linux only")
    console = Console() if sys.stdout.isatty() else Console(width=140)
    if against is not None:
        for name in names:
            with console.status(name) as status:
                taken = runner.run_pairs(
                    QUESTIONS[name], against, rounds=pairs, quick=quick, only=only, report=status.update
                )
            report.print_pairs(console, QUESTIONS[name], against, taken)
        return
    results = []
    for name in names or QUESTIONS:
        began = time.monotonic()
        with console.status(name) as status:
            result = runner.run(QUESTIONS[name], quick=quick, report=status.update)
        result["seconds"] = round(time.monotonic() - began, 1)
        results.append(result)
        report.print_result(console, QUESTIONS[name], result)
        if not quick:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    if file is not None:
        file.write_text(json.dumps(results, indent=1) + "\n")
    missed = [goal["text"] for result in results for goal in result["goals"] if not goal["is_met"]]
    seconds = sum(result["seconds"] for result in results)
    console.print(f"{len(results)} questions in {seconds:.0f} s; goals missed: {'; '.join(missed) or 'none'}")


def _write_page() -> None:
    kept = {name: RESULTS / f"{name}.json" for name in QUESTIONS}
    results = {name: json.loads(path.read_text()) for name, path in kept.items() if path.exists()}
    PAGE.write_text(report.page(QUESTIONS, results))
    click.echo(f"{PAGE.relative_to(runner.ROOT)}: {len(results)} of {len(QUESTIONS)} questions have results")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
