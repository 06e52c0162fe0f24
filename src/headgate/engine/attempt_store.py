"""What an attempt asks of the store: results that are arguments, and the completion of its job in a transaction."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from headgate.engine.large_payloads import LargePayloads
from headgate.errors import AttemptLost, PayloadError, ResultUnavailable, StorageUnavailable
from headgate.jobs.job import ClaimedJob, JobRecord, JobState
from headgate.storage.driver import run_to_end
from headgate.storage.enlisting import require_blocking
from headgate.storage.store import Store
from headgate.tasks.codec import Codecs

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

READ_AT_ONCE = 1000
"""How many jobs are read at once."""


class StoreResults:
    """Adds to the arguments of a job those that are results of others, when it starts."""

    def __init__(self, storage: Store, codecs: Codecs, large_payloads: LargePayloads | None = None) -> None:
        self._storage = storage
        self._codecs = codecs
        self._large_payloads = large_payloads

    async def payload_of(self, job: ClaimedJob, results: Mapping[str, str | Sequence[str]]) -> str:
        """Return the payload of a job with the arguments `results`, in clear.

        Raises ResultUnavailable, StorageUnavailable, FolderUnavailable, and PayloadError for what cannot be decoded or
        is no JSON object.
        """
        what = f"the payload of job {job.id}"
        stored = self._codecs.decode(job.payload, what)
        try:
            arguments = _decode(stored)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PayloadError(f"{what} is not a JSON object: {error}") from None
        for name, ids in results.items():
            if isinstance(ids, str):
                arguments[name] = await self._result_of(ids, name)
            else:
                arguments[name] = _list([await self._result_of(id, name) for id in ids])
        return msgspec.json.encode(arguments).decode()

    async def _result_of(self, id: str, argument: str) -> msgspec.Raw:
        found = await self._storage.final([id])
        if found:
            return await self._result(found[0], argument)
        if await self._storage.job(id) is not None:
            raise ResultUnavailable(f"argument {argument!r} is the result of job {id}, which has been retried and runs")
        if await self._storage.batch(id) is None:
            raise ResultUnavailable(
                f"argument {argument!r} is the result of {id}, which has been pruned after its retention"
            )
        results: list[msgspec.Raw] = []
        ids: Sequence[str] = [""]
        while ids := await self._storage.jobs_of_batch(id, after=ids[-1], count=READ_AT_ONCE):
            records = {record.id: record for record in await self._storage.final(ids)}
            for each in ids:
                if each in records and records[each].state is JobState.SKIPPED:
                    continue
                if each not in records:
                    raise ResultUnavailable(
                        f"argument {argument!r} are the results of batch {id}, and its job {each} is not final"
                    )
                results.append(await self._result(records[each], argument))
        if await self._storage.pruned_members(id):  # asked last: jobs may be pruned meanwhile
            what = f"argument {argument!r} are the results of batch {id}, of which some were pruned"
            raise ResultUnavailable(f"{what}; give its tasks a longer retention")
        return _list(results)

    async def _result(self, record: JobRecord, argument: str) -> msgspec.Raw:
        if record.state is not JobState.SUCCEEDED:
            how = "failed" if record.state is JobState.FAILED else f"was {record.state}"
            raise ResultUnavailable(f"argument {argument!r} is the result of job {record.id}, which {how}")
        if record.result is None:
            raise ResultUnavailable(
                f"argument {argument!r} is the result of job {record.id}, which is not kept: its task {record.task!r} "
                "has keep_result=False, or it was completed in a transaction"
            )
        what, stored = f"the result of job {record.id}", record.result
        if self._large_payloads is not None:
            stored = await self._large_payloads.load(stored, what)
        return msgspec.Raw(self._codecs.decode(stored, what).encode())


def _list(results: Sequence[msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(results))


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
