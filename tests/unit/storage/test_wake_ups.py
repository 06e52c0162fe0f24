"""Notifications of PostgreSQL: their content, how often they are sent, and which processes they wake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from headgate.storage.postgres.wake_ups import SEND_EVERY, SEND_EVERY_BUSY, WakeUps
from headgate.testing.manual_clock import ManualClock


class Notified(WakeUps):
    """Keeps what it would send."""

    def __init__(self, clock: ManualClock) -> None:
        database: Any = SimpleNamespace(schema="headgate")
        super().__init__(database, None, clock, self._woken)
        self.sent: list[str] = []
        self.queues: list[Collection[str] | None] = []

    def _woken(self, queues: Collection[str] | None) -> None:
        self.queues.append(queues)

    async def _notify(self, payload: str) -> None:
        self.sent.append(payload)

    def receive(self, payload: str) -> None:
        self._receive(None, 0, self.channel, payload)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def wake_ups(clock: ManualClock) -> AsyncIterator[Notified]:
    notified = Notified(clock)
    await notified.open(listens=False)
    yield notified
    await notified.close()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_notification_says_whether_only_endings_changed(wake_ups: Notified, clock: ManualClock) -> None:
    wake_ups.notify(())
    await settle()
    wake_ups.notify(())
    wake_ups.notify()
    wake_ups.notify(())
    await settle()
    clock.advance(SEND_EVERY)
    await settle()
    endings, change = wake_ups.sent
    assert endings == f"{change} endings"


async def test_a_process_that_starts_to_listen_lets_no_other_look_for_jobs(clock: ManualClock) -> None:
    """The fault: each start, and each new connection that listens, woke all workers for all queues."""
    starting, other = Notified(clock), Notified(clock)
    listening = asyncio.create_task(starting._listen_once(mock.Mock(add_listener=mock.AsyncMock()), asyncio.Event()))
    await settle()
    (payload,) = starting.sent
    starting.receive(payload)
    await settle()
    assert starting.is_listening
    other.receive(payload)
    assert other.queues == [[]]
    listening.cancel()


async def test_where_much_changes_less_is_sent(wake_ups: Notified, clock: ManualClock) -> None:
    for _ in range(100):
        wake_ups.notify()
    await settle()
    wake_ups.notify()
    await settle()
    clock.advance(SEND_EVERY)
    await settle()
    assert len(wake_ups.sent) == 1
    clock.advance(SEND_EVERY_BUSY - SEND_EVERY)
    await settle()
    assert len(wake_ups.sent) == 2


async def test_notifications_of_other_processes_wake_this_one_and_its_own_do_not(wake_ups: Notified) -> None:
    wake_ups.notify()
    await settle()
    (own,) = wake_ups.sent
    for payload in (own, f"{own} endings", "1-abc endings", "1-abc", ""):
        wake_ups.receive(payload)
    assert wake_ups.queues == [[], None, None]


@pytest.mark.parametrize(
    ("changes", "received"),
    [
        ([{"mail"}, {"video", "mail"}], ["mail", "video"]),
        ([{"mail"}, None], None),
        ([None, {"mail"}], None),
        ([{"x" * 5_000}], None),
        ([{'a "quoted" one', "ü\n"}], ['a "quoted" one', "ü\n"]),
    ],
)
async def test_a_notification_names_the_queues_of_all_changes_if_they_are_known(
    wake_ups: Notified, clock: ManualClock, changes: list[set[str] | None], received: list[str] | None
) -> None:
    for queues in changes:
        wake_ups.notify(queues)
    await settle()
    wake_ups.notify({"next"})
    clock.advance(SEND_EVERY)
    await settle()
    other = Notified(clock)
    for payload in wake_ups.sent:
        other.receive(payload)
    assert other.queues == [received, ["next"]]


async def test_a_notification_that_is_not_understood_wakes_every_queue(wake_ups: Notified) -> None:
    for payload in ("", "another", "another [1]", "another {", "another []x"):
        wake_ups.receive(payload)
    assert wake_ups.queues == [None] * 5
