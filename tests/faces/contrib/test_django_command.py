"""`manage.py headgate`: workers as processes of their own, on a PostgreSQL that Django's transactions share."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from headgate import Headgate
from tests.until import patient, result_within

ROOT = Path(__file__).parents[3]
MANAGE = (sys.executable, "-W", "error", "-m", "django", "headgate")


@pytest_asyncio.fixture
async def environment(postgres_url: str, tmp_path: Path) -> AsyncIterator[Mapping[str, str]]:
    """A database of the shop's own, which is gone after the test."""
    name = f"shop_{uuid4().hex[:12]}"
    server = await asyncpg.connect(postgres_url)
    await server.execute(f"CREATE DATABASE {name}")
    url = urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    try:
        yield {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "tests.faces.contrib.shop.settings",
            "SHOP_DATABASE": url,
            "SHOP_ELSEWHERE": str(tmp_path / "elsewhere.db"),
            "HEADGATE_URL": url,
        }
    finally:
        await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await server.close()


@pytest.mark.slow
def test_a_worker_of_django_runs_what_a_transaction_on_postgresql_has_committed_and_nothing_else(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    visitor = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.faces.contrib.shop.visitor"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patient(15),
        check=False,
    )
    assert visitor.returncode == 0, visitor.stderr
    kept, lost, gated = visitor.stdout.split()

    async def look() -> set[str]:
        async with Headgate(environment["HEADGATE_URL"]).open() as app:
            assert await result_within(app.job(kept), 15) == 1
            assert await result_within(app.job(gated), 15) == "acme"
            return {status.id for status in await app.admin.jobs()}

    worker = subprocess.Popen(
        [*MANAGE, "worker", "--processes", "2", "--grace", "5"], env=environment, cwd=tmp_path, stderr=subprocess.PIPE
    )
    try:
        found = asyncio.run(look())
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            _, said = worker.communicate(timeout=patient(15))
        finally:
            worker.kill()
    assert worker.returncode == 0, said.decode()
    assert found == {kept, gated}
    assert lost not in found
    assert asyncio.run(notes(environment["SHOP_DATABASE"])) == {"ordered", "committed"}


@pytest.mark.slow
def test_the_processes_of_a_worker_find_the_project_from_any_directory(tmp_path: Path) -> None:
    """The fault: under systemd or cron they ended, since only the process of manage.py itself found its settings."""
    make_project(tmp_path)
    worker = subprocess.run(
        [sys.executable, "site/manage.py", "headgate", "worker", "--processes", "2", "--drain"],
        env={name: value for name, value in os.environ.items() if name != "HEADGATE_URL"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patient(15),
        check=False,
    )
    assert worker.returncode == 0, worker.stderr


@pytest.mark.slow
def test_the_files_for_a_deploy_find_the_project(tmp_path: Path) -> None:
    """The fault: the unit ended with "settings are not configured", and Docker's file was "not in" the project."""
    make_project(tmp_path)
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("HEADGATE_", "DJANGO_"))}
    run = partial(subprocess.run, cwd=tmp_path / "site", timeout=patient(15), check=True)
    for words in (["systemd"], ["docker"]):
        run([sys.executable, "manage.py", "headgate", "init", *words], env=bare, capture_output=True)
    files = {
        name: (tmp_path / "site" / name).read_text() for name in ("headgate-worker@.service", "headgate-worker.env")
    }
    (command,) = re.findall("^ExecStart=(.*)", files["headgate-worker@.service"], re.MULTILINE)
    variables = dict(line.split("=", 1) for line in files["headgate-worker.env"].splitlines() if line[:1] != "#")
    assert variables == {"DJANGO_SETTINGS_MODULE": "shop_from_elsewhere.settings"}
    run([*shlex.split(command), "--drain"], env={**bare, **variables})
    assert "DJANGO_SETTINGS_MODULE=shop_from_elsewhere.settings\n" in (tmp_path / "site" / "headgate.env").read_text()
    assert "image: shop_from_elsewhere\n" in (tmp_path / "site" / "compose.yaml").read_text()


@pytest.mark.slow
def test_a_site_without_an_app_of_its_own_runs_its_tests(tmp_path: Path) -> None:
    """The fault: a system check ended all tests of such a site, also those that enqueue nothing."""
    make_project(tmp_path)
    (tmp_path / "site" / "tests.py").write_text(
        "from django.core.exceptions import ImproperlyConfigured\n"
        "from django.test import TestCase\n"
        "from headgate.contrib.django import standard\n"
        "@standard.tasks.task\n"
        "def work() -> None: ...\n"
        "class Orders(TestCase):\n"
        "    def test_that_enqueues_nothing(self): ...\n"
        "    def test_that_enqueues(self):\n"
        "        with self.assertRaisesMessage(ImproperlyConfigured, 'ImmediateBackend'):\n"
        "            work.enqueue()\n"
    )
    tests = subprocess.run(
        [sys.executable, "manage.py", "test"],
        env={name: value for name, value in os.environ.items() if name != "HEADGATE_URL"},
        cwd=tmp_path / "site",
        capture_output=True,
        text=True,
        timeout=patient(15),
        check=False,
    )
    assert "Ran 2 tests" in tests.stderr
    assert tests.returncode == 0, tests.stderr


def make_project(folder: Path) -> None:
    """Make a project with a manage.py in `site`, whose database is a file in the folder."""
    project = folder / "site" / "shop_from_elsewhere"
    project.mkdir(parents=True)
    (project.parent / "manage.py").write_text(
        "import os, sys\n"
        "from django.core.management import execute_from_command_line\n"
        'os.environ["DJANGO_SETTINGS_MODULE"] = "shop_from_elsewhere.settings"\n'
        "execute_from_command_line(sys.argv)\n"
    )
    (project / "settings.py").write_text(
        "from headgate.contrib.django import standard\n"
        'INSTALLED_APPS = ["headgate.contrib.django", *{"django_tasks"} & {standard.NAME}]\n'
        f"DATABASES = {{'default': {{'ENGINE': 'django.db.backends.sqlite3', 'NAME': {str(folder / 'db')!r}}}}}\n"
        "TASKS = {'default': {'BACKEND': 'headgate.contrib.django.HeadgateBackend'}}\n"
    )


async def notes(url: str) -> set[str]:
    connection = await asyncpg.connect(url)
    try:
        return {row["name"] for row in await connection.fetch("SELECT name FROM note")}
    finally:
        await connection.close()


@pytest.mark.nightly
@pytest.mark.slow
def test_the_other_commands_work_on_the_app_of_a_backend(environment: Mapping[str, str], tmp_path: Path) -> None:
    def manage(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*MANAGE, *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=patient(15),
            check=False,
        )

    assert "0001 initial" in manage("migrate").stdout
    unknown = manage("--backend", "nightly", "status")
    assert (unknown.returncode, "TASKS has no backend 'nightly', only beside, default" in unknown.stderr) == (
        1,
        True,
    ), unknown.stderr
