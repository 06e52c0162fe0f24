"""Claim notices: what a claim found besides the jobs that it returned."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headgate.clock import SECOND
from headgate.engine.backlog_migrator import BacklogMigrator
from headgate.engine.housekeeper import publish_dropped
from headgate.engine.services import Services
from headgate.jobs.event import JobThrottled, LimitsClosed, LimitThrottled
from headgate.storage.records import Claimed, Throttled

WINDOW = 30 * SECOND
MAX_BUCKETS = 10_000


class ClaimNotices:
    """Publishes closed limits, dropped jobs and unknown tasks, and passes jobs with old limit sets to the migrator.

    Without `throttle_events` the events of throttled jobs are not published.
    """

    def __init__(self, services: Services, backlog_migrator: BacklogMigrator, *, throttle_events: bool) -> None:
        self._registry = services.registry
        self._backlog_migrator = backlog_migrator
        self._callback_runner = services.callback_runner
        self._clock = services.clock
        self._bus = services.bus
        self._throttles = ThrottleLog()
        self._throttle_events = throttle_events

    def take(self, claimed: Claimed) -> None:
        """Handle everything in the result of a claim but its jobs."""
        self.publish_throttled(claimed.throttled)
        publish_dropped(self._bus, self._callback_runner, self._clock, claimed.dropped)
        if claimed.limit_set_mismatches or claimed.has_unknown_lanes:
            self._backlog_migrator.add_met(claimed.limit_set_mismatches, has_unknown_lanes=claimed.has_unknown_lanes)
        for task in claimed.unknown:
            self._backlog_migrator.note_task(task)

    def publish_throttled(self, throttled: Sequence[Throttled]) -> None:
        """Publish the closed buckets that a claim met."""
        if not throttled:
            return
        if self._throttle_events:
            at, now = self._clock.now(), self._clock.monotonic()
            if self._bus.has_listener(JobThrottled):
                for bucket_event in self._throttles.by_bucket(throttled, at, now):
                    self._bus.publish(bucket_event)
            if self._bus.has_listener(LimitThrottled):
                for limit_event in self._throttles.by_limit(throttled, at, now):
                    self._bus.publish(limit_event)
        if self._bus.has_listener(LimitsClosed):
            limits = tuple([met.ref.limit for met in throttled])
            self._bus.publish(LimitsClosed(at=self._clock.now(), limits=limits))

    def close(self) -> None:
        """Publish the summaries of throttling that are not due yet."""
        for event in self._throttles.close(self._clock.now()):
            self._bus.publish(event)


class ThrottleLog:
    """Turns the closed buckets of each claim into few events, for each bucket and for each limit.

    What was met is published at the end of its window, or by `close`. Instants `at` are wall time, `now` is monotonic.
    """

    def __init__(self) -> None:
        # Oldest window first.
        self._buckets: OrderedDict[tuple[str, str], _BucketWindow] = OrderedDict()
        self._limits: dict[str, _LimitWindow] = {}

    def by_bucket(self, throttled: Iterable[Throttled], at: int, now: int) -> list[JobThrottled]:
        """Return the events of buckets to publish."""
        events: list[JobThrottled] = []
        for met in throttled:
            bucket = (met.ref.limit, met.ref.key)
            window = self._buckets.get(bucket)
            if window is not None and now - window.began_at < WINDOW:
                window.count += 1
                window.latest = met
                continue
            events.append(_of_bucket(met, at, 1 if window is None else window.count + 1))
            self._buckets[bucket] = _BucketWindow(now, met)
            self._buckets.move_to_end(bucket)
        while len(self._buckets) > MAX_BUCKETS:
            _, oldest = self._buckets.popitem(last=False)
            if oldest.count:
                events.append(_of_bucket(oldest.latest, at, oldest.count))
        return events

    def by_limit(self, throttled: Iterable[Throttled], at: int, now: int) -> list[LimitThrottled]:
        """Return the events of limits to publish, also of limits that were met before."""
        for met in throttled:
            window = self._limits.setdefault(met.ref.limit, _LimitWindow())
            window.count += 1
            if len(window.by_key) < MAX_BUCKETS or met.ref.key in window.by_key:
                window.by_key[met.ref.key] = met
        events: list[LimitThrottled] = []
        for limit, window in self._limits.items():
            if window.count and (window.ends_at is None or now >= window.ends_at):
                events.append(_of_limit(limit, window, at))
                self._limits[limit] = _LimitWindow(now + WINDOW)
        return events

    def close(self, at: int) -> list[JobThrottled | LimitThrottled]:
        """Return the events of what was met and not published yet, and forget it."""
        buckets = [_of_bucket(window.latest, at, window.count) for window in self._buckets.values() if window.count]
        limits = [_of_limit(limit, window, at) for limit, window in self._limits.items() if window.count]
        self._buckets.clear()
        self._limits.clear()
        return [*buckets, *limits]


@dataclass(slots=True)
class _BucketWindow:
    """How often claims found this bucket closed since the last event."""

    began_at: int
    latest: Throttled
    count: int = 0


@dataclass(slots=True)
class _LimitWindow:
    """How often claims found this limit closed since the last event, and the last state of each key."""

    ends_at: int | None = None
    count: int = 0
    by_key: dict[str, Throttled] = field(default_factory=dict)


def _of_bucket(met: Throttled, at: int, count: int) -> JobThrottled:
    return JobThrottled(
        at=at,
        limit=met.ref.limit,
        key=met.ref.key,
        job_id=met.job_id,
        opens_at=met.opens_at,
        waiting=met.waiting,
        count=count,
    )


def _of_limit(limit: str, window: _LimitWindow, at: int) -> LimitThrottled:
    fullest = max(window.by_key.values(), key=lambda met: met.waiting)
    return LimitThrottled(
        at=at,
        limit=limit,
        keys=len(window.by_key),
        waiting=sum(met.waiting for met in window.by_key.values()),
        count=window.count,
        key=fullest.ref.key,
        opens_at=fullest.opens_at,
    )
