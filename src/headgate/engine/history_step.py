"""What one process has counted in one step of time, and the rows that several steps come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest
from operator import add

from headgate.clock import SECOND
from headgate.jobs.histogram import BUCKETS, trimmed
from headgate.jobs.history import ALL, KEPT_FOR, LIMIT_STEPS, SHORTEST, JobsStep, LimitStep, step_at
from headgate.jobs.job import JobState

MOST_KEYS = 1000
"""How many keys of a limit have a step of their own: those that were used most."""

MOST_COUNTED = 4 * MOST_KEYS
"""How many keys of a limit are counted at once, before the lesser half of them is let go."""

Names = Callable[[int, str, int, dict[str, int]], Iterable[str]]
"""Which keys have a row of their own, by the length of the step, the limit, when the step begins, and what was used."""


class HistoryStep:
    """What happened in the shortest step that begins at `at` and ends before `until` (wall microseconds)."""

    __slots__ = ("at", "tallies", "until", "uses")

    def __init__(self, at: int) -> None:
        self.at = at
        self.until = at + SHORTEST * SECOND
        self.tallies: dict[tuple[str, str], JobCounts] = {}
        self.uses: dict[str, LimitUse] = {}

    def tally(self, queue: str, task: str) -> JobCounts:
        found = self.tallies.get((queue, task))
        if found is None:
            found = self.tallies[queue, task] = JobCounts()
        return found

    def charge(self, limit: str, key: str, cost: int) -> None:
        use = self.uses.get(limit)
        if use is None:
            use = self.uses[limit] = LimitUse()
        use.charge(key, cost)

    def let_go(self) -> None:
        """It has to be kept for longer, so only keys that will have a row are."""
        for use in self.uses.values():
            use.let_go(MOST_KEYS)

    def add(self, other: HistoryStep) -> None:
        """What was counted apart from it, of the same step."""
        for place, tally in other.tallies.items():
            mine = self.tallies.get(place)
            self.tallies[place] = tally if mine is None else mine.plus(tally)
        for limit, use in other.uses.items():
            known = self.uses.get(limit)
            self.uses[limit] = use if known is None else known.plus(use)


class JobCounts:
    """What the jobs of one queue and task did."""

    __slots__ = (
        "cancelled",
        "enqueued",
        "failed",
        "retried",
        "run_max",
        "runs",
        "started",
        "succeeded",
        "wait_max",
        "waits",
    )

    def __init__(self) -> None:
        self.enqueued = self.started = self.succeeded = self.failed = self.cancelled = self.retried = 0
        self.wait_max = self.run_max = 0
        self.waits = [0] * BUCKETS
        self.runs = [0] * BUCKETS

    def note_final(self, state: JobState) -> None:
        if state is JobState.SUCCEEDED:
            self.succeeded += 1
        elif state is JobState.FAILED:
            self.failed += 1
        else:
            self.cancelled += 1

    def plus(self, other: JobCounts) -> JobCounts:
        """Both together."""
        both = JobCounts()
        both.enqueued = self.enqueued + other.enqueued
        both.started = self.started + other.started
        both.succeeded = self.succeeded + other.succeeded
        both.failed = self.failed + other.failed
        both.cancelled = self.cancelled + other.cancelled
        both.retried = self.retried + other.retried
        both.wait_max = max(self.wait_max, other.wait_max)
        both.run_max = max(self.run_max, other.run_max)
        both.waits = list(map(add, self.waits, other.waits))
        both.runs = list(map(add, self.runs, other.runs))
        return both

    def row(self, step: int, queue: str, task: str, at: int) -> JobsStep:
        return JobsStep(
            step,
            queue,
            task,
            at,
            self.enqueued,
            self.started,
            self.succeeded,
            self.failed,
            self.cancelled,
            self.retried,
            self.wait_max,
            self.run_max,
            trimmed(self.waits),
            trimmed(self.runs),
        )


class LimitUse:
    """What was charged to a limit: of all keys, and of each. Of very many keys the lesser ones are let go."""

    __slots__ = ("keys", "total")

    def __init__(self) -> None:
        self.total = 0
        self.keys: dict[str, int] = {}

    def charge(self, key: str, cost: int) -> None:
        self.total += cost
        keys = self.keys
        keys[key] = keys.get(key, 0) + cost
        if len(keys) > MOST_COUNTED:
            self.let_go(MOST_COUNTED // 2)

    def let_go(self, most: int) -> None:
        """Keep so many keys, those that were used most."""
        if len(self.keys) > most:
            self.keys = {key: self.keys[key] for key in nlargest(most, self.keys, key=self.keys.__getitem__)}

    def plus(self, other: LimitUse) -> LimitUse:
        """Both together."""
        both = LimitUse()
        both.keys = dict(self.keys)
        for key, used in other.keys.items():
            both.charge(key, used)
        both.total = self.total + other.total
        return both


def rows_of_jobs(steps: Iterable[HistoryStep]) -> list[JobsStep]:
    """The rows of all lengths: of each queue and task, of each queue, and of all together."""
    totals: dict[tuple[int, str, str, int], JobCounts] = {}
    for step in steps:
        curves: dict[tuple[str, str], JobCounts] = {}
        for (queue, task), tally in step.tallies.items():
            for place in ((queue, task), (queue, ALL), (ALL, ALL)):
                known = curves.get(place)
                curves[place] = tally if known is None else known.plus(tally)
        for length in KEPT_FOR:
            at = step_at(step.at, length)
            for (queue, task), tally in curves.items():
                before = totals.get((length, queue, task, at))
                totals[length, queue, task, at] = tally if before is None else before.plus(tally)
    return [tally.row(*place) for place, tally in totals.items()]


def rows_of_limits(steps: Iterable[HistoryStep], names: Names) -> list[LimitStep]:
    """The rows of the shorter lengths: of all keys together, and of those that `names` chooses."""
    totals: dict[tuple[int, str, int], LimitUse] = {}
    for step in steps:
        for limit, use in step.uses.items():
            for length in LIMIT_STEPS:
                place = (length, limit, step_at(step.at, length))
                known = totals.get(place)
                totals[place] = use if known is None else known.plus(use)
    rows: list[LimitStep] = []
    for (length, limit, at), use in totals.items():
        rows.append(LimitStep(length, limit, None, at, use.total))
        rows += [LimitStep(length, limit, key, at, use.keys[key]) for key in names(length, limit, at, use.keys)]
    return rows


class NamedKeys:
    """The keys that have a row of their own in a step, over all the times that a process writes to it."""

    def __init__(self) -> None:
        self._named: dict[tuple[int, str, int], set[str]] = {}

    def choose(self, length: int, limit: str, at: int, used: dict[str, int]) -> Iterable[str]:
        """Those that have one already, and as many of the others as there is room for, the most used."""
        named = self._named.setdefault((length, limit, at), set())
        others = [key for key in used if key not in named]
        room = max(0, MOST_KEYS - len(named))
        chosen = others if len(others) <= room else nlargest(room, others, key=used.__getitem__)
        again = [key for key in used if key in named]
        named.update(chosen)
        return again + chosen

    def forget(self, before: int) -> None:
        """Nothing is written any more to steps that ended before then, or little."""
        self._named = {place: keys for place, keys in self._named.items() if place[2] + place[0] * SECOND > before}
