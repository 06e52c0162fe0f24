"""The app of scenarios whose worker is a process of its own: `headgate worker benchmarks.worker_app:app`."""

from __future__ import annotations

import os
from collections.abc import Callable

from benchmarks.latency_probe import start_sender
from headgate import Headgate, StrictRate, Task

LIMIT = "calls"


class Probed:
    """An app with a gated and an ungated task that send when they began."""

    def __init__(self, url: str | None = None) -> None:
        # A worker gets it from its environment; a program that only imports this module has none.
        self.app = Headgate(url or os.environ.get("HEADGATE_URL", "memory://"), migrate=True)
        self._send_start: Callable[[int], None] | None = None
        limit = StrictRate("1/d", key="{key}", name=LIMIT)
        self.gated: Task[..., None] = self.app.task(name="gated", limits=[limit])(self._gated)
        self.ungated: Task[..., None] = self.app.task(name="ungated")(self._ungated)

    async def _gated(self, key: str, number: int) -> None:
        self._report_start(number)

    async def _ungated(self, number: int) -> None:
        self._report_start(number)

    def _report_start(self, number: int) -> None:
        if self._send_start is None:
            self._send_start = start_sender(os.environ["BENCHMARK_SOCKET"])
        self._send_start(number)


app = Probed().app
