"""Headgate: durable background jobs with a budget per key."""

from headgate.app import Headgate
from headgate.errors import (
    CostExceedsLimit,
    DeclarationError,
    GateClosed,
    HeadgateError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    LimitInUse,
    LimitRejected,
    NotOpen,
    PayloadError,
    StorageUnavailable,
    StorageUnusable,
    UnknownLimit,
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
from headgate.tasks.context import current_job
from headgate.tasks.handle import Job, JobStatus
from headgate.tasks.signals import RateLimited, Snooze
from headgate.tasks.task import Task

__all__ = [
    # the app and what it makes
    "Headgate",
    "Task",
    "Job",
    "JobState",
    "JobStatus",
    # limits
    "RateLimit",
    "StrictRate",
    "FixedWindow",
    "SlidingWindow",
    "DynamicWindow",
    "Concurrency",
    "Mutex",
    "header",
    # limits for plain code
    "Decision",
    "Limiter",
    "RateGate",
    "limit_rate",
    # in a handler
    "RateLimited",
    "RetryPolicy",
    "Snooze",
    "current_job",
    # errors
    "CostExceedsLimit",
    "DeclarationError",
    "GateClosed",
    "HeadgateError",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobNotFound",
    "LimitInUse",
    "LimitRejected",
    "NotOpen",
    "PayloadError",
    "StorageUnavailable",
    "StorageUnusable",
    "UnknownLimit",
]
