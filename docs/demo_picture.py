"""Draw the moving picture of `docs/index.md`: `python docs/demo_picture.py` runs `headgate demo` and writes it.

What the picture shows is what the demo printed in this run, on a terminal with 96 columns, four times as fast.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from unittest.mock import patch

import click
from rich.console import Console, RenderableType
from rich.text import Text

from headgate.cli import demo, output
from headgate.cli.demonstration import display
from headgate.cli.demonstration.display import DemoProgress
from headgate.cli.demonstration.jobs_app import DemoLoad
from headgate.cli.demonstration.result import DemoResult

PICTURE = Path(__file__).parent / "demo.svg"

SECONDS, SPEED, RESULT_SHOWN = 40.0, 4, 8
COLUMNS, TENANTS_SHOWN = 96, 6
LINE, LETTER, MARGIN = 17, 7.3, 14

TITLE = "headgate demo"
NOTE = (
    "One tenant enqueues 300 jobs and twenty others a few. The worker is killed in the middle, a new one takes over "
    "its jobs, and the demo compares the calls that the API recorded with the job store: all promises are kept."
)
STYLE = """
  .paper { fill: #ffffff; stroke: #d1d9e0 } text { fill: #1f2328; white-space: pre }
  .green { fill: #1a7f37 } .yellow { fill: #9a6700 } .red { fill: #cf222e } .bold { font-weight: 600 }
  text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; stroke: #30363d } text { fill: #f0f6fc }
    .green { fill: #56d364 } .yellow { fill: #e3b341 } .red { fill: #ff7b72 }
  }
  .part { animation-iteration-count: infinite; animation-timing-function: step-end; visibility: hidden }
  @media (prefers-reduced-motion: reduce) { .part { animation: none !important } .last { visibility: visible } }
"""

Lines = Sequence[str]
"""The lines that a terminal shows, as SVG."""


@dataclass
class Recorder:
    """A display that keeps what it shows."""

    scene: DemoLoad
    every: float = 1.0
    said: list[tuple[int, Lines]] = field(default_factory=list)
    """Each with the number of tables that were drawn before it."""
    drawn: list[tuple[float, Lines]] = field(default_factory=list)
    """Each with its second."""

    def say(self, text: str) -> None:
        self.said.append((len(self.drawn), printed(Text(text))))

    def draw(self, picture: DemoProgress) -> None:
        self.drawn.append((picture.elapsed, printed(display._table(picture, self.scene, TENANTS_SHOWN))))

    def close(self) -> None: ...


def printed(shown: RenderableType) -> Lines:
    """Return what a terminal prints, a line of SVG for each of its lines."""
    console = Console(width=COLUMNS, highlight=False, force_terminal=True, color_system="standard")
    return [
        "".join(
            f'<tspan class="{segment.style}">{escape(segment.text)}</tspan>'
            if segment.style and str(segment.style) != "none"
            else escape(segment.text)
            for segment in line
        ).rstrip()
        for line in console.render_lines(shown, pad=False)
    ]


def printed_result(result: DemoResult) -> Lines:
    """Return the result as `headgate demo` prints it."""
    with patch.object(output, "make_console") as make, patch.object(click, "echo") as echo:
        make.return_value.width = COLUMNS
        display.print_verdict(result)
    shown = [call.args[0] for call in (*make.return_value.print.call_args_list, *echo.call_args_list)]
    return [line for each in shown for line in printed(each)]


def record() -> tuple[Recorder, DemoResult]:
    """Run the demo and return what it showed."""
    screens: list[Recorder] = []
    results: list[DemoResult] = []

    def choose_screen(scene: DemoLoad, **_: bool) -> Recorder:
        screens.append(Recorder(scene))
        return screens[-1]

    with (
        patch.object(demo, "choose_screen", choose_screen),
        patch.object(demo, "print_verdict", results.append),
    ):
        code = asyncio.run(demo.run_demo(SECONDS, plain=False, as_json=False))
    if code:
        sys.exit("a promise was broken: run it again while this machine has no other work")
    return screens[0], results[0]


def picture(run: Recorder, result: DemoResult) -> str:
    """Return a run as an SVG that moves; without motion it shows the end."""
    end = run.drawn[-1][0] + 1
    whole = end + RESULT_SHOWN * SPEED
    begins = [0.0, *(at for at, _ in run.drawn[1:]), end]
    parts, row = [], 0
    for frame, lines in run.said:
        parts.append((begins[frame], whole, row, lines))
        row += len(lines)
    for frame, (_, lines) in enumerate(run.drawn):
        above = sum(len(said) for at, said in run.said if at <= frame)
        parts.append((begins[frame], begins[frame + 1], above, lines))
    parts.append((end, whole, row, printed_result(result)))
    height = max(row + len(lines) for _, _, row, lines in parts) * LINE + 2 * MARGIN
    width = round(COLUMNS * LETTER) + 2 * MARGIN
    groups, rules = [], []
    for number, (begin, until, top, lines) in enumerate(parts):
        first, last = (f"{100 * at / whole:.2f}%" for at in (begin, until))
        hidden_later = "" if until == whole else f" {last} {{ visibility: hidden }}"
        rules.append(
            f"  @keyframes p{number} {{ 0% {{ visibility: {'visible' if begin == 0 else 'hidden'} }}"
            f" {first} {{ visibility: visible }}{hidden_later} 100% {{ visibility: visible }} }}\n"
            f"  #p{number} {{ animation-name: p{number}; animation-duration: {whole / SPEED:.2f}s }}\n"
        )
        kind = "part last" if until == whole else "part"
        groups.append(
            f'<g class="{kind}" id="p{number}">\n'
            + "".join(
                f'<text x="{MARGIN}" y="{MARGIN + LINE * (top + at) + 12}">{line}</text>\n'
                for at, line in enumerate(lines)
                if line
            )
            + "</g>\n"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-labelledby="title note">\n<title id="title">{TITLE}</title>\n<desc id="note">{NOTE}</desc>\n'
        f'<style>{STYLE}{"".join(rules)}</style>\n<rect class="paper" width="{width}" height="{height}" rx="6"/>\n'
        f"{''.join(groups)}</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(*record()), encoding="utf-8")
