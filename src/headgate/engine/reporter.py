"""The reporter: stores what running attempts say of themselves, all that has gathered in one go, once a second."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from headgate.clock import Clock, sleep
from headgate.engine.bus import EventBus
from headgate.engine.described import said
from headgate.errors import StorageUnavailable
from headgate.jobs.event import JobProgressed, ReportDropped, StorageTroubled
from headgate.jobs.job import ClaimedJob, Progress
from headgate.jobs.report import PLACES, AttemptReport, LogLine, kept_level, kept_line, kept_name, kept_word
from headgate.storage.store import Store

EVERY = 1.0
"""Seconds between two reports of what attempts say while they run."""

CHARACTERS_AT_ONCE = 4_000_000
"""About how much is stored in one commit, so that nobody waits long for it."""


class Reporter:
    """What the attempts of one node have said and is not stored yet; it may be told from any thread.

    Of an attempt's lines of the `lowest` level and above the first `most_lines` are kept, of its progress the last. The
    recorder flushes it before it records endings, so that whoever sees a final job sees all that it has said.
    """

    def __init__(self, node: str, storage: Store, *, clock: Clock, bus: EventBus, most_lines: int, lowest: int) -> None:
        self.node = node
        self._storage = storage
        self._clock = clock
        self._bus = bus
        self._most = most_lines
        self._lowest = lowest
        # The garbage collector may run what logs at any moment, also while this thread holds the lock. So it can be
        # taken again, and what is done under it is right wherever such a line comes in between.
        self._lock = threading.RLock()
        self._said: dict[str, _AttemptOutput] = {}
        # Those of them that have something new, in the order in which they said it.
        self._new: dict[str, None] = {}
        self._is_woken = False
        self._has_news = asyncio.Event()
        self._sending = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def lowest(self) -> int | None:
        """The lowest level of log lines that are kept; None: none are."""
        return self._lowest if self._most else None

    @property
    def is_told_anything(self) -> bool:
        """Whether any running attempt has said anything; most never do."""
        return bool(self._said)

    def progress(self, job: ClaimedJob, fraction: float, message: str | None) -> None:
        """An attempt says how far it is."""
        progress = Progress(fraction, kept_word(message), self._storage.now())
        with self._lock:
            said = self._of(job)
            if said is not None:
                said.progress = progress
                self._tell(job)

    def log(self, job: ClaimedJob, level: int, logger: str, message: str) -> None:
        """An attempt has logged a line."""
        at, level, name, text = self._storage.now(), kept_level(level), kept_name(logger), kept_line(message)
        with self._lock:
            said = self._of(job)
            # One more than is kept tells that there were more.
            if said is None or said.logged > self._most:
                return
            number = job.fence * PLACES + said.logged
            said.logged += 1
            said.lines.append(LogLine(number, at, job.attempt, level, name, text))
            self._tell(job)

    def _of(self, job: ClaimedJob) -> _AttemptOutput | None:
        """What this attempt has said; None if a later one of the same job runs here by now."""
        said = self._said.get(job.id)
        if said is not None and said.job.fence < job.fence:
            del self._said[job.id]
            said = None
        if said is None:
            said = self._said.setdefault(job.id, _AttemptOutput(job))
        return said if said.job.fence == job.fence else None

    def _tell(self, job: ClaimedJob) -> None:
        self._new[job.id] = None
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            # A thread that outlives its attempt may outlive the node as well.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._has_news.set)

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            with self._lock:
                self._is_woken = False
            try:
                if await self.flush():
                    self._has_news.set()
            except StorageUnavailable as error:
                self._bus.publish(
                    StorageTroubled(at=self._clock.now(), doing="storing what jobs say", error=str(error))
                )
                self._has_news.set()
            await sleep(self._clock, EVERY)

    async def flush(self, jobs: Collection[str] | None = None) -> set[str]:
        """Store what these jobs have said, or all; the jobs that others held, whose words are kept for the next time.

        Raises StorageUnavailable; then all are kept. A report that the store cannot keep for another reason is dropped,
        with a warning for its attempt: what a job says of itself ends neither it nor its node.
        """
        if not self._new and not self._sending.locked():
            return set()
        held: list[AttemptReport] = []
        async with self._sending:
            # Only what is new by now: a job that never stops talking must not keep the endings of others waiting.
            due = deque(id for id in list(self._new) if jobs is None or id in jobs)
            try:
                while taken := self._take(due):
                    held += await self._send(taken)
            finally:
                self._put_back(held)
        return {report.id for report in held}

    async def _send(self, taken: Sequence[tuple[ClaimedJob, AttemptReport]]) -> list[AttemptReport]:
        """Store what was taken; what was not, as others hold its jobs."""
        held: list[AttemptReport] = []
        try:
            written = await self._storage.report(self.node, [report for _, report in taken], self._most)
        except (StorageUnavailable, asyncio.CancelledError):
            self._put_back(report for _, report in taken)
            raise
        except Exception as error:
            if len(taken) == 1:
                self._drop_report(taken[0][0], error)
                return held
            # One of them spoils it for all.
            for place, each in enumerate(taken):
                try:
                    held += await self._send([each])
                except BaseException:
                    self._put_back(held)
                    self._put_back(report for _, report in taken[place + 1 :])
                    raise
            return held
        for (job, report), was_written in zip(taken, written, strict=True):
            if was_written is None:
                held.append(report)
            elif not was_written:
                # The job is another's now, or final; whatever this attempt still says is nobody's.
                self.forget([job.id])
            elif report.progress is not None and self._bus.wants(JobProgressed):
                self._bus.publish(_progressed(job, report.progress))
        return held

    def _drop_report(self, job: ClaimedJob, error: Exception) -> None:
        with self._lock:
            own = self._said.get(job.id)
            if own is None or own.job.fence != job.fence or own.is_warned:
                return
            own.is_warned = True
        at, error_said = self._clock.now(), said(error)
        self._bus.publish(ReportDropped(at=at, job_id=job.id, task=job.task, attempt=job.attempt, error=error_said))

    def _take(self, due: deque[str]) -> list[tuple[ClaimedJob, AttemptReport]]:
        """The next of those that are due, as much as is stored at once."""
        taken: list[tuple[ClaimedJob, AttemptReport]] = []
        characters = 0
        with self._lock:
            while due and characters < CHARACTERS_AT_ONCE:
                id = due.popleft()
                if id in self._new:
                    del self._new[id]
                    said = self._said[id]
                    lines, said.lines = said.lines, []
                    progress, said.progress = said.progress, None
                    # One that came while another was being made stands before it.
                    lines.sort(key=_number)
                    taken.append((said.job, AttemptReport(id, said.job.fence, progress, tuple(lines))))
                    characters += sum(len(line.message) for line in lines)
        return taken

    def _put_back(self, reports: Iterable[AttemptReport]) -> None:
        with self._lock:
            for report in reports:
                said = self._said.get(report.id)
                if said is not None and said.job.fence == report.fence:
                    said.lines[:0] = report.lines
                    said.progress = said.progress or report.progress
                    self._new[report.id] = None

    def forget(self, jobs: Iterable[str]) -> None:
        """Their attempts have ended."""
        with self._lock:
            for id in jobs:
                self._said.pop(id, None)
                self._new.pop(id, None)

    def drop(self) -> None:
        """Forget all that was said: the jobs are another node's now."""
        with self._lock:
            self._said.clear()
            self._new.clear()


class _AttemptOutput:
    """What one attempt has said: how many lines in all, and what is not stored yet."""

    __slots__ = ("is_warned", "job", "lines", "logged", "progress")

    def __init__(self, job: ClaimedJob) -> None:
        self.job = job
        self.logged = 0
        self.lines: list[LogLine] = []
        self.progress: Progress | None = None
        self.is_warned = False


_number = attrgetter("number")


def _progressed(job: ClaimedJob, progress: Progress) -> JobProgressed:
    return JobProgressed(
        at=progress.at,
        job_id=job.id,
        task=job.task,
        queue=job.queue,
        attempt=job.attempt,
        fraction=progress.fraction,
        message=progress.message,
    )
