"""A worker of one of three releases: the task by its old name, by a new one alone, or by a new one with an alias."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from headgate import Headgate, current_job
from headgate.jobs.event import TaskUnknown


def print_line(word: str, *values: Any) -> None:
    sys.stdout.write(f"{word} {json.dumps(values)}\n")
    sys.stdout.flush()


def upgraded(stored: dict[str, Any]) -> dict[str, Any]:
    return {"tenant": stored["customer"]}


def program(url: str, release: str) -> Headgate:
    app = Headgate(url)

    async def old(customer: str) -> str:
        print_line("ran", release, current_job().task)
        return f"{release} {customer}"

    async def new(tenant: str) -> str:
        print_line("ran", release, current_job().task)
        return f"{release} {tenant}"

    if release == "old":
        app.task(name="sync_customer")(old)
    elif release == "careless":
        app.task(name="sync_tenant")(new)
    else:
        app.task(name="sync_tenant", aliases=["sync_customer"], upgrade=upgraded)(new)
    app.subscribe(lambda event: print_line("unknown", event.task), TaskUnknown)
    return app


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    asyncio.run(program(options["url"], options["release"]).run())
