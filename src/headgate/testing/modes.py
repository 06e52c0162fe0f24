"""Inline mode: a job runs when it is enqueued. Manual mode: it runs when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime

from headgate.app import Headgate
from headgate.arguments import parse_instant
from headgate.clock import SystemClock
from headgate.testing.in_test import TestApp, in_test
from headgate.testing.manual_clock import ManualClock
from headgate.testing.shared_memory import SharedMemory
from headgate.testing.workbench import Workbench


@contextlib.contextmanager
def manual(app: Headgate, *, now: datetime | None = None) -> Iterator[Workbench]:
    """Keep in memory what is enqueued on this app until the block ends; nothing runs before `drain()`.

    `with manual(app) as jobs:` around the code that enqueues, then `jobs.assert_enqueued(…)`. The app counts as open;
    its own store, and the stores of its limits, are never connected to. Time does not move, from `now` (default: the
    current time). With `using(connection=…)` the connection is not used: the job is kept at once, whatever the
    transaction does. Raises HeadgateError for an app that is open.
    """
    clock = ManualClock(SystemClock().now() if now is None else parse_instant(now, "now", "a test"))
    storage = SharedMemory(clock)
    with in_test(app, TestApp, storage, clock) as test_app:
        yield Workbench(test_app, storage, clock)


class InlineTestApp(TestApp):
    """An app that runs what is enqueued, before `enqueue` returns."""

    raising: bool

    async def after_enqueueing(self, job_ids: Sequence[str]) -> None:
        async with self.node() as node:
            await node.run_due()
        for job_id in job_ids:
            # A concurrent caller may have claimed it first, and runs it.
            for recorded in [each.recorded[job_id] for each in self.at_work if job_id in each.recorded]:
                await asyncio.wait([recorded])
            performed = self.performed.get(job_id)
            if self.raising and performed is not None and performed.error is not None:
                raise performed.error


@contextlib.contextmanager
def inline(app: Headgate, *, now: datetime | None = None, raising: bool = True) -> Iterator[Workbench]:
    """Run what is enqueued on this app at once, in the caller's loop or thread, until the block ends.

    A job runs as in production: arguments and result go through JSON, callbacks are called, following jobs run as well,
    a failed one waits for its retry. `enqueue` raises what the handler raised, unless `raising` is False. Limits do not
    delay jobs. A delayed job waits until `travel(…)` or `drain(until=…)`. All else is as in `manual(app)`. Raises
    HeadgateError for an app that is open.
    """
    clock = ManualClock(SystemClock().now() if now is None else parse_instant(now, "now", "a test"))
    storage = SharedMemory(clock, gated=False)
    with in_test(app, InlineTestApp, storage, clock) as test_app:
        test_app.raising = raising
        yield Workbench(test_app, storage, clock)
