"""The body of a Django task's job: the function, with Django's signals and database connections around it."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction
from typing import Any
from weakref import WeakKeyDictionary

import django
import msgspec
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.apps import apps
from django.conf import ENVIRONMENT_VARIABLE, settings
from django.db import connections
from msgspec import structs

from headgate import Headgate, JobContext, Task, current_job
from headgate.admin import JobDetails
from headgate.contrib.django.arguments import Arguments, Parameters
from headgate.contrib.django.options import options_of
from headgate.contrib.django.results import fail, started_result, stored_result, succeed
from headgate.contrib.django.standard import base, signals
from headgate.jobs.identity import process_name
from headgate.tasks.executor_kind import IN_CHILD


def with_connections(call: Callable[[], Any]) -> Any:
    """Return `call()`, in a thread of a pool, where no request ends, which is when Django closes old connections.

    In a child process this is called before anything of the project is imported.
    """
    if IN_CHILD.is_set() and not apps.ready:
        if not settings.configured and not os.environ.get(ENVIRONMENT_VARIABLE):
            return call()  # The project sets Django up itself, as it is imported.
        django.setup()
    _close_old_connections()
    try:
        return call()
    finally:
        _close_old_connections()


def _close_old_connections() -> None:
    # A test runs jobs in its own thread, which may be the main one, and needs its connection and its transaction until
    # it ends. Some tests may not use a connection at all.
    if threading.current_thread() is threading.main_thread() and not IN_CHILD.is_set():
        return
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


async def with_own_connections(call: Awaitable[Any]) -> Any:
    """Await a coroutine. As Django does it for requests: its ORM calls have a thread, so connections, of their own."""
    async with ThreadSensitiveContext():
        try:
            return await call
        finally:
            await sync_to_async(_close_connections)()


def _close_connections() -> None:
    """Close the connections of an async task, but keep the transaction of an async test, which has the main thread."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block or threading.current_thread() is not threading.main_thread():
            connection.close()


class DjangoTaskBody:
    """One Django task on one app, as its `app_task`. `sender` of its signals is the class of the backend."""

    def __init__(self, app: Headgate, task: Any, alias: str, sender: type[Any], queue: str) -> None:
        self._app = app
        self._task = task
        self._alias = alias
        self._sender = sender
        # The results of the attempts that run here, until their callbacks are called, if there are any.
        self._attempts: WeakKeyDictionary[JobContext, Any] = WeakKeyDictionary()
        self.parameters = Parameters(task.func, takes_context=task.takes_context)
        # A task of the app, under the path of its function, in a queue that is declared if it is not yet.
        if queue not in app._registry.queues:
            app.queue(queue)
        options = options_of(task.func)
        self.app_task: Task[..., Any] = app.task(name=task.module_path, queue=queue, **options)(self._function())
        self.app_task.on_completed(self._on_completed)
        self.app_task.on_error(self._on_error)

    def result_of(self, details: JobDetails) -> Any:
        """Return the current result of one of its jobs."""
        record, payload = details.record, self.app_task.payload
        args, kwargs = payload.decode(record.payload)
        if record.result is not None:
            details = replace(details, record=structs.replace(record, result=payload.clear_result(record.result)))
        call = self.parameters.of_job(self.parameters.by_name(args, kwargs), record.headers or {})
        return stored_result(self._task, self._alias, details, call)

    def _function(self) -> Callable[..., Any]:
        if iscoroutinefunction(self._task.func):

            async def run(*args: Any, **kwargs: Any) -> Any:
                return await self._run_async(self.parameters.by_name(args, kwargs))
        else:

            def run(*args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]  # one of two
                return self._run(self.parameters.by_name(args, kwargs))

        # Arguments are checked against this, and the keys of limits use it.
        run.__signature__ = self.parameters.signature  # type: ignore[attr-defined]
        run.__annotations__ = {}
        run.__doc__ = self._task.func.__doc__
        return run

    def _run(self, named: dict[str, Any]) -> Any:
        job = current_job()
        args, kwargs = self.parameters.of_job(named, job.headers)
        result = self._running(job, Arguments(args, kwargs))
        signals.task_started.send_robust(sender=self._sender, task_result=result)
        return self._task.func(*self._context(result), *args, **kwargs)

    async def _run_async(self, named: dict[str, Any]) -> Any:
        job = current_job()
        args, kwargs = self.parameters.of_job(named, job.headers)
        result = await sync_to_async(self._running)(job, Arguments(args, kwargs))
        await signals.task_started.asend_robust(sender=self._sender, task_result=result)
        return await self._task.func(*self._context(result), *args, **kwargs)

    def _running(self, job: JobContext, call: Arguments) -> Any:
        # Earlier attempts are read if there may be any, and if the handler uses them.
        if job.attempt == 1 and not self._task.takes_context:
            result = started_result(self._task, self._alias, job, call, process_name())
        else:
            result = self._stored(job)
        self._attempts[job] = result
        return result

    def _context(self, result: Any) -> tuple[Any, ...]:
        return (base.TaskContext(task_result=result),) if self._task.takes_context else ()

    def _on_completed(self, job: JobContext, value: Any) -> None:
        stored = msgspec.json.decode(self.app_task.payload.in_clear().encode_result(value))
        self._send_finished(job, partial(succeed, value=stored))

    def _on_error(self, job: JobContext, error: BaseException) -> None:
        self._send_finished(job, partial(fail, error=error))

    def _send_finished(self, job: JobContext, end: Callable[[Any], None]) -> None:
        """Send task_finished, with what is known here: at the end of a worker the store may be closed already."""
        result = self._attempts.pop(job, None)
        if result is None:
            # It failed without an attempt in this process, for example because it expired.
            result = self._stored(job)
        else:
            end(result)
        signals.task_finished.send_robust(sender=self._sender, task_result=result)

    def _stored(self, job: JobContext) -> Any:
        return self.result_of(self._app.sync.admin.job(job.id))
