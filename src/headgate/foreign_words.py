"""The words of other job queues, and what to write instead of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

_DECLARE = 'write app = Headgate("sqlite:///jobs.db"), and @app.task above the function'
_RUN = "`headgate worker module:app` in a shell, `await app.run()` in a program, or `async with app:` to run jobs here"
_OPEN = "`async with app.open():`, which connects the app, and closes it at the end of the block"
_RECUR = '@app.schedule(Cron("0 6 * * *")) above the function'
_ENQUEUE = "await task.enqueue(…), where `task` is your function with @app.task above it"


def _words(lines: Mapping[str, str]) -> dict[str, str]:
    """Return the line of each word; those of one line are in one key, with spaces between them."""
    return {word: line for words, line in lines.items() for word in words.split()}


IMPORTS = _words(
    {
        "task shared_task actor job App Celery": _DECLARE,
        "cron crontab": 'import Cron, and write @app.schedule(Cron("0 6 * * *")) above the function',
        "every schedule": "import Every, and write @app.schedule(Every(minutes=5)) above the function",
        "enqueue": f"write {_ENQUEUE}",
        "Queue": 'write app.queue("mail")',
        "Worker": f"write {_RUN}",
        "Limit Rate rate_limit": 'import StrictRate, and write @app.task(limits=[StrictRate("15/m")])',
    }
)
"""Names that are imported from other queues."""

_OPTIONS = _words(
    {
        "max_retries retries": "retry=RetryPolicy(retries={value})",
        "max_attempts attempts": "retry=RetryPolicy(retries=…), which does not count the first attempt",
        "autoretry_for retry_on": "retry=RetryPolicy(retry_on=…)",
        "default_retry_delay retry_delay": "retry=RetryPolicy(delay={value})",
        "backoff retry_backoff min_backoff": "retry=RetryPolicy(base=…)",
        "time_limit soft_time_limit job_timeout": "timeout={value}",
        "ignore_result": "keep_result=False",
        "result_ttl": "retention={value}",
        "rate_limit rate": "limits=[StrictRate({value})]",
        "concurrency max_concurrency": "limits=[Concurrency({value})]",
        "countdown": "delay={value}",
        "eta run_at": "at={value}",
        "expires": "expires_in={value}",
        "queue_name": "queue={value}",
        "session db_session conn transaction": "connection=…, with your connection or session",
        "job_id task_id": "id={value}",
        "cron crontab": "@app.schedule(Cron({value})) instead of @app.task",
        "every schedule": "@app.schedule(Every(…)) instead of @app.task",
        "bind pass_context": "a function without self or a context; current_job() in it returns the job",
        "acks_late": "nothing for it: a job whose process died always runs again",
    }
)
"""Options of tasks and of enqueueing."""

_RESULT = {
    "get wait join get_result return_value result_or": "await {it}.result()",
    "revoke abort kill": "await {it}.cancel()",
}
_PLAN = _words({"delay apply_async send run start": "await {it}(…).enqueue()"})

_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "Task": _words(
        {
            "delay send kiq remote submit defer defer_async perform_async enqueue_job": "enqueue(…)",
            "apply_async send_with_options enqueue_in enqueue_at perform_in": "using(delay=…, queue=…).enqueue(…)",
            "map starmap": "enqueue_many([(…,), (…,)])",
            "s si signature": "call(…)",
        }
    ),
    "Headgate": _words(
        {
            "enqueue enqueue_job add_job submit send send_task delay defer": _ENQUEUE,
            "start_worker worker worker_main run_worker run_forever work": _RUN,
            "connect close shutdown disconnect": _OPEN,
            "cron crontab periodic_task scheduled_job every add_periodic_task": _RECUR,
            "actor add_task register register_task": "@app.task above the function",
        }
    ),
    "Job": _words(
        {
            **_RESULT,
            "state get_status is_finished ready done info successful failed": "(await {it}.status()).state",
            "task_id job_id": "{it}.id",
        }
    ),
    "Batch": _words(_RESULT),
    "Chain": _words(_RESULT),
    "BatchPlan": _PLAN,
    "ChainPlan": _PLAN,
}
"""Attributes, by the class that has others; those of tasks are verbs of the task."""


def instead_of_option(name: str, value: object, known: Iterable[str]) -> str | None:
    """Return what to write instead of an option of another queue, if there is such an option among the `known`."""
    line = _OPTIONS.get(name)
    if line is None or ("=" in line and not line.startswith("@") and line.partition("=")[0] not in known):
        return None
    return line.replace("{value}", f"{value!r:.80}")


def raise_no_attribute(subject: object, task: str, name: str) -> NoReturn:
    """Raise AttributeError for an unknown attribute of a task; for a verb of another queue, with Headgate's verb."""
    kind = type(subject).__name__
    instead = _ATTRIBUTES["Task"].get(name)
    if instead is None:
        _raise_unknown(subject, name)
    if kind == "SyncTask":
        example = f"{task}.{instead.replace('enqueue', 'sync.enqueue')}"
    elif instead.startswith("call"):
        example = f"{task}.{instead}"
    else:
        # `using` comes before `sync`: task.using(delay=5).sync.enqueue(…)
        blocking = instead.replace("enqueue", "sync.enqueue")
        example = f"await {task}.{instead}, or {task}.{blocking} in code that cannot await"
    raise AttributeError(f"task {task!r} has no .{name}(); write {example}", name=name)


def _raise_unknown(subject: object, name: str) -> NoReturn:
    # With both, a traceback shows a similar name.
    raise AttributeError(f"{type(subject).__name__!r} object has no attribute {name!r}", name=name, obj=subject)


class RefusesForeignWords:
    """A class whose missing attributes that other queues have raise AttributeError with what to write instead."""

    __slots__ = ()

    if not TYPE_CHECKING:  # To a type checker these stay unknown attributes.

        def __getattr__(self, name: str) -> NoReturn:
            kind = type(self).__name__
            plain = kind.removeprefix("Sync")
            instead = _ATTRIBUTES.get(plain, {}).get(name)
            if instead is None:
                _raise_unknown(self, name)
            example = instead.replace("{it}", plain.removesuffix("Plan").lower())
            if plain != kind:
                example = example.replace("await ", "").replace(".enqueue(", ".sync.enqueue(")
            raise AttributeError(f"{kind} has no {name!r}; write {example}", name=name)


class RefusesAwait(RefusesForeignWords):
    """A class whose instances, if they are awaited, raise TypeError with what to await instead."""

    __slots__ = ()

    if not TYPE_CHECKING:  # To a type checker they cannot be awaited.

        def __await__(self) -> NoReturn:
            kind = type(self).__name__
            name = kind.removesuffix("Plan").lower()
            example = f"await {name}(…).enqueue()" if kind.endswith("Plan") else f"await {name}.result()"
            raise TypeError(f"a {kind} cannot be awaited; write {example}")


class MissingVerb:
    """An attribute of handler classes that raises AttributeError on access, with what to write instead."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise_no_attribute(instance, owner.__name__, self._name)


def raise_not_callable(task: str, name: str) -> NoReturn:
    """Raise TypeError for a task that was called like a function."""
    verb = "" if task.endswith(".sync") else "await "
    raise TypeError(
        f"calling task {name!r} enqueues nothing and runs nothing; write {verb}{task}.enqueue(…) to enqueue a job, or "
        f"{task.removesuffix('.sync')}.function(…) to run the function here"
    )
