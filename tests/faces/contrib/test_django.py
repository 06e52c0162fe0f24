"""Django tasks on Headgate: the contract of Django's task framework, with a worker and a database of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest.mock import patch

import pytest
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections, transaction
from django.test.utils import override_settings
from django.utils import timezone

from headgate import (
    DeclarationError,
    Headgate,
    JobNotFound,
    JobState,
    PayloadError,
    StorageUnavailable,
    UnfitConnection,
    chain,
)
from headgate.contrib.django import HeadgateBackend, database_url, task_options
from headgate.contrib.django.backend import IMPORTED
from headgate.contrib.django.standard import InvalidTask, InvalidTaskBackend, exceptions, signals, tasks
from headgate.errors import UnknownQueue
from headgate.jobs.encoded import codecs_of
from headgate.testing import manual
from tests.faces.contrib.django_shop import ended, running, set_up
from tests.internals import make_ids_again
from tests.until import patient, until_now


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The tasks of a project, without a worker."""
    with set_up(tmp_path_factory.getbasetemp() / "shop") as shop:
        yield shop


@pytest.fixture(scope="module")
def worker(shop: Any) -> Iterator[Any]:
    """The same with one."""
    with running(tasks.task_backends["default"].declare_all()):
        yield shop


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    connections.close_all()


def notes() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM note")
        return {name for (name,) in cursor.fetchall()}


@contextmanager
def heard(signal: Any) -> Iterator[SimpleQueue[tuple[str, str, int]]]:
    """Collect the results that a signal is sent with: id, status and attempts at that time."""
    heard: SimpleQueue[tuple[str, str, int]] = SimpleQueue()

    def hear(sender: Any, task_result: Any, **_: Any) -> None:
        assert sender is HeadgateBackend
        heard.put((task_result.id, str(task_result.status), task_result.attempts))

    signal.connect(hear)
    try:
        yield heard
    finally:
        signal.disconnect(hear)


# ------------------------------------------------------------------------------------------------------- the contract


