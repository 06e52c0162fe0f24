"""The gates of releases: which are the newest, and which backlogs still have to be moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headgate.storage.driver import Transaction
from headgate.storage.stored_rows import RowDecoder


class _Newest(msgspec.Struct):
    task: str
    is_done: bool


class NotedGates(NamedTuple):
    """Subjects for which no newer gate is alive, each with whether its backlog has to be moved; whether any is new."""

    to_move: Mapping[str, bool]
    has_changed: bool


_NEWEST = RowDecoder(_Newest, "gate")


async def note_gates(tx: Transaction, gates: Mapping[str, str], lives: int) -> NotedGates:
    """As `Store.note_gates`. If the newest gates have changed, `await_claims` has to follow."""
    own = list(gates.items())
    await tx.execute("gates_changed", own=own)
    await tx.execute("note_gates", own=own, now=tx.now, lives=lives)
    has_changed = await tx.execute("newest_changed", tasks=list(gates), now=tx.now, lives=lives) > 0
    if has_changed:
        await tx.execute("next_revision")
    newest = await tx.fetch(_NEWEST, "newest_gates", own=own)
    return NotedGates({gate.task: not gate.is_done for gate in newest}, has_changed)


async def declared_subjects(tx: Transaction, lives: int) -> list[str]:
    """As `Store.declared_subjects`."""
    return await tx.values("live_gates", now=tx.now, lives=lives)


async def gates_done(tx: Transaction, gates: Mapping[str, str]) -> None:
    """As `Store.gates_done`."""
    await tx.execute("gates_done", own=list(gates.items()))


async def await_claims(tx: Transaction) -> None:
    """Return when all claims that began before have ended."""
    await tx.values("lock_nodes")
