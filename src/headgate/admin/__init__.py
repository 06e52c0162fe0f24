"""What operators see and steer. The command line speaks only to it."""

from headgate.admin.admin import Admin, JobDetails
from headgate.admin.audit import Audited
from headgate.admin.bulk import BulkResult
from headgate.admin.explain import Explanation, LimitInfo
from headgate.admin.holders import PermitHolder
from headgate.admin.limits import BucketStatus, LimitsAdmin
from headgate.admin.nodes import NodeStatus
from headgate.admin.query import JobQuery
from headgate.admin.queues import QueuesAdmin, QueueStatus
from headgate.admin.timeline import Moment

__all__ = [
    "Admin",
    "Audited",
    "BucketStatus",
    "BulkResult",
    "Explanation",
    "JobDetails",
    "JobQuery",
    "LimitInfo",
    "LimitsAdmin",
    "Moment",
    "NodeStatus",
    "PermitHolder",
    "QueueStatus",
    "QueuesAdmin",
]
