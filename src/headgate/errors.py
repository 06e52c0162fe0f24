"""Every error Headgate raises, in one tree under `HeadgateError`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn, TypeVar

E = TypeVar("E", bound=Exception)

USER_CODE_ERRORS = (Exception, SystemExit, asyncio.CancelledError, GeneratorExit)
"""The errors that a plain function of the user (a trigger, a backoff, a key) may raise. Uncaught, the last three would
end the node or the program. Such a function awaits nothing, so a CancelledError is its own and does not
cancel the caller."""


def reduced(error: BaseException) -> tuple[Any, ...]:
    """Return how an error is pickled whose class is called with other arguments than the message: as it is.

    A multiprocessing.Pool waits for ever for an error that cannot be unpickled.
    """
    return _uncalled, (type(error), error.args), error.__dict__


def _uncalled(kind: type[E], args: tuple[Any, ...]) -> E:
    """Return an error without a call of its class: many are called with other arguments than they have then."""
    return kind.__new__(kind, *args)


class HeadgateError(Exception):
    """The root of all errors that Headgate raises on purpose."""

    __reduce__ = reduced


class DeclarationError(HeadgateError, ValueError):
    """A task, limit or queue was declared in a way that can never work; raised where it is declared."""


class PayloadError(HeadgateError, ValueError):
    """A job's arguments cannot be stored, or stored arguments no longer fit the task's signature.

    `argument` is the name of the one that does not fit, if it is known.
    """

    def __init__(self, message: str = "", argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class CostExceedsLimit(HeadgateError, ValueError):
    """A job costs more than its limit can ever grant, so it could never start; nothing was charged."""


class UnknownTask(HeadgateError, LookupError):
    """A job names a task that this app does not declare."""


class UnknownQueue(HeadgateError, LookupError):
    """A task or a call names a queue that this app does not declare."""


class UnknownLimit(HeadgateError, LookupError):
    """Somebody names a limit that this app does not declare."""


class NotOpen(HeadgateError, RuntimeError):
    """The app is not connected to its storage."""

    def __init__(self) -> None:
        super().__init__(
            "this app is not open: use `async with app.open():` to enqueue and read, or `async with app:` to also run "
            "jobs in this process; in a notebook, `await app.start()`"
        )


def other_loop() -> HeadgateError:
    """Return the error for a coroutine on another event loop than that of the app: it would wait for ever."""
    return HeadgateError(
        "this app is open on another event loop; write `await asyncio.to_thread(app.sync.run, task.enqueue(…))`, which "
        "runs it there, or open the app on this loop instead (`app.sync.close()` closes what `.sync` has opened)"
    )


class StorageUnavailable(HeadgateError):
    """The storage did not confirm the write or read; it may not have happened."""

    has_answered = False
    """Whether the server answered, with an error, so that other calls may succeed."""


class StorageLost(StorageUnavailable):
    """The file of the storage was removed, replaced or damaged while it was open; this process cannot use it again."""


class FolderUnavailable(StorageUnavailable):
    """The folder of large payloads did not confirm a read or a write in time; the database may well be there."""

    def __init__(self, folder: str, doing: str, cause: str) -> None:
        super().__init__(f"{doing} in the folder of large payloads, {folder}, failed: {cause}")


class JobHeld(StorageUnavailable):
    """Somebody's open transaction enqueues under the unique key of the job, or completes it; nothing was changed."""


class StorageUnusable(HeadgateError):
    """The storage cannot be opened as it is: a foreign, corrupt or too new database; nothing was changed."""


class ForkedConnection(HeadgateError, RuntimeError):
    """The storage was open when this process was forked; fork first and open afterwards, or start with "spawn"."""


class IllegalTransition(HeadgateError, RuntimeError):
    """A job was asked to go from a state to one that cannot follow it."""


class DuplicateJob(HeadgateError):
    """A job was not stored, because one of its task already stands under its unique key: that one's id is `job_id`."""

    def __init__(self, job_id: str, task: str, unique_key: str) -> None:
        super().__init__(
            f"nothing was stored: job {job_id} of task {task!r} already stands under unique_key={unique_key!r}; "
            'on_conflict="keep" returns it, on_conflict="replace" gives it the new arguments'
        )
        self.job_id = job_id


class IdInUse(HeadgateError):
    """A job was not stored, because a job of another task is stored under its id."""

    def __init__(self, job_id: str, task: str, other: str) -> None:
        super().__init__(
            f"nothing was stored: id {job_id} belongs to a job of task {other!r}, not {task!r}; "
            f'make the id from the task name as well: uuid5(NAMESPACE_URL, "{task}:…")'
        )
        self.job_id = job_id


