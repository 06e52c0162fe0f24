"""How much of several databases can be used when tenants are spread over them: `python -m benchmarks.scale_out`.

A simulation, not a measurement: each tenant lives in one database, which is chosen by a hash of its name. The busiest
database is full first; what the others then have left cannot be used.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

DATABASES = (2, 4, 8, 16)
TENANTS = (10, 100, 1_000, 10_000)
SKEWS = ((0.0, "all alike"), (0.5, "by 1/√rank"), (1.0, "by 1/rank (Zipf)"))
ROUNDS = 50


def usable(databases: int, weights: Sequence[float], chance: random.Random) -> float:
    """The share of all databases together that is in use when the first one is full."""
    loads = [0.0] * databases
    for weight in weights:
        loads[chance.randrange(databases)] += weight
    return sum(weights) / (databases * max(loads))


def main() -> None:
    chance = random.Random(0)
    table = Table(title="Databases' worth of work that can be done", title_justify="left")
    table.add_column("tenants")
    table.add_column("load of a tenant")
    for databases in DATABASES:
        table.add_column(f"{databases} databases", justify="right")
    for tenants in TENANTS:
        for skew, name in SKEWS:
            weights = [1 / rank**skew for rank in range(1, tenants + 1)]
            cells = []
            for databases in DATABASES:
                shares = [usable(databases, weights, chance) for _ in range(ROUNDS)]
                cells.append(f"{databases * median(shares):.1f}")
            table.add_row(f"{tenants:,}", name, *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
