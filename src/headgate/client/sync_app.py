"""The verbs of an app for code that cannot await, on an event loop in a background thread."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headgate.client.client import Client
from headgate.client.handles import SyncBatch, SyncJob, SyncSchedule, batch_handle, job_handle, schedule_handle

if TYPE_CHECKING:
    from headgate.client.sync_admin import SyncAdmin

T = TypeVar("T")


class SyncApp:
    """The methods of the app for synchronous code; tasks, chains, batches and limiters have their own `sync`.

    Each opens the app on first use; `with app.sync:` opens it at once, and closes it at the end.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def admin(self) -> SyncAdmin:
        """The operations for operators, as `Headgate.admin`: `app.sync.admin.cancel(job_id)`."""
        from headgate.client.sync_admin import SyncAdmin  # It imports all of the Admin.

        return SyncAdmin(lambda: self._client.admin, self._client.portal)

    def job(self, job_id: str) -> SyncJob[Any]:
        """As `Headgate.job`."""
        return SyncJob(job_handle(self._client, job_id), self._client.portal)

    def batch(self, batch_id: str) -> SyncBatch:
        """As `Headgate.batch`."""
        return SyncBatch(batch_handle(self._client, batch_id), self._client.portal)

    def find_schedule(self, name: str) -> SyncSchedule[Any]:
        """As `Headgate.find_schedule`."""
        return SyncSchedule(schedule_handle(self._client, name), self._client.portal)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the app's event loop and return its result; blocks this thread."""
        return self._client.portal.run(coroutine)

    def close(self) -> None:
        """End the background thread, if any; the next call starts it again."""
        self._client.portal.close()

    def __enter__(self) -> Self:
        self._client.portal.open()
        return self

    def __exit__(self, *details: object) -> None:
        self._client.portal.close()
