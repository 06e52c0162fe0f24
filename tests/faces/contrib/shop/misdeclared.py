"""A task that is not looked for by a worker, as only modules called `tasks` are."""

from __future__ import annotations

from headgate import RateLimit
from headgate.contrib.django import task_options
from headgate.contrib.django.standard import tasks


@tasks.task
@task_options(limits=[RateLimit("1/s", key="{tenant}")])
def wrong(name: str) -> None: ...
