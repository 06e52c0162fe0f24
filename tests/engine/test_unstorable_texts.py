"""Text that no database can hold, NUL or half of a surrogate pair, is refused with a sentence that says which it is."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import Headgate, StrictRate
from headgate.errors import DeclarationError
from headgate.testing.virtual_time import VirtualClock, run_virtual

HALF = "a\ud800b"

HANDLES: dict[str, Callable[[Headgate], object]] = {
    "job id": lambda app: app.job(HALF),
    "batch id": lambda app: app.batch(HALF),
    "schedule": lambda app: app.find_schedule(HALF),
    "actor": lambda app: app.admin.by(HALF),
}

CALLS: dict[str, Callable[[Headgate], Awaitable[object]]] = {
    "cancel": lambda app: app.admin.cancel(HALF),
    "retry": lambda app: app.admin.retry(HALF),
    "run now": lambda app: app.admin.run_now(HALF),
    "delete": lambda app: app.admin.delete(HALF),
    "job": lambda app: app.admin.job(HALF),
    "explain": lambda app: app.admin.explain(HALF),
    "logs": lambda app: app.admin.logs(HALF),
    "graph": lambda app: app.admin.graph(HALF),
    "jobs of a task": lambda app: app.admin.jobs(task=HALF),
    "jobs of a limit": lambda app: app.admin.jobs(limit=HALF),
    "jobs with a text": lambda app: app.admin.jobs(text=HALF),
    "jobs before": lambda app: app.admin.jobs(before=HALF),
    "count": lambda app: app.admin.count(unique_key=HALF),
    "resume a queue": lambda app: app.admin.queues.resume(HALF),
    "pause a tier": lambda app: app.admin.limits.pause("lim", tier=HALF),
    "assign a tier": lambda app: app.admin.limits.assign("lim", "k", HALF),
    "remove a limit": lambda app: app.admin.limits.remove(HALF),
    "pause a schedule": lambda app: app.admin.schedules.pause(HALF),
    "remove a schedule": lambda app: app.admin.schedules.remove(HALF),
    "reserve": lambda app: app.limiter("lim").reserve("k", id=HALF),
}


def declared(app: Headgate) -> Headgate:
    @app.task(limits=[StrictRate("1000/s", name="lim", key="{text}")])
    async def work(text: str) -> str:
        return text

    return app


@pytest.fixture(params=["sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Headgate]:
    if request.param == "sqlite":
        return functools.partial(Headgate, f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
    return functools.partial(Headgate, url, schema=schema)


async def test_each_call_with_half_a_surrogate_pair_is_refused_and_says_which(make: Callable[[], Headgate]) -> None:
    """The fault: the driver's own error, a UnicodeEncodeError or "rejected a value", came out of the call."""
    app = declared(make())
    async with app.open():
        for what, handle in HANDLES.items():
            with pytest.raises(DeclarationError, match=rf"{what} 'a\\ud800b' has half of a surrogate pair"):
                handle(app)
        for call in CALLS.values():
            with pytest.raises(DeclarationError, match=r"'a\\ud800b' has half of a surrogate pair.* leave"):
                await call(app)


async def test_an_id_with_nul_is_refused_before_anything_is_read(make: Callable[[], Headgate]) -> None:
    app = declared(make())
    async with app.open():
        for handle in (app.job, app.batch, app.find_schedule):
            with pytest.raises(DeclarationError, match=r"'a\\x00b' has NUL"):
                handle("a\x00b")


def test_a_key_with_half_a_surrogate_pair_still_counts() -> None:
    """Keys come from arguments, so they are replaced by their hash instead of being refused."""

    async def main(clock: VirtualClock) -> None:
        app = declared(Headgate("memory://", clock=clock))
        async with app.open():
            limiter: Any = app.limiter("lim")
            assert await limiter.try_acquire(HALF)

    run_virtual(main)
