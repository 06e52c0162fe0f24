"""A Django TestCase: its jobs run in its thread, and so in its transaction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import patient

PROGRAM = """
import sys
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()

from django.contrib.auth.models import User
from django.test import TestCase
from django.test.runner import DiscoverRunner
from headgate import Headgate
from headgate.testing import inline, manual

app = Headgate("postgresql://nobody@127.0.0.1:1/production")


@app.task
def rename(key: int) -> None:
    User.objects.filter(pk=key).update(username="grace")


class Renaming(TestCase):
    def setUp(self):
        self.user = User.objects.create(username="ada")

    def tearDown(self):
        self.user.refresh_from_db()
        assert self.user.username == "grace"

    def test_manual(self):
        with manual(app) as jobs:
            rename.sync.enqueue(self.user.pk)
            jobs.sync.drain()

    def test_inline(self):
        with inline(app):
            rename.sync.enqueue(self.user.pk)


if __name__ == "__main__":
    runner = DiscoverRunner(verbosity=0)
    runner.setup_test_environment()
    runner.setup_databases()
    suite = runner.test_loader.loadTestsFromTestCase(Renaming)
    result = runner.run_suite(suite)
    sys.exit(not (result.testsRun == 2 and result.wasSuccessful()))
"""


@pytest.mark.slow
def test_the_jobs_of_a_django_test_case_run_in_its_transaction(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=patient(15), check=False
    )
    assert ran.returncode == 0, ran.stderr
