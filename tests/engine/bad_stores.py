"""Stores in memory that fail in one way, as long as they are told to."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors import StorageUnavailable
from headgate.jobs.lifecycle import Ending
from headgate.storage.memory import MemoryStorage
from headgate.storage.protocol import Recovered


class FullStorage(MemoryStorage):
    """Cannot write how jobs end."""

    is_full = False

    async def finish(self, node: str, endings: Sequence[Ending]) -> Sequence[bool]:
        if self.is_full:
            raise StorageUnavailable("the disk is full")
        return await super().finish(node, endings)


class DeafStorage(MemoryStorage):
    """Does not hear that a node leaves."""

    is_deaf = False

    async def leave(self, node: str) -> Recovered:
        return Recovered() if self.is_deaf else await super().leave(node)
