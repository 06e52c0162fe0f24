"""What jobs have logged and say of themselves, and what people did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.jobs.report import LogLine, Report, too_many
from headgate.storage.json_text import as_json
from headgate.storage.postgres.database import Session


async def report(session: Session, node: str, reports: Sequence[Report], most_lines: int) -> dict[str, bool | None]:
    """Keep what running attempts say, inside a transaction.

    The ids of those that still are the node's; with None where somebody else has locked the job.
    """
    rows = await session.fetch(
        "lock_reported", node=node, ids=[each.id for each in reports], fences=[each.fence for each in reports]
    )
    running = {row[0] for row in rows}
    said = [each for each in reports if each.id in running and each.progress is not None]
    if said:
        await session.execute(
            "set_progress", ids=[each.id for each in said], progress=[as_json(each.progress) for each in said]
        )
    lines = [(each.id, line) for each in reports if each.id in running for line in each.lines]
    if lines:
        await session.execute(
            "keep_lines",
            jobs=[job for job, _ in lines],
            numbers=[line.number for _, line in lines],
            at=[line.at for _, line in lines],
            attempts=[line.attempt for _, line in lines],
            levels=[line.level for _, line in lines],
            loggers=[line.logger for _, line in lines],
            messages=[line.message for _, line in lines],
            most=most_lines,
            marker=too_many(most_lines),
        )
    missing = {each.id: each.fence for each in reports if each.id not in running}
    busy: Sequence[Any] = await session.fetch("running_of", node=node, ids=list(missing)) if missing else ()
    return dict.fromkeys(running, True) | {row["id"]: None for row in busy if missing[row["id"]] == row["fence"]}


async def logs(session: Session, job_id: str, after: int, count: int, *, newest: bool) -> list[LogLine]:
    """What a job has logged, oldest first."""
    rows = await session.fetch("last_logs" if newest else "logs", id=job_id, after=after, count=count)
    lines = [LogLine(*row) for row in rows]
    return lines[::-1] if newest else lines
