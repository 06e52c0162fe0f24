"""Retry policies: the number of retries, a delay for each, and a filter on errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from headgate.arguments import LARGEST_COUNT, LONGEST, parse_count, parse_duration, parse_seconds, parse_wait
from headgate.clock import FARTHEST, Duration
from headgate.errors import DeclarationError
from headgate.jobs import transient
from headgate.jobs.job import RetryTerms
from headgate.jobs.transient import Transient
from headgate.keywords import names_keywords

ErrorFilter = type[BaseException] | Transient | Callable[[Any], object]
ErrorFilters = ErrorFilter | tuple[ErrorFilter, ...]
Backoff = Callable[[int], Duration | None] | Callable[[int, Any], Duration | None]


@names_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Sets how failed attempts are tried again; the slot is free while a retry waits, and the count is durable.

    `retries` (default 3) come after the first attempt. The n-th waits a random time (full jitter) up to
    `base` (1 s) times 2**(n-1), at most `cap` (1 h); `jitter=False` waits exactly that. Instead, `delay` sets the same
    wait each time, or `delays` lists each wait (and so the number of retries). `backoff` is a function that gets the
    number of failures so far, and the error if it takes two arguments; it returns seconds, or None to give up. These
    three are never jittered.

    Errors in `give_up_on` are never retried; with `retry_on`, only those errors are; an error in both is not retried.
    Each is an exception class, `RetryPolicy.NETWORK`, `RetryPolicy.DATABASE`, a function that gets the error and
    returns whether it is meant, or a tuple of these. A group of exceptions is retried only if each of them would be. A
    timeout is an error like any other.

    If a function of the policy raises, that is logged (RetryPolicyFailed), and the job is tried again after the default
    delay.

    Raises DeclarationError for invalid or contradictory arguments.

    Full jitter: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    NETWORK: ClassVar[Transient] = transient.NETWORK
    """Refused, lost or timed-out connections, in the standard library and in the usual clients."""

    DATABASE: ClassVar[Transient] = transient.DATABASE
    """Failed connections to a database, deadlocks, serialization failures, unavailable locks."""

    retries: int = 3
    base: Duration = 1.0
    cap: Duration = 3600.0
    jitter: bool = True
    delay: Duration | None = None
    delays: Sequence[Duration] | None = None
    backoff: Backoff | None = None
    retry_on: ErrorFilters | None = None
    give_up_on: ErrorFilters | None = None

    def __post_init__(self) -> None:
        if isinstance(self.retries, bool) or not isinstance(self.retries, int):
            raise DeclarationError(f"RetryPolicy(retries={self.retries!r}) is not a whole number")
        if self.retries < 0:
            raise DeclarationError(f"RetryPolicy(retries={self.retries}) is negative; use 0 for no retries")
        parse_count(self.retries, "retries", "RetryPolicy", least=0)
        if not isinstance(self.jitter, bool):
            raise DeclarationError(f"RetryPolicy(jitter={self.jitter!r}) is not True or False")
        parse_duration(self.base, "base", "RetryPolicy")
        parse_duration(self.cap, "cap", "RetryPolicy")
        self._require_one_way()
        if self.delay is not None:
            parse_duration(self.delay, "delay", "RetryPolicy")
        if self.delays is not None:
            self._take_delays(self.delays)
        for errors in (self.retry_on, self.give_up_on):
            if not all(_is_filter(kind) for kind in _each(errors)):
                raise DeclarationError(
                    f"RetryPolicy filters by exception classes, by plain functions of the error and by "
                    f"RetryPolicy.NETWORK and .DATABASE, not by {errors!r}"
                )

    def _require_one_way(self) -> None:
        ways = [name for name in ("delay", "delays", "backoff") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise DeclarationError(f"RetryPolicy takes {' or '.join(ways)}, not both")
        if self.backoff is not None and not callable(self.backoff):
            raise DeclarationError(f"RetryPolicy(backoff={self.backoff!r}) is not callable")
        if self.backoff is not None and not any(_is_plain_function(self.backoff, count) for count in (1, 2)):
            raise DeclarationError(
                f"RetryPolicy(backoff={self.backoff!r}) must be a plain function that takes the number of failures, "
                "and the error if you add a second parameter; write backoff=lambda failures: … or "
                "backoff=lambda failures, error: …"
            )
        if ways and (self.base, self.cap, self.jitter) != (1.0, 3600.0, True):
            raise DeclarationError(f"RetryPolicy({ways[0]}=…) does not use base, cap or jitter; leave them out")

    def _take_delays(self, delays: Sequence[Duration]) -> None:
        if isinstance(delays, (str, bytes)) or not isinstance(delays, Sequence):
            raise DeclarationError(f"RetryPolicy(delays={delays!r}) is not a list of durations")
        for delay in delays:
            parse_duration(delay, "delays", "RetryPolicy")
        if self.retries not in (3, len(delays)):
            raise DeclarationError(
                f"RetryPolicy(retries={self.retries}) has {len(delays)} delays; leave retries out, or match it"
            )
        object.__setattr__(self, "delays", tuple(delays))
        object.__setattr__(self, "retries", len(delays))

    def accepts(self, error: BaseException) -> bool:
        """Return whether this error is retried. Raises what a filter raises that is a function."""
        if _matches(error, self.give_up_on):
            return False
        if isinstance(error, BaseExceptionGroup):
            return all(self.accepts(one) for one in error.exceptions)
        return self.retry_on is None or _matches(error, self.retry_on)

    def wait_after(self, failures: int, random: Random, error: BaseException | None = None) -> int | None:
        """Return the microseconds to wait after the `failures`-th failure (counted from 1), an `error`; None: give up.

        Raises what the backoff raises, and DeclarationError for a wait that is no duration.
        """
        if self.delays is not None:
            return _within(self.delays[min(failures, len(self.delays)) - 1])
        if self.delay is not None:
            return _within(self.delay)
        if self.backoff is not None:
            backoff: Callable[..., Duration | None] = self.backoff
            wait = backoff(failures) if _is_plain_function(backoff, 1) else backoff(failures, error)
            return None if wait is None else _within(wait)
        base, cap = parse_wait(self.base, "base"), parse_wait(self.cap, "cap")
        longest = min(FARTHEST, cap, base << min(failures - 1, 62))
        return random.randint(0, longest) if self.jitter else longest

    def terms(self, where: str) -> RetryTerms:
        """Return the part that can be stored with a job. Raises DeclarationError for a function and for filters."""
        unstored = [name for name in ("backoff", "retry_on", "give_up_on") if getattr(self, name) is not None]
        if unstored:
            raise DeclarationError(
                f"{where}: {' and '.join(unstored)} of a RetryPolicy cannot be stored with a job; pass it where the "
                "task is declared: its filters also apply to jobs with their own policy"
            )
        return RetryTerms(
            retries=self.retries,
            base=_seconds(self.base),
            cap=_seconds(self.cap),
            jitter=self.jitter,
            delay=None if self.delay is None else _seconds(self.delay),
            delays=None if self.delays is None else tuple(_seconds(delay) for delay in self.delays),
        )

    def with_terms(self, terms: RetryTerms) -> RetryPolicy:
        """Return a job's stored policy, with the filters of this policy, its task's."""
        filters: dict[str, Any] = {"retry_on": self.retry_on, "give_up_on": self.give_up_on}
        # An older release may have stored values beyond the current bounds.
        if terms.delays is not None:
            delays = tuple(_bounded(delay) for delay in terms.delays)
            return RetryPolicy(retries=len(delays), delays=delays, **filters)
        retries = min(terms.retries, LARGEST_COUNT)
        if terms.delay is not None:
            return RetryPolicy(retries=retries, delay=_bounded(terms.delay), **filters)
        base, cap = _bounded(terms.base), _bounded(terms.cap)
        return RetryPolicy(retries=retries, base=base, cap=cap, jitter=terms.jitter, **filters)


def require_policy(retry: object, where: str) -> None:
    """Raise DeclarationError unless `retry` is a RetryPolicy."""
    if not isinstance(retry, RetryPolicy):
        count = int(retry) if isinstance(retry, int) and retry >= 0 and retry is not True else 3
        raise DeclarationError(f"{where}: retry={retry!r} is not a policy; write retry=RetryPolicy(retries={count})")


def _is_plain_function(function: Callable[..., object], count: int) -> bool:
    """Return whether it is not async and can be called with that many arguments; True as well if that is unknown."""
    if inspect.iscoroutinefunction(function):
        return False
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        # Some built-ins have no signature.
        return True
    return True


def _is_filter(kind: object) -> bool:
    if isinstance(kind, type):
        return issubclass(kind, BaseException)
    return isinstance(kind, Transient) or (callable(kind) and _is_plain_function(kind, 1))


def _each(filters: ErrorFilters | None) -> tuple[ErrorFilter, ...]:
    if filters is None:
        return ()
    return filters if isinstance(filters, tuple) else (filters,)


def _matches(error: BaseException, filters: ErrorFilters | None) -> bool:
    return any(_is_meant(error, kind) for kind in _each(filters))


def _is_meant(error: BaseException, kind: ErrorFilter) -> bool:
    if isinstance(kind, Transient):
        return kind.matches(error)
    return isinstance(error, kind) if isinstance(kind, type) else bool(kind(error))


def _within(wait: Duration) -> int:
    return parse_wait(wait, "delay", "RetryPolicy")


def _seconds(duration: Duration) -> float:
    return parse_seconds(duration, "delay", "RetryPolicy")


def _bounded(seconds: float) -> float:
    return min(seconds, LONGEST)


DEFAULT_RETRY = RetryPolicy()
