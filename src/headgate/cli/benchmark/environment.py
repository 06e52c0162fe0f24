"""The environment of a benchmark: the settings of the store, its disk, this machine."""

from __future__ import annotations

import importlib.util
import os
import platform
import tempfile
from pathlib import Path

from headgate.admin.checkup import Checkup
from headgate.app import Headgate
from headgate.cli.benchmark.figures import Environment
from headgate.cli.benchmark.scratch import scratch_of
from headgate.clock import SECOND, SystemClock
from headgate.plural import counted
from headgate.storage.facts import PostgresFacts, SqliteFacts, StoreFacts

PAGE = 4096
"""Bytes written before each sync: a page of SQLite."""


async def environment_of(app: Headgate, seconds: float) -> Environment:
    """Return the environment, measured for about `seconds`."""
    async with scratch_of(app) as make:
        beside = make()
        async with beside.open():
            checkup: Checkup = await beside.admin.checkup()
    setup, is_durable = _setup(checkup.store)
    file = app._client.address.file
    return Environment(
        store=app._client.address.shown,
        setup=setup,
        is_durable=is_durable,
        python=platform.python_version(),
        event_loop="uvloop" if importlib.util.find_spec("uvloop") is not None else "asyncio",
        cores=os.cpu_count() or 1,
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        syncs=None if file is None else _syncs(file.parent, seconds),
    )


def _setup(facts: StoreFacts) -> tuple[str, bool]:
    """Return the store in words, and whether acknowledged commits survive a power cut."""
    match facts:
        case SqliteFacts():
            version = ".".join(map(str, facts.version))
            where = f", on {facts.filesystem}" if facts.filesystem else ""
            return f"SQLite {version}, synchronous {facts.synchronous}{where}", facts.synchronous in ("FULL", "EXTRA")
        case PostgresFacts():
            version = f"{facts.version // 10000}.{facts.version % 10000}"
            text = f"PostgreSQL {version}, fsync {'on' if facts.fsync else 'off'}"
            pooled = ", through a pooler" if facts.is_pooled else ""
            return (
                f"{text}, synchronous_commit {facts.synchronous_commit}, "
                f"{counted(facts.connections, 'connection')}{pooled}",
                facts.fsync and facts.synchronous_commit != "off",
            )
        case _:
            return "in memory", False


def _syncs(folder: Path, seconds: float) -> float:
    """Return how often per second a page can be written and synced there."""
    clock = SystemClock()
    page = os.urandom(PAGE)
    with tempfile.TemporaryFile(dir=folder) as file:
        begin = clock.monotonic()
        count = 0
        while count < 3 or clock.monotonic() - begin < seconds * SECOND:
            os.pwrite(file.fileno(), page, 0)
            os.fsync(file.fileno())
            count += 1
        return round(count * SECOND / (clock.monotonic() - begin), 1)
