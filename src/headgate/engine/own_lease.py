"""The lease of this node: until when it may rely on what it holds."""

from __future__ import annotations


class OwnLease:
    """Until when a node may rely on its own lease, by its own monotonic clock.

    Other nodes take its jobs when its beat has stood still for `lease` microseconds, which cannot be sooner than that
    long after the last heartbeat that succeeded was *sent*. The node stops relying on it a sixth of the lease earlier:
    what it cancels then has that long to end. A lease that was never renewed does not hold.
    """

    def __init__(self, lease: int) -> None:
        self._relied_on_for = lease - lease // 6
        self._sent_at: int | None = None
        # From this instant on the node cannot rely on it; 0 if it was never renewed.
        self.ends_at = 0

    def renew(self, sent_at: int) -> None:
        """A heartbeat that was sent at `sent_at` has succeeded."""
        self._sent_at = sent_at
        self.ends_at = sent_at + self._relied_on_for

    def holds(self, now: int) -> bool:
        """Whether nobody can have taken this node for dead."""
        return now < self.ends_at

    def unrenewed_for(self, now: int) -> int:
        """Microseconds since the last heartbeat that succeeded was sent."""
        return 0 if self._sent_at is None else now - self._sent_at
