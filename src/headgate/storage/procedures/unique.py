"""Unique keys: at most one job of a task waits under each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.storage.driver import Transaction
from headgate.storage.stored_rows import RowDecoder


class Rival(msgspec.Struct):
    """A job that does not wait, its unique key, and the job that waits under that, if one does."""

    id: str
    task: str
    unique_key: str
    rival: str | None


_RIVALS = RowDecoder(Rival, "job")


async def rivals(tx: Transaction, ids: Sequence[str]) -> list[Rival]:
    """Those of these jobs that have unique keys, by id, and who waits under them."""
    return await tx.fetch(_RIVALS, "unique_rivals", ids=ids) if ids else []
