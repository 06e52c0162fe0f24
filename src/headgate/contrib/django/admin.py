"""A link to the dashboard in the list of apps of Django's admin, for the users who may see it."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from django.contrib import admin
from django.urls import NoReverseMatch, Resolver404, get_script_prefix, resolve, reverse

from headgate.contrib.django.backend import dashboard_namespace
from headgate.contrib.django.standard import tasks


def add_link(site: Any) -> None:
    """Add the dashboards that are in the URLs to the list of apps of an AdminSite."""
    get_app_list = site.get_app_list

    def get_app_list_with_link(request: Any, app_label: str | None = None) -> list[Any]:
        apps = list(get_app_list(request, app_label))
        links = _links(request) if app_label is None else []
        if links:
            apps.append({
                "name": "Headgate", "app_label": "headgate", "app_url": links[0]["admin_url"], "has_module_perms": True,
                "models": links,
            })  # fmt: skip
        return apps

    # Only models can be registered, and a model would have a content type, and a table in the eyes of `dumpdata`.
    site.get_app_list = get_app_list_with_link


def _links(request: Any) -> list[Any]:
    """Return an entry of the list for each dashboard that the user may see."""
    links = []
    for backend in tasks.task_backends.settings:
        url = _url(backend, request.user)
        if url is not None:
            name = "Dashboard" if backend == "default" else f"Dashboard of {backend}"
            links.append({
                "name": name, "object_name": "Dashboard", "model": None, "admin_url": url, "add_url": None,
                "view_only": True, "perms": {"view": True, "add": False, "change": False, "delete": False},
            })  # fmt: skip
    return links


def _url(backend: str, user: Any) -> str | None:
    """Return the address of the dashboard of a backend; None if it is not in the URLs, or not for this user."""
    try:
        url: str = reverse(f"{dashboard_namespace(backend)}:dashboard")
        mount = resolve("/" + unquote(url).removeprefix(get_script_prefix())).kwargs["mount"]
    except (NoReverseMatch, Resolver404, KeyError):
        # A KeyError: another view has this address.
        return None
    return None if mount.user(user) is None else url


add_link(admin.site)
