"""What is promised of alerts: each begins once, each message is sent by one node at a time, and none is forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.alert import HOLDS_FOR, LOST_FOR, AlertRecord, HeldCondition
from headgate.limits.rule import NEVER
from headgate.storage.procedures.alerts import KEPT_FOR
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, beat_of

TURN = 9 * SECOND
HOUR = 3600 * SECOND


def held(id: str, subject: str = "mail", value: float | None = 61.5, *, alert: str = "ops") -> HeldCondition:
    return HeldCondition(id, alert, "queue_lag > 60", subject, value)


async def tried(storage: Store, record: AlertRecord) -> AlertRecord:
    """Begin to send the next message."""
    assert await storage.try_alert(record, storage.now() + 90 * SECOND)
    return replace(record, tries=record.tries + 1)


async def due(storage: Store) -> Sequence[AlertRecord]:
    return await storage.due_alerts(["ops"])


class AlertsConformance(Conformance):
    async def test_one_node_at_a_time_has_the_turn_of_an_alert(self, store_user: StoreUser, clock: ManualClock) -> None:
        storage = store_user.storage
        assert await storage.take_alert_turns(["ops", "dev"], TURN) == {"ops", "dev"}
        assert await storage.take_alert_turns(["ops"], TURN) == set()
        clock.advance(8)
        assert await storage.take_alert_turns(["new", "ops"], TURN) == {"new"}
        clock.advance(1)
        assert await storage.take_alert_turns(["new", "ops"], TURN) == {"ops"}

    async def test_a_condition_that_holds_begins_one_alert_per_subject(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        began = clock.now()
        await storage.note_alerts([held("a1"), held("a2", "sync", None), held("a3", alert="dev")])
        clock.advance(10)
        await storage.note_alerts([held("a4", value=72.0)], ends=["ops"])
        found = {each.id: each for each in await storage.alerts()}
        assert found["a1"] == AlertRecord(
            id="a1", alert="ops", condition="queue_lag > 60", subject="mail", value=72.0, started_at=began,
            seen_at=clock.now(), ended_at=None, sent=0, sent_at=None, tries=0, send_at=began, error=None,
        )  # fmt: skip
        assert found.keys() == {"a1", "a2", "a3"}
        assert (found["a2"].value, found["a2"].seen_at) == (None, began)
        assert [each.id for each in await due(storage)] == ["a1", "a2"]

    async def test_an_alert_ends_when_its_condition_has_not_held_for_a_minute(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        await storage.note_alerts([held("a1"), held("a2", alert="dev")])
        clock.advance(HOLDS_FOR / SECOND - 1)
        await storage.note_alerts([], ends=["ops"])
        assert [each.ended_at for each in await storage.alerts()] == [None, None]
        clock.advance(1)
        await storage.note_alerts([], ends=["ops"])
        assert [each.ended_at for each in await storage.alerts()] == [clock.now(), None]
        # It begins anew only after its end was told.
        await storage.note_alerts([held("a3")])
        (first,) = await due(storage)
        assert (first.id, first.next_state) == ("a1", "firing")
        assert await storage.alert_tried(await tried(storage, first), None, clock.now() + HOUR)
        (end,) = await due(storage)
        assert (end.id, end.next_state, end.sent_at) == ("a1", "resolved", clock.now())
        assert await storage.alert_tried(await tried(storage, end), None, clock.now() + HOUR)
        await storage.note_alerts([held("a4")])
        assert [each.id for each in await storage.alerts()] == ["a2", "a4"]

    async def test_a_message_is_sent_by_one_node_until_that_one_has_to_be_dead(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        await storage.note_alerts([held("a1")])
        (record,) = await due(storage)
        trying = await tried(storage, record)
        assert not await storage.try_alert(record, clock.now() + HOUR)
        assert await due(storage) == []
        clock.advance(90)
        (again,) = await due(storage)
        second = await tried(storage, again)
        # What became of the first try does not count any more.
        assert not await storage.alert_tried(trying, None, clock.now() + HOUR)
        assert not await storage.alert_tried(trying, "too late", clock.now())
        assert await storage.alert_tried(second, "500 no", clock.now() + 20 * SECOND)
        (failed,) = await storage.alerts()
        assert (failed.tries, failed.error, failed.send_at) == (2, "500 no", clock.now() + 20 * SECOND)
        assert await due(storage) == []
        clock.advance(20)
        (last,) = await due(storage)
        assert await storage.alert_tried(await tried(storage, last), None, clock.now() + HOUR)
        (sent,) = await storage.alerts()
        assert (sent.sent, sent.tries, sent.error, sent.send_at) == (1, 0, None, clock.now() + HOUR)

    async def test_an_error_may_be_any_text(self, store_user: StoreUser, clock: ManualClock) -> None:
        storage = store_user.storage
        await storage.note_alerts([held("a1")])
        (record,) = await due(storage)
        assert await storage.alert_tried(await tried(storage, record), "502 \x1f\x8b\x00 \ud800", clock.now())
        assert [each.error for each in await storage.alerts()] == ["502 \x1f\x8b\\x00 \\ud800"]

    async def test_an_alert_does_not_end_while_its_condition_cannot_be_read(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        lost = HeldCondition("a2", "ops", "node_lost", "blue", None)
        await storage.note_alerts([held("a1"), lost, held("a3", alert="dev")])
        clock.advance(HOLDS_FOR / SECOND)
        await storage.note_alerts([], ends=["ops", "dev"], unread=[("ops", "queue_lag > 60"), ("ops", "waiting > 1")])
        ended = {each.id: each.ended_at for each in await storage.alerts()}
        assert ended == {"a1": None, "a2": clock.now(), "a3": clock.now()}
        clock.advance(10)
        await storage.note_alerts([], ends=["ops"])
        assert {each.id: each.ended_at for each in await storage.alerts()}["a1"] == clock.now()

    async def test_an_alert_that_ends_between_two_messages_is_told_at_once(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        await storage.note_alerts([held("a1")])
        (record,) = await due(storage)
        await storage.alert_tried(await tried(storage, record), None, clock.now() + HOUR)
        assert await due(storage) == []
        clock.advance(60)
        await storage.note_alerts([], ends=["ops"])
        assert [(each.next_state, each.send_at) for each in await due(storage)] == [("resolved", clock.now())]

    async def test_an_alert_ends_in_time_after_the_clock_was_set_back(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        clock.step_wall(6 * 3600)
        await storage.note_alerts([held("a1"), held("a2", "sync")])
        for record, again in zip(await due(storage), (HOUR, None), strict=True):
            send_at = NEVER if again is None else clock.now() + again
            assert await storage.alert_tried(await tried(storage, record), None, send_at)
        clock.step_wall(-6 * 3600)
        began = clock.now()
        await storage.note_alerts([], ends=["ops"])
        assert [(each.started_at, each.sent_at, each.seen_at, each.send_at) for each in await storage.alerts()] == [
            (began, began, began, began + HOUR), (began, began, began, NEVER)
        ]  # fmt: skip
        clock.advance(60)
        await storage.note_alerts([], ends=["ops"])
        assert [each.ended_at for each in await storage.alerts()] == [clock.now()] * 2
        assert [each.next_state for each in await due(storage)] == ["resolved"] * 2

    async def test_a_message_that_was_not_delivered_is_tried_in_time_after_the_clock_was_set_back(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        clock.step_wall(6 * 3600)
        await storage.note_alerts([held("a1")])
        (record,) = await due(storage)
        assert await storage.alert_tried(await tried(storage, record), "502 no", clock.now() + 10 * SECOND)
        clock.step_wall(-6 * 3600)
        # It holds still.
        await storage.note_alerts([held("a2")])
        clock.advance(10)
        (again,) = await due(storage)
        assert (again.id, again.next_state) == ("a1", "firing")

    async def test_an_end_that_was_not_delivered_is_tried_in_time_after_the_clock_was_set_back(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        clock.step_wall(6 * 3600)
        await storage.note_alerts([held("a1")])
        (record,) = await due(storage)
        assert await storage.alert_tried(await tried(storage, record), None, NEVER)
        clock.advance(60)
        await storage.note_alerts([], ends=["ops"])
        clock.step_wall(-6 * 3600)
        await storage.note_alerts([], ends=["ops"])
        ended_at = clock.now()
        clock.advance(60)
        (end,) = await due(storage)
        assert (end.next_state, end.ended_at) == ("resolved", ended_at)

    async def test_a_node_that_is_found_dead_is_noted_for_a_day(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        await storage.join("node-b", "blue")
        await storage.join("node-c", "green")
        await storage.leave("node-c")
        since = clock.now()
        clock.advance(1)
        assert await storage.recover("node-b", await beat_of(store_user, "node-b")) is not None
        assert await storage.lost_names(since) == ["blue"]
        assert await storage.lost_names(clock.now()) == []
        clock.advance(KEPT_FOR / SECOND)
        await storage.evict()
        assert await storage.lost_names(since) == []

    async def test_a_node_that_was_lost_while_the_clock_was_ahead_is_lost_for_no_longer(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: its alert lasted for the six hours by which the clock was set back."""
        storage = store_user.storage
        await storage.join("node-b", "blue")
        clock.step_wall(6 * 3600)
        assert await storage.recover("node-b", await beat_of(store_user, "node-b")) is not None
        clock.step_wall(-6 * 3600)
        await storage.evict()
        assert await storage.lost_names(clock.now() - LOST_FOR) == ["blue"]
        clock.advance(LOST_FOR / SECOND)
        assert await storage.lost_names(clock.now() - LOST_FOR) == []

    async def test_an_alert_that_no_code_looks_at_is_deleted_after_a_day(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        await storage.note_alerts([held("a1"), held("a2", "sync")])
        clock.advance(KEPT_FOR / SECOND)
        await storage.note_alerts([held("a3", "sync")])
        await storage.evict()
        assert [each.id for each in await storage.alerts()] == ["a2"]
