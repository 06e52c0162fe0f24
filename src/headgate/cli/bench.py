"""`headgate bench`: measure how fast a store is on this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import click

from headgate.app import Headgate
from headgate.cli.benchmark import Figures, MeasuredRate, measure
from headgate.cli.locate import locate
from headgate.cli.output import json_option, print_json, print_table, quiet
from headgate.cli.times import seconds_within
from headgate.cli.worker_process import loop_factory, tune_process
from headgate.clock import SystemClock
from headgate.escaping import printable
from headgate.plural import counted

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the command after its tables are deleted."""


@click.command()
@click.argument("where", required=False, metavar="[URL | MODULE:APP]")
@click.option("-A", "--app", "named", envvar="HEADGATE_APP", metavar="MODULE:APP", help="The app to work on.")
@click.option(
    "--seconds",
    type=seconds_within(1, 600),
    default="20s",
    show_default=True,
    metavar="TIME",
    help="Approximate duration.",
)
@click.option("--slots", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Slots of the worker.")
@json_option
def bench(where: str | None, named: str | None, seconds: float, slots: int, as_json: bool) -> None:
    """Measure how fast a store is on this machine: enqueueing, running, starting.

    Pass an app or a URL, or set HEADGATE_URL. Your jobs are not touched: the command uses an empty store beside yours,
    in a folder on the same disk or in another schema of the same database. It deletes that at the end, also after
    Ctrl-C. It loads the disk or the server meanwhile.

    \b
    Exit codes:
      0    measured
      1    an error, printed as one line
      130  ended by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP; nothing is left behind
    """
    app = _app(where, named)
    is_told = sys.stderr.isatty()

    def say(what: str) -> None:
        if is_told:
            click.echo(f"{what} ...", err=True)

    tune_process()
    with quiet(), asyncio.Runner(loop_factory=loop_factory()) as runner:
        figures = runner.run(_measured(app, seconds, slots, say))
    if figures is signal.SIGINT:
        raise KeyboardInterrupt
    if isinstance(figures, signal.Signals):
        raise SystemExit(128 + figures)
    if as_json:
        print_json(figures)
    else:
        print_figures(figures)


def _app(where: str | None, named: str | None) -> Headgate:
    chosen = where or named
    if chosen is None:
        if not os.environ.get("HEADGATE_URL", "").strip():
            raise click.UsageError(
                "name what to measure: `headgate bench sqlite:///jobs.db`, `headgate bench module:app`, or HEADGATE_URL"
            )
        return Headgate()
    return Headgate(chosen) if "://" in chosen else locate(chosen)


async def _measured(app: Headgate, seconds: float, slots: int, say: Callable[[str], None]) -> Figures | signal.Signals:
    """Return the figures, or the signal that ended the measurement."""
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    assert own is not None
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        # The scratch store must be deleted; further signals do not interrupt that.
        if not received:
            own.cancel()
        received.append(number)

    # A signal that is ignored, as under nohup, stays ignored.
    caught = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    for number in caught:
        loop.add_signal_handler(number, end, number)
    try:
        return await measure(app, SystemClock(), seconds=seconds, slots=slots, say=say)
    except asyncio.CancelledError:
        if not received:
            raise
        return received[0]
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
            if received:
                # The first signal determines the exit code, also if another one arrives now.
                signal.signal(number, signal.SIG_IGN)


# ------------------------------------------------------------------------------------------------- printing


def print_figures(figures: Figures) -> None:
    """Print the figures and how to read them."""
    ground = figures.ground
    click.echo(printable(f"Store: {ground.store}"))
    click.echo(f"{ground.setup}; Python {ground.python}, {ground.event_loop}; {counted(ground.cores, 'core')}")
    print_table(
        "Jobs a second",
        ("what", "a second", "of", "how"),
        [
            ("enqueued by one caller", *_rate_cells(figures.single), "each waits for its commit"),
            (f"enqueued by {figures.callers} callers", *_rate_cells(figures.together), "at once; they share commits"),
            ("enqueued in bulk", *_rate_cells(figures.bulk), f"enqueue_many of {figures.bulk_size}, one commit each"),
            ("run", *_rate_cells(figures.drain), f"no-op jobs in {counted(figures.slots, 'slot')}, each recorded"),
        ],
    )
    idle, beside = figures.idle, figures.beside_backlog
    print_table(
        "From the enqueue to the start",
        ("where", "p50", "p99", "of"),
        [
            ("on an idle worker", f"{idle.p50:g} ms", f"{idle.p99:g} ms", f"{idle.probes:,}"),
            (
                f"beside {figures.backlog:,} jobs waiting for a limit",
                f"{beside.p50:g} ms",
                f"{beside.p99:g} ms",
                f"{beside.probes:,}",
            ),
        ],
    )
    click.echo("How to read it")
    for line in advice(figures):
        click.echo(f"- {line}")


def advice(figures: Figures) -> list[str]:
    """Return what the figures mean for sizing an installation."""
    ground = figures.ground
    lines: list[str] = []
    if ground.is_busy:
        lines.append(
            f"Other programs were running (load {ground.load:g} on {counted(ground.cores, 'core')}); an idle "
            "machine is faster."
        )
    if ground.syncs is not None:
        lines.append(f"This disk syncs {ground.syncs:,.0f} pages a second: one caller cannot enqueue faster than that.")
    if not ground.is_durable:
        lines.append("With these settings a power cut may lose the last acknowledged jobs; safe settings are slower.")
    lines += [
        "If enqueueing one by one is too slow, enqueue in bulk or from several callers at once.",
        f"Slots limit throughput, too: jobs of 100 ms in {counted(figures.slots, 'slot')} reach at most "
        f"{figures.slots * 10:,} a second, whatever the store.",
        "Jobs that wait for a limit should not delay others: compare the two start times.",
        "This was one process. On PostgreSQL more workers run more jobs; on SQLite they share one file.",
        "The measured store was beside yours and is deleted; your jobs were not touched.",
    ]
    return lines


def _rate_cells(rate: MeasuredRate) -> tuple[str, str]:
    return f"{rate.per_second:,.0f}", f"{rate.jobs:,} in {rate.seconds:.1f} s"
