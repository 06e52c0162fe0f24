"""Sentry: `app.instrument(Sentry())` reports failed jobs, and traces each job from its caller to its attempts.

Your program calls `sentry_sdk.init`. Without it, nothing is sent and no header is added.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.errors import DeclarationError, needing
from headgate.jobs.event import EndingRefused, JobFailure, JobFinished, JobRetried, JobReturned
from headgate.observe.instrument import Observed
from headgate.tasks.context import AttemptContext
from headgate.tasks.executor_kind import Executor
from headgate.tasks.hooks import JobDraft
from headgate.tasks.signals import Cancel, RateLimited, Retry, Snooze

with needing("headgate.contrib.sentry needs", "sentry_sdk", install="'headgate[sentry]'"):
    import sentry_sdk
    from sentry_sdk.scope import Scope, should_send_default_pii
    from sentry_sdk.utils import event_from_exception

if TYPE_CHECKING:
    from sentry_sdk.tracing import Span
    from sentry_sdk.types import Event, Hint

ORIGIN = "auto.queue.headgate"


class Sentry:
    """Reports jobs that have failed for good to Sentry; with `report_retried=True` also each attempt that is retried.

    Each attempt has an isolation scope and a transaction, which continues the trace of its enqueue. `Snooze`,
    `RateLimited`, `Cancel` and a `Retry` with retries left are not reported. It sends job arguments and limit keys
    only with `sentry_sdk.init(send_default_pii=True)`, or `data_collection={"queues": True}`.
    """

    def __init__(self, *, report_retried: bool = False) -> None:
        self._report_retried = report_retried
        # Errors of attempts whose endings are not stored yet, with the functions that report them.
        self._held: dict[str, tuple[Callable[[], None], Event, BaseException]] = {}

    def attach(self, observed: Observed) -> None:
        """Attach to an app; `app.instrument(…)` calls it. Raises DeclarationError if the app has one already."""
        hooks = observed.registry.hooks
        if any(isinstance(getattr(hook, "__self__", None), Sentry) for hook in hooks.around_attempt):
            raise DeclarationError("the app reports to Sentry already; call app.instrument(Sentry()) once")
        self._find = observed.registry.find
        hooks.add_around_enqueue(self.publish)
        # The outermost: what other functions set is to stay in the scope of the attempt, and what they raise counts.
        hooks.around_attempt.insert(0, self.process)
        hooks.call_contexts.append(_own_scope)
        observed.tap({JobFailure: self._report_failure, JobRetried: self._report_retry})
        # A hook may have turned the error into another end, and another node may have taken the job over.
        observed.tap(dict.fromkeys((JobFinished, JobReturned, EndingRefused), self._drop))
        sentry_sdk.get_global_scope().add_event_processor(_without_log_line)

    async def publish(self, jobs: Sequence[JobDraft], enqueue: Callable[[], Awaitable[None]]) -> None:
        """Store the jobs with the headers `sentry-trace` and `baggage`, in a span if the caller has one."""
        if not sentry_sdk.get_client().is_active():
            await enqueue()
        elif sentry_sdk.get_current_span() is None:
            _carry(jobs)
            await enqueue()
        else:
            with sentry_sdk.start_span(op="queue.publish", name=jobs[0].task, origin=ORIGIN) as span:
                _carry(jobs)
                await enqueue()
                span.set_data("messaging.system", "headgate")
                span.set_data("messaging.destination.name", jobs[0].queue)
                span.set_data("messaging.message.id", jobs[0].id)
                span.set_data("messaging.batch.message_count", len(jobs))

    async def process(self, job: AttemptContext, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run an attempt in its own isolation scope and transaction."""
        if not sentry_sdk.get_client().is_active():
            return await run()
        result, raised = None, None
        with _own_scope() as scope:
            for name, value in _tags(job.task, job.queue, job.id).items():
                scope.set_tag(name, value)
            with sentry_sdk.start_transaction(
                sentry_sdk.continue_trace(job.headers, op="queue.process", name=job.task, source="task", origin=ORIGIN)
            ) as transaction:
                transaction.set_data("messaging.system", "headgate")
                transaction.set_data("messaging.destination.name", job.queue)
                transaction.set_data("messaging.message.id", job.id)
                transaction.set_data("messaging.message.retry.count", job.attempt - 1)
                transaction.set_data("messaging.message.receive.latency", job.waited_for * 1000)
                # A child process continues this span.
                _carry([job])
                try:
                    result = await run()
                except BaseException as error:
                    raised = error
                    is_failure = isinstance(error, Exception) and not isinstance(error, (Snooze, RateLimited, Cancel))
                    is_error = is_failure and not isinstance(error, Retry)
                    transaction.set_status("internal_error" if is_error else "aborted")
                    if is_failure:
                        scope.set_context("job", _described(job))
                        self._hold(job.id, error)
                else:
                    transaction.set_status("ok")
        if raised is None:
            return result
        # Outside of the transaction, which would count every exception as an error.
        try:
            raise raised
        finally:
            del raised

    def _hold(self, job_id: str, error: BaseException) -> None:
        options = sentry_sdk.get_client().options
        mechanism = {"type": "headgate", "handled": False}
        event, hint = event_from_exception(error, client_options=options, mechanism=mechanism)
        capture = partial(copy_context().run, _capture, sentry_sdk.get_current_span(), event, hint)
        self._held[job_id] = (capture, event, error)

    def _report_failure(self, failure: JobFailure) -> None:
        if failure.job_id in self._held:
            self._send(failure)
            return
        # Its last attempt did not call the handler, or ended with its node.
        values: list[dict[str, Any]] = []
        if failure.error is not None:
            module, _, name = failure.error.type.rpartition(".")
            values.append({"type": name, "module": module or None, "value": failure.error.message})
        sentry_sdk.capture_event(
            {
                "level": "error",
                "exception": {"values": values},
                "tags": _tags(failure.task, failure.queue, failure.job_id),
                "contexts": {"job": {"id": failure.job_id, "attempt": failure.attempt}},
            }
        )

    def _report_retry(self, retry: JobRetried) -> None:
        held = self._held.get(retry.job_id)
        if held is not None and self._report_retried and not isinstance(held[2], Retry):
            self._send(retry)
        else:
            self._drop(retry)

    def _send(self, ended: JobFailure | JobRetried) -> None:
        capture, event, _ = self._held.pop(ended.job_id)
        task = self._find(ended.task)
        if task is not None and task.executor is Executor.PROCESS and ended.error is not None:
            # The stack trace of the event ends in the node.
            event["extra"] = {"traceback": ended.error.traceback}
        capture()

    def _drop(self, ended: JobFinished | JobRetried | JobReturned | EndingRefused) -> None:
        self._held.pop(ended.job_id, None)


