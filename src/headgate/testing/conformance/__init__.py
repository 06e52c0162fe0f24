"""The tests that every store has to pass; each attacks one promise of the Storage protocol.

    class TestMyStorage(StorageConformance):
        @pytest_asyncio.fixture
        async def storage(self, clock: ManualClock) -> AsyncIterator[Storage]:
            storage = MyStorage(clock)
            await storage.open()
            yield storage
            await storage.close()

Time stands still unless a test moves it. After each test the store's own `check()` has to find nothing.
"""

from headgate.testing.conformance.auditing import AuditingConformance
from headgate.testing.conformance.batches import BatchesConformance
from headgate.testing.conformance.bounds import BoundsConformance
from headgate.testing.conformance.budgets import BudgetsConformance
from headgate.testing.conformance.charts import ChartsConformance
from headgate.testing.conformance.deploys import DeploysConformance
from headgate.testing.conformance.endings import EndingsConformance
from headgate.testing.conformance.following import FollowingConformance
from headgate.testing.conformance.hands import Hands, at_once, most_in_a_window, rate, recover, strict
from headgate.testing.conformance.jobs import JobsConformance
from headgate.testing.conformance.listing import ListingConformance
from headgate.testing.conformance.live_limits import LiveLimitsConformance
from headgate.testing.conformance.nodes import NodesConformance
from headgate.testing.conformance.permits import PermitsConformance
from headgate.testing.conformance.purging import PurgingConformance
from headgate.testing.conformance.queues import QueuesConformance
from headgate.testing.conformance.refusals import RefusalsConformance
from headgate.testing.conformance.reports import ReportsConformance
from headgate.testing.conformance.rescheduling import ReschedulingConformance
from headgate.testing.conformance.schedules import SchedulesConformance
from headgate.testing.conformance.terms import TermsConformance
from headgate.testing.conformance.unique_keys import UniqueKeysConformance

__all__ = ["Hands", "StorageConformance", "at_once", "most_in_a_window", "rate", "recover", "strict"]


class StorageConformance(
    JobsConformance,
    BudgetsConformance,
    BoundsConformance,
    EndingsConformance,
    NodesConformance,
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
    UniqueKeysConformance,
    FollowingConformance,
    BatchesConformance,
    ChartsConformance,
):
    """Subclass it with a fixture `storage` that gives an open, empty store on the fixture `clock`."""
