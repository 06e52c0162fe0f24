"""A new Django project with nothing but `TASKS`: jobs in or beside its database, and its own logging."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured

from headgate import Headgate
from headgate.contrib.django import default_app
from headgate.contrib.django.default_app import jobs_url
from tests.durability.threads import side_by_side
from tests.until import patient

SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = ["headgate.contrib.django", "shop"]
USE_TZ = True
DATABASES = {"default": %r}
TASKS = {"default": {"BACKEND": "headgate.contrib.django.HeadgateBackend"}}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"own": {"format": "OWN %%(name)s %%(message)s"}},
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "own.log", "formatter": "own"}},
    "root": {"handlers": ["file"], "level": "INFO"},
}
"""

TASKS = """
from headgate.contrib.django.standard import tasks

@tasks.task
def double(number: int) -> int:
    return 2 * number
"""

ENQUEUE = """
import django
django.setup()
from django.db import transaction
from shop.tasks import double
with transaction.atomic():
    print(double.enqueue(21).id)
"""


class Project:
    """A folder with a Django project, whose commands run in processes of their own."""

    def __init__(self, folder: Path, database: dict[str, Any]) -> None:
        self.folder = folder
        (folder / "shop").mkdir()
        (folder / "shop" / "__init__.py").touch()
        (folder / "shop" / "tasks.py").write_text(TASKS)
        (folder / "settings.py").write_text(SETTINGS % database)

    def run(self, *words: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        environment |= {"PYTHONPATH": str(self.folder), "DJANGO_SETTINGS_MODULE": "settings"}
        done = subprocess.run(
            [sys.executable, *words],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=patient(30),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def manage(self, *words: str) -> str:
        return self.run("-m", "django", "headgate", *words)


@pytest.fixture(params=["sqlite", "postgresql"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    if request.param == "sqlite":
        yield Project(tmp_path, {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db.sqlite3")})
        return
    url = urlsplit(request.getfixturevalue("postgres_url"))
    name = f"project_{uuid4().hex[:12]}"
    with psycopg.connect(url.geturl(), autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        try:
            yield Project(tmp_path, {
                "ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": url.username or "",
                "PASSWORD": url.password or "", "HOST": url.hostname or "", "PORT": str(url.port or ""),
            })  # fmt: skip
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.slow
def test_a_project_without_an_app_runs_jobs_and_keeps_its_own_log(project: Project) -> None:
    project.manage("migrate")
    id = project.run("-c", ENQUEUE).strip()
    project.manage("worker", "--drain")
    assert '"state": "succeeded"' in project.manage("jobs", "show", id, "--json")
    log = (project.folder / "own.log").read_text()
    assert f"OWN headgate job {id} (shop.tasks.double) succeeded in " in log
    if (project.folder / "db-jobs.sqlite3").exists():
        assert f"jobs are in a file of their own beside DATABASES['default']: {project.folder}/db-jobs.sqlite3" in log


def test_threads_that_first_use_a_project_without_an_app_at_the_same_time_share_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADGATE_URL", "memory://")
    monkeypatch.setattr(default_app, "_apps", {}, raising=False)

    def slow_app(url: str) -> Headgate:
        time.sleep(0.05)
        return Headgate(url)

    monkeypatch.setattr(default_app, "Headgate", slow_app)
    apps: list[Headgate] = []
    side_by_side(*[lambda: apps.append(default_app.app_of_database("default"))] * 4)
    assert apps == [apps[0]] * 4


@pytest.mark.parametrize(
    ("vendor", "settings", "url"),
    [
        ("sqlite", {"NAME": Path("/srv/db.sqlite3")}, "sqlite:////srv/db-jobs.sqlite3"),
        ("sqlite", {"NAME": "/srv/data"}, "sqlite:////srv/data-jobs"),
        ("sqlite", {"NAME": "/srv/a%20b?#/c d.db"}, "sqlite:////srv/a%2520b%3F%23/c%20d-jobs.db"),
        (
            "postgresql",
            {"NAME": "shop", "USER": "ada", "PASSWORD": "a/b@c", "HOST": "db", "PORT": 5433},
            "postgresql://ada:a%2Fb%40c@db:5433/shop",
        ),
        (
            "postgresql",
            {"NAME": "shop", "USER": "", "PASSWORD": "", "HOST": "", "PORT": "", "OPTIONS": {"sslmode": "require"}},
            "postgresql:///shop?sslmode=require",
        ),
        (
            "postgresql",
            {"NAME": "shop", "USER": "ada", "PASSWORD": "", "HOST": "/run/pg", "PORT": "5433"},
            "postgresql://ada@/shop?host=%2Frun%2Fpg&port=5433",
        ),
        ("postgresql", {"NAME": "s", "USER": "", "PASSWORD": "", "HOST": "::1", "PORT": ""}, "postgresql://[::1]/s"),
    ],
)
def test_the_store_url_is_derived_from_databases(vendor: str, settings: dict[str, Any], url: str) -> None:
    assert jobs_url(vendor, settings) == url


@pytest.mark.parametrize(
    ("vendor", "settings"),
    [
        ("mysql", {"NAME": "shop"}),
        ("sqlite", {"NAME": ":memory:"}),
        ("sqlite", {"NAME": "file:memorydb_default?mode=memory&cache=shared"}),
        ("postgresql", {"NAME": "", "USER": "", "PASSWORD": "", "HOST": "", "PORT": "", "OPTIONS": {"service": "x"}}),
    ],
)
def test_an_unsupported_database_needs_an_app(vendor: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ImproperlyConfigured, match="HEADGATE_URL"):
        jobs_url(vendor, settings)


def test_a_child_process_imports_a_project_that_configures_its_settings_itself() -> None:
    """The fault: Django was set up before the import, and without DJANGO_SETTINGS_MODULE each process task failed."""
    code = (
        "from django.conf import settings\n"
        "from headgate.contrib.django.body import with_connections\n"
        "from headgate.tasks.executor_kind import IN_CHILD\n"
        "IN_CHILD.set()\n"
        "with_connections(settings.configure)\n"
        "with_connections(lambda: settings.DATABASES)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=patient(30), check=True)
