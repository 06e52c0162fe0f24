"""Reports of running attempts: their progress, annotations and log lines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import astuple

from headgate.jobs.identity import JobId
from headgate.jobs.report import AttemptReport, LogLine, too_many
from headgate.storage.driver import Transaction
from headgate.storage.procedures.finish import AttemptId, still_running
from headgate.storage.stored_rows import RowDecoder


class _Reported(msgspec.Struct):
    id: JobId
    fence: int


_LINES = RowDecoder(LogLine, "log line")
_REPORTED = RowDecoder(_Reported, "job")


async def report(
    tx: Transaction, node: str, reports: Sequence[AttemptReport], most_lines: int
) -> Sequence[bool | None]:
    """Store what running attempts report; False for each that is not running under this node and fence.

    None, as from `finish`, is for each that was not stored and has to be tried again.

    The first `most_lines` log lines of a job are stored, over all its attempts, and a line that says that there
    were more. To repeat it changes nothing.
    """
    found = await tx.fetch(_REPORTED, "lock_reported", node=node, reported=reports)
    locked = {(row.id, row.fence) for row in found}
    kept = [each for each in reports if (each.id, each.fence) in locked]
    progress_rows = [(each.id, each.progress) for each in kept if each.progress is not None]
    if progress_rows:
        await tx.execute("set_progress", reported=progress_rows)
    annotation_rows = [(each.id, each.annotations) for each in kept if each.annotations is not None]
    if annotation_rows:
        await tx.execute("set_annotations", reported=annotation_rows)
    lines = [(each.id, *astuple(line)) for each in kept for line in each.lines]
    if lines:
        await tx.execute("keep_lines", logged=lines, most=most_lines, marker=too_many(most_lines))
    written: dict[AttemptId, bool | None] = dict.fromkeys(locked, True)
    if not tx.has_one_writer:
        # Attempts that are still running, but could not be locked.
        missing = {(each.id, each.fence) for each in reports} - locked
        written |= dict.fromkeys(await still_running(tx, node, missing))
    return [written.get((each.id, each.fence), False) for each in reports]


async def logs(
    tx: Transaction, job_id: str, *, after: int = 0, count: int = 100, newest: bool = False, level: int = 0
) -> Sequence[LogLine]:
    """Return the log lines of a job, oldest first: the first `count` after number `after`, or the `newest`.

    Lines below `level` are left out.
    """
    statement = "logs_newest" if newest else "logs_oldest"
    lines = await tx.fetch(_LINES, statement, id=job_id, after=after, count=count, level=level)
    return lines[::-1] if newest else lines
