"""A rule that Redis cannot hold is refused at declaration, and never releases jobs without a limit."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from headgate import DeclarationError, Headgate, Limiter, RateLimit, SlidingWindow, StrictRate
from headgate.jobs.event import LimitStoreFailed
from headgate.limits.kinds import dump_rule
from headgate.storage.live_rules import LimitSetting
from tests.internals import store_of
from tests.limit_settings import change
from tests.redis_server import redis_url  # noqa: F401
from tests.until import patient, until

BEYOND = RateLimit("100000000/s")
WHY = r"limit 'api' cannot be 100000000/s .* in its store: .*beyond .* that Redis's numbers hold"


@pytest.fixture
def store(redis_url: str) -> str:  # noqa: F811
    """A store of one test's own: buckets of another one are not in it."""
    return f"{redis_url}?prefix=beyond-{uuid.uuid4()}"


def made(url: str, limit: Any) -> Headgate:
    app = Headgate(url)
    app.started = []  # type: ignore[attr-defined]

    @app.task(name="call", limits=[limit])
    async def call(tenant: str) -> None:
        app.started.append(tenant)  # type: ignore[attr-defined]

    return app


async def test_a_live_rule_that_redis_cannot_hold_is_refused_when_it_is_set(
    store: str,
    tmp_path: Path,
) -> None:
    app = made(f"sqlite:///{tmp_path}/jobs.db", StrictRate("2/h", key="{tenant}", name="api", store=store))
    async with app:
        limits = app.admin.limits
        participants: list[dict[str, Any]] = [{}, {"key": "acme"}, {"pattern": "a*"}, {"tier": "gold"}]
        for whom in participants:
            with pytest.raises(DeclarationError, match=WHY):
                await limits.set("api", BEYOND, **whom)
            with pytest.raises(DeclarationError, match=WHY):
                await limits.set_rule("api", "100000000/s", kind="rate", **whom)
        assert list(await limits.settings()) == []
        await limits.set("api", SlidingWindow("1/h"))
        await app.tasks["call"].enqueue_many([("acme",)] * 5)
        await until(lambda: app.started == ["acme"])  # type: ignore[attr-defined]


async def test_jobs_of_a_stored_rule_that_redis_cannot_hold_wait(
    store: str,
    tmp_path: Path,
) -> None:
    """As an older release may have stored it."""
    app = made(f"sqlite:///{tmp_path}/jobs.db", StrictRate("2/h", key="{tenant}", name="api", store=store))
    async with app:
        await change(store_of(app), LimitSetting("api", "all", rule=dump_rule(BEYOND.rule)))
        received = asyncio.Event()
        app.subscribe(lambda _event: received.set(), LimitStoreFailed)
        await app.tasks["call"].enqueue_many([("acme",)] * 5)
        await asyncio.wait_for(received.wait(), patient(10))
        assert app.started == []  # type: ignore[attr-defined]
        await app.admin.limits.unset("api")
        await until(lambda: app.started == ["acme", "acme"])  # type: ignore[attr-defined]


def test_a_rule_that_redis_cannot_hold_is_refused_at_declaration(store: str) -> None:
    with pytest.raises(DeclarationError, match=WHY):
        made("memory://", RateLimit("100000000/s", name="api", store=store))
    with pytest.raises(DeclarationError, match=WHY):
        Limiter(RateLimit("100000000/s", name="api"), store=store)
    app = Headgate("memory://", limits_url=store)
    with pytest.raises(DeclarationError, match="cannot be 100000000/s"):
        app.queue("mail", limits=[BEYOND])
