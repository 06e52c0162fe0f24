"""Alerts: conditions that hold, and the messages about them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headgate.jobs.alert import HOLDS_FOR, AlertRecord, HeldCondition
from headgate.jobs.job import storable
from headgate.storage.driver import Transaction
from headgate.storage.stored_rows import RowDecoder

KEPT_FOR = 86400 * 1_000_000
"""How long an alert is kept that no node looks at, and a lost node (microseconds)."""

_ALERTS = RowDecoder(AlertRecord, "alert")


async def take_alert_turns(tx: Transaction, alerts: Collection[str], every: int) -> set[str]:
    """As `Store.take_alert_turns`."""
    turns = [(alert, tx.now) for alert in sorted(alerts)]
    return set(await tx.values("take_alert_turns", turns=turns, before=tx.now - every))


async def note_alerts(
    tx: Transaction, held: Sequence[HeldCondition], ends: Collection[str], unread: Collection[tuple[str, str]]
) -> None:
    """As `Store.note_alerts`."""
    if held:
        # In one order, so that nodes that do it at once wait for each other in turn.
        rows = sorted(held, key=lambda each: (each.alert, each.condition, each.subject))
        await tx.execute("note_alerts", held=rows, now=tx.now)
    if ends:
        before = tx.now - HOLDS_FOR
        await tx.execute("end_alerts", alerts=sorted(ends), unread=sorted(unread), before=before, now=tx.now)


async def due_alerts(tx: Transaction, alerts: Collection[str], count: int) -> list[AlertRecord]:
    """As `Store.due_alerts`."""
    return await tx.fetch(_ALERTS, "due_alerts", alerts=sorted(alerts), now=tx.now, count=count)


async def alerts(tx: Transaction, count: int) -> list[AlertRecord]:
    """As `Store.alerts`."""
    return await tx.fetch(_ALERTS, "alerts", count=count)


async def try_alert(tx: Transaction, record: AlertRecord, until: int) -> bool:
    """As `Store.try_alert`."""
    return await tx.execute("try_alert", until=until, **_same_try(record)) == 1


async def alert_tried(tx: Transaction, record: AlertRecord, error: str | None, send_at: int) -> bool:
    """As `Store.alert_tried`."""
    same_try = _same_try(record)
    if error is not None:
        changed = await tx.execute("alert_failed", error=storable(error), send_at=send_at, **same_try)
    elif record.next_state == "resolved":
        changed = await tx.execute("remove_alert", **same_try)
    else:
        changed = await tx.execute("alert_sent", now=tx.now, send_at=send_at, **same_try)
    return changed == 1


async def evict_alerts(tx: Transaction, count: int) -> int:
    """Delete alerts and lost nodes of more than a day ago. Returns how many."""
    before = tx.now - KEPT_FOR
    evicted = await tx.execute("evict_alerts", before=before, count=count)
    return evicted + await tx.execute("evict_lost_nodes", before=before, count=count)


def _same_try(record: AlertRecord) -> dict[str, object]:
    return {"id": record.id, "sent": record.sent, "tries": record.tries}
