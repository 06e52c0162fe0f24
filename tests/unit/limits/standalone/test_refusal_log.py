"""Limiters without an app log what they refuse, in few lines; grants are not logged."""

from __future__ import annotations

import logging

import pytest

from headgate import Concurrency, Limiter, RateGate, RateLimit
from headgate.limits.standalone.refusal_log import RECHECK, WINDOW
from headgate.testing.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The sentences of the lines, without their fields."""
    return [record.getMessage().partition(" [")[0] for record in caplog.records if record.name == "headgate.limiter"]


def test_the_first_refusal_is_logged_at_once_and_later_ones_together(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate.limiter")
    limiter = Limiter(RateLimit("1/h", name="mails"), clock=clock).sync
    assert limiter.try_acquire("acme")
    assert lines(caplog) == []
    for _ in range(4):
        assert not limiter.try_acquire("acme")
    assert lines(caplog) == ["limiter mails refused 1 start, the latest for key 'acme'"]
    (record,) = caplog.records
    assert record.getMessage().endswith('[refused limiter="limiter mails" key=acme count=1]')
    assert record.__dict__["headgate"] == {"limiter": "limiter mails", "key": "acme", "count": 1}
    clock.advance(WINDOW / 1_000_000)
    assert limiter.try_acquire("globex")
    assert not limiter.acquire("globex", timeout=0)
    assert lines(caplog)[1:] == ["limiter mails refused 4 starts, the latest for key 'globex'"]


async def test_each_way_to_be_refused_is_logged(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate.limiter")
    limiter = Limiter(RateLimit("1/h"), clock=clock)
    assert await limiter.try_acquire()
    step = WINDOW / 1_000_000
    assert not await limiter.try_acquire()
    clock.advance(step)
    assert not await limiter.acquire(timeout=0)
    clock.advance(step)
    with pytest.raises(TimeoutError):
        async with limiter.hold(timeout=0):
            pass
    clock.advance(step)
    with pytest.raises(TimeoutError), limiter.sync.hold(timeout=0):
        pass
    assert lines(caplog) == [f"limiter {limiter.limit.rule.describe()} refused 1 start"] * 4


def test_a_permit_that_is_not_free_is_a_refusal(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate.limiter")
    limiter = Limiter(Concurrency(1), clock=clock).sync
    with limiter.hold("door"):
        assert not limiter.try_acquire("door")
    assert lines(caplog) == ["limiter 1 at once refused 1 start, the latest for key 'door'"]


async def test_a_gate_logs_waits_that_end_without_a_pass(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate.limiter")
    gate = RateGate("1/h", clock=clock)
    assert gate.wait(timeout=0)
    assert not gate.wait(timeout=0)
    assert not await gate.wait_async(timeout=0)
    clock.advance(WINDOW / 1_000_000)
    assert not await gate.wait_async(timeout=0)
    assert lines(caplog) == ["rate gate 1/h refused 1 start", "rate gate 1/h refused 2 starts"]


def test_a_level_that_is_lowered_while_refusals_come_takes_effect_within_a_second(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headgate.limiter")
    limiter = Limiter(RateLimit("1/h"), clock=clock).sync
    assert limiter.try_acquire()
    for _ in range(3):
        assert not limiter.try_acquire()
    caplog.set_level(logging.INFO, "headgate.limiter")
    clock.advance(RECHECK / 1_000_000)
    assert not limiter.try_acquire()
    assert len(lines(caplog)) == 1
