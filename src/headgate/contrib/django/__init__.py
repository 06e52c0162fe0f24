"""Django tasks on Headgate: a backend for `TASKS`, and the command `manage.py headgate`.

Needs Django 6, or Django 5.2 with the django-tasks package.
"""

from headgate.contrib.django.backend import HeadgateBackend
from headgate.contrib.django.options import task_options

__all__ = ["HeadgateBackend", "task_options"]
