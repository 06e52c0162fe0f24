"""An attempt of a job: calls the handler where its task runs, and returns the outcome. It never writes to the store."""

from __future__ import annotations

import asyncio
import contextvars
import enum
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor as Pool
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from msgspec.structs import replace

from headgate.arguments import LONGEST
from headgate.clock import FARTHEST, SECOND, Clock, Timer, wait_until_done
from headgate.engine import child_messages
from headgate.engine.attempt_store import LeftTasks, StoreCompletion, StoreResults, TransactionRefused
from headgate.engine.callback_runner import CallbackRunner
from headgate.engine.charge import AttemptCharge, StartDecision, decide_start
from headgate.engine.children import ChildCall, Children
from headgate.engine.chunk_calls import CallError, ChunkCalls, MismatchedResults
from headgate.engine.large_payloads import LargePayloads
from headgate.engine.remote_error import rebuild_error
from headgate.engine.resource_pool import ResourcePool, ResourceStack
from headgate.engine.results import CANCELLED_BY_HANDLER
from headgate.engine.stop_signals import EndsForks
from headgate.errors import FolderUnavailable, PayloadError, ResultUnavailable, StorageUnavailable
from headgate.jobs.encoded import is_in_folder
from headgate.jobs.job import ClaimedJob, JobError, describe_error, truncated_error
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
from headgate.jobs.retry import RetryPolicy
from headgate.shielding import in_thread, read_error
from headgate.storage.store import Store
from headgate.tasks.callbacks import CallbackKind
from headgate.tasks.context import AttemptContext, JobContext, enter, note_annotations, read_arguments, set_cancelled
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.executor_kind import Executor
from headgate.tasks.hooks import AroundAttempt, call_around
from headgate.tasks.job_log import Reports
from headgate.tasks.options import plain_headers
from headgate.tasks.registry import Registry
from headgate.tasks.signals import Cancel, Fail, RateLimited, Retry, Snooze
from headgate.tasks.tracing import Tracing

CHILD_START_TIMEOUT = 30.0
"""Seconds that a starting child has to become ready after its attempt was cancelled; then it is killed."""

FOLDER_PAUSE = 30
"""Seconds that a job waits whose payload is in a folder that cannot be read."""

REFUSAL_PAUSE = 5
"""Seconds that a job waits whose handler was refused a transaction."""

LINGERS_AFTER = 5.0
"""Seconds after its cancellation until a still running attempt is reported as lingering."""

SIGNALS = (Snooze, RateLimited, Retry, Fail, Cancel)
"""The exceptions by which a handler decides how its attempt ends."""


class CancelledBy(enum.Enum):
    """The cause of a cancellation. Without one, a CancelledError is the handler's own, an ordinary failure."""

    USER = "user"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    DISOWNED = "disowned"
    LEASE = "lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDependencies:
    """The objects that all attempts of a node use."""

    storage: Store
    clock: Clock
    registry: Registry
    pool: Pool
    children: Children
    resources: ResourcePool
    callback_runner: CallbackRunner
    reports: Reports
    completion: StoreCompletion
    results: StoreResults
    chunks: ChunkCalls
    holds_lease: Callable[[], bool]
    left: LeftTasks
    move_late: Callable[[Sequence[RunningAttempt]], Awaitable[None]]
    on_linger: Callable[[RunningAttempt], None]
    around: Sequence[AroundAttempt] = ()
    tracing: Tracing | None = None
    large_payloads: LargePayloads | None = None


