"""What a handler raises to say something other than "I failed"."""

from __future__ import annotations

from headgate.arguments import parse_wait
from headgate.clock import Duration


class Snooze(Exception):
    """Run this job again after a while; no attempt is spent and no error is kept.

    `raise Snooze(60)`: seconds, a timedelta, or text like "5m"; less than 0 is 0, and a hundred years is the most.
    """

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"run again in {delay}")
        self.delay: int = parse_wait(delay, "delay", "Snooze")


class RateLimited(Exception):
    """The callee said that its own limit is reached.

    `raise RateLimited(retry_after=30)` (seconds, a timedelta, or text like "5m"; less than 0 is 0, and a hundred years
    is the most) puts the job back into its lane without spending the attempt, and lets nothing start on its buckets
    until then.
    """

    def __init__(self, retry_after: Duration) -> None:
        super().__init__(f"refused for {retry_after}")
        self.retry_after: int = parse_wait(retry_after, "retry_after", "RateLimited")
