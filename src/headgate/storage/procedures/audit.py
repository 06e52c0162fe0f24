"""The log of what people did."""

from __future__ import annotations

from msgspec.structs import asdict

from headgate.jobs.audit import Deed
from headgate.storage.driver import Transaction


async def keep_deed(tx: Transaction, deed: Deed | None) -> None:
    """Record what somebody did, in the transaction that does it; None is recorded nowhere."""
    if deed is not None:
        await tx.execute("keep_deed", now=tx.now, **asdict(deed.cut()))
