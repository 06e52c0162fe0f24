"""The gates of releases: which are the newest, and which backlogs still have to be moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from headgate.jobs.gating import LIMIT_SUBJECT
from headgate.storage.driver import Transaction
from headgate.storage.procedures.limits import reopen_limit
from headgate.storage.stored_rows import RowDecoder


class _Newest(msgspec.Struct):
    task: str
    is_done: bool


class NotedGates(NamedTuple):
    """Subjects for which no newer gate is alive, each with whether its backlog has to be moved; those that changed."""

    to_move: Mapping[str, bool]
    changed: Sequence[str]


_NEWEST = RowDecoder(_Newest, "gate")


async def note_gates(tx: Transaction, gates: Mapping[str, str], lives: int) -> NotedGates:
    """As `Store.note_gates`. If the newest gates have changed, `await_claims` has to follow."""
    own = list(gates.items())
    await tx.execute("gates_changed", own=own)
    await tx.execute("set_gates_back", tasks=list(gates), now=tx.now, lives=lives)
    await tx.execute("note_gates", own=own, now=tx.now, lives=lives)
    changed = await tx.values("newest_changed", tasks=list(gates), now=tx.now, lives=lives)
    newest = await tx.fetch(_NEWEST, "newest_gates", own=own)
    if changed:
        await tx.execute("next_revision")
        # Last: nothing is to be prepared while buckets are locked.
        await _reopen(tx, changed)
    return NotedGates({gate.task: not gate.is_done for gate in newest}, sorted(set(changed)))


async def gates_done(tx: Transaction, gates: Mapping[str, str]) -> None:
    """Store that the backlog of these subjects has been moved to these gates, and no longer to others."""
    await tx.execute("gates_done", own=list(gates.items()))


async def await_claims(tx: Transaction, changed: Sequence[str]) -> None:
    """Return when all claims that began before have ended; then limits of the `changed` subjects are visited again."""
    await tx.values("lock_nodes")
    # One of these claims may have closed a bucket by the rule before.
    await _reopen(tx, changed)


async def _reopen(tx: Transaction, changed: Sequence[str]) -> None:
    """Let the next claims visit the lanes that wait for limits of these subjects, and find anew when they open."""
    for subject in sorted(set(changed)):
        if subject.startswith(LIMIT_SUBJECT):
            await reopen_limit(tx, subject.removeprefix(LIMIT_SUBJECT))
