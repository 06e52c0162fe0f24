"""What jobs have logged, and what people did, in the memory storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from headgate.jobs.audit import AuditEntry, AuditFilter, AuditLevel, Deed
from headgate.jobs.report import LogLine, Report, too_many
from headgate.storage.memory.job import Job
from headgate.storage.memory.lane import Lane


class Trail:
    """The lines by job, in the order of their numbers, and the entries in the order in which they came."""

    def __init__(self) -> None:
        self._lines: dict[str, list[LogLine]] = {}
        self._entries: dict[int, AuditEntry] = {}
        self._of_jobs: dict[str, list[int]] = {}
        self._last = 0

    def note(self, deed: Deed | None, at: int, job: Job[Lane] | None = None) -> None:
        """Keep what was done; to a job, if it is audited in full."""
        if deed is None or (job is not None and job.new.audit < AuditLevel.FULL):
            return
        self._last += 1
        deed = deed.cut()
        self._entries[self._last] = AuditEntry(
            self._last, at, deed.actor, deed.action, deed.kind, deed.subject, deed.detail
        )
        if deed.kind == "job":
            self._of_jobs.setdefault(deed.subject, []).append(self._last)

    def entries(self, filter: AuditFilter) -> Iterator[AuditEntry]:
        """What passes the filter, newest first."""
        for entry in reversed(self._entries.values()):
            if (
                filter.kind in (None, entry.kind)
                and filter.subject in (None, entry.subject)
                and filter.actor in (None, entry.actor)
                and (filter.before is None or entry.number < filter.before)
            ):
                yield entry

    def keep_lines(self, report: Report, most: int) -> None:
        """Keep the lines of a report that are not kept yet, as many as there may be."""
        if not report.lines:
            return
        kept = self._lines.setdefault(report.id, [])
        while kept and kept[-1].number >= report.lines[0].number:
            # A repeat, after which there may be more.
            kept.pop()
        for line in report.lines[: max(0, most + 1 - len(kept))]:
            kept.append(line if len(kept) < most else replace(line, message=too_many(most)))

    def lines(self, job_id: str, after: int, count: int, *, newest: bool) -> Sequence[LogLine]:
        kept = [line for line in self._lines.get(job_id, ()) if line.number > after]
        return kept[-count:] if newest else kept[:count]

    def forget(self, job_id: str) -> None:
        """A job is pruned."""
        self._lines.pop(job_id, None)
        for number in self._of_jobs.pop(job_id, ()):
            del self._entries[number]

    def prune(self, before: int, count: int) -> int:
        """Forget what was done to anything but jobs; how much."""
        old = [each.number for each in self._entries.values() if each.kind != "job" and each.at < before][:count]
        for number in old:
            del self._entries[number]
        return len(old)
