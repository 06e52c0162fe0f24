"""What is set about limits at run time, read again when it has changed."""

from __future__ import annotations

import sqlite3

from headgate.storage.live_rules import LimitSetting, LiveRules
from headgate.storage.sqlite.statements import fetch
from headgate.storage.stored_rows import RowDecoder

decode_settings = RowDecoder(LimitSetting, "setting of limit", scope="member").decode


class CachedRules:
    """The live rules of a file as this process last read them."""

    def __init__(self) -> None:
        self.rules = LiveRules()
        self._revision = 0

    def forget(self) -> None:
        """Read them again before they are used next: they may be of a transaction that was undone."""
        self._revision = -1

    def refresh(self, connection: sqlite3.Connection, revision: int) -> None:
        """Read them again unless they are of this revision."""
        if revision != self._revision:
            self.rules = LiveRules(decode_settings(fetch(connection, "settings")))
            self._revision = revision
