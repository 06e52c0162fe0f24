"""Throttled jobs, also retries: they are visible, and use no slot or memory of the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Handler, Headgate, JobState, LimitRejected, RetryPolicy, StrictRate
from headgate.clock import SECOND, to_datetime
from headgate.jobs.event import Event, JobRetried, JobThrottled
from headgate.testing.virtual_time import VirtualClock, run_virtual


def test_a_retry_that_waits_for_a_limit_is_shown_as_waiting_after_a_restart(tmp_path: Path) -> None:
    """The fault: a retry that waited for its limit looked as if it ran, for as long as it waited; nothing in the store
    said what it waited for, and a restart forgot that it did."""

    async def main(clock: VirtualClock) -> None:
        events: list[Event] = []
        tries: list[int] = []

        def made() -> Headgate:
            app = Headgate(f"sqlite:///{tmp_path}/jobs.db", clock=clock, concurrency=1, synchronous="OFF")
            app.subscribe(events.append, JobThrottled, JobRetried)

            @app.task(name="call", limits=[StrictRate("1/5m", key="{tenant}", margin=0)], retry=RetryPolicy(delay=1))
            async def call(tenant: str) -> str:
                tries.append(clock.now())
                if len(tries) == 1:
                    raise ConnectionError("reset by peer")
                return "done"

            @app.task(name="other")
            async def other() -> str:
                return "ran"

            return app

        async def is_seen(app: Headgate, job_id: str) -> None:
            status = await app.job(job_id).status()
            assert (status.state, status.attempt) == (JobState.WAITING, 1)
            assert not status.is_scheduled, "its own time has come; it is the limit that it waits for"
            assert status.waits_for == ("call:rate", "acme")
            assert status.throttled_until == to_datetime(opens_at)
            assert status.position == 1
            assert status.error is not None
            assert status.error.message == "reset by peer"
            reason = (await app.admin.explain(job_id)).reason
            assert "call:rate" in reason
            assert "acme" in reason
            (attempt,) = (await app.admin.job(job_id)).attempts
            assert attempt.outcome == "failed"
            # It takes no slot, of which there is only one.
            assert await (await app.tasks["other"].enqueue()).result(timeout=1) == "ran"

        first = made()
        async with first:
            job = await first.tasks["call"].enqueue("acme")
            await asyncio.sleep(0.5)
            opens_at = tries[0] + 300 * SECOND
            assert (await job.status()).is_scheduled, "it waits for the delay of its retry"
            await asyncio.sleep(9.5)
            await is_seen(first, job.id)
            assert [type(event) for event in events] == [JobRetried, JobThrottled]
        second = made()
        async with second:
            await asyncio.sleep(10)
            await is_seen(second, job.id)
            assert await second.job(job.id).result() == "done"
        assert tries == [opens_at - 300 * SECOND, opens_at]

    run_virtual(main)


class Session:
    """What each attempt of a job has its own of."""


@pytest.mark.nightly
def test_a_payload_is_decoded_when_its_job_starts() -> None:
    """The fault: a handler was made, with all that it needs, for a job that was then put off, dropped or rejected, and
    nothing of that was ever let go of."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        opened: list[str] = []
        closed: list[str] = []
        ends: list[tuple[str, str]] = []

        @app.resource(scope="attempt")
        async def session() -> AsyncIterator[Session]:
            opened.append("session")
            try:
                yield Session()
            finally:
                closed.append("session")

        class Call(Handler[str]):
            def __init__(self) -> None:
                opened.append(type(self).__name__)

            async def run(self, payload: str, session: Session) -> None:
                ends.append((payload, "ran"))

        patient, impatient = StrictRate("1/h", margin=0), StrictRate("1/h", on_limit="discard")
        waiting: Any = app.handler(name="waiting", limits=[patient])(type("Waiting", (Call,), {}))
        refused: Any = app.handler(name="refused", limits=[impatient])(type("Refused", (Call,), {}))

        async def tell(_job: Any, error: BaseException) -> None:
            ends.append((type(error).__name__, "rejected"))

        refused.task.on_error(tell)

        async with app:
            jobs = [await waiting.enqueue(name) for name in ("first", "second", "third")]
            await refused.enqueue("first too")
            await refused.enqueue("too many")
            await asyncio.sleep(60)
            assert await jobs[1].cancel()
            await asyncio.sleep(60)
            # A rejected job has an instance for its callback, and nothing else.
            assert sorted(opened) == ["Refused"] * 2 + ["Waiting"] + ["session"] * 2
            assert closed == ["session"] * 2
            await jobs[2].result()
            assert sorted(opened) == ["Refused"] * 2 + ["Waiting"] * 2 + ["session"] * 3
            await asyncio.sleep(1)
        assert closed == ["session"] * 3
        assert ends == [
            ("first", "ran"),
            ("first too", "ran"),
            (LimitRejected.__name__, "rejected"),
            ("third", "ran"),
        ]

    run_virtual(main)


def test_a_job_that_stops_waiting_wastes_no_budget() -> None:
    """The fault: each job had booked its slot, and the slots of those that were cancelled, or given up on, stayed
    empty while others waited behind them."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[tuple[int, int]] = []

        @app.task(limits=[StrictRate("1/m", key="{tenant}", margin=0)], name="call")
        async def call(tenant: str, number: int) -> None:
            starts.append((number, clock.monotonic() // SECOND))

        async with app:
            soon = to_datetime(clock.now() + 90 * SECOND)
            # Every other one expires, or is cancelled: at once, or when its slot is near.
            jobs = [
                await call.using(expires_at=soon if number % 4 == 3 else None).enqueue("acme", number)
                for number in range(16)
            ]
            await asyncio.sleep(1)
            for number in (1, 5):
                assert await jobs[number].cancel()
            await asyncio.sleep(178.9)
            for number in (9, 13):
                assert await jobs[number].cancel()
            await asyncio.sleep(3600)
            (counts,) = await app.admin.counts()
            assert (counts.succeeded, counts.cancelled, counts.failed) == (8, 4, 4)
        assert starts == [(number, 30 * number) for number in range(0, 16, 2)]

    run_virtual(main)
