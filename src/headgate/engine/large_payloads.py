"""Large payloads: moves the data of payloads and results to a folder, reads it back, and deletes it with its jobs."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from typing import TypeVar

from msgspec.structs import replace

from headgate.clock import Clock, sleep, to_datetime, wait_until_done
from headgate.engine.bus import publish_storage_failure
from headgate.engine.services import Services
from headgate.errors import FolderUnavailable, NotOpen, PayloadError, StorageUnavailable
from headgate.jobs.encoded import FOLDER, codecs_of, is_encoded, is_in_folder, read_encoded, write_encoded
from headgate.jobs.job import NewJob
from headgate.jobs.uniqueness import replaces
from headgate.shielding import in_thread, read_error
from headgate.storage.store import Store
from headgate.tasks.payload_folder import PayloadFolder

T = TypeVar("T")

AT_ONCE = 16
"""How many objects are read and written at once."""

LISTING_TIMEOUTS = 10
"""How many timeouts of a read a list may take: that of a day may have many parts."""

MAX_FAILURES_IN_A_ROW = 10
"""The number of undeletable objects after which a sweep leaves their day, and of such days after which it ends."""

MARKER = "headgate.txt"
"""The object in the folder of each database that shows that the folder is there."""

_MARKER_TEXT = b"""Headgate keeps large payloads and results of a database here. Do not delete this file:
without it, the folder counts as one that is not mounted.
"""

KEPT_WITHOUT_JOB = timedelta(days=2)
"""The time for which an object without a stored job is kept: its transaction may not have committed yet."""

SWEPT_AT_ONCE = 500
"""How many objects are looked up in one statement."""

SWEEP_EVERY = 6 * 3600.0
"""Seconds between two sweeps of a node on average. Each wait is 0 to 2 of it: nodes may be replaced every hour."""

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NAME = re.compile(r"[0-9a-f-]{32,36}/[0-9]{4}-[0-9]{2}-[0-9]{2}/(?:[0-9a-v]{13}|[0-9a-f-]{36})\.[0-9a-f]{16}")
_REFERENCE = re.compile(rf"([0-9]+:[0-9a-f]{{32}}):({_NAME.pattern})")


class LargePayloads:
    """Reads and writes the folder of an app, in threads of its own.

    An object belongs to one job, whose id is in its name. It is written before the job is stored, and deleted after the
    job has been. In the folder, each database has a folder of its own, so that it deletes nothing of others.
    """

    def __init__(self, folder: PayloadFolder, storage: Store, clock: Clock) -> None:
        self._folder = folder
        self._storage = storage
        self._clock = clock
        self._threads: Executor | None = None
        self._pid = os.getpid()
        self._place = ""
        self._is_there = False
        self._is_noted = False

    def close(self) -> None:
        """Start no more work in threads. The store may be another one when the app is opened again."""
        threads, self._threads = self._own_threads(), None
        self._place, self._is_there, self._is_noted = "", False, False
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    # --------------------------------------------------------------------------------------- write and read

    def is_large(self, text: str) -> bool:
        """Return whether a text that is about to be stored belongs into the folder."""
        above = self._folder.above
        # A character takes at most 4 bytes.
        return len(text) * 4 >= above and len(text if text.isascii() else text.encode()) >= above

    async def store_payloads(self, jobs: Sequence[NewJob], *, in_transaction: bool = False) -> Sequence[NewJob]:
        """Write the large payloads of new jobs; return the jobs as they are to be stored. Raises FolderUnavailable.

        A job that may replace another one keeps its payload: it would be stored under the id of that one. While the
        caller is `in_transaction`, nothing is written to the database, which may be locked by it.
        """
        large = [job for job in jobs if self.is_large(job.payload) and not replaces(job)]
        if not large:
            return jobs
        await self._require_folder(in_transaction=in_transaction)
        stored = await call_all([partial(self._write, job.payload, job.id) for job in large])
        payloads = {job.id: text for job, text in zip(large, stored, strict=True)}
        return [replace(job, payload=payloads[job.id]) if job.id in payloads else job for job in jobs]

    async def store(self, text: str, job_id: str) -> str:
        """Write the data of a text to the folder; return the text that is stored instead. Raises FolderUnavailable."""
        await self._require_folder()
        return await self._write(text, job_id)

    async def _write(self, text: str, job_id: str) -> str:
        names, data = read_encoded(text) if is_encoded(text) else ((), text.encode())
        day = to_datetime(self._storage.now()).date().isoformat()
        name = f"{await self._own_place()}/{day}/{job_id}.{secrets.token_hex(8)}"
        try:
            await self._run("writing", partial(self._folder.write, name, data))
        except FolderUnavailable:
            # On a disk that is no longer mounted: the next write finds that out.
            self._is_there = False
            raise
        return write_encoded((*names, FOLDER), f"{_content(data)}:{name}".encode())

    async def load(self, text: str, what: str) -> str:
        """Return a stored text with its data, if that is in the folder; any other text as it is.

        Raises FolderUnavailable, and PayloadError for an object that is missing or damaged.
        """
        if not is_in_folder(text):
            return text
        content, name = _reference(text, what)
        data = await self._run("reading", partial(self._folder.read, name))
        if data is None:
            if not await self._has_marker():
                raise await self._not_there("reading")
            raise PayloadError(
                f"{what} is not in the folder of large payloads: {self._folder.shown_url} has no {name}; put "
                "the object back, or give the app the folder that has it"
            )
        if _content(data) != content:
            raise PayloadError(f"{what} cannot be read: {name} in {self._folder.shown_url} was changed")
        names = codecs_of(text)[:-1]
        try:
            return write_encoded(names, data) if names else data.decode()
        except UnicodeDecodeError:
            raise PayloadError(f"{what} cannot be read: {name} is not text") from None

    # ------------------------------------------------------------------------------------ whether it is there

    async def _require_folder(self, *, in_transaction: bool = False) -> None:
        """Raise FolderUnavailable unless the folder of this database is there; make it when it is first used.

        A folder that was used before and has no marker is not mounted: what was written now would be lost later.
        """
        if not self._is_there:
            if not await self._has_marker():
                if await self._storage.is_folder_used(self._folder.shown_url):
                    raise await self._not_there("writing")
                marker = await self._marker()
                await self._run("writing", partial(self._folder.write, marker, _MARKER_TEXT, makes_folder=True))
            self._is_there = True
        if not in_transaction:
            await self._note_used()

    async def _note_used(self) -> None:
        """Note in the database that the folder is used, after its marker has been written."""
        if not self._is_noted and not self._folder.is_in_process:
            await self._storage.note_folder_used(self._folder.shown_url)
            self._is_noted = True

    async def _has_marker(self) -> bool:
        if self._folder.is_in_process:
            # It is always there, and empty when the process starts.
            return True
        return await self._run("reading", partial(self._folder.read, await self._marker())) is not None

    async def _not_there(self, doing: str) -> FolderUnavailable:
        cause = f"it has no {await self._marker()}, so the folder of this database is not there; is it mounted?"
        return FolderUnavailable(self._folder.shown_url, doing, cause)

    async def _marker(self) -> str:
        return f"{await self._own_place()}/{MARKER}"

    # -------------------------------------------------------------------------------------------------- sweep

    async def sweep(self) -> int:
        """Delete the objects whose jobs are not stored any more; return how many.

        Objects of the last two days stay: a transaction may still store their jobs. Goes on after an object that cannot
        be deleted and a day that cannot be listed; then raises the first FolderUnavailable.
        """
        # Another database may have taken the place of the one whose folder is known: its jobs are not in this one.
        self._place, self._is_there, self._is_noted = "", False, False
        if await self._has_marker():
            await self._note_used()
        elif await self._storage.is_folder_used(self._folder.shown_url):
            raise await self._not_there("listing")
        place, swept, failed_days = await self._own_place(), 0, _Failures()
        kept_since = (to_datetime(self._storage.now()) - KEPT_WITHOUT_JOB).date().isoformat()
        for day in await self._listed(place):
            if not _DAY.fullmatch(day) or day >= kept_since:
                continue
            failed = _Failures()
            try:
                swept += await self._sweep_day(f"{place}/{day}", failed)
            except FolderUnavailable as error:
                failed_days.add(error)
            else:
                failed_days.in_a_row = 0
                failed_days.first = failed_days.first or failed.first
        if failed_days.first is not None:
            raise failed_days.first
        return swept

    async def _sweep_day(self, folder: str, failed: _Failures) -> int:
        names, swept = await self._listed(folder), 0
        for first in range(0, len(names), SWEPT_AT_ONCE):
            swept += await self._delete_orphans(folder, names[first : first + SWEPT_AT_ONCE], failed)
        if swept == len(names):
            # Some stores, as HDFS, delete a folder with all that is in it.
            await self._run(f"deleting {folder}", partial(self._folder.delete_empty, folder))
        return swept

    async def _delete_orphans(self, folder: str, names: Sequence[str], failed: _Failures) -> int:
        ids = {name: name.partition(".")[0] for name in names if _NAME.fullmatch(f"{folder}/{name}")}
        stored = set(await self._storage.stored_ids(sorted(set(ids.values()))))
        if await self._storage.identity() != folder.partition("/")[0]:
            # Another database has taken the place of this one during the sweep: its jobs are not in that one.
            return 0
        swept = 0
        for name in (name for name, id in ids.items() if id not in stored):
            try:
                swept += await self._run(f"deleting {folder}/{name}", partial(self._folder.delete, f"{folder}/{name}"))
            except FolderUnavailable as error:
                failed.add(error)
            else:
                failed.in_a_row = 0
        return swept

    async def _listed(self, folder: str) -> list[str]:
        timeout = self._folder.timeout * LISTING_TIMEOUTS
        return sorted(await self._run(f"listing {folder}", lambda: list(self._folder.list(folder)), timeout))

    async def _own_place(self) -> str:
        if not self._place:
            self._place = await self._storage.identity()
        return self._place

    # ------------------------------------------------------------------------------------------------ threads

    async def _run(self, doing: str, work: Callable[[], T], timeout: float | None = None) -> T:
        """Return what `work` returns in a thread. Raises FolderUnavailable for its errors; NotOpen if the app closes.

        The wait for a free thread counts as part of its `timeout` (default: that of the folder): others may not answer.
        """
        timeout = self._folder.timeout if timeout is None else timeout
        self._threads = self._own_threads() or _new_threads()
        running = in_thread(self._threads, work)
        # After a timeout no caller reads its error.
        running.add_done_callback(read_error)
        try:
            if not await wait_until_done(self._clock, running, timeout):
                self._folder.reopen()
                raise FolderUnavailable(self._folder.shown_url, doing, f"no answer for {timeout:g} s")
        finally:
            # What has not started does not start any more.
            running.cancel()
        try:
            return running.result()
        except asyncio.CancelledError:
            # It waited for a thread when the app was closed; nobody has cancelled the caller.
            raise NotOpen from None
        except Exception as error:  # fsspec raises what the package of the scheme raises
            self._folder.reopen()
            raise FolderUnavailable(self._folder.shown_url, doing, f"{type(error).__name__}: {error}") from error

    def _own_threads(self) -> Executor | None:
        """Return the threads of this process: after a fork, those of the parent are not here."""
        if self._pid != os.getpid():
            self._pid, self._threads = os.getpid(), None
        return self._threads


def _new_threads() -> Executor:
    """Return threads for which a program that ends does not wait: a store may never answer."""
    from headgate.storage.sqlite.threads import CallThread

    return CallThread("headgate-payloads", AT_ONCE)


class _Failures:
    """Objects or days that a sweep could not delete: the first error, and how many there were in a row."""

    first: FolderUnavailable | None = None
    in_a_row = 0

    def add(self, error: FolderUnavailable) -> None:
        """Count a failure. Raises the first one after too many in a row."""
        self.first = self.first or error
        self.in_a_row += 1
        if self.in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise self.first


def _reference(text: str, what: str) -> tuple[str, str]:
    """Return the content and the name of the object that a text refers to. Raises PayloadError if that is damaged."""
    with suppress(ValueError):
        if found := _REFERENCE.fullmatch(read_encoded(text).data.decode()):
            return found[1], found[2]
    raise PayloadError(f"{what} cannot be read: its place in the folder of large payloads is damaged")


def _content(data: bytes) -> str:
    """Return the size and the digest of data, as references have them."""
    return f"{len(data)}:{blake2b(data, digest_size=16).hexdigest()}"


async def call_all(calls: Sequence[Callable[[], Awaitable[T]]], *, at_once: int = AT_ONCE) -> list[T]:
    """Return what the calls return; so many run at once. After an error no more begin, and it is raised at the end."""
    answers: dict[int, T] = {}
    left = deque(enumerate(calls))

    async def make_calls() -> None:
        try:
            while left:
                index, call = left.popleft()
                answers[index] = await call()
        except BaseException:
            left.clear()
            raise

    for error in await asyncio.gather(*[make_calls() for _ in calls[:at_once]], return_exceptions=True):
        if error is not None:
            raise error
    return [answers[index] for index in range(len(calls))]


async def sweep_regularly(large_payloads: LargePayloads, services: Services) -> None:
    """Sweep the folder a few times a day. Every node does; they do not conflict."""
    while True:
        await sleep(services.clock, SWEEP_EVERY * 2 * services.random.random())
        try:
            await large_payloads.sweep()
        except StorageUnavailable as error:
            publish_storage_failure(services.bus, services.clock, "sweeping the large payloads", error)
