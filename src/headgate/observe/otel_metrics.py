"""The metrics of OpenTelemetry's conventions for messaging, fed by the same events as those for Prometheus."""

from __future__ import annotations

from typing import Any

from opentelemetry import metrics

from headgate.jobs.event import JobEnqueued, JobFailure, JobFinished, JobRetried, JobReturned, JobStarted, StorageUsed
from headgate.observe.instrument import Labels, Observed

BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Seconds, as the conventions advise."""

OPERATIONS = {"add": ("send", "send"), "claim": ("receive", "receive"), "finish": ("settle", "settle")}
"""The verbs of the store, as names and types of operations."""

Attributes = dict[str, str]


class OtelMetrics:
    """Counts sent and consumed jobs, and measures attempts and store operations."""

    def __init__(self, observed: Observed, provider: metrics.MeterProvider | None) -> None:
        meter = metrics.get_meter("headgate", observed.version, provider)
        self._labels = Labels(observed.registry)
        self._known: dict[tuple[str, str, str], Attributes] = {}
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were enqueued.")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Jobs that were claimed and started."
        )
        self._processed = meter.create_histogram(
            "messaging.process.duration", "s", "How long attempts ran.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )  # fmt: skip
        self._operated = meter.create_histogram(
            "messaging.client.operation.duration", "s", "How long the store took, for one or many jobs at once.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )  # fmt: skip
        observed.tap(
            {
                JobEnqueued: self._count_sent,
                JobStarted: self._count_consumed,
                JobFinished: self._measure,
                JobFailure: self._measure,
                JobRetried: self._measure,
                JobReturned: self._measure,
                StorageUsed: self._measure_store,
            }
        )

    def _count_sent(self, event: JobEnqueued) -> None:
        self._sent.add(1, self._attributes("send", event))

    def _count_consumed(self, event: JobStarted) -> None:
        self._consumed.add(1, self._attributes("receive", event))

    def _measure(self, event: JobFinished | JobRetried | JobReturned) -> None:
        if event.ran is not None:
            attributes = self._attributes("process", event)
            error = None if isinstance(event, JobReturned) else event.error
            if error is not None:
                attributes = {**attributes, "error.type": error.type}
            self._processed.record(event.ran, attributes)

    def _measure_store(self, event: StorageUsed) -> None:
        name, kind = OPERATIONS.get(event.verb, (event.verb, event.verb))
        self._operated.record(
            event.seconds,
            {"messaging.system": "headgate", "messaging.operation.name": name, "messaging.operation.type": kind},
        )

    def _attributes(self, operation: str, event: Any) -> Attributes:
        queue, task = self._labels.queue(event.queue), self._labels.task(event.task)
        found = self._known.get((operation, queue, task))
        if found is None:
            found = self._known[operation, queue, task] = {
                "messaging.system": "headgate",
                "messaging.operation.name": operation,
                "messaging.destination.name": queue,
                "headgate.task.name": task,
            }
        return found
