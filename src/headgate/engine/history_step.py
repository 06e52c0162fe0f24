"""The counts of one process in one step of time, and the rows made from several steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest
from operator import add

from headgate.clock import SECOND
from headgate.jobs.history import ALL, BUCKETS, KEPT_FOR, LIMIT_STEPS, SHORTEST, JobsStep, LimitStep, step_at, trimmed
from headgate.jobs.job import JobState

MAX_KEYS = 1000
"""How many keys of a limit have their own rows: the most used ones."""

MAX_COUNTED_KEYS = 4 * MAX_KEYS
"""How many keys of a limit are counted at once; beyond that the less used half is dropped."""

ChooseKeys = Callable[[int, str, int, dict[str, int]], Iterable[str]]
"""Returns the keys that get their own row; takes the length of the step, the limit, its start, and the use by key."""


class HistoryStep:
    """The counts of the shortest step, which begins at `at` and ends before `until` (wall microseconds)."""

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
        self._use(limit).charge(key, cost)

    def note_unlimited(self, limit: str) -> None:
        self._use(limit).unlimited += 1

    def _use(self, limit: str) -> LimitUse:
        use = self.uses.get(limit)
        if use is None:
            use = self.uses[limit] = LimitUse()
        return use

    def drop_least_used(self) -> None:
        """Keep only keys that will have a row, because the step has to be held longer."""
        for use in self.uses.values():
            use.drop_least_used(MAX_KEYS)

    def add(self, other: HistoryStep) -> None:
        """Add other counts of the same step."""
        for place, tally in other.tallies.items():
            mine = self.tallies.get(place)
            self.tallies[place] = tally if mine is None else mine.plus(tally)
        for limit, use in other.uses.items():
            known = self.uses.get(limit)
            self.uses[limit] = use if known is None else known.plus(use)


class JobCounts:
    """The counts of the jobs of one queue and task."""

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
            0,  # no attempt ends so
            self.retried,
            self.wait_max,
            self.run_max,
            trimmed(self.waits),
            trimmed(self.runs),
        )


class LimitUse:
    """The use of a limit, in total and by key; of very many keys the least used ones are dropped.

    `unlimited` is how many of the starts were not charged, because the store of the limit was unavailable.
    """

    __slots__ = ("keys", "total", "unlimited")

    def __init__(self) -> None:
        self.total = 0
        self.keys: dict[str, int] = {}
        self.unlimited = 0

    def charge(self, key: str, cost: int) -> None:
        self.total += cost
        keys = self.keys
        keys[key] = keys.get(key, 0) + cost
        if len(keys) > MAX_COUNTED_KEYS:
            self.drop_least_used(MAX_COUNTED_KEYS // 2)

    def drop_least_used(self, most: int) -> None:
        """Keep the `most` keys that were used most."""
        if len(self.keys) > most:
            self.keys = {key: self.keys[key] for key in nlargest(most, self.keys, key=self.keys.__getitem__)}

    def plus(self, other: LimitUse) -> LimitUse:
        """Both together."""
        both = LimitUse()
        both.keys = dict(self.keys)
        for key, used in other.keys.items():
            both.charge(key, used)
        both.total = self.total + other.total
        both.unlimited = self.unlimited + other.unlimited
        return both


def rows_of_jobs(steps: Iterable[HistoryStep]) -> list[JobsStep]:
    """Return the rows of all lengths: by queue and task, by queue, and in total."""
    totals: dict[tuple[int, str, str, int], JobCounts] = {}
    for step in steps:
        sums: dict[tuple[str, str], JobCounts] = {}
        for (queue, task), tally in step.tallies.items():
            for place in ((queue, task), (queue, ALL), (ALL, ALL)):
                known = sums.get(place)
                sums[place] = tally if known is None else known.plus(tally)
        for length in KEPT_FOR:
            at = step_at(step.at, length)
            for (queue, task), tally in sums.items():
                before = totals.get((length, queue, task, at))
                totals[length, queue, task, at] = tally if before is None else before.plus(tally)
    return [tally.row(*place) for place, tally in totals.items()]


def rows_of_limits(steps: Iterable[HistoryStep], choose_keys: ChooseKeys) -> list[LimitStep]:
    """Return the rows of the shorter lengths: in total, and for the keys that `choose_keys` returns."""
    totals: dict[tuple[int, str, int], LimitUse] = {}
    for step in steps:
        for limit, use in step.uses.items():
            for length in LIMIT_STEPS:
                place = (length, limit, step_at(step.at, length))
                known = totals.get(place)
                totals[place] = use if known is None else known.plus(use)
    rows: list[LimitStep] = []
    for (length, limit, at), use in totals.items():
        rows.append(LimitStep(length, limit, None, at, use.total, use.unlimited))
        rows += [LimitStep(length, limit, key, at, use.keys[key]) for key in choose_keys(length, limit, at, use.keys)]
    return rows


class NamedKeys:
    """The keys that have their own row in a step, for all writes of this process to that step."""

    def __init__(self) -> None:
        self._named: dict[tuple[int, str, int], set[str]] = {}

    def choose(self, length: int, limit: str, at: int, used: dict[str, int]) -> Iterable[str]:
        """Return the keys that have a row already, and the most used of the others while there is room."""
        named = self._named.setdefault((length, limit, at), set())
        unnamed = [key for key in used if key not in named]
        room = max(0, MAX_KEYS - len(named))
        chosen = unnamed if len(unnamed) <= room else nlargest(room, unnamed, key=used.__getitem__)
        known = [key for key in used if key in named]
        named.update(chosen)
        return known + chosen

    def forget(self, before: int) -> None:
        """Drop steps that ended before `before`: little or nothing is written to them any more."""
        self._named = {place: keys for place, keys in self._named.items() if place[2] + place[0] * SECOND > before}