class RunningAttempt:
    """One attempt of a claimed job, running on this node."""

    __slots__ = (
        "_asyncio_task",
        "_call_error",
        "_causes",
        "_child_failure",
        "_context",
        "_dependencies",
        "_is_left",
        "cause",
        "charge",
        "error",
        "handler",
        "is_called",
        "job",
        "linger",
        "result",
        "started_at",
        "task",
        "thread",
    )

    def __init__(
        self, job: ClaimedJob, task: TaskDefinition, charge: AttemptCharge | None, dependencies: AttemptDependencies
    ) -> None:
        self.job = job
        self.task = task
        self.charge = charge
        # Whether the handler was called; before that the attempt has cost the called API nothing.
        self.is_called = False
        self.started_at = 0
        # The instance of a task that is a class. The result is kept only for callbacks and hooks, the error until the
        # outcome is recorded.
        self.handler: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self._dependencies = dependencies
        # The first cause of its cancellation, which decides the outcome.
        self.cause: CancelledBy | None = None
        self._causes: tuple[CancelledBy, ...] = ()
        self._asyncio_task: asyncio.Task[Outcome] | None = None
        self._context: JobContext | None = None
        # What the failure of a child process is recorded as, if the hooks do not change it.
        self._child_failure: Outcome | None = None
        self._call_error: CallError | None = None
        # Whether its thread goes on although nothing waits for it any more, not even a function around the attempt.
        self._is_left = False
        # The thread, child or chunk call that runs the handler. It may outlive the attempt: a thread cannot be stopped.
        self.thread: asyncio.Future[Any] | None = None
        # The timer that reports it as lingering; set by its cancellation.
        self.linger: Timer | None = None

    @property
    def context(self) -> JobContext:
        """The context of the job for its handler and callbacks."""
        if self._context is None:
            self._context = self._new_context(JobContext)
        return self._context

    def _new_context(self, kind: Callable[..., JobContext], *arguments: Any) -> JobContext:
        uses = self._dependencies
        return kind(self.job, self.task.limit_set.names, self.charge, uses.reports, uses.completion, *arguments)

    @property
    def timeout(self) -> float | None:
        options = self.job.options
        # An older release may have stored more than the current bound.
        if options is not None and options.timeout is not None:
            return min(options.timeout, LONGEST)
        return self._dependencies.registry.timeout(self.task)

    @property
    def retry(self) -> RetryPolicy:
        options, policy = self.job.options, self._dependencies.registry.retry(self.task)
        return policy if options is None or options.retry is None else policy.with_terms(options.retry)

    @property
    def keeps_result(self) -> bool:
        options = self.job.options
        return self.task.keep_result if options is None or options.keep_result is None else options.keep_result

    def start(self) -> asyncio.Task[Outcome]:
        dependencies = self._dependencies
        self.started_at = dependencies.clock.monotonic()
        body = self._run() if dependencies.large_payloads is None else self._run_large(dependencies.large_payloads)
        run = body if dependencies.tracing is None else self._traced(dependencies.tracing, body)
        self._asyncio_task = asyncio.get_running_loop().create_task(run)
        return self._asyncio_task

    def cancel(self, cause: CancelledBy) -> None:
        """Cancel the attempt for this cause. A repeated cause is ignored, as it would interrupt the clean-up."""
        if self._asyncio_task is None or self._asyncio_task.done() or cause in self._causes:
            return
        self._causes += (cause,)
        self.cause = self._causes[0]
        if self._context is not None:
            set_cancelled(self._context)
        if self.linger is None:
            when = self._dependencies.clock.monotonic() + round(LINGERS_AFTER * SECOND)
            self.linger = self._dependencies.clock.call_at(when, partial(self._dependencies.on_linger, self))
        self._asyncio_task.cancel()

    def outcome_of(self, done: asyncio.Task[Outcome]) -> Outcome:
        """Return the outcome of the attempt; `done` is the task that `start` returned."""
        if done.cancelled():
            # Cancelled before its first step, so the task has no result.
            return self._outcome_when_cancelled()
        error = done.exception()
        if error is None:
            return done.result()
        # It could not be handled.
        self.error = error
        return Failed(describe_error(error))

    def _outcome_when_cancelled(self, error: BaseException | None = None) -> Outcome:
        """Return the outcome of a cancelled attempt by its cause; `error` is what the handler raised."""
        failure: BaseException
        match self.cause:
            case CancelledBy.USER:
                return Cancelled()
            case CancelledBy.SHUTDOWN | CancelledBy.DISOWNED | CancelledBy.LEASE:
                return Interrupted()
            case CancelledBy.TIMEOUT:
                when = "" if self.is_called else ", before its handler was called"
                failure = TimeoutError(f"the attempt took longer than its timeout of {self.timeout:g} s{when}")
            case None:
                failure = asyncio.CancelledError("the handler's own code raised CancelledError")
        failure.__cause__ = error
        self.error = failure
        return Failed(describe_error(failure))

    async def _traced(self, tracing: Tracing, body: Coroutine[Any, Any, Outcome]) -> Outcome:
        with tracing.running(self.job, self.task.name) as set_outcome:
            outcome = await body
            set_outcome(outcome)
        return outcome

    async def _run_large(self, large_payloads: LargePayloads) -> Outcome:
        """Run the attempt of an app whose large payloads and results are in a folder."""
        if is_in_folder(self.job.payload):
            loading = large_payloads.load(self.job.payload, f"the payload of job {self.job.id}")
            failure = await self._replace_payload(loading)
            if failure is not None:
                return failure
        outcome = await self._run()
        if not isinstance(outcome, Succeeded) or outcome.result is None or not large_payloads.is_large(outcome.result):
            return outcome
        try:
            return Succeeded(await large_payloads.store(outcome.result, self.job.id))
        except StorageUnavailable as error:
            # The work is done, and must not be done again for its result.
            self.context.log.warning("the result of job %s is kept in the database: %s", self.job.id, error)
            return outcome
        except asyncio.CancelledError:
            return outcome

    async def _run(self) -> Outcome:
        task = self.task
        in_child = not task.is_async and task.executor is Executor.PROCESS
        arguments: list[Any] = []
        named: dict[str, Any] = {}
        if self.job.unreadable is not None:
            return await self._unreadable(PayloadError(f"the stored job cannot be read: {self.job.unreadable}"))
        origin = self.job.origin
        if origin is not None and origin.results:
            # Arguments that are results of other jobs.
            failure = await self._replace_payload(self._dependencies.results.payload_of(self.job, origin.results))
            if failure is not None:
                return failure
        around = self._dependencies.around
        if not in_child or around:
            try:
                arguments, named = task.payload.decode(self.job.payload)
            except PayloadError as error:
                return await self._unreadable(error)
            self._dependencies.left.note_read(self.job)
        if around:
            self._context = self._new_context(AttemptContext, task.payload.by_name(arguments, named))
        enter(self.context)
        timer = None
        timeout = self.timeout
        if timeout is not None:
            clock = self._dependencies.clock
            timer = clock.call_at(
                clock.monotonic() + round(timeout * SECOND), partial(self.cancel, CancelledBy.TIMEOUT)
            )
        try:
            if around:
                return await self._unless_complete(await self._with_hooks(around, arguments, named))
            if in_child:
                return await self._in_child()
            if task.needs:
                return Succeeded(await self._with_resources(arguments, named))
            if not self.job.buckets and task.is_plain and self._dependencies.holds_lease():
                # The fast path, which most attempts take.
                self.is_called = True
                with EndsForks():
                    result = await self._dependencies.registry.hooks.for_loop(task.function(*arguments, **named))
            elif task.chunk is not None:
                result = await self._in_chunk(arguments, named)
            else:
                result = await self._call_here(arguments, named)
            return Succeeded(self._stored(result))
        except _TooLate:
            return Interrupted()
        except _Unstorable as lost:
            return await self._unless_complete(self._unstorable(lost.error))
        except asyncio.CancelledError as error:
            return await self._unless_complete(self._outcome_when_cancelled(error))
        except BaseException as error:
            # SystemExit as well: an error of one handler must not end the node.
            return await self._unless_complete(self._outcome_of_raised(error))
        finally:
            if timer is not None:
                timer.cancel()

    async def _replace_payload(self, reading: Awaitable[str]) -> Outcome | None:
        """Give the job the payload that is being read. Returns the outcome if that fails."""
        try:
            payload = await reading
        except FolderUnavailable as error:
            if await self._dependencies.left.leaves(self.job, error):
                return Snoozed(0)
            self.context.log.warning("job %s waits %d s for its payload: %s", self.job.id, FOLDER_PAUSE, error)
            return Snoozed(FOLDER_PAUSE * SECOND)
        except StorageUnavailable:
            return Interrupted()
        except ResultUnavailable as error:
            self.error = error
            return FailedFinally(describe_error(error))
        except PayloadError as error:
            return await self._unreadable(error)
        except asyncio.CancelledError as error:
            return self._outcome_when_cancelled(error)
        self._dependencies.left.note_read(self.job)
        self.job = replace(self.job, payload=payload)
        return None

    async def _unless_complete(self, outcome: Outcome) -> Outcome:
        """Return the outcome; an attempt that had completed its job before it failed has succeeded.

        The store decides the same when it writes the ending; this is for events and metrics.
        """
        context = self._context
        if isinstance(outcome, Succeeded) or context is None or not context.may_be_complete:
            return outcome
        if not await self._dependencies.completion.is_complete(self.job):
            return outcome
        if self.error is not None:
            context.log.warning("the job succeeded in a transaction; then its handler raised %r", self.error)
        return Succeeded(None)

    async def _with_hooks(
        self, around: Sequence[AroundAttempt], arguments: list[Any], named: dict[str, Any]
    ) -> Outcome:
        """Call the hooks around the handler; what the outermost returns or raises counts.

        A cancellation, a timeout, or a start that is too late counts whatever they do.
        """
        context = self._context
        assert isinstance(context, AttemptContext)
        ended: Outcome | None = None
        has_returned = False

        async def run() -> Any:
            nonlocal ended, has_returned
            try:
                result = await self._call_handler(context, arguments, named)
                has_returned = True
                return result
            except _TooLate:
                ended = Interrupted()
                raise
            except SIGNALS:
                raise
            except BaseException as error:
                if self.cause is None:
                    raise
                ended = self._outcome_when_cancelled(error)
                if self.cause is CancelledBy.TIMEOUT and self.error is not None:
                    # As `asyncio.timeout` does: for hooks it is an error like others.
                    raise self.error from error
                raise

        try:
            result = await call_around(around, context, run)
        except BaseException as error:
            if ended is not None:
                return ended
            if self._child_failure is not None and error is self.error:
                # It has the traceback of the child.
                return self._child_failure
            raise
        if ended is None and self.cause is not None and not has_returned:
            ended = self._outcome_when_cancelled()
        return Succeeded(self._stored(result)) if ended is None else ended

    async def _call_handler(self, context: AttemptContext, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Call the handler, with the arguments and headers as the hooks have left them, and return its result."""
        task, job = self.task, self.job
        changed = read_arguments(context)
        if changed is not None:
            arguments, named = task.payload.as_call(changed)
            payload, _ = task.payload.encode(tuple(arguments), named, is_stored=False)
            arguments, named = task.payload.decode(payload)
            job = replace(job, payload=payload)
        if task.executor is Executor.PROCESS:
            headers = plain_headers(context.headers, f"task {task.name!r}")
            job = replace(job, headers=headers or None, annotations=dict(context.annotations) or None)
            return self._result_of_child(await self._in_child(job))
        if task.needs:
            await self._with_resources(arguments, named)
            return self.result
        if task.chunk is not None:
            return await self._in_chunk(arguments, named)
        return await self._call_here(arguments, named)

    async def _call_here(self, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Call a handler without resources, on the loop or in a thread, and return its result. Raises _TooLate."""
        if not await self.prepare_start():
            raise _TooLate
        if self.task.is_async:
            with EndsForks():
                return await self._dependencies.registry.hooks.for_loop(self._function()(*arguments, **named))
        return await self._shielded(self._in_thread(arguments, named))

    async def _in_chunk(self, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Return what the call that handles this job among others returned for it, or raise its error for it."""
        (item,) = (*arguments, *named.values())
        result, error, is_late = await self._dependencies.chunks.join(self, item, self.job.queue)
        if is_late:
            raise _TooLate
        if error is None:
            return result
        if isinstance(error.error, MismatchedResults):
            raise _Unstorable(error.error)
        self._call_error = error
        raise error.renewed()

    def _result_of_child(self, outcome: Outcome) -> Any:
        """Return or raise for the hooks what the function in the child returned or raised."""
        if isinstance(outcome, Succeeded):
            return self.result
        if self.error is None:
            # It was too late, or the attempt was cancelled.
            raise _TooLate
        self._child_failure = outcome
        raise self.error

    @property
    def start_decision(self) -> StartDecision:
        """Whether the lease, the limits of the job and the attempt, if it is not over, allow it to start now."""
        dependencies, charge = self._dependencies, self.charge
        if not dependencies.holds_lease() or (self._asyncio_task is not None and self._asyncio_task.done()):
            return StartDecision.TOO_LATE
        if charge is None:
            return StartDecision.ON_TIME
        storage = dependencies.storage
        rules, live, now = dependencies.registry.rules, storage.live.rules, storage.limit_now()
        return decide_start(self.job, rules, live, now, charge.moved_to)

    async def prepare_start(self) -> bool:
        """Do the last step before the handler is called; return False if it is too late for that."""
        decision = self.start_decision
        if decision is StartDecision.LATE:
            try:
                await self._dependencies.move_late([self])
            except asyncio.CancelledError:
                if self.cause is not CancelledBy.TIMEOUT:
                    raise
                # The store was too slow, not the handler: the attempt is not spent.
                return False
            decision = self.start_decision
        if decision is not StartDecision.ON_TIME:
            return False
        self.begin()
        return True

    def begin(self) -> None:
        """Note that the handler is called now."""
        self.is_called = True
        task = self.task
        if task.handler is not None:
            self.handler = task.handler()
        if task.callbacks.exist and task.callbacks.wants(CallbackKind.STARTED):
            self._dependencies.callback_runner.submit(task, CallbackKind.STARTED, self.context, handler=self.handler)

    def _function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = self.task.function if self.handler is None else self.handler.run
        return function

    def _in_thread(self, arguments: list[Any], named: dict[str, Any]) -> asyncio.Future[Any]:
        call = EndsForks()(partial(contextvars.copy_context().run, self._function(), *arguments, **named))
        return in_thread(self._dependencies.pool, self._dependencies.registry.hooks.for_thread(call))

    async def _shielded(self, work: asyncio.Future[Any]) -> Any:
        """Await the work of a thread. A cancelled attempt ends at once; its thread continues and keeps the slot."""
        self.thread = work
        try:
            return await asyncio.shield(work)
        finally:
            # The traceback of its error refers to this frame: a cycle, which holds what the handler has opened.
            del work

    async def _with_resources(self, arguments: list[Any], named: dict[str, Any]) -> str | None:
        using = self._use_resources(arguments, named)
        if self.task.executor is Executor.LOOP:
            return await using
        # The resources of a thread stay open until it ends, even long after its attempt.
        work = asyncio.get_running_loop().create_task(_return_base_exceptions(using))
        try:
            ended: str | BaseException | None = await self._shielded(work)
        except asyncio.CancelledError:
            self._is_left = True
            if not self.is_called:
                work.cancel()
            raise
        finally:
            del work  # As in `_shielded`.
        if isinstance(ended, BaseException):
            raise ended
        return ended

    async def _use_resources(self, arguments: list[Any], named: dict[str, Any]) -> str | None:
        """Open the resources, call the handler and close the resources; return the result as `_stored` does."""
        failure: BaseException | None = None
        try:
            async with ResourceStack() as stack:
                try:
                    resources = await self._dependencies.resources.open_for_attempt(self.task.needs, stack)
                    if not await self.prepare_start():
                        raise _TooLate
                    if self.task.executor is Executor.LOOP:
                        with EndsForks():
                            running = self._function()(*arguments, **named, **resources)
                            result = await self._dependencies.registry.hooks.for_loop(running)
                    else:
                        result = await self._in_thread(arguments, {**named, **resources})
                        if self._is_left or self.cause is not None:
                            raise asyncio.CancelledError  # It has not succeeded: they must not commit for it.
                    stored = self._stored(result)
                except BaseException as error:
                    failure = error
                    raise
            # A resource receives the error in order to roll back, but cannot suppress the failure of the attempt. The
            # error may also be that of another resource, whose commit failed.
            if failure is None:
                failure = stack.close_error
            if failure is not None:
                raise failure
            return stored
        finally:
            del failure  # As in `_shielded`.

    async def _in_child(self, job: ClaimedJob | None = None) -> Outcome:
        """Run the attempt in a child process; `job` is the job with changed arguments or headers."""
        task, job = self.task, job or self.job
        try:
            job = replace(job, payload=task.payload.for_child(job.payload))
            if self._dependencies.tracing is not None:
                job = replace(job, headers=self._dependencies.tracing.carried(job.headers))
        except PayloadError as error:
            return await self._unreadable(error)
        self._dependencies.left.note_read(self.job)
        call = ChildCall(self._dependencies.children, task.function.__module__)
        try:
            await self._shielded(in_thread(self._dependencies.pool, call.prepare))
            if not await self.prepare_start():
                call.release()
                return Interrupted()
            request = child_messages.AttemptRequest(
                task.function.__module__,
                task.function.__qualname__,
                job,
                task.limit_set.names,
                task.payload.max_payload,
                self._dependencies.reports.lowest,
                needs_result=self.keeps_result or self._uses_result,
                hides_values=task.payload.hides_values,
            )
            # Made here: annotations of the child come in a thread.
            self._context = self.context
            run = partial(call.run, request, self._handle_update)
            answer: child_messages.Answer = await self._shielded(in_thread(self._dependencies.pool, run))
        except asyncio.CancelledError:
            if self.is_called:
                call.kill()
            assert self.thread is not None
            self.thread = asyncio.get_running_loop().create_task(self._release_after_kill(call, self.thread))
            raise
        except Exception:
            # There was no thread to run it in. Otherwise it is released already.
            call.release()
            raise
        return self._outcome_of_answer(answer)

    async def _release_after_kill(self, call: ChildCall, work: asyncio.Future[Any]) -> None:
        """Keep the slot until the killed child has ended.

        A child that is still starting is not killed for a timeout, but kept for the retry, which then starts faster.
        """
        if not await wait_until_done(self._dependencies.clock, work, CHILD_START_TIMEOUT):
            call.kill()
            await asyncio.wait([work])
        read_error(work)
        await in_thread(self._dependencies.pool, call.release)

    def _handle_update(self, update: child_messages.Update) -> None:
        reports = self._dependencies.reports
        match update:
            case child_messages.CostSettled(limit, actual):
                if self.charge is not None:
                    self.charge.settle(limit, actual)
            case child_messages.Progressed(fraction, message):
                reports.progress(self.job, fraction, message)
            case child_messages.Annotated(changes):
                note_annotations(self.context, changes)
            case child_messages.Logged(level, logger, message):
                reports.log(self.job, level, logger, message)

    def _outcome_of_answer(self, answer: child_messages.Answer) -> Outcome:
        match answer:
            case child_messages.ReturnedValue(result):
                if self._uses_result:
                    self.result = self.task.payload.decode_result(result)
                try:
                    return Succeeded(self.task.payload.stored_result(result) if self.keeps_result else None)
                except PayloadError as error:
                    return self._unstorable(error)
            case child_messages.Raised(error, kind):
                return self._outcome_of_raised(rebuild_error(kind), error)
            case child_messages.ResultNotStorable(error):
                self.error = PayloadError(error.message)
                return FailedFinally(error)
            case child_messages.ArgumentsRejected(error):
                self.error = PayloadError(error.message)
                return Unreadable(error)
            case _:
                assert_never(answer)

    def _stored(self, result: Any) -> str | None:
        """Return the result as it is stored, None if it is not kept; callbacks and hooks get it. Raises _Unstorable."""
        if self.task.callbacks.exist or self._dependencies.around:
            self.result = result
        try:
            self.task.payload.require_run(result)
            return self.task.payload.encode_result(result) if self.keeps_result else None
        except PayloadError as error:
            raise _Unstorable(error) from None

    def _outcome_of_raised(self, error: BaseException, described: JobError | None = None) -> Outcome:
        """Return the outcome of an attempt whose handler raised; an error of a child is `described` already."""
        if self.cause is CancelledBy.USER or (self.cause is not None and not isinstance(error, SIGNALS)):
            return self._outcome_when_cancelled(error)
        if isinstance(error, TransactionRefused):
            self.context.log.warning("job %s waits %d s for a transaction: %s", self.job.id, REFUSAL_PAUSE, error)
            return Snoozed(REFUSAL_PAUSE * SECOND)
        self.error = error
        if described is None and self._call_error is not None and self._call_error.error is error:
            described = self._call_error.described
        match error:
            # A subclass may have forgotten the constructor: without its delay it is an error like any other.
            case Snooze(delay=int(delay)):
                return Snoozed(min(delay, FARTHEST))
            case RateLimited(retry_after=int(retry_after)):
                return CalleeRateLimited(min(retry_after, FARTHEST))
            case Cancel():
                return Cancelled(JobError(CANCELLED_BY_HANDLER, truncated_error(error).message))
            case Fail():
                return FailedFinally(described or describe_error(error))
            case Retry(delay=None | int() as delay):
                wait = None if delay is None else min(delay, FARTHEST)
                return RetryRequested(described or describe_error(error), wait)
            case _:
                return Failed(described or describe_error(error))

    async def _unreadable(self, error: PayloadError) -> Outcome:
        if await self._dependencies.left.leaves(self.job, error):
            return Snoozed(0)
        self.error = error
        # If the task's own upgrade failed, the traceback shows where.
        return Unreadable(truncated_error(error) if error.__cause__ is None else describe_error(error))

    def _unstorable(self, error: PayloadError) -> FailedFinally:
        # The work is done and only its result cannot be stored, or its code never runs: a retry would not help.
        self.error = error
        return FailedFinally(truncated_error(error))

    @property
    def _uses_result(self) -> bool:
        """Whether callbacks or hooks get the result."""
        return self.task.callbacks.wants(CallbackKind.COMPLETED) or bool(self._dependencies.around)


async def _return_base_exceptions(using: Coroutine[Any, Any, str | None]) -> str | BaseException | None:
    """Await `using`; return SystemExit and KeyboardInterrupt, which would end the program if a task raised them.

    Also _TooLate, which nobody awaits any more if the attempt is over.
    """
    try:
        return await using
    except (SystemExit, KeyboardInterrupt, _TooLate) as error:
        return error


class _TooLate(BaseException):
    """The limits of the job no longer allow it to start now. For hooks it is no error, so it is not an Exception."""


class _Unstorable(Exception):
    """The result of the handler has no JSON form. Not a PayloadError, which the handler itself may raise."""

    def __init__(self, error: PayloadError) -> None:
        super().__init__(str(error))
        self.error = error
