"""The index of tags: a row for each tag of a job, so that its jobs are found by it. Jobs without tags have none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from headgate.jobs.job import JobOptions
from headgate.storage.driver import Transaction


class Tagged(Protocol):
    """A job, as far as its tags are concerned."""

    @property
    def id(self) -> str: ...
    @property
    def options(self) -> JobOptions | None: ...


def has_tags(jobs: Iterable[Tagged]) -> bool:
    """Whether any of these jobs has tags."""
    return any(job.options is not None and job.options.tags for job in jobs)


async def add_tags(tx: Transaction, jobs: Sequence[Tagged]) -> None:
    """Store the tags of jobs that have just been stored."""
    if has_tags(jobs):
        await tx.execute("add_tags", tagged=_rows(jobs))


async def remove_tags(tx: Transaction, jobs: Sequence[Tagged]) -> None:
    """Remove the tags of jobs that are deleted, or that get other tags."""
    if has_tags(jobs):
        await tx.execute("remove_tags", tagged=_rows(jobs))


def _rows(jobs: Iterable[Tagged]) -> list[tuple[Any, ...]]:
    return [(tag, job.id) for job in jobs if job.options is not None for tag in job.options.tags]
