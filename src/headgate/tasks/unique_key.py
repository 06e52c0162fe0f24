"""Unique keys for the jobs of a task: one key for all calls, or one computed from each call's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from msgspec.structs import replace

from headgate.arguments import parse_duration
from headgate.clock import Duration
from headgate.errors import DeclarationError, PayloadError
from headgate.jobs.job import JobOptions, NewJob, OnConflict, UniqueTerms
from headgate.jobs.state import JobState
from headgate.limits.argument_fields import ArgumentFields
from headgate.limits.key import UNTYPED, Compute, bucket_key, compile_key, shown_template

MAX_UNIQUE_KEY = 200
"""Characters of a unique key."""

KeyTemplate = str | Callable[..., object]
"""A template over the arguments, or a function of them; it returns the key, or None for a job without one."""

UniqueState = Literal["waiting", "running"]
"""A state in which a job holds its unique key."""

UNIQUE_OPTIONS = ("unique_key", "unique_for", "unique_while", "on_conflict", "debounce", "debounce_max")
"""The options of unique keys, of tasks and of enqueueing."""


class ComputedKey:
    """A unique key that is computed from the arguments of each job; `template` is how the task declares it."""

    def __init__(self, compute: Compute, template: str, where: str) -> None:
        self._compute = compute
        self.template = template
        self._where = where

    def of(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the key of a call; None: the job has none. Raises PayloadError if it cannot be computed."""
        try:
            return bucket_key(self._compute(arguments, {}), MAX_UNIQUE_KEY) or None
        except Exception as error:
            # A user's function may raise anything. Without its key the job could be a duplicate.
            raise PayloadError(
                f"the unique_key of {self._where} could not be computed: {type(error).__name__}: {error}; nothing was "
                "stored"
            ) from error


class Uniqueness(NamedTuple):
    """The unique key of the jobs of a call, and how they take it. Durations are microseconds."""

    key: str | ComputedKey
    on_conflict: OnConflict
    terms: UniqueTerms
    debounce: int | None = None
    debounce_max: int | None = None

    def key_for(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the key of a call; None: the job has none. Raises PayloadError if it cannot be computed."""
        return self.key if isinstance(self.key, str) else self.key.of(arguments)

    def with_key(self, job: NewJob, arguments: Mapping[str, Any], *, expires_with_start: bool) -> NewJob:
        """Return the job with its unique key. Raises PayloadError if it cannot be computed."""
        key = self.key_for(arguments)
        if key is None:
            return job
        options, terms = job.options, self.terms
        if self.debounce_max is not None:
            options = replace(options or JobOptions(), latest_start=job.enqueued_at + self.debounce_max)
            terms = replace(terms, expires_with_start=expires_with_start)
        return replace(job, unique_key=key, on_conflict=self.on_conflict, unique_terms=terms, options=options)


def computed_key(
    template: object, parameters: Sequence[str], where: str, fields: ArgumentFields = UNTYPED
) -> ComputedKey:
    """Return the unique key that a task declares. Raises DeclarationError as the keys of limits do."""
    if not isinstance(template, str) and not callable(template):
        raise DeclarationError(
            f'{where}: unique_key={template!r:.80} is not a template such as "{{order_id}}", nor a function of the '
            "arguments"
        )
    if template == "":
        raise DeclarationError(f'{where}: unique_key="" is empty; leave it out for jobs without a unique key')
    compute = compile_key(template, parameters, f"the unique_key of {where}", fields)
    return ComputedKey(compute, shown_template(template), where)


def uniqueness(declared: Mapping[str, Any], options: Mapping[str, Any], where: str) -> Uniqueness | None:
    """Return how jobs take their unique key: by options of enqueueing, else as declared. None for jobs without a key.

    The declared `unique_key` is a ComputedKey. Raises DeclarationError for options that contradict each other.
    """
    given = {
        name: value
        for name in UNIQUE_OPTIONS
        if (value := declared.get(name) if options.get(name) is None else options[name]) is not None
    }
    key = given.pop("unique_key", None)
    on_conflict = given.get("on_conflict")
    if on_conflict is not None and on_conflict not in get_args(OnConflict):
        raise DeclarationError(
            f'{where}: on_conflict={on_conflict!r} must be "keep", "replace", "raise" or "cancel_running"'
        )
    if key is None:
        if given:
            name, value = next(iter(given.items()))
            raise DeclarationError(f"{where}: {name}={value!r} has no effect without a unique_key; add unique_key=…")
        return None
    unique_for: Duration | None = given.get("unique_for")
    taken_for = None if unique_for is None else parse_duration(unique_for, "unique_for", where, allow_zero=False)
    terms = UniqueTerms(taken_for, _is_held_while_running(given, where))
    if on_conflict == "cancel_running" and not terms.while_running:
        raise DeclarationError(
            f'{where}: on_conflict="cancel_running" needs unique_while=("waiting", "running"): otherwise the running '
            "job does not hold the key"
        )
    debounce, debounce_max = _debounce(given, where)
    policy: OnConflict = on_conflict or ("keep" if debounce is None else "replace")
    if terms.taken_for is not None and policy in ("replace", "cancel_running"):
        by = "debounce" if debounce is not None else f'on_conflict="{policy}"'
        raise DeclarationError(
            f"{where}: unique_for and {by} contradict each other: a job that has ended cannot get the new arguments, "
            'which would be dropped; use on_conflict="keep" or "raise", or leave unique_for out'
        )
    return Uniqueness(key, policy, terms, debounce, debounce_max)


def _is_held_while_running(given: Mapping[str, Any], where: str) -> bool:
    states = given.get("unique_while")
    if states is None:
        return True
    if isinstance(states, str) or not isinstance(states, Sequence):
        raise DeclarationError(
            f'{where}: unique_while={states!r:.80} is not a list of states; write unique_while=("waiting",)'
        )
    for state in states:
        if state in get_args(UniqueState):
            continue
        allowed = 'write ("waiting",) or ("waiting", "running")'
        if state in [each.value for each in JobState]:
            allowed += "; unique_for= keeps the key taken after the job has ended"
        raise DeclarationError(f"{where}: unique_while={states!r:.80} names {state!r:.40}; {allowed}")
    if "waiting" not in states:
        raise DeclarationError(
            f'{where}: unique_while={states!r:.80} lacks "waiting": a waiting job always holds its key; to run one job '
            'at a time, use limits=[Mutex("{…}")]'
        )
    return "running" in states


def _debounce(given: Mapping[str, Any], where: str) -> tuple[int | None, int | None]:
    debounce, debounce_max = given.get("debounce"), given.get("debounce_max")
    if debounce is None:
        if debounce_max is not None:
            raise DeclarationError(f"{where}: debounce_max={debounce_max!r} has no effect without debounce")
        return None, None
    on_conflict = given.get("on_conflict")
    if on_conflict not in (None, "replace"):
        raise DeclarationError(
            f"{where}: debounce and on_conflict={on_conflict!r} contradict each other: debounce replaces the waiting "
            "job; leave on_conflict out"
        )
    length = parse_duration(debounce, "debounce", where, allow_zero=False)
    if debounce_max is None:
        return length, None
    longest = parse_duration(debounce_max, "debounce_max", where)
    if longest < length:
        raise DeclarationError(f"{where}: debounce_max={debounce_max!r} is less than debounce={debounce!r}")
    return length, longest
