"""What is set about limits at run time, and which gates are the newest, read again when that has changed."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.storage.live_rules import LimitSetting, LiveRules
from headgate.storage.postgres.database import Session


class CachedRules:
    """The live rules and the newest gates of a database as this process last read them."""

    def __init__(self) -> None:
        self.rules = LiveRules()
        self.gates: Mapping[str, str] = {}
        """The newest gate of each subject."""
        self._revision = 0

    async def refresh(self, session: Session, revision: int | None = None) -> None:
        """Read them again unless they are of this revision (None: of whichever holds)."""
        if revision is None:
            revision = await session.value("revision")
        if revision != self._revision:
            self.rules = LiveRules(await read_settings(session))
            self.gates = dict(await session.fetch("gates"))
            self._revision = revision


async def read_settings(session: Session) -> list[LimitSetting]:
    """Everything that is set."""
    return [LimitSetting(*row) for row in await session.fetch("settings")]
