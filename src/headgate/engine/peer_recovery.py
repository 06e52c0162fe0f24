"""Peer recovery: recovers the jobs of dead nodes."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.engine.membership import Membership
from headgate.engine.peer_leases import PeerLeases
from headgate.engine.services import Services
from headgate.jobs.event import NodeLost
from headgate.storage.records import Peer


class PeerRecovery:
    """Checks the leases of all other nodes. Every node does, so no leader is needed."""

    def __init__(self, services: Services, membership: Membership, peers: PeerLeases) -> None:
        self._storage = services.storage
        self._membership = membership
        self._peers = peers
        self._callback_runner = services.callback_runner
        self._clock = services.clock
        self._bus = services.bus

    async def recover_dead(self, nodes: Sequence[Peer]) -> None:
        """Recover the jobs of the dead among these nodes. Raises StorageUnavailable."""
        for dead in self._peers.dead(nodes, self._membership.id, self._clock.monotonic()):
            recovered = await self._storage.recover(dead.id, dead.beat)
            if recovered is not None:
                self._callback_runner.submit_on_error(recovered.poisonous)
                self._bus.publish(
                    NodeLost(
                        at=self._clock.now(),
                        node=dead.id,
                        returned=len(recovered.returned),
                        poisonous=len(recovered.poisonous),
                        completed=len(recovered.completed),
                    )
                )
