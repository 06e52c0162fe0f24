"""The alerter: checks the conditions of alerts, and sends the messages about them.

Every node that declares an alert runs one. They take turns through the store, so that one of them looks, and each
message is sent by one of them. A message that a dying node was sending is sent again by another, under the same id.
Messages are not jobs: one that says that a queue is stuck must not wait for a slot of a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from headgate.clock import SECOND, Clock, sleep
from headgate.engine.alert_readings import AlertReadings
from headgate.engine.alert_sender import SEND_TIMEOUT, AlertSender
from headgate.engine.bus import EventBus, publish_storage_failure
from headgate.errors import StorageUnavailable
from headgate.jobs.alert import AlertRecord, HeldCondition, next_message
from headgate.jobs.event import AlertFailed, AlertSent
from headgate.jobs.identity import IdSource
from headgate.limits.rule import NEVER
from headgate.storage.store import Store
from headgate.tasks.alert import DeclaredAlert

CHECK_EVERY = 10.0
"""Seconds between two turns of a node."""

TURN = 9 * SECOND
"""The time for which nodes leave an alert alone that another one has looked at: a bit less than the time above."""

SENDING_FOR = round(3 * SEND_TIMEOUT * SECOND)
"""The time after which a message is sent again if its node has not stored its delivery (microseconds)."""

FIRST_RETRY = 10 * SECOND
LONGEST_RETRY = 300 * SECOND


class Alerter:
    """Watches the alerts of an app on one node; `limits_away` returns the limits whose stores the node cannot reach."""

    def __init__(
        self,
        storage: Store,
        alerts: Mapping[str, DeclaredAlert],
        sender: AlertSender,
        *,
        limits_away: Callable[[], Collection[str]],
        clock: Clock,
        bus: EventBus,
        ids: IdSource,
    ) -> None:
        self._storage = storage
        self._alerts = alerts
        self._sender = sender
        self._limits_away = limits_away
        self._clock = clock
        self._bus = bus
        self._ids = ids
        self._sending: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as sending:
            while True:
                await sleep(self._clock, CHECK_EVERY)
                try:
                    turns = await self.look()
                except Exception as error:
                    # What goes wrong with alerts stops no job.
                    publish_storage_failure(self._bus, self._clock, "looking at the conditions of alerts", error)
                    continue
                for name in sorted(turns):
                    # A target that does not answer delays no other, nor the next look.
                    before = self._sending.get(name)
                    if before is None or before.done():
                        self._sending[name] = sending.create_task(self.send(name), name="headgate-alert")

    async def look(self) -> Collection[str]:
        """Store which conditions hold; return the alerts whose turn this node took. Raises StorageUnavailable."""
        readings = AlertReadings(self._storage, self._limits_away(), clock=self._clock, bus=self._bus)
        # Each node says this for itself: the one that has the turn may reach a store that another cannot reach.
        away, _ = await self._held(self._alerts, readings, only_own=True)
        if away:
            await self._storage.note_alerts(away)
        turns = await self._storage.take_alert_turns(self._alerts.keys(), TURN)
        if turns:
            held, unread = await self._held(turns, readings, only_own=False)
            await self._storage.note_alerts(held, ends=turns, unread=unread)
        return turns

    async def _held(
        self, names: Collection[str], readings: AlertReadings, *, only_own: bool
    ) -> tuple[list[HeldCondition], list[tuple[str, str]]]:
        """Return what holds of the conditions that only this node can see, or of the others.

        Also return the alerts and their conditions that cannot be read.
        """
        now = self._clock.now()
        held: list[HeldCondition] = []
        unread: list[tuple[str, str]] = []
        for name in names:
            for condition in self._alerts[name].conditions:
                if (condition.kind == "limit_unavailable") is not only_own:
                    continue
                found = await readings.holding(condition)
                if found is None:
                    unread.append((name, str(condition)))
                    continue
                held += [
                    HeldCondition(self._ids.unique(now), name, str(condition), reading.subject, reading.value)
                    for reading in found
                ]
        return held, unread

    async def send(self, name: str) -> None:
        """Send the due messages of an alert, until one is not delivered: the others would not be either.

        An error in one message, which is published, delays only that message.
        """
        try:
            has_failed = False
            while not has_failed and (due := await self._storage.due_alerts([name])):
                for record in due:
                    try:
                        if not await self._send(self._alerts[name], record):
                            return
                    except StorageUnavailable:
                        raise
                    except Exception as error:
                        has_failed = True
                        publish_storage_failure(self._bus, self._clock, f"sending a message of alert {name}", error)
        except Exception as error:
            publish_storage_failure(self._bus, self._clock, "sending alerts", error)

    async def _send(self, alert: DeclaredAlert, record: AlertRecord) -> bool:
        """Send the next message of an alert unless another node does; return whether to go on with others."""
        if not await self._storage.try_alert(record, self._storage.now() + SENDING_FOR):
            return True
        record = replace(record, tries=record.tries + 1)
        message = next_message(record, str(self._storage))
        error = await self._sender.send(alert, message)
        now, at = self._storage.now(), self._clock.now()
        if error is None:
            await self._storage.alert_tried(record, None, NEVER if alert.repeat is None else now + alert.repeat)
            self._bus.publish(
                AlertSent(
                    at=at, alert=alert.name, alert_id=record.id, number=message.number, state=message.state,
                    text=message.text,
                )
            )  # fmt: skip
            return True
        retry_at = now + min(LONGEST_RETRY, FIRST_RETRY << min(record.tries - 1, 10))
        await self._storage.alert_tried(record, error, retry_at)
        self._bus.publish(
            AlertFailed(
                at=at, alert=alert.name, alert_id=record.id, number=message.number, text=message.text,
                tried=record.tries, error=error, retry_at=retry_at,
            )
        )  # fmt: skip
        return False
