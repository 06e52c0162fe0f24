"""The app of the demonstration: one task that calls an outside API, under that API's limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headgate.app import Headgate
from headgate.cli.demonstration.api_client import ApiClient
from headgate.cli.demonstration.load import DemoLoad
from headgate.jobs.event import Event, JobFailure, JobFinished
from headgate.limits.strict_rate import StrictRate
from headgate.tasks.context import current_job
from headgate.tasks.signals import RateLimited


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
