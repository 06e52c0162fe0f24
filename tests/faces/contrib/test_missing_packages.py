"""Importing a module whose package is missing raises with the package and how to install it."""

from __future__ import annotations

import importlib
import sys

import pytest

from headgate.errors import DeclarationError


@pytest.mark.parametrize(
    ("module", "package", "reason"),
    [
        ("headgate.contrib.celery", "redis", r"need the redis package.*headgate\[redis\]"),
        ("headgate.contrib.dramatiq", "redis", r"need the redis package.*headgate\[redis\]"),
        ("headgate.contrib.taskiq", "redis", r"need the redis package.*headgate\[redis\]"),
        ("headgate.contrib.httpx", "httpx", "needs the httpx package.*pip install httpx"),
        ("headgate.contrib.requests", "requests", "needs the requests package.*pip install requests"),
        ("headgate.contrib.sentry", "sentry_sdk", r"needs the sentry-sdk package.*headgate\[sentry\]"),
        ("headgate.contrib.aiohttp", "aiohttp", "needs the aiohttp package.*pip install aiohttp"),
        ("headgate.contrib.fastapi", "starlette", "needs the starlette package.*pip install fastapi"),
        ("headgate.contrib.celery", "celery", r"needs the celery package.*celery\[redis\]"),
        (
            "headgate.observe.metrics",
            "prometheus_client",
            r"need the prometheus-client package.*headgate\[prometheus\]",
        ),
        ("headgate.observe.tracing", "opentelemetry", r"need the opentelemetry package.*headgate\[opentelemetry\]"),
    ],
)
def test_a_missing_package_is_named(module: str, package: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name == module or name.startswith(("headgate.limits.redis", f"{module}.", f"{package}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DeclarationError, match=reason):
        importlib.import_module(module)