def test_a_task_runs_with_its_arguments_and_its_result_comes_back(worker: Any) -> None:
    result = worker.add.enqueue(1, b=2, scale=10)
    assert (result.status, result.args, result.kwargs) == ("READY", [1], {"b": 2, "scale": 10})
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    ended(result)
    assert (result.status, result.return_value, result.attempts, result.errors) == ("SUCCESSFUL", 30, 1, [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at


def test_a_stored_result_is_that_of_the_call_that_was_made(worker: Any) -> None:
    made = worker.add.using(priority=-37, queue_name="mail").enqueue(1, scale=2)
    found = worker.add.get_result(ended(made).id)
    assert (found.args, found.kwargs, found.return_value) == ([1], {"scale": 2}, 4)
    assert (found.task.priority, found.task.queue_name, found.task.func) == (-37, "mail", worker.add.func)
    assert found.backend == "default"


def test_a_function_of_any_arguments_gets_them_as_they_were_passed(worker: Any) -> None:
    result = ended(worker.anything.enqueue(1, (2, 3), name="x"))
    assert (result.args, result.kwargs) == ([1, [2, 3]], {"name": "x"})
    assert result.return_value == [[1, [2, 3]], {"name": "x"}]
    found = worker.anything.get_result(result.id)
    assert (found.args, found.kwargs) == ([1, [2, 3]], {"name": "x"})


def test_encoded_arguments_and_results_are_read_as_others(worker: Any) -> None:
    long = "x" * 2000
    with heard(signals.task_finished) as finished:
        result = ended(worker.anything.enqueue(long))
        assert finished.get(timeout=patient(10))[1] == "SUCCESSFUL"
    from tests.faces.contrib.shop.jobs import app

    record = app.sync.admin.job(result.id).record
    assert codecs_of(record.payload) == codecs_of(record.result or "") == ("zlib",)
    found = worker.anything.get_result(result.id)
    assert (found.args, found.return_value) == ([long], [[long], {}])


def test_coroutines_run_and_are_enqueued_and_read_from_coroutines(worker: Any) -> None:
    async def scenario() -> Any:
        result = await worker.add_soon.aenqueue(1, 2)
        while not result.is_finished:
            await asyncio.sleep(0.01)
            await result.arefresh()
        return await worker.add_soon.aget_result(result.id)

    assert asyncio.run(scenario()).return_value == 3


def test_a_coroutine_of_a_worker_enqueues(worker: Any) -> None:
    later = ended(worker.add_later.enqueue(3, 4)).return_value
    assert ended(worker.add.get_result(later)).return_value == 7


def test_jobs_of_a_renamed_task_run_and_return_their_results(worker: Any) -> None:
    # As a process of the release before has enqueued it.
    app = Headgate(os.environ["HEADGATE_URL"], synchronous="OFF")

    @app.task(name="tests.faces.contrib.shop.tasks.old_name")
    def old_name(a: int) -> None: ...

    with app.sync:
        id = old_name.sync.enqueue(5).id
    result = worker.new_name.get_result(id)
    assert ended(result).return_value == 5


def test_a_result_of_a_renamed_task_is_found_by_a_process_that_has_not_imported_its_module(
    shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "letters.py").write_text(
        "from headgate.contrib.django import task_options\n"
        "from headgate.contrib.django.standard import tasks\n\n\n"
        "@tasks.task\n@task_options(aliases=['letters.sent'])\ndef sending() -> None: ...\n"
    )
    app = Headgate(os.environ["HEADGATE_URL"], synchronous="OFF")

    @app.task(name="letters.sent")
    def as_before() -> None: ...

    with app.sync:
        id = as_before.using(delay=3600).sync.enqueue().id
    assert tasks.task_backends["default"].get_result(id).task.name == "sending"


@pytest.mark.parametrize("name", ["own_id", "is_connected"])
def test_a_job_in_a_queue_that_queues_no_longer_lists_runs_and_returns_its_result(worker: Any, name: str) -> None:
    # As a process of the release before has enqueued it.
    app = Headgate(os.environ["HEADGATE_URL"], synchronous="OFF")
    app.queue("letters")

    @app.task(name=f"tests.faces.contrib.shop.tasks.{name}", queue="letters")
    def as_before() -> None: ...

    with app.sync:
        id = as_before.sync.enqueue().id
    result = ended(getattr(worker, name).get_result(id))
    assert (result.status, result.errors, result.task.queue_name) == ("SUCCESSFUL", [], "letters")


def test_a_failed_task_has_its_errors(worker: Any) -> None:
    result = ended(worker.fail.enqueue("out of stock"))
    assert result.status == "FAILED"
    (error,) = result.errors
    assert error.exception_class is ValueError
    assert error.traceback.endswith("ValueError: out of stock\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_task_with_context_has_its_attempt_and_earlier_errors(worker: Any) -> None:
    result = ended(worker.third_time.enqueue("lamp"))
    assert result.return_value == [3, 2, {"args": ["lamp"]}]
    assert result.attempts == 3
    assert [error.exception_class for error in result.errors] == [RuntimeError, RuntimeError]
    assert result.started_at < result.last_attempted_at


def test_the_context_is_that_of_the_job(worker: Any) -> None:
    result = ended(worker.own_id.enqueue())
    assert result.return_value == result.id


def test_a_cancelled_job_is_a_failed_task(shop: Any) -> None:
    result = shop.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1)
    tasks.task_backends["default"].app.sync.job(result.id).cancel()
    result.refresh()
    assert result.status == "FAILED"
    assert result.errors[0].exception_class_path == "headgate.errors.JobCancelled"


def test_a_task_waits_until_it_may_run(worker: Any) -> None:
    run_after = timezone.now() + timedelta(hours=1)
    result = worker.add.using(run_after=run_after).enqueue(1)
    result.refresh()
    assert (result.status, result.started_at, result.attempts) == ("READY", None, 0)
    assert worker.add.get_result(result.id).task.run_after == run_after


@pytest.mark.parametrize(("told", "kept"), [(-100, 0), (-1, 4), (0, 4), (20, 5), (100, 9)])
def test_a_priority_of_django_is_mapped_to_one_of_headgate(shop: Any, told: int, kept: int) -> None:
    later = timezone.now() + timedelta(days=1)
    result = shop.add.using(priority=told, run_after=later).enqueue(1)
    status = tasks.task_backends["default"].app.sync.job(result.id).status()
    assert status.priority == kept
    assert shop.add.get_result(result.id).task.priority == told


def test_signals_are_sent_when_a_task_is_enqueued_starts_and_ends(worker: Any) -> None:
    with (
        heard(signals.task_enqueued) as enqueued,
        heard(signals.task_started) as started,
        heard(signals.task_finished) as finished,
    ):
        for task, call, status in [
            (worker.add, (1,), "SUCCESSFUL"),
            (worker.add_soon, (1, 2), "SUCCESSFUL"),
            (worker.fail, ("no",), "FAILED"),
        ]:
            id = task.enqueue(*call).id
            assert enqueued.get(timeout=patient(5)) == (id, "READY", 0)
            assert started.get(timeout=patient(5)) == (id, "RUNNING", 1)
            assert finished.get(timeout=patient(5)) == (id, status, 1)


def test_the_signal_at_the_end_has_the_stored_result(worker: Any) -> None:
    told: SimpleQueue[Any] = SimpleQueue()

    def hear(task_result: Any, **_: Any) -> None:
        told.put(task_result)

    def seen(result: Any) -> tuple[Any, ...]:
        errors = [(error.exception_class_path, error.traceback.splitlines()[-1]) for error in result.errors]
        value = result.return_value if result.status == "SUCCESSFUL" else None
        return result.id, result.status, result.args, result.kwargs, result.attempts, errors, value

    signals.task_finished.connect(hear)
    try:
        for task, call in [
            (worker.anything, (1, (2,))),
            (worker.add_soon, (1, 2)),
            (worker.third_time, ("lamp",)),
            (worker.fail, ("no",)),
        ]:
            result = task.enqueue(*call)
            assert seen(told.get(timeout=patient(5))) == seen(ended(result))
    finally:
        signals.task_finished.disconnect(hear)


def test_a_result_that_is_not_there_or_of_another_task_is_refused(shop: Any) -> None:
    app = tasks.task_backends["default"].app
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        shop.add.get_result("123")
    foreign = app.tasks["not_of_django"].using(delay=3600).sync.enqueue()
    with pytest.raises(exceptions.TaskResultDoesNotExist, match="not a Django task"):
        shop.add.get_result(foreign.id)
    other = shop.anything.using(run_after=timezone.now() + timedelta(days=1)).enqueue()
    with pytest.raises(exceptions.TaskResultMismatch):
        shop.add.get_result(other.id)


def test_an_invalid_task_is_refused_when_it_is_created(shop: Any) -> None:
    def inner() -> None: ...

    with pytest.raises(InvalidTask):
        tasks.task(inner)
    for options in ({"queue_name": "unknown"}, {"priority": 101}, {"run_after": timezone.now().replace(tzinfo=None)}):
        with pytest.raises(InvalidTask):
            shop.add.using(**options)


def test_arguments_that_cannot_be_stored_are_refused_and_no_job_is_stored(shop: Any) -> None:
    with heard(signals.task_enqueued) as enqueued:
        with pytest.raises(TypeError, match="Unsupported type"):
            shop.add.enqueue(object())
        with pytest.raises(TypeError, match="lacks argument 'a'"):
            shop.add.enqueue()
        with pytest.raises(PayloadError):
            shop.anything.enqueue({1: "a key that JSON would make text"})
    assert enqueued.empty()


def test_a_task_can_be_pickled(shop: Any) -> None:
    # Django 6 has a task reduce to its path; the package before it pickles fields, of which the function is not one.
    if hasattr(type(shop.add), "_reconstruct"):
        assert pickle.loads(pickle.dumps(shop.add)) == shop.add


# ------------------------------------------------------------------------------------------------------- transactions


def test_a_task_that_is_enqueued_in_a_transaction_is_there_if_it_commits(worker: Any) -> None:
    with transaction.atomic():
        result = worker.add.enqueue(1)
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            result.refresh()
    assert ended(result).return_value == 2


def test_a_task_that_is_enqueued_in_a_transaction_is_gone_if_it_rolls_back(worker: Any) -> None:
    with transaction.atomic():
        result = worker.insert.enqueue("rolled back")
        transaction.set_rollback(True)
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        result.refresh()


def test_a_rolled_back_savepoint_removes_its_tasks(worker: Any) -> None:
    with transaction.atomic():
        kept = worker.add.enqueue(1)
        with transaction.atomic():
            lost = worker.add.enqueue(1)
            transaction.set_rollback(True)
    assert ended(kept).return_value == 2
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        lost.refresh()


def test_a_task_that_is_completed_in_a_transaction_has_ended_once_that_commits(worker: Any) -> None:
    result = ended(worker.insert_once.enqueue("in one commit"))
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", None, 1)
    assert "in one commit" in notes()


def test_where_the_transaction_was_ended_by_hand_a_task_is_refused(worker: Any) -> None:
    """The fault: it was enqueued after the block without a word, as if the jobs were in another database."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("COMMIT")
        with pytest.raises(UnfitConnection, match="no open transaction"):
            worker.add.enqueue(1)
        cursor.execute("BEGIN")
        assert transaction.get_connection().run_on_commit == []


def test_in_a_transaction_of_another_database_a_task_is_enqueued_after_the_commit_with_the_returned_id(
    worker: Any,
) -> None:
    task = worker.add.using(backend="beside")
    with heard(signals.task_enqueued) as enqueued, transaction.atomic(using="elsewhere"):
        result = task.enqueue(1, b=5)
        assert enqueued.empty()
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            result.refresh()
    assert enqueued.get(timeout=patient(5)) == (result.id, "READY", 0)
    assert (ended(result).return_value, result.args, result.kwargs) == (6, [1], {"b": 5})


def test_a_task_of_the_app_is_part_of_a_transaction_whose_connection_it_gets(worker: Any) -> None:
    """The fault: the docs promised it of every job "inside atomic()", and without the connection it stays."""
    from tests.faces.contrib.shop.jobs import app, not_of_django

    def enqueued(*, commits: bool) -> str:
        with transaction.atomic():
            id = not_of_django.using(connection=connection.connection).sync.enqueue().id
            transaction.set_rollback(not commits)
        return id

    app.sync.job(enqueued(commits=True)).result(timeout=patient(10))
    with pytest.raises(JobNotFound):
        app.sync.job(enqueued(commits=False)).status()


def test_after_a_rollback_of_another_database_nothing_is_enqueued(worker: Any) -> None:
    with transaction.atomic(using="elsewhere"):
        result = worker.add.using(backend="beside").enqueue(1)
        transaction.set_rollback(True, using="elsewhere")
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        result.refresh()


def test_a_job_leaves_no_connection_to_the_thread_that_ran_it(worker: Any) -> None:
    assert ended(worker.insert.enqueue("plain")).return_value == 1
    assert ended(worker.insert_soon.enqueue("async")).return_value == 1
    assert {"plain", "async"} <= notes()
    assert worker.connections_seen
    assert not any(ended(worker.is_connected.enqueue()).return_value for _ in range(5))


@pytest.mark.parametrize(
    "name", ["connects", "connects_soon", "connects_many", "connects_many_soon", "connects_in_child"]
)
def test_a_task_of_the_app_itself_leaves_no_connection_either(worker: Any, name: str) -> None:
    """The fault: coroutines, chunks and child processes kept it, and failed for ever after the server had restarted."""
    from tests.faces.contrib.shop.jobs import app

    connects = app.tasks[name]
    jobs = [connects.sync.enqueue(*((1,) if "many" in name else ())) for _ in range(9)]
    assert not any(job.result(timeout=patient(30)) for job in jobs)


def test_callbacks_leave_no_connection(worker: Any) -> None:
    """The fault: theirs stayed open, and a coroutine used it after the server had restarted."""
    from tests.faces.contrib.shop import jobs

    for _ in range(5):
        jobs.calls_back.sync.enqueue().result(timeout=patient(10))
    until_now(lambda: len(jobs.seen) >= 10)
    assert not any(jobs.seen)


# ------------------------------------------------------------------------------------------------------------- limits


def test_a_limit_on_a_task_applies_to_each_key(worker: Any) -> None:
    first, second, other = (worker.sync_tenant.enqueue(tenant) for tenant in ("acme", "acme", "globex"))
    assert ended(first).return_value == "acme"
    assert ended(other).return_value == "globex"
    second.refresh()
    assert second.status == "READY"
    status = tasks.task_backends["default"].app.sync.job(second.id).status()
    assert status.waits_for[1] == "acme"


def test_a_refusal_of_the_callee_spends_no_attempt(worker: Any) -> None:
    result = ended(worker.refused_once.enqueue("acme"))
    assert (result.return_value, result.attempts, result.errors) == (1, 1, [])


def test_options_of_headgate_are_ignored_by_another_backend(shop: Any) -> None:
    immediate = f"{tasks.__name__}.backends.immediate.ImmediateBackend"
    with override_settings(TASKS={"default": {"BACKEND": immediate}}):
        assert shop.sync_tenant.enqueue("acme").return_value == "acme"


# ------------------------------------------------------------------------------------------------------------ settings


def backend(**params: Any) -> HeadgateBackend:
    return HeadgateBackend("default", params)


def test_invalid_options_are_reported_immediately(shop: Any) -> None:
    with pytest.raises(InvalidTaskBackend, match="unknown OPTIONS url"):
        backend(OPTIONS={"app": "x:y", "url": "sqlite:///jobs.db"})


def test_a_system_check_reports_a_missing_app_and_an_unknown_database(shop: Any) -> None:
    assert backend(OPTIONS={"app": "tests.faces.contrib.shop.jobs:app"}).check() == []
    found = [
        *backend(OPTIONS={"app": "no.such.module:app"}).check(),
        *backend(OPTIONS={"app": "tests.faces.contrib.shop.tasks:add"}).check(),
        *backend(OPTIONS={"app": "tests.faces.contrib.shop.jobs:app", "database": "reports"}).check(),
    ]
    assert [each.id for each in found] == ["headgate.E001", "headgate.E001", "headgate.E002"]
    assert checks.run_checks() == []


def test_jobs_beside_a_sqlite_file_are_in_its_folder_whatever_that_is_called(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_URL")
    monkeypatch.setitem(connection.settings_dict, "NAME", "/srv/a%20b?/c d.db")
    app = Headgate(database_url())
    assert app._client.address.shown == "/srv/a%20b?/c d-jobs.db"


def test_no_test_works_on_the_jobs_of_the_site(shop: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fault: only Django's own tasks were refused; tasks of the app were enqueued, and run, in production."""
    monkeypatch.delenv("HEADGATE_URL")
    monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "site.db"))
    app = Headgate(database_url())
    of_app = app.task(report)
    of_django = tasks.task(backend="beside")(report)
    beside = backend(OPTIONS={"app": app}, QUEUES=[])
    monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "test.db"))
    refused = pytest.raises(ImproperlyConfigured, match=r"the jobs are in .*site-jobs.db, and Django uses .*test.db'")
    with refused:
        of_app.sync.enqueue()
    with refused:
        chain(of_app.call(), of_app.call()).sync.enqueue()
    with refused:
        beside.enqueue(of_django, (), {})
    with refused, app.open():
        pass
    assert list(tmp_path.iterdir()) == []
    with manual(app) as jobs:
        of_app.sync.enqueue()
        assert jobs.sync.drain().count("succeeded") == 1
    monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "site.db"))
    with app.sync:
        assert of_app.sync.enqueue().status().state == "waiting"


