"""A release of a program with its own migrations and limits: it opens the database on request, or runs jobs."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from headgate import Headgate, HeadgateError, RateLimit, current_job
from headgate.engine import backlog_migrator
from headgate.limits.limit import Limit
from headgate.storage.migrations import load_migrations
from headgate.storage.postgres import schema

LIMITS: dict[str, Limit] = {
    # Three at once, and then one in hours: a backlog.
    "tight": RateLimit(3, per=360_000, burst=3, key="{tenant}", name="tight"),
    "wide": RateLimit(1000, per=1, burst=1000, key="{tenant}", name="wide"),
}


async def main(options: dict[str, Any]) -> None:
    if "migrations" in options:
        migrations = load_migrations("postgres", Path(options["migrations"]))
        schema.load_migrations = lambda _database: migrations  # type: ignore[attr-defined, assignment, misc]
    # How soon a job of another release is noticed.
    backlog_migrator.NOTE_EVERY = backlog_migrator.SWEEP_EVERY = 0.5
    app = program(options["url"], options.get("limits", "tight"), schema=options.get("schema", "headgate"))
    if options.get("opens"):
        print_line("ready")
        await asyncio.to_thread(sys.stdin.readline)
        try:
            async with app.open():
                print_line("opened")
        except HeadgateError as error:
            print_line("refused", type(error).__name__, str(error))
        return
    print_line("ready")
    await app.run()


def program(url: str, limits: str, **settings: Any) -> Headgate:
    app = Headgate(url, **{"heartbeat": 0.25, "lease": 30, **settings})

    @app.task(limits=[LIMITS[limits]])
    async def call(tenant: str) -> None:
        print_line("ran", current_job().id)

    return app


def print_line(word: str, *values: Any) -> None:
    sys.stdout.write(f"{word} {json.dumps(values)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(json.loads(sys.argv[1])))
