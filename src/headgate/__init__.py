"""Headgate: durable background jobs with a budget per key.

A name is imported when it is first used, so a program that takes a `Limiter` loads no engine and no storage.

PYTEST_DONT_REWRITE: pytest loads our plugin, and would otherwise warn if this module is imported before pytest.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.app import Headgate
    from headgate.client.flow import batch, chain, result_of
    from headgate.client.handler import Handler
    from headgate.client.handles import Batch, Chain, Job, Schedule
    from headgate.client.task import Task
    from headgate.errors import (
        AmbiguousNode,
        AttemptLost,
        BatchClosed,
        BatchNotFound,
        CostExceedsLimit,
        DeclarationError,
        DuplicateJob,
        FolderUnavailable,
        GateClosed,
        HeadgateError,
        IdInUse,
        JobCancelled,
        JobExpired,
        JobFailed,
        JobNotFound,
        JobSkipped,
        LeaderNotFound,
        LeaderNotSucceeded,
        LeaseLost,
        LimitInUse,
        LimitRejected,
        NodeNotFound,
        NotOpen,
        PayloadError,
        ProcessDied,
        QueueFull,
        ResultUnavailable,
        ScheduleNotFound,
        SearchTooLong,
        StorageUnavailable,
        StorageUnusable,
        TooManySearches,
        UnfitConnection,
        UnknownLimit,
        UnreadableSchedule,
    )
    from headgate.jobs.alert import AlertMessage
    from headgate.jobs.job import JobState
    from headgate.jobs.retry import RetryPolicy
    from headgate.limits.adaptive_rate import AdaptiveRate
    from headgate.limits.concurrency import Concurrency, Mutex
    from headgate.limits.dynamic_window import DynamicWindow
    from headgate.limits.fixed_window import FixedWindow
    from headgate.limits.key import header
    from headgate.limits.rate_limit import RateLimit
    from headgate.limits.sliding_window import SlidingWindow
    from headgate.limits.standalone.decision import Decision
    from headgate.limits.standalone.limiter import Limiter
    from headgate.limits.standalone.rate_gate import RateGate, limit_rate
    from headgate.limits.strict_rate import StrictRate
    from headgate.schedules.calendar import Calendar
    from headgate.schedules.cron import Cron
    from headgate.schedules.every import Every
    from headgate.tasks.aes_gcm import AesGcm
    from headgate.tasks.codec import Codec
    from headgate.tasks.compression import Zlib, Zstd
    from headgate.tasks.context import AttemptContext, JobContext, current_job, current_jobs
    from headgate.tasks.hooks import JobDraft
    from headgate.tasks.payload_folder import PayloadFolder
    from headgate.tasks.resource import INJECTED
    from headgate.tasks.signals import Cancel, Fail, RateLimited, Retry, Snooze
    from headgate.tasks.status import BatchStatus, JobStatus, ScheduleStatus
    from headgate.version import __version__

__all__ = [
    # the app and what it makes
    "Headgate",
    "Task",
    "Handler",
    "INJECTED",
    "Job",
    "JobState",
    "JobStatus",
    "chain",
    "result_of",
    "batch",
    "Chain",
    "Batch",
    "BatchStatus",
    # how payloads and results are stored
    "AesGcm",
    "PayloadFolder",
    "Codec",
    "Zlib",
    "Zstd",
    # limits
    "RateLimit",
    "StrictRate",
    "FixedWindow",
    "SlidingWindow",
    "AdaptiveRate",
    "DynamicWindow",
    "Concurrency",
    "Mutex",
    "header",
    # when recurring jobs run
    "Cron",
    "Every",
    "Calendar",
    "Schedule",
    "ScheduleStatus",
    # what an alert tells
    "AlertMessage",
    # limits for plain code
    "Decision",
    "Limiter",
    "RateGate",
    "limit_rate",
    # in a handler
    "Cancel",
    "Fail",
    "JobContext",
    "RateLimited",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "current_job",
    "current_jobs",
    # in functions around enqueues and attempts
    "AttemptContext",
    "JobDraft",
    # errors
    "AmbiguousNode",
    "AttemptLost",
    "CostExceedsLimit",
    "DeclarationError",
    "DuplicateJob",
    "GateClosed",
    "HeadgateError",
    "IdInUse",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobSkipped",
    "BatchClosed",
    "BatchNotFound",
    "JobNotFound",
    "LeaderNotFound",
    "LeaderNotSucceeded",
    "LeaseLost",
    "LimitInUse",
    "LimitRejected",
    "NodeNotFound",
    "NotOpen",
    "PayloadError",
    "ProcessDied",
    "QueueFull",
    "ResultUnavailable",
    "ScheduleNotFound",
    "SearchTooLong",
    "StorageUnavailable",
    "FolderUnavailable",
    "StorageUnusable",
    "TooManySearches",
    "UnfitConnection",
    "UnknownLimit",
    "UnreadableSchedule",
    # the release
    "__version__",
]

_PLACES = {
    name: module
    for module, names in {
        "headgate.app": "Headgate",
        "headgate.client.flow": "batch chain result_of",
        "headgate.client.handler": "Handler",
        "headgate.client.handles": "Batch Chain Job Schedule",
        "headgate.client.task": "Task",
        "headgate.errors": (
            "AmbiguousNode AttemptLost BatchClosed BatchNotFound CostExceedsLimit DeclarationError DuplicateJob "
            "FolderUnavailable GateClosed HeadgateError IdInUse JobCancelled JobExpired JobFailed JobNotFound "
            "JobSkipped LeaderNotFound LeaderNotSucceeded LeaseLost LimitInUse LimitRejected NodeNotFound NotOpen "
            "PayloadError ProcessDied QueueFull ResultUnavailable ScheduleNotFound SearchTooLong StorageUnavailable "
            "StorageUnusable TooManySearches UnfitConnection UnknownLimit UnreadableSchedule"
        ),
        "headgate.jobs.alert": "AlertMessage",
        "headgate.jobs.job": "JobState",
        "headgate.jobs.retry": "RetryPolicy",
        "headgate.limits.adaptive_rate": "AdaptiveRate",
        "headgate.limits.concurrency": "Concurrency Mutex",
        "headgate.limits.dynamic_window": "DynamicWindow",
        "headgate.limits.fixed_window": "FixedWindow",
        "headgate.limits.key": "header",
        "headgate.limits.rate_limit": "RateLimit",
        "headgate.limits.sliding_window": "SlidingWindow",
        "headgate.limits.standalone.decision": "Decision",
        "headgate.limits.standalone.limiter": "Limiter",
        "headgate.limits.standalone.rate_gate": "limit_rate RateGate",
        "headgate.limits.strict_rate": "StrictRate",
        "headgate.schedules.calendar": "Calendar",
        "headgate.schedules.cron": "Cron",
        "headgate.schedules.every": "Every",
        "headgate.tasks.aes_gcm": "AesGcm",
        "headgate.tasks.codec": "Codec",
        "headgate.tasks.compression": "Zlib Zstd",
        "headgate.tasks.context": "AttemptContext current_job current_jobs JobContext",
        "headgate.tasks.hooks": "JobDraft",
        "headgate.tasks.payload_folder": "PayloadFolder",
        "headgate.tasks.resource": "INJECTED",
        "headgate.tasks.signals": "Cancel Fail RateLimited Retry Snooze",
        "headgate.tasks.status": "BatchStatus JobStatus ScheduleStatus",
        "headgate.version": "__version__",
    }.items()
    for name in names.split()
}
"""The module of each name: the same as the imports above, which only type checkers follow."""

if not TYPE_CHECKING:  # To a type checker a name that is not imported above does not exist.

    def __getattr__(name: str) -> object:
        # Imported here, as at the top they would be names of the package.
        import sys
        from importlib import import_module
        from opcode import opmap

        if name in _PLACES:
            value = globals()[name] = getattr(import_module(_PLACES[name]), name)
            return value
        instead = import_module("headgate.foreign_words").IMPORTS.get(name)
        if instead is None:
            raise AttributeError(f"module 'headgate' has no attribute {name!r}")
        message = f"headgate has no {name!r}; {instead}"
        # At `from headgate import name`, and not at `hasattr(headgate, name)`, for example.
        caller = sys._getframe(1)
        if caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]:
            # It would replace the message of an AttributeError by its own.
            raise ImportError(message, name=name)
        raise AttributeError(message)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
