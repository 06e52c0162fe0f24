"""The backend for Django's `TASKS`: its tasks are jobs of a Headgate app."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules, import_string
from msgspec import structs

from headgate import DeclarationError, Headgate, JobNotFound
from headgate.admin import JobDetails
from headgate.contrib.django.arguments import Arguments
from headgate.contrib.django.body import DjangoTaskBody, with_connections, with_own_connections
from headgate.contrib.django.default_app import NoFileInTests, app_of_database
from headgate.contrib.django.options import options_of
from headgate.contrib.django.results import PRIORITY, enqueued_result
from headgate.contrib.django.standard import InvalidTaskBackend, backends, base, exceptions, signals, tasks
from headgate.jobs.encoded import is_in_folder
from headgate.jobs.job import MAX_PRIORITY, Origin
from headgate.storage.enlisting import OtherPlace
from headgate.tasks.call import FlowCall

OPTIONS = ("app", "database")


class Imported(dict[str, Any]):
    """The Django tasks that have been made, by the path of their function and by earlier paths."""

    def add(self, task: Any) -> None:
        """Add a task; a later result of `task.using(…)` is the same task."""
        known = self.get(task.module_path)
        if known is None or known.func is not task.func:
            for path in (*options_of(task.func).get("aliases", ()), task.module_path):
                self[path] = task


# Django makes a backend for each thread and asyncio task, so their shared state is here.
IMPORTED = Imported()
_lock = threading.Lock()
_declared: weakref.WeakKeyDictionary[Headgate, dict[str, DjangoTaskBody]] = weakref.WeakKeyDictionary()


class HeadgateBackend(backends.BaseTaskBackend):  # type: ignore[misc]  # its base has no types
    """Runs Django tasks as jobs: `"BACKEND": "headgate.contrib.django.HeadgateBackend"`.

    `OPTIONS["app"]` is the app, as `"module:app"`; it is imported on first use. Without it the jobs are in the
    PostgreSQL database that `OPTIONS["database"]` names, or in another file beside its SQLite file. `QUEUES` (default:
    `["default"]`) become queues of that app, unless it declares them itself. `OPTIONS["database"]` (default:
    `"default"`) is the alias of the connection whose transactions include enqueued jobs.

    Inside `atomic()` on that connection the job exists if and only if the transaction commits: it is written by it if
    the jobs are in the same database, else enqueued right after the commit.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = sorted(set(self.options) - set(OPTIONS))
        if unknown:
            raise InvalidTaskBackend(
                f'TASKS[{alias!r}] has the unknown OPTIONS {", ".join(unknown)}; write "OPTIONS": {{"app": '
                '"myproject.jobs:app"}, with "database" for a connection other than the default one'
            )
        self._database: str = self.options.get("database", "default")
        self._app: Headgate | None = None

    @property
    def app(self) -> Headgate:
        """The app, with its queues declared. Raises ImproperlyConfigured."""
        if self._app is None:
            path = self.options.get("app")
            app = app_of_database(self._database) if path is None else _import_app(path, self.alias)
            for queue in sorted(self.queues):
                if queue not in app._client.registry.queues:
                    app.queue(queue)
            # For the app's own tasks and schedules, too.
            app._registry.hooks.around_call = with_connections
            app._registry.hooks.around_coroutine = with_own_connections
            self._app = app
        return self._app

    def declare_all(self) -> Headgate:
        """Return the app with all tasks that have been imported, for a worker. Raises DeclarationError."""
        for path in sorted(IMPORTED):
            self._declared(path)
        return self.app

    def validate_task(self, task: Any) -> None:
        """Same as in Django. Raises InvalidTask."""
        super().validate_task(task)
        IMPORTED.add(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Store a job, or add it to the open transaction of Django's connection; return its result, which is READY.

        Raises TypeError or PayloadError for arguments that do not fit or are not JSON, CostExceedsLimit, QueueFull,
        StorageUnavailable; InvalidTask for a task that this backend cannot run; ImproperlyConfigured in tests whose
        jobs would be those of the site.
        """
        self.validate_task(task)
        if self.app._client.require_usable is not None:
            self.app._client.require_usable()
        declared = self._declared(task.module_path)
        result = enqueued_result(task, self.alias, "", Arguments(args, kwargs))
        call, headers = declared.parameters.to_job(Arguments(result.args, result.kwargs))
        if task.priority != base.DEFAULT_TASK_PRIORITY:
            headers[PRIORITY] = str(task.priority)
        job = declared.app_task.using(
            queue=task.queue_name,
            priority=job_priority(task.priority),
            at=None if task.run_after is None else _aware(task.run_after),
            headers=headers or None,
        )
        connection = connections[self._database]
        if not connection.in_atomic_block:
            id = job.sync.enqueue(*call.args, **call.kwargs).id
        elif (enlisted := self._enlist(connection, job, call)) is not None:
            id = enlisted
            if (rollbacks := self.app._client.rollbacks) is not None:
                rollbacks[id] = _rollback_check(self._database)
        else:
            # After the commit nothing could be refused any more.
            self.app._client.check(job, job.call(*call.args, **call.kwargs))
            # Its id is needed now, so that it can be stored in the transaction.
            id = self.app.sync.run(self._new_id())
            object.__setattr__(result, "id", id)
            transaction.on_commit(partial(self._enqueue_late, job, id, call, result), using=self._database)
            return result
        object.__setattr__(result, "id", id)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def app_task(self, task: Any) -> Any:
        """Return the app's task that runs a Django task, for `headgate.testing`."""
        return self._declared(task.module_path).app_task

    def get_result(self, result_id: str) -> Any:
        """Same as in Django. Raises TaskResultDoesNotExist, also for a pruned job, or one that is not a Django task."""
        try:
            details = self.app.sync.admin.job(result_id)
            return self._declared(details.record.task).result_of(self._loaded(details))
        except (JobNotFound, _NoDjangoTask) as error:
            raise exceptions.TaskResultDoesNotExist(str(error)) from error

    def _loaded(self, details: JobDetails) -> JobDetails:
        """Return a job with what is in the folder of large payloads."""
        record = details.record
        if is_in_folder(record.payload):
            record = structs.replace(record, payload=self.app.sync.admin.loaded(record.payload))
        if record.result is not None and is_in_folder(record.result):
            record = structs.replace(record, result=self.app.sync.admin.loaded(record.result))
        return replace(details, record=record)

    def check(self, **kwargs: Any) -> list[Any]:
        """Return errors for `manage.py check`: the app cannot be imported, or the database is not one of Django's."""
        found = []
        try:
            _ = self.app
        except NoFileInTests:
            # A test that enqueues raises it.
            pass
        except (ImportError, ImproperlyConfigured, DeclarationError) as error:
            found.append(checks.Error(str(error), id="headgate.E001"))
        if self._database not in connections:
            message = f"OPTIONS['database'] of TASKS[{self.alias!r}] is {self._database!r}, which is not in DATABASES"
            found.append(checks.Error(message, id="headgate.E002"))
        return found

    def _declared(self, path: str) -> DjangoTaskBody:
        """Return the app's task of this path; declare it if it is not. Raises DeclarationError."""
        task = IMPORTED.get(path)
        if task is None:
            task = _import_task(path)
            IMPORTED.add(task)
        queue = task.queue_name if not self.queues or task.queue_name in self.queues else min(self.queues)
        app = self.app
        with _lock:
            app_tasks = _declared.setdefault(app, {})
            found = app_tasks.get(task.module_path)
            if found is None:
                found = app_tasks[task.module_path] = DjangoTaskBody(app, task, self.alias, type(self), queue)
            return found

    def _enlist(self, connection: Any, job: Any, call: Arguments) -> str | None:
        """Return the id of a job that was written by Django's connection; None if the jobs are in another database."""
        # A test keeps the job whatever the database, since a TestCase never commits.
        if connection.vendor not in ("sqlite", "postgresql") and self.app._client.rollbacks is None:
            return None
        connection.ensure_connection()
        try:
            with connection.wrap_database_errors:
                id: str = job.using(connection=connection.connection).sync.enqueue(*call.args, **call.kwargs).id
        except (OtherPlace, DeclarationError):
            # Another database or file, or an app in memory.
            return None
        return id

    async def _new_id(self) -> str:
        return self.app._client.new_id()

    def _enqueue_late(self, job: Any, id: str, call: Arguments, result: Any) -> None:
        tied = FlowCall(id, job.call(*call.args, **call.kwargs), Origin(), ())
        self.app.sync.run(self.app._client.enqueue_flow([tied], []))
        signals.task_enqueued.send(type(self), task_result=result)


def require_backend(alias: str) -> None:
    """Raise ImproperlyConfigured if `TASKS` has no backend of this alias."""
    if alias not in tasks.task_backends.settings:
        known = ", ".join(sorted(tasks.task_backends.settings))
        raise InvalidTaskBackend(f"TASKS has no backend {alias!r}, only {known}")


def headgate_backend(alias: str) -> HeadgateBackend:
    """Return the backend of this alias. Raises ImproperlyConfigured if `TASKS` has none, or another kind."""
    require_backend(alias)
    backend = tasks.task_backends[alias]
    if not isinstance(backend, HeadgateBackend):
        path = f"{type(backend).__module__}.{type(backend).__qualname__}"
        raise InvalidTaskBackend(
            f"the backend of TASKS[{alias!r}] is {path}; "
            'write TASKS = {"default": {"BACKEND": "headgate.contrib.django.HeadgateBackend"}}'
        )
    return backend


def app_with_tasks(alias: str) -> Headgate:
    """Return the app of a backend, with the tasks of every `tasks.py` in INSTALLED_APPS declared.

    Raises ImproperlyConfigured, DeclarationError, and what the modules raise.
    """
    backend = headgate_backend(alias)
    autodiscover_modules("tasks")
    return backend.declare_all()


def dashboard_namespace(alias: str) -> str:
    """Return the URL namespace of a backend's dashboard."""
    return f"headgate-{alias}"


def job_priority(priority: int) -> int:
    """Return Django's -100 to 100 as 0 to 9; 0, which is Django's default, is 4."""
    span = int(base.TASK_MAX_PRIORITY - base.TASK_MIN_PRIORITY)
    return int(priority - base.TASK_MIN_PRIORITY) * MAX_PRIORITY // span


def _rollback_check(using: str) -> Callable[[], bool]:
    """Return a function that returns whether the open transaction, or its savepoint, was rolled back since."""
    committed = threading.Event()

    def commit() -> None:
        committed.set()

    # Django alone keeps it, and drops it in a rollback.
    transaction.on_commit(commit, using=using)
    pending = weakref.ref(commit)
    return lambda: pending() is None and not committed.is_set()


class _NoDjangoTask(LookupError):
    """A job is one of the app's own tasks, or of one that no longer exists."""


def _import_app(path: Any, alias: str) -> Headgate:
    where = f'OPTIONS["app"] of TASKS[{alias!r}]'
    if isinstance(path, Headgate):
        return path
    if not isinstance(path, str):
        raise ImproperlyConfigured(f'{where} is {path!r}; write it as "myproject.jobs:app"')
    found = import_string(path.replace(":", "."))
    if not isinstance(found, Headgate):
        raise ImproperlyConfigured(f"{where} names {path}, which is {type(found).__name__!r} and not a Headgate app")
    return found


def _import_task(path: str) -> Any:
    try:
        task = import_string(path)
    except ImportError:
        # A task of its module, which is imported now, may have had this path before.
        task = IMPORTED.get(path)
    if not isinstance(task, base.Task):
        raise _NoDjangoTask(f"{path!r} is not a Django task")
    return task


def _aware(instant: datetime) -> datetime:
    # Django has made it aware if it uses time zones.
    return instant if timezone.is_aware(instant) else timezone.make_aware(instant)
