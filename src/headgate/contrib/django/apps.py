"""What `INSTALLED_APPS` names, so that `manage.py headgate` is there."""

from __future__ import annotations

from django.apps import AppConfig


class HeadgateConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    name = "headgate.contrib.django"
    label = "headgate"
    verbose_name = "Headgate"
