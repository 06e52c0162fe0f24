"""The settings of limits and the newest gates, cached and read again when they have changed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headgate.jobs.gating import LIMIT_SUBJECT
from headgate.storage.driver import Transaction
from headgate.storage.live_rules import LimitSetting, LiveRules
from headgate.storage.records import DECLARATION_LIVES
from headgate.storage.stored_rows import RowDecoder


class _Gate(msgspec.Struct):
    task: str
    signature: str


_SETTINGS = RowDecoder(LimitSetting, "setting of limit", scope="member")
_GATES = RowDecoder(_Gate, "gate")


class CachedRules:
    """The rules in force and the newest gates as this process last read them."""

    def __init__(self) -> None:
        self.rules: LiveRules = LiveRules()
        self.gates: Mapping[str, str] = {}
        """The newest gate of each subject."""
        self._revision = 0

    def forget(self) -> None:
        """Read them again before the next use: they may be from a transaction that was rolled back."""
        self._revision = -1

    async def refresh(self, tx: Transaction, revision: int | None = None) -> bool:
        """Read them again unless they have this revision (None: the stored one). Returns whether they were read."""
        if revision is None:
            revision = await tx.value("revision")
        if revision == self._revision:
            return False
        self.rules = LiveRules(await read_settings(tx))
        self.gates = {gate.task: gate.signature for gate in await tx.fetch(_GATES, "gates")}
        self._revision = revision
        return True


async def read_settings(tx: Transaction) -> list[LimitSetting]:
    """Return the settings of limits that were made at run time, and the newest declaration of each limit."""
    return await tx.fetch(_SETTINGS, "settings", subject=LIMIT_SUBJECT, since=tx.now - DECLARATION_LIVES)
