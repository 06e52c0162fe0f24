"""OpenTelemetry: `app.instrument(OpenTelemetry())` traces jobs from the program that enqueues to the worker.

It also feeds metrics, from the same events as those for Prometheus. Names follow the conventions for messaging.
Payloads and keys of limits are never in a span.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any, Literal, assert_never

from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import DeclarationError, needing
from headgate.jobs.event import (
    CallbackFailed,
    JobEnqueued,
    JobFailure,
    JobFinished,
    JobRetried,
    JobReturned,
    JobStarted,
    StorageUsed,
)
from headgate.jobs.job import ClaimedJob, JobError, NewJob
from headgate.jobs.lifecycle import (
    CalleeRateLimited,
    Cancelled,
    Failed,
    FailedFinally,
    Interrupted,
    Outcome,
    RetryRequested,
    Snoozed,
    Succeeded,
    Unreadable,
)
from headgate.observe.instrument import Labels, Observed
from headgate.tasks.context import JobContext, current_job

with needing("traces need", "opentelemetry", install="'headgate[opentelemetry]'"):
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.util.types import AttributeValue

BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Seconds, as the conventions advise."""

OPERATIONS = {"add": "send", "claim": "receive", "finish": "settle"}
"""The verbs of the store as operations; others keep their name."""

Attributes = dict[str, str]

SYSTEM = "headgate"
SCOPE = "headgate"
"""The name of the instrumentation, for tracers and meters."""

Relation = Literal["link", "child"]

logger = logging.getLogger("headgate.tracing")

_callbacks: ContextVar[trace.Span | None] = ContextVar("headgate_callbacks_span", default=None)


