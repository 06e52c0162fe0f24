"""Following the server's clock, and removing its steps from limit time."""

from __future__ import annotations

from headgate.clock import Clock
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.server_time import StoreTime

FOLLOW_EVERY = 5.0
"""Seconds between two readings of the server's clock by a process that runs no other statements."""


async def follow_clock(session: Session, time: StoreTime, clock: Clock) -> None:
    """Read the server's clock."""
    sent_at = clock.monotonic()
    row = await session.row("clock")
    stepped = time.observe(sent_at, row["now"], row["ahead"])
    if stepped:
        await correct_limit_time(session, time, row["ahead"], stepped)


async def correct_limit_time(session: Session, time: StoreTime, ahead: int, stepped: int) -> None:
    """Remove the step of the server's clock from limit time, unless another node has.

    If that would set limit time back behind a value that others have read, this process was wrong: its own clock has
    stood still, as on a machine that is moved. Then it uses the stored limit time.
    """
    if await session.execute("shift_limit_time", seen=ahead, shift=-stepped):
        return
    row = await session.row("clock")
    if row["ahead"] == ahead:
        time.reset()
