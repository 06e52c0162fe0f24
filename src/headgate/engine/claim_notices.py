"""Claim notices: what a claim found besides the jobs that it returned."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.engine.backlog_migrator import BacklogMigrator
from headgate.engine.housekeeper import publish_dropped
from headgate.engine.services import Services
from headgate.engine.throttle_log import ThrottleLog
from headgate.jobs.event import JobThrottled, LimitsClosed, LimitThrottled
from headgate.storage.records import Claimed, Throttled


class ClaimNotices:
    """Publishes closed limits, dropped jobs and unknown tasks, and passes jobs with old gates to the migrator.

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
        if claimed.gate_mismatches or claimed.has_unknown_lanes:
            self._backlog_migrator.add_met(claimed.gate_mismatches, has_unknown_lanes=claimed.has_unknown_lanes)
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
            limits = tuple([met.draw.limit for met in throttled])
            self._bus.publish(LimitsClosed(at=self._clock.now(), limits=limits))

    def close(self) -> None:
        """Publish the summaries of throttling that are not due yet."""
        for event in self._throttles.close(self._clock.now()):
            self._bus.publish(event)
