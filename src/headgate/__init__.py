"""Headgate: durable background jobs with a budget per key.

A name is imported when it is first used, so a program that takes a `Limiter` loads no engine and no storage.

PYTEST_DONT_REWRITE: pytest loads our plugin, and would otherwise warn if this module is imported before pytest.
"""

from typing import TYPE_CHECKING

from headgate.lazy_names import lazy_names

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
    "Headgate": "headgate.app",
    "batch": "headgate.client.flow",
    "chain": "headgate.client.flow",
    "result_of": "headgate.client.flow",
    "Handler": "headgate.client.handler",
    "Job": "headgate.client.handles",
    "Schedule": "headgate.client.handles",
    "Batch": "headgate.client.handles",
    "Chain": "headgate.client.handles",
    "Task": "headgate.client.task",
    "AmbiguousNode": "headgate.errors",
    "AttemptLost": "headgate.errors",
    "BatchClosed": "headgate.errors",
    "BatchNotFound": "headgate.errors",
    "CostExceedsLimit": "headgate.errors",
    "DeclarationError": "headgate.errors",
    "DuplicateJob": "headgate.errors",
    "FolderUnavailable": "headgate.errors",
    "GateClosed": "headgate.errors",
    "HeadgateError": "headgate.errors",
    "IdInUse": "headgate.errors",
    "JobCancelled": "headgate.errors",
    "JobExpired": "headgate.errors",
    "JobFailed": "headgate.errors",
    "JobNotFound": "headgate.errors",
    "JobSkipped": "headgate.errors",
    "LeaderNotFound": "headgate.errors",
    "LeaderNotSucceeded": "headgate.errors",
    "LeaseLost": "headgate.errors",
    "LimitInUse": "headgate.errors",
    "LimitRejected": "headgate.errors",
    "NodeNotFound": "headgate.errors",
    "NotOpen": "headgate.errors",
    "PayloadError": "headgate.errors",
    "ProcessDied": "headgate.errors",
    "QueueFull": "headgate.errors",
    "ResultUnavailable": "headgate.errors",
    "ScheduleNotFound": "headgate.errors",
    "SearchTooLong": "headgate.errors",
    "StorageUnavailable": "headgate.errors",
    "StorageUnusable": "headgate.errors",
    "TooManySearches": "headgate.errors",
    "UnfitConnection": "headgate.errors",
    "UnknownLimit": "headgate.errors",
    "UnreadableSchedule": "headgate.errors",
    "AlertMessage": "headgate.jobs.alert",
    "JobState": "headgate.jobs.job",
    "RetryPolicy": "headgate.jobs.retry",
    "AdaptiveRate": "headgate.limits.adaptive_rate",
    "Concurrency": "headgate.limits.concurrency",
    "Mutex": "headgate.limits.concurrency",
    "DynamicWindow": "headgate.limits.dynamic_window",
    "FixedWindow": "headgate.limits.fixed_window",
    "header": "headgate.limits.key",
    "RateLimit": "headgate.limits.rate_limit",
    "SlidingWindow": "headgate.limits.sliding_window",
    "Decision": "headgate.limits.standalone.decision",
    "limit_rate": "headgate.limits.standalone.rate_gate",
    "Limiter": "headgate.limits.standalone.limiter",
    "RateGate": "headgate.limits.standalone.rate_gate",
    "StrictRate": "headgate.limits.strict_rate",
    "Calendar": "headgate.schedules.calendar",
    "Cron": "headgate.schedules.cron",
    "Every": "headgate.schedules.every",
    "AesGcm": "headgate.tasks.aes_gcm",
    "AttemptContext": "headgate.tasks.context",
    "Codec": "headgate.tasks.codec",
    "JobContext": "headgate.tasks.context",
    "current_job": "headgate.tasks.context",
    "current_jobs": "headgate.tasks.context",
    "JobDraft": "headgate.tasks.hooks",
    "PayloadFolder": "headgate.tasks.payload_folder",
    "INJECTED": "headgate.tasks.resource",
    "Cancel": "headgate.tasks.signals",
    "Fail": "headgate.tasks.signals",
    "RateLimited": "headgate.tasks.signals",
    "Retry": "headgate.tasks.signals",
    "Snooze": "headgate.tasks.signals",
    "BatchStatus": "headgate.tasks.status",
    "JobStatus": "headgate.tasks.status",
    "ScheduleStatus": "headgate.tasks.status",
    "Zlib": "headgate.tasks.compression",
    "Zstd": "headgate.tasks.compression",
    "__version__": "headgate.version",
}
"""The module of each name: the same as the imports above, which only type checkers follow."""


if not TYPE_CHECKING:  # To a type checker a name that is not imported above does not exist.
    __getattr__, __dir__ = lazy_names(globals(), _PLACES, __all__, "headgate.foreign_words")
