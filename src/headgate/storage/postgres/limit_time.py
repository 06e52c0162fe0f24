"""Following the server's clock, and taking its steps out of limit time."""

from __future__ import annotations

from headgate.clock import Clock
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.server_time import StoreTime

FOLLOW_EVERY = 5.0
"""Seconds between two looks at the server's clock by a process that need not ask for anything else."""


async def follow_clock(session: Session, time: StoreTime, clock: Clock) -> None:
    """Look at the server's clock."""
    sent_at = clock.monotonic()
    row = await session.row("clock")
    stepped = time.heard(sent_at, row["now"], row["ahead"])
    if stepped:
        await correct_limit_time(session, time, row["ahead"], stepped)


async def correct_limit_time(session: Session, time: StoreTime, ahead: int, stepped: int) -> None:
    """Take the step of the server's clock out of limit time, unless another node has.

    If that would take limit time back behind where others have seen it, it is this process that was wrong about it: its
    own clock has stood still, as that of a machine does which is moved. Then it believes the store.
    """
    if await session.execute("shift_limit_time", seen=ahead, shift=-stepped):
        return
    row = await session.row("clock")
    if row["ahead"] == ahead:
        time.believe()
