"""Tools for tests of applications: `manual`, `inline` and `live`, and virtual time."""

from headgate.testing.enqueued import Enqueued
from headgate.testing.live_mode import Live, LiveApp, SyncLiveApp, live
from headgate.testing.stepped_node import RunAttempt
from headgate.testing.workbench import DrainResult, SyncWorkbench, Workbench, inline, manual

__all__ = [
    # how the jobs of a test run
    "manual",
    "inline",
    "live",
    # the app in a test
    "Workbench",
    "SyncWorkbench",
    "Live",
    "LiveApp",
    "SyncLiveApp",
    "Enqueued",
    "DrainResult",
    "RunAttempt",
]
