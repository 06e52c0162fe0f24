"""Leases: which nodes are dead, judged by each observer on its own clock, and how long a node may rely on its own."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.storage.protocol import NodeRecord


class OwnLease:
    """Until when a node may rely on its own lease, by its own monotonic clock.

    Other nodes take its jobs when its beat has stood still for `lease` microseconds, which cannot be sooner than that
    long after the last heartbeat that succeeded was *sent*. The node stops relying on it a sixth of the lease earlier:
    what it cancels then has that long to end. A lease that was never renewed does not hold.
    """

    def __init__(self, lease: int) -> None:
        self._relied_on_for = lease - lease // 6
        self._sent_at: int | None = None

    def renew(self, sent_at: int) -> None:
        """A heartbeat that was sent at `sent_at` has succeeded."""
        self._sent_at = sent_at

    @property
    def ends_at(self) -> int:
        """From this instant on the node cannot rely on it; 0 if it was never renewed."""
        return 0 if self._sent_at is None else self._sent_at + self._relied_on_for

    def holds(self, now: int) -> bool:
        """Whether nobody can have taken this node for dead."""
        return now < self.ends_at

    def unrenewed_for(self, now: int) -> int:
        """Microseconds since the last heartbeat that succeeded was sent."""
        return 0 if self._sent_at is None else now - self._sent_at


class LeaseWatch:
    """Remembers when each node's beat last grew.

    A node is dead when its process is gone, or when its beat has stood still for `lease` microseconds of the observer's
    own monotonic time, so no clocks are compared. If the observer itself could not write for a while (a long write
    transaction of somebody stops every heartbeat), it begins to count anew.
    """

    def __init__(self, lease: int, interval: int) -> None:
        self._lease = lease
        self._interval = interval
        self._seen: dict[str, tuple[int, int]] = {}
        self._last_own_beat: int | None = None

    def own_beat(self, now: int) -> None:
        """The observer has renewed its own lease."""
        if self._last_own_beat is not None and now - self._last_own_beat > 2 * self._interval:
            self._seen = {node: (beat, now) for node, (beat, _) in self._seen.items()}
        self._last_own_beat = now

    def dead(self, nodes: Sequence[NodeRecord], own: str, now: int) -> list[NodeRecord]:
        """Those of the nodes that are dead at `now`; recover each with the beat it was judged by."""
        dead: list[NodeRecord] = []
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
