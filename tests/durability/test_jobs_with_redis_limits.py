"""Jobs of two programs whose limit lives in one Redis, with real workers and a server that goes away."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import Headgate, StrictRate
from tests.durability.processes import ended
from tests.redis_server import RedisServer, server_in
from tests.until import until

pytestmark = pytest.mark.nightly

APP = """
    import os
    from headgate import Headgate, StrictRate, current_job

    app = Headgate(os.environ["STORE"])


    @app.task(limits=[StrictRate("20/s", key="{tenant}", name="api", store=os.environ["REDIS"], on_store_error="wait")])
    async def call(tenant: str) -> None:
        job = current_job()
        # When it was claimed: on a busy machine a handler begins later.
        claimed = job.enqueued_at.timestamp() + job.waited_for
        with open(os.environ["RUN_LOG"], "a") as run_log:
            run_log.write(f"{tenant} {round(claimed * 10**9)}\\n")
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with server_in(tmp_path) as server:
        yield server


def most_in_a_second(starts: list[int]) -> int:
    starts.sort()
    return max(
        (sum(at <= other < at + 10**9 for other in starts[index:]) for index, at in enumerate(starts)), default=0
    )


def starts_of(run_logs: list[Path], tenant: str) -> list[int]:
    lines = [line.split() for run_log in run_logs if run_log.exists() for line in run_log.read_text().splitlines()]
    return sorted(int(at) for name, at in lines if name == tenant)


async def test_two_programs_share_a_limit_exactly_and_lose_no_job_when_redis_dies(
    tmp_path: Path, server: RedisServer
) -> None:
    (tmp_path / "jobs_app.py").write_text(textwrap.dedent(APP))
    stores = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "other")]
    run_logs = [tmp_path / "one.txt", tmp_path / "other.txt"]
    limit = StrictRate("20/s", key="{tenant}", name="api", store=server.url, on_store_error="wait")
    for store in stores:
        app = Headgate(store)

        @app.task(limits=[limit])
        async def call(tenant: str) -> None: ...

        async with app.open():
            await call.enqueue_many([("acme",)] * 110 + [("globex",)] * 10)
    workers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headgate", "worker", "jobs_app:app"),
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "STORE": store, "RUN_LOG": str(run_log), "REDIS": server.url},
            stderr=asyncio.subprocess.DEVNULL,
        )
        for store, run_log in zip(stores, run_logs, strict=True)
    ]
    try:
        await until(lambda: len(starts_of(run_logs, "acme")) >= 60, 40)
        server.kill()
        await asyncio.sleep(1)
        while_away = len(starts_of(run_logs, "acme"))
        await asyncio.sleep(1)
        assert len(starts_of(run_logs, "acme")) == while_away, "its jobs wait while the store does not answer"
        server.start()
        await until(lambda: len(starts_of(run_logs, "acme")) >= 220, 40, lambda: len(starts_of(run_logs, "acme")))
    finally:
        await ended(*workers)
    starts = starts_of(run_logs, "acme")
    assert len(starts) == 220
    assert len(starts_of(run_logs, "globex")) == 20
    # Nothing was written to disk there: after the restart one more burst may start, and only then.
    assert most_in_a_second(starts[:while_away]) <= 20
    assert most_in_a_second(starts[while_away:]) <= 20
    for store in stores:
        app = Headgate(store)
        async with app.open():
            (counts,) = await app.admin.counts()
            assert (counts.waiting, counts.running, counts.succeeded) == (0, 0, 120)
