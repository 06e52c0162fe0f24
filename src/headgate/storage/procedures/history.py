"""Charts: what a store counts itself, because no node does."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.jobs.history import KEPT_FOR
from headgate.storage.driver import Transaction
from headgate.storage.json_text import as_json

_LENGTHS = as_json(list(KEPT_FOR))


async def note_unrun(tx: Transaction, ids: Sequence[str]) -> None:
    """Count jobs that have become final in this transaction, and that no attempt counts."""
    if ids:
        await tx.execute("note_unrun", ids=ids, now=tx.now, lengths=_LENGTHS)
