"""The place of the jobs where nothing else is configured: in a database of Django's, or beside it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from headgate import Headgate
from headgate.urls import displayed_url

_SSL = ("sslmode", "sslcert", "sslkey", "sslrootcert")

_WRITE = 'write "OPTIONS": {"app": "myproject.jobs:app"}, or set HEADGATE_URL'

_apps: dict[str, Headgate] = {}
_lock = threading.Lock()

logger: logging.Logger = logging.getLogger("headgate.django")


def app_of_database(alias: str) -> Headgate:
    """Return the app whose jobs are at `database_url(alias)`. Raises ImproperlyConfigured."""
    # Django makes a backend for each thread; they share the app.
    with _lock:
        if alias not in _apps:
            _apps[alias] = Headgate(database_url(alias))
        return _apps[alias]


def database_url(alias: str = "default") -> str:
    """Return the URL of a project's jobs, for your own app: `app = Headgate(database_url(), retry=…)`.

    This is HEADGATE_URL if it is set, else the PostgreSQL database of this alias in DATABASES, or a file beside its
    SQLite file. Raises ImproperlyConfigured for other databases.
    """
    if url := os.environ.get("HEADGATE_URL", "").strip():
        return url
    # Django has a dummy for a default database that is not set.
    if alias not in connections or connections[alias].settings_dict["ENGINE"] == "django.db.backends.dummy":
        raise ImproperlyConfigured(
            f"DATABASES has no {alias!r}, where the jobs would be (in the settings, call database_url() below it); "
            f"{_WRITE}"
        )
    connection = connections[alias]
    url = jobs_url(connection.vendor, connection.settings_dict)
    if connection.vendor == "sqlite":
        place = unquote(url.removeprefix("sqlite:///"))
        logger.info("jobs are in a file of their own beside DATABASES[%r]: %s", alias, place)
    made = _UrlOfDatabase(url)
    made.alias, made.name = alias, str(connection.settings_dict["NAME"])
    return made


class _UrlOfDatabase(str):
    """The URL of the jobs of one of Django's databases, which Django replaces in tests."""

    alias: str
    name: str

    def require_usable(self) -> None:
        """Raise ImproperlyConfigured if Django has replaced the database. An app calls it before it is opened."""
        now = str(connections[self.alias].settings_dict["NAME"])
        if now != self.name:
            raise ImproperlyConfigured(
                f"the jobs are in {displayed_url(self)}, and Django uses the database {now!r} now, as in tests: write "
                "`with manual(app):` (headgate.testing) in the test, use Django's ImmediateBackend in its TASKS, or "
                "set HEADGATE_URL=memory://"
            )


def jobs_url(vendor: str, settings: Mapping[str, Any]) -> str:
    """Return the URL of the jobs for an entry of DATABASES. Raises ImproperlyConfigured if there is none."""
    match vendor:
        case "sqlite":
            return _file_beside(str(settings["NAME"]))
        case "postgresql":
            return _postgres_url(settings)
        case _:
            raise ImproperlyConfigured(f"jobs cannot live in a database of {vendor}; {_WRITE}")


class NoFileInTests(ImproperlyConfigured):  # type: ignore[misc]  # Django has no types
    """The database of Django is in memory, as tests have it in place of the file of the site."""


def _file_beside(name: str) -> str:
    if name.startswith(("file:", ":")):
        raise (NoFileInTests if name.startswith("file:memorydb_") else ImproperlyConfigured)(
            f"the SQLite database {name!r} has no file, as in tests, so there is no place for jobs beside it; in tests "
            "import your app at the top of the test's module and write `with manual(app):` (headgate.testing), use "
            "Django's ImmediateBackend in TASKS, or set HEADGATE_URL=memory://"
        )
    path = Path(name).absolute()
    return f"sqlite:///{quote(str(path.with_name(f'{path.stem}-jobs{path.suffix}')))}"


def _postgres_url(settings: Mapping[str, Any]) -> str:
    options = settings.get("OPTIONS", {})
    if "service" in options or not settings["NAME"]:
        raise ImproperlyConfigured(f"DATABASES names a service of PostgreSQL, which the jobs cannot use; {_WRITE}")
    user, password = (quote(str(settings[name] or ""), safe="") for name in ("USER", "PASSWORD"))
    host, port = str(settings["HOST"] or ""), str(settings["PORT"] or "")
    query = {name: options[name] for name in _SSL if name in options}
    if host.startswith("/"):
        query |= {"host": host, **({"port": port} if port else {})}
        place = ""
    else:
        place = f"{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}"
    credentials = f"{user}{f':{password}' if password else ''}@" if user else ""
    text = f"postgresql://{credentials}{place}/{quote(str(settings['NAME']), safe='')}"
    return f"{text}?{urlencode(query)}" if query else text
