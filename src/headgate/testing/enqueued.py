"""The jobs enqueued in a test, and how they differ from the expected ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headgate.clock import SECOND, to_datetime
from headgate.errors import PayloadError
from headgate.jobs.job import JobRecord, JobState, NewJob
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.payload import PayloadType
from headgate.views import view_of

SHOWN = 10
"""The maximum of jobs in the message of a failed assertion."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that a test has enqueued, as it is now.

    `arguments` are by name, as the handler gets them, with the defaults filled in and without those that are
    `result_of(…)`. `delay` is in seconds, 0 without one. `run_at` is an aware datetime; for a retry, the time of the
    next attempt, while `asked_at` is when it was to start first. `connection` is the caller's connection whose
    transaction contains it.
    """

    id: str
    task: str
    arguments: Mapping[str, Any]
    queue: str
    state: JobState
    attempt: int
    delay: float
    run_at: datetime
    priority: int
    headers: Mapping[str, str]
    tags: Sequence[str]
    unique_key: str | None
    connection: Any = field(default=None, repr=False)
    asked_at: datetime | None = field(default=None, repr=False)

    def __str__(self) -> str:
        said = f"{self.task}({_listed(self.arguments)})"
        if self.queue != "default":
            said += f"  queue={self.queue!r}"
        if self.delay:
            said += f"  delay={self.delay:g} s"
        if self.priority:
            said += f"  priority={self.priority}"
        if self.tags:
            said += f"  tags={list(self.tags)}"
        if self.unique_key is not None:
            said += f"  unique_key={self.unique_key!r}"
        if self.connection is not None:
            said += "  connection=…"
        return said if self.state is JobState.WAITING else f"{said}  [{self.state}]"


def enqueued(record: JobRecord, task: TaskDefinition | None, connection: Any, new: NewJob | None) -> Enqueued:
    """Return a stored job for a test; `new` is the job as it was enqueued last, if that is known."""
    try:
        # Results are added when the job starts, and are in no stored payload.
        if task is not None and record.origin is not None and record.origin.results:
            given: Mapping[str, Any] = task.payload.decode_part(record.payload, record.origin.results)
        else:
            given = {} if task is None else task.payload.arguments(record.payload)
        arguments = {name: given[name] for name in (task.payload.parameters if task else ()) if name in given}
    except PayloadError:
        arguments = {"payload": record.payload}
    asked = new or record
    delay = asked.run_at - asked.enqueued_at if asked.delayed else 0
    # Once it has started, it may wait for its next attempt.
    asked_at = record.run_at if record.started_at is None else asked.run_at
    return view_of(
        Enqueued,
        record,
        arguments=arguments,
        delay=delay / SECOND,
        headers=record.headers or {},
        tags=() if record.options is None else record.options.tags,
        connection=connection,
        asked_at=to_datetime(asked_at),
    )


def require_fit(payload: PayloadType, name: str, value: object) -> None:
    """Raise PayloadError for a value that no job can have as this argument, such as a text where it is a number."""
    try:
        payload.encode_part({name: value}, frozenset())
    except PayloadError as error:
        # Such an object compares with values by its own rule, as `unittest.mock.ANY` does.
        if "no JSON form" not in str(error):
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedQuery:
    """The job that a test expects; None, and arguments that are not named, match anything."""

    task: str
    arguments: Mapping[str, Any]
    queue: str | None = None
    delay: float | None = None
    at: datetime | None = None
    within: float = 1.0
    priority: int | None = None
    headers: Mapping[str, str] | None = None
    tags: Sequence[str] | None = None
    unique_key: str | None = None
    connection: Any = None

    def __str__(self) -> str:
        said = f"{self.task}({_listed(self.arguments)})"
        if self.delay is not None:
            said += f"  delay={self.delay:g} s"
        if self.at is not None:
            said += f"  at={self.at.isoformat()}"
        for name in ("queue", "priority", "headers", "tags", "unique_key"):
            value = getattr(self, name)
            if value is not None:
                said += f"  {name}={value!r}"
        return said if self.connection is None else f"{said}  connection=…"

    def differences(self, job: Enqueued) -> list[str]:
        """Return how the job differs from the expected one, a line each; empty if it matches."""
        if job.task != self.task:
            return [f"another task, not {self.task}"]
        found: list[str] = []
        for name, value in self.arguments.items():
            if name not in job.arguments or job.arguments[name] != value:
                found.append(f"{name}={_short(job.arguments.get(name))}, not {_short(value)}")
        for name in ("queue", "priority", "unique_key"):
            wanted, has = getattr(self, name), getattr(job, name)
            if wanted is not None and has != wanted:
                found.append(f"{name} {has!r}, not {wanted!r}")
        if self.delay is not None and abs(job.delay - self.delay) > self.within:
            found.append(f"delay {job.delay:g} s, not {self.delay:g} s")
        at = job.asked_at or job.run_at
        if self.at is not None and abs((at - self.at).total_seconds()) > self.within:
            found.append(f"at {at.isoformat()}, not {self.at.isoformat()}")
        for name, text in (self.headers or {}).items():
            if job.headers.get(name) != text:
                found.append(f"header {name!r} {job.headers.get(name)!r}, not {text!r}")
        lacking = [tag for tag in self.tags or () if tag not in job.tags]
        if lacking:
            found.append(f"without {_tags(lacking)}, with {_tags(job.tags)}")
        if self.connection is not None and job.connection is not self.connection:
            found.append("not in the transaction of this connection")
        return found


def missing_message(expected: EnqueuedQuery, jobs: Sequence[Enqueued], found: int, count: int | None) -> str:
    """Return the message of a failed `assert_enqueued`: the expected job, and the enqueued ones, nearest first."""
    many = "no job was" if not found else f"{found} jobs, not {count}, were"
    said = [f"{many} enqueued as", f"    {expected}"]
    if not jobs:
        return "\n".join([*said, "nothing was enqueued at all"])
    ranked = sorted(((expected.differences(job), job) for job in jobs), key=lambda each: _distance(each[0]))
    said.append(f"{len(jobs)} enqueued in this test, nearest first:" if len(jobs) > 1 else "what was enqueued:")
    for differences, job in ranked[:SHOWN]:
        said += [f"    {job}", *(f"      ✗ {each}" for each in differences)]
    if len(ranked) > SHOWN:
        said.append(f"    … and {len(ranked) - SHOWN} more")
    return "\n".join(said)


def present_message(expected: EnqueuedQuery, found: Sequence[Enqueued]) -> str:
    """Return the message of a failed `refute_enqueued`."""
    said = [f"{len(found)} {'jobs were' if len(found) > 1 else 'job was'} enqueued as", f"    {expected}", "namely:"]
    said += [f"    {job}" for job in found[:SHOWN]]
    if len(found) > SHOWN:
        said.append(f"    … and {len(found) - SHOWN} more")
    if any(job.connection is not None for job in found):
        said.append("in this mode a job with connection=… is stored at once, also if its transaction is rolled back")
    return "\n".join(said)


def _distance(differences: Sequence[str]) -> tuple[bool, int]:
    return any(each.startswith("another task") for each in differences), len(differences)


def _tags(tags: Sequence[str]) -> str:
    return f"tags {', '.join(tags)}" if tags else "no tags"


def _listed(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in arguments.items())


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 200 else f"{said[:199]}…"