class UnfitConnection(HeadgateError, ValueError):
    """A job cannot be put into the transaction of this connection: it has none, or is elsewhere; nothing was stored."""


class AttemptLost(HeadgateError):
    """The attempt no longer owns its job: the node was declared dead, and another attempt may run.

    Raised when the attempt completes the job in a transaction, which has to be rolled back.
    """

    def __init__(self, job_id: str, attempt: int) -> None:
        super().__init__(
            f"attempt {attempt} no longer owns job {job_id}, so it cannot complete it: roll the transaction back; the "
            "job was taken back from this node, and another attempt does the work"
        )
        self.job_id = job_id


class QueueFull(HeadgateError):
    """As many jobs wait in a queue as its `max_backlog` allows; nothing was stored."""

    def __init__(self, queue: str, waiting: int, max_backlog: int, jobs: int = 1) -> None:
        if jobs > max_backlog:
            said = (
                f"one call enqueues {jobs} jobs in queue {queue!r}, and its max_backlog is {max_backlog}; "
                f"enqueue at most {max_backlog} at once"
            )
        else:
            said = (
                f"{waiting} jobs wait in queue {queue!r}, and its max_backlog is {max_backlog}; "
                'try again later, add workers, or declare when_full="wait" or "fallback"'
            )
        super().__init__(f"nothing was stored: {said}")
        self.queue = queue


class JobNotFound(HeadgateError, LookupError):
    """No job with this id is stored, or it has been pruned. For the results of a batch: jobs of it have been pruned."""

    def __init__(self, job_id: str, message: str | None = None) -> None:
        may = "it may have been pruned after its retention, or its transaction may not have committed"
        super().__init__(message or f"no job {job_id} is stored; {may}")
        self.job_id = job_id


class BatchNotFound(JobNotFound):
    """No batch with this id is stored, or all its jobs have been pruned."""

    def __init__(self, batch_id: str) -> None:
        HeadgateError.__init__(
            self, f"no batch {batch_id} is stored; its jobs may have been pruned after their retention"
        )
        self.job_id = batch_id


class BatchClosed(HeadgateError):
    """No job can be added to a batch: it is final, or it holds limits for its jobs. Nothing was stored."""


class ScheduleNotFound(HeadgateError, LookupError):
    """No schedule of this name is stored, or it has been removed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no schedule {name!r} is stored; it may have been removed")
        self.name = name


class ScheduleExists(HeadgateError):
    """A schedule of this name is stored already, or declared by the code; nothing was changed."""


class ScheduleDeclared(HeadgateError):
    """A schedule is declared by the code, so only the code changes it; nothing was changed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"schedule {name!r} is declared by code, which stores it again whenever a worker starts: change it there; "
            "pausing, skipping and triggering it work here, too"
        )
        self.name = name


class NodeNotFound(HeadgateError, LookupError):
    """No running node has this id or name."""


class AmbiguousNode(HeadgateError, LookupError):
    """Several running nodes have this name; nothing was changed."""


class UnreadableSchedule(HeadgateError):
    """A stored schedule cannot be read by this version, so it is left as it is.

    It may be damaged, or of a newer release, whose nodes run it.
    """

    def __init__(self, name: str, error: str) -> None:
        super().__init__(
            f"schedule {name!r} cannot be read ({error}); steer it from the release that stored it, or remove it and "
            "declare it again"
        )
        self.name = name


class LeaderNotFound(JobNotFound):
    """A job was to follow a job or a batch that is not stored, or has been pruned; nothing was stored."""

    def __init__(self, job_id: str, leader: str) -> None:
        HeadgateError.__init__(
            self,
            f"job {job_id} was to follow {leader}, and no job or batch of that id is stored; it may have been pruned "
            "after its retention, and then there is nothing left to wait for",
        )
        self.job_id = leader


class LeaderNotRetried(IllegalTransition):
    """A job was not retried: what it follows did not succeed; `root`, a job or a batch, has to be retried first."""

    def __init__(self, message: str, root: str) -> None:
        super().__init__(message)
        self.root = root


class LeaderNotSucceeded(HeadgateError):
    """Why a job was cancelled: the job or batch that it follows did not succeed."""


class ResultUnavailable(HeadgateError):
    """An argument is the result of a job that did not succeed, has been pruned, or keeps no result; the job fails."""