def test_without_databases_the_url_of_the_jobs_is_refused_for_that(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: in the settings above DATABASES, jobs could not live "in a database of unknown"."""
    monkeypatch.delenv("HEADGATE_URL")
    monkeypatch.setitem(connection.settings_dict, "ENGINE", "django.db.backends.dummy")
    with pytest.raises(ImproperlyConfigured, match=r"DATABASES has no 'default', .* call database_url\(\) below it"):
        database_url()


def report() -> None: ...


def test_without_queues_a_backend_takes_a_task_of_any_queue(shop: Any) -> None:
    """The fault: Django checks no names of queues then, and the task was refused: its queue was not declared."""
    app = Headgate("memory://")
    any_queue = backend(OPTIONS={"app": app}, QUEUES=[])
    task = tasks.task(backend="beside", queue_name="reports")(report)
    with app.sync:
        result = any_queue.enqueue(task, (), {})
        assert app.sync.admin.job(result.id).record.queue == "reports"
        with pytest.raises(UnknownQueue, match="which is not declared"):
            any_queue.enqueue(task.using(queue_name="elsewhere"), (), {})


def test_an_app_in_memory_is_enqueued_to_after_the_commit(shop: Any) -> None:
    app = Headgate("memory://")
    in_memory = backend(OPTIONS={"app": app}, QUEUES=["default", "mail"])
    with app.sync, transaction.atomic():
        result = in_memory.enqueue(shop.add, (1,), {})
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            in_memory.get_result(result.id)
        transaction.get_connection().run_on_commit.pop()[1]()
        assert in_memory.get_result(result.id).args == [1]


def test_in_a_transaction_of_another_kind_of_database_a_call_that_does_not_fit_is_refused_at_once(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the call was accepted, and the error came out of the block after its commit."""
    app = Headgate("memory://")
    in_memory = backend(OPTIONS={"app": app}, QUEUES=["default", "mail"])
    with app.sync, transaction.atomic():
        monkeypatch.setattr(connections["default"], "vendor", "mysql")
        with pytest.raises(TypeError, match="has no argument 'c'"):
            in_memory.enqueue(shop.add, (1,), {"c": 2})
        with pytest.raises(PayloadError, match="bytes as JSON, more than"):
            in_memory.enqueue(shop.add, ("x" * 300_000,), {})
        assert transaction.get_connection().run_on_commit == []
        monkeypatch.undo()


def test_a_task_whose_promised_id_is_taken_by_the_commit_is_refused_with_an_error_that_names_it(shop: Any) -> None:
    app = Headgate("memory://")
    in_memory = backend(OPTIONS={"app": app}, QUEUES=["default", "mail"])
    with app.sync, transaction.atomic():
        results = []
        for number in (1, 2):
            make_ids_again(app, producer=7)
            results.append(in_memory.enqueue(shop.add, (number,), {}))
        first, second = results
        assert first.id == second.id
        late = [callback for _, callback, _ in transaction.get_connection().run_on_commit]
        transaction.get_connection().run_on_commit.clear()
        late[0]()
        with pytest.raises(StorageUnavailable, match=rf"not enqueued: .*{second.id}.* enqueue it again"):
            late[1]()
        assert in_memory.get_result(first.id).args == [1]


def test_nothing_is_kept_of_a_job_that_was_cancelled_while_it_ran(worker: Any) -> None:
    """The fault: its result stayed in memory, with its arguments, until the worker ended."""
    result = worker.work_until_cancelled.enqueue()
    job = tasks.task_backends["default"].app.sync.job(result.id)
    until_now(lambda: job.status().state is JobState.RUNNING)
    assert job.cancel() is True
    assert ended(result).status == "FAILED"
    kept = tasks.task_backends["default"]._declared(worker.work_until_cancelled.module_path)._attempts
    until_now(lambda: gc.collect() >= 0 and not kept)


def test_options_above_the_task_are_refused(shop: Any) -> None:
    with pytest.raises(DeclarationError, match="below @task"):
        task_options(timeout=1)(shop.add)


def test_a_limit_that_names_no_argument_is_refused_when_the_task_is_first_used(
    shop: Any,
) -> None:
    # The worker of the other tests, which may start after this one, would refuse the task as well.
    with patch.dict(IMPORTED):
        from tests.faces.contrib.shop import misdeclared

        with pytest.raises(DeclarationError, match="tenant"):
            misdeclared.wrong.enqueue("acme")
