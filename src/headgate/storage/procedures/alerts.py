"""Alerts: conditions that hold, and the messages about them."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from headgate.jobs.alert import HOLDS_FOR, AlertRecord, HeldCondition
from headgate.jobs.job import storable
from headgate.limits.rule import NEVER
from headgate.storage.driver import Transaction
from headgate.storage.stored_rows import RowDecoder

KEPT_FOR = 86400 * 1_000_000
"""How long an alert is kept that no node looks at, and a lost node (microseconds)."""

LOST_KEPT = 1000
"""How many lost nodes are kept."""

_ALERTS = RowDecoder(AlertRecord, "alert")


async def take_alert_turns(tx: Transaction, alerts: Collection[str], every: int) -> Set[str]:
    """Take and return the alerts that no node has taken for `every` microseconds; the caller checks them."""
    turns = [(alert, tx.now) for alert in sorted(alerts)]
    return set(await tx.values("take_alert_turns", turns=turns, before=tx.now - every))


async def note_alerts(
    tx: Transaction,
    held: Sequence[HeldCondition],
    *,
    ends: Collection[str] = (),
    unread: Collection[tuple[str, str]] = (),
) -> None:
    """Store that these conditions hold; each that is new begins an alert.

    Of the alerts in `ends` those end whose condition has not held for a minute, unless it is in `unread`: alerts
    and those of their conditions that may hold or not. One that has ended begins again only after its end was
    delivered. Times from before the clock was set back are corrected first.
    """
    watched = sorted({*ends, *(each.alert for each in held)})
    await tx.execute("set_back_alerts", alerts=watched, now=tx.now, never=NEVER)
    if held:
        # In one order, so that nodes that do it at once wait for each other in turn.
        rows = sorted(held, key=lambda each: (each.alert, each.condition, each.subject))
        await tx.execute("note_alerts", held=rows, now=tx.now)
    if ends:
        before = tx.now - HOLDS_FOR
        await tx.execute("end_alerts", alerts=sorted(ends), unread=sorted(unread), before=before, now=tx.now)


async def due_alerts(tx: Transaction, alerts: Collection[str], count: int = 100) -> Sequence[AlertRecord]:
    """Return those of these alerts whose next message is due, the longest due first."""
    return await tx.fetch(_ALERTS, "due_alerts", alerts=sorted(alerts), now=tx.now, count=count)


async def alerts(tx: Transaction, count: int = 1000) -> Sequence[AlertRecord]:
    """Return the alerts that last or whose end is not delivered, the oldest first."""
    return await tx.fetch(_ALERTS, "alerts", count=count)


async def try_alert(tx: Transaction, record: AlertRecord, until: int) -> bool:
    """Store that this process sends the next message of an alert as it was read; False if another process does.

    If its answer is not stored, the message is due again at the instant `until`. Its next form has one more try.
    """
    return await tx.execute("try_alert", until=until, **_same_try(record)) == 1


async def alert_tried(tx: Transaction, record: AlertRecord, error: str | None, send_at: int) -> bool:
    """Store whether the message was delivered (no `error`); the next one, or the same again, is due at `send_at`.

    After a delivery the end of an alert is due at once, and an alert whose end was delivered is deleted. False if
    the alert has changed meanwhile.
    """
    same_try = _same_try(record)
    if error is not None:
        changed = await tx.execute("alert_failed", error=storable(error), send_at=send_at, **same_try)
    elif record.next_state == "resolved":
        changed = await tx.execute("remove_alert", **same_try)
    else:
        changed = await tx.execute("alert_sent", now=tx.now, send_at=send_at, **same_try)
    return changed == 1


async def evict_alerts(tx: Transaction, count: int) -> int:
    """Delete alerts and lost nodes of more than a day ago, and lost nodes beyond the last 1,000. Returns how many.

    Lost nodes from before the clock was set back were lost now.
    """
    before = tx.now - KEPT_FOR
    evicted = await tx.execute("evict_alerts", before=before, count=count)
    await tx.execute("set_back_lost_nodes", now=tx.now)
    return evicted + await tx.execute("evict_lost_nodes", before=before, kept=LOST_KEPT, count=count)


def _same_try(record: AlertRecord) -> dict[str, object]:
    return {"id": record.id, "sent": record.sent, "tries": record.tries}
