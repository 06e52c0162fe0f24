"""Django tasks on Headgate: a backend for `TASKS`, and the command `manage.py headgate`.

Needs Django 6, or Django 5.2 with the django-tasks package. The dashboard is in `headgate.contrib.django.dashboard`.
"""

from headgate.contrib.django.backend import HeadgateBackend
from headgate.contrib.django.default_app import database_url
from headgate.contrib.django.options import task_options

__all__ = ["HeadgateBackend", "database_url", "task_options"]
