"""The lease of this node, by its own clock."""

from __future__ import annotations


class OwnLease:
    """Until when a node may rely on its own lease, by its own monotonic clock.

    Other nodes recover its jobs when its beat has not changed for `lease` microseconds, counted at the earliest from
    when the last successful heartbeat was *sent*. The node stops relying on the lease a sixth of it earlier: attempts
    that it cancels then have that long to end. A lease that was never renewed does not hold.
    """

    def __init__(self, lease: int) -> None:
        self._relied_on_for = lease - lease // 6
        self._sent_at: int | None = None
        # The node relies on the lease until this instant; 0 if it was never renewed.
        self.ends_at = 0

    def renew(self, sent_at: int) -> None:
        """Renew the lease after the success of a heartbeat that was sent at `sent_at`."""
        self._sent_at = sent_at
        self.ends_at = sent_at + self._relied_on_for

    def holds(self, now: int) -> bool:
        """Return whether no other node can have declared this one dead."""
        return now < self.ends_at

    def unrenewed_for(self, now: int) -> int:
        """Return the microseconds since the last successful heartbeat was sent."""
        return 0 if self._sent_at is None else now - self._sent_at
