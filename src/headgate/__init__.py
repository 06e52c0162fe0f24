"""Headgate: durable background jobs with a budget per key.

PYTEST_DONT_REWRITE: pytest finds our plugin, and would otherwise warn where this is imported before pytest is.
"""

from headgate.app import Headgate
from headgate.errors import (
    CostExceedsLimit,
    DeclarationError,
    DuplicateJob,
    GateClosed,
    HeadgateError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    LeaderNotFound,
    LeaderNotSucceeded,
    LimitInUse,
    LimitRejected,
    NotOpen,
    PayloadError,
    ProcessDied,
    QueueFull,
    ScheduleNotFound,
    SearchTooLong,
    StorageUnavailable,
    StorageUnusable,
    TooManySearches,
    UnfitConnection,
    UnknownLimit,
    UnreadableSchedule,
)
from headgate.jobs.job import JobState
from headgate.jobs.retry import RetryPolicy
from headgate.limits.concurrency import Concurrency, Mutex
from headgate.limits.dynamic_window import DynamicWindow
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.key import header
from headgate.limits.rate_limit import RateLimit
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.standalone.decision import Decision
from headgate.limits.standalone.limit_rate import limit_rate
from headgate.limits.standalone.limiter import Limiter
from headgate.limits.standalone.rate_gate import RateGate
from headgate.limits.strict_rate import StrictRate
from headgate.schedules.calendar import Calendar
from headgate.schedules.cron import Cron
from headgate.schedules.every import Every
from headgate.tasks.context import JobContext, current_job
from headgate.tasks.flow import batch, chain
from headgate.tasks.handle import Job, JobStatus
from headgate.tasks.handler import Handler
from headgate.tasks.resource import INJECTED
from headgate.tasks.schedule import Schedule, ScheduleStatus
from headgate.tasks.signals import RateLimited, Snooze
from headgate.tasks.task import Task
from headgate.tasks.ties import Batch, BatchStatus, Chain

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
    "batch",
    "Chain",
    "Batch",
    "BatchStatus",
    # limits
    "RateLimit",
    "StrictRate",
    "FixedWindow",
    "SlidingWindow",
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
    # limits for plain code
    "Decision",
    "Limiter",
    "RateGate",
    "limit_rate",
    # in a handler
    "JobContext",
    "RateLimited",
    "RetryPolicy",
    "Snooze",
    "current_job",
    # errors
    "CostExceedsLimit",
    "DeclarationError",
    "DuplicateJob",
    "GateClosed",
    "HeadgateError",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobNotFound",
    "LeaderNotFound",
    "LeaderNotSucceeded",
    "LimitInUse",
    "LimitRejected",
    "NotOpen",
    "PayloadError",
    "ProcessDied",
    "QueueFull",
    "ScheduleNotFound",
    "SearchTooLong",
    "StorageUnavailable",
    "StorageUnusable",
    "TooManySearches",
    "UnfitConnection",
    "UnknownLimit",
    "UnreadableSchedule",
]
