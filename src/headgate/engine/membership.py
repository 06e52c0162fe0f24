"""The membership of a node: its row in the store and its id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from headgate.engine.services import Services
from headgate.storage.records import Beat, NodeControls

Tasks = Mapping[str, Sequence[str]]


class Membership:
    """Joins the store under an id. A node that was declared dead joins again under a new one.

    `controls` is what the node is set to do, and `name` what operators call it; both stay when it joins again. `tasks`
    returns the names of the tasks that its program declares, by queue: the same mapping until they change.
    """

    def __init__(
        self,
        services: Services,
        *,
        name: str,
        controls: NodeControls,
        labels: Set[str],
        tasks: Callable[[], Tasks],
        version: str,
        release: str | None,
    ) -> None:
        self._storage = services.storage
        self.name = name
        self._labels = sorted(labels)
        self._tasks = tasks
        self._stored_tasks: Tasks | None = None
        self._version = version
        self._release = release
        self._clock = services.clock
        self._ids = services.ids
        self.controls = controls
        self.id = self._new_id()

    async def join(self) -> None:
        """Write the row of the node. Raises StorageUnavailable."""
        tasks = self._tasks()
        await self._storage.join(
            self.id,
            self.name,
            controls=self.controls,
            labels=self._labels,
            tasks=tasks,
            version=self._version,
            release=self._release,
        )
        self._stored_tasks = tasks

    async def beat(self, *, lingering: Sequence[str], started_since: int, is_stopping: bool) -> Beat:
        """Renew the lease, as `Store.beat`, and store what the program has declared since the node joined."""
        tasks = self._tasks()
        beat = await self._storage.beat(
            self.id,
            lingering=lingering,
            tasks=None if tasks is self._stored_tasks else tasks,
            started_since=started_since,
            is_stopping=is_stopping,
        )
        if beat.known:
            self._stored_tasks = tasks
        return beat

    def renew_id(self) -> str:
        """Take a new id in place of the dead one and return it; `join` comes next."""
        self.id = self._new_id()
        return self.id

    def _new_id(self) -> str:
        return f"node-{self._ids.unique(self._clock.now())[-12:]}"
