"""Headgate: durable background jobs with a budget per key."""

from headgate.app import Headgate
from headgate.errors import (
    CostExceedsLimit,
    DeclarationError,
    HeadgateError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    NotOpen,
    PayloadError,
    StorageUnavailable,
    StorageUnusable,
)
from headgate.jobs.job import JobState
from headgate.jobs.retry import RetryPolicy
from headgate.limits.key import header
from headgate.limits.rate_limit import RateLimit
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
    "header",
    # in a handler
    "RateLimited",
    "RetryPolicy",
    "Snooze",
    "current_job",
    # errors
    "CostExceedsLimit",
    "DeclarationError",
    "HeadgateError",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobNotFound",
    "NotOpen",
    "PayloadError",
    "StorageUnavailable",
    "StorageUnusable",
]
