"""The limit sets of releases: which are the newest, and which backlogs still have to be moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from headgate.jobs.limit_sets import LIMIT_SUBJECT
from headgate.storage.driver import Transaction
from headgate.storage.procedures.limits import reopen_limit
from headgate.storage.stored_rows import RowDecoder


class _Newest(msgspec.Struct):
    task: str
    is_done: bool


class NotedLimitSets(NamedTuple):
    """The subjects without a newer live limit set, each with whether its backlog has to move; those that changed."""

    to_move: Mapping[str, bool]
    changed: Sequence[str]


_NEWEST = RowDecoder(_Newest, "limit_set")


async def note_limit_sets(tx: Transaction, limit_sets: Mapping[str, str], lives: int) -> NotedLimitSets:
    """As `Store.note_limit_sets`. If the newest limit sets have changed, `await_claims` has to follow."""
    own = list(limit_sets.items())
    await tx.execute("limit_sets_changed", own=own)
    await tx.execute("set_limit_sets_back", tasks=list(limit_sets), now=tx.now, lives=lives)
    await tx.execute("note_limit_sets", own=own, now=tx.now, lives=lives)
    changed = sorted(set(await tx.values("newest_changed", tasks=list(limit_sets), now=tx.now, lives=lives)))
    newest = await tx.fetch(_NEWEST, "newest_limit_sets", own=own)
    if changed:
        await tx.execute("next_revision")
        # Last: nothing is to be prepared while buckets are locked.
        await _reopen(tx, changed)
    return NotedLimitSets({limit_set.task: not limit_set.is_done for limit_set in newest}, changed)


async def limit_sets_done(tx: Transaction, limit_sets: Mapping[str, str]) -> None:
    """Store that the backlog of these subjects has been moved to these limit sets, and no longer to others."""
    await tx.execute("limit_sets_done", own=list(limit_sets.items()))


async def await_claims(tx: Transaction, changed: Sequence[str]) -> None:
    """Return when all claims that began before have ended; then limits of the `changed` subjects are visited again."""
    await tx.values("lock_nodes")
    # One of these claims may have closed a bucket by the rule before.
    await _reopen(tx, changed)


async def _reopen(tx: Transaction, changed: Sequence[str]) -> None:
    """Let the next claims visit the lanes that wait for limits of these subjects, and find anew when they open."""
    for subject in changed:
        if subject.startswith(LIMIT_SUBJECT):
            await reopen_limit(tx, subject.removeprefix(LIMIT_SUBJECT))
