"""Run the timeline of `docs/concepts.md`, and draw it: `python docs/timeline.py` prints it and writes the picture.

The engine of the testing kit runs the program; no number here is made up.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headgate import Headgate, StrictRate
from headgate.testing import manual

# By name: a type checker takes the folder of the same name for it.
pictures: Any = importlib.import_module("docs.pictures" if __package__ else "pictures")

PICTURE = Path(__file__).parent / "timeline.svg"
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)

app = Headgate("memory://")


@app.task(limits=[StrictRate("15/m", key="{tenant_id}")])
async def sync_tenant(tenant_id: str, page: int = 1) -> None: ...


Start = tuple[str, int, datetime]
"""A tenant, its page, and when that job started."""


async def starts() -> Sequence[Start]:
    """Twenty jobs of acme come in at noon, one of globex with them, and one of initech twenty seconds later."""
    with manual(app, now=NOON) as jobs:
        enqueued = [("acme", page, await sync_tenant.enqueue("acme", page)) for page in range(1, 21)]
        enqueued.append(("globex", 1, await sync_tenant.enqueue("globex")))
        enqueued.append(("initech", 1, await sync_tenant.using(delay=20).enqueue("initech")))
        await jobs.travel(minutes=2)
        begun = [(tenant, page, (await job.status()).started_at) for tenant, page, job in enqueued]
    return [(tenant, page, at) for tenant, page, at in begun if at is not None]


def table(begun: Iterable[Start]) -> str:
    """The starts, a line for each tenant and instant."""
    pages: dict[tuple[datetime, str], list[int]] = {}
    for tenant, page, at in begun:
        pages.setdefault((at, tenant), []).append(page)
    return "".join(
        f"{at:%H:%M:%S}.{at.microsecond // 1000:03}  {tenant:8}"
        f"{len(its)} {'job' if len(its) == 1 else f'jobs: pages {its[0]} to {its[-1]}'}\n"
        for (at, tenant), its in sorted(pages.items())
    )


def picture(begun: Sequence[Start]) -> str:
    at = {
        tenant: [(begins - NOON).total_seconds() for whose, _, begins in begun if whose == tenant]
        for tenant in ("acme", "globex", "initech")
    }
    rows = (
        pictures.Dots("acme comes", [0] * 20),
        *(pictures.Dots(f"{tenant} starts", at[tenant], key) for key, tenant in enumerate(at, start=1)),
    )
    title = 'StrictRate("15/m", key="{tenant_id}")'
    note = "Fifteen of acme's twenty jobs start at once, five a minute later. The others do not wait for acme."
    drawn: str = pictures.draw(pictures.Scene("timeline", title, note, 90, rows, tick=15))
    return drawn


if __name__ == "__main__":
    real = asyncio.run(starts())
    sys.stdout.write(table(real))
    PICTURE.write_text(picture(real), encoding="utf-8")
