"""The entry for `INSTALLED_APPS`, which adds `manage.py headgate`."""

from __future__ import annotations

from django.apps import AppConfig


class HeadgateConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    name = "headgate.contrib.django"
    label = "headgate"
    verbose_name = "Headgate"
