"""`headgate top`: queues, throughput, throttled keys, nodes and failures, live."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import click

from headgate.admin.readings import SlowCounts
from headgate.app import Headgate
from headgate.cli.live.render import LiveView, next_order, render_snapshot
from headgate.cli.live.snapshot import LiveSnapshot, read_snapshot
from headgate.cli.locate import locate, require_shared, takes_app
from headgate.cli.output import make_console, print_json
from headgate.cli.times import seconds_within
from headgate.clock import SECOND, Clock, SystemClock, sleep, wait_for_event
from headgate.errors import HeadgateError
from headgate.escaping import one_line

REDRAW = 1.0
"""Seconds between two frames of one snapshot; countdowns continue between snapshots."""


@click.command()
@takes_app
@click.option(
    "--interval", type=seconds_within(0.2), default="2s", show_default=True, metavar="TIME", help="Snapshot interval."
)
@click.option("--count", type=click.IntRange(1), help="End after this many snapshots.")
@click.option("--json", "as_json", is_flag=True, help="Print each snapshot as one line of JSON.")
def top(target: str, interval: float, count: int | None, as_json: bool) -> None:
    """Watch queues, throughput, throttled keys, nodes and failures live.

    Keys: q quits, p pauses, s changes the order of the queues. Without a terminal, one snapshot is printed. While
    the store does not answer, the last snapshot stays, with the error.
    """
    app, clock = require_shared(locate(target)), SystemClock()
    if as_json:
        asyncio.run(_print_lines(app, clock, interval, count))
    elif sys.stdout.isatty():
        asyncio.run(_Screen(app, clock, interval, count).run())
    else:
        asyncio.run(_print_pictures(app, clock, interval, count or 1))


async def _print_lines(app: Headgate, clock: Clock, interval: float, count: int | None) -> None:
    async for answer in _answers(app, clock, interval, count):
        line = {"error": str(answer)} if isinstance(answer, HeadgateError) else answer
        print_json(line, as_line=True)


async def _print_pictures(app: Headgate, clock: Clock, interval: float, count: int) -> None:
    async for answer in _answers(app, clock, interval, count):
        if isinstance(answer, HeadgateError):
            click.echo(one_line(f"the store does not answer: {answer}"), err=True)
        else:
            make_console().print(render_snapshot(answer, LiveView(now=answer.at)))


async def _answers(
    app: Headgate, clock: Clock, interval: float, count: int | None
) -> AsyncIterator[LiveSnapshot | HeadgateError]:
    """Yield a snapshot each `interval`, or the error; after an error the app is opened again. Raises the last one."""
    look: LiveSnapshot | None = None
    polled = 0
    while polled != count:
        try:
            async with app.open(migrate=False), contextlib.AsyncExitStack() as stack:
                counts = None
                if count != 1:
                    counts = SlowCounts(clock)
                    stack.push_async_callback(counts.close)
                while True:
                    look = await read_snapshot(app.admin, look, counts)
                    yield look
                    polled += 1
                    if polled == count:
                        return
                    await sleep(clock, interval)
        except HeadgateError as error:
            polled += 1
            if polled == count:
                raise
            yield error
        await sleep(clock, interval)


class _Screen:
    """Takes snapshots in the background; draws after a change, each second, and after a key."""

    def __init__(self, app: Headgate, clock: Clock, interval: float, count: int | None) -> None:
        self._app = app
        self._clock = clock
        self._interval = interval
        self._count = count
        self._look: LiveSnapshot | None = None
        self._looked_at = 0
        self._view = LiveView(now=datetime.fromtimestamp(0, UTC))
        self._changed = asyncio.Event()
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        # Imported only for a terminal: Windows lacks the module.
        from headgate.cli.live.terminal import Terminal

        terminal = Terminal(self._on_key, self._changed.set)
        self._view = replace(self._view, has_keys=terminal.has_keys)
        self._ended = terminal.ended
        with terminal.shown():
            looking = asyncio.ensure_future(self._watch())
            looking.add_done_callback(lambda _: terminal.ended.set())
            ended = asyncio.ensure_future(terminal.ended.wait())
            ended.add_done_callback(lambda _: self._changed.set())
            try:
                while not terminal.ended.is_set():
                    terminal.draw(render_snapshot(self._look, self._current(terminal.console.height)))
                    await wait_for_event(self._clock, self._changed, REDRAW)
                    self._changed.clear()
            finally:
                ended.cancel()
                looking.cancel()
                await asyncio.wait([looking])
        if not looking.cancelled():
            # Raised after the terminal is restored.
            looking.result()

    async def _watch(self) -> None:
        async for answer in _answers(self._app, self._clock, self._interval, self._count):
            if isinstance(answer, HeadgateError):
                self._view = replace(self._view, error=str(answer))
            else:
                self._look, self._looked_at = answer, self._clock.monotonic()
                self._view = replace(self._view, error=None)
            self._changed.set()
            await self._unpaused.wait()

    def _current(self, height: int) -> LiveView:
        if self._look is None:
            return self._view
        passed = timedelta(seconds=(self._clock.monotonic() - self._looked_at) / SECOND)
        now = self._look.at if self._view.is_paused else self._look.at + passed
        return replace(self._view, now=now, height=height)

    def _on_key(self, key: str) -> None:
        match key:
            case "q":
                self._ended.set()
            case "p":
                paused = not self._view.is_paused
                self._view = replace(self._view, is_paused=paused)
                (self._unpaused.clear if paused else self._unpaused.set)()
            case "s":
                self._view = replace(self._view, order=next_order(self._view.order))
        self._changed.set()
