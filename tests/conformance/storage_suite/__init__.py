"""The tests that a store has to pass with each driver; each attacks one promise of `headgate.storage.store.Store`.

A subclass of `StorageConformance` has a fixture `storage` that yields an open store and closes it.

Time stands still unless a test moves it. After each test the store's own `check()` has to find nothing.
"""

from tests.conformance.storage_suite.adaptive import AdaptiveConformance
from tests.conformance.storage_suite.aging import AgingConformance
from tests.conformance.storage_suite.alerts import AlertsConformance
from tests.conformance.storage_suite.auditing import AuditingConformance
from tests.conformance.storage_suite.batches import BatchesConformance
from tests.conformance.storage_suite.bounds import BoundsConformance
from tests.conformance.storage_suite.budgets import BudgetsConformance
from tests.conformance.storage_suite.charts import ChartsConformance
from tests.conformance.storage_suite.completing import CompletingConformance
from tests.conformance.storage_suite.deploys import DeploysConformance
from tests.conformance.storage_suite.endings import EndingsConformance
from tests.conformance.storage_suite.failures import FailuresConformance
from tests.conformance.storage_suite.fair_queues import FairQueuesConformance
from tests.conformance.storage_suite.following import FollowingConformance
from tests.conformance.storage_suite.graphs import GraphsConformance
from tests.conformance.storage_suite.identity import IdentityConformance
from tests.conformance.storage_suite.jobs import JobsConformance
from tests.conformance.storage_suite.joins import JoinsConformance
from tests.conformance.storage_suite.listing import ListingConformance
from tests.conformance.storage_suite.live_limits import LiveLimitsConformance
from tests.conformance.storage_suite.nodes import NodesConformance
from tests.conformance.storage_suite.own_ids import OwnIdsConformance
from tests.conformance.storage_suite.permits import PermitsConformance
from tests.conformance.storage_suite.purging import PurgingConformance
from tests.conformance.storage_suite.queues import QueuesConformance
from tests.conformance.storage_suite.refusals import RefusalsConformance
from tests.conformance.storage_suite.reports import ReportsConformance
from tests.conformance.storage_suite.rescheduling import ReschedulingConformance
from tests.conformance.storage_suite.schedules import SchedulesConformance
from tests.conformance.storage_suite.store_user import StoreUser, at_once, most_in_a_window, rate, recover, strict
from tests.conformance.storage_suite.tags import TagsConformance
from tests.conformance.storage_suite.taken_ids import TakenIdsConformance
from tests.conformance.storage_suite.terms import TermsConformance
from tests.conformance.storage_suite.two_level_fair_queues import TwoLevelFairQueuesConformance
from tests.conformance.storage_suite.unique_keys import UniqueKeysConformance
from tests.conformance.storage_suite.unique_terms import UniqueTermsConformance

__all__ = ["StorageConformance", "StoreUser", "at_once", "most_in_a_window", "rate", "recover", "strict"]


class StorageConformance(
    JobsConformance,
    AgingConformance,
    BudgetsConformance,
    AdaptiveConformance,
    FairQueuesConformance,
    TwoLevelFairQueuesConformance,
    BoundsConformance,
    EndingsConformance,
    NodesConformance,
    AlertsConformance,
    CompletingConformance,
    QueuesConformance,
    SchedulesConformance,
    PermitsConformance,
    TermsConformance,
    LiveLimitsConformance,
    DeploysConformance,
    AuditingConformance,
    PurgingConformance,
    ReportsConformance,
    RefusalsConformance,
    ReschedulingConformance,
    ListingConformance,
    TagsConformance,
    UniqueKeysConformance,
    UniqueTermsConformance,
    IdentityConformance,
    OwnIdsConformance,
    TakenIdsConformance,
    FollowingConformance,
    BatchesConformance,
    JoinsConformance,
    GraphsConformance,
    ChartsConformance,
    FailuresConformance,
):
    """Subclass it with a fixture `storage` that gives an open, empty store on the fixture `clock`."""
