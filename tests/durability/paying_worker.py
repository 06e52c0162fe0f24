"""A worker whose jobs write a row and complete in one transaction. It holds for ever at the point it is told.

The points: `begun` (before the transaction), `written` (the row and the completion are not committed yet) and
`committed` (the attempt has not ended).
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from typing import Any

from headgate import Headgate, RetryPolicy, current_job
from tests.durability.worker import print_line, tell_parent


def paying_app(url: str, table: str, hold: str | None = None) -> Headgate:
    app = Headgate(url, heartbeat=0.25, lease=2)

    async def reach(point: str) -> None:
        if point == hold:
            print_line("at", point, current_job().id)
            await asyncio.sleep(3600)

    @app.task(retry=RetryPolicy(retries=5, delay=0.01))
    async def pay(number: int) -> None:
        print_line("runs", current_job().id)
        await reach("begun")
        async with current_job().transaction() as connection:
            written = connection.execute(f"INSERT INTO {table} VALUES ({number})")
            if not isinstance(written, sqlite3.Cursor):
                await written
            await reach("written")
        await reach("committed")

    return app


async def main(options: dict[str, Any]) -> None:
    app = paying_app(options["url"], options["table"], options.get("hold"))
    app.subscribe(tell_parent)
    await app.run(slots=4)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
