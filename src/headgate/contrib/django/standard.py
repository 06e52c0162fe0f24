"""Django's task framework: that of Django 6, or the django-tasks package, which has it for older releases."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from headgate.errors import DeclarationError


def _name() -> str:
    for name in ("django.tasks", "django_tasks"):
        if find_spec(name) is not None:
            return name
    raise DeclarationError(
        "headgate.contrib.django needs Django's task framework, which this Django does not have; "
        "use Django 6, or pip install django-tasks, whose module is django_tasks"
    )


NAME = _name()

tasks: Any = import_module(NAME)
base: Any = import_module(f"{NAME}.base")
backends: Any = import_module(f"{NAME}.backends.base")
exceptions: Any = import_module(f"{NAME}.exceptions")
signals: Any = import_module(f"{NAME}.signals")

# In the package, two of its errors have other names than in Django 6.
InvalidTask: Any = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
InvalidTaskBackend: Any = getattr(exceptions, "InvalidTaskBackend", None) or exceptions.InvalidTaskBackendError
