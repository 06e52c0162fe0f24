"""History: what jobs did and what was charged to limits over time, as charts show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from headgate.arguments import parse_duration
from headgate.clock import SECOND, Duration, microseconds, to_datetime
from headgate.errors import DeclarationError
from headgate.jobs.history import ALL, KEPT_FOR, LIMIT_STEPS, JobsStep, added, percentile, step_at
from headgate.jobs.job import BucketRef
from headgate.limits.key import bucket_key
from headgate.limits.limit import AnyRule
from headgate.storage.live_rules import LiveRules
from headgate.storage.store import Store

MINUTE = 60
"""The length of the steps of an `Activity`, in seconds."""

ACTIVITY_SPAN = 15 * MINUTE
"""How far back an `Activity` looks, in seconds."""

MOST_STEPS = 10_000
"""How many steps are read at most for the activity of all tasks."""


@dataclass(frozen=True, slots=True)
class JobsPoint:
    """The counts of jobs in the step that begins `at`; durations in seconds, None if there was none.

    `wait_…` is how long the started jobs had been due: since their `run_at`, or since they were enqueued. `run_…` is
    how long attempts took, from claim to end, with any outcome. Half of them took no longer than `…_p50`, 95 of 100 no
    longer than `…_p95`, 99 of 100 no longer than `…_p99` (estimated, to a tenth or so), and none longer than `…_max`.
    `retried` counts attempts that failed and are tried again; `cancelled` and `failed` also count jobs that ended
    without running, as `skipped` ones do.
    """

    at: datetime
    enqueued: int
    started: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    retried: int
    wait_p50: float | None
    wait_p95: float | None
    wait_p99: float | None
    wait_max: float | None
    run_p50: float | None
    run_p95: float | None
    run_p99: float | None
    run_max: float | None


@dataclass(frozen=True, slots=True)
class JobsHistory:
    """The counts of jobs for steps of `step` seconds, and in total; steps without jobs are missing.

    `deploys` are the last 100 deploys of all nodes in this time.
    """

    step: int
    points: Sequence[JobsPoint]
    total: JobsPoint | None
    deploys: Sequence[Deploy]


@dataclass(frozen=True, slots=True)
class Deploy:
    """The start of the first node of another release of the program, see `Settings.release`."""

    at: datetime
    release: str


@dataclass(frozen=True, slots=True)
class LimitPoint:
    """The charge in the step that begins `at`: the sum of the starts' costs.

    `unlimited` is how many of these starts were not charged, because the limit is kept in another store, which was
    unavailable; it is counted for all keys together only.
    """

    at: datetime
    used: int
    unlimited: int = 0


@dataclass(frozen=True, slots=True)
class RateBound:
    """The bound that a rule sets for a key: `count` in `per` seconds."""

    count: int
    per: float


@dataclass(frozen=True, slots=True)
class LimitHistory:
    """The use of a limit, in steps of `step` seconds, and what its rule allows now.

    `bound` is None for all keys together, for a limit that this program does not declare, and for rules that are not a
    count in a time: permits and dynamic windows. `deploys` are the last 100 in this time.
    """

    limit: str
    key: str | None
    step: int
    points: Sequence[LimitPoint]
    bound: RateBound | None
    deploys: Sequence[Deploy] = ()

    @property
    def unlimited(self) -> int:
        """How many starts were not charged in all."""
        return sum(point.unlimited for point in self.points)


@dataclass(frozen=True, slots=True)
class Activity:
    """The counts for a task or a queue in the last minutes.

    `throughput` is how many jobs finished per second, `failure_share` the part of these that failed (None: no job
    finished), `wait_p95` and `run_p95` are seconds, as in `JobsPoint`. `trend` counts the finished jobs of each whole
    minute.
    """

    throughput: float = 0.0
    failure_share: float | None = None
    wait_p95: float | None = None
    run_p95: float | None = None
    trend: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ActivityReport:
    """The tasks and the queues in which anything has happened since then, by name."""

    since: datetime
    tasks: Mapping[str, Activity]
    queues: Mapping[str, Activity]


class HistoryAdmin:
    """Reads what an app's processes have counted; see `Settings.history`. The last ten seconds may be missing.

    Steps in which nothing happened are missing. The last step may still be running. Processes that are killed, or
    cannot reach their store for long, leave a gap: it is for charts only, and no decision depends on it.
    """

    def __init__(self, storage: Store, rules: Mapping[str, AnyRule]) -> None:
        self._storage = storage
        self._rules = rules

    async def jobs(
        self, queue: str | None = None, task: str | None = None, step: Duration = 60, span: Duration = 3600
    ) -> Sequence[JobsPoint]:
        """Return what jobs did in the last `span` (seconds), for a queue, a task, or all; oldest first.

        `step` is 10, 60 or 3600 seconds; the steps are kept for an hour, a day and 60 days. At most 1,440 points.
        Raises DeclarationError.
        """
        return (await self.report(queue, task, step, span)).points

    async def report(
        self, queue: str | None = None, task: str | None = None, step: Duration = 60, span: Duration = 3600
    ) -> JobsHistory:
        """As `jobs`, with the sum of all steps, whose percentiles are of all their jobs, and the last 100 deploys.

        The sum begins with the first step; it is None without steps.
        """
        seconds, rest = divmod(parse_duration(step, "step", "history"), SECOND)
        if rest or seconds not in KEPT_FOR:
            raise DeclarationError(f"step={step!r} must be one of {', '.join(map(str, KEPT_FOR))} seconds")
        longer = " or ".join(str(each) for each in KEPT_FOR if each > seconds)
        advice = f", or for more time step={longer}" if longer else ""
        kept = KEPT_FOR[seconds]
        since = self._since(seconds, _parse_span(span, seconds, kept, f"steps of {seconds} s are", advice))
        rows = await self._storage.jobs_history(
            seconds, ALL if queue is None else queue, ALL if task is None else task, since
        )
        # A task that runs in several queues has a row in each.
        steps = [reduce(JobsStep.plus, of_one) for _, of_one in groupby(rows, key=attrgetter("at"))]
        total = _point(reduce(JobsStep.plus, steps)) if steps else None
        points = [_point(each) for each in steps]
        return JobsHistory(seconds, points, total, await deploys_since(self._storage, since))

    async def activity(self) -> ActivityReport:
        """Return what each task and each queue has done in the last 15 minutes.

        It reads 10,000 steps of a minute at most, the newest. If there are more, the time is shorter.
        """
        now, since = self._storage.now(), self._since(MINUTE, ACTIVITY_SPAN * SECOND)
        rows = await self._storage.recent_history(MINUTE, since, MOST_STEPS)
        if len(rows) == MOST_STEPS:
            # The first minute may be incomplete.
            since = rows[-1].at + MINUTE * SECOND
            rows = [row for row in rows if row.at >= since]
        steps: dict[tuple[str, str], list[JobsStep]] = {}
        for row in rows:
            steps.setdefault((row.queue, row.task), []).append(row)
        length = now - since
        curves = [_Curve.of(each, since, length // (MINUTE * SECOND)) for each in steps.values()]
        return ActivityReport(
            to_datetime(since),
            tasks=_activities(curves, attrgetter("task"), length),
            queues=_activities(curves, attrgetter("queue"), length),
        )

    async def limit(
        self, name: str, key: str | None = None, span: Duration = 3600, *, with_period_before: bool = False
    ) -> LimitHistory:
        """Return what was charged to a key of a limit in the last `span` (seconds, up to a day); None: to all together.

        Up to an hour it is in steps of 10 s, above that in steps of 60 s. For a limit with more keys, only the 1,000
        keys that each process used most in a step have their own history. `with_period_before` begins a period of the
        key's rule earlier, so that sums over a period are complete. Raises DeclarationError.
        """
        kept = KEPT_FOR[LIMIT_STEPS[-1]]
        duration = _parse_span(span, LIMIT_STEPS[0], kept, "the history of a limit is")
        key = None if key is None else bucket_key(key)
        bound = await self._bound(name, key)
        if with_period_before and bound is not None:
            duration = min(duration + microseconds(bound.per), kept * SECOND)
        step = next(each for each in LIMIT_STEPS if duration <= KEPT_FOR[each] * SECOND)
        since = self._since(step, duration)
        rows = await self._storage.limit_history(step, name, key, since)
        points = [LimitPoint(to_datetime(row.at), max(0, row.used), row.unlimited) for row in rows]
        return LimitHistory(name, key, step, points, bound, await deploys_since(self._storage, since))

    def _since(self, step: int, duration: int) -> int:
        return step_at(self._storage.now() - duration, step) + step * SECOND

    async def _bound(self, name: str, key: str | None) -> RateBound | None:
        declared = self._rules.get(name)
        if declared is None or key is None or declared.count is None or declared.holds_permits:
            return None
        rule = LiveRules(await self._storage.settings()).rule(BucketRef(name, key), declared)
        return None if rule.count is None else RateBound(rule.count, rule.declared_period / SECOND)


def _parse_span(span: Duration, least: int, most: int, what: str, advice: str = "") -> int:
    """Return a span in microseconds. Raises DeclarationError unless it is from `least` to `most` seconds.

    `what` is what is kept for `most`.
    """
    duration = parse_duration(span, "span", "history")
    if not least * SECOND <= duration <= most * SECOND:
        text = f"{most // 3600}h" if most < 86400 else f"{most // 86400}d"
        raise DeclarationError(
            f"history: span={span!r} must be from {least} to {most} seconds, because {what} kept for {text}; "
            f'write span="{least}s" to span="{text}"{advice}'
        )
    return duration


def _activities(curves: Sequence[_Curve], name: Callable[[JobsStep], str], length: int) -> dict[str, Activity]:
    named: dict[str, list[_Curve]] = {}
    for curve in curves:
        named.setdefault(name(curve.total), []).append(curve)
    return {each: _activity(reduce(_Curve.plus, of_one), length) for each, of_one in named.items()}


def _activity(curve: _Curve, length: int) -> Activity:
    """Return what the jobs of a curve, which covers `length` microseconds, have done."""
    total = curve.total
    finished = total.succeeded + total.failed
    return Activity(
        throughput=finished * SECOND / max(MINUTE * SECOND, length),
        failure_share=total.failed / finished if finished else None,
        wait_p95=_durations(total.waits, total.wait_max)[1],
        run_p95=_durations(total.runs, total.run_max)[1],
        trend=curve.trend,
    )


class _Curve(NamedTuple):
    """A task in a queue: the sum of its steps, and how many of its jobs finished in each whole minute."""

    total: JobsStep
    trend: Sequence[int]

    @staticmethod
    def of(rows: Sequence[JobsStep], since: int, minutes: int) -> _Curve:
        trend = [0] * minutes
        for row in rows:
            # The minute that is not over would look like a fall.
            if (minute := (row.at - since) // (MINUTE * SECOND)) < minutes:
                trend[minute] += row.succeeded + row.failed
        return _Curve(reduce(JobsStep.plus, rows), trend)

    def plus(self, other: _Curve) -> _Curve:
        return _Curve(self.total.plus(other.total), added(self.trend, other.trend))


async def deploys_since(storage: Store, since: int) -> Sequence[Deploy]:
    """Return the last 100 deploys since then (wall microseconds), oldest first."""
    return [Deploy(to_datetime(each.at), each.release) for each in await storage.deploys(since)]


def _point(row: JobsStep) -> JobsPoint:
    return JobsPoint(
        to_datetime(row.at),
        row.enqueued,
        row.started,
        row.succeeded,
        row.failed,
        row.cancelled,
        row.skipped,
        row.retried,
        *_durations(row.waits, row.wait_max),
        *_durations(row.runs, row.run_max),
    )


def _durations(counts: Sequence[int], longest: int) -> tuple[float | None, ...]:
    """Return the percentiles and the longest duration, in seconds."""
    found = [percentile(counts, fraction, longest) for fraction in (0.5, 0.95, 0.99)]
    return tuple(None if None in found or each is None else each / SECOND for each in (*found, longest))
