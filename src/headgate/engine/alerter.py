"""The alerter: checks the conditions of alerts, and sends the messages about them.

Every node that declares an alert runs one. They take turns through the store, so that one of them looks, and each
message is sent by one of them. A message that a dying node was sending is sent again by another, under the same id.
Messages are not jobs: one that says that a queue is stuck must not wait for a slot of a queue.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import assert_never

from msgspec.structs import replace

from headgate.clock import SECOND, sleep
from headgate.engine.alert_sender import SEND_TIMEOUT, AlertSender
from headgate.engine.services import Services, WithServices
from headgate.errors import StorageUnavailable
from headgate.jobs.alert import LOST_FOR, AlertRecord, Condition, HeldCondition, Reading, next_message
from headgate.jobs.event import AlertFailed, AlertSent
from headgate.jobs.history import ALL, KEPT_FOR, step_at
from headgate.limits.rule import NEVER
from headgate.schedules.schedule import LATE
from headgate.tasks.alert import DeclaredAlert

CHECK_EVERY = 10.0
"""Seconds between two turns of a node."""

TURN = 9 * SECOND
"""The time for which nodes leave an alert alone that another one has looked at: a bit less than the time above."""

SENDING_FOR = round(3 * SEND_TIMEOUT * SECOND)
"""The time after which a message is sent again if its node has not stored its delivery (microseconds)."""

SEEN_WITHIN = 40 * SECOND
"""How long ago a failure may be that no look has seen (microseconds). Its count is stored within 20 seconds, and nodes
look every ten, or after 20 if the one that looked has died."""

FIRST_RETRY = 10 * SECOND
LONGEST_RETRY = 300 * SECOND


class Alerter(WithServices):
    """Watches alerts on one node. `limits_away` returns the limits whose stores the node cannot reach."""

    def __init__(
        self,
        services: Services,
        alerts: Mapping[str, DeclaredAlert],
        sender: AlertSender,
        limits_away: Callable[[], Collection[str]],
    ) -> None:
        super().__init__(services)
        self._services = services
        self._alerts = alerts
        self._sender = sender
        self._limits_away = limits_away
        self._sending: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as sending:
            while True:
                await sleep(self._clock, CHECK_EVERY)
                try:
                    turns = await self.look()
                except Exception as error:
                    # What goes wrong with alerts stops no job.
                    self._publish_failure("looking at the conditions of alerts", error)
                    continue
                for name in sorted(turns):
                    # A target that does not answer delays no other, nor the next look.
                    before = self._sending.get(name)
                    if before is None or before.done():
                        self._sending[name] = sending.create_task(self.send(name), name="headgate-alert")

    async def look(self) -> Collection[str]:
        """Store which conditions hold; return the alerts whose turn this node took. Raises StorageUnavailable."""
        readings = AlertReadings(self._services, self._limits_away())
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
                        self._publish_failure(f"sending a message of alert {name}", error)
        except Exception as error:
            self._publish_failure("sending alerts", error)

    async def _send(self, alert: DeclaredAlert, record: AlertRecord) -> bool:
        """Send the next message of an alert unless another node does; return whether to go on with others."""
        if not await self._storage.try_alert(record, self._storage.now() + SENDING_FOR):
            return True
        record = replace(record, tries=record.tries + 1)
        message = next_message(record, str(self._storage))
        with self._registry.hooks.call_context():
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


class AlertReadings(WithServices):
    """The readings of one moment. `limits_away` are the limits whose stores this node cannot reach."""

    def __init__(self, services: Services, limits_away: Collection[str]) -> None:
        super().__init__(services)
        self._limits_away = limits_away
        self._known: dict[object, Sequence[Reading] | None] = {}

    async def holding(self, condition: Condition) -> Sequence[Reading] | None:
        """Return the subjects for which the condition holds; None if they cannot be read, which is published."""
        is_failures = condition.kind == "failures"
        about = (condition.kind, condition.subject, condition.period) if is_failures else condition.kind
        if about not in self._known:
            try:
                self._known[about] = await self._read(condition)
            except Exception as error:
                # The count of a large backlog may take too long, which is no reason to miss a lost node.
                self._publish_failure(f"reading {condition.kind} for alerts", error)
                self._known[about] = None
        readings = self._known[about]
        return None if readings is None else condition.holding(readings)

    async def _read(self, condition: Condition) -> Sequence[Reading]:
        storage, now = self._storage, self._storage.now()
        match condition.kind:
            case "queue_lag":
                queues = await storage.queues()
                return [
                    Reading(queue.queue, (now - queue.ready_at) / SECOND)
                    for queue in queues
                    if queue.ready_at is not None
                ]
            case "waiting":
                waiting = Counter[str]()
                for each in await storage.views():
                    if each.view in ("ready", "throttled"):
                        waiting[each.queue] += each.jobs
                return [Reading(queue, jobs) for queue, jobs in waiting.items()]
            case "failures":
                return [await self._failures(condition.subject, condition.period or 0, now)]
            case "node_lost":
                return [Reading(name) for name in await storage.lost_names(now - LOST_FOR)]
            case "schedule_overdue":
                # Of the schedules of any task: which of them this node could fire does not matter.
                overdue = await storage.overdue_schedules(frozenset(), before=now - LATE)
                return [Reading(record.name) for record in overdue]
            case "limit_unavailable":
                return [Reading(limit) for limit in sorted(self._limits_away)]
        assert_never(condition.kind)

    async def _failures(self, task: str | None, period: int, now: int) -> Reading:
        # The shortest steps that are kept for so long.
        step = min(
            length for length, kept in KEPT_FOR.items() if kept * SECOND >= SEEN_WITHIN + _touched(period, length)
        )
        ends = range(step_at(now - SEEN_WITHIN, step), now + 1, step * SECOND)
        since = ends[0] + step * SECOND - _touched(period, step)
        failed = Counter[int]()
        for name in [ALL] if task is None else (task, *self._registry.tasks[task].aliases):
            for each in await self._storage.jobs_history(step, ALL, name, since):
                failed[each.at] += each.failed
        return Reading(task or "", most_failed(failed, ends, period, step))


def most_failed(failed: Mapping[int, int], ends: Sequence[int], period: int, step: int) -> int:
    """Return the most failures within `period` of the times that end in one of the steps that begin at `ends`.

    `failed` has the failures of each step, by its beginning. The first step of such a time, and the last, count as a
    whole. So it is never too few, and failures that are less than two steps further apart may be counted together.
    """
    length = _touched(period, step)
    return max(sum(many for at, many in failed.items() if end - length < at <= end) for end in ends)


def _touched(period: int, step: int) -> int:
    """Return how many microseconds the steps of `step` seconds last that a time of `period` microseconds can touch."""
    return (-(-period // (step * SECOND)) + 1) * step * SECOND
