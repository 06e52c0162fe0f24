"""The reporter: stores the progress, annotations and log lines of running attempts in batches, once a second."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from weakref import WeakSet

from headgate.clock import sleep
from headgate.engine.services import Services, WithServices
from headgate.errors import StorageUnavailable
from headgate.jobs.annotation import Annotation, applied
from headgate.jobs.event import JobProgressed, ReportDropped
from headgate.jobs.job import ClaimedJob, Progress, summarize_error
from headgate.jobs.report import PLACES, AttemptReport, LogLine, kept_level, kept_line, kept_message, kept_name

REPORT_EVERY = 1.0
"""Seconds between two reports of running attempts."""

CHARACTERS_AT_ONCE = 4_000_000
"""About how much is stored in one commit: other writers do not wait long, and no statement reaches its timeout."""


_reporters: WeakSet[Reporter] = WeakSet()


def _renew_locks() -> None:
    """Give each reporter a new lock in a fork: a thread that is not in the fork may have held it."""
    for reporter in _reporters:
        reporter._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)


class Reporter(WithServices):
    """Holds the output of attempts on one node until it is stored; its verbs may be called in any thread.

    Of each attempt it keeps the first `most_lines` log lines at the `lowest` level and above, and the last progress.
    The recorder flushes it before it records endings, so that a reader of a final job finds all its output.
    """

    def __init__(self, services: Services, node: str, *, most_lines: int, lowest: int) -> None:
        super().__init__(services)
        self.node = node
        self._max_lines = most_lines
        self._lowest = lowest
        # The garbage collector may run code that logs at any time, even while this thread holds the lock. So the lock
        # is reentrant, and the code under it stays correct when a line is added in between.
        self._lock = threading.RLock()
        _reporters.add(self)
        # Of running attempts by job; most never have any.
        self.outputs: dict[str, _AttemptOutput] = {}
        # The jobs with new output, in the order of the output.
        self._new: dict[str, None] = {}
        self._is_woken = False
        self._wakeup = asyncio.Event()
        self._sending = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def lowest(self) -> int | None:
        """The lowest level of log lines that are kept; None: none are."""
        return self._lowest if self._max_lines else None

    def progress(self, job: ClaimedJob, fraction: float, message: str | None) -> None:
        """Hold the progress of an attempt."""
        progress = Progress(fraction, kept_message(message), self._storage.now())
        with self._lock:
            output = self._output_of(job)
            if output is not None:
                output.progress = progress
                self._note_new(job)

    def annotate(self, job: ClaimedJob, changes: Mapping[str, Annotation | None]) -> None:
        """Hold changed annotations of an attempt; None removes one."""
        with self._lock:
            output = self._output_of(job)
            if output is not None:
                output.annotations = applied(output.annotations, changes)
                output.has_annotated = True
                self._note_new(job)

    def log(self, job: ClaimedJob, level: int, logger: str, message: str) -> None:
        """Hold a log line of an attempt."""
        at, level, name, text = self._storage.now(), kept_level(level), kept_name(logger), kept_line(message)
        with self._lock:
            output = self._output_of(job)
            # One line more than is kept shows that there were more.
            if output is None or output.logged > self._max_lines:
                return
            number = job.fence * PLACES + output.logged
            output.logged += 1
            output.lines.append(LogLine(number, at, job.attempt, level, name, text))
            self._note_new(job)

    def _output_of(self, job: ClaimedJob) -> _AttemptOutput | None:
        """Return the output of this attempt; None if a later attempt of the same job runs here already."""
        output = self.outputs.get(job.id)
        if output is not None and output.job.fence < job.fence:
            del self.outputs[job.id]
            output = None
        if output is None:
            output = self.outputs.setdefault(job.id, _AttemptOutput(job))
        return output if output.job.fence == job.fence else None

    def _note_new(self, job: ClaimedJob) -> None:
        self._new[job.id] = None
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            # A thread that outlives its attempt may outlive the node as well.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wakeup.set)

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            with self._lock:
                self._is_woken = False
            try:
                if await self.flush():
                    self._wakeup.set()
            except StorageUnavailable as error:
                self._publish_failure("storing the output of jobs", error)
                self._wakeup.set()
            await sleep(self._clock, REPORT_EVERY)

    async def flush(self, jobs: Collection[str] | None = None) -> set[str]:
        """Store the output of these jobs (default: all); return the locked jobs, whose output is kept.

        Raises StorageUnavailable; then all output is kept. A report that the store cannot keep for another reason is
        dropped, with one warning per attempt: the output of a job must not end the job or its node.
        """
        if not self._new and not self._sending.locked():
            return set()
        locked: list[AttemptReport] = []
        async with self._sending:
            # Only the output until now: a job that logs without end must not delay the endings of others.
            due = deque(id for id in list(self._new) if jobs is None or id in jobs)
            try:
                while taken := self._take(due):
                    locked += await self._send(taken)
            finally:
                self._put_back(locked)
        return {report.id for report in locked}

    async def _send(self, taken: Sequence[tuple[ClaimedJob, AttemptReport]]) -> list[AttemptReport]:
        """Store the reports; return those whose jobs are locked by another transaction."""
        locked: list[AttemptReport] = []
        try:
            written = await self._storage.report(self.node, [report for _, report in taken], self._max_lines)
        except (StorageUnavailable, asyncio.CancelledError):
            self._put_back(report for _, report in taken)
            raise
        except Exception as error:
            if len(taken) == 1:
                self._drop_report(taken[0][0], error)
                return locked
            # One of them fails the whole list, so send them one by one.
            for place, each in enumerate(taken):
                try:
                    locked += await self._send([each])
                except BaseException:
                    self._put_back(locked)
                    self._put_back(report for _, report in taken[place + 1 :])
                    raise
            return locked
        for (job, report), was_written in zip(taken, written, strict=True):
            if was_written is None:
                locked.append(report)
            elif not was_written:
                # Another node owns the job, or it is final: the output of this attempt is dropped.
                self.forget([job])
            elif report.progress is not None and self._bus.has_listener(JobProgressed):
                self._bus.publish(
                    JobProgressed(
                        at=report.progress.at,
                        job_id=job.id,
                        task=job.task,
                        queue=job.queue,
                        attempt=job.attempt,
                        fraction=report.progress.fraction,
                        message=report.progress.message,
                    )
                )
        return locked

    def _drop_report(self, job: ClaimedJob, error: Exception) -> None:
        with self._lock:
            output = self.outputs.get(job.id)
            if output is None or output.job.fence != job.fence or output.is_warned:
                return
            output.is_warned = True
        at, summary = self._clock.now(), summarize_error(error)
        self._bus.publish(ReportDropped(at=at, job_id=job.id, task=job.task, attempt=job.attempt, error=summary))

    def _take(self, due: deque[str]) -> list[tuple[ClaimedJob, AttemptReport]]:
        """Take the next reports of the due jobs, as much as one commit stores."""
        taken: list[tuple[ClaimedJob, AttemptReport]] = []
        characters = 0
        with self._lock:
            while due and characters < CHARACTERS_AT_ONCE:
                id = due.popleft()
                if id in self._new:
                    del self._new[id]
                    output = self.outputs[id]
                    lines, output.lines = output.lines, []
                    progress, output.progress = output.progress, None
                    annotations = output.annotations if output.has_annotated else None
                    output.has_annotated = False
                    # A line that was logged while another was being added comes before it in the list.
                    lines.sort(key=attrgetter("number"))
                    taken.append((output.job, AttemptReport(id, output.job.fence, progress, tuple(lines), annotations)))
                    characters += sum(len(line.message) for line in lines)
        return taken

    def _put_back(self, reports: Iterable[AttemptReport]) -> None:
        with self._lock:
            for report in reports:
                output = self.outputs.get(report.id)
                if output is not None and output.job.fence == report.fence:
                    output.lines[:0] = report.lines
                    output.progress = output.progress or report.progress
                    output.has_annotated |= report.annotations is not None
                    self._new[report.id] = None

    def forget(self, jobs: Iterable[ClaimedJob]) -> None:
        """Drop the output of these attempts, which have ended; that of a later attempt of the same job stays."""
        with self._lock:
            for job in jobs:
                output = self.outputs.get(job.id)
                if output is not None and output.job.fence == job.fence:
                    del self.outputs[job.id]
                    self._new.pop(job.id, None)

    def drop(self) -> None:
        """Drop all output, because other nodes own the jobs now."""
        with self._lock:
            self.outputs.clear()
            self._new.clear()


class _AttemptOutput:
    """The output of one attempt that is not stored yet, and how many lines it has logged in all."""

    __slots__ = ("annotations", "has_annotated", "is_warned", "job", "lines", "logged", "progress")

    def __init__(self, job: ClaimedJob) -> None:
        self.job = job
        self.logged = 0
        self.lines: list[LogLine] = []
        self.progress: Progress | None = None
        # All of the job, and whether they differ from the stored ones.
        self.annotations: dict[str, Annotation] = job.annotations or {}
        self.has_annotated = False
        self.is_warned = False
