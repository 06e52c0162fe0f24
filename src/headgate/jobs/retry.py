"""When to try again: a retry policy is a number of retries, a delay for each, and a filter on errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from headgate.clock import FARTHEST, Duration, microseconds
from headgate.errors import DeclarationError

ErrorTypes = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How failed attempts are tried again; the slot is free while a retry waits, and the count is durable.

    `retries` (default 3) come after the first attempt. The n-th waits a random time (full jitter) of up to
    `base` (1 s) times 2**(n-1), at most `cap` (1 h); `jitter=False` waits exactly that. `delays` names each wait
    instead (and is never jittered); `backoff` computes it from the number of failures so far, as seconds.
    `give_up_on` errors are never retried; with `retry_on`, only those are. A timeout is an error like any other.

    Full jitter: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    retries: int = 3
    base: Duration = 1.0
    cap: Duration = 3600.0
    jitter: bool = True
    delays: Sequence[Duration] | None = None
    backoff: Callable[[int], Duration] | None = None
    retry_on: ErrorTypes | None = None
    give_up_on: ErrorTypes | None = None

    def __post_init__(self) -> None:
        if self.delays is not None:
            if self.backoff is not None:
                raise DeclarationError("RetryPolicy takes delays or backoff, not both")
            object.__setattr__(self, "delays", tuple(self.delays))
            object.__setattr__(self, "retries", len(self.delays))
        for errors in (self.retry_on, self.give_up_on):
            kinds = errors if isinstance(errors, tuple) else () if errors is None else (errors,)
            if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
                raise DeclarationError(f"RetryPolicy filters by exception classes, not by {errors!r}")
        if self.retries < 0:
            raise DeclarationError(f"RetryPolicy(retries={self.retries}) is negative; use 0 for no retries")
        if microseconds(self.base) < 0 or microseconds(self.cap) < 0:
            raise DeclarationError("RetryPolicy delays cannot be negative")

    def accepts(self, error: BaseException) -> bool:
        """Whether this kind of error is worth another try."""
        if self.give_up_on is not None and isinstance(error, self.give_up_on):
            return False
        return self.retry_on is None or isinstance(error, self.retry_on)

    def delay(self, failures: int, random: Random) -> int:
        """Microseconds to wait after the `failures`-th failure (counted from 1)."""
        if self.delays is not None:
            return min(FARTHEST, max(0, microseconds(self.delays[min(failures, len(self.delays)) - 1])))
        if self.backoff is not None:
            return min(FARTHEST, max(0, microseconds(self.backoff(failures))))
        longest = min(FARTHEST, microseconds(self.cap), microseconds(self.base) << min(failures - 1, 62))
        return random.randint(0, longest) if self.jitter else longest


NO_RETRY = RetryPolicy(retries=0)
