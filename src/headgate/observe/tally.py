"""The tally: counts the events of this process in plain numbers, which costs almost nothing per job."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_args

from headgate.clock import SECOND
from headgate.jobs.event import (
    CallbackFailed,
    EndingRefused,
    JobEnqueued,
    JobFailure,
    JobFinished,
    JobRetried,
    JobReturned,
    JobStarted,
    LimiterBypassed,
    LimiterEvent,
    LimiterGranted,
    LimiterRefused,
    LimitsClosed,
    LimitStoreFailed,
    NodeCrashed,
    NodeLost,
    NodeMeasured,
    NodeStarted,
    NodeStopped,
    OccurrencesSkipped,
    StorageFailed,
    StorageUsed,
)
from headgate.observe import metric
from headgate.observe.instrument import Labels, Observed
from headgate.schedules.schedule import Skipped
from headgate.storage.endings import REJECTED

Values = tuple[str, ...]
RECOVERIES = ("returned", "poisonous", "completed", "cancelled")

LONGEST_CHECK = 65.0
"""Seconds in which a node measures itself again: a write to SQLite and the one before it each wait 30 s for a lock."""

OPS: Mapping[str, str] = {
    "claiming": "claim",
    "recording finished jobs": "finish",
    "sending a heartbeat": "beat",
    "checking the nodes": "watch",
    "leaving": "leave",
    "storing schedules": "schedules",
    "enqueueing occurrences": "fire",
    "expiring jobs": "expire",
    "housekeeping": "housekeeping",
    "storing the output of jobs": "report",
    "depositing starts": "deposit",
    "withdrawing starts": "withdraw",
}
"""The engine's descriptions of its store operations (of `StorageFailed`), as labels; others are `other`."""


