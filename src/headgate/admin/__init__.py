"""The operations of an app: what the command line and the dashboard read and change, all through `Admin`."""

from headgate.admin.admin import Admin, JobDetails
from headgate.admin.alerts import AlertStatus
from headgate.admin.audit import Audited
from headgate.admin.bulk import BulkResult
from headgate.admin.ended import EndEvent, EndPage
from headgate.admin.enqueueing import EnqueuedJob
from headgate.admin.explain import Explanation
from headgate.admin.failures import FailedJob, FailureDetails, FailureGroup, FailureReport
from headgate.admin.find import Found
from headgate.admin.history import (
    Activity,
    ActivityReport,
    Deploy,
    HistoryAdmin,
    JobsHistory,
    JobsPoint,
    LimitHistory,
    LimitPoint,
    RateBound,
)
from headgate.admin.holders import PermitHolder
from headgate.admin.limits import (
    BacklogPoint,
    BucketStatus,
    DeclaredLimit,
    KeyStatus,
    LimitsAdmin,
    LimitStatus,
    LimitSummary,
    PredictedBacklog,
    WhatIf,
)
from headgate.admin.listed import BatchDetails, ListedAction, ListedJob, ListedPage
from headgate.admin.nodes import NodeStatus
from headgate.admin.overview import BlockerStatus, JobTotals, NodeCounts, Overview, QueueOverview, UnknownTaskCount
from headgate.admin.queues import DeclaredQueue, QueueKey, QueueKeys, QueuesAdmin, QueueStatus
from headgate.admin.readings import DeclaredTask, SlowCounts
from headgate.admin.schedules import ScheduleDefinition
from headgate.admin.timeline import Stretch, TimelineEntry
from headgate.jobs.query import JobQuery
from headgate.storage.records import Dependency, JobCount, JobGraph

__all__ = [
    "Activity",
    "ActivityReport",
    "Admin",
    "AlertStatus",
    "Audited",
    "BacklogPoint",
    "BatchDetails",
    "BlockerStatus",
    "BucketStatus",
    "BulkResult",
    "DeclaredLimit",
    "DeclaredQueue",
    "DeclaredTask",
    "Dependency",
    "Deploy",
    "EndEvent",
    "EndPage",
    "EnqueuedJob",
    "Explanation",
    "FailedJob",
    "FailureDetails",
    "FailureGroup",
    "FailureReport",
    "Found",
    "HistoryAdmin",
    "JobCount",
    "JobDetails",
    "JobGraph",
    "JobQuery",
    "JobTotals",
    "JobsHistory",
    "JobsPoint",
    "KeyStatus",
    "LimitHistory",
    "LimitPoint",
    "LimitStatus",
    "LimitSummary",
    "LimitsAdmin",
    "ListedAction",
    "ListedJob",
    "ListedPage",
    "NodeCounts",
    "NodeStatus",
    "Overview",
    "PermitHolder",
    "PredictedBacklog",
    "QueueKey",
    "QueueKeys",
    "QueueOverview",
    "QueueStatus",
    "QueuesAdmin",
    "RateBound",
    "ScheduleDefinition",
    "SlowCounts",
    "Stretch",
    "TimelineEntry",
    "UnknownTaskCount",
    "WhatIf",
]
