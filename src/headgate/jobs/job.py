"""A job: one durable request to run a task, in its forms: enqueued, claimed and read.

These are msgspec structs instead of dataclasses, because each is passed to SQL as one JSON array. Structs that exist
once per job are `gc=False`: they hold text and numbers, so they are never part of a cycle, and the garbage collector
need not visit them.
"""

from __future__ import annotations

from contextlib import suppress
from traceback import format_exception
from types import TracebackType
from typing import Literal

import msgspec

from headgate.jobs.annotation import Annotation
from headgate.jobs.audit import AuditLevel
from headgate.jobs.bucket_mask import NO_BUCKETS, BucketMask, chosen, without
from headgate.jobs.identity import JobId, process_name
from headgate.jobs.state import JobState as JobState
from headgate.jobs.terms import LimitTerms

FRAMES = 20
"""How many frames of a traceback are kept."""

LONGEST_TRACEBACK = 6144
"""Characters of a stored traceback, from its end."""

LONGEST_IN_TRACEBACK = 1000
"""Characters of one message in a traceback that is too long: a message must not crowd out the lines of code."""

MAX_PRIORITY = 9
"""Priorities are 0 (default) to 9; in a lane the higher starts first, unless its queue has aging."""

On = Literal["success", "failure", "final"]
"""The end of its leader after which a job runs: success, failure or cancellation, or any final state."""

OnConflict = Literal["keep", "replace", "raise", "cancel_running"]
"""Sets what happens to the next job under a unique key."""


