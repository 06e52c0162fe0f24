"""The membership of a node: its row in the store and its id."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.clock import Clock
from headgate.jobs.identity import IdSource
from headgate.storage.store import Store


class Membership:
    """Joins the store under an id. A node that was declared dead joins again under a new one."""

    def __init__(
        self, storage: Store, *, name: str, queues: Mapping[str, int], version: str, clock: Clock, ids: IdSource
    ) -> None:
        self._storage = storage
        self._name = name
        self._queues = queues
        self._version = version
        self._clock = clock
        self._ids = ids
        self.id = self._new_id()

    async def join(self) -> None:
        """Write the row of the node. Raises StorageUnavailable."""
        await self._storage.join(self.id, self._name, queues=self._queues, version=self._version)

    def renew_id(self) -> str:
        """Take a new id in place of the dead one and return it; `join` comes next."""
        self.id = self._new_id()
        return self.id

    def _new_id(self) -> str:
        return f"node-{self._ids.next(self._clock.now())[-12:]}"
