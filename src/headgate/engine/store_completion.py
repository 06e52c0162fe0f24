"""Completing running jobs in transactions of their handlers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from headgate.errors import AttemptLost, StorageUnavailable
from headgate.jobs.job import ClaimedJob
from headgate.storage.driver import run_to_end
from headgate.storage.enlisting import require_blocking
from headgate.storage.store import Store


class TransactionRefused(StorageUnavailable):
    """The store opened no transaction for a handler. Nothing was written: its job is returned, the attempt unspent."""


class StoreCompletion:
    """Completes jobs in the store; as `tasks.context.Completion`."""

    def __init__(self, storage: Store) -> None:
        self._storage = storage

    async def complete(self, job: ClaimedJob, connection: Any) -> None:
        if not await self._storage.complete_in(connection, job.id, job.fence):
            raise AttemptLost(job.id, job.attempt)

    def complete_blocking(self, job: ClaimedJob, connection: Any) -> None:
        require_blocking(connection)
        run_to_end(self.complete(job, connection))

    @contextlib.asynccontextmanager
    async def transaction(self, job: ClaimedJob) -> AsyncIterator[Any]:
        async with contextlib.AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(self._storage.transaction())
            except StorageUnavailable as error:
                raise TransactionRefused(str(error)) from error
            yield connection
            await self.complete(job, connection)

    async def is_complete(self, job: ClaimedJob) -> bool:
        """Whether the attempt has completed the job; False if the store does not answer, which then decides later."""
        try:
            return await self._storage.is_complete(job.id, job.fence)
        except StorageUnavailable:
            return False
