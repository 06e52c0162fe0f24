"""What is set about limits at run time, and which gates are the newest, read again when that has changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import msgspec

from headgate.storage.live_rules import LimitSetting, LiveRules
from headgate.storage.sqlite.procedure_transaction import Places
from headgate.storage.sqlite.statements import fetch
from headgate.storage.stored_rows import RowDecoder

decode_settings = RowDecoder(LimitSetting, "setting of limit", scope="member").decode


class CachedRules:
    """The live rules and the newest gates of a file as this process last read them."""

    def __init__(self) -> None:
        self.rules = LiveRules()
        self.gates: Mapping[str, str] = {}
        """The newest gate of each subject."""
        self.places = Places()
        self._revision = 0

    def forget(self) -> None:
        """Read them again before they are used next: they may be of a transaction that was undone."""
        self._revision = -1

    def refresh(self, connection: sqlite3.Connection, revision: int) -> bool:
        """Read them again unless they are of this revision; whether they were read."""
        if revision == self._revision:
            return False
        self.rules = LiveRules(decode_settings(fetch(connection, "settings")))
        self.gates = msgspec.json.decode(fetch(connection, "gates"), type=dict[str, str])
        self._revision = revision
        return True
