"""What one program stores is the same under each hash seed, which decides on the order of sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headgate import Headgate

PROGRAM = """
import asyncio
import sys
from dataclasses import dataclass

from headgate import Every, Headgate, StrictRate
from headgate.engine.schedule_declaration import signature
from tests.internals import registry_of

app = Headgate(sys.argv[1])


@dataclass
class Order:
    regions: set[str]
    counts: dict[str, int]


def is_large(tenant: str) -> bool:
    return tenant in {"acme", "globex", "initech", "umbrella"}


@app.task(limits=[StrictRate("1/h", key=is_large)])
async def gated(tenant: str) -> None: ...


@app.task(limits=[StrictRate("1/h", key="{order}"), StrictRate("1/h", name="all", key=lambda order: order.regions)])
async def ship(order: Order) -> None: ...


@app.task(unique_key="{order}")
async def invoice(order: Order) -> None: ...


REGIONS = {"eu", "us", "asia", "africa"}


@app.schedule(Every(hours=1), args=(REGIONS, Order(REGIONS, {})), on={"mon", "tue", "wed"}, exclude={"12-25", "12-26"})
async def report(regions: set[str], order: Order) -> None: ...


async def main() -> None:
    async with app.open():
        order = Order(set(REGIONS), dict.fromkeys(REGIONS, 1))
        await invoice.enqueue(order)
        await ship.enqueue(order)
        keys = registry_of(app).limit_set(ship, "default").ask({"order": order}, {}, print).buckets
    registry = registry_of(app)
    (schedule,) = registry.schedules.values()
    print([registry.limit_set_name(task, "default") for task in registry.tasks], keys)
    print(signature(schedule.spec, schedule.call))


if __name__ == "__main__":
    asyncio.run(main())
"""


def test_limit_sets_keys_and_schedules_are_the_same_under_each_hash_seed(tmp_path: Path) -> None:
    program, store = tmp_path / "program.py", f"sqlite:///{tmp_path}/jobs.db"
    program.write_text(PROGRAM)
    printed = {
        subprocess.run(
            [sys.executable, str(program), store],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(Path(__file__).parents[2])},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(printed) == 1, printed
    with Headgate(store).sync as app:
        # All three have enqueued, and a unique key keeps the first.
        assert len(app.admin.jobs(task="invoice")) == 1
        assert len(app.admin.jobs(task="ship")) == 3
