"""The membership of a node: its row in the store and its id."""

from __future__ import annotations

from collections.abc import Set

from headgate.clock import Clock
from headgate.jobs.identity import IdSource
from headgate.storage.records import NodeSetting
from headgate.storage.store import Store


class Membership:
    """Joins the store under an id. A node that was declared dead joins again under a new one.

    `setting` is what the node is set to do, and `name` what operators call it; both stay when it joins again.
    """

    def __init__(
        self,
        storage: Store,
        *,
        name: str,
        setting: NodeSetting,
        labels: Set[str],
        version: str,
        release: str | None,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._storage = storage
        self.name = name
        self._labels = sorted(labels)
        self._version = version
        self._release = release
        self._clock = clock
        self._ids = ids
        self.setting = setting
        self.id = self._new_id()

    async def join(self) -> None:
        """Write the row of the node. Raises StorageUnavailable."""
        await self._storage.join(
            self.id,
            self.name,
            setting=self.setting,
            labels=self._labels,
            version=self._version,
            release=self._release,
        )

    def renew_id(self) -> str:
        """Take a new id in place of the dead one and return it; `join` comes next."""
        self.id = self._new_id()
        return self.id

    def _new_id(self) -> str:
        return f"node-{self._ids.unique(self._clock.now())[-12:]}"
