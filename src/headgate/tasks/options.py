"""Options: of task declarations and of enqueueing. Each option is declared here only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, cast
from uuid import UUID

from headgate.arguments import parse_duration, parse_seconds
from headgate.clock import Duration
from headgate.errors import DeclarationError
from headgate.jobs.annotation import plain
from headgate.jobs.audit import AuditWord
from headgate.jobs.job import MAX_PRIORITY, OnConflict
from headgate.jobs.retention import OwnRetention
from headgate.jobs.retry import RetryPolicy
from headgate.keywords import require_keywords
from headgate.limits.limit import Limit, RateOptions
from headgate.tasks.unique_key import UNIQUE_OPTIONS, KeyTemplate, UniqueState

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
"""Converts arguments that an older release has stored, as plain JSON values, to current ones."""

MAX_HEADERS = 16 * 1024
"""Bytes of all headers of a job, names and values."""


class HandlerOptions(TypedDict, total=False):
    """The options of a task: what `@app.handler(…)` takes, and `@app.task(…)` as well."""

    name: str | None
    """The name stored with each job (default: the name of the function or class)."""

    aliases: Sequence[str]
    """Earlier names of the task: it also runs jobs stored under one of them."""

    queue: str
    """The queue of its jobs (default: `default`). Raises UnknownQueue for a queue that is not declared."""

    limits: Sequence[Limit | str]
    """All must be open for a job to start, and none is charged unless all are; a name is one of `app.limit`."""

    retry: RetryPolicy | None
    """How failed attempts are retried (default: the queue's policy, else the app's)."""

    timeout: Duration | None
    """The timeout of each attempt, above 0: seconds, a timedelta or text (default: the queue's, else the app's)."""

    priority: int
    """0 to 9: a higher one goes first inside a lane (default: 0)."""

    expires_in: Duration | None
    """How long a job may wait from the time at which it may start; then it fails with JobExpired (default: forever)."""

    audit: AuditWord | None
    """How much of the life of its jobs is kept: "none", "errors", "minimal" or "full" (default: the app's)."""

    retention: OwnRetention | None
    """How long its jobs are kept after they have ended (default: the app's): a duration, 0 (deleted by the next
    pruning), "forever", or a dict of these by state: {"succeeded": 0, "failed": "30d"}. It is stored with each job."""

    keep_result: bool
    """Whether the value that the handler returns is stored (default: yes); otherwise `job.result()` returns None."""

    unique_key: KeyTemplate | None
    """At most one job of the task waits under each key: a template over the arguments, as "{order_id}", or a function
    of them. A job whose key is empty or None has none. `using(unique_key=…)` sets another key."""

    unique_for: Duration | None
    """How long the key stays taken from the enqueue on, however the job ends (default: until it has ended)."""

    unique_while: Sequence[UniqueState] | None
    """The states in which a job holds its key (default: "waiting" and "running"); "waiting" is always one of them."""

    on_conflict: OnConflict | None
    """Set what happens to the next job under a key: "keep" (default), "replace", "raise" or "cancel_running"."""

    debounce: Duration | None
    """A job starts this long after the last enqueue under its key, with the arguments of that one."""

    debounce_max: Duration | None
    """The longest time by which `debounce` postpones a start, from the first enqueue on (default: forever)."""

    requires: Collection[str]
    """The labels that a node needs to run its jobs, such as {"gpu"} (default: none). `headgate worker --label gpu`
    starts one with that label. The limits count as for all other tasks."""

    tags: Collection[str]
    """Words that its jobs are found by, such as ["import"] (default: none): up to 20, of up to 64 characters."""

    upgrade: Upgrade | None
    """Returns arguments that fit the current signature for those that an older release has stored.

    It is called only for stored arguments that do not fit the signature. It takes and returns a dict of plain JSON
    values.
    """


class TaskOptions(HandlerOptions, total=False):
    """The options of a function task: what `@app.task(…)` takes."""

    process: bool
    """Run a plain `def` in a child process: for computations, and for code that a timeout must stop (default: no)."""


class EnqueueOptions(TypedDict, total=False):
    """The options of enqueueing that differ from the task's: what `task.using(…)` takes.

    None leaves an option as it is: as in the `using(…)` before, or as the task is declared.
    """

    queue: str | None
    """Another queue than the task's. Raises UnknownQueue for one that is not declared."""

    delay: Duration | None
    """How long to wait before it may start: seconds, a timedelta or text like "5m". Not together with `at`."""

    at: datetime | None
    """When it may start, an aware datetime; a past one means now."""

    priority: int | None
    """0 to 9: a higher one goes first inside its lane."""

    expires_at: datetime | None
    """An aware datetime: a job that has not started by then fails with JobExpired."""

    expires_in: Duration | None
    """The same, from the time at which the job may start: after its delay. Not together with `expires_at`."""

    headers: Mapping[str, str] | None
    """Text stored with the job, up to 16 KiB; added to the headers of the `using(…)` before."""

    tags: Collection[str] | None
    """Words to find the job by; added to the tags from its task and from an earlier `using(…)`."""

    retry: RetryPolicy | None
    """Replaces the task's own policy. It is stored with the job, so it has no function and no filters; those of the
    task still apply."""

    timeout: Duration | None
    """The timeout of each attempt, above 0; replaces the task's own."""

    predict: bool | None
    """Whether to read the predicted start of each job, by one more query each: `job.prediction`."""

    audit: AuditWord | None
    """How much of its life is kept: "none", "errors", "minimal" or "full"."""

    retention: OwnRetention | None
    """How long it is kept after it has ended: a duration, 0, "forever", or a dict of these by state."""

    keep_result: bool | None
    """Whether the value that the handler returns is stored."""

    id: str | UUID | None
    """The id of the job, a UUID. If a job of the task is stored under it, nothing is stored and that job is returned.
    Raises IdInUse if it is a job of another task."""

    unique_key: str | None
    """At most one job of the task waits under this key; 1 to 200 characters. It replaces the task's own."""

    unique_for: Duration | None
    """How long the key stays taken from the enqueue on, however the job ends. For "keep" and "raise"."""

    unique_while: Sequence[UniqueState] | None
    """The states in which a job holds the key for this enqueue: ("waiting", "running") or ("waiting",)."""

    on_conflict: OnConflict | None
    """Set what happens to the next job under a `unique_key`.

    "keep" (default) returns the one that waits or runs. "replace" gives the waiting one the new arguments, time and
    options, or lets one more run follow a running one. "raise" raises DuplicateJob. "cancel_running" is "replace", and
    cancels the running one.
    """

    debounce: Duration | None
    """Start this long after the last enqueue under the key, with its arguments. Not together with `delay` or `at`."""

    debounce_max: Duration | None
    """The longest time by which `debounce` postpones the start, from the first enqueue on (default: forever)."""

    connection: Any
    """Your connection, with an open transaction, to the database of the jobs: the job exists if and only if it commits.

    A sqlite3, asyncpg, psycopg or SQLAlchemy connection, or a SQLAlchemy session.
    """


_INSTEAD_OF = {"delay": "at", "at": "delay", "expires_in": "expires_at", "expires_at": "expires_in"}

NO_OPTIONS: EnqueueOptions = {}
"""The options of a task as it is declared."""


def options_of_call(own: EnqueueOptions, defaults: EnqueueOptions) -> EnqueueOptions:
    """Return the options of a call: its own, and for those left out the options of the task that enqueues it."""
    new: dict[str, Any] = {name: value for name, value in own.items() if name != "connection"}
    new["headers"] = {**(defaults.get("headers") or {}), **(own.get("headers") or {})}
    new["tags"] = (*(defaults.get("tags") or ()), *(own.get("tags") or ()))
    if "unique_key" in own:
        # The other options of unique keys belong to the key.
        defaults = cast(EnqueueOptions, {name: value for name, value in defaults.items() if name not in UNIQUE_OPTIONS})
    return merged(defaults, new)


def merged(before: EnqueueOptions, new: Mapping[str, Any]) -> EnqueueOptions:
    """Return options overridden by others."""
    # A new time replaces the one before, whether that was a duration or an instant.
    kept = {name: value for name, value in before.items() if _INSTEAD_OF.get(name) not in new}
    return cast(EnqueueOptions, {**kept, **new})


def require_names(changes: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Raise TypeError, as Python does, for an unknown option."""
    require_keywords(changes, known, where, of_limits=RateOptions.__annotations__)


def require_priority(priority: int, where: str) -> None:
    """Raise DeclarationError unless it is a valid priority."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= MAX_PRIORITY:
        raise DeclarationError(f"{where}: priority={priority!r} must be a whole number from 0 to {MAX_PRIORITY}")


def checked_timeout(timeout: Duration, where: str) -> float:
    """Return a timeout in seconds. Raises DeclarationError unless it is above 0."""
    return parse_seconds(timeout, "timeout", where, allow_zero=False)


def checked_expiry(expires_in: Duration, where: str) -> int:
    """Return how long a job may wait, in microseconds. Raises DeclarationError unless it is above 0."""
    return parse_duration(expires_in, "expires_in", where, allow_zero=False)


def require_switch(value: object, name: str, where: str) -> None:
    """Raise DeclarationError unless it is True or False."""
    if not isinstance(value, bool):
        raise DeclarationError(f"{where}: {name}={value!r} is not True or False")


def plain_headers(headers: Mapping[str, str], where: str) -> dict[str, str]:
    """Return headers as plain text. Raises DeclarationError unless they are text of an allowed size."""
    size = 0
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise DeclarationError(f"{where}: header {key!r:.80}={value!r:.80} is not text")
        try:
            size += len(f"{key}{value}".encode())
        except UnicodeEncodeError:
            raise DeclarationError(f"{where}: header {key!r:.80}={value!r:.80} has no UTF-8 form") from None
    if size > MAX_HEADERS:
        raise DeclarationError(
            f"{where}: headers of {size} bytes are more than {MAX_HEADERS}; they are read with every list of jobs, so "
            "put what is large into the arguments"
        )
    return {plain(name): plain(value) for name, value in headers.items()}