class BucketRef(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A bucket that a job uses: one limit, for one key."""

    limit: str
    key: str


class RetryTerms(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The part of a retry policy that is stored with one job; durations in seconds."""

    retries: int = 3
    base: float = 1.0
    cap: float = 3600.0
    jitter: bool = True
    delay: float | None = None
    delays: tuple[float, ...] | None = None


class RetentionTerms(msgspec.Struct, frozen=True, gc=False):
    """How long one job is kept after it has ended, by its final state: whole seconds; None: forever."""

    succeeded: int | None
    failed: int | None
    cancelled: int | None
    skipped: int | None


class JobOptions(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The options of its task that one job overrides; its own retention and tags, also if its task has declared them.

    `timeout` is in seconds. Statements find jobs with their own retention by the text `"retention":` of the options.
    Further enqueues postpone the start of a job with a `latest_start` (wall microseconds), but not beyond that. `tags`
    are sorted; an index has a row for each of them.
    """

    timeout: float | None = None
    retry: RetryTerms | None = None
    retention: RetentionTerms | None = None
    keep_result: bool | None = None
    latest_start: int | None = None
    tags: tuple[str, ...] = ()


class UniqueTerms(msgspec.Struct, frozen=True, gc=False):
    """How a new job takes its unique key.

    The key stays taken for `taken_for` microseconds from the enqueue on, however the job ends. Without `while_running`,
    a job that runs does not hold it. With `expires_with_start`, an earlier start makes the job expire earlier as well.
    """

    taken_for: int | None = None
    while_running: bool = True
    expires_with_start: bool = False


DEFAULT_UNIQUE_TERMS = UniqueTerms()


class Origin(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The chain, batch or schedule that a job belongs to.

    A job that `follows` a job or a batch (an id) is blocked until that is final; then it runs if that ended as `on`
    says, and is cancelled or skipped otherwise. `batch` is the batch that it is part of. `schedule` is the schedule
    that enqueued it for the instant `occurs_at` (wall microseconds). `results` are arguments that are not in its
    payload: by name, the job or batch whose result each is, or several.
    """

    follows: str | None = None
    on: On = "success"
    batch: str | None = None
    schedule: str | None = None
    occurs_at: int | None = None
    results: dict[str, str | list[str]] | None = None

    @property
    def read_ids(self) -> list[str]:
        """The ids of all jobs and batches whose results are arguments."""
        values = (self.results or {}).values()
        return [id for value in values for id in ([value] if isinstance(value, str) else value)]


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """The progress that a handler reports: a fraction from 0 to 1, and a message."""

    fraction: float
    message: str | None
    at: int


class JobError(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An attempt's error as text, cut to the size of a row; `data` holds fields of the error."""

    type: str
    message: str
    traceback: str | None = None
    data: dict[str, str | int | None] | None = None


class NewJob(msgspec.Struct, frozen=True, gc=False, array_like=True, kw_only=True):
    """A job as it is enqueued. Instants are wall microseconds.

    `delayed` means that a time was requested, so the wall clock decides when the job is ready; otherwise the job is
    ready at once, whatever the wall clock does later. In both cases, `run_at` minus `priority` times `aging` orders the
    jobs of a lane. `aging` is that of its queue, in microseconds; without it, a higher priority always comes first.

    `wait_mode` is that of its terms. At `give_up_at` it has waited as long as they allow. A job with a `rejection` is
    stored as final, because its limits would make it wait too long.

    At most one job of a task waits with one `unique_key`; `on_conflict` decides about the next one. A job `has_own_id`
    if its caller chose the id: if a job of the task is stored under it, nothing else is stored.

    `limit_set` names the declaration that computed its buckets, costs and terms; only a node that declares it starts
    the job.

    `enqueued_by` is the process that enqueues it, as `host:pid`, for information only.
    """

    id: str
    task: str
    queue: str
    payload: str
    priority: int
    delayed: bool
    run_at: int
    enqueued_at: int
    aging: int | None = None
    expires_at: int | None = None
    buckets: tuple[BucketRef, ...] = ()
    costs: tuple[int, ...] | None = None
    headers: dict[str, str] | None = None
    options: JobOptions | None = None
    terms: LimitTerms | None = None
    wait_mode: str = ""
    give_up_at: int | None = None
    rejection: JobError | None = None
    unique_key: str | None = None
    origin: Origin | None = None
    audit: AuditLevel = AuditLevel.FULL
    on_conflict: OnConflict = "keep"
    unique_terms: UniqueTerms = DEFAULT_UNIQUE_TERMS
    has_own_id: bool = False
    limit_set: str = ""
    enqueued_by: str | None = msgspec.field(default_factory=process_name)


class RemoteCharge(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The instant of a charge in remote time, and how far that is ahead of local limit time."""

    at: int
    ahead: int


class CallShare(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The call that a job may be part of: only its `leader` was charged for it in `limits`.

    Jobs of one `lane` have the same keys, so one call may handle those of several leaders.
    """

    leader: str
    lane: str
    limits: tuple[str, ...]


class ClaimedJob(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A job as its node runs it.

    `fence` is the fencing token: it grows with every claim, and `finish` compares it. `attempt` counts the spent
    attempts, so a snoozed or returned attempt keeps its number; `lost` of them ended with a dead node. `charged_at` is
    the limit time at which its start counts in the buckets it uses. `buckets` and `costs` are what this start was
    charged for: a retry may be exempt from some limits of its task, whose buckets are `uncharged`. `remote_charges` has
    an entry for each of the charged ones, None for a local one; it is None if all are local. From `run_at` on it waited
    `throttled_for` microseconds for a limit, then until `started_at` for a slot. `annotations` are those of earlier
    attempts. `unreadable` names a part of its row that cannot be read, with the reason; the handler of such a job is
    not called. `call` is set if one of its limits counts calls.
    """

    id: str
    task: str
    queue: str
    payload: str
    attempt: int
    fence: int
    lost: int
    enqueued_at: int
    run_at: int
    started_at: int
    buckets: tuple[BucketRef, ...] = ()
    costs: tuple[int, ...] | None = None
    charged_at: int = 0
    remote_charges: tuple[RemoteCharge | None, ...] | None = None
    headers: dict[str, str] | None = None
    options: JobOptions | None = None
    origin: Origin | None = None
    throttled_for: int = 0
    annotations: dict[str, Annotation] | None = None
    unreadable: str | None = None
    call: CallShare | None = None
    uncharged: tuple[BucketRef, ...] = ()

    @property
    def gated(self) -> bool:
        """Whether it uses any limit."""
        return bool(self.buckets)


class JobRecord(msgspec.Struct, frozen=True, array_like=True):
    """A stored job as it is read. Instants are wall microseconds.

    `throttled_until` and `waits_for` are set while the job's lane waits behind a closed bucket, `waits_for` alone if it
    waits for a permit; `lane_waiting` is how many jobs wait in that lane, this one included. `held` is the set of its
    buckets whose permits it holds. `charged_at` (limit time) is when its running attempt was charged, for all its
    buckets but those in the set `uncharged`. A waiting job that `is_blocked` is in no lane: it follows another, which
    is not final yet. `enqueued_by` is the process that enqueued it. `deferrals` is how many of its starts a limit
    delayed, None for none. `unreadable` names a part of its row that cannot be read, with the reason; that part is
    blank here.
    """

    id: JobId
    task: str
    queue: str
    state: JobState
    payload: str
    priority: int
    delayed: bool
    run_at: int
    enqueued_at: int
    expires_at: int | None
    attempt: int
    fence: int
    lost: int
    node: str | None
    started_at: int | None
    finished_at: int | None
    cancel_requested: bool
    result: str | None
    error: JobError | None
    buckets: tuple[BucketRef, ...]
    headers: dict[str, str] | None
    options: JobOptions | None
    throttled_until: int | None
    waits_for: BucketRef | None
    lane_waiting: int
    costs: tuple[int, ...] | None = None
    terms: LimitTerms | None = None
    held: BucketMask = NO_BUCKETS
    charged_at: int | None = None
    uncharged: BucketMask = NO_BUCKETS
    unique_key: str | None = None
    origin: Origin | None = None
    audit: AuditLevel = AuditLevel.FULL
    progress: Progress | None = None
    annotations: dict[str, Annotation] | None = None
    is_blocked: bool = False
    enqueued_by: str | None = None
    deferrals: int | None = None
    unreadable: str | None = None

    @property
    def is_in_call_of_another(self) -> bool:
        """Whether another job was charged for the call that its running attempt takes part in."""
        return (
            self.terms is not None and self.terms.calls is not None and bool(self.terms.calls.buckets & self.uncharged)
        )

    def as_claimed(self) -> ClaimedJob:
        """Return a running job as its claim returned it, without its remote charges and the time it was throttled."""
        return ClaimedJob(
            self.id,
            self.task,
            self.queue,
            self.payload,
            self.attempt,
            self.fence,
            self.lost,
            self.enqueued_at,
            self.run_at,
            self.started_at or 0,
            without(self.buckets, self.uncharged),
            None if self.costs is None else without(self.costs, self.uncharged),
            self.charged_at or 0,
            None,
            self.headers,
            self.options,
            self.origin,
            annotations=self.annotations,
            unreadable=self.unreadable,
            call=self._own_call,
            uncharged=tuple(chosen(self.buckets, self.uncharged)),
        )

    @property
    def _own_call(self) -> CallShare | None:
        calls = None if self.terms is None else self.terms.calls
        if calls is None:
            return None
        return CallShare(self.id, "", tuple(ref.limit for ref in chosen(self.buckets, calls.buckets)))


class AttemptRecord(msgspec.Struct, frozen=True, array_like=True):
    """An attempt that did not succeed."""

    number: int
    node: str | None
    started_at: int
    ended_at: int
    outcome: str
    error: JobError | None


def truncated_error(error: BaseException, traceback: str | None = None) -> JobError:
    """Return the error as text: at most 2,048 characters of its message and the last 6,144 of its traceback.

    In a longer traceback, messages of more than 1,000 characters lose their middle first.
    """
    if traceback is not None and len(traceback) > LONGEST_TRACEBACK:
        traceback = _with_short_messages(traceback, error)
    try:
        message = str(error)
    except BaseException as unprintable:
        # The error's own `__str__` may raise anything; that must not reach the caller.
        message = f"<{type(unprintable).__name__} while printing the error>"
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return JobError(
        type=storable(name[:200]),
        message=storable(message[:2048]),
        traceback=traceback and storable(traceback[-LONGEST_TRACEBACK:]),
    )


def _with_short_messages(traceback: str, error: BaseException) -> str:
    """Return the traceback of this error; of a long message or note, it has the beginning and the end."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        seen.add(id(each))
        with suppress(BaseException):  # `__str__` is code of users
            for text in (str(each), *map(str, getattr(each, "__notes__", ()))):
                if len(text) > LONGEST_IN_TRACEBACK:
                    half = LONGEST_IN_TRACEBACK // 2
                    traceback = traceback.replace(text, f"{text[:half]} … {text[-half:]}")
        members = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        others = (each.__cause__, each.__context__, *members)
        waiting += [other for other in others if other is not None and id(other) not in seen]
    return traceback


def summarize_error(error: BaseException) -> str:
    """Return the error in one line; never raises."""
    text = truncated_error(error)
    return f"{text.type}: {text.message}"


def describe_error(error: BaseException) -> JobError:
    """Return the error with the last `FRAMES` frames of its traceback; never raises.

    The frames of Headgate and of Python that lead to the user's code are left out.
    """
    try:
        frames = _last_frames(_from_user(error.__traceback__))
        trace = "".join(format_exception(type(error), error, frames, limit=-FRAMES))
    except BaseException as unprintable:
        # An exception's own __str__ may raise anything; the job still fails with what is available.
        trace = f"<no traceback: {type(unprintable).__name__} while formatting it>"
    return truncated_error(error, trace)


def _from_user(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame of the user's code on, or all of it if there is none."""
    from headgate.jobs.code_owner import owner_of  # Only a failure needs it.

    first = trace
    while first is not None and owner_of(first.tb_frame.f_code.co_filename) is None:
        first = first.tb_next
    return first or trace


def _last_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the end of a traceback. One object that is raised again and again has a long one, slow to format."""
    last = trace
    for _ in range(FRAMES):
        last = None if last is None else last.tb_next
    while trace is not None and last is not None:
        trace, last = trace.tb_next, last.tb_next
    return trace


def storable(text: str) -> str:
    """Return the text as valid UTF-8 without NUL, which some databases cannot store."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
