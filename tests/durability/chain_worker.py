"""A worker that runs the steps of a chain and prints when one begins; options: where the jobs are."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from headgate import Headgate, current_job
from headgate.clock import SystemClock
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from tests.durability.worker import print_line
from tests.internals import app_on


def store(options: dict[str, Any]) -> Store:
    """The SQLite file or the schema that the options name."""
    if "path" in options:
        return SqliteStorage(options["path"], SystemClock())
    return PostgresStorage(options["url"], SystemClock(), schema=options["schema"])


def make_app(options: dict[str, Any]) -> Headgate:
    app = app_on(store(options), heartbeat=0.2, lease=2)

    @app.task(name="step")
    async def step(place: int) -> int:
        print_line("step", place, current_job().follows)
        await asyncio.sleep(0.02)
        return place

    return app


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(make_app(json.loads(sys.argv[1])).run())
