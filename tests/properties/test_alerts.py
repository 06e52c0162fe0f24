"""Alerts under chance: nodes die, receivers fail and replies are lost, and what was told still makes sense.

Also the counts of failures, whichever instants they fall on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import AlertMessage, Headgate, RetryPolicy
from headgate.clock import SECOND
from headgate.engine.alert_sender import AlertSender
from headgate.engine.alerter import Alerter, most_failed
from headgate.jobs.history import step_at
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.tasks.alert import declared_alert
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, client_of

NODES = 3
SUBJECTS = ("blue", "green")

TROUBLE = 1500
"""Seconds in which conditions come and go, and nodes and receivers fail."""

CALM = 900
"""Seconds after which all is told, when nothing fails: the longest retry, and a message of a dead node."""


class Conditions(MemoryStorage):
    """A store in which nodes are lost as a test says."""

    lost: frozenset[str] = frozenset()

    async def lost_names(self, since: int) -> Sequence[str]:
        return sorted(self.lost)


@pytest.mark.parametrize("seed", range(6))
def test_what_was_told_makes_sense_whatever_fails(seed: int) -> None:
    random = Random(seed)
    told: list[AlertMessage] = []
    begins = dict.fromkeys(SUBJECTS, 0)

    async def main(clock: VirtualClock) -> None:
        store = Conditions(clock)
        await store.open()
        is_calm = False

        async def receive(message: AlertMessage) -> None:
            chance = 1.0 if is_calm else random.random()
            if chance < 0.2:
                raise ConnectionError("refused")
            if chance < 0.3:
                await asyncio.sleep(100)
            told.append(message)
            if chance < 0.4:
                raise ConnectionError("the reply was lost")

        alert = declared_alert(receive, "node_lost", "ops", 120, None)
        services = client_of(app_on(store, clock=clock, random=random)).services

        def start() -> asyncio.Task[None]:
            return asyncio.create_task(Alerter(services, {"ops": alert}, AlertSender(None, clock), set).run())

        nodes = [start() for _ in range(NODES)]
        ended_at = dict.fromkeys(SUBJECTS, -1000.0)
        while clock.monotonic() < TROUBLE * 1e6:
            await asyncio.sleep(random.uniform(1, 60))
            subject = random.choice(SUBJECTS)
            if subject in store.lost:
                ended_at[subject] = clock.monotonic() / 1e6
            elif clock.monotonic() / 1e6 - ended_at[subject] > 20:
                # While nodes die, they look less often, so a minute without a sight is less in fact.
                begins[subject] += 1
            store.lost ^= {subject}
            if random.random() < 0.4:
                at = random.randrange(NODES)
                nodes[at].cancel()
                await asyncio.wait([nodes[at]])
                nodes[at] = start()
        is_calm = True
        await asyncio.sleep(CALM)
        for subject in SUBJECTS:
            last = next((each.state for each in reversed(told) if each.subject == subject), None)
            assert last == ("firing" if subject in store.lost else "resolved" if begins[subject] and last else None)
            assert last is not None or subject not in store.lost
        stored = await store.alerts()
        assert {each.subject for each in stored} == store.lost
        assert all(each.error is None for each in stored)
        for node in nodes:
            node.cancel()
        await asyncio.wait(nodes)
        await store.close()

    run_virtual(main, seed=seed)
    for subject in SUBJECTS:
        once = list({each.id: each for each in told if each.subject == subject}.values())
        alerts = list(dict.fromkeys(each.alert_id for each in once))
        # One alert after the other: each from its first message to its end, and the last may last.
        assert [each.alert_id for each in once] == sorted((each.alert_id for each in once), key=alerts.index)
        for id in alerts:
            messages = [each for each in once if each.alert_id == id]
            *before, last = [each.number for each in messages]
            assert before == list(range(1, len(messages)))
            # The end has the number of the message before it if the reply to that one was lost.
            assert last in (len(messages), max(1, len(messages) - 1))
            assert [each.state for each in messages[:-1]] == ["firing"] * (len(messages) - 1)
            assert messages[-1].state == "resolved" or id == alerts[-1]
        # What comes and goes within a minute is one alert.
        assert len(alerts) <= begins[subject]


# --------------------------------------------------------------------------------------------------- failures


# Each covers all offsets to the steps of the history in five; the gate tries three phases of each period.
@pytest.mark.parametrize(
    ("phase", "period"),
    [
        pytest.param(phase, period, marks=() if phase in tried else pytest.mark.nightly)
        for period, tried in ((10, (0, 3, 8)), (25, (1, 4, 7)))
        for phase in range(10)
    ],
)
def test_failures_within_the_period_are_told_whenever_they_come(phase: int, period: int) -> None:
    """`phase` is how far into a step of the history the nodes look."""
    random = Random(phase * 100 + period)

    async def main(clock: VirtualClock) -> None:
        messages: list[AlertMessage] = []
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))
        app.alert(messages.append, on=f"failures > 1/{period}s", name="ops")

        @app.task
        async def fails() -> None:
            raise ValueError

        await asyncio.sleep(phase)
        async with app:
            for offset in range(0, 10, 2):
                await asyncio.sleep(10 - clock.now() / SECOND % 10 + offset + random.uniform(0, 2))
                # Two steps further apart, they are never counted together.
                for apart in (period + 20, period - 0.1, random.uniform(0, period)):
                    await fails.enqueue()
                    await asyncio.sleep(apart)
                    await fails.enqueue()
                    await asyncio.sleep(45)
                    expected = [] if apart > period else ["firing"]
                    assert [each.state for each in messages] == expected, (offset, apart)
                    await asyncio.sleep(period + 150)
                    assert [each.state for each in messages] == [*expected, *["resolved"] * len(expected)]
                    messages.clear()

    run_virtual(main)


@given(
    failed_at=st.lists(st.integers(0, 900 * SECOND), max_size=30),
    period=st.integers(10 * SECOND, 400 * SECOND),
    step=st.sampled_from([10, 60]),
    begins=st.integers(0, 900 * SECOND),
)
def test_a_count_is_never_too_low_and_too_high_by_less_than_two_steps(
    failed_at: list[int], period: int, step: int, begins: int
) -> None:
    def most_within(length: int, since: int = 0) -> int:
        """Return the most failures in a time of that length that ends with a failure at `since` or later."""
        return max(
            (sum(last - length < at <= last for at in failed_at) for last in failed_at if last >= since), default=0
        )

    ends = range(step_at(begins, step), 1000 * SECOND, step * SECOND)
    counted = most_failed(Counter(step_at(at, step) for at in failed_at), ends, period, step)
    assert most_within(period, ends[0]) <= counted <= most_within(period + 2 * step * SECOND)
