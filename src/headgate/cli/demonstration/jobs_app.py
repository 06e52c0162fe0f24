"""The app of the demonstration: one task that calls an outside API, under that API's limit; and its load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from headgate.app import Headgate
from headgate.cli.demonstration.api import ApiClient
from headgate.jobs.event import Event, JobFailure, JobFinished
from headgate.limits.strict_rate import StrictRate
from headgate.tasks.context import current_job
from headgate.tasks.signals import RateLimited

VARIABLE = "HEADGATE_DEMONSTRATION"

NOISY = "noisy"
QUIET = tuple(f"quiet-{number:02}" for number in range(1, 21))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoLoad:
    """The tenants and how often they enqueue; durations in seconds.

    Everything scales with `seconds`: each run has between six and seven windows.
    """

    seconds: float = 40.0
    calls: int = 15
    # How much later than the start in the store the API may receive the call. StrictRate's default of 0.02 s fits a
    # quiet machine; the demonstration also runs beside compilers and browsers.
    margin: float = 0.25
    latency: float = 0.15
    noisy_jobs: int = 300
    url: str = "memory://"
    port: int = 0
    endings: str = ""

    @property
    def window(self) -> float:
        """The window of the API."""
        return round(max(1.0, self.seconds * 0.15), 1)

    @property
    def quiet_every(self) -> tuple[float, float]:
        """The shortest and longest pause between two jobs of a quiet tenant, which stays within its limit."""
        return 0.12 * self.window, 0.3 * self.window

    @property
    def killed_after(self) -> float:
        return 0.45 * self.seconds

    @property
    def outage(self) -> float:
        """The time until the killed worker is restarted."""
        return 0.05 * self.seconds

    @property
    def quiet_until(self) -> float:
        """Return when the quiet tenants stop, so that their last jobs still end in the run."""
        return self.seconds - 1.5

    def environment(self) -> Mapping[str, str]:
        """The environment that passes the load to another process."""
        return {VARIABLE: msgspec.json.encode(asdict(self)).decode()}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> DemoLoad:
        return msgspec.json.decode(environment.get(VARIABLE, "{}"), type=cls)


def make_app(scene: DemoLoad) -> Headgate:
    """Return the app, ready to enqueue and to run."""
    app = Headgate(scene.url)
    api = ApiClient(scene.port)

    @app.task(limits=[StrictRate(scene.calls, per=scene.window, key="{tenant_id}", margin=scene.margin)], timeout=10)
    async def sync_tenant(tenant_id: str, page: int) -> int:
        answer = await api.get("/call", tenant=tenant_id, job=current_job().id)
        if answer.status == 429:
            raise RateLimited(retry_after=float(answer.headers["retry-after"]))
        if answer.status != 200:
            raise RuntimeError(f"the API answered {answer.status}")
        return page

    def keep(event: Event) -> None:
        # One write, so that a line is complete or missing if the process is killed.
        assert isinstance(event, JobFinished)
        with Path(scene.endings).open("ab", buffering=0) as file:
            file.write(f"{event.job_id} {event.state}\n".encode())

    if scene.endings:
        app.subscribe(keep, JobFinished, JobFailure)
    return app


def __getattr__(name: str) -> Any:
    # `app` is created when `headgate worker` imports it; the demonstration creates its own.
    if name == "app":
        return make_app(DemoLoad.from_environment(os.environ))
    raise AttributeError(name)