@contextmanager
def _own_scope() -> Iterator[Scope]:
    """Enter an isolation scope without the breadcrumbs of others."""
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        yield scope


def _capture(span: Span | None, event: Event, hint: Hint) -> None:
    # The span is over, but the event is of it.
    sentry_sdk.get_current_scope().span = span
    sentry_sdk.capture_event(event, hint)


def _carry(jobs: Sequence[JobDraft | AttemptContext]) -> None:
    carried = dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers())
    for job in jobs:
        job.headers.update(carried)


def _tags(task: str, queue: str, job_id: str) -> dict[str, str]:
    return {"headgate.task": task, "headgate.queue": queue, "headgate.job_id": job_id}


def _described(job: AttemptContext) -> dict[str, Any]:
    described = {"id": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt, "tags": list(job.tags)}
    keys = job.limit_keys
    # Releases of sentry-sdk without this option have `send_default_pii` alone.
    collected = sentry_sdk.get_client().options.get("data_collection")
    if should_send_default_pii() if collected is None else collected["queues"]:
        return {**described, "limits": dict(keys), "arguments": job.arguments}
    return {**described, "limits": list(keys)}


def _without_log_line(event: Event, hint: Hint) -> Event | None:
    """Drop the log line of a failed job, of which Sentry's logging integration makes a second report."""
    record = hint.get("log_record")
    is_line = record is not None and record.name == "headgate" and getattr(record, "event", None) == "JobFailure"
    return None if is_line else event
