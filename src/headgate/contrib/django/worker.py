"""The apps of `TASKS` for the command line: `headgate.contrib.django.worker:default`, where `default` is the alias.

Importing it sets Django up, by DJANGO_SETTINGS_MODULE, so that the processes of a worker can import it, too.
"""

from __future__ import annotations

import django
from django.apps import apps

from headgate import Headgate
from headgate.contrib.django.backend import app_with_tasks
from headgate.contrib.django.standard import tasks

if not apps.ready:
    django.setup()


def __getattr__(alias: str) -> Headgate:
    """Return the app of that backend, with the tasks of every `tasks.py` in INSTALLED_APPS declared."""
    if alias not in tasks.task_backends.settings:
        raise AttributeError(f"TASKS has no backend {alias!r}")
    app = app_with_tasks(alias)
    # Enqueueing during imports has opened the app in its own thread; a worker opens it anew.
    app.sync.close()
    return app
