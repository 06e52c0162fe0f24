"""The output of the demonstration: a live table on a terminal, lines elsewhere, and the result."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

import click
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headgate.cli.demonstration.jobs_app import DemoLoad
from headgate.cli.demonstration.result import DemoResult
from headgate.cli.output import print_table
from headgate.plural import counted


@dataclass(frozen=True, slots=True)
class TenantRow:
    """The state of one tenant; `next_slot_in` is seconds, None while its limit is open."""

    name: str
    waiting: int
    running: int
    done: int
    next_slot_in: float | None


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """Everything that is shown at one time."""

    elapsed: float
    worker: str
    tenants: Sequence[TenantRow]
    calls: int
    refused: int


class LiveScreen:
    """A table that is updated in place after `every` seconds; messages stay above it."""

    every = 0.25

    def __init__(self, scene: DemoLoad) -> None:
        self._scene = scene
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(Text(text))

    def draw(self, picture: DemoProgress) -> None:
        room = max(4, self._console.height - 10)
        self._live.update(_table(picture, self._scene, room), refresh=True)

    def close(self) -> None:
        self._live.stop()


class PlainScreen:
    """Lines, for files and build logs."""

    def __init__(self, scene: DemoLoad, out: TextIO) -> None:
        self.every = max(1.0, scene.seconds / 12)
        self._out = out
        self._scene = scene

    def say(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()

    def draw(self, picture: DemoProgress) -> None:
        noisy, quiet = picture.tenants[0], together(picture.tenants[1:])
        self.say(
            f"{picture.elapsed:5.1f} s  worker {picture.worker}"
            f"  {noisy.name}: {_counts(noisy)}, next slot {_slot(noisy)}"
            f"  quiet: {_counts(quiet)}"
            f"  API: {counted(picture.calls, 'call')}, {picture.refused} answered 429"
        )

    def close(self) -> None:
        pass


DemoDisplay = LiveScreen | PlainScreen


def choose_screen(scene: DemoLoad, *, plain: bool, as_json: bool) -> DemoDisplay:
    """Return a live screen on a terminal, a plain one elsewhere; with JSON on stdout, a plain one on stderr."""
    if as_json:
        return PlainScreen(scene, sys.stderr)
    if plain or not sys.stdout.isatty():
        return PlainScreen(scene, sys.stdout)
    return LiveScreen(scene)


def together(tenants: Sequence[TenantRow]) -> TenantRow:
    """Return several tenants as one row with their earliest next slot."""
    slots = [tenant.next_slot_in for tenant in tenants if tenant.next_slot_in is not None]
    return TenantRow(
        f"{len(tenants)} more",
        sum(tenant.waiting for tenant in tenants),
        sum(tenant.running for tenant in tenants),
        sum(tenant.done for tenant in tenants),
        min(slots, default=None),
    )


def print_verdict(verdict: DemoResult) -> None:
    """Print the result as a table."""
    kept, broken = Text("kept", style="green"), Text("BROKEN", style="bold red")
    print_table(
        "Result, from the calls that the API recorded and the job store",
        ("", "promise", "measured", "bound", "how it was measured"),
        [(kept if p.kept else broken, p.promise, f"{p.measured:g}", p.bound, p.detail) for p in verdict.promises],
    )
    click.echo("All promises kept." if verdict.kept else "A promise was broken.")


def _table(picture: DemoProgress, scene: DemoLoad, room: int) -> Group:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("tenant")
    for column in ("waiting", "running", "done", "next slot"):
        table.add_column(column, justify="right", min_width=9)
    shown = list(picture.tenants)
    if len(shown) > room:
        shown = [*shown[: room - 1], together(shown[room - 1 :])]
    for tenant in shown:
        slot = Text("now", style="green") if tenant.next_slot_in is None else Text(_slot(tenant), style="yellow")
        table.add_row(tenant.name, str(tenant.waiting), str(tenant.running), str(tenant.done), slot)
    refused = Text(f"{picture.refused} answered 429", style="green" if picture.refused == 0 else "bold red")
    line = Text.assemble(
        f"{picture.elapsed:4.1f} of {scene.seconds:g} s   worker ",
        (picture.worker, "bold red" if picture.worker == "dead" else "green"),
        f"   API: {counted(picture.calls, 'call')}, ",
        refused,
    )
    return Group(table, line)


def _counts(tenant: TenantRow) -> str:
    return f"{tenant.waiting} waiting, {tenant.running} running, {tenant.done} done"


def _slot(tenant: TenantRow) -> str:
    return "now" if tenant.next_slot_in is None else f"in {tenant.next_slot_in:.1f} s"