class Histogram:
    """How many values fell below each bound, not cumulated; the last place is for those above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulated(self) -> list[tuple[str, float]]:
        """Return the buckets as Prometheus has them: each bound with the number of values up to it."""
        buckets: list[tuple[str, float]] = []
        count = 0
        for bound, more in zip((*map(repr, self.bounds), "+Inf"), tuple(self.counts), strict=True):
            count += more
            buckets.append((bound, float(count)))
        return buckets


class _Jobs:
    """The series of one task in one queue; plain attributes, because every job increments them."""

    __slots__ = ("deferred", "enqueued", "finished", "labels", "retried", "returned", "run", "wait")

    def __init__(self, labels: Values) -> None:
        self.labels = labels
        self.enqueued = 0
        self.deferred = 0
        self.retried = 0
        self.finished: Counter[str] = Counter()
        self.returned: Counter[str] = Counter()
        self.run = Histogram(metric.RUN_BUCKETS)
        self.wait = Histogram(metric.WAIT_BUCKETS)


class _LimitCounts:
    """The series of one limit."""

    __slots__ = ("decisions", "throttled")

    def __init__(self) -> None:
        self.decisions: Counter[str] = Counter()
        self.throttled = Histogram(metric.WAIT_BUCKETS)


class Tally:
    """All that one process has counted since its start; may be read from any thread."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._labels = Labels(observed.registry)
        self._known: dict[tuple[str, str], _Jobs] = {}
        self._jobs: dict[Values, _Jobs] = {}
        self._limits: defaultdict[str, _LimitCounts] = defaultdict(_LimitCounts)
        self._counters: defaultdict[str, Counter[Values]] = defaultdict(Counter)
        self._store: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(metric.STORE_BUCKETS))
        self._measured: dict[str, NodeMeasured] = {}
        # One per second. The last one alone would hide what happens between two scrapes.
        self._lags: deque[float] = deque(maxlen=60)
        self._measured_at = 0
        observed.tap(
            {
                JobEnqueued: self._enqueued,
                JobStarted: self._started,
                JobFinished: self._finished,
                JobFailure: self._finished,
                JobRetried: self._retried,
                JobReturned: self._returned,
                LimitsClosed: self._closed,
                LimiterGranted: partial(self._count_limiter, "granted"),
                LimiterRefused: partial(self._count_limiter, "refused"),
                LimiterBypassed: partial(self._count_limiter, "unlimited"),
                LimitStoreFailed: lambda event: self._count(metric.LIMIT_STORE_ERRORS, self._labels.limit(event.limit)),
                EndingRefused: lambda event: self._count(metric.FENCED, self._labels.task(event.task)),
                CallbackFailed: lambda event: self._count(metric.CALLBACKS_FAILED, self._labels.task(event.task)),
                OccurrencesSkipped: lambda event: self._count(metric.SKIPPED, event.reason, by=event.count),
                StorageFailed: self._failed,
                StorageUsed: lambda event: self._store[event.verb].observe(event.seconds),
                NodeStarted: self._begin,
                NodeLost: self._lost,
                NodeMeasured: self._note_measured,
                NodeStopped: self._stopped,
                NodeCrashed: self._stopped,
            }
        )

    # --------------------------------------------------------------------------------------------- counting

    def _series(self, event: Any) -> _Jobs:
        found = self._known.get((event.queue, event.task))
        return self._new_series(event.queue, event.task) if found is None else found

    def _new_series(self, queue: str, task: str) -> _Jobs:
        labels = (self._labels.queue(queue), self._labels.task(task))
        found = self._jobs.setdefault(labels, _Jobs(labels))
        if labels[0] == queue and task in self._observed.registry.names:
            # Only declared names are kept: the store may hold any names, and any number of them.
            self._known[queue, task] = found
        return found

    def _begin(self, event: NodeStarted) -> None:
        # Create counters with 0 at the start: Prometheus cannot see the growth of one that appears later.
        registry = self._observed.registry
        for task in registry.tasks.values():
            self._new_series(task.queue, task.name)
            self._count(metric.FENCED, task.name, by=0)
            self._count(metric.CALLBACKS_FAILED, task.name, by=0)
        for name in registry.limits:
            self._limit(name)
            self._count(metric.LIMIT_STORE_ERRORS, name, by=0)
        for outcome in RECOVERIES:
            self._count(metric.RECOVERED, outcome, by=0)
        for reason in get_args(Skipped):
            self._count(metric.SKIPPED, reason, by=0)
        for op in (*OPS.values(), "other"):
            self._count(metric.STORE_ERRORS, op, by=0)

    def _limit(self, name: str) -> _LimitCounts:
        return self._limits[name if name in self._limits else self._labels.limit(name)]

    def _count(self, metric: metric.Metric, *labels: str, by: int = 1) -> None:
        self._counters[metric.name][labels] += by

    def _enqueued(self, event: JobEnqueued) -> None:
        self._series(event).enqueued += 1

    def _started(self, event: JobStarted) -> None:
        series = self._series(event)
        series.wait.observe(event.waited)
        if event.throttled:
            series.deferred += 1
        for name in event.limits:
            limit = self._limit(name)
            limit.decisions["unlimited" if name in event.unlimited else "granted"] += 1
            limit.throttled.observe(event.throttled)

    def _ended(self, event: JobFinished | JobRetried | JobReturned) -> _Jobs:
        """Count how long an attempt has run; return the series of its job."""
        series = self._series(event)
        if event.ran is not None:
            series.run.observe(event.ran)
        return series

    def _finished(self, event: JobFinished) -> None:
        self._ended(event).finished[event.state.value] += 1
        error = event.error
        if error is not None and error.type == REJECTED and error.data is not None:
            self._limit(str(error.data.get("limit"))).decisions["rejected"] += 1

    def _retried(self, event: JobRetried) -> None:
        self._ended(event).retried += 1

    def _returned(self, event: JobReturned) -> None:
        self._ended(event).returned[event.reason] += 1

    def _closed(self, event: LimitsClosed) -> None:
        for name in event.limits:
            self._limit(name).decisions["throttled"] += 1

    def _count_limiter(self, decision: str, event: LimiterEvent) -> None:
        self._limit(event.limit).decisions[decision] += event.count

    def _lost(self, event: NodeLost) -> None:
        self._count(metric.LEASES_EXPIRED, by=event.known is None)
        for outcome in RECOVERIES:
            self._count(metric.RECOVERED, outcome, by=getattr(event, outcome))

    def _note_measured(self, event: NodeMeasured) -> None:
        # One node per process: a node that was declared dead has started anew under another id.
        self._measured = {event.node: event}
        self._lags.append(event.loop_lag)
        self._measured_at = self._observed.clock.monotonic()

    def _stopped(self, event: NodeStopped | NodeCrashed) -> None:
        self._measured.pop(event.node, None)

    def _failed(self, event: StorageFailed) -> None:
        self._count(metric.STORE_ERRORS, OPS.get(event.doing, "other"))
        if event.doing == "leaving":
            # It has stopped, although its row is still there.
            self._measured.clear()

    # ---------------------------------------------------------------------------------------------- reading

    def numbers(self) -> Iterator[tuple[metric.Metric, Values, float]]:
        """Yield every counter and gauge, with the values of its labels."""
        for series in list(self._jobs.values()):
            yield metric.ENQUEUED, series.labels, series.enqueued
            yield metric.DEFERRED, series.labels, series.deferred
            yield metric.RETRIED, series.labels, series.retried
            for outcome in ("succeeded", "failed", "cancelled"):
                yield metric.FINISHED, (*series.labels, outcome), series.finished[outcome]
            for reason in ("snoozed", "refused", "interrupted"):
                yield metric.RETURNED, (*series.labels, reason), series.returned[reason]
        for name, limit in list(self._limits.items()):
            for decision in ("granted", "throttled", "rejected", "refused", "unlimited"):
                yield metric.DECISIONS, (name, decision), limit.decisions[decision]
        for kind in (
            metric.LIMIT_STORE_ERRORS, metric.FENCED, metric.RECOVERED, metric.SKIPPED, metric.CALLBACKS_FAILED,
            metric.STORE_ERRORS,
        ):  # fmt: skip
            for labels, count in list(self._counters[kind.name].items()):
                yield kind, labels, count
        yield metric.LEASES_EXPIRED, (), self._counters[metric.LEASES_EXPIRED.name][()]
        yield metric.EVENTS_LOST, (), self._observed.events_lost()
        yield metric.BUILD, (self._observed.version,), 1
        for measured in list(self._measured.values()):
            yield from _gauges(measured)
            yield metric.LOOP_LAG, (), max((self._lag_now(), *tuple(self._lags)))

    def _lag_now(self) -> float:
        """Return for how long the loop has been blocked: it measures its lag only when it turns again."""
        silent = (self._observed.clock.monotonic() - self._measured_at) / SECOND
        return silent if silent > LONGEST_CHECK else 0.0

    def histograms(self) -> Iterator[tuple[metric.Metric, Values, Histogram]]:
        """Yield every histogram, with the values of its labels."""
        for series in list(self._jobs.values()):
            for kind, histogram in ((metric.RUN, series.run), (metric.WAIT, series.wait)):
                if any(histogram.counts):
                    yield kind, series.labels, histogram
        for name, limit in list(self._limits.items()):
            yield metric.THROTTLED, (name,), limit.throttled
        for op, histogram in list(self._store.items()):
            yield metric.STORE_OP, (op,), histogram


def _gauges(measured: NodeMeasured) -> Iterator[tuple[metric.Metric, Values, float]]:
    for queue, slots in measured.slots.items():
        busy = measured.busy.get(queue, 0)
        yield metric.SLOTS, (queue, "busy"), busy
        yield metric.SLOTS, (queue, "free"), slots - busy
    yield metric.LINGERING, (), measured.lingering
    yield metric.UNRECORDED, (), measured.unrecorded
    yield metric.CLOCK_SKEW, (), measured.clock_skew