class SearchTooLong(HeadgateError):
    """A search in payloads or a report was ended before it had read all jobs that its filters select."""


class TooManySearches(HeadgateError):
    """Other searches in payloads and reports run and have not ended in time; nothing was read."""


class JobFailed(HeadgateError):
    """`job.result()` of a job that failed; carries the stored error as text."""

    def __init__(self, job_id: str, error_type: str, message: str, traceback: str | None = None) -> None:
        super().__init__(f"job {job_id} failed with {error_type}: {message}")
        self.job_id = job_id
        self.error_type = error_type
        self.message = message
        self.traceback = traceback


class AttemptFailed(HeadgateError):
    """The error of a job's last attempt as it was stored, with its traceback; the cause of a `JobFailed`.

    It comes back as text, because only the handler's own process may have the class that it raised.
    """


class JobCancelled(HeadgateError):
    """`job.result()` of a job that was cancelled.

    `reason` is what its handler, its limits or the job before it gave as the reason; None if a user cancelled it.
    """

    def __init__(self, job_id: str, reason: str | None = None) -> None:
        super().__init__(f"job {job_id} was cancelled" + ("" if reason is None else f": {reason}"))
        self.job_id = job_id
        self.reason = reason


class JobSkipped(HeadgateError):
    """`job.result()` of a job that was skipped: it was not needed. `reason` names what it follows."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id} was skipped: {reason}")
        self.job_id = job_id
        self.reason = reason


class ProcessDied(HeadgateError):
    """The child process that ran an attempt ended before it had answered: killed, out of memory, or by `os._exit`."""


class JobExpired(HeadgateError):
    """A job was not started by its `expires_at`."""


class LimitRejected(HeadgateError):
    """A job's limits would have made it wait longer than it may: it ends without having run.

    `limit` and `key` say which bucket, `opens_at` (an aware datetime) when it would have opened, where that is known.
    `option` is which option of the limits ended the job, "on_limit" or "max_wait"; None for a reservation.
    """

    def __init__(
        self,
        message: str,
        *,
        limit: str | None = None,
        key: str | None = None,
        opens_at: datetime | None = None,
        option: str | None = None,
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.key = key
        self.opens_at = opens_at
        self.option = option


class LeaseLost(HeadgateError):
    """The lease of a permit was not renewed in time, so another holder may have been granted the permit since.

    `token` is the fencing token of the lost lease.
    """

    def __init__(self, key: str, token: int, seconds: float) -> None:
        super().__init__(
            f"the lease of {key!r} was not renewed for {seconds:g} s: the store did not answer, or this process did "
            "not run; another holder may have it now, with a higher fencing token"
        )
        self.key = key
        self.token = token


class LimitInUse(HeadgateError, RuntimeError):
    """A limit cannot be removed while jobs wait for it or hold its permits."""


class GateClosed(HeadgateError, RuntimeError):
    """The gate or limiter was closed, before the call or while it waited; nothing was consumed."""

    def __init__(self) -> None:
        super().__init__("this gate or limiter, or its app, is closed; make a new one, or open the app again")


def raise_instead(other: BaseException | None, error: BaseException) -> NoReturn:
    """Raise `other` with `error` as its cause, or `error` itself if there is no other one.

    The invariant: no error is its own cause. Code that follows such causes would never end.
    """
    if other is None or other is error:
        raise error
    raise other from error


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that and so on, each once: other code may raise an error from itself."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__


def own_error(error: E) -> E:
    """Return a copy of this error, with its traceback and its cause, for one caller if it concerns several.

    The invariant: two callers never raise the same object. Such an object would collect the frames and the notes of
    both.
    """
    kind = type(error)
    # Those of Python keep some arguments outside of their dict.
    own = kind(*error.args) if kind.__module__ == "builtins" else _uncalled(kind, error.args)
    own.__dict__.update(error.__dict__)
    own.__cause__, own.__context__ = error.__cause__, error.__context__
    own.__suppress_context__ = error.__suppress_context__
    return own.with_traceback(error.__traceback__)


@contextmanager
def needing(who_needs: str, *packages: str, install: str) -> Iterator[None]:
    """Raise DeclarationError if the block imports one of these packages and it is missing: what to install for it.

    `who_needs` is the beginning of the sentence: "the dashboard needs".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in packages:
            raise
        shown = package.replace("_", "-")
        raise DeclarationError(f"{who_needs} the {shown} package, which is missing; pip install {install}") from None
