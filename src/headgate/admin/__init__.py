"""What operators see and steer. The command line and the dashboard speak only to it."""

from headgate.admin.admin import Admin, DeclaredTask, JobDetails, ListedJob, ListedPage
from headgate.admin.audit import Audited
from headgate.admin.bulk import BulkResult
from headgate.admin.explain import Explanation, LimitInfo
from headgate.admin.history import Bound, HistoryAdmin, JobsPoint, LimitHistory, LimitPoint
from headgate.admin.holders import PermitHolder
from headgate.admin.limits import BucketStatus, DeclaredLimit, LimitsAdmin
from headgate.admin.nodes import NodeStatus
from headgate.admin.overview import NodeCounts, ObstacleStatus, Overview, QueueOverview, Totals, UnknownTask
from headgate.admin.purge import Purged
from headgate.admin.query import JobQuery
from headgate.admin.queues import QueuesAdmin, QueueStatus
from headgate.admin.slow_counts import SlowCounts
from headgate.admin.timeline import Moment
from headgate.storage.records import JobCount

__all__ = [
    "Admin",
    "Audited",
    "Bound",
    "BucketStatus",
    "BulkResult",
    "DeclaredLimit",
    "DeclaredTask",
    "Explanation",
    "HistoryAdmin",
    "JobCount",
    "JobDetails",
    "JobQuery",
    "JobsPoint",
    "LimitHistory",
    "LimitInfo",
    "LimitPoint",
    "LimitsAdmin",
    "ListedJob",
    "ListedPage",
    "Moment",
    "NodeCounts",
    "NodeStatus",
    "ObstacleStatus",
    "Overview",
    "PermitHolder",
    "Purged",
    "QueueOverview",
    "QueueStatus",
    "QueuesAdmin",
    "SlowCounts",
    "Totals",
    "UnknownTask",
]
