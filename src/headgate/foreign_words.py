"""The words of other job queues, and what to write instead of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

_DECLARE = 'write app = Headgate("sqlite:///jobs.db"), and @app.task above the function'
_RUN = "`headgate worker module:app` in a shell, `await app.run()` in a program, or `async with app:` to run jobs here"
_OPEN = "`async with app.open():`, which connects the app, and closes it at the end of the block"
_RECUR = '@app.schedule(Cron("0 6 * * *")) above the function'
_ENQUEUE = "await task.enqueue(…), where `task` is your function with @app.task above it"
_NO_LEASES = "nothing for it: a worker renews its lease on each job, and a job whose process died runs again"
_STAYS = "nothing for it: failed jobs stay in the store; `headgate jobs retry` runs them again"
_NO_REPLAY = "chain(…) and batch([…]) of calls: each is a function with @app.task above it, and no code is replayed"


def _words(lines: Mapping[str, str]) -> dict[str, str]:
    """Return the line of each word; those of one line are in one key, with spaces between them."""
    return {word: line for words, line in lines.items() for word in words.split()}


IMPORTS = _words(
    {
        "task shared_task actor job App Celery create_pool": _DECLARE,
        "group chord": "import batch, and write await batch([task.call(…), task.call(…)]).enqueue()",
        "pipeline": "import chain, and write await chain(task.call(…), task.call(…)).enqueue()",
        "signature subtask": "write task.call(…)",
        "workflow activity": f"write {_NO_REPLAY}",
        "heartbeat": f"write {_NO_LEASES}",
        "AsyncResult": "write app.job(id)",
        "Ignore Reject": 'import Cancel, and write raise Cancel("why"); or Retry(30) to run the job again',
        "Discard": 'import Fail, and write raise Fail("why")',
        "RetryStrategy": "import RetryPolicy, and write @app.task(retry=RetryPolicy(retries=3))",
        "task_prerun task_postrun task_success task_failure": "write @app.around_attempt above an async def (job, run)",
        "worker_ready worker_process_init": "write @app.on_startup above an async def",
        "TokenBucket BucketRateLimiter": 'import RateLimit, and write @app.task(limits=[RateLimit("15/m")])',
        "WindowRateLimiter": 'import FixedWindow, and write @app.task(limits=[FixedWindow("15/m")])',
        "ConcurrencyLimit ConcurrentRateLimiter": "import Concurrency, and write @app.task(limits=[Concurrency(3)])",
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
        "max_attempts attempts max_tries max_receive_count": (
            "retry=RetryPolicy(retries=…), which does not count the first attempt"
        ),
        "autoretry_for retry_on retry_when": "retry=RetryPolicy(retry_on=…)",
        "dont_autoretry_for": "retry=RetryPolicy(give_up_on=…)",
        "default_retry_delay retry_delay retry_in": "retry=RetryPolicy(delay={value})",
        "backoff retry_backoff min_backoff": "retry=RetryPolicy(base=…)",
        "retry_backoff_max max_backoff": "retry=RetryPolicy(cap=…)",
        "retry_jitter jitter": "retry=RetryPolicy(jitter={value})",
        "retry_kwargs retry_policy retry_on_error": "retry=RetryPolicy(…)",
        "time_limit soft_time_limit job_timeout dispatch_deadline": "timeout={value}, in seconds",
        "start_to_close_timeout": "timeout={value}",
        "ignore_result": "keep_result=False",
        "store_results": "keep_result={value}",
        "result_ttl result_expires": "retention={value}",
        "failure_ttl": 'retention={"failed": {value}}',
        "rate_limit rate": "limits=[StrictRate({value})]",
        "max_dispatches_per_second": "limits=[StrictRate({value}, per=1)]",
        "concurrency max_concurrency max_concurrent_dispatches": "limits=[Concurrency({value})]",
        "lock": "@app.task(limits=[Mutex({value})]), which runs one job at a time",
        "message_group_id ordering_key fifo": '@app.task(limits=[Mutex("orders:{order_id}", hold="until_final")])',
        "countdown delay_seconds DelaySeconds defer_by wait": "delay={value}",
        "schedule_in": "delay=…",
        "eta run_at run_after schedule_at scheduled_at schedule_time defer_until wait_until": "at={value}",
        "expires ttl schedule_to_start_timeout": "expires_in={value}",
        "max_age": "expires_in=…, in seconds",
        "queue_name routing_key task_queue": "queue={value}",
        "session db_session conn transaction": "connection=…, with your connection or session",
        "job_id task_id workflow_id": "id={value}",
        "queueing_lock message_deduplication_id": "unique_key={value}",
        "unique": "unique_key=…, and unique_for=… for a period",
        "replace": 'on_conflict="replace", with a unique_key',
        "at_front": "priority=9, the highest",
        "meta": "headers={value}",
        "labels": "tags=[…]",
        "link depends_on": "chain(first.call(…), second.call(…)).enqueue()",
        "link_error": "batch([task.call(…)]).then(other.call(…), on='failure').enqueue()",
        "on_success": "@task.on_completed above a function (job, result)",
        "on_failure": "@task.on_error above a function (job, error)",
        "broker broker_url": 'Headgate("sqlite:///jobs.db") or Headgate("postgresql://…"), which need no broker',
        "backend result_backend": "nothing for it: a result is stored with its job",
        "queues": 'app.queue("mail", concurrency=5) for each queue but default',
        "include": "imports={value}",
        "beat_schedule": _RECUR,
        "cron crontab": "@app.schedule(Cron({value})) instead of @app.task",
        "every schedule": "@app.schedule(Every(…)) instead of @app.task",
        "bind pass_context": "a function without self or a context; current_job() in it returns the job",
        "base": "@app.handler above class Name(Handler[…]), with methods for the ends of its jobs",
        "acks_late reject_on_worker_lost": "nothing for it: a job whose process died always runs again",
        "visibility_timeout heartbeat_timeout": _NO_LEASES,
        "dead_letter_queue dead": _STAYS,
        "track_started": "nothing for it: job.status() always knows it",
        "serializer": "nothing for it: arguments are stored as JSON, and checked against their annotations",
    }
)
"""Options of tasks and of enqueueing."""

_OF_RATES = _words(
    {
        "limit requests calls times amount max_calls max_rate": "the count first: {kind}({value}, per=60)",
        "period interval window seconds time_period": "per={value}",
        "key_func key_builder group_by": 'key="{tenant_id}"',
    }
)

_ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(["RateLimit", "StrictRate", "FixedWindow", "SlidingWindow", "AdaptiveRate", "RateGate"], _OF_RATES),
    "Concurrency": _words(
        {"limit size slots maximum max_concurrency max_concurrent": "the count first: {kind}({value})"}
    ),
    "DynamicWindow": {"limit": "count={value}"},
    "Cron": _words(
        {
            "second minute hour day month weekday day_of_week day_of_month month_of_year": (
                'the fields as one text: Cron("0 7 * * *"), minute and hour first; or Calendar(at="7:00")'
            ),
            "timezone time_zone zone": "tz={value}",
        }
    ),
    "Calendar": _words({"hour minute time": 'at="7:00"', "timezone time_zone zone": "tz={value}"}),
    "Every": {"interval": 'the length first: Every("5m")'},
    "Retry": {"exc": "raise Retry(30) from error"},
}
"""Arguments of declarations, by the name of the class."""

_RESULT = {
    "get wait join get_result return_value result_or": "await {it}.result()",
    "revoke abort kill": "await {it}.cancel()",
}
_CONTEXT = _words(
    {
        "heartbeat": _NO_LEASES,
        "retry": "raise Retry(30), or raise Snooze(30), which spends no retry",
        "update_state meta": 'current_job().progress(0.5, "half")',
        "request": "current_job().id, .attempt or .headers",
        "retries": "current_job().attempt, which begins with 1",
    }
)
_PLAN = _words({"delay apply_async send run start": "await {it}(…).enqueue()"})

ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "Task": _words(
        {
            "delay send kiq remote submit defer defer_async perform_async perform_later enqueue_job": "enqueue(…)",
            "apply_async send_with_options enqueue_in enqueue_at perform_in perform_at set configure kicker": (
                "using(delay=…, queue=…).enqueue(…)"
            ),
            "map starmap chunks perform_bulk": "enqueue_many([(…,), (…,)])",
            "s si signature subtask message": "call(…)",
            "apply call_local": "function(…), which runs it here",
        }
    ),
    # `using` and `call` come before `sync`.
    "SyncTask": {"using": "using(…).enqueue(…)", "call": "call(…)", "function": "function(…), which runs it here"},
    "Headgate": _words(
        {
            "enqueue enqueue_job add_job submit send send_task delay defer insert create_task send_message": _ENQUEUE,
            "enqueue_in enqueue_at": _ENQUEUE.replace(".enqueue", ".using(delay=…).enqueue"),
            "insert_all": _ENQUEUE.replace("enqueue(…)", "enqueue_many([…])"),
            "start_worker worker worker_main run_worker run_worker_async run_forever work": _RUN,
            "connect close shutdown disconnect": _OPEN,
            "cron crontab periodic periodic_task scheduled_job every add_periodic_task on_after_configure": _RECUR,
            "actor add_task register register_task": "@app.task above the function",
            "workflow activity execute_workflow start_workflow": _NO_REPLAY,
            "lock_task": '@app.task(limits=[Mutex("…")]) above the function',
            "conf config_from_object": "arguments of Headgate(…), or variables HEADGATE_…",
            "autodiscover_tasks": 'Headgate(…, imports=["shop.tasks"])',
            "AsyncResult fetch_job get_job result": "app.job(id)",
            "control inspect": "`headgate jobs`, `headgate queues` and `headgate nodes` in a shell, or app.admin",
            "pause_queue": "await app.admin.queues.pause(…)",
            "purge_queue": "await app.admin.queues.purge(…)",
            "redrive": "await app.admin.retry_many(…), or `headgate jobs retry` in a shell",
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
    "JobContext": _CONTEXT,
    "AttemptContext": _CONTEXT,
    "BatchPlan": _PLAN,
    "ChainPlan": _PLAN,
}
"""Attributes, by the class that has others; those of tasks are verbs of the task."""


COMMANDS = _words(
    {
        "beat scheduler": "`headgate worker`, which also runs the schedules",
        "start run consumer rqworker": "`headgate worker`",
        "flower web serve monitor": "`headgate dashboard`, or `headgate top` in a terminal",
        "inspect info stats ps": "`headgate status`, `headgate nodes list` or `headgate jobs list`",
        "control": "`headgate nodes`, `headgate queues` or `headgate limits`",
        "call enqueue": "`headgate jobs enqueue`",
        "result": "`headgate jobs show`",
        "events": "`headgate top`",
        "multi": "`headgate worker --processes 4`, or `headgate init` for systemd and containers",
        "revoke cancel": "`headgate jobs cancel`",
        "retry requeue redrive": "`headgate jobs retry`",
        "dead dlq": "`headgate failures` or `headgate jobs list --state failed`",
        "schema": "`headgate migrate`",
        "report check healthchecks": "`headgate doctor`",
    }
)
"""Commands of other queues."""

WORKER_OPTIONS = _words(
    {
        "-A": "it after the command: `headgate worker -A module:app`",
        "-c --concurrency -t --threads --autoscale": "--slots 8, or -q mail:8 for one queue",
        "-p -w --workers": "--processes 4",
        "-Q --queues": "-q mail -q reports",
        "-l --loglevel": "--log-level info",
        "-n --hostname": "--name mail",
        "-I --include": "--import shop.tasks",
        "-B --beat": "nothing for it: every worker runs the schedules",
        "-P --pool": "nothing for it: an async def runs in the event loop, a def in a thread, or by process=True apart",
        "-O --prefetch-multiplier": "nothing for it: a worker claims only jobs that it can start",
        "--burst": "--drain",
        "--watch": "--reload",
        "--time-limit --soft-time-limit": "HEADGATE_TIMEOUT=60, or timeout=60 on a task",
    }
)
"""Options of the workers of other queues; the first comes before the command."""


def instead_of_option(name: str, value: object, known: Iterable[str], kind: str = "") -> str | None:
    """Return what to write instead of an option of another queue, if there is such an option among the `known`.

    With a `kind`, instead of an argument of the class of that name.
    """
    line = _OPTIONS.get(name, "")
    if kind:
        # Of the option `retry=RetryPolicy(retries=3)`, `retries=3` is the argument of the class.
        line = _ARGUMENTS.get(kind, {}).get(name) or re.sub(rf"^\w+={kind}\((.*?)\)", r"\1", line)
    if not line or ((own := line.partition("=")[0]).isidentifier() and own not in known):
        return None
    return line.replace("{kind}", kind).replace("{value}", f"{value!r:.80}")


def raise_no_attribute(subject: object, task: str, name: str) -> NoReturn:
    """Raise AttributeError for an unknown attribute of a task; for a verb of another queue, with Headgate's verb."""
    kind = type(subject).__name__
    instead = ATTRIBUTES["Task"].get(name) or ATTRIBUTES.get(kind, {}).get(name)
    if instead is None:
        _raise_unknown(subject, name)
    owner = f"task {task!r}"
    if kind == "SyncTask":
        owner = f"{task}.sync"
        example = f"{task}.{instead.replace('enqueue', 'sync.enqueue')}"
    elif "enqueue" not in instead:
        example = f"{task}.{instead}"
    else:
        # `using` comes before `sync`: task.using(delay=5).sync.enqueue(…)
        blocking = instead.replace("enqueue", "sync.enqueue")
        example = f"await {task}.{instead}, or {task}.{blocking} in code that cannot await"
    raise AttributeError(f"{owner} has no .{name}(); write {example}", name=name)


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
            instead = ATTRIBUTES.get(plain, {}).get(name)
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


class RefusesCall(RefusesAwait):
    """A plan that, if it is called, as those of Celery are, raises TypeError with what to write instead."""

    __slots__ = ()

    if not TYPE_CHECKING:  # To a type checker they cannot be called.

        def __call__(self, *args: object, **kwargs: object) -> NoReturn:
            kind = type(self).__name__
            then = ", or chain(batch(…), task.call(…)) with a step after it" if kind == "BatchPlan" else ""
            raise TypeError(f"a {kind} cannot be called; write await {kind[:-4].lower()}(…).enqueue(){then}")


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
