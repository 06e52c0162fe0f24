"""The outcome recorder: turns the outcome of an attempt into the ending of its job, and queues it for the store."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.engine.charge import ChargeRouter, takes_permit
from headgate.engine.error_text import summarize_error
from headgate.engine.executor import RunningAttempt
from headgate.engine.recorder import Recorder, Then
from headgate.engine.services import Services
from headgate.errors import USER_CODE_ERRORS
from headgate.jobs.event import RetryPolicyFailed
from headgate.jobs.job import ClaimedJob, JobState
from headgate.jobs.lifecycle import (
    CalleeRateLimited,
    Ending,
    Finished,
    Interrupted,
    Outcome,
    Returned,
    Succeeded,
    decide,
    succeeded,
)
from headgate.jobs.retry import RetryPolicy
from headgate.tasks.callbacks import CallbackKind


class OutcomeRecorder:
    """Decides the endings of jobs from the outcomes of attempts. `handed_back` counts the interrupted jobs returned."""

    def __init__(self, services: Services, recorder: Recorder, charges: ChargeRouter) -> None:
        self._storage = services.storage
        self._registry = services.registry
        self._recorder = recorder
        self._charges = charges
        self._callback_runner = services.callback_runner
        self._clock = services.clock
        self._bus = services.bus
        self._random = services.random
        self.handed_back = 0

    def record(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        """Record the outcome of an attempt; the charge of a start that never happened or was refused is refunded."""
        job, charge, now = attempt.job, attempt.charge, self._storage.now()
        if charge is not None and (not attempt.is_called or isinstance(outcome, CalleeRateLimited)):
            charge.refund(is_refused=isinstance(outcome, CalleeRateLimited))
        # The fast path: most attempts succeed, and then there is nothing to decide.
        ending = succeeded(job, outcome) if isinstance(outcome, Succeeded) else self._ending_of(attempt, outcome, now)
        if charge is not None:
            final = charge.final
            if final is not None:
                ending = replace(ending, charge=final)
        then = self._callbacks_after(attempt, ending) if attempt.task.callbacks.exist else None
        # Its traceback refers to the attempt: a cycle that only the garbage collector would free.
        attempt.error = None
        ran = (self._clock.monotonic() - attempt.started_at) / SECOND
        self._recorder.end(job, ending, now, then, ran=ran)

    def hand_back(self, job: ClaimedJob, delay: int = 0) -> None:
        """Return a job that was claimed and does not start, for `delay` microseconds; no attempt is spent."""
        charge = self._charges.refund(job)
        self.handed_back += 1
        now = self._storage.now()
        run_at = now + delay if delay else None
        self._recorder.end(
            job, Returned(job.id, job.fence, "interrupted", spent=False, run_at=run_at, charge=charge), now
        )

    def _ending_of(self, attempt: RunningAttempt, outcome: Outcome, now: int) -> Ending:
        job = attempt.job
        ending = self._decide(job, outcome, attempt.retry, now, attempt.error)
        self.handed_back += isinstance(outcome, Interrupted)
        if isinstance(outcome, CalleeRateLimited):
            if isinstance(ending, Returned) and not self._uses_rates(job):
                # It uses no bucket that could be closed, so the job itself is delayed.
                ending = replace(ending, run_at=now + outcome.retry_after)
            self._charges.penalize(job, outcome.retry_after)
        return ending

    def _decide(
        self, job: ClaimedJob, outcome: Outcome, retry: RetryPolicy, now: int, raised: BaseException | None
    ) -> Ending:
        try:
            return decide(job, outcome, retry, now, self._random, raised)
        except USER_CODE_ERRORS as error:
            # The user's own backoff or filter failed. The job must not be lost, so the default policy is used.
            self._bus.publish(RetryPolicyFailed(at=self._clock.now(), task=job.task, error=summarize_error(error)))
            plain = RetryPolicy(retries=retry.retries)
            return decide(job, outcome, plain, now, self._random)

    def _uses_rates(self, job: ClaimedJob) -> bool:
        rules = self._registry.rules
        return not all(takes_permit(ref, rules) for ref in job.buckets)

    def _callbacks_after(self, attempt: RunningAttempt, ending: Ending) -> Then | None:
        """Return the call that runs the callbacks of the task once this ending is stored."""
        task, error = attempt.task, attempt.error
        run = partial(self._callback_runner.submit, task, handler=attempt.handler)
        match ending:
            case Finished(state=JobState.SUCCEEDED) if task.callbacks.wants(CallbackKind.COMPLETED):
                return partial(run, CallbackKind.COMPLETED, attempt.context, attempt.result)
            case Finished(state=JobState.FAILED) if task.callbacks.wants(CallbackKind.ERROR):
                return partial(run, CallbackKind.ERROR, attempt.context, error)
            case Returned(spent=True, run_at=int(run_at)) if task.callbacks.wants(CallbackKind.RETRY):
                delay = max(0, run_at - self._storage.now()) / SECOND
                return partial(run, CallbackKind.RETRY, attempt.context, error, attempt.job.attempt, delay)
        return None
