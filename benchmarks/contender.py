"""An engine on PostgreSQL, as the questions about it need one: it stores jobs that carry a number, and runs them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import ClassVar, Protocol

from benchmarks.board import Board


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker is to do: so many jobs at once (0: as many as it takes), which sleep for `work` seconds if they are
    those of tenants; and of each tenant `count` in any `per` seconds.
    """

    slots: int = 100
    count: int = 0
    per: int = 0
    work: float = 0.0


class Contender(Protocol):
    """One engine, installed as its documentation says. A worker has a board, on which its handlers write."""

    ended: ClassVar[str]
    """SQL: how many jobs are recorded as succeeded."""

    def __init__(self, url: str, load: Load, board: Board | None = None) -> None: ...

    async def install(self) -> None:
        """Make its tables, before it is opened for the first time."""
        ...

    def open(self) -> AbstractAsyncContextManager[None]:
        """Connect as a program does that only enqueues, with up to 64 tasks at once."""
        ...

    async def enqueue(self, number: int) -> None:
        """Store one job that does nothing."""
        ...

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Store jobs that do nothing, in the way that it has for many."""
        ...

    async def enqueue_for(self, jobs: Sequence[tuple[int, str]]) -> None:
        """Store jobs of tenants."""
        ...

    def work(self) -> None:
        """Run jobs until the process gets a signal to end."""
        ...


NAMES = {
    "headgate": "benchmarks.headgate_contender:HeadgateContender",
    "raw": "benchmarks.peers.raw_postgres:RawPostgres",
    "procrastinate": "benchmarks.peers.procrastinate_postgres:Procrastinate",
    "pgqueuer": "benchmarks.peers.pgqueuer_postgres:Pgqueuer",
    "dbos": "benchmarks.peers.dbos_postgres:Dbos",
}


def contender(name: str, url: str, load: Load, board: Board | None = None) -> Contender:
    """The contender of that name; the others need not be installed."""
    module, _, kind = NAMES[name].partition(":")
    made: Contender = getattr(importlib.import_module(module), kind)(url, load, board)
    return made
