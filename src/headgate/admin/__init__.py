"""The operations of an app: what the command line and the dashboard read and change, all through `Admin`."""

from headgate.admin.admin import Admin, DeclaredTask, JobDetails
from headgate.admin.alerts import AlertStatus
from headgate.admin.audit import Audited
from headgate.admin.bulk import BulkResult
from headgate.admin.enqueueing import EnqueuedJob
from headgate.admin.explain import Explanation, LimitInfo
from headgate.admin.failures import FailedJob, FailureDetails, FailureGroup, FailureReport
from headgate.admin.find import Found
from headgate.admin.history import Deploy, HistoryAdmin, JobsPoint, JobsReport, LimitHistory, LimitPoint, RateBound
from headgate.admin.holders import PermitHolder
from headgate.admin.limits import BucketStatus, DeclaredLimit, LimitMap, LimitsAdmin, LimitSummary, LimitTotals
from headgate.admin.listed import BatchDetails, ListedJob, ListedPage
from headgate.admin.nodes import NodeStatus
from headgate.admin.overview import BlockerStatus, JobTotals, NodeCounts, Overview, QueueOverview, UnknownTaskCount
from headgate.admin.purge import Purged
from headgate.admin.query import JobQuery
from headgate.admin.queues import DeclaredQueue, QueueKey, QueueKeys, QueuesAdmin, QueueStatus
from headgate.admin.schedules import ScheduleDefinition
from headgate.admin.slow_counts import SlowCounts
from headgate.admin.timeline import TimelineEntry
from headgate.storage.records import JobCount, JobGraph, TiedJob

__all__ = [
    "Admin",
    "AlertStatus",
    "Audited",
    "BatchDetails",
    "BlockerStatus",
    "BucketStatus",
    "BulkResult",
    "DeclaredLimit",
    "DeclaredQueue",
    "DeclaredTask",
    "Deploy",
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
    "JobsPoint",
    "JobsReport",
    "LimitHistory",
    "LimitInfo",
    "LimitMap",
    "LimitPoint",
    "LimitSummary",
    "LimitTotals",
    "LimitsAdmin",
    "ListedJob",
    "ListedPage",
    "NodeCounts",
    "NodeStatus",
    "Overview",
    "PermitHolder",
    "Purged",
    "QueueKey",
    "QueueKeys",
    "QueueOverview",
    "QueueStatus",
    "QueuesAdmin",
    "RateBound",
    "ScheduleDefinition",
    "SlowCounts",
    "TiedJob",
    "TimelineEntry",
    "UnknownTaskCount",
]
