"""Jobs in a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.tasks.handle import JobStatus


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in a list: its status, its headers, and its payload as it is stored: JSON, or encoded."""

    status: JobStatus
    payload: str
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ListedPage:
    """A page of jobs; `next` is the `before` of the next page, None at the end.

    A page that `is_cut` ended before it was full because five thousand jobs were read for it; the next page may have
    more.
    """

    jobs: Sequence[ListedJob]
    next: str | None
    is_cut: bool = False
