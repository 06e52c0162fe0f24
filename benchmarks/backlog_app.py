"""The app of a backlog, and of lone jobs beside it: `headgate worker benchmarks.backlog_app:app`."""

from __future__ import annotations

import os
from collections.abc import Callable

from benchmarks.latency_probe import start_sender
from headgate import Headgate, RateLimit

LIMITED, FAIR, ELSEWHERE = "limited", "fair", "elsewhere"
"""The queues; the first two are also the names of their tasks."""

LIMIT = "plenty"

app = Headgate(os.environ.get("HEADGATE_URL", "memory://"), migrate=True)
app.limit(LIMIT, RateLimit("1000/s", key="{key}"))
app.queue(LIMITED)
app.queue(FAIR, fair_by="{key}")
app.queue(ELSEWHERE)

_senders: list[Callable[[int], None]] = []


@app.task(name=LIMITED, queue=LIMITED, limits=[LIMIT])
async def limited(key: str, number: int) -> None:
    """A job of the backlog."""


@app.task(name=FAIR, queue=FAIR)
async def fair(key: str, number: int) -> None:
    """A job of the backlog in a fair queue."""


@app.task(queue=ELSEWHERE, limits=[LIMIT])
async def lone(key: str, number: int) -> None:
    """Report that a job of another queue has started."""
    if not _senders:
        _senders.append(start_sender(os.environ["BENCHMARK_SOCKET"]))
    _senders[0](number)
