"""History: what jobs did and what was charged to limits, added up in steps of time, for charts.

It is a chart and not a promise: nothing waits for it, and what could not be written is lost. It has three sizes of
steps, of which the longer ones are kept longer; all begin at whole multiples since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from headgate.clock import SECOND
from headgate.jobs.histogram import added

MOST_POINTS = 1440
"""A step is kept for so many of its kind, and so a chart has at most so many points."""

KEPT_FOR: Mapping[int, int] = MappingProxyType({10: 3600, 60: 60 * MOST_POINTS, 3600: 3600 * MOST_POINTS})
"""The lengths of steps, and for how long each is kept, in seconds: an hour, a day, 60 days."""

SHORTEST = min(KEPT_FOR)

LIMIT_STEPS = (10, 60)
"""The steps in which the use of limits is kept: of many keys, so only for a day."""

ALL = ""
"""The task of a row that adds up its queue, and queue and task of one that adds up everything; none is called so.

Of a task in all queues no row is kept: most tasks are in one queue alone, and it would be the same again.
"""


class JobsStep(msgspec.Struct, frozen=True, array_like=True):
    """What the jobs of one queue and task did in one step of time; ALL stands for all tasks, or all queues and tasks.

    `at` (wall microseconds) is when it begins and `step` its length in seconds. `waits` is the histogram of how long
    started jobs had been due, `runs` of how long attempts took that have ended; `…_max` is the longest (microseconds).
    """

    step: int
    queue: str
    task: str
    at: int
    enqueued: int = 0
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    wait_max: int = 0
    run_max: int = 0
    waits: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()

    def plus(self, other: JobsStep) -> JobsStep:
        """Both together, of the same step."""
        return JobsStep(
            self.step,
            self.queue,
            self.task,
            self.at,
            self.enqueued + other.enqueued,
            self.started + other.started,
            self.succeeded + other.succeeded,
            self.failed + other.failed,
            self.cancelled + other.cancelled,
            self.retried + other.retried,
            max(self.wait_max, other.wait_max),
            max(self.run_max, other.run_max),
            added(self.waits, other.waits),
            added(self.runs, other.runs),
        )


class LimitStep(msgspec.Struct, frozen=True, array_like=True):
    """What was charged to a limit in one step of time, as a sum of costs: for one key, or with None for all together.

    Of many keys only those most used have steps of their own; all together counts every one. What was given back may
    make it less than nothing, where it was charged under a key that had no step of its own.
    """

    step: int
    limit: str
    key: str | None
    at: int
    used: int


class Flush(msgspec.Struct, frozen=True):
    """Which of its writes a process makes: what is sent again because its answer was lost is not added twice.

    `writer` is nobody else's, and `number` grows with each write.
    """

    writer: str
    number: int


def step_at(instant: int, step: int) -> int:
    """When the step of that length (seconds) began to which the instant belongs; both in wall microseconds."""
    return instant - instant % (step * SECOND)
