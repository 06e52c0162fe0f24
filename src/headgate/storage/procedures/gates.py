"""The gates of releases: by which of them jobs are started, and which backlog has still to be moved."""

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
    """The subjects of which no newer gate lives, each with whether its backlog is to be moved; and if any is new."""

    to_move: Mapping[str, bool]
    has_changed: bool


_NEWEST = RowDecoder(_Newest, "gate")


async def note_gates(tx: Transaction, gates: Mapping[str, str], lives: int) -> NotedGates:
    """As `Store.note_gates`. Where the newest gates have changed, `await_claims` has to follow."""
    own = list(gates.items())
    await tx.execute("gates_changed", own=own)
    await tx.execute("note_gates", own=own, now=tx.now, lives=lives)
    has_changed = await tx.execute("newest_changed", tasks=list(gates), now=tx.now, lives=lives) > 0
    if has_changed:
        await tx.execute("next_revision")
    newest = await tx.fetch(_NEWEST, "newest_gates", own=own)
    return NotedGates({gate.task: not gate.is_done for gate in newest}, has_changed)


async def gates_done(tx: Transaction, gates: Mapping[str, str]) -> None:
    """As `Store.gates_done`."""
    await tx.execute("gates_done", own=list(gates.items()))


async def await_claims(tx: Transaction) -> None:
    """Return once no node is in the middle of a claim that began before."""
    await tx.values("lock_nodes")
