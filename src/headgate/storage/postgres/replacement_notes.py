"""What replaced jobs ask for no more, noted in the transaction that replaces them and given back after it.

A waiting job may be replaced in a transaction that its user holds open for minutes. It locks that job and nothing else:
a permit that the job held, or the cost for which a bucket was closed, is noted by an insertion. Whoever claims next
after the commit gives it back, with the buckets locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from headgate.jobs.job import Draw
from headgate.storage.json_text import as_json
from headgate.storage.permits import Given, leaving_holders
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.postgres.rows import decode_draws
from headgate.storage.procedures.buckets import lock_buckets
from headgate.storage.procedures.lanes import reopen_behind
from headgate.storage.procedures.permits import take_from
from headgate.storage.stored_rows import note_unreadable

TAKEN_AT_ONCE = 1000

_decode_permits = msgspec.json.Decoder(list[tuple[Draw, str]]).decode


class ReplacementNote(NamedTuple):
    """The permits that a replaced job gives back, by bucket and holder; of a costly one, the lane that it stood in.

    A bucket may have been closed for the cost, among all that the lane draws on.
    """

    permits: Sequence[tuple[Draw, str]]
    lane: str | None
    draws: Sequence[Draw]


def note_of(given: Given | None, lane: str | None, draws: Sequence[Draw]) -> ReplacementNote | None:
    """What is to be noted of a job, if it gives anything back."""
    leaving = leaving_holders([] if given is None else [given])
    if not leaving and lane is None:
        return None
    permits = [(draw, holder) for draw, holders in leaving.items() for holder in holders]
    return ReplacementNote(permits, lane, draws)


async def keep_notes(session: Session, notes: Sequence[ReplacementNote]) -> None:
    """Note it in somebody else's transaction."""
    await session.execute(
        "keep_replacement_notes",
        permits=[as_json(note.permits) for note in notes],
        lanes=[note.lane for note in notes],
        draws=[as_json(note.draws) for note in notes],
    )


async def read_notes(session: Session) -> list[ReplacementNote]:
    """What is noted and has not been given back."""
    return [_read(row) for row in await session.fetch("replacement_notes")]


async def give_back_noted(session: Session, limit_now: int) -> None:
    """Give back what is noted, in a transaction of its own. What somebody else is giving back is left to him."""
    async with session.transaction():
        notes = [_read(row) for row in await session.fetch("take_replacement_notes", count=TAKEN_AT_ONCE)]
        await give_back(session, notes, limit_now)


async def give_back(session: Session, notes: Sequence[ReplacementNote], limit_now: int) -> None:
    """Whoever waits for what is given back is looked at by the next claim."""
    leaving = holders_in(notes)
    tx = PostgresTransaction(session, limit_now, limit_now)
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


def _read(row: tuple[int, str, str | None, str]) -> ReplacementNote:
    id, permits, lane, draws = row
    try:
        return ReplacementNote(_decode_permits(permits), lane, decode_draws(draws))
    except (msgspec.DecodeError, UnicodeError) as error:
        # Nothing can be given back for it, and nobody else is to wait for that.
        note_unreadable("replacement note", str(id), f"what it gives back: {error}")
        return ReplacementNote((), None, ())
