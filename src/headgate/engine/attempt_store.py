"""What an attempt asks of the store: results that are arguments, who else may read its job, and its completion."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from headgate.clock import SECOND
from headgate.engine.large_payloads import LargePayloads
from headgate.engine.services import Services, WithServices
from headgate.errors import AttemptLost, PayloadError, ResultUnavailable, StorageUnavailable
from headgate.jobs.encoded import codecs_of
from headgate.jobs.job import ClaimedJob, JobRecord, JobState
from headgate.jobs.limit_sets import DeclaredLimitSets
from headgate.storage.driver import run_to_end
from headgate.storage.enlisting import require_blocking
from headgate.storage.store import Store
from headgate.storage.stored_rows import note_unreadable
from headgate.tasks.codec import Codecs

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

READ_AT_ONCE = 1000
"""How many jobs are read at once."""

LEFT_AFTER = 3
"""After how many unreadable jobs in a row their task is left: fewer than the tries of a job."""

LEFT_FOR = 5 * SECOND
"""How long a left task is not claimed, and other nodes for it are not looked for again (microseconds)."""


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


class LeftTasks(WithServices):
    """Leaves a task to the other nodes that declare it, after several of its jobs in a row could not be read here.

    They are counted by their codecs: a node may lack only the new one. A left task is tried again from time to time,
    and is not declared in the row of the node until then: nodes that cannot read it must not rely on each other.
    """

    def __init__(self, services: Services, own_id: Callable[[], str], wake: Callable[[], None]) -> None:
        super().__init__(services)
        self._own_id, self._wake = own_id, wake
        self._unread: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._until: dict[str, int] = {}
        self._alone_until: dict[str, int] = {}
        self._declared: Mapping[str, Sequence[str]] | None = None
        self._declared_for: tuple[DeclaredLimitSets, frozenset[str]] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The tasks that are not to be claimed now."""
        now = self._clock.monotonic() if self._until else 0
        return frozenset([task for task, until in self._until.items() if now < until])

    def declared(self) -> Mapping[str, Sequence[str]]:
        """Return the tasks that the node declares in its row, by queue; the same mapping until they change."""
        limit_sets, left = self._registry.limit_sets(), frozenset(self._until)
        if self._declared is None:
            return limit_sets.tasks
        if self._declared_for != (limit_sets, left):
            self._declared_for = limit_sets, left
            self._declared = limit_sets.only(self._registry.names - left).tasks
        return self._declared

    def note_read(self, job: ClaimedJob) -> None:
        """Note that the payload of a job could be read. One of another kind ends the leaving once its time is over."""
        if not self._unread:
            return
        was_unread = self._unread.pop((job.task, codecs_of(job.payload)), 0) > 0
        if job.task in self._until and (was_unread or job.task not in self.names):
            del self._until[job.task]
            self._wake()

    async def leaves(self, job: ClaimedJob, error: Exception) -> bool:
        """Note that the payload of a job could not be read; return whether the job is left to other nodes."""
        task, kind, now = job.task, (job.task, codecs_of(job.payload)), self._clock.monotonic()
        self._unread[kind] += 1
        if self._unread[kind] < LEFT_AFTER or now < self._alone_until.get(task, 0):
            return False
        if task not in self.names:
            # Noted first: the attempts that end meanwhile need not ask as well.
            self._until[task] = now + LEFT_FOR
            self._clock.call_at(now + LEFT_FOR, self._wake)
            with contextlib.suppress(StorageUnavailable):
                if not await self._leave(job):
                    self._until.pop(task, None)
                    self._alone_until[task] = now + LEFT_FOR
                    self._wake()
                    return False
            note_unreadable("a payload of task", task, f"{error}; its jobs are left to workers that can read them")
        return True

    async def _leave(self, job: ClaimedJob) -> bool:
        """Declare the task of a job no more; return whether another node runs it."""
        definition = self._registry.find(job.task)
        others = (self._own_id(), job.task, job.queue, frozenset() if definition is None else definition.requires)
        if not await self._storage.runs_elsewhere(*others):
            return False
        # Two nodes may leave it at the same moment: each asks again after it has left.
        # A new mapping, as the last heartbeat may have written an equal one, and this changes the row.
        self._declared, self._declared_for = {}, None
        await self._storage.declare(self._own_id(), self.declared())
        return await self._storage.runs_elsewhere(*others)


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
