"""Leases: this node's and those of the others, on this node's monotonic clock."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.storage.records import Peer


class OwnLease:
    """The end of a node's own lease by its own monotonic clock: how long the node may rely on it.

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


class PeerLeases:
    """Holds when each node's beat last grew.

    A node is dead when its process has ended, or when its beat has not changed for `lease` microseconds of the
    observer's own monotonic time, so no clocks are compared. If the observer itself could not write for a while (a long
    write transaction stops every heartbeat), it counts anew.
    """

    def __init__(self, lease: int, interval: int) -> None:
        self._lease = lease
        self._interval = interval
        self._seen: dict[str, tuple[int, int]] = {}
        self._last_own_beat: int | None = None

    def own_beat(self, now: int) -> None:
        """Note that the observer has renewed its own lease."""
        if self._last_own_beat is not None and now - self._last_own_beat > 2 * self._interval:
            self._seen = {node: (beat, now) for node, (beat, _) in self._seen.items()}
        self._last_own_beat = now

    def dead(self, nodes: Sequence[Peer], own: str, now: int) -> list[Peer]:
        """Return the nodes that are dead at `now`; recover each with the `beat` returned here."""
        dead: list[Peer] = []
        current: dict[str, tuple[int, int]] = {}
        stale = self._last_own_beat is None or now - self._last_own_beat > 2 * self._interval
        for node in nodes:
            if node.id == own:
                continue
            beat, since = self._seen.get(node.id, (-1, now))
            if beat != node.beat:
                since = now
            current[node.id] = (node.beat, since)
            if node.is_gone or (not stale and now - since > self._lease):
                dead.append(node)
        self._seen = current
        return dead
