"""Permits and costs of replaced jobs, noted in the transaction that replaces them and given back after it.

Where several clients write, a waiting job may be replaced in a transaction that its user keeps open for minutes. That
transaction locks the job and nothing else: a permit that the job held, or the cost for which a bucket was closed, is
noted in a new row. The next claim after the commit gives it back, with the buckets locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headgate.jobs.job import BucketRef
from headgate.storage.driver import Transaction
from headgate.storage.procedures.buckets import PermitRelease, leaving_holders, lock_buckets, remove_holders
from headgate.storage.procedures.lanes import reopen_behind
from headgate.storage.stored_rows import RowDecoder

TAKEN_AT_ONCE = 1000


class ReplacementNote(msgspec.Struct):
    """The permits that a replaced job gives back, by bucket and holder; for a job with costs also its lane.

    For those costs, one of the buckets of the lane may have been closed.
    """

    permits: list[tuple[BucketRef, str]]
    lane: str | None
    buckets: tuple[BucketRef, ...]
    id: int = 0


_NOTES = RowDecoder(ReplacementNote, "replacement note")


def note_of(given: Sequence[PermitRelease], lane: str | None, buckets: tuple[BucketRef, ...]) -> ReplacementNote | None:
    """Return the note for a replaced job; None if it gives nothing back."""
    leaving = leaving_holders(given)
    if not leaving and lane is None:
        return None
    permits = [(ref, holder) for ref, holders in leaving.items() for holder in holders]
    return ReplacementNote(permits, lane, buckets)


async def keep_notes(tx: Transaction, notes: Sequence[ReplacementNote]) -> None:
    """Store notes, in the transaction of a user."""
    await tx.execute("keep_replacement_notes", notes=notes)


async def read_notes(tx: Transaction) -> list[ReplacementNote]:
    """Return the notes whose contents have not been given back."""
    return await tx.fetch(_NOTES, "replacement_notes")


async def give_back_noted(tx: Transaction) -> None:
    """Give back what is noted, in a transaction of its own; notes that another transaction has taken are left out."""
    await give_back(tx, await tx.fetch(_NOTES, "take_replacement_notes", count=TAKEN_AT_ONCE))


async def give_back(tx: Transaction, notes: Sequence[ReplacementNote]) -> None:
    """Give back the contents of notes, and let the next claim visit the lanes that wait for them."""
    leaving = holders_in(notes)
    await lock_buckets(tx, [*leaving, *(ref for note in notes if note.lane is not None for ref in note.buckets)])
    await remove_holders(tx, leaving)
    await reopen_behind(tx, [note.lane for note in notes if note.lane is not None])


def holders_in(notes: Iterable[ReplacementNote]) -> dict[BucketRef, list[str]]:
    """Return the holders that leave each bucket."""
    leaving: dict[BucketRef, list[str]] = {}
    for note in notes:
        for ref, holder in note.permits:
            leaving.setdefault(ref, []).append(holder)
    return leaving
