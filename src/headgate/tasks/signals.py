"""Exceptions that a handler raises for an outcome other than a failure."""

from __future__ import annotations

from headgate.arguments import parse_wait
from headgate.clock import Duration


class Snooze(Exception):
    """Run this job again after a delay; no attempt is spent and no error is kept.

    `raise Snooze(60)`: seconds, a timedelta, or text like "5m"; less than 0 is 0, and a hundred years is the most.
    """

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"run again in {delay}")
        self.delay: int = parse_wait(delay, "delay", "Snooze")


class RateLimited(Exception):
    """The callee's own limit is reached.

    `raise RateLimited(retry_after=30)` (seconds, a timedelta, or text like "5m"; less than 0 is 0, and a hundred years
    is the most) puts the job back into its lane without spending the attempt, and nothing starts on its buckets until
    then.
    """

    def __init__(self, retry_after: Duration) -> None:
        super().__init__(f"refused for {retry_after}")
        self.retry_after: int = parse_wait(retry_after, "retry_after", "RateLimited")
