"""The server's time as a process knows it without asking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.clock import SECOND
from headgate.storage.postgres.server_time import AHEAD, DRIFT, OwnTime, ServerTime
from headgate.testing.manual_clock import ManualClock

HOUR = 3600 * SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def receive(time: ServerTime, clock: ManualClock, server: int, *, ahead: int = 0, took: float = 0.002) -> int:
    """A reply that took so long, in the middle of which the server's clock was read."""
    sent_at = clock.monotonic()
    clock.advance(took)
    return time.observe(sent_at, server, ahead)


def test_server_time_is_estimated_between_two_replies_and_never_ahead_of_the_server(clock: ManualClock) -> None:
    time = ServerTime(clock)
    server = clock.now() + HOUR
    assert receive(time, clock, server + 1000) == 0
    # Read a millisecond before it was received: the server is ahead by then.
    assert time.now() == time.limit_now() == server + 1000
    clock.advance(5)
    assert time.now() == server + 1000 + 5 * SECOND


def test_a_faster_reply_makes_the_estimate_more_exact(clock: ManualClock) -> None:
    time = ServerTime(clock)
    ahead = HOUR
    receive(time, clock, clock.monotonic() + ahead + 250_000, took=0.5)
    assert time.limit_now() == clock.monotonic() + ahead - 250_000
    receive(time, clock, clock.monotonic() + ahead + 1_000, took=0.002)
    assert time.limit_now() == clock.monotonic() + ahead - 1_000


def test_limit_time_is_the_servers_clock_and_what_it_is_ahead(clock: ManualClock) -> None:
    time = ServerTime(clock)
    receive(time, clock, clock.now(), ahead=HOUR, took=0)
    assert time.limit_now() - time.now() == HOUR


@pytest.mark.parametrize("step", [-HOUR, -3 * SECOND, 20_000, 900_000, 3 * SECOND, HOUR])
def test_a_step_of_the_clock_of_the_server_does_not_change_limit_time(clock: ManualClock, step: int) -> None:
    time = ServerTime(clock)
    began = clock.monotonic()
    receive(time, clock, HOUR, took=0)
    clock.advance(10)
    stepped = receive(time, clock, HOUR + clock.monotonic() - began + step, took=0)
    assert abs(stepped - step) <= 20_000
    # The estimate continues; wall time follows the server.
    assert time.limit_now() == HOUR + clock.monotonic() - began
    assert time.now() == HOUR + clock.monotonic() - began + step
    # Made good in the database, it fits again.
    clock.advance(1)
    assert receive(time, clock, HOUR + clock.monotonic() - began + step, ahead=-stepped, took=0) == 0


def test_a_late_reply_is_not_a_step_of_the_clock(clock: ManualClock) -> None:
    time = ServerTime(clock)
    began = clock.monotonic()
    receive(time, clock, HOUR, took=0)
    clock.advance(1)
    # Sent, read immediately by the server, and received half a minute later: this process was busy.
    server = HOUR + clock.monotonic() - began
    assert receive(time, clock, server, took=30) == 0
    assert -100_000 <= time.limit_now() - (HOUR + clock.monotonic() - began) <= 0


def test_limit_time_that_falls_behind_by_less_than_a_second_is_accepted(clock: ManualClock) -> None:
    time = ServerTime(clock)
    began = clock.monotonic()
    receive(time, clock, HOUR, took=0)
    clock.advance(10)
    behind = HOUR + clock.monotonic() - began - 900_000
    assert receive(time, clock, behind, took=0) == 0
    assert time.limit_now() == behind
    # A second later the server's clock is right again: now it runs ahead of that.
    clock.advance(1)
    assert receive(time, clock, behind + SECOND + 900_000, took=0) in range(899_000, 900_001)


@pytest.mark.parametrize("step", [500, 1500])
def test_steps_that_are_too_small_to_correct_do_not_add_up(clock: ManualClock, step: int) -> None:
    time = ServerTime(clock)
    began, ahead, stepped = clock.monotonic(), 0, 0
    receive(time, clock, HOUR, took=0)
    for number in range(1, 101):
        clock.advance(0.1)
        server = HOUR + clock.monotonic() - began + number * step
        stepped = receive(time, clock, server, ahead=ahead, took=0)
        ahead -= stepped
        assert server + ahead - (HOUR + clock.monotonic() - began) <= AHEAD + 10 * SECOND // DRIFT


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 30), st.integers(-3 * SECOND, 3 * SECOND) | st.integers(-3000, 3000)), max_size=30
    ),
    data=st.data(),
)
def test_limit_time_opens_nothing_early_whatever_the_clock_of_the_server_does(
    steps: list[tuple[float, int]], data: st.DataObject
) -> None:
    """No claim uses a later time than the process knew before, continued by its own clock, but for the bound."""
    clock = ManualClock()
    time = ServerTime(clock)
    began, ahead, error, fast = clock.monotonic(), 0, 0, 2000
    known: int | None = None

    def read(took: int) -> int:
        """The limit time of a claim, whose reply took so long; steps of the clock are corrected."""
        nonlocal ahead
        sent_at = clock.monotonic()
        clock.advance(took / SECOND)
        server = HOUR + data.draw(st.integers(sent_at, clock.monotonic())) + error
        stepped = time.observe(sent_at, server, ahead)
        ahead -= stepped
        return server + ahead

    for pause, step in steps:
        error += step
        clock.advance(pause)
        limit_now = read(fast if data.draw(st.booleans()) else data.draw(st.integers(fast, SECOND)))
        if known is not None:
            bound = AHEAD + fast + 2 * (clock.monotonic() - began) // DRIFT
            assert limit_now <= clock.monotonic() + known + bound
        # A fast reply follows, as on a server that is sometimes slow.
        read(fast)
        line = time.limit_now() - clock.monotonic()
        known = line if known is None else min(known, line)


@given(
    drift=st.integers(-99, 99),
    replies=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 3)), min_size=1, max_size=30),
    data=st.data(),
)
def test_an_honest_clock_never_steps_and_limit_time_is_close(
    drift: int, replies: list[tuple[float, float]], data: st.DataObject
) -> None:
    """Whatever the replies take, and with clocks that part by less than 100 µs a second."""
    clock = ManualClock()
    time = ServerTime(clock)
    began = clock.monotonic()

    def server(at: int) -> int:
        return HOUR + (at - began) + (at - began) * drift // 1_000_000

    for pause, took in replies:
        clock.advance(pause)
        sent_at = clock.monotonic()
        clock.advance(took)
        read_at = data.draw(st.integers(sent_at, clock.monotonic()))
        assert time.observe(sent_at, server(read_at), 0) == 0
        known, real = time.limit_now(), server(clock.monotonic())
        assert real - 3 * SECOND - 100_000 <= known <= real + 100_000


def test_own_time_sends_no_request(clock: ManualClock) -> None:
    time = OwnTime(clock)
    clock.advance(5)
    assert (time.now(), time.limit_now()) == (clock.now(), clock.now())
    clock.step_wall(-3600)
    assert time.limit_now() == clock.now() + HOUR
    assert time.observe(0, 12345, 0) == 0
    assert time.own() == (time.now(), time.limit_now())
