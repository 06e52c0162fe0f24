"""What replaced jobs ask for no more, noted in the transaction that replaces them and given back after it.

Where several clients write, a waiting job may be replaced in a transaction that its user holds open for minutes. It
locks that job and nothing else: a permit that the job held, or the cost for which a bucket was closed, is noted by an
insertion. Whoever claims next after the commit gives it back, with the buckets locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headgate.jobs.job import Draw
from headgate.storage.driver import Transaction
from headgate.storage.permits import PermitRelease, leaving_holders
from headgate.storage.procedures.buckets import lock_buckets
from headgate.storage.procedures.lanes import reopen_behind
from headgate.storage.procedures.permits import take_from
from headgate.storage.stored_rows import RowDecoder

TAKEN_AT_ONCE = 1000


class ReplacementNote(msgspec.Struct):
    """The permits that a replaced job gives back, by bucket and holder; of a costly one, the lane that it stood in.

    A bucket may have been closed for the cost, among all that the lane draws on.
    """

    permits: list[tuple[Draw, str]]
    lane: str | None
    draws: tuple[Draw, ...]
    id: int = 0


_NOTES = RowDecoder(ReplacementNote, "replacement note")


def note_of(given: PermitRelease | None, lane: str | None, draws: tuple[Draw, ...]) -> ReplacementNote | None:
    """What is to be noted of a job, if it gives anything back."""
    leaving = leaving_holders([] if given is None else [given])
    if not leaving and lane is None:
        return None
    permits = [(draw, holder) for draw, holders in leaving.items() for holder in holders]
    return ReplacementNote(permits, lane, draws)


async def keep_notes(tx: Transaction, notes: Sequence[ReplacementNote]) -> None:
    """Note it in somebody else's transaction."""
    await tx.execute("keep_replacement_notes", notes=notes)


async def read_notes(tx: Transaction) -> list[ReplacementNote]:
    """What is noted and has not been given back."""
    return await tx.fetch(_NOTES, "replacement_notes")


async def give_back_noted(tx: Transaction) -> None:
    """Give back what is noted, in a transaction of its own. What somebody else is giving back is left to him."""
    await give_back(tx, await tx.fetch(_NOTES, "take_replacement_notes", count=TAKEN_AT_ONCE))


async def give_back(tx: Transaction, notes: Sequence[ReplacementNote]) -> None:
    """Whoever waits for what is given back is looked at by the next claim."""
    leaving = holders_in(notes)
    await lock_buckets(tx, [*leaving, *(draw for note in notes if note.lane is not None for draw in note.draws)])
    await take_from(tx, leaving)
    await reopen_behind(tx, [note.lane for note in notes if note.lane is not None])


def holders_in(notes: Iterable[ReplacementNote]) -> dict[Draw, list[str]]:
    """Who leaves each bucket."""
    leaving: dict[Draw, list[str]] = {}
    for note in notes:
        for draw, holder in note.permits:
            leaving.setdefault(draw, []).append(holder)
    return leaving
