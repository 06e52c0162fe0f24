"""The operations of an app: what the command line and the dashboard read and change, all through `Admin`.

A name is imported when it is first used: they are half of what an app would import, and a worker uses none of them.
"""

from typing import TYPE_CHECKING

from headgate.lazy_names import lazy_names

if TYPE_CHECKING:
    from headgate.admin.admin import Admin, JobDetails
    from headgate.admin.alerts import AlertStatus
    from headgate.admin.audit import Audited
    from headgate.admin.bulk import BulkResult
    from headgate.admin.ended import EndEvent, EndPage
    from headgate.admin.enqueueing import EnqueuedJob
    from headgate.admin.explain import Explanation, LimitInfo
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
    from headgate.admin.purge import Purged
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
    "LimitInfo",
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
    "Purged",
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

_PLACES = {
    "Admin": "headgate.admin.admin",
    "DeclaredTask": "headgate.admin.readings",
    "JobDetails": "headgate.admin.admin",
    "AlertStatus": "headgate.admin.alerts",
    "Audited": "headgate.admin.audit",
    "BulkResult": "headgate.admin.bulk",
    "EndEvent": "headgate.admin.ended",
    "EndPage": "headgate.admin.ended",
    "EnqueuedJob": "headgate.admin.enqueueing",
    "Explanation": "headgate.admin.explain",
    "LimitInfo": "headgate.admin.explain",
    "FailedJob": "headgate.admin.failures",
    "FailureDetails": "headgate.admin.failures",
    "FailureGroup": "headgate.admin.failures",
    "FailureReport": "headgate.admin.failures",
    "Found": "headgate.admin.find",
    "Activity": "headgate.admin.history",
    "ActivityReport": "headgate.admin.history",
    "Deploy": "headgate.admin.history",
    "HistoryAdmin": "headgate.admin.history",
    "JobsPoint": "headgate.admin.history",
    "JobsHistory": "headgate.admin.history",
    "LimitHistory": "headgate.admin.history",
    "LimitPoint": "headgate.admin.history",
    "RateBound": "headgate.admin.history",
    "PermitHolder": "headgate.admin.holders",
    "BucketStatus": "headgate.admin.limits",
    "DeclaredLimit": "headgate.admin.limits",
    "LimitStatus": "headgate.admin.limits",
    "KeyStatus": "headgate.admin.limits",
    "LimitsAdmin": "headgate.admin.limits",
    "LimitSummary": "headgate.admin.limits",
    "BacklogPoint": "headgate.admin.limits",
    "PredictedBacklog": "headgate.admin.limits",
    "WhatIf": "headgate.admin.limits",
    "BatchDetails": "headgate.admin.listed",
    "ListedAction": "headgate.admin.listed",
    "ListedJob": "headgate.admin.listed",
    "ListedPage": "headgate.admin.listed",
    "NodeStatus": "headgate.admin.nodes",
    "BlockerStatus": "headgate.admin.overview",
    "JobTotals": "headgate.admin.overview",
    "NodeCounts": "headgate.admin.overview",
    "Overview": "headgate.admin.overview",
    "QueueOverview": "headgate.admin.overview",
    "UnknownTaskCount": "headgate.admin.overview",
    "Purged": "headgate.admin.purge",
    "JobQuery": "headgate.jobs.query",
    "DeclaredQueue": "headgate.admin.queues",
    "QueueKey": "headgate.admin.queues",
    "QueueKeys": "headgate.admin.queues",
    "QueuesAdmin": "headgate.admin.queues",
    "QueueStatus": "headgate.admin.queues",
    "ScheduleDefinition": "headgate.admin.schedules",
    "SlowCounts": "headgate.admin.readings",
    "Stretch": "headgate.admin.timeline",
    "TimelineEntry": "headgate.admin.timeline",
    "JobCount": "headgate.storage.records",
    "JobGraph": "headgate.storage.records",
    "Dependency": "headgate.storage.records",
}
"""The module of each name: the same as the imports above, which only type checkers follow."""


if not TYPE_CHECKING:  # To a type checker a name that is not imported above does not exist.
    __getattr__, __dir__ = lazy_names(globals(), _PLACES, __all__)
