"""The alert sender: a target whose last call goes on is not called again."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headgate import AlertMessage
from headgate.engine.alert_sender import SEND_TIMEOUT, AlertSender
from headgate.jobs.alert import message_for_test
from headgate.tasks.alert import AlertFunction, DeclaredAlert, declared_alert
from headgate.testing.manual_clock import ManualClock
from tests.until import patient


def alert_of(target: AlertFunction, name: str) -> DeclaredAlert:
    return declared_alert(target, "node_lost", name, None, None)


async def send(sender: AlertSender, alert: DeclaredAlert, clock: ManualClock, begun: asyncio.Event) -> str | None:
    """Send a message, and let the time pass that the target has once it is called."""
    message = message_for_test(alert.name, alert.conditions, id="1", now=clock.now(), store="memory://")
    sending = asyncio.create_task(sender.send(alert, message))
    calling = asyncio.create_task(begun.wait())
    await asyncio.wait([sending, calling], return_when=asyncio.FIRST_COMPLETED)
    calling.cancel()
    clock.advance(SEND_TIMEOUT)
    return await sending


async def test_a_plain_function_that_does_not_return_is_called_once() -> None:
    clock, loop = ManualClock(), asyncio.get_running_loop()
    sender = AlertSender(None, clock)
    calls: list[AlertMessage] = []
    others: list[AlertMessage] = []
    begun, returns, has_returned = asyncio.Event(), threading.Event(), asyncio.Event()

    def hang(message: AlertMessage) -> None:
        calls.append(message)
        loop.call_soon_threadsafe(begun.set)
        returns.wait(patient(20))
        loop.call_soon_threadsafe(has_returned.set)

    alert = alert_of(hang, "hangs")
    try:
        assert await send(sender, alert, clock, begun) == "no answer within 30 s"
        for _ in range(3):
            assert await send(sender, alert, clock, begun) == "its last call has not returned"
        # Another alert is sent as ever.
        assert await send(sender, alert_of(others.append, "other"), clock, asyncio.Event()) is None
        assert (len(calls), len(others)) == (1, 1)
    finally:
        returns.set()
    await has_returned.wait()
    while (error := await send(sender, alert, clock, asyncio.Event())) is not None:
        # The thread has called back and is about to end.
        assert error == "its last call has not returned"
    assert len(calls) == 2


async def test_an_async_function_that_ignores_its_cancellation_is_called_once() -> None:
    clock = ManualClock()
    sender = AlertSender(None, clock)
    calls: list[AlertMessage] = []
    begun, returns = asyncio.Event(), asyncio.Event()

    async def hang(message: AlertMessage) -> None:
        calls.append(message)
        begun.set()
        while not returns.is_set():
            try:
                await returns.wait()
            except asyncio.CancelledError:
                continue

    alert = alert_of(hang, "hangs")
    assert await send(sender, alert, clock, begun) == "no answer within 30 s"
    assert await send(sender, alert, clock, begun) == "its last call has not returned"
    returns.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await send(sender, alert, clock, asyncio.Event()) is None
    assert len(calls) == 2


@pytest.mark.parametrize("error", [ValueError("a\x00b"), ValueError("a\ud800b")])
async def test_an_error_of_a_function_is_a_text_that_databases_can_store(error: Exception) -> None:
    clock = ManualClock()

    async def fail(message: AlertMessage) -> None:
        raise error

    said = await send(AlertSender(None, clock), alert_of(fail, "fails"), clock, asyncio.Event())
    assert said in ("ValueError: a\\x00b", "ValueError: a\\ud800b")
