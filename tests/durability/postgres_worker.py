"""A worker process on a PostgreSQL, for tests that stop, kill or mislead it; it prints its events."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from tests.durability.work import Work
from tests.durability.worker import tell_parent


async def main(options: dict[str, Any]) -> None:
    work = Work(options["url"], **options.get("settings", {}))
    work.proceed.set()
    work.app.subscribe(tell_parent)
    await work.app.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(json.loads(sys.argv[1])))