class OpenTelemetry:
    """Spans `send {queue}` where jobs are enqueued and `process {queue}` for each attempt, and the metrics of both.

    The context is stored in the headers of the job, in the format of the configured propagators (W3C traceparent and
    baggage by default). Each attempt is its own trace that links to the span of the enqueue. With `run_as="child"` it
    continues that trace instead, which suits jobs that run within minutes. `key_salt` adds a hash of each limit's key,
    salted with it: it finds the spans of one key without revealing the key.

    `tracer_provider` and `meter_provider` default to the global ones; `metrics=False` leaves the metrics out.
    """

    def __init__(
        self,
        *,
        run_as: Relation = "link",
        key_salt: str | None = None,
        metrics: bool = True,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        if run_as not in ("link", "child"):
            raise DeclarationError(f'run_as={run_as!r} must be "link" or "child"')
        if key_salt == "":
            raise DeclarationError("key_salt='' salts nothing; pass a secret of your own, or leave it out")
        self._run_as = run_as
        self._key_salt = key_salt
        self._with_metrics = metrics
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider

    def attach(self, observed: Observed) -> None:
        """Attach to an app; `app.instrument(…)` calls it. Raises DeclarationError if the app is traced already."""
        tracer = trace.get_tracer(SCOPE, observed.version, self._tracer_provider)
        spans = Spans(tracer, Labels(observed.registry), run_as=self._run_as, key_salt=self._key_salt)
        observed.trace_by(spans)
        # Not in the span that was current when the app was opened.
        observed.registry.hooks.call_contexts.append(partial(_attached, context.Context()))
        observed.tap({CallbackFailed: spans.note_failed_callback})
        if self._with_metrics:
            OtelMetrics(observed, self._meter_provider)


class Spans:
    """The app's tracing: makes its spans with one tracer."""

    def __init__(self, tracer: trace.Tracer, labels: Labels, *, run_as: Relation, key_salt: str | None) -> None:
        self._tracer = tracer
        self._labels = labels
        self._run_as = run_as
        self._salt = None if key_salt is None else key_salt.encode()
        self._errors = _TracingErrors()

    @contextmanager
    def sending(self, jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
        """Wrap the storing of jobs in one span; all of them carry its context."""
        queues = {job.queue for job in jobs}
        queue = queues.pop() if len(queues) == 1 else None
        attributes = _attributes("send")
        if queue is not None:
            attributes["messaging.destination.name"] = queue
        tasks = {job.task for job in jobs}
        if len(tasks) == 1:
            attributes["headgate.task.name"] = tasks.pop()
        if len(jobs) == 1:
            attributes["messaging.message.id"] = jobs[0].id
            attributes["messaging.message.body.size"] = len(jobs[0].payload.encode())
        else:
            attributes["messaging.batch.message_count"] = len(jobs)
        name = "send" if queue is None else f"send {queue}"
        with self._current(name, trace.SpanKind.PRODUCER, attributes) as span:
            carried = self.carried(None)
            try:
                yield [replace(job, headers={**(job.headers or {}), **carried}) for job in jobs] if carried else jobs
            except Exception as error:
                span.set_attribute("error.type", _type_name(error))
                raise

    @contextmanager
    def running(self, job: ClaimedJob, task: str) -> Iterator[Callable[[Outcome], None]]:
        """Wrap an attempt in a span, which is current in the handler, also in its thread."""
        attributes = _attributes("process") | {
            "messaging.destination.name": job.queue,
            "messaging.message.id": job.id,
            "messaging.message.body.size": len(job.payload.encode()),
            "headgate.task.name": task,
            "headgate.attempt": job.attempt,
            "headgate.wait": max(0, job.started_at - job.run_at) / SECOND,
        }
        if job.origin is not None:
            if job.origin.batch is not None:
                attributes["messaging.message.conversation_id"] = job.origin.batch
            if job.origin.schedule is not None:
                attributes["headgate.schedule"] = job.origin.schedule
        if job.buckets:
            attributes["headgate.limits"] = [ref.limit for ref in job.buckets]
            attributes["headgate.ratelimit.wait"] = job.throttled_for / SECOND
            if self._salt is not None:
                attributes["headgate.ratelimit.key_hash"] = [self._hash(ref.key, self._salt) for ref in job.buckets]
        with self._following(job.headers, f"process {job.queue}", trace.SpanKind.CONSUMER, attributes) as span:
            yield partial(_set_outcome, span)

    @contextmanager
    def calling_back(self, job: JobContext, moment: str) -> Iterator[None]:
        """Wrap callbacks in a span beside that of the attempt, which is over by then."""
        task = self._labels.task(job.task)
        attributes: dict[str, AttributeValue] = {
            "messaging.system": SYSTEM,
            "messaging.message.id": job.id,
            "headgate.task.name": task,
        }
        with self._following(job.headers, f"{moment} {task}", trace.SpanKind.INTERNAL, attributes) as span:
            _callbacks.set(span)
            yield

    def note_failed_callback(self, event: CallbackFailed) -> None:
        """Record a failed callback; it runs where the callback failed, so the callbacks' span is current."""
        span = _callbacks.get()
        if span is not None:
            span.set_status(trace.StatusCode.ERROR, event.error)

    def carried(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        """Return the headers with the context of the current span."""
        carried = dict(headers or {})
        try:
            propagate.inject(carried)
        except Exception as error:
            self._errors.log_once(error)
        return carried

    @contextmanager
    def _following(
        self,
        headers: Mapping[str, str] | None,
        name: str,
        kind: trace.SpanKind,
        attributes: Mapping[str, AttributeValue],
    ) -> Iterator[trace.Span]:
        """Open a span that follows the enqueue, as a link or a child; its baggage is there in both cases."""
        producer = context.Context()
        try:
            producer = propagate.extract(headers or {}, producer)
        except Exception as error:
            self._errors.log_once(error)
        sent = trace.get_current_span(producer).get_span_context()
        links: list[trace.Link] = []
        if sent.is_valid and self._run_as == "link":
            links.append(trace.Link(sent))
            producer = trace.set_span_in_context(trace.INVALID_SPAN, producer)
        # The context in which the job was claimed does not belong to it.
        with _attached(producer), self._current(name, kind, attributes, links) as span:
            yield span

    def _current(
        self,
        name: str,
        kind: trace.SpanKind,
        attributes: Mapping[str, AttributeValue],
        links: Sequence[trace.Link] = (),
    ) -> _SafeSpan:
        """Return a span that is current inside."""
        span = self._tracer.start_as_current_span(name, kind=kind, attributes=attributes, links=links)
        return _SafeSpan(span, self._errors)

    @staticmethod
    def _hash(key: str, salt: bytes) -> str:
        return hmac.new(salt, key.encode(), hashlib.sha256).hexdigest()[:16]


class _TracingErrors:
    """Logs the first error of the program's own processors and propagators; they never fail a job."""

    def __init__(self) -> None:
        self._is_told = False

    def log_once(self, error: Exception) -> None:
        if not self._is_told:
            self._is_told = True
            logger.warning("spans could not be made; jobs run on without", exc_info=error)


class _SafeSpan:
    """A span around some work; its own errors do not fail the work."""

    __slots__ = ("_errors", "_span")

    def __init__(self, span: AbstractContextManager[trace.Span], errors: _TracingErrors) -> None:
        self._span = span
        self._errors = errors

    def __enter__(self) -> trace.Span:
        try:
            return self._span.__enter__()
        except Exception as error:
            self._errors.log_once(error)
            return trace.INVALID_SPAN

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._span.__exit__(kind, raised, traceback)
        except Exception as error:
            if error is not raised:
                self._errors.log_once(error)


def continued_trace() -> AbstractContextManager[None]:
    """Continue the attempt's span, which its node has made, inside a `process=True` task.

    `with continued_trace(): …`. The child process needs its own tracer provider, as any program does.
    """
    return _attached(propagate.extract(current_job().headers))


@contextmanager
def _attached(current: context.Context) -> Iterator[None]:
    before = context.attach(current)
    try:
        yield
    finally:
        context.detach(before)


def _attributes(operation: str) -> dict[str, AttributeValue]:
    """Return the attributes of an operation, whose name is that of its type."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _set_outcome(span: trace.Span, outcome: Outcome) -> None:
    match outcome:
        case Succeeded():
            span.set_attribute("headgate.outcome", "succeeded")
        case Failed(error) | FailedFinally(error) | RetryRequested(error) | Unreadable(error):
            span.set_attribute("headgate.outcome", "failed")
            _set_error(span, error)
        case Snoozed():
            span.set_attribute("headgate.outcome", "snoozed")
        case CalleeRateLimited(retry_after):
            span.set_attribute("headgate.outcome", "refused")
            span.set_attribute("headgate.retry_after", retry_after / SECOND)
        case Cancelled():
            span.set_attribute("headgate.outcome", "cancelled")
        case Interrupted():
            span.set_attribute("headgate.outcome", "interrupted")
        case _:
            assert_never(outcome)


def _set_error(span: trace.Span, error: JobError) -> None:
    # As `record_exception` does it; the error itself may have been raised in another process.
    attributes: dict[str, AttributeValue] = {"exception.type": error.type, "exception.message": error.message}
    if error.traceback is not None:
        attributes["exception.stacktrace"] = error.traceback
    span.add_event("exception", attributes)
    span.set_attribute("error.type", error.type)
    span.set_status(trace.StatusCode.ERROR, f"{error.type}: {error.message}")


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class OtelMetrics:
    """Counts sent and consumed jobs, and measures attempts and store operations."""

    def __init__(self, observed: Observed, provider: metrics.MeterProvider | None) -> None:
        meter = metrics.get_meter(SCOPE, observed.version, provider)
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
                JobEnqueued: lambda event: self._sent.add(1, self._attributes("send", event)),
                JobStarted: lambda event: self._consumed.add(1, self._attributes("receive", event)),
                JobFinished: self._measure,
                JobFailure: self._measure,
                JobRetried: self._measure,
                JobReturned: self._measure,
                StorageUsed: self._measure_store,
            }
        )

    def _measure(self, event: JobFinished | JobRetried | JobReturned) -> None:
        if event.ran is not None:
            attributes = self._attributes("process", event)
            # That of a cancelled job is its handler's reason, and no failure.
            error = event.error if isinstance(event, JobFailure | JobRetried) else None
            if error is not None:
                attributes = {**attributes, "error.type": error.type}
            self._processed.record(event.ran, attributes)

    def _measure_store(self, event: StorageUsed) -> None:
        self._operated.record(event.seconds, _attributes(OPERATIONS.get(event.verb, event.verb)))

    def _attributes(self, operation: str, event: Any) -> Attributes:
        queue, task = self._labels.queue(event.queue), self._labels.task(event.task)
        found = self._known.get((operation, queue, task))
        if found is None:
            found = self._known[operation, queue, task] = {
                "messaging.system": SYSTEM,
                "messaging.operation.name": operation,
                "messaging.destination.name": queue,
                "headgate.task.name": task,
            }
        return found
