"""Manual mode: a test keeps what is enqueued, and runs it with `drain`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime

from headgate.app import Headgate
from headgate.arguments import parse_instant
from headgate.clock import SystemClock
from headgate.testing.manual_clock import ManualClock
from headgate.testing.shared_memory import SharedMemory
from headgate.testing.stand_in import StandIn, in_test
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
    with in_test(app, StandIn, storage, clock) as stand_in:
        yield Workbench(stand_in, storage, clock)
