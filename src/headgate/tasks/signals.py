"""Exceptions that a handler raises to say how its attempt ends.

Subclasses of them have the same effect. A member of an exception group has none.
"""

from __future__ import annotations

from headgate.arguments import parse_wait
from headgate.clock import Duration
from headgate.errors import reduced
from headgate.keywords import names_keywords

_SHOWN_IN = "headgate"
"""The module of these classes in the error of a job, which reads `headgate.Fail`."""


@names_keywords
class Snooze(Exception):
    """Run this job again after a delay; no attempt is spent and no error is kept.

    `raise Snooze(60)`: seconds, a timedelta, or text like "5m"; less than 0 is 0, and a hundred years is the most.
    """

    __module__ = _SHOWN_IN
    __reduce__ = reduced

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"run again in {delay}")
        self.delay: int = parse_wait(delay, "delay", "Snooze")


@names_keywords
class RateLimited(Exception):
    """The callee's own limit is reached.

    `raise RateLimited(retry_after=30)` (seconds, a timedelta, or text like "5m"; less than 0 is 0, and a hundred years
    is the most) puts the job back into its lane without spending the attempt, and nothing starts on its buckets until
    then.
    """

    __module__ = _SHOWN_IN
    __reduce__ = reduced

    def __init__(self, retry_after: Duration) -> None:
        super().__init__(f"refused for {retry_after}")
        self.retry_after: int = parse_wait(retry_after, "retry_after", "RateLimited")


@names_keywords
class Retry(Exception):
    """Try this job again: the attempt fails with `reason` and uses a retry; without one left, the job fails.

    `raise Retry(30, "the report is not ready")`: the delay is seconds, a timedelta, or text like "5m"; less than 0 is
    0, and a hundred years is the most. Without a delay that of the retry policy applies. The filters of the policy
    (`retry_on`, `give_up_on`) do not apply.
    """

    __module__ = _SHOWN_IN
    __reduce__ = reduced

    delay: int | None = None

    def __init__(self, delay: Duration | None = None, reason: str = "the handler requested a retry") -> None:
        super().__init__(reason)
        if delay is not None:
            self.delay = parse_wait(delay, "delay", "Retry")


@names_keywords
class Fail(Exception):
    """Fail this job with `reason`; it is not tried again, whatever its retry policy says.

    `raise Fail("the customer is deleted")`, or `raise Fail(…) from error` to keep the cause in the traceback.
    """

    __module__ = _SHOWN_IN

    def __init__(self, reason: str = "the handler failed the job") -> None:
        super().__init__(reason)


@names_keywords
class Cancel(Exception):
    """End this job as cancelled, with `reason`: the work is not needed any more. It is no failure.

    `raise Cancel("the order was withdrawn")`
    """

    __module__ = _SHOWN_IN

    def __init__(self, reason: str = "the handler cancelled the job") -> None:
        super().__init__(reason)
