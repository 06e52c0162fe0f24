"""What a handler raises to say something other than "I failed"."""

from __future__ import annotations

from headgate.clock import Duration, microseconds


class Snooze(Exception):
    """Run this job again after a while; no attempt is spent and no error is kept.

    `raise Snooze(60)`: seconds, or a timedelta.
    """

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"run again in {delay}")
        self.delay: int = max(0, microseconds(delay))


class RateLimited(Exception):
    """The callee said that its own limit is reached.

    `raise RateLimited(retry_after=30)` (seconds, or a timedelta) puts the job back into its lane without spending the
    attempt, and lets nothing start on its buckets until then.
    """

    def __init__(self, retry_after: Duration) -> None:
        super().__init__(f"refused for {retry_after}")
        self.retry_after: int = max(0, microseconds(retry_after))
