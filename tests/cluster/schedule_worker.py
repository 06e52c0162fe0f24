"""A worker process with schedules that fire very often."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from typing import Any

from headgate import Every, Headgate
from headgate.jobs.event import Event, NodeStarted

NAMES = ("fast", "faster", "fastest")
PERIODS = {"fast": 0.35, "faster": 0.2, "fastest": 0.1}
START = datetime(2026, 1, 1, tzinfo=UTC)


def make_app(url: str, **settings: Any) -> Headgate:
    app = Headgate(url, **settings)

    @app.task
    async def work() -> None:
        await asyncio.sleep(0.01)

    for name in NAMES:
        app.schedule(Every(seconds=PERIODS[name], start=START), name=name, misfire="run_all", overlap="allow")(work)
    return app


async def main(options: dict[str, Any]) -> None:
    app = make_app(options.pop("url"), **options.pop("settings"))

    def print_event(event: Event) -> None:
        os.write(1, b"started []\n")

    app.subscribe(print_event, NodeStarted)
    await app.run()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
