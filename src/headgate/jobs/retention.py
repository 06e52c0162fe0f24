"""Retention: how long final jobs are kept, by state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import msgspec

from headgate.arguments import parse_seconds
from headgate.clock import Duration
from headgate.errors import DeclarationError
from headgate.jobs.job import RetentionTerms
from headgate.jobs.state import JobState

DAY = 86400.0

OwnRetention = Duration | Mapping[str, Duration]
"""The retention of a task or a job: a duration, "forever", or these by state."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long jobs are kept after they have succeeded, failed, been cancelled or skipped (7 days each), in seconds.

    It may be 0: a job is deleted by the next pruning, but not before the jobs that follow it have ended. A job is
    deleted with its attempts, its log lines and its audit entries. Audit entries of limits, queues and schedules are
    kept for `audit` (90 days).
    """

    succeeded: float = 7 * DAY
    failed: float = 7 * DAY
    cancelled: float = 7 * DAY
    skipped: float = 7 * DAY
    audit: float = 90 * DAY

    def __post_init__(self) -> None:
        for field in fields(self):
            seconds = parse_seconds(
                getattr(self, field.name), field.name, "retention", allow_zero=field.name != "audit"
            )
            object.__setattr__(self, field.name, seconds)

    def of(self, state: JobState) -> float:
        """Return the seconds for which a job in this final state is kept."""
        return float(getattr(self, state.value))

    @property
    def terms(self) -> RetentionTerms:
        """The same as it is stored with a job that has its own retention."""
        return RetentionTerms(*(math.ceil(getattr(self, state)) for state in RetentionTerms.__struct_fields__))

    @property
    def own_terms(self) -> RetentionTerms | None:
        """The terms that each job has to carry, because one of them is 0; None if none has to.

        Only the pruning of jobs with their own retention spares those that others still follow.
        """
        terms = self.terms
        return terms if 0 in msgspec.structs.astuple(terms) else None


DEFAULT_RETENTION = Retention()


def retention_of(given: Retention | Duration | Mapping[str, Duration]) -> Retention:
    """Return the retention for one duration, or durations by state, as given in code. Raises DeclarationError."""
    match given:
        case Retention():
            return given
        case Mapping():
            known = [field.name for field in fields(Retention)]
            for name in given:
                if name not in known:
                    raise DeclarationError(f"retention has no entry {name!r}; use {', '.join(known)}")
            return Retention(**given)  # type: ignore[arg-type]  # it parses durations
        case _:
            seconds = parse_seconds(given, "all jobs", "retention")
            return Retention(seconds, seconds, seconds, seconds)


def parse_retention(text: str) -> Retention:
    """Parse the variable: `604800`, `7d`, or `succeeded=1h,failed=30d`. Raises DeclarationError."""
    try:
        if "=" not in text:
            return retention_of(text)
        parts = [part.partition("=") for part in text.split(",") if part.strip()]
        return retention_of({name.strip(): value for name, _, value in parts})
    except DeclarationError as error:
        raise DeclarationError(
            f"HEADGATE_RETENTION={text!r} cannot be read: {error}; write seconds, 7d, or succeeded=1h,failed=30d"
        ) from None


def own_retention(given: OwnRetention, otherwise: RetentionTerms, where: str) -> RetentionTerms:
    """Return the retention of a task or job as it is stored; `otherwise` is for states that a mapping leaves out.

    A duration may be 0. Raises DeclarationError.
    """
    if not isinstance(given, Mapping):
        kept = _own_seconds(given, "retention", where)
        return RetentionTerms(kept, kept, kept, kept)
    states = RetentionTerms.__struct_fields__
    for state in given:
        if state not in states:
            raise DeclarationError(f"{where}: retention has no entry {state!r}; use {', '.join(states)}")
    return RetentionTerms(
        *(
            _own_seconds(given[state], f"retention of {state}", where) if state in given else getattr(otherwise, state)
            for state in states
        )
    )


def _own_seconds(value: object, name: str, where: str) -> int | None:
    return None if value == "forever" else math.ceil(parse_seconds(value, name, where))
