"""The addresses of the shop: Django's admin, and two dashboards."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from headgate.contrib.django.dashboard import dashboard_urls
from headgate.http import Role


def role(user: object) -> Role | None:
    return "operator" if str(user) == "grace" else None


urlpatterns = [
    path("admin/", admin.site.urls),
    path("ops/headgate/", dashboard_urls(title="The shop")),
    path("ops/beside/", dashboard_urls(backend="beside", role=role)),
]
