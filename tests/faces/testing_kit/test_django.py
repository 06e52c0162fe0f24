"""A Django TestCase: its jobs run in its thread, and so in its transaction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import patient

PROGRAM = """
import os
import sys
from unittest.mock import patch
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
    # A file: the connection to a database in memory is never closed.
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3", "TEST": {"NAME": "test.sqlite3"},
        }
    },
    TASKS={
        "default": {
            "BACKEND": "headgate.contrib.django.HeadgateBackend", "OPTIONS": {"app": "__main__:app"},
        }
    },
)
django.setup()

from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from django.test.runner import DiscoverRunner
from headgate import Headgate
from headgate.contrib.django import database_url
from headgate.contrib.django.standard import tasks
from headgate.testing import inline, manual

app = Headgate(database_url())


@app.task
def rename(key: int) -> None:
    User.objects.filter(pk=key).update(username="grace")


@tasks.task
def rename_as_django_does(key: int) -> int:
    return User.objects.filter(pk=key).update(username="grace")


@tasks.task
def never(key: int) -> None: ...


@tasks.task
async def rename_as_django_does_async(key: int) -> int:
    return await User.objects.filter(pk=key).aupdate(username="grace")


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

    def test_a_task_of_django(self):
        with manual(app) as jobs:
            rename_as_django_does.enqueue(self.user.pk)
            jobs.assert_enqueued(rename_as_django_does, key=self.user.pk, count=1)
            jobs.refute_enqueued(rename_as_django_does, key=0)
            jobs.refute_enqueued(never)
            assert len(jobs.all_enqueued(rename_as_django_does)) == 1
            jobs.sync.drain()

    def test_run_a_task_of_django(self):
        with manual(app) as jobs:
            assert jobs.sync.run_job(rename_as_django_does, self.user.pk) == 1

    def test_inline_a_task_of_django(self):
        with inline(app):
            rename_as_django_does.enqueue(self.user.pk)

    async def test_an_async_test_keeps_its_transaction(self):
        # The fault: the job closed the connection of the test, so that its job was gone and all later tests failed.
        with manual(app) as jobs:
            result = await rename_as_django_does_async.aenqueue(self.user.pk)
            await jobs.drain()
            await result.arefresh()
            assert result.return_value == 1


class Committing:
    # A transaction of the code that is tested, inside of the transaction of a TestCase or outside of one.

    def test_a_rollback_removes_its_jobs(self):
        with manual(app) as jobs:
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                never.enqueue(1)
                jobs.assert_enqueued(never, key=1)
                1 / 0
            jobs.refute_enqueued(never)

    def test_jobs_of_a_rollback_do_not_run(self):
        with manual(app) as jobs:
            with transaction.atomic():
                try:
                    with transaction.atomic():
                        never.enqueue(1)
                        1 / 0
                except ZeroDivisionError:
                    never.enqueue(2)
            assert jobs.sync.drain().count("succeeded") == 1
            assert [job.arguments for job in jobs.all_enqueued(never)] == [{"key": 2}]

    def test_a_commit_keeps_its_jobs(self):
        with manual(app) as jobs:
            with transaction.atomic():
                never.enqueue(1)
                # In the middle of the callbacks, the ones that follow are neither called nor kept by Django.
                transaction.on_commit(lambda: jobs.assert_enqueued(never, count=2))
                never.enqueue(2)
            assert jobs.sync.drain().count("succeeded") == 2


class InATransaction(Committing, TestCase): ...


class InNone(Committing, TransactionTestCase): ...


class InADatabaseThatCannotHoldJobs(Committing, TestCase):
    def setUp(self):
        vendor = patch.object(connections["default"], "vendor", "mysql")
        vendor.start()
        self.addCleanup(vendor.stop)


class WithoutDatabase(SimpleTestCase):
    # It may not use a connection which an earlier test has left open, as under pytest-django.

    databases = {"default"}

    def test_a_task_that_uses_no_database_runs(self):
        connection.ensure_connection()
        with manual(app) as jobs, patch.object(BaseDatabaseWrapper, "ensure_connection", side_effect=RuntimeError):
            never.enqueue(1)
            assert jobs.sync.drain().count("succeeded") == 1


class OutsideOfTheKit(TestCase):
    def test_a_test_enqueues_nothing_beside_the_database_of_the_site(self):
        with self.assertRaisesRegex(ImproperlyConfigured, "site-jobs.sqlite3.*test.sqlite3.*with manual"):
            rename_as_django_does.enqueue(1)
        assert not os.path.exists("site-jobs.sqlite3")


if __name__ == "__main__":
    runner = DiscoverRunner(verbosity=0)
    runner.setup_test_environment()
    runner.setup_databases()
    suite = runner.test_loader.loadTestsFromModule(sys.modules["__main__"])
    result = runner.run_suite(suite)
    sys.exit(not (result.testsRun == 17 and result.wasSuccessful()))
"""


@pytest.mark.slow
def test_the_jobs_of_a_django_test_case_run_in_its_transaction(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=patient(15), check=False
    )
    assert ran.returncode == 0, ran.stderr
