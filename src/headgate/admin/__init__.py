"""What operators see and steer. The command line speaks only to it."""

from headgate.admin.admin import Admin, JobDetails
from headgate.admin.audit import Audited
from headgate.admin.explain import Explanation, LimitInfo
from headgate.admin.limits import BucketStatus, LimitsAdmin
from headgate.admin.queues import QueuesAdmin, QueueStatus

__all__ = [
    "Admin",
    "Audited",
    "BucketStatus",
    "Explanation",
    "JobDetails",
    "LimitInfo",
    "LimitsAdmin",
    "QueueStatus",
    "QueuesAdmin",
]
